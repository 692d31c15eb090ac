package agentnet

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/bus"
)

// Memberships are those of this process's agents in a network whose hub admits and confines each of them: each has a
// Network of its own, on the hub's bus or through the hub's link to a cluster. It is safe for concurrent use.
type Memberships struct {
	cfg   Config
	admit func(context.Context, registry.AdmissionRequest) (Admission, *bus.Bus, error)

	mu       sync.Mutex
	networks map[*Agent]joined
	closed   bool
	leaving  sync.WaitGroup // see closeLater
}

// joined is one agent's membership.
type joined struct {
	network *Network
	held    *registry.Remembered // nil if the computer does not remember the identity
}

func (j joined) close(ctx context.Context) error {
	defer j.held.Release()
	return j.network.Close(ctx)
}

// NewMemberships returns Memberships for agents of cfg's project. admit requests the admission of one and connects
// to the hub's bus for it. Nothing is connected until an agent registers; Dial of cfg is not used. With StateDir and Hub
// of cfg the computer remembers the identities.
func NewMemberships(cfg Config, admit func(context.Context, registry.AdmissionRequest) (Admission, *bus.Bus, error)) *Memberships {
	return &Memberships{cfg: cfg, admit: admit, networks: map[*Agent]joined{}}
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
	all := make([]*Network, 0, len(m.networks))
	for _, j := range m.networks {
		all = append(all, j.network)
	}
	return all
}

// Register is [Network.Register], with a connection for this agent alone.
func (m *Memberships) Register(ctx context.Context, r registry.Registration) (*Agent, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	held, err := m.remember(ctx, r)
	if err != nil {
		return nil, err
	}
	r.Known = false
	if held != nil {
		r.Kind = held.Kind()
	}
	adm, b, err := m.enter(ctx, r, held)
	if err != nil {
		held.Release()
		return nil, store.AsError(err)
	}
	j := joined{Open(m.config(adm, b)), held}
	err = j.network.Usable(ctx)
	var a *Agent
	if err == nil {
		a, err = j.network.Register(ctx, r)
	}
	if err == nil && !m.add(a, j) {
		err = store.ErrClosed
	}
	if err != nil {
		return nil, errors.Join(err, j.close(context.WithoutCancel(ctx)))
	}
	return a, nil
}

// remember returns the identity that this computer remembers for an agent. Without it the agent gets one that the hub
// chooses, which takes an offline agent to be live for a while after a crash. The error is for an agent that must be known, and a shortage,
// after which the identity is there again.
func (m *Memberships) remember(ctx context.Context, r registry.Registration) (*registry.Remembered, error) {
	if m.cfg.StateDir == "" || m.cfg.Hub == nil {
		return nil, m.unknown(r)
	}
	hub, err := m.cfg.Hub(ctx)
	var held *registry.Remembered
	if err == nil {
		held, err = registry.Remember(ctx, m.cfg.WithDefaults(), hub, r)
	}
	switch {
	case err != nil && (r.Known || statefile.IsShortage(err)):
		return nil, store.AsError(err)
	case err != nil:
		m.log().Warn("the agent's identity is not remembered on this computer", "error", err)
	}
	return held, nil
}

// unknown is the error for an agent that must be known where nothing is remembered.
func (m *Memberships) unknown(r registry.Registration) error {
	if !r.Known {
		return nil
	}
	return &store.Error{Code: store.NotFoundError, Message: "This computer remembers no agents.", Remedy: "Register without it."}
}

// Describe is [Agent.Describe]. The computer remembers a session's identity for its role, so that another conversation is not that.
func (m *Memberships) Describe(ctx context.Context, a *Agent, r registry.Registration) (registry.Entry, error) {
	before := r.WithType(a.Entry().AgentType)
	e, err := a.Describe(ctx, r)
	if err != nil || r.SameRole(before) {
		return e, err
	}
	if err := m.heldBy(a).KeepUnder(r.Handle); err != nil {
		m.log().Warn("the agent's role is not remembered on this computer", "guid", a.GUID(), "error", err)
	}
	return e, nil
}

// Converse notes which conversation of its program an agent is, so that it has the same identity when it comes back. It reports
// true if this computer remembers another one for the conversation of the registration, which no process uses: whoever registers again with
// the conversation gets it.
func (m *Memberships) Converse(ctx context.Context, a *Agent, r registry.Registration) (elsewhere bool) {
	held := m.heldBy(a)
	if held == nil {
		return false
	}
	hub, err := m.cfg.Hub(ctx)
	if err == nil {
		elsewhere, err = held.Converse(ctx, m.cfg.WithDefaults(), hub, r)
	}
	if err != nil {
		m.log().Warn("the agent's conversation is not remembered on this computer", "guid", a.GUID(), "error", err)
	}
	return elsewhere
}

// Say remembers what an agent has registered itself as, for when its program begins anew in the same conversation.
func (m *Memberships) Say(ctx context.Context, r registry.Registration) {
	m.changeSaid(ctx, r, registry.Say)
}

// Unsay forgets that.
func (m *Memberships) Unsay(ctx context.Context, r registry.Registration) {
	m.changeSaid(ctx, r, registry.Unsay)
}

func (m *Memberships) changeSaid(ctx context.Context, r registry.Registration, change func(context.Context, store.Config, string, registry.Registration) error) {
	if m.cfg.StateDir == "" || m.cfg.Hub == nil {
		return
	}
	hub, err := m.cfg.Hub(ctx)
	if err == nil {
		err = change(ctx, m.cfg.WithDefaults(), hub, r)
	}
	if err != nil {
		m.log().Warn("what an agent has registered itself as is not remembered on this computer", "agentType", r.AgentType, "error", err)
	}
}

// Said returns the registration of an agent that is registered by itself as it had registered itself in that conversation; ok is false if
// it had not.
func (m *Memberships) Said(ctx context.Context, r registry.Registration) (_ registry.Registration, ok bool) {
	if m.cfg.StateDir == "" || m.cfg.Hub == nil {
		return r, false
	}
	hub, err := m.cfg.Hub(ctx)
	if err != nil {
		return r, false
	}
	return registry.Said(m.cfg.WithDefaults(), hub, r)
}

// heldBy returns the remembered identity of an agent; nil if there is none.
func (m *Memberships) heldBy(a *Agent) *registry.Remembered {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.networks[a].held
}

// enter requests an admission, under the remembered identity if the hub accepts that.
func (m *Memberships) enter(ctx context.Context, r registry.Registration, held *registry.Remembered) (Admission, *bus.Bus, error) {
	request := registry.AdmissionRequest{AgentType: cmp.Or(r.Kind, r.AgentType), ProjectPath: m.cfg.ProjectPath, Handle: r.Handle, LateInbox: true}
	if held == nil || held.GUID == "" {
		return m.keep(ctx, request, r, held)
	}
	request.GUID, request.Secret = held.GUID, held.Secret
	adm, b, err := m.keep(ctx, request, r, held)
	if store.CodeOf(err) == store.NotRegisteredError || bus.CodeOf(err) == bus.CodeLimit { // another agent has it by now
		m.log().Warn("the hub does not accept the remembered identity; the agent gets another one", "guid", held.GUID, "error", err)
		request.GUID, request.Secret = "", ""
		return m.keep(ctx, request, r, held)
	}
	return adm, b, err
}

// keep is admit, and remembers the admission.
func (m *Memberships) keep(ctx context.Context, request registry.AdmissionRequest, r registry.Registration, held *registry.Remembered) (Admission, *bus.Bus, error) {
	adm, b, err := m.admit(ctx, request)
	if err != nil {
		return adm, b, err
	}
	adm.Handle = store.Digest(r.Handle)
	if err := held.Keep(adm.BusAdmission, r.Handle, r.Conversation); err != nil {
		m.log().Warn("the agent's identity is not remembered on this computer", "guid", adm.GUID, "error", err)
	}
	return adm, b, nil
}

func (m *Memberships) log() *slog.Logger { return cmp.Or(m.cfg.Logger, slog.Default()) }

// config returns that of the Network of an agent that has been admitted on a hub's bus.
func (m *Memberships) config(adm Admission, b *bus.Bus) Config {
	cfg := m.cfg
	here := adm.BusAdmission
	here.HubID, here.LateInbox = "", adm.DialCluster == nil
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

func (m *Memberships) add(a *Agent, j joined) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.networks[a] = j
	}
	return !m.closed
}

// Leave deregisters an agent and closes its connection, if the network cannot be reached (later) as soon as it shows
// the agent as offline.
func (m *Memberships) Leave(ctx context.Context, a *Agent) (later bool, err error) {
	later, err = a.Deregister(ctx)
	m.mu.Lock()
	j, found := m.networks[a]
	if !later || m.closed {
		delete(m.networks, a)
	} else if found {
		m.leaving.Go(func() { m.closeLater(a, j) })
	}
	m.mu.Unlock()
	if found && !later {
		err = errors.Join(err, j.close(ctx))
	}
	return later, err
}

// closeLater closes the connection of an agent that has left. The end of the Network ends the wait, too.
func (m *Memberships) closeLater(a *Agent, j joined) {
	<-a.main.Leaving()
	m.mu.Lock()
	delete(m.networks, a)
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := j.close(ctx); err != nil {
		m.log().Debug("the connection of an agent that has left was not closed in time", "error", err)
	}
}

// closeTimeout bounds the end of a connection that nobody waits for.
const closeTimeout = 5 * time.Second

// Close deregisters all agents.
func (m *Memberships) Close(ctx context.Context) error {
	m.mu.Lock()
	networks := m.networks
	m.networks, m.closed = map[*Agent]joined{}, true
	m.mu.Unlock()
	var errs []error
	for _, j := range networks {
		errs = append(errs, j.close(ctx))
	}
	m.leaving.Wait()
	return errors.Join(errs...)
}
