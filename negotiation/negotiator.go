package negotiation

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/envelope"
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

// Clock is where a Negotiator has its time from. It must be safe for concurrent
// use.
type Clock interface {
	// AfterFunc calls f in a goroutine of its own once d has passed. stop keeps
	// it from being called, and reports whether it did.
	AfterFunc(d time.Duration, f func()) (stop func() bool)
}

type wallClock struct{}

func (wallClock) AfterFunc(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }

// Options set up a Negotiator. The zero Options are good.
type Options struct {
	Clock Clock // nil: the real one
	// Threads collects the envelopes of negotiations; nil: the Negotiator has one
	// of its own, of at most MaxBytes, that forgets a thread with the last of its
	// proposals. It may be the router's.
	Threads *envelope.Threads
	// Only says which envelopes are the Negotiator's, of an agent that answers
	// other proposals by itself; nil: all. It must not block.
	Only func(e *envelope.Envelope) bool

	MaxPending         int // proposals without an answer, in each direction; 0 means DefaultMaxPending
	MaxPendingPerAgent int // of them from one other agent; 0 means DefaultMaxPendingPerAgent
	MaxSettled         int // settled proposals that are remembered, the latest; 0 means DefaultMaxSettled
	// MaxBytes bounds the texts and inputs of all proposals: settled ones are forgotten
	// for others, the oldest first; beyond that no more are taken. 0 means
	// DefaultMaxBytes.
	MaxBytes int
	// Keep is how long settled proposals are remembered, at least; at twice that they are
	// forgotten. 0 means DefaultKeep.
	Keep time.Duration
}

func (o Options) withDefaults() Options {
	if o.Clock == nil {
		o.Clock = wallClock{}
	}
	o.MaxBytes = orDefault(o.MaxBytes, DefaultMaxBytes)
	o.Keep = orDefault(o.Keep, DefaultKeep)
	o.MaxPending = orDefault(o.MaxPending, DefaultMaxPending)
	o.MaxPendingPerAgent = orDefault(o.MaxPendingPerAgent, DefaultMaxPendingPerAgent)
	o.MaxSettled = orDefault(o.MaxSettled, DefaultMaxSettled)
	return o
}

func orDefault[N int | time.Duration](n, otherwise N) N {
	if n <= 0 {
		return otherwise
	}
	return n
}

// Handler takes a proposal. Handlers are called without a lock and may use the
// Negotiator. The context ends when the router or the Negotiator closes.
type Handler func(ctx context.Context, p Proposal)

// Negotiator negotiates for one agent, which has only one: a second would refuse the
// answers to the first. Make one with New and Close it in the end. It is safe for
// concurrent use.
type Negotiator struct {
	r    *router.Router
	id   string
	o    Options
	stop func() // ends receiving

	ctx    context.Context // of the timers' handlers
	cancel context.CancelFunc
	timers sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	unsweep  func() // stops the next sweep; nil: none is to come
	book     book
	proposed handlers
	settled  handlers
}

// New returns the negotiator of an agent that is registered at the router. It
// receives beside the agent's other handlers, which see the same envelopes.
func New(r *router.Router, agentID string, o Options) (*Negotiator, error) {
	if _, known := r.Registry().Identity(agentID); !known {
		return nil, errorf(CodeSend, "", "agent %q is not registered", agentID)
	}
	o = o.withDefaults()
	ctx, cancel := context.WithCancel(context.Background())
	own := o.Threads == nil
	if own {
		o.Threads = &envelope.Threads{MaxBytes: o.MaxBytes}
	}
	n := &Negotiator{r: r, id: agentID, o: o, ctx: ctx, cancel: cancel, book: newBook(agentID, o)}
	if own {
		n.book.ended = o.Threads.Forget
	}
	n.stop = r.OnReceive(agentID, n.receive)
	return n, nil
}

// AgentID returns the id of the agent that it negotiates for.
func (n *Negotiator) AgentID() string { return n.id }

// Propose sends a proposal to an agent and returns it, pending. The time
// for an answer runs from now. Errors are [*Error]s; the router's refusal, of a
// missing escalation justification say, is the cause of CodeSend.
func (n *Negotiator) Propose(ctx context.Context, to string, t Terms) (Proposal, error) {
	offer := t.offer(uuid.NewString())
	if err := offer.check(); err != nil {
		return Proposal{}, err
	}
	if to == n.id || to == envelope.Broadcast {
		return Proposal{}, errorf(CodeInvalid, "", "a proposal goes to one other agent, not to %q", to)
	}
	thread := t.CorrelationID
	if thread == "" {
		thread = offer.ProposalID
	}
	p := offer.proposal(n.id, to, thread)
	if err := n.open(p, offer.deadline()); err != nil {
		return Proposal{}, err
	}
	if err := n.send(ctx, p, to, envelope.TaskProposal, offer); err != nil {
		n.forget(p.ID)
		return Proposal{}, err
	}
	return p, nil
}

// open enters a pending proposal and starts its time.
func (n *Negotiator) open(p Proposal, deadline time.Duration) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return errClosed
	}
	x, err := n.book.open(p)
	if err != nil {
		return err
	}
	n.timers.Add(1)
	stop := n.o.Clock.AfterFunc(deadline, func() {
		defer n.timers.Done()
		n.expire(p.ID)
	})
	x.stop = func() {
		if stop() {
			n.timers.Done()
		}
	}
	return nil
}

// forget takes back a proposal that was never sent.
func (n *Negotiator) forget(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if x := n.book.entries[id]; x != nil {
		x.end()
		n.book.drop(x)
	}
}

// expire marks a proposal as timed out and tells of it.
func (n *Negotiator) expire(id string) {
	n.mu.Lock()
	x := n.book.entries[id]
	if x == nil || x.p.Status != Pending {
		n.mu.Unlock()
		return
	}
	if x.answering {
		x.expired = true // the answer's sending decides
		n.mu.Unlock()
		return
	}
	p := n.settle(x, x.p.timedOut())
	n.mu.Unlock()
	n.r.Telemetry().Emit(telemetry.Event{
		Type: telemetry.ErrorEvent, Sender: p.Proposer, Recipient: p.Recipient, Code: string(CodeTimeout),
		Detail: "proposal " + p.ID + " had no answer in time",
	})
	n.settled.call(n.ctx, p)
}

// settle ends a proposal's being pending. n.mu is held.
func (n *Negotiator) settle(x *entry, p Proposal) Proposal {
	x.end()
	n.book.settle(x, p)
	n.sweepLater()
	return p
}

// sweepLater has settled proposals forgotten in time. n.mu is held.
func (n *Negotiator) sweepLater() {
	if n.unsweep != nil || n.closed || len(n.book.old) == 0 {
		return
	}
	n.timers.Add(1)
	stop := n.o.Clock.AfterFunc(n.o.Keep, func() {
		defer n.timers.Done()
		n.mu.Lock()
		defer n.mu.Unlock()
		n.unsweep = nil
		n.book.sweep()
		n.sweepLater()
	})
	n.unsweep = func() {
		if stop() {
			n.timers.Done()
		}
	}
}

// Accept accepts a proposal that the agent was asked. estimate says how
// long the task will take; it counts in whole milliseconds, at least one. Errors
// are [*Error]s: CodeTimeout if the time is over.
//
// The proposer may find that the answer came too late. It then says so, and the
// proposal goes to the handlers of [Negotiator.OnSettled] as timed out.
func (n *Negotiator) Accept(ctx context.Context, proposalID string, estimate time.Duration) error {
	return n.answer(ctx, envelope.TaskAccept, Answer{ProposalID: proposalID, AgentID: n.id, EstimatedCompletionMs: estimate.Milliseconds()})
}

// Reject rejects a proposal that the agent was asked. alternative may
// name an agent that could take the task. Errors are [*Error]s.
func (n *Negotiator) Reject(ctx context.Context, proposalID string, why Reason, alternative string) error {
	return n.answer(ctx, envelope.TaskReject, Answer{
		ProposalID: proposalID, AgentID: n.id, RejectionReason: why, AlternativeSuggestion: alternative,
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

// beginAnswer makes sure that there is one answer.
func (n *Negotiator) beginAnswer(id string) (Proposal, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	x := n.book.entries[id]
	switch {
	case n.closed:
		return Proposal{}, errClosed
	case x == nil:
		return Proposal{}, notFound(id)
	case x.p.Recipient != n.id:
		return Proposal{}, errorf(CodeNotYours, id, "proposal %q was made to %q, who alone can answer it", id, x.p.Recipient)
	case x.p.Status == TimedOut:
		return Proposal{}, errorf(CodeTimeout, id, "the time for an answer to proposal %q is over", id)
	case x.p.Status != Pending || x.answering:
		return Proposal{}, errorf(CodeSettled, id, "proposal %q is answered already", id)
	}
	x.answering = true
	return x.p, nil
}

// endAnswer enters what was answered, or leaves the proposal open if that could not
// be sent.
func (n *Negotiator) endAnswer(p Proposal, t envelope.Type, a Answer, failed error) {
	n.mu.Lock()
	x := n.book.entries[p.ID]
	if x == nil {
		n.mu.Unlock()
		return // forgotten after Close
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
		n.settled.call(n.ctx, p)
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

// Wait blocks until a proposal of the agent's own is answered or timed out, and
// returns it. It returns an error only for a proposal that is unknown, when ctx
// ends or the Negotiator closes.
func (n *Negotiator) Wait(ctx context.Context, proposalID string) (Proposal, error) {
	n.mu.Lock()
	x := n.book.entries[proposalID]
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

// Proposal returns a proposal that the agent made or was asked. It forgets those
// that were settled long ago: see Options.MaxSettled, MaxBytes and Keep.
func (n *Negotiator) Proposal(id string) (Proposal, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	x := n.book.entries[id]
	if x == nil {
		return Proposal{}, notFound(id)
	}
	return x.p, nil
}

// Pending lists the proposals without an answer that the agent made or was asked,
// in the order of their ids.
func (n *Negotiator) Pending() []Proposal {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.book.pending()
}

// Thread returns the envelopes of one correlation id in order: the
// proposal, its answer, and what was sent with [Negotiator.Send].
func (n *Negotiator) Thread(correlationID string) []*envelope.Envelope {
	return n.o.Threads.Thread(correlationID)
}

// OnProposal has h called with each proposal that the agent is asked, one after
// the other: while h runs, nothing else arrives for the agent. The proposal may be
// answered in h or later. stop ends it.
func (n *Negotiator) OnProposal(h Handler) (stop func()) { return n.proposed.add(h) }

// OnSettled has h called with each proposal that is settled by the other side or by
// time: those of the agent's own that are answered or time out, and those that the
// agent left without an answer, or accepted too late. stop ends it.
func (n *Negotiator) OnSettled(h Handler) (stop func()) { return n.settled.add(h) }

// Close ends receiving and all timers, and wakes those who wait. It waits for
// handlers that a timer has called; do not call it from one. It is safe to call
// more than once.
func (n *Negotiator) Close() error {
	n.stop()
	n.cancel()
	n.mu.Lock()
	n.closed = true
	for _, x := range n.book.entries {
		x.end()
	}
	if n.unsweep != nil {
		n.unsweep()
		n.unsweep = nil
	}
	n.mu.Unlock()
	n.timers.Wait()
	return nil
}
