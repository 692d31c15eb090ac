package replica

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/telemetry"
)

// A document with too much history is succeeded by one without it, in a later epoch. Epochs never merge:
// each message names its own. A replica that learns of a later epoch, from an agent with the right Keep,
// drops its copy and asks for the new state. Edits in its copy that the keeper had not seen are sent to the
// keeper as a late state, which the keeper carries over.

// lateFor is how long edits of the former epoch are carried over.
const lateFor = time.Hour

// maxLate bounds the late states that wait for the keeper, in bytes.
const maxLate = 64 << 20

// Former is a keeper's state of the former epoch, for carrying over late edits.
type Former struct {
	epoch  uint64
	s      *crdt.Succession
	owners map[uint64]owner
	until  time.Time
}

// origin describes how an epoch began; it is the payload of KindEpoch.
type origin struct {
	Former  uint64 `json:"former"`  // the former epoch
	Known   bool   `json:"known"`   // the following fields describe what the keeper had seen of it
	Vector  []byte `json:"vector"`  // the state vector
	Deletes []byte `json:"deletes"` // the digest of the deletes
}

// lateState is a state of a former epoch that the keeper has not acknowledged.
type lateState struct {
	sum   [sha256.Size]byte
	state []byte
	epoch uint64 // the former epoch
	from  *link  // the link it arrived on; nil for this replica's own
	until time.Time
}

// Compact begins a new epoch with the document's visible content: no history, no tombstones and a single
// client id. All linked replicas that grant this agent the right Keep follow. Edits that they make
// meanwhile are carried over for an hour. Handles, observers and undo managers of the former document
// become unusable; see [Update]. Only one agent should call it.
//
// A replica with a Journal, which has one epoch only, returns an error: see [Replica.Succeed].
func (r *Replica) Compact(ctx context.Context) error {
	return r.try(ctx, r.compact)
}

func (r *Replica) compact() error {
	if r.o.Journal != nil || r.o.Log != nil {
		return &Error{Code: CodeInvalid, Message: "a replica with a journal or a log cannot begin an epoch itself"}
	}
	if err := r.mayEdit(); err != nil {
		return err
	}
	fresh, f, err := r.succeed()
	if err != nil {
		return err
	}
	// If two agents begin an epoch concurrently, the random part decides, and all follow the later one.
	r.begin(f.epoch+1+rand.Uint64N(1<<16), fresh, f)
	r.owners[fresh.Client()] = owner{r.o.Agent, sessionKey(r.o.Agent, r.session)}
	r.log.Info("a document begins a new epoch", slog.Uint64("epoch", r.epoch.Load()),
		slog.Int("items", f.s.Former().Items()), slog.Int("left", fresh.Items()))
	r.toAll(r.sendEpoch, nil)
	r.handlers.notify(Update{Message: r.message(KindEpoch, nil), Local: true, Began: true})
	return nil
}

func (r *Replica) succeed() (*crdt.Doc, *Former, error) {
	fresh, s, err := crdt.Succeed(r.doc, crdt.Options{Limits: &r.limits}, r.o.Counters...)
	if err != nil {
		return nil, nil, err
	}
	return fresh, &Former{epoch: r.epoch.Load(), s: s, owners: r.owners, until: time.Now().Add(lateFor)}, nil
}

// Succeed closes the replica and returns the state with which the next epoch begins and the Former for late
// edits, both for the [Options] of the next epoch's replica. It is for programs that store the document;
// others call Compact.
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

// begin replaces the document by that of another epoch, in a new session. A keeper passes the former epoch.
func (r *Replica) begin(epoch uint64, doc *crdt.Doc, former *Former) {
	r.epoch.Store(epoch)
	r.former, r.origin, r.keeper = former, nil, ""
	r.setDocument(doc)
	r.session, r.buffer, r.sent = newSession(), newCausalBuffer(), map[string]uint64{}
	r.owners, r.banned, r.refused = map[uint64]owner{}, map[string]bool{}, nil
	r.ahead = map[dependency]bool{}
	r.status.Diverged = false
	for _, l := range r.links {
		l.asked, l.notified, l.unlike = time.Time{}, time.Time{}, 0
		l.parts, l.partSize = nil, 0
	}
}

// setDocument replaces the document.
func (r *Replica) setDocument(doc *crdt.Doc) {
	if r.unobserve != nil {
		r.unobserve()
	}
	r.doc, r.before, r.summary = doc, nil, nil
	r.version++
	r.unobserve = doc.OnUpdate(r.changed)
}

// current reports whether a message is of this epoch. It announces the epoch to a peer that is behind, and
// sends a digest to one that is ahead, which then announces its epoch.
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
	r.log.Debug("a message for another epoch of a document", slog.String("source", m.SourceAgentID), slog.Uint64("epoch", m.Epoch))
	if now := time.Now(); l.notified.IsZero() || now.Sub(l.notified) >= askEvery {
		l.notified = now
		if m.Epoch < epoch {
			r.sendEpoch(l)
		} else {
			r.sendDigest(l) // shows that this replica is behind
		}
	}
	return false
}

// sendEpoch announces the epoch to a peer, with what was seen of the former one.
func (r *Replica) sendEpoch(l *link) {
	if r.o.Access(l.RemoteAgent())&Read == 0 {
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
		r.log.Error("an epoch cannot be announced", slog.Any("error", err))
		return
	}
	r.send(l, r.message(KindEpoch, payload))
}

// follow replaces the document by that of a later epoch.
func (r *Replica) follow(l *link, m *Message) {
	switch {
	case !r.speaksFor(l, m.SourceAgentID):
		return // epochs are not forwarded; each replica announces its own
	case r.o.Journal != nil, r.o.Log != nil, r.o.Access(l.RemoteAgent())&Keep == 0:
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
		r.skip(l, m.SourceAgentID, m.Session, unreadable(err, "it is not an announcement of an epoch"))
		return
	}
	u := Update{Message: r.message(KindEpoch, nil), Began: true, Left: r.leave(&o, vector)}
	u.Message.Epoch = m.Epoch
	r.begin(m.Epoch, r.newDoc(&r.limits), nil)
	r.keeper, r.origin = l.RemoteAgent(), &o
	r.log.Info("following to another epoch of a document", slog.String("of", r.keeper), slog.Uint64("epoch", m.Epoch))
	if u.Left != nil {
		r.lose(r.keeper, "it does not know epoch "+formatUint(m.Epoch))
	}
	r.sendLate()
	r.ask(l, "")
	r.toAll(r.sendEpoch, l)
	r.handlers.notify(u)
}

// leave keeps what the keeper has not seen as a late state. If the keeper does not know the epoch that ends
// here, leave returns the whole document.
func (r *Replica) leave(o *origin, vector crdt.StateVector) (left []byte) {
	p := r.doc.Pending()
	waits := p.Structs+p.Ranges > 0
	if r.doc.Items() == 0 && !waits {
		return nil
	}
	if r.former != nil && o.Known && o.Former == r.former.epoch {
		// Two agents began an epoch concurrently, and this one's is dropped.
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

// keepLate keeps a late state for the keeper. It reports false for a duplicate or if there is no room.
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
		r.lose(r.o.Agent, "too many edits wait for the document's keeper")
		return false
	}
	r.late = append(r.late, s)
	return true
}

// lose reports that edits of a former epoch are missing in the next.
func (r *Replica) lose(source, why string) {
	r.status.Lost++
	r.emit(telemetry.ErrorEvent, source, &Error{Code: CodeLate, Message: "edits of a former epoch are lost: " + why}, "edits were not carried over")
}

// sendLate sends the late states to the keeper, if it is linked.
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

// applyLate handles a state of a former epoch: a keeper carries it over, other replicas forward it to the keeper.
func (r *Replica) applyLate(l *link, m *Message, state []byte) {
	sum := sha256.Sum256(state)
	switch {
	case r.former != nil && r.former.epoch == m.Former:
		reason := ""
		if err := r.carry(l, state); err != nil {
			r.status.Refused++
			r.emit(telemetry.Security, m.SourceAgentID, err, "refused a late state")
			reason = err.Error()
		}
		r.answerLate(l, sum, reason)
	case r.keeper != "" && r.keeper != l.RemoteAgent() && r.origin != nil && r.origin.Former == m.Former:
		// Forwarded at once only the first time: after restarts, replicas may name each other as keeper.
		if r.o.Access(l.RemoteAgent())&Write != 0 && r.keepLate(&lateState{state: state, epoch: m.Former, from: l}) {
			r.sendLate()
		}
	default:
		r.answerLate(l, sum, "epoch "+formatUint(m.Former)+" ended too long ago")
	}
}

func (r *Replica) carry(l *link, state []byte) error {
	u, err := crdt.ParseUpdate(state, crdt.StateLimits())
	if err != nil {
		return err
	}
	if r.o.Access(l.RemoteAgent())&Write == 0 {
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

// answerLate acknowledges a late state, or sends the reason why it was refused.
func (r *Replica) answerLate(l *link, sum [sha256.Size]byte, reason string) {
	r.send(l, r.message(KindCarried, append(sum[:], reason...)))
}

// carried handles the keeper's acknowledgement of a late state.
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
	case s.from != nil:
		r.answerLate(s.from, sum, reason)
	case reason != "":
		r.lose(r.keeper, reason)
	}
}

// maintain drops expired late states, and begins a new epoch if this replica is the keeper and the document is worn.
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
	if !r.o.Keeper || r.weighed == r.version {
		return
	}
	r.weighed = r.version
	if c := r.doc.Churn(); c.Worn() {
		r.renew("it is worn", slog.Int("items", c.Items), slog.Int("live", c.Live), slog.Int("clients", c.Clients))
	}
}

// renew begins a new epoch, or has the application begin one.
func (r *Replica) renew(why string, attrs ...any) {
	r.log.Info("a document needs a new epoch", append([]any{slog.String("because", why)}, attrs...)...)
	if r.o.Renew != nil {
		r.o.Renew(why)
		return
	}
	if err := r.compact(); err != nil {
		r.log.Error("a document's new epoch cannot begin", slog.Any("error", err))
	}
}

// repairEvery is the least time between two reloads of a document.
const repairEvery = time.Minute

// repair ends a divergence. A keeper begins a new epoch, which all replicas follow. Others reload their own state,
// which restores a common order of the same content; different content under the same ids needs a new epoch.
func (r *Replica) repair(sameContent bool) {
	if r.o.Keeper {
		r.renew("copies of it have diverged")
		return
	}
	now := time.Now()
	if !sameContent || !r.repaired.IsZero() && now.Sub(r.repaired) < repairEvery {
		return
	}
	r.repaired = now
	doc := r.newDoc(&r.limits)
	if _, err := doc.Apply(r.doc.Snapshot(), nil); err != nil {
		r.log.Error("a document cannot be reloaded", slog.Any("error", err))
		return
	}
	r.setDocument(doc)
	r.status.Repairs++
	r.handlers.notify(Update{Message: r.message(KindEpoch, nil), Began: true})
}
