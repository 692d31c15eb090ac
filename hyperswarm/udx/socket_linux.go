package udx

import (
	"errors"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// dontFragment makes the kernel send each datagram unfragmented or not at all, whatever MTU it has cached
// for the path, so that MTU probes give true results.
func dontFragment(conn *net.UDPConn) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	// If it fails, large datagrams are fragmented, which is only slower.
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
	})
}

// probesMTU reports that datagrams too large for the path are lost, not fragmented, so that MTU probes work.
const probesMTU = true

// readsBatches reports that one system call can return many datagrams.
const readsBatches = true

// writeTrain sends data as datagrams of a size with one system call (UDP_SEGMENT). It reports false if the
// kernel does not support it.
func (s *Socket) writeTrain(data []byte, size int, to netip.AddrPort) bool {
	conn, ok := s.conn.(*net.UDPConn)
	if !ok || s.single.Load() {
		return false
	}
	c := segmentControl{size: uint16(size)}
	c.Level, c.Type = unix.IPPROTO_UDP, unix.UDP_SEGMENT
	c.SetLen(unix.CmsgLen(2))
	oob := unsafe.Slice((*byte)(unsafe.Pointer(&c)), unix.CmsgSpace(2))
	_, _, err := conn.WriteMsgUDPAddrPort(data, oob, to)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EIO) || errors.Is(err, unix.EOPNOTSUPP) {
		s.single.Store(true)
	}
	return err == nil
}

// writeTTL sends a datagram with its own TTL (IP_TTL); others are not affected.
func (s *Socket) writeTTL(data []byte, to netip.AddrPort, ttl int) error {
	conn, ok := s.conn.(*net.UDPConn)
	if !ok {
		return s.setTTL(data, to, ttl)
	}
	c := ttlControl{ttl: int32(ttl)}
	c.Level, c.Type = unix.IPPROTO_IP, unix.IP_TTL
	c.SetLen(unix.CmsgLen(4))
	oob := unsafe.Slice((*byte)(unsafe.Pointer(&c)), unix.CmsgSpace(4))
	_, _, err := conn.WriteMsgUDPAddrPort(data, oob, to)
	return err
}

// ttlControl is the control message of IP_TTL, with its padding.
type ttlControl struct {
	unix.Cmsghdr
	ttl int32
	_   [4]byte
}

// segmentControl is the control message of UDP_SEGMENT, with its padding.
type segmentControl struct {
	unix.Cmsghdr
	size uint16
	_    [6]byte
}
