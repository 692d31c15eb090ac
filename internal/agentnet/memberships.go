package agentnet

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/bus"
)

// Memberships are those of this process's agents in a network whose hub admits and confines each of them: each has a
// Network of its own, on the hub's bus or through the hub's link to a cluster. It is safe for concurrent use.
type Memberships struct {
	cfg   Config
	admit func(context.Context, registry.AdmissionRequest) (Admission, *bus.Bus, error)

	mu       sync.Mutex
	networks map[*Agent]*Network
	closed   bool
	leaving  sync.WaitGroup // see closeLater
}

// NewMemberships returns Memberships for agents of cfg's project. admit requests the admission of one and connects
// to the hub's bus for it. Nothing is connected until an agent registers; Dial and StateDir of cfg are not used.
func NewMemberships(cfg Config, admit func(context.Context, registry.AdmissionRequest) (Admission, *bus.Bus, error)) *Memberships {
	return &Memberships{cfg: cfg, admit: admit, networks: map[*Agent]*Network{}}
}

// Usable returns nil at once: only a registration connects.
func (m *Memberships) Usable(context.Context) error { return nil }

// Notice is that of any of the agents' Networks that has one: they share the hub's link.
func (m *Memberships) Notice() string {
	for _, n := range m.all() {
		if notice := n.Notice(); notice != "" {
			return notice
		}
	}
	return ""
}

// Status counts the agents that this process has registered. The rest is that of one of
// them that cannot reach its network, if there is one.
func (m *Memberships) Status() Status {
	all := m.all()
	m.mu.Lock()
	st := Status{Connected: !m.closed}
	m.mu.Unlock()
	for _, n := range all {
		if one := n.Status(); !one.Connected {
			st = one
			break
		}
	}
	st.Agents = len(all)
	return st
}

func (m *Memberships) all() []*Network {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.networks))
}

// Register is [Network.Register], with a connection for this agent alone.
func (m *Memberships) Register(ctx context.Context, r registry.Registration) (*Agent, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	adm, b, err := m.admit(ctx, registry.AdmissionRequest{AgentType: r.AgentType, ProjectPath: m.cfg.ProjectPath})
	if err != nil {
		return nil, store.AsError(err)
	}
	n := Open(m.config(adm, b))
	err = n.Usable(ctx)
	var a *Agent
	if err == nil {
		a, err = n.Register(ctx, r)
	}
	if err == nil && !m.add(a, n) {
		err = store.ErrClosed
	}
	if err != nil {
		return nil, errors.Join(err, n.Close(context.WithoutCancel(ctx)))
	}
	return a, nil
}

// config returns that of the Network of an agent that has been admitted on a hub's bus.
func (m *Memberships) config(adm Admission, b *bus.Bus) Config {
	cfg := m.cfg
	here := adm.BusAdmission
	here.HubID = ""
	cfg.Admission, cfg.DialLocal, cfg.StateDir = &here, nil, ""
	cfg.Dial = func(context.Context) (*bus.Bus, error) { return b, nil }
	if adm.DialCluster != nil {
		atCluster := adm.BusAdmission
		atCluster.Slot = registry.HubSlot(adm.GUID)
		here.Reused = false // it is only a second entry of the agent
		cfg.Admission, cfg.localAdmission = &atCluster, &here
		cfg.DialLocal, cfg.Dial, cfg.ThroughHub = cfg.Dial, adm.DialCluster, true
	}
	return cfg
}

func (m *Memberships) add(a *Agent, n *Network) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.networks[a] = n
	}
	return !m.closed
}

// Leave deregisters an agent and closes its connection, if the network cannot be reached (later) as soon as it shows
// the agent as offline.
func (m *Memberships) Leave(ctx context.Context, a *Agent) (later bool, err error) {
	later, err = a.Deregister(ctx)
	m.mu.Lock()
	n := m.networks[a]
	if !later || m.closed {
		delete(m.networks, a)
	} else if n != nil {
		m.leaving.Go(func() { m.closeLater(a, n) })
	}
	m.mu.Unlock()
	if n != nil && !later {
		err = errors.Join(err, n.Close(ctx))
	}
	return later, err
}

// closeLater closes the connection of an agent that has left. The end of the Network ends the wait, too.
func (m *Memberships) closeLater(a *Agent, n *Network) {
	<-a.main.Leaving()
	m.mu.Lock()
	delete(m.networks, a)
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := n.Close(ctx); err != nil {
		n.log.Debug("the connection of an agent that has left was not closed in time", "error", err)
	}
}

// closeTimeout bounds the end of a connection that nobody waits for.
const closeTimeout = 5 * time.Second

// Close deregisters all agents.
func (m *Memberships) Close(ctx context.Context) error {
	m.mu.Lock()
	networks := m.networks
	m.networks, m.closed = map[*Agent]*Network{}, true
	m.mu.Unlock()
	var errs []error
	for _, n := range networks {
		errs = append(errs, n.Close(ctx))
	}
	m.leaving.Wait()
	return errors.Join(errs...)
}
