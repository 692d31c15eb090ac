// Package busjournal keeps the journals of swarms on NATS JetStream, so that
// coordinators of several processes and machines can succeed each other.
//
// A record is one message or, if it is larger than the server accepts, a sequence of
// messages. A sequence that is incomplete or interrupted by another writer is ignored.
package busjournal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/base/defaults"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/swarm"
)

// Defaults of [Options].
const (
	DefaultStream   = "SWARMS"
	DefaultSubject  = "swarms"
	DefaultMaxBytes = 1 << 30
	DefaultMaxAge   = 30 * 24 * time.Hour
)

// Publisher stores messages in JetStream: a jetstream.JetStream, or one that also waits until the data is on disk.
type Publisher interface {
	PublishMsg(ctx context.Context, msg *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error)
}

// Options set up a Journal. The zero Options are valid.
type Options struct {
	Stream    string        // its name; "" means DefaultStream
	Subject   string        // the first part of the subjects; "" means DefaultSubject
	MaxBytes  int64         // of all journals; 0 means DefaultMaxBytes. An eighth is reserved for the ends of swarms
	MaxAge    time.Duration // of a record; 0 means DefaultMaxAge
	Replicas  int           // 0 means 1
	Publisher Publisher     // nil means the JetStream itself
}

// Journal is a [swarm.Journal]. It is safe for concurrent use.
type Journal struct {
	stream  jetstream.Stream
	publish Publisher
	subject string
	most    int   // bytes of a message's data
	total   int64 // bytes of all journals without the reserve

	mu     sync.Mutex
	used   int64 // bytes of all journals at the last check, and what was stored here since
	since  int64 // bytes stored here since the last check
	looked time.Time
}

var _ swarm.Journal = (*Journal)(nil)

// Open makes the stream, or adjusts it to the options. A full stream refuses records;
// the coordinators delete old journals.
func Open(ctx context.Context, js jetstream.JetStream, o Options) (*Journal, error) {
	o.Stream, o.Subject = cmp.Or(o.Stream, DefaultStream), cmp.Or(o.Subject, DefaultSubject)
	defaults.Set(&o.MaxBytes, DefaultMaxBytes)
	defaults.Set(&o.MaxAge, DefaultMaxAge)
	if o.Publisher == nil {
		o.Publisher = js
	}
	stream, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: o.Stream, Subjects: []string{o.Subject + ".*"}, Storage: jetstream.FileStorage, Discard: jetstream.DiscardNew,
		MaxBytes: o.MaxBytes, MaxAge: o.MaxAge, Replicas: max(o.Replicas, 1), AllowDirect: true,
		Description: "journals of swarms: one subject each",
	})
	if err != nil {
		return nil, failed("", "the stream of the journals cannot be made", err)
	}
	most := int(js.Conn().MaxPayload()) - headroom
	if most < headroom {
		return nil, failed("", "the NATS server's max_payload is too small for journals; raise it", nil)
	}
	return &Journal{stream: stream, publish: o.Publisher, subject: o.Subject, most: most, total: o.MaxBytes / 8 * 7}, nil
}

func failed(id, what string, err error) *swarm.Error {
	return &swarm.Error{Code: swarm.CodeJournal, Subject: id, Message: what, Err: err}
}

var idPattern = text.Pattern(`^[A-Za-z0-9_-]{1,128}$`)

func (j *Journal) subjectOf(id string) (string, error) {
	if !idPattern().MatchString(id) {
		return "", failed(id, fmt.Sprintf("%q is not the id of a swarm", id), nil)
	}
	return j.subject + "." + id, nil
}

// lastOf returns the sequence of a journal's last record, 0 if it has none.
func (j *Journal) lastOf(ctx context.Context, subject string) (uint64, error) {
	m, err := j.stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, failed("", "the journal cannot be read", err)
	}
	return m.Sequence, nil
}

// LastOf implements [swarm.Journal].
func (j *Journal) LastOf(ctx context.Context, id string) (uint64, error) {
	subject, err := j.subjectOf(id)
	if err != nil {
		return 0, err
	}
	return j.lastOf(ctx, subject)
}

// The stream's size is read again after this time, or after storing this part, since others write too.
const (
	lookAfter = 5 * time.Second
	lookShare = 64 // of the total
)

// Room implements [swarm.Journal].
func (j *Journal) Room(ctx context.Context) (free, total int64, err error) {
	j.mu.Lock()
	used, fresh := j.used, time.Since(j.looked) < lookAfter && j.since < j.total/lookShare
	j.mu.Unlock()
	if !fresh {
		info, err := j.stream.Info(ctx)
		if err != nil {
			return 0, 0, failed("", "the size of the journals cannot be read", err)
		}
		used = int64(min(info.State.Bytes, 1<<62)) //nolint:gosec // it fits
		j.mu.Lock()
		j.used, j.since, j.looked = used, 0, time.Now()
		j.mu.Unlock()
	}
	return max(0, j.total-used), j.total, nil
}

// grew counts what was stored.
func (j *Journal) grew(bytes int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.used += int64(bytes)
	j.since += int64(bytes)
}

// Last implements [swarm.Journal].
func (j *Journal) Last(ctx context.Context) (map[string]uint64, error) {
	info, err := j.stream.Info(ctx, jetstream.WithSubjectFilter(j.subject+".*"))
	if err != nil {
		return nil, failed("", "the journals cannot be listed", err)
	}
	last := make(map[string]uint64, len(info.State.Subjects))
	for subject := range info.State.Subjects {
		sequence, err := j.lastOf(ctx, subject)
		if err != nil {
			return nil, err
		}
		if sequence > 0 {
			last[strings.TrimPrefix(subject, j.subject+".")] = sequence
		}
	}
	return last, nil
}

// Forget implements [swarm.Journal].
func (j *Journal) Forget(ctx context.Context, id string) error {
	subject, err := j.subjectOf(id)
	if err != nil {
		return err
	}
	if err := j.stream.Purge(ctx, jetstream.WithPurgeSubject(subject)); err != nil {
		return failed(id, "the journal cannot be deleted", err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.looked = time.Time{} // check again: there is more space
	return nil
}
