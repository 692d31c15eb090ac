package udx

import (
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Stream is one stream. It is a net.Conn; all its methods may be called from any
// goroutine. Deadlines, Read and Write are as those of a TCP connection. A stream
// must be ended with Close or Destroy.
type Stream struct {
	m       *Mux
	id      uint32
	endedAt time.Time // under m.mu

	first    chan Source
	readable chan struct{} // has room for one
	writable chan struct{}
	done     chan struct{}
	readBy   deadline
	writeBy  deadline
	readers  atomic.Int32           // that wait
	leads    atomic.Pointer[Socket] // where a Read waits in the place of the socket's goroutine

	mu        sync.Mutex
	sock      *Socket
	remote    netip.AddrPort
	remoteID  uint32
	connected bool
	proven    bool // something arrived, so the remote address is true
	cautious  bool // send next to nothing until then
	over      bool
	err       error // why it is over; nil after a clean end

	in   inbound
	out  outbound
	loss recovery
	mtu  mtuSearch

	timer    *time.Timer
	armed    time.Time
	flushing bool // one goroutine sends at a time
	again    bool
	lingerAt time.Time
	stats    Stats
}

// Source is where a packet came from and at which socket.
type Source struct {
	Socket *Socket
	Addr   netip.AddrPort
}

// Stats counts what a stream has done.
type Stats struct {
	Sent, Resent, Received, Duplicates uint64 // data packets
	RTT                                time.Duration
	PacketSize                         int // payload bytes
}

// lingerTime bounds how long a closed stream waits for its peer.
const lingerTime = 5 * time.Second

func newStream(m *Mux, id uint32) *Stream {
	s := &Stream{
		m: m, id: id,
		first: make(chan Source, 1), readable: make(chan struct{}, 1), writable: make(chan struct{}, 1),
		done: make(chan struct{}), readBy: newDeadline(), writeBy: newDeadline(),
	}
	s.mtu = newMTUSearch()
	s.out.init()
	s.loss.cc = newCubic(s.mtu.payload)
	return s
}

// ID returns the number by which the peer addresses this stream.
func (s *Stream) ID() uint32 { return s.id }

// First receives, once, where the first packet came from.
func (s *Stream) First() <-chan Source { return s.first }

// Connect says where the peer is and how it names its stream. If packets of the
// peer have arrived already, they have shown the better address. A cautious
// stream sends no more than its first packet, four times at most, before anything
// has come from there: the address may be somebody else's.
func (s *Stream) Connect(sock *Socket, to netip.AddrPort, remoteID uint32, cautious bool) {
	s.mu.Lock()
	if s.over || s.connected {
		s.mu.Unlock()
		return
	}
	if !s.proven {
		s.sock, s.remote = sock, to
	}
	s.remoteID, s.connected, s.cautious = remoteID, true, cautious
	s.mu.Unlock()
	s.flush()
}

// Read implements net.Conn. After the peer's end it returns io.EOF.
func (s *Stream) Read(p []byte) (int, error) {
	for {
		if s.readBy.expired() {
			return 0, os.ErrDeadlineExceeded
		}
		n, err, update := s.take(p)
		if update {
			s.flush()
		}
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
		if !s.lead() {
			s.wait()
		}
	}
}

// wait waits for a reason to look whether there is something to read.
func (s *Stream) wait() {
	s.readers.Add(1)
	defer s.readers.Add(-1)
	select {
	case <-s.readable:
	case <-s.done:
	case <-s.readBy.changed():
	}
}

// take reads what is there. Update says that the peer should learn of the room.
func (s *Stream) take(p []byte) (n int, err error, update bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.in.discard {
		return 0, ErrClosed, false
	}
	if n = s.in.buf.read(p); n > 0 {
		if s.in.buf.len() > 0 {
			signal(s.readable) // for others that wait
		}
		return n, nil, s.windowOpened()
	}
	switch {
	case s.in.eof:
		return 0, io.EOF, false
	case s.err != nil:
		return 0, s.err, false
	case s.over:
		return 0, io.EOF, false
	}
	return 0, nil, false
}

// Write implements net.Conn. It blocks while the stream holds as much as it may.
func (s *Stream) Write(p []byte) (int, error) {
	written := 0
	for {
		if s.writeBy.expired() {
			return written, os.ErrDeadlineExceeded
		}
		n, err := s.put(p[written:])
		written += n
		if n > 0 {
			s.flush()
		}
		if err != nil || written == len(p) {
			return written, err
		}
		select {
		case <-s.writable:
		case <-s.done:
		case <-s.writeBy.changed():
		}
	}
}

// put queues as much of p as there is room for.
func (s *Stream) put(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return 0, s.err
	case s.over || s.out.ended:
		return 0, ErrEnded
	}
	n := min(len(p), s.m.opts.SendBuffer-s.out.unsent)
	if n <= 0 {
		return 0, nil
	}
	s.out.append(p[:n], s.mtu.payload)
	if s.out.unsent < s.m.opts.SendBuffer {
		signal(s.writable) // for others that wait
	}
	return n, nil
}

// CloseWrite ends this direction: the peer reads io.EOF after what was written.
func (s *Stream) CloseWrite() error {
	s.mu.Lock()
	err := s.err
	if err == nil && !s.over {
		s.out.end()
	}
	s.mu.Unlock()
	s.flush()
	return err
}

// Close ends the stream. What was written before still goes out, for a few
// seconds at most; nothing is read any more. It does not wait: see Done.
func (s *Stream) Close() error {
	s.mu.Lock()
	if s.over {
		s.in.discard = true
		s.in.buf = buffer{}
		s.mu.Unlock()
		return nil
	}
	if !s.connected || s.cautious && !s.proven { // there is nobody to take what is left
		s.mu.Unlock()
		s.Destroy()
		return nil
	}
	s.in.discard = true
	s.in.buf = buffer{}
	s.out.end()
	if s.lingerAt.IsZero() {
		s.lingerAt = time.Now().Add(lingerTime)
	}
	s.wake()
	s.mu.Unlock()
	s.flush()
	return nil
}

// Destroy ends the stream at once. What is not yet on its way is dropped.
func (s *Stream) Destroy() { s.abort(ErrDestroyed) }

func (s *Stream) abort(err error) {
	s.mu.Lock()
	if s.over {
		s.mu.Unlock()
		return
	}
	var bye []byte
	sock, to := s.sock, s.remote
	if s.connected && (s.proven || !s.cautious) {
		h := header{types: typeDestroy, id: s.remoteID, seq: s.out.next, ack: s.in.next}
		bye = h.append(nil)
	}
	s.finish(err)
	s.mu.Unlock()
	if bye != nil {
		_ = sock.Write(bye, to) // if it is lost, the peer finds out by itself
	}
}

// finish makes the stream be over; s.mu is held.
func (s *Stream) finish(err error) {
	if s.over {
		return
	}
	s.over, s.err = true, err
	if s.timer != nil {
		s.timer.Stop()
	}
	s.in.ahead = nil
	if s.in.discard {
		s.in.buf = buffer{}
	}
	s.out = outbound{next: s.out.next, una: s.out.una, ended: true}
	s.loss.order = segmentList{}
	s.loss.lost = nil
	close(s.done)
	s.interrupt()
	s.m.retire(s)
}

// finishIfEnded closes the stream once both directions ended and were
// acknowledged; s.mu is held.
func (s *Stream) finishIfEnded() {
	if s.in.eof && s.out.endAcked {
		s.finish(nil)
	}
}

// Done is closed when the stream is over: both ends have ended and know it, or it
// failed. What has arrived can still be read.
func (s *Stream) Done() <-chan struct{} { return s.done }

// Err says why the stream is over; nil if it is not, or has ended well.
func (s *Stream) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Stats returns the counters.
func (s *Stream) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.RTT, st.PacketSize = s.loss.srtt, s.mtu.payload
	return st
}

// Proven reports whether anything has come from the peer.
func (s *Stream) Proven() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proven
}

// Remote returns the peer's address, invalid before the stream is connected.
func (s *Stream) Remote() netip.AddrPort {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.remote
}

// Socket returns the socket by which the stream sends, nil before it is connected.
func (s *Stream) Socket() *Socket {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sock
}

// LocalAddr implements net.Conn.
func (s *Stream) LocalAddr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sock == nil {
		return net.UDPAddrFromAddrPort(netip.AddrPort{})
	}
	return net.UDPAddrFromAddrPort(s.sock.Addr())
}

// RemoteAddr implements net.Conn.
func (s *Stream) RemoteAddr() net.Addr { return net.UDPAddrFromAddrPort(s.Remote()) }

// SetDeadline implements net.Conn.
func (s *Stream) SetDeadline(t time.Time) error {
	s.writeBy.set(t)
	return s.SetReadDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (s *Stream) SetReadDeadline(t time.Time) error {
	s.readBy.set(t)
	s.interrupt() // who waits at a socket does not see deadlines
	return nil
}

// SetWriteDeadline implements net.Conn.
func (s *Stream) SetWriteDeadline(t time.Time) error { s.writeBy.set(t); return nil }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// deadline is a channel that closes at a time that may be changed.
type deadline struct {
	mu    *sync.Mutex
	state *deadlineState
}

type deadlineState struct {
	at     time.Time
	timer  *time.Timer
	done   chan struct{}
	closed bool
}

func newDeadline() deadline {
	return deadline{new(sync.Mutex), &deadlineState{done: make(chan struct{})}}
}

// expired reports whether the time has come.
func (d deadline) expired() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.state.at.IsZero() && !time.Now().Before(d.state.at)
}

// isSet reports whether there is one.
func (d deadline) isSet() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.state.at.IsZero()
}

// changed returns a channel that is closed when the time comes or is changed.
func (d deadline) changed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state.done
}

func (s *deadlineState) close() {
	if !s.closed {
		s.closed = true
		close(s.done)
	}
}

func (d deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.state
	if s.timer != nil {
		s.timer.Stop()
	}
	s.close()
	*s = deadlineState{at: t, done: make(chan struct{})}
	if t.IsZero() {
		return
	}
	done := s.done
	s.timer = time.AfterFunc(max(time.Until(t), 0), func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if s.done == done {
			s.close()
		}
	})
}
