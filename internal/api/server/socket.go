package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
)

// socketServer is the Unix socket: its listener and its connections.
type socketServer struct {
	mcp    func(params json.RawMessage) (Attached, *jsonrpc.Error)
	path   string
	file   os.FileInfo // of the socket, to remove no other
	ln     net.Listener
	rpc    *jsonrpc.Dispatcher
	limits Limits
	log    *slog.Logger
	base   context.Context

	stopping atomic.Bool
	mu       sync.Mutex // guards conns
	conns    map[*socketConn]struct{}
	running  sync.WaitGroup // the connections
}

func (s *Server) listenSocket(ctx context.Context) (*socketServer, error) {
	ln, file, err := listenUnix(ctx, s.cfg.Socket)
	if err != nil {
		return nil, err
	}
	return &socketServer{
		mcp:    s.cfg.SocketMCP,
		path:   s.cfg.Socket,
		file:   file,
		ln:     ln,
		rpc:    &jsonrpc.Dispatcher{Handler: s.cfg.SocketHandler, Log: s.log},
		limits: s.cfg.Limits,
		log:    s.log,
		base:   s.base,
		conns:  make(map[*socketConn]struct{}),
	}, nil
}

// serve accepts connections until the listener is closed.
func (s *socketServer) serve() error {
	var delay time.Duration
	for {
		nc, err := s.ln.Accept()
		switch {
		case err == nil:
			delay = 0
			s.admit(nc)
		case errors.Is(err, net.ErrClosed):
			return nil
		default: // out of descriptors, say: it passes
			delay = min(max(2*delay, 5*time.Millisecond), time.Second)
			s.log.Warn("cannot accept a connection on the socket", "error", err, "again", delay)
			select {
			case <-time.After(delay):
			case <-s.base.Done():
			}
		}
	}
}

func (s *socketServer) admit(nc net.Conn) {
	c := newSocketConn(nc, s)
	s.mu.Lock()
	refused, full := s.stopping.Load(), len(s.conns) >= s.limits.Conns
	if !refused && !full {
		s.conns[c] = struct{}{}
		s.running.Add(1)
	}
	s.mu.Unlock()
	if refused || full {
		c.refuse()
		return
	}
	go func() {
		defer s.running.Done()
		c.serve()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	}()
}

// shutdown stops accepting and reading, and returns when all requests have been
// answered; ending the base context hurries them.
func (s *socketServer) shutdown() error {
	s.mu.Lock()
	s.stopping.Store(true)
	for c := range s.conns {
		c.stopReading()
	}
	s.mu.Unlock()
	err := s.ln.Close()
	if rmErr := removeSocket(s.path, s.file); err == nil {
		err = rmErr
	}
	s.running.Wait()
	return err
}

// outgoing is how many messages wait for a client that reads slowly. Handlers
// that have more block.
const outgoing = 64

// socketConn is one connection. One goroutine reads, one writes, and each
// request has its own.
type socketConn struct {
	nc     net.Conn
	server *socketServer
	ctx    context.Context // ends when the client has gone or is cut off
	cancel context.CancelFunc
	out    chan []byte
	slots  chan struct{}       // one for each request that may run
	memory *semaphore.Weighted // of the lines whose requests run
	busy   sync.WaitGroup
}

func newSocketConn(nc net.Conn, s *socketServer) *socketConn {
	ctx, cancel := context.WithCancel(s.base)
	return &socketConn{
		nc:     nc,
		server: s,
		ctx:    ctx,
		cancel: cancel,
		out:    make(chan []byte, outgoing),
		slots:  make(chan struct{}, s.limits.InFlight),
		memory: semaphore.NewWeighted(s.limits.LineMemory),
	}
}

// refuse tells a client that there is no room for it. The connection is new, so
// the line fits into its buffer and nothing blocks.
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

// serve returns when the connection is closed and its goroutines have ended.
func (c *socketConn) serve() {
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
	c.close()
}

// untilAnswered waits for the requests of a client that sends no more. It may
// have closed only its side and still read the answers. Once it has gone
// altogether, its requests need not wait for anything; until the next look they
// may still begin, so that who sends and leaves has sent.
func (c *socketConn) untilAnswered(answered <-chan struct{}) {
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for {
		select {
		case <-answered:
			return
		case <-c.ctx.Done():
			<-answered
			return
		case <-look.C:
			if peerGone(c.nc) {
				c.cancel()
			}
		}
	}
}

// stopReading makes the reader return before its next line.
func (c *socketConn) stopReading() {
	if err := c.nc.SetReadDeadline(time.Unix(1, 0)); err != nil {
		return // the connection is closed already
	}
}

func (c *socketConn) stopped() bool { return c.server.stopping.Load() || c.ctx.Err() != nil }

// read takes lines and starts their requests until the client ends, breaks a
// rule or the server stops.
func (c *socketConn) read() {
	lines := newLineReader(c.nc, c.server.limits, c.stopped)
	for first := true; ; first = false {
		select {
		case c.slots <- struct{}{}: // no slot, no reading: the client has to wait
		case <-c.ctx.Done():
			return
		}
		line, err := c.nextLine(lines)
		switch {
		case errors.Is(err, errLineTooLong):
			<-c.slots
			c.reject(fmt.Sprintf("a line has at most %d bytes", c.server.limits.Message))
		case errors.Is(err, os.ErrDeadlineExceeded) && !c.stopped():
			c.reject("the line did not come to its end in time")
			return
		case err != nil:
			return
		case len(line) == 0:
			<-c.slots
		case first && c.server.mcp != nil && bytes.Contains(line, []byte(dialect.MethodMCP)) && c.attach(line, lines):
			<-c.slots
			return
		default:
			held := int64(min(len(line), c.server.limits.Message))
			if c.memory.Acquire(c.ctx, held) != nil {
				return // the client has gone
			}
			c.busy.Go(func() {
				c.answer(line)
				c.memory.Release(held)
				<-c.slots
			})
		}
	}
}

// attach serves MCP on the connection from now on, if the line asks for it, and
// returns true at the end.
func (c *socketConn) attach(line []byte, lines *lineReader) bool {
	msg := jsonrpc.Decode(line, c.server.limits.RPC)
	if len(msg.Calls) != 1 || msg.Calls[0].Request.Method != dialect.MethodMCP || msg.Batch {
		return false
	}
	req := msg.Calls[0].Request
	serve, failed := c.server.mcp(req.Params)
	if failed != nil {
		c.send(jsonrpc.AppendError(nil, req.ID, failed))
		return true
	}
	answer, err := jsonrpc.AppendResult(nil, req.ID, struct{}{})
	if err != nil {
		return true // an id that was read can be written
	}
	c.send(answer)
	serve(c.ctx, &attached{c, lines}, attachedWriter{c})
	return true
}

// attached reads what a connection's client sends, without cutting it into lines.
// A client may be silent for as long as it likes.
type attached struct {
	c     *socketConn
	lines *lineReader
}

func (a *attached) Read(b []byte) (int, error) {
	if a.lines.buf.Buffered() == 0 {
		if err := a.c.nc.SetReadDeadline(time.Time{}); err != nil {
			return 0, err
		}
		if a.c.stopped() {
			return 0, io.EOF
		}
	}
	n, err := a.lines.buf.Read(b)
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

// attachedWriter hands messages to the connection's writer.
type attachedWriter struct{ c *socketConn }

func (w attachedWriter) Write(b []byte) (int, error) {
	if err := w.c.queue(bytes.Clone(b)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// nextLine reads a line. It returns io.EOF also where the connection was idle
// for too long and nothing runs on it.
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
		if c.stopped() || len(c.slots) == 1 { // the one is the reader's own
			return nil, io.EOF
		}
	}
}

// answer runs the requests of one line.
func (c *socketConn) answer(line []byte) {
	msg := jsonrpc.Decode(line, c.server.limits.RPC)
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
	if c.queue(append(answer, '\n')) != nil {
		return // the client has gone: nobody is left to tell
	}
}

// streamEvent is dialect.StreamEvent as it is written.
type streamEvent struct {
	ID    jsonrpc.ID `json:"id"`
	Event any        `json:"event"`
}

func (c *socketConn) emit(id jsonrpc.ID, event any) error {
	// The room that queue leaves for a last answer is not for events.
	if err := c.ctx.Err(); err != nil {
		return err
	}
	line, err := jsonrpc.AppendNotification(nil, dialect.NotifyEvent, streamEvent{id, event})
	if err != nil {
		return err
	}
	return c.queue(append(line, '\n'))
}

// queue hands a line to the writer, and blocks while the client reads slowly.
func (c *socketConn) queue(line []byte) error {
	select {
	case c.out <- line:
		return nil
	case <-c.ctx.Done():
	}
	// A last answer still goes out where there is room: the server may be
	// cutting the request off rather than the client be gone.
	select {
	case c.out <- line:
		return nil
	default:
		return c.ctx.Err()
	}
}

// write sends what is queued. Lines that wait go out in one piece. A client
// that takes nothing for WriteTimeout is cut off.
func (c *socketConn) write() {
	stop := context.AfterFunc(c.ctx, func() { c.allow(cutOff) })
	defer stop()
	w := bufio.NewWriterSize(connWriter{c}, 16<<10)
	broken := false
	for line := range c.out {
		if broken {
			continue // handlers that are still ending must not block
		}
		_, err := w.Write(line)
		if err == nil && len(c.out) == 0 {
			err = w.Flush()
		}
		if err != nil {
			broken = true
			c.cancel()
			c.stopReading()
		}
	}
}

// allow gives writes some time from now on.
func (c *socketConn) allow(d time.Duration) {
	if err := c.nc.SetWriteDeadline(time.Now().Add(d)); err != nil {
		return // the connection is closed already
	}
}

// connWriter gives each write its own time, and less once the connection is
// being cut off.
type connWriter struct{ c *socketConn }

func (w connWriter) Write(b []byte) (int, error) {
	w.c.allow(w.c.server.limits.WriteTimeout)
	if w.c.ctx.Err() != nil {
		w.c.allow(cutOff)
	}
	return w.c.nc.Write(b)
}
