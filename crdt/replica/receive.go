package replica

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"time"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/telemetry"
)

// arrived takes an envelope from a link, in the channel's goroutine: what can be checked
// without the document is checked here. It blocks while the owner has much to do,
// which slows down this sender only.
func (r *Replica) arrived(ctx context.Context, l *link, e *envelope.Envelope) {
	if !peek(e, r.state) || e.Sender != l.RemoteAgent() {
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

// handler reads what a message has, and returns what the owner is to do with it.
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
	default: // of a later version
		return func() { r.status.Skipped++ }
	}
}

// skip logs what cannot be read, with its source, and goes on (Req 9.5). What is
// missing then is asked for; who sends such twice in a minute is not listened to.
func (r *Replica) skip(l *link, source, session string, err error) {
	r.status.Skipped++
	r.emit(telemetry.ErrorEvent, source, err, "skipped an update that cannot be read")
	if l == nil {
		return // of a log
	}
	now := time.Now()
	kept := l.failures[:0]
	for _, t := range l.failures {
		if now.Sub(t) < time.Minute {
			kept = append(kept, t)
		}
	}
	l.failures = append(kept, now)
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
	r.hold.drop(key)
}

// speaksFor reports whether the agent at the other end may bring messages of a
// source.
func (r *Replica) speaksFor(l *link, source string) bool {
	return l.RemoteAgent() == source || r.access(l.RemoteAgent())&Relay != 0
}

// update takes an update that arrived.
func (r *Replica) update(l *link, m *Message, u *crdt.Update, err error) {
	if err != nil {
		r.skip(l, m.SourceAgentID, m.Session, err)
		return
	}
	key := m.key()
	switch {
	case r.banned[key]:
		r.status.Refused++
		return
	case r.hold.known(m):
		r.status.Repeated++
		return
	case !r.speaksFor(l, m.SourceAgentID):
		r.refuse(l, m, &Error{Code: CodeReadOnly, Message: "agent " + l.RemoteAgent() + " must not pass on what others write"})
		return
	case r.access(m.SourceAgentID)&Write == 0:
		r.refuse(l, m, &Error{Code: CodeReadOnly, Message: "agent " + m.SourceAgentID + " must not write to the document"})
		return
	case r.hold.clock[key] == 0 && len(r.hold.clock) >= maxClock:
		r.refuse(l, m, &crdt.Error{Code: crdt.CodeLimit, Message: "the document has too many sessions"})
		return
	}
	x := &held{m: m, u: u, from: l, at: time.Now()}
	if on, wait := r.hold.unmet(m); wait {
		if !r.hold.hold(x, on) {
			r.ask(l, "too many updates wait")
		}
		return
	}
	r.deliver(x)
}

// deliver applies an update, and then those that waited for it.
func (r *Replica) deliver(x *held) {
	ready := []*held{x}
	for len(ready) > 0 {
		x := ready[0]
		ready = ready[1:]
		if r.apply(x) {
			for _, w := range r.hold.delivered(x.m) {
				if r.freed(w) {
					ready = append(ready, w)
				}
			}
		}
	}
}

// freed takes an update that waited out, if it waits for nothing else.
func (r *Replica) freed(x *held) bool {
	if on, wait := r.hold.unmet(x.m); wait {
		r.hold.waiters[on] = append(r.hold.waiters[on], x)
		return false
	}
	r.hold.release(x)
	return x.m.Seq > r.hold.clock[x.m.key()]
}

// release lets an update go on that waited.
func (r *Replica) release(x *held) {
	if r.freed(x) {
		r.deliver(x)
	}
}

// apply admits and applies one update. All that it depends on has been applied.
func (r *Replica) apply(x *held) bool {
	m := x.m
	key := m.key()
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
	res, err := r.doc.ApplyUpdate(x.u, m.SourceAgentID)
	if err != nil {
		r.refuse(x.from, m, err)
		return false
	}
	for _, c := range m.Clients {
		r.owners[c] = owner{m.SourceAgentID, key}
	}
	r.alarm(m.SourceAgentID, res)
	r.status.Received++
	if r.forward {
		r.spread(m, x.from)
	}
	if x.from != nil {
		r.logged(m)
	}
	if res.Parked && x.from != nil {
		r.ask(x.from, "")
	}
	r.handlers.tell(Update{Message: m})
	return true
}

// writes says which client ids the maker of an update may write under: those of its session and those that are
// nobody's.
func (r *Replica) writes(m *Message) func(client uint64) bool {
	return func(client uint64) bool {
		o, taken := r.owners[client]
		return !taken || o.key == m.key()
	}
}

// alarm says that another has written under this replica's client id.
func (r *Replica) alarm(source string, res crdt.Result) {
	if res.ClientTaken {
		r.emit(telemetry.Security, source, &crdt.Error{Code: crdt.CodeEquivocation, Message: "another has written under this replica's client id; it has a new one"}, "a client id was taken")
	}
}

// parked reports whether something waits in the document for what is not here.
func (r *Replica) parked() bool {
	p := r.doc.Pending()
	return p.Structs+p.Ranges > 0 || p.NeedsSync
}

// refuse tells the maker of an update that it was not applied. None of its session can be
// after that, since clocks would have a gap.
func (r *Replica) refuse(l *link, m *Message, err error) {
	r.status.Refused++
	r.emit(telemetry.Security, m.SourceAgentID, err, "refused an update")
	r.ban(m.key())
	if l == nil {
		return // of a log, where nobody listens
	}
	reply := r.message(KindRefuse, []byte(err.Error()))
	reply.VectorClock = map[string]uint64{m.key(): m.Seq}
	reply.Sum = reply.checksum()
	l.put(reply)
}

// wasRefused hears that another did not apply what this session wrote.
func (r *Replica) wasRefused(l *link, m *Message) {
	if m.VectorClock[sessionKey(r.agent, r.session)] == 0 || r.refused != nil {
		return
	}
	// Only who may speak for others, or the document's keeper, can end a session:
	// anybody else's refusal is its own affair.
	if r.access(l.RemoteAgent())&Relay == 0 {
		return
	}
	reason := m.Payload[:min(len(m.Payload), 1000)]
	r.refused = &Error{Code: CodeRefused, Message: "agent " + m.SourceAgentID + " says: " + string(bytes.ToValidUTF8(reason, []byte("?")))}
	r.log.Error("what this replica wrote was refused", slog.String("document", r.state), slog.Any("error", r.refused))
}

// askEvery bounds how often one peer is asked for the state.
const askEvery = 5 * time.Second

// ask asks a peer for what is missing here. The first time after linking it is
// not limited in rate.
func (r *Replica) ask(l *link, why string) {
	now := time.Now()
	if !l.asked.IsZero() && now.Sub(l.asked) < askEvery {
		l.again = true
		return
	}
	l.asked, l.again = now, false
	if why != "" {
		r.log.Info("asking for a document's state", slog.String("document", r.state), slog.String("of", l.RemoteAgent()), slog.String("because", why))
	}
	m := r.message(KindStep1, r.doc.StateVector().Encode())
	m.Sum = m.checksum()
	l.put(m)
}

// expire drops what has waited for too long and asks for the state instead.
func (r *Replica) expire(now time.Time) {
	old := r.hold.expired(now)
	for _, key := range old {
		r.hold.drop(key)
	}
	stuck := r.stuck(now)
	for _, l := range r.links {
		if l.again || len(old) > 0 || stuck {
			r.ask(l, "updates were missed")
		}
	}
}

// maxParkedAge bounds how long structs wait in the document for what is not here. Asked for the
// state meanwhile, a peer that had it would have told.
const maxParkedAge = 30 * time.Second

// stuck reports whether something waits in the document. What has waited for too long is dropped;
// with the state that is asked for it comes again.
func (r *Replica) stuck(now time.Time) bool {
	if !r.parked() {
		r.waiting = time.Time{}
		return false
	}
	if r.waiting.IsZero() {
		r.waiting = now
	}
	if now.Sub(r.waiting) >= maxParkedAge && r.toLog == nil { // what a log brought it does not bring again
		r.waiting = now
		r.doc.DropParked()
	}
	return true
}

// answer sends a peer what its state vector lacks, and the vector clock of the same moment.
func (r *Replica) answer(l *link, m *Message, sv crdt.StateVector, err error) {
	if err != nil {
		r.skip(l, m.SourceAgentID, m.Session, err)
		return
	}
	if r.access(l.RemoteAgent())&Read == 0 {
		return
	}
	if r.behind(sv) {
		r.ask(l, "") // the peer was linked later than it was asked, or lost the question
	}
	r.sendState(l, KindStep2, r.doc.EncodeSince(sv), func(m *Message) {
		m.VectorClock, m.Clients = maps.Clone(r.hold.clock), []uint64{r.doc.Client()}
	})
}

// sendState sends a state, in parts if it is large. What belongs to it as a whole is set in the
// last part.
func (r *Replica) sendState(l *link, kind Kind, state []byte, whole func(*Message)) {
	parts := max(1, (len(state)+maxPayload-1)/maxPayload)
	if parts > 1 || len(r.hold.clock) > 100 {
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
		part.Sum = part.checksum()
		l.put(part)
	}
}

// behind reports whether a peer's state vector has what is not here.
func (r *Replica) behind(sv crdt.StateVector) bool {
	here := r.doc.StateVector()
	for client, clock := range sv {
		if here[client] < clock {
			return true
		}
	}
	return false
}

// maxState bounds a state that comes in parts.
const maxState = 128 << 20

// part takes a part of a state; parts of one state follow each other.
func (r *Replica) part(l *link, m *Message) {
	if !r.speaksFor(l, m.SourceAgentID) {
		return // states are not passed on; a keeper may have another name than its replica
	}
	if m.Part == 0 {
		l.parts, l.partSize = nil, 0
	}
	if m.Part != len(l.parts) || l.partSize+len(m.Payload) > maxState {
		l.parts, l.partSize = nil, 0
		r.ask(l, "a state came in part")
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

// takeState applies a state that m has brought and that may be applied. It reports
// whether that could be done.
func (r *Replica) takeState(m *Message, u *crdt.Update) (crdt.Result, bool) {
	res, err := r.doc.ApplyUpdate(u, m.SourceAgentID)
	if err != nil {
		r.emit(telemetry.ErrorEvent, m.SourceAgentID, err, "could not apply a state")
		return crdt.Result{}, false
	}
	r.alarm(m.SourceAgentID, res)
	r.status.Syncs++
	return res, true
}

// tellOfState tells the handlers what was new in a state.
func (r *Replica) tellOfState(m *Message, update []byte) {
	news := *m
	news.Payload = update
	r.handlers.tell(Update{Message: &news})
}

// applyState applies what a peer answered, takes over its clock, and lets go on
// what waited.
func (r *Replica) applyState(l *link, m *Message, state []byte) {
	u, err := crdt.ParseUpdate(state, crdt.StateLimits())
	if err != nil {
		r.skip(l, m.SourceAgentID, m.Session, err)
		return
	}
	rights := r.access(l.RemoteAgent())
	if rights&(Write|Relay) == 0 {
		return
	}
	clients := u.Clients()
	if err := r.doc.Admit(u, r.stateSender(l, r.owners)); err != nil {
		r.status.Refused++
		r.emit(telemetry.Security, m.SourceAgentID, err, "refused a state")
		return
	}
	// Of the client ids in it only the session's own are claimed. The others' may be those of
	// agents who are away: what this replica has lost, their neighbours bring back.
	if rights&Relay == 0 {
		for _, c := range m.Clients {
			_, brought := clients[c]
			if _, taken := r.owners[c]; brought && !taken {
				r.owners[c] = owner{l.RemoteAgent(), m.key()}
			}
		}
	}
	res, ok := r.takeState(m, u)
	if !ok {
		return
	}
	r.doc.Synced()
	if res.Parked = r.parked(); res.Parked {
		r.ask(l, "")
	}
	if res.Update != nil {
		r.tellOfState(m, res.Update)
		if r.forward {
			r.passOn(l)
		}
		r.noteReturned(l, res.Update)
	}
	clock := r.believable(l, m, rights)
	maps.DeleteFunc(clock, func(key string, n uint64) bool { return n <= r.hold.clock[key] })
	free := r.hold.advance(clock)
	if (res.Update != nil || len(clock) > 0) && r.access(r.agent)&Relay != 0 { // others would refuse it
		r.logState(state, clock)
	}
	for _, x := range free {
		r.release(x)
	}
}

// noteReturned tells of edits that came from a copy and are not of its session, where there is a journal: all others' had
// come here before they went there.
func (r *Replica) noteReturned(l *link, news []byte) {
	if r.journal == nil {
		return
	}
	u, err := crdt.ParseUpdate(news, crdt.StateLimits())
	if err != nil {
		r.log.Error("a document's own update cannot be read", slog.String("document", r.state), slog.Any("error", err))
		return
	}
	returned := 0
	for client := range u.Clients() {
		if o, known := r.owners[client]; !known || o.agent != l.RemoteAgent() {
			returned++
		}
	}
	if returned > 0 {
		r.log.Warn("a copy of a document brought edits of others or of an earlier session, which were not here; they are taken over. If they were acknowledged here, the log has lost them",
			slog.String("document", r.state), slog.String("source", l.RemoteAgent()), slog.Int("writers", returned))
	}
}

// stateSender says what is believed of a state that a peer brings: of others only what is known, unless it
// may speak for them.
func (r *Replica) stateSender(l *link, owners map[uint64]owner) crdt.Sender {
	sender := crdt.Sender{Whole: true}
	if rights := r.access(l.RemoteAgent()); rights&Relay == 0 {
		sender.Writes = func(client uint64) bool {
			o, taken := owners[client]
			return rights&Write != 0 && (!taken || o.agent == l.RemoteAgent())
		}
	}
	return sender
}

// believable returns the entries of a peer's clock that are taken over: of others only if
// it may speak for them.
func (r *Replica) believable(l *link, m *Message, rights Access) map[string]uint64 {
	own := sessionKey(r.agent, r.session)
	clock := make(map[string]uint64, len(m.VectorClock))
	for key, n := range m.VectorClock {
		if key == own || rights&Relay == 0 && key != sessionKey(l.RemoteAgent(), m.Session) {
			continue
		}
		if _, known := r.hold.clock[key]; known || len(r.hold.clock)+len(clock) < maxClock {
			clock[key] = n
		}
	}
	return clock
}

// passOn tells the other peers by a digest that there is something new, which came in
// a state and not in updates that could be forwarded.
func (r *Replica) passOn(from *link) {
	for _, l := range r.links {
		if l != from {
			r.sendDigest(l)
		}
	}
}

func (r *Replica) sendDigest(l *link) {
	if r.access(l.RemoteAgent())&Read == 0 {
		return
	}
	d := r.digest()
	payload, err := json.Marshal(d)
	if err != nil {
		r.log.Error("a digest cannot be written", slog.Any("error", err))
		return
	}
	m := r.message(KindDigest, payload)
	m.VectorClock = maps.Clone(r.hold.clock)
	m.Sum = m.checksum()
	l.put(m)
}

// digest returns the digest of the document, computed once for each version.
func (r *Replica) digest() *digest {
	if r.summary == nil || r.summed != r.version {
		g := r.doc.Digest(true)
		r.summary, r.summed = &digest{Vector: g.Vector[:], Deletes: g.Deletes[:], Order: g.Order[:], Content: g.Content[:]}, r.version
	}
	d := *r.summary
	d.Parked = r.parked()
	return &d
}

// compare holds a peer's digest against the document.
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
		// It may be on its way to us or from us; if not, the next digest shows it.
		if l.unlike++; l.unlike > 1 {
			l.unlike = 0
			r.ask(l, "digests differ")
		}
	}
}

// diverged says that a peer has the same updates and yet another document, and repairs that.
func (r *Replica) diverged(m *Message, sameContent bool) {
	if !r.status.Diverged {
		r.status.Diverged = true
		what := "the same ids have other content"
		if sameContent {
			what = "the same content is in another order"
		}
		r.emit(telemetry.Security, m.SourceAgentID, &crdt.Error{Code: crdt.CodeEquivocation, Message: what}, "a document has diverged")
	}
	r.repair(sameContent)
}

// lacks reports whether a clock has updates that were not delivered here.
func (r *Replica) lacks(clock map[string]uint64) bool {
	for key, n := range clock {
		if r.hold.clock[key] < n {
			return true
		}
	}
	return false
}
