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
	"github.com/parleyhub/parley/telemetry"
)

// Replica is one agent's copy of a document, shared with others. Make one with New
// and Close it in the end. It is safe for concurrent use.
type Replica struct {
	agent, state string
	limits       crdt.Limits
	counters     []string
	keeps        bool
	onRenew      func(why string)
	access       func(string) Access
	forward      bool
	interval     time.Duration
	journal      func([]byte)
	toLog        func(*Message)
	log          *slog.Logger
	telemetry    telemetry.Sink

	mail  chan func()
	ended chan struct{} // closed when the owner's goroutine has ended
	ctx   context.Context
	stop  context.CancelFunc
	done  sync.WaitGroup

	epoch atomic.Uint64 // changed by the owner's goroutine only

	// Of the owner's goroutine.
	session   string
	doc       *crdt.Doc
	unobserve func()
	hold      *holdback
	sent      map[string]uint64 // the clock as of the last update made here
	before    crdt.StateVector  // what was known before the update that is being made
	links     []*link
	owners    map[uint64]owner    // of client ids
	banned    map[string]bool     // sessions that were refused
	ahead     map[dependency]bool // of a log, that were applied while one before is missing
	refused   error               // others have refused this session
	status    Status
	version   uint64 // of the document; counted up by each change
	summary   *digest
	summed    uint64    // the version of summary
	weighed   uint64    // the version that was looked at for wear
	waiting   time.Time // since when something is parked
	repaired  time.Time

	former *Former      // of the keeper of an epoch, for a while
	keeper string       // the agent that the epoch came from
	origin *origin      // what it told
	late   []*lateState // that it has not said to have

	handlers handlers
}

// owner is the session that a client id belongs to.
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
	r := &Replica{
		agent: o.Agent, state: o.State, session: newSession(), limits: limits, counters: o.Counters, keeps: o.Keeper, onRenew: o.Renew, former: o.Former,
		access: o.Access, forward: !o.NoForward, interval: o.Interval, journal: o.Journal, toLog: o.Log, log: o.Logger, telemetry: o.Telemetry,
		mail: make(chan func(), mailbox), ended: make(chan struct{}),
		hold: newHoldback(), sent: map[string]uint64{}, owners: map[uint64]owner{}, banned: map[string]bool{}, ahead: map[dependency]bool{},
	}
	r.epoch.Store(o.Epoch)
	r.doc = crdt.New(crdt.Options{Limits: &limits})
	if r.interval <= 0 {
		r.interval = 30 * time.Second
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	if r.access == nil {
		r.access = func(string) Access { return Read | Write | Relay | Keep }
	}
	if o.Saved != nil {
		if err := r.restore(o.Saved); err != nil {
			return nil, err
		}
	}
	r.unobserve = r.doc.OnUpdate(r.changed)
	r.ctx, r.stop = context.WithCancel(context.Background())
	r.done.Add(2)
	go r.own()
	go r.handlers.run(r.ctx, &r.done)
	return r, nil
}

func newSession() string {
	var b [sessionSize / 2]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func (r *Replica) restore(s *Saved) error {
	if s.Epoch != r.epoch.Load() {
		return &Error{Code: CodeInvalid, Message: "the saved state is of another epoch"}
	}
	if _, err := r.doc.Apply(s.Update, nil); err != nil {
		return err
	}
	r.doc.Renew() // not an id that the saved state knows
	r.hold.advance(s.Clock)
	return nil
}

// own runs what others post, one after the other.
func (r *Replica) own() {
	defer r.done.Done()
	defer close(r.ended)
	digests := time.NewTimer(r.jitter())
	defer digests.Stop()
	ages := time.NewTicker(maxHeldAge / 2)
	defer ages.Stop()
	for {
		select {
		case f := <-r.mail:
			f()
		case <-digests.C:
			for _, l := range r.links {
				r.sendDigest(l)
			}
			r.maintain(time.Now())
			digests.Reset(r.jitter())
		case now := <-ages.C:
			r.expire(now)
		case <-r.ctx.Done():
			return
		}
	}
}

func (r *Replica) jitter() time.Duration {
	return r.interval*4/5 + time.Duration(mathrand.Int64N(int64(r.interval)*2/5+1))
}

// post has f run by the owner. It reports whether f was taken.
func (r *Replica) post(ctx context.Context, f func()) bool {
	select {
	case r.mail <- f:
		return true
	case <-r.ctx.Done():
	case <-ctx.Done():
	}
	return false
}

// run has f run by the owner and waits for its end. After an error f has not run, and will not.
func (r *Replica) run(ctx context.Context, f func()) error {
	ran := make(chan struct{})
	if !r.post(ctx, func() { defer close(ran); f() }) {
		if r.ctx.Err() != nil {
			return errClosed()
		}
		return ctx.Err()
	}
	select {
	case <-ran:
		return nil
	case <-r.ended: // not r.ctx.Done: f may be running, and write to what the caller reads
		select {
		case <-ran: // it was the last
			return nil
		default:
			return errClosed()
		}
	}
}

// Edit makes the edits of f one change and sends it to all who are linked. It returns
// when the change was made here, not when it has arrived. f runs in the owner's
// goroutine: it must be quick and must not call the replica. If it fails, nothing has changed.
func (r *Replica) Edit(ctx context.Context, f func(d *crdt.Doc) error) error {
	return r.Do(ctx, func(d *crdt.Doc) error {
		_, err := d.Transact(r, func() error { return f(d) })
		return err
	})
}

// Do is Edit for a function that makes its own transactions, or undoes some.
func (r *Replica) Do(ctx context.Context, f func(d *crdt.Doc) error) error {
	var err error
	ran := r.run(ctx, func() {
		if err = r.mayEdit(); err == nil {
			r.noteBefore()
			err = f(r.doc)
		}
	})
	if ran != nil {
		return ran
	}
	return err
}

func (r *Replica) mayEdit() error {
	if r.refused != nil {
		return &Error{Code: CodeRefused, Message: "others have refused what this replica wrote: open the document anew", Err: r.refused}
	}
	if r.access(r.agent)&Write == 0 {
		return &Error{Code: CodeReadOnly, Message: "agent " + r.agent + " must not write to the document " + r.state}
	}
	return nil
}

// View has f read the document, in the owner's goroutine.
func (r *Replica) View(ctx context.Context, f func(d *crdt.Doc)) error {
	return r.run(ctx, func() { f(r.doc) })
}

// Broadcast applies an update that was made elsewhere for this replica's agent, by
// an engine that this replica does not own, and sends it to all who are linked: the
// broadcast of the specification (Req 9.1). Errors are those of [crdt.ParseUpdate] and
// [crdt.Doc.Admit].
func (r *Replica) Broadcast(ctx context.Context, update []byte) error {
	return r.Submit(ctx, r.agent, update, false)
}

// Submit is Broadcast for a writer that has no replica of its own, such as a browser. A
// client id belongs to the writer that used it first. whole says that the update
// answers a state vector and may hold what is known.
func (r *Replica) Submit(ctx context.Context, writer string, update []byte, whole bool) error {
	limits := r.limits
	if whole {
		limits = crdt.StateLimits()
	}
	u, err := crdt.ParseUpdate(update, limits)
	if err != nil {
		return err
	}
	var refused error
	err = r.run(ctx, func() { refused = r.submit(writer, u, whole) })
	if err != nil {
		return err
	}
	return refused
}

func (r *Replica) submit(writer string, u *crdt.Update, whole bool) error {
	if err := r.mayEdit(); err != nil {
		return err
	}
	clients := u.Clients()
	writes := func(client uint64) bool {
		o, taken := r.owners[client]
		return client != r.doc.Client() && (!taken || o.agent == writer)
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
	for c := range clients {
		if _, taken := r.owners[c]; !taken {
			r.owners[c] = owner{agent: writer}
		}
	}
	if res.Update == nil {
		return nil
	}
	news, err := crdt.ParseUpdate(res.Update, crdt.StateLimits())
	if err != nil {
		return err
	}
	if len(res.Update) > maxPayload {
		// Too large for one message: the others are told that there is something.
		r.passOn(nil)
		r.logState(res.Update, nil)
		m := r.message(KindStep2, res.Update)
		r.handlers.tell(Update{Message: m, Local: true})
		return nil
	}
	r.announce(res.Update, news, nil)
	return nil
}

// VectorClock returns, by "agent/session", how many updates were applied here.
func (r *Replica) VectorClock(ctx context.Context) (map[string]uint64, error) {
	var c map[string]uint64
	err := r.run(ctx, func() { c = maps.Clone(r.hold.clock) })
	return c, err
}

// Status tells how the replica fares.
func (r *Replica) Status(ctx context.Context) (Status, error) {
	var s Status
	err := r.run(ctx, func() {
		s = r.status
		s.Agent, s.State, s.Epoch, s.Session, s.Client = r.agent, r.state, r.epoch.Load(), r.session, r.doc.Client()
		s.Links, s.Items, s.Bytes, s.Clients = len(r.links), r.doc.Items(), r.doc.Bytes(), len(r.doc.StateVector())
		s.Steps = r.doc.ScanSteps()
		s.Held, s.Parked = len(r.hold.bySeq), r.doc.Pending().Structs
	})
	return s, err
}

// Save returns the whole state, to begin with in another process.
func (r *Replica) Save(ctx context.Context) (Saved, error) {
	var saved Saved
	err := r.Checkpoint(ctx, func(s Saved) { saved = s })
	return saved, err
}

// Checkpoint calls f with the whole state, in the owner's goroutine, so that what
// else f looks at is of the same moment.
func (r *Replica) Checkpoint(ctx context.Context, f func(Saved)) error {
	return r.run(ctx, func() {
		f(Saved{Epoch: r.epoch.Load(), Update: r.doc.Snapshot(), Clock: maps.Clone(r.hold.clock)})
	})
}

// Attach links the replica with another agent, and asks it for what is missing here.
func (r *Replica) Attach(ch Link) (detach func(), err error) {
	ctx, stop := context.WithCancel(r.ctx)
	l := &link{Link: ch, stop: stop, done: make(chan struct{}), wake: make(chan struct{}, 1)}
	remove := ch.OnMessage(func(ctx context.Context, e *envelope.Envelope) { r.arrived(ctx, l, e) })
	err = r.run(r.ctx, func() {
		l.remove = remove
		r.links = append(r.links, l)
		r.done.Add(1)
		go func() {
			defer r.done.Done()
			l.run(ctx, r)
		}()
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

// Flush waits until all that was made here before has been handed to the channels.
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

// Done is closed when the replica is.
func (r *Replica) Done() <-chan struct{} { return r.ctx.Done() }

// Epoch returns the document's epoch. It grows, see [Replica.Compact].
func (r *Replica) Epoch() uint64 { return r.epoch.Load() }

// Close ends the replica and waits for its goroutines. It does not close the
// channels. A handler of OnUpdate must not call it.
func (r *Replica) Close() error {
	r.stop()
	r.done.Wait()
	for _, l := range r.links {
		l.remove()
	}
	return nil
}

// changed is told by the document of each change.
func (r *Replica) changed(update []byte, _ any, local bool) {
	r.version++
	if r.journal != nil {
		r.journal(update)
	}
	if !local {
		return
	}
	u, err := crdt.ParseUpdate(update, crdt.StateLimits())
	if err != nil {
		r.log.Error("a document's own update cannot be read", slog.String("document", r.state), slog.Any("error", err))
		return
	}
	r.announce(update, u, r.before)
	r.noteBefore()
}

// maxVector bounds the clients of a document whose writers say what they knew.
const maxVector = 64

// noteBefore notes what is known before an update, for those who check it.
func (r *Replica) noteBefore() {
	r.before = nil
	if sv := r.doc.StateVector(); len(sv) <= maxVector {
		r.before = sv
	}
}

// announce counts an update made here and sends it to all who are linked.
func (r *Replica) announce(update []byte, u *crdt.Update, before crdt.StateVector) {
	key := sessionKey(r.agent, r.session)
	r.hold.clock[key]++
	clock := map[string]uint64{}
	for k, n := range r.hold.clock {
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
			r.owners[c] = owner{r.agent, key}
		}
	}
	r.status.Sent++
	r.spread(m, nil)
	r.logged(m)
	for _, x := range r.hold.delivered(m) { // nobody waits for what was not sent yet
		r.release(x)
	}
	r.handlers.tell(Update{Message: m, Local: true})
}

// message begins a message of this replica.
func (r *Replica) message(kind Kind, payload []byte) *Message {
	return &Message{
		SourceAgentID: r.agent, Payload: payload, Timestamp: time.Now().UnixMilli(),
		V: Version, Kind: kind, State: r.state, Epoch: r.epoch.Load(), Session: r.session,
	}
}

// spread sends an update to all who may read, but not back to where it came from.
func (r *Replica) spread(m *Message, from *link) {
	for _, l := range r.links {
		if l != from && l.RemoteAgent() != m.SourceAgentID && r.access(l.RemoteAgent())&Read != 0 {
			l.put(m)
		}
	}
}

// OnUpdate calls f with each change, whether made here or elsewhere, in causal order
// and in a goroutine of its own, and returns the function that ends that. If f
// is slow some are left out: see [Update].
func (r *Replica) OnUpdate(f func(Update)) (cancel func()) { return r.handlers.add(f) }

// emit reports something to the log and to telemetry.
func (r *Replica) emit(t telemetry.EventType, source string, err error, what string) {
	r.log.Warn(what, slog.String("document", r.state), slog.String("source", source), slog.String("code", codeOf(err)), slog.Any("error", err))
	if r.telemetry != nil {
		r.telemetry.Emit(telemetry.Event{Type: t, Sender: source, MessageType: envelope.StreamData, Timestamp: time.Now().UnixMilli(), Code: codeOf(err), Detail: what + ": " + err.Error()})
	}
}
