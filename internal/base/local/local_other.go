//go:build !unix

package local

import (
	"errors"
	"io/fs"
	"syscall"
)

// ErrNotDir is the error of opening a path below a file.
var ErrNotDir error = fs.ErrNotExist

// Errors of Windows.
const (
	errorHandleDiskFull = syscall.Errno(39)
	errorBrokenPipe     = syscall.Errno(109)
	errorDiskFull       = syscall.Errno(112)
	errorNoData         = syscall.Errno(232) // the pipe is being closed
	wsaConnRefused      = syscall.Errno(10061)
)

// OwnedByUser returns true: on Windows a user's profile, including the temporary directory, is private.
func OwnedByUser(fs.FileInfo) bool { return true }

// OthersMayRead returns false: on Windows a user's profile is private.
func OthersMayRead(fs.FileInfo) bool { return false }

// SameOwner returns true: on Windows, users' directories and their temporary directories
// are not writable for others.
func SameOwner(string, string) bool { return true }

// SyncDir does nothing: directories cannot be synced here, and the system decides when a rename reaches the disk.
func SyncDir(string) error { return nil }

// IsSocket accepts everything but directories and regular files: for Windows a socket is a reparse point.
func IsSocket(info fs.FileInfo) bool { return !info.IsDir() && !info.Mode().IsRegular() }

// PipeClosed reports whether an error of a write means that nobody reads the pipe any more.
func PipeClosed(err error) bool {
	return errors.Is(err, errorBrokenPipe) || errors.Is(err, errorNoData)
}

// DiskFull reports whether an error of a write means that the file system has no space left.
func DiskFull(err error) bool {
	return errors.Is(err, errorDiskFull) || errors.Is(err, errorHandleDiskFull)
}

// NotListening reports whether an error of a connection means that nothing listens on the socket.
func NotListening(err error) bool {
	return errors.Is(err, wsaConnRefused) || errors.Is(err, fs.ErrNotExist)
}
