package udx

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"golang.org/x/net/ipv4"
)

// maxDatagram is the largest datagram that is read whole.
const maxDatagram = 2048

// socketBuffer is what the kernel is asked to hold of a socket in each direction.
const socketBuffer = 4 << 20

// Handler takes the datagrams that belong to no stream, one at a time. It must
// not block, and not keep data.
type Handler func(s *Socket, data []byte, from netip.AddrPort)

// PacketConn is the part of a *net.UDPConn that a socket needs. Others are for
// tests.
type PacketConn interface {
	ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error)
	WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error)
	LocalAddr() net.Addr
	Close() error
}

// Socket is a UDP socket of a [Mux].
type Socket struct {
	m       *Mux
	conn    PacketConn
	ip      *ipv4.PacketConn // nil for a socket that is not UDP's
	handler Handler
	ttl     sync.Mutex
	single  atomic.Bool // the system does not take trains
	closed  chan struct{}
	arrived arrivals // of whoever reads
	turn    turn
}

// Listen opens a UDP socket over IPv4 and reads it until it is closed.
func (m *Mux) Listen(at netip.AddrPort, h Handler) (*Socket, error) {
	if m.opts.Open != nil {
		conn, err := m.opts.Open(at)
		if err != nil {
			return nil, fmt.Errorf("no socket at %v: %w", at, err)
		}
		return m.Serve(conn, h)
	}
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return nil, fmt.Errorf("no UDP socket at %v: %w", at, err)
	}
	// The kernel gives less if its limits are lower; then bursts are lost sooner.
	_ = conn.SetReadBuffer(socketBuffer)
	_ = conn.SetWriteBuffer(socketBuffer)
	dontFragment(conn)
	return m.Serve(conn, h)
}

// Serve reads a connection until it is closed. It owns conn from here on.
func (m *Mux) Serve(conn PacketConn, h Handler) (*Socket, error) {
	s := &Socket{m: m, conn: conn, handler: h, closed: make(chan struct{})}
	s.turn.init(conn)
	if udp, ok := conn.(*net.UDPConn); ok {
		s.ip = ipv4.NewPacketConn(udp)
	}
	s.arrived.init(s.ip != nil && readsBatches)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, errors.Join(ErrMuxClosed, conn.Close())
	}
	m.sockets[s] = struct{}{}
	m.wg.Go(s.read)
	return s, nil
}

// Addr returns the address at which the socket is bound.
func (s *Socket) Addr() netip.AddrPort {
	if a, ok := s.conn.LocalAddr().(*net.UDPAddr); ok {
		return unmap(a.AddrPort())
	}
	return netip.AddrPort{}
}

func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// Write sends one datagram. It does not wait for anything but room in the
// kernel's buffer. An error says only that it was not sent: datagrams get lost
// without one.
func (s *Socket) Write(data []byte, to netip.AddrPort) error {
	_, err := s.conn.WriteToUDPAddrPort(data, to)
	return err
}

// WriteTTL sends one datagram that dies after so many hops.
func (s *Socket) WriteTTL(data []byte, to netip.AddrPort, ttl int) error {
	if s.ip == nil {
		return s.Write(data, to)
	}
	return s.writeTTL(data, to, ttl)
}

// setTTL sends a datagram between two changes of the whole socket: what others
// send meanwhile dies early, too.
func (s *Socket) setTTL(data []byte, to netip.AddrPort, ttl int) error {
	s.ttl.Lock()
	defer s.ttl.Unlock()
	if err := s.ip.SetTTL(ttl); err != nil {
		return err
	}
	err := s.Write(data, to)
	return errors.Join(err, s.ip.SetTTL(64))
}

// Close closes the socket. Streams connected through it time out. It does not
// wait for the reading goroutine; the mux's Close does.
func (s *Socket) Close() error {
	s.m.mu.Lock()
	_, open := s.m.sockets[s]
	delete(s.m.sockets, s)
	s.m.mu.Unlock()
	if !open {
		return nil
	}
	return s.conn.Close()
}

// Done is closed when the socket reads no more.
func (s *Socket) Done() <-chan struct{} { return s.closed }
