package crdt

import (
	"cmp"
	"crypto/sha256"
	"hash"
	"iter"
	"maps"
	"slices"

	"github.com/parleyhub/parley/crdt/internal/lib0"
)

// Snapshot returns the whole state, including parked structs and deletes. Replicas with the same content
// return the same bytes.
func (d *Doc) Snapshot() []byte {
	d.Compact()
	return d.EncodeSince(nil)
}

// Digest distinguishes documents with equal state vectors: deletes do not change the vector, and not even a
// snapshot shows the order of what was written concurrently at one place.
type Digest struct {
	Vector  [32]byte // of the state vector
	Deletes [32]byte // of the deleted ids
	Order   [32]byte // of the ids in the order of each list and chain; zero unless requested
	Content [32]byte // of the snapshot without parked content; zero unless requested
}

// Digest computes the document's digest, without parked content. With order and content it takes several
// times longer.
func (d *Doc) Digest(order bool) Digest {
	g := Digest{
		Vector:  sha256.Sum256(d.StateVector().Encode()),
		Deletes: sha256.Sum256(d.deleted().append(nil)),
	}
	if order {
		d.Compact()
		g.Order, g.Content = d.orderDigest(), sha256.Sum256(d.encodeStore(nil))
	}
	return g
}

// orderDigest hashes the ids of each list and chain, of the roots by name, then of the other types by the
// ids of their items.
func (d *Doc) orderDigest() (sum [32]byte) {
	h := sha256.New()
	w := orderWriter{h: h}
	for _, name := range sortedKeys(d.roots) {
		if n := d.roots[name]; n.head != nil || len(n.keys) > 0 {
			w.b = lib0.AppendString(append(w.b, 1), name)
			w.node(n)
		}
	}
	var nodes []*node
	for it := range d.structs {
		if it.kind == kindType {
			nodes = append(nodes, it.node)
		}
	}
	slices.SortFunc(nodes, func(a, b *node) int { return compareIDs(a.item.id, b.item.id) })
	for _, n := range nodes {
		w.b = appendID(append(w.b, 0), n.item.id)
		w.node(n)
	}
	w.flush()
	h.Sum(sum[:0])
	return sum
}

type orderWriter struct {
	h hash.Hash
	b []byte
}

func (w *orderWriter) node(n *node) {
	w.sequence(n.head)
	for _, key := range sortedKeys(n.keys) {
		w.b = lib0.AppendString(w.b, key)
		w.sequence(n.keys[key].head)
	}
	w.flush()
}

// sequence writes ids as ranges, so that the hash does not depend on how items are split.
func (w *orderWriter) sequence(it *item) {
	for it != nil {
		id, n := it.id, uint64(it.length)
		for it = it.right; it != nil && it.id.Client == id.Client && it.id.Clock == id.Clock+n; it = it.right {
			n += uint64(it.length)
		}
		w.b = lib0.AppendUint(appendID(append(w.b, 2), id), n)
	}
	w.b = append(w.b, 3)
}

func (w *orderWriter) flush() {
	w.h.Write(w.b) // never fails
	w.b = w.b[:0]
}

// sorted yields the entries of a map by key.
func sorted[V any](m map[string]V) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, key := range sortedKeys(m) {
			if !yield(key, m[key]) {
				return
			}
		}
	}
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
