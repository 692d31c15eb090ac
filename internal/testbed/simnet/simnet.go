// Package simnet simulates a NATS server and the links of computers to it, in virtual time: the server, its clients and
// everything above them are the real ones, and share a bubble of testing/synctest. Links have latency, can be cut, and can hold
// back what one side sends. Computers have clocks that can be wrong. Processes can be killed, and so can the server.
package simnet

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
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

	carrying sync.WaitGroup // links

	mu        sync.Mutex
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
	n.carrying.Wait()
}

// matching removes links and returns them. n.mu is held.
func (n *Network) matching(want func(*link) bool) (cut []*link) {
	for l := range n.links {
		if want(l) {
			l.cut = true
			cut = append(cut, l)
			delete(n.links, l)
			l.changed.Broadcast()
		}
	}
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
	reason           error // with which connections are refused while it is cut
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
func (c *Computer) Cut() { c.CutBecause(nil) }

// CutBecause is Cut with the error of the attempts to connect; nil for that of a server that cannot be reached.
func (c *Computer) CutBecause(reason error) {
	c.n.mu.Lock()
	c.isCut, c.reason = true, cmp.Or(reason, errUnreachable)
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
	for l := range c.n.links {
		l.changed.Broadcast()
	}
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
	writes   int    // until written is called
	written  func() // nil for never
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

// AtWrite calls f after one of the next writes of the process, from 1 on, when it is on its way. It replaces the former call.
func (p *Process) AtWrite(write int, f func()) {
	p.computer.n.mu.Lock()
	defer p.computer.n.mu.Unlock()
	p.writes, p.written = write, f
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
	switch {
	case !n.up || p.killed:
		return nil, errUnreachable
	case p.computer.isCut:
		return nil, p.computer.reason
	}
	far, err := n.server.InProcessConn()
	if err != nil {
		return nil, err
	}
	near, client := net.Pipe()
	l := &link{n: n, process: p, client: client, server: far, changed: sync.NewCond(&n.mu)}
	n.links[l] = struct{}{}
	n.dialed++
	up, down := n.random(n.dialed<<1), n.random(n.dialed<<1|1)
	n.carrying.Go(func() { l.up(up) })
	n.carrying.Go(func() { l.down(down) })
	return &conn{Conn: near, link: l}, nil
}

// random returns the latencies of one direction of a link.
func (n *Network) random(number uint64) *rand.Rand { return rand.New(rand.NewPCG(n.seed, number)) }

// link is a connection of a process. The network's lock guards what follows changed.
type link struct {
	n              *Network
	process        *Process
	client, server net.Conn // what the client and the server are connected to
	changed        *sync.Cond
	sent           []byte // what the client has written and is not on its way
	ended          bool   // the client writes nothing more
	cut            bool
}

// conn is the client's end of a link. Its writes do not wait for the server: nats.go has a lock meanwhile, and no time passes in
// a bubble while somebody waits for a lock.
type conn struct {
	net.Conn
	link *link
}

// Write implements [net.Conn].
func (c *conn) Write(data []byte) (int, error) {
	written, err := c.link.send(data)
	if err != nil {
		return 0, err
	}
	if written != nil {
		written()
	}
	return len(data), nil
}

// send puts what the client writes on its way, and returns what is to be called then, if anything.
func (l *link) send(data []byte) (written func(), err error) {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	if l.cut || l.ended {
		return nil, io.ErrClosedPipe
	}
	l.sent = append(l.sent, data...)
	l.changed.Broadcast()
	p := l.process
	if p.writes--; p.writes == 0 {
		written = p.written
	}
	return written, nil
}

// Close implements [net.Conn]. What was written still arrives.
func (c *conn) Close() error {
	c.link.n.mu.Lock()
	c.link.ended = true
	c.link.changed.Broadcast()
	c.link.n.mu.Unlock()
	return c.Conn.Close()
}

// up carries what the client writes, with a latency, until the link ends. The handshake is neither slow nor held back, for the
// reason of [conn], in both directions.
func (l *link) up(random *rand.Rand) {
	defer l.close()
	for open := false; l.await(func() bool { return (len(l.sent) > 0 || l.ended) && !(open && l.process.computer.holdUp) }); {
		if open {
			l.delay(random)
		}
		l.n.mu.Lock()
		written := l.sent
		l.sent = nil
		l.n.mu.Unlock()
		if len(written) == 0 {
			return
		}
		if _, err := l.server.Write(written); err != nil {
			return
		}
		open = open || bytes.Contains(written, []byte("PING\r\n"))
	}
}

// down carries what the server writes. The server waits for that, and collects what it has to write next.
func (l *link) down(random *rand.Rand) {
	defer l.close()
	buffer := make([]byte, 32<<10)
	for open := false; ; {
		size, err := l.server.Read(buffer)
		if err != nil || open && !l.await(func() bool { return !l.process.computer.holdDown }) {
			return
		}
		if open {
			l.delay(random)
		}
		if _, err := l.client.Write(buffer[:size]); err != nil {
			return
		}
		open = open || bytes.Contains(buffer[:size], []byte("PONG\r\n"))
	}
}

func (l *link) delay(random *rand.Rand) {
	time.Sleep(time.Duration(random.Int64N(int64(maxLatency))))
}

// await waits until a condition holds, and reports whether the link is there.
func (l *link) await(holds func() bool) bool {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	for !l.cut && !holds() {
		l.changed.Wait()
	}
	return !l.cut
}

func (l *link) close() {
	_ = l.client.Close()
	_ = l.server.Close()
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	l.cut = true
	l.changed.Broadcast()
	delete(l.n.links, l)
}
