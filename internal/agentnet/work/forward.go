package work

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/bus"
)

// An item can be forwarded to another bus. Its record here is in the state Forwarding from before it is submitted
// there, so that no worker of this bus gets it any more, and in the state Forwarded afterwards. Any process may
// forward an item that is in the state Forwarding: the other bus recognizes the submission.

// Reserve stores an item in the state Forwarding and returns it. It returns nil if the bus
// has the same item already, in another state.
func (s *Service) Reserve(ctx context.Context, o Order, capability string) (*Item, error) {
	x, err := s.change(ctx, o.TaskID, func(x *Item) (*Item, error) {
		if x == nil {
			return &Item{record: record{Order: o, Capability: capability, State: Forwarding}}, nil
		}
		if err := checkSame(x.Order, o); err != nil || x.State != Forwarding {
			return nil, err
		}
		return x, errUnchanged
	})
	if err != nil {
		return nil, err
	}
	return x, s.reg.Commit(ctx) // also without x: the earlier attempt may have failed before its record was durable
}

// Unfinished is an item that is not finished.
type Unfinished struct{ TaskID, Capability string }

// Unfinished returns the items on a bus that are not finished, the oldest first.
func (s *Service) Unfinished(ctx context.Context, b *bus.Bus) ([]Unfinished, error) {
	var list []Unfinished
	err := s.scan(ctx, b, func(x record, _ time.Time) {
		list = slices.DeleteFunc(list, func(have Unfinished) bool { return have.TaskID == x.TaskID })
		if !x.finished() {
			list = append(list, Unfinished{x.TaskID, x.Capability})
		}
	})
	return list, err
}

// ReserveWaiting puts an item into the state Forwarding and returns it, if no worker has begun it, or its holder's
// lease has ended. Otherwise it returns nil, and done says whether the item is finished. The record decides
// between this and a worker that claims the item at the same moment.
func (s *Service) ReserveWaiting(ctx context.Context, taskID string) (x *Item, done bool, err error) {
	x, err = s.change(ctx, taskID, func(x *Item) (*Item, error) {
		switch {
		case x == nil || x.finished():
			done = true
			return nil, nil
		case x.State == Forwarding:
			return x, errUnchanged
		case x.Deliveries > 0 && x.Deliveries >= s.maxAttempts(x.record):
			return nil, nil // it will be buried
		case x.State == Claimed && !x.leaseEnded(s.reg.Now()):
			return nil, nil
		}
		x.State = Forwarding
		return x, nil
	})
	if err != nil || x == nil {
		return nil, done, err
	}
	return x, false, s.reg.Commit(ctx)
}

// ForwardedOrder returns the order to submit to the other bus.
func (x *Item) ForwardedOrder() Order {
	o := x.Order
	o.Attempts, o.Claims = x.Deliveries, x.Token
	return o
}

// MarkForwarded removes an item's message from its queue, and notes that the other bus has the item.
func (s *Service) MarkForwarded(ctx context.Context, x *Item) error {
	b, err := s.reg.Connected()
	if err != nil {
		return err
	}
	if x.QueueSequence != 0 {
		err := store.DeleteMessage(ctx, b, store.QueueStreamPrefix+x.Capability, x.QueueSequence)
		if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return err
		}
	}
	x.State = Forwarded
	if err := s.save(ctx, x); !errors.Is(err, store.ErrConflict) {
		return err
	}
	return nil // another process has forwarded it
}

// Erase removes the record of an item that the other bus refused before anybody knew of it.
func (s *Service) Erase(ctx context.Context, x *Item) error {
	b, err := s.reg.Connected()
	if err != nil {
		return err
	}
	return store.DeleteMessage(ctx, b, store.ItemStream, x.revision)
}

// BuryRefused moves an item that the other bus refused to the dead letters.
func (s *Service) BuryRefused(ctx context.Context, x *Item, why error) error {
	return s.bury(ctx, x, x.AckSubject, Refused, "the agents' network does not accept it: "+why.Error())
}
