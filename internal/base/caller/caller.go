// Package caller determines which user of this computer is at the other end of a local connection: of TCP over
// loopback, and of Unix sockets. The operating system knows it, so callers need no credential.
//
// A connection's user is the one who created the socket. It is asked for once, when the connection is accepted: later the
// other end may be closed, and its port be another user's.
package caller

import (
	"fmt"
	"net"
	"net/netip"
)

// Kind is how a caller relates to the user of this process.
type Kind int

// The kinds of a Caller.
const (
	Unknown Kind = iota // the system does not tell, or the connection is not local
	Own                 // the user of this process
	Other               // another user of this computer
)

// Caller is the user at the other end of a connection. The zero value is an unknown one.
type Caller struct {
	Kind Kind
	UID  int // unless Unknown
}

// String returns the caller for a log.
func (c Caller) String() string {
	if c.Kind == Unknown {
		return "an unknown user"
	}
	return fmt.Sprintf("the user with the id %d", c.UID)
}

// Of returns the caller at the other end of a connection. It does not wait for the other end.
func Of(conn net.Conn) Caller {
	if unix, ok := conn.(*net.UnixConn); ok {
		return kindOf(socketPeer(unix))
	}
	return Between(conn.LocalAddr(), conn.RemoteAddr())
}

// Between returns the caller of a TCP connection by its addresses, which must be those of a connection that is still
// open at this end.
func Between(local, remote net.Addr) Caller {
	here, there := addrPort(local), addrPort(remote)
	if !here.IsValid() || !there.IsValid() || !here.Addr().IsLoopback() || !there.Addr().IsLoopback() {
		return Caller{}
	}
	return kindOf(owner(there, here))
}

// addrPort returns the address of TCP, the zero value for any other network.
func addrPort(a net.Addr) netip.AddrPort {
	tcp, ok := a.(*net.TCPAddr)
	if !ok || tcp == nil {
		return netip.AddrPort{}
	}
	at := tcp.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port())
}

func kindOf(uid int, ok bool) Caller {
	switch {
	case !ok || uid < 0:
		return Caller{}
	case uid == user():
		return Caller{Own, uid}
	}
	return Caller{Other, uid}
}
