package snapshots_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/crdt/snapshots"
)

// damage deletes the last part of each snapshot of the names.
func damage(t *testing.T, s *snapshots.Store, objects ...string) {
	t.Helper()
	for _, object := range objects {
		m, err := s.Parts.GetLastMsgForSubject(t.Context(), s.PartSubject(object))
		if err != nil {
			t.Fatal(object, err)
		}
		if err := s.Parts.DeleteMsg(t.Context(), m.Sequence); err != nil {
			t.Fatal(err)
		}
	}
}

// copyOf returns the name of the second copy of a snapshot, which has to exist.
func copyOf(t *testing.T, s *snapshots.Store, h snapshots.Head) string {
	t.Helper()
	r, err := s.Remains(t.Context(), document)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range r.Snapshots {
		if c.Object != h.Object && c.Epoch == h.Epoch && c.Sequence == h.Sequence && parts(t, s, c.Object) > 0 {
			return c.Object
		}
	}
	t.Fatalf("%s has no second copy among %+v", h.Object, r.Snapshots)
	return ""
}

func TestNothingIsRecoveredOfADocumentThatIsNotThere(t *testing.T) {
	s, _ := open(t)
	if h, found, err := s.Recover(t.Context(), document); found || err != nil {
		t.Errorf("%+v, %v", h, err)
	}
	if r, err := s.Remains(t.Context(), document); err != nil || r.Any() {
		t.Errorf("there is %+v, %v", r, err)
	}
}

// A head without its entry is the newest whole snapshot with the one before, and has what the lost one had.
func TestTheHeadIsRecoveredFromTheSnapshots(t *testing.T) {
	s, js := open(t)
	at := change(t, s, js, 0, 2)
	first := point(t, s, snapshots.Head{}, snapshots.Head{Number: 2, Sequence: at}, state(t, "1"))
	at = change(t, s, js, 0, 2)
	second := point(t, s, first, snapshots.Head{Number: 4, Sequence: at, Clock: map[string]uint64{"mars/1": 3}}, state(t, "2"))
	if err := s.Heads.Purge(t.Context(), document); err != nil {
		t.Fatal(err)
	}
	h, found, err := s.Recover(t.Context(), document)
	if err != nil || !found || h.Object != second.Object || h.Hash != second.Hash || h.Clock["mars/1"] != 3 ||
		h.Previous == nil || h.Previous.Object != first.Object {
		t.Fatalf("recovered %+v, %v", h, err)
	}
	if h, err = s.Restore(t.Context(), document, h, 2); err == nil {
		t.Fatalf("restored over an entry of another revision: %+v", h)
	}
	h, _, err = s.Recover(t.Context(), document)
	if err != nil {
		t.Fatal(err)
	}
	entry, err := s.Heads.History(t.Context(), document)
	if err != nil {
		t.Fatal(err)
	}
	restored, err := s.Restore(t.Context(), document, h, entry[len(entry)-1].Revision())
	if err != nil {
		t.Fatal(err)
	}
	if now, err := s.Head(t.Context(), document); err != nil || now.Object != second.Object || now.Revision != restored.Revision {
		t.Errorf("the head is %+v, %v", now, err)
	}
	// Somebody who restores at the same time gets what the first has restored.
	if other, err := s.Restore(t.Context(), document, h, 0); err != nil || other.Revision != restored.Revision {
		t.Errorf("the second restored %+v, %v", other, err)
	}
}

// The snapshots of a document are damaged one after the other; each time what is left is found.
func TestASubstituteIsFoundForDamagedSnapshots(t *testing.T) {
	s, js := open(t)
	at := change(t, s, js, 1, 2)
	first := point(t, s, snapshots.Head{}, snapshots.Head{Epoch: 1, Sequence: at}, state(t, "1"))
	at = change(t, s, js, 1, 2)
	second := point(t, s, first, snapshots.Head{Epoch: 1, Number: 2, Sequence: at}, state(t, "2"))
	spare := copyOf(t, s, first)

	damage(t, s, second.Object)
	if h, err := s.Substitute(t.Context(), document, second); err != nil || h.Hash != first.Hash {
		t.Errorf("without the newest: %+v, %v", h, err)
	}
	damage(t, s, first.Object)
	if h, err := s.Substitute(t.Context(), document, second); err != nil || h.Object != spare || h.Hash != first.Hash || h.Previous != nil {
		t.Errorf("with the second copy only: %+v, %v", h, err)
	}
	damage(t, s, spare)
	if h, err := s.Substitute(t.Context(), document, second); !errors.Is(err, snapshots.ErrUnrecoverable) {
		t.Errorf("without any: %+v, %v", h, err)
	}
}

// Changes of an epoch mean nothing without the snapshot that begins it.
func TestAnEpochWithoutItsSnapshotIsUnrecoverable(t *testing.T) {
	s, js := open(t)
	at := change(t, s, js, 0, 2)
	first := point(t, s, snapshots.Head{}, snapshots.Head{Sequence: at}, state(t, "1"))
	second := point(t, s, first, snapshots.Head{Epoch: 1, Sequence: at}, state(t, "2"))
	change(t, s, js, 1, 1)
	damage(t, s, second.Object, copyOf(t, s, second))
	if h, found, err := s.Recover(t.Context(), document); !found || !errors.Is(err, snapshots.ErrUnrecoverable) {
		t.Errorf("recovered %+v, %t, %v", h, found, err)
	}
	if h, err := s.Substitute(t.Context(), document, second); !errors.Is(err, snapshots.ErrUnrecoverable) {
		t.Errorf("substituted %+v, %v", h, err)
	}
}

// A crash may come between the snapshot of a new epoch and its head. A single writer then goes on with the former epoch.
func TestASnapshotThatNeverBecameTheHeadIsNotRecovered(t *testing.T) {
	s, js := open(t)
	at := change(t, s, js, 0, 2)
	first := point(t, s, snapshots.Head{}, snapshots.Head{Sequence: at}, state(t, "1"))
	point(t, s, first, snapshots.Head{Epoch: 1, Sequence: at}, state(t, "2"))
	change(t, s, js, 0, 1)
	h, found, err := s.Recover(t.Context(), document)
	if err != nil || !found || h.Epoch != 0 || h.Hash != first.Hash {
		t.Errorf("a single writer recovered %+v, %t, %v", h, found, err)
	}
	several := *s
	several.Writer = "one"
	if h, _, err := several.Recover(t.Context(), document); err != nil || h.Epoch != 1 {
		t.Errorf("one of several writers recovered %+v, %v", h, err)
	}
}

// Documents are found by their changes and by their snapshots, and nothing else is taken for one.
func TestDocumentsAreFoundByWhatIsLeftOfThem(t *testing.T) {
	s, js := open(t)
	for _, subject := range []string{s.LogSubject("changes", 3), "log.odd", "log.odd.first", s.PartSubject("odd"), s.PartSubject("odd.1-2-x-4"), s.PartSubject("odd.1-2-3")} {
		if _, err := js.Publish(t.Context(), subject, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	point(t, s, snapshots.Head{}, snapshots.Head{Sequence: 1}, state(t, "1"))
	found, err := s.Documents(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if names := slices.Sorted(found); fmt.Sprint(names) != "[changes plan]" {
		t.Errorf("found %v", names)
	}
	r, err := s.Remains(t.Context(), "changes")
	if err != nil || !r.Any() || r.Epochs[3] != 1 || len(r.Snapshots) != 0 {
		t.Errorf("of a document without snapshots there is %+v, %v", r, err)
	}
	if _, _, err := s.Recover(t.Context(), "changes"); !errors.Is(err, snapshots.ErrUnrecoverable) {
		t.Errorf("a later epoch without its snapshot: %v", err)
	}
}

// A snapshot whose name does not fit its content is not one.
func TestASnapshotUnderAnotherNameIsDamaged(t *testing.T) {
	s, js := open(t)
	first := point(t, s, snapshots.Head{}, snapshots.Head{Sequence: 1}, state(t, "1"))
	m, err := s.Parts.GetLastMsgForSubject(t.Context(), s.PartSubject(first.Object))
	if err != nil {
		t.Fatal(err)
	}
	other := &nats.Msg{Subject: s.PartSubject(document + ".0-9-9-0123456789abcdef"), Data: m.Data, Header: m.Header}
	if _, err := js.PublishMsg(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if h, _, err := s.Recover(t.Context(), document); err != nil || h.Object != first.Object {
		t.Errorf("recovered %+v, %v", h, err)
	}
}
