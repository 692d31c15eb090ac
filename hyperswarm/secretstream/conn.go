// Package secretstream makes an ordered stream of bytes secret and true, under
// the keys of a finished handshake, as the npm package @hyperswarm/secret-stream
// does. What travels are messages: their limits are kept for those who want them
// (ReadMessage), and Conn is a net.Conn for all others.
package secretstream

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parleyhub/parley/identity"
)

const (
	lengthSize    = 3
	idSize        = 32
	openingSize   = idSize + headerSize
	maxFrame      = 1<<24 - 1
	chunkSize     = 64 << 10 // bytes of a message that Write makes
	firstRead     = 4 << 10
	defaultLimit  = 1 << 20
	defaultPulse  = 5 * time.Second
	maxSpareBytes = 256 << 10
)

// Stream is what carries a secret stream: a *udx.Stream, or a net.Conn with
// CloseWrite.
type Stream interface {
	net.Conn
	CloseWrite() error
}

// destroyer is a Stream that can be ended at once.
type destroyer interface{ Destroy() }

// Options set a connection up. The zero value is ready.
type Options struct {
	// MaxMessage is how many bytes a received message may have; 0 means 1 MiB.
	MaxMessage int
	// KeepAlive is after how long without a write an empty message is sent;
	// 0 means 5 s, negative never.
	KeepAlive time.Duration
}

// Errors that end a connection.
var (
	ErrForged   = errForged
	ErrProtocol = errors.New("the peer does not speak the secret stream's protocol")
	ErrTooLarge = errors.New("the peer's message is larger than allowed")
)

// Conn is a secret stream. Read and Write may be used at the same time, and
// everything from any goroutine. End it with Close or Destroy.
type Conn struct {
	stream Stream
	result Result
	limit  int
	pulse  time.Duration

	opened    chan struct{} // the peer's header and first message are here, or an error
	confirmed chan struct{}
	done      chan struct{}
	ended     sync.Once

	rmu   sync.Mutex // reading
	pull  *state
	frame []byte // buffer of the frame being read
	rest  []byte // of the last message, not yet read
	first []byte // message that opened the stream
	rerr  error

	wmu   sync.Mutex // writing
	push  *state
	out   []byte
	werr  error
	wrote atomic.Int64 // when the last write was
	timer *time.Timer
	tmu   sync.Mutex
}

// New makes a connection of a stream after the handshake. It sends its header at
// once and reads the peer's in a goroutine that ends with the connection.
func New(s Stream, r *Result, o Options) (*Conn, error) {
	c := &Conn{
		stream: s, result: *r, limit: o.MaxMessage, pulse: o.KeepAlive,
		opened: make(chan struct{}), confirmed: make(chan struct{}), done: make(chan struct{}),
	}
	if c.limit <= 0 {
		c.limit = defaultLimit
	}
	c.limit = min(c.limit, maxFrame-cipherOverhead)
	if c.pulse == 0 {
		c.pulse = defaultPulse
	}
	if err := c.sendHeader(); err != nil {
		return nil, err
	}
	if c.pulse > 0 {
		c.tmu.Lock()
		c.timer = time.AfterFunc(c.pulse, c.keepAlive)
		c.tmu.Unlock()
	}
	go c.open() // ends with the stream
	return c, nil
}

// streamID names one direction of a handshake's stream.
func streamID(hash [64]byte, initiator bool) [32]byte {
	if initiator {
		return identity.KeyedHash(hash[:], identity.StreamInitiator[:])
	}
	return identity.KeyedHash(hash[:], identity.StreamResponder[:])
}

func (c *Conn) sendHeader() error {
	var header [headerSize]byte
	rand.Read(header[:]) // never fails
	var err error
	if c.push, err = newState(c.result.Send, header); err != nil {
		return err
	}
	id := streamID(c.result.Hash, c.result.Initiator)
	b := appendLength(nil, openingSize)
	b = append(append(b, id[:]...), header[:]...)
	_, err = c.stream.Write(b)
	return err
}

func appendLength(b []byte, n int) []byte { return append(b, byte(n), byte(n>>8), byte(n>>16)) }

// open reads the peer's header and its first message, which proves that it is
// there.
func (c *Conn) open() {
	defer close(c.opened)
	if c.rerr = c.readHeader(); c.rerr != nil {
		return
	}
	c.first, c.rerr = c.readFrame()
}

func (c *Conn) readHeader() error {
	var b [lengthSize + openingSize]byte
	if _, err := io.ReadFull(c.stream, b[:lengthSize]); err != nil {
		return err
	}
	if length(b[:]) != openingSize {
		return c.fail(ErrProtocol)
	}
	if _, err := io.ReadFull(c.stream, b[lengthSize:]); err != nil {
		return unexpected(err)
	}
	id := streamID(c.result.Hash, !c.result.Initiator)
	if !bytes.Equal(b[lengthSize:lengthSize+idSize], id[:]) {
		return c.fail(ErrProtocol)
	}
	var err error
	c.pull, err = newState(c.result.Receive, [headerSize]byte(b[lengthSize+idSize:]))
	return err
}

func length(b []byte) int { return int(b[0]) | int(b[1])<<8 | int(b[2])<<16 }

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// fail ends the connection because of what the peer sent.
func (c *Conn) fail(err error) error {
	c.Destroy()
	return err
}

// readFrame reads the next message, which may be empty. It is valid until the
// next call.
func (c *Conn) readFrame() ([]byte, error) {
	var head [lengthSize]byte
	if _, err := io.ReadFull(c.stream, head[:]); err != nil {
		return nil, err
	}
	n := length(head[:])
	if n < cipherOverhead {
		return nil, c.fail(ErrProtocol)
	}
	if n > c.limit+cipherOverhead {
		return nil, c.fail(fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, n-cipherOverhead, c.limit))
	}
	if err := c.fill(n); err != nil {
		return nil, unexpected(err)
	}
	message, tag, err := c.pull.open(c.frame)
	if err != nil {
		return nil, c.fail(err)
	}
	if tag != 0 {
		return nil, c.fail(ErrProtocol)
	}
	select {
	case <-c.confirmed:
	default:
		close(c.confirmed)
	}
	return message, nil
}

// fill reads n bytes behind openRoom. The buffer grows as they come, so that a
// length costs its sender as much as us.
func (c *Conn) fill(n int) error {
	if cap(c.frame) > maxSpareBytes && n < maxSpareBytes/4 {
		c.frame = nil
	}
	c.frame = append(c.frame[:0], make([]byte, openRoom)...)
	for have := 0; have < n; {
		room := cap(c.frame) - openRoom
		if room == have {
			room = max(2*have, firstRead)
			grown := make([]byte, openRoom+have, openRoom+min(room, n))
			copy(grown, c.frame)
			c.frame = grown
		}
		end := openRoom + min(room, n)
		m, err := io.ReadFull(c.stream, c.frame[len(c.frame):end])
		c.frame = c.frame[:len(c.frame)+m]
		have += m
		if err != nil {
			return err
		}
	}
	return nil
}

// Confirmed is closed when the first message has come. Only then it is certain
// that the peer is there now: a handshake can be a repeated recording.
func (c *Conn) Confirmed() <-chan struct{} { return c.confirmed }

// RemoteKey names the peer.
func (c *Conn) RemoteKey() identity.PublicKey { return c.result.Remote }

// Initiator reports whether this end dialled.
func (c *Conn) Initiator() bool { return c.result.Initiator }

// ReadMessage returns the next message that is not empty; it is the caller's
// until the next read. At the peer's end it returns io.EOF. The end is not
// authenticated: who needs to know that nothing is missing says so in a message.
func (c *Conn) ReadMessage() ([]byte, error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	return c.next()
}

func (c *Conn) next() ([]byte, error) {
	<-c.opened
	if m := c.rest; len(m) > 0 {
		c.rest = nil
		return m, nil
	}
	if m := c.first; len(m) > 0 {
		c.first = nil
		return m, nil
	}
	for c.rerr == nil {
		m, err := c.readFrame()
		if err != nil {
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() && !errors.Is(err, io.ErrUnexpectedEOF) {
				return nil, c.timedOut(err)
			}
			c.rerr = err
			break
		}
		if len(m) > 0 {
			return m, nil
		}
	}
	return nil, c.rerr
}

// timedOut is a read whose deadline has passed. Part of a frame may have been
// read, so nothing can follow.
func (c *Conn) timedOut(err error) error {
	c.rerr = err
	return err
}

// Read implements net.Conn; see ReadMessage. A read that a deadline ended is the
// last.
func (c *Conn) Read(p []byte) (int, error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	m, err := c.next()
	if err != nil {
		return 0, err
	}
	n := copy(p, m)
	c.rest = m[n:]
	return n, nil
}

// WriteMessage sends one message of at most 2^24-18 bytes. An empty one says
// nothing to the peer but that we are there. It blocks as the stream's Write.
func (c *Conn) WriteMessage(p []byte) error {
	if len(p) > maxFrame-cipherOverhead {
		return fmt.Errorf("the message has %d bytes; at most %d are possible", len(p), maxFrame-cipherOverhead)
	}
	c.wmu.Lock()
	defer c.wmu.Unlock()
	return c.write(p)
}

func (c *Conn) write(p []byte) error {
	if c.werr != nil {
		return c.werr
	}
	const front = sealRoom
	need := front + len(p) + macSize
	if cap(c.out) < need || cap(c.out) > maxSpareBytes && need < maxSpareBytes/4 {
		c.out = make([]byte, 0, need)
	}
	b := append(c.out[:front], p...)
	sealed, err := c.push.seal(b)
	if err == nil {
		// The sealed message ends the buffer; its length goes right in front.
		at := front - tagSize - lengthSize
		whole := b[:need][at:]
		appendLength(whole[:0], len(sealed))
		c.wrote.Store(time.Now().UnixNano())
		_, err = c.stream.Write(whole)
	}
	c.werr = err // part of the message may be on its way: nothing can follow
	return err
}

// Write implements net.Conn. It makes messages of at most 64 KiB.
func (c *Conn) Write(p []byte) (int, error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	written := 0
	for written < len(p) {
		n := min(chunkSize, len(p)-written)
		if err := c.write(p[written : written+n]); err != nil {
			return written, err
		}
		written += n
	}
	return written, nil
}

// keepAlive sends an empty message if nothing was written for long.
func (c *Conn) keepAlive() {
	next := c.pulse
	if quiet := time.Since(time.Unix(0, c.wrote.Load())); quiet < c.pulse {
		next = c.pulse - quiet
	} else if c.wmu.TryLock() { // otherwise somebody writes
		_ = c.write(nil) // the next writer gets the error
		c.wmu.Unlock()
	}
	c.tmu.Lock()
	defer c.tmu.Unlock()
	if c.timer != nil {
		c.timer.Reset(next)
	}
}

// CloseWrite ends this direction: the peer reads io.EOF after what was written.
func (c *Conn) CloseWrite() error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if c.werr == nil {
		c.werr = net.ErrClosed
	}
	return c.stream.CloseWrite()
}

// Close ends the connection. What was written before still goes out, for a few
// seconds at most; Close does not wait for that.
func (c *Conn) Close() error { return c.end(c.stream.Close) }

// Destroy ends the connection at once.
func (c *Conn) Destroy() {
	_ = c.end(func() error { // there is nothing to be done about an error
		if d, ok := c.stream.(destroyer); ok {
			d.Destroy()
			return nil
		}
		return c.stream.Close()
	})
}

func (c *Conn) end(f func() error) (err error) {
	c.ended.Do(func() {
		c.tmu.Lock()
		if c.timer != nil {
			c.timer.Stop()
			c.timer = nil
		}
		c.tmu.Unlock()
		err = f()
		close(c.done)
	})
	return err
}

// Done is closed when this end has closed or destroyed the connection.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Ended is closed when what carries the connection is over: both ends know that
// both have ended, or it broke. Without that, as of a plain net.Conn, it is Done.
func (c *Conn) Ended() <-chan struct{} {
	switch s := c.stream.(type) {
	case interface{ Ended() <-chan struct{} }:
		return s.Ended()
	case interface{ Done() <-chan struct{} }:
		return s.Done()
	}
	return c.done
}

// WaitConfirmed waits until the peer has proved that it is there. It returns why
// it cannot any more.
func (c *Conn) WaitConfirmed(ctx context.Context) error {
	select {
	case <-c.opened:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-c.confirmed:
		return nil
	default:
	}
	c.rmu.Lock()
	defer c.rmu.Unlock()
	return c.rerr
}

// Stream returns what carries the connection.
func (c *Conn) Stream() Stream { return c.stream }

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return c.stream.LocalAddr() }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.stream.RemoteAddr() }

// SetDeadline implements net.Conn; see Read.
func (c *Conn) SetDeadline(t time.Time) error { return c.stream.SetDeadline(t) }

// SetReadDeadline implements net.Conn; see Read.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.stream.SetReadDeadline(t) }

// SetWriteDeadline implements net.Conn. A write that it ended is the last.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.stream.SetWriteDeadline(t) }
