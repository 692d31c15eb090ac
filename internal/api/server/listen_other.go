//go:build !unix

package server

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
)

// Windows has Unix sockets, but neither modes nor owners on them: who may
// connect is what the access list of the socket's directory says. The default
// directory of a user's profile is that user's alone.

const (
	wsaAddrInUse  = syscall.Errno(10048)
	wsaConnRefuse = syscall.Errno(10061)
)

func isAddressInUse(err error) bool { return errors.Is(err, wsaAddrInUse) }

func isRefused(err error) bool { return errors.Is(err, wsaConnRefuse) }

// isSocket takes what is no directory and no regular file: Windows shows a
// socket as a reparse point.
func isSocket(file os.FileInfo) bool { return !file.IsDir() && !file.Mode().IsRegular() }

func isOurs(os.FileInfo) bool { return true }

func bindPrivate(ctx context.Context, path string) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(ctx, "unix", path)
}

// peerGone cannot tell a client that has gone from one that only sends no more,
// so a client that closes its side is taken to have gone.
func peerGone(net.Conn) bool { return true }
