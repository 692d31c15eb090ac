package relay

import (
	"cmp"
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/parleyhub/parley/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/identity"
)

// ServerOptions configure a [Server]. The zero value is ready to use.
type ServerOptions struct {
	// MaxRegistered bounds the registered peers; 0 means 1024.
	MaxRegistered int
	// MaxPaths bounds the concurrent paths; 0 means 256.
	MaxPaths int
	// MaxPathsOfPeer bounds the concurrent paths that one peer has dialled; 0 means 16.
	MaxPathsOfPeer int
	// RateOfPeer bounds the bytes per second, in both directions together, on the paths that one peer has
	// dialled; 0 means 16 MiB.
	RateOfPeer int
	// Idle is the time without data after which a path is closed; 0 means a minute. Live ends send a
	// keep-alive every few seconds.
	Idle time.Duration
	// Logger receives failures that no call returns; nil discards them.
	Logger *slog.Logger
}

// Server forwards data between peers. It is safe for concurrent use.
type Server struct {
	l      *hyperdht.Listener
	o      ServerOptions
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu         sync.Mutex
	allowed    identity.Allow                  // of the last Recheck, for connections accepted before it
	conns      map[*secretstream.Conn]struct{} // all
	registered map[identity.PublicKey]*secretstream.Conn
	waiting    map[pathID]*path
	paths      int
	ofPeer     map[identity.PublicKey]*share
}

// share is a peer's use of the server.
type share struct {
	paths int
	pace  *rate.Limiter
}

// path is a connection that one peer has requested and another may accept.
type path struct {
	to    identity.PublicKey
	of    *share                  // the dialling peer's
	taken chan *secretstream.Conn // the accepting peer's connection; has room for one
}

// Serve forwards data for the peers that a listener allows. The server owns the listener.
func Serve(l *hyperdht.Listener, o ServerOptions) *Server {
	o.MaxRegistered = cmp.Or(o.MaxRegistered, 1024)
	o.MaxPaths = cmp.Or(o.MaxPaths, 256)
	o.MaxPathsOfPeer = cmp.Or(o.MaxPathsOfPeer, 16)
	o.RateOfPeer = cmp.Or(o.RateOfPeer, 16<<20)
	o.Idle = cmp.Or(o.Idle, time.Minute)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	s := &Server{
		l: l, o: o, conns: make(map[*secretstream.Conn]struct{}), registered: make(map[identity.PublicKey]*secretstream.Conn),
		waiting: make(map[pathID]*path), ofPeer: make(map[identity.PublicKey]*share),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Go(s.run)
	return s
}

// Key returns the server's public key, which peers need to use it.
func (s *Server) Key() identity.PublicKey { return s.l.Key() }

// Paths returns the number of open paths.
func (s *Server) Paths() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.paths
}

// Recheck closes the connections, and with them the paths, of peers that allowed rejects. The listener
// checks new connections; allowed is also applied to those it accepts meanwhile.
func (s *Server) Recheck(allowed identity.Allow) {
	s.mu.Lock()
	s.allowed = allowed
	all := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, c := range all {
		if !allowed(c.RemoteKey()) {
			c.Destroy()
		}
	}
}

// Close closes the server and every path through it.
func (s *Server) Close() error {
	s.cancel()
	err := s.l.Close()
	s.wg.Wait()
	return err
}

func (s *Server) run() {
	for {
		c, err := s.l.Accept(s.ctx)
		if err != nil {
			return
		}
		s.wg.Go(func() {
			defer context.AfterFunc(s.ctx, c.Destroy)()
			defer c.Destroy()
			s.mu.Lock()
			s.conns[c] = struct{}{}
			allowed := s.allowed
			s.mu.Unlock()
			if allowed == nil || allowed(c.RemoteKey()) {
				s.serve(c)
			}
			s.mu.Lock()
			delete(s.conns, c)
			s.mu.Unlock()
		})
	}
}

// serve reads a peer's request and handles it.
func (s *Server) serve(c *secretstream.Conn) {
	patience := time.AfterFunc(stepTime, c.Destroy)
	m, err := c.ReadMessage()
	patience.Stop()
	if err != nil {
		return
	}
	request := string(m)
	switch {
	case request == register:
		s.register(c)
	case strings.HasPrefix(request, dial) && len(request) == len(dial)+len(identity.PublicKey{}):
		s.dial(c, identity.PublicKey([]byte(request[len(dial):])))
	case strings.HasPrefix(request, accept) && len(request) == len(accept)+idSize:
		s.accept(c, pathID([]byte(request[len(accept):])))
	default:
		s.o.Logger.Info("a peer sent an unknown request to the relay", "peer", c.RemoteKey())
	}
}

// register keeps a connection to announce paths to its peer.
func (s *Server) register(c *secretstream.Conn) {
	key := c.RemoteKey()
	s.mu.Lock()
	old := s.registered[key]
	if old == nil && len(s.registered) >= s.o.MaxRegistered {
		s.mu.Unlock()
		s.refuse(c, answerBusy)
		return
	}
	s.registered[key] = c
	s.mu.Unlock()
	if old != nil {
		old.Destroy()
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.registered[key] == c {
			delete(s.registered, key)
		}
	}()
	if say(c, answerOK) != nil {
		return
	}
	for { // until the connection ends; messages are ignored
		if _, err := c.ReadMessage(); err != nil {
			return
		}
	}
}

// dial requests a path from a registered peer, and forwards data once it is accepted.
func (s *Server) dial(c *secretstream.Conn, to identity.PublicKey) {
	id, p, target, refusal := s.open(c.RemoteKey(), to)
	if refusal != "" {
		s.refuse(c, refusal)
		return
	}
	defer s.close(id, p, c.RemoteKey())
	if target.WriteMessage(id[:]) != nil {
		s.refuse(c, answerUnknown)
		return
	}
	select {
	case other := <-p.taken:
		defer other.Destroy()
		if say(c, answerOK) == nil && say(other, answerOK) == nil {
			s.splice(c, other, p.of.pace)
		}
	case <-time.After(stepTime):
		s.refuse(c, answerUnknown)
	case <-s.ctx.Done():
	}
}

// linger is how long a refused peer may take to read the answer.
const linger = time.Second

// refuse sends an answer and waits until it has arrived: destroying the connection at once would often lose it.
func (s *Server) refuse(c *secretstream.Conn, answer string) {
	if say(c, answer) != nil || c.Close() != nil {
		return // the connection is broken
	}
	select {
	case <-c.Ended():
	case <-time.After(linger):
	case <-s.ctx.Done():
	}
}

// open creates a path that waits to be accepted.
func (s *Server) open(from, to identity.PublicKey) (id pathID, p *path, target *secretstream.Conn, refusal string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	target = s.registered[to]
	switch {
	case target == nil:
		return id, nil, nil, answerUnknown
	case s.paths >= s.o.MaxPaths || s.ofPeer[from] != nil && s.ofPeer[from].paths >= s.o.MaxPathsOfPeer:
		return id, nil, nil, answerBusy
	}
	of := s.ofPeer[from]
	if of == nil {
		of = &share{pace: rate.NewLimiter(rate.Limit(s.o.RateOfPeer), max(s.o.RateOfPeer, copySize))}
		s.ofPeer[from] = of
	}
	rand.Read(id[:]) // never fails
	p = &path{to: to, of: of, taken: make(chan *secretstream.Conn, 1)}
	s.waiting[id] = p
	s.paths++
	of.paths++
	return id, p, target, ""
}

func (s *Server) close(id pathID, p *path, from identity.PublicKey) {
	s.mu.Lock()
	delete(s.waiting, id)
	s.paths--
	if p.of.paths--; p.of.paths == 0 {
		delete(s.ofPeer, from)
	}
	s.mu.Unlock()
	select {
	case late := <-p.taken:
		late.Destroy()
	default:
	}
}

// accept hands a connection to the path that it accepts, and returns when it is closed.
func (s *Server) accept(c *secretstream.Conn, id pathID) {
	s.mu.Lock()
	p := s.waiting[id]
	if p == nil || p.to != c.RemoteKey() { // only the dialled peer may accept
		s.mu.Unlock()
		return
	}
	delete(s.waiting, id)
	p.taken <- c
	s.mu.Unlock()
	<-c.Done()
}

// copySize is the largest number of bytes forwarded at once.
const copySize = 32 << 10

// splice forwards data between two connections, at a limited rate, until both directions have ended, one
// connection breaks or the path is idle for too long.
func (s *Server) splice(a, b *secretstream.Conn, pace *rate.Limiter) {
	breakUp := func() {
		a.Destroy()
		b.Destroy()
	}
	idle := time.AfterFunc(s.o.Idle, breakUp)
	var wg sync.WaitGroup
	forward := func(to, from *secretstream.Conn) {
		r := &paced{from: from, ctx: s.ctx, pace: pace, came: func() { idle.Reset(s.o.Idle) }}
		if _, err := io.CopyBuffer(to, r, make([]byte, copySize)); err != nil || to.CloseWrite() != nil {
			breakUp()
		}
	}
	wg.Go(func() { forward(a, b) })
	wg.Go(func() { forward(b, a) })
	wg.Wait()
	idle.Stop()
	// The last data still has to arrive.
	late := time.After(stepTime)
	for _, c := range []*secretstream.Conn{a, b} {
		select {
		case <-c.Ended():
		case <-late:
		}
	}
}

// paced is a reader limited to a rate. The limiter's burst must be at least copySize.
type paced struct {
	from io.Reader
	ctx  context.Context
	pace *rate.Limiter
	came func() // called after each read with data
}

// Read implements io.Reader. It waits after reading, so the data is delayed.
func (p *paced) Read(b []byte) (int, error) {
	n, err := p.from.Read(b)
	if n == 0 {
		return n, err
	}
	p.came()
	if werr := p.pace.WaitN(p.ctx, n); werr != nil {
		return 0, werr
	}
	return n, err
}
