package crdt

import (
	"cmp"
	"container/heap"
	"slices"

	"github.com/parleyhub/parley/crdt/internal/lib0"
)

// MergeUpdates merges updates into one with the same content, without a document. Gaps between them become
// Skips. It costs O(n log n) for n structs, regardless of the number of updates.
func MergeUpdates(limits Limits, updates ...[]byte) ([]byte, error) {
	var all []block
	deletes := make(IDSet)
	for _, data := range updates {
		u, err := ParseUpdate(data, limits)
		if err != nil {
			return nil, err
		}
		all = append(all, u.blocks...)
		for client, ranges := range u.deletes {
			deletes[client] = append(deletes[client], ranges...)
		}
	}
	deletes.normalize()
	return writeBlocks(all, nil, deletes), nil
}

// writeBlocks encodes structs, which may overlap, from a state vector on.
func writeBlocks(all []block, sv StateVector, deletes IDSet) []byte {
	slices.SortStableFunc(all, func(a, b block) int { return cmp.Compare(b.client, a.client) })
	var b []byte
	clients := 0
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].client == all[0].client {
			n++
		}
		before := len(b)
		if b = appendMerged(b, all[:n], sv[all[0].client]); len(b) > before {
			clients++
		}
		all = all[n:]
	}
	b = append(lib0.AppendUint(nil, uint64(clients)), b...)
	return deletes.append(b)
}

// appendMerged merges the blocks of one client from a clock on.
func appendMerged(b []byte, blocks []block, from uint64) []byte {
	l := byClock[block](slices.Clone(blocks))
	heap.Init(&l)
	var body []byte
	count := 0
	start, next := from, from
	for len(l) > 0 {
		it := l[0].items[0]
		if it.end() > next {
			switch {
			case it.id.Clock > next && count == 0:
				start, next = it.id.Clock, it.id.Clock
			case it.id.Clock > next:
				body = lib0.AppendUint(append(body, byte(kindSkip)), it.id.Clock-next)
				count++
				next = it.id.Clock
			}
			body = appendItem(body, it, uint32(next-it.id.Clock))
			count++
			next = it.end()
		}
		if l[0].items = l[0].items[1:]; len(l[0].items) == 0 {
			heap.Pop(&l)
		} else {
			heap.Fix(&l, 0)
		}
	}
	if count == 0 {
		return b
	}
	b = lib0.AppendUint(b, uint64(count))
	b = lib0.AppendUint(b, blocks[0].client)
	b = lib0.AppendUint(b, start)
	return append(b, body...)
}
