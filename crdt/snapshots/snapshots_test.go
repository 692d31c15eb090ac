package snapshots_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/snapshots"
	"github.com/parleyhub/parley/internal/testbed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testbed.Leaks()...) }

const document = "plan"

// open returns a store on a private server.
func open(t *testing.T) (*snapshots.Store, jetstream.JetStream) {
	t.Helper()
	js := testbed.StartNATS(t).Foreign()
	stream := func(name, subjects string) jetstream.Stream {
		s, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{subjects}})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	heads, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "heads"})
	if err != nil {
		t.Fatal(err)
	}
	return &snapshots.Store{
		Log: stream("LOG", "log.>"), Parts: stream("PARTS", "parts.>"), Heads: heads,
		LogSubject:  func(document string, epoch uint64) string { return fmt.Sprintf("log.%s.%d", document, epoch) },
		LogFilter:   func(document string) string { return "log." + document + ".*" },
		PartSubject: func(object string) string { return "parts." + object },
		Put: func(ctx context.Context, messages []*nats.Msg) error {
			for _, m := range messages {
				if _, err := js.PublishMsg(ctx, m); err != nil {
					return err
				}
			}
			return nil
		},
		Commit: func(context.Context) error { return nil },
	}, js
}

// state returns the state of a document with a text.
func state(t *testing.T, text string) []byte {
	t.Helper()
	d := crdt.New(crdt.Options{Client: 7})
	for len(text) > 0 {
		n := min(len(text), 200_000) // close to the size limit of an update
		if _, err := d.Transact(nil, func() error { return d.Text("t").Insert(0, text[:n]) }); err != nil {
			t.Fatal(err)
		}
		text = text[n:]
	}
	return d.Snapshot()
}

// change appends changes to the log and returns the sequence number of the last one.
func change(t *testing.T, s *snapshots.Store, js jetstream.JetStream, epoch uint64, n int) (last uint64) {
	t.Helper()
	for range n {
		ack, err := js.Publish(t.Context(), s.LogSubject(document, epoch), []byte("a change"))
		if err != nil {
			t.Fatal(err)
		}
		last = ack.Sequence
	}
	return last
}

func point(t *testing.T, s *snapshots.Store, old, next snapshots.Head, state []byte) snapshots.Head {
	t.Helper()
	h, err := s.Point(t.Context(), document, old, next, state)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// firstOf returns the sequence number of the first change in the log, 0 if the log is empty.
func firstOf(t *testing.T, s *snapshots.Store) uint64 {
	t.Helper()
	info, err := s.Log.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if info.State.Msgs == 0 {
		return 0
	}
	return info.State.FirstSeq
}

// parts returns the number of messages of a snapshot.
func parts(t *testing.T, s *snapshots.Store, object string) (n uint64) {
	t.Helper()
	info, err := s.Parts.Info(t.Context(), jetstream.WithSubjectFilter(s.PartSubject(object)))
	if err != nil {
		t.Fatal(err)
	}
	return info.State.Subjects[s.PartSubject(object)]
}

// A snapshot is loaded unchanged, even with many parts, and so is the head that refers to it.
func TestASnapshotRoundTrips(t *testing.T) {
	s, _ := open(t)
	if h, err := s.Head(t.Context(), document); err != nil || h.Revision != 0 || h.Object != "" {
		t.Fatalf("before the first snapshot the head is %+v, error %v", h, err)
	}
	if b, err := s.Load(t.Context(), snapshots.Head{}); b != nil || err != nil {
		t.Fatalf("before the first snapshot Load returns %d bytes, error %v", len(b), err)
	}
	letters := make([]byte, 600_000)
	random := rand.New(rand.NewPCG(1, 1))
	for i := range letters {
		letters[i] = 'a' + byte(random.IntN(26))
	}
	var h snapshots.Head
	for i, text := range []string{"small", string(letters), ""} {
		want := state(t, text)
		h = point(t, s, h, snapshots.Head{Number: uint64(i), Sequence: uint64(10 * i), Clock: map[string]uint64{"mars/1": 3}}, want)
		stored, err := s.Head(t.Context(), document)
		if err != nil || stored.Object != h.Object || stored.Revision != h.Revision || stored.Clock["mars/1"] != 3 {
			t.Fatalf("the head is %+v %v", stored, err)
		}
		got, err := s.Load(t.Context(), stored)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("of %d stored bytes %d are loaded: %v", len(want), len(got), err)
		}
	}
}

// The log is purged up to the previous snapshot and never beyond; two snapshots are kept.
func TestTheLogIsKeptAfterThePreviousSnapshot(t *testing.T) {
	s, js := open(t)
	at := change(t, s, js, 0, 5)
	first := point(t, s, snapshots.Head{}, snapshots.Head{Number: 5, Sequence: at}, state(t, "1"))
	if firstOf(t, s) != 1 {
		t.Error("the log was purged with only one snapshot stored")
	}
	at = change(t, s, js, 0, 5)
	second := point(t, s, first, snapshots.Head{Number: 10, Sequence: at}, state(t, "2"))
	if got := firstOf(t, s); got != 6 {
		t.Errorf("the log begins with %d; the previous snapshot is at 5", got)
	}
	at = change(t, s, js, 0, 5)
	third := point(t, s, second, snapshots.Head{Number: 15, Sequence: at}, state(t, "3"))
	if got := firstOf(t, s); got != 11 {
		t.Errorf("the log begins with %d; the previous snapshot is at 10", got)
	}
	if third.Previous == nil || third.Previous.Object != second.Object || third.Previous.Previous != nil {
		t.Errorf("the previous head is %+v", third.Previous)
	}
	for object, n := range map[string]uint64{first.Object: 0, second.Object: 1, third.Object: 1} {
		if got := parts(t, s, object); got != n {
			t.Errorf("%s has %d parts, not %d", object, got, n)
		}
	}
}

// When the log has lost its end, the newest head has a position beyond it; changes appended since are kept.
func TestALogThatLostItsEndKeepsNewChanges(t *testing.T) {
	s, js := open(t)
	change(t, s, js, 0, 5)
	old := point(t, s, snapshots.Head{}, snapshots.Head{Number: 90, Sequence: 90}, state(t, "1"))
	point(t, s, old, snapshots.Head{Number: 91, Sequence: 3}, state(t, "2"))
	if got := firstOf(t, s); got != 4 {
		t.Errorf("the log begins with %d; the snapshot includes 3 of 5", got)
	}
}

// The second snapshot of an epoch purges the log of the former epoch.
func TestTheLogOfAFormerEpochIsPurged(t *testing.T) {
	s, js := open(t)
	at := change(t, s, js, 0, 3)
	h := point(t, s, snapshots.Head{}, snapshots.Head{Sequence: at}, state(t, "1"))
	at = change(t, s, js, 0, 3)
	h = point(t, s, h, snapshots.Head{Epoch: 1, Sequence: at}, state(t, "2"))
	if got := firstOf(t, s); got != 4 {
		t.Errorf("the log begins with %d; the previous snapshot is at 3", got)
	}
	at = change(t, s, js, 1, 3)
	point(t, s, h, snapshots.Head{Epoch: 1, Sequence: at}, state(t, "3"))
	if got := firstOf(t, s); got != 7 {
		t.Errorf("the log begins with %d; epoch 1 begins with 7", got)
	}
}

// Of two concurrent updates of the head the second fails and leaves no parts behind.
func TestTheHeadIsUpdatedConditionally(t *testing.T) {
	s, _ := open(t)
	s.Writer = "one"
	won := point(t, s, snapshots.Head{}, snapshots.Head{Sequence: 1}, state(t, "1"))
	other := *s
	other.Writer = "other"
	mine := state(t, "1")
	if _, err := other.Point(t.Context(), document, snapshots.Head{}, snapshots.Head{Sequence: 1}, mine); err == nil {
		t.Fatal("an unknown head was replaced")
	}
	info, err := s.Parts.Info(t.Context())
	if err != nil || info.State.Msgs != 1 {
		t.Errorf("there are %d parts of snapshots, %v", info.State.Msgs, err)
	}
	if b, err := s.Load(t.Context(), won); err != nil || !bytes.Equal(b, mine) {
		t.Errorf("the head's snapshot was deleted: %v", err)
	}
	// Storing the same state again does not change the head.
	if again := point(t, s, won, snapshots.Head{Sequence: 1}, mine); again.Revision != won.Revision {
		t.Errorf("the head changed from revision %d to %d", won.Revision, again.Revision)
	}
}

// Bytes that are not a state, or not the declared one, are not stored.
func TestStoredStatesAreVerified(t *testing.T) {
	s, _ := open(t)
	good := state(t, "text")
	for name, bad := range map[string][]byte{
		"nonsense": []byte("nonsense"), "cut": good[:len(good)-2], "not canonical": append(bytes.Clone(good), 0),
	} {
		if _, err := s.Point(t.Context(), document, snapshots.Head{}, snapshots.Head{}, bad); err == nil {
			t.Errorf("%s was stored", name)
		}
	}
	if h, err := s.Head(t.Context(), document); err != nil || h.Revision != 0 {
		t.Errorf("the head is %+v, %v", h, err)
	}
	lossy := *s
	lossy.Put = func(ctx context.Context, messages []*nats.Msg) error {
		messages[0].Data = bytes.Clone(messages[0].Data)
		messages[0].Data[3] ^= 1
		return s.Put(ctx, messages)
	}
	if _, err := lossy.Point(t.Context(), document, snapshots.Head{}, snapshots.Head{}, good); !errors.Is(err, snapshots.ErrBroken) {
		t.Errorf("a snapshot that is read back changed: %v", err)
	}
}

// A damaged or incomplete snapshot is reported as missing and never decoded as another state.
func TestADamagedSnapshotIsMissing(t *testing.T) {
	s, js := open(t)
	state := state(t, string(bytes.Repeat([]byte("text "), 120_000)))
	h := point(t, s, snapshots.Head{}, snapshots.Head{}, state)
	object := func(t *testing.T, change func(messages []*nats.Msg) []*nats.Msg) error {
		t.Helper()
		var messages []*nats.Msg
		for n := uint64(1); n <= parts(t, s, h.Object); n++ {
			raw, err := s.Parts.GetMsg(t.Context(), n)
			if err != nil {
				t.Fatal(err)
			}
			messages = append(messages, &nats.Msg{Subject: s.PartSubject("damaged"), Header: raw.Header, Data: bytes.Clone(raw.Data)})
		}
		for _, m := range change(messages) {
			if _, err := js.PublishMsg(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		}
		_, err := s.Get(t.Context(), "damaged", h.Hash)
		if dropped := s.Drop(t.Context(), "damaged"); dropped != nil {
			t.Fatal(dropped)
		}
		return err
	}
	for name, change := range map[string]func(messages []*nats.Msg) []*nats.Msg{
		"nothing":                   func(messages []*nats.Msg) []*nats.Msg { return messages },
		"a flipped bit":             func(messages []*nats.Msg) []*nats.Msg { messages[1].Data[9] ^= 4; return messages },
		"the first part is missing": func(messages []*nats.Msg) []*nats.Msg { return messages[1:] },
		"another order": func(messages []*nats.Msg) []*nats.Msg {
			messages[0], messages[1] = messages[1], messages[0]
			return messages
		},
		"no count of parts": func(messages []*nats.Msg) []*nats.Msg {
			messages[len(messages)-1].Header = nil
			return messages
		},
		"all parts are missing": func([]*nats.Msg) []*nats.Msg { return nil },
	} {
		err := object(t, change)
		if name == "nothing" {
			if err != nil {
				t.Errorf("undamaged: %v", err)
			}
		} else if !snapshots.Gone(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := js.Publish(t.Context(), "$KV.heads."+document, []byte("{")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Head(t.Context(), document); err == nil {
		t.Error("a broken head was decoded")
	}
}

// The last states of epochs are kept as long as a head refers to them.
func TestOrigins(t *testing.T) {
	s, _ := open(t)
	former := state(t, "former")
	object, hash, err := s.PutOrigin(t.Context(), document, 0, 4, former)
	if err != nil {
		t.Fatal(err)
	}
	h := point(t, s, snapshots.Head{}, snapshots.Head{Epoch: 1, Sequence: 4, Origins: []snapshots.Origin{{Epoch: 1, Object: object, Hash: hash}}}, state(t, "next"))
	if err := s.DropOrigin(t.Context(), document, object); err != nil {
		t.Fatal(err)
	}
	if o, ok := h.Origin(1); !ok || o.Object != object {
		t.Errorf("the origin is %+v", o)
	}
	if _, ok := h.Origin(2); ok {
		t.Error("an epoch that has not begun has an origin")
	}
	if b, err := s.Get(t.Context(), object, hash); err != nil || !bytes.Equal(b, former) {
		t.Errorf("an origin that the head refers to was deleted: %v", err)
	}
	point(t, s, h, snapshots.Head{Epoch: 1, Sequence: 9}, state(t, "later"))
	if n := parts(t, s, object); n != 0 {
		t.Error("an origin that no head refers to is still there")
	}
	other, _, err := s.PutOrigin(t.Context(), document, 1, 9, former)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.DropOrigin(t.Context(), document, other); err != nil || parts(t, s, other) != 0 {
		t.Errorf("an origin that no head refers to is still there: %v", err)
	}
}

// lateStream is a stream whose purges wait until late is called, as when their caller has given up.
type lateStream struct {
	jetstream.Stream
	late []func() error
}

func (s *lateStream) Purge(ctx context.Context, opts ...jetstream.StreamPurgeOpt) error {
	s.late = append(s.late, func() error { return s.Stream.Purge(ctx, opts...) })
	return context.Canceled
}

// What an attempt that was given up deletes late is nothing of the attempt after it.
func TestALateDeletionSparesTheNextAttempt(t *testing.T) {
	s, js := open(t)
	b := state(t, "text")
	if _, err := js.Publish(t.Context(), s.PartSubject("x"), b); err != nil { // of an attempt that a crash has interrupted
		t.Fatal(err)
	}
	stream := s.Parts
	slow := &lateStream{Stream: stream}
	s.Parts = slow
	if err := s.Drop(t.Context(), "x"); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	s.Parts = stream
	if err := s.Drop(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), s.PartSubject("x"), b); err != nil {
		t.Fatal(err)
	}
	for _, purge := range slow.late {
		if err := purge(); err != nil {
			t.Fatal(err)
		}
	}
	if n := parts(t, s, "x"); n != 1 {
		t.Errorf("%d parts are left of the snapshot", n)
	}
}
