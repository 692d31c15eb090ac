package dhtrpc

import (
	"net/netip"
	"slices"
	"sync"
)

// Sampler estimates a socket's public address from the addresses at which other nodes see it. It is safe
// for concurrent use.
type Sampler struct {
	mu      sync.Mutex
	samples []sample
}

type sample struct{ by, seen netip.AddrPort }

const maxSamples = 16

// LeastSamples is how many samples [Sampler.Class] needs.
const LeastSamples = 3

// Add records at which address a node sees the socket. It replaces the node's former sample.
func (s *Sampler) Add(by, seen netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.samples {
		if s.samples[i].by == by {
			s.samples[i].seen = seen
			return
		}
	}
	s.samples = s.samples[max(0, len(s.samples)-maxSamples+1):]
	s.samples = append(s.samples, sample{by, seen})
}

// Len returns the number of samples.
func (s *Sampler) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.samples)
}

// Addr returns the address in most samples; with port 0 if they agree only on the host, and invalid if they
// do not agree at all.
func (s *Sampler) Addr() netip.AddrPort {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.samples)
	if n == 0 {
		return netip.AddrPort{}
	}
	need := n - min(n/4, 3)
	addrs, hosts := make(map[netip.AddrPort]int), make(map[netip.Addr]int)
	for _, x := range s.samples {
		addrs[x.seen]++
		hosts[x.seen.Addr()]++
	}
	for a, count := range addrs {
		if count >= need {
			return a
		}
	}
	for h, count := range hosts {
		if count >= need {
			return netip.AddrPortFrom(h, 0)
		}
	}
	return netip.AddrPort{}
}

// Class is the behaviour of a NAT.
type Class uint64

// The classes, by their numbers in the protocol.
const (
	Unknown    Class = iota
	Open             // reachable by anyone
	Consistent       // the same address for every peer
	Random           // another port for every peer
)

// String returns the class's name.
func (c Class) String() string {
	if names := [...]string{"unknown", "open", "consistent", "random"}; c < Class(len(names)) {
		return names[c]
	}
	return "unknown"
}

// Class returns the NAT's class and the addresses at which the socket can be reached.
func (s *Sampler) Class() (Class, []netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.samples) < LeastSamples {
		return Unknown, nil
	}
	counts := make(map[netip.AddrPort]int)
	var best, second netip.AddrPort
	for _, x := range s.samples {
		counts[x.seen]++
	}
	for a, n := range counts {
		switch {
		case n > counts[best]:
			best, second = a, best
		case n > counts[second]:
			second = a
		}
	}
	host := netip.AddrPortFrom(best.Addr(), 0)
	switch {
	case counts[best] >= 3:
		return Consistent, []netip.AddrPort{best}
	case counts[best] == 1:
		return Random, []netip.AddrPort{host}
	case counts[second] >= 2 && best.Addr() != second.Addr():
		return Consistent, []netip.AddrPort{best, second}
	case len(s.samples) > 3:
		return Random, []netip.AddrPort{host}
	}
	return Unknown, nil
}

// Guess returns a class from fewer than LeastSamples samples: Consistent, the most frequent class, if all
// of them agree.
func (s *Sampler) Guess() (Class, []netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.samples) == 0 {
		return Unknown, nil
	}
	first := s.samples[0].seen
	if slices.ContainsFunc(s.samples, func(x sample) bool { return x.seen != first }) {
		return Random, []netip.AddrPort{netip.AddrPortFrom(first.Addr(), 0)}
	}
	return Consistent, []netip.AddrPort{first}
}
