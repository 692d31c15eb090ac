package swarm

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/defaults"
	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/negotiation"
	"github.com/parleyhub/parley/router"
)

// Defaults of [ParticipantOptions].
const (
	DefaultResend    = 5 * time.Second
	DefaultEstimate  = time.Minute
	DefaultMaxJoined = 100
	maxKeptResults   = 10_000
	silence          = time.Minute // after which a swarm may be dropped for another
)

// Job is a sub-task for a participant.
type Job struct {
	SwarmID     string                     `json:"-"`
	Coordinator string                     `json:"-"` // that has assigned it
	SubTaskID   string                     `json:"subTask"`
	Attempt     int                        `json:"attempt"`
	Task        string                     `json:"task"`              // of the whole swarm
	Description string                     `json:"description"`       // of the sub-task
	Input       json.RawMessage            `json:"input,omitempty"`   // may be empty
	Results     map[string]json.RawMessage `json:"results,omitempty"` // of the sub-tasks that this one depends on
}

// Worker does a sub-task and returns its result, any JSON of at most MaxResult bytes. ctx ends when the sub-task is
// canceled. After an error or a panic the coordinator assigns the sub-task to another agent.
type Worker func(ctx context.Context, j Job) (json.RawMessage, error)

// ParticipantOptions set up a Participant. The zero options are valid.
type ParticipantOptions struct {
	// Accept decides about an invitation; nil accepts each. It must not block.
	Accept    func(p negotiation.Proposal) (ok bool, why negotiation.Reason)
	Estimate  time.Duration // of a task; 0 means DefaultEstimate
	Parallel  int           // concurrent sub-tasks of all swarms; 0 means 1
	Resend    time.Duration // interval at which an unconfirmed result is sent again; 0 means DefaultResend
	MaxSwarms int           // memberships; 0 means DefaultMaxJoined
	// Refused is called with an [*Error] when a coordinator has refused a request, for instance a change of the
	// shared state, at most once a second. It must not block; nil ignores refusals.
	Refused func(why error)
}

// Participant takes part in swarms as one agent. Make one with NewParticipant and
// Close it in the end. It is safe for concurrent use.
type Participant struct {
	r    *router.Router
	n    *negotiation.Negotiator
	id   string
	o    ParticipantOptions
	work Worker

	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	room    chan struct{} // a token for each sub-task that runs
	wake    chan struct{} // resend: a lease has changed
	stops   []func()

	mu      sync.Mutex
	closed  bool
	invalid error // what the methods of a participant without a router return; nil
	swarms  map[string]*membership
	resends bool // resend runs; it does while the agent is in a swarm
}

// membership is the membership in a swarm.
type membership struct {
	id           string
	coordinators []string
	leader       string
	epoch        int
	lastSeen     time.Time // the leader's last message, or the invitation
	led          bool      // the leader has sent a message
	lease        time.Duration
	jobs         map[string]*job
	follows      bool       // the shared state is wanted
	doc          *memberDoc // nil before the leader has offered it
	sequence     uint64     // of the last state that watch got
	watch        func(State)
	notifying    bool   // watch runs
	next         *State // the next state for watch
	stateChanged wait.Signal
}

// job is a sub-task of the agent, until its result is confirmed.
type job struct {
	cancel context.CancelFunc
	done   *result // nil while it is worked on
	sent   time.Time
}

// State is the shared state of a swarm.
type State struct {
	// Sequence grows with each change. Participants see the states in the same order, but may miss some.
	Sequence uint64
	Values   map[string]json.RawMessage
}

// NewParticipant makes n's agent a participant. Without a router, a negotiator or a worker it is closed from the
// beginning, and its methods return the reason.
func NewParticipant(r *router.Router, n *negotiation.Negotiator, work Worker, o ParticipantOptions) *Participant {
	defaults.Set(&o.Estimate, DefaultEstimate)
	defaults.Set(&o.Resend, DefaultResend)
	defaults.Set(&o.Parallel, 1)
	defaults.Set(&o.MaxSwarms, DefaultMaxJoined)
	p := &Participant{r: r, n: n, o: o, work: work, room: make(chan struct{}, o.Parallel), wake: make(chan struct{}, 1), swarms: make(map[string]*membership)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	if r == nil || n == nil || work == nil {
		p.closed, p.invalid = true, errorf(CodeInvalid, "", "a participant needs a router, a negotiator and a worker, and one is nil")
		p.cancel()
		return p
	}
	p.id = n.AgentID()
	p.stops = append(p.stops, n.OnProposal(p.invited), n.OnSettled(p.settled), r.OnReceive(p.id, p.receive), r.Claim(p.id, p.wantsDocument, p.receiveDocument))
	return p
}

// invited answers an invitation.
func (p *Participant) invited(ctx context.Context, proposal negotiation.Proposal) {
	var i invitation
	if json.Unmarshal(proposal.Input, &i) != nil || i.Swarm == "" || i.Swarm != proposal.CorrelationID || !slices.Contains(i.Coordinators, proposal.Proposer) {
		return // another kind of proposal
	}
	ok, why := true, negotiation.Declined
	if p.o.Accept != nil {
		if crash := p.protect("Options.Accept", func() { ok, why = p.o.Accept(proposal) }); crash != nil {
			ok, why = false, negotiation.Declined
		}
	}
	if ok && !p.join(i, proposal.Proposer) {
		ok, why = false, negotiation.Busy
	}
	// If the answer cannot be sent, the proposal times out.
	if ok {
		_ = p.n.Accept(ctx, proposal.ID, p.o.Estimate)
		return
	}
	_ = p.n.Reject(ctx, proposal.ID, negotiation.Rejection{Reason: why})
}

// join adds the membership before the answer, since work may arrive at once.
func (p *Participant) join(i invitation, leader string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	if m := p.swarms[i.Swarm]; m != nil {
		return true
	}
	if len(p.swarms) >= p.o.MaxSwarms && !p.makeRoom() {
		return false
	}
	p.swarms[i.Swarm] = &membership{
		lastSeen: time.Now(), id: i.Swarm, coordinators: i.Coordinators, leader: leader, lease: DefaultLease, jobs: make(map[string]*job),
	}
	if !p.resends {
		p.resends = true
		p.running.Go(p.resend)
	}
	return true
}

// makeRoom drops the membership without jobs that was silent longest: its coordinator may have died without a
// successor. A live coordinator gets message.Lost and may invite again. p.mu is held.
func (p *Participant) makeRoom() bool {
	var oldest *membership
	for _, s := range p.swarms {
		if len(s.jobs) == 0 && time.Since(s.lastSeen) > silence && (oldest == nil || s.lastSeen.Before(oldest.lastSeen)) {
			oldest = s
		}
	}
	if oldest == nil {
		return false
	}
	p.leave(oldest)
	return true
}

// settled drops a membership whose acceptance was refused.
func (p *Participant) settled(_ context.Context, proposal negotiation.Proposal) {
	if proposal.Recipient != p.id || proposal.Status != negotiation.TimedOut {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.swarms[proposal.CorrelationID]; s != nil && s.leader == proposal.Proposer && !s.led {
		p.leave(s)
	}
}

func (p *Participant) receive(ctx context.Context, e *envelope.Envelope) {
	if e.Type == envelope.StreamData {
		p.receiveDocument(ctx, e)
		return
	}
	var m message
	if e.Unmarshal(&m) != nil || m.Swarm == "" {
		return // another kind of envelope
	}
	p.mu.Lock()
	s := p.swarms[m.Swarm]
	if s == nil || p.closed || !s.acceptsFrom(e.Sender, m.Epoch) {
		lost := s == nil && !p.closed && (m.Leader || m.Work != nil)
		p.mu.Unlock()
		if lost {
			p.send(e.Sender, message{Swarm: m.Swarm, Lost: true})
		}
		return
	}
	s.lastSeen, s.led = time.Now(), true
	ask := false
	switch {
	case m.Work != nil:
		p.begin(s, *m.Work)
	case m.Stored != nil:
		for _, id := range m.Stored {
			if j := s.jobs[id]; j != nil && j.done != nil {
				delete(s.jobs, id)
			}
		}
	case m.Stop != nil:
		for _, id := range m.Stop {
			s.drop(id)
		}
	case m.Leader:
		for _, j := range s.jobs {
			j.sent = time.Time{} // the new leader does not have it
		}
		p.dropCopy(s)
		ask = s.follows
	case m.Document != nil && s.follows:
		p.follow(s, m.Document.Epoch)
	case m.Over:
		p.leave(s)
	}
	p.mu.Unlock()
	if m.Refused != nil && p.o.Refused != nil {
		_ = p.protect("Options.Refused", func() { p.o.Refused(errorf(m.Refused.Code, m.Swarm, "%s", m.Refused.Message)) })
	}
	if ask {
		p.send(e.Sender, message{Swarm: m.Swarm, Watch: true})
	}
}

// leave drops a membership. p.mu is held.
func (p *Participant) leave(s *membership) {
	for id := range s.jobs {
		s.drop(id)
	}
	p.dropCopy(s)
	delete(p.swarms, s.id)
	s.stateChanged.Send()
}

// wantsDocument reports whether an envelope is about the shared state of a swarm that is followed here: no other
// handler of the agent gets it.
func (p *Participant) wantsDocument(e *envelope.Envelope) bool {
	if !aboutState(e) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.swarms[e.CorrelationID]
	return s != nil && s.follows
}

// protect calls a function of the application. Its panic is an error event, and the result.
func (p *Participant) protect(whose string, f func()) *fault.Panic {
	return protect(p.r, p.id, whose, f)
}

// receiveDocument handles the leader's messages about the shared state.
func (p *Participant) receiveDocument(ctx context.Context, e *envelope.Envelope) {
	p.mu.Lock()
	var doc *memberDoc
	if s := p.swarms[e.CorrelationID]; s != nil && s.leader == e.Sender {
		doc = s.doc
	}
	p.mu.Unlock()
	if doc != nil {
		doc.w.receive(ctx, e)
	}
}

// follow makes a copy of the leader's document. p.mu is held.
func (p *Participant) follow(s *membership, epoch uint64) {
	p.dropCopy(s)
	doc, err := newMemberDoc(p.r, p.id, s.leader, s.id, epoch, func(c *memberDoc, now State) { p.changed(s, c, now) })
	if err != nil {
		return // resend retries
	}
	s.doc = doc
}

// dropCopy closes the copy of a document that is replaced or not needed any more, after
// watch received its last state. p.mu is held.
func (p *Participant) dropCopy(s *membership) {
	doc := s.doc
	if doc == nil {
		return
	}
	s.doc = nil
	p.running.Go(func() {
		last, ok := doc.state(p.ctx)
		doc.close() // waits for callbacks
		if ok {
			p.notify(s, last)
		}
	})
}

// changed handles a change of a copy.
func (p *Participant) changed(s *membership, c *memberDoc, now State) {
	p.mu.Lock()
	if s.doc != c {
		p.mu.Unlock()
		return
	}
	if p.swarms[s.id] == s {
		s.stateChanged.Send()
	}
	p.mu.Unlock()
	p.notify(s, now)
}

// notify calls watch with a newer state. If another goroutine is calling it, that one continues with the state.
func (p *Participant) notify(s *membership, now State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.watch == nil || now.Sequence <= s.sequence {
		return
	}
	s.sequence, s.next = now.Sequence, &now
	if s.notifying {
		return
	}
	s.notifying = true
	for s.next != nil && !p.closed {
		watch, state := s.watch, *s.next
		s.next = nil
		p.mu.Unlock()
		_ = p.protect("a handler of Watch", func() { watch(state) })
		p.mu.Lock()
	}
	s.notifying = false
}

// acceptsFrom reports whether the sender leads the swarm, and notes a new leader.
func (s *membership) acceptsFrom(sender string, epoch int) bool {
	switch {
	case epoch < s.epoch || epoch == s.epoch && sender != s.leader:
		return false // a former leader, or an impostor
	case !slices.Contains(s.coordinators, sender):
		return false
	}
	s.leader, s.epoch = sender, epoch
	return true
}

func (s *membership) drop(id string) {
	if j := s.jobs[id]; j != nil {
		j.cancel()
		delete(s.jobs, id)
	}
}

// begin starts a job, unless the agent has it already. p.mu is held.
func (p *Participant) begin(s *membership, w work) {
	if lease := time.Duration(w.LeaseMs) * time.Millisecond; lease > 0 && lease <= time.Hour && lease != s.lease {
		s.lease = lease
		wait.Nudge(p.wake)
	}
	if j := s.jobs[w.SubTaskID]; j != nil {
		j.sent = time.Time{} // the coordinator does not have the result
		return
	}
	if len(s.jobs) >= maxKeptResults {
		return // the lease will expire
	}
	ctx, cancel := context.WithCancel(p.ctx)
	j := &job{cancel: cancel}
	s.jobs[w.SubTaskID] = j
	w.SwarmID, w.Coordinator = s.id, s.leader
	p.running.Go(func() {
		defer cancel()
		select {
		case p.room <- struct{}{}:
			defer func() { <-p.room }()
		case <-ctx.Done():
			return
		}
		p.finish(s, j, p.do(ctx, w.Job))
	})
}

// do calls the worker.
func (p *Participant) do(ctx context.Context, what Job) (r result) {
	r = result{SubTask: what.SubTaskID, Attempt: what.Attempt}
	var value json.RawMessage
	var err error
	if crash := p.protect("the worker", func() { value, err = p.work(ctx, what) }); crash != nil {
		r.Error = fmt.Sprintf("the worker crashed: %v\n%s", crash.Value, crash.Stack)
		return r
	}
	switch {
	case err != nil:
		r.Error = err.Error()
	case len(value) > MaxResult:
		r.Error = fmt.Sprintf("the result has %d bytes, at most %d are allowed", len(value), MaxResult)
	case len(value) > 0 && !json.Valid(value):
		r.Error = "the result is not JSON"
	}
	if r.Error == "" {
		r.Value = value
	}
	return r
}

// finish keeps and sends a result.
func (p *Participant) finish(s *membership, j *job, r result) {
	p.mu.Lock()
	wanted := s.jobs[r.SubTask] == j && !p.closed
	if wanted {
		j.done, j.sent = &r, time.Now()
	}
	leader := s.leader
	p.mu.Unlock()
	if wanted {
		p.send(leader, message{Swarm: s.id, Result: &r})
	}
}

// send sends a message to a coordinator. resend repeats what is lost.
func (p *Participant) send(to string, m message) {
	_ = m.send(p.ctx, p.r, p.id, to)
}

// resend sends heartbeats, and repeats unconfirmed results and requests, until the agent is in no swarm.
func (p *Participant) resend() {
	for {
		pause := p.o.Resend
		type outgoing struct {
			to string
			m  message
		}
		var messages []outgoing
		p.mu.Lock()
		if len(p.swarms) == 0 {
			p.resends = false
			p.mu.Unlock()
			return
		}
		now := time.Now()
		for _, s := range p.swarms {
			pause = min(pause, s.lease/3)
			beat := []string{}
			for _, id := range sortedKeys(s.jobs) {
				switch j := s.jobs[id]; {
				case j.done == nil:
					beat = append(beat, id)
				case now.Sub(j.sent) >= p.o.Resend:
					j.sent = now
					messages = append(messages, outgoing{s.leader, message{Swarm: s.id, Result: j.done}})
				}
			}
			if len(beat) > 0 {
				messages = append(messages, outgoing{s.leader, message{Swarm: s.id, Beat: beat}})
			}
			if s.follows && s.doc == nil {
				messages = append(messages, outgoing{s.leader, message{Swarm: s.id, Watch: true}})
			}
		}
		p.mu.Unlock()
		for _, l := range messages {
			p.send(l.to, l.m)
		}
		select {
		case <-time.After(pause):
		case <-p.wake:
		case <-p.ctx.Done():
			return
		}
	}
}

// Swarms lists the swarms that the agent is in.
func (p *Participant) Swarms() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return sortedKeys(p.swarms)
}

// State returns this agent's present copy of the shared state. The first call blocks
// until the copy has arrived or ctx ends.
func (p *Participant) State(ctx context.Context, swarmID string) (State, error) {
	for {
		s, err := p.lockMembership(swarmID)
		if err != nil {
			return State{}, err
		}
		ask := !s.follows
		s.follows = true
		doc, changed, leader := s.doc, s.stateChanged.Wait(), s.leader
		p.mu.Unlock()
		if doc != nil {
			if now, ok := doc.state(ctx); ok {
				return now, nil
			}
		}
		if ask {
			p.send(leader, message{Swarm: swarmID, Watch: true})
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return State{}, ctx.Err()
		case <-p.ctx.Done():
			return State{}, errClosed
		}
	}
}

// Watch calls h with the present shared state and after changes, one call at a time; changes during a call are
// combined. h replaces an earlier one. It must not wait for the Participant to close.
func (p *Participant) Watch(swarmID string, h func(State)) error {
	if h == nil {
		return errorf(CodeInvalid, swarmID, "the handler of the shared state is nil")
	}
	s, err := p.lockMembership(swarmID)
	if err != nil {
		return err
	}
	p.dropCopy(s) // the next copy has the whole state
	s.watch, s.sequence, s.next, s.follows = h, 0, nil, true
	leader := s.leader
	p.mu.Unlock()
	p.send(leader, message{Swarm: swarmID, Watch: true})
	return nil
}

// SetState requests a change of the shared state; an empty value removes the key. It
// does not wait for the change, see Watch.
func (p *Participant) SetState(swarmID, key string, value json.RawMessage) error {
	if len(value) > 0 && !json.Valid(value) {
		return errorf(CodeInvalid, swarmID, "the value of %q is not JSON", key)
	}
	return p.report(swarmID, message{Set: &set{Key: key, Value: value}})
}

// Leave ends the membership in a swarm; its sub-tasks are assigned to others.
func (p *Participant) Leave(swarmID string) error {
	if err := p.report(swarmID, message{Leave: true}); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.swarms[swarmID]; s != nil {
		p.leave(s)
	}
	return nil
}

func (p *Participant) report(swarmID string, m message) error {
	s, err := p.lockMembership(swarmID)
	if err != nil {
		return err
	}
	leader := s.leader
	p.mu.Unlock()
	m.Swarm = swarmID
	p.send(leader, m)
	return nil
}

// lockMembership returns a membership with p.mu held, or an error.
func (p *Participant) lockMembership(swarmID string) (*membership, error) {
	p.mu.Lock()
	if s := p.swarms[swarmID]; s != nil {
		return s, nil
	}
	p.mu.Unlock()
	if p.invalid != nil {
		return nil, p.invalid
	}
	return nil, errorf(CodeNotMember, swarmID, "the agent is not in swarm %q", swarmID)
}

// Close cancels running sub-tasks and waits for them. After the lease coordinators assign them to others.
func (p *Participant) Close() error {
	for _, stop := range p.stops {
		stop()
	}
	p.mu.Lock()
	p.closed = true
	for _, s := range p.swarms {
		p.dropCopy(s)
	}
	p.mu.Unlock()
	p.cancel()
	p.running.Wait()
	return nil
}
