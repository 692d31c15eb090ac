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

// Range is a range of clocks of one client.
type Range struct {
	Clock  uint64
	Length uint64
}

// End returns the first clock after the range.
func (r Range) End() uint64 { return r.Clock + r.Length }

// IDSet is a set of ids as ranges of clocks by client. A set is normal if the ranges are sorted and do not touch.
type IDSet map[uint64][]Range

// add adds a range. Adding in ascending order keeps the set normal.
func (s IDSet) add(client uint64, r Range) {
	ranges := s[client]
	if n := len(ranges); n > 0 && ranges[n-1].End() == r.Clock {
		ranges[n-1].Length += r.Length
		return
	}
	s[client] = append(ranges, r)
}

// normalize sorts the ranges and joins those that overlap or touch.
func (s IDSet) normalize() {
	for client, ranges := range s {
		if ranges = joined(ranges); len(ranges) == 0 {
			delete(s, client)
		} else {
			s[client] = ranges
		}
	}
}

func joined(ranges []Range) []Range {
	byClock := func(a, b Range) int { return cmp.Compare(a.Clock, b.Clock) }
	if !slices.IsSortedFunc(ranges, byClock) {
		slices.SortFunc(ranges, byClock)
	}
	kept := ranges[:0]
	for _, r := range ranges {
		if n := len(kept); n > 0 && kept[n-1].End() >= r.Clock {
			kept[n-1].Length = max(kept[n-1].End(), r.End()) - kept[n-1].Clock
			continue
		}
		kept = append(kept, r)
	}
	return kept
}

// Len returns the number of ranges.
func (s IDSet) Len() int {
	n := 0
	for _, ranges := range s {
		n += len(ranges)
	}
	return n
}

// Has reports whether a normal set contains the id.
func (s IDSet) Has(id ID) bool {
	_, found := slices.BinarySearchFunc(s[id.Client], id.Clock, func(r Range, clock uint64) int {
		return compareRange(r.Clock, r.End(), clock)
	})
	return found
}

// compareRange compares the range [first, end) with a clock: 0 means that it contains it.
func compareRange(first, end, clock uint64) int {
	switch {
	case end <= clock:
		return -1
	case first > clock:
		return 1
	}
	return 0
}

// append appends a normal set's encoding.
func (s IDSet) append(b []byte) []byte {
	b = lib0.AppendUint(b, uint64(len(s)))
	for _, client := range descending(s) {
		ranges := s[client]
		b = lib0.AppendUint(lib0.AppendUint(b, client), uint64(len(ranges)))
		for _, r := range ranges {
			b = lib0.AppendUint(lib0.AppendUint(b, r.Clock), r.Length)
		}
	}
	return b
}

// readIDSet decodes a delete set and normalizes it.
func readIDSet(r *lib0.Reader, max int) IDSet {
	clients := r.Uint()
	if clients == 0 {
		return nil
	}
	s := make(IDSet, min(clients, 64))
	left := max
	for ; clients > 0 && r.Err() == nil; clients-- {
		client, n := r.Uint(), r.Uint()
		if n > uint64(left) {
			r.Fail(errorf(CodeLimit, nil, "the update deletes more than %d ranges", max))
			return s
		}
		left -= int(n)
		ranges := slices.Grow(s[client], int(min(n, 64)))
		for ; n > 0 && r.Err() == nil; n-- {
			c := Range{r.Uint(), r.Uint()}
			switch {
			case r.Err() != nil:
			case c.Length == 0:
				r.Fail(errEmptyRange)
			case c.End() > lib0.MaxSafe:
				r.Fail(lib0.ErrRange)
			default:
				ranges = append(ranges, c)
			}
		}
		s[client] = ranges
	}
	s.normalize()
	return s
}
