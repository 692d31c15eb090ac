package replica

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"log/slog"
	"maps"
	"time"

	"github.com/parleyhub/parley/crdt"
)

// Instead of channels, or in addition, replicas can share a log with all updates in one order: Options.Log
// receives the messages to append, Receive applies those read. Package natslog implements such a log.
//
// The order of the log extends the causal order: a writer appends an update after those on which it depends. So
// nothing needs to be buffered. A dependency is missing only if an earlier entry was lost or damaged. The update is
// applied nevertheless, so that every stored state contains it, and parked in the document.

// MarshalBinary encodes the message for a log; the payload is not re-encoded.
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

// UnmarshalBinary decodes and checks the result of MarshalBinary. Errors have [crdt.CodeDeserialization].
func (m *Message) UnmarshalBinary(b []byte) error {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)-size) {
		return unreadable(nil, "it is truncated")
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

// Size returns the approximate size of the message in a log, in bytes.
func (m *Message) Size() int { return len(m.Payload) + len(m.Vector) + 64*len(m.VectorClock) + 512 }

// logState appends a state received over a channel to the log. Since it has no updates of their makers,
// their entries of the vector clock are included.
func (r *Replica) logState(update []byte, clock map[string]uint64) {
	if r.o.Log == nil {
		return
	}
	m := r.message(KindStep2, update)
	m.VectorClock = clock
	m.Sum = m.checksum()
	r.o.Log(m)
}

// logged appends an update to the log, if there is one.
func (r *Replica) logged(m *Message) {
	if r.o.Log != nil {
		r.o.Log(m)
	}
}

// Receive applies a message of a log, in the order of the log, and blocks until it is applied. missing
// reports that an earlier entry is missing; pass a state that contains it to [Replica.Load]. The error is
// [CodeLate] for a message of another epoch, or [crdt.CodeDeserialization]. Refused updates are reported
// like those of channels and are not errors.
func (r *Replica) Receive(ctx context.Context, m *Message) (missing bool, err error) {
	if m == nil {
		return false, &Error{Code: CodeInvalid, Message: "the message is nil"}
	}
	var u *crdt.Update
	switch m.Kind {
	case KindUpdate:
		u, err = m.update(r.limits)
	case KindStep2:
		u, err = crdt.ParseUpdate(m.Payload, crdt.StateLimits())
	default:
		err = unreadable(nil, "messages of kind %s do not belong in a log", m.Kind)
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

// receiveUpdate handles an update of the log.
func (r *Replica) receiveUpdate(m *Message, u *crdt.Update) (missing bool) {
	if m.key() == sessionKey(r.o.Agent, r.session) || !r.expected(nil, m) {
		return false
	}
	x := &held{m: m, u: u, at: time.Now()}
	if _, missing = r.buffer.unmet(m); missing {
		r.applyAhead(x)
		return true
	}
	r.deliver(x)
	r.countAhead()
	return false
}

// applyAhead applies an update although one before it is missing. It counts in the clock once those before
// it are applied.
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
	if _, ok := r.applyAdmitted(nil, m, x.u); !ok {
		return
	}
	if len(r.ahead) < maxBuffered { // further ones need a state with their clock
		r.ahead[at] = true
	}
	r.countAhead()
	r.handlers.notify(Update{Message: m})
	r.toAll(r.sendDigest, nil)
}

// countAhead counts the updates that were applied ahead and have no more gap before them.
func (r *Replica) countAhead() {
	for counted := true; counted; {
		counted = false
		for at := range r.ahead {
			switch n := r.buffer.clock[at.key]; {
			case at.n <= n:
				delete(r.ahead, at)
			case at.n == n+1:
				delete(r.ahead, at)
				counted = true
				for _, x := range r.buffer.advance(map[string]uint64{at.key: at.n}) {
					r.release(x)
				}
			}
		}
	}
}

// receiveState handles a state in the log, which another replica has received over a channel.
func (r *Replica) receiveState(m *Message, u *crdt.Update) {
	if m.key() == sessionKey(r.o.Agent, r.session) {
		return
	}
	if r.o.Access(m.SourceAgentID)&(Write|Relay) != Write|Relay {
		r.refuse(nil, m, &Error{Code: CodeReadOnly, Message: "agent " + m.SourceAgentID + " must not forward the changes of others"})
		return
	}
	if err := r.doc.Admit(u, crdt.Sender{Whole: true}); err != nil {
		r.refuse(nil, m, err)
		return
	}
	r.mergeState(m, u)
}

// mergeState applies a trusted state with its clock.
func (r *Replica) mergeState(m *Message, u *crdt.Update) {
	res, ok := r.mergeUpdate(m, u)
	if !ok {
		return
	}
	clock := maps.Clone(m.VectorClock)
	delete(clock, sessionKey(r.o.Agent, r.session))
	for _, x := range r.buffer.advance(clock) {
		r.release(x)
	}
	r.countAhead()
	if res.Update != nil {
		r.notifyState(m, res.Update)
		r.toAll(r.sendDigest, nil)
	}
}

// Load merges a stored state of the same epoch.
func (r *Replica) Load(ctx context.Context, s Saved) error {
	u, err := crdt.ParseUpdate(s.Update, crdt.StateLimits())
	if err != nil {
		return err
	}
	return r.try(ctx, func() error {
		if s.Epoch != r.epoch.Load() {
			return &Error{Code: CodeLate, Message: "the state is of epoch " + formatUint(s.Epoch)}
		}
		m := r.message(KindStep2, s.Update)
		m.VectorClock = s.Clock
		r.mergeState(m, u)
		r.doc.Synced()
		return nil
	})
}

// Next describes the next epoch of a log.
type Next struct {
	Epoch uint64
	// Origin is the last state of the former epoch, with everything that the log contained until the epoch's end.
	Origin   []byte
	Client   uint64   // client id of the copied content
	Counters []string // see Options
}

// State returns the state with which the epoch begins. It is the same for all who know the origin, client
// id and counters.
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

// Advance begins the next epoch, and carries over what this replica's agent has written and the origin
// lacks: as changes of the new epoch, which are passed to Options.Log. If same rejects the initial state
// computed here, nothing has changed, and the caller must use [Replica.Leave]. An error after the epoch has
// changed means that some edits were not carried over.
func (r *Replica) Advance(ctx context.Context, n Next, same func(state []byte) bool) error {
	return r.try(ctx, func() error { return r.advance(n, same) })
}

func (r *Replica) advance(n Next, same func(state []byte) bool) error {
	fresh, succession, err := n.succeed(&r.limits)
	if err != nil {
		return err
	}
	if !same(fresh.Snapshot()) {
		return &Error{Code: CodeInvalid, Message: "the epoch's origin does not yield its initial state"}
	}
	fresh.Renew()
	rest, err := crdt.ParseUpdate(r.written(succession.Former().StateVector()), crdt.StateLimits())
	if err != nil {
		return err
	}
	f := &Former{epoch: r.epoch.Load(), s: succession, owners: r.owners, until: time.Now().Add(lateFor)}
	r.begin(n.Epoch, fresh, f)
	r.log.Info("a document continues in the next epoch", slog.Uint64("epoch", n.Epoch))
	r.handlers.notify(Update{Message: r.message(KindEpoch, nil), Began: true})
	r.noteBefore()
	updates, err := succession.Carry(rest, r.doc)
	if len(updates) > 0 {
		r.status.Carried++
	}
	if err != nil {
		r.lose(r.o.Agent, err.Error())
	}
	r.toAll(r.sendEpoch, nil)
	return err
}

// written returns what was written here beyond a state vector, and all deletes.
func (r *Replica) written(beyond crdt.StateVector) []byte {
	vector := r.doc.StateVector()
	key := sessionKey(r.o.Agent, r.session)
	for client := range vector {
		o, known := r.owners[client]
		if client == r.doc.Client() || known && (o.key == key || o.key == "") {
			vector[client] = beyond[client]
		}
	}
	return r.doc.EncodeSince(vector)
}

// Leave continues in a later epoch without the content of this replica, which the application receives: see
// [Update]. lost means that it contains edits that exist nowhere else.
func (r *Replica) Leave(ctx context.Context, s Saved, lost bool) error {
	fresh := r.newDoc(&r.limits)
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
		r.begin(s.Epoch, fresh, nil)
		r.buffer.advance(s.Clock)
		if lost {
			r.lose(r.o.Agent, "the log of that epoch no longer exists")
		}
		r.handlers.notify(u)
		r.toAll(r.sendEpoch, nil)
	})
}
