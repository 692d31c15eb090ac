package ysync

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/parleyhub/parley/crdt/internal/lib0"
)

// Limits of awareness.
const (
	maxStateBytes   = 16 << 10
	maxFrameClients = 64
	maxConnClients  = 64 // clients of one connection: its own, and those it repeats after a restart of the server
	maxRoomClients  = 1024
	stateExpires    = 30 * time.Second
)

// presence is a client's awareness state.
type presence struct {
	client uint64
	clock  uint64
	state  []byte // JSON; null once the client has left
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

// awareness holds the states of a room's clients. It is guarded by the server's lock.
type awareness struct {
	known map[uint64]*known
}

type known struct {
	presence
	of    *conn
	since time.Time
}

// update stores the states that a connection sends and returns those to send to the others. States beyond
// the limits are ignored.
func (a *awareness) update(c *conn, list []presence, now time.Time) (news []presence) {
	for _, p := range list {
		k := a.known[p.client]
		switch {
		case k != nil && k.of != c && !k.gone() && k.of != nil:
			// y-websocket repeats the states of other clients, which are ignored.
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

// of counts the clients of a connection.
func (a *awareness) of(c *conn) int {
	n := 0
	for _, k := range a.known {
		if k.of == c {
			n++
		}
	}
	return n
}

// all returns the states of the present clients, by client id.
func (a *awareness) all() []presence {
	var list []presence
	for _, id := range slices.Sorted(maps.Keys(a.known)) {
		if k := a.known[id]; !k.gone() {
			list = append(list, k.presence)
		}
	}
	return list
}

// leave removes a connection's clients and returns the states to send to the others.
func (a *awareness) leave(c *conn) (gone []presence) {
	return a.remove(func(k *known) bool { return k.of == c })
}

// expire removes the clients that were not updated for too long.
func (a *awareness) expire(now time.Time) (gone []presence) {
	return a.remove(func(k *known) bool { return now.Sub(k.since) >= stateExpires })
}

func (a *awareness) remove(which func(*known) bool) (gone []presence) {
	for id, k := range a.known {
		if which(k) {
			if !k.gone() {
				gone = append(gone, presence{id, k.clock, []byte("null")})
			}
			delete(a.known, id)
		}
	}
	return gone
}
