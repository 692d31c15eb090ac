package caller

import (
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// owner returns the user of the TCP socket that is connected from client to server.
func owner(client, server netip.AddrPort) (uid int, ok bool) {
	table, err := unix.SysctlRaw("net.inet.tcp.pcblist_n")
	if err != nil {
		return 0, false
	}
	return ownerInList(table, client, server)
}

// socketPeer returns the user who connected a Unix socket, or who listens at it.
func socketPeer(conn *net.UnixConn) (uid int, ok bool) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, false
	}
	var cred *unix.Xucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptXucred(int(fd), unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
	})
	if err != nil || credErr != nil {
		return 0, false
	}
	return int(cred.Uid), true
}
