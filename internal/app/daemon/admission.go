package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/bus"
)

const (
	// maxNetworks bounds the configurations of the network that are in use at once.
	maxNetworks = 16
	// networkTimeout bounds the creation of a network's streams at its first use.
	networkTimeout = 10 * time.Second
)

// networks are agents' networks by their settings.
type networks map[dialect.NetworkJoinParams]*agentnet.Network

// admission admits agents to the agents' network on the hub's bus. For each configuration of the network it runs an
// operator, which has all rights there: it creates what agents must not create, and removes what they leave behind.
type admission struct {
	bus     *bus.Bus
	dial    func(context.Context) (*bus.Bus, error)
	cluster func(context.Context) (*bus.Bus, error) // the cluster behind the hub's link
	log     *slog.Logger

	turn      *semaphore.Weighted // its holder may use the fields below
	operators networks
	linked    networks // at the cluster; they also forward what waits on the hub's bus
	agents    *admitted
}

// openAdmission starts to admit agents to the network on the hub's bus.
func (d *daemon) openAdmission(ctx context.Context) *admission {
	const name = "parley-hub network"
	a := &admission{
		bus: d.bus, log: d.log, turn: semaphore.NewWeighted(1), operators: networks{}, linked: networks{}, agents: newAdmitted(d.bus, d.log),
		dial:    func(ctx context.Context) (*bus.Bus, error) { return d.ownNetwork(ctx, name) },
		cluster: func(ctx context.Context) (*bus.Bus, error) { return d.linkedCluster(ctx, name) },
	}
	if d.bus.Info().Leaf != nil {
		a.forward(ctx)
	}
	d.onClose(a.close)
	return a
}

// forward starts to forward to the cluster what waits on the hub's bus, if the user's
// configuration uses the link. Without it forwarding starts with the first agent.
func (a *admission) forward(ctx context.Context) {
	cfg, err := mcpConfig("")
	if err != nil {
		a.log.Warn("cannot read the user's configuration of the agents' network: forwarding to the cluster starts with the first agent", "error", err)
		return
	}
	if p := NetworkSettings(cfg); p.Via != "" {
		if err := a.inTurn(ctx, func() error { _, err := a.link(p); return err }); err != nil {
			a.log.Warn("cannot forward messages to the cluster", "error", err)
		}
	}
}

// resumeWork makes the items of work on this hub's bus available that nobody holds. It acts on the leases that ended
// while the hub was stopped, and on those that its agents held who do not come back, until ctx ends. Networks that
// agents join later watch, too.
func (d *daemon) resumeWork(ctx context.Context) {
	if !d.bus.HasNetwork() {
		return
	}
	bucket := ""
	if cfg, err := mcpConfig(""); err == nil { // without it an agent that is offline counts as one that was too slow
		bucket = cfg.CrossComputer.RegistryBucket
	}
	b, err := d.ownNetwork(ctx, "parley-hub leases")
	if err != nil {
		d.log.Warn("leases of work that end are acted on when the first agent joins", "error", err)
		return
	}
	defer func() { _ = within(time.Second, b.Close) }() // nothing is waited for
	agentnet.ResumeWork(ctx, b, bucket, d.log)
}

// Admit implements dialect.Admission.
func (a *admission) Admit(ctx context.Context, p dialect.NetworkJoinParams) (grant dialect.NetworkGrant, err error) {
	if err := a.check(p); err != nil {
		return dialect.NetworkGrant{}, err
	}
	if p.Via == dialect.ViaCluster {
		return a.admitToCluster(ctx, p)
	}
	err = a.inTurn(ctx, func() error {
		place, may, err := a.place(ctx, p)
		if err != nil {
			return err
		}
		var resting *agentnet.Network // none while there is a link
		if p.Via == "" {
			resting, err = a.operator(ctx, p)
		}
		if err != nil {
			return err
		}
		request := bus.GrantRequest{Access: bus.AccessNetwork}
		if may != nil && p.Via == "" {
			request = bus.GrantRequest{Access: bus.AccessAgent, Publish: may.Publish, Subscribe: may.Subscribe}
		}
		g, err := a.bus.Grant(ctx, request)
		if err != nil {
			return err
		}
		a.agents.add(place.GUID, place.Slot, g.User, resting)
		grant = networkGrant(place, g)
		return nil
	})
	return grant, err
}

// admitToCluster admits an agent of the network on the hub's bus to the cluster. Only this agent
// waits for the cluster: the turn is released before.
func (a *admission) admitToCluster(ctx context.Context, p dialect.NetworkJoinParams) (dialect.NetworkGrant, error) {
	var place agentnet.Admission
	var n *agentnet.Network
	err := a.inTurn(ctx, func() (err error) {
		if place, _, err = a.place(ctx, p); err != nil {
			return err
		}
		n, err = a.link(p)
		return err
	})
	if err != nil {
		return dialect.NetworkGrant{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, networkTimeout)
	defer cancel()
	if err := n.Ready(ctx); err != nil {
		return dialect.NetworkGrant{}, clusterError(err)
	}
	may, err := n.AdmitAtCluster(ctx, place, registry.AdmissionRequest{AgentType: p.AgentType, ProjectPath: p.ProjectPath})
	if err != nil {
		return dialect.NetworkGrant{}, clusterError(err)
	}
	request := bus.GrantRequest{Access: bus.AccessCluster}
	if may != nil {
		request = bus.GrantRequest{Access: bus.AccessAgent, Cluster: true, Publish: may.Publish, Subscribe: may.Subscribe}
	}
	g, err := a.bus.Grant(ctx, request)
	if err != nil {
		return dialect.NetworkGrant{}, err
	}
	return networkGrant(place, g), nil
}

func networkGrant(place agentnet.Admission, g bus.Grant) dialect.NetworkGrant {
	return dialect.NetworkGrant{BusGrant: dialect.FromGrant(g), GUID: place.GUID, Slot: place.Slot, Secret: place.Secret,
		Again: place.Reused, Control: place.Control, Mark: place.HubID}
}

// inTurn calls do while it holds the turn.
func (a *admission) inTurn(ctx context.Context, do func() error) error {
	if err := a.turn.Acquire(ctx, 1); err != nil {
		return err
	}
	defer a.turn.Release(1)
	return do()
}

// check refuses unknown and unavailable values of p.Via.
func (a *admission) check(p dialect.NetworkJoinParams) error {
	linked := a.bus.Linked()
	e, _ := errors.AsType[*bus.Error](linked)
	switch {
	case p.Via == "":
		return nil
	case p.Via != dialect.ViaHub && p.Via != dialect.ViaCluster:
		return &bus.Error{Code: bus.CodeConfig, Message: fmt.Sprintf("unknown way to the network %.80q", p.Via), Remedy: "use hub or cluster"}
	case p.Via == dialect.ViaCluster && (p.GUID == "" || p.Secret == ""):
		return &bus.Error{Code: bus.CodeConfig, Message: "an agent must join on the hub's bus before it joins at the cluster", Remedy: "join with via hub"}
	case linked != nil && (p.Via == dialect.ViaCluster || e.Code == bus.CodeUnsupported):
		return linked
	}
	return nil
}

// place admits an agent on the hub's bus, and returns the permissions of its connection. The caller holds the turn.
func (a *admission) place(ctx context.Context, p dialect.NetworkJoinParams) (agentnet.Admission, *agentnet.Permissions, error) {
	if p.Via != "" {
		if _, err := a.link(p); err != nil { // it forwards from now on
			return agentnet.Admission{}, nil, err
		}
	}
	operator, err := a.operator(ctx, p)
	if err != nil {
		return agentnet.Admission{}, nil, busError(err)
	}
	place, may, err := operator.Admit(ctx, registry.AdmissionRequest{AgentType: p.AgentType, ProjectPath: p.ProjectPath, Handle: p.Handle, GUID: p.GUID, Secret: p.Secret,
		LateInbox: p.LateInbox && p.Via == ""}, a.state)
	if err == nil && p.Via != "" {
		place.HubID, err = operator.StoreID(ctx)
	}
	return place, may, busError(err)
}

func (a *admission) state(guid string) registry.ConnectionState {
	user, known := a.agents.user(guid)
	switch {
	case !known:
		return registry.NeverConnected
	case a.bus.Admitted(user):
		return registry.Connected
	}
	return registry.Disconnected
}

// link returns the network with p's settings at the cluster, which may not be connected yet. The
// caller holds the turn.
func (a *admission) link(p dialect.NetworkJoinParams) (*agentnet.Network, error) {
	return a.open(a.linked, p, agentnet.Config{BusConfig: store.Config{Dial: a.cluster, ThroughHub: true}, DialLocal: a.dial})
}

// operator returns the operator of the network with p's settings. The caller holds the turn.
func (a *admission) operator(ctx context.Context, p dialect.NetworkJoinParams) (*agentnet.Network, error) {
	n, err := a.open(a.operators, p, agentnet.Config{BusConfig: store.Config{Dial: a.dial}})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, networkTimeout)
	defer cancel()
	return n, n.Ready(ctx)
}

// awaitFirstMail makes the inboxes of the network with p's settings on the hub's bus with their first mail from now on.
func (a *admission) awaitFirstMail(ctx context.Context, p dialect.NetworkJoinParams) error {
	return a.inTurn(ctx, func() error {
		n, err := a.operator(ctx, p)
		if err != nil {
			return err
		}
		return n.AwaitFirstMail()
	})
}

// open returns the network with p's settings, and opens it with cfg if it is not open yet.
func (a *admission) open(opened networks, p dialect.NetworkJoinParams, cfg agentnet.Config) (*agentnet.Network, error) {
	cfg.BusConfig = withSettings(cfg.BusConfig, p)
	p = settingsOf(cfg.BusConfig)
	if n := opened[p]; n != nil {
		return n, nil
	}
	if len(opened) >= maxNetworks {
		return nil, errNetworks
	}
	cfg.Logger, cfg.MailArrived = a.log, a.agents.arrived
	opened[p] = agentnet.Open(cfg)
	return opened[p], nil
}

// withSettings returns the configuration of a network with p's settings, and the defaults of what p leaves out.
func withSettings(cfg store.Config, p dialect.NetworkJoinParams) store.Config {
	seconds := func(n int) time.Duration { return time.Duration(n) * time.Second }
	cfg.Bucket, cfg.Inboxes, cfg.MaxAttempts = p.Bucket, store.Inboxes(p.Inboxes), p.MaxAttempts
	cfg.RegistryTTL, cfg.AckTimeout, cfg.DeadLetterTTL = seconds(p.RegistryTTL), seconds(p.AckTimeout), seconds(p.DeadLetterTTL)
	return cfg.WithDefaults()
}

// settingsOf returns what distinguishes the configurations of the network: agents that leave a setting out, and those that
// name its default, have the same.
func settingsOf(cfg store.Config) dialect.NetworkJoinParams {
	seconds := func(d time.Duration) int { return int(d / time.Second) }
	return dialect.NetworkJoinParams{Bucket: cfg.Bucket, Inboxes: string(cfg.Inboxes), MaxAttempts: cfg.MaxAttempts,
		RegistryTTL: seconds(cfg.RegistryTTL), AckTimeout: seconds(cfg.AckTimeout), DeadLetterTTL: seconds(cfg.DeadLetterTTL)}
}

var errNetworks = &bus.Error{Code: bus.CodeLimit, Message: fmt.Sprintf("there are %d different configurations of the agents' network in use", maxNetworks),
	Remedy: "configure it once, in ~/.nats-mcp/config.json, and restart the hub"}

// busError converts an error of the network to an error of the bus, which the socket can transmit.
func busError(err error) error {
	e, ok := errors.AsType[*store.Error](err)
	if !ok {
		return err
	}
	if b, ok := errors.AsType[*bus.Error](e.Err); ok {
		return b
	}
	code := bus.CodeLimit // an agent gives up its identity then
	switch e.Code {
	case store.ValidationError:
		code = bus.CodeConfig
	case store.ConnectionError:
		code = bus.CodeNotRunning
	case store.InternalError:
		code = bus.CodeStorage
	}
	return &bus.Error{Code: code, Message: e.Message, Remedy: e.Remedy, Err: err}
}

// clusterError is busError for the cluster behind the hub's link: other errors mean that the
// cluster does not answer.
func clusterError(err error) error {
	err = busError(err)
	e, ok := errors.AsType[*bus.Error](err)
	if !ok || e.Code == bus.CodeConfig || e.Code == bus.CodeLimit || e.Code == bus.CodeNotRunning {
		return err
	}
	return &bus.Error{Code: bus.CodeNotRunning, Message: "the agents' cluster does not answer: " + e.Message, Remedy: e.Remedy, Err: err}
}

func (a *admission) close() error {
	// The turn is never returned; without an end of the context the error is nil.
	errs := []error{a.turn.Acquire(context.Background(), 1)}
	a.agents.close()
	for _, opened := range []networks{a.linked, a.operators} {
		for _, n := range opened {
			errs = append(errs, within(busTimeout, n.Close))
		}
	}
	return errors.Join(errs...)
}
