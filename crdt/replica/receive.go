package replica

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/telemetry"
)

// arrived handles an envelope of a link, in the channel's goroutine: it decodes and checks it as far as
// possible without the document. It blocks while the owner's queue is full, which delays only this link.
func (r *Replica) arrived(ctx context.Context, l *link, e *envelope.Envelope) {
	if e.Sender != l.RemoteAgent() {
		return
	}
	m, err := decode(e)
	if err != nil {
		r.post(ctx, func() { r.skip(l, l.RemoteAgent(), "", err) })
		return
	}
	handle := r.handler(l, m)
	r.post(ctx, func() {
		if r.current(l, m) {
			handle()
		}
	})
}

// handler decodes a message's payload and returns the function that the owner runs.
func (r *Replica) handler(l *link, m *Message) func() {
	switch m.Kind {
	case KindUpdate:
		u, err := m.update(r.limits)
		return func() { r.update(l, m, u, err) }
	case KindStep1:
		sv, err := crdt.DecodeStateVector(m.Payload, r.limits.Vector)
		return func() { r.answer(l, m, sv, err) }
	case KindStep2, KindLate:
		return func() { r.part(l, m) }
	case KindDigest:
		var d digest
		err := json.Unmarshal(m.Payload, &d)
		return func() { r.compare(l, m, &d, err) }
	case KindRefuse:
		return func() { r.wasRefused(l, m) }
	case KindCarried:
		return func() { r.carried(l, m) }
	default: // a kind of a later version
		return func() { r.status.Skipped++ }
	}
}

// skip logs a message that cannot be decoded, with its source, and asks for the state instead. A session
// with two of them within a minute is banned.
func (r *Replica) skip(l *link, source, session string, err error) {
	r.status.Skipped++
	r.emit(telemetry.ErrorEvent, source, err, "skipped an update that cannot be read")
	if l == nil {
		return // from a log
	}
	now := time.Now()
	l.failures = append(slices.DeleteFunc(l.failures, func(t time.Time) bool { return now.Sub(t) >= time.Minute }), now)
	if session != "" && len(l.failures) > 1 {
		r.ban(sessionKey(source, session))
	}
	r.ask(l, "")
}

const maxBanned = 10_000

func (r *Replica) ban(key string) {
	if len(r.banned) < maxBanned {
		r.banned[key] = true
	}
	r.buffer.drop(key)
}

// speaksFor reports whether the agent at the other end may send messages of a source.
func (r *Replica) speaksFor(l *link, source string) bool {
	return l.RemoteAgent() == source || r.o.Access(l.RemoteAgent())&Relay != 0
}

// update handles an update.
func (r *Replica) update(l *link, m *Message, u *crdt.Update, err error) {
	if err != nil {
		r.skip(l, m.SourceAgentID, m.Session, err)
		return
	}
	if !r.expected(l, m) {
		return
	}
	x := &held{m: m, u: u, from: l, at: time.Now()}
	if on, wait := r.buffer.unmet(m); wait {
		if !r.buffer.add(x, on) {
			r.ask(l, "too many updates are buffered")
		}
		return
	}
	r.deliver(x)
}

// expected reports whether an update of a link, or of a log if l is nil, is new and permitted. It counts or
// refuses any other.
func (r *Replica) expected(l *link, m *Message) bool {
	key := m.key()
	switch {
	case r.banned[key]:
		r.status.Refused++
	case l != nil && r.buffer.known(m), l == nil && m.Seq <= r.buffer.clock[key]:
		r.status.Repeated++
	case l != nil && !r.speaksFor(l, m.SourceAgentID):
		r.refuse(l, m, &Error{Code: CodeReadOnly, Message: "agent " + l.RemoteAgent() + " must not forward the changes of others"})
	case r.o.Access(m.SourceAgentID)&Write == 0:
		r.refuse(l, m, &Error{Code: CodeReadOnly, Message: "agent " + m.SourceAgentID + " must not write to the document"})
	case r.buffer.clock[key] == 0 && len(r.buffer.clock) >= maxClock:
		r.refuse(l, m, &crdt.Error{Code: crdt.CodeLimit, Message: "the document has too many sessions"})
	default:
		return true
	}
	return false
}

// deliver applies an update, and then the buffered ones that depend on it.
func (r *Replica) deliver(x *held) {
	ready := []*held{x}
	for len(ready) > 0 {
		x := ready[0]
		ready = ready[1:]
		if r.apply(x) {
			for _, w := range r.buffer.delivered(x.m) {
				if r.freed(w) {
					ready = append(ready, w)
				}
			}
		}
	}
}

// freed removes a buffered update from the buffer if all its dependencies are applied.
func (r *Replica) freed(x *held) bool {
	if on, wait := r.buffer.unmet(x.m); wait {
		r.buffer.waiters[on] = append(r.buffer.waiters[on], x)
		return false
	}
	r.buffer.release(x)
	return x.m.Seq > r.buffer.clock[x.m.key()]
}

// release delivers a buffered update if all its dependencies are applied.
func (r *Replica) release(x *held) {
	if r.freed(x) {
		r.deliver(x)
	}
}

// apply admits and applies an update whose dependencies are applied.
func (r *Replica) apply(x *held) bool {
	m := x.m
	sender := crdt.Sender{Writes: r.writes(m)}
	if m.Vector != nil {
		sv, err := crdt.DecodeStateVector(m.Vector, r.limits.Vector)
		if err != nil {
			r.skip(x.from, m.SourceAgentID, m.Session, err)
			return false
		}
		sender.Vector = sv
	}
	if err := r.doc.Admit(x.u, sender); err != nil {
		r.refuse(x.from, m, err)
		return false
	}
	res, ok := r.applyAdmitted(x.from, m, x.u)
	if !ok {
		return false
	}
	if !r.o.NoForward {
		r.spread(m, x.from)
	}
	if x.from != nil {
		r.logged(m)
	}
	if res.Parked && x.from != nil {
		r.ask(x.from, "")
	}
	r.handlers.notify(Update{Message: m})
	return true
}

// writes returns the check of client ids for the maker of an update: it may use those of its session and
// unowned ones.
func (r *Replica) writes(m *Message) func(client uint64) bool {
	return func(client uint64) bool {
		o, taken := r.owners[client]
		return !taken || o.key == m.key()
	}
}

// applyAdmitted applies an admitted update of a session, which then owns its client ids.
func (r *Replica) applyAdmitted(from *link, m *Message, u *crdt.Update) (crdt.Result, bool) {
	res, err := r.doc.ApplyUpdate(u, m.SourceAgentID)
	if err != nil {
		r.refuse(from, m, err)
		return res, false
	}
	for _, c := range m.Clients {
		r.owners[c] = owner{m.SourceAgentID, m.key()}
	}
	r.alarm(m.SourceAgentID, res)
	r.status.Received++
	return res, true
}

// alarm reports that another replica has written under this replica's client id.
func (r *Replica) alarm(source string, res crdt.Result) {
	if res.ClientTaken {
		r.emit(telemetry.Security, source, &crdt.Error{Code: crdt.CodeEquivocation, Message: "another replica has written under this replica's client id; this one has a new id"}, "a client id was used twice")
	}
}

// parked reports whether the document waits for missing structs or a state.
func (r *Replica) parked() bool {
	p := r.doc.Pending()
	return p.Structs+p.Ranges > 0 || p.NeedsSync
}

// refuse bans a session and sends its maker the reason: later updates of the session cannot be applied,
// since its clock would have a gap.
func (r *Replica) refuse(l *link, m *Message, err error) {
	r.status.Refused++
	r.emit(telemetry.Security, m.SourceAgentID, err, "refused an update")
	r.ban(m.key())
	if l == nil {
		return // from a log, which carries no refusals
	}
	reply := r.message(KindRefuse, []byte(err.Error()))
	reply.VectorClock = map[string]uint64{m.key(): m.Seq}
	r.send(l, reply)
}

// wasRefused handles another replica's refusal of this session.
func (r *Replica) wasRefused(l *link, m *Message) {
	if m.VectorClock[sessionKey(r.o.Agent, r.session)] == 0 || r.refused != nil {
		return
	}
	// Only an agent with the right Relay can end a session; the refusal of any other affects only that agent.
	if r.o.Access(l.RemoteAgent())&Relay == 0 {
		return
	}
	reason := m.Payload[:min(len(m.Payload), 1000)]
	r.refused = &Error{Code: CodeRefused, Message: "agent " + m.SourceAgentID + " reports: " + string(bytes.ToValidUTF8(reason, []byte("?")))}
	r.log.Error("what this replica wrote was refused", slog.Any("error", r.refused))
}

// askEvery is the least time between two questions to one peer.
const askEvery = 5 * time.Second

// ask asks a peer for the state that is missing here, at most every askEvery.
func (r *Replica) ask(l *link, why string) {
	now := time.Now()
	if !l.asked.IsZero() && now.Sub(l.asked) < askEvery {
		l.again = true
		return
	}
	l.asked, l.again = now, false
	if why != "" {
		r.log.Info("asking for a document's state", slog.String("peer", l.RemoteAgent()), slog.String("because", why))
	}
	r.send(l, r.message(KindStep1, r.doc.StateVector().Encode()))
}

// expire drops updates that were buffered for too long and asks for the state instead.
func (r *Replica) expire(now time.Time) {
	old := r.buffer.expired(now)
	for _, key := range old {
		r.buffer.drop(key)
	}
	stuck := r.stuck(now)
	for _, l := range r.links {
		if l.again || len(old) > 0 || stuck {
			r.ask(l, "updates were missed")
		}
	}
}

// maxParkedAge bounds how long structs stay parked. By then the peers that were asked for the missing ones
// have answered if they have them.
const maxParkedAge = 30 * time.Second

// stuck reports whether anything is parked. It drops what has been parked for too long: the state that is
// asked for contains it.
func (r *Replica) stuck(now time.Time) bool {
	if !r.parked() {
		r.waiting = time.Time{}
		return false
	}
	if r.waiting.IsZero() {
		r.waiting = now
	}
	if now.Sub(r.waiting) >= maxParkedAge && r.o.Log == nil { // a log delivers its entries only once
		r.waiting = now
		r.doc.DropParked()
	}
	return true
}

// answer sends a peer what its state vector lacks, with the vector clock of the same moment.
func (r *Replica) answer(l *link, m *Message, sv crdt.StateVector, err error) {
	if err != nil {
		r.skip(l, m.SourceAgentID, m.Session, err)
		return
	}
	if r.o.Access(l.RemoteAgent())&Read == 0 {
		return
	}
	if !r.doc.StateVector().Covers(sv) {
		r.ask(l, "") // the peer has more; it may have missed the first question
	}
	r.sendState(l, KindStep2, r.doc.EncodeSince(sv), func(m *Message) {
		m.VectorClock, m.Clients = maps.Clone(r.buffer.clock), []uint64{r.doc.Client()}
	})
}

// pushState sends what others have returned here, as the answer to a question that was not asked.
func (r *Replica) pushState(l *link, state []byte) {
	if r.o.Access(l.RemoteAgent())&Read != 0 {
		r.sendState(l, KindStep2, state, func(m *Message) { m.Clients = []uint64{r.doc.Client()} })
	}
}

// sendState sends a state, in parts if it is large. whole sets the fields of the last part, which apply to
// the state as a whole.
func (r *Replica) sendState(l *link, kind Kind, state []byte, whole func(*Message)) {
	parts := max(1, (len(state)+maxPayload-1)/maxPayload)
	if parts > 1 || len(r.buffer.clock) > 100 {
		parts++ // the clock goes in a part of its own
	}
	for i := range parts {
		n := min(len(state), maxPayload)
		part := r.message(kind, state[:n])
		state = state[n:]
		part.Part, part.Parts = i, parts
		if i == parts-1 {
			whole(part)
		}
		r.send(l, part)
	}
}

// maxState bounds a state received in parts.
const maxState = 128 << 20

// part handles a part of a state; the parts arrive in order.
func (r *Replica) part(l *link, m *Message) {
	if !r.speaksFor(l, m.SourceAgentID) {
		return // states are not forwarded; a keeper's agent id may differ from its replica's
	}
	if m.Part == 0 {
		l.parts, l.partSize = nil, 0
	}
	if m.Part != len(l.parts) || l.partSize+len(m.Payload) > maxState {
		l.parts, l.partSize = nil, 0
		r.ask(l, "part of a state is missing")
		return
	}
	l.parts = append(l.parts, m.Payload)
	l.partSize += len(m.Payload)
	if len(l.parts) < m.Parts {
		return
	}
	state := bytes.Join(l.parts, nil)
	l.parts, l.partSize = nil, 0
	if m.Kind == KindLate {
		r.applyLate(l, m, state)
		return
	}
	r.applyState(l, m, state)
}

// mergeUpdate applies an admitted state and reports whether that succeeded.
func (r *Replica) mergeUpdate(m *Message, u *crdt.Update) (crdt.Result, bool) {
	res, err := r.doc.ApplyUpdate(u, m.SourceAgentID)
	if err != nil {
		r.emit(telemetry.ErrorEvent, m.SourceAgentID, err, "could not apply a state")
		return crdt.Result{}, false
	}
	r.alarm(m.SourceAgentID, res)
	r.status.Syncs++
	return res, true
}

// notifyState calls the application's handlers with the changes of a state.
func (r *Replica) notifyState(m *Message, update []byte) {
	news := *m
	news.Payload = update
	r.handlers.notify(Update{Message: &news})
}

// applyState applies a peer's answer, merges its clock and releases the updates that waited for it.
func (r *Replica) applyState(l *link, m *Message, state []byte) {
	u, err := crdt.ParseUpdate(state, crdt.StateLimits())
	if err != nil {
		r.skip(l, m.SourceAgentID, m.Session, err)
		return
	}
	rights := r.o.Access(l.RemoteAgent())
	if rights&(Write|Relay) == 0 {
		return
	}
	clients := u.Clients()
	if err := r.doc.Admit(u, r.stateSender(l, r.owners)); err != nil {
		r.status.Refused++
		r.emit(telemetry.Security, m.SourceAgentID, err, "refused a state")
		return
	}
	// The session owns only its own client ids in the state. Others may belong to agents that are offline,
	// whose neighbours return what this replica has lost.
	if rights&Relay == 0 {
		for _, c := range m.Clients {
			_, brought := clients[c]
			if _, taken := r.owners[c]; brought && !taken {
				r.owners[c] = owner{l.RemoteAgent(), m.key()}
			}
		}
	}
	res, ok := r.mergeUpdate(m, u)
	if !ok {
		return
	}
	r.doc.Synced()
	if res.Parked = r.parked(); res.Parked {
		r.ask(l, "")
	}
	if res.Update != nil {
		r.notifyState(m, res.Update)
		if !r.o.NoForward {
			r.toAll(r.sendDigest, l) // they cannot be forwarded as updates
		}
		r.noteReturned(l, res.Update)
	}
	clock := r.believable(l, m, rights)
	maps.DeleteFunc(clock, func(key string, n uint64) bool { return n <= r.buffer.clock[key] })
	free := r.buffer.advance(clock)
	if (res.Update != nil || len(clock) > 0) && r.o.Access(r.o.Agent)&Relay != 0 { // others refuse it without this right
		r.logState(state, clock)
	}
	for _, x := range free {
		r.release(x)
	}
}

// noteReturned logs edits that a copy has returned and that are not of its session, if there is a journal:
// they had been here before.
func (r *Replica) noteReturned(l *link, news []byte) {
	if r.o.Journal == nil {
		return
	}
	u, err := crdt.ParseUpdate(news, crdt.StateLimits())
	if err != nil {
		r.log.Error("a document's own update cannot be decoded", slog.Any("error", err))
		return
	}
	returned := 0
	for client := range u.Clients() {
		if o, known := r.owners[client]; !known || o.agent != l.RemoteAgent() {
			returned++
		}
	}
	if returned > 0 {
		r.log.Warn("a copy of a document has returned edits of others or of an earlier session, which were missing here; they were applied. If they were acknowledged here, the log has lost them",
			slog.String("source", l.RemoteAgent()), slog.Int("writers", returned))
	}
}

// stateSender returns the checks for a peer's state: without the right Relay it may contain only known
// structs of others, and those of earlier sessions of this agent.
func (r *Replica) stateSender(l *link, owners map[uint64]owner) crdt.Sender {
	sender := crdt.Sender{Whole: true}
	if rights := r.o.Access(l.RemoteAgent()); rights&Relay == 0 {
		sender.Writes = func(client uint64) bool {
			o, taken := owners[client]
			return rights&Write != 0 && client != r.doc.Client() && (!taken || o.agent == l.RemoteAgent() || r.isFormer(o))
		}
	}
	return sender
}

// believable returns the new entries of a peer's clock: without the right Relay only that of its own session.
func (r *Replica) believable(l *link, m *Message, rights Access) map[string]uint64 {
	own := sessionKey(r.o.Agent, r.session)
	clock := make(map[string]uint64, len(m.VectorClock))
	for key, n := range m.VectorClock {
		if key == own || rights&Relay == 0 && key != sessionKey(l.RemoteAgent(), m.Session) {
			continue
		}
		if _, known := r.buffer.clock[key]; known || len(r.buffer.clock)+len(clock) < maxClock {
			clock[key] = n
		}
	}
	return clock
}

func (r *Replica) sendDigest(l *link) {
	if r.o.Access(l.RemoteAgent())&Read == 0 {
		return
	}
	d := r.digest()
	payload, err := json.Marshal(d)
	if err != nil {
		r.log.Error("a digest cannot be encoded", slog.Any("error", err))
		return
	}
	m := r.message(KindDigest, payload)
	m.VectorClock = maps.Clone(r.buffer.clock)
	r.send(l, m)
}

// digest returns the document's digest. It is computed once for each version.
func (r *Replica) digest() *digest {
	if r.summary == nil || r.summed != r.version {
		g := r.doc.Digest(true)
		r.summary, r.summed = &digest{Vector: g.Vector[:], Deletes: g.Deletes[:], Order: g.Order[:], Content: g.Content[:]}, r.version
	}
	d := *r.summary
	d.Parked = r.parked()
	return &d
}

// compare compares a peer's digest with the document's.
func (r *Replica) compare(l *link, m *Message, theirs *digest, err error) {
	if err != nil {
		r.skip(l, m.SourceAgentID, m.Session, unreadable(err, "it is not a digest"))
		return
	}
	ours := r.digest()
	same := bytes.Equal(ours.Vector, theirs.Vector) && bytes.Equal(ours.Deletes, theirs.Deletes)
	switch {
	case ours.Parked:
		r.ask(l, "")
	case same && !theirs.Parked && (!bytes.Equal(ours.Order, theirs.Order) || !bytes.Equal(ours.Content, theirs.Content)):
		if l.unlike++; l.unlike > 1 {
			l.unlike = 0
			r.diverged(m, bytes.Equal(ours.Content, theirs.Content))
		}
	case same:
		l.unlike = 0
		r.status.Diverged = r.status.Diverged && theirs.Parked
	case r.lacks(m.VectorClock):
		r.ask(l, "")
	default:
		// Updates may be in flight; if not, the next digest differs again.
		if l.unlike++; l.unlike > 1 {
			l.unlike = 0
			r.ask(l, "digests differ")
		}
	}
}

// diverged reports that a peer has the same updates but a different document, and repairs it.
func (r *Replica) diverged(m *Message, sameContent bool) {
	if !r.status.Diverged {
		r.status.Diverged = true
		what := "the same ids have different content"
		if sameContent {
			what = "the same content is in a different order"
		}
		r.emit(telemetry.Security, m.SourceAgentID, &crdt.Error{Code: crdt.CodeEquivocation, Message: what}, "a document has diverged")
	}
	r.repair(sameContent)
}

// lacks reports whether a clock includes updates that were not delivered here.
func (r *Replica) lacks(clock map[string]uint64) bool {
	for key, n := range clock {
		if r.buffer.clock[key] < n {
			return true
		}
	}
	return false
}
