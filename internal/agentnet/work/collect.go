package work

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/bus"
)

// scan calls visit with the records of all items. It may visit one that changes meanwhile twice.
func (s *Service) scan(ctx context.Context, b *bus.Bus, visit func(x record, stored time.Time)) error {
	return store.Scan(ctx, b, store.ItemStream, store.ItemSubject+"*", 1, func(m store.Message) bool {
		var x record
		if !store.IsTombstone(m.Header) && json.Unmarshal(m.Data, &x) == nil {
			visit(x, m.Time)
		}
		return true
	})
}

// Items lists all items on this bus, the latest change last.
func (s *Service) Items(ctx context.Context) ([]ItemStatus, error) {
	list := []ItemStatus{}
	b, err := s.reg.Connected()
	if err != nil {
		return list, err
	}
	latest := map[string]int{} // the place of each item
	var ended []record
	now := s.reg.Now()
	err = s.scan(ctx, b, func(x record, _ time.Time) {
		if at, twice := latest[x.TaskID]; twice {
			list[at].TaskID = ""
		}
		latest[x.TaskID] = len(list)
		list = append(list, x.status(true, now))
		if x.leaseEnded(now) {
			ended = append(ended, x)
		}
	})
	for _, x := range ended {
		at := latest[x.TaskID]
		list[at] = s.settled(ctx, &Item{record: x}).status(true, now)
	}
	return slices.DeleteFunc(list, func(i ItemStatus) bool { return i.TaskID == "" }), store.AsError(err)
}

// MaxSwept bounds the items that one sweep checks. Of more it checks a random choice, so that each gets its turn.
const MaxSwept = 1000

// Sweep checks the items whose lease has ended, and those that were queued long ago. It acts on the leases, if no
// process that watches has, completes what a process that died has begun, and queues those again whose message is lost.
func (s *Service) Sweep(ctx context.Context, b *bus.Bus) (buried, repaired int, err error) {
	var suspects []string
	seen := 0
	now := s.reg.Now()
	err = s.scan(ctx, b, func(x record, stored time.Time) {
		long := now.Sub(stored) >= 2*s.cfg.AckTimeout && (!x.finished() || x.isUnburied())
		if !long && !x.leaseEnded(now) {
			return
		}
		seen++
		if len(suspects) < MaxSwept {
			suspects = append(suspects, x.TaskID)
		} else if at := rand.IntN(seen); at < MaxSwept {
			suspects[at] = x.TaskID
		}
	})
	if err != nil {
		return 0, 0, err
	}
	for _, taskID := range suspects {
		didBury, didRepair, err := s.sweepItem(ctx, b, taskID)
		switch {
		case err == nil || errors.Is(err, store.ErrConflict):
		case ctx.Err() != nil || !b.Conn().IsConnected():
			return buried, repaired, err
		default: // the others are checked all the same
			s.reg.Log().Error("an item of work could not be checked", "taskId", taskID, "error", err)
			continue
		}
		buried, repaired = buried+didBury, repaired+didRepair
	}
	return buried, repaired, nil
}

func (s *Service) sweepItem(ctx context.Context, b *bus.Bus, taskID string) (buried, repaired int, err error) {
	before, err := s.Find(ctx, taskID)
	if err != nil || before == nil {
		return 0, 0, err
	}
	x, err := s.settle(ctx, taskID)
	switch {
	case err != nil || x == nil:
		return 0, 0, err
	case before.State == Claimed && x.State == Dead:
		return 1, 0, nil
	case before.isUnburied():
		return 0, 1, nil
	case x.State != Queued:
		return 0, 0, nil
	}
	message, err := store.BySequence(ctx, b, store.QueueStreamPrefix+x.Capability, x.QueueSequence)
	if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) || message != nil && x.isIn(message) {
		return 0, 0, err
	}
	return 0, 1, s.requeue(ctx, x)
}

// isIn reports whether a queue's message is the item's. After a power cut the sequence may be another one's: a queue without
// messages may forget how far it has counted.
func (x record) isIn(message *store.Message) bool {
	o, err := decodeOrder(message.Data, x.QueueSequence, x.Capability)
	return err != nil || o.TaskID == x.TaskID
}

// requeue gives an item a new message in its queue.
func (s *Service) requeue(ctx context.Context, x *Item) error {
	o := x.Order
	o.Generation, o.Attempts = x.Generation+1, min(x.Deliveries, s.cfg.MaxAttempts-1)
	seq, err := s.enqueue(ctx, o, x.Capability)
	if err != nil {
		return err
	}
	x.renew(o)
	x.QueueSequence = seq
	s.reg.Log().Warn("an item of work whose message was lost is queued again", "taskId", x.TaskID, "queue", x.Capability)
	return s.save(ctx, x)
}
