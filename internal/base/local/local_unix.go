//go:build unix

// Package local has what files and Unix sockets need of the operating system: owners,
// kinds, durable renames and the errors that differ between systems.
package local

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// ErrNotDir is the error of opening a path below a file.
var ErrNotDir error = syscall.ENOTDIR

// OwnedByUser reports whether a file belongs to the user of this process.
func OwnedByUser(info fs.FileInfo) bool {
	uid, ok := owner(info)
	return ok && uid == os.Geteuid()
}

// OthersMayRead reports whether the mode of a file permits other users to read it.
func OthersMayRead(info fs.FileInfo) bool { return info.Mode().Perm()&0o077 != 0 }

// SameOwner reports whether a file belongs to the owner of a directory, to the user of
// this process or to root. A file without a known owner counts as the user's.
func SameOwner(file, dir string) bool {
	uid, ok := ownerOf(file)
	if !ok || uid == 0 || uid == os.Geteuid() {
		return true
	}
	other, ok := ownerOf(dir)
	return ok && uid == other
}

func ownerOf(path string) (uid int, ok bool) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, false
	}
	return owner(info)
}

func owner(info fs.FileInfo) (uid int, ok bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}

// SyncDir makes the renames in a directory durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// IsSocket reports whether a file is a Unix socket.
func IsSocket(info fs.FileInfo) bool { return info.Mode()&fs.ModeSocket != 0 }

// PipeClosed reports whether an error of a write means that nobody reads the pipe any more.
func PipeClosed(err error) bool { return errors.Is(err, syscall.EPIPE) }

// DiskFull reports whether an error of a write means that the file system has no space left, for anybody or for this user.
func DiskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// NotListening reports whether an error of a connection means that nothing listens on the socket.
func NotListening(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist)
}
