package hyperswarmtest

import (
	"net/netip"
)

// Mapping is what a NAT shows others of an inner socket.
type Mapping int

// The mappings.
const (
	Same  Mapping = iota // the same address to everybody
	Fresh                // another port to everybody
)

// NAT is a router between inner hosts and the network. It lets in only what comes
// from an address, port included, to which the inner socket has sent something.
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
	open map[netip.AddrPort]bool // who may send
}

// NAT adds a router with an outer address.
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

// send translates what leaves; n.mu is held.
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

// receive finds the inner socket for what arrives; n.mu is held.
func (r *NAT) receive(from, to netip.AddrPort) *Conn {
	m := r.in[to.Port()]
	if m == nil || !m.open[from] {
		return nil
	}
	return m.conn
}

// route finds the receiver of a datagram and the sender's address that it sees;
// n.mu is held.
func (n *Simulation) route(c *Conn, to netip.AddrPort) (*Conn, netip.AddrPort) {
	from := c.addr
	if c.nat != nil {
		if dst := c.nat.inner[to]; dst != nil {
			return dst, from // neighbours
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
		panic("simnettest: there are no more ports")
	}
	return n.port
}
