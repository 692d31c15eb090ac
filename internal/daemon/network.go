package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/dialect"
	"github.com/parleyhub/parley/internal/mcpconfig"
	"github.com/parleyhub/parley/internal/mesh"
)

// NetworkBus is the NATS cluster that a project has configured for the agents'
// network.
func NetworkBus(cfg *mcpconfig.Config, log *slog.Logger) bus.Config {
	cross := cfg.CrossComputer
	return bus.Config{
		URL: bus.Secret(cross.ClusterURL()), Name: "agents-network " + cfg.Namespace, Logger: log,
		InboxPrefix: mesh.InboxPrefix(cross.AgentGUID),
		Credentials: bus.Credentials{
			User: cfg.Credentials.Username, Password: bus.Secret(cfg.Credentials.Password),
			NKeyFile: cross.NKeyFile, File: cross.CredsFile, Token: bus.Secret(cross.Token),
			CertFile: cfg.TLS.Cert, KeyFile: cfg.TLS.Key, CAFile: cfg.TLS.CA,
			TLS: cross.TLSRequired, InsecureSkipVerify: cross.InsecureSkipVerify,
		},
	}
}

// networkBus is the bus of the agents' network that a project takes part in: the
// cluster that it has configured, or this hub's own.
func (d *daemon) networkBus(ctx context.Context, cfg *mcpconfig.Config) (*bus.Bus, error) {
	if cfg.CrossComputer.Enabled {
		return bus.Open(ctx, NetworkBus(cfg, d.log))
	}
	return d.ownNetwork(ctx, "parley-hub "+cfg.Namespace)
}

func (d *daemon) ownNetwork(ctx context.Context, name string) (*bus.Bus, error) {
	return bus.Join(ctx, bus.Config{Name: name, Logger: d.log}, func(ctx context.Context) (bus.Grant, error) {
		return d.bus.Grant(ctx, bus.GrantRequest{Access: bus.AccessNetwork})
	})
}

// maxNetworks bounds the configurations of the network that are in use at once.
const maxNetworks = 16

// networkPatience bounds the making of a network's streams, the first time.
const networkPatience = 10 * time.Second

// reception lets agents into the agents' network on the hub's bus. For each
// configuration of the network it has an operator, who has all rights there, makes
// what the agents must not make, and tidies up.
type reception struct {
	bus  *bus.Bus
	dial func(context.Context) (*bus.Bus, error)
	log  *slog.Logger

	turn      chan struct{} // holds the token of who may use the rest
	operators map[dialect.NetworkJoinParams]*mesh.Network
	guests    map[string]string // the user of the last Grant, by GUID
}

func newReception(b *bus.Bus, dial func(context.Context) (*bus.Bus, error), log *slog.Logger) *reception {
	r := &reception{bus: b, dial: dial, log: log, turn: make(chan struct{}, 1),
		operators: map[dialect.NetworkJoinParams]*mesh.Network{}, guests: map[string]string{}}
	r.turn <- struct{}{}
	return r
}

// Receive implements dialect.Reception.
func (r *reception) Receive(ctx context.Context, p dialect.NetworkJoinParams) (dialect.NetworkGrant, error) {
	select {
	case <-r.turn:
	case <-ctx.Done():
		return dialect.NetworkGrant{}, ctx.Err()
	}
	defer func() { r.turn <- struct{}{} }()
	operator, err := r.operator(ctx, p)
	if err != nil {
		return dialect.NetworkGrant{}, refusal(err)
	}
	place, may, err := operator.Receive(ctx, mesh.Arrival{AgentType: p.AgentType, ProjectPath: p.ProjectPath, GUID: p.GUID, Secret: p.Secret}, r.attendance)
	if err != nil {
		return dialect.NetworkGrant{}, refusal(err)
	}
	request := bus.GrantRequest{Access: bus.AccessNetwork}
	if may != nil {
		request = bus.GrantRequest{Access: bus.AccessAgent, Publish: may.Publish, Subscribe: may.Subscribe}
	}
	grant, err := r.bus.Grant(ctx, request)
	if err != nil {
		return dialect.NetworkGrant{}, err
	}
	r.guests[place.GUID] = grant.User
	return dialect.NetworkGrant{BusGrant: dialect.FromGrant(grant), GUID: place.GUID, Slot: place.Slot, Secret: place.Secret,
		Again: place.Again, Desk: place.Desk}, nil
}

func (r *reception) attendance(guid string) mesh.Attendance {
	user, known := r.guests[guid]
	switch {
	case !known:
		return mesh.Unknown
	case r.bus.Admitted(user):
		return mesh.Attends
	}
	return mesh.Departed
}

// operator returns the operator of the network as it is configured.
func (r *reception) operator(ctx context.Context, p dialect.NetworkJoinParams) (*mesh.Network, error) {
	p.AgentType, p.ProjectPath, p.GUID, p.Secret = "", "", "", ""
	operator := r.operators[p]
	if operator == nil {
		if len(r.operators) >= maxNetworks {
			return nil, &bus.Error{Code: bus.CodeLimit, Message: fmt.Sprintf("there are %d different configurations of the agents' network in use", maxNetworks),
				Remedy: "configure it once, in ~/.nats-mcp/config.json, and restart the hub"}
		}
		seconds := func(n int) time.Duration { return time.Duration(n) * time.Second }
		operator = mesh.Open(mesh.Config{Dial: r.dial, Logger: r.log, Bucket: p.Bucket, Inboxes: mesh.Inboxes(p.Inboxes), RegistryTTL: seconds(p.RegistryTTL),
			AckTimeout: seconds(p.AckTimeout), MaxAttempts: p.MaxAttempts, DeadLetterTTL: seconds(p.DeadLetterTTL)})
		r.operators[p] = operator
	}
	ctx, cancel := context.WithTimeout(ctx, networkPatience)
	defer cancel()
	return operator, operator.Ready(ctx)
}

// refusal puts an error of the network into the words of the bus, which cross the
// socket.
func refusal(err error) error {
	e, ok := errors.AsType[*mesh.Error](err)
	if !ok {
		return err
	}
	if b, ok := errors.AsType[*bus.Error](e.Err); ok {
		return b
	}
	code := bus.CodeLimit
	if e.Category == mesh.ValidationError {
		code = bus.CodeConfig
	}
	return &bus.Error{Code: code, Message: e.Message, Remedy: e.Remedy, Err: err}
}

func (r *reception) close() error {
	<-r.turn // for good
	var errs []error
	for _, operator := range r.operators {
		errs = append(errs, within(busPatience, operator.Close))
	}
	return errors.Join(errs...)
}
