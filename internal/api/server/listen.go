package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	"github.com/parleyhub/parley/internal/base/local"
)

// maxSocketPath is the length of a path that fits in every system's sockaddr_un.
const maxSocketPath = 103

var errPermission = fs.ErrPermission

// listenUnix creates the socket with access for this user only. It replaces an unused
// socket of this user, but no other file.
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
		unix.SetUnlinkOnClose(false) // removeSocket removes it if it is still ours
	}
	file, err := os.Lstat(path)
	if err != nil {
		return nil, nil, errors.Join(socketError(path, err), ln.Close())
	}
	return ln, file, nil
}

func socketError(path string, err error) error {
	e := &Error{Code: CodeInternal, Message: "cannot listen on the socket " + path + ": " + local.Reason(err), Err: err}
	switch {
	case IsAddressInUse(err):
		e.Code, e.Remedy = CodeInUse, "another hub has just taken it; choose another with --socket"
	case errors.Is(err, errPermission):
		e.Code, e.Remedy = CodeForbidden, "choose a path in your own directory with --socket"
	case errors.Is(err, fs.ErrNotExist):
		e.Code, e.Remedy = CodeConfig, "create its directory, or choose another path with --socket"
	}
	return e
}

// clearStale removes a socket at path on which nothing listens. It returns an error for
// any other file, and for sockets of other users.
func clearStale(ctx context.Context, path string) error {
	before, err := os.Lstat(path) // a symbolic link is not followed
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return socketError(path, err)
	case !local.IsSocket(before):
		return &Error{Code: CodeForbidden, Message: path + " exists and is not a socket", Remedy: "remove it, or choose another path with --socket"}
	case !local.OwnedByUser(before):
		return &Error{Code: CodeForbidden, Message: "the socket " + path + " belongs to another user", Remedy: "choose another path with --socket"}
	}
	dialer := net.Dialer{Timeout: time.Second}
	if conn, err := dialer.DialContext(ctx, "unix", path); err == nil {
		return errors.Join(&Error{Code: CodeInUse, Message: "a hub already listens on " + path, Remedy: "use it, stop it, or choose another path with --socket"}, conn.Close())
	} else if !local.NotListening(err) {
		return socketError(path, err)
	}
	return removeStale(path, before)
}

// removeStale renames the file before it removes it. If it turns out to be the new
// socket of another hub, it is renamed back.
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

// removeSocket removes the socket at path if it is still the given file.
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
