package busfinder

import (
	"cmp"
	"context"
	"errors"
	"net"
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

var errAbsent = &bus.Error{Code: bus.CodeNotRunning, Message: "the hub has gone away", Remedy: "it may be restarting: try again in a moment"}

// restOfAnybody returns how a connection without an identity rests. Nothing is asked of the hub, which grants any
// connection anew.
func (f *Finder) restOfAnybody() *bus.Rest {
	return &bus.Rest{
		After: cmp.Or(f.cfg.RestAfter, restAfter),
		Ask: func(context.Context, string) (bus.Resting, error) {
			r := &forgotten{ends: make(chan error, 1)}
			r.stop = f.cfg.Presence.OnPresence(func() { r.end(errAbsent) }) // also if it is back
			if !f.cfg.Presence.Present() {
				r.stop()
				return nil, errAbsent
			}
			return r, nil
		},
	}
}

// forgotten is a rest of which the hub knows nothing.
type forgotten struct {
	ends chan error // receives the first reason, nil for a wake
	stop func()
}

func (r *forgotten) end(why error) {
	select {
	case r.ends <- why:
	default:
	}
}

// Beat implements bus.Resting.
func (r *forgotten) Beat() error { return nil }

// Wake implements bus.Resting.
func (r *forgotten) Wake() error {
	r.end(nil)
	return nil
}

// Wait implements bus.Resting. There is no Grant yet.
func (r *forgotten) Wait() (bus.Grant, bool, error) { return bus.Grant{}, true, <-r.ends }

// Close implements bus.Resting.
func (r *forgotten) Close() error {
	r.stop()
	r.end(net.ErrClosed)
	return nil
}
