//go:build interop

package yjs_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/parleyhub/parley/crdt"
)

// An altered update that this engine applies is applied by npm yjs as well, without an error that would stop a
// browser, and leads to the same state vector. So browsers never receive an update they cannot decode.
func TestAppliedUpdatesAreAppliedByNpmToo(t *testing.T) {
	b := newBridge(t)
	r := rand.New(rand.NewPCG(7, 7))
	honest := honestUpdates(t, r)
	const tries = 6000
	taken, compared, differ := 0, 0, 0
	for range tries {
		u := mutate(r, honest[r.IntN(len(honest))])
		d := crdt.New(crdt.Options{})
		known := honest[:r.IntN(len(honest))]
		goWriter{t, d}.apply(known)
		if parsed, err := crdt.ParseUpdate(u, crdt.LiveLimits()); err != nil || d.Admit(parsed, crdt.Sender{}) != nil {
			continue
		}
		if _, err := d.Apply(u, nil); err != nil {
			t.Fatalf("%x is admitted and not applied: %v", u, err)
		}
		taken++
		results, errs := b.try(command{"op": "new", "doc": "m", "client": 999}, command{"op": "apply", "doc": "m", "updates": known},
			command{"op": "apply", "doc": "m", "updates": [][]byte{u}}, command{"op": "vector", "doc": "m"}, command{"op": "state", "doc": "m"}, command{"op": "waits", "doc": "m"})
		for _, err := range errs {
			if err != "" {
				t.Fatalf("after %d known updates npm yjs does not apply %x: %s", len(known), u, err)
			}
		}
		if got, want := d.StateVector().Encode(), decode[[]byte](t, results[3]); !bytes.Equal(got, want) {
			t.Fatalf("after %d known updates %x leads to the state vector %x here and %x with npm yjs", len(known), u, got, want)
		}
		if decode[bool](t, results[5]) {
			continue // npm merges parked structs into the state and omits an unused flag of keys
		}
		compared++
		if state := decode[[]byte](t, results[4]); !bytes.Equal(d.Snapshot(), state) {
			differ++
			if testing.Verbose() {
				t.Logf("%x: here\n%x, npm\n%x", u, d.Snapshot(), state)
			}
		}
	}
	if taken < tries/20 {
		t.Errorf("only %d of %d were applied", taken, tries)
	}
	// npm would re-encode values that JavaScript writes differently; this seed has none.
	if differ > 0 {
		t.Errorf("the bytes of %d of %d differ", differ, compared)
	}
	t.Logf("%d of %d were applied; of %d without parked structs the bytes of %d differ", taken, tries, compared, differ)
}

// honestUpdates returns updates of three writers that know each other's.
func honestUpdates(t *testing.T, r *rand.Rand) (all [][]byte) {
	t.Helper()
	var docs []*crdt.Doc
	for client := range uint64(3) {
		docs = append(docs, crdt.New(crdt.Options{Client: client + 1}))
	}
	for n := range 25 {
		for i, d := range docs {
			for _, u := range (goWriter{t, d}).edit([]command{denseEdit(r, i+1, n), denseEdit(r, i+1, n)}) {
				all = append(all, u)
				for _, o := range docs {
					goWriter{t, o}.apply([][]byte{u})
				}
			}
		}
	}
	return all
}

// mutate changes an update at one or two positions.
func mutate(r *rand.Rand, update []byte) []byte {
	u := bytes.Clone(update)
	for range 1 + r.IntN(2) {
		switch at := r.IntN(len(u)); r.IntN(3) {
		case 0:
			u[at] ^= 1 << r.IntN(8)
		case 1:
			u[at] = byte(r.Uint32())
		default:
			u[at] = []byte{0, 1, 2, 0x7f, 0x80, 0x81, 0xc4}[r.IntN(7)]
		}
	}
	return u
}

// A peer that keeps deleted content shows the same document, and its updates lead other replicas to the same
// bytes.
func TestPeersThatKeepDeletedContent(t *testing.T) {
	b := newBridge(t)
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 9))
		writers := []writer{npmWriter{b, 0}, npmWriter{b, 1}, goWriter{t, crdt.New(crdt.Options{Client: 3})}}
		b.do(command{"op": "new", "doc": 0, "client": 1, "gc": false}, command{"op": "new", "doc": 1, "client": 2})
		for n := range 12 {
			i := r.IntN(len(writers))
			updates := writers[i].edit([]command{denseEdit(r, i+1, n), denseEdit(r, i+1, n)})
			for k, w := range writers {
				if k != i {
					w.apply(updates)
				}
			}
		}
		// The peer that keeps deleted content sends its whole state to an empty replica.
		fresh := goWriter{t, crdt.New(crdt.Options{Client: 4})}
		fresh.apply([][]byte{writers[0].since([]byte{0})})
		want := writers[1].result()
		for name, got := range map[string]result{"this engine": writers[2].result(), "a newcomer": fresh.result()} {
			if got.json != want.json || name == "this engine" && !got.equal(want) {
				t.Fatalf("seed %d: %s has another document: %s", seed, name, got.difference(want))
			}
		}
		if kept := writers[0].result(); kept.json != want.json {
			t.Fatalf("seed %d: the peer that keeps deleted content shows another document: %s", seed, kept.difference(want))
		}
		if v := writers[0].vector(); !bytes.Equal(v, fresh.vector()) || !bytes.Equal(v, writers[2].vector()) {
			t.Fatalf("seed %d: the state vectors differ", seed)
		}
	}
}
