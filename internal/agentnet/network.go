// Package agentnet is the agents' network: the registry, the mail, the work queues and the claims of files
// that agents of several projects and computers share.
//
// A computer with a hub is part of two networks under the same GUIDs: that of a cluster, and that of its hub's own
// bus, which its agents use while the cluster cannot be reached. Each package below uses one bus; this package
// decides which of the two a call uses:
//
//   - Mail between agents of the computer is in the inboxes of its hub, whether the
//     cluster can be reached or not. Other mail is in the inboxes of the cluster, and
//     until it can be put there in the outbox of the hub's bus. So all messages of one
//     agent to another use the same inbox, and stay in order.
//   - An item of work is entered into the hub's records first. It is forwarded to the
//     cluster as soon as that can be reached, unless an agent of the computer has claimed
//     it meanwhile.
//   - Claims of files are on the hub's bus where there is one: they are about the files of one computer.
//   - Both registries have an entry of each agent. That of the cluster counts as long as
//     it can be reached.
//
// Everything that several computers compare is in the server's time, so a computer with a
// wrong clock neither appears offline nor sees others as offline.
package agentnet

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/parleyhub/parley/internal/agentnet/claims"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/bus"
)

// BusConfig describes one bus of the network and who uses it.
type BusConfig = store.Config

// Config describes the network and who uses it. Zero values are the specification's defaults.
type Config struct {
	BusConfig
	// DialLocal connects to the bus of this computer's hub, which its agents use while the network
	// cannot be reached; nil for none. The Network closes the Bus.
	DialLocal func(context.Context) (*bus.Bus, error)
	// OnDemand has the Network connect when Usable, Notice, Status or Register is called first: a hub serves many
	// projects whose agents never register.
	OnDemand bool
	// Hub tells the user's hubs apart, for the identities that Memberships remember in StateDir; nil if they remember none.
	Hub func(context.Context) (string, error)

	// MailArrived is called with the recipient of each message on the bus of a hub that awaits first mail; it must not block.
	MailArrived func(guid string)

	localAdmission *store.Admission // the admission to the hub's own bus
}

// local is the configuration of the hub's bus. Identities are taken from the network, or from the state directory.
func (c Config) local() store.Config {
	l := c.BusConfig
	l.Dial, l.Optional, l.Replicas = c.DialLocal, true, 1
	l.GUID, l.StateDir, l.Admission, l.ThroughHub = "", "", nil, false
	l.Logger = l.Logger.With("bus", "hub")
	return l
}

// backend is the network on one bus.
type backend struct {
	store    *store.Store
	registry *registry.Registry
	mail     *mail.Service
	work     *work.Service
	claims   *claims.Service
}

func newBackend(cfg store.Config) *backend {
	s := store.New(cfg)
	reg := registry.New(s)
	be := &backend{s, reg, mail.New(reg), work.New(reg), claims.New(reg)}
	if !cfg.Confined() { // a confined agent may not remove anything
		s.OnFirstConnect(func(*bus.Bus) { s.Go(be.collect) })
	}
	if cfg.Admission == nil { // an admitted agent's hub does, as long as its bus can be reached
		s.OnFirstConnect(func(b *bus.Bus) { s.Go(func(ctx context.Context) { be.work.WatchLeases(ctx, b) }) })
	}
	return be
}

// Network is a process's access to the agents' network. It is safe for concurrent use.
type Network struct {
	cfg   Config
	log   *slog.Logger
	main  *backend // of Config.Dial
	local *backend // of Config.DialLocal; nil without

	outbox    outbox
	workKick  chan struct{} // has a value when there may be work to forward
	neighbors sync.Map      // GUIDs that have had mail on the local bus
	control   control
	begun     sync.Once // connects, or closes before that

	mu      sync.Mutex
	agents  map[*Agent]struct{}
	closing bool
}

// Open connects to the network in the background, unless it is OnDemand, and returns at once.
func Open(cfg Config) *Network {
	cfg.BusConfig = cfg.WithDefaults()
	cfg.RememberGUIDs = cfg.DialLocal != nil
	main := newBackend(cfg.BusConfig)
	n := &Network{cfg: cfg, log: main.store.Log(), main: main, agents: map[*Agent]struct{}{},
		outbox: outbox{kick: make(chan struct{}, 1)}, workKick: make(chan struct{}, 1)}
	if cfg.DialLocal != nil {
		n.local = newBackend(cfg.local())
		n.local.store.Prepare(ensureOutbox)
	}
	if !cfg.OnDemand {
		n.begin()
	}
	return n
}

// begin connects in the background, unless the Network does already, or is closed.
func (n *Network) begin() {
	n.begun.Do(func() {
		if n.forwards() {
			n.local.store.OnFirstConnect(n.watchKicks)
			n.main.store.Go(func(ctx context.Context) { n.forward(ctx, n.outbox.kick, n.forwardMail) })
			n.main.store.Go(func(ctx context.Context) { n.forward(ctx, n.workKick, n.forwardWork) })
		}
		if n.local != nil {
			n.local.store.Start()
		}
		n.main.store.Start()
	})
}

// connectedLocal returns the hub's bus, or an error if there is none or it cannot be used now.
func (n *Network) connectedLocal() (*bus.Bus, error) {
	if n.local == nil {
		return nil, store.ErrNotYet
	}
	return n.local.store.Connected()
}

// Ready blocks until the network can be used. When ctx ends first it returns why it cannot.
func (n *Network) Ready(ctx context.Context) error { return n.main.store.Ready(ctx) }

// Usable is Ready, but also returns nil once it is known that the network cannot be
// reached and the hub's bus can be used instead.
func (n *Network) Usable(ctx context.Context) error {
	n.begin()
	if n.local == nil {
		return n.Ready(ctx)
	}
	for {
		changed, localChanged := n.main.store.Changed(), n.local.store.Changed()
		_, err := n.main.store.Connected()
		if err == nil || errors.Is(err, store.ErrClosed) {
			return err
		}
		if _, localErr := n.connectedLocal(); localErr == nil && !errors.Is(err, store.ErrNotYet) {
			return nil
		}
		select {
		case <-changed:
		case <-localChanged:
		case <-ctx.Done():
			return err
		}
	}
}

// Notice tells agents that the link to the network is down and what that means. It is empty
// while the link is up, and where no hub's bus can be used meanwhile.
func (n *Network) Notice() string {
	n.begin()
	if _, err := n.main.store.Connected(); err == nil || errors.Is(err, store.ErrClosed) {
		return ""
	}
	if _, err := n.connectedLocal(); err != nil {
		return ""
	}
	return "The link to the agents' network is down. The agents of this computer go on among themselves: they find each other, " +
		"their mail arrives, and they share the work that is submitted here. Mail for others is kept and forwarded in order once the link " +
		"is back; so is work that nobody here has begun."
}

// Status is the state of a Network.
type Status struct {
	Connected bool
	Problem   error // why it is not connected
	Agents    int   // registered by this process
	Inboxes   store.Inboxes
	Bus       *bus.Info // nil while it is not connected
	// Local reports whether this computer's agents can use the bus of its hub while the network cannot be reached.
	Local bool
}

// Status returns the state of the Network. It does not block.
func (n *Network) Status() Status {
	n.begin()
	b, err := n.main.store.Connected()
	_, localErr := n.connectedLocal()
	st := Status{Connected: err == nil, Problem: err, Inboxes: n.main.mail.Inboxes(), Local: localErr == nil}
	n.mu.Lock()
	st.Agents = len(n.agents)
	n.mu.Unlock()
	if b != nil {
		info := b.Info()
		st.Bus = &info
	}
	return st
}

// Close deregisters this process's agents as far as ctx allows, and releases everything.
func (n *Network) Close(ctx context.Context) error {
	n.mu.Lock()
	agents := slices.Collect(maps.Keys(n.agents))
	closed := n.closing
	n.mu.Unlock()
	if closed {
		return nil
	}
	for _, a := range agents {
		if _, err := a.Deregister(ctx); err != nil {
			n.log.Warn("an agent was not deregistered", "guid", a.GUID(), "error", err)
		}
	}
	n.mu.Lock()
	n.closing = true
	n.mu.Unlock()
	n.begun.Do(func() {})
	n.main.store.Stop() // it also ends what uses the local bus
	var localErr error
	if n.local != nil {
		localErr = n.local.store.Close(ctx)
	}
	return errors.Join(localErr, n.main.store.Close(ctx))
}

// Agents lists agents for people: those that agents of this user and project see.
func (n *Network) Agents(ctx context.Context, f registry.Filter) (registry.Discovery, error) {
	if err := f.Check(); err != nil {
		return registry.Discovery{}, err
	}
	return n.discover(ctx, n.main.registry.Operator(), f)
}

// discover lists the agents of both registries. Of an agent in both, the network's entry counts.
func (n *Network) discover(ctx context.Context, v registry.Viewer, f registry.Filter) (registry.Discovery, error) {
	found, err := n.main.registry.Discover(ctx, v, f)
	if n.local == nil || err != nil && !store.IsUnreachable(err) {
		return found.Limit(f), err
	}
	local, localErr := n.local.registry.Discover(ctx, v, f)
	if localErr != nil {
		return found.Limit(f), err
	}
	known := map[string]bool{}
	for _, s := range found.Agents {
		known[s.GUID] = true
	}
	for _, s := range local.Agents {
		if !known[s.GUID] {
			found.Agents = append(found.Agents, s)
		}
	}
	found.Total = len(found.Agents)
	slices.SortStableFunc(found.Agents, func(x, y registry.Summary) int {
		return store.ParseTime(y.LastHeartbeat).Compare(store.ParseTime(x.LastHeartbeat))
	})
	return found.Limit(f), nil
}

// Removals returns the audit log of the entries that the collector removed, oldest first.
func (n *Network) Removals(ctx context.Context) ([]registry.Removal, error) {
	return n.main.registry.Removals(ctx)
}

// MakeInbox creates the inbox of an agent that the server confines.
func (n *Network) MakeInbox(ctx context.Context, guid string) error {
	guid, err := store.CheckGUID("guid", guid)
	if err != nil {
		return err
	}
	b, err := n.main.store.Connected()
	if err != nil {
		return err
	}
	return store.AsError(n.main.mail.EnsureInbox(ctx, b, guid))
}

// MakeQueue creates the queue of a capability, for agents that the server confines.
func (n *Network) MakeQueue(ctx context.Context, capability string) error {
	return n.main.work.MakeQueue(ctx, capability, "")
}
