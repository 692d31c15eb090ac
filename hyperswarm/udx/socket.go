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

// maxDatagram is the size of the read buffers.
const maxDatagram = 2048

// socketBuffer is the size requested for each of the kernel's buffers of a socket.
const socketBuffer = 4 << 20

// Handler receives the datagrams that belong to no stream, one at a time. It must not block, and must not keep data.
type Handler func(s *Socket, data []byte, from netip.AddrPort)

// PacketConn is the part of *net.UDPConn that a socket needs. Tests provide others.
type PacketConn interface {
	ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error)
	WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error)
	LocalAddr() net.Addr
	Close() error
}

// Socket is a UDP socket of a [Mux].
type Socket struct {
	m        *Mux
	conn     PacketConn
	ip       *ipv4.PacketConn // nil if conn is not a UDP socket
	handler  Handler
	ttl      sync.Mutex
	single   atomic.Bool // the system does not support writeTrain
	closed   chan struct{}
	received datagrams // used by the goroutine that reads
	turn     turn
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
	// The kernel may grant less: then bursts are lost sooner.
	_ = conn.SetReadBuffer(socketBuffer)
	_ = conn.SetWriteBuffer(socketBuffer)
	dontFragment(conn)
	return m.Serve(conn, h)
}

// Serve reads conn until it is closed. The mux owns conn.
func (m *Mux) Serve(conn PacketConn, h Handler) (*Socket, error) {
	s := &Socket{m: m, conn: conn, handler: h, closed: make(chan struct{})}
	s.turn.init(conn)
	if udp, ok := conn.(*net.UDPConn); ok {
		s.ip = ipv4.NewPacketConn(udp)
	}
	s.received.init(s.ip != nil && readsBatches)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, errors.Join(ErrMuxClosed, conn.Close())
	}
	m.sockets[s] = struct{}{}
	m.wg.Go(s.read)
	return s, nil
}

// Addr returns the socket's local address.
func (s *Socket) Addr() netip.AddrPort {
	if a, ok := s.conn.LocalAddr().(*net.UDPAddr); ok {
		return unmap(a.AddrPort())
	}
	return netip.AddrPort{}
}

func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// Write sends one datagram. It blocks only for room in the kernel's buffer. A nil error does not mean that
// the datagram arrives.
func (s *Socket) Write(data []byte, to netip.AddrPort) error {
	_, err := s.conn.WriteToUDPAddrPort(data, to)
	return err
}

// WriteTTL sends one datagram with a limited number of hops.
func (s *Socket) WriteTTL(data []byte, to netip.AddrPort, ttl int) error {
	if s.ip == nil {
		return s.Write(data, to)
	}
	return s.writeTTL(data, to, ttl)
}

// setTTL changes the TTL of the whole socket for one datagram: datagrams sent concurrently use it as well.
func (s *Socket) setTTL(data []byte, to netip.AddrPort, ttl int) error {
	s.ttl.Lock()
	defer s.ttl.Unlock()
	if err := s.ip.SetTTL(ttl); err != nil {
		return err
	}
	err := s.Write(data, to)
	return errors.Join(err, s.ip.SetTTL(64))
}

// Close closes the socket. Streams connected through it time out. Close does not wait for the reading
// goroutine; [Mux.Close] does.
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

// Done is closed when the socket is no longer read.
func (s *Socket) Done() <-chan struct{} { return s.closed }
