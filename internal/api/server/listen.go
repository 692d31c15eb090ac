package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"
)

// maxSocketPath is the length that every system's sockaddr_un has room for.
const maxSocketPath = 103

var errPermission = fs.ErrPermission

// listenUnix makes the socket, for this user alone. It takes the place of a
// socket that a dead hub of this user left, and of nothing else.
func listenUnix(ctx context.Context, path string) (net.Listener, os.FileInfo, error) {
	if len(path) > maxSocketPath {
		return nil, nil, &Error{Code: CodeConfig, Message: "the socket path " + path + " is too long", Remedy: "choose one of at most 103 bytes with --socket"}
	}
	if err := clearStale(ctx, path); err != nil {
		return nil, nil, err
	}
	ln, err := bindPrivate(ctx, path)
	if err != nil {
		return nil, nil, socketError(path, err)
	}
	if unix, ok := ln.(*net.UnixListener); ok {
		unix.SetUnlinkOnClose(false) // removeSocket does it, and only to our own
	}
	file, err := os.Lstat(path)
	if err != nil {
		return nil, nil, errors.Join(socketError(path, err), ln.Close())
	}
	return ln, file, nil
}

func socketError(path string, err error) error {
	e := &Error{Code: CodeInternal, Message: "cannot listen on the socket " + path + ": " + rootCause(err), Err: err}
	switch {
	case isAddressInUse(err):
		e.Code, e.Remedy = CodeInUse, "another hub has just taken it; choose another with --socket"
	case errors.Is(err, errPermission):
		e.Code, e.Remedy = CodeForbidden, "choose a path in a directory of yours with --socket"
	case errors.Is(err, fs.ErrNotExist):
		e.Code, e.Remedy = CodeConfig, "make its directory, or choose another path with --socket"
	}
	return e
}

// clearStale removes a socket at path that nobody answers. It refuses whatever
// is no socket of this user.
func clearStale(ctx context.Context, path string) error {
	before, err := os.Lstat(path) // a symbolic link is not followed
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return socketError(path, err)
	case !isSocket(before):
		return &Error{Code: CodeForbidden, Message: path + " is there and is not a socket", Remedy: "remove it, or choose another path with --socket"}
	case !isOurs(before):
		return &Error{Code: CodeForbidden, Message: "the socket " + path + " belongs to another user", Remedy: "choose another path with --socket"}
	}
	dialer := net.Dialer{Timeout: time.Second}
	if conn, err := dialer.DialContext(ctx, "unix", path); err == nil {
		return errors.Join(&Error{Code: CodeInUse, Message: "a hub already listens on " + path, Remedy: "use it, stop it, or choose another path with --socket"}, conn.Close())
	} else if !isRefused(err) {
		return socketError(path, err)
	}
	return removeStale(path, before)
}

// removeStale moves the file aside before it removes it: where another hub has
// put its own socket there since, that one goes back.
func removeStale(path string, before os.FileInfo) error {
	aside := fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := os.Rename(path, aside); err != nil {
		return socketError(path, err)
	}
	moved, err := os.Lstat(aside)
	if err != nil {
		return socketError(path, err)
	}
	if !os.SameFile(before, moved) {
		return errors.Join(&Error{Code: CodeInUse, Message: "another hub has just taken " + path}, os.Rename(aside, path))
	}
	if err := os.Remove(aside); err != nil {
		return socketError(path, err)
	}
	return nil
}

// removeSocket removes the socket that file describes, if it is still there.
func removeSocket(path string, file os.FileInfo) error {
	now, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(now, file) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Remove(path)
}
