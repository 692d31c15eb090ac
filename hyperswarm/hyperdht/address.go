package hyperdht

import (
	"net"
	"net/netip"
	"slices"
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

// reserved reports whether an address is not assignable to a host.
func reserved(a netip.Addr) bool { return within(a, reservedRanges) }

func within(a netip.Addr, ranges []netip.Prefix) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// usable filters the addresses that a DHT node has named. Reserved ones are dropped, and private ones if
// the naming node is public: it could direct packets into our own network.
func usable(all []netip.AddrPort, namedBy netip.AddrPort) []netip.AddrPort {
	var good []netip.AddrPort
	for _, a := range all {
		if a.Port() != 0 && !reserved(a.Addr()) && (!private(a.Addr()) || private(namedBy.Addr())) {
			good = append(good, a)
		}
	}
	return good
}

// maxAddresses bounds the addresses that a node sends to a peer.
const maxAddresses = 6

// addresses returns where this node may be reached: its public address, if it has one, and those in its
// local networks.
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
		return all // hosts of the local network use the public address
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

// neighbour returns the peer's address with the longest prefix in common with one of ours.
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
