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
	kindAlive  = 'P' // keep-alive; everything up to the position was sent
	kindEnd    = 'F' // end of the stream at the position
	kindReset  = 'R' // the connection is over
)

const (
	headSize  = 1 + 8
	window    = 2 << 20   // bytes that may be sent before the peer reads them
	grantStep = 256 << 10 // bytes read before a new grant is sent
	maxChunk  = 128 << 10 // bytes in a message
	flushTime = time.Second
)

// Errors that break a stream.
var (
	errGone     = errors.New("the peer has no subscription on NATS any more")
	errSilent   = errors.New("the peer is silent")
	errLost     = errors.New("NATS has lost a message")
	errReset    = errors.New("the peer has reset the connection")
	errProtocol = errors.New("the peer sent an invalid message")
)

// stream is an ordered stream of bytes between two subjects, below the secret stream that authenticates it.
// It owns one goroutine, which sends and checks keep-alives, and that of its subscription.
type stream struct {
	nc      *nats.Conn
	own     string // subject
	sub     *nats.Subscription
	answers chan []byte // of the handshake

	mu      sync.Mutex
	changed *sync.Cond // on mu
	peer    string     // subject; "" until the handshake is done
	err     error      // why the stream is over; received bytes may still be read

	sent    uint64 // position of the next byte to send
	granted uint64 // position up to which the peer allows sending
	ended   bool   // this end sends nothing more

	received uint64 // position of the next byte to receive
	allowed  uint64 // position up to which we have granted
	queue    [][]byte
	unread   int
	eof      bool // the peer sends nothing more

	heard   time.Time
	closing bool // a Write that waits for a grant must fail

	out  []byte // buffer of Write
	omu  sync.Mutex
	over chan struct{} // closed when the stream is over
	done chan struct{} // closed after that, when the server has everything
}

func newStream(o *Options, own string) (*stream, error) {
	s := &stream{
		nc: o.Conn, own: own, answers: make(chan []byte, 1),
		granted: window, allowed: window, heard: time.Now(),
		over: make(chan struct{}), done: make(chan struct{}),
	}
	s.changed = sync.NewCond(&s.mu)
	var err error
	if s.sub, err = o.Conn.Subscribe(own, s.handle); err != nil {
		return nil, err
	}
	go s.watch(o.silence()) // ends with the stream
	return s, nil
}

// handshake sends the first message to a peer's subject and returns the outcome of the handshake.
func (s *stream) handshake(ctx context.Context, i *secretstream.Initiator, address string) (*secretstream.Result, error) {
	msg, err := i.Message([]byte(s.own))
	if err != nil {
		return nil, err
	}
	// With a reply subject the server reports at once if nobody has subscribed.
	if err := s.nc.PublishRequest(address, s.own, append([]byte{kindOpen}, msg...)); err != nil {
		return nil, err
	}
	for {
		select {
		case msg := <-s.answers:
			peer, result, err := i.Finish(msg)
			if err != nil {
				continue // not from the peer, whose answer may follow
			}
			return result, s.setPeer(string(peer))
		case <-s.over:
			return nil, s.cause()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// setPeer sets the peer's subject.
func (s *stream) setPeer(peer string) error {
	prefix, _, _ := cutLast(s.own, ".link.")
	if o := (Options{Prefix: prefix}); !o.isLink(peer) {
		return errProtocol
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peer = peer
	s.changed.Broadcast()
	return nil
}

func (s *stream) cause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// handle handles a message. NATS calls it with one message at a time.
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
		return // not from the peer
	}
	at, body := binary.BigEndian.Uint64(m.Data[1:]), m.Data[headSize:]
	if err := s.receive(m.Data[0], at, body); err != nil {
		s.fail(err)
	}
}

func (s *stream) receive(kind byte, at uint64, body []byte) error {
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
	s.changed.Broadcast()
	return nil
}

// control publishes a message without data. An error ends the stream.
func (s *stream) control(kind byte, peer string, at uint64) error {
	return s.publish(peer, binary.BigEndian.AppendUint64([]byte{kind}, at))
}

// publish sends a message to the peer. With the reply subject the server reports if the peer has no
// subscription any more. An error ends the stream.
func (s *stream) publish(peer string, data []byte) error {
	err := s.nc.PublishRequest(peer, s.own, data)
	if err != nil {
		s.fail(err)
	}
	return err
}

// watch sends keep-alives, and breaks a stream whose peer is silent.
func (s *stream) watch(silence time.Duration) {
	tick := time.Tick(silence / 3)
	for {
		select {
		case <-s.over:
			return
		case <-tick:
		}
		s.omu.Lock() // between two writes, so that everything counted in sent was published
		s.mu.Lock()
		quiet, peer, at := time.Since(s.heard) > silence, s.peer, s.sent
		s.mu.Unlock()
		switch {
		case quiet:
			s.fail(errSilent)
		case peer != "":
			_ = s.control(kindAlive, peer, at) // an error has ended the stream
		}
		s.omu.Unlock()
	}
}

// fail breaks the stream. Received bytes can still be read.
func (s *stream) fail(err error) { s.finish(err, nil) }

// finish ends the stream, once. Last, if not nil, runs before the subscription ends.
func (s *stream) finish(err error, last func()) {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return
	}
	s.err = err
	s.changed.Broadcast()
	close(s.over)
	s.mu.Unlock()
	if last != nil {
		last()
	}
	_ = s.sub.Unsubscribe() // only fails when the connection to NATS is closed
	close(s.done)
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
		if s.err != nil {
			defer s.mu.Unlock()
			return 0, s.err
		}
		s.changed.Wait()
	}
	n := copy(p, s.queue[0])
	if s.queue[0] = s.queue[0][n:]; len(s.queue[0]) == 0 {
		s.queue[0] = nil
		s.queue = s.queue[1:]
	}
	s.unread -= n
	may := s.received - uint64(s.unread) + window
	grant := may-s.allowed >= grantStep && s.err == nil && s.peer != ""
	if grant {
		s.allowed = may
	}
	peer := s.peer
	s.mu.Unlock()
	if grant {
		_ = s.control(kindGrant, peer, may) // an error has ended the stream
	}
	return n, nil
}

// Write implements net.Conn. It blocks while the peer does not grant more. With an error it returns how many bytes may
// have left.
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
		if err := s.publish(peer, s.out); err != nil { // publish copies the buffer
			if !refused(err) {
				written += n // they may have left
			}
			return written, err
		}
		written += n
	}
	return written, nil
}

// refused reports whether the client of NATS has refused to publish, before anything left.
func refused(err error) bool {
	for _, before := range []error{nats.ErrConnectionClosed, nats.ErrConnectionDraining, nats.ErrReconnectBufExceeded, nats.ErrMaxPayload} {
		if errors.Is(err, before) {
			return true
		}
	}
	return false
}

// room blocks until some of n bytes may be sent, and counts them as sent.
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
			return 0, 0, "", errors.New("the NATS server's maximum message size is too small")
		}
		if may = min(n, limit, int(s.granted-s.sent)); may > 0 {
			break
		}
		if s.closing {
			return 0, 0, "", net.ErrClosed
		}
		s.changed.Wait()
	}
	at = s.sent
	s.sent += uint64(may)
	return may, at, s.peer, nil
}

// CloseWrite ends this direction: the peer reads io.EOF after the data.
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
	return s.control(kindEnd, peer, at)
}

// Close ends the stream. Data written before is still sent: the server has it when Ended is closed.
func (s *stream) Close() error {
	// Unblock a Write that waits for a grant.
	s.mu.Lock()
	s.closing = true
	s.changed.Broadcast()
	s.mu.Unlock()
	err := s.CloseWrite()
	s.finish(net.ErrClosed, func() {
		if s.nc.IsConnected() {
			_ = s.nc.FlushTimeout(flushTime) // without a server nothing arrives anyway
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
			_ = s.control(kindReset, peer, at) // without it the peer times out
		}
	})
}

// Ended is closed when the stream is over and the server has everything.
func (s *stream) Ended() <-chan struct{} { return s.done }

// SetDeadline returns [os.ErrNoDeadline]. Package sealed, the only user of the stream, sets no deadlines: it ends a
// connection instead.
func (s *stream) SetDeadline(time.Time) error { return os.ErrNoDeadline }

// SetReadDeadline returns [os.ErrNoDeadline]; see SetDeadline.
func (s *stream) SetReadDeadline(time.Time) error { return os.ErrNoDeadline }

// SetWriteDeadline returns [os.ErrNoDeadline]; see SetDeadline.
func (s *stream) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }

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
