package hyperswarmtest

import (
	"net/netip"
)

// Mapping is how a NAT maps an inner socket to outer addresses.
type Mapping int

// The mappings.
const (
	Same  Mapping = iota // one outer address for all peers
	Fresh                // another outer port for each peer
)

// NAT is a router between inner hosts and the network. It forwards a datagram to an inner socket only if that
// socket has sent one to the sender's address and port.
type NAT struct {
	n       *Simulation
	host    netip.Addr
	mapping Mapping
	inner   map[netip.AddrPort]*Conn // sockets inside
	out     map[mappingKey]uint16
	in      map[uint16]*mapped
	next    uint16
}

type mappingKey struct{ inner, to netip.AddrPort }

type mapped struct {
	conn *Conn
	open map[netip.AddrPort]bool // senders to forward from
}

// NAT adds a router with the outer address host.
func (n *Simulation) NAT(host string, m Mapping) *NAT {
	r := &NAT{
		n: n, host: netip.MustParseAddr(host), mapping: m, next: 40000,
		inner: make(map[netip.AddrPort]*Conn), out: make(map[mappingKey]uint16), in: make(map[uint16]*mapped),
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.nats[r.host] = r
	return r
}

// Listen returns a socket of an inner host. Port 0 means any.
func (r *NAT) Listen(at netip.AddrPort) *Conn { return r.n.listen(at, r, r.inner) }

// send returns the outer address of a datagram's sender; n.mu is held.
func (r *NAT) send(c *Conn, to netip.AddrPort) (from netip.AddrPort) {
	k := mappingKey{inner: c.addr}
	if r.mapping == Fresh {
		k.to = to
	}
	port, ok := r.out[k]
	if !ok {
		r.next++
		port = r.next
		r.out[k] = port
		r.in[port] = &mapped{conn: c, open: make(map[netip.AddrPort]bool)}
	}
	r.in[port].open[to] = true
	return netip.AddrPortFrom(r.host, port)
}

// receive returns the inner socket for a datagram, or nil if it is dropped; n.mu is held.
func (r *NAT) receive(from, to netip.AddrPort) *Conn {
	m := r.in[to.Port()]
	if m == nil || !m.open[from] {
		return nil
	}
	return m.conn
}

// route finds the receiver of a datagram and the sender's address that it sees; n.mu is held.
func (n *Simulation) route(c *Conn, to netip.AddrPort) (*Conn, netip.AddrPort) {
	from := c.addr
	if c.nat != nil {
		if dst := c.nat.inner[to]; dst != nil {
			return dst, from // on the same inner network
		}
		from = c.nat.send(c, to)
	}
	if r := n.nats[to.Addr()]; r != nil {
		return r.receive(from, to), from
	}
	return n.conns[to], from
}

// freePort returns a port that no socket has had; n.mu is held.
func (n *Simulation) freePort() uint16 {
	n.port++
	if n.port == 0 {
		panic("hyperswarmtest: all ports are used up")
	}
	return n.port
}
