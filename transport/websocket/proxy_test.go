package websocket_test

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	ws "github.com/coder/websocket"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/transport/websocket"
)

// proxy is a TCP proxy between a dialer and a listener that can cause network faults.
type proxy struct {
	t        testing.TB
	ln       net.Listener
	upstream string
	wg       sync.WaitGroup

	mu       sync.Mutex
	links    map[*tcpLink]struct{}
	cutAfter func() int    // bytes after which a new connection is cut; nil: never
	rate     time.Duration // pause after each kilobyte
	refuse   bool
}

type tcpLink struct {
	conns [2]*net.TCPConn // the dialer's and the listener's
	// silent is closed when the connection becomes half-open.
	silent chan struct{}
	ended  chan struct{}
	once   sync.Once
}

// newProxy starts a proxy in front of a listener.
func newProxy(t testing.TB, to agent.Endpoint) *proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, ln: ln, upstream: strings.TrimPrefix(to.Address, "ws://"), links: make(map[*tcpLink]struct{})}
	p.wg.Go(p.serve)
	t.Cleanup(func() {
		ln.Close()
		p.Cut()
		p.wg.Wait()
	})
	return p
}

// Endpoint returns the endpoint to dial instead of the listener's.
func (p *proxy) Endpoint() agent.Endpoint {
	return agent.Endpoint{Transport: agent.TransportWebSocket, Address: "ws://" + p.ln.Addr().String()}
}

func (p *proxy) serve() {
	for {
		conn, err := p.ln.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		refuse := p.refuse
		p.mu.Unlock()
		if refuse {
			conn.Close()
			continue
		}
		up, err := net.Dial("tcp", p.upstream)
		if err != nil { // the listener restarts
			conn.Close()
			continue
		}
		p.join(&tcpLink{conns: [2]*net.TCPConn{conn.(*net.TCPConn), up.(*net.TCPConn)},
			silent: make(chan struct{}), ended: make(chan struct{})})
	}
}

func (p *proxy) join(l *tcpLink) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.links[l] = struct{}{}
	left := -1
	if p.cutAfter != nil {
		left = p.cutAfter()
	}
	budget := &budget{left: left}
	for i := range l.conns {
		p.wg.Go(func() {
			p.pass(l, l.conns[i], l.conns[1-i], budget)
			p.end(l)
		})
	}
}

// budget is how many bytes may pass; negative means any number.
type budget struct {
	mu   sync.Mutex
	left int
}

// take returns how many of n bytes pass and whether the budget is used up.
func (b *budget) take(n int) (int, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left < 0 {
		return n, false
	}
	n = min(n, b.left)
	b.left -= n
	return n, b.left == 0
}

func (p *proxy) pass(l *tcpLink, from, to *net.TCPConn, b *budget) {
	buf := make([]byte, 1024)
	for {
		n, err := from.Read(buf)
		select {
		case <-l.silent:
			<-l.ended
			return
		default:
		}
		pass, over := b.take(n)
		if _, werr := to.Write(buf[:pass]); werr != nil || err != nil || over {
			return
		}
		p.mu.Lock()
		rate := p.rate
		p.mu.Unlock()
		if rate > 0 {
			select {
			case <-time.After(rate):
			case <-l.ended:
				return
			}
		}
	}
}

// end resets both sockets, so that data in the kernel is lost as well.
func (p *proxy) end(l *tcpLink) {
	l.once.Do(func() {
		close(l.ended)
		for _, c := range l.conns {
			c.SetLinger(0)
			c.Close()
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.links, l)
	})
}

func (p *proxy) each(f func(*tcpLink)) {
	p.mu.Lock()
	links := make([]*tcpLink, 0, len(p.links))
	for l := range p.links {
		links = append(links, l)
	}
	p.mu.Unlock()
	for _, l := range links {
		f(l)
	}
}

// Cut resets all connections.
func (p *proxy) Cut() { p.each(p.end) }

// Silence makes all connections half-open.
func (p *proxy) Silence() {
	p.each(func(l *tcpLink) {
		p.mu.Lock()
		defer p.mu.Unlock()
		select {
		case <-l.silent:
		default:
			close(l.silent)
		}
	})
}

// CutAfter makes the proxy cut new connections after a number of bytes, wherever that is in the stream.
func (p *proxy) CutAfter(bytes func() int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutAfter = bytes
}

// Slow sets the pause after each kilobyte.
func (p *proxy) Slow(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate = d
}

// Refuse closes new connections at once.
func (p *proxy) Refuse(yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = yes
}

// shuffler is a proxy that repeats and reorders WebSocket messages.
type shuffler struct {
	t        testing.TB
	server   *httptest.Server
	upstream string

	mu   sync.Mutex
	rand *rand.Rand
}

func newShuffler(t testing.TB, to agent.Endpoint, seed uint64) *shuffler {
	s := &shuffler{t: t, upstream: to.Address, rand: rand.New(rand.NewPCG(seed, seed))}
	s.server = httptest.NewServer(s)
	t.Cleanup(s.server.Close)
	return s
}

func (s *shuffler) Endpoint() agent.Endpoint {
	return agent.Endpoint{Transport: agent.TransportWebSocket, Address: "ws" + strings.TrimPrefix(s.server.URL, "http")}
}

func (s *shuffler) oneOf(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rand.IntN(n) == 0
}

func (s *shuffler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	down, err := ws.Accept(w, r, &ws.AcceptOptions{Subprotocols: []string{websocket.Subprotocol}})
	if err != nil {
		return
	}
	defer down.CloseNow()
	up, _, err := ws.Dial(ctx, s.upstream, &ws.DialOptions{Subprotocols: []string{websocket.Subprotocol}})
	if err != nil {
		return
	}
	defer up.CloseNow()
	var wg sync.WaitGroup
	wg.Go(func() { defer cancel(); s.pass(ctx, down, up) })
	wg.Go(func() { defer cancel(); s.pass(ctx, up, down) })
	wg.Wait()
}

func (s *shuffler) pass(ctx context.Context, from, to *ws.Conn) {
	from.SetReadLimit(-1)
	messages := make(chan []byte)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		defer close(messages)
		for {
			_, data, err := from.Read(ctx)
			if err != nil {
				return
			}
			select {
			case messages <- data:
			case <-ctx.Done():
				return
			}
		}
	})
	write := func(data []byte) bool { return to.Write(ctx, ws.MessageBinary, data) == nil }
	var late [][]byte // delivered after the next one, or after a while
	var timer <-chan time.Time
	for {
		select {
		case data, ok := <-messages:
			if !ok {
				return
			}
			if len(late) < 3 && s.oneOf(4) {
				late, timer = append(late, data), time.After(2*time.Millisecond)
				continue
			}
			if !write(data) || s.oneOf(5) && !write(data) {
				return
			}
		case <-timer:
		}
		for _, data := range late {
			if !write(data) {
				return
			}
		}
		late, timer = nil, nil
	}
}

// discard reads until the end.
func discard(r io.Reader) { _, _ = io.Copy(io.Discard, r) }
