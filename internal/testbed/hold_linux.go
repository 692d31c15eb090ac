package testbed

import (
	"errors"
	"syscall"
)

// hold binds a socket to a free port and does not listen: the system then assigns the port to
// no other socket, but a server that names it can still listen.
func hold() (port int, release func() error, err error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, nil, err
	}
	release = func() error { return syscall.Close(fd) }
	// The server sets this as well, as Go always does; without it the port would be in use.
	err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	if err == nil {
		err = syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	}
	if err != nil {
		return 0, nil, errors.Join(err, release())
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		return 0, nil, errors.Join(err, release())
	}
	return at.(*syscall.SockaddrInet4).Port, release, nil
}
