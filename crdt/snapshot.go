package crdt

import (
	"cmp"
	"crypto/sha256"
	"hash"
	"slices"

	"github.com/parleyhub/parley/crdt/internal/lib0"
)

// Snapshot returns the whole state, parked structs and deletes included. Replicas
// with the same content return the same bytes.
func (d *Doc) Snapshot() []byte {
	d.Compact()
	return d.EncodeSince(nil)
}

// Digest tells documents apart. The state vector alone would not do: deletes do
// not move it; and the order of what several put at one place is not even in a snapshot.
type Digest struct {
	Vector  [32]byte // of the state vector
	Deletes [32]byte // of the ids that are deleted
	Order   [32]byte // of the ids in the order of each list and chain; zero if not asked for
	Content [32]byte // of the snapshot, without what is parked; zero if not asked for
}

// Digest computes the document's digest; with order and content it costs several times more.
// What is parked is not part of it.
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

// orderDigest hashes the ids of each list and chain: of the roots by name, then of
// the types by the ids of their items.
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
	for _, c := range d.clients {
		for _, chunk := range c.chunks {
			for _, it := range chunk {
				if it.kind == kindType {
					nodes = append(nodes, it.node)
				}
			}
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

// sequence writes ids as runs, so that it does not matter how items are cut.
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

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
