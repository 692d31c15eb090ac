package server

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/base/caller"
)

// socketServer serves the Unix socket.
type socketServer struct {
	*Server
	file os.FileInfo // of the socket, so that only this one is removed
	ln   net.Listener
	rpc  *jsonrpc.Dispatcher

	mu      sync.Mutex // guards conns
	conns   map[net.Conn]struct{}
	running sync.WaitGroup // the connections
}

func (s *Server) listenSocket(ctx context.Context) (*socketServer, error) {
	ln, file, err := listenUnix(ctx, s.cfg.Socket)
	if err != nil {
		return nil, err
	}
	rpc := &jsonrpc.Dispatcher{Handler: s.cfg.SocketHandler, Log: s.log}
	return &socketServer{Server: s, file: file, ln: ln, rpc: rpc, conns: make(map[net.Conn]struct{})}, nil
}

// serve accepts connections until the listener is closed.
func (s *socketServer) serve() error {
	var delay time.Duration
	for {
		nc, err := s.ln.Accept()
		switch {
		case err == nil:
			delay = 0
			s.accept(nc)
		case errors.Is(err, net.ErrClosed):
			return nil
		default: // temporary, such as too many open files
			delay = min(max(2*delay, 5*time.Millisecond), time.Second)
			s.log.Warn("cannot accept a connection on the socket", "error", err, "again", delay)
			select {
			case <-time.After(delay):
			case <-s.base.Done():
			}
		}
	}
}

func (s *socketServer) accept(nc net.Conn) {
	if who := caller.Of(nc); who.Kind == caller.Other {
		s.refusals.Do(func() { s.log.Warn("refused a connection to the socket of " + who.String()) })
		_ = nc.Close()
		return
	}
	c := newSocketConn(nc, s)
	s.mu.Lock()
	refused, full := s.draining.Load(), len(s.conns) >= s.cfg.Limits.Conns
	if !refused && !full {
		s.conns[nc] = struct{}{}
		s.running.Add(1)
	}
	s.mu.Unlock()
	if refused || full {
		c.refuse()
		return
	}
	go func() {
		if detached := c.serve(); detached != nil {
			go s.detach(nc, detached) // with a small stack
			return
		}
		s.ended(nc)
	}()
}

// detach serves a connection that needs nothing of the server.
func (s *socketServer) detach(nc net.Conn, serve Detached) {
	serve(nc)
	_ = nc.Close() // nothing is waited for
	s.ended(nc)
}

func (s *socketServer) ended(nc net.Conn) {
	s.mu.Lock()
	delete(s.conns, nc)
	s.mu.Unlock()
	s.running.Done()
}

// shutdown, after draining is set, stops accepting and reading, and waits until all requests are answered. The
// end of the base context interrupts them.
func (s *socketServer) shutdown() error {
	s.mu.Lock()
	for nc := range s.conns {
		stopReading(nc)
	}
	s.mu.Unlock()
	err := s.ln.Close()
	err = cmp.Or(err, removeSocket(s.cfg.Socket, s.file))
	s.running.Wait()
	return err
}

// outgoing is the size of a connection's send buffer, in messages. Handlers block when it is full.
const outgoing = 64

// socketConn is a connection, with a goroutine for reading, one for writing, and one for each request.
type socketConn struct {
	nc     net.Conn
	server *socketServer
	ctx    context.Context // ends when the client is disconnected
	cancel context.CancelFunc
	out    chan []byte
	slots  chan struct{}       // of concurrent requests
	memory *semaphore.Weighted // of the lines of running requests
	busy   sync.WaitGroup
	// detached serves the connection from now on; nil if it does not.
	detached Detached
}

func newSocketConn(nc net.Conn, s *socketServer) *socketConn {
	ctx, cancel := context.WithCancel(s.base)
	return &socketConn{
		nc:     nc,
		server: s,
		ctx:    ctx,
		cancel: cancel,
		out:    make(chan []byte, outgoing),
		slots:  make(chan struct{}, s.cfg.Limits.InFlight),
		memory: semaphore.NewWeighted(s.cfg.Limits.LineMemory),
	}
}

// refuse sends an error and closes the connection. It does not block, since the line
// fits in a new connection's buffer.
func (c *socketConn) refuse() {
	defer c.cancel()
	busy := jsonrpc.NewError(jsonrpc.CodeServerBusy, "Server busy: too many connections, or stopping",
		jsonrpc.Details{Code: "SERVER_BUSY", Remedy: "try again"})
	c.allow(cutOff)
	if _, err := c.nc.Write(append(jsonrpc.AppendError(nil, jsonrpc.NullID, busy), '\n')); err != nil {
		c.server.log.Debug("cannot refuse a connection of the socket", "error", err)
	}
	c.close()
}

func (c *socketConn) close() {
	if err := c.nc.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		c.server.log.Debug("cannot close a connection of the socket", "error", err)
	}
}

// serve serves the connection until it is closed and its goroutines have ended. It returns what serves the connection from then on; nil if
// it is closed.
func (c *socketConn) serve() Detached {
	defer c.cancel()
	written := make(chan struct{})
	go func() {
		defer close(written)
		c.write()
	}()
	c.read()
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		c.busy.Wait()
	}()
	c.untilAnswered(answered)
	close(c.out)
	<-written
	if c.detached == nil {
		c.close()
	}
	return c.detached
}

// untilAnswered waits for the running requests of a client that has stopped sending. It
// may still read the answers. If it disconnects completely, the requests are canceled
// within a second, which leaves them time to start: a client may send and disconnect.
func (c *socketConn) untilAnswered(answered <-chan struct{}) {
	poll := time.NewTicker(time.Second)
	defer poll.Stop()
	for {
		select {
		case <-answered:
			return
		case <-c.ctx.Done():
			<-answered
			return
		case <-poll.C:
			if peerGone(c.nc) {
				c.cancel()
			}
		}
	}
}

// stopReading makes the reader return before its next line.
func (c *socketConn) stopReading() { stopReading(c.nc) }

func stopReading(nc net.Conn) {
	_ = nc.SetReadDeadline(time.Unix(1, 0)) // fails only on a closed connection
}

func (c *socketConn) stopped() bool { return c.server.draining.Load() || c.ctx.Err() != nil }

// read reads lines and starts their requests until the client stops sending or violates
// the protocol, or the server stops.
func (c *socketConn) read() {
	lines := newLineReader(c.nc, c.server.cfg.Limits, c.stopped)
	for first := true; ; first = false {
		select {
		case c.slots <- struct{}{}: // without a slot the client has to wait
		case <-c.ctx.Done():
			return
		}
		line, err := c.nextLine(lines)
		switch {
		case errors.Is(err, errLineTooLong):
			<-c.slots
			c.reject(fmt.Sprintf("a line has at most %d bytes", c.server.cfg.Limits.Message))
		case errors.Is(err, os.ErrDeadlineExceeded) && !c.stopped():
			c.reject("the line was not completed in time")
			return
		case err != nil:
			return
		case len(line) == 0:
			<-c.slots
		case first && c.server.cfg.SocketMCP != nil && bytes.Contains(line, []byte(dialect.MethodMCP)) && c.attach(line, lines):
			<-c.slots
			return
		case first && c.server.cfg.SocketRest != nil && bytes.Contains(line, []byte(dialect.MethodNetworkRest)) && c.detach(line):
			<-c.slots
			return
		default:
			held := int64(min(len(line), c.server.cfg.Limits.Message))
			if c.memory.Acquire(c.ctx, held) != nil {
				return // the client has disconnected
			}
			c.busy.Go(func() {
				c.answer(line)
				c.memory.Release(held)
				<-c.slots
			})
		}
	}
}

// request decodes a line that is one request with a method; ok is false if it is not.
func (c *socketConn) request(line []byte, method string) (req jsonrpc.Request, ok bool) {
	msg := jsonrpc.Decode(line, c.server.cfg.Limits.RPC)
	if len(msg.Calls) != 1 || msg.Calls[0].Request.Method != method || msg.Batch {
		return req, false
	}
	return msg.Calls[0].Request, true
}

// detach reports whether the line is the request for a rest. The client sends nothing else before it has an answer.
func (c *socketConn) detach(line []byte) bool {
	req, ok := c.request(line, dialect.MethodNetworkRest)
	if !ok {
		return false
	}
	serve, failed := c.server.cfg.SocketRest(req.ID, req.Params)
	if failed != nil {
		c.send(jsonrpc.AppendError(nil, req.ID, failed))
		return true
	}
	server := c.server // and not c, which is too much to keep
	c.detached = func(conn net.Conn) {
		_ = conn.SetDeadline(time.Time{}) // fails only on a closed connection
		if server.draining.Load() {
			stopReading(conn)
		}
		serve(conn)
	}
	return true
}

// attach serves MCP on the connection until it ends and returns true, if the line is the request for that.
func (c *socketConn) attach(line []byte, lines *lineReader) bool {
	req, ok := c.request(line, dialect.MethodMCP)
	if !ok {
		return false
	}
	serve, failed := c.server.cfg.SocketMCP(req.Params)
	if failed != nil {
		c.send(jsonrpc.AppendError(nil, req.ID, failed))
		return true
	}
	answer, err := jsonrpc.AppendResult(nil, req.ID, struct{}{})
	if err != nil {
		return true // impossible: the id was decoded
	}
	c.send(answer)
	serve(c.ctx, &attached{c, lines}, attachedWriter{c})
	return true
}

// attached reads from an MCP connection. There is no idle timeout.
type attached struct {
	c     *socketConn
	lines *lineReader
}

func (a *attached) Read(b []byte) (int, error) {
	if n := a.lines.buffered(b); n > 0 {
		return n, nil
	}
	if err := a.c.nc.SetReadDeadline(time.Time{}); err != nil {
		return 0, err
	}
	if a.c.stopped() {
		return 0, io.EOF
	}
	n, err := a.c.nc.Read(b)
	if errors.Is(err, os.ErrDeadlineExceeded) && a.c.stopped() {
		err = io.EOF
	}
	return n, err
}

// Close ends a read.
func (a *attached) Close() error {
	a.c.cancel()
	a.c.stopReading()
	return nil
}

// attachedWriter passes messages to the connection's writer.
type attachedWriter struct{ c *socketConn }

func (w attachedWriter) Write(b []byte) (int, error) {
	if err := w.c.queue(bytes.Clone(b)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// nextLine reads a line. It also returns io.EOF if the connection was idle for too long and no request is running.
func (c *socketConn) nextLine(lines *lineReader) ([]byte, error) {
	for {
		err := lines.wait()
		if err == nil {
			line, err := lines.next()
			return bytes.TrimSpace(line), err
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, err
		}
		if c.stopped() || len(c.slots) == 1 { // only the reader's own slot
			return nil, io.EOF
		}
	}
}

// answer runs the requests of one line.
func (c *socketConn) answer(line []byte) {
	msg := jsonrpc.Decode(line, c.server.cfg.Limits.RPC)
	id := msg.Calls[0].Request.ID
	emit := func(event any) error { return c.emit(id, event) }
	if answer := c.server.rpc.Serve(c.ctx, msg, emit); answer != nil {
		c.send(answer)
	}
}

func (c *socketConn) reject(reason string) {
	c.send(jsonrpc.AppendError(nil, jsonrpc.NullID, jsonrpc.InvalidRequest(reason)))
}

func (c *socketConn) send(answer []byte) {
	_ = c.queue(append(answer, '\n')) // fails only if the client has disconnected
}

// streamEvent is the encoding of dialect.StreamEvent.
type streamEvent struct {
	ID    jsonrpc.ID `json:"id"`
	Event any        `json:"event"`
}

func (c *socketConn) emit(id jsonrpc.ID, event any) error {
	// After the end of ctx, queue is for answers only.
	if err := c.ctx.Err(); err != nil {
		return err
	}
	line, err := jsonrpc.AppendNotification(nil, dialect.NotifyEvent, streamEvent{id, event})
	if err != nil {
		return err
	}
	return c.queue(append(line, '\n'))
}

// queue passes a line to the writer. It blocks while the buffer is full.
func (c *socketConn) queue(line []byte) error {
	select {
	case c.out <- line:
		return nil
	case <-c.ctx.Done():
	}
	// A last answer is still sent if the buffer has room: ctx may have ended because the server stops.
	select {
	case c.out <- line:
		return nil
	default:
		return c.ctx.Err()
	}
}

// write writes the queued lines, several at once if possible. It disconnects a client
// that reads nothing for WriteTimeout.
func (c *socketConn) write() {
	stop := context.AfterFunc(c.ctx, func() { c.allow(cutOff) })
	defer stop()
	broken := false
	for line := range c.out {
		if broken {
			continue // the remaining handlers must not block
		}
		if err := c.writeQueued(line); err != nil {
			broken = true
			c.cancel()
			c.stopReading()
		}
	}
}

// writers have the buffers of connections that are being written to: most connections wait.
var writers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, 16<<10) }}

// writeQueued writes a line, and those that are queued by then.
func (c *socketConn) writeQueued(line []byte) error {
	w := writers.Get().(*bufio.Writer)
	w.Reset(connWriter{c})
	defer func() {
		w.Reset(nil)
		writers.Put(w)
	}()
	for {
		if _, err := w.Write(line); err != nil {
			return err
		}
		var more bool
		select {
		case line, more = <-c.out:
		default:
		}
		if !more {
			return w.Flush()
		}
	}
}

// allow sets the write deadline to d from now.
func (c *socketConn) allow(d time.Duration) {
	_ = c.nc.SetWriteDeadline(time.Now().Add(d)) // fails only on a closed connection
}

// connWriter sets a deadline for each write, a shorter one after the end of ctx.
type connWriter struct{ c *socketConn }

func (w connWriter) Write(b []byte) (int, error) {
	w.c.allow(w.c.server.cfg.Limits.WriteTimeout)
	if w.c.ctx.Err() != nil {
		w.c.allow(cutOff)
	}
	return w.c.nc.Write(b)
}
