package relay

import (
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/parleyhub/parley/transport/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/transport/hyperswarm/keys"
	"github.com/parleyhub/parley/transport/hyperswarm/secretstream"
)

// ServerOptions set a [Server] up. The zero value is ready.
type ServerOptions struct {
	// MaxRegistered bounds the peers that hold a connection; 0 means 1024.
	MaxRegistered int
	// MaxPaths bounds the paths at once; 0 means 256.
	MaxPaths int
	// MaxPathsOfPeer bounds those that one peer has dialled; 0 means 16.
	MaxPathsOfPeer int
	// Logger gets what nobody else learns of; nil discards it.
	Logger *slog.Logger
}

// Server forwards between peers. It is safe for concurrent use.
type Server struct {
	l      *hyperdht.Listener
	o      ServerOptions
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu         sync.Mutex
	registered map[keys.PublicKey]*secretstream.Conn
	waiting    map[pathID]*path
	paths      int
	ofPeer     map[keys.PublicKey]int
}

// path is what a peer has asked for and another may take.
type path struct {
	to    keys.PublicKey
	taken chan *secretstream.Conn // has room for one
}

// Serve forwards for the peers whom a listener lets in. The server owns the
// listener.
func Serve(l *hyperdht.Listener, o ServerOptions) *Server {
	if o.MaxRegistered == 0 {
		o.MaxRegistered = 1024
	}
	if o.MaxPaths == 0 {
		o.MaxPaths = 256
	}
	if o.MaxPathsOfPeer == 0 {
		o.MaxPathsOfPeer = 16
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	s := &Server{
		l: l, o: o, registered: make(map[keys.PublicKey]*secretstream.Conn),
		waiting: make(map[pathID]*path), ofPeer: make(map[keys.PublicKey]int),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Go(s.run)
	return s
}

// Key is what peers need to know of the server.
func (s *Server) Key() keys.PublicKey { return s.l.Key() }

// Paths returns how many paths there are.
func (s *Server) Paths() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.paths
}

// Close ends the server and every path through it.
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
			stop := context.AfterFunc(s.ctx, c.Destroy)
			defer stop()
			defer c.Destroy()
			s.serve(c)
		})
	}
}

// serve does what a peer asks for first.
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
	case strings.HasPrefix(request, dial) && len(request) == len(dial)+len(keys.PublicKey{}):
		s.dial(c, keys.PublicKey([]byte(request[len(dial):])))
	case strings.HasPrefix(request, accept) && len(request) == len(accept)+idSize:
		s.accept(c, pathID([]byte(request[len(accept):])))
	default:
		s.o.Logger.Info("a peer wants something unknown of the relay", "peer", c.RemoteKey())
	}
}

// register keeps a connection to tell its peer of those who dial it.
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
	for { // until it ends: it has nothing to say
		if _, err := c.ReadMessage(); err != nil {
			return
		}
	}
}

// dial asks a registered peer to take a path, and forwards when it has.
func (s *Server) dial(c *secretstream.Conn, to keys.PublicKey) {
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
	t := time.NewTimer(stepTime)
	defer t.Stop()
	select {
	case other := <-p.taken:
		defer other.Destroy()
		if say(c, answerOK) == nil && say(other, answerOK) == nil {
			splice(c, other)
		}
	case <-t.C:
		s.refuse(c, answerUnknown)
	case <-s.ctx.Done():
	}
}

// linger is how long a peer may take to read why it is refused.
const linger = time.Second

// refuse tells a peer why it does not get what it asks for. It waits until the answer
// has arrived: destroying the connection at once would often lose it.
func (s *Server) refuse(c *secretstream.Conn, answer string) {
	if say(c, answer) != nil || c.Close() != nil {
		return // it finds out anyway
	}
	t := time.NewTimer(linger)
	defer t.Stop()
	select {
	case <-c.Ended():
	case <-t.C:
	case <-s.ctx.Done():
	}
}

// open makes a path that waits to be taken.
func (s *Server) open(from, to keys.PublicKey) (id pathID, p *path, target *secretstream.Conn, refusal string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	target = s.registered[to]
	switch {
	case target == nil:
		return id, nil, nil, answerUnknown
	case s.paths >= s.o.MaxPaths || s.ofPeer[from] >= s.o.MaxPathsOfPeer:
		return id, nil, nil, answerBusy
	}
	rand.Read(id[:]) // never fails
	p = &path{to: to, taken: make(chan *secretstream.Conn, 1)}
	s.waiting[id] = p
	s.paths++
	s.ofPeer[from]++
	return id, p, target, ""
}

func (s *Server) close(id pathID, p *path, from keys.PublicKey) {
	s.mu.Lock()
	delete(s.waiting, id)
	s.paths--
	if s.ofPeer[from]--; s.ofPeer[from] == 0 {
		delete(s.ofPeer, from)
	}
	s.mu.Unlock()
	select {
	case late := <-p.taken:
		late.Destroy()
	default:
	}
}

// accept gives a connection to the path that it takes, and lives as long as it.
func (s *Server) accept(c *secretstream.Conn, id pathID) {
	s.mu.Lock()
	p := s.waiting[id]
	if p == nil || p.to != c.RemoteKey() { // only the peer that was asked may
		s.mu.Unlock()
		return
	}
	delete(s.waiting, id)
	p.taken <- c
	s.mu.Unlock()
	<-c.Done()
}

// splice forwards between two connections until both ways have ended, or one
// breaks.
func splice(a, b *secretstream.Conn) {
	var wg sync.WaitGroup
	forward := func(to, from *secretstream.Conn) {
		if _, err := io.Copy(to, from); err != nil || to.CloseWrite() != nil {
			a.Destroy()
			b.Destroy()
		}
	}
	wg.Go(func() { forward(a, b) })
	wg.Go(func() { forward(b, a) })
	wg.Wait()
	// What was forwarded last still has to arrive.
	t := time.NewTimer(stepTime)
	defer t.Stop()
	for _, c := range []*secretstream.Conn{a, b} {
		select {
		case <-c.Ended():
		case <-t.C:
		}
	}
}
