package swarm

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/negotiation"
	"github.com/parleyhub/parley/registry"
	"github.com/parleyhub/parley/router"
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

// Reporter is told how swarms go: the Ralph loop, say.
type Reporter interface {
	// Escalate is asked when no agent could do a sub-task. With again it
	// gets another round of attempts, otherwise the swarm fails. It may block; ctx
	// ends when the coordinator closes or another one leads.
	Escalate(ctx context.Context, s Session, t SubTask) (again bool)
	// Finished is told the final outcome, completed or failed. After a
	// coordinator has died in that moment its successor may tell it again.
	Finished(ctx context.Context, s Session)
}

// CoordinatorOptions set up a Coordinator. The zero options make one that stands
// alone.
type CoordinatorOptions struct {
	// Journal is where swarms are kept; nil: in memory, without a successor.
	Journal Journal
	// Successors are the agents that coordinate on the same journal and may take
	// over, apart from this one. Participants obey them then.
	Successors []string
	// Sole says that no other coordinator ever has this one's agent id, so that what
	// the journal says it leads is led by nobody: after a restart its own swarms go
	// on at once.
	Sole     bool
	Reporter Reporter // nil: what is escalated fails
	// Aggregate makes the outcome of the sub-tasks' results; nil makes an object of
	// them by sub-task id.
	Aggregate func(s Session) (json.RawMessage, error)
	// Load says how much else an agent has to do; nil: nothing.
	Load func(agentID string) int

	// Lease is how long a participant may be silent while it works; 0 means
	// DefaultLease.
	Lease time.Duration
	// Takeover is how long a swarm's journal rests before another coordinator takes
	// it over; 0 means DefaultTakeover. It is the same for all on a journal.
	Takeover time.Duration
	// Answer is how long agents have to answer a proposal; 0 means DefaultAnswer.
	Answer time.Duration
	// PerAgent is how many sub-tasks run at once on one participant; 0 means 1.
	PerAgent int
	// MaxParticipants bounds the agents of one swarm, MaxSwarms the swarms that this
	// coordinator leads; 0 means the default.
	MaxParticipants int
	MaxSwarms       int
	// MaxWritten bounds the changes of a swarm's shared state that one participant may
	// ask for, in bytes: keys, values, and 256 for each change. What is taken away again
	// makes no room, since the journal keeps it. All participants together may ask for
	// twice as much. 0 means DefaultMaxWritten.
	MaxWritten int
	// Keep is how long the journal of a swarm that has ended is kept; 0 means
	// DefaultKeep.
	Keep   time.Duration
	Logger *slog.Logger // nil discards
}

func (o CoordinatorOptions) withDefaults() CoordinatorOptions {
	if o.Journal == nil {
		o.Journal = new(MemoryJournal)
	}
	if o.Aggregate == nil {
		o.Aggregate = byID
	}
	if o.Load == nil {
		o.Load = func(string) int { return 0 }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Lease = orDefault(o.Lease, DefaultLease)
	o.Takeover = orDefault(o.Takeover, DefaultTakeover)
	o.Answer = orDefault(o.Answer, DefaultAnswer)
	o.Keep = orDefault(o.Keep, DefaultKeep)
	o.PerAgent = orDefault(o.PerAgent, 1)
	o.MaxParticipants = orDefault(o.MaxParticipants, DefaultMaxParticipants)
	o.MaxSwarms = orDefault(o.MaxSwarms, DefaultMaxSwarms)
	o.MaxWritten = orDefault(o.MaxWritten, DefaultMaxWritten)
	return o
}

func orDefault[N int | int64 | time.Duration](n, otherwise N) N {
	if n <= 0 {
		return otherwise
	}
	return n
}

// byID is the default aggregation.
func byID(s Session) (json.RawMessage, error) {
	all := make(map[string]json.RawMessage, len(s.SubTasks))
	for _, t := range s.SubTasks {
		all[t.ID] = t.Result
	}
	return json.Marshal(all)
}

// Coordinator leads swarms for one agent. Make one with NewCoordinator and Close it
// in the end. It is safe for concurrent use.
type Coordinator struct {
	r  *router.Router
	n  *negotiation.Negotiator
	id string
	o  CoordinatorOptions

	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	stops   []func() // end what arrives

	meters   meters
	folds    *folds
	tight    atomic.Bool   // the journals have little room
	clearing chan struct{} // a token for who makes room in them

	mu      sync.Mutex
	closed  bool
	leaders map[string]*leader   // by swarm
	ended   map[string]time.Time // when swarms ended that were led here, of the last graceTime
}

// NewCoordinator returns the coordinator of an agent, whose negotiator n is. It
// takes over swarms of the journal that nobody leads.
func NewCoordinator(r *router.Router, n *negotiation.Negotiator, o CoordinatorOptions) *Coordinator {
	c := &Coordinator{r: r, n: n, id: n.AgentID(), o: o.withDefaults(), leaders: make(map[string]*leader), ended: make(map[string]time.Time), clearing: make(chan struct{}, 1)}
	c.folds = newFolds(c.o.Journal)
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.stops = append(c.stops, r.OnReceive(c.id, c.receive), n.OnSettled(c.answered))
	c.running.Go(c.watchJournal)
	c.running.Go(c.watchAgents)
	return c
}

// Create begins a swarm and returns it, recruiting. Where there is a swarm
// of Plan.ID it returns that one as it stands. Errors are [*Error]s: CodeNoRoom where
// the journals are so full that swarms that run may soon need what is left.
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
	x := new(state)
	first := event{Created: &created{ID: id, Plan: p, Coordinator: c.id, At: time.Now().UnixMilli()}}
	if err := x.apply(first); err != nil {
		return Session{}, err
	}
	if size, err := first.size(); err != nil {
		return Session{}, err
	} else if err := c.room(ctx, size, roomForNew); err != nil {
		return Session{}, noRoom(id, err)
	}
	l := newLeader(c, id, x)
	if err := c.add(l); err != nil {
		if CodeOf(err) == CodeState {
			return c.Session(ctx, id) // it is being created
		}
		return Session{}, err
	}
	if err := l.store(ctx, []event{first}); err != nil {
		c.drop(l)
		if errors.Is(err, ErrFull) {
			return Session{}, noRoom(id, err)
		}
		if errors.Is(err, ErrConflict) {
			return c.Session(ctx, id) // somebody has just created it
		}
		return Session{}, err
	}
	s := x.snapshot()
	c.start(l)
	return s, nil
}

// add enters a leader that is not running yet.
func (c *Coordinator) add(l *leader) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return errClosed
	case c.leaders[l.id] != nil:
		return errorf(CodeState, l.id, "swarm %q is led here already", l.id)
	case len(c.leaders) >= c.o.MaxSwarms:
		return errorf(CodeFull, l.id, "%d swarms are led here, no more are taken", c.o.MaxSwarms)
	}
	c.leaders[l.id] = l
	return nil
}

// vacant reports whether one more swarm can be led.
func (c *Coordinator) vacant() bool {
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

// drop takes out a leader that never ran.
func (c *Coordinator) drop(l *leader) {
	c.remove(l)
	close(l.done)
}

// start runs a leader until its swarm has ended, or is another's.
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
	all := make([]*leader, 0, len(c.leaders))
	for _, l := range c.leaders {
		all = append(all, l)
	}
	return all
}

// patience is how long a leader may take to tell of its swarm. One whose journal takes
// no record is busy until it does; the journal tells then.
const patience = 2 * time.Second

// Session returns a swarm of the journal as it stands, whoever leads it.
func (c *Coordinator) Session(ctx context.Context, swarmID string) (Session, error) {
	if s, led := c.led(ctx, swarmID); led {
		return s, nil
	}
	return c.folds.session(ctx, swarmID)
}

// led returns a swarm that is led here, if its leader tells.
func (c *Coordinator) led(ctx context.Context, swarmID string) (Session, bool) {
	l := c.leader(swarmID)
	if l == nil {
		return Session{}, false
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s, err := l.ask(ctx, func() (Session, error) { return l.x.snapshot(), nil })
	return s, err == nil
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
		s, led := c.led(ctx, id)
		if !led {
			s, err = c.folds.sessionAt(ctx, id, sequence)
		}
		if CodeOf(err) == CodeNotFound {
			continue // forgotten meanwhile
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

// Wait blocks until a swarm has ended, whoever leads it, and returns it. The error
// is an [*Error] with CodeFailed for one that failed, or ctx's.
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
				return *end, failure(*end) // whatever has become of the journal since
			}
		case <-time.After(c.o.Takeover / 3): // another leads it: look again
		case <-ctx.Done():
			return s, ctx.Err()
		case <-c.ctx.Done():
			return s, errClosed
		}
	}
}

// failure is the error of a swarm that failed.
func failure(s Session) error {
	if s.Status != Failed {
		return nil
	}
	return errorf(CodeFailed, s.ID, "the swarm failed: %s", s.Error)
}

// Join adds an agent to a swarm that is led here, without a proposal.
func (c *Coordinator) Join(ctx context.Context, swarmID, agentID string) error {
	return c.tell(ctx, swarmID, func(l *leader) error { return l.join(agentID) })
}

// CompleteSubTask enters a sub-task's result as if its agent had sent it.
// For participants that reach the coordinator otherwise than by envelopes.
func (c *Coordinator) CompleteSubTask(ctx context.Context, swarmID, subTaskID string, value json.RawMessage) error {
	if !json.Valid(value) {
		return errorf(CodeInvalid, swarmID, "the result of %q is not JSON", subTaskID)
	}
	return c.tell(ctx, swarmID, func(l *leader) error { return l.finish(subTaskID, result{Value: value}) })
}

// FailSubTask enters that an attempt at a sub-task failed.
func (c *Coordinator) FailSubTask(ctx context.Context, swarmID, subTaskID, reason string) error {
	if reason == "" {
		reason = "no reason given"
	}
	return c.tell(ctx, swarmID, func(l *leader) error { return l.finish(subTaskID, result{Error: reason}) })
}

// SetState changes the shared state of a swarm that is led here; an empty value
// removes the key.
func (c *Coordinator) SetState(ctx context.Context, swarmID, key string, value json.RawMessage) error {
	return c.tell(ctx, swarmID, func(l *leader) error {
		if err := l.set(set{Key: key, Value: value}); err != nil {
			return err
		}
		return nil
	})
}

// Stop ends a swarm that is led here: it fails for this reason, and what its
// participants work on is no longer wanted.
func (c *Coordinator) Stop(ctx context.Context, swarmID, reason string) error {
	return c.tell(ctx, swarmID, func(l *leader) error {
		l.fail(c.ctx, "stopped: "+reason)
		return nil
	})
}

func (c *Coordinator) tell(ctx context.Context, swarmID string, do func(*leader) error) error {
	l := c.leader(swarmID)
	if l == nil {
		return notFound(swarmID)
	}
	_, err := l.ask(ctx, func() (Session, error) { return Session{}, do(l) })
	return err
}

// receive sorts what arrives for the agent into its swarms. What is more than its
// sender may ask for goes no further than here, before anybody else has to wait for it.
func (c *Coordinator) receive(ctx context.Context, e *envelope.Envelope) {
	l := c.leader(e.CorrelationID)
	switch e.Type {
	case envelope.Request, envelope.Response, envelope.Notification, envelope.StreamData:
	default:
		return // not for us
	}
	if l == nil {
		return
	}
	if !c.meters.arrives(e.Sender, len(e.Payload)) {
		c.refuse(ctx, l, e.Sender, errorf(CodeFlood, l.id, "%s sends more than %d messages or %d bytes a second", e.Sender, messageRate, inRate))
		return
	}
	if e.Type == envelope.StreamData {
		if d := l.doc.Load(); d != nil && !d.arrived(ctx, e) {
			c.refuse(ctx, l, e.Sender, tooManyStates(l.id))
		}
		return
	}
	var m message
	if e.Unmarshal(&m) != nil || m.Swarm != e.CorrelationID {
		return // not for us
	}
	l.put(ctx, func() { l.receive(e.Sender, m) })
}

func tooManyStates(swarmID string) *Error {
	return errorf(CodeFlood, swarmID, "the shared state is asked for too often; it comes again by itself, later")
}

// refuse tells an agent, and the log, why it was not heard: not each time.
func (c *Coordinator) refuse(ctx context.Context, l *leader, who string, why *Error) {
	if c.meters.tells(who) {
		l.put(ctx, func() { l.refuse(c.ctx, who, why) })
	}
}

// answered hears how a proposal was answered.
func (c *Coordinator) answered(ctx context.Context, p negotiation.Proposal) {
	if p.Proposer != c.id {
		return
	}
	l := c.leader(p.CorrelationID)
	if l == nil {
		c.tooLate(ctx, p)
		return
	}
	l.put(ctx, func() { l.answered(p) })
}

// tooLate tells one who has accepted when the swarm was over, or is led by another,
// who asks again.
func (c *Coordinator) tooLate(ctx context.Context, p negotiation.Proposal) {
	if p.Status != negotiation.Accepted {
		return
	}
	m := message{Swarm: p.CorrelationID, Over: true}
	e, err := envelope.New(c.id, p.Recipient, m.kind(), m)
	if err == nil {
		e.CorrelationID = m.Swarm
		_, err = c.r.Send(ctx, e)
	}
	if err != nil {
		c.o.Logger.Debug("an agent cannot be told that a swarm is over", "swarm", m.Swarm, "agent", p.Recipient, "error", err)
	}
}

// watchAgents tells the leaders of agents that leave.
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
			l.put(c.ctx, l.missing)
		}
	}
}

// watchJournal takes over swarms that nobody leads, and forgets old ones.
func (c *Coordinator) watchJournal() {
	type seen struct {
		sequence uint64
		at       time.Time
		ended    bool
	}
	known := make(map[string]seen)
	for first := true; ; {
		last, err := c.o.Journal.Last(c.ctx)
		if err != nil && c.ctx.Err() == nil {
			c.o.Logger.Warn("the journal of swarms cannot be read", "error", err)
		}
		now := time.Now()
		for id := range known {
			if _, there := last[id]; !there && err == nil {
				delete(known, id)
			}
		}
		for id, sequence := range last {
			s := known[id]
			if s.sequence != sequence {
				s = seen{sequence: sequence, at: now}
				if first && c.o.Sole {
					s.ended = c.takeOver(id, true)
				}
				known[id] = s
				continue
			}
			switch rested := now.Sub(s.at); {
			case s.ended && rested > c.o.Keep:
				if err := c.forget(c.ctx, id); err != nil {
					c.o.Logger.Warn("the journal of a swarm cannot be deleted", "swarm", id, "error", err)
				}
			case !s.ended && rested > c.o.Takeover && c.leader(id) == nil:
				s.ended = c.takeOver(id, false)
				known[id] = s
			}
		}
		first = first && err != nil // what comes later is led by whoever made it
		select {
		case <-time.After(c.o.Takeover / 3):
		case <-c.ctx.Done():
			return
		}
	}
}

// takeOver leads a swarm whose coordinator is silent; with own, only one that this
// agent led in an earlier life. It reports whether the swarm has ended, so that
// there is nothing to lead.
func (c *Coordinator) takeOver(id string, own bool) (ended bool) {
	if !c.vacant() {
		return false // before anything is read: it may be like that for a long time
	}
	x, err := load(c.ctx, c.o.Journal, id)
	if err != nil {
		c.o.Logger.Warn("a swarm cannot be taken over", "swarm", id, "error", err)
		return false
	}
	if x.s.Status.Ended() {
		return true
	}
	if own && x.s.Coordinator != c.id || c.leader(id) != nil {
		return false
	}
	l := newLeader(c, id, x)
	if err := c.add(l); err != nil {
		return false
	}
	took := event{Took: &took{Coordinator: c.id}}
	if err := x.apply(took); err != nil {
		c.drop(l)
		return false
	}
	if err := l.store(c.ctx, []event{took}); err != nil {
		c.drop(l)
		if !errors.Is(err, ErrConflict) {
			c.o.Logger.Warn("a swarm cannot be taken over", "swarm", id, "error", err)
		}
		return false
	}
	c.o.Logger.Info("a swarm is taken over", "swarm", id, "epoch", x.s.Epoch)
	c.start(l)
	return false
}

// Close stops leading, without a word to the participants: another coordinator on
// the journal takes over. It waits for everything to end, the Reporter's calls
// included; do not call it from one.
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
