package agentnet

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

// A cell is a subject of which the stream keeps the last message only: a value
// with a revision. A key of a KV bucket is one.
type cell struct{ stream, subject string }

// errConflict says that somebody else has written the cell meanwhile.
var errConflict = errors.New("the value has changed meanwhile")

// maxConflicts is how often a change is tried again on a newer value.
const maxConflicts = 64

// value is what a cell holds.
type value struct {
	data     []byte
	header   nats.Header
	revision uint64 // 0 of a cell that was never written
	time     time.Time
}

// operationHeader marks a KV bucket's deletions.
const operationHeader = "KV-Operation"

// there tells a value from nothing, and from a mark that there is nothing.
func (v value) there() bool { return v.revision > 0 && !isMark(v.header) }

func isMark(h nats.Header) bool {
	return h.Get(operationHeader) != "" || h.Get("Nats-Marker-Reason") != ""
}

// read returns what the cell holds, as the stream's leader has it.
func (c cell) read(ctx context.Context, b *bus.Bus) (value, error) {
	s, err := latest(ctx, b, c.stream, c.subject)
	if err != nil || s == nil {
		return value{}, err
	}
	return value{s.data, s.header, s.sequence, s.time}, nil
}

// write replaces revision, 0 for a cell that was never written, and returns the
// new one. It does not wait for the disk: see bus.Bus.Commit. The error is
// errConflict where another revision is there.
func (c cell) write(ctx context.Context, b *bus.Bus, data []byte, revision uint64, opts ...jetstream.PublishOpt) (uint64, error) {
	return c.publish(ctx, b, &nats.Msg{Subject: c.subject, Data: data}, revision, opts)
}

// clear removes revision.
func (c cell) clear(ctx context.Context, b *bus.Bus, revision uint64) error {
	msg := &nats.Msg{Subject: c.subject, Header: nats.Header{}}
	msg.Header.Set(operationHeader, "PURGE")
	msg.Header.Set("Nats-Rollup", "sub")
	_, err := c.publish(ctx, b, msg, revision, nil)
	return err
}

func (c cell) publish(ctx context.Context, b *bus.Bus, msg *nats.Msg, revision uint64, opts []jetstream.PublishOpt) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	opts = append(opts, jetstream.WithExpectLastSequencePerSubject(revision), jetstream.WithExpectStream(c.stream))
	ack, err := b.JetStream().PublishMsg(ctx, msg, opts...)
	if isWrongSequence(err) {
		return 0, errConflict
	}
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

// conflictBackoff is for those who lost a race of writers.
var conflictBackoff = wait.Backoff{First: time.Millisecond, Most: 50 * time.Millisecond, Jitter: 0.5}

// change reads the cell, lets next say what it should hold, and writes that,
// again and again while somebody else is quicker. next returns nil to leave it
// as it is. It returns what the cell holds in the end.
func (c cell) change(ctx context.Context, b *bus.Bus, next func(value) ([]byte, error), opts ...jetstream.PublishOpt) (value, error) {
	retry := conflictBackoff
	for attempt := 1; ; attempt++ {
		v, err := c.read(ctx, b)
		if err != nil {
			return value{}, err
		}
		data, err := next(v)
		if err != nil || data == nil {
			return v, err
		}
		revision, err := c.write(ctx, b, data, v.revision, opts...)
		if err == nil {
			return value{data: data, revision: revision}, nil
		}
		if !errors.Is(err, errConflict) || attempt >= maxConflicts {
			return value{}, err
		}
		retry.Pause(ctx)
	}
}

// isWrongSequence knows both codes that the server has for a lost race.
func isWrongSequence(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}
