package udx

import (
	"net"

	"golang.org/x/sys/unix"
)

// dontFragment has the kernel send each datagram whole or not at all, whatever
// it believes of the path, so that the search for the path's MTU sees the truth.
func dontFragment(conn *net.UDPConn) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	// If it fails, large datagrams are fragmented: slower, not wrong.
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
	})
}

// probesMTU says that a datagram that is too large for the path is lost, not
// fragmented, so that larger ones can be tried.
const probesMTU = true
