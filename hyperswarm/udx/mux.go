// Package udx carries ordered, reliable byte streams in UDP datagrams, as the
// npm package udx-native does. Streams share their sockets with other
// protocols: what is no packet of a known stream goes to the socket's [Handler].
//
// A stream's packets are not authenticated. Whoever sees them can end, stop or
// falsify the stream; package secretstream is what makes its bytes secret and
// true.
package udx

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"
	"time"
)

// Mux is a set of sockets and the streams that they share. It is safe for
// concurrent use.
type Mux struct {
	opts Options

	mu      sync.RWMutex
	streams map[uint32]*Stream
	sockets map[*Socket]struct{}
	ended   []*Stream // closed, their ids still reserved; oldest first
	closed  bool
	wg      sync.WaitGroup
}

// Options set a [Mux] up. The zero value is ready.
type Options struct {
	// ReceiveBuffer is how many bytes of a stream may wait for its reader; 0 means
	// 4 MiB.
	ReceiveBuffer int
	// SendBuffer is how many bytes a stream takes from its writer beyond what is
	// on its way; 0 means 256 KiB.
	SendBuffer int
	// Open opens the sockets; nil means UDP over IPv4.
	Open func(at netip.AddrPort) (PacketConn, error)
}

const (
	defaultReceiveBuffer = 4 << 20
	defaultSendBuffer    = 256 << 10
	reserveTime          = 20 * time.Second // an id is not used again so soon
	maxReserved          = 4096
)

// NewMux returns a mux without sockets.
func NewMux(o Options) *Mux {
	if o.ReceiveBuffer <= 0 {
		o.ReceiveBuffer = defaultReceiveBuffer
	}
	if o.SendBuffer <= 0 {
		o.SendBuffer = defaultSendBuffer
	}
	return &Mux{opts: o, streams: make(map[uint32]*Stream), sockets: make(map[*Socket]struct{})}
}

// ErrMuxClosed is returned for things that a closed mux no longer does.
var ErrMuxClosed = errors.New("the UDP sockets are closed")

// NewStream returns a stream with a fresh random id, which the peer needs to
// connect to it. From now on the stream keeps what arrives for it.
func (m *Mux) NewStream() (*Stream, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, ErrMuxClosed
	}
	m.forget()
	var id uint32
	for id == 0 || m.streams[id] != nil {
		var b [4]byte
		rand.Read(b[:]) // never fails
		id = binary.LittleEndian.Uint32(b[:])
	}
	s := newStream(m, id)
	m.streams[id] = s
	return s, nil
}

// forget frees ids that were reserved long enough; m.mu is held.
func (m *Mux) forget() {
	now := time.Now()
	for len(m.ended) > 0 && (len(m.ended) > maxReserved || now.Sub(m.ended[0].endedAt) > reserveTime) {
		delete(m.streams, m.ended[0].id)
		m.ended[0] = nil
		m.ended = m.ended[1:]
	}
}

// retire takes a closed stream out, but keeps its id for a while, so that a
// repeated END still gets its acknowledgement.
func (m *Mux) retire(s *Stream) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.endedAt = time.Now()
	m.ended = append(m.ended, s)
	m.forget()
}

// Streams returns how many streams are open.
func (m *Mux) Streams() int {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return len(m.streams) - len(m.ended)
}

// receive hands a datagram to its stream and reports whether there is one.
func (m *Mux) receive(s *Socket, data []byte, from netip.AddrPort) (*Stream, bool) {
	id, ok := looksLikePacket(data)
	if !ok {
		return nil, false
	}
	m.mu.RLock()
	stream := m.streams[id]
	m.mu.RUnlock()
	if stream == nil {
		return nil, false
	}
	if p, ok := parsePacket(data); ok {
		stream.receive(s, &p, from)
	}
	return stream, true
}

// Close destroys all streams, closes all sockets and waits for their goroutines.
func (m *Mux) Close() error {
	m.mu.Lock()
	m.closed = true
	streams, sockets := m.streams, m.sockets
	m.streams, m.sockets, m.ended = make(map[uint32]*Stream), make(map[*Socket]struct{}), nil
	m.mu.Unlock()
	for _, s := range streams {
		s.Destroy()
	}
	var err error
	for s := range sockets {
		err = errors.Join(err, s.conn.Close())
	}
	m.wg.Wait()
	return err
}
