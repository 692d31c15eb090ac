package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/bus"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
)

// NetworkBus is the NATS cluster that a project has configured for the agents'
// network.
func NetworkBus(cfg *mcpconfig.Config, log *slog.Logger) bus.Config {
	cross := cfg.CrossComputer
	return bus.Config{
		URL: bus.Secret(cross.ClusterURL()), Name: "agents-network " + cfg.Namespace, Logger: log,
		InboxPrefix: agentnet.InboxPrefix(cross.AgentGUID),
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
	if cfg.CrossComputer.Enabled && cfg.CrossComputer.ThroughHub {
		return d.linkedCluster(ctx, "parley-hub "+cfg.Namespace)
	}
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

// linkedCluster is the cluster that this hub is linked to.
func (d *daemon) linkedCluster(ctx context.Context, name string) (*bus.Bus, error) {
	return bus.Join(ctx, bus.Config{Name: name, Logger: d.log}, func(ctx context.Context) (bus.Grant, error) {
		return d.bus.Grant(ctx, bus.GrantRequest{Access: bus.AccessCluster})
	})
}

// NetworkSettings is what the hub is told of a project's network.
func NetworkSettings(cfg *mcpconfig.Config) dialect.NetworkJoinParams {
	cross, work := cfg.CrossComputer, cfg.WorkQueue
	p := dialect.NetworkJoinParams{Bucket: cross.RegistryBucket, Inboxes: cross.Inboxes, RegistryTTL: int(cross.RegistryTTL),
		AckTimeout: int(work.AckTimeout), MaxAttempts: int(work.MaxDeliveryAttempts), DeadLetterTTL: int(work.DeadLetterTTL)}
	if cross.Enabled && cross.ThroughHub {
		p.Via = dialect.ViaHub
	}
	return p
}

// maxNetworks bounds the configurations of the network that are in use at once.
const maxNetworks = 16

// networkPatience bounds the making of a network's streams, the first time.
const networkPatience = 10 * time.Second

// reception lets agents into the agents' network on the hub's bus. For each
// configuration of the network it has an operator, who has all rights there, makes
// what the agents must not make, and tidies up.
type reception struct {
	bus     *bus.Bus
	dial    func(context.Context) (*bus.Bus, error)
	cluster func(context.Context) (*bus.Bus, error) // behind the hub's link
	log     *slog.Logger

	turn      chan struct{} // holds the token of who may use the rest
	operators map[dialect.NetworkJoinParams]*agentnet.Network
	linked    map[dialect.NetworkJoinParams]*agentnet.Network // at the cluster, who also forward what waits here for it
	guests    map[string]string                               // the user of the last Grant, by GUID
}

func newReception(b *bus.Bus, dial, cluster func(context.Context) (*bus.Bus, error), log *slog.Logger) *reception {
	r := &reception{bus: b, dial: dial, cluster: cluster, log: log, turn: make(chan struct{}, 1),
		operators: map[dialect.NetworkJoinParams]*agentnet.Network{}, linked: map[dialect.NetworkJoinParams]*agentnet.Network{}, guests: map[string]string{}}
	r.turn <- struct{}{}
	return r
}

// forward has what waits on the hub's bus for the cluster forwarded from the start on,
// whether an agent comes or not, where the user's configuration goes through the link.
func (r *reception) forward(ctx context.Context) {
	cfg, err := mcpConfig("")
	if err != nil {
		r.log.Warn("the user's configuration of the agents' network cannot be read: what waits for the cluster is forwarded when an agent comes", "error", err)
		return
	}
	if p := NetworkSettings(cfg); p.Via != "" {
		if err := r.inTurn(ctx, func() error { _, err := r.link(p); return err }); err != nil {
			r.log.Warn("what waits for the cluster is not forwarded", "error", err)
		}
	}
}

// Admit implements dialect.Admission.
func (r *reception) Admit(ctx context.Context, p dialect.NetworkJoinParams) (grant dialect.NetworkGrant, err error) {
	if err := r.check(p); err != nil {
		return dialect.NetworkGrant{}, err
	}
	if p.Via == dialect.ViaCluster {
		return r.receiveAtCluster(ctx, p)
	}
	err = r.inTurn(ctx, func() error {
		place, may, err := r.place(ctx, p)
		if err != nil {
			return err
		}
		request := bus.GrantRequest{Access: bus.AccessNetwork}
		if may != nil && p.Via == "" {
			request = bus.GrantRequest{Access: bus.AccessAgent, Publish: may.Publish, Subscribe: may.Subscribe}
		}
		g, err := r.bus.Grant(ctx, request)
		if err != nil {
			return err
		}
		r.guests[place.GUID] = g.User
		grant = networkGrant(place, g)
		return nil
	})
	return grant, err
}

// receiveAtCluster lets an agent that has a place on the hub's bus through the link. Nobody
// waits for the cluster but the agent.
func (r *reception) receiveAtCluster(ctx context.Context, p dialect.NetworkJoinParams) (dialect.NetworkGrant, error) {
	var place agentnet.Place
	var n *agentnet.Network
	err := r.inTurn(ctx, func() (err error) {
		if place, _, err = r.place(ctx, p); err != nil {
			return err
		}
		n, err = r.link(p)
		return err
	})
	if err != nil {
		return dialect.NetworkGrant{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, networkPatience)
	defer cancel()
	if err := n.Ready(ctx); err != nil {
		return dialect.NetworkGrant{}, clusterRefusal(err)
	}
	may, err := n.Host(ctx, place, agentnet.Arrival{AgentType: p.AgentType, ProjectPath: p.ProjectPath})
	if err != nil {
		return dialect.NetworkGrant{}, clusterRefusal(err)
	}
	request := bus.GrantRequest{Access: bus.AccessCluster}
	if may != nil {
		request = bus.GrantRequest{Access: bus.AccessAgent, Cluster: true, Publish: may.Publish, Subscribe: may.Subscribe}
	}
	g, err := r.bus.Grant(ctx, request)
	if err != nil {
		return dialect.NetworkGrant{}, err
	}
	return networkGrant(place, g), nil
}

func networkGrant(place agentnet.Place, g bus.Grant) dialect.NetworkGrant {
	return dialect.NetworkGrant{BusGrant: dialect.FromGrant(g), GUID: place.GUID, Slot: place.Slot, Secret: place.Secret,
		Again: place.Again, Desk: place.Desk, Mark: place.Mark}
}

// inTurn does something that nobody else does meanwhile.
func (r *reception) inTurn(ctx context.Context, do func() error) error {
	select {
	case <-r.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { r.turn <- struct{}{} }()
	return do()
}

// check refuses ways to the network that there are not.
func (r *reception) check(p dialect.NetworkJoinParams) error {
	linked := r.bus.Linked()
	e, _ := errors.AsType[*bus.Error](linked)
	switch {
	case p.Via == "":
		return nil
	case p.Via != dialect.ViaHub && p.Via != dialect.ViaCluster:
		return &bus.Error{Code: bus.CodeConfig, Message: fmt.Sprintf("unknown way to the network %.80q", p.Via), Remedy: "use hub or cluster"}
	case p.Via == dialect.ViaCluster && (p.GUID == "" || p.Secret == ""):
		return &bus.Error{Code: bus.CodeConfig, Message: "who the agent is, is asked on the hub's bus first", Remedy: "join with via hub"}
	case linked != nil && (p.Via == dialect.ViaCluster || e.Code == bus.CodeUnsupported):
		return linked
	}
	return nil
}

// place is an agent's on the hub's bus, with what its connection there may do. It is for
// who has the turn.
func (r *reception) place(ctx context.Context, p dialect.NetworkJoinParams) (agentnet.Place, *agentnet.Permissions, error) {
	if p.Via != "" {
		if _, err := r.link(p); err != nil { // it forwards from now on
			return agentnet.Place{}, nil, err
		}
	}
	operator, err := r.operator(ctx, p)
	if err != nil {
		return agentnet.Place{}, nil, refusal(err)
	}
	place, may, err := operator.Receive(ctx, agentnet.Arrival{AgentType: p.AgentType, ProjectPath: p.ProjectPath, GUID: p.GUID, Secret: p.Secret}, r.attendance)
	if err == nil && p.Via != "" {
		place.Mark, err = operator.Mark(ctx)
	}
	return place, may, refusal(err)
}

// link returns who is at the cluster for the network as it is configured. It may not have
// been reached yet. It is for who has the turn.
func (r *reception) link(p dialect.NetworkJoinParams) (*agentnet.Network, error) {
	p = p.Settings()
	if n := r.linked[p]; n != nil {
		return n, nil
	}
	if len(r.linked) >= maxNetworks {
		return nil, errNetworks
	}
	cfg := r.config(p)
	cfg.Dial, cfg.DialLocal, cfg.ThroughHub = r.cluster, r.dial, true
	n := agentnet.Open(cfg)
	r.linked[p] = n
	return n, nil
}

func (r *reception) attendance(guid string) agentnet.Attendance {
	user, known := r.guests[guid]
	switch {
	case !known:
		return agentnet.Unknown
	case r.bus.Admitted(user):
		return agentnet.Attends
	}
	return agentnet.Departed
}

// operator returns the operator of the network as it is configured.
func (r *reception) operator(ctx context.Context, p dialect.NetworkJoinParams) (*agentnet.Network, error) {
	p = p.Settings()
	operator := r.operators[p]
	if operator == nil {
		if len(r.operators) >= maxNetworks {
			return nil, errNetworks
		}
		cfg := r.config(p)
		cfg.Dial = r.dial
		operator = agentnet.Open(cfg)
		r.operators[p] = operator
	}
	ctx, cancel := context.WithTimeout(ctx, networkPatience)
	defer cancel()
	return operator, operator.Ready(ctx)
}

var errNetworks = &bus.Error{Code: bus.CodeLimit, Message: fmt.Sprintf("there are %d different configurations of the agents' network in use", maxNetworks),
	Remedy: "configure it once, in ~/.nats-mcp/config.json, and restart the hub"}

// config is that of a network without its bus.
func (r *reception) config(p dialect.NetworkJoinParams) agentnet.Config {
	seconds := func(n int) time.Duration { return time.Duration(n) * time.Second }
	return agentnet.Config{Logger: r.log, Bucket: p.Bucket, Inboxes: agentnet.Inboxes(p.Inboxes), RegistryTTL: seconds(p.RegistryTTL),
		AckTimeout: seconds(p.AckTimeout), MaxAttempts: p.MaxAttempts, DeadLetterTTL: seconds(p.DeadLetterTTL)}
}

// refusal puts an error of the network into the words of the bus, which cross the
// socket.
func refusal(err error) error {
	e, ok := errors.AsType[*agentnet.Error](err)
	if !ok {
		return err
	}
	if b, ok := errors.AsType[*bus.Error](e.Err); ok {
		return b
	}
	code := bus.CodeLimit
	if e.Code == agentnet.ValidationError {
		code = bus.CodeConfig
	}
	return &bus.Error{Code: code, Message: e.Message, Remedy: e.Remedy, Err: err}
}

// clusterRefusal is refusal for the cluster behind the hub's link. That it does not answer
// is no fault of the hub's.
func clusterRefusal(err error) error {
	err = refusal(err)
	e, ok := errors.AsType[*bus.Error](err)
	if !ok || e.Code == bus.CodeConfig || e.Code == bus.CodeLimit || e.Code == bus.CodeNotRunning {
		return err
	}
	return &bus.Error{Code: bus.CodeNotRunning, Message: "the agents' cluster does not answer: " + e.Message, Remedy: e.Remedy, Err: err}
}

func (r *reception) close() error {
	<-r.turn // for good
	var errs []error
	for _, n := range r.linked {
		errs = append(errs, within(busPatience, n.Close))
	}
	for _, operator := range r.operators {
		errs = append(errs, within(busPatience, operator.Close))
	}
	return errors.Join(errs...)
}
