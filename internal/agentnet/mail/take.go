package mail

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

// Mail that an agent's program has taken is *delivered* when the answer that holds it was written, and marked as read only
// once the program is known to have got it: when the agent calls again after that, or when its connection has lived on
// for AcknowledgeAfter. Until then this process does not return it again. If the process ends before, the next one with
// the agent's identity returns it under the same id, and says so if the answer was written.

// AcknowledgeAfter is how long a connection has to live on after an answer, so that what was in it counts as read.
const AcknowledgeAfter = 2 * time.Second

// Answer is the answer to the agent that takes mail.
type Answer struct {
	// Alive is set if the agent's connection ends with this process: its life acknowledges the answer.
	Alive bool
}

// taken is mail that was returned by Take, and is not acknowledged.
type taken struct {
	answer  *Answer
	written time.Time // when the answer was written, zero before
	noted   bool      // the receipts say so
	mail    []Mail
	invalid []uint64 // the sequence numbers of messages that were skipped for ever
}

func (t taken) sequences() []uint64 {
	list := slices.Clone(t.invalid)
	for _, m := range t.mail {
		list = append(list, m.Sequence)
	}
	return list
}

// takes is all mail that was taken and is not acknowledged. The box's lock guards it.
type takes struct {
	list  []taken
	floor uint64 // everything up to it is read once all of list is acknowledged
	loose bool   // mail below the floor was given back, so that the floor says nothing
	fresh bool   // the inbox was created again since the marks were written: they are of the former one
}

// Take is Read, but does not mark the mail as read: that needs Answered for the answer, and then Acknowledge or, if the
// answer is Alive, that the agent stays active for AcknowledgeAfter. Until then this Box returns it only to those who
// include what was read.
func (x *Box) Take(ctx context.Context, s Selection, answer *Answer) (mail []Mail, more bool, err error) {
	b, err := x.agent.Ready()
	if err != nil {
		return nil, false, err
	}
	if err := x.taking.Acquire(ctx, 1); err != nil {
		return nil, false, store.AsError(err)
	}
	found, fresh, err := x.findNew(ctx, b, s)
	if err == nil {
		err = x.noteRepeats(ctx, b, found.mail)
	}
	if err != nil || ctx.Err() != nil { // else the caller does not wait any more
		x.taking.Release(1)
		return nil, false, store.AsError(errors.Join(err, ctx.Err()))
	}
	t := taken{answer: answer, invalid: found.invalid,
		mail: slices.DeleteFunc(slices.Clone(found.mail), func(m Mail) bool { return m.Read })}
	useless := len(t.mail) == 0 && len(t.invalid) > 0
	if useless {
		t.written, t.noted = time.Now(), true
	}
	if len(t.mail)+len(t.invalid) > 0 {
		x.mu.Lock()
		x.takes.list = append(x.takes.list, t)
		x.takes.floor = max(x.takes.floor, found.next.floor)
		x.takes.fresh = x.takes.fresh || fresh
		x.mu.Unlock()
	}
	x.taking.Release(1)
	if useless { // there is nothing to get
		if err := x.Acknowledge(ctx, t.written); err != nil {
			x.agent.Log().Warn("mail of the wrong format is not marked as such", "error", err)
		}
	}
	return found.mail, found.more, nil
}

// Answered reports that an answer with mail was written, or that it will not be: then the mail is returned again.
func (x *Box) Answered(answer *Answer, written bool) {
	now := time.Now()
	x.mu.Lock()
	if written {
		for i := range x.takes.list {
			if x.takes.list[i].answer == answer {
				x.takes.list[i].written = now
			}
		}
	} else {
		before := len(x.takes.list)
		x.takes.list = slices.DeleteFunc(x.takes.list, func(t taken) bool { return t.answer == answer })
		x.takes.loose = x.takes.loose || len(x.takes.list) < before
	}
	x.mu.Unlock()
	x.settle()
	if !written {
		x.arrived.Send()
	}
}

// noteRepeats sets Repeated of mail that a former process has written in an answer. Only mail that was there when this
// process began to take can be so.
func (x *Box) noteRepeats(ctx context.Context, b *bus.Bus, mail []Mail) error {
	if len(mail) == 0 {
		return nil
	}
	if !x.began {
		last, err := x.svc.lastSequence(ctx, b, x.agent.GUID())
		if err != nil {
			return err
		}
		x.began, x.old = true, last
	}
	for i, m := range mail {
		if m.Read || m.Sequence > x.old {
			continue
		}
		v, err := receiptKey(m).Get(ctx, b)
		if err != nil {
			return err
		}
		var st MessageStatus
		mail[i].Repeated = v.Exists() && json.Unmarshal(v.Data, &st) == nil && st.Status.rank() >= Delivered.rank()
	}
	return nil
}

// findNew is find with the present marks, for Take. fresh is set if the stored marks are those of a former inbox.
func (x *Box) findNew(ctx context.Context, b *bus.Bus, s Selection) (f found, fresh bool, err error) {
	stored, err := x.marks(ctx, b)
	marks := stored
	if err == nil && s.IncludeRead {
		marks, err = x.currentMarks(ctx, b, marks)
	}
	if err != nil {
		return found{}, false, err
	}
	f, err = x.find(ctx, b, s, marks, true)
	if err == nil && f.none && marks.Floor > 0 {
		if marks, err = x.currentMarks(ctx, b, marks); err == nil && marks.Floor == 0 {
			f, err = x.find(ctx, b, s, marks, true)
		}
	}
	return f, marks.Floor < stored.Floor, err
}

// holds reports whether mail is taken and not acknowledged.
func (x *Box) holds(seq uint64) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.ContainsFunc(x.takes.list, func(t taken) bool {
		return slices.Contains(t.invalid, seq) || slices.ContainsFunc(t.mail, func(m Mail) bool { return m.Sequence == seq })
	})
}

// Acknowledge marks mail as read whose answer was written up to a time: the agent has called since. The receipts are written before the marks: a process that
// is killed between them returns mail again that was read, and shows no other mail as read. After an error it stays taken.
func (x *Box) Acknowledge(ctx context.Context, until time.Time) error {
	return x.acknowledge(ctx, func(t taken) bool { return t.wasWritten(until) })
}

func (t taken) wasWritten(until time.Time) bool {
	return !t.written.IsZero() && !t.written.After(until)
}

func (x *Box) acknowledge(ctx context.Context, which func(taken) bool) error {
	x.mu.Lock()
	idle := !slices.ContainsFunc(x.takes.list, which)
	x.mu.Unlock()
	if idle {
		return nil
	}
	b, err := x.agent.Ready()
	if err != nil {
		return err
	}
	if err := x.taking.Acquire(ctx, 1); err != nil {
		return store.AsError(err)
	}
	defer x.taking.Release(1)
	var got []taken
	var sequences []uint64
	var floor uint64
	x.mu.Lock()
	fresh := x.takes.fresh
	for _, t := range x.takes.list {
		if which(t) {
			got, sequences = append(got, t), append(sequences, t.sequences()...)
		}
	}
	if len(got) == len(x.takes.list) && !x.takes.loose {
		floor = x.takes.floor
	}
	x.mu.Unlock()
	if len(got) == 0 { // another call has done it
		return nil
	}
	if err := x.writeReceipts(ctx, b, Read, got); err != nil {
		return store.AsError(err)
	}
	if floor, err = x.markRead(ctx, b, sequences, floor, fresh); err == nil {
		err = b.Commit(ctx) // else a power cut would show it again
	}
	if err != nil {
		return store.AsError(err)
	}
	x.mu.Lock()
	x.takes.list = slices.DeleteFunc(x.takes.list, func(t taken) bool {
		return slices.ContainsFunc(got, func(o taken) bool { return o.answer == t.answer && slices.Equal(o.sequences(), t.sequences()) })
	})
	if len(x.takes.list) == 0 {
		x.takes = takes{}
	}
	x.mu.Unlock()
	x.finish(ctx, b, nil, floor)
	return nil
}

// markRead adds sequence numbers to the marks, and returns the floor.
func (x *Box) markRead(ctx context.Context, b *bus.Bus, sequences []uint64, floor uint64, fresh bool) (uint64, error) {
	_, err := x.marksKey().Update(ctx, b, func(v store.Value) (any, error) {
		var marks readMarks
		if v.Exists() {
			if err := json.Unmarshal(v.Data, &marks); err != nil {
				return nil, err
			}
		}
		if fresh && slices.Max(sequences) <= marks.Floor {
			marks = readMarks{Reads: marks.Reads}
		}
		marks.add(sequences, floor)
		floor = marks.Floor
		return marks, nil
	})
	return floor, err
}

// add marks messages as read, and everything up to floor.
func (r *readMarks) add(sequences []uint64, floor uint64) {
	r.Floor = max(r.Floor, floor)
	r.Above = append(slices.Clone(r.Above), sequences...)
	slices.Sort(r.Above)
	r.Above = slices.DeleteFunc(slices.Compact(r.Above), func(seq uint64) bool { return seq <= r.Floor })
}

// writeReceipts writes receipts of a stage, Delivered or Read, of mail in answers that were written.
func (x *Box) writeReceipts(ctx context.Context, b *bus.Bus, stage Receipt, answers []taken) error {
	batch, now := b.NewBatch(), x.svc.reg.Now()
	ago := func(t taken) time.Time { return now.Add(-time.Since(t.written)) } // by the clock of the bus
	for _, t := range answers {
		for _, m := range t.mail {
			if err := x.addReceipt(ctx, b, batch, m, stage, ago(t), now); err != nil {
				return err
			}
		}
	}
	if _, err := batch.Wait(ctx); err == nil {
		return nil
	}
	for _, t := range answers {
		for _, m := range t.mail { // another process has written one of them since
			if err := x.svc.writeReceipt(ctx, b, m, stage, ""); err != nil {
				return err
			}
		}
	}
	return nil
}

// addReceipt adds the receipt of a message to a batch, unless the message has reached the stage. The times of stages that it
// has reached stay.
func (x *Box) addReceipt(ctx context.Context, b *bus.Bus, batch *bus.Batch, m Mail, stage Receipt, written, now time.Time) error {
	key := receiptKey(m)
	v, err := key.Get(ctx, b)
	if err != nil {
		return err
	}
	st := MessageStatus{MessageID: m.ID, RecipientGUID: x.agent.GUID(), StoredAt: store.Timestamp(m.Timestamp)}
	if v.Exists() && json.Unmarshal(v.Data, &st) == nil && st.Status.rank() >= stage.rank() {
		return nil
	}
	st.reach(Delivered, store.Timestamp(written))
	st.reach(stage, store.Timestamp(now))
	data, err := json.Marshal(st)
	if err != nil {
		return err
	}
	msg := &nats.Msg{Subject: key.Subject, Data: data, Header: nats.Header{}}
	msg.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(v.Revision, 10))
	return batch.Add(ctx, msg)
}

// noteAnswered writes the receipts of mail whose answer was written. It tries until it succeeds or ctx ends.
func (x *Box) noteAnswered(ctx context.Context, b *bus.Bus) {
	retry := wait.Backoff{First: time.Second, Most: store.MaxBackoff}
	for {
		err := x.deliver(ctx, b)
		if err == nil || ctx.Err() != nil {
			return
		}
		x.agent.Log().Debug("mail is not marked as delivered yet", "error", err)
		retry.Pause(ctx)
	}
}

// deliver writes the receipts of mail whose answer was written and which has none yet.
func (x *Box) deliver(ctx context.Context, b *bus.Bus) error {
	if err := x.taking.Acquire(ctx, 1); err != nil {
		return err
	}
	defer x.taking.Release(1)
	isNew := func(t taken) bool { return !t.written.IsZero() && !t.noted }
	var got []taken
	x.mu.Lock()
	for _, t := range x.takes.list {
		if isNew(t) {
			got = append(got, t)
		}
	}
	x.mu.Unlock()
	if len(got) == 0 {
		return nil
	}
	if err := x.writeReceipts(ctx, b, Delivered, got); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for i, t := range x.takes.list {
		x.takes.list[i].noted = t.noted || slices.ContainsFunc(got, func(o taken) bool { return o.answer == t.answer })
	}
	return nil
}

// acknowledgeLiving acknowledges what a connection has got that lives on, until nothing is left or ctx ends.
func (x *Box) acknowledgeLiving(ctx context.Context, _ *bus.Bus) {
	after := cmp.Or(x.svc.cfg.ReadAfter, AcknowledgeAfter)
	for x.awaitsLife() {
		if !wait.Pause(ctx, after) {
			return
		}
		until := time.Now().Add(-after)
		if err := x.acknowledge(ctx, func(t taken) bool { return t.answer.Alive && t.wasWritten(until) }); err != nil {
			x.agent.Log().Debug("mail is not marked as read yet", "error", err)
		}
	}
}

func (x *Box) awaitsLife() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.ContainsFunc(x.takes.list, func(t taken) bool { return t.answer.Alive && !t.written.IsZero() })
}
