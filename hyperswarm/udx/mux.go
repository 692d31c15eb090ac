// Package udx provides ordered, reliable byte streams over UDP, compatible with the npm package udx-native. Streams
// share their sockets with other protocols: datagrams that belong to no stream are passed to the socket's [Handler].
//
// Packets are not authenticated: anyone who sees a stream's packets can end or falsify the stream. Package
// secretstream encrypts and authenticates it.
package udx

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"
	"time"
)

// Mux is a set of sockets that share a set of streams. It is safe for concurrent use.
type Mux struct {
	opts Options

	mu      sync.RWMutex
	streams map[uint32]*Stream
	sockets map[*Socket]struct{}
	ended   []*Stream // closed, their ids still reserved; oldest first
	closed  bool
	wg      sync.WaitGroup
}

// Options configure a [Mux]. The zero value is ready to use.
type Options struct {
	// ReceiveBuffer is how many bytes of a stream may wait for a Read; 0 means 4 MiB.
	ReceiveBuffer int
	// SendBuffer is how many bytes of a stream may wait to be sent, besides those in flight; 0 means 256 KiB.
	SendBuffer int
	// Open opens the sockets; nil means UDP over IPv4.
	Open func(at netip.AddrPort) (PacketConn, error)
}

const (
	defaultReceiveBuffer = 4 << 20
	defaultSendBuffer    = 256 << 10
	reserveTime          = 20 * time.Second // how long an ended stream's id stays reserved
	maxReserved          = 4096
)

// NewMux returns a mux without sockets.
func NewMux(o Options) *Mux {
	o.ReceiveBuffer = cmp.Or(max(o.ReceiveBuffer, 0), defaultReceiveBuffer)
	o.SendBuffer = cmp.Or(max(o.SendBuffer, 0), defaultSendBuffer)
	return &Mux{opts: o, streams: make(map[uint32]*Stream), sockets: make(map[*Socket]struct{})}
}

// ErrMuxClosed is returned by the methods of a closed mux.
var ErrMuxClosed = errors.New("the UDP sockets are closed")

// NewStream returns a stream with a random id, which the peer needs to connect. The stream receives packets at once.
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

// forget releases ids whose reservation has expired; m.mu is held.
func (m *Mux) forget() {
	now := time.Now()
	for len(m.ended) > 0 && (len(m.ended) > maxReserved || now.Sub(m.ended[0].endedAt) > reserveTime) {
		delete(m.streams, m.ended[0].id)
		m.ended[0] = nil
		m.ended = m.ended[1:]
	}
}

// retire marks a stream as ended. Its id stays reserved for a while, so that a repeated END is still acknowledged.
func (m *Mux) retire(s *Stream) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.endedAt = time.Now()
	m.ended = append(m.ended, s)
	m.forget()
}

// Streams returns the number of open streams.
func (m *Mux) Streams() int {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return len(m.streams) - len(m.ended)
}

// receive passes a datagram to its stream and reports whether there is one.
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
