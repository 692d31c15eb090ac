package crdt_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/internal/lib0"
)

// mixed returns updates of a mixed workload: cyclic map writes over 1,000 keys, counter additions, list insertions
// and one-character text insertions at random positions.
func mixed(tb testing.TB, d *crdt.Doc, n int) [][]byte {
	r := rand.New(rand.NewPCG(1, 1))
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = fmt.Sprintf("key-%d", i)
	}
	m, c, l, t := d.Map("m"), d.Counter("c"), d.Array("l"), d.Text("t")
	updates := make([][]byte, 0, n)
	for i := range n {
		u, err := d.Transact(nil, func() error {
			switch i % 4 {
			case 0:
				return m.Set(keys[i/4%1000], i)
			case 1:
				return c.Add(1)
			case 2:
				return l.Insert(r.IntN(l.Len()+1), i)
			default:
				return t.Insert(r.IntN(t.Len()+1), string(rune('a'+i%26)))
			}
		})
		if err != nil {
			tb.Fatal(err)
		}
		updates = append(updates, u)
	}
	return updates
}

func sizes(b *testing.B, f func(b *testing.B, n int)) {
	for _, n := range []int{1000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { f(b, n) })
	}
}

func perOp(b *testing.B, n int) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/edit")
}

func BenchmarkEditAndEncode(b *testing.B) {
	sizes(b, func(b *testing.B, n int) {
		for b.Loop() {
			mixed(b, crdt.New(crdt.Options{Client: 1}), n)
		}
		perOp(b, n)
	})
}

func BenchmarkApplyOneByOne(b *testing.B) {
	sizes(b, func(b *testing.B, n int) {
		updates := mixed(b, crdt.New(crdt.Options{Client: 1}), n)
		size := 0
		for _, u := range updates {
			size += len(u)
		}
		var d *crdt.Doc
		for b.Loop() {
			d = crdt.New(crdt.Options{})
			applyAll(b, d, updates)
		}
		perOp(b, n)
		b.ReportMetric(float64(size)/float64(n), "B/update")
		updates = nil
		b.ReportMetric(heapOf(&d), "heap-B")
	})
}

// heapOf returns by how many bytes the heap shrinks when a document is released.
func heapOf(d **crdt.Doc) float64 {
	var with, without runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&with)
	runtime.KeepAlive(*d)
	*d = nil
	runtime.GC()
	runtime.ReadMemStats(&without)
	return float64(with.HeapAlloc) - float64(without.HeapAlloc)
}

func applyAll(tb testing.TB, d *crdt.Doc, updates [][]byte) {
	for _, u := range updates {
		if _, err := d.Apply(u, nil); err != nil {
			tb.Fatal(err)
		}
	}
}

func BenchmarkLoadState(b *testing.B) {
	sizes(b, func(b *testing.B, n int) {
		d := crdt.New(crdt.Options{Client: 1})
		mixed(b, d, n)
		state := d.Snapshot()
		for b.Loop() {
			applyAll(b, crdt.New(crdt.Options{}), [][]byte{state})
		}
		b.ReportMetric(float64(len(state)), "B/state")
	})
}

func BenchmarkSnapshot(b *testing.B) {
	sizes(b, func(b *testing.B, n int) {
		d := crdt.New(crdt.Options{Client: 1})
		mixed(b, d, n)
		for b.Loop() {
			d.Snapshot()
		}
	})
}

// prepends returns n updates of one client; each inserts at the beginning of the list.
func prepends(tb testing.TB, client uint64, n int) [][]byte {
	d := crdt.New(crdt.Options{Client: client})
	updates := make([][]byte, 0, n)
	d.OnUpdate(func(u []byte, _ any, _ bool) { updates = append(updates, u) })
	for i := range n {
		if err := d.Array("l").Insert(0, i); err != nil {
			tb.Fatal(err)
		}
	}
	return updates
}

// oneEach returns one update from each of n clients. Each inserts at the beginning and knows no other update.
func oneEach(tb testing.TB, n int) [][]byte {
	var updates [][]byte
	for i := range n {
		updates = append(updates, prepends(tb, uint64(i+1), 1)...)
	}
	return updates
}

func unlimited() crdt.Options {
	l := crdt.LiveLimits()
	l.ParkedStructs, l.ParkedRanges, l.ParkedBytes = 1<<30, 1<<30, 1<<30
	return crdt.Options{Limits: &l}
}

// trap is a case whose cost is quadratic in a naive implementation.
type trap struct {
	name string
	size int
	make func(tb testing.TB, n int) [][]byte
}

func reversed(tb testing.TB, n int) [][]byte {
	updates := prepends(tb, 1, n)
	slices.Reverse(updates)
	return updates
}

func firstLost(tb testing.TB, n int) [][]byte {
	updates := prepends(tb, 1, n)
	return append(updates[1:], updates[0])
}

func oneSpotInOne(tb testing.TB, n int) [][]byte {
	merged, err := crdt.MergeUpdates(crdt.StateLimits(), oneEach(tb, n)...)
	if err != nil {
		tb.Fatal(err)
	}
	return [][]byte{merged}
}

func apart(tb testing.TB, n int) [][]byte {
	return append(prepends(tb, 1, n), prepends(tb, 2, n)...)
}

func parkedDeletes(_ testing.TB, n int) [][]byte {
	updates := make([][]byte, 0, n)
	for i := range n {
		clock := lib0.AppendUint([]byte{0, 1, 9, 1}, uint64(2*i))
		updates = append(updates, append(clock, 1))
	}
	return updates
}

// splits returns one long item and later updates that split it in its middle.
func splits(tb testing.TB, n int) [][]byte {
	d := crdt.New(crdt.Options{Client: 1})
	if err := d.Text("t").Append(strings.Repeat("x", n)); err != nil {
		tb.Fatal(err)
	}
	updates := [][]byte{d.Snapshot()}
	other := crdt.New(crdt.Options{Client: 2})
	applyAll(tb, other, updates)
	other.OnUpdate(func(u []byte, _ any, _ bool) { updates = append(updates, u) })
	r := rand.New(rand.NewPCG(1, 1))
	for range n {
		if err := other.Text("t").Insert(r.IntN(other.Text("t").Len()), "y"); err != nil {
			tb.Fatal(err)
		}
	}
	return updates
}

// overwritten returns writes of one key, in reverse order.
func overwritten(tb testing.TB, n int) [][]byte {
	d := crdt.New(crdt.Options{Client: 1})
	var updates [][]byte
	d.OnUpdate(func(u []byte, _ any, _ bool) { updates = append(updates, u) })
	for i := range n {
		if err := d.Map("m").Set("k", i); err != nil {
			tb.Fatal(err)
		}
	}
	slices.Reverse(updates)
	return updates
}

var traps = []trap{
	{"reverse order", 16_000, reversed},
	{"first lost", 20_000, firstLost},
	{"one spot ascending", 4000, oneEach},
	{"one spot in one update", 4000, oneSpotInOne},
	{"two prepend apart", 4000, apart},
	{"parked deletes", 20_000, parkedDeletes},
	{"splits", 16_000, splits},
	{"one key in reverse", 16_000, overwritten},
}

// BenchmarkTraps measures the cases that were quadratic in a prototype.
func BenchmarkTraps(b *testing.B) {
	for _, t := range traps {
		b.Run(t.name, func(b *testing.B) {
			updates := t.make(b, t.size)
			for b.Loop() {
				applyAll(b, crdt.New(unlimited()), updates)
			}
		})
	}
	b.Run("merge 16k updates", func(b *testing.B) {
		updates := prepends(b, 1, 16_000)
		for b.Loop() {
			if _, err := crdt.MergeUpdates(crdt.StateLimits(), updates...); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, clients := range []int{10, 10_000} {
		b.Run(fmt.Sprintf("edit with %d clients", clients), func(b *testing.B) {
			d := crdt.New(crdt.Options{})
			applyAll(b, d, oneEach(b, clients))
			for b.Loop() {
				if err := d.Map("m").Set("k", 1); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkGrowth reports how much longer the same cases take at four times the size: 4 is linear, 16 quadratic.
// Two cases are quadratic by the ordering rule that all replicas share; Limits.IntegrationCost bounds their steps.
func BenchmarkGrowth(b *testing.B) {
	for _, t := range traps {
		b.Run(t.name, func(b *testing.B) {
			small, large := t.make(b, t.size/4), t.make(b, t.size)
			var took [2]time.Duration
			var steps [2]uint64
			for b.Loop() {
				for i, updates := range [][][]byte{small, large} {
					d := crdt.New(unlimited())
					start := time.Now()
					applyAll(b, d, updates)
					took[i] += time.Since(start)
					steps[i] = d.ScanSteps()
				}
			}
			b.ReportMetric(float64(took[1])/float64(took[0]), "x-time")
			if steps[0] > 0 {
				b.ReportMetric(float64(steps[1])/float64(steps[0]), "x-steps")
			}
		})
	}
}
