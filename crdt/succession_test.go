package crdt_test

import (
	"bytes"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/parleyhub/parley/crdt"
)

func carry(t tb, s *crdt.Succession, into *crdt.Doc, update []byte) [][]byte {
	t.Helper()
	u, err := crdt.ParseUpdate(update, crdt.StateLimits())
	if err != nil {
		t.Fatal(err)
	}
	updates, err := s.Carry(u, into)
	if err != nil {
		t.Fatal(err)
	}
	if err := into.Check(); err != nil {
		t.Fatal(err)
	}
	return updates
}

// A successor shows the document's content. Updates for the former document that arrive late, in any order and
// repeatedly, have the same effect as they would have had there; a replica that only received the successor's
// updates has the same state (Req 9.3).
func TestASuccessorAppliesLateUpdates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, rapid.IntRange(2, 4).Draw(t, "replicas"))
		for range rapid.IntRange(1, 3).Draw(t, "rounds before") {
			for i := range w.docs {
				w.edit(i)
				w.gossip(i)
			}
		}
		before := visible(t, w.docs[0])
		fresh, s, err := crdt.Succeed(w.docs[0], crdt.Options{})
		if err != nil {
			t.Fatal(err)
		}
		w.check(fresh)
		if got := visible(t, fresh); got != before {
			t.Fatalf("the successor shows\n%s\nthe former document showed\n%s", got, before)
		}
		if n := len(fresh.StateVector()); n > 1 {
			t.Fatalf("the successor has %d client ids", n)
		}
		notified := crdt.New(crdt.Options{})
		if _, err := notified.Apply(fresh.Snapshot(), nil); err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(0, 3).Draw(t, "rounds after") {
			for i := range w.docs[1:] {
				w.edit(i + 1)
				w.gossip(i + 1)
			}
		}
		all := crdt.New(crdt.Options{})
		for _, u := range w.sent {
			if _, err := all.Apply(u, nil); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			for _, k := range rapid.Permutation(numbers(len(w.sent))).Draw(t, "arrival") {
				for _, u := range carry(t, s, fresh, w.sent[k]) {
					if _, err := notified.Apply(u, nil); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		if got, want := visible(t, fresh), visible(t, all); got != want {
			t.Fatalf("the successor shows\n%s\nthe former document would show\n%s", got, want)
		}
		if got, want := outcome(t, notified), outcome(t, fresh); got != want {
			t.Fatalf("a replica of the successor has\n%s\nnot\n%s", got, want)
		}
	})
}

// Edits made in the successor survive updates that arrive late.
func TestLateUpdatesKeepEditsOfTheSuccessor(t *testing.T) {
	d, other := crdt.New(crdt.Options{Client: 1}), crdt.New(crdt.Options{Client: 2})
	if err := in(d, func() error { return d.Text("t").Insert(0, "one two three") }, func() error { return d.Map("m").Set("k", "old") },
		func() error { return d.Array("l").Append(1, 2, 3) }); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Apply(d.Snapshot(), nil); err != nil {
		t.Fatal(err)
	}
	fresh, s, err := crdt.Succeed(d, crdt.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := in(fresh, func() error { return fresh.Text("t").Delete(4, 4) }, func() error { return fresh.Text("t").Insert(0, "zero ") },
		func() error { return fresh.Map("m").Set("k", "new") }, func() error { return fresh.Array("l").Delete(0, 3) }); err != nil {
		t.Fatal(err)
	}
	late, err := other.Transact(nil, func() error {
		return in(other, func() error { return other.Text("t").Insert(7, " and a half") }, func() error { return other.Map("m").Delete("k") },
			func() error { return other.Array("l").Insert(1, "late") }, func() error { return other.Array("l").Delete(0, 1) })
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(carry(t, s, fresh, late)); n != 1 {
		t.Errorf("Carry returned %d updates", n)
	}
	if got, want := string(mustJSON(t, fresh)), `{"l":["late"],"m":{"k":"new"},"t":"zero one  and a halfthree"}`; got != want {
		t.Errorf("the successor shows %s, want %s", got, want)
	}
	if n := len(carry(t, s, fresh, late)); n != 0 {
		t.Errorf("repeating Carry returned %d updates", n)
	}
}

// Succession reduces a counter to one entry, and late additions still count.
func TestSuccessionCompactsCounters(t *testing.T) {
	d := crdt.New(crdt.Options{Client: 1})
	others := []*crdt.Doc{crdt.New(crdt.Options{Client: 2}), crdt.New(crdt.Options{Client: 3})}
	if err := d.Counter("n").Add(5); err != nil {
		t.Fatal(err)
	}
	for _, o := range others {
		if err := o.Counter("n").Add(10); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Apply(o.Snapshot(), nil); err != nil {
			t.Fatal(err)
		}
	}
	fresh, s, err := crdt.Succeed(d, crdt.Options{Client: 9}, "n")
	if err != nil {
		t.Fatal(err)
	}
	if got := fresh.Map("n").Len(); got != 1 || fresh.Counter("n").Value() != 25 {
		t.Fatalf("the counter has %d entries and the value %d", got, fresh.Counter("n").Value())
	}
	if err := fresh.Counter("n").Add(1); err != nil {
		t.Fatal(err)
	}
	for _, o := range others {
		u, err := o.Transact(nil, func() error { return o.Counter("n").Add(-3) })
		if err != nil {
			t.Fatal(err)
		}
		carry(t, s, fresh, u)
		carry(t, s, fresh, u)
	}
	if got := fresh.Counter("n").Value(); got != 20 {
		t.Errorf("after late additions the value is %d, want 20", got)
	}
}

// Succession keeps content of kinds that have no type in this package.
func TestASuccessorKeepsOpaqueContent(t *testing.T) {
	d := crdt.New(crdt.Options{})
	for _, u := range [][]byte{
		{1, 1, 1, 0, 7, 1, 1, 'x', 3, 1, 'p', 0},                                                 // an XML element
		{1, 1, 2, 0, 9, 1, 1, 's', 1, 'g', 118, 0, 0},                                            // a subdocument
		{1, 1, 3, 0, 2, 1, 1, 'j', 2, 1, '1', 9, 'u', 'n', 'd', 'e', 'f', 'i', 'n', 'e', 'd', 0}, // JSON
		{1, 1, 4, 0, 8, 1, 1, 'n', 1, 125, 64, 0},                                                // -0
	} {
		if _, err := d.Apply(u, nil); err != nil {
			t.Fatal(err)
		}
	}
	fresh, _, err := crdt.Succeed(d, crdt.Options{Client: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"\x01x\x03\x01p", "\x01s\x01g\x76\x00", "\x01j\x02\x011\x09undefined", "\x01n\x01\x7d\x40"} {
		if !bytes.Contains(fresh.Snapshot(), []byte(content)) {
			t.Errorf("%q is not in %q", content, fresh.Snapshot())
		}
	}
}

// History, not size, makes a document worn.
func TestWornDocuments(t *testing.T) {
	for name, c := range map[string]struct {
		churn crdt.Churn
		worn  bool
	}{
		"a new one":      {crdt.Churn{Items: 3, Live: 3, Clients: 1}, false},
		"a large one":    {crdt.Churn{Items: 600_000, Live: 600_000, Clients: 5, Bytes: 60 << 20}, false},
		"tombstones":     {crdt.Churn{Items: 60_000, Live: 5000, Clients: 5, Bytes: 1 << 20}, true},
		"many writers":   {crdt.Churn{Items: 3000, Live: 3000, Clients: 2500, Bytes: 1 << 20}, true},
		"large and worn": {crdt.Churn{Items: 40_000, Live: 8000, Clients: 5, Bytes: 5 << 20}, true},
	} {
		if got := c.churn.Worn(); got != c.worn {
			t.Errorf("%s: Worn returns %v", name, got)
		}
	}
	d := crdt.New(crdt.Options{})
	for i := range 10 {
		if err := d.Map("m").Set(fmt.Sprint(i%2), i); err != nil {
			t.Fatal(err)
		}
	}
	if c := d.Churn(); c.Live != 2 || c.Items != d.Items() || c.Clients != 1 {
		t.Errorf("the document has %+v", c)
	}
}
