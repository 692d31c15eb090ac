package documents

import (
	"context"
	"errors"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Snapshots are kept in a stream of their own, each on its subject in parts: through the
// bus they are durable when it says so, which those of an object store are not.

const (
	partSize    = 512 << 10
	partsHeader = "Parley-Document-Parts"
)

func (s *store) snapshotSubject(object string) string { return s.name + ".crdtsnap." + object }

// putSnapshot stores a snapshot, and returns when it is durable.
func (s *store) putSnapshot(ctx context.Context, object string, state []byte) error {
	// Parts of an attempt that a crash ended are of no use.
	if err := s.dropSnapshot(ctx, object); err != nil {
		return err
	}
	parts := max(1, (len(state)+partSize-1)/partSize)
	batch := s.bus.NewBatch()
	for range parts {
		n := min(len(state), partSize)
		m := nats.NewMsg(s.snapshotSubject(object))
		m.Data, state = state[:n], state[n:]
		m.Header.Set(partsHeader, strconv.Itoa(parts))
		if err := batch.Add(ctx, m); err != nil {
			return err
		}
	}
	_, err := batch.Wait(ctx)
	return err
}

func (s *store) dropSnapshot(ctx context.Context, object string) error {
	return s.snapshots.Purge(ctx, jetstream.WithPurgeSubject(s.snapshotSubject(object)))
}

var errIncomplete = errors.New("parts of it are missing")

// getSnapshot returns a snapshot as it is stored; the caller knows its hash.
func (s *store) getSnapshot(ctx context.Context, object string) ([]byte, error) {
	subject := s.snapshotSubject(object)
	last, err := s.snapshots.GetLastMsgForSubject(ctx, subject)
	if err != nil {
		return nil, err
	}
	parts, err := strconv.Atoi(last.Header.Get(partsHeader))
	if err != nil {
		return nil, err
	}
	consumer, err := s.snapshots.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}})
	if err != nil {
		return nil, err
	}
	messages, err := consumer.Messages()
	if err != nil {
		return nil, err
	}
	defer messages.Stop()
	var state []byte
	for n := 1; ; n++ {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return nil, err
		}
		state = append(state, m.Data()...)
		meta, err := m.Metadata()
		switch {
		case err != nil:
			return nil, err
		case n == parts:
			return state, nil
		case meta.Sequence.Stream >= last.Sequence:
			return nil, errIncomplete
		}
	}
}
