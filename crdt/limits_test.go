package crdt_test

import (
	"bytes"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/internal/lib0"
)

// clients is an update of n clients with one struct each.
func clients(n int) []byte {
	b := lib0.AppendUint(nil, uint64(n))
	for i := range n {
		b = lib0.AppendUint(append(b, 1), uint64(n-i))
		b = append(b, 0, 0x04, 1, 1, 't', 1, 'x') // at clock 0 a text
	}
	return append(b, 0)
}

// Each limit admits an update exactly at the limit and refuses the next larger one with a typed error; the
// document stays unchanged.
func TestEachLimitIsExact(t *testing.T) {
	text := func(n int) []byte { return update(1, 0, 1, "\x04\x01\x01t"+str(strings.Repeat("x", n))) }
	for name, c := range map[string]struct {
		limit func(*crdt.Limits) *int
		build func(n int) []byte
	}{
		"Update":      {func(l *crdt.Limits) *int { return &l.Update }, func(n int) []byte { return text(n - len(text(1)) + 1) }},
		"Clients":     {func(l *crdt.Limits) *int { return &l.Clients }, clients},
		"Structs":     {func(l *crdt.Limits) *int { return &l.Structs }, func(n int) []byte { return update(1, 0, n, strings.Repeat("\x00\x01", n)) }},
		"String":      {func(l *crdt.Limits) *int { return &l.String }, text},
		"String, Any": {func(l *crdt.Limits) *int { return &l.String }, func(n int) []byte { return update(1, 0, 1, "\x08\x01\x01l\x01\x77"+str(strings.Repeat("x", n))) }},
		"bytes":       {func(l *crdt.Limits) *int { return &l.String }, func(n int) []byte { return update(1, 0, 1, "\x03\x01\x01l"+str(strings.Repeat("x", n))) }},
		"Key":         {func(l *crdt.Limits) *int { return &l.Key }, func(n int) []byte { return update(1, 0, 1, "\x28\x01\x01m"+str(strings.Repeat("k", n))+"\x01\x7e") }},
		"Key, Any": {func(l *crdt.Limits) *int { return &l.Key }, func(n int) []byte {
			return update(1, 0, 1, "\x08\x01\x01l\x01\x76\x01"+str(strings.Repeat("k", n))+"\x7e")
		}},
		"Key, format": {func(l *crdt.Limits) *int { return &l.Key }, func(n int) []byte { return update(1, 0, 1, "\x06\x01\x01t"+str(strings.Repeat("k", n))+str("1")) }},
		"Name":        {func(l *crdt.Limits) *int { return &l.Name }, func(n int) []byte { return update(1, 0, 1, "\x04\x01"+str(strings.Repeat("n", n))+str("x")) }},
		"AnyDepth":    {func(l *crdt.Limits) *int { return &l.AnyDepth }, func(n int) []byte { return update(1, 0, 1, "\x08\x01\x01l\x01"+strings.Repeat("\x75\x01", n)+"\x7e") }},
		"AnyElements": {func(l *crdt.Limits) *int { return &l.AnyElements }, func(n int) []byte {
			return update(1, 0, 1, "\x08\x01\x01l"+string(lib0.AppendUint(nil, uint64(n)))+strings.Repeat("\x7e", n))
		}},
		"JSONDepth": {func(l *crdt.Limits) *int { return &l.JSONDepth }, func(n int) []byte {
			return update(1, 0, 1, "\x05\x01\x01t"+str(strings.Repeat("[", n)+strings.Repeat("]", n)))
		}},
		"DeleteRanges": {func(l *crdt.Limits) *int { return &l.DeleteRanges }, func(n int) []byte { return deletes(n) }},
		"Depth":        {func(l *crdt.Limits) *int { return &l.Depth }, nested},
		"DocClients":   {func(l *crdt.Limits) *int { return &l.DocClients }, clients},
		"DocItems":     {func(l *crdt.Limits) *int { return &l.DocItems }, clients},
		"DocBytes":     {func(l *crdt.Limits) *int { return &l.DocBytes }, func(n int) []byte { return text(n - len(text(1)) + 1) }}, // new content counts with the size of its update
	} {
		t.Run(name, func(t *testing.T) {
			const limit = 40
			limits := crdt.LiveLimits()
			*c.limit(&limits) = limit
			for n, code := range map[int]crdt.Code{limit: "", limit + 1: crdt.CodeLimit} {
				d := crdt.New(crdt.Options{Limits: &limits})
				u, err := crdt.ParseUpdate(c.build(n), limits)
				if err == nil {
					err = d.Admit(u, crdt.Sender{})
				}
				if crdt.CodeOf(err) != code || (err == nil) != (code == "") {
					t.Errorf("size %d: error %v, want code %q", n, err, code)
				}
				if d.Items() != 0 || len(d.StateVector()) != 0 || d.Pending().Structs != 0 {
					t.Errorf("size %d changed the document", n)
				}
			}
		})
	}
	limits := crdt.LiveLimits()
	limits.StructLength = 40
	for n, ok := range map[byte]bool{40: true, 41: false} {
		for _, kind := range []string{"\x00", "\x01\x01\x01t"} { // GC and Deleted; a gap costs nothing
			if _, err := crdt.ParseUpdate(update(1, 0, 1, kind+string(n)), limits); ok != (err == nil) || !ok && crdt.CodeOf(err) != crdt.CodeLimit {
				t.Errorf("a struct of kind %x and length %d : error %v", kind[0], n, err)
			}
		}
		vector := crdt.StateVector{}
		for i := range n {
			vector[uint64(i)] = 1
		}
		if _, err := crdt.DecodeStateVector(vector.Encode(), 40); ok != (err == nil) {
			t.Errorf("a state vector of %d entries gives %v", n, err)
		}
	}
	last := uint64(1)<<53 - 1
	if _, err := crdt.ParseUpdate(update(1, last-2, 1, "\x00\x02"), crdt.LiveLimits()); err != nil {
		t.Errorf("a struct up to the last clock gives %v", err)
	}
	if _, err := crdt.ParseUpdate(update(1, last-2, 1, "\x00\x03"), crdt.LiveLimits()); err == nil {
		t.Error("a struct beyond the last clock was decoded")
	}
}

// deletes is an update with n separate ranges.
func deletes(n int) []byte {
	b := lib0.AppendUint([]byte{0, 1, 1}, uint64(n))
	for i := range n {
		b = append(lib0.AppendUint(b, uint64(2*i)), 1)
	}
	return b
}

// nested is an update with n maps, each in the one before.
func nested(n int) []byte {
	structs := "\x27\x01\x01m\x01x\x01"
	for i := 1; i < n; i++ {
		structs += "\x27\x00\x02" + string(lib0.AppendUint(nil, uint64(i-1))) + "\x01x\x01"
	}
	return update(2, 0, n, structs)
}

// The limits of live updates are those of the design.
func TestLiveLimits(t *testing.T) {
	want := crdt.Limits{
		Update: 960 << 10, Clients: 256, Structs: 100_000, StructLength: 1 << 31, String: 256 << 10, Key: 256, Name: 128,
		AnyDepth: 32, AnyElements: 100_000, JSONDepth: 64, DeleteRanges: 100_000, Vector: 100_000, Depth: 64,
		DocClients: 10_000, DocItems: 2_000_000, DocBytes: 64 << 20, ParkedStructs: 10_000, ParkedBytes: 8 << 20, ParkedRanges: 10_000,
		IntegrationCost: 10_000_000,
	}
	if got := crdt.LiveLimits(); got != want {
		t.Errorf("the limits are %+v", got)
	}
}

// Answers to arbitrary state vectors, which may end within an item or a character, lead to the whole state, in any
// order and with any overlap.
func TestOverlappingDifferencesCompleteTheState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, full := newBusyWorld(t)
		parts := [][]byte{full.EncodeSince(nil)}
		for range rapid.IntRange(1, 4).Draw(t, "differences") {
			since := crdt.StateVector{}
			for client, clock := range full.StateVector() {
				if n := rapid.Uint64Range(0, clock+1).Draw(t, "clock"); n > 0 {
					since[client] = n
				}
			}
			parts = append(parts, full.EncodeSince(since))
		}
		d := crdt.New(crdt.Options{})
		for _, k := range rapid.Permutation(numbers(len(parts))).Draw(t, "order") {
			if _, err := d.Apply(parts[k], nil); err != nil {
				t.Fatal(err)
			}
			w.check(d)
		}
		if got, want := outcome(t, d), outcome(t, full); got != want {
			t.Fatalf("the state is\n%s\nwant\n%s", got, want)
		}
	})
}

// Text inserted and deleted in one transaction is not sent, and a transaction without changes sends nothing.
func TestDeletedTextIsNotSent(t *testing.T) {
	d := crdt.New(crdt.Options{Client: 1})
	update, err := d.Transact(nil, func() error {
		if err := d.Text("t").Insert(0, "a secret"); err != nil {
			return err
		}
		return d.Text("t").Delete(0, 8)
	})
	if err != nil || bytes.Contains(update, []byte("secret")) {
		t.Errorf("the update is %q, %v", update, err)
	}
	if update, err = d.Transact(nil, func() error { return d.Text("t").Delete(0, 0) }); err != nil || update != nil {
		t.Errorf("an empty transaction returns %x, %v", update, err)
	}
	if update, err = d.Transact(nil, func() error { return d.Map("m").Delete("k") }); err != nil || update != nil {
		t.Errorf("deleting a missing key returns %x, %v", update, err)
	}
}
