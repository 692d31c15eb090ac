//go:build unix

// Package local tells apart the files and Unix sockets of this user and others on every
// system.
package local

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// OwnedByUser reports whether a file belongs to the user of this process.
func OwnedByUser(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int64(st.Uid) == int64(os.Geteuid())
}

// IsSocket reports whether a file is a Unix socket.
func IsSocket(info fs.FileInfo) bool { return info.Mode()&fs.ModeSocket != 0 }

// NotListening reports whether an error of a connection means that nothing listens on the
// socket.
func NotListening(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist)
}
