package crdt_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/parleyhub/parley/crdt"
)

// mixed is the workload of the design: a cyclic map write over 1,000 keys, a counter,
// a list insertion and a one-character text insertion at random places.
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

// heapOf returns what the heap shrinks by when a document is forgotten.
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

// prepends returns n updates of one client that each insert at the beginning.
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

// oneEach returns an insertion at the beginning of each of n clients that know nothing.
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

// The cases that cost a prototype the square of their size.
func BenchmarkTraps(b *testing.B) {
	run := func(name string, updates [][]byte) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				applyAll(b, crdt.New(unlimited()), updates)
			}
		})
	}
	reversed := prepends(b, 1, 16_000)
	slices.Reverse(reversed)
	run("reverse order 16k", reversed)
	lost := prepends(b, 1, 20_000)
	run("first lost 20k", append(lost[1:], lost[0]))
	spot := oneEach(b, 4000)
	run("one spot ascending 4k", spot)
	merged, err := crdt.MergeUpdates(crdt.StateLimits(), spot...)
	if err != nil {
		b.Fatal(err)
	}
	run("one spot in one update 4k", [][]byte{merged})
	run("two prepend 4k apart", append(prepends(b, 1, 4000), prepends(b, 2, 4000)...))
	var deletes [][]byte
	for i := range 20_000 {
		u := []byte{0, 1, 9, 1, byte(2*i)&0x7f | 0x80, byte(2*i>>7)&0x7f | 0x80, byte(2*i>>14) & 0x7f, 1}
		deletes = append(deletes, u)
	}
	run("parked deletes 20k", deletes)
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
