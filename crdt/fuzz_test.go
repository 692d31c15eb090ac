package crdt_test

import (
	"bytes"
	"testing"

	"github.com/parleyhub/parley/crdt"
)

func seed(f *testing.F) {
	for _, v := range vectors {
		f.Add(unhex(f, v.update))
	}
	// The fuzz corpus begins with steps of a longer history, with all kinds of content.
	for _, u := range kinds {
		f.Add(unhex(f, u))
	}
	d := crdt.New(crdt.Options{Client: 3})
	for _, u := range mixed(f, d, 12) {
		f.Add(u)
	}
	f.Add(d.Snapshot())
}

// An update that can be decoded can be applied and encoded again without loss, and keeps the document valid.
func FuzzDecodeUpdate(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		u, err := crdt.ParseUpdate(data, crdt.LiveLimits())
		if err != nil {
			if crdt.CodeOf(err) == "" {
				t.Fatalf("the error %v has no code", err)
			}
			return
		}
		d := crdt.New(crdt.Options{})
		admitted := d.Admit(u, crdt.Sender{Vector: crdt.StateVector{}})
		if _, err := d.ApplyUpdate(u, nil); err != nil {
			t.Fatal(err)
		}
		if err := d.Check(); err != nil {
			t.Fatal(err)
		}
		if _, err := d.JSON(); err != nil && admitted == nil {
			t.Fatal(err)
		}
		state := d.Snapshot()
		again := crdt.New(crdt.Options{})
		if _, err := again.Apply(state, nil); err != nil {
			t.Fatalf("the state %x cannot be read: %v", state, err)
		}
		if other := again.Snapshot(); !bytes.Equal(other, state) {
			t.Fatalf("the state %x is encoded again as %x", state, other)
		}
	})
}

// Hostile bytes are applied to a document with history; applying the known updates again afterwards must still
// succeed.
func FuzzApplyToHistory(f *testing.F) {
	d := crdt.New(crdt.Options{Client: 1})
	history := mixed(f, d, 40)
	for i := range 4 {
		if err := in(d, func() error { return d.Text("t").Delete(i, 1) }, func() error { return d.Array("l").Delete(0, 1) }); err != nil {
			f.Fatal(err)
		}
	}
	late := d.EncodeSince(crdt.StateVector{1: 20})
	seed(f)
	f.Add(late)
	f.Fuzz(func(t *testing.T, data []byte) {
		d := crdt.New(crdt.Options{})
		for i, u := range append(history[:20:20], data, late) {
			if _, err := d.Apply(u, nil); err != nil && i != 20 {
				t.Fatal(err)
			}
			if err := d.Check(); err != nil {
				t.Fatalf("after %d: %v", i, err)
			}
		}
		if _, err := d.Transact(nil, func() error { return d.Text("t").Insert(0, "still edits") }); err != nil {
			t.Fatal(err)
		}
		d.Digest(true)
	})
}

func FuzzMergeUpdates(f *testing.F) {
	d := crdt.New(crdt.Options{Client: 1})
	history := mixed(f, d, 12)
	for _, u := range history {
		f.Add(u, history[3])
	}
	for _, v := range vectors {
		f.Add(unhex(f, v.update), history[5])
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		merged, err := crdt.MergeUpdates(crdt.LiveLimits(), a, b)
		if err != nil {
			return
		}
		twice, err := crdt.MergeUpdates(crdt.StateLimits(), merged)
		if err != nil || !bytes.Equal(twice, merged) {
			t.Fatalf("%x is merged again to %x, %v", merged, twice, err)
		}
	})
}

func FuzzDecodeStateVector(f *testing.F) {
	f.Add([]byte{2, 0xac, 2, 5, 1, 2})
	f.Fuzz(func(t *testing.T, data []byte) {
		sv, err := crdt.DecodeStateVector(data, 1000)
		if err != nil {
			return
		}
		again, err := crdt.DecodeStateVector(sv.Encode(), 1000)
		if err != nil || !again.Equal(sv) || !again.Covers(sv) {
			t.Fatalf("%v is decoded to %v, %v", sv, again, err)
		}
	})
}

// An update that arrives late for a succeeded document leaves its successor valid, and the updates that the
// successor returns lead its other replicas to the same state.
func FuzzCarry(f *testing.F) {
	d := crdt.New(crdt.Options{Client: 1})
	history := mixed(f, d, 24)
	seed(f)
	f.Add(d.EncodeSince(crdt.StateVector{1: 20}))
	f.Fuzz(func(t *testing.T, data []byte) {
		u, err := crdt.ParseUpdate(data, crdt.LiveLimits())
		if err != nil {
			return
		}
		d := crdt.New(crdt.Options{Client: 3})
		applyAll(t, d, history)
		fresh, s, err := crdt.Succeed(d, crdt.Options{Client: 5}, "c")
		if err != nil {
			t.Fatal(err)
		}
		other := crdt.New(crdt.Options{})
		applyAll(t, other, [][]byte{fresh.Snapshot()})
		if s.Former().Admit(u, crdt.Sender{Whole: true}) != nil {
			return
		}
		updates, err := s.Carry(u, fresh)
		if err != nil && crdt.CodeOf(err) == "" {
			t.Fatalf("the error %v has no code", err)
		}
		for _, d := range []*crdt.Doc{s.Former(), fresh} {
			if err := d.Check(); err != nil {
				t.Fatal(err)
			}
		}
		applyAll(t, other, updates)
		if a, b := fresh.Snapshot(), other.Snapshot(); !bytes.Equal(a, b) {
			t.Fatalf("the successor has %x, its replica %x", a, b)
		}
	})
}
