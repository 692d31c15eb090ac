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

// Mail that an agent's program has taken is marked as read only once the program is known to have got it: when the
// agent calls again, or when its connection has lived on for AcknowledgeAfter. Until then this process does not
// return it again. If the process ends before, the next one with the agent's identity returns it under the same id.

// AcknowledgeAfter is how long a connection has to live on after an answer, so that what was in it counts as read.
const AcknowledgeAfter = 2 * time.Second

// taken is mail that was returned by Take, and is not acknowledged.
type taken struct {
	at      time.Time
	alive   bool // the life of this process acknowledges it
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
	fresh bool   // the inbox was created again since the marks were written: they are of the former one
}

// Take is Read, but does not mark the mail as read: that needs Acknowledge. With alive it is also acknowledged once the
// agent has been active for AcknowledgeAfter. Until then this Box returns it only to those who include what was read.
func (x *Box) Take(ctx context.Context, s Selection, alive bool) (mail []Mail, more bool, err error) {
	b, err := x.agent.Ready()
	if err != nil {
		return nil, false, err
	}
	if err := x.taking.Acquire(ctx, 1); err != nil {
		return nil, false, store.AsError(err)
	}
	found, fresh, err := x.findNew(ctx, b, s)
	if err != nil || ctx.Err() != nil { // else the caller does not wait any more
		x.taking.Release(1)
		return nil, false, store.AsError(errors.Join(err, ctx.Err()))
	}
	t := taken{at: time.Now(), alive: alive, invalid: found.invalid,
		mail: slices.DeleteFunc(slices.Clone(found.mail), func(m Mail) bool { return m.Read })}
	useless := len(t.mail) == 0 && len(t.invalid) > 0
	if len(t.mail)+len(t.invalid) > 0 {
		x.mu.Lock()
		x.takes.list = append(x.takes.list, t)
		x.takes.floor = max(x.takes.floor, found.next.floor)
		x.takes.fresh = x.takes.fresh || fresh
		x.mu.Unlock()
	}
	x.taking.Release(1)
	if useless { // there is nothing to get
		if err := x.Acknowledge(ctx, t.at); err != nil {
			x.agent.Log().Warn("mail of the wrong format is not marked as such", "error", err)
		}
	}
	wait.Nudge(x.living)
	return found.mail, found.more, nil
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

// Acknowledge marks mail as read that was taken up to a time. The receipts are written before the marks: a process that
// is killed between them returns mail again that was read, and shows no other mail as read. After an error it stays taken.
func (x *Box) Acknowledge(ctx context.Context, until time.Time) error {
	return x.acknowledge(ctx, func(t taken) bool { return !t.at.After(until) })
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
	var mail []Mail
	var sequences []uint64
	var floor uint64
	x.mu.Lock()
	fresh := x.takes.fresh
	rest := slices.DeleteFunc(slices.Clone(x.takes.list), func(t taken) bool {
		if which(t) {
			mail, sequences = append(mail, t.mail...), append(sequences, t.sequences()...)
		}
		return which(t)
	})
	if len(rest) == 0 {
		floor = x.takes.floor
	}
	x.mu.Unlock()
	if err := x.writeReadReceipts(ctx, b, mail); err != nil {
		return store.AsError(err)
	}
	if floor, err = x.markRead(ctx, b, sequences, floor, fresh); err != nil {
		return store.AsError(err)
	}
	x.mu.Lock()
	x.takes.list = rest
	if len(rest) == 0 {
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

// writeReadReceipts writes receipts of messages that were read. The times of earlier stages stay.
func (x *Box) writeReadReceipts(ctx context.Context, b *bus.Bus, mail []Mail) error {
	batch, now := b.NewBatch(), store.Timestamp(x.svc.reg.Now())
	for _, m := range mail {
		key := receiptKey(m)
		v, err := key.Get(ctx, b)
		if err != nil {
			return err
		}
		st := MessageStatus{MessageID: m.ID, RecipientGUID: x.agent.GUID(), StoredAt: store.Timestamp(m.Timestamp)}
		if v.Exists() && json.Unmarshal(v.Data, &st) == nil && st.Status.rank() >= Read.rank() {
			continue
		}
		st.reach(Read, now)
		data, err := json.Marshal(st)
		if err != nil {
			return err
		}
		msg := &nats.Msg{Subject: key.Subject, Data: data, Header: nats.Header{}}
		msg.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(v.Revision, 10))
		if err := batch.Add(ctx, msg); err != nil {
			return err
		}
	}
	if _, err := batch.Wait(ctx); err == nil {
		return nil
	}
	for _, m := range mail { // another process has written one of them since
		if err := x.svc.writeReceipt(ctx, b, m, Read, ""); err != nil {
			return err
		}
	}
	return nil
}

// acknowledgeLiving acknowledges what a connection has got that lives on, until ctx ends.
func (x *Box) acknowledgeLiving(ctx context.Context, _ *bus.Bus) {
	after := cmp.Or(x.svc.cfg.ReadAfter, AcknowledgeAfter)
	for {
		for x.awaitsLife() {
			if !wait.Pause(ctx, after) {
				return
			}
			until := time.Now().Add(-after)
			if err := x.acknowledge(ctx, func(t taken) bool { return t.alive && !t.at.After(until) }); err != nil {
				x.agent.Log().Debug("mail is not marked as read yet", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-x.living:
		}
	}
}

func (x *Box) awaitsLife() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.ContainsFunc(x.takes.list, func(t taken) bool { return t.alive })
}
