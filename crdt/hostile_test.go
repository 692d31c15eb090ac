package crdt_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/internal/lib0"
)

// update encodes an update of one client by hand: n is the number of its structs, structs are their bytes.
func update(client, clock uint64, n int, structs string) []byte {
	b := lib0.AppendUint([]byte{1}, uint64(n))
	b = lib0.AppendUint(lib0.AppendUint(b, client), clock)
	return append(append(b, structs...), 0)
}

func str(s string) string { return string(lib0.AppendString(nil, s)) }

// Malformed updates are refused before anything changes (Req 9.5).
func TestMalformedUpdatesAreRefused(t *testing.T) {
	atRoot := "\x01\x01t" // a parent by name
	for _, c := range []struct {
		name string
		data []byte
		code crdt.Code
	}{
		{"nothing", nil, crdt.CodeDeserialization},
		{"trailing bytes", []byte{0, 0, 0}, crdt.CodeDeserialization},
		{"more clients than bytes", []byte{0x80, 0x01, 0}, crdt.CodeDeserialization},
		{"a number above 2^53-1", append([]byte{1, 1}, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10), crdt.CodeDeserialization},
		{"a client twice", []byte{2, 1, 1, 0, 0, 1, 1, 1, 1, 0, 1, 0}, crdt.CodeDeserialization},
		{"a client without structs", []byte{1, 0, 1, 0, 0}, crdt.CodeDeserialization},
		{"an unknown kind", update(1, 0, 1, "\x0b"+atRoot), crdt.CodeDeserialization},
		{"GC with flags", update(1, 0, 1, "\x20\x01"), crdt.CodeDeserialization},
		{"GC of no length", update(1, 0, 1, "\x00\x00"), crdt.CodeDeserialization},
		{"a tombstone of no length", update(1, 0, 1, "\x01"+atRoot+"\x00"), crdt.CodeDeserialization},
		{"an empty string", update(1, 0, 1, "\x04"+atRoot+"\x00"), crdt.CodeDeserialization},
		{"no values", update(1, 0, 1, "\x08"+atRoot+"\x00"), crdt.CodeDeserialization},
		{"invalid UTF-8", update(1, 0, 1, "\x04"+atRoot+"\x01\xff"), crdt.CodeDeserialization},
		{"an origin in one's own future", update(1, 0, 1, "\x84\x01\x00"+str("a")), crdt.CodeDeserialization},
		{"a parent in one's own future", update(1, 0, 1, "\x04\x00\x01\x05"+str("a")), crdt.CodeDeserialization},
		{"a parent of another kind", update(1, 0, 1, "\x04\x02\x01t"+str("a")), crdt.CodeDeserialization},
		{"a type of another kind", update(1, 0, 1, "\x07"+atRoot+"\x07"), crdt.CodeDeserialization},
		{"an embed that is no JSON", update(1, 0, 1, "\x05"+atRoot+str("{")), crdt.CodeDeserialization},
		{"an embed that is undefined", update(1, 0, 1, "\x05"+atRoot+str("undefined")), crdt.CodeDeserialization},
		{"an attribute that is no JSON", update(1, 0, 1, "\x06"+atRoot+str("b")+str("tru")), crdt.CodeDeserialization},
		{"legacy values that are no JSON", update(1, 0, 1, "\x02"+atRoot+"\x01"+str("nul")), crdt.CodeDeserialization},
		{"an unknown value", update(1, 0, 1, "\x08"+atRoot+"\x01\x10"), crdt.CodeDeserialization},
		{"a key twice", update(1, 0, 1, "\x08"+atRoot+"\x01\x76\x02"+str("a")+"\x7e"+str("a")+"\x7e"), crdt.CodeDeserialization},
		{"__proto__", update(1, 0, 1, "\x08"+atRoot+"\x01\x76\x01"+str("__proto__")+"\x7e"), crdt.CodeDeserialization},
		{"options that are no object", update(1, 0, 1, "\x09"+atRoot+str("g")+"\x7e"), crdt.CodeDeserialization},
		{"a delete of no length", []byte{0, 1, 1, 1, 0, 0}, crdt.CodeDeserialization},
		{"deep values", update(1, 0, 1, "\x08"+atRoot+"\x01"+strings.Repeat("\x75\x01", 40)+"\x7e"), crdt.CodeLimit},
		{"deep JSON", update(1, 0, 1, "\x05"+atRoot+str(strings.Repeat("[", 70)+strings.Repeat("]", 70))), crdt.CodeLimit},
		{"a long name", update(1, 0, 1, "\x04\x01"+str(strings.Repeat("n", 200))+str("a")), crdt.CodeLimit},
		{"a long string", update(1, 0, 1, "\x04"+atRoot+str(strings.Repeat("n", 300<<10))), crdt.CodeLimit},
		{"a long tombstone", update(1, 0, 1, "\x01"+atRoot+"\xff\xff\xff\xff\x0f"), crdt.CodeLimit},
		{"a large update", make([]byte, 1<<20), crdt.CodeLimit},
	} {
		t.Run(c.name, func(t *testing.T) {
			u, err := crdt.ParseUpdate(c.data, crdt.LiveLimits())
			if crdt.CodeOf(err) != c.code {
				t.Fatalf("parsing it gives %v, %v", u, err)
			}
			d := crdt.New(crdt.Options{})
			if c.code == crdt.CodeDeserialization {
				if _, err := d.Apply(c.data, nil); crdt.CodeOf(err) != c.code {
					t.Fatalf("applying it gives %v", err)
				}
			}
			if d.Items() != 0 || len(d.StateVector()) != 0 {
				t.Fatal("the document has changed")
			}
		})
	}
}

// A large declared count does not allocate memory.
func TestDeclaredCountsAllocateNothing(t *testing.T) {
	nested := bytes.Repeat([]byte{lib0.TagArray, 0xff, 0xff, 0x3f}, 230<<10)
	data := append([]byte{1, 1, 1, 0, 8, 1, 1, 't', 0xff, 0xff, 0x3f}, nested...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := crdt.ParseUpdate(data, crdt.LiveLimits()); err == nil {
		t.Fatal("the decoder accepted it")
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 32*uint64(len(data)) {
		t.Errorf("decoding %d bytes allocated %d", len(data), got)
	}
}

func admit(d *crdt.Doc, data []byte, from crdt.Sender) error {
	u, err := crdt.ParseUpdate(data, crdt.LiveLimits())
	if err != nil {
		return err
	}
	return d.Admit(u, from)
}

// A well-formed update that must not be applied is refused, and the document stays unchanged.
func TestAdmission(t *testing.T) {
	d := crdt.New(crdt.Options{Client: 1})
	if err := in(d, func() error { return d.Text("t").Insert(0, "abc") }, func() error { return d.Array("l").Append(1) },
		func() error { return d.Map("m").Set("k", 1) }); err != nil {
		t.Fatal(err)
	}
	own := func(client uint64) bool { return client == 2 }
	deep := ""
	for i := range 66 {
		if i == 0 {
			deep += "\x27\x01\x01m\x01x\x01"
		} else {
			deep += "\x27\x00" + string(lib0.AppendUint(lib0.AppendUint(nil, 2), uint64(i-1))) + "\x01x\x01"
		}
	}
	before := d.Snapshot()
	for _, c := range []struct {
		name string
		data []byte
		from crdt.Sender
		code crdt.Code
	}{
		{"an honest one", update(2, 0, 1, "\xc4\x01\x00\x01\x01"+str("x")), crdt.Sender{Writes: own}, ""},
		{"another's client id", update(3, 0, 1, "\xc4\x01\x00\x01\x01"+str("x")), crdt.Sender{Writes: own}, crdt.CodeRefused},
		{"neighbours in the other order", update(2, 0, 1, "\xc4\x01\x01\x01\x00"+str("x")), crdt.Sender{}, crdt.CodeRefused},
		{"one neighbour twice", update(2, 0, 1, "\xc4\x01\x01\x01\x01"+str("x")), crdt.Sender{}, crdt.CodeRefused},
		{"neighbours in two lists", update(2, 0, 1, "\xc4\x01\x01\x01\x03"+str("x")), crdt.Sender{}, crdt.CodeRefused},
		{"a list's and a key's item as neighbours", update(2, 0, 1, "\xc4\x01\x01\x01\x04"+str("x")), crdt.Sender{}, crdt.CodeRefused},
		{"neighbours with what the writer knew between them", update(2, 0, 1, "\x84\x01\x03"+str("x")),
			crdt.Sender{Vector: crdt.StateVector{1: 5}}, ""},
		{"the beginning, although the writer knew more before it", update(2, 0, 1, "\x44\x01\x04"+str("x")),
			crdt.Sender{Vector: crdt.StateVector{1: 5}}, ""},
		{"at the end, although the writer knew what follows", update(2, 0, 1, "\x04\x01\x01t"+str("x")),
			crdt.Sender{Vector: crdt.StateVector{1: 5}}, crdt.CodeRefused},
		{"the same place, not knowing", update(2, 0, 1, "\x04\x01\x01t"+str("x")),
			crdt.Sender{Vector: crdt.StateVector{}}, ""},
		{"other content under known ids", update(1, 0, 1, "\x04\x01\x01t"+str("xyz")), crdt.Sender{}, crdt.CodeEquivocation},
		{"a part with other content", update(1, 1, 1, "\x84\x01\x00"+str("x")), crdt.Sender{}, crdt.CodeEquivocation},
		{"a part with the same content", update(1, 1, 1, "\x84\x01\x00"+str("b")), crdt.Sender{Writes: own}, ""},
		{"a part that comes after another unit", update(1, 2, 1, "\x84\x01\x00"+str("c")), crdt.Sender{}, crdt.CodeEquivocation},
		{"two structs as one, and more", update(1, 0, 1, "\x04\x01\x01t"+str("abcd")), crdt.Sender{}, crdt.CodeEquivocation},
		{"another kind under known ids", update(1, 0, 1, "\x08\x01\x01t\x01\x7e"), crdt.Sender{}, crdt.CodeEquivocation},
		{"what is known", update(1, 0, 1, "\x04\x01\x01t"+str("abc")), crdt.Sender{Writes: own}, ""},
		{"types too deep", update(2, 0, 66, deep), crdt.Sender{}, crdt.CodeLimit},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := admit(d, c.data, c.from); crdt.CodeOf(err) != c.code {
				t.Errorf("admission gives %v, want code %q", err, c.code)
			}
			if !bytes.Equal(d.Snapshot(), before) {
				t.Error("admission changed the document")
			}
		})
	}
}

// Many items at one position, each with another right neighbour, take quadratic time to integrate; admission
// refuses them.
func TestAdmissionBoundsIntegrationCost(t *testing.T) {
	d := crdt.New(crdt.Options{Client: 1})
	const n = 9000
	for range n {
		if err := d.Text("t").Append("a"); err != nil {
			t.Fatal(err)
		}
	}
	var structs []byte
	for i := range n {
		structs = append(structs, "\xc4\x01\x00\x01"...)
		structs = lib0.AppendUint(structs, uint64(1+(i+7)%(n-1)))
		structs = append(structs, "\x01x"...)
	}
	before := d.ScanSteps()
	if err := admit(d, update(2, 0, n, string(structs)), crdt.Sender{}); crdt.CodeOf(err) != crdt.CodeLimit {
		t.Errorf("admission gives %v", err)
	}
	if d.ScanSteps() != before {
		t.Error("admission searched the document")
	}
	honest := crdt.New(crdt.Options{Client: 3})
	for i := range n {
		if err := honest.Array("l").Insert(i/2, i); err != nil {
			t.Fatal(err)
		}
	}
	if err := admit(d, honest.Snapshot(), crdt.Sender{}); err != nil {
		t.Errorf("an honest state is refused: %v", err)
	}
}

// Parked structs are bounded, and the update that fills the gap is always admitted.
func TestParkedStructsAreBounded(t *testing.T) {
	limits := crdt.LiveLimits()
	limits.ParkedStructs = 100
	limits.ParkedRanges = 10
	from := crdt.New(crdt.Options{Client: 1})
	var updates [][]byte
	from.OnUpdate(func(u []byte, _ any, _ bool) { updates = append(updates, u) })
	for i := range 200 {
		if err := from.Array("l").Insert(0, i); err != nil {
			t.Fatal(err)
		}
	}
	d := crdt.New(crdt.Options{Limits: &limits})
	for _, u := range updates[1:] {
		if _, err := d.Apply(u, nil); err != nil {
			t.Fatal(err)
		}
		if p := d.Pending(); p.Structs > 100 {
			t.Fatalf("%d structs are parked", p.Structs)
		}
	}
	if p := d.Pending(); !p.NeedsSync || p.Structs != 100 || p.Missing[1] != 0 {
		t.Fatalf("the parked structs are %+v", p)
	}
	if _, err := d.Apply(updates[0], nil); err != nil {
		t.Fatal(err)
	}
	if p := d.Pending(); p.Structs != 0 || d.Array("l").Len() != 101 {
		t.Fatalf("the parked structs are %+v, the list has %d elements", p, d.Array("l").Len())
	}
	if _, err := d.Apply(from.EncodeSince(d.StateVector()), nil); err != nil {
		t.Fatal(err)
	}
	d.Synced()
	if p := d.Pending(); p.NeedsSync || d.Array("l").Len() != 200 {
		t.Fatalf("the parked structs are %+v, the list has %d elements", p, d.Array("l").Len())
	}
	for i := range 30 {
		if _, err := d.Apply([]byte{0, 1, 9, 1, byte(3 * i), 1}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if p := d.Pending(); p.Ranges != 10 || !p.NeedsSync {
		t.Errorf("the parked structs are %+v", p)
	}
	d.DropParked()
	if p := d.Pending(); p.Ranges != 0 || !p.NeedsSync {
		t.Errorf("after DropPending the parked structs are %+v", p)
	}
}

// A replica that receives updates of another under its own client id chooses a new id.
func TestATakenClientIDIsReplaced(t *testing.T) {
	a, b := crdt.New(crdt.Options{Client: 7}), crdt.New(crdt.Options{Client: 7})
	if err := in(a, func() error { return a.Text("t").Insert(0, "long") }, func() error { return b.Text("t").Insert(0, "x") }); err != nil {
		t.Fatal(err)
	}
	res, err := b.Apply(a.Snapshot(), nil)
	if err != nil || !res.ClientTaken || b.Client() == 7 {
		t.Fatalf("the result is %+v, %v; the id is %d", res, err, b.Client())
	}
}

// Scans and look-ups stay cheap in the cases that were quadratic; the test counts steps instead of time.
func TestStepsOfDenseCases(t *testing.T) {
	const n = 2000
	var updates [][]byte
	for i := range n {
		d := crdt.New(crdt.Options{Client: uint64(i + 1)})
		if err := d.Text("t").Insert(0, "x"); err != nil {
			t.Fatal(err)
		}
		updates = append(updates, d.Snapshot())
	}
	merged, err := crdt.MergeUpdates(crdt.StateLimits(), updates...)
	if err != nil {
		t.Fatal(err)
	}
	d := crdt.New(crdt.Options{})
	if _, err := d.Apply(merged, nil); err != nil {
		t.Fatal(err)
	}
	if got := d.ScanSteps(); got > 2*n {
		t.Errorf("integrating %d items at one position took %d steps", n, got)
	}
}

func TestEditsOutOfRangeFail(t *testing.T) {
	d := crdt.New(crdt.Options{})
	nested, err := d.Map("m").SetMap("n")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Map("m").Delete("n"); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 300<<10)
	deep := any(nil)
	for range 40 {
		deep = []any{deep}
	}
	for name, err := range map[string]error{
		"insert":        d.Array("l").Insert(1, 1),
		"negative":      d.Array("l").Insert(-1, 1),
		"delete":        d.Array("l").Delete(0, 1),
		"negative cut":  d.Text("t").Delete(0, -1),
		"text":          d.Text("t").Insert(1, "x"),
		"format":        d.Text("t").Format(0, 1, crdt.Attributes{"b": true}),
		"channel":       d.Map("m").Set("k", make(chan int)),
		"large integer": d.Map("m").Set("k", int64(1)<<60),
		"long text":     d.Text("t").Insert(0, long),
		"long value":    d.Map("m").Set("k", long),
		"long bytes":    d.Map("m").Set("k", []byte(long)),
		"long key":      d.Map("m").Set(long, 1),
		"deep value":    d.Map("m").Set("k", deep),
		"__proto__":     d.Map("m").Set("k", map[string]any{"__proto__": 1}),
		"deleted type":  nested.Set("k", 1),
		"counter":       d.Counter("c").Add(1 << 60),
	} {
		if crdt.CodeOf(err) != crdt.CodeInvalid {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
	if err := d.Check(); err != nil {
		t.Error(err)
	}
	var e *crdt.Error
	if errors.As(d.Array("l").Insert(1, 1), &e); e.Error() == "" || e.Unwrap() != nil {
		t.Errorf("the error is %v", e)
	}
}

// A transaction whose update other replicas would refuse for its size fails locally.
func TestTransactionsAreBoundedByUpdateSize(t *testing.T) {
	d := crdt.New(crdt.Options{})
	part := strings.Repeat("x", 200<<10)
	u, err := d.Transact(nil, func() error {
		for range 6 {
			if err := d.Text("t").Append(part); err != nil {
				return err
			}
		}
		return nil
	})
	if crdt.CodeOf(err) != crdt.CodeLimit || u != nil || d.Text("t").Len() != 0 {
		t.Errorf("the transaction returned %d bytes, %v; the text has %d units", len(u), err, d.Text("t").Len())
	}
}

// Randomly changed valid updates never corrupt a document, in any order.
func TestMutatedUpdatesKeepDocumentsValid(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var honest [][]byte
	for client := range uint64(3) {
		d := crdt.New(crdt.Options{Client: client + 1})
		d.OnUpdate(func(u []byte, _ any, _ bool) { honest = append(honest, u) })
		for i := range 20 {
			if err := in(d, func() error { return d.Text("t").Insert(i/2, "ab") }, func() error { return d.Array("l").Insert(0, i, "x") },
				func() error { return d.Map("m").Set(fmt.Sprint(i%3), i) }, func() error { return d.Text("t").Delete(0, i%3) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	taken := 0
	for range 300 {
		d := crdt.New(crdt.Options{})
		for range 20 {
			u := bytes.Clone(honest[r.IntN(len(honest))])
			for range r.IntN(3) {
				switch at := r.IntN(len(u)); r.IntN(3) {
				case 0:
					u[at] ^= 1 << r.IntN(8)
				case 1:
					u[at] = byte(r.Uint32())
				default:
					binary.LittleEndian.PutUint16(append(u[:at], 0, 0)[at:], uint16(r.Uint32()))
				}
			}
			if _, err := d.Apply(u, nil); err == nil {
				taken++
			}
			if err := d.Check(); err != nil {
				t.Fatalf("after %x: %v", u, err)
			}
		}
		again := crdt.New(crdt.Options{})
		if _, err := again.Apply(d.Snapshot(), nil); err != nil {
			t.Fatalf("a snapshot cannot be loaded: %v", err)
		}
	}
	if taken == 0 {
		t.Error("no update was applied")
	}
}

// Valid replicas' answers to each other are admitted, however they split and merge structs; a changed character is
// detected.
func TestAdmissionOfKnownStructs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, 3)
		for range rapid.IntRange(1, 3).Draw(t, "rounds") {
			for i := range w.docs {
				w.edit(i)
				w.gossip(i)
			}
		}
		a, b := w.docs[0], w.docs[1]
		for range 2 {
			for _, state := range [][]byte{a.EncodeSince(nil), b.Snapshot()} {
				if err := admit(b, state, crdt.Sender{Whole: true}); err != nil {
					t.Fatalf("an honest state is refused: %v", err)
				}
			}
			if _, err := b.Apply(a.Snapshot(), nil); err != nil {
				t.Fatal(err)
			}
		}
		for k, u := range w.sent {
			if err := admit(b, u, crdt.Sender{Whole: true}); err != nil {
				t.Fatalf("the honest update %d is refused: %v", k, err)
			}
		}
	})
}
