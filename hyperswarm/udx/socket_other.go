//go:build !linux

package udx

import (
	"net"
	"net/netip"
)

// dontFragment does nothing here: packets stay at the smallest size, which every path supports.
func dontFragment(*net.UDPConn) {}

const probesMTU = false

// readsBatches is false: each datagram takes a system call.
const readsBatches = false

// writeTrain is not supported: each datagram takes a system call.
func (*Socket) writeTrain([]byte, int, netip.AddrPort) bool { return false }

// writeTTL changes the TTL of the socket.
func (s *Socket) writeTTL(data []byte, to netip.AddrPort, ttl int) error {
	return s.setTTL(data, to, ttl)
}
