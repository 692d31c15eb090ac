// Package replica synchronizes a document among agents that are linked by channels.
//
//	r, err := replica.New(replica.Options{Agent: "mars", State: "plan"})
//	detach, err := r.Attach(ch) // a *channel.Channel, over any transport
//	err = r.Edit(ctx, func(d *crdt.Doc) error { return d.Map("todo").Set("k", 1) })
//	cancel := r.OnUpdate(func(u replica.Update) { … })
//
// # Guarantees
//
// A change is sent to all linked replicas, and forwarded by them. It is applied once, after all changes
// that its author had applied; concurrent changes all count. Each carries a vector clock that counts updates by
// session, since state vectors do not change with deletes. A message that cannot be decoded is logged with
// its source and skipped, and the state is asked for instead.
//
// Linked replicas converge even if messages are lost: a new link begins with an exchange of the missing state, and
// digests of the document, including deletes and the order of lists, are compared periodically (Options.Interval).
//
// # Restarts
//
// A Replica writes under a random client id and in a random session, so a process that starts again, even
// from an old [Saved], is distinct from the former one. What was not sent when a process died is lost;
// [Replica.Flush] blocks until it has been passed to the channels.
//
// # Trust
//
// The channel determines the identity of the agent at the other end, and Options.Access its rights to read, to write
// and to forward changes of others. A client id belongs to the session that used it first. Updates are checked
// before they are applied ([crdt.Doc.Admit]). All replicas need the same Options.Limits: one that refused what
// others applied would differ for good. The maker of a refused update is notified, and must open the document again.
//
// # Concurrency
//
// One function at a time works on the document, the clock and the buffered updates, in the order of the calls: in the
// caller's goroutine if no other function waits or runs, otherwise in the owner's. Such a function does no I/O and waits for
// no link: if a link's queue is full it is dropped, and the peer asks for the state.
package replica

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/telemetry"
)

// Replica is one agent's copy of a document, synchronized with others over links. Create it with New and
// Close it. It is safe for concurrent use.
type Replica struct {
	o      Options // with defaults; without Saved and Former
	limits crdt.Limits
	log    *slog.Logger

	mail    chan func()
	pending atomic.Int64  // functions that are posted or run
	running sync.Mutex    // held while a function runs
	ended   chan struct{} // closed when the owner's goroutine has ended
	ctx     context.Context
	stop    context.CancelFunc
	done    sync.WaitGroup

	epoch atomic.Uint64 // written while running is held

	// These belong to the function that runs.
	session   string
	doc       *crdt.Doc
	unobserve func()
	buffer    *causalBuffer
	sent      map[string]uint64 // the clock at the last update made here
	before    crdt.StateVector  // the state before the update that is being made
	links     []*link
	owners    map[uint64]owner    // of client ids
	banned    map[string]bool     // refused sessions
	ahead     map[dependency]bool // updates of a log applied although an earlier one is missing
	refused   error               // another replica's refusal of this session
	status    Status
	version   uint64 // of the document; incremented by each change
	summary   *digest
	summed    uint64    // the version of summary
	weighed   uint64    // the version last checked for churn
	waiting   time.Time // since when anything is parked
	repaired  time.Time

	former *Former      // of a keeper, for lateFor after its epoch began
	keeper string       // the agent that announced the epoch
	origin *origin      // its announcement
	late   []*lateState // not yet acknowledged by the keeper

	handlers notifier
}

// owner is the session that owns a client id.
type owner struct{ agent, key string }

const mailbox = 256

// New returns a replica of a document.
func New(o Options) (*Replica, error) {
	switch {
	case o.Agent == "" || len(o.Agent) > maxName || strings.Contains(o.Agent, "/"):
		return nil, &Error{Code: CodeInvalid, Message: "a replica needs an agent id without a slash"}
	case o.State == "" || len(o.State) > maxName:
		return nil, &Error{Code: CodeInvalid, Message: "a document needs a name of at most 256 bytes"}
	}
	limits := crdt.LiveLimits()
	if o.Limits != nil {
		limits = *o.Limits
	}
	limits.Update = min(limits.Update, maxPayload)
	if o.Interval <= 0 {
		o.Interval = 30 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Access == nil {
		o.Access = func(string) Access { return Read | Write | Relay | Keep }
	}
	r := &Replica{
		limits: limits, log: o.Logger.With(slog.String("document", o.State)),
		mail: make(chan func(), mailbox), ended: make(chan struct{}),
	}
	r.guard(&o)
	doc, clock, former := r.newDoc(&limits), map[string]uint64(nil), o.Former
	if s := o.Saved; s != nil {
		if s.Epoch != o.Epoch {
			return nil, &Error{Code: CodeInvalid, Message: "the saved state is of another epoch"}
		}
		if _, err := doc.Apply(s.Update, nil); err != nil {
			return nil, err
		}
		doc.Renew() // the saved state may contain the old id
		clock = s.Clock
	}
	o.Saved, o.Former = nil, nil
	r.o = o
	r.begin(o.Epoch, doc, former)
	r.buffer.advance(clock)
	r.ctx, r.stop = context.WithCancel(context.Background())
	r.done.Go(r.own)
	r.done.Go(func() { r.handlers.run(r.ctx, r.protect) })
	return r, nil
}

func newSession() string {
	var b [sessionSize / 2]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// own runs the posted functions, one at a time.
func (r *Replica) own() {
	defer close(r.ended)
	digests := time.NewTimer(r.jitter())
	defer digests.Stop()
	ages := time.NewTicker(maxBufferedAge / 2)
	defer ages.Stop()
	for {
		select {
		case f := <-r.mail:
			r.exclusive("the handling of a message", f)
			r.pending.Add(-1)
		case <-digests.C:
			r.exclusive("the comparison of copies", func() {
				r.toAll(r.sendDigest, nil)
				r.maintain(time.Now())
			})
			digests.Reset(r.jitter())
		case now := <-ages.C:
			r.exclusive("the end of what waits", func() { r.expire(now) })
		case <-r.ctx.Done():
			return
		}
	}
}

// exclusive runs f, protected, while no other function runs.
func (r *Replica) exclusive(whose string, f func()) *fault.Panic {
	r.running.Lock()
	defer r.running.Unlock()
	return r.protect(whose, f)
}

func (r *Replica) jitter() time.Duration {
	return r.o.Interval*4/5 + mathrand.N(r.o.Interval*2/5+1)
}

// post queues f for the owner. It reports false if the replica is closed or ctx ends first.
func (r *Replica) post(ctx context.Context, f func()) bool {
	r.pending.Add(1)
	select {
	case r.mail <- f:
		return true
	case <-r.ctx.Done():
	case <-ctx.Done():
	}
	r.pending.Add(-1)
	return false
}

// run runs f alone and waits for it. On an error f has not run and will not run, except for CodePanic.
func (r *Replica) run(ctx context.Context, f func()) error {
	if r.pending.CompareAndSwap(0, 1) {
		return r.runHere(f)
	}
	ran := make(chan error, 1)
	if !r.post(ctx, func() {
		ran <- panicked(r.protect(application, f))
	}) {
		if r.ctx.Err() != nil {
			return errClosed()
		}
		return ctx.Err()
	}
	select {
	case err := <-ran:
		return err
	case <-r.ended: // not r.ctx.Done: f may still be running
		select {
		case err := <-ran: // it was the last
			return err
		default:
			return errClosed()
		}
	}
}

// runHere is run in the caller's goroutine: to wake the owner's would cost more than what most functions do. Nothing was
// posted before.
func (r *Replica) runHere(f func()) (err error) {
	defer r.pending.Add(-1) // also if f ends the goroutine
	p := r.exclusive(application, func() {
		if r.ctx.Err() != nil { // Close no longer waits for f
			err = errClosed()
			return
		}
		f()
	})
	if p != nil {
		return panicked(p)
	}
	return err
}

// application names the functions that a panic is reported of.
const application = "a function of the application"

// panicked returns the error of a function that has panicked; nil if it has not.
func panicked(p *fault.Panic) error {
	if p == nil {
		return nil
	}
	return &Error{Code: CodePanic, Message: "the function panicked; what it did in its last transaction is undone", Err: p}
}

// try runs f like run and returns its error.
func (r *Replica) try(ctx context.Context, f func() error) error {
	var err error
	if ran := r.run(ctx, func() { err = f() }); ran != nil {
		return ran
	}
	return err
}

// Edit makes the edits of f one change and sends it over all links. It returns when the change is made
// here; see Flush. No other function runs beside f: it must be quick and must not call the replica. If f
// fails or panics (CodePanic) nothing has changed.
func (r *Replica) Edit(ctx context.Context, f func(d *crdt.Doc) error) error {
	return r.Do(ctx, func(d *crdt.Doc) error {
		_, err := d.Transact(r, func() error { return f(d) })
		return err
	})
}

// Do is Edit for a function that makes its own transactions, or uses an undo manager.
func (r *Replica) Do(ctx context.Context, f func(d *crdt.Doc) error) error {
	return r.try(ctx, func() error {
		if err := r.mayEdit(); err != nil {
			return err
		}
		r.noteBefore()
		return f(r.doc)
	})
}

func (r *Replica) mayEdit() error {
	if r.refused != nil {
		return &Error{Code: CodeRefused, Message: "another replica has refused this session's changes: open the document again", Err: r.refused}
	}
	if r.o.Access(r.o.Agent)&Write == 0 {
		return &Error{Code: CodeReadOnly, Message: "agent " + r.o.Agent + " must not write to the document " + r.o.State}
	}
	return nil
}

// returned reports whether an update has a client id that nobody owns, or an earlier session of this agent.
func (r *Replica) returned(u *crdt.Update) bool {
	for c := range u.Clients() {
		if o, taken := r.owners[c]; !taken || r.isFormer(o) {
			return true
		}
	}
	return false
}

// isFormer reports whether an owner is an earlier session of this agent. What it has shown and lost, only those who saw it can return.
func (r *Replica) isFormer(o owner) bool {
	return o.agent == r.o.Agent && o.key != "" && o.key != sessionKey(r.o.Agent, r.session)
}

// View calls f with the document for reading. As in Edit, f must be quick and must not call the replica.
func (r *Replica) View(ctx context.Context, f func(d *crdt.Doc)) error {
	return r.run(ctx, func() { f(r.doc) })
}

// Broadcast applies an update that was made for this replica's agent by another engine, and sends it over
// all links. Errors are those of [crdt.ParseUpdate] and [crdt.Doc.Admit].
func (r *Replica) Broadcast(ctx context.Context, update []byte) error {
	return r.Submit(ctx, r.o.Agent, update, false)
}

// Submit is Broadcast for a writer without a replica, such as a browser. A client id belongs to the writer
// that used it first. whole means that the update answers a state vector and may contain known structs, and what others wrote: it gives
// nobody a client id.
func (r *Replica) Submit(ctx context.Context, writer string, update []byte, whole bool) error {
	limits := r.limits
	if whole {
		limits = crdt.StateLimits()
	}
	u, err := crdt.ParseUpdate(update, limits)
	if err != nil {
		return err
	}
	return r.try(ctx, func() error { return r.submit(writer, u, whole) })
}

func (r *Replica) submit(writer string, u *crdt.Update, whole bool) error {
	if err := r.mayEdit(); err != nil {
		return err
	}
	writes := func(client uint64) bool {
		o, taken := r.owners[client]
		return client != r.doc.Client() && (!taken || o.agent == writer || whole && r.isFormer(o))
	}
	if err := r.doc.Admit(u, crdt.Sender{Writes: writes, Whole: whole}); err != nil {
		r.status.Refused++
		r.emit(telemetry.Security, writer, err, "refused an update")
		return err
	}
	res, err := r.doc.ApplyUpdate(u, writer)
	if err != nil {
		return err
	}
	r.alarm(writer, res)
	if !whole {
		for c := range u.Clients() {
			if _, taken := r.owners[c]; !taken {
				r.owners[c] = owner{agent: writer}
			}
		}
	}
	if res.Update == nil {
		return nil
	}
	news, err := crdt.ParseUpdate(res.Update, crdt.StateLimits())
	if err != nil {
		return err
	}
	switch {
	case r.returned(news): // an update of this session would own what others wrote, who would be refused then
		r.toAll(func(l *link) { r.pushState(l, res.Update) }, nil)
	case len(res.Update) > maxPayload: // too large for one message: a digest makes the others ask for the state
		r.toAll(r.sendDigest, nil)
	default:
		r.announce(res.Update, news, nil)
		return nil
	}
	r.logState(res.Update, nil)
	m := r.message(KindStep2, res.Update)
	r.handlers.notify(Update{Message: m, Local: true})
	return nil
}

// VectorClock returns the number of updates applied here, by "agent/session".
func (r *Replica) VectorClock(ctx context.Context) (map[string]uint64, error) {
	var c map[string]uint64
	err := r.run(ctx, func() { c = maps.Clone(r.buffer.clock) })
	return c, err
}

// Status returns the replica's status.
func (r *Replica) Status(ctx context.Context) (Status, error) {
	var s Status
	err := r.run(ctx, func() {
		s = r.status
		s.Agent, s.State, s.Epoch, s.Session, s.Client = r.o.Agent, r.o.State, r.epoch.Load(), r.session, r.doc.Client()
		s.Links, s.Items, s.Bytes, s.Clients = len(r.links), r.doc.Items(), r.doc.Bytes(), len(r.doc.StateVector())
		s.Steps = r.doc.ScanSteps()
		s.Held, s.Parked = len(r.buffer.bySeq), r.doc.Pending().Structs
	})
	return s, err
}

// Save returns the whole state, for [Options].Saved.
func (r *Replica) Save(ctx context.Context) (Saved, error) {
	var saved Saved
	err := r.Checkpoint(ctx, func(s Saved) { saved = s })
	return saved, err
}

// Checkpoint calls f with the whole state, while no other function runs, so that f can read other state of the
// same moment.
func (r *Replica) Checkpoint(ctx context.Context, f func(Saved)) error {
	return r.run(ctx, func() {
		f(Saved{Epoch: r.epoch.Load(), Update: r.doc.Snapshot(), Clock: maps.Clone(r.buffer.clock)})
	})
}

// Attach adds a link to another agent and asks it for the missing state. A nil link, or channel, is CodeInvalid; detach
// then does nothing.
func (r *Replica) Attach(ch Link) (detach func(), err error) {
	if isNil(ch) {
		return func() {}, &Error{Code: CodeInvalid, Message: "the link to attach is nil"}
	}
	ctx, stop := context.WithCancel(r.ctx)
	l := &link{Link: ch, done: make(chan struct{})}
	remove := Claim(ch, r.concerns, func(ctx context.Context, e *envelope.Envelope) { r.arrived(ctx, l, e) })
	err = r.run(r.ctx, func() {
		l.remove = remove
		r.links = append(r.links, l)
		r.done.Go(func() { l.run(ctx, r) })
		r.ask(l, "")
		if l.RemoteAgent() == r.keeper {
			r.sendLate()
		}
	})
	if err != nil {
		remove()
		stop()
		return nil, err
	}
	return func() {
		remove()
		stop()
		<-l.done
		r.post(context.Background(), func() {
			r.links = slices.DeleteFunc(r.links, func(o *link) bool { return o == l })
		})
	}, nil
}

// Flush blocks until everything made here before has been passed to the channels.
func (r *Replica) Flush(ctx context.Context) error {
	var waits []chan struct{}
	if err := r.run(ctx, func() {
		for _, l := range r.links {
			waits = append(waits, l.flushed())
		}
	}); err != nil {
		return err
	}
	for _, w := range waits {
		select {
		case <-w:
		case <-ctx.Done():
			return ctx.Err()
		case <-r.ctx.Done():
			return errClosed()
		}
	}
	return nil
}

// Done is closed when the replica is closed.
func (r *Replica) Done() <-chan struct{} { return r.ctx.Done() }

// Epoch returns the document's epoch. It increases; see [Replica.Compact].
func (r *Replica) Epoch() uint64 { return r.epoch.Load() }

// Close closes the replica and waits for its goroutines. It does not close the channels. A handler of
// OnUpdate must not call it.
func (r *Replica) Close() error {
	r.stop()
	r.exclusive("the end", func() {}) // whoever called a function may still run it, and it begins goroutines
	r.done.Wait()
	for _, l := range r.links {
		l.remove()
	}
	return nil
}

// changed is the document's update observer.
func (r *Replica) changed(update []byte, _ any, local bool) {
	r.version++
	if r.o.Journal != nil {
		r.o.Journal(update)
	}
	if !local {
		return
	}
	u, err := crdt.ParseUpdate(update, crdt.StateLimits())
	if err != nil {
		r.log.Error("a document's own update cannot be decoded", slog.Any("error", err))
		return
	}
	r.announce(update, u, r.before)
	r.noteBefore()
}

// maxVector bounds the clients of a document up to which updates include the writer's state vector.
const maxVector = 64

// noteBefore records the state before an update, which receivers use to check it.
func (r *Replica) noteBefore() {
	r.before = nil
	if sv := r.doc.StateVector(); len(sv) <= maxVector {
		r.before = sv
	}
}

// announce numbers an update made here and sends it over all links.
func (r *Replica) announce(update []byte, u *crdt.Update, before crdt.StateVector) {
	key := sessionKey(r.o.Agent, r.session)
	r.buffer.clock[key]++
	clock := map[string]uint64{}
	for k, n := range r.buffer.clock {
		if r.sent[k] != n {
			clock[k] = n
			r.sent[k] = n
		}
	}
	m := r.message(KindUpdate, update)
	m.Seq, m.VectorClock = clock[key], clock
	m.Clients = slices.Sorted(maps.Keys(u.Clients()))
	if before != nil {
		m.Vector = before.Encode()
	}
	m.Sum = m.checksum()
	for _, c := range m.Clients {
		if _, taken := r.owners[c]; !taken {
			r.owners[c] = owner{r.o.Agent, key}
		}
	}
	r.status.Sent++
	r.spread(m, nil)
	r.logged(m)
	for _, x := range r.buffer.delivered(m) {
		r.release(x)
	}
	r.handlers.notify(Update{Message: m, Local: true})
}

// message returns a new message of this replica.
func (r *Replica) message(kind Kind, payload []byte) *Message {
	return &Message{
		SourceAgentID: r.o.Agent, Payload: payload, Timestamp: time.Now().UnixMilli(),
		V: Version, Kind: kind, State: r.o.State, Epoch: r.epoch.Load(), Session: r.session,
	}
}

// send signs a message with its checksum and queues it for a link.
func (r *Replica) send(l *link, m *Message) {
	m.Sum = m.checksum()
	l.put(m)
}

// toAll sends something to all peers but one.
func (r *Replica) toAll(send func(*link), except *link) {
	for _, l := range r.links {
		if l != except {
			send(l)
		}
	}
}

// spread sends an update to all peers with the right Read, except its sender and its maker.
func (r *Replica) spread(m *Message, from *link) {
	for _, l := range r.links {
		if l != from && l.RemoteAgent() != m.SourceAgentID && r.o.Access(l.RemoteAgent())&Read != 0 {
			l.put(m)
		}
	}
}

// OnUpdate calls f with each change, made here or elsewhere, in causal order and in a separate goroutine,
// until cancel is called. If f is slow some changes are skipped: see [Update]. A nil f is an error event.
func (r *Replica) OnUpdate(f func(Update)) (cancel func()) {
	if f == nil {
		r.emit(telemetry.ErrorEvent, r.o.Agent, &Error{Code: CodeInvalid, Message: "the handler is nil"}, "no handler was added")
		return func() {}
	}
	return r.handlers.handlers.Add(f)
}

// newDoc returns an empty document whose observers may panic.
func (r *Replica) newDoc(limits *crdt.Limits) *crdt.Doc {
	return crdt.New(crdt.Options{Limits: limits, Panicked: func(p any) {
		if crash, ok := p.(*fault.Panic); ok {
			r.crashed("an observer of the document", crash)
		}
	}})
}

// guard makes the callbacks of the options safe to call: a panic is one error event. An agent has no rights where
// Access panics.
func (r *Replica) guard(o *Options) {
	access, journal, log, renew := o.Access, o.Journal, o.Log, o.Renew
	o.Access = func(agent string) (rights Access) {
		r.protect("Options.Access", func() { rights = access(agent) })
		return rights
	}
	if journal != nil {
		o.Journal = func(update []byte) { r.protect("Options.Journal", func() { journal(update) }) }
	}
	if log != nil {
		o.Log = func(m *Message) { r.protect("Options.Log", func() { log(m) }) }
	}
	if renew != nil {
		o.Renew = func(why string) { r.protect("Options.Renew", func() { renew(why) }) }
	}
}

// protect calls a function that may be the application's. Its panic is an error event, and the result.
func (r *Replica) protect(whose string, f func()) *fault.Panic {
	p := fault.Catch(f)
	if p != nil {
		r.crashed(whose, p)
	}
	return p
}

func (r *Replica) crashed(whose string, p *fault.Panic) {
	r.log.Error(whose+" panicked", slog.String("code", telemetry.CodePanic), slog.String("error", p.Detail()))
	if r.o.Telemetry == nil {
		return
	}
	event := telemetry.Panicked(whose, p)
	event.Target, event.Timestamp = r.o.Agent, time.Now().UnixMilli()
	_ = fault.Catch(func() { r.o.Telemetry.Emit(event) }) // it may be the telemetry that panics
}

// emit logs an error and reports it to telemetry.
func (r *Replica) emit(t telemetry.EventType, source string, err error, what string) {
	r.log.Warn(what, slog.String("source", source), slog.String("code", codeOf(err)), slog.Any("error", err))
	if r.o.Telemetry != nil {
		r.o.Telemetry.Emit(telemetry.Event{Type: t, Sender: source, MessageType: envelope.StreamData, Timestamp: time.Now().UnixMilli(), Code: codeOf(err), Detail: what + ": " + err.Error()})
	}
}
