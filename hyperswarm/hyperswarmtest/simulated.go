package hyperswarmtest

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Simulation is a network of UDP sockets in memory that loses, repeats and delays datagrams. In a testing/synctest
// bubble its delays take no real time and are exact. Sockets are added with Listen. It is safe for concurrent use.
type Simulation struct {
	mu     sync.Mutex
	rng    *rand.Rand
	conns  map[netip.AddrPort]*Conn
	faults Faults
	tap    func(data []byte, from, to netip.AddrPort) bool
	nats   map[netip.Addr]*NAT
	port   uint16
}

// Faults are the faults that the network causes.
type Faults struct {
	Loss, Repeat  float64       // probabilities
	Delay, Jitter time.Duration // of each datagram; jitter reorders
}

// Simulate returns a network whose faults depend only on the seed.
func Simulate(seed uint64, f Faults) *Simulation {
	return &Simulation{
		rng: rand.New(rand.NewPCG(seed, seed)), faults: f, port: 1024,
		conns: make(map[netip.AddrPort]*Conn), nats: make(map[netip.Addr]*NAT),
	}
}

// Tap sets a function that is called with each datagram, and drops the datagram by returning false.
func (n *Simulation) Tap(f func(data []byte, from, to netip.AddrPort) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tap = f
}

// Set changes the faults.
func (n *Simulation) Set(f Faults) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults = f
}

// queueSize is how many datagrams can wait for a read, like a kernel's buffer.
const queueSize = 2048

// Listen returns a socket at an address; port 0 means any.
func (n *Simulation) Listen(at string) *Conn { return n.ListenAt(netip.MustParseAddrPort(at)) }

// ListenAt is Listen for a parsed address.
func (n *Simulation) ListenAt(at netip.AddrPort) *Conn { return n.listen(at, nil, n.conns) }

// listen adds a socket, on an inner host of nat if that is not nil.
func (n *Simulation) listen(at netip.AddrPort, nat *NAT, conns map[netip.AddrPort]*Conn) *Conn {
	n.mu.Lock()
	defer n.mu.Unlock()
	if at.Port() == 0 {
		at = netip.AddrPortFrom(at.Addr(), n.freePort())
	}
	conns[at] = &Conn{n: n, nat: nat, conns: conns, addr: at, queue: make(chan datagram, queueSize), closed: make(chan struct{})}
	return conns[at]
}

// fate returns the receiver of a datagram (nil if it is lost), the sender's address as the receiver sees it, and the
// delays of its copies.
func (n *Simulation) fate(data []byte, by *Conn, to netip.AddrPort) (*Conn, netip.AddrPort, []time.Duration) {
	n.mu.Lock()
	tap := n.tap
	c, from := n.route(by, to)
	n.mu.Unlock()
	if tap != nil && !tap(data, from, to) {
		return nil, from, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if c == nil || n.rng.Float64() < n.faults.Loss {
		return nil, from, nil
	}
	delays := []time.Duration{n.delay()}
	if n.rng.Float64() < n.faults.Repeat {
		delays = append(delays, n.delay())
	}
	return c, from, delays
}

func (n *Simulation) delay() time.Duration {
	d := n.faults.Delay
	if n.faults.Jitter > 0 {
		d += time.Duration(n.rng.Int64N(int64(n.faults.Jitter)))
	}
	return d
}

type datagram struct {
	data []byte
	from netip.AddrPort
	at   time.Time
}

// Conn is a simulated UDP socket, a udx.PacketConn.
type Conn struct {
	n      *Simulation
	nat    *NAT                     // nil: the socket is not behind a NAT
	conns  map[netip.AddrPort]*Conn // the sockets of its network
	addr   netip.AddrPort
	queue  chan datagram
	once   sync.Once
	closed chan struct{}

	mu      sync.Mutex
	waiting []datagram // ordered by the time of delivery
}

// ReadFromUDPAddrPort is as that of a *net.UDPConn.
func (c *Conn) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	select {
	case d := <-c.queue:
		return copy(b, d.data), d.from, nil
	case <-c.closed:
		return 0, netip.AddrPort{}, net.ErrClosed
	}
}

// WriteToUDPAddrPort is as that of a *net.UDPConn.
func (c *Conn) WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error) {
	select {
	case <-c.closed:
		return 0, net.ErrClosed
	default:
	}
	dst, from, delays := c.n.fate(b, c, to)
	for _, d := range delays {
		dst.schedule(datagram{data: slices.Clone(b), from: from, at: time.Now().Add(d)}, d)
	}
	return len(b), nil
}

// schedule delivers a datagram after a delay. Those that are due at the same time arrive in the order in which they
// were sent.
func (c *Conn) schedule(g datagram, after time.Duration) {
	if after == 0 {
		c.push(g)
		return
	}
	c.mu.Lock()
	at, _ := slices.BinarySearchFunc(c.waiting, g.at, func(w datagram, t time.Time) int {
		if w.at.After(t) {
			return 1
		}
		return -1
	})
	c.waiting = slices.Insert(c.waiting, at, g)
	c.mu.Unlock()
	time.AfterFunc(after, func() { // each timer delivers the first one
		c.mu.Lock()
		defer c.mu.Unlock()
		c.push(c.waiting[0])
		c.waiting = c.waiting[1:]
	})
}

func (c *Conn) push(g datagram) {
	select {
	case c.queue <- g:
	default: // the buffer is full
	}
}

// LocalAddr is as that of a *net.UDPConn.
func (c *Conn) LocalAddr() net.Addr { return net.UDPAddrFromAddrPort(c.addr) }

// Close is as that of a *net.UDPConn.
func (c *Conn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.n.mu.Lock()
		defer c.n.mu.Unlock()
		delete(c.conns, c.addr)
	})
	return nil
}
