package udx

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parleyhub/parley/internal/base/wait"
)

// The errors of streams.
var (
	// ErrReset reports that the peer has destroyed the stream.
	ErrReset = errors.New("the peer has reset the stream")
	// ErrTimeout reports that the peer has not answered for too long.
	ErrTimeout = errors.New("the peer stopped answering")
	// ErrDestroyed reports that this end has destroyed the stream.
	ErrDestroyed = errors.New("the stream was destroyed")
	// ErrEnded reports a write after Close or CloseWrite.
	ErrEnded = errors.New("the stream was closed for writing")
	// ErrClosed reports that this end has closed the stream.
	ErrClosed = net.ErrClosed
)

// Stream is a reliable stream and a net.Conn. All methods may be called concurrently. Deadlines, Read and
// Write behave like those of a TCP connection. End it with Close or Destroy.
type Stream struct {
	m       *Mux
	id      uint32
	endedAt time.Time // guarded by m.mu

	first    chan Source
	readable chan struct{} // has room for one
	writable chan struct{}
	done     chan struct{}
	readBy   deadline
	writeBy  deadline
	readers  atomic.Int32           // Reads that wait
	leads    atomic.Pointer[Socket] // the socket at which a Read waits in place of the socket's goroutine

	mu        sync.Mutex
	sock      *Socket
	remote    netip.AddrPort
	remoteID  uint32
	connected bool
	proven    bool // a packet has arrived, so the remote address is true
	cautious  bool // send almost nothing until proven
	over      bool
	err       error // why the stream is over; nil after a clean end

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

// Source is the sender of a packet and the socket that received it.
type Source struct {
	Socket *Socket
	Addr   netip.AddrPort
}

// Stats are a stream's counters.
type Stats struct {
	Sent, Resent, Received, Duplicates uint64 // data packets
	RTT                                time.Duration
	PacketSize                         int // payload bytes
}

// lingerTime bounds how long a closed stream waits for its peer's acknowledgements.
const lingerTime = 5 * time.Second

func newStream(m *Mux, id uint32) *Stream {
	s := &Stream{
		m: m, id: id,
		first: make(chan Source, 1), readable: make(chan struct{}, 1), writable: make(chan struct{}, 1),
		done: make(chan struct{}),
	}
	s.readBy.set(time.Time{})
	s.writeBy.set(time.Time{})
	s.mtu = newMTUSearch()
	s.out.init()
	s.loss.cc = newCubic(s.mtu.payload)
	return s
}

// ID returns the id by which the peer addresses this stream.
func (s *Stream) ID() uint32 { return s.id }

// First receives the source of the first packet, once.
func (s *Stream) First() <-chan Source { return s.first }

// Connect sets the peer's address and stream id. If packets of the peer have arrived already, their source
// is used instead of the address. A cautious stream sends only its first packet, at most four times, before
// a packet of the peer arrives: the address may be forged.
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

// Read implements net.Conn. At the end of the peer's data it returns io.EOF.
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

// wait blocks until there may be something to read.
func (s *Stream) wait() {
	s.readers.Add(1)
	defer s.readers.Add(-1)
	select {
	case <-s.readable:
	case <-s.done:
	case <-s.readBy.changed():
	}
}

// take reads from the buffer. If update is true, the peer should receive the new window.
func (s *Stream) take(p []byte) (n int, err error, update bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.in.discard {
		return 0, ErrClosed, false
	}
	if n, _ = s.in.buf.Read(p); n > 0 { // the only error is io.EOF
		switch {
		case s.in.buf.Len() > 0:
			wait.Nudge(s.readable) // for other waiting Reads
		case s.in.buf.Cap() > spareBuffer: // free the memory of a burst
			s.in.buf = bytes.Buffer{}
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

// Write implements net.Conn. It blocks while the send buffer is full.
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

// put appends as much of p as fits to the send buffer.
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
		wait.Nudge(s.writable) // for other waiting Writes
	}
	return n, nil
}

// CloseWrite ends this direction: the peer reads io.EOF after the data.
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

// Close ends the stream. Data written before is still sent for a few seconds, received data is dropped.
// Close does not wait; see Done.
func (s *Stream) Close() error {
	s.mu.Lock()
	if !s.over && (!s.connected || s.cautious && !s.proven) { // no known peer to send the rest to
		s.mu.Unlock()
		s.Destroy()
		return nil
	}
	s.in.discard = true
	s.in.buf = bytes.Buffer{}
	if s.over {
		s.mu.Unlock()
		return nil
	}
	s.out.end()
	if s.lingerAt.IsZero() {
		s.lingerAt = time.Now().Add(lingerTime)
	}
	s.wake()
	s.mu.Unlock()
	s.flush()
	return nil
}

// Destroy ends the stream at once. Unsent data is dropped.
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
		_ = sock.Write(bye, to) // if it is lost, the peer times out
	}
}

// finish ends the stream and frees its buffers; s.mu is held.
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
		s.in.buf = bytes.Buffer{}
	}
	s.out = outbound{next: s.out.next, una: s.out.una, ended: true}
	s.loss.order = segmentList{}
	s.loss.lost = nil
	close(s.done)
	s.interrupt()
	s.m.retire(s)
}

// finishIfEnded ends the stream if both directions have ended and were acknowledged; s.mu is held.
func (s *Stream) finishIfEnded() {
	if s.in.eof && s.out.endAcked {
		s.finish(nil)
	}
}

// Done is closed when the stream is over: both directions have ended and were acknowledged, or it failed.
// Received data can still be read.
func (s *Stream) Done() <-chan struct{} { return s.done }

// Err returns why the stream failed; nil if it is not over or ended cleanly.
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

// Proven reports whether a packet of the peer has arrived.
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

// Socket returns the socket that the stream sends from, nil before it is connected.
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
	s.interrupt() // a Read that waits at a socket does not check deadlines
	return nil
}

// SetWriteDeadline implements net.Conn.
func (s *Stream) SetWriteDeadline(t time.Time) error { s.writeBy.set(t); return nil }

// deadline is a time that can be changed, or none.
type deadline struct {
	mu     sync.Mutex
	ctx    context.Context // ends when the time is reached or changed
	cancel context.CancelFunc
}

// current returns the context with the time.
func (d *deadline) current() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ctx
}

// expired reports whether the time is reached.
func (d *deadline) expired() bool {
	at, ok := d.current().Deadline()
	return ok && !time.Now().Before(at)
}

// isSet reports whether there is a deadline.
func (d *deadline) isSet() bool {
	_, ok := d.current().Deadline()
	return ok
}

// changed returns a channel that is closed when the time is reached or changed.
func (d *deadline) changed() <-chan struct{} { return d.current().Done() }

// set changes the time; zero means none.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cancel != nil {
		d.cancel()
	}
	if t.IsZero() {
		d.ctx, d.cancel = context.WithCancel(context.Background())
		return
	}
	d.ctx, d.cancel = context.WithDeadline(context.Background(), t)
}
