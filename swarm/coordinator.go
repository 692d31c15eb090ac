// Package swarm lets groups of agents work on a task that is too large for one.
//
// A [Coordinator] recruits agents that have the capabilities, assigns the task's sub-tasks to them by capability and
// load, collects the results and reports the outcome. A [Participant] is the other side: it accepts proposals and
// works on its sub-tasks.
//
//	c := swarm.NewCoordinator(r, negotiator, swarm.CoordinatorOptions{Reporter: loop})
//	s, err := c.Create(ctx, plan)
//	s, err = c.Wait(ctx, s.ID)
//
// # Several coordinators
//
// A coordinator writes each decision to a [Journal] before it acts on it. Coordinators that share a journal watch
// it: when one stops writing, another takes its swarms over, at the end of the journal. A coordinator that was only
// slow finds a conflicting record and steps down. So a finished sub-task is neither lost nor repeated.
//
// # Shared state
//
// The shared state of a swarm is a document of package crdt, which the coordinator writes in the journal's order and
// package replica copies to the participants that follow it ([Participant.State], [Participant.Watch]). Participants
// request changes with [Participant.SetState]. All see the same states in the same order.
//
// # Failures
//
// A participant sends heartbeats while it works. One that is silent for longer than the lease, leaves, or fails a
// sub-task loses it to another capable agent. After Plan.MaxAttempts the sub-task is escalated to the [Reporter],
// for instance the Ralph loop, which may grant another round. Participants keep a result until a coordinator
// confirms that it is stored.
package swarm

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/defaults"
	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/negotiation"
	"github.com/parleyhub/parley/registry"
	"github.com/parleyhub/parley/router"
	"github.com/parleyhub/parley/telemetry"
)

// Defaults of [CoordinatorOptions].
const (
	DefaultLease           = 30 * time.Second
	DefaultTakeover        = 15 * time.Second
	DefaultAnswer          = 10 * time.Second
	DefaultMaxParticipants = 1000
	DefaultMaxSwarms       = 100
	DefaultKeep            = 24 * time.Hour
	DefaultMaxWritten      = 32 << 20
)

// Reporter receives escalations and outcomes, as the Ralph loop does.
type Reporter interface {
	// Escalate is called when no agent could do a sub-task. If it returns true, the sub-task gets another round of
	// attempts; otherwise the swarm fails. It may block; ctx ends when the coordinator closes or another one leads.
	Escalate(ctx context.Context, s Session, t SubTask) (again bool)
	// Finished is called with the final state of a swarm, again by its successor if the coordinator dies meanwhile.
	Finished(ctx context.Context, s Session)
}

// Redirector is a Reporter that can also name the agent of the next round.
type Redirector interface {
	Reporter
	// Redirect is called instead of Escalate. to is the only agent that is to do the sub-task, which may be one that the
	// plan does not name; "" for any that is able.
	Redirect(ctx context.Context, s Session, t SubTask) (again bool, to string)
}

// CoordinatorOptions set up a Coordinator. The zero options are valid.
type CoordinatorOptions struct {
	Journal Journal // nil means a MemoryJournal, without successors
	// Successors are the other agents that coordinate on the same journal and may take
	// over. Participants accept them.
	Successors []string
	// Sole says that no other process uses this coordinator's agent id, so that after a
	// restart it takes over its own swarms at once.
	Sole     bool
	Reporter Reporter // nil: escalated sub-tasks fail
	// Aggregate makes the outcome from the sub-tasks' results; nil makes an object by sub-task id.
	Aggregate func(s Session) (json.RawMessage, error)
	// StandIns begins the ids of local agents that take part for others: where an agent StandIns+ID is registered, it gets
	// the invitations and the work of the agent ID, which is the participant in the session. Its card counts for ID.
	// "" means that each agent takes part itself.
	StandIns string
	// Load returns an agent's load apart from swarms; nil means none.
	Load func(agentID string) int

	Lease           time.Duration // a participant's without a heartbeat; 0 means DefaultLease
	Takeover        time.Duration // without a record before another coordinator takes a swarm over, the same for all on a journal; 0 means DefaultTakeover
	Answer          time.Duration // for a proposal; 0 means DefaultAnswer
	PerAgent        int           // concurrent sub-tasks of a participant; 0 means 1
	MaxParticipants int           // of one swarm; 0 means DefaultMaxParticipants
	MaxSwarms       int           // led by this coordinator; 0 means DefaultMaxSwarms
	// MaxWritten bounds the changes of a swarm's shared state by one participant, in bytes: keys, values, and 256
	// for each change. Deleting frees nothing, since the journal keeps it. The bound for all participants together
	// is twice that. 0 means DefaultMaxWritten.
	MaxWritten int
	Keep       time.Duration // the journal of an ended swarm; 0 means DefaultKeep
	Logger     *slog.Logger  // nil discards
	// Changed is called with each stored change of a swarm that this coordinator leads; nil for none. It must not block.
	Changed func(Change)
}

// Change is a new state of a swarm or, with SubTask, of one of its sub-tasks.
type Change struct {
	Swarm   string
	Status  Status // of the swarm; "" if a sub-task has changed
	SubTask string
	Agent   string // of the sub-task, "" if it has none
	Result  SubTaskStatus
}

func (o CoordinatorOptions) withDefaults() CoordinatorOptions {
	if o.Journal == nil {
		o.Journal = new(MemoryJournal)
	}
	if o.Aggregate == nil {
		o.Aggregate = byID
	}
	if o.Changed == nil {
		o.Changed = func(Change) {}
	}
	if o.Load == nil {
		o.Load = func(string) int { return 0 }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	defaults.Set(&o.Lease, DefaultLease)
	defaults.Set(&o.Takeover, DefaultTakeover)
	defaults.Set(&o.Answer, DefaultAnswer)
	defaults.Set(&o.Keep, DefaultKeep)
	defaults.Set(&o.PerAgent, 1)
	defaults.Set(&o.MaxParticipants, DefaultMaxParticipants)
	defaults.Set(&o.MaxSwarms, DefaultMaxSwarms)
	defaults.Set(&o.MaxWritten, DefaultMaxWritten)
	return o
}

// byID is the default aggregation.
func byID(s Session) (json.RawMessage, error) {
	all := make(map[string]json.RawMessage, len(s.SubTasks))
	for _, t := range s.SubTasks {
		all[t.ID] = t.Result
	}
	return json.Marshal(all)
}

// Coordinator leads swarms as one agent. Make one with NewCoordinator and Close it in
// the end. It is safe for concurrent use.
type Coordinator struct {
	r  *router.Router
	n  *negotiation.Negotiator
	id string
	o  CoordinatorOptions

	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	stops   []func() // end what arrives

	limits     limits
	cache      *sessionCache
	nearlyFull atomic.Bool   // the journals have little room
	evicting   chan struct{} // a token for the goroutine that frees space in the journals

	mu      sync.Mutex
	closed  bool
	why     error                // what a closed coordinator returns
	leaders map[string]*leader   // by swarm
	ended   map[string]time.Time // when swarms ended that were led here, of the last graceTime
}

// NewCoordinator returns the coordinator of n's agent. It takes over swarms of the journal that have no leader. Without
// a router or a negotiator it is closed from the beginning, and [Coordinator.Create] returns the reason.
func NewCoordinator(r *router.Router, n *negotiation.Negotiator, o CoordinatorOptions) *Coordinator {
	c := &Coordinator{r: r, n: n, o: o.withDefaults(), why: errClosed, leaders: make(map[string]*leader), ended: make(map[string]time.Time), evicting: make(chan struct{}, 1)}
	if r != nil {
		c.o.Journal = guardedJournal{c.o.Journal, func(p *fault.Panic) { c.panicked("the journal", p) }}
	}
	c.cache = newSessionCache(c.o.Journal)
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if r == nil || n == nil {
		c.closed, c.why = true, errorf(CodeInvalid, "", "a coordinator needs a router and a negotiator, and one is nil")
		c.cancel()
		return c
	}
	c.id = n.AgentID()
	c.stops = append(c.stops, r.OnReceive(c.id, c.receive), r.Claim(c.id, c.wantsDocument, c.receive), n.OnSettled(c.answered))
	c.running.Go(c.watchJournal)
	c.running.Go(c.watchAgents)
	return c
}

// Create creates a swarm and returns it, recruiting. If a swarm of Plan.ID exists, it returns that one. Errors are
// [*Error]s: CodeNoRoom if the journal storage is so full that the running swarms may need the rest.
func (c *Coordinator) Create(ctx context.Context, p Plan) (Session, error) {
	if err := p.check(); err != nil {
		return Session{}, err
	}
	if p.MaxAttempts == 0 {
		p.MaxAttempts = DefaultMaxAttempts
	}
	id := p.ID
	if id == "" {
		id = uuid.NewString()
	} else if s, err := c.Session(ctx, id); CodeOf(err) != CodeNotFound {
		return s, err
	}
	first := event{Created: &created{ID: id, Plan: p, Coordinator: c.id, At: time.Now().UnixMilli()}}
	size, err := first.size()
	if err == nil {
		err = c.ensureSpace(ctx, size, spaceForNew)
	}
	if err != nil {
		return Session{}, noSpace(id, err)
	}
	s, err := c.lead(ctx, id, new(state), first)
	if CodeOf(err) == CodeState || errors.Is(err, ErrConflict) {
		return c.Session(ctx, id) // it has just been created, here or by another coordinator
	}
	return s, noSpace(id, err)
}

// lead stores an event of a swarm and begins to lead it.
func (c *Coordinator) lead(ctx context.Context, id string, x *state, first event) (Session, error) {
	if err := x.apply(first); err != nil {
		return Session{}, err
	}
	l := newLeader(c, id, x)
	if err := c.add(l); err != nil {
		return Session{}, err
	}
	if err := l.store(ctx, []event{first}); err != nil {
		c.remove(l)
		close(l.done)
		return Session{}, err
	}
	s := x.snapshot()
	l.report([]event{first})
	c.start(l)
	return s, nil
}

// add adds a leader that is not running yet.
func (c *Coordinator) add(l *leader) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return c.why
	case c.leaders[l.id] != nil:
		return errorf(CodeState, l.id, "swarm %q is led here already", l.id)
	case len(c.leaders) >= c.o.MaxSwarms:
		return errorf(CodeFull, l.id, "the coordinator leads %d swarms, which is the limit", c.o.MaxSwarms)
	}
	c.leaders[l.id] = l
	return nil
}

// hasCapacity reports whether one more swarm can be led.
func (c *Coordinator) hasCapacity() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.closed && len(c.leaders) < c.o.MaxSwarms
}

func (c *Coordinator) remove(l *leader) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaders[l.id] == l {
		delete(c.leaders, l.id)
	}
}

// start runs a leader until its swarm has ended or another coordinator leads it.
func (c *Coordinator) start(l *leader) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		close(l.done)
		return
	}
	c.running.Go(func() {
		defer c.remove(l)
		l.run(c.ctx)
		c.noteEnd(l)
	})
}

func (c *Coordinator) leader(swarmID string) *leader {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leaders[swarmID]
}

func (c *Coordinator) all() []*leader {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.leaders))
}

// leaderTimeout bounds the wait for a leader's session. A leader that waits for its
// journal is busy; the session is then read from the journal.
const leaderTimeout = 2 * time.Second

// Session returns the present session of a swarm, whichever coordinator leads it.
func (c *Coordinator) Session(ctx context.Context, swarmID string) (Session, error) {
	if s, led := c.askLeader(ctx, swarmID); led {
		return s, nil
	}
	return c.cache.session(ctx, swarmID)
}

// askLeader returns the session of a swarm that is led here, if its leader answers.
func (c *Coordinator) askLeader(ctx context.Context, swarmID string) (Session, bool) {
	l := c.leader(swarmID)
	if l == nil {
		return Session{}, false
	}
	ctx, cancel := context.WithTimeout(ctx, leaderTimeout)
	defer cancel()
	var s Session
	err := l.ask(ctx, func() error {
		s = l.x.snapshot()
		return nil
	})
	if err != nil {
		return Session{}, false
	}
	return s, true
}

// Active lists the swarms of the journal that have not ended, the oldest first.
func (c *Coordinator) Active(ctx context.Context) ([]Session, error) {
	all, err := c.Sessions(ctx)
	return slices.DeleteFunc(all, func(s Session) bool { return s.Status.Ended() }), err
}

// Sessions lists all swarms of the journal, the oldest first.
func (c *Coordinator) Sessions(ctx context.Context) ([]Session, error) {
	last, err := c.o.Journal.Last(ctx)
	if err != nil {
		return nil, &Error{Code: CodeJournal, Message: "the journal cannot be read", Err: err}
	}
	var list []Session
	for id, sequence := range last {
		s, led := c.askLeader(ctx, id)
		if !led {
			s, err = c.cache.sessionAt(ctx, id, sequence)
		}
		if CodeOf(err) == CodeNotFound {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b Session) int {
		return cmp.Or(cmp.Compare(a.CreatedAt, b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return list, nil
}

// Wait blocks until a swarm has ended, whichever coordinator leads it, and returns it.
// The error is an [*Error] with CodeFailed for a failed swarm, which wraps the [*Cause] of each agent that was asked and
// does not take part, or ctx's.
func (c *Coordinator) Wait(ctx context.Context, swarmID string) (Session, error) {
	for {
		l := c.leader(swarmID)
		s, err := c.Session(ctx, swarmID)
		if err != nil {
			return s, err
		}
		if s.Status.Ended() {
			return s, failure(s)
		}
		var ended <-chan struct{}
		if l != nil {
			ended = l.done
		}
		select {
		case <-ended:
			if end := l.end.Load(); end != nil {
				return *end, failure(*end) // even if its journal was deleted since
			}
		case <-time.After(c.o.Takeover / 3): // another coordinator leads it: poll
		case <-ctx.Done():
			return s, ctx.Err()
		case <-c.ctx.Done():
			return s, errClosed
		}
	}
}

// Join adds an agent to a swarm that is led here, without a proposal.
func (c *Coordinator) Join(ctx context.Context, swarmID, agentID string) error {
	return c.withLeader(ctx, swarmID, func(l *leader) error { return l.join(agentID) })
}

// CompleteSubTask stores a sub-task's result as if its agent had sent it, for
// participants that do not use envelopes.
func (c *Coordinator) CompleteSubTask(ctx context.Context, swarmID, subTaskID string, value json.RawMessage) error {
	if !json.Valid(value) {
		return errorf(CodeInvalid, swarmID, "the result of %q is not JSON", subTaskID)
	}
	return c.withLeader(ctx, swarmID, func(l *leader) error { return l.finish(subTaskID, result{Value: value}) })
}

// FailSubTask stores that an attempt at a sub-task failed.
func (c *Coordinator) FailSubTask(ctx context.Context, swarmID, subTaskID, reason string) error {
	if reason == "" {
		reason = "no reason given"
	}
	return c.withLeader(ctx, swarmID, func(l *leader) error { return l.finish(subTaskID, result{Error: reason}) })
}

// SetState changes the shared state of a swarm that is led here; an empty value removes the key.
func (c *Coordinator) SetState(ctx context.Context, swarmID, key string, value json.RawMessage) error {
	return c.withLeader(ctx, swarmID, func(l *leader) error {
		if err := l.set(set{Key: key, Value: value}); err != nil {
			return err
		}
		return nil
	})
}

// Stop ends a swarm that is led here: it fails for this reason, and its participants stop working.
func (c *Coordinator) Stop(ctx context.Context, swarmID, reason string) error {
	return c.withLeader(ctx, swarmID, func(l *leader) error {
		l.fail(c.ctx, "stopped: "+reason)
		return nil
	})
}

func (c *Coordinator) withLeader(ctx context.Context, swarmID string, do func(*leader) error) error {
	l := c.leader(swarmID)
	if l == nil {
		return notFound(swarmID)
	}
	return l.ask(ctx, func() error { return do(l) })
}

// receive passes an envelope to its swarm. It refuses envelopes beyond the sender's rate
// limit here, before others wait for them.
func (c *Coordinator) receive(ctx context.Context, e *envelope.Envelope) {
	l := c.leader(e.CorrelationID)
	switch e.Type {
	case envelope.Request, envelope.Response, envelope.Notification, envelope.StreamData:
	default:
		return // another kind of envelope
	}
	from := c.participant(e.Sender)
	if l == nil || from == "" {
		return
	}
	if !c.limits.allowMessage(from, len(e.Payload)) {
		c.refuse(ctx, l, from, errorf(CodeFlood, l.id, "%s sends more than %d messages or %d bytes a second", from, messageRate, inRate))
		return
	}
	if e.Type == envelope.StreamData {
		if d := l.doc.Load(); d != nil && !d.receive(ctx, e) {
			c.refuse(ctx, l, from, tooManyStates(l.id))
		}
		return
	}
	var m message
	if e.Unmarshal(&m) != nil || m.Swarm != e.CorrelationID {
		return // another kind of envelope
	}
	l.enqueue(ctx, func() { l.receive(from, m) })
}

// wantsDocument reports whether an envelope is about the shared state of a swarm that is led here: no other handler of
// the agent gets it.
func (c *Coordinator) wantsDocument(e *envelope.Envelope) bool {
	return aboutState(e) && c.leader(e.CorrelationID) != nil
}

// protect calls a function of the application. Its panic is an error event, and the result.
func (c *Coordinator) protect(whose string, f func()) *fault.Panic {
	return protect(c.r, c.id, whose, f)
}

func (c *Coordinator) panicked(whose string, p *fault.Panic) { panicked(c.r, c.id, whose, p) }

func protect(r *router.Router, agentID, whose string, f func()) *fault.Panic {
	p := fault.Catch(f)
	if p != nil {
		panicked(r, agentID, whose, p)
	}
	return p
}

func panicked(r *router.Router, agentID, whose string, p *fault.Panic) {
	event := telemetry.Panicked(whose+" of a swarm", p)
	event.Target = agentID
	r.Telemetry().Emit(event)
}

func tooManyStates(swarmID string) *Error {
	return errorf(CodeFlood, swarmID, "the shared state is requested too often; it is sent again later")
}

// refuse reports a refusal to the agent and the log, at a limited rate.
func (c *Coordinator) refuse(ctx context.Context, l *leader, who string, why *Error) {
	if c.limits.allowRefusal(who) {
		l.enqueue(ctx, func() { l.refuse(c.ctx, who, why) })
	}
}

// answered passes a settled proposal to its swarm.
func (c *Coordinator) answered(ctx context.Context, p negotiation.Proposal) {
	if p.Proposer != c.id {
		return
	}
	l := c.leader(p.CorrelationID)
	if l == nil {
		c.notifyOver(ctx, p)
		return
	}
	l.enqueue(ctx, func() { l.answered(p) })
}

// notifyOver notifies an agent whose acceptance was late that it is not in the swarm. If
// another coordinator leads the swarm, that one may invite the agent again.
func (c *Coordinator) notifyOver(ctx context.Context, p negotiation.Proposal) {
	if p.Status != negotiation.Accepted {
		return
	}
	m := message{Swarm: p.CorrelationID, Over: true}
	if err := m.send(ctx, c.r, c.id, p.Recipient); err != nil {
		c.o.Logger.Debug("the end of a swarm cannot be sent to an agent", "swarm", m.Swarm, "agent", p.Recipient, "error", err)
	}
}

// watchAgents makes the leaders check their participants when agents are removed.
func (c *Coordinator) watchAgents() {
	w := c.r.Registry().Watch()
	defer w.Close()
	for {
		change, err := w.Next(c.ctx)
		if err != nil {
			return // closed
		}
		if change.Kind != registry.Removed && change.Kind != registry.Resync {
			continue
		}
		for _, l := range c.all() {
			l.enqueue(c.ctx, l.removeMissing)
		}
	}
}

// Close stops leading without notifying the participants: another coordinator on the journal takes over. It waits
// for all goroutines, including calls of the Reporter; do not call it from one.
func (c *Coordinator) Close() error {
	for _, stop := range c.stops {
		stop()
	}
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.running.Wait()
	return nil
}
