package store

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

// Key is a subject of which the stream keeps the last message only, such as a key of a
// KV bucket. The message's sequence number is the value's revision.
type Key struct{ Stream, Subject string }

// ErrConflict means that the key has another revision than the one to be replaced.
var ErrConflict = errors.New("the value has changed meanwhile")

// MaxConflicts is how often a change is retried on a newer value.
const MaxConflicts = 64

// ConflictBackoff is for a retry after ErrConflict.
func ConflictBackoff() *wait.Backoff {
	return &wait.Backoff{First: time.Millisecond, Most: 50 * time.Millisecond, Jitter: 0.5}
}

// Value is the value of a key.
type Value struct {
	Data     []byte
	Header   nats.Header
	Revision uint64 // 0 of a key that was never written
	Time     time.Time
}

// operationHeader marks a KV bucket's deletions.
const operationHeader = "KV-Operation"

// Exists reports whether there is a value that is not deleted.
func (v Value) Exists() bool { return v.Revision > 0 && !IsTombstone(v.Header) }

// IsTombstone reports whether a message with this header marks a deletion.
func IsTombstone(h nats.Header) bool {
	return h.Get(operationHeader) != "" || h.Get("Nats-Marker-Reason") != ""
}

// Get returns the value that the stream's leader has.
func (k Key) Get(ctx context.Context, b *bus.Bus) (Value, error) {
	m, err := Latest(ctx, b, k.Stream, k.Subject)
	if err != nil || m == nil {
		return Value{}, err
	}
	return Value{m.Data, m.Header, m.Sequence, m.Time}, nil
}

// Put replaces revision, 0 for a key that was never written, and returns the new one. The value is stored as JSON,
// unless it is a []byte. The error is ErrConflict where the key has another revision. Put does not wait for the
// disk: see bus.Bus.Commit.
func (k Key) Put(ctx context.Context, b *bus.Bus, value any, revision uint64, opts ...jetstream.PublishOpt) (uint64, error) {
	data, err := encode(value)
	if err != nil {
		return 0, err
	}
	return k.publish(ctx, b, &nats.Msg{Subject: k.Subject, Data: data}, revision, opts)
}

func encode(value any) ([]byte, error) {
	if data, ok := value.([]byte); ok {
		return data, nil
	}
	return json.Marshal(value)
}

// Delete removes revision. The error is ErrConflict where the key has another one.
func (k Key) Delete(ctx context.Context, b *bus.Bus, revision uint64) error {
	msg := &nats.Msg{Subject: k.Subject, Header: nats.Header{}}
	msg.Header.Set(operationHeader, "PURGE")
	msg.Header.Set("Nats-Rollup", "sub")
	_, err := k.publish(ctx, b, msg, revision, nil)
	return err
}

func (k Key) publish(ctx context.Context, b *bus.Bus, msg *nats.Msg, revision uint64, opts []jetstream.PublishOpt) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	opts = append(opts, jetstream.WithExpectLastSequencePerSubject(revision), jetstream.WithExpectStream(k.Stream))
	ack, err := b.JetStream().PublishMsg(ctx, msg, opts...)
	if IsAPIError(err, jetstream.JSErrCodeStreamWrongLastSequence, jetstream.JSErrCodeStreamWrongLastSequenceConstant) {
		return 0, ErrConflict
	}
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

// Update replaces the value by what next returns for it, see Put; nil leaves it unchanged. It
// retries on conflicts, and returns the value that the key has in the end.
func (k Key) Update(ctx context.Context, b *bus.Bus, next func(Value) (any, error), opts ...jetstream.PublishOpt) (Value, error) {
	retry := ConflictBackoff()
	for attempt := 1; ; attempt++ {
		v, err := k.Get(ctx, b)
		if err != nil {
			return Value{}, err
		}
		value, err := next(v)
		if err != nil || value == nil {
			return v, err
		}
		data, err := encode(value)
		if err != nil {
			return Value{}, err
		}
		revision, err := k.Put(ctx, b, data, v.Revision, opts...)
		if err == nil {
			return Value{Data: data, Revision: revision}, nil
		}
		if !errors.Is(err, ErrConflict) || attempt >= MaxConflicts {
			return Value{}, err
		}
		retry.Pause(ctx)
	}
}

// IsAPIError reports whether the server answered with one of the codes.
func IsAPIError(err error, codes ...jetstream.ErrorCode) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && slices.Contains(codes, api.ErrorCode)
}
