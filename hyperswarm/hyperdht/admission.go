package hyperdht

import (
	"net/netip"
	"sync"
	"time"

	"github.com/parleyhub/parley/hyperswarm/dhtrpc"
)

const (
	knownLife = 24 * time.Hour // for which a host with a confirmed connection is known
	maxHosts  = 8192           // that are remembered, in each table
)

// admission decides how many handshakes are computed, and for whom: each costs curve
// arithmetic before it is known who asks. It is safe for concurrent use.
//
// Who forwards for others says as it likes for whom: what comes through one host is
// bounded as well. And addresses can be forged: hosts with which a connection was
// confirmed lately have a share of their own, which no flood of others uses up.
type admission struct {
	clients  *dhtrpc.Limiter // for whom it is
	forwards *dhtrpc.Limiter // through whom it comes
	all      *dhtrpc.Limiter // of all together
	reserve  *dhtrpc.Limiter // of known hosts together, beyond that

	mu    sync.Mutex
	known *cache[netip.Addr, struct{}]
}

// newAdmission allows rate handshakes a second for one host, five times as many through
// one host, and ten times as many in all.
func newAdmission(rate float64) *admission {
	return &admission{
		clients:  dhtrpc.NewLimiter(rate, 10*rate, maxHosts),
		forwards: dhtrpc.NewLimiter(5*rate, 20*rate, maxHosts),
		all:      dhtrpc.NewLimiter(10*rate, 40*rate, 1),
		reserve:  dhtrpc.NewLimiter(10*rate, 40*rate, 1),
		known:    newCache[netip.Addr, struct{}](knownLife, maxHosts),
	}
}

// allow reports whether to compute a handshake for a client that came through a host,
// which is its own if it came straight.
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

// met notes that a host has a peer with which a connection was confirmed.
func (a *admission) met(host netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known.keep(host, struct{}{})
}
