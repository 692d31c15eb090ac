package hyperdht

import (
	"net/netip"
	"sync"
	"time"

	"github.com/parleyhub/parley/hyperswarm/dhtrpc"
)

const (
	knownLife = 24 * time.Hour // how long a host with a confirmed connection is known
	maxHosts  = 8192           // remembered, in each table
)

// admission bounds how many handshakes are computed: each costs curve arithmetic before the client's
// identity is known. It is safe for concurrent use.
//
// A forwarding host can name any client, so the handshakes that one host forwards are bounded as well. Client
// addresses can be forged, so hosts with a recently confirmed connection have a reserve that a flood of
// others does not use up.
type admission struct {
	clients  *dhtrpc.Limiter // by the client's host
	forwards *dhtrpc.Limiter // by the forwarding host
	all      *dhtrpc.Limiter // of all hosts together
	reserve  *dhtrpc.Limiter // of known hosts together, beyond all

	mu    sync.Mutex
	known *cache[netip.Addr, struct{}]
}

// newAdmission allows rate handshakes per second from one host, five times as many through one host, and
// ten times as many in total.
func newAdmission(rate float64) *admission {
	return &admission{
		clients:  dhtrpc.NewLimiter(rate, 10*rate, maxHosts),
		forwards: dhtrpc.NewLimiter(5*rate, 20*rate, maxHosts),
		all:      dhtrpc.NewLimiter(10*rate, 40*rate, 1),
		reserve:  dhtrpc.NewLimiter(10*rate, 40*rate, 1),
		known:    newCache[netip.Addr, struct{}](knownLife, maxHosts),
	}
}

// allow reports whether to compute a handshake for a client; through is the forwarding host, or the client itself.
func (a *admission) allow(client, through netip.Addr) bool {
	if client != through && !a.forwards.Allow(through, 1) || !a.clients.Allow(client, 1) {
		return false
	}
	if a.all.Allow(netip.Addr{}, 1) {
		return true
	}
	a.mu.Lock()
	_, known := a.known.get(client)
	a.mu.Unlock()
	return known && a.reserve.Allow(netip.Addr{}, 1)
}

// met records a host with which a connection was confirmed.
func (a *admission) met(host netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known.keep(host, struct{}{})
}
