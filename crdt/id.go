package crdt

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/parleyhub/parley/crdt/internal/lib0"
)

// ID identifies one unit of content: a list element, a UTF-16 unit of a text, or a key's value. Each client
// numbers its units from 0.
type ID struct {
	Client uint64
	Clock  uint64
}

// String returns "client:clock".
func (id ID) String() string { return fmt.Sprintf("%d:%d", id.Client, id.Clock) }

func compareIDs(a, b ID) int {
	return cmp.Or(cmp.Compare(a.Client, b.Client), cmp.Compare(a.Clock, b.Clock))
}

// StateVector maps each client to the number of its units that are known; clients without any are absent.
// Deletes do not change it, so documents with equal vectors may differ: see [Doc.Digest].
type StateVector map[uint64]uint64

// Covers reports whether sv includes everything that other includes.
func (sv StateVector) Covers(other StateVector) bool {
	for client, clock := range other {
		if sv[client] < clock {
			return false
		}
	}
	return true
}

// Equal reports whether both vectors are the same.
func (sv StateVector) Equal(other StateVector) bool { return maps.Equal(sv, other) }

// descending returns the keys of a map by client in descending order, the order of the encoding.
func descending[V any](m map[uint64]V) []uint64 {
	return slices.SortedFunc(maps.Keys(m), func(a, b uint64) int { return cmp.Compare(b, a) })
}

// Encode returns the vector's encoding.
func (sv StateVector) Encode() []byte {
	b := lib0.AppendUint(nil, uint64(len(sv)))
	for _, client := range descending(sv) {
		b = lib0.AppendUint(lib0.AppendUint(b, client), sv[client])
	}
	return b
}

// DecodeStateVector decodes a vector of at most max entries. Errors have CodeDeserialization.
func DecodeStateVector(data []byte, max int) (StateVector, error) {
	r := lib0.NewReader(data)
	n := r.Uint()
	if n > uint64(max) {
		return nil, errorf(CodeDeserialization, nil, "a state vector has %d entries; the maximum is %d", n, max)
	}
	sv := make(StateVector, min(n, 1024))
	for ; n > 0 && r.Err() == nil; n-- {
		client, clock := r.Uint(), r.Uint()
		if _, twice := sv[client]; twice {
			return nil, errorf(CodeDeserialization, nil, "a state vector has client %d twice", client)
		}
		if clock > 0 {
			sv[client] = clock
		}
	}
	if r.Err() == nil && r.Len() > 0 {
		return nil, errorf(CodeDeserialization, nil, "%d bytes follow a state vector", r.Len())
	}
	if r.Err() != nil {
		return nil, errorf(CodeDeserialization, r.Err(), "the state vector cannot be decoded")
	}
	return sv, nil
}
