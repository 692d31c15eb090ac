package replica

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/telemetry"
)

// A document that churns is succeeded by one without the history, of a later epoch. Epochs never
// merge: each message tells its own. Who hears of a later one, from an agent that may
// begin some, leaves its copy and asks for the new state; what its copy had that the keeper had not
// seen goes to the keeper as a late state, and is carried over by it.

// lateFor is how long after the beginning of an epoch edits of the one before are carried over.
const lateFor = time.Hour

// maxLate bounds the late states that wait for the keeper, in bytes.
const maxLate = 64 << 20

// Former is what a keeper has of the epoch before, to carry over what comes late.
type Former struct {
	epoch  uint64
	s      *crdt.Succession
	owners map[uint64]owner
	until  time.Time
}

// origin tells what an epoch came from; it is the payload of KindEpoch.
type origin struct {
	Former  uint64 `json:"former"`  // the epoch before
	Known   bool   `json:"known"`   // what its keeper had seen of it follows
	Vector  []byte `json:"vector"`  // the state vector
	Deletes []byte `json:"deletes"` // the digest of the deletes
}

// lateState is a state of the former epoch that the keeper has not said to have.
type lateState struct {
	sum   [sha256.Size]byte
	state []byte
	epoch uint64 // the former
	from  *link  // that it came by; nil if it is this replica's own
	until time.Time
}

// Compact begins a new epoch, with what the document shows and none of its history: no
// marks of what was deleted and one client id. All who are linked follow if they grant this agent
// the right Keep. Edits that they made meanwhile are carried over, for an hour; handles, observers and undo
// managers of the former document are of no more use, see [Update]. One agent should do this.
//
// A replica with a Journal, which is of one epoch, cannot: see [Replica.Succeed].
func (r *Replica) Compact(ctx context.Context) error {
	var err error
	if ran := r.run(ctx, func() { err = r.compact() }); ran != nil {
		return ran
	}
	return err
}

func (r *Replica) compact() error {
	if r.journal != nil || r.toLog != nil {
		return &Error{Code: CodeInvalid, Message: "a replica with a journal or a log does not begin an epoch by itself"}
	}
	if err := r.mayEdit(); err != nil {
		return err
	}
	fresh, f, err := r.succeed()
	if err != nil {
		return err
	}
	// If two begin an epoch at the same time, chance tells these apart, and all follow the later one.
	r.begin(f.epoch+1+rand.Uint64N(1<<16), fresh)
	r.former, r.origin, r.keeper = f, nil, ""
	r.owners[fresh.Client()] = owner{r.agent, sessionKey(r.agent, r.session)}
	r.log.Info("a document begins a new epoch", slog.String("document", r.state), slog.Uint64("epoch", r.epoch.Load()),
		slog.Int("items", f.s.Former().Items()), slog.Int("left", fresh.Items()))
	for _, l := range r.links {
		r.tellEpoch(l)
	}
	r.handlers.tell(Update{Message: r.message(KindEpoch, nil), Local: true, Began: true})
	return nil
}

func (r *Replica) succeed() (*crdt.Doc, *Former, error) {
	fresh, s, err := crdt.Succeed(r.doc, crdt.Options{Limits: &r.limits}, r.counters...)
	if err != nil {
		return nil, nil, err
	}
	return fresh, &Former{epoch: r.epoch.Load(), s: s, owners: r.owners, until: time.Now().Add(lateFor)}, nil
}

// Succeed ends the replica and returns the state with which the next epoch begins, and what carries
// over what comes late: the replica of a later epoch gets both in its [Options]. For who
// stores the document; others call Compact.
func (r *Replica) Succeed(ctx context.Context) (state []byte, f *Former, err error) {
	ran := r.run(ctx, func() {
		var fresh *crdt.Doc
		if fresh, f, err = r.succeed(); err == nil {
			state = fresh.Snapshot()
			r.stop()
		}
	})
	if ran != nil && f == nil {
		return nil, nil, ran
	}
	return state, f, err
}

// begin makes doc the document, of an epoch: in a new session, since those of another epoch
// count for nothing.
func (r *Replica) begin(epoch uint64, doc *crdt.Doc) {
	r.epoch.Store(epoch)
	r.take(doc)
	r.session, r.hold, r.sent = newSession(), newHoldback(), map[string]uint64{}
	r.owners, r.banned, r.refused = map[uint64]owner{}, map[string]bool{}, nil
	r.ahead = map[dependency]bool{}
	r.status.Diverged = false
	for _, l := range r.links {
		l.asked, l.told, l.unlike = time.Time{}, time.Time{}, 0
		l.parts, l.partSize = nil, 0
	}
}

// take makes doc the document.
func (r *Replica) take(doc *crdt.Doc) {
	if r.unobserve != nil {
		r.unobserve()
	}
	r.doc, r.before, r.summary = doc, nil, nil
	r.version++
	r.unobserve = doc.OnUpdate(r.changed)
}

// current reports whether a message is of this epoch. Who is behind is told, and who is
// ahead is asked to tell.
func (r *Replica) current(l *link, m *Message) bool {
	epoch := r.epoch.Load()
	if m.Kind == KindEpoch && m.Epoch > epoch {
		r.follow(l, m)
		return false
	}
	if m.Epoch == epoch {
		return m.Kind != KindEpoch
	}
	r.status.Skipped++
	r.log.Debug("a message for another epoch of a document", slog.String("document", r.state), slog.String("source", m.SourceAgentID), slog.Uint64("epoch", m.Epoch))
	if now := time.Now(); l.told.IsZero() || now.Sub(l.told) >= askEvery {
		l.told = now
		if m.Epoch < epoch {
			r.tellEpoch(l)
		} else {
			r.sendDigest(l) // which shows that this replica is behind
		}
	}
	return false
}

// tellEpoch tells a peer the epoch, and what was seen of the one before.
func (r *Replica) tellEpoch(l *link) {
	if r.access(l.RemoteAgent())&Read == 0 {
		return
	}
	o := r.origin
	if r.former != nil {
		d := r.former.s.Former()
		g := d.Digest(false)
		o = &origin{Former: r.former.epoch, Known: true, Vector: d.StateVector().Encode(), Deletes: g.Deletes[:]}
	}
	if o == nil {
		o = &origin{}
	}
	payload, err := json.Marshal(o)
	if err != nil {
		r.log.Error("an epoch cannot be told", slog.Any("error", err))
		return
	}
	m := r.message(KindEpoch, payload)
	m.Sum = m.checksum()
	l.put(m)
}

// follow leaves the document for that of a later epoch.
func (r *Replica) follow(l *link, m *Message) {
	switch {
	case !r.speaksFor(l, m.SourceAgentID):
		return // epochs are not passed on, but told anew
	case r.journal != nil, r.toLog != nil, r.access(l.RemoteAgent())&Keep == 0:
		r.status.Skipped++
		r.emit(telemetry.Security, m.SourceAgentID, &Error{Code: CodeReadOnly, Message: "agent " + l.RemoteAgent() + " must not begin an epoch of the document"}, "did not follow to another epoch")
		return
	}
	var o origin
	err := json.Unmarshal(m.Payload, &o)
	var vector crdt.StateVector
	if err == nil && o.Known {
		vector, err = crdt.DecodeStateVector(o.Vector, r.limits.Vector)
	}
	if err != nil {
		r.skip(l, m.SourceAgentID, m.Session, unreadable(err, "it does not tell an epoch"))
		return
	}
	u := Update{Message: r.message(KindEpoch, nil), Began: true, Left: r.leave(&o, vector)}
	u.Message.Epoch = m.Epoch
	r.keeper, r.origin, r.former = l.RemoteAgent(), &o, nil
	r.begin(m.Epoch, crdt.New(crdt.Options{Limits: &r.limits}))
	r.log.Info("following to another epoch of a document", slog.String("document", r.state), slog.String("of", r.keeper), slog.Uint64("epoch", m.Epoch))
	if u.Left != nil {
		r.lose(r.keeper, "it knows nothing of epoch "+formatUint(m.Epoch))
	}
	r.sendLate()
	r.ask(l, "")
	for _, other := range r.links {
		if other != l {
			r.tellEpoch(other)
		}
	}
	r.handlers.tell(u)
}

// leave keeps what the document has that the keeper has not seen, as a late state. If the keeper
// knows nothing of the epoch that ends here, the document is returned.
func (r *Replica) leave(o *origin, vector crdt.StateVector) (left []byte) {
	p := r.doc.Pending()
	waits := p.Structs+p.Ranges > 0
	if r.doc.Items() == 0 && !waits {
		return nil
	}
	if r.former != nil && o.Known && o.Former == r.former.epoch {
		// Two began an epoch at the same time, and this one gives way.
		r.keepLate(&lateState{state: r.former.s.Former().EncodeSince(vector), epoch: o.Former})
		return r.doc.Snapshot()
	}
	if !o.Known || o.Former != r.epoch.Load() {
		return r.doc.Snapshot()
	}
	g := r.doc.Digest(false)
	if waits || !vector.Covers(r.doc.StateVector()) || !bytes.Equal(g.Deletes[:], o.Deletes) {
		r.keepLate(&lateState{state: r.doc.EncodeSince(vector), epoch: o.Former})
	}
	return nil
}

// keepLate keeps a late state for the keeper. It reports whether that is a new one.
func (r *Replica) keepLate(s *lateState) bool {
	s.sum, s.until = sha256.Sum256(s.state), time.Now().Add(lateFor)
	size := len(s.state)
	for _, o := range r.late {
		if o.sum == s.sum {
			return false
		}
		size += len(o.state)
	}
	if size > maxLate || len(s.state) > maxState {
		r.lose(r.agent, "too much waits for the document's keeper")
		return false
	}
	r.late = append(r.late, s)
	return true
}

// lose says that edits of an epoch that is over will not be in the next.
func (r *Replica) lose(source, why string) {
	r.status.Lost++
	r.emit(telemetry.ErrorEvent, source, &Error{Code: CodeLate, Message: "edits of a former epoch are lost: " + why}, "edits were not carried over")
}

// sendLate sends what waits for the keeper, if it is linked.
func (r *Replica) sendLate() {
	for _, l := range r.links {
		if l.RemoteAgent() != r.keeper {
			continue
		}
		for _, s := range r.late {
			r.sendState(l, KindLate, s.state, func(m *Message) { m.Former = s.epoch })
		}
	}
}

// applyLate takes a state of the former epoch: the keeper carries over what is new in it, others
// pass it on to the keeper.
func (r *Replica) applyLate(l *link, m *Message, state []byte) {
	sum := sha256.Sum256(state)
	switch {
	case r.former != nil && r.former.epoch == m.Former:
		err := r.carry(l, state)
		if err != nil {
			r.status.Refused++
			r.emit(telemetry.Security, m.SourceAgentID, err, "refused a late state")
		}
		r.answerLate(l, sum, err)
	case r.keeper != "" && r.keeper != l.RemoteAgent() && r.origin != nil && r.origin.Former == m.Former:
		// Sent at once only the first time: after restarts keepers may be named in a circle.
		if r.access(l.RemoteAgent())&Write != 0 && r.keepLate(&lateState{state: state, epoch: m.Former, from: l}) {
			r.sendLate()
		}
	default:
		r.answerLate(l, sum, &Error{Code: CodeLate, Message: "the epoch " + formatUint(m.Former) + " is over for too long"})
	}
}

func (r *Replica) carry(l *link, state []byte) error {
	u, err := crdt.ParseUpdate(state, crdt.StateLimits())
	if err != nil {
		return err
	}
	if r.access(l.RemoteAgent())&Write == 0 {
		return &Error{Code: CodeReadOnly, Message: "agent " + l.RemoteAgent() + " must not write to the document"}
	}
	if err := r.former.s.Former().Admit(u, r.stateSender(l, r.former.owners)); err != nil {
		return err
	}
	r.noteBefore()
	updates, err := r.former.s.Carry(u, r.doc)
	if len(updates) > 0 {
		r.status.Carried++
	}
	return err
}

// answerLate says that a late state has arrived, or why it is not taken.
func (r *Replica) answerLate(l *link, sum [sha256.Size]byte, err error) {
	payload := sum[:]
	if err != nil {
		payload = append(payload, err.Error()...)
	}
	m := r.message(KindCarried, payload)
	m.Sum = m.checksum()
	l.put(m)
}

// carried hears that the keeper has a late state.
func (r *Replica) carried(l *link, m *Message) {
	if l.RemoteAgent() != r.keeper || !r.speaksFor(l, m.SourceAgentID) || len(m.Payload) < sha256.Size {
		return
	}
	sum, reason := [sha256.Size]byte(m.Payload), string(bytes.ToValidUTF8(m.Payload[sha256.Size:min(len(m.Payload), 1000)], []byte("?")))
	i := slices.IndexFunc(r.late, func(s *lateState) bool { return s.sum == sum })
	if i < 0 {
		return
	}
	s := r.late[i]
	r.late = slices.Delete(r.late, i, i+1)
	switch {
	case s.from != nil && reason != "":
		r.answerLate(s.from, sum, errors.New(reason))
	case s.from != nil:
		r.answerLate(s.from, sum, nil)
	case reason != "":
		r.lose(r.keeper, reason)
	}
}

// maintain begins a new epoch if this replica is the keeper and the document is worn.
func (r *Replica) maintain(now time.Time) {
	if r.former != nil && now.After(r.former.until) {
		r.former, r.origin = nil, nil
	}
	r.late = slices.DeleteFunc(r.late, func(s *lateState) bool {
		if now.Before(s.until) {
			return false
		}
		r.lose(r.keeper, "it did not answer for too long")
		return true
	})
	r.sendLate()
	if !r.keeps || r.weighed == r.version {
		return
	}
	r.weighed = r.version
	if c := r.doc.Churn(); c.Worn() {
		r.renew("it is worn", slog.Int("items", c.Items), slog.Int("live", c.Live), slog.Int("clients", c.Clients))
	}
}

// renew has a new epoch begun.
func (r *Replica) renew(why string, attrs ...any) {
	r.log.Info("a document needs a new epoch", append([]any{slog.String("document", r.state), slog.String("because", why)}, attrs...)...)
	if r.onRenew != nil {
		r.onRenew(why)
		return
	}
	if err := r.compact(); err != nil {
		r.log.Error("a document's new epoch cannot begin", slog.String("document", r.state), slog.Any("error", err))
	}
}

// repairEvery bounds how often a document is read in anew.
const repairEvery = time.Minute

// repair ends a divergence: the keeper begins a new epoch, which all follow. Others read their own state in
// anew, which gives one order to those who have the same; of two contents under the same
// ids neither is right, and only a new epoch helps.
func (r *Replica) repair(sameContent bool) {
	if r.keeps {
		r.renew("copies of it have diverged")
		return
	}
	now := time.Now()
	if !sameContent || !r.repaired.IsZero() && now.Sub(r.repaired) < repairEvery {
		return
	}
	r.repaired = now
	doc := crdt.New(crdt.Options{Limits: &r.limits})
	if _, err := doc.Apply(r.doc.Snapshot(), nil); err != nil {
		r.log.Error("a document cannot be read in anew", slog.String("document", r.state), slog.Any("error", err))
		return
	}
	r.take(doc)
	r.status.Repairs++
	r.handlers.tell(Update{Message: r.message(KindEpoch, nil), Began: true})
}
