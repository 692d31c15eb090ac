//go:build unix

package server

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// IsAddressInUse reports whether an error of listening means that another program uses the address.
func IsAddressInUse(err error) bool { return errors.Is(err, syscall.EADDRINUSE) }

// binding serialises changes of the umask, which is global to the process.
var binding sync.Mutex

// bindPrivate creates the socket so that other users can never connect. A file that
// another goroutine creates at the same time may also become private.
func bindPrivate(ctx context.Context, path string) (net.Listener, error) {
	binding.Lock()
	old := syscall.Umask(0o077)
	ln, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	syscall.Umask(old)
	binding.Unlock()
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	return ln, nil
}

// peerGone reports whether the other end has closed both directions.
func peerGone(nc net.Conn) bool {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	err = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: 0}}
		n, pollErr := unix.Poll(fds, 0)
		gone = pollErr == nil && n > 0 && fds[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
	})
	return gone || err != nil
}
