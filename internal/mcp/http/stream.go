package http

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime/debug"
	"time"
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
	s := &stream{answer: w, timeout: h.opts.WriteTimeout, begun: make(chan struct{}), ready: make(chan struct{})}
	gone := context.AfterFunc(r.Context(), cancel)
	answered := make(chan struct{})
	request := r.WithContext(ctx)
	serve := func() {
		defer func() {
			cancel()
			s.end()
			h.endRequest(id)
			ended()
			close(answered)
		}()
		defer h.recover()
		h.stateful.ServeHTTP(s, request)
	}
	if !h.goUnlessClosed(serve) {
		close(s.ready)
		serve()
		return
	}
	select {
	case <-s.begun:
	case <-answered:
		return
	}
	if !s.takeOver(r) {
		close(s.ready)
		<-answered
		return
	}
	gone()
	h.watching.Go(func() { s.awaitEnd(cancel) }) // until the connection is closed; serve is counted until then
	close(s.ready)
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

	conn   net.Conn // nil unless taken over
	failed error    // of the last write to conn
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
	s.send(head.Bytes())
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
func (s *stream) send(data []byte) {
	if s.failed == nil {
		s.failed = s.conn.SetWriteDeadline(time.Now().Add(s.timeout))
	}
	if s.failed == nil {
		_, s.failed = s.conn.Write(data)
	}
}

// end ends the answer, and the connection if it was taken over.
func (s *stream) end() {
	if s.conn == nil {
		return
	}
	s.send([]byte("0\r\n\r\n"))
	_ = s.conn.Close() // the client may have closed it
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
	if s.decide(status); s.answer != nil {
		s.answer.WriteHeader(status)
	}
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
	if len(data) > 0 { // an empty chunk is the last one
		s.send(fmt.Appendf(nil, "%x\r\n%s\r\n", len(data), data))
	}
	if s.failed != nil {
		return 0, s.failed
	}
	return len(data), nil
}

// FlushError is for [http.ResponseController].
func (s *stream) FlushError() error {
	if s.answer == nil {
		return s.failed
	}
	return http.NewResponseController(s.answer).Flush()
}
