package agentnet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

// Registration is what an agent says of itself (REQ-TOOL-REGISTER-002).
type Registration struct {
	Handle       string
	AgentType    string
	Capabilities []string
	Scope        Scope
	// Visibility is the Network's where it is empty.
	Visibility         Visibility
	MaxConcurrentTasks int
	// HeartbeatInterval is the Network's where it is 0 (REQ-HEARTBEAT-003).
	HeartbeatInterval time.Duration
}

func (r Registration) check() error {
	if err := checkName("agent type", r.AgentType); err != nil {
		return err
	}
	if err := checkName("handle", r.Handle); err != nil {
		return err
	}
	if !slices.Contains(Scopes, r.Scope) {
		return invalid("There is no scope %s.", quote(string(r.Scope))).WithRemedy("Use user, project or cross-project.")
	}
	if r.Visibility != "" && !slices.Contains(Visibilities, r.Visibility) {
		return invalid("There is no visibility %s.", quote(string(r.Visibility))).WithRemedy("Use private, project-only, user-only or public.")
	}
	if r.MaxConcurrentTasks < 0 {
		return invalid("maxConcurrentTasks is %d.", r.MaxConcurrentTasks).WithRemedy("Use 0 for no limit, or a positive number.")
	}
	if h := r.HeartbeatInterval; h != 0 && (h < minimumHeartbeat || h > maximumHeartbeat) {
		return invalid("A heartbeat every %v is not allowed.", h).WithRemedy("Use 10 seconds to 24 hours.")
	}
	return checkCapabilities(r.Capabilities)
}

func checkCapabilities(list []string) error {
	if len(list) > maxCapabilities {
		return invalid("%d capabilities are too many.", len(list)).WithRemedy("Name at most %d.", maxCapabilities)
	}
	for _, c := range list {
		if c == "" || len(c) > maxName {
			return invalid("Invalid capability %s.", quote(c)).WithRemedy("A capability is a word of at most %d bytes, for example: typescript.", maxName)
		}
	}
	return nil
}

// Agent is one agent of this process in the network. It is safe for concurrent
// use. Its methods fail with a NotRegisteredError once it is deregistered, or
// another process has its identity.
type Agent struct {
	net      *Network
	guid     string
	identity *identity
	log      *slog.Logger
	reused   bool
	unlisted bool        // it has no entry in the registry
	mail     wait.Signal // there may be new mail

	stop context.CancelFunc
	done sync.WaitGroup
	turn chan struct{} // holds the token of who may write the entry

	mu      sync.Mutex
	entry   Entry  // as this process wants it
	unsaid  bool   // the registry may have another entry, but for the time
	seat    uint64 // the revision of the entry, 0 if it is not known
	debts   debts
	beating bool
	failure *Error // why the agent is no more
	near    *Agent // the same agent on the hub's bus; nil if there is none (yet)
	late    bool   // it is on the hub's bus only, until the network can be reached
}

// Register makes an agent known and begins its heartbeat. It is given the GUID
// and the inbox that an agent of its kind had before which is gone now
// (REQ-TOOL-REGISTER-004, REQ-TOOL-REGISTER-009).
func (n *Network) Register(ctx context.Context, r Registration) (*Agent, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	b, err := n.connected()
	if err != nil {
		return n.registerNear(ctx, r, err, func() (*identity, error) { return n.recallIdentity(r.AgentType) })
	}
	id, err := n.takeIdentity(ctx, b, r.AgentType)
	if err != nil {
		return nil, err
	}
	return n.settle(ctx, b, n.newAgent(id, r))
}

// Visit gives a person a GUID and an inbox, the same at each visit on this
// computer, without an entry in the registry: agents can answer, but do not
// find the person.
func (n *Network) Visit(ctx context.Context, handle string) (*Agent, error) {
	r := Registration{Handle: handle, AgentType: "person", Scope: ScopeUser, Visibility: Private}
	if err := r.check(); err != nil {
		return nil, err
	}
	b, err := n.connected()
	if err != nil {
		return n.registerNear(ctx, r, err, func() (*identity, error) { return n.person(), nil })
	}
	a := n.newAgent(n.person(), r)
	a.unlisted = true
	return n.settle(ctx, b, a)
}

// settle makes an agent with an identity take its place.
func (n *Network) settle(ctx context.Context, b *bus.Bus, a *Agent) (*Agent, error) {
	id := a.identity
	if err := a.enter(ctx, b); err != nil {
		if releaseErr := id.release(ctx, b); releaseErr != nil {
			n.log.Warn("an identity that was not used was not released", "guid", id.guid, "error", releaseErr)
		}
		return nil, connectionError(err)
	}
	if !n.admit(a) {
		return nil, errClosed
	}
	if n.near != nil {
		if err := a.joinNear(ctx); err != nil && !isConnection(err) {
			a.log.Warn("the agent has no place on the hub's bus yet", "error", err)
		}
	}
	a.startHeartbeat()
	a.log.Info("agent registered", "agentType", a.entry.AgentType, "handle", a.entry.Handle, "again", a.reused)
	return a, nil
}

// admit makes an agent one of this process's, unless the Network is closed.
func (n *Network) admit(a *Agent) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closing {
		return false
	}
	n.agents[a] = struct{}{}
	return true
}

func (n *Network) newAgent(id *identity, r Registration) *Agent {
	a := &Agent{
		net:      n,
		guid:     id.guid,
		identity: id,
		reused:   id.reused,
		log:      n.log.With("guid", id.guid),
		turn:     make(chan struct{}, 1),
	}
	a.turn <- struct{}{}
	now := timestamp(n.clock.now())
	a.unsaid = true
	a.entry = Entry{GUID: id.guid, Hostname: n.cfg.Hostname, Status: Active, RegisteredAt: now, LastHeartbeat: now}
	a.describe(r)
	return a
}

// describe takes over what the agent says of itself. Its user's name is
// published only where the visibility is for the same user (REQ-PRIV-001,
// REQ-TOOL-REGISTER-003), its project only if it belongs to one.
func (a *Agent) describe(r Registration) {
	n, e := a.net, &a.entry
	e.AgentType, e.Handle, e.Scope, e.Capabilities = r.AgentType, r.Handle, r.Scope, slices.Clone(r.Capabilities)
	e.Visibility = or(r.Visibility, n.cfg.Visibility)
	e.MaxConcurrentTasks = float64(r.MaxConcurrentTasks)
	e.HeartbeatInterval = max(or(r.HeartbeatInterval, n.cfg.HeartbeatInterval), minimumHeartbeat).Seconds()
	e.Username, e.ProjectID = "", ""
	if e.Visibility == UserOnly {
		e.Username = n.cfg.Username
	}
	if e.Scope == ScopeProject || e.Visibility == ProjectOnly {
		e.ProjectID = n.cfg.ProjectID
	}
}

// enter writes the agent into the registry and makes its inbox.
func (a *Agent) enter(ctx context.Context, b *bus.Bus) error {
	n := a.net
	if a.reused && !a.unlisted && !a.isLate() {
		if err := n.take(ctx, b, a.guid, a.guid, updateLimit); err != nil {
			return err
		}
	}
	if err := n.ensureInbox(ctx, b, a.guid); err != nil {
		return err
	}
	a.mu.Lock()
	a.entry.NATSURL = serverURL(b)
	a.mu.Unlock()
	if err := a.remember(ctx, b); err != nil {
		return err
	}
	if err := a.write(ctx, b); err != nil {
		return err
	}
	return b.Commit(ctx)
}

// serverURL is the server that the connection is with right now, without
// credentials: of a cluster it may be another one each time.
func serverURL(b *bus.Bus) string {
	info := b.Info()
	if info.Kind != bus.KindExternal {
		return info.URL
	}
	u, err := url.Parse(b.Conn().ConnectedUrl())
	if err != nil || u.Host == "" {
		first, _, _ := strings.Cut(info.URL, ",")
		return first
	}
	return u.Scheme + "://" + u.Host
}

// remember keeps the GUID and the handle beyond the entry's life.
func (a *Agent) remember(ctx context.Context, b *bus.Bus) error {
	e := a.Entry()
	data, err := json.Marshal(known{e.GUID, e.Handle, e.AgentType})
	if err != nil {
		return err
	}
	_, err = a.net.knownCell(a.guid).change(ctx, b, func(value) ([]byte, error) { return data, nil })
	return err
}

// GUID is the agent's.
func (a *Agent) GUID() string { return a.guid }

// Reused says that the agent has been here before: there may be mail.
func (a *Agent) Reused() bool { return a.reused }

// Entry is what the agent publishes of itself (REQ-PRIV-004). It asks nobody.
func (a *Agent) Entry() Entry {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.entry
	e.Capabilities = slices.Clone(e.Capabilities)
	return e
}

// SetHandle changes the agent's handle; others see it with the next heartbeat.
func (a *Agent) SetHandle(handle string) error {
	if err := checkName("handle", handle); err != nil {
		return err
	}
	for _, place := range []*Agent{a, a.nearPlace()} {
		if place != nil {
			place.mu.Lock()
			place.entry.Handle, place.unsaid = handle, true
			place.mu.Unlock()
		}
	}
	return nil
}

func (a *Agent) viewer() viewer {
	cfg := a.net.cfg
	return viewer{a.guid, cfg.ProjectID, cfg.Username, cfg.Hostname}
}

// ready returns the bus of an agent that is registered.
func (a *Agent) ready() (*bus.Bus, error) {
	a.mu.Lock()
	failure, late := a.failure, a.late
	a.mu.Unlock()
	if failure != nil {
		return nil, failure
	}
	b, err := a.net.connected()
	if err == nil && late {
		return nil, &Error{Code: ConnectionError, Message: "The agents' network has only just been reached.", Remedy: "Try again in a moment."}
	}
	return b, err
}

// Changes are what UpdatePresence may change; nil leaves a thing as it is
// (REQ-TOOL-PRESENCE-003).
type Changes struct {
	Status           *Presence
	CurrentTaskCount *int
	Capabilities     []string
}

func (c Changes) check() error {
	if c.Status != nil && !slices.Contains(Presences, *c.Status) {
		return invalid("There is no status %s.", quote(string(*c.Status))).WithRemedy("Use active, idle, busy or offline.")
	}
	if c.CurrentTaskCount != nil && *c.CurrentTaskCount < 0 {
		return invalid("currentTaskCount is %d.", *c.CurrentTaskCount).WithRemedy("Use 0 or a positive number.")
	}
	return checkCapabilities(c.Capabilities)
}

// UpdatePresence changes the agent's entry at once (REQ-TOOL-PRESENCE-004,
// REQ-TOOL-PRESENCE-005). The status offline ends the heartbeat, any other
// begins it again (REQ-TOOL-PRESENCE-006).
func (a *Agent) UpdatePresence(ctx context.Context, c Changes) (Entry, error) {
	if err := c.check(); err != nil {
		return Entry{}, err
	}
	return a.update(ctx, func(e *Entry) {
		if c.Status != nil {
			e.Status = *c.Status
		}
		if c.CurrentTaskCount != nil {
			e.CurrentTaskCount = float64(*c.CurrentTaskCount)
		}
		if c.Capabilities != nil {
			e.Capabilities = slices.Clone(c.Capabilities)
		}
	})
}

// Describe replaces what the agent said when it registered. Its type stays: it
// is part of its identity.
func (a *Agent) Describe(ctx context.Context, r Registration) (Entry, error) {
	if err := r.check(); err != nil {
		return Entry{}, err
	}
	if have := a.Entry().AgentType; r.AgentType != have {
		return Entry{}, &Error{Code: ConflictError, Message: fmt.Sprintf("You are registered as %s already.", quote(have)),
			Remedy: "Call deregister_agent first to become another type of agent, with another GUID."}
	}
	return a.update(ctx, func(e *Entry) {
		a.describe(r)
		if e.Status == Offline {
			e.Status = Active
		}
	})
}

func (a *Agent) update(ctx context.Context, change func(*Entry)) (Entry, error) {
	b, err := a.ready()
	limits := a.net
	if near := a.nearby(); near != nil && isConnection(err) {
		// The registry of the computer knows at once, that of the network when the
		// link is back.
		limits = near.net
		b, err = near.ready()
	}
	if err != nil {
		return Entry{}, err
	}
	if err := limits.take(ctx, b, a.guid, a.guid, updateLimit); err != nil {
		return Entry{}, err
	}
	a.mu.Lock()
	change(&a.entry)
	a.unsaid = true
	offline := a.entry.Status == Offline
	a.mu.Unlock()
	if offline {
		a.stopHeartbeat()
	}
	err = a.mirror(ctx)
	if limits != a.net {
		if !offline {
			a.startHeartbeat()
		}
		return a.Entry(), err
	}
	if err != nil {
		a.log.Warn("the entry on the hub's bus is not up to date", "error", err)
	}
	if err := a.write(ctx, b); err != nil {
		if errors.Is(err, errReplaced) {
			a.leave(errReplaced)
		}
		return Entry{}, connectionError(err)
	}
	if !offline {
		a.startHeartbeat()
	}
	return a.Entry(), nil
}

// write makes sure of the identity and puts the agent's entry into the
// registry, with the time of now (REQ-REGISTRY-009). If something else is there, or nothing any more, the
// agent's own word counts: nobody else writes it but the collector.
func (a *Agent) write(ctx context.Context, b *bus.Bus) error {
	select {
	case <-a.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { a.turn <- struct{}{} }()
	if err := a.keepIdentity(ctx, b); err != nil || a.unlisted {
		return err
	}
	server := serverURL(b)
	a.mu.Lock()
	a.entry.NATSURL = server
	a.entry.LastHeartbeat = timestamp(a.net.clock.now())
	data, err := a.entry.encode()
	revision := a.seat
	a.unsaid = false
	a.mu.Unlock()
	if err != nil {
		return &Error{Code: ValidationError, Message: fmt.Sprintf("The registry does not take this entry: %v.", err), Err: err}
	}
	c := a.net.entryCell(a.guid)
	for attempt := 0; attempt < maxConflicts; attempt++ {
		revision, err = c.write(ctx, b, data, revision)
		if !errors.Is(err, errConflict) {
			break
		}
		v, readErr := c.read(ctx, b)
		if readErr != nil {
			err = readErr
			break
		}
		revision = v.revision
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.unsaid = true
		return err
	}
	a.seat = revision
	return nil
}

// Deregister ends the heartbeat, marks the agent as offline and stops listening
// to its inbox. Its entry, its GUID and its mail stay for when it comes back
// (REQ-TOOL-DEREG-003 to REQ-TOOL-DEREG-006).
func (a *Agent) Deregister(ctx context.Context) error {
	if near := a.nearPlace(); near != nil {
		if err := near.Deregister(ctx); err != nil {
			a.log.Warn("the agent was not deregistered on the hub's bus", "error", err)
		}
	}
	b, err := a.ready()
	if err != nil {
		if errors.Is(err, errGone) || errors.Is(err, errReplaced) {
			return err
		}
		a.leave(errGone) // without a connection the registry will notice by itself
		unlock(a.identity.lock)
		return nil
	}
	a.leave(errGone)
	a.mu.Lock()
	a.entry.Status, a.entry.CurrentTaskCount = Offline, 0
	a.mu.Unlock()
	writeErr := a.write(ctx, b)
	if err := errors.Join(writeErr, a.identity.release(ctx, b)); err != nil {
		return connectionError(err)
	}
	a.log.Info("agent deregistered")
	return b.Commit(ctx)
}

// Leave is [Agent.Deregister].
func (n *Network) Leave(ctx context.Context, a *Agent) error { return a.Deregister(ctx) }

// leave ends what the agent does in the background. Every later call fails with
// why.
func (a *Agent) leave(why *Error) {
	a.mu.Lock()
	if a.failure == nil {
		a.failure = why
	}
	a.mu.Unlock()
	a.stopHeartbeat()
	a.net.mu.Lock()
	delete(a.net.agents, a)
	a.net.mu.Unlock()
	a.mail.Send()
}

func (a *Agent) startHeartbeat() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.beating || a.failure != nil {
		return
	}
	ctx, stop := context.WithCancel(a.net.ctx)
	a.beating, a.stop = true, stop
	a.done.Go(func() { a.live(ctx) })
	if a.net.near != nil && a.near == nil {
		a.done.Go(func() { a.keepNear(ctx) })
	}
}

func (a *Agent) stopHeartbeat() {
	a.mu.Lock()
	beating := a.beating
	a.beating = false
	if beating {
		a.stop()
	}
	a.mu.Unlock()
	a.done.Wait()
}

// live is the agent's background: it listens to the inbox and beats, after a
// failure again with growing pauses, until ctx ends (REQ-HEARTBEAT-001,
// REQ-HEARTBEAT-002, REQ-HEARTBEAT-007).
func (a *Agent) live(ctx context.Context) {
	b, err := a.arrive(ctx)
	if err != nil {
		return
	}
	inbox := make(chan *nats.Msg, inboxBuffer)
	sub, err := b.Conn().ChanSubscribe(inboxSubject+a.guid, inbox)
	if err != nil {
		a.log.Error("the inbox cannot be listened to; mail is only found by reading", "error", err)
	} else {
		defer func() { _ = sub.Unsubscribe() }() // Close ends the connection, and with it the subscription
	}
	rewrite := make(chan *nats.Msg, 1) // more than one say no more
	if a.net.cfg.Place != nil {
		answers, err := b.Conn().ChanSubscribe(a.pulseAnswers(), rewrite)
		if err != nil {
			a.log.Error("the hub cannot say when it lost the agent's entry", "error", err)
		} else {
			defer func() { _ = answers.Unsubscribe() }() // as above
		}
	}
	changes := b.Conn().StatusChanged(nats.CONNECTED)
	defer b.Conn().RemoveStatusListener(changes)
	a.deliverWaiting(ctx)

	interval := a.interval()
	timer := time.NewTimer(interval)
	defer timer.Stop()
	var backoff wait.Backoff
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return
		case m := <-inbox:
			a.delivered(ctx, b, m)
			continue
		case <-changes:
			a.deliverWaiting(ctx)
			a.sayAll() // the server may have lost what was not on its disk
		case <-rewrite:
			a.sayAll()
		case <-timer.C:
		}
		err := a.beat(ctx, b)
		switch {
		case err == nil:
			failures, backoff = 0, wait.Backoff{}
			timer.Reset(a.interval())
		case ctx.Err() != nil:
			return
		case errors.Is(err, errReplaced):
			a.log.Error("another process has taken over this agent's identity")
			a.mu.Lock()
			near := a.near
			a.failure, a.beating, a.near = errReplaced, false, nil
			a.mu.Unlock()
			if near != nil {
				near.leave(errReplaced)
			}
			a.net.mu.Lock()
			delete(a.net.agents, a)
			a.net.mu.Unlock()
			unlock(a.identity.lock)
			a.mail.Send()
			return
		default:
			failures++
			backoff.Most = min(MaxBackoff, a.interval())
			pause := backoff.Next()
			a.log.Error("a heartbeat failed", "error", err, "attempt", failures, "retryIn", pause.String()) // REQ-HEARTBEAT-006
			timer.Reset(pause)
		}
	}
}

// sayAll makes the next heartbeat write the whole entry.
func (a *Agent) sayAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unsaid = true
}

func (a *Agent) interval() time.Duration {
	if a.net.cfg.beatEvery > 0 {
		return a.net.cfg.beatEvery
	}
	return a.Entry().interval()
}

// beat writes the entry with the time of now (REQ-HEARTBEAT-005).
func (a *Agent) beat(ctx context.Context, b *bus.Bus) error {
	ctx, cancel := context.WithTimeout(ctx, 2*requestTimeout)
	defer cancel()
	if a.net.cfg.Place != nil && a.pulse(b) {
		return nil
	}
	return a.write(ctx, b)
}

// keepIdentity makes sure of the identity. The caller has the turn.
func (a *Agent) keepIdentity(ctx context.Context, b *bus.Bus) error {
	before := a.identity.written
	if err := a.identity.keep(ctx, a.net, b); err != nil {
		return err
	}
	if a.identity.written.Equal(before) {
		return nil
	}
	a.net.noteGUID(a.identity)
	return a.remember(ctx, b)
}
