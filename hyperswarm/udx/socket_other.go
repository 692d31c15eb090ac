//go:build !linux

package udx

import (
	"net"
	"net/netip"
)

// dontFragment does nothing here: packets stay at the smallest size, which every
// path takes.
func dontFragment(*net.UDPConn) {}

const probesMTU = false

// readsBatches is Linux's: here each datagram is a system call.
const readsBatches = false

// writeTrain is Linux's: here each datagram is a system call.
func (*Socket) writeTrain([]byte, int, netip.AddrPort) bool { return false }

// writeTTL has no other way here than to change the socket.
func (s *Socket) writeTTL(data []byte, to netip.AddrPort, ttl int) error {
	return s.setTTL(data, to, ttl)
}
