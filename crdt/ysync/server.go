// Package ysync lets browsers and other clients of y-websocket edit a replica's document: it implements
// y-protocols 1.0 over WebSocket.
//
//	http.Handle("/documents/{name}", ysync.NewServer(ysync.Options{Open: …}))
//
// Clients' updates are checked like all others before they are applied. A refused update closes the
// connection with a code from 4400 on, after which y-websocket does not reconnect. Awareness (cursors,
// names) is forwarded and never stored.
package ysync

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/time/rate"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/base/wait"
)

// Subprotocol is the subprotocol that a client may offer, besides one that contains a token; it may also offer none.
const Subprotocol = "parley.sync"

// Options configure a Server.
type Options struct {
	// Open returns the document that a request names and the agent that edits it. An error is answered with Status.
	Open func(r *http.Request) (doc Document, agent string, err error)
	// Status returns the HTTP status for an error of Open; nil means 404.
	Status func(error) int
	// OriginChecked means that the request's Origin was checked before. Otherwise only pages of this server
	// may connect.
	OriginChecked bool
	MaxConns      int          // 0 means 1,000
	Logger        *slog.Logger // nil for none
}

// Document is the document that clients edit: a *[replica.Replica] or a wrapper. Two Documents must be
// equal only if they are the same.
type Document interface {
	View(ctx context.Context, f func(d *crdt.Doc)) error
	Submit(ctx context.Context, writer string, update []byte, whole bool) error
	OnUpdate(f func(replica.Update)) (cancel func())
	// Done is closed when the document is no longer served; its clients are then disconnected.
	Done() <-chan struct{}
}

// Server serves clients of y-websocket. Close it after use.
type Server struct {
	o   Options
	log *slog.Logger

	ctx   context.Context
	stop  context.CancelFunc
	done  sync.WaitGroup
	large chan struct{} // slots for reading large frames

	mu    sync.Mutex
	conns int
	rooms map[Document]*room
}

// room holds the clients of one document.
type room struct {
	doc       Document
	conns     []*conn // replaced, never changed
	awareness awareness
	batch     []byte // frames of changes that are followed by more at once; belongs to the handler of OnUpdate
	leave     func() // cancels OnUpdate
}

// conn is one client.
type conn struct {
	ws    *websocket.Conn
	agent string
	out   outbox
	// answers has room for one state: a client that asks again before it has read the answer waits, so that
	// its questions do not fill the memory.
	answers chan struct{}
	// presence and states limit the bytes that the client makes the server send. Above the rate only this
	// client waits.
	presence, states *rate.Limiter
	stop             context.CancelFunc
	stale            chan struct{} // has an element once its copy is of an earlier epoch
}

// Limits of a connection.
const (
	maxFrame     = 16 << 20
	smallFrame   = 64 << 10 // larger frames need a slot
	maxLarge     = 8        // slots for large frames
	frameTimeout = 30 * time.Second
	writeTimeout = 30 * time.Second
	closeTimeout = 5 * time.Second

	presenceRate  = 1 << 20 // bytes of awareness per second
	presenceBurst = 4 << 20
	presenceLeast = 1 << 10 // what a frame counts at least
	statesRate    = 32 << 20
	statesBurst   = 64 << 20
)

// Close codes. After a code from 4400 on y-websocket does not reconnect.
const (
	closeRefused  websocket.StatusCode = 4403
	closeBadFrame websocket.StatusCode = 4400
	closeStale    websocket.StatusCode = 4409
)

// StaleError is returned by Options.Open for a client whose copy is of an earlier epoch: merging it would
// duplicate its content. The client is told not to reconnect.
type StaleError struct{ Message string }

// Error returns the message.
func (e *StaleError) Error() string { return e.Message }

// dismiss accepts a connection only to close it with a code that stops y-websocket from reconnecting: it
// would repeat a refused request forever.
func (s *Server) dismiss(w http.ResponseWriter, r *http.Request, stale *StaleError) {
	below := &opener{ResponseWriter: w}
	ws, err := websocket.Accept(below, r, &websocket.AcceptOptions{Subprotocols: []string{Subprotocol}, InsecureSkipVerify: s.o.OriginChecked})
	if err != nil {
		return // answered
	}
	if err := end(ws, below.socket, closeStale, short(stale.Message)); err != nil {
		s.log.Debug("a client disconnected", "error", err)
	}
}

// end closes a WebSocket after the close handshake, or after closeTimeout. The library waits without a limit for the rest of a frame that
// the client has begun.
func end(ws *websocket.Conn, below *socket, code websocket.StatusCode, reason string) error {
	late := time.AfterFunc(closeTimeout, func() { _ = below.Close() }) // ws reports it
	defer late.Stop()
	return ws.Close(code, reason)
}

// NewServer returns a server.
func NewServer(o Options) *Server {
	s := &Server{o: o, log: o.Logger, rooms: map[Document]*room{}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.o.MaxConns <= 0 {
		s.o.MaxConns = 1000
	}
	s.large = make(chan struct{}, maxLarge)
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.done.Go(s.expire)
	return s
}

// Close disconnects all clients and waits for them.
func (s *Server) Close() {
	s.stop()
	s.done.Wait()
}

// expire removes expired awareness states.
func (s *Server) expire() {
	t := time.NewTicker(stateExpires / 10)
	defer t.Stop()
	for {
		select {
		case now := <-t.C:
			var news []announcement
			s.mu.Lock()
			for _, r := range s.rooms {
				news = append(news, announcement{r.conns, r.awareness.expire(now)})
			}
			s.mu.Unlock()
			for _, n := range news {
				n.send()
			}
		case <-s.ctx.Done():
			return
		}
	}
}

// ServeHTTP serves one client until it disconnects.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !upgrades(r) {
		// Before Open, which may create a document: any page can make a browser send such a request.
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "websocket")
		http.Error(w, "this URL is for clients of y-websocket", http.StatusUpgradeRequired)
		return
	}
	doc, agent, err := s.o.Open(r)
	if stale, ok := errors.AsType[*StaleError](err); ok {
		s.dismiss(w, r, stale)
		return
	}
	if err != nil {
		status := http.StatusNotFound
		if s.o.Status != nil {
			status = s.o.Status(err)
		}
		http.Error(w, err.Error(), status)
		return
	}
	if !s.enter() {
		http.Error(w, "too many clients", http.StatusServiceUnavailable)
		return
	}
	defer s.exit()
	below := &opener{ResponseWriter: w}
	ws, err := websocket.Accept(below, r, &websocket.AcceptOptions{Subprotocols: []string{Subprotocol}, InsecureSkipVerify: s.o.OriginChecked})
	if err != nil {
		return // answered
	}
	ws.SetReadLimit(-1) // read checks the limit, and closes with a code that stops the client from reconnecting
	ctx, stop := context.WithCancel(s.ctx)
	c := &conn{
		ws: ws, agent: agent, out: outbox{socket: below.socket, wake: make(chan struct{}, 1)}, answers: make(chan struct{}, 1),
		presence: rate.NewLimiter(presenceRate, presenceBurst), states: rate.NewLimiter(statesRate, statesBurst),
		stop: stop, stale: make(chan struct{}, 1),
	}
	var writer sync.WaitGroup
	writer.Go(func() { c.write(ctx, doc.Done()) })
	err = s.serve(ctx, doc, c)
	stop()
	writer.Wait()
	c.out.end()
	code, reason := closing(err)
	if err != nil {
		s.log.Warn("a client was disconnected", "document", r.URL.Path, "agent", agent, "from", r.RemoteAddr, "code", int(code), "error", err)
	}
	if err := end(ws, below.socket, code, reason); err != nil {
		s.log.Debug("a client disconnected", "agent", agent, "error", err)
	}
}

// upgrades reports whether a request asks for a WebSocket.
func upgrades(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.EqualFold(r.Header.Get("Upgrade"), "websocket") && r.Header.Get("Sec-WebSocket-Key") != ""
}

// enter counts a client, unless there are too many or the server is closed.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil || s.conns >= s.o.MaxConns {
		return false
	}
	s.conns++
	s.done.Add(1)
	return true
}

func (s *Server) exit() {
	s.mu.Lock()
	s.conns--
	s.mu.Unlock()
	s.done.Done()
}

// closing returns the close code and reason for the error that ended a connection.
func closing(err error) (websocket.StatusCode, string) {
	switch {
	case err == nil:
		return websocket.StatusGoingAway, ""
	case crdt.CodeOf(err) == crdt.CodeDeserialization, errors.Is(err, errBadFrame):
		return closeBadFrame, short(err.Error())
	case crdt.CodeOf(err) != "", errors.As(err, new(*replica.Error)):
		return closeRefused, short(err.Error())
	}
	return websocket.StatusGoingAway, ""
}

var (
	errBadFrame = errors.New("a frame cannot be decoded")
	errTooLarge = fmt.Errorf("%w: it is larger than %d MiB", errBadFrame, maxFrame>>20)
)

// short truncates a reason to what a close frame can hold. It must be UTF-8: a browser ends a connection with another code otherwise, and
// y-websocket would connect again.
func short(s string) string { return text.Valid(s, 100) }

// write sends queued frames to the client. The end of ctx does not interrupt a frame: the connection could then not be
// closed with a code.
func (c *conn) write(ctx context.Context, done <-chan struct{}) {
	for {
		select {
		case <-c.out.wake:
			answered, err := c.out.flush()
			if err != nil {
				c.stop()
				return
			}
			if answered {
				<-c.answers
			}
		case <-c.stale:
			c.out.end()
			if err := end(c.ws, c.out.socket, closeStale, "the document has begun a new epoch"); err != nil {
				c.stop()
			}
			return
		case <-done:
			c.stop()
			return
		case <-ctx.Done():
			return
		}
	}
}

// put sends or queues a frame. A client whose queue is full is disconnected; it may reconnect.
func (c *conn) put(b []byte) {
	if !c.out.put(b) {
		c.stop()
	}
}

// pay waits until the rate limit allows n bytes. It reports false if the connection ends first.
func pay(ctx context.Context, l *rate.Limiter, n int) bool {
	return l.WaitN(ctx, min(n, l.Burst())) == nil
}

// serve handles a client's frames until the connection ends.
func (s *Server) serve(ctx context.Context, doc Document, c *conn) error {
	states := s.join(doc, c)
	defer s.quit(doc, c)
	// The server asks first, so that the client sends what it wrote while offline.
	var vector []byte
	if err := doc.View(ctx, func(d *crdt.Doc) { vector = d.StateVector().Encode() }); err != nil {
		return err
	}
	c.put(encodeSync(syncStep1, vector))
	if len(states) > 0 {
		c.put(encodeAwareness(encodePresences(states)))
	}
	for {
		data, err := s.read(ctx, c)
		switch {
		case errors.Is(err, errBadFrame):
			return err
		case err != nil:
			return nil // the client disconnected, or was disconnected
		}
		f, err := decodeFrame(data)
		if err != nil {
			return errors.Join(errBadFrame, err)
		}
		if err := s.frame(ctx, doc, c, f); err != nil {
			return err
		}
	}
}

// read reads a frame. The number of large frames read concurrently is limited, and the time for each, so
// that many or slow clients do not fill the memory.
func (s *Server) read(ctx context.Context, c *conn) ([]byte, error) {
	kind, r, err := c.ws.Reader(ctx)
	if err != nil {
		return nil, err
	}
	if kind != websocket.MessageBinary {
		return nil, errBadFrame
	}
	data, err := io.ReadAll(io.LimitReader(r, smallFrame))
	if err != nil || len(data) < smallFrame {
		return data, err
	}
	select {
	case s.large <- struct{}{}:
		defer func() { <-s.large }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	slow := time.AfterFunc(frameTimeout, c.stop)
	defer slow.Stop()
	rest, err := io.ReadAll(io.LimitReader(r, maxFrame-smallFrame+1))
	if len(data)+len(rest) > maxFrame {
		return nil, errTooLarge
	}
	return append(data, rest...), err
}

func (s *Server) frame(ctx context.Context, doc Document, c *conn, f frame) error {
	switch f.kind {
	case frameSync:
		return s.sync(ctx, doc, c, f)
	case frameAwareness:
		if !pay(ctx, c.presence, max(len(f.payload), presenceLeast)) {
			return nil
		}
		list, err := decodeAwareness(f.payload)
		if err != nil {
			return errors.Join(errBadFrame, err)
		}
		s.presences(doc, c, list)
	case frameQuery:
		s.mu.Lock()
		states := s.rooms[doc].awareness.all()
		s.mu.Unlock()
		b := encodeAwareness(encodePresences(states))
		if pay(ctx, c.presence, max(len(b), presenceLeast)) {
			c.put(b)
		}
	}
	return nil
}

func (s *Server) sync(ctx context.Context, doc Document, c *conn, f frame) error {
	if f.sync == syncStep1 {
		sv, err := crdt.DecodeStateVector(f.payload, crdt.LiveLimits().Vector)
		if err != nil {
			return err
		}
		select {
		case c.answers <- struct{}{}:
		case <-ctx.Done():
			return nil // disconnected
		}
		var state []byte
		if err := doc.View(ctx, func(d *crdt.Doc) { state = d.EncodeSince(sv) }); err != nil {
			return err
		}
		if !pay(ctx, c.states, len(state)) {
			return nil
		}
		if !c.out.putAnswer(encodeSync(syncStep2, state)) {
			c.stop()
		}
		return nil
	}
	return doc.Submit(ctx, c.agent, f.payload, f.sync == syncStep2)
}

// join adds a client to the room of its document and returns the awareness states.
func (s *Server) join(doc Document, c *conn) []presence {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.rooms[doc]
	if r == nil {
		r = &room{doc: doc, awareness: awareness{known: map[uint64]*known{}}}
		r.leave = doc.OnUpdate(func(u replica.Update) { s.spread(r, u) })
		s.rooms[doc] = r
	}
	r.conns = append(slices.Clip(r.conns), c)
	return r.awareness.all()
}

func (s *Server) quit(doc Document, c *conn) {
	s.mu.Lock()
	r := s.rooms[doc]
	r.conns = slices.DeleteFunc(slices.Clone(r.conns), func(o *conn) bool { return o == c })
	news := announcement{r.conns, r.awareness.leave(c)}
	if len(r.conns) == 0 {
		r.leave()
		delete(s.rooms, doc)
	}
	s.mu.Unlock()
	news.send()
}

// maxBatchBytes bounds the frames that are sent together.
const maxBatchBytes = 256 << 10

// spread sends a change to all clients of a room. Changes that follow each other at once are sent together.
func (s *Server) spread(r *room, u replica.Update) {
	s.mu.Lock()
	conns := r.conns
	s.mu.Unlock()
	if u.Began {
		r.batch = nil
		for _, c := range conns {
			wait.Nudge(c.stale)
		}
		return
	}
	update := u.Message.Payload
	if u.Missed > 0 { // some were skipped: send the whole state
		if err := r.doc.View(s.ctx, func(d *crdt.Doc) { update = d.EncodeSince(nil) }); err != nil {
			return
		}
	}
	r.batch = appendSync(r.batch, syncUpdate, update)
	if u.More && len(r.batch) < maxBatchBytes {
		return
	}
	b := r.batch
	r.batch = nil
	for _, c := range conns {
		c.put(b)
	}
}

// presences stores a client's awareness and sends it to all clients of the room. The client itself receives
// it as a sign that the connection is alive.
func (s *Server) presences(doc Document, c *conn, list []presence) {
	s.mu.Lock()
	r := s.rooms[doc]
	news := announcement{r.conns, r.awareness.update(c, list, time.Now())}
	s.mu.Unlock()
	news.send()
}

// announcement is what the clients of a room are to learn about each other.
type announcement struct {
	conns []*conn
	news  []presence
}

func (a announcement) send() {
	if len(a.news) == 0 {
		return
	}
	b := encodeAwareness(encodePresences(a.news))
	for _, c := range a.conns {
		c.put(b)
	}
}
