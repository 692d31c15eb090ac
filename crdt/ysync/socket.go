package ysync

import (
	"bufio"
	"net"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"
)

// socket is the connection below a WebSocket. The frames with documents are the same for all clients: they are encoded
// once and written here, past the WebSocket library, which reads and writes the control frames. Who writes has the turn.
type socket struct {
	net.Conn
	raw    syscall.RawConn // nil if only blocking writes are possible
	turn   chan struct{}   // has an element while nobody writes
	closed chan struct{}
	ending sync.Once

	// These belong to who has the turn.
	rest      []byte             // of a frame that was begun
	attempted func(uintptr) bool // writeNow
	unsent    []byte             // what writeNow writes
	sent      int                // its result
	err       error
	over      bool // nothing may follow: a close frame was sent (RFC 6455, 5.5.1), or a failed write may have cut a frame
}

func newSocket(c net.Conn) *socket {
	s := &socket{Conn: c, turn: make(chan struct{}, 1), closed: make(chan struct{})}
	s.turn <- struct{}{}
	if system, ok := c.(syscall.Conn); ok {
		if raw, err := system.SyscallConn(); err == nil {
			s.raw, s.attempted = raw, s.writeNow
		}
	}
	return s
}

// take takes the turn if it is free and the socket can be written without blocking.
func (s *socket) take() bool {
	if s.raw == nil || !canAttempt {
		return false
	}
	select {
	case <-s.turn:
		if s.rest == nil {
			return true
		}
		s.release()
	default:
	}
	return false
}

// acquire waits for the turn. The error is [net.ErrClosed].
func (s *socket) acquire() error {
	select {
	case <-s.turn:
		return nil
	case <-s.closed:
		return net.ErrClosed
	}
}

func (s *socket) release() { s.turn <- struct{}{} }

// joined bounds the frames that are written in one call.
const joined = 64 << 10

// write writes the rest of the last frame and more frames, small ones together. It blocks until the system has accepted
// them. The caller has the turn. The error is [net.ErrClosed] if nothing may be sent any more, as after an error.
func (s *socket) write(frames [][]byte) error {
	if s.over {
		return net.ErrClosed
	}
	err := s.writeJoined(frames)
	s.over = err != nil
	return err
}

func (s *socket) writeJoined(frames [][]byte) error {
	together := slices.Clip(s.rest)
	s.rest = nil
	for _, b := range frames {
		switch {
		case len(together) == 0:
			together = slices.Clip(b) // appending must not change what other queues share
			continue
		case len(together)+len(b) <= joined:
			together = append(together, b...)
			continue
		}
		if err := s.send(together); err != nil {
			return err
		}
		together = slices.Clip(b)
	}
	if len(together) == 0 {
		return nil
	}
	if err := s.send(together); err != nil {
		return err
	}
	return s.SetWriteDeadline(time.Time{})
}

func (s *socket) send(b []byte) error {
	if err := s.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	_, err := s.Conn.Write(b)
	return err
}

// Write implements [net.Conn] for the WebSocket library: one control frame.
func (s *socket) Write(b []byte) (int, error) {
	if err := s.acquire(); err != nil {
		return 0, err
	}
	defer s.release()
	if err := s.write([][]byte{b}); err != nil {
		return 0, err
	}
	s.over = len(b) > 0 && b[0] == closeFrame
	return len(b), nil
}

// Close implements [net.Conn].
func (s *socket) Close() error {
	s.ending.Do(func() { close(s.closed) })
	return s.Conn.Close()
}

// opener is the response to a request for a WebSocket; it puts the socket below the WebSocket library.
type opener struct {
	http.ResponseWriter
	socket *socket
}

// Hijack implements [http.Hijacker].
func (o *opener) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(o.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	o.socket = newSocket(c)
	return o.socket, bufio.NewReadWriter(rw.Reader, bufio.NewWriter(o.socket)), nil
}
