//go:build !unix

package local

import (
	"errors"
	"io/fs"
	"syscall"
)

const wsaConnRefused = syscall.Errno(10061)

// OwnedByUser returns true: on Windows a user's profile, including the temporary directory,
// is private.
func OwnedByUser(fs.FileInfo) bool { return true }

// IsSocket accepts everything but directories and regular files: for Windows a socket is a
// reparse point.
func IsSocket(info fs.FileInfo) bool { return !info.IsDir() && !info.Mode().IsRegular() }

// NotListening reports whether an error of a connection means that nothing listens on the
// socket.
func NotListening(err error) bool {
	return errors.Is(err, wsaConnRefused) || errors.Is(err, fs.ErrNotExist)
}
