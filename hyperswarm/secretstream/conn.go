// Package secretstream encrypts an ordered stream of bytes, compatible with the npm package
// @hyperswarm/secret-stream: a Noise handshake ([NewInitiator], [NewResponder]) and libsodium's secretstream under
// its keys ([New]). [Conn] is a net.Conn that also keeps the boundaries of messages (ReadMessage).
package secretstream

import (
	"bytes"
	"cmp"
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
	chunkSize     = 64 << 10 // largest message that Write makes
	firstRead     = 4 << 10
	defaultLimit  = 1 << 20
	defaultPulse  = 5 * time.Second
	maxSpareBytes = 256 << 10
)

// Stream is the transport below a secret stream: a *udx.Stream, or a net.Conn with CloseWrite.
type Stream interface {
	net.Conn
	CloseWrite() error
}

// destroyer is a Stream that can be closed without flushing.
type destroyer interface{ Destroy() }

// Options configure a connection. The zero value is ready to use.
type Options struct {
	// MaxMessage is the largest message accepted, in bytes; 0 means 1 MiB.
	MaxMessage int
	// KeepAlive is the time without a write after which an empty message is sent; 0 means 5 s, negative never.
	KeepAlive time.Duration
}

// Errors that end a connection.
var (
	ErrForged   = errForged
	ErrProtocol = errors.New("the peer does not speak the secret stream's protocol")
	ErrTooLarge = errors.New("the peer's message is larger than allowed")
	// ErrNothingWritten is in the error of a WriteMessage of which the stream below accepted no byte.
	ErrNothingWritten = errors.New("nothing was written")
)

// stream is embedded without exporting the field.
type stream = Stream

// Conn is a secret stream. All methods may be called concurrently. End it with Close or Destroy. Addresses and
// deadlines are those of the stream below; no read or write succeeds after one that exceeded its deadline.
type Conn struct {
	stream
	result Result
	limit  int
	pulse  time.Duration

	opened    chan struct{} // closed after the peer's header and first message, or an error
	confirmed chan struct{}
	done      chan struct{}
	ended     sync.Once

	rmu   sync.Mutex // reading
	pull  *state
	frame []byte // buffer of the frame being read
	rest  []byte // unread part of the last message
	first []byte // first message, read by open
	rerr  error

	wmu   sync.Mutex // writing
	push  *state
	out   []byte
	werr  error
	wrote atomic.Int64 // time of the last write
	timer *time.Timer
	tmu   sync.Mutex
}

// New starts a connection on a stream after the handshake. It writes the header at once, and reads the
// peer's in a goroutine that ends with the stream.
func New(s Stream, r *Result, o Options) (*Conn, error) {
	c := &Conn{
		stream: s, result: *r, limit: o.MaxMessage, pulse: o.KeepAlive,
		opened: make(chan struct{}), confirmed: make(chan struct{}), done: make(chan struct{}),
	}
	c.limit = min(cmp.Or(max(c.limit, 0), defaultLimit), maxFrame-cipherOverhead)
	c.pulse = cmp.Or(c.pulse, defaultPulse)
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

// streamID returns the id of one direction of a stream.
func streamID(hash [64]byte, initiator bool) [32]byte {
	space := identity.StreamResponder
	if initiator {
		space = identity.StreamInitiator
	}
	return identity.KeyedHash(hash[:], space[:])
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

// open reads the peer's header and first message.
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

// fail destroys the connection after invalid input.
func (c *Conn) fail(err error) error {
	c.Destroy()
	return err
}

// readFrame reads the next message, which may be empty. It is valid until the next call.
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

// fill reads n bytes behind openRoom. The buffer grows with the bytes received, so that a large announced
// length alone takes no memory.
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

// Confirmed is closed when the first message has arrived. Only then is the peer known to be present: a
// handshake may be a replayed recording.
func (c *Conn) Confirmed() <-chan struct{} { return c.confirmed }

// RemoteKey returns the peer's public key.
func (c *Conn) RemoteKey() identity.PublicKey { return c.result.Remote }

// Initiator reports whether this end dialled.
func (c *Conn) Initiator() bool { return c.result.Initiator }

// ReadMessage returns the next non-empty message, valid until the next read. At the end of the stream it returns
// io.EOF. The end is not authenticated: a protocol that must detect truncation marks its end itself.
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
		var m []byte
		if m, c.rerr = c.readFrame(); c.rerr != nil {
			break // even after a deadline: part of a frame may have been read
		}
		if len(m) > 0 {
			return m, nil
		}
	}
	return nil, c.rerr
}

// Read implements net.Conn; see ReadMessage.
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

// WriteMessage sends one message of at most 2^24-18 bytes. An empty one is only a sign of life. It blocks
// as the stream's Write does.
func (c *Conn) WriteMessage(p []byte) error {
	if len(p) > maxFrame-cipherOverhead {
		return fmt.Errorf("the message has %d bytes; the maximum is %d", len(p), maxFrame-cipherOverhead)
	}
	c.wmu.Lock()
	defer c.wmu.Unlock()
	return c.write(p)
}

func (c *Conn) write(p []byte) error {
	if c.werr != nil {
		return unwritten(c.werr)
	}
	const front = sealRoom
	need := front + len(p) + macSize
	if cap(c.out) < need || cap(c.out) > maxSpareBytes && need < maxSpareBytes/4 {
		c.out = make([]byte, 0, need)
	}
	b := append(c.out[:front], p...)
	sealed, err := c.push.seal(b)
	if err == nil {
		// The length goes directly in front of the sealed message.
		at := front - tagSize - lengthSize
		whole := b[:need][at:]
		appendLength(whole[:0], len(sealed))
		c.wrote.Store(time.Now().UnixNano())
		var n int
		n, err = c.stream.Write(whole)
		c.werr = err // the cipher is ahead of the stream, and part of the message may have left: no other can follow
		if err != nil && n == 0 {
			return unwritten(err)
		}
		return err
	}
	c.werr = err
	return unwritten(err)
}

// unwritten adds to an error that nothing of the message was written.
func unwritten(err error) error { return fmt.Errorf("%w: %w", ErrNothingWritten, err) }

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

// keepAlive sends an empty message after a time without writes.
func (c *Conn) keepAlive() {
	next := c.pulse
	if quiet := time.Since(time.Unix(0, c.wrote.Load())); quiet < c.pulse {
		next = c.pulse - quiet
	} else if c.wmu.TryLock() { // otherwise a write is under way
		_ = c.write(nil) // the next writer gets the error
		c.wmu.Unlock()
	}
	c.tmu.Lock()
	defer c.tmu.Unlock()
	if c.timer != nil {
		c.timer.Reset(next)
	}
}

// CloseWrite ends this direction: the peer reads io.EOF after the data.
func (c *Conn) CloseWrite() error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if c.werr == nil {
		c.werr = net.ErrClosed
	}
	return c.stream.CloseWrite()
}

// Close ends the connection. Data written before is still sent for a few seconds; Close does not wait for it.
func (c *Conn) Close() error { return c.end(c.stream.Close) }

// Destroy ends the connection at once.
func (c *Conn) Destroy() {
	_ = c.end(func() error { // nothing can be done about an error
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

// Ended is closed when the stream below is over: both ends know that both have ended, or it broke. If that
// stream does not report it, Ended is Done.
func (c *Conn) Ended() <-chan struct{} {
	switch s := c.stream.(type) {
	case interface{ Ended() <-chan struct{} }:
		return s.Ended()
	case interface{ Done() <-chan struct{} }:
		return s.Done()
	}
	return c.done
}

// WaitConfirmed blocks until the peer is confirmed (see Confirmed), or returns the error that prevents it.
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

// Stream returns the stream below.
func (c *Conn) Stream() Stream { return c.stream }
