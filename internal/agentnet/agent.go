package agentnet

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
)

// Agent is one agent of this process in the network. It is safe for concurrent use. Its methods fail with a
// NotRegisteredError once it is deregistered, or another process has its identity.
type Agent struct {
	net  *Network
	main *member
	as   registry.Registration // the first one

	unread unread

	mu        sync.Mutex
	local     *member // on the hub's bus; nil until the agent has joined that
	described bool    // since it was registered
}

// member is an agent on one bus.
type member struct {
	*registry.Agent
	of     *backend
	box    *mail.Box
	worker *work.Worker
}

func (be *backend) newMember(id *registry.Identity, r registry.Registration, o registry.AgentOptions) *member {
	a := be.registry.NewAgent(id, r, o)
	return &member{a, be, be.mail.Box(a), be.work.Worker(a)}
}

// Register enters an agent in the registry and starts its heartbeat. The agent gets the GUID and the inbox of an
// earlier agent of its kind and handle that is offline. Without the network it is entered on the hub's bus only, and in the
// network later. It blocks for requests to the server, until ctx ends.
func (n *Network) Register(ctx context.Context, r registry.Registration) (*Agent, error) {
	return n.register(ctx, r, false,
		func() (*registry.Identity, error) { return n.main.registry.TakeIdentity(ctx, r) },
		func() (*registry.Identity, error) { return n.main.registry.StoredIdentity(r) })
}

// RegisterPerson registers a person under a GUID that is always the same on this computer, with an inbox but without
// an entry in the registry: agents can answer the person, but do not discover them.
func (n *Network) RegisterPerson(ctx context.Context, handle string) (*Agent, error) {
	r := registry.Registration{Handle: handle, AgentType: "person", Scope: registry.ScopeUser, Visibility: store.Private}
	person := func() (*registry.Identity, error) { return n.main.registry.PersonIdentity(), nil }
	return n.register(ctx, r, true, person, person)
}

// RegisterWorker registers an agent that works on queues under a GUID that no other process uses. It has no entry in the
// registry, so that others do not discover it.
func (n *Network) RegisterWorker(ctx context.Context, guid, handle string) (*Agent, error) {
	r := registry.Registration{Handle: handle, AgentType: "worker", Scope: registry.ScopeUser, Visibility: store.Private}
	own := func() (*registry.Identity, error) { return n.main.registry.BorrowIdentity(guid), nil }
	return n.register(ctx, r, true, own, own)
}

// register enters an agent with the identity that take returns. While the network cannot be
// reached, it uses the identity that known returns and enters the agent on the hub's bus only;
// the agent is entered in the network once that can be reached.
func (n *Network) register(ctx context.Context, r registry.Registration, unlisted bool, take, known func() (*registry.Identity, error)) (*Agent, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	n.begin()
	_, outage := n.main.store.Connected()
	if outage != nil {
		if _, err := n.connectedLocal(); err != nil || !store.IsUnreachable(outage) {
			return nil, outage
		}
		take = known
	}
	id, err := take()
	if err != nil {
		return nil, err
	}
	a := &Agent{net: n, as: r, main: n.main.newMember(id, r, registry.AgentOptions{Unlisted: unlisted, Pending: outage != nil})}
	a.main.OnLeave(a.left)
	if n.local != nil {
		a.main.WhileActive(a.keepJoining)
	}
	if outage == nil {
		err = a.main.Enter(ctx)
	} else if err = a.joinLocal(ctx); err != nil {
		id.Unlock()
	}
	if err != nil {
		return nil, store.AsError(err)
	}
	if !n.add(a) {
		if outage != nil {
			id.Unlock()
		}
		return nil, store.ErrClosed
	}
	if outage == nil && n.local != nil {
		if err := a.joinLocal(ctx); err != nil && !store.IsUnreachable(err) {
			a.main.Log().Warn("the agent has not joined the hub's bus yet", "error", err)
		}
	}
	a.main.Start()
	message := "agent registered"
	if outage != nil {
		message = "agent registered on this computer only: the network cannot be reached"
	}
	a.main.Log().Info(message, "agentType", r.AgentType, "handle", r.Handle, "again", a.Reused())
	return a, nil
}

// add records an agent as one of this process. It reports false if the Network is closed.
func (n *Network) add(a *Agent) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.closing {
		n.agents[a] = struct{}{}
	}
	return !n.closing
}

// left is called when the agent has left the network.
func (a *Agent) left(why *store.Error) {
	a.net.mu.Lock()
	delete(a.net.agents, a)
	a.net.mu.Unlock()
	a.mu.Lock()
	local := a.local
	a.local = nil
	a.mu.Unlock()
	if local != nil {
		local.Leave(why)
	}
}

// joinLocal enters the agent on the hub's bus.
func (a *Agent) joinLocal(ctx context.Context) error {
	local := a.net.local
	if _, err := local.store.Connected(); err != nil {
		return err
	}
	id := local.registry.BorrowIdentity(a.GUID())
	if adm := a.net.cfg.localAdmission; adm != nil {
		id = local.registry.AdmittedIdentity(*adm)
	}
	m := local.newMember(id, registry.Registration{}, registry.AgentOptions{Unlisted: a.main.Unlisted(), Logger: local.store.Log()})
	m.Change(func(e *registry.Entry) { *e = a.Entry() })
	if err := m.Enter(ctx); err != nil {
		return err
	}
	m.Start()
	a.mu.Lock()
	left := a.main.Failure() != nil
	if !left {
		a.local = m
	}
	a.mu.Unlock()
	if left {
		m.Leave(store.ErrNotRegistered)
	}
	return nil
}

// keepJoining joins the hub's bus as soon as that can be reached.
func (a *Agent) keepJoining(ctx context.Context) {
	for ctx.Err() == nil && a.localMember() == nil {
		changed := a.net.local.store.Changed()
		err := a.joinLocal(ctx)
		if err == nil {
			return
		}
		if ctx.Err() == nil && !store.IsUnreachable(err) {
			a.main.Log().Warn("the agent has not joined the hub's bus yet", "error", err)
		}
		retry := time.NewTimer(store.MaxHubBackoff)
		select {
		case <-changed:
		case <-retry.C:
		case <-ctx.Done():
		}
		retry.Stop()
	}
}

// localMember returns the agent on the hub's bus, also while that cannot be reached; nil if it has not joined.
func (a *Agent) localMember() *member {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.main.Failure() != nil {
		return nil
	}
	return a.local
}

// readyLocal returns the agent on the hub's bus; nil if that cannot be used now.
func (a *Agent) readyLocal() *member {
	local := a.localMember()
	if local == nil {
		return nil
	}
	if _, err := local.Ready(); err != nil {
		return nil
	}
	return local
}

// ready returns the agent where it can work now: in the network, or while that cannot be reached on the hub's bus.
func (a *Agent) ready() (*member, error) {
	_, err := a.main.Ready()
	if err == nil {
		return a.main, nil
	}
	if local := a.readyLocal(); local != nil && store.IsUnreachable(err) {
		return local, nil
	}
	return nil, err
}

// Await blocks while a connection that has just been lost is being made again, unless another one can be used.
func (a *Agent) Await(ctx context.Context) {
	n := a.net
	if _, err := n.main.store.Connected(); err != nil && n.local != nil {
		n.local.store.Await(ctx)
		return
	}
	n.main.store.Await(ctx)
}

// use counts one use of a limit on each bus that the agent can reach, and fails with the
// first RateLimitError. Counting on one bus only would give another allowance to an agent
// that starts without the hub, or waits for the link to go down.
func (a *Agent) use(ctx context.Context, l store.Limit) error {
	var outage error
	counted := false
	for _, m := range []*member{a.localMember(), a.main} {
		if m == nil {
			continue
		}
		err := m.Use(ctx, l)
		switch {
		case err == nil:
			counted = true
		case !store.IsUnreachable(err):
			return err
		default:
			outage = err
		}
	}
	if counted {
		return nil
	}
	return outage
}

// GUID returns the agent's GUID.
func (a *Agent) GUID() string { return a.main.GUID() }

// Reused reports whether an earlier agent had the GUID: there may be mail.
func (a *Agent) Reused() bool { return a.main.Reused() }

// Entry returns what the agent publishes of itself. It does not block.
func (a *Agent) Entry() registry.Entry { return a.main.Entry() }

// SetHandle changes the agent's handle; others see it with the next heartbeat.
func (a *Agent) SetHandle(handle string) error {
	if err := store.CheckName("handle", handle); err != nil {
		return err
	}
	for _, m := range []*member{a.main, a.localMember()} {
		if m != nil {
			m.SetHandle(handle)
		}
	}
	return nil
}

// UpdatePresence changes the agent's entry at once. The status offline ends the heartbeat,
// any other begins it again.
func (a *Agent) UpdatePresence(ctx context.Context, c registry.Changes) (registry.Entry, error) {
	if err := c.Check(); err != nil {
		return registry.Entry{}, err
	}
	return a.update(ctx, false, c.Apply)
}

// Show changes the agent's status as [Agent.UpdatePresence] does, for its server: it is not counted as a change.
func (a *Agent) Show(ctx context.Context, status registry.Presence) error {
	_, err := a.update(ctx, true, registry.Changes{Status: status}.Apply)
	return err
}

// Describe replaces what the agent said when it registered. Its type stays, which is part of its identity, unless that is kept as a session's.
// The first time is not counted as a change: an agent that comes back says who it is, however soon after the last time.
func (a *Agent) Describe(ctx context.Context, r registry.Registration) (registry.Entry, error) {
	if err := r.Check(); err != nil {
		return registry.Entry{}, err
	}
	have := a.Entry().AgentType
	if r.AgentType != have && !a.isKept(r) {
		return registry.Entry{}, &store.Error{Code: store.ConflictError, Message: fmt.Sprintf("You are registered as %s already.", store.Quote(have)),
			Remedy: "Call deregister_agent first to become another type of agent, with another GUID."}
	}
	a.mu.Lock()
	first := !a.described
	a.described = true
	a.mu.Unlock()
	if a.isKept(r) && !r.SameRole(r.WithType(have)) {
		a.keepUnder(r.Handle)
	}
	return a.update(ctx, first, func(e *registry.Entry) {
		a.net.main.registry.Describe(e, r)
		if e.Status == registry.Offline {
			e.Status = registry.Active
		}
	})
}

// isKept reports whether the agent's identity is kept as that of the session that registers.
func (a *Agent) isKept(r registry.Registration) bool {
	return r.Kind != "" && r.Kind == cmp.Or(a.main.Kind(), a.as.Kind)
}

// keepUnder changes the handle under which the identity is kept, on both buses.
func (a *Agent) keepUnder(handle string) {
	for _, m := range []*member{a.main, a.localMember()} {
		if m != nil {
			m.KeepUnder(handle)
		}
	}
}

// update changes the entry in both registries. While the network cannot be reached, it
// changes that of the hub's bus; the next heartbeat changes that of the network. Unless it is free it counts as a change.
func (a *Agent) update(ctx context.Context, free bool, change func(*registry.Entry)) (registry.Entry, error) {
	at, err := a.ready()
	if err != nil {
		return registry.Entry{}, err
	}
	if !free {
		err = at.UseUpdate(ctx)
	}
	if err != nil {
		return registry.Entry{}, err
	}
	offline := a.main.Change(change)
	var localErr error
	if local := a.readyLocal(); local != nil {
		local.Change(func(e *registry.Entry) { *e = a.Entry() })
		localErr = local.Publish(ctx)
	}
	if at != a.main {
		if !offline {
			a.main.Start()
		}
		return a.Entry(), localErr
	}
	if localErr != nil {
		a.main.Log().Warn("the entry on the hub's bus is not up to date", "error", localErr)
	}
	if err := a.main.Publish(ctx); err != nil {
		return registry.Entry{}, err
	}
	return a.Entry(), nil
}

// Deregister ends the heartbeat, marks the agent as offline and ends the subscription to
// its inbox. Its entry, its GUID and its mail stay for the next agent of its kind. later is true if the network cannot
// be reached: it shows the agent as offline once it can be, unless this process has ended by then.
func (a *Agent) Deregister(ctx context.Context) (later bool, err error) {
	if local := a.localMember(); local != nil {
		if err := local.Deregister(ctx); err != nil {
			a.main.Log().Warn("the agent was not deregistered on the hub's bus", "error", err)
		}
	}
	err = a.main.Deregister(ctx)
	return a.main.Leaving() != nil, err
}

// Leave is [Agent.Deregister].
func (n *Network) Leave(ctx context.Context, a *Agent) (later bool, err error) {
	return a.Deregister(ctx)
}

// Describe is [Agent.Describe].
func (n *Network) Describe(ctx context.Context, a *Agent, r registry.Registration) (registry.Entry, error) {
	return a.Describe(ctx, r)
}

// Converse does nothing: only [Memberships] remember which conversation an agent is.
func (n *Network) Converse(context.Context, *Agent, registry.Registration) (elsewhere bool) {
	return false
}

// Say does nothing, as Converse.
func (n *Network) Say(context.Context, registry.Registration) {}

// Unsay does nothing, as Converse.
func (n *Network) Unsay(context.Context, registry.Registration) {}

// Said knows nothing, as Converse.
func (n *Network) Said(_ context.Context, r registry.Registration) (_ registry.Registration, ok bool) {
	return r, false
}

// Discover lists the agents that this one may see. To find none is no error.
func (a *Agent) Discover(ctx context.Context, f registry.Filter) (registry.Discovery, error) {
	if _, err := a.ready(); err != nil {
		return registry.Discovery{}, err
	}
	if err := f.Check(); err != nil {
		return registry.Discovery{}, err
	}
	if err := a.use(ctx, store.DiscoverLimit); err != nil {
		return registry.Discovery{}, err
	}
	return a.net.discover(ctx, a.main.Viewer(), f)
}

// Info returns another agent's entry, or the caller's own. An agent that the caller may not see is not found.
func (a *Agent) Info(ctx context.Context, guid string) (registry.Entry, registry.Liveness, error) {
	at, err := a.ready()
	if err != nil {
		return registry.Entry{}, "", err
	}
	e, live, err := at.of.registry.Info(ctx, at.Viewer(), guid)
	if local := a.readyLocal(); local != nil && at != local && store.IsNotFound(err) {
		return local.of.registry.Info(ctx, local.Viewer(), guid)
	}
	return e, live, err
}

// BroadcastOffer sends a work offer to every agent that this one sees, that is not offline
// and has all the capabilities. It counts as one broadcast, not as messages.
func (a *Agent) BroadcastOffer(ctx context.Context, o mail.Broadcast) (mail.OfferResult, error) {
	at, err := a.ready()
	if err != nil {
		return mail.OfferResult{}, err
	}
	draft, err := o.Draft(a.net.main.store.Now())
	if err != nil {
		return mail.OfferResult{}, err
	}
	if err := a.use(ctx, store.BroadcastLimit); err != nil {
		return mail.OfferResult{}, err
	}
	all, err := a.entries(ctx, at)
	if err != nil {
		return mail.OfferResult{}, store.AsError(err)
	}
	result, viewer := mail.OfferResult{SentTo: []mail.Offered{}}, a.main.Viewer()
	for _, s := range all {
		if s.GUID == a.GUID() || !viewer.Sees(s.Entry) || a.net.main.registry.Liveness(s) == registry.Gone || !o.Selects(s.Entry) {
			continue
		}
		to := mail.Offered{GUID: s.GUID, AgentType: s.AgentType, Handle: s.Handle, Hostname: s.Hostname}
		if s.Full() {
			result.Full = append(result.Full, to)
			continue
		}
		sent, err := a.deliver(ctx, s.GUID, draft)
		if err != nil {
			to.Problem = err.Error()
			result.Failed = append(result.Failed, to)
			continue
		}
		to.MessageID = sent.ID
		result.SentTo = append(result.SentTo, to)
	}
	return result, nil
}

// entries returns the entries at a bus, and those of the hub's bus that are not there.
func (a *Agent) entries(ctx context.Context, at *member) ([]*registry.StoredEntry, error) {
	b, err := at.Ready()
	if err != nil {
		return nil, err
	}
	all, err := at.of.registry.Entries(ctx, b)
	local := a.readyLocal()
	if err != nil || local == nil || local == at {
		return all, err
	}
	lb, err := local.Ready()
	if err != nil {
		return all, nil // the bus has just become unreachable
	}
	here, err := local.of.registry.Entries(ctx, lb)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, s := range all {
		known[s.GUID] = true
	}
	here = slices.DeleteFunc(slices.Clone(here), func(s *registry.StoredEntry) bool { return known[s.GUID] })
	return slices.Concat(all, here), nil
}
