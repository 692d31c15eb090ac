// Package router delivers envelopes: to an agent by id, to an agent with a capability, or to all.
//
//	r, err := router.New(reg, router.Options{})
//	r.OnReceive("venus", func(ctx context.Context, e *envelope.Envelope) { fmt.Println(e.Sender) })
//	result, err := r.Send(ctx, e)
//
// # Policy
//
// The sender's tier and sandbox are those of its registered card. The router refuses an
// envelope of a sender without a card and one whose metadata contradict the card; then
// the tier rules ([TierConfig]) and the sandbox rules ([SandboxConfig]) apply.
//
// Among the agents with a capability the router chooses one that the rules permit, local ones before remote ones: of
// the first eight in order of registration the one with the fewest queued envelopes. It chooses the sender itself
// only if nobody else is left. A broadcast goes to every permitted agent but the sender; [Result.Skipped] lists the
// others, each with the reason.
//
// A sender in a sandbox cannot tell the agents that it may not address because of the sandbox from unknown ones: no
// result, error or text shows them. The security event names them.
//
// An agent that may not address another, because of its tier, may all the same answer a task-proposal of it that has a
// justification: with a task-accept, a task-reject, a response or an error in the proposal's thread.
//
// # Delivery
//
// Each receiver has a bounded mailbox, and a goroutine that a receiver blocks is replaced, so that a slow or
// panicking receiver delays nobody else. When a mailbox is full, [Router.Send] returns [CodeMailboxFull] and
// [Router.SendWait] waits. One sender's envelopes reach a receiver in the order in which they were sent. Envelopes
// to remote agents are queued for a [Forwarder], usually a channel.Manager.
//
// # Events
//
// The router emits a routing-decision event for every envelope, message-sent for every
// accepted one, message-received for every envelope that the handlers get, cross-tier
// for every delivery between tiers, and security for every refusal by policy.
// Options.Audit gets the decisions, the cross-tier deliveries and the refusals.
package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/clock"
	"github.com/parleyhub/parley/internal/base/defaults"
	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/registry"
	"github.com/parleyhub/parley/telemetry"
)

// Handler handles an envelope for an agent. An agent's handlers are called with one envelope after the other; they
// may block, which delays only this agent. A panic is recovered and reported. The context ends when the router
// closes; it has the trace, so pass it to what the handler sends. Do not change the envelope, which is shared.
type Handler func(ctx context.Context, e *envelope.Envelope)

// Forwarder sends envelopes to remote agents, as a channel.Manager does.
type Forwarder interface {
	// Forward returns when the agent's channel has accepted the envelope. It may block, at most until ctx ends.
	Forward(ctx context.Context, to string, e *envelope.Envelope) error
}

// Auditor stores decisions, as an audit.Log does. e may be nil. Append is called during
// each delivery and must not block for long.
type Auditor interface {
	Append(event telemetry.Event, e *envelope.Envelope) error
}

// Options set up a Router. The zero Options are valid.
type Options struct {
	Tiers       *TierConfig         // nil means DefaultTiers
	Sandbox     *SandboxConfig      // nil means DefaultSandbox
	Mailbox     int                 // envelopes that are queued for each agent; 0 means 1024
	MaxEnvelope int                 // approximate bytes of an envelope; 0 means envelope.DefaultMaxSize
	Telemetry   *telemetry.Recorder // nil means a new one, see [Router.Telemetry]
	Tracer      telemetry.Tracer    // nil: no traces
	Audit       Auditor             // nil: no audit
	Threads     *envelope.Threads   // collects delivered envelopes by thread; nil means a new one, see [Router.Threads]
	// Prepare is called before an agent's handlers get an envelope, by their goroutine. Handlers that it adds get the envelope too, so
	// that an agent may have those that it seldom needs from the first such envelope on. Nil prepares nothing.
	Prepare func(agentID string, e *envelope.Envelope)

	Forwarder      Forwarder     // nil: remote agents cannot be reached
	ForwardTimeout time.Duration // for one envelope; 0 means 30 s
	ResolveTimeout time.Duration // for queries to discovery sources; 0 means 2 s
}

// Router delivers envelopes. Make one with [New] and [Router.Close] it in the end. It is safe for concurrent use.
type Router struct {
	reg     *registry.Registry
	opts    Options
	tiers   atomic.Pointer[tiers]
	sandbox atomic.Pointer[sandbox]
	answers answers
	ctx     context.Context // of the handlers
	cancel  context.CancelFunc
	pool    pool // every goroutine

	mu        sync.RWMutex
	receivers map[string]*receiver
	outboxes  map[string]*mailbox // of remote agents, while they are not empty
	reserved  map[reservation]struct{}
	closed    bool
}

var errClosed = &Error{Code: CodeClosed, Message: "the router is closed"}

// New returns a router for the agents of a registry. It fails only for invalid tier rules, and without a registry.
func New(reg *registry.Registry, o Options) (*Router, error) {
	if reg == nil {
		return nil, errorf(CodeInvalid, "", "a router needs a registry, and it is nil")
	}
	defaults.Set(&o.Mailbox, 1024)
	defaults.Set(&o.MaxEnvelope, envelope.DefaultMaxSize)
	defaults.Set(&o.ForwardTimeout, 30*time.Second)
	defaults.Set(&o.ResolveTimeout, 2*time.Second)
	if o.Telemetry == nil {
		o.Telemetry = telemetry.New(telemetry.Options{})
	}
	if o.Threads == nil {
		o.Threads = new(envelope.Threads)
	}
	tiers, sandbox := DefaultTiers(), DefaultSandbox()
	o.Tiers, o.Sandbox = cmp.Or(o.Tiers, &tiers), cmp.Or(o.Sandbox, &sandbox)
	r := &Router{reg: reg, opts: o, receivers: make(map[string]*receiver), outboxes: make(map[string]*mailbox), reserved: make(map[reservation]struct{})}
	if err := r.SetTierConfig(*o.Tiers); err != nil {
		return nil, err
	}
	r.SetSandboxConfig(*o.Sandbox)
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r, nil
}

// Registry returns the registry whose agents the router serves.
func (r *Router) Registry() *registry.Registry { return r.reg }

// Telemetry returns the recorder of the router's events.
func (r *Router) Telemetry() *telemetry.Recorder { return r.opts.Telemetry }

// Threads returns the store of the envelopes that the router has delivered, by thread, within the store's bounds.
func (r *Router) Threads() *envelope.Threads { return r.opts.Threads }

// OnReceive adds a handler for an agent's envelopes and returns the function that removes it. With several handlers
// each gets every envelope that none claims. The agent's card may be registered before or after. A nil handler is an
// error event with CodeInvalid, and nothing is added.
func (r *Router) OnReceive(agentID string, h Handler) (stop func()) {
	if h == nil {
		return r.invalid(noHandler(agentID))
	}
	return r.addHandler(agentID, func(rec *receiver) (remove func()) { return rec.handlers.Add(h) })
}

// Claim is OnReceive for a handler to which alone go the envelopes that it wants, such as those for a replica of a
// document. Of several claims the oldest gets the envelope. wants is called for each envelope; it must be quick and
// must not call the router.
func (r *Router) Claim(agentID string, wants func(*envelope.Envelope) bool, h Handler) (stop func()) {
	if h == nil || wants == nil {
		return r.invalid(noHandler(agentID))
	}
	return r.addHandler(agentID, func(rec *receiver) (remove func()) { return rec.claims.Add(&claim{wants, h}) })
}

// reservation is a role of an agent that only one part of the application may have.
type reservation struct{ agentID, role string }

// Reserve gives the caller a role at an agent, such as to negotiate for it, until release is called. ok is false if
// another caller has it. release may be called more than once.
func (r *Router) Reserve(agentID, role string) (release func(), ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := reservation{agentID, role}
	if _, taken := r.reserved[key]; taken {
		return func() {}, false
	}
	r.reserved[key] = struct{}{}
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.reserved, key)
	}), true
}

// invalid reports a wrong argument of a function that returns no error, and returns a function that does nothing.
func (r *Router) invalid(err *Error) func() {
	r.opts.Telemetry.Emit(telemetry.Event{Type: telemetry.ErrorEvent, Target: err.Subject, Code: string(err.Code), Detail: err.Message})
	return func() {}
}

func (r *Router) addHandler(agentID string, add func(*receiver) (remove func())) (stop func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.receivers[agentID]
	if rec == nil {
		rec = &receiver{}
		rec.mailbox = &mailbox{size: r.opts.Mailbox, pool: &r.pool, handle: func(it item) { r.receive(agentID, rec, it.e) }}
		r.receivers[agentID] = rec
	}
	remove := add(rec)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		remove()
		if len(rec.handlers.All())+len(rec.claims.All()) == 0 && r.receivers[agentID] == rec {
			delete(r.receivers, agentID)
			rec.close()
		}
	}
}

// receive calls an agent's handlers.
func (r *Router) receive(agentID string, rec *receiver, e *envelope.Envelope) {
	if r.ctx.Err() != nil {
		return
	}
	ctx, end := r.ctx, func(error) {}
	if r.opts.Tracer != nil {
		_ = r.trace(e, func() { ctx, end = r.opts.Tracer.Receive(ctx, agentID, e) }) // without its span
	}
	event := telemetry.Of(telemetry.MessageReceived, e)
	event.Target = agentID
	r.opts.Telemetry.Emit(event)
	if r.opts.Prepare != nil {
		_ = r.protect("Options.Prepare", agentID, e, func() error { r.opts.Prepare(agentID, e); return nil })
	}
	var failed error
	for _, h := range r.handlersFor(agentID, rec, e) {
		if err := r.call(ctx, *h, agentID, e); err != nil {
			failed = err
		}
	}
	_ = r.trace(e, func() { end(failed) })
}

// trace calls the tracer; its panic is an event only.
func (r *Router) trace(e *envelope.Envelope, f func()) error {
	return r.protect("the tracer", e.Recipient, e, func() error { f(); return nil })
}

// handlersFor returns the handlers that get an envelope: the one that claims it, or all that claim nothing.
func (r *Router) handlersFor(agentID string, rec *receiver, e *envelope.Envelope) []*Handler {
	for _, c := range rec.claims.All() {
		wanted := false
		_ = r.protect(fmt.Sprintf("the receiver of %q", agentID), agentID, e, func() error { wanted = (*c).wants(e); return nil })
		if wanted {
			return []*Handler{&(*c).handle}
		}
	}
	return rec.handlers.All()
}

// Claims reports whether a handler of [Router.Claim] gets an agent's envelope.
func (r *Router) Claims(agentID string, e *envelope.Envelope) bool {
	r.mu.RLock()
	rec := r.receivers[agentID]
	r.mu.RUnlock()
	return rec != nil && slices.ContainsFunc(rec.claims.All(), func(c **claim) bool { return (*c).wants(e) })
}

// call calls one handler and returns its panic as an error.
func (r *Router) call(ctx context.Context, h Handler, agentID string, e *envelope.Envelope) error {
	return r.protect(fmt.Sprintf("the receiver of %q", agentID), agentID, e, func() error {
		h(ctx, e)
		return nil
	})
}

// protect calls a function of the application for an envelope. Its panic is an error event and the error.
func (r *Router) protect(whose, agentID string, e *envelope.Envelope, f func() error) error {
	err := fault.CatchError(f)
	p, panicked := errors.AsType[*fault.Panic](err)
	if !panicked {
		return err
	}
	event, about := telemetry.Of(telemetry.ErrorEvent, e), telemetry.Panicked(whose, p)
	event.Target, event.Code, event.Detail = agentID, about.Code, about.Detail
	r.opts.Telemetry.Emit(event)
	return fmt.Errorf("%s panicked: %v", whose, p.Value)
}

// Send routes an envelope. It does not wait for receivers: a full mailbox is CodeMailboxFull. It blocks only to look
// up an unknown recipient with the discovery sources, at most for Options.ResolveTimeout.
//
// The error, an [*Error], is nil if the envelope was delivered, or broadcast to every
// agent that may and can get it. The result is valid in any case.
func (r *Router) Send(ctx context.Context, e *envelope.Envelope) (Result, error) {
	return r.send(ctx, e, false)
}

// SendWait is Send, except that it waits until ctx ends: for room in the mailbox of a local agent, or until the
// channel to a remote agent has accepted the envelope. Broadcasts do not wait.
func (r *Router) SendWait(ctx context.Context, e *envelope.Envelope) (Result, error) {
	return r.send(ctx, e, true)
}

// delivery is the routing of one envelope.
type delivery struct {
	r      *Router
	ctx    context.Context
	e      *envelope.Envelope
	wait   bool
	inward bool  // a channel has received it
	began  int64 // clock.Nano
	policy policy
	target agent.Identity
	result Result
}

func (r *Router) send(ctx context.Context, e *envelope.Envelope, wait bool) (Result, error) {
	if e == nil {
		return r.nothing()
	}
	d := delivery{r: r, ctx: ctx, e: e, wait: wait, began: clock.Nano(), result: Result{Path: telemetry.PathLocal, TargetAgentID: e.Recipient}}
	if err := d.open(); err != nil {
		return d.finish(err)
	}
	if r.opts.Tracer != nil {
		traced, end := e, func(error) {}
		_ = r.trace(e, func() { traced, end = r.opts.Tracer.Send(ctx, d.policy.from, e) }) // without its span
		d.e, d.policy.e = traced, traced
		result, err := d.finish(d.route())
		_ = r.trace(e, func() { end(err) })
		return result, err
	}
	return d.finish(d.route())
}

// nothing is the routing of a nil envelope.
func (r *Router) nothing() (Result, error) {
	err := noEnvelope()
	r.opts.Telemetry.Emit(telemetry.Event{Type: telemetry.RoutingDecision, RoutingPath: telemetry.PathLocal, Success: telemetry.Failure, Code: string(err.Code), Detail: err.Message})
	return Result{Path: telemetry.PathLocal, Error: err.Message}, err
}

// open checks what does not depend on the recipient.
func (d *delivery) open() *Error {
	if d.e.Recipient == envelope.Broadcast {
		d.result.Path = telemetry.PathBroadcast
	}
	if err := d.e.Validate(); err != nil {
		return &Error{Code: CodeInvalidEnvelope, Message: "the envelope cannot be routed", Err: err}
	}
	if size := d.e.Size(); size > d.r.opts.MaxEnvelope {
		return errorf(CodeInvalidEnvelope, "", "the envelope has about %d bytes; at most %d are allowed", size, d.r.opts.MaxEnvelope)
	}
	return d.identify()
}

// identify finds the sender's card, whose rules apply.
func (d *delivery) identify() *Error {
	from, known := d.r.reg.Identity(d.e.Sender)
	if !known {
		return senderUnknown(d.e.Sender)
	}
	d.policy = policy{tiers: d.r.tiers.Load(), sandbox: d.r.sandbox.Load(), answers: &d.r.answers, from: from, e: d.e}
	return checkMetadata(from, d.e)
}

func (d *delivery) route() *Error {
	switch {
	case d.e.Recipient == envelope.Broadcast:
		return d.broadcast()
	case d.e.ToCapability():
		return d.toCapability()
	}
	return d.toAgent()
}

// toAgent delivers to the agent that the envelope names.
func (d *delivery) toAgent() *Error {
	to, known := d.r.reg.Identity(d.e.Recipient)
	if local, mine := d.r.reg.LocalID(d.e.Recipient); !known && mine { // by the id that others have for it
		named := *d.e
		named.Recipient = local
		d.e, d.policy.e = &named, &named
		to, known = d.r.reg.Identity(local)
	}
	// An agent outside of the sender's sandbox is looked up like an unknown one, so that the time tells no difference.
	if !known || !d.policy.sandbox.admits(d.policy.from, to) {
		err := d.resolve(registry.Query{ID: d.e.Recipient})
		if to, known = d.r.reg.Identity(d.e.Recipient); !known {
			d.target = agent.Identity{ID: d.e.Recipient}
			unknown := d.r.unknown(d.policy.from, d.e.Recipient)
			if !unknown.Code.refusal() {
				unknown.Err = err
			}
			return unknown
		}
	}
	return d.deliverIfPermitted(to)
}

// resolve queries the discovery sources and returns their errors.
func (d *delivery) resolve(q registry.Query) error {
	if !d.r.reg.CanFind() {
		return nil
	}
	ctx, cancel := context.WithTimeout(d.ctx, d.r.opts.ResolveTimeout)
	defer cancel()
	_, err := d.r.reg.Resolve(ctx, q)
	return errors.Unwrap(err)
}

// maxCandidates is how many agents with a capability are compared by load.
const maxCandidates = 8

// toCapability delivers to an agent that has the capability.
func (d *delivery) toCapability() *Error {
	id := d.e.Recipient
	able, hidden := d.capable(id)
	if len(able) == 0 {
		err := d.resolve(registry.Query{Capability: id})
		if able, hidden = d.capable(id); len(able) == 0 {
			unknown := errorf(CodeCapabilityNotFound, id, "no agent with the capability %q is known", id)
			if d.policy.from.SandboxID == "" {
				unknown.Err = err
			}
			if hidden.ID != "" {
				d.refuse(hidden, sandboxViolation(d.policy.from, hidden.ID))
			}
			return unknown
		}
	}
	var refused *Error
	for _, eligible := range []func(agent.Identity) bool{
		func(to agent.Identity) bool { return to.ID != d.e.Sender && d.r.receives(to.ID) },
		func(to agent.Identity) bool {
			return to.ID != d.e.Sender && to.Origin == agent.Remote && d.r.opts.Forwarder != nil && !d.r.receives(to.ID)
		},
		func(to agent.Identity) bool { return to.ID == d.e.Sender && d.r.receives(to.ID) },
	} {
		to, err := d.choose(able, eligible)
		if to.ID != "" {
			return d.deliver(to)
		}
		if refused == nil && err != nil {
			refused = err
		}
	}
	if refused != nil {
		return refused
	}
	return noReceiver(able[0].ID)
}

// capable returns the agents with a capability that the sender may know of, and the first of the others.
func (d *delivery) capable(id string) (able []agent.Identity, hidden agent.Identity) {
	all := d.r.reg.Capable(id)
	if d.policy.from.SandboxID == "" {
		return all, hidden
	}
	for _, to := range all {
		switch {
		case d.policy.sandbox.admits(d.policy.from, to):
			able = append(able, to)
		case hidden.ID == "":
			hidden = to
		}
	}
	return able, hidden
}

// choose returns the least busy of the first eligible agents, or why there is none.
func (d *delivery) choose(able []agent.Identity, eligible func(agent.Identity) bool) (best agent.Identity, refused *Error) {
	least, n, more := 0, 0, 64 // agents to examine after the first eligible one
	for _, to := range able {
		if best.ID != "" {
			if more--; more == 0 {
				break
			}
		}
		if !eligible(to) {
			continue
		}
		if err := d.policy.check(to); err != nil {
			if refused == nil {
				refused, d.target = err, to
			}
			continue
		}
		load := d.r.load(to.ID)
		if best.ID == "" || load < least {
			best, least = to, load
		}
		if n++; n == maxCandidates || least == 0 {
			break
		}
	}
	return best, refused
}

func (r *Router) receives(agentID string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.receivers[agentID] != nil
}

func (r *Router) load(agentID string) int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if rec := r.receivers[agentID]; rec != nil {
		return rec.load()
	}
	if out := r.outboxes[agentID]; out != nil {
		return out.load()
	}
	return 0
}

func (d *delivery) deliverIfPermitted(to agent.Identity) *Error {
	d.target = to
	if err := d.policy.check(to); err != nil {
		return err
	}
	return d.deliver(to)
}

// deliver puts the envelope into one agent's mailbox. What a channel has received is
// not forwarded, so that nothing loops.
func (d *delivery) deliver(to agent.Identity) *Error {
	d.target = to
	d.result.TargetAgentID = to.ID
	d.policy.expectAnswer(to) // before the agent can answer
	d.r.mu.RLock()
	rec, closed := d.r.receivers[to.ID], d.r.closed
	d.r.mu.RUnlock()
	switch {
	case closed:
		return errClosed
	case rec != nil:
		return d.put(rec.mailbox, to)
	case to.Origin == agent.Remote && d.r.opts.Forwarder != nil && !d.inward:
		d.result.Path = telemetry.PathRemote
		return d.forward(to)
	}
	return noReceiver(to.ID)
}

func (d *delivery) put(box *mailbox, to agent.Identity) *Error {
	if box.put(item{e: d.e}) {
		return nil
	}
	if !d.wait {
		return full(to.ID)
	}
	if err := box.wait(d.ctx, item{e: d.e}); err != nil {
		return asError(err, to.ID)
	}
	return nil
}

func asError(err error, agentID string) *Error {
	if e, ok := err.(*Error); ok {
		return e
	}
	return &Error{Code: CodeDeliveryFailed, Subject: agentID, Message: fmt.Sprintf("%q could not be reached", agentID), Err: err}
}

// forward queues the envelope for a remote agent.
func (d *delivery) forward(to agent.Identity) *Error {
	if !d.wait {
		return d.r.enqueue(to.ID, item{e: d.e})
	}
	done := make(chan error, 1)
	if err := d.r.enqueue(to.ID, item{e: d.e, done: done}); err != nil {
		return err
	}
	select {
	case err := <-done:
		if err != nil {
			return asError(err, to.ID)
		}
		return nil
	case <-d.ctx.Done():
		return asError(d.ctx.Err(), to.ID)
	}
}

// enqueue adds to the outbox of a remote agent, which it makes if necessary.
func (r *Router) enqueue(agentID string, it item) *Error {
	for {
		r.mu.Lock()
		if r.closed {
			r.mu.Unlock()
			return errClosed
		}
		out := r.outboxes[agentID]
		if out == nil {
			out = &mailbox{size: r.opts.Mailbox, pool: &r.pool, handle: func(it item) { r.forward(agentID, it) }}
			out.empty = func() { r.retire(agentID, out) }
			r.outboxes[agentID] = out
		}
		r.mu.Unlock()
		if out.put(it) {
			return nil
		}
		out.mu.Lock()
		retired := out.closed
		out.mu.Unlock()
		if !retired {
			return full(agentID)
		}
	}
}

// retire drops an outbox that is empty.
func (r *Router) retire(agentID string, out *mailbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if out.retire() && r.outboxes[agentID] == out {
		delete(r.outboxes, agentID)
	}
}

// forward passes one envelope to the forwarder.
func (r *Router) forward(agentID string, it item) {
	ctx, cancel := context.WithTimeout(r.ctx, r.opts.ForwardTimeout)
	defer cancel()
	err := r.protect("the forwarder", agentID, it.e, func() error { return r.opts.Forwarder.Forward(ctx, agentID, it.e) })
	if it.done != nil {
		it.done <- err
	}
	if err != nil {
		event := telemetry.Of(telemetry.DeliveryFailure, it.e)
		event.Target, event.RoutingPath, event.Code, event.Detail = agentID, telemetry.PathRemote, string(CodeDeliveryFailed), err.Error()
		r.opts.Telemetry.Emit(event)
	}
}

// broadcast delivers to every permitted agent.
func (d *delivery) broadcast() *Error {
	skip := func(to agent.Identity, err *Error) {
		if err.Code != CodeSandboxViolation { // the sender must not know of an agent outside of its sandbox
			d.result.Skipped = append(d.result.Skipped, Skipped{AgentID: to.ID, Code: err.Code, Reason: err.Message})
		}
		if err.Code.refusal() {
			d.refuse(to, err)
		}
	}
	everybody := d.r.reg.Identities()
	boxes := d.r.boxes(everybody)
	if boxes == nil {
		return errClosed
	}
	now := clock.UnixMilli()
	var between []telemetry.Event // cross-tier events, emitted in batches
	defer func() { d.crossTiers(between) }()
	var woken []*mailbox
	wake := func() {
		if len(woken) > 0 {
			d.r.pool.submit(woken...)
			woken = woken[:0]
		}
	}
	defer wake()
	for i, to := range everybody {
		if to.ID == d.e.Sender {
			continue
		}
		if err := d.policy.check(to); err != nil {
			skip(to, err)
			continue
		}
		d.policy.expectAnswer(to)
		var err *Error
		switch {
		case boxes[i] != nil:
			ok, idle := boxes[i].add(item{e: d.e})
			if !ok {
				err = full(to.ID)
			}
			if idle {
				if woken = append(woken, boxes[i]); len(woken) == maxWoken {
					wake()
				}
			}
		case to.Origin == agent.Remote && d.r.opts.Forwarder != nil:
			err = d.r.enqueue(to.ID, item{e: d.e})
		default:
			err = noReceiver(to.ID)
		}
		if err != nil {
			skip(to, err)
			continue
		}
		d.result.Recipients++
		if to.Tier == d.policy.from.Tier {
			continue
		}
		if between == nil {
			between = make([]telemetry.Event, 0, maxWoken)
		}
		if between = append(between, d.betweenTiers(to, now)); len(between) == maxWoken {
			d.crossTiers(between)
			between = between[:0]
		}
	}
	return nil
}

// maxWoken is how many mailboxes a broadcast fills before it submits them to the pool.
const maxWoken = 64

// boxes returns the mailboxes of local agents, with nil for others, or nil if the router is closed.
func (r *Router) boxes(ids []agent.Identity) []*mailbox {
	boxes := make([]*mailbox, len(ids))
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.closed {
		return nil
	}
	for i := range ids {
		if rec := r.receivers[ids[i].ID]; rec != nil {
			boxes[i] = rec.mailbox
		}
	}
	return boxes
}

// finish records the outcome and returns it.
func (d *delivery) finish(err *Error) (Result, error) {
	now := clock.Nano()
	res := &d.result
	res.LatencyMs = float64(now-d.began) / float64(time.Millisecond)
	var events [2]telemetry.Event // message-sent, if the envelope was accepted, and the decision
	event := &events[1]
	*event = telemetry.Of(telemetry.RoutingDecision, d.e)
	event.Timestamp, event.Duration, event.RoutingPath, event.Target = clock.UnixMilliAt(now), res.LatencyMs, res.Path, res.TargetAgentID
	if err != nil {
		event.Success, event.Code, event.Detail = telemetry.Failure, string(err.Code), err.Error()
		d.record(*event, d.e)
		if err.Code.refusal() {
			d.refuse(d.target, err)
		}
		res.Error = err.Error()
		return *res, err
	}
	event.Success = telemetry.Success
	res.Delivered = res.Path != telemetry.PathBroadcast || res.Recipients > 0
	if d.inward {
		d.r.opts.Telemetry.EmitAll(events[1:])
	} else {
		events[0] = telemetry.Of(telemetry.MessageSent, d.e)
		events[0].Timestamp = event.Timestamp
		d.r.opts.Telemetry.EmitAll(events[:])
	}
	d.audit(event, d.e)
	if res.Path != telemetry.PathBroadcast {
		d.crossTier(d.target, event.Timestamp)
	}
	d.r.opts.Threads.Add(d.e)
	return *res, nil
}

// record emits and audits an event.
func (d *delivery) record(event telemetry.Event, e *envelope.Envelope) {
	d.r.opts.Telemetry.Emit(event)
	d.audit(&event, e)
}

func (d *delivery) audit(event *telemetry.Event, e *envelope.Envelope) {
	if d.r.opts.Audit == nil {
		return
	}
	if e != nil && e.Validate() != nil {
		e = nil // an invalid envelope was not delivered and cannot be encoded
	}
	if err := fault.CatchError(func() error { return d.r.opts.Audit.Append(*event, e) }); err != nil {
		d.r.opts.Telemetry.Emit(telemetry.Event{Type: telemetry.ErrorEvent, EnvelopeID: event.EnvelopeID, Code: "AUDIT_FAILED", Detail: err.Error()})
	}
}

// crossTier records a delivery between tiers.
func (d *delivery) crossTier(to agent.Identity, now int64) {
	if to.Tier != d.policy.from.Tier {
		d.record(d.betweenTiers(to, now), nil)
	}
}

func (d *delivery) betweenTiers(to agent.Identity, now int64) telemetry.Event {
	event := telemetry.Of(telemetry.CrossTier, d.e)
	event.Timestamp, event.Target, event.RoutingPath = now, to.ID, d.result.Path
	event.SourceTier, event.TargetTier = d.policy.from.Tier, to.Tier
	return event
}

// crossTiers records deliveries of a broadcast between tiers.
func (d *delivery) crossTiers(events []telemetry.Event) {
	d.r.opts.Telemetry.EmitAll(events)
	for i := range events {
		d.audit(&events[i], nil)
	}
}

// refuse records a delivery that policy refused.
func (d *delivery) refuse(to agent.Identity, err *Error) {
	event := telemetry.Of(telemetry.Security, d.e)
	event.Target, event.Code, event.Detail = to.ID, string(err.Code), err.Message
	event.SourceTier, event.TargetTier = d.policy.from.Tier, to.Tier
	d.record(event, nil)
}

// Receive delivers an envelope that a channel has received to a local agent and to no other, whatever its recipient,
// so that nothing loops. The sender must have a remote card, and the rules of [Router.Send] apply. Receive waits for
// room in the mailbox until ctx ends, so a slow receiver slows down the channel and its sender.
//
// [Router.ReceiveOwn] is for channels within the process.
func (r *Router) Receive(ctx context.Context, agentID string, e *envelope.Envelope) (Result, error) {
	if e == nil {
		return r.nothing()
	}
	return r.receiveFrom(ctx, agent.Remote, agentID, e)
}

// ReceiveOwn is Receive for a channel between two local agents: the sender must have a local card.
func (r *Router) ReceiveOwn(ctx context.Context, agentID string, e *envelope.Envelope) (Result, error) {
	if e == nil {
		return r.nothing()
	}
	return r.receiveFrom(ctx, agent.Local, agentID, e)
}

func (r *Router) receiveFrom(ctx context.Context, origin agent.Origin, agentID string, e *envelope.Envelope) (Result, error) {
	d := delivery{r: r, ctx: ctx, e: e, wait: true, inward: true, began: clock.Nano(), result: Result{Path: telemetry.PathLocal, TargetAgentID: agentID}}
	return d.finish(d.receive(origin, agentID))
}

func (d *delivery) receive(origin agent.Origin, agentID string) *Error {
	err := d.open()
	d.result.Path = telemetry.PathLocal
	if err != nil {
		return err
	}
	if d.policy.from.Origin != origin {
		return errorf(CodeSenderUnknown, d.e.Sender, "an envelope over a channel claims to be of %q, which is not at its other end", d.e.Sender)
	}
	card, getErr := d.r.reg.Get(agentID)
	if getErr != nil {
		return notFound(agentID)
	}
	if d.e.Recipient != envelope.Broadcast && d.e.Recipient != agentID && !(d.e.ToCapability() && card.Has(d.e.Recipient)) {
		return errorf(CodeAgentNotFound, d.e.Recipient, "%q received the envelope for %q", agentID, d.e.Recipient)
	}
	return d.deliverIfPermitted(card.Identity())
}

// Discover returns an agent's view of the registry: all cards or, for an agent in a sandbox, its own, those in the
// same sandbox and those that it may address. Later changes of the rules apply to the view.
func (r *Router) Discover(agentID string) (*registry.View, error) {
	viewer, known := r.reg.Identity(agentID)
	if !known {
		return nil, notFound(agentID)
	}
	return r.reg.View(func(to agent.Identity) bool {
		return to.ID == viewer.ID || r.sandbox.Load().admits(viewer, to)
	}), nil
}

// Close accepts no more envelopes, drops the queued ones, ends the context of the handlers and waits for running
// handlers, at most until ctx ends (then it returns ctx's error). It is safe to call more than once.
func (r *Router) Close(ctx context.Context) error {
	r.mu.Lock()
	r.closed = true
	for _, rec := range r.receivers {
		rec.close()
	}
	for _, out := range r.outboxes {
		out.close()
	}
	r.mu.Unlock()
	r.cancel()
	done := make(chan struct{})
	go func() {
		r.pool.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
