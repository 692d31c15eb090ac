package ysync

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/parleyhub/parley/crdt/internal/lib0"
)

// Bounds of awareness.
const (
	maxStateBytes   = 16 << 10
	maxFrameClients = 64
	maxConnClients  = 64 // that one connection may speak of: its own, and those that it heard of before a restart
	maxRoomClients  = 1024
	stateExpires    = 30 * time.Second
)

// presence is what one client says of itself.
type presence struct {
	client uint64
	clock  uint64
	state  []byte // JSON; null for one that is gone
}

var (
	errAwareness = errors.New("the awareness update is malformed")
	errCrowded   = errors.New("the awareness update has too many clients or too large a state")
)

func decodeAwareness(data []byte) ([]presence, error) {
	r := lib0.NewReader(data)
	n := r.Uint()
	if n > maxFrameClients {
		return nil, errCrowded
	}
	var list []presence
	for ; n > 0 && r.Err() == nil; n-- {
		p := presence{client: r.Uint(), clock: r.Uint(), state: r.String(maxStateBytes)}
		if r.Err() == nil && !json.Valid(p.state) {
			return nil, errAwareness
		}
		list = append(list, p)
	}
	if r.Err() == nil && r.Len() > 0 {
		r.Fail(errAwareness)
	}
	return list, r.Err()
}

func encodePresences(list []presence) []byte {
	b := lib0.AppendUint(nil, uint64(len(list)))
	for _, p := range list {
		b = lib0.AppendBytes(lib0.AppendUint(lib0.AppendUint(b, p.client), p.clock), p.state)
	}
	return b
}

func (p presence) gone() bool { return string(p.state) == "null" }

// awareness is what is known of the clients of a room. It belongs to the room's lock.
type awareness struct {
	known map[uint64]*known
}

type known struct {
	presence
	of    *conn
	since time.Time
}

// take takes what a connection says of its clients, and returns what is news to others. Beyond
// the bounds it is left out: who came first is not sent away for it, nor who came later.
func (a *awareness) take(c *conn, list []presence, now time.Time) (news []presence) {
	for _, p := range list {
		k := a.known[p.client]
		switch {
		case k != nil && k.of != c && !k.gone() && k.of != nil:
			// y-websocket passes on what it heard of others; that is not believed, and
			// not held against it.
			continue
		case k == nil && (p.gone() || len(a.known) >= maxRoomClients || a.of(c) >= maxConnClients):
			continue
		case k == nil:
			a.known[p.client] = &known{p, c, now}
		case p.clock > k.clock || p.clock == k.clock && p.gone() && !k.gone():
			*k = known{p, c, now}
		default:
			continue
		}
		news = append(news, p)
	}
	return news
}

// of counts the clients that a connection speaks of.
func (a *awareness) of(c *conn) int {
	n := 0
	for _, k := range a.known {
		if k.of == c {
			n++
		}
	}
	return n
}

// all returns the states of those who are there, in order of their ids.
func (a *awareness) all() []presence {
	var list []presence
	for _, id := range slices.Sorted(maps.Keys(a.known)) {
		if k := a.known[id]; !k.gone() {
			list = append(list, k.presence)
		}
	}
	return list
}

// leave forgets a connection's clients, and returns what to tell the others.
func (a *awareness) leave(c *conn) (gone []presence) {
	for id, k := range a.known {
		if k.of == c {
			if !k.gone() {
				gone = append(gone, presence{id, k.clock, []byte("null")})
			}
			delete(a.known, id)
		}
	}
	return gone
}

// expire forgets those of whom nothing was heard for a while.
func (a *awareness) expire(now time.Time) (gone []presence) {
	for id, k := range a.known {
		if now.Sub(k.since) >= stateExpires {
			if !k.gone() {
				gone = append(gone, presence{id, k.clock, []byte("null")})
			}
			delete(a.known, id)
		}
	}
	return gone
}
