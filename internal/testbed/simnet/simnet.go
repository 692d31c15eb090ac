// Package simnet simulates a NATS server and the links of computers to it, in virtual time: the server, its clients and
// everything above them are the real ones, and share a bubble of testing/synctest. Links have latency, can be cut, and can hold
// back what one side sends. Computers have clocks that can be wrong. Processes can be killed, and so can the server.
package simnet

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats-server/v2/server/ats"

	"github.com/parleyhub/parley/internal/bus"
)

// address is an IP address, so that no client looks a name up; nobody listens on it.
const address = "nats://127.0.0.1:4222"

const startTimeout = 10 * time.Second

// maxLatency is that of a write to a link; the least is none.
const maxLatency = 4 * time.Millisecond

// Network is a server and the links to it. It is safe for concurrent use, except for Kill and Start.
type Network struct {
	t      *testing.T
	dir    string // has the stores
	stores int
	server *server.Server // nil while it is away

	mu        sync.Mutex
	changed   *sync.Cond // of mu: something was written, held, or cut
	up        bool
	links     map[*link]struct{}
	seed      uint64
	dialed    uint64
	computers map[string]*Computer
}

// Run runs f in a bubble with a network whose server runs. The seed determines the latencies. Bubbles must not run at the same
// time in a process.
func Run(t *testing.T, seed uint64, f func(t *testing.T, n *Network)) {
	dir := t.TempDir()
	ats.Register() // has a goroutine that must not belong to the bubble
	defer ats.Unregister()
	// nats.go pools timers, which must not come into another bubble: two collections empty each pool.
	runtime.GC()
	runtime.GC()
	began := time.Now().UnixNano()
	synctest.Test(t, func(t *testing.T) {
		// The server takes the age of messages from the clock of ats, which is outside the bubble: all would have expired in
		// a bubble that is in the year 2000.
		time.Sleep(time.Until(time.Unix(0, began)))
		n := &Network{t: t, dir: dir, seed: seed, links: map[*link]struct{}{}, computers: map[string]*Computer{}}
		n.changed = sync.NewCond(&n.mu)
		n.Start()
		defer n.stop()
		f(t, n)
	})
}

func (n *Network) store() string { return filepath.Join(n.dir, strconv.Itoa(n.stores)) }

// Start starts the server again, with what it had stored.
func (n *Network) Start() {
	s, err := server.NewServer(&server.Options{ServerName: "simulated", DontListen: true, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: n.store()})
	if err != nil {
		n.t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(startTimeout) {
		n.t.Fatal("the server does not start")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.server, n.up = s, true
}

// Kill kills the server: it answers nothing more, and what it has given to the kernel is what it finds when it is started
// again.
func (n *Network) Kill() {
	n.down()
	synctest.Wait()
	killed := n.store()
	n.stores++
	if err := os.CopyFS(n.store(), os.DirFS(killed)); err != nil {
		n.t.Fatal(err)
	}
	n.shutdown()
}

// down cuts all links to the server.
func (n *Network) down() {
	n.mu.Lock()
	n.up = false
	cut := n.matching(func(*link) bool { return true })
	n.mu.Unlock()
	closeAll(cut)
}

func (n *Network) shutdown() {
	if n.server != nil {
		n.server.Shutdown()
		n.server.WaitForShutdown()
		n.server = nil
	}
}

func (n *Network) stop() {
	n.down()
	n.shutdown()
}

// matching removes links and returns them. n.mu is held.
func (n *Network) matching(want func(*link) bool) (cut []*link) {
	for l := range n.links {
		if want(l) {
			l.cut = true
			cut = append(cut, l)
			delete(n.links, l)
		}
	}
	n.changed.Broadcast()
	return cut
}

func closeAll(links []*link) {
	for _, l := range links {
		_ = l.client.Close()
		_ = l.server.Close()
	}
}

// Computer is a computer with a link to the server.
type Computer struct {
	n                *Network
	isCut            bool
	holdUp, holdDown bool
	wrong            time.Duration // how much its clock is ahead
}

// Computer returns a computer, which it makes at first.
func (n *Network) Computer(name string) *Computer {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.computers[name]
	if c == nil {
		c = &Computer{n: n}
		n.computers[name] = c
	}
	return c
}

// Cut breaks all connections of the computer, with what they carry, and refuses new ones.
func (c *Computer) Cut() {
	c.n.mu.Lock()
	c.isCut = true
	cut := c.n.matching(func(l *link) bool { return l.process.computer == c })
	c.n.mu.Unlock()
	closeAll(cut)
}

// Hold holds back what goes up to the server, or down from it, until Heal or Cut.
func (c *Computer) Hold(up, down bool) {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	c.holdUp, c.holdDown = up, down
}

// Heal ends Cut and Hold.
func (c *Computer) Heal() {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	c.isCut, c.holdUp, c.holdDown = false, false, false
	c.n.changed.Broadcast()
}

// Jump sets the clock of the computer forward, for new processes: the others measure how time goes on with the monotonic one.
func (c *Computer) Jump(d time.Duration) {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	c.wrong += d
}

// Process is a process on a computer.
type Process struct {
	computer *Computer
	wrong    time.Duration
	killed   bool
}

// Process returns a new process.
func (c *Computer) Process() *Process {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	return &Process{computer: c, wrong: c.wrong}
}

// Now returns the time by the computer's clock.
func (p *Process) Now() time.Time { return time.Now().Add(p.wrong) }

// Kill breaks the connections of the process for good. What it does meanwhile has no effect on anybody else.
func (p *Process) Kill() {
	n := p.computer.n
	n.mu.Lock()
	p.killed = true
	cut := n.matching(func(l *link) bool { return l.process == p })
	n.mu.Unlock()
	closeAll(cut)
}

// Dial connects the process to the bus.
func (p *Process) Dial(ctx context.Context) (*bus.Bus, error) {
	return bus.Open(ctx, bus.Config{URL: address, DialContext: p.dial, Logger: slog.New(slog.DiscardHandler)})
}

var errUnreachable = errors.New("the simulated server cannot be reached")

func (p *Process) dial(context.Context, string, string) (net.Conn, error) {
	n := p.computer.n
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.up || p.killed || p.computer.isCut {
		return nil, errUnreachable
	}
	far, err := n.server.InProcessConn()
	if err != nil {
		return nil, err
	}
	conn, near := net.Pipe()
	l := &link{n: n, process: p, client: near, server: far}
	n.links[l] = struct{}{}
	n.dialed++
	go l.carry(l.server, l.client, "PING\r\n", &p.computer.holdUp, n.dialed<<1)
	go l.carry(l.client, l.server, "PONG\r\n", &p.computer.holdDown, n.dialed<<1|1)
	return conn, nil
}

// link is a connection of a process.
type link struct {
	n              *Network
	process        *Process
	client, server net.Conn
	cut            bool // guarded by the network's lock
}

// carry carries what arrives at one end to the other one, each write with a latency, in order. It ends with the link. The
// handshake is neither slow nor held back: nats.go has a lock meanwhile, and no time passes in a bubble while somebody waits for
// a lock.
func (l *link) carry(to, from net.Conn, handshakeEnd string, held *bool, number uint64) {
	var queue [][]byte // guarded by the network's lock
	ended := false
	go func() {
		buffer := make([]byte, 32<<10)
		for {
			size, err := from.Read(buffer)
			l.n.mu.Lock()
			if size > 0 {
				queue = append(queue, append([]byte(nil), buffer[:size]...))
			}
			ended = err != nil
			l.n.changed.Broadcast()
			l.n.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	random, open := rand.New(rand.NewPCG(l.n.seed, number)), false
	for {
		l.n.mu.Lock()
		for !l.cut && (len(queue) == 0 && !ended || open && *held) {
			l.n.changed.Wait()
		}
		if l.cut || len(queue) == 0 {
			l.n.mu.Unlock()
			break
		}
		written := queue[0]
		queue = queue[1:]
		l.n.mu.Unlock()
		if open {
			time.Sleep(time.Duration(random.Int64N(int64(maxLatency))))
		}
		open = open || bytes.Contains(written, []byte(handshakeEnd))
		if _, err := to.Write(written); err != nil {
			break
		}
	}
	_ = to.Close()
	_ = from.Close()
	l.n.mu.Lock()
	delete(l.n.links, l)
	l.n.mu.Unlock()
}
