package work

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/agentnet/store"
)

const (
	// followPoll bounds how late a change is noticed whose message was lost.
	followPoll = time.Minute
	// followAgain is after which time a record is read once more, and then after growing times: its message may arrive
	// before it is stored.
	followAgain = 250 * time.Millisecond
	followMore  = 8
)

// Tracked is an item for whoever follows it.
type Tracked struct {
	ItemStatus
	ContextData json.RawMessage
	Deadline    string
	Generation  int // counts the retries from the dead letters, from 1
	MaxAttempts int // 0 before the first claim
}

func (s *Service) tracked(x record) Tracked {
	status := x.status(true, s.reg.Now())
	if x.State == Forwarded {
		status.State = Forwarded
	}
	return Tracked{status, x.ContextData, x.Deadline, max(x.Generation, 1), x.MaxAttempts}
}

// Tracked returns an item, and false if there is none.
func (s *Service) Tracked(ctx context.Context, taskID string) (t Tracked, found bool, err error) {
	x, err := s.Find(ctx, taskID)
	if err != nil || x == nil {
		return Tracked{}, false, store.AsError(err)
	}
	return s.tracked(x.record), true, nil
}

// Watch calls visit with the ids and generations of all items on the bus, then with those of items that change, until ctx
// ends. An item may be visited again without a change. visit must not block.
func (s *Service) Watch(ctx context.Context, visit func(taskID string, generation int)) error {
	b, err := s.reg.Connected()
	if err != nil {
		return err
	}
	stream, err := b.JetStream().Stream(ctx, store.ItemStream)
	if err != nil {
		return store.AsError(err)
	}
	c, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{store.ItemSubject + "*"}, DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy,
	})
	if err != nil {
		return store.AsError(err)
	}
	running, err := c.Consume(func(m jetstream.Msg) {
		var x record
		if json.Unmarshal(m.Data(), &x) == nil && x.TaskID != "" {
			visit(x.TaskID, max(x.Generation, 1))
		}
	})
	if err != nil {
		return store.AsError(err)
	}
	select {
	case <-ctx.Done():
	case <-running.Closed(): // the stream was removed
	}
	running.Stop()
	<-running.Closed()
	return nil
}

// Follow calls visit with an item as it is, and again after each change, until visit returns false or ctx ends. An item
// that does not exist any more is a NotFoundError.
func (s *Service) Follow(ctx context.Context, taskID string, visit func(Tracked) bool) error {
	b, err := s.reg.Connected()
	if err != nil {
		return err
	}
	changes := make(chan *nats.Msg, 1)
	sub, err := b.Conn().ChanSubscribe(itemKey(taskID).Subject, changes)
	if err != nil {
		return store.AsError(err)
	}
	defer func() { _ = sub.Unsubscribe() }() // it fails if the connection has ended, and the subscription with it
	pause := followAgain
	again := time.NewTimer(pause)
	defer again.Stop()
	for seen := uint64(0); ; {
		x, err := s.Find(ctx, taskID)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return store.AsError(err)
		case x == nil:
			return noItem(taskID)
		case x.revision != seen || x.leaseEnded(s.reg.Now()):
			if seen = x.revision; !visit(s.tracked(x.record)) {
				return nil
			}
		}
		select {
		case <-changes:
			pause = followAgain
		case <-again.C:
			pause = min(followMore*pause, followPoll)
		case <-ctx.Done():
			return nil
		}
		again.Reset(pause)
	}
}

// Withdraw ends an item that has not ended: nobody wants its result. Its holder is refused from then on. An item that has
// ended, or does not exist, stays as it is.
func (s *Service) Withdraw(ctx context.Context, taskID string) error {
	x, err := s.change(ctx, taskID, func(x *Item) (*Item, error) {
		switch {
		case x == nil || x.finished():
			return nil, nil
		case x.State == Forwarding:
			return nil, &store.Error{Code: store.ConnectionError, Message: "The item is just being forwarded.", Remedy: "Try again."}
		}
		x.State, x.Reason, x.Detail, x.FinishedAt = Discarded, "", "withdrawn", store.Timestamp(s.reg.Now())
		return x, nil
	})
	if err != nil || x == nil {
		return store.AsError(err)
	}
	b, err := s.reg.Connected()
	if err == nil {
		err = store.DeleteMessage(ctx, b, store.QueueStreamPrefix+x.Capability, x.QueueSequence)
	}
	if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) { // a claim removes the message
		s.reg.Log().Debug("the message of a withdrawn item stays in its queue", "taskId", taskID, "error", err)
	}
	return s.reg.Commit(ctx)
}

// Queues returns the names of the queues on the bus.
func (s *Service) Queues(ctx context.Context) (names []string, err error) {
	b, err := s.reg.Connected()
	if err != nil {
		return nil, err
	}
	streams := b.JetStream().StreamNames(ctx, jetstream.WithStreamListSubject(store.QueueSubject+"*"))
	for name := range streams.Name() {
		queue, err := store.QueueName(strings.TrimPrefix(name, store.QueueStreamPrefix))
		if err == nil && name == store.QueueStreamPrefix+queue { // not the dead letters
			names = append(names, queue)
		}
	}
	return names, store.AsError(streams.Err())
}
