package dhtrpc

import (
	"bytes"
	"math/bits"
	"net/netip"
	"sync"
	"time"
)

// closeness is how many nodes a row of the table holds and how many nodes store
// a record.
const closeness = 20

// contact is a node of the table.
type contact struct {
	id      ID
	addr    netip.AddrPort
	added   time.Time
	heard   time.Time
	pinging bool
}

// table is the nodes that are known, more of those that are close. It is safe
// for concurrent use.
type table struct {
	mu   sync.Mutex
	own  ID
	rows [257][]*contact
	size int
}

// row is how many leading bits two ids share.
func row(a, b ID) int {
	for i := range a {
		if x := a[i] ^ b[i]; x != 0 {
			return 8*i + bits.LeadingZeros8(x)
		}
	}
	return 256
}

// steady is how long a node that answers keeps its place against new ones.
const (
	steady = 30 * time.Minute
	recent = time.Minute
)

// heard notes that a node has sent something. When its row is full it returns
// the node to be asked whether it is still there; see replace.
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
			return nil // one at a time
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

// pinged ends what heard began.
func (t *table) pinged(c *contact) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.pinging = false
}

// remove takes a node out.
func (t *table) remove(id ID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := &t.rows[row(t.own, id)]
	for i, c := range *r {
		if c.id == id {
			*r = append((*r)[:i:i], (*r)[i+1:]...)
			t.size--
			return
		}
	}
}

// find returns the node at an address, nil if there is none.
func (t *table) has(id ID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.rows[row(t.own, id)] {
		if c.id == id {
			return true
		}
	}
	return false
}

// closest returns up to n addresses near a target, roughly the nearest first.
func (t *table) closest(target ID, n int) []netip.AddrPort {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []netip.AddrPort
	take := func(row []*contact) {
		for _, c := range row {
			if len(all) < n {
				all = append(all, c.addr)
			}
		}
	}
	at := row(t.own, target)
	for i := at; i >= 0 && len(all) < n; i-- {
		take(t.rows[i])
	}
	for i := at + 1; i < len(t.rows) && len(all) < n; i++ {
		take(t.rows[i])
	}
	return all
}

// oldest returns up to n nodes that were silent longest, and not heard since.
func (t *table) oldest(n int, since time.Time) []netip.AddrPort {
	t.mu.Lock()
	defer t.mu.Unlock()
	var found []*contact
	for _, r := range t.rows {
		for _, c := range r {
			if !c.heard.Before(since) {
				continue
			}
			at := len(found)
			for at > 0 && c.heard.Before(found[at-1].heard) {
				at--
			}
			if at >= n {
				continue
			}
			found = append(found[:at], append([]*contact{c}, found[at:]...)...)
			found = found[:min(len(found), n)]
		}
	}
	var all []netip.AddrPort
	for _, c := range found {
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
