//go:build !unix

package server

import (
	"context"
	"errors"
	"net"
	"syscall"
)

// Windows has Unix sockets without modes and owners: the access list of the directory
// controls who can connect. The default directory, in the user's profile, is private.

const wsaAddrInUse = syscall.Errno(10048)

// IsAddressInUse reports whether an error of listening means that another program uses the address.
func IsAddressInUse(err error) bool { return errors.Is(err, wsaAddrInUse) }

func bindPrivate(ctx context.Context, path string) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(ctx, "unix", path)
}

// peerGone cannot distinguish a disconnected client from one that has closed only its
// own direction, and treats both as disconnected.
func peerGone(net.Conn) bool { return true }
