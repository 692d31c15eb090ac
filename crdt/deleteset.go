package crdt

import (
	"cmp"
	"slices"

	"github.com/parleyhub/parley/crdt/internal/lib0"
)

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
