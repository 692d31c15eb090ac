package documents

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/internal/bus"
)

// store is where documents are kept on the bus.
type store struct {
	bus       *bus.Bus
	name      string // the hub's on the bus
	stream    jetstream.Stream
	heads     jetstream.KeyValue
	access    jetstream.KeyValue
	snapshots jetstream.Stream
}

// head says which snapshot is a document's newest.
type head struct {
	Epoch    uint64            `json:"epoch"`
	Number   uint64            `json:"number"`   // of the last change in the snapshot
	Sequence uint64            `json:"sequence"` // of it in the stream
	Object   string            `json:"object"`   // "" before the first snapshot
	Hash     string            `json:"hash"`
	Clock    map[string]uint64 `json:"clock,omitempty"`
	Previous *head             `json:"previous,omitempty"` // without its own
	revision uint64
}

// numberHeader has a change's number in its document and epoch, from 1.
const numberHeader = "Parley-Document-Change"

func openStore(ctx context.Context, b *bus.Bus, name string) (*store, error) {
	s := &store{bus: b, name: name}
	var err error
	s.stream, err = b.EnsureStream(ctx, jetstream.StreamConfig{
		Name: name + "_CRDT", Description: "Changes of shared documents", Subjects: []string{name + ".crdt.*.*.log"},
		Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew, DenyDelete: true,
		Duplicates: 10 * time.Minute,
	})
	if err == nil {
		s.heads, err = b.EnsureKeyValue(ctx, jetstream.KeyValueConfig{Bucket: name + "_crdt_head", Description: "The newest snapshot of each document", Storage: jetstream.FileStorage})
	}
	if err == nil {
		s.access, err = b.EnsureKeyValue(ctx, jetstream.KeyValueConfig{Bucket: name + "_crdt_access", Description: "Who may what with each shared document", Storage: jetstream.FileStorage})
	}
	if err == nil {
		s.snapshots, err = b.EnsureStream(ctx, jetstream.StreamConfig{
			Name: name + "_CRDT_SNAP", Description: "Snapshots of shared documents", Subjects: []string{name + ".crdtsnap.>"},
			Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew, DenyDelete: true,
		})
	}
	if err == nil {
		err = b.Commit(ctx)
	}
	if err != nil {
		return nil, storage(err, "documents cannot be stored")
	}
	return s, nil
}

func (s *store) subject(name string, epoch uint64) string {
	return fmt.Sprintf("%s.crdt.%s.%d.log", s.name, name, epoch)
}

// head returns a document's head, one of revision 0 if there is none.
func (s *store) head(ctx context.Context, name string) (head, error) {
	e, err := s.heads.Get(ctx, name)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return head{}, nil
	}
	if err != nil {
		return head{}, storage(err, "the document %s cannot be looked up", name)
	}
	var h head
	if err := json.Unmarshal(e.Value(), &h); err != nil {
		return head{}, storage(err, "the head of the document %s is broken", name)
	}
	h.revision = e.Revision()
	return h, nil
}

// setHead changes the head if nobody has meanwhile.
func (s *store) setHead(ctx context.Context, name string, h head) (revision uint64, err error) {
	b, err := json.Marshal(h)
	if err != nil {
		return 0, err
	}
	if h.revision == 0 {
		revision, err = s.heads.Create(ctx, name, b)
	} else {
		revision, err = s.heads.Update(ctx, name, b, h.revision)
	}
	if err == nil {
		err = s.bus.Commit(ctx)
	}
	if err != nil {
		return 0, storage(err, "the head of the document %s cannot be changed", name)
	}
	return revision, nil
}

// names lists the documents that there are.
func (s *store) names(ctx context.Context) ([]string, error) {
	lister, err := s.heads.ListKeys(ctx)
	if err != nil {
		return nil, storage(err, "documents cannot be listed")
	}
	var names []string
	for key := range lister.Keys() {
		names = append(names, key)
	}
	return names, nil
}

// snapshot returns the bytes of the head's snapshot, checked.
func (s *store) snapshot(ctx context.Context, h head) ([]byte, error) {
	if h.Object == "" {
		return nil, nil
	}
	b, err := s.getSnapshot(ctx, h.Object)
	if err != nil {
		return nil, storage(err, "the snapshot %s cannot be read", h.Object)
	}
	if hashOf(b) != h.Hash {
		return nil, storage(nil, "the snapshot %s is not what was stored", h.Object)
	}
	return b, nil
}

// restore loads the head's snapshot into a document, which is new.
func (s *store) restore(ctx context.Context, h head, doc *crdt.Doc) error {
	b, err := s.snapshot(ctx, h)
	if err != nil || b == nil {
		return err
	}
	if _, err := doc.Apply(b, nil); err != nil {
		return storage(err, "the snapshot %s cannot be loaded", h.Object)
	}
	return nil
}

func hashOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// replay calls f with each change behind the head's snapshot, in order, and returns the number and
// the sequence of the last. What is missing or broken is left out and told to lost: later changes
// wait in the document for what they build on, which a replica elsewhere may still have.
func (s *store) replay(ctx context.Context, name string, h head, f func(update []byte) error, lost func(first, last uint64, why error)) (number, sequence uint64, err error) {
	number, sequence = h.Number, h.Sequence
	failed := func(err error) (uint64, uint64, error) {
		return 0, 0, storage(err, "the log of the document %s cannot be read", name)
	}
	subject := s.subject(name, h.Epoch)
	last, err := s.stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) || err == nil && last.Sequence <= h.Sequence {
		return number, sequence, nil
	}
	if err != nil {
		return failed(err)
	}
	consumer, err := s.stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{subject}, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: h.Sequence + 1,
	})
	if err != nil {
		return failed(err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		return failed(err)
	}
	defer messages.Stop()
	for sequence < last.Sequence {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return failed(err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return failed(err)
		}
		sequence = meta.Sequence.Stream
		n, err := strconv.ParseUint(m.Headers().Get(numberHeader), 10, 64)
		if err != nil {
			lost(number+1, number+1, errors.New("a message of the log is no change"))
			continue
		}
		if n <= number {
			continue // it was published twice, which changes nothing
		}
		if n > number+1 {
			lost(number+1, n-1, errors.New("they are missing"))
		}
		number = n
		if err := intact(m); err != nil {
			lost(n, n, err)
		} else if err := f(m.Data()); err != nil {
			lost(n, n, err)
		}
	}
	return number, sequence, nil
}

// sumHeader has a change's checksum.
const sumHeader = "Parley-Document-Sum"

// intact holds a change against its checksum.
func intact(m jetstream.Msg) error {
	if sum := m.Headers().Get(sumHeader); sum != "" && sum != sumOf(m.Data()) { // those of older versions have none
		return errors.New("it is not what was stored")
	}
	return nil
}

func sumOf(update []byte) string { return hashOf(update)[:16] }

// change is one change of a document on its way to the log.
func (s *store) change(name string, epoch, number uint64, update []byte) *nats.Msg {
	m := nats.NewMsg(s.subject(name, epoch))
	m.Data = update
	m.Header.Set(numberHeader, strconv.FormatUint(number, 10))
	m.Header.Set(sumHeader, sumOf(update))
	return m
}

func changeID(name string, epoch, number uint64) string {
	return fmt.Sprintf("%s/%d/%d", name, epoch, number)
}

// point stores a snapshot, makes it the head, and purges what is no longer needed. old is
// the head so far.
func (s *store) point(ctx context.Context, name string, old head, next head, state []byte) (head, error) {
	if err := verify(state); err != nil {
		return head{}, err
	}
	next.Hash = hashOf(state)
	next.Object = fmt.Sprintf("%s.%d-%d-%s", name, next.Epoch, next.Number, next.Hash[:16])
	next.revision = old.revision
	if old.Object != "" || old.Epoch != next.Epoch {
		previous := old
		previous.Previous, previous.Clock = nil, nil
		next.Previous = &previous
	}
	if err := s.putSnapshot(ctx, next.Object, state); err != nil {
		return head{}, storage(err, "a snapshot of the document %s cannot be stored", name)
	}
	back, err := s.snapshot(ctx, next)
	if err != nil || !bytes.Equal(back, state) {
		return head{}, storage(err, "a snapshot of the document %s does not come back", name)
	}
	if next.revision, err = s.setHead(ctx, name, next); err != nil {
		// Somebody else's head stands; this snapshot is nobody's.
		return head{}, errors.Join(err, s.dropSnapshot(ctx, next.Object))
	}
	s.forget(ctx, name, old, next)
	return next, nil
}

// verify loads a snapshot into an engine of its own and compares what comes out.
func verify(state []byte) error {
	first, second := crdt.New(crdt.Options{}), crdt.New(crdt.Options{})
	if _, err := first.Apply(state, nil); err != nil {
		return storage(err, "a snapshot cannot be loaded")
	}
	again := first.Snapshot()
	if !bytes.Equal(again, state) {
		return storage(nil, "a snapshot is not itself when it is loaded")
	}
	if _, err := second.Apply(again, nil); err != nil || second.Digest(true) != first.Digest(true) {
		return storage(err, "a snapshot is in another order when it is loaded")
	}
	return nil
}

// forget purges the log up to the previous snapshot, so that it and the log behind it would
// do if the newest were lost, and deletes the one before. What fails is done the next time.
func (s *store) forget(ctx context.Context, name string, old, next head) {
	if old.Object == "" {
		return
	}
	if err := s.stream.Purge(ctx, jetstream.WithPurgeSubject(s.subject(name, old.Epoch)), jetstream.WithPurgeSequence(old.Sequence+1)); err != nil {
		return
	}
	if old.Previous != nil && old.Previous.Epoch != old.Epoch {
		_ = s.stream.Purge(ctx, jetstream.WithPurgeSubject(s.subject(name, old.Previous.Epoch))) // as below
	}
	if old.Previous != nil && old.Previous.Object != "" && old.Previous.Object != next.Object {
		// What stays costs room and is of no other consequence.
		_ = s.dropSnapshot(ctx, old.Previous.Object)
	}
}
