package nats

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/hyperswarm/secretstream"
)

// The kinds of message.
const (
	kindOpen   = 'O' // the first message of a handshake, to a peer's own subject; no position
	kindAnswer = 'A' // the second; no position
	kindData   = 'D' // bytes from the position on
	kindGrant  = 'W' // the peer may send up to the position
	kindAlive  = 'P' // nothing new; everything up to the position was sent
	kindEnd    = 'F' // nothing follows the position
	kindReset  = 'R' // the connection is over
)

const (
	headSize  = 1 + 8
	window    = 2 << 20   // bytes that a sender may be ahead of the reader
	grantStep = 256 << 10 // of reading before the sender is told
	maxChunk  = 128 << 10 // bytes in a message
	flushTime = time.Second
)

// Errors that break a stream.
var (
	errGone     = errors.New("the peer is gone from NATS")
	errSilent   = errors.New("the peer is silent")
	errLost     = errors.New("NATS has lost a message")
	errReset    = errors.New("the peer has broken the connection")
	errProtocol = errors.New("the peer does not speak the transport's protocol")
)

// stream is an ordered stream of bytes between two subjects. It carries the secret
// stream, which is what makes it true. It owns one goroutine, which sends and awaits
// signs of life, and its subscription's.
type stream struct {
	nc      *nats.Conn
	own     string // subject
	sub     *nats.Subscription
	answers chan []byte // of the handshake

	mu      sync.Mutex
	changed chan struct{} // closed at the next change
	peer    string        // subject; "" before the handshake is done
	err     error         // why it is over; it may still be read to its end

	sent    uint64 // position of the next byte to send
	granted uint64 // up to here we may send
	ended   bool   // we send nothing more

	received uint64 // position of the next byte to come
	allowed  uint64 // what we have granted
	queue    [][]byte
	unread   int
	eof      bool // the peer sends nothing more

	heard, said   time.Time
	readBy, putBy time.Time // deadlines

	out  []byte // buffer of Write
	omu  sync.Mutex
	over chan struct{} // closed when the stream is over
	done chan struct{} // closed when it is, and everything has left for the server
}

func newStream(o *Options, own string) (*stream, error) {
	s := &stream{
		nc: o.Conn, own: own, answers: make(chan []byte, 1), changed: make(chan struct{}),
		granted: window, allowed: window, heard: time.Now(), said: time.Now(),
		over: make(chan struct{}), done: make(chan struct{}),
	}
	var err error
	if s.sub, err = o.Conn.Subscribe(own, s.handle); err != nil {
		return nil, err
	}
	go s.watch(o.silence()) // ends with the stream
	return s, nil
}

// knock begins a connection at a peer's subject and returns what the handshake
// gives.
func (s *stream) knock(ctx context.Context, i *secretstream.Initiator, address string) (*secretstream.Result, error) {
	msg, err := i.Message([]byte(s.own))
	if err != nil {
		return nil, err
	}
	// The reply subject has the server say at once if nobody is there.
	if err := s.nc.PublishRequest(address, s.own, append([]byte{kindOpen}, msg...)); err != nil {
		return nil, err
	}
	for {
		select {
		case msg := <-s.answers:
			peer, result, err := i.Finish(msg)
			if err != nil {
				continue // somebody else's: the peer's may follow
			}
			return result, s.meet(string(peer))
		case <-s.over:
			return nil, s.cause()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// meet sets where the peer is.
func (s *stream) meet(peer string) error {
	prefix, _, _ := cutLast(s.own, ".link.")
	if o := (Options{Prefix: prefix}); !o.isLink(peer) {
		return errProtocol
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peer = peer
	s.change()
	return nil
}

// change wakes whoever waits; s.mu is held.
func (s *stream) change() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *stream) cause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// handle takes a message. NATS calls it with one after the other.
func (s *stream) handle(m *nats.Msg) {
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		s.fail(errGone)
		return
	}
	if len(m.Data) > 0 && m.Data[0] == kindAnswer {
		select {
		case s.answers <- m.Data[1:]:
		default:
		}
		return
	}
	if len(m.Data) < headSize {
		return // whoever that is
	}
	at, body := binary.BigEndian.Uint64(m.Data[1:]), m.Data[headSize:]
	if err := s.take(m.Data[0], at, body); err != nil {
		s.fail(err)
	}
}

func (s *stream) take(kind byte, at uint64, body []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil
	}
	s.heard = time.Now()
	switch kind {
	case kindData:
		switch {
		case at != s.received:
			return errLost
		case s.eof || len(body) == 0 || s.received+uint64(len(body)) > s.allowed:
			return errProtocol
		}
		s.received += uint64(len(body))
		s.unread += len(body)
		s.queue = append(s.queue, body)
	case kindGrant:
		if at < s.granted || at > s.sent+window {
			return errProtocol
		}
		s.granted = at
	case kindAlive, kindEnd:
		if at != s.received {
			return errLost
		}
		s.eof = s.eof || kind == kindEnd
	case kindReset:
		return errReset
	default:
		return errProtocol
	}
	s.change()
	return nil
}

// say publishes a message without bytes. When NATS takes it no more, the stream is
// over.
func (s *stream) say(kind byte, peer string, at uint64) error {
	return s.publish(peer, binary.BigEndian.AppendUint64([]byte{kind}, at))
}

// publish sends to the peer. The reply subject has the server tell if the peer is
// gone.
func (s *stream) publish(peer string, data []byte) error {
	err := s.nc.PublishRequest(peer, s.own, data)
	if err != nil {
		s.fail(err)
	}
	return err
}

// watch says that we are there, and breaks a stream whose peer says nothing.
func (s *stream) watch(silence time.Duration) {
	t := time.NewTicker(silence / 3)
	defer t.Stop()
	for {
		select {
		case <-s.over:
			return
		case <-t.C:
		}
		s.omu.Lock() // between two writes: what was sent is on its way before
		s.mu.Lock()
		quiet, peer, at := time.Since(s.heard) > silence, s.peer, s.sent
		s.mu.Unlock()
		switch {
		case quiet:
			s.fail(errSilent)
		case peer != "":
			_ = s.say(kindAlive, peer, at) // it has dealt with the error
		}
		s.omu.Unlock()
	}
}

// fail breaks the stream. What has arrived can still be read.
func (s *stream) fail(err error) { s.finish(err, nil) }

// finish ends the stream, once; last is done before the subscription goes.
func (s *stream) finish(err error, last func()) {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return
	}
	s.err = err
	s.change()
	close(s.over)
	s.mu.Unlock()
	if last != nil {
		last()
	}
	_ = s.sub.Unsubscribe() // only fails when the connection to NATS is closed
	close(s.done)
}

// wait waits for a change, at most until a deadline; s.mu is held, and released
// meanwhile.
func (s *stream) wait(by *time.Time) error {
	changed := s.changed
	var late <-chan time.Time
	if !by.IsZero() {
		left := time.Until(*by)
		if left <= 0 {
			return os.ErrDeadlineExceeded
		}
		t := time.NewTimer(left)
		defer t.Stop()
		late = t.C
	}
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-changed:
		return nil
	case <-late:
		return os.ErrDeadlineExceeded
	}
}

// Read implements net.Conn.
func (s *stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	s.mu.Lock()
	for len(s.queue) == 0 {
		if s.eof {
			s.mu.Unlock()
			return 0, io.EOF
		}
		err := s.err
		if err == nil {
			err = s.wait(&s.readBy)
		}
		if err != nil && len(s.queue) == 0 {
			s.mu.Unlock()
			return 0, err
		}
	}
	n := copy(p, s.queue[0])
	if s.queue[0] = s.queue[0][n:]; len(s.queue[0]) == 0 {
		s.queue[0] = nil
		s.queue = s.queue[1:]
	}
	s.unread -= n
	may := s.received - uint64(s.unread) + window
	tell := may-s.allowed >= grantStep && s.err == nil && s.peer != ""
	if tell {
		s.allowed = may
	}
	peer := s.peer
	s.mu.Unlock()
	if tell {
		_ = s.say(kindGrant, peer, may) // it has dealt with the error
	}
	return n, nil
}

// Write implements net.Conn. It blocks while the peer does not read.
func (s *stream) Write(p []byte) (int, error) {
	s.omu.Lock()
	defer s.omu.Unlock()
	written := 0
	for written < len(p) {
		n, at, peer, err := s.room(len(p) - written)
		if err != nil {
			return written, err
		}
		s.out = binary.BigEndian.AppendUint64(append(s.out[:0], kindData), at)
		s.out = append(s.out, p[written:written+n]...)
		if err := s.publish(peer, s.out); err != nil { // it keeps nothing of the buffer
			return written, err
		}
		written += n
	}
	return written, nil
}

// room waits until some of n bytes may be sent, and counts them as sent.
func (s *stream) room(n int) (may int, at uint64, peer string, err error) {
	limit := min(maxChunk, int(s.nc.MaxPayload())-headSize)
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.err != nil:
			return 0, 0, "", s.err
		case s.ended:
			return 0, 0, "", net.ErrClosed
		case limit <= 0:
			return 0, 0, "", errors.New("the NATS server takes no messages of a useful size")
		}
		if may = min(n, limit, int(s.granted-s.sent)); may > 0 {
			break
		}
		if err := s.wait(&s.putBy); err != nil {
			return 0, 0, "", err
		}
	}
	at = s.sent
	s.sent += uint64(may)
	return may, at, s.peer, nil
}

// CloseWrite ends this direction: the peer reads io.EOF after what was written.
func (s *stream) CloseWrite() error {
	s.omu.Lock()
	defer s.omu.Unlock()
	s.mu.Lock()
	peer, at, done := s.peer, s.sent, s.ended || s.err != nil
	s.ended = true
	s.mu.Unlock()
	if done || peer == "" {
		return nil
	}
	return s.say(kindEnd, peer, at)
}

// Close ends the stream. What was written goes out: the server has it when Ended is
// closed.
func (s *stream) Close() error {
	// A write that waits for the peer must not hold up the end.
	s.mu.Lock()
	s.putBy = time.Unix(1, 0)
	s.change()
	s.mu.Unlock()
	err := s.CloseWrite()
	s.finish(net.ErrClosed, func() {
		if s.nc.IsConnected() {
			_ = s.nc.FlushTimeout(flushTime) // without the server nothing arrives anyway
		}
	})
	return err
}

// Destroy ends the stream at once.
func (s *stream) Destroy() {
	s.finish(net.ErrClosed, func() {
		s.mu.Lock()
		peer, at := s.peer, s.sent
		s.mu.Unlock()
		if peer != "" {
			_ = s.say(kindReset, peer, at) // it notices the end anyway
		}
	})
}

// Ended is closed when the stream is over.
func (s *stream) Ended() <-chan struct{} { return s.done }

// SetDeadline implements net.Conn.
func (s *stream) SetDeadline(t time.Time) error { return s.setDeadlines(t, &s.readBy, &s.putBy) }

// SetReadDeadline implements net.Conn.
func (s *stream) SetReadDeadline(t time.Time) error { return s.setDeadlines(t, &s.readBy) }

// SetWriteDeadline implements net.Conn.
func (s *stream) SetWriteDeadline(t time.Time) error { return s.setDeadlines(t, &s.putBy) }

func (s *stream) setDeadlines(t time.Time, which ...*time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range which {
		*d = t
	}
	s.change()
	return nil
}

// subject is an address on NATS.
type subject string

// Network implements net.Addr.
func (subject) Network() string { return "nats" }

// String implements net.Addr.
func (a subject) String() string { return string(a) }

// LocalAddr implements net.Conn.
func (s *stream) LocalAddr() net.Addr { return subject(s.own) }

// RemoteAddr implements net.Conn.
func (s *stream) RemoteAddr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return subject(s.peer)
}
