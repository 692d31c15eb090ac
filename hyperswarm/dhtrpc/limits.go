package dhtrpc

import (
	"net/netip"
	"sync"
	"time"
)

// Limiter is a token bucket per host. It remembers a bounded number of hosts: above that, hosts with a full
// bucket are forgotten first, then any. It is safe for concurrent use.
type Limiter struct {
	rate, burst float64
	size        int

	mu    sync.Mutex
	hosts map[netip.Addr]allowance
}

type allowance struct {
	left float64
	at   time.Time
}

// NewLimiter allows rate per second and bursts of burst, for each of at most size hosts.
func NewLimiter(rate, burst float64, size int) *Limiter {
	return &Limiter{rate: rate, burst: burst, size: size, hosts: make(map[netip.Addr]allowance)}
}

// Allow takes n tokens from a host's bucket and reports whether it had as many.
func (l *Limiter) Allow(host netip.Addr, n float64) bool {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	a, ok := l.hosts[host]
	if !ok {
		if len(l.hosts) >= l.size {
			l.forget(now)
		}
		a = allowance{l.burst, now}
	}
	a.left = min(a.left+l.rate*now.Sub(a.at).Seconds(), l.burst)
	a.at = now
	ok = a.left >= n
	if ok {
		a.left -= n
	}
	l.hosts[host] = a
	return ok
}

// forget makes room. It examines 64 hosts at most, since it runs for each packet of a flood of forged addresses.
func (l *Limiter) forget(now time.Time) {
	looked := 0
	for h, a := range l.hosts {
		if a.left+l.rate*now.Sub(a.at).Seconds() >= l.burst {
			delete(l.hosts, h)
		}
		if looked++; looked == 64 {
			break
		}
	}
	for h := range l.hosts {
		if len(l.hosts) < l.size {
			return
		}
		delete(l.hosts, h)
	}
}

// recentSet remembers at most size hosts, each for a time.
type recentSet struct {
	life time.Duration
	size int

	mu    sync.Mutex
	hosts map[netip.Addr]time.Time
}

func newRecentSet(life time.Duration, size int) *recentSet {
	return &recentSet{life: life, size: size, hosts: make(map[netip.Addr]time.Time)}
}

func (s *recentSet) add(host netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for h := range s.hosts {
		if len(s.hosts) < s.size {
			break
		}
		delete(s.hosts, h)
	}
	s.hosts[host] = time.Now()
}

func (s *recentSet) has(host netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.hosts[host]
	if ok && time.Since(at) > s.life {
		delete(s.hosts, host)
		return false
	}
	return ok
}

// limits bound what one node does for others.
type limits struct {
	requests *Limiter   // requests handled, per host
	all      *Limiter   // requests of all hosts together, under one key
	replies  *Limiter   // bytes to hosts whose address may be forged
	small    *Limiter   // bytes of replies to them without their value
	pings    *Limiter   // ping_nat, which answers to another port
	hints    *Limiter   // down hints
	proven   *recentSet // hosts that have shown a token
}

const rememberedHosts = 8192

// usualRate is the default of Options.RequestRate.
const usualRate = 200

func newLimits(rate float64) limits {
	if rate == 0 {
		rate = usualRate
	}
	return limits{
		requests: NewLimiter(rate, 2*rate, rememberedHosts),
		all:      NewLimiter(5000, 10000, 1),
		replies:  NewLimiter(64<<10, 64<<10, rememberedHosts),
		small:    NewLimiter(16<<10, 16<<10, rememberedHosts),
		pings:    NewLimiter(2, 10, rememberedHosts),
		hints:    NewLimiter(1, 10, rememberedHosts),
		proven:   newRecentSet(time.Minute, rememberedHosts),
	}
}
