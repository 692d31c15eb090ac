// Package snapshots stores snapshots of documents next to their logs on NATS JetStream, verified and in
// parts, with a head for each document that names the newest. The log is purged only up to the previous
// snapshot, so that at least one of the two is intact, with the log after it.
package snapshots

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/crdt"
)

// Store is the storage of snapshots. All fields are required. It is safe for concurrent use.
type Store struct {
	Log   jetstream.Stream   // the documents' changes
	Parts jetstream.Stream   // the snapshots' parts; an object store would not be durable on the hub's bus
	Heads jetstream.KeyValue // the heads by document

	LogSubject  func(document string, epoch uint64) string // subject of a document's changes in an epoch; both are tokens of it
	LogFilter   func(document string) string               // subjects of a document's changes in all epochs
	PartSubject func(object string) string                 // subject of a snapshot's parts
	Writer      string                                     // distinguishes the snapshots of several writers; "" for a single one

	// Put stores messages in order and returns when they are durable.
	Put func(ctx context.Context, messages []*nats.Msg) error
	// Commit returns when everything that JetStream has acknowledged is durable.
	Commit func(ctx context.Context) error
}

// Head names a document's newest snapshot.
type Head struct {
	Epoch    uint64            `json:"epoch"`
	Number   uint64            `json:"number"`   // of the last numbered change in the snapshot
	Sequence uint64            `json:"sequence"` // in the log's stream; the snapshot has all changes up to it
	Object   string            `json:"object"`   // "" before the first snapshot
	Hash     string            `json:"hash"`
	Clock    map[string]uint64 `json:"clock,omitempty"`
	Origins  []Origin          `json:"origins,omitempty"`  // of this epoch and some before, in order
	Previous *Head             `json:"previous,omitempty"` // without its own Previous and Origins
	// Revision is the revision of the entry, 0 if there is none.
	Revision uint64 `json:"-"`
}

// Origin describes how an epoch began, for replicas that carry over further edits.
type Origin struct {
	Epoch    uint64   `json:"epoch"`  // the epoch that began
	Began    int64    `json:"began"`  // Unix time in milliseconds, by the clock of the replica that began it
	Object   string   `json:"object"` // the last state of the former epoch
	Hash     string   `json:"hash"`
	Sequence uint64   `json:"sequence"` // in the log's stream, of the former epoch's end
	State    string   `json:"state"`    // hash of the initial state
	Client   uint64   `json:"client"`   // client id of the initial content
	Counters []string `json:"counters"` // counters reduced to their sum
}

// Origin returns the origin of an epoch, if it is still known.
func (h *Head) Origin(epoch uint64) (Origin, bool) {
	i := slices.IndexFunc(h.Origins, func(o Origin) bool { return o.Epoch == epoch })
	if i < 0 {
		return Origin{}, false
	}
	return h.Origins[i], true
}

// Head returns a document's head, with revision 0 if there is none.
func (s *Store) Head(ctx context.Context, document string) (Head, error) {
	e, err := s.Heads.Get(ctx, document)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return Head{}, nil
	}
	if err != nil {
		return Head{}, err
	}
	return ReadHead(e)
}

// ReadHead decodes an entry of Heads.
func ReadHead(e jetstream.KeyValueEntry) (Head, error) {
	var h Head
	if err := json.Unmarshal(e.Value(), &h); err != nil {
		return Head{}, fmt.Errorf("the head cannot be decoded: %w", err)
	}
	h.Revision = e.Revision()
	return h, nil
}

// SetHead stores a head if its revision is still the current one, and returns the new revision.
func (s *Store) SetHead(ctx context.Context, document string, h Head) (revision uint64, err error) {
	b, err := json.Marshal(h)
	if err != nil {
		return 0, err
	}
	if h.Revision == 0 {
		revision, err = s.Heads.Create(ctx, document, b)
	} else {
		revision, err = s.Heads.Update(ctx, document, b, h.Revision)
	}
	if err == nil {
		err = s.Commit(ctx)
	}
	return revision, err
}

// Point stores a snapshot, makes it the head, and purges what is no longer needed. It fails if old is not
// the current head. Of the log it purges only what the previous snapshot contains.
func (s *Store) Point(ctx context.Context, document string, old, next Head, state []byte) (Head, error) {
	if err := verify(state); err != nil {
		return Head{}, err
	}
	var err error
	next.Object, next.Hash = s.objectName(document, next.Epoch, next.Number, next.Sequence, state), Hash(state)
	if next.Object == old.Object {
		if _, err := s.Load(ctx, old); err == nil {
			return old, nil
		}
	}
	next.Revision = old.Revision
	if old.Object != "" || old.Epoch != next.Epoch {
		previous := old
		previous.Previous, previous.Origins = nil, nil
		next.Previous = &previous
	}
	if err := s.store(ctx, next, state); err != nil {
		return Head{}, err
	}
	if next.Revision, err = s.SetHead(ctx, document, next); err != nil {
		// Another head was faster, and this snapshot is unused; or only the answer was lost.
		return Head{}, errors.Join(fmt.Errorf("the head cannot be changed: %w", err), s.dropUnlessHead(ctx, document, next.Object))
	}
	s.forget(ctx, document, old, next)
	return next, nil
}

// PutOrigin stores the last state of an epoch, for the next epoch's Origin.
func (s *Store) PutOrigin(ctx context.Context, document string, epoch, sequence uint64, state []byte) (object, hash string, err error) {
	object, hash = "origin-"+s.objectName(document, epoch, 0, sequence, state), Hash(state)
	return object, hash, s.storeOne(ctx, object, hash, "", state)
}

// objectName returns the name of a snapshot.
func (s *Store) objectName(document string, epoch, number, sequence uint64, state []byte) string {
	name := fmt.Sprintf("%s.%d-%d-%d-%s", document, epoch, number, sequence, Hash(state)[:16])
	if s.Writer != "" {
		name += "-" + s.Writer
	}
	return name
}

// maxHead bounds the size of a head that is stored beside its snapshot.
const maxHead = 256 << 10

// store stores a snapshot, with its head in case the entry of that is lost. The first one of an epoch is stored
// twice, because nothing else has its content; with several writers the epoch's origin has it.
func (s *Store) store(ctx context.Context, h Head, state []byte) error {
	beside := h
	beside.Previous = nil
	b, err := json.Marshal(beside)
	if err != nil {
		return err
	}
	if len(b) > maxHead {
		b = nil
	}
	if err := s.storeOne(ctx, h.Object, h.Hash, string(b), state); err != nil || s.Writer != "" || h.Epoch == 0 || h.Number > 0 {
		return err
	}
	return s.storeOne(ctx, h.Object+copySuffix, h.Hash, string(b), state)
}

// storeOne stores a snapshot and reads it back.
func (s *Store) storeOne(ctx context.Context, object, hash, head string, state []byte) error {
	if err := s.put(ctx, object, head, state); err != nil {
		return fmt.Errorf("the snapshot %s cannot be stored: %w", object, err)
	}
	back, err := s.Get(ctx, object, hash)
	if err == nil && !bytes.Equal(back, state) {
		err = errors.New("it is different")
	}
	if err != nil {
		return fmt.Errorf("the snapshot %s cannot be read back: %w", object, err)
	}
	return nil
}

// dropUnlessHead deletes a snapshot unless the head refers to it.
func (s *Store) dropUnlessHead(ctx context.Context, document, object string) error {
	h, err := s.Head(ctx, document)
	if err != nil || h.refersTo(object) || h.Previous != nil && h.Previous.refersTo(object) {
		return err
	}
	return s.dropAll(ctx, object)
}

func (h *Head) refersTo(object string) bool {
	return h.Object == object || slices.ContainsFunc(h.Origins, func(o Origin) bool { return o.Object == object })
}

// DropOrigin deletes the result of PutOrigin, unless the document's head refers to it.
func (s *Store) DropOrigin(ctx context.Context, document, object string) error {
	return s.dropUnlessHead(ctx, document, object)
}

// verify loads a snapshot into a separate engine and compares the result.
func verify(state []byte) error {
	first, second := crdt.New(crdt.Options{}), crdt.New(crdt.Options{})
	if _, err := first.Apply(state, nil); err != nil {
		return fmt.Errorf("the snapshot cannot be loaded: %w", err)
	}
	again := first.Snapshot()
	if !bytes.Equal(again, state) {
		return errors.New("the snapshot changes when it is loaded")
	}
	if _, err := second.Apply(again, nil); err != nil || second.Digest(true) != first.Digest(true) {
		return errors.Join(errors.New("the snapshot's order changes when it is loaded"), err)
	}
	return nil
}

// forget purges the log up to the previous snapshot, which is kept with the log after it in case the newest
// is lost, and deletes the snapshot before that. Failures are repeated the next time.
func (s *Store) forget(ctx context.Context, document string, old, next Head) {
	for _, o := range old.Origins {
		if !next.refersTo(o.Object) {
			_ = s.Drop(ctx, o.Object) // what remains only takes space
		}
	}
	if old.Object == "" {
		return
	}
	upTo := old.Sequence
	if old.Epoch == next.Epoch {
		upTo = min(upTo, next.Sequence) // a log that has lost its end continues after this snapshot
	}
	if err := s.Log.Purge(ctx, jetstream.WithPurgeSubject(s.LogSubject(document, old.Epoch)), jetstream.WithPurgeSequence(upTo+1)); err != nil {
		return
	}
	before := old.Previous
	if before == nil {
		return
	}
	if before.Epoch != old.Epoch {
		_ = s.Log.Purge(ctx, jetstream.WithPurgeSubject(s.LogSubject(document, before.Epoch))) // as above
	}
	if before.Object != "" && before.Object != next.Object && before.Object != old.Object {
		_ = s.dropAll(ctx, before.Object) // as above
	}
}

const (
	partSize    = 512 << 10
	partsHeader = "Parley-Document-Parts"
	headHeader  = "Parley-Document-Head" // of the first part
)

// put stores a snapshot in parts and returns when it is durable.
func (s *Store) put(ctx context.Context, object, head string, state []byte) error {
	// Remove parts of an attempt that a crash interrupted.
	if err := s.Drop(ctx, object); err != nil {
		return err
	}
	parts := max(1, (len(state)+partSize-1)/partSize)
	messages := make([]*nats.Msg, parts)
	for i := range messages {
		n := min(len(state), partSize)
		m := nats.NewMsg(s.PartSubject(object))
		m.Data, state = state[:n], state[n:]
		m.Header.Set(partsHeader, strconv.Itoa(parts))
		messages[i] = m
	}
	if head != "" {
		messages[0].Header.Set(headHeader, head)
	}
	return s.Put(ctx, messages)
}

// dropAll deletes a snapshot and its second copy, if there is one.
func (s *Store) dropAll(ctx context.Context, object string) error {
	return errors.Join(s.Drop(ctx, object), s.Drop(ctx, object+copySuffix))
}

// Drop deletes a snapshot, if there is one. It deletes nothing that is stored after the call: the server executes a request
// whose caller has given up later, perhaps after the next attempt has stored the snapshot.
func (s *Store) Drop(ctx context.Context, object string) error {
	last, err := s.Parts.GetLastMsgForSubject(ctx, s.PartSubject(object))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.Parts.Purge(ctx, jetstream.WithPurgeSubject(s.PartSubject(object)), jetstream.WithPurgeSequence(last.Sequence+1))
}

// maxSnapshot bounds the size of a snapshot; it is above the limits of a document.
const maxSnapshot = 256 << 20

// Permanent errors of Get, besides jetstream.ErrMsgNotFound.
var (
	ErrBroken     = errors.New("it is damaged")
	ErrIncomplete = errors.New("parts of it are missing")
)

// Gone reports whether an error of Get is permanent.
func Gone(err error) bool {
	return errors.Is(err, ErrBroken) || errors.Is(err, ErrIncomplete) || errors.Is(err, jetstream.ErrMsgNotFound)
}

// Load returns the head's snapshot, nil before the first.
func (s *Store) Load(ctx context.Context, h Head) ([]byte, error) {
	if h.Object == "" {
		return nil, nil
	}
	return s.Get(ctx, h.Object, h.Hash)
}

// Get returns a snapshot and checks its hash.
func (s *Store) Get(ctx context.Context, object, hash string) ([]byte, error) {
	b, _, err := s.get(ctx, object)
	if err != nil {
		return nil, fmt.Errorf("the snapshot %s cannot be read: %w", object, err)
	}
	if Hash(b) != hash {
		return nil, fmt.Errorf("the snapshot %s: %w", object, ErrBroken)
	}
	return b, nil
}

// get returns a snapshot and the headers of its first part.
func (s *Store) get(ctx context.Context, object string) (state []byte, header nats.Header, err error) {
	n := 0
	for m, err := range Messages(ctx, s.Parts, s.PartSubject(object), 0) {
		if err != nil {
			return nil, nil, err
		}
		if n == 0 {
			header = m.Headers()
		}
		parts, err := strconv.Atoi(m.Headers().Get(partsHeader))
		if state = append(state, m.Data()...); err != nil || len(state) > maxSnapshot {
			return nil, nil, ErrBroken
		}
		if n++; n == parts {
			return state, header, nil
		}
	}
	return nil, nil, ErrIncomplete
}

// Message is a message of a stream.
type Message struct {
	jetstream.Msg
	Sequence uint64
}

// patience is how long a message may take before the existence of the last is checked.
const patience = time.Second

// Messages yields the messages of a subject after a sequence, up to the last at the beginning, or an error.
// They may be deleted concurrently.
func Messages(ctx context.Context, stream jetstream.Stream, subject string, after uint64) iter.Seq2[Message, error] {
	return func(yield func(Message, error) bool) {
		if err := messages(ctx, stream, subject, after, func(m Message) bool { return yield(m, nil) }); err != nil {
			yield(Message{}, err)
		}
	}
}

func messages(ctx context.Context, stream jetstream.Stream, subject string, after uint64, yield func(Message) bool) error {
	last, err := stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) || err == nil && last.Sequence <= after {
		return nil
	}
	if err != nil {
		return err
	}
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{subject}, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: after + 1,
	})
	if err != nil {
		return err
	}
	incoming, err := consumer.Messages()
	if err != nil {
		return err
	}
	defer incoming.Stop()
	for after < last.Sequence {
		timed, cancel := context.WithTimeout(ctx, patience)
		m, err := incoming.Next(jetstream.NextContext(timed))
		cancel()
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			if _, err = stream.GetMsg(ctx, last.Sequence); err == nil {
				continue
			}
		}
		if err != nil {
			return err
		}
		meta, err := m.Metadata()
		if err != nil {
			return err
		}
		if after = meta.Sequence.Stream; !yield(Message{m, after}) {
			return nil
		}
	}
	return nil
}

// Hash returns the hash of a snapshot.
func Hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
