package bus

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A Batch stores many messages with one wait: Add sends a message without waiting, Wait returns when all are
// durable. Use [Bus.NewBatch] to create one. A Batch is not safe for concurrent use; it may be reused after Wait.
type Batch struct {
	bus     *Bus
	futures []jetstream.PubAckFuture
}

// NewBatch returns an empty batch.
func (b *Bus) NewBatch() *Batch { return &Batch{bus: b} }

// Add sends a message. Messages of one Batch are stored in the order in which they were added. Add blocks only while
// 4000 messages of the Bus wait for their acknowledgement. Do not change msg before Wait has returned.
func (x *Batch) Add(ctx context.Context, msg *nats.Msg, opts ...jetstream.PublishOpt) error {
	if err := x.bus.begin(); err != nil {
		return err
	}
	defer x.bus.inFlight.Done()
	future, err := x.bus.send(ctx, msg, opts)
	if err != nil {
		x.bus.setUnwaited(x, false) // the caller may give the batch up
		return err
	}
	x.futures = append(x.futures, future)
	x.bus.setUnwaited(x, true)
	return nil
}

// Wait waits for every added message and returns the acknowledgements in the same order, with nil for a message that
// failed, and the first error. Without an error all messages are durable according to the mode.
func (x *Batch) Wait(ctx context.Context) ([]*jetstream.PubAck, error) {
	if err := x.bus.begin(); err != nil {
		return nil, err
	}
	defer x.bus.inFlight.Done()
	futures := x.futures
	x.futures = nil
	x.bus.setUnwaited(x, false)

	ctx, cancel := withRequestTimeout(ctx)
	defer cancel()
	acks := make([]*jetstream.PubAck, len(futures))
	var first error
	for i, f := range futures {
		ack, err := x.bus.await(ctx, f)
		if err != nil && first == nil {
			first = requestError(err, fmt.Sprintf("store message %d of %d", i+1, len(futures)))
		}
		acks[i] = ack
	}
	if first != nil {
		return acks, first
	}
	return acks, x.bus.Commit(ctx)
}

// setUnwaited records whether a batch has messages for which nobody waits yet; Close does.
func (b *Bus) setUnwaited(x *Batch, unwaited bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if unwaited {
		b.unwaited[x] = struct{}{}
	} else {
		delete(b.unwaited, x)
	}
}

// awaitBatches waits for the messages of the batches for which nobody waits. No call may be in flight.
func (b *Bus) awaitBatches(ctx context.Context) error {
	for x := range b.unwaited {
		for _, f := range x.futures {
			if _, err := b.await(ctx, f); err != nil && ctx.Err() != nil {
				return contextError(err, "waiting for messages in flight")
			}
		}
	}
	return nil
}

// send publishes without waiting for the acknowledgement. The future fails at once when the
// connection is lost, in contrast to a request.
func (b *Bus) send(ctx context.Context, msg *nats.Msg, opts []jetstream.PublishOpt) (jetstream.PubAckFuture, error) {
	limit := requestTimeout
	if deadline, ok := ctx.Deadline(); ok {
		limit = time.Until(deadline)
	}
	if err := ctx.Err(); err != nil || limit <= 0 {
		return nil, contextError(err, "storing a message")
	}
	if err := b.checkDisk(ctx); err != nil {
		return nil, err
	}
	opts = append(slices.Clip(opts), jetstream.WithStallWait(limit))
	future, err := b.js.PublishMsgAsync(msg, opts...)
	if err != nil {
		return nil, requestError(err, "store a message")
	}
	return future, nil
}

// await waits for one acknowledgement. The server does not answer if it cannot write: await returns soon after the disk
// is full.
func (b *Bus) await(ctx context.Context, f jetstream.PubAckFuture) (*jetstream.PubAck, error) {
	ticks := time.NewTicker(watchInterval)
	defer ticks.Stop()
	failing := false
	for {
		select {
		case ack := <-f.Ok():
			return ack, nil
		case err := <-f.Err():
			return nil, err
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-ticks.C:
		}
		err := b.storeError()
		if err != nil && failing { // an answer that was on its way has had its time
			return nil, err
		}
		failing = err != nil
	}
}

// storeError returns why the server cannot store anything, nil if it can as far as it is known.
func (b *Bus) storeError() error {
	if b.disk != nil {
		if _, full := b.disk.look(); full {
			return b.disk.fullError(nil)
		}
	}
	if b.embedded != nil {
		if text := b.embedded.log.write.Load(); text != nil {
			return errorf(CodeStorage, nil, "try again in a moment: the store is opened again", "the store could not be written: %s", *text)
		}
	}
	return nil
}

func withRequestTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, requestTimeout)
}
