package hyperdht

import (
	"net"
	"net/netip"
)

func prefixes(texts ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, t := range texts {
		all = append(all, netip.MustParsePrefix(t))
	}
	return all
}

var (
	privateRanges  = prefixes("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16")
	reservedRanges = prefixes("0.0.0.0/8", "192.0.0.0/24", "192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4")
)

func private(a netip.Addr) bool { return within(a, privateRanges) }

// reserved reports whether nobody can have an address.
func reserved(a netip.Addr) bool { return within(a, reservedRanges) }

func within(a netip.Addr, ranges []netip.Prefix) bool {
	for _, p := range ranges {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// usable leaves out the addresses that a node of the DHT has no business to name:
// those that nobody can have, and a node of the public network private ones, by
// which it could have us send into networks of our own.
func usable(all []netip.AddrPort, namedBy netip.AddrPort) []netip.AddrPort {
	var good []netip.AddrPort
	for _, a := range all {
		if a.Port() != 0 && !reserved(a.Addr()) && (!private(a.Addr()) || private(namedBy.Addr())) {
			good = append(good, a)
		}
	}
	return good
}

// maxAddresses is how many addresses of its own a node tells a peer.
const maxAddresses = 6

// addresses are where this node may be reached: by anybody, if that is known, and
// by neighbours.
func (n *Node) addresses() []netip.AddrPort {
	var all []netip.AddrPort
	if n.rpc.Public().IsValid() {
		all = append(all, n.rpc.Public())
	}
	bound := n.rpc.Socket().Addr()
	if !bound.Addr().IsUnspecified() {
		return append(all, bound)
	}
	found, err := net.InterfaceAddrs()
	if err != nil {
		return all // neighbours then reach us as others do
	}
	for _, a := range found {
		ip, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		addr, ok := netip.AddrFromSlice(ip.IP)
		if addr = addr.Unmap(); ok && addr.Is4() && !addr.IsLoopback() && len(all) < maxAddresses {
			all = append(all, netip.AddrPortFrom(addr, bound.Port()))
		}
	}
	return all
}

// neighbour picks, of a peer's addresses, the one that shares most with one of
// ours.
func neighbour(theirs, ours []netip.AddrPort) (netip.AddrPort, bool) {
	var best netip.AddrPort
	most := -1
	for _, t := range theirs {
		if t.Port() == 0 || reserved(t.Addr()) {
			continue
		}
		for _, o := range ours {
			if n := sharedOctets(t.Addr(), o.Addr()); n > most {
				best, most = t, n
			}
		}
	}
	return best, most >= 0
}

func sharedOctets(a, b netip.Addr) int {
	x, y := a.As4(), b.As4()
	for i := range x {
		if x[i] != y[i] {
			return i
		}
	}
	return len(x)
}
