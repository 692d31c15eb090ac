package documents

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/snapshots"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/bus"
)

// store persists documents on the bus.
type store struct {
	bus       *bus.Bus
	name      string // of the hub on the bus
	stream    jetstream.Stream
	access    jetstream.KeyValue
	snapshots *snapshots.Store
}

// Headers of a change in the log.
const (
	numberHeader = "Parley-Document-Change" // number in its document and epoch, from 1
	sumHeader    = "Parley-Document-Sum"    // checksum
)

func openStore(ctx context.Context, b *bus.Bus, name string) (*store, error) {
	s := &store{bus: b, name: name}
	var heads jetstream.KeyValue
	var parts jetstream.Stream
	var err error
	s.stream, err = b.EnsureStream(ctx, jetstream.StreamConfig{
		Name: name + "_CRDT", Description: "Changes of shared documents", Subjects: []string{name + ".crdt.*.*.log"},
		Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew, DenyDelete: true,
		Duplicates: 10 * time.Minute,
	})
	if err == nil {
		heads, err = b.EnsureKeyValue(ctx, jetstream.KeyValueConfig{Bucket: name + headBucket, Description: "The newest snapshot of each document", Storage: jetstream.FileStorage})
	}
	if err == nil {
		s.access, err = b.EnsureKeyValue(ctx, jetstream.KeyValueConfig{Bucket: name + "_crdt_access", Description: "Who may what with each shared document", Storage: jetstream.FileStorage})
	}
	if err == nil {
		parts, err = b.EnsureStream(ctx, jetstream.StreamConfig{
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
	s.snapshots = &snapshots.Store{
		Log: s.stream, Parts: parts, Heads: heads, Put: s.put, Commit: b.Commit,
		LogSubject: s.subject, LogFilter: func(document string) string { return fmt.Sprintf("%s.crdt.%s.*.log", name, document) }, PartSubject: func(object string) string { return name + ".crdtsnap." + object },
	}
	return s, nil
}

func (s *store) subject(name string, epoch uint64) string {
	return fmt.Sprintf("%s.crdt.%s.%d.log", s.name, name, epoch)
}

// head returns a document's head, one of revision 0 if there is none.
func (s *store) head(ctx context.Context, name string) (snapshots.Head, error) {
	h, err := s.snapshots.Head(ctx, name)
	return h, storage(err, "the document %s cannot be read", name)
}

// setHead replaces the head of revision h.Revision and returns the new revision.
func (s *store) setHead(ctx context.Context, name string, h snapshots.Head) (revision uint64, err error) {
	revision, err = s.snapshots.SetHead(ctx, name, h)
	return revision, storage(err, "the head of the document %s cannot be changed", name)
}

// end returns the sequence of the last change of any document, 0 if there was none.
func (s *store) end(ctx context.Context) (uint64, error) {
	info, err := s.stream.Info(ctx)
	if err != nil {
		return 0, storage(err, "the log of documents cannot be read")
	}
	return info.State.LastSeq, nil
}

// checkCount returns an error if there are as many documents as may exist.
func (s *store) checkCount(ctx context.Context, most int) error {
	status, err := s.snapshots.Heads.Status(ctx)
	if err != nil {
		return storage(err, "documents cannot be counted")
	}
	if status.Values() >= uint64(most) { // one entry for each
		return &Error{
			Code: CodeInvalid, Message: fmt.Sprintf("there are %d documents, the maximum", status.Values()),
			Remedy: "use an existing one: `" + local.Program() + " doc list` lists them; one document holds several things under separate keys",
		}
	}
	return nil
}

// names lists the names of all documents, sorted. A list that ends early is an error: [jetstream.KeyLister] reports none.
func (s *store) names(ctx context.Context) (names []string, err error) {
	heads, err := s.snapshots.Heads.WatchAll(ctx, jetstream.IgnoreDeletes(), jetstream.MetaOnly())
	if err != nil {
		return nil, storage(err, "documents cannot be listed")
	}
	defer heads.Stop() //nolint:errcheck // it fails if the connection has ended, and the subscription with it
	for {
		select {
		case head, ok := <-heads.Updates():
			switch {
			case !ok:
				return nil, storage(cmp.Or(ctx.Err(), nats.ErrConnectionClosed), "documents cannot be listed")
			case head == nil:
				slices.Sort(names)
				return names, nil
			}
			names = append(names, head.Key())
		case <-ctx.Done():
			return nil, storage(ctx.Err(), "documents cannot be listed")
		}
	}
}

// restore loads the head's snapshot into a new document.
func (s *store) restore(ctx context.Context, h snapshots.Head, doc *crdt.Doc) error {
	b, err := s.snapshots.Load(ctx, h)
	if err != nil || b == nil {
		return storage(err, "a document cannot be loaded")
	}
	_, err = doc.Apply(b, nil)
	return storage(err, "the snapshot %s cannot be loaded", h.Object)
}

// replay calls apply with each change since the head's snapshot, in order, and returns the number and the sequence of
// the last. Missing and corrupt changes are skipped and reported to lost. The document buffers the changes that depend
// on them until a replica elsewhere restores them.
func (s *store) replay(ctx context.Context, name string, h snapshots.Head, apply func(update []byte) error, lost func(first, last uint64, why error)) (number, sequence uint64, err error) {
	number, sequence = h.Number, h.Sequence
	for m, err := range snapshots.Messages(ctx, s.stream, s.subject(name, h.Epoch), h.Sequence) {
		if err != nil {
			return 0, 0, storage(err, "the log of the document %s cannot be read", name)
		}
		sequence = m.Sequence
		n, err := strconv.ParseUint(m.Headers().Get(numberHeader), 10, 64)
		if err != nil {
			lost(number+1, number+1, errors.New("the message has no change number"))
			continue
		}
		if n <= number {
			continue // a duplicate
		}
		if n > number+1 {
			lost(number+1, n-1, errors.New("they are missing"))
		}
		number = n
		err = errors.New("the checksum does not match")
		if sum := m.Headers().Get(sumHeader); sum == "" || sum == sumOf(m.Data()) { // older versions wrote no sum
			err = apply(m.Data())
		}
		if err != nil {
			lost(n, n, err)
		}
	}
	return number, sequence, nil
}

func sumOf(update []byte) string { return snapshots.Hash(update)[:16] }

// change encodes a change of a document for the log.
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

// point stores a snapshot, replaces the head old by one that points to it, and purges what is obsolete then.
func (s *store) point(ctx context.Context, name string, old, next snapshots.Head, state []byte) (snapshots.Head, error) {
	h, err := s.snapshots.Point(ctx, name, old, next, state)
	return h, storage(err, "a snapshot of the document %s cannot be stored", name)
}

// put publishes messages and returns when they are durable.
func (s *store) put(ctx context.Context, messages []*nats.Msg) error {
	batch := s.bus.NewBatch()
	for _, m := range messages {
		if err := batch.Add(ctx, m); err != nil {
			return err
		}
	}
	_, err := batch.Wait(ctx)
	return err
}
