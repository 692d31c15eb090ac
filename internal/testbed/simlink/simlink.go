// Package simlink simulates the links between hubs, in virtual time: a transport in memory whose messages are encoded and have
// latency, and signed cards that come by datagrams. Links can be cut, at one end earlier than at the other, hold back what goes in
// one direction, and break at a given message. It is for bubbles of testing/synctest.
package simlink

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/federation/peers"
	"github.com/parleyhub/parley/transport"
)

// The latencies are random up to these. Cards overtake each other, messages of a connection do not.
const (
	maxLatency     = 20 * time.Millisecond
	maxCardLatency = 200 * time.Millisecond
)

// backlog is how many connections wait to be accepted.
const backlog = 64

// kind stands for the transport in cards and endpoints, which have a closed list of them.
const kind = agent.TransportNATS

// Network has the links between some hubs. It is safe for concurrent use. Its locks are not held while time passes.
type Network struct {
	mu    sync.Mutex
	rng   *rand.Rand
	hosts map[identity.PublicKey]*Host
	conns map[*pair]struct{}
	ways  map[way]*wayState
}

// way is one direction of a link.
type way struct{ from, to identity.PublicKey }

type wayState struct {
	cut, held bool
	breakAt   int // how many messages from now break the connection; 0 for none
	lose      bool
}

// New returns a network without hosts. The seed determines the latencies.
func New(seed uint64) *Network {
	return &Network{rng: rand.New(rand.NewPCG(seed, 1)), hosts: map[identity.PublicKey]*Host{}, conns: map[*pair]struct{}{}, ways: map[way]*wayState{}}
}

// way returns the state of a direction. mu is held.
func (n *Network) way(from, to identity.PublicKey) *wayState {
	w := way{from, to}
	if n.ways[w] == nil {
		n.ways[w] = &wayState{}
	}
	return n.ways[w]
}

// latency returns a random one. mu is held.
func (n *Network) latency(most time.Duration) time.Duration {
	return time.Duration(n.rng.Int64N(int64(most)))
}

// Cut breaks the connections between two hubs with what is on its way, and refuses new ones. The second hub notices the end of its
// connections later, after the delay.
func (n *Network) Cut(a, b identity.PublicKey, later time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.way(a, b).cut, n.way(b, a).cut = true, true
	for p := range n.conns {
		if p.between(a, b) {
			p.lost = true
			p.end(a).finish()
			if far := p.end(b); later > 0 {
				time.AfterFunc(later, func() { n.locked(far.finish) })
			} else {
				far.finish()
			}
		}
	}
}

// Hold holds back what goes from one hub to another.
func (n *Network) Hold(from, to identity.PublicKey) {
	n.locked(func() { n.way(from, to).held = true })
}

// Break makes the message with a number, from 1 on, that goes from one hub to another break its connection. It arrives unless lose is set.
func (n *Network) Break(from, to identity.PublicKey, message int, lose bool) {
	n.locked(func() { w := n.way(from, to); w.breakAt, w.lose = message, lose })
}

// Heal ends what Cut, Hold and Break have begun between two hubs.
func (n *Network) Heal(a, b identity.PublicKey) {
	n.locked(func() {
		*n.way(a, b), *n.way(b, a) = wayState{}, wayState{}
		for p := range n.conns {
			p.ends[0].changed.Signal()
			p.ends[1].changed.Signal()
		}
	})
}

// locked calls f with the lock.
func (n *Network) locked(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

// Host is a hub's process in the network.
type Host struct {
	n    *Network
	key  identity.PublicKey
	dead bool // guarded by n.mu, like sink
	sink *cards
	*wait.Backlog[transport.Conn]
}

// Start adds the process of a hub, in the place of its former one.
func (n *Network) Start(key identity.PublicKey) *Host {
	h := &Host{n: n, key: key}
	h.Backlog = wait.NewBacklog(context.Background(), backlog, func(c transport.Conn) { _ = c.Close() }, closedListener)
	n.locked(func() { n.hosts[key] = h })
	return h
}

func closedListener() error { return transport.ErrClosed("the listener", nil) }

// Kill ends the connections of the process for good. It does not block, and what the process does afterwards reaches nobody.
func (h *Host) Kill() {
	h.n.locked(func() {
		h.dead = true
		for p := range h.n.conns {
			if p.ends[0].host == h || p.ends[1].host == h {
				p.breaks()
			}
		}
	})
}

// Link returns the transport of the process.
func (h *Host) Link() *peers.Link {
	return &peers.Link{Listener: listener{h}, Dialer: dialer{h}, Cards: func(l *signedcard.Ledger) peers.CardSource {
		return &cards{host: h, ledger: l, known: map[string]bool{}, seen: map[identity.PublicKey]time.Time{}}
	}}
}

type listener struct{ *Host }

// Endpoint implements [transport.Listener].
func (l listener) Endpoint() agent.Endpoint { return Endpoint(l.key) }

// Endpoint returns where the process with a key listens.
func Endpoint(key identity.PublicKey) agent.Endpoint {
	return agent.Endpoint{Transport: kind, Address: key.String()}
}

// Close implements [transport.Listener].
func (l listener) Close() error {
	l.Backlog.Close()
	return nil
}

type dialer struct{ *Host }

// Dial implements [transport.Dialer].
func (d dialer) Dial(ctx context.Context, to agent.Endpoint) (transport.Conn, error) {
	key, err := identity.ParsePublicKey(to.Address)
	if err != nil {
		return nil, &transport.Error{Code: transport.CodeInvalid, Message: "the address is no key", Err: err}
	}
	n := d.n
	n.mu.Lock()
	latency := n.latency(maxLatency)
	n.mu.Unlock()
	if !wait.Pause(ctx, latency) {
		return nil, ctx.Err()
	}
	near, far := n.connect(d.Host, key)
	if near == nil {
		return nil, &transport.Error{Code: transport.CodeUnreachable, Message: "the hub does not answer"}
	}
	if !far.host.Offer(far) {
		_ = near.Close()
		return nil, &transport.Error{Code: transport.CodeUnreachable, Message: "the hub accepts no connection"}
	}
	return near, nil
}

// connect returns the ends of a new connection, or nil.
func (n *Network) connect(from *Host, key identity.PublicKey) (near, far *conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	to := n.hosts[key]
	if to == nil || to.dead || from.dead || n.way(from.key, key).cut || to.Context().Err() != nil {
		return nil, nil
	}
	p := &pair{n: n}
	for i, h := range []*Host{from, to} {
		p.ends[i] = &conn{pair: p, host: h, changed: sync.NewCond(&n.mu), done: make(chan struct{}), arrived: make(chan []transport.Frame, 1), room: make(chan struct{}, 1)}
	}
	p.ends[0].other, p.ends[1].other = p.ends[1], p.ends[0]
	n.conns[p] = struct{}{}
	go p.ends[0].carry()
	go p.ends[1].carry()
	return p.ends[0], p.ends[1]
}
