//go:build !unix

package server

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
)

// Windows has Unix sockets without modes and owners: the access list of the directory
// controls who can connect. The default directory, in the user's profile, is private.

const (
	wsaAddrInUse  = syscall.Errno(10048)
	wsaConnRefuse = syscall.Errno(10061)
)

func isAddressInUse(err error) bool { return errors.Is(err, wsaAddrInUse) }

func isRefused(err error) bool { return errors.Is(err, wsaConnRefuse) }

// isSocket accepts everything but directories and regular files: for Windows a socket
// is a reparse point.
func isSocket(file os.FileInfo) bool { return !file.IsDir() && !file.Mode().IsRegular() }

func isOurs(os.FileInfo) bool { return true }

func bindPrivate(ctx context.Context, path string) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(ctx, "unix", path)
}

// peerGone cannot distinguish a disconnected client from one that has closed only its
// own direction, and treats both as disconnected.
func peerGone(net.Conn) bool { return true }
