package http

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// serveStream serves the stream of events of a session, which lasts as long as the client has the session open, mostly without an event. As
// soon as the stream has begun, the connection is taken from the HTTP server: what that keeps for a request in progress, its buffers and the
// stack of its goroutine, is 30 KB. ended is called at the end of the stream, which is after the call then.
func (h *Handler) serveStream(w http.ResponseWriter, r *http.Request, id string, ended func()) {
	server := h.beginRequest(id)
	ctx, cancel := context.WithCancel(context.WithValue(h.closed, serverKey{}, server))
	if addr := r.Context().Value(http.LocalAddrContextKey); addr != nil {
		ctx = context.WithValue(ctx, http.LocalAddrContextKey, addr)
	}
	left := make(chan struct{})
	s := &stream{answer: w, timeout: h.opts.WriteTimeout, begun: make(chan struct{}), ready: make(chan struct{}),
		id: id, version: r.Header.Get(headerVersion), ended: ended, cancel: cancel, left: left}
	gone := context.AfterFunc(r.Context(), cancel)
	request := r.WithContext(ctx)
	serve := func() { h.serveUntilEnd(s, request) }
	if !h.goUnlessClosed(serve) {
		close(s.ready)
		serve()
		return
	}
	select {
	case <-s.begun:
	case <-left:
		return
	}
	if !s.takeOver(r) {
		close(s.ready)
		<-left
		return
	}
	gone()
	if last := r.Header.Get(headerLastEvent); last == "" || last[0] == '_' { // of the stream for notifications, which has no id
		h.keepStream(s)
	}
	h.watching.Go(func() { s.awaitEnd(func() { h.clientGone(s) }) }) // until the connection is closed; the session is counted until then
	close(s.ready)
}

// serveUntilEnd has the SDK serve a stream until it ends, or its session is suspended.
func (h *Handler) serveUntilEnd(s *stream, r *http.Request) {
	defer h.left(s)
	defer h.recover()
	h.stateful.ServeHTTP(s, r)
}

// left notes that the SDK does not serve a stream any more. It ends the stream, unless its session is being suspended.
func (h *Handler) left(s *stream) {
	h.mu.Lock()
	s.cancel()
	s.cancel = nil
	of := h.sessions[s.id]
	stays := of != nil && of.parting && of.stream == s && !s.gone && !s.hasFailed()
	h.mu.Unlock()
	if !stays {
		h.endStream(s)
	}
	s.serves()
	close(s.left)
}

// keepStream notes that a stream stays open while its session is suspended.
func (h *Handler) keepStream(s *stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if of := h.sessions[s.id]; of != nil {
		of.stream = s
	}
}

// serveAgain has the SDK serve the stream of a restored session, whose client got the first of the notifications. It returns a channel
// that is closed when the SDK does, or will not. The lock is held.
func (h *Handler) serveAgain(s *stream, server *mcp.Server, delivered int) (serves <-chan struct{}) {
	s.resumed = make(chan struct{})
	if s.gone {
		close(s.resumed)
		return s.resumed
	}
	ctx, cancel := context.WithCancel(context.WithValue(h.closed, serverKey{}, server))
	s.cancel = cancel
	s.left = make(chan struct{})
	r := requestOf(ctx, http.MethodGet, s.id)
	if s.version != "" {
		r.Header.Set(headerVersion, s.version)
	}
	if delivered > 0 {
		r.Header.Set(headerLastEvent, fmt.Sprintf("_%d", delivered-1))
	}
	h.watching.Go(func() { h.serveUntilEnd(s, r) })
	return s.resumed
}

// serves notes that the SDK serves a stream again, or has ended it.
func (s *stream) serves() {
	if s.resumed == nil {
		return
	}
	select {
	case <-s.resumed:
	default:
		close(s.resumed)
	}
}

// clientGone ends a stream whose client has closed the connection.
func (h *Handler) clientGone(s *stream) {
	h.mu.Lock()
	s.gone = true
	cancel := s.cancel
	h.mu.Unlock()
	if cancel != nil {
		cancel() // left ends it
		return
	}
	h.endStream(s)
}

// endStream ends a stream and its request. It is idempotent.
func (h *Handler) endStream(s *stream) {
	h.mu.Lock()
	over := s.over
	s.over, s.gone = true, true
	if of := h.sessions[s.id]; of != nil && of.stream == s {
		of.stream = nil
		h.closedStream(of)
	}
	h.mu.Unlock()
	if over {
		return
	}
	s.end()
	h.endRequest(s.id)
	s.ended()
}

// goUnlessClosed runs f in a goroutine for which Close waits. It reports false if the Handler is closed.
func (h *Handler) goUnlessClosed(f func()) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed.Err() != nil {
		return false
	}
	h.watching.Go(f)
	return true
}

// recover logs a panic, as the HTTP server does for its own goroutines.
func (h *Handler) recover() {
	if v := recover(); v != nil {
		h.opts.Logger.Error("a stream made the server panic", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	}
}

// stream is the answer to a request for a stream of events: that of the HTTP server, until it has taken over the connection. The SDK
// writes from one goroutine at a time.
type stream struct {
	answer  http.ResponseWriter // nil once the connection is taken over
	timeout time.Duration       // of a write to conn

	decided bool          // whether it is known if this is a stream of events
	begun   chan struct{} // closed when it is one; then the writer waits for ready
	ready   chan struct{} // closed when the connection was taken over, or could not be

	sending sync.Mutex    // one write at a time, and the end
	conn    net.Conn      // nil unless taken over
	failed  error         // of the last write to conn
	resumed chan struct{} // closed when the SDK serves it again; nil unless the session was restored

	id, version string // of the session, and of the protocol
	ended       func() // called at the end

	// The Handler's lock guards the rest.
	cancel context.CancelFunc // ends what the SDK does; nil while the session is suspended
	left   chan struct{}      // closed when the SDK has ended it
	gone   bool               // the client has closed the connection
	over   bool               // it has ended
}

// takeOver takes the connection from the HTTP server and writes the header. It reports false if that is not possible.
func (s *stream) takeOver(r *http.Request) bool {
	if !r.ProtoAtLeast(1, 1) { // without chunks
		return false
	}
	header := s.answer.Header().Clone()
	conn, _, err := http.NewResponseController(s.answer).Hijack()
	if err != nil {
		return false
	}
	_ = conn.SetReadDeadline(time.Time{}) // the HTTP server's; without one, reads end with the connection
	s.answer, s.conn = nil, conn
	header.Set("Connection", "close")
	header.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	header.Set("Transfer-Encoding", "chunked")
	var head bytes.Buffer
	head.WriteString("HTTP/1.1 200 OK\r\n")
	_ = header.Write(&head) // into memory
	head.WriteString("\r\n")
	_ = s.send(head.Bytes()) // the next write has the same error
	return true
}

// awaitEnd calls gone when the client has closed the connection, or it is closed here. What the client sends is discarded: it has no
// further request on a connection whose answer says that it will be closed.
func (s *stream) awaitEnd(gone func()) {
	defer gone()
	some := make([]byte, 16)
	for {
		if _, err := s.conn.Read(some); err != nil {
			return
		}
	}
}

// send writes to the connection within the timeout, unless an earlier write has failed.
func (s *stream) send(data []byte) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	if s.failed == nil {
		s.failed = s.conn.SetWriteDeadline(time.Now().Add(s.timeout))
	}
	if s.failed == nil {
		_, s.failed = s.conn.Write(data)
	}
	return s.failed
}

// end ends the answer, and the connection if it was taken over.
func (s *stream) end() {
	if s.conn == nil {
		return
	}
	_ = s.send([]byte("0\r\n\r\n")) // the client may be gone
	_ = s.conn.Close()              // the client may have closed it
}

// Header implements [http.ResponseWriter].
func (s *stream) Header() http.Header {
	if s.answer == nil {
		return http.Header{} // it is sent
	}
	return s.answer.Header()
}

// WriteHeader implements [http.ResponseWriter].
func (s *stream) WriteHeader(status int) {
	s.decide(status)
	switch {
	case s.answer != nil:
		s.answer.WriteHeader(status)
	case status != http.StatusOK: // the SDK does not serve it again
		s.sending.Lock()
		defer s.sending.Unlock()
		s.failed = errRefused
	}
}

var errRefused = errors.New("the stream of a restored session was refused")

func (s *stream) hasFailed() bool {
	s.sending.Lock()
	defer s.sending.Unlock()
	return s.failed != nil
}

// decide has the connection taken over before the header is written, if the answer is a stream.
func (s *stream) decide(status int) {
	if s.decided {
		return
	}
	s.decided = true
	if status == http.StatusOK {
		close(s.begun)
		<-s.ready
	}
}

// Write implements [http.ResponseWriter]: each write to a connection that was taken over is a chunk.
func (s *stream) Write(data []byte) (int, error) {
	s.decide(http.StatusOK)
	if s.answer != nil {
		return s.answer.Write(data)
	}
	switch {
	case len(data) == 0: // it would be the last chunk
		return 0, nil
	case s.resumed != nil && data[0] == ':': // the client has the comment with which the SDK begins
		s.serves()
		return len(data), nil
	}
	if err := s.send(fmt.Appendf(nil, "%x\r\n%s\r\n", len(data), data)); err != nil {
		return 0, err
	}
	return len(data), nil
}

// FlushError is for [http.ResponseController].
func (s *stream) FlushError() error {
	if s.answer == nil {
		return nil // each write is sent at once
	}
	return http.NewResponseController(s.answer).Flush()
}
