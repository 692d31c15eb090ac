package crdt_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"unicode/utf16"

	"pgregory.net/rapid"

	"github.com/parleyhub/parley/crdt"
)

// world has replicas that edit the same few positions, and all updates that they sent.
type world struct {
	t     *rapid.T
	docs  []*crdt.Doc
	sent  [][]byte
	knows []map[int]bool
}

func newWorld(t *rapid.T, n int) *world {
	w := &world{t: t}
	ids := rapid.Permutation([]uint64{1, 2, 3, 4, 5, 6, 7, 8, 9}).Draw(t, "ids")
	for i := range n {
		w.docs = append(w.docs, crdt.New(crdt.Options{Client: ids[i]}))
		w.knows = append(w.knows, map[int]bool{})
	}
	return w
}

// newBusyWorld returns three replicas that have edited and exchanged some updates, and one that has applied all of
// them.
func newBusyWorld(t *rapid.T) (w *world, full *crdt.Doc) {
	w = newWorld(t, 3)
	for range 3 {
		for i := range w.docs {
			w.edit(i)
			w.gossip(i)
		}
	}
	full = crdt.New(crdt.Options{})
	for _, u := range w.sent {
		if _, err := full.Apply(u, nil); err != nil {
			t.Fatal(err)
		}
	}
	return w, full
}

func (w *world) check(d *crdt.Doc) {
	w.t.Helper()
	if err := d.Check(); err != nil {
		w.t.Fatal(err)
	}
}

// edit makes a transaction of several random edits on replica i.
func (w *world) edit(i int) {
	d := w.docs[i]
	update, err := d.Transact(nil, func() error {
		for range rapid.IntRange(1, 3).Draw(w.t, "edits") {
			if err := randomEdit(w.t, d); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.check(d)
	if update != nil {
		w.knows[i][len(w.sent)] = true
		w.sent = append(w.sent, update)
	}
}

// gossip applies some of the updates that replica i does not have, in random order.
func (w *world) gossip(i int) {
	for _, k := range rapid.Permutation(numbers(len(w.sent))).Draw(w.t, "order") {
		if !w.knows[i][k] && rapid.Bool().Draw(w.t, "deliver") {
			w.deliver(i, k)
		}
	}
}

func (w *world) deliver(i, k int) {
	w.t.Helper()
	w.knows[i][k] = true
	if _, err := w.docs[i].Apply(w.sent[k], nil); err != nil {
		w.t.Fatal(err)
	}
	w.check(w.docs[i])
}

func numbers(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i
	}
	return s
}

var attributes = rapid.SampledFrom([]crdt.Attributes{{"b": true}, {"b": nil}, {"i": "x"}, {"b": false, "i": nil}})

// randomEdit edits near the beginning of one of a few types.
func randomEdit(t *rapid.T, d *crdt.Doc) error {
	m, l, s := d.Map("m"), d.Array("l"), d.Text("t")
	key := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key")
	at := func(n int) int { return rapid.IntRange(0, min(2, n)).Draw(t, "index") }
	count := func(i, n int) int { return rapid.IntRange(0, min(3, n-i)).Draw(t, "count") }
	value := rapid.SampledFrom([]any{1, "x", true, nil, 1.5, []byte{1, 2}, []any{1, map[string]any{"k": "v"}}}).Draw(t, "value")
	switch rapid.IntRange(0, 13).Draw(t, "edit") {
	case 0, 1:
		return m.Set(key, value)
	case 2:
		return m.Delete(key)
	case 3, 4:
		return l.Insert(at(l.Len()), value, 2, value)
	case 5:
		i := at(l.Len())
		return l.Delete(i, count(i, l.Len()))
	case 6, 7:
		return s.Insert(at(s.Len()), rapid.SampledFrom([]string{"a", "bcd", "é😀", "😀"}).Draw(t, "text"))
	case 8:
		i := at(s.Len())
		return s.Delete(i, count(i, s.Len()))
	case 9:
		i := at(s.Len())
		return s.Format(i, count(i, s.Len()), attributes.Draw(t, "attributes"))
	case 10:
		return s.InsertWith(at(s.Len()), "F", attributes.Draw(t, "attributes"))
	case 11:
		return d.Counter("n").Add(int64(rapid.IntRange(-3, 3).Draw(t, "add")))
	case 12:
		_, err := l.InsertMap(at(l.Len()))
		if err == nil {
			_, err = m.SetText(key)
		}
		return err
	default:
		return nestedEdit(m, l, key)
	}
}

// nestedEdit makes one edit inside each nested shared type.
func nestedEdit(m *crdt.Map, l *crdt.Array, key string) error {
	for _, v := range l.All() {
		if in, ok := v.(*crdt.Map); ok {
			if _, deeper := in.Get(key); deeper {
				_, err := in.SetArray(key)
				return err
			}
			return in.Set(key, "deep")
		}
	}
	if v, _ := m.Get(key); v != nil {
		if in, ok := v.(*crdt.Text); ok {
			return in.Append("deep")
		}
	}
	return nil
}

// outcome returns what replicas must agree on, byte by byte.
func outcome(t tb, d *crdt.Doc) string {
	t.Helper()
	p := d.Pending()
	if p.Structs+p.Ranges > 0 {
		t.Fatalf("%d structs and %d deletes still wait for %v", p.Structs, p.Ranges, p.Missing)
	}
	use(d)
	return fmt.Sprintf("%x\n%x\n%s\n%v", d.Snapshot(), d.Digest(true), mustJSON(t, d), d.Text("t").Runs())
}

// use gives the root types their kinds, so that JSON shows them.
func use(d *crdt.Doc) {
	d.Map("m")
	d.Array("l")
	d.Text("t")
	d.Counter("n")
}

// Property 28: concurrent updates lead to the same state in any order and with any repetition (Req 9.3).
func TestProperty28ConcurrentUpdatesAreConfluent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, rapid.IntRange(2, 4).Draw(t, "replicas"))
		for range rapid.IntRange(1, 4).Draw(t, "rounds") {
			for i := range w.docs {
				w.edit(i)
			}
			for i := range w.docs {
				w.gossip(i)
			}
		}
		want := ""
		for k := range 2 {
			d := crdt.New(crdt.Options{})
			order := append(numbers(len(w.sent)), numbers(len(w.sent))...)
			for _, k := range rapid.Permutation(order).Draw(t, "arrival") {
				if _, err := d.Apply(w.sent[k], nil); err != nil {
					t.Fatal(err)
				}
				w.check(d)
			}
			if got := outcome(t, d); k == 0 {
				want = got
			} else if got != want {
				t.Fatalf("two orders lead to\n%s\nand\n%s", want, got)
			}
		}
		for i, d := range w.docs {
			for k := range w.sent {
				if !w.knows[i][k] {
					w.deliver(i, k)
				}
			}
			if got := outcome(t, d); got != want {
				t.Fatalf("replica %d has\n%s\nothers have\n%s", i, got, want)
			}
		}
	})
}

// A replica that applies the answer to its state vector is complete, even if the vector ends within an item.
func TestDifferencesCompleteTheState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, full := newBusyWorld(t)
		want := outcome(t, full)
		// Two replicas with parts of the state, parked structs included, are complete after one exchange
		// each way.
		a, b := w.docs[0], w.docs[1]
		fresh := crdt.New(crdt.Options{})
		for _, d := range w.docs {
			vector, err := crdt.DecodeStateVector(fresh.StateVector().Encode(), 100)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := fresh.Apply(d.EncodeSince(vector), nil); err != nil {
				t.Fatal(err)
			}
			w.check(fresh)
		}
		if got := outcome(t, fresh); got != want {
			t.Fatalf("a replica completed by differences has\n%s\nwant\n%s", got, want)
		}
		for _, pair := range [][2]*crdt.Doc{{a, b}, {b, w.docs[2]}, {w.docs[2], a}, {a, b}} {
			x, y := pair[0], pair[1]
			toX, toY := y.EncodeSince(x.StateVector()), x.EncodeSince(y.StateVector())
			if _, err := x.Apply(toX, nil); err != nil {
				t.Fatal(err)
			}
			if _, err := y.Apply(toY, nil); err != nil {
				t.Fatal(err)
			}
		}
		if got := outcome(t, a); got != want {
			t.Fatalf("after the exchange a replica has\n%s\nwant\n%s", got, want)
		}
	})
}

// A snapshot is restored byte by byte; one taken while structs are parked loses nothing.
func TestSnapshotsAreComplete(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, 2)
		for range 4 {
			w.edit(0)
			w.gossip(1)
			w.edit(1)
		}
		// Take the snapshot with some updates missing, then apply the rest to the replica that loads it.
		half, rest := crdt.New(crdt.Options{}), [][]byte{}
		for _, u := range w.sent {
			if rapid.Bool().Draw(t, "early") {
				if _, err := half.Apply(u, nil); err != nil {
					t.Fatal(err)
				}
			} else {
				rest = append(rest, u)
			}
		}
		first := half.Snapshot()
		loaded := crdt.New(crdt.Options{})
		if _, err := loaded.Apply(first, nil); err != nil {
			t.Fatal(err)
		}
		w.check(loaded)
		if again := loaded.Snapshot(); !bytes.Equal(again, first) {
			t.Fatalf("a snapshot of a loaded snapshot is\n%x, not\n%x", again, first)
		}
		for _, u := range rest {
			if _, err := loaded.Apply(u, nil); err != nil {
				t.Fatal(err)
			}
		}
		full := crdt.New(crdt.Options{})
		for _, u := range w.sent {
			if _, err := full.Apply(u, nil); err != nil {
				t.Fatal(err)
			}
		}
		if got, want := outcome(t, loaded), outcome(t, full); got != want {
			t.Fatalf("after loading and the remaining updates the state is\n%s\nwant\n%s", got, want)
		}
	})
}

// Updates merged without a document have the same effect as the single updates.
func TestMergedUpdatesAreEquivalent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, 3)
		for range 3 {
			for i := range w.docs {
				w.edit(i)
				w.gossip(i)
			}
		}
		order := rapid.Permutation(w.sent).Draw(t, "order")
		n := rapid.IntRange(0, len(order)).Draw(t, "merged")
		merged, err := crdt.MergeUpdates(crdt.LiveLimits(), order[:n]...)
		if err != nil {
			t.Fatal(err)
		}
		twice, err := crdt.MergeUpdates(crdt.LiveLimits(), merged, merged)
		if err != nil || !bytes.Equal(twice, merged) {
			t.Fatalf("merged with itself the update is\n%x, %v, not\n%x", twice, err, merged)
		}
		d, full := crdt.New(crdt.Options{}), crdt.New(crdt.Options{})
		for _, u := range append([][]byte{merged}, order[n:]...) {
			if _, err := d.Apply(u, nil); err != nil {
				t.Fatal(err)
			}
		}
		for _, u := range w.sent {
			if _, err := full.Apply(u, nil); err != nil {
				t.Fatal(err)
			}
		}
		if got, want := outcome(t, d), outcome(t, full); got != want {
			t.Fatalf("merged updates lead to\n%s\nwant\n%s", got, want)
		}
	})
}

// One replica behaves like a plain map, slice and string of UTF-16 units.
func TestOneReplicaBehavesLikePlainValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := crdt.New(crdt.Options{})
		m, l, s := d.Map("m"), d.Array("l"), d.Text("t")
		wantMap := map[string]float64{}
		var wantList []float64
		var wantText []uint16
		for n := range rapid.IntRange(1, 60).Draw(t, "steps") {
			var err error
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0:
				key := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "key")
				wantMap[key] = float64(n)
				err = m.Set(key, n)
			case 1:
				key := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "key")
				delete(wantMap, key)
				err = m.Delete(key)
			case 2:
				i := rapid.IntRange(0, len(wantList)).Draw(t, "index")
				wantList = slices.Insert(wantList, i, float64(n), float64(-n))
				err = l.Insert(i, n, -n)
			case 3:
				i := rapid.IntRange(0, len(wantList)).Draw(t, "index")
				c := rapid.IntRange(0, len(wantList)-i).Draw(t, "count")
				wantList = slices.Delete(wantList, i, i+c)
				err = l.Delete(i, c)
			case 4:
				i := rapid.IntRange(0, len(wantText)).Draw(t, "index")
				add := rapid.SampledFrom([]string{"x", "yz", "é", "😀a"}).Draw(t, "text")
				err = s.Insert(i, add)
				wantText = slices.Insert(wantText, border(wantText, i, false), utf16.Encode([]rune(add))...)
			default:
				i := rapid.IntRange(0, len(wantText)).Draw(t, "index")
				c := rapid.IntRange(0, len(wantText)-i).Draw(t, "count")
				err = s.Delete(i, c)
				if c > 0 {
					wantText = slices.Delete(wantText, border(wantText, i, false), border(wantText, i+c, true))
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Check(); err != nil {
				t.Fatal(err)
			}
		}
		if m.Len() != len(wantMap) {
			t.Fatalf("the map has %d keys, want %d", m.Len(), len(wantMap))
		}
		for key, v := range m.All() {
			if v != wantMap[key] {
				t.Fatalf("%s is %v, want %v", key, v, wantMap[key])
			}
		}
		var list []float64
		for i, v := range l.All() {
			if one, ok := l.Get(i); !ok || one != v {
				t.Fatalf("element %d is %v and %v", i, v, one)
			}
			list = append(list, v.(float64))
		}
		if !slices.Equal(list, wantList) {
			t.Fatalf("the list is %v, want %v", list, wantList)
		}
		if want := string(utf16.Decode(wantText)); s.String() != want || s.Len() != len(wantText) {
			t.Fatalf("the text is %q of %d, want %q of %d", s.String(), s.Len(), want, len(wantText))
		}
	})
}

// border moves an index that is inside a surrogate pair to its beginning or end.
func border(s []uint16, i int, up bool) int {
	if i == 0 || i >= len(s) || !utf16.IsSurrogate(rune(s[i])) || s[i] < 0xdc00 {
		return i
	}
	if up {
		return i + 1
	}
	return i - 1
}

// A failed transaction leaves no trace, wherever it fails.
func TestFailedTransactionsAreRolledBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, 2)
		for range 3 {
			w.edit(0)
			w.edit(1)
			w.gossip(0)
		}
		d := w.docs[0]
		before := outcomeOf(t, d)
		stop := fmt.Errorf("stop")
		update, err := d.Transact(nil, func() error {
			for range rapid.IntRange(0, 6).Draw(t, "edits") {
				if err := randomEdit(t, d); err != nil {
					return err
				}
			}
			return stop
		})
		if update != nil || err != stop {
			t.Fatalf("the transaction returned %x, %v", update, err)
		}
		w.check(d)
		if after := outcomeOf(t, d); after != before {
			t.Fatalf("before, the state was\n%s\nafter\n%s", before, after)
		}
		for k := range w.sent {
			if !w.knows[0][k] {
				w.deliver(0, k)
			}
		}
		w.edit(0)
	})
}

// outcomeOf is like outcome, but allows parked structs.
func outcomeOf(t tb, d *crdt.Doc) string {
	t.Helper()
	use(d)
	return fmt.Sprintf("%x\n%x\n%s", d.Snapshot(), d.Digest(true), mustJSON(t, d))
}

// Undo reverts the edits of this replica and keeps those of others; redo and undo reverse each other.
func TestUndoRevertsOwnEditsOnly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, 2)
		d := w.docs[0]
		undo := d.NewUndo(nil)
		defer undo.Close()
		states := []string{visible(t, d)}
		for range rapid.IntRange(1, 6).Draw(t, "edits") {
			n := undo.Steps()
			w.edit(0)
			if undo.Steps() > n {
				states = append(states, visible(t, d))
			}
		}
		for range 2 {
			for i := len(states) - 2; i >= 0; i-- {
				if _, err := undo.Undo(); err != nil {
					t.Fatal(err)
				}
				w.check(d)
				if got := visible(t, d); got != states[i] {
					t.Fatalf("after undo the state is\n%s\nwant\n%s", got, states[i])
				}
			}
			for i := 1; i < len(states); i++ {
				if _, err := undo.Redo(); err != nil {
					t.Fatal(err)
				}
				w.check(d)
				if got := visible(t, d); got != states[i] {
					t.Fatalf("after redo the state is\n%s\nwant\n%s", got, states[i])
				}
			}
		}
		other := crdt.New(crdt.Options{})
		if _, err := other.Apply(d.Snapshot(), nil); err != nil {
			t.Fatal(err)
		}
		if a, b := visible(t, d), visible(t, other); a != b {
			t.Fatalf("another replica has\n%s\nnot\n%s", b, a)
		}
	})
}

func visible(t tb, d *crdt.Doc) string {
	use(d)
	return fmt.Sprintf("%s %v", mustJSON(t, d), d.Text("t").Runs())
}
