package caller

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// hasDiag is set once the kernel has found a socket by netlink. Before, an answer without one may mean that the module
// is missing; afterwards the tables below /proc would not have it either.
var hasDiag atomic.Bool

// owner returns the user of the TCP socket that is connected from client to server.
func owner(client, server netip.AddrPort) (uid int, ok bool) {
	s, err := askKernel(client, server)
	if err == nil {
		hasDiag.Store(true)
		return s.user()
	}
	if hasDiag.Load() && errors.Is(err, unix.ENOENT) {
		return 0, false
	}
	return ownerInTables("/proc/thread-self/net", client, server)
}

// socket is an entry of the kernel's table of TCP sockets.
type socket struct {
	local, remote netip.AddrPort
	state         uint8
	uid           uint32
	inode         uint32
}

// States of TCP in which a client has a connection that the server has accepted.
const (
	stateEstablished = 1
	stateFinWait1    = 4 // the client has closed its direction
	stateFinWait2    = 5
)

// user returns the owner of a socket. A socket that its process has closed has no inode, and 0 as its user.
func (s socket) user() (uid int, ok bool) {
	switch s.state {
	case stateEstablished, stateFinWait1, stateFinWait2:
	default:
		return 0, false
	}
	if s.inode == 0 || s.uid == overflowUser && !allUsers() {
		return 0, false
	}
	return int(s.uid), true
}

// overflowUser stands for every user who is unknown in this process's user namespace.
const overflowUser = 65534

// allUsers reports whether this process's user namespace has all users.
var allUsers = sync.OnceValue(func() bool {
	data, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(data)), " ") == "0 0 4294967295"
})

// Sizes of the messages of sock_diag(7).
const (
	sockIDSize  = 48
	requestSize = unix.SizeofNlMsghdr + 8 + sockIDSize
	answerSize  = 4 + sockIDSize + 20
)

// kernelTimeout bounds the wait for an answer, which the kernel gives within the request.
var kernelTimeout = unix.Timeval{Sec: 1}

// askKernel looks one socket up by its addresses. The time does not depend on the number of sockets.
func askKernel(client, server netip.AddrPort) (socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return socket{}, err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &kernelTimeout); err != nil {
		return socket{}, err
	}
	kernel := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	if err := unix.Sendto(fd, diagRequest(client, server), 0, kernel); err != nil {
		return socket{}, err
	}
	answer := make([]byte, 4096)
	for {
		n, from, err := unix.Recvfrom(fd, answer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return socket{}, err
		}
		if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
			continue // not the kernel's
		}
		s, err := parseAnswer(answer[:n])
		if err == nil && (s.local != client || s.remote != server) {
			err = unix.ENOENT // a listener at the client's address
		}
		return s, err
	}
}

var native = binary.NativeEndian

// diagRequest returns a request for one socket.
func diagRequest(client, server netip.AddrPort) []byte {
	b := make([]byte, requestSize)
	native.PutUint32(b, requestSize)
	native.PutUint16(b[4:], unix.SOCK_DIAG_BY_FAMILY)
	native.PutUint16(b[6:], unix.NLM_F_REQUEST)
	r := b[unix.SizeofNlMsghdr:]
	r[0] = unix.AF_INET
	if client.Addr().Is6() {
		r[0] = unix.AF_INET6
	}
	r[1] = unix.IPPROTO_TCP
	native.PutUint32(r[4:], ^uint32(0)) // every state
	id := r[8:]
	binary.BigEndian.PutUint16(id, client.Port())
	binary.BigEndian.PutUint16(id[2:], server.Port())
	copy(id[4:20], client.Addr().AsSlice())
	copy(id[20:36], server.Addr().AsSlice())
	native.PutUint64(id[40:], ^uint64(0)) // no cookie
	return b
}

var errAnswer = errors.New("the kernel's answer is invalid")

// parseAnswer reads a message with one socket, or with an error.
func parseAnswer(b []byte) (socket, error) {
	if len(b) < unix.SizeofNlMsghdr {
		return socket{}, errAnswer
	}
	kind, body := native.Uint16(b[4:]), b[unix.SizeofNlMsghdr:]
	switch {
	case kind == unix.NLMSG_ERROR && len(body) >= 4:
		if code := int32(native.Uint32(body)); code < 0 {
			return socket{}, unix.Errno(-code)
		}
		return socket{}, errAnswer
	case kind != unix.SOCK_DIAG_BY_FAMILY || len(body) < answerSize:
		return socket{}, errAnswer
	}
	id := body[4:]
	return socket{
		local:  idAddr(body[0], id[4:20], id),
		remote: idAddr(body[0], id[20:36], id[2:]),
		state:  body[1],
		uid:    native.Uint32(body[4+sockIDSize+12:]),
		inode:  native.Uint32(body[4+sockIDSize+16:]),
	}, nil
}

func idAddr(family byte, ip, port []byte) netip.AddrPort {
	addr := netip.AddrFrom4([4]byte(ip[:4]))
	if family == unix.AF_INET6 {
		addr = netip.AddrFrom16([16]byte(ip)).Unmap()
	}
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(port))
}

// maxTable bounds the part of a table that is read, in bytes: about 100,000 sockets.
const maxTable = 16 << 20

// ownerInTables is owner where netlink is not available.
func ownerInTables(dir string, client, server netip.AddrPort) (uid int, ok bool) {
	for _, name := range []string{"tcp", "tcp6"} {
		f, err := os.Open(dir + "/" + name)
		if err != nil {
			continue
		}
		data, err := io.ReadAll(io.LimitReader(f, maxTable))
		_ = f.Close() // it was only read
		if err != nil {
			continue
		}
		for line := range bytes.Lines(data) {
			if s, ok := parseLine(line); ok && s.local == client && s.remote == server {
				return s.user()
			}
		}
	}
	return 0, false
}

// parseLine reads a line of /proc/net/tcp or tcp6.
func parseLine(line []byte) (s socket, ok bool) {
	f := bytes.Fields(line)
	if len(f) < 10 {
		return s, false
	}
	if s.local, ok = tableAddr(f[1]); !ok {
		return s, false
	}
	if s.remote, ok = tableAddr(f[2]); !ok {
		return s, false
	}
	state, errState := parseUint(f[3], 16, 8)
	uid, errUID := parseUint(f[7], 10, 32)
	inode, errInode := parseUint(f[9], 10, 32)
	s.state, s.uid, s.inode = uint8(state), uint32(uid), uint32(inode)
	return s, errState == nil && errUID == nil && errInode == nil
}

// socketPeer returns the user who connected a Unix socket, or who listens at it.
func socketPeer(conn *net.UnixConn) (uid int, ok bool) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, false
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err != nil || credErr != nil || cred.Uid == overflowUser && !allUsers() {
		return 0, false
	}
	return int(cred.Uid), true
}
