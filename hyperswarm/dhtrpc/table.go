package dhtrpc

import (
	"bytes"
	"math/bits"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// closeness is Kademlia's k: the size of a row, and how many nodes store a record.
const closeness = 20

// contact is a node of the table.
type contact struct {
	id      ID
	addr    netip.AddrPort
	added   time.Time
	heard   time.Time
	pinging bool
}

// table is the Kademlia routing table. It is safe for concurrent use.
type table struct {
	mu   sync.Mutex
	own  ID
	rows [257][]*contact
	size int
}

// row returns how many leading bits two ids share.
func row(a, b ID) int {
	for i := range a {
		if x := a[i] ^ b[i]; x != 0 {
			return 8*i + bits.LeadingZeros8(x)
		}
	}
	return 256
}

const (
	steady = 30 * time.Minute // a node that has answered for so long is not replaced by a new one
	recent = time.Minute
)

// heard records a message of a node. When the node's row is full it may return a contact to ping; the
// caller calls pinged afterwards, and remove if there was no answer.
func (t *table) heard(id ID, addr netip.AddrPort, now time.Time) (stale *contact) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if id == t.own {
		return nil
	}
	r := &t.rows[row(t.own, id)]
	for _, c := range *r {
		if c.id == id {
			c.heard = now
			return nil
		}
	}
	if len(*r) < closeness {
		*r = append(*r, &contact{id: id, addr: addr, added: now, heard: now})
		t.size++
		return nil
	}
	oldest := (*r)[0]
	for _, c := range *r {
		if c.pinging {
			return nil // one at a time in each row
		}
		if c.heard.Before(oldest.heard) {
			oldest = c
		}
	}
	if now.Sub(oldest.heard) < recent && now.Sub(oldest.added) > steady || now.Sub(oldest.heard) < recent/12 {
		return nil
	}
	oldest.pinging = true
	return oldest
}

// pinged marks the end of a ping that heard requested.
func (t *table) pinged(c *contact) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.pinging = false
}

// remove removes a node.
func (t *table) remove(id ID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := &t.rows[row(t.own, id)]
	if i := slices.IndexFunc(*r, func(c *contact) bool { return c.id == id }); i >= 0 {
		*r = slices.Delete(*r, i, i+1)
		t.size--
	}
}

// has reports whether a node is in the table.
func (t *table) has(id ID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.rows[row(t.own, id)], func(c *contact) bool { return c.id == id })
}

// closest returns up to n addresses near a target, roughly nearest first.
func (t *table) closest(target ID, n int) []netip.AddrPort {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []netip.AddrPort
	at := row(t.own, target)
	for i := range t.rows {
		near := t.rows[i]
		if i <= at { // the target's row first, and down from it
			near = t.rows[at-i]
		}
		for _, c := range near[:min(len(near), n-len(all))] {
			all = append(all, c.addr)
		}
	}
	return all
}

// oldest returns up to n nodes that were silent longest, all since before a time.
func (t *table) oldest(n int, since time.Time) []netip.AddrPort {
	t.mu.Lock()
	defer t.mu.Unlock()
	var found []*contact
	for _, r := range t.rows {
		for _, c := range r {
			if c.heard.Before(since) {
				found = append(found, c)
			}
		}
	}
	slices.SortStableFunc(found, func(a, b *contact) int { return a.heard.Compare(b.heard) })
	var all []netip.AddrPort
	for _, c := range found[:min(n, len(found))] {
		all = append(all, c.addr)
	}
	return all
}

func (t *table) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.size
}

// nearer reports whether a is nearer to the target than b.
func nearer(target, a, b ID) bool {
	var x, y ID
	for i := range target {
		x[i], y[i] = a[i]^target[i], b[i]^target[i]
	}
	return bytes.Compare(x[:], y[:]) < 0
}
