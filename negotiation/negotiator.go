// Package negotiation lets agents propose tasks to each other, and accept or reject
// them. A [Negotiator] belongs to one registered agent:
//
//	sun, err := negotiation.New(r, "sun", negotiation.Options{})
//	p, err := sun.Propose(ctx, "venus", terms)
//	p, err = sun.Wait(ctx, p.ID) // accepted, rejected or timed out
//
// and at the other agent:
//
//	venus.OnProposal(func(ctx context.Context, p negotiation.Proposal) {
//		err := venus.Accept(ctx, p.ID, 10*time.Minute)
//	})
//
// A proposal, its answer and all later messages about the task share one correlation id, see [Negotiator.Send] and
// [Negotiator.Thread]. Each side measures the deadline on its own clock, from sending or receiving the proposal; the
// proposer decides. An answer that is late, repeated, or from an agent that was not asked changes nothing; an agent
// whose acceptance does not count is notified.
package negotiation

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/defaults"
	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/internal/base/handlers"
	"github.com/parleyhub/parley/router"
	"github.com/parleyhub/parley/telemetry"
)

// Defaults of [Options].
const (
	DefaultMaxPending         = 10_000
	DefaultMaxPendingPerAgent = 100
	DefaultMaxSettled         = 10_000
	DefaultMaxBytes           = 64 << 20
	DefaultKeep               = 24 * time.Hour
)

// Clock is a Negotiator's source of time. It must be safe for concurrent use.
type Clock interface {
	// AfterFunc calls f in its own goroutine after d. stop prevents that, and reports whether it did.
	AfterFunc(d time.Duration, f func()) (stop func() bool)
}

type wallClock struct{}

func (wallClock) AfterFunc(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }

// Options set up a Negotiator. The zero Options are valid.
type Options struct {
	Clock Clock // nil: the real one
	// Threads collects the envelopes of negotiations, and may be the router's. Nil means
	// a new store of at most MaxBytes, which drops a thread with the last of its proposals.
	Threads *envelope.Threads
	// Only selects the proposals that are for the Negotiator, if the agent answers others
	// itself; nil selects all. It must not block.
	Only func(e *envelope.Envelope) bool

	MaxPending         int // pending proposals, in each direction; 0 means DefaultMaxPending
	MaxPendingPerAgent int // of them from one other agent; 0 means DefaultMaxPendingPerAgent
	MaxSettled         int // settled proposals that are kept, the latest; 0 means DefaultMaxSettled
	// MaxBytes bounds the texts and inputs of all proposals: first the oldest settled ones
	// are dropped, then new ones are refused. 0 means DefaultMaxBytes.
	MaxBytes int
	// Keep is how long settled proposals are kept, at least, and at most twice that. 0 means DefaultKeep.
	Keep time.Duration
}

func (o Options) withDefaults() Options {
	if o.Clock == nil {
		o.Clock = wallClock{}
	}
	defaults.Set(&o.MaxBytes, DefaultMaxBytes)
	defaults.Set(&o.Keep, DefaultKeep)
	defaults.Set(&o.MaxPending, DefaultMaxPending)
	defaults.Set(&o.MaxPendingPerAgent, DefaultMaxPendingPerAgent)
	defaults.Set(&o.MaxSettled, DefaultMaxSettled)
	return o
}

// Handler handles a proposal. It is called without a lock and may use the Negotiator.
// The context ends when the router or the Negotiator closes.
type Handler func(ctx context.Context, p Proposal)

// call calls handlers with a proposal. The panic of one is an error event.
func (n *Negotiator) call(ctx context.Context, all *handlers.List[Handler], p Proposal) {
	for _, h := range all.All() {
		if crash := fault.Catch(func() { (*h)(ctx, p) }); crash != nil {
			event := telemetry.Panicked("a handler of proposals", crash)
			event.Sender, event.Recipient, event.Target = p.Proposer, p.Recipient, n.id
			n.r.Telemetry().Emit(event)
		}
	}
}

// Negotiator negotiates for one agent. Make one with New and Close it in the end. It is safe for concurrent use.
type Negotiator struct {
	r    *router.Router
	id   string
	o    Options
	stop func() // ends receiving
	free func() // lets the agent have another negotiator

	ctx    context.Context // of the timers' handlers
	cancel context.CancelFunc
	timers sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	unsweep  func() // stops the next sweep; nil: none is due
	store    store
	proposed handlers.List[Handler]
	settled  handlers.List[Handler]
}

// New returns the negotiator of a registered agent. The agent's other handlers receive the same envelopes. An agent has
// one negotiator at a time, since two would refuse the answers to each other: a second is CodeTaken.
func New(r *router.Router, agentID string, o Options) (*Negotiator, error) {
	if r == nil {
		return nil, errorf(CodeInvalidSetup, "", "a negotiator of %q needs a router, and it is nil", agentID)
	}
	if _, known := r.Registry().Identity(agentID); !known {
		return nil, errorf(CodeSend, "", "agent %q is not registered", agentID)
	}
	free, ok := r.Reserve(agentID, "negotiator")
	if !ok {
		return nil, errorf(CodeTaken, "", "%q has a negotiator already: use that one, or close it first", agentID)
	}
	o = o.withDefaults()
	ctx, cancel := context.WithCancel(context.Background())
	own := o.Threads == nil
	if own {
		o.Threads = &envelope.Threads{MaxBytes: o.MaxBytes}
	}
	n := &Negotiator{r: r, id: agentID, o: o, free: free, ctx: ctx, cancel: cancel, store: newStore(agentID, o)}
	if own {
		n.store.ended = o.Threads.Forget
	}
	n.stop = r.OnReceive(agentID, n.receive)
	return n, nil
}

// AgentID returns the id of the agent that it negotiates for.
func (n *Negotiator) AgentID() string { return n.id }

// Propose sends a proposal to an agent and returns it, pending, with the deadline from now. Errors are [*Error]s;
// CodeSend wraps a refusal by the router, for instance for a missing escalation justification, or of the answer: a
// proposal that the agent may not answer is not sent.
func (n *Negotiator) Propose(ctx context.Context, to string, t Terms) (Proposal, error) {
	offer := t.offer(uuid.NewString())
	if err := offer.check(); err != nil {
		return Proposal{}, err
	}
	if to == n.id || to == envelope.Broadcast {
		return Proposal{}, errorf(CodeInvalid, "", "a proposal must be for one other agent, not for %q", to)
	}
	thread := t.CorrelationID
	if thread == "" {
		thread = offer.ProposalID
	}
	p := offer.proposal(n.id, to, thread)
	if err := n.r.PermitAnswer(n.id, to, strings.TrimSpace(offer.EscalationJustification) != ""); err != nil {
		return Proposal{}, &Error{Code: CodeSend, Message: "the proposal is not sent, because " + to + " may not answer it", Err: err}
	}
	if err := n.open(p, offer.deadline()); err != nil {
		return Proposal{}, err
	}
	if err := n.send(ctx, p, to, envelope.TaskProposal, offer); err != nil {
		n.forget(p.ID)
		return Proposal{}, err
	}
	return p, nil
}

// open adds a pending proposal and starts its timer.
func (n *Negotiator) open(p Proposal, deadline time.Duration) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return errClosed
	}
	x, err := n.store.open(p)
	if err != nil {
		return err
	}
	x.stop = n.after(deadline, func() { n.expire(p.ID) })
	return nil
}

// after calls f after d unless it is stopped before. Close waits for f. n.mu is held.
func (n *Negotiator) after(d time.Duration, f func()) (stop func()) {
	n.timers.Add(1)
	stopped := n.o.Clock.AfterFunc(d, func() {
		defer n.timers.Done()
		f()
	})
	return func() {
		if stopped() {
			n.timers.Done()
		}
	}
}

// forget removes a proposal that was never sent.
func (n *Negotiator) forget(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if x := n.store.entries[id]; x != nil {
		x.end()
		n.store.drop(x)
	}
}

// expire marks a proposal as timed out and reports it.
func (n *Negotiator) expire(id string) {
	n.mu.Lock()
	x := n.store.entries[id]
	if x == nil || x.p.Status != Pending {
		n.mu.Unlock()
		return
	}
	if x.answering {
		x.expired = true // whether the answer can be sent decides
		n.mu.Unlock()
		return
	}
	p := n.settle(x, x.p.timedOut())
	n.mu.Unlock()
	n.r.Telemetry().Emit(telemetry.Event{
		Type: telemetry.ErrorEvent, Sender: p.Proposer, Recipient: p.Recipient, Code: string(CodeTimeout),
		Detail: "proposal " + p.ID + " had no answer in time",
	})
	n.call(n.ctx, &n.settled, p)
}

// settle stores the outcome of a pending proposal. n.mu is held.
func (n *Negotiator) settle(x *entry, p Proposal) Proposal {
	x.end()
	n.store.settle(x, p)
	n.sweepLater()
	return p
}

// sweepLater schedules the removal of settled proposals. n.mu is held.
func (n *Negotiator) sweepLater() {
	if n.unsweep != nil || n.closed || len(n.store.settled) == 0 {
		return
	}
	n.unsweep = n.after(n.o.Keep, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.unsweep = nil
		n.store.sweep()
		n.sweepLater()
	})
}

// Accept accepts a proposal to the agent. estimate is how long the task will take, in whole milliseconds, at least
// one. Errors are [*Error]s: CodeTimeout after the deadline.
//
// If the answer is late at the proposer, the handlers of [Negotiator.OnSettled] get the proposal as timed out.
func (n *Negotiator) Accept(ctx context.Context, proposalID string, estimate time.Duration) error {
	return n.answer(ctx, envelope.TaskAccept, Answer{ProposalID: proposalID, AgentID: n.id, EstimatedCompletionMs: estimate.Milliseconds()})
}

// Rejection says why a proposal is rejected.
type Rejection struct {
	Reason      Reason
	Message     string // for people; may be empty
	Alternative string // an agent that could do the task; may be empty
}

// Reject rejects a proposal to the agent. Errors are [*Error]s.
func (n *Negotiator) Reject(ctx context.Context, proposalID string, why Rejection) error {
	return n.answer(ctx, envelope.TaskReject, Answer{
		ProposalID: proposalID, AgentID: n.id, RejectionReason: why.Reason, Message: why.Message, AlternativeSuggestion: why.Alternative,
	})
}

func (n *Negotiator) answer(ctx context.Context, t envelope.Type, a Answer) error {
	if err := a.check(t); err != nil {
		return err
	}
	p, err := n.beginAnswer(a.ProposalID)
	if err != nil {
		return err
	}
	err = n.send(ctx, p, p.Proposer, t, a)
	n.endAnswer(p, t, a, err)
	return err
}

// beginAnswer makes sure that there is only one answer.
func (n *Negotiator) beginAnswer(id string) (Proposal, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	x := n.store.entries[id]
	switch {
	case n.closed:
		return Proposal{}, errClosed
	case x == nil:
		return Proposal{}, notFound(id)
	case x.p.Recipient != n.id:
		return Proposal{}, errorf(CodeNotYours, id, "only %q can answer proposal %q", x.p.Recipient, id)
	case x.p.Status == TimedOut:
		return Proposal{}, errorf(CodeTimeout, id, "the deadline of proposal %q has passed", id)
	case x.p.Status != Pending || x.answering:
		return Proposal{}, errorf(CodeSettled, id, "proposal %q is answered already", id)
	}
	x.answering = true
	return x.p, nil
}

// endAnswer stores the answer, or leaves the proposal pending if it could not be sent.
func (n *Negotiator) endAnswer(p Proposal, t envelope.Type, a Answer, failed error) {
	n.mu.Lock()
	x := n.store.entries[p.ID]
	if x == nil {
		n.mu.Unlock()
		return // removed after Close
	}
	x.answering = false
	refused := x.refused && t == envelope.TaskAccept
	switch {
	case failed == nil && !refused:
		n.settle(x, p.settle(t, a))
	case refused || x.expired:
		p = n.settle(x, p.timedOut())
	}
	n.mu.Unlock()
	if refused {
		n.call(n.ctx, &n.settled, p)
	}
}

// Send sends a message about a proposal to the other side, in its thread.
func (n *Negotiator) Send(ctx context.Context, proposalID string, t envelope.Type, payload any) error {
	p, err := n.Proposal(proposalID)
	if err != nil {
		return err
	}
	to := p.Recipient
	if to == n.id {
		to = p.Proposer
	}
	return n.send(ctx, p, to, t, payload)
}

func (n *Negotiator) send(ctx context.Context, p Proposal, to string, t envelope.Type, payload any) error {
	e, err := envelope.New(n.id, to, t, payload)
	if err != nil {
		return &Error{Code: CodeInvalid, Subject: p.ID, Message: "the message cannot be written", Err: err}
	}
	e.CorrelationID = p.CorrelationID
	n.o.Threads.Add(e) // before the other side can answer
	if _, err := n.r.Send(ctx, e); err != nil {
		n.o.Threads.Remove(e)
		return &Error{Code: CodeSend, Subject: p.ID, Message: "the message cannot be sent to " + to, Err: err}
	}
	return nil
}

// Wait blocks until a proposal is settled, and returns it. It fails only for an unknown
// proposal, or when ctx ends or the Negotiator closes.
func (n *Negotiator) Wait(ctx context.Context, proposalID string) (Proposal, error) {
	n.mu.Lock()
	x := n.store.entries[proposalID]
	n.mu.Unlock()
	if x == nil {
		return Proposal{}, notFound(proposalID)
	}
	select {
	case <-x.done:
	case <-ctx.Done():
		return Proposal{}, ctx.Err()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if x.p.Status == Pending {
		return Proposal{}, errClosed
	}
	return x.p, nil
}

// Proposal returns a proposal from or to the agent. Options.MaxSettled, MaxBytes and
// Keep limit how long settled ones are kept.
func (n *Negotiator) Proposal(id string) (Proposal, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	x := n.store.entries[id]
	if x == nil {
		return Proposal{}, notFound(id)
	}
	return x.p, nil
}

// Pending lists the pending proposals from and to the agent, by id.
func (n *Negotiator) Pending() []Proposal {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.store.pending()
}

// Thread returns the envelopes of one correlation id in order: the proposal, its
// answer, and the messages of [Negotiator.Send].
func (n *Negotiator) Thread(correlationID string) []*envelope.Envelope {
	return n.o.Threads.Thread(correlationID)
}

// OnProposal calls h with each proposal to the agent, one after the other, until it is stopped. While h runs, the
// agent receives nothing else. h may answer the proposal, or leave that for later.
// A nil handler is an error event, and nothing is added.
func (n *Negotiator) OnProposal(h Handler) (stop func()) { return n.add(&n.proposed, h) }

// OnSettled calls h with each proposal that the other side or a timeout settles, until it is stopped: the agent's
// own that are answered or time out, and those to the agent that it did not answer, or accepted too late.
// A nil handler is an error event, and nothing is added.
func (n *Negotiator) OnSettled(h Handler) (stop func()) { return n.add(&n.settled, h) }

func (n *Negotiator) add(to *handlers.List[Handler], h Handler) (stop func()) {
	if h == nil {
		n.r.Telemetry().Emit(telemetry.Event{Type: telemetry.ErrorEvent, Target: n.id, Code: string(CodeInvalidSetup), Detail: "a handler of proposals is nil"})
		return func() {}
	}
	return to.Add(h)
}

// Close ends receiving and all timers, and wakes the waiters. It waits for handlers that
// a timer has called; do not call it from one. It is safe to call more than once.
func (n *Negotiator) Close() error {
	n.stop()
	n.cancel()
	n.mu.Lock()
	n.closed = true
	for _, x := range n.store.entries {
		x.end()
	}
	if n.unsweep != nil {
		n.unsweep()
		n.unsweep = nil
	}
	n.mu.Unlock()
	n.timers.Wait()
	n.free()
	return nil
}
