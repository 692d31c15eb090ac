package busfinder

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/bus"
)

// restAfter is the default of Config.RestAfter.
const restAfter = 10 * time.Second

// restOf returns how the connection of an agent rests that the hub has admitted on its bus.
func (f *Finder) restOf(adm store.Admission) *bus.Rest {
	return &bus.Rest{
		After: cmp.Or(f.cfg.RestAfter, restAfter),
		Ask: func(ctx context.Context, user string) (bus.Resting, error) {
			return f.rest(ctx, dialect.NetworkRestParams{GUID: adm.GUID, User: user})
		},
		Heartbeat: adm.Control + registry.HeartbeatToken,
		Failed:    registry.HeartbeatAnswers(adm.GUID),
		News:      store.InboxSubject + adm.GUID,
	}
}

// rest requests a rest from the running hub.
func (f *Finder) rest(ctx context.Context, p dialect.NetworkRestParams) (bus.Resting, error) {
	hub, err := f.cfg.Hub(ctx)
	if err != nil {
		return nil, configError(err)
	}
	socket, err := daemon.Locate(ctx, hub)
	if err != nil {
		return nil, hubError(err, hub.Socket.Path)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	r, err := client.Rest(ctx, socket, p)
	if err == nil {
		return resting{r}, nil
	}
	if answer, ok := errors.AsType[*jsonrpc.Error](err); ok && answer.Code == jsonrpc.CodeMethodNotFound { // an earlier version
		return nil, &bus.Error{Code: bus.CodeUnsupported, Message: "the running hub lets no connection rest", Err: err}
	}
	return nil, hubError(err, socket)
}

// resting is the rest of an agent.
type resting struct{ *client.Resting }

// Wait implements bus.Resting.
func (r resting) Wait() (g bus.Grant, beaten bool, err error) {
	rested, err := r.Resting.Wait()
	if err == nil {
		g, err = grantOf(rested.BusGrant)
	}
	return g, rested.Reason != dialect.RestEntry, err
}
