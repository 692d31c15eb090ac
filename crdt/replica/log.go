package replica

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"time"

	"github.com/parleyhub/parley/crdt"
)

// Replicas can share a log, which has all updates in one order, instead of channels or besides them:
// Options.Log is given what goes there, Receive takes what comes from it. Package natslog is such a log.
//
// The order of a log extends the causal one: whoever writes an update has put into the log before what it builds
// on, or had it from there. So nothing is held back. What an entry builds on is missing only if an
// earlier entry was lost or damaged; it is applied all the same, so that each state that is stored has it, and
// waits in the document.

// MarshalBinary encodes the message for a log, with its payload as it is.
func (m *Message) MarshalBinary() ([]byte, error) {
	head := *m
	head.Payload = nil
	b, err := json.Marshal(&head)
	if err != nil {
		return nil, err
	}
	out := binary.AppendUvarint(make([]byte, 0, len(b)+len(m.Payload)+binary.MaxVarintLen32), uint64(len(b)))
	return append(append(out, b...), m.Payload...), nil
}

// UnmarshalBinary reads and checks what MarshalBinary wrote. Errors have [crdt.CodeDeserialization].
func (m *Message) UnmarshalBinary(b []byte) error {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)-size) {
		return unreadable(nil, "it ends early")
	}
	head, payload := b[size:size+int(n)], b[size+int(n):]
	var read Message
	if err := json.Unmarshal(head, &read); err != nil {
		return unreadable(err, "it is not a sync message")
	}
	read.Payload = bytes.Clone(payload)
	if err := read.verify(); err != nil {
		return err
	}
	*m = read
	return nil
}

// Size is about what the message takes in a log, in bytes.
func (m *Message) Size() int { return len(m.Payload) + len(m.Vector) + 64*len(m.VectorClock) + 512 }

// logState gives the log what came by a channel in a state: no updates of their makers, so that
// their entries of the vector clock come along.
func (r *Replica) logState(update []byte, clock map[string]uint64) {
	if r.toLog == nil {
		return
	}
	m := r.message(KindStep2, update)
	m.VectorClock = clock
	m.Sum = m.checksum()
	r.toLog(m)
}

// logged gives the log an update.
func (r *Replica) logged(m *Message) {
	if r.toLog != nil {
		r.toLog(m)
	}
}

// Receive takes a message from a log, in the order of the log, and returns when it has been applied. missing
// says that something is not here that the log should have had before: a state that has it
// is to be given to [Replica.Load]. Errors have [CodeLate], for a message of another epoch, or
// [crdt.CodeDeserialization]. What is refused is reported as of channels, and no error.
func (r *Replica) Receive(ctx context.Context, m *Message) (missing bool, err error) {
	var u *crdt.Update
	switch m.Kind {
	case KindUpdate:
		u, err = m.update(r.limits)
	case KindStep2:
		u, err = crdt.ParseUpdate(m.Payload, crdt.StateLimits())
	default:
		err = unreadable(nil, "a log has no messages of kind %s", m.Kind)
	}
	if err != nil {
		return false, err
	}
	ran := r.run(ctx, func() {
		switch {
		case m.Epoch != r.epoch.Load():
			err = &Error{Code: CodeLate, Message: "the message is of epoch " + formatUint(m.Epoch)}
		case m.Kind == KindStep2:
			r.receiveState(m, u)
		default:
			missing = r.receiveUpdate(m, u)
		}
	})
	if ran != nil {
		return false, ran
	}
	return missing, err
}

// receiveUpdate takes an update from the log.
func (r *Replica) receiveUpdate(m *Message, u *crdt.Update) (missing bool) {
	key := m.key()
	switch {
	case key == sessionKey(r.agent, r.session): // made here
	case r.banned[key]:
		r.status.Refused++
	case m.Seq <= r.hold.clock[key]:
		r.status.Repeated++
	case r.access(m.SourceAgentID)&Write == 0:
		r.refuse(nil, m, &Error{Code: CodeReadOnly, Message: "agent " + m.SourceAgentID + " must not write to the document"})
	case r.hold.clock[key] == 0 && len(r.hold.clock) >= maxClock:
		r.refuse(nil, m, &crdt.Error{Code: crdt.CodeLimit, Message: "the document has too many sessions"})
	default:
		x := &held{m: m, u: u, at: time.Now()}
		if _, unmet := r.hold.unmet(m); unmet {
			r.applyAhead(x)
			return true
		}
		r.deliver(x)
		r.countAhead()
	}
	return false
}

// applyAhead applies an update although something is missing before it. Its number counts once those
// before it are here.
func (r *Replica) applyAhead(x *held) {
	m := x.m
	at := dependency{m.key(), m.Seq}
	if r.ahead[at] {
		r.status.Repeated++
		return
	}
	sender := crdt.Sender{Whole: true, Writes: r.writes(m)}
	if err := r.doc.Admit(x.u, sender); err != nil {
		r.refuse(nil, m, err)
		return
	}
	res, err := r.doc.ApplyUpdate(x.u, m.SourceAgentID)
	if err != nil {
		r.refuse(nil, m, err)
		return
	}
	for _, c := range m.Clients {
		r.owners[c] = owner{m.SourceAgentID, at.key}
	}
	r.alarm(m.SourceAgentID, res)
	r.status.Received++
	if len(r.ahead) < maxHeld { // of more, another state will have to tell
		r.ahead[at] = true
	}
	r.countAhead()
	r.handlers.tell(Update{Message: m})
	r.passOn(nil)
}

// countAhead counts the updates that were applied ahead of others which are here now.
func (r *Replica) countAhead() {
	for counted := true; counted; {
		counted = false
		for at := range r.ahead {
			switch n := r.hold.clock[at.key]; {
			case at.n <= n:
				delete(r.ahead, at)
			case at.n == n+1:
				delete(r.ahead, at)
				counted = true
				for _, x := range r.hold.advance(map[string]uint64{at.key: at.n}) {
					r.release(x)
				}
			}
		}
	}
}

// receiveState takes a state from the log that another replica had by a channel.
func (r *Replica) receiveState(m *Message, u *crdt.Update) {
	if m.key() == sessionKey(r.agent, r.session) {
		return
	}
	if r.access(m.SourceAgentID)&(Write|Relay) != Write|Relay {
		r.refuse(nil, m, &Error{Code: CodeReadOnly, Message: "agent " + m.SourceAgentID + " must not pass on what others write"})
		return
	}
	if err := r.doc.Admit(u, crdt.Sender{Whole: true}); err != nil {
		r.refuse(nil, m, err)
		return
	}
	r.mergeState(m, u)
}

// mergeState applies a state that is believed as a whole, with its clock.
func (r *Replica) mergeState(m *Message, u *crdt.Update) {
	res, ok := r.takeState(m, u)
	if !ok {
		return
	}
	clock := maps.Clone(m.VectorClock)
	delete(clock, sessionKey(r.agent, r.session))
	for _, x := range r.hold.advance(clock) {
		r.release(x)
	}
	r.countAhead()
	if res.Update != nil {
		r.tellOfState(m, res.Update)
		r.passOn(nil)
	}
}

// Load merges a state of the same epoch that a log has stored.
func (r *Replica) Load(ctx context.Context, s Saved) error {
	u, err := crdt.ParseUpdate(s.Update, crdt.StateLimits())
	if err != nil {
		return err
	}
	ran := r.run(ctx, func() {
		if s.Epoch != r.epoch.Load() {
			err = &Error{Code: CodeLate, Message: "the state is of epoch " + formatUint(s.Epoch)}
			return
		}
		m := r.message(KindStep2, s.Update)
		m.VectorClock = s.Clock
		r.mergeState(m, u)
		r.doc.Synced()
	})
	if ran != nil {
		return ran
	}
	return err
}

// Next is the epoch that the replicas of a log go on to.
type Next struct {
	Epoch uint64
	// Origin is the last state of the epoch before. It has all that the log had, up to where
	// that epoch ends.
	Origin   []byte
	Client   uint64   // under which the content is written anew
	Counters []string // see Options
}

// State returns the state with which the epoch begins: the same to all who know the origin, client id and
// counters.
func (n *Next) State(limits *crdt.Limits) ([]byte, error) {
	fresh, _, err := n.succeed(limits)
	if err != nil {
		return nil, err
	}
	return fresh.Snapshot(), nil
}

func (n *Next) succeed(limits *crdt.Limits) (*crdt.Doc, *crdt.Succession, error) {
	former := crdt.New(crdt.Options{Limits: limits})
	if _, err := former.Apply(n.Origin, nil); err != nil {
		return nil, nil, err
	}
	return crdt.Succeed(former, crdt.Options{Limits: limits, Client: n.Client}, n.Counters...)
}

// Advance goes on to the next epoch, and carries over what this replica's agent has written and the origin does not
// have: as changes of the new epoch, which Options.Log is given. If same does not know the state that the epoch
// begins with here nothing has changed; then only [Replica.Leave] is left. An error although the epoch is the next one
// says that some edits could not be carried over.
func (r *Replica) Advance(ctx context.Context, n Next, same func(state []byte) bool) error {
	var err error
	ran := r.run(ctx, func() { err = r.advance(n, same) })
	return errors.Join(ran, err)
}

func (r *Replica) advance(n Next, same func(state []byte) bool) error {
	fresh, succession, err := n.succeed(&r.limits)
	if err != nil {
		return err
	}
	if !same(fresh.Snapshot()) {
		return &Error{Code: CodeInvalid, Message: "the epoch's origin does not lead to its state"}
	}
	fresh.Renew()
	rest, err := crdt.ParseUpdate(r.written(succession.Former().StateVector()), crdt.StateLimits())
	if err != nil {
		return err
	}
	f := &Former{epoch: r.epoch.Load(), s: succession, owners: r.owners, until: time.Now().Add(lateFor)}
	r.begin(n.Epoch, fresh)
	r.former, r.origin, r.keeper = f, nil, ""
	r.log.Info("a document goes on to another epoch", slog.String("document", r.state), slog.Uint64("epoch", n.Epoch))
	r.handlers.tell(Update{Message: r.message(KindEpoch, nil), Began: true})
	r.noteBefore()
	updates, err := succession.Carry(rest, r.doc)
	if len(updates) > 0 {
		r.status.Carried++
	}
	if err != nil {
		r.lose(r.agent, err.Error())
	}
	for _, l := range r.links {
		r.tellEpoch(l)
	}
	return err
}

// written returns what was written here, and all deletes, beyond a state vector.
func (r *Replica) written(beyond crdt.StateVector) []byte {
	vector := r.doc.StateVector()
	key := sessionKey(r.agent, r.session)
	for client := range vector {
		o, known := r.owners[client]
		if client == r.doc.Client() || known && (o.key == key || o.key == "") {
			vector[client] = beyond[client]
		}
	}
	return r.doc.EncodeSince(vector)
}

// Leave goes on to a later epoch without what this replica has: the application gets that, see [Update]. lost says
// that there are edits in it which nobody else has.
func (r *Replica) Leave(ctx context.Context, s Saved, lost bool) error {
	fresh := crdt.New(crdt.Options{Limits: &r.limits})
	if _, err := fresh.Apply(s.Update, nil); err != nil {
		return err
	}
	fresh.Renew()
	return r.run(ctx, func() {
		u := Update{Message: r.message(KindEpoch, nil), Began: true}
		u.Message.Epoch = s.Epoch
		if r.doc.Items() > 0 {
			u.Left = r.doc.Snapshot()
		}
		r.begin(s.Epoch, fresh)
		r.hold.advance(s.Clock)
		r.former, r.origin, r.keeper = nil, nil, ""
		if lost {
			r.lose(r.agent, "the log of that epoch is gone")
		}
		r.handlers.tell(u)
		for _, l := range r.links {
			r.tellEpoch(l)
		}
	})
}
