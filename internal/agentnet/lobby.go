package agentnet

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/parleyhub/parley/internal/bus"
)

// Lobby is where this process's agents enter a network whose hub confines each of
// them: each has a connection of its own there, on the hub's bus or through the hub's
// link to a cluster. It is safe for concurrent use.
type Lobby struct {
	cfg   Config
	enter func(context.Context, Arrival) (Place, *bus.Bus, error)

	mu       sync.Mutex
	networks map[*Agent]*Network
	closed   bool
}

// NewLobby returns a Lobby for agents of cfg's project. enter lets one in. Nothing is
// looked for until an agent registers; of cfg, Dial and StateDir are not used.
func NewLobby(cfg Config, enter func(context.Context, Arrival) (Place, *bus.Bus, error)) *Lobby {
	return &Lobby{cfg: cfg, enter: enter, networks: map[*Agent]*Network{}}
}

// Usable returns at once: it is with each registration that it shows.
func (l *Lobby) Usable(context.Context) error { return nil }

// Notice is that of any of the agents' Networks that has one: they share the hub's link.
// On the hub's own bus there is none.
func (l *Lobby) Notice() string {
	for _, n := range l.all() {
		if notice := n.Notice(); notice != "" {
			return notice
		}
	}
	return ""
}

// Status has the agents that this process has registered, and is that of one of them
// whose network cannot be reached, if there is one.
func (l *Lobby) Status() Status {
	all := l.all()
	l.mu.Lock()
	st := Status{Connected: !l.closed}
	l.mu.Unlock()
	for _, n := range all {
		if one := n.Status(); !one.Connected {
			st = one
			break
		}
	}
	st.Agents = len(all)
	return st
}

func (l *Lobby) all() []*Network {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Values(l.networks))
}

// Register is [Network.Register], with a connection for this agent alone.
func (l *Lobby) Register(ctx context.Context, r Registration) (*Agent, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	place, b, err := l.enter(ctx, Arrival{AgentType: r.AgentType, ProjectPath: l.cfg.ProjectPath})
	if err != nil {
		return nil, connectionError(err)
	}
	cfg := l.cfg
	cfg.Place, cfg.DialLocal, cfg.StateDir = &place, nil, ""
	cfg.Dial = func(context.Context) (*bus.Bus, error) { return b, nil }
	if place.DialCluster != nil {
		cfg.DialLocal, cfg.Dial, cfg.ThroughHub = cfg.Dial, place.DialCluster, true
	}
	n := Open(cfg)
	a, err := n.firstAgent(ctx, r)
	if err == nil && l.keep(a, n) {
		return a, nil
	}
	if err == nil {
		err = errClosed
	}
	return nil, errors.Join(err, n.Close(context.WithoutCancel(ctx)))
}

func (n *Network) firstAgent(ctx context.Context, r Registration) (*Agent, error) {
	if err := n.Usable(ctx); err != nil {
		return nil, err
	}
	return n.Register(ctx, r)
}

func (l *Lobby) keep(a *Agent, n *Network) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.networks[a] = n
	}
	return !l.closed
}

// Leave deregisters an agent and gives its connection back.
func (l *Lobby) Leave(ctx context.Context, a *Agent) error {
	l.mu.Lock()
	n := l.networks[a]
	delete(l.networks, a)
	l.mu.Unlock()
	err := a.Deregister(ctx)
	if n != nil {
		err = errors.Join(err, n.Close(ctx))
	}
	return err
}

// Close deregisters all agents.
func (l *Lobby) Close(ctx context.Context) error {
	l.mu.Lock()
	networks := l.networks
	l.networks, l.closed = map[*Agent]*Network{}, true
	l.mu.Unlock()
	var errs []error
	for _, n := range networks {
		errs = append(errs, n.Close(ctx))
	}
	return errors.Join(errs...)
}
