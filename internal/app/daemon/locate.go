package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/config"
)

// Locate returns the socket of the hub that a configuration names. A hub is a data directory and a socket:
//
//   - If only the socket is named, by a flag or a variable, it is any hub that listens there.
//   - Else it is the hub of the data directory, on the socket where it listens now. If the socket is named too and the
//     hub listens on another one, the error is an *Error with CodeOtherHub; also if another hub has the socket.
//
// The error without a hub is client.ErrNotRunning.
func Locate(ctx context.Context, cfg *config.Loaded) (string, error) {
	socket := cfg.Socket.Path
	if cfg.Names("socket.path") && !cfg.Names("dataDir") {
		return socket, nil
	}
	info, running, err := Running(cfg.DataDir)
	if err != nil {
		return "", dataDirError(cfg.DataDir, err)
	}
	if !running {
		if err := foreign(ctx, cfg); err != nil {
			return "", err
		}
		return "", fmt.Errorf("%w on %s", client.ErrNotRunning, socket)
	}
	if info.Socket == "" { // it is starting or stopping, or has no socket
		return socket, nil
	}
	if cfg.Names("socket.path") && !SamePath(info.Socket, socket) {
		return "", &Error{
			Code:    CodeOtherHub,
			Message: fmt.Sprintf("the hub of the data directory %s (process %d) listens on %s, not on %s", cfg.DataDir, info.PID, info.Socket, socket),
			Remedy:  "use --socket " + info.Socket + ", or name another data directory with --data-dir",
		}
	}
	return info.Socket, nil
}

// foreign returns an error if a hub with another data directory listens on the configured socket.
func foreign(ctx context.Context, cfg *config.Loaded) error {
	c, err := client.Dial(ctx, cfg.Socket.Path)
	if err != nil {
		if errors.Is(err, client.ErrNotRunning) {
			return nil
		}
		return err
	}
	defer c.Close()
	status, err := c.Status(ctx)
	if err != nil {
		return err
	}
	if _, running, err := Running(cfg.DataDir); err == nil && running {
		return nil // it has started meanwhile
	}
	where := "another one"
	remedy := "name that data directory with --data-dir, or another socket with --socket"
	if status.DataDir != "" {
		where = status.DataDir
		remedy = "use --data-dir " + where + ", or name another socket with --socket"
	}
	return &Error{
		Code:    CodeOtherHub,
		Message: fmt.Sprintf("the hub on the socket %s (process %d) does not have the data directory %s, but %s", cfg.Socket.Path, status.PID, cfg.DataDir, where),
		Remedy:  remedy,
	}
}

// dataDirTimeout bounds the answer of a program that listens on a socket.
const dataDirTimeout = 5 * time.Second

// DataDirAt returns the data directory of the hub that listens on a socket; "" if none of this user does, or if it does
// not tell, as a hub of an earlier version.
func DataDirAt(ctx context.Context, socket string) string {
	ctx, cancel := context.WithTimeout(ctx, dataDirTimeout)
	defer cancel()
	c, err := client.Dial(ctx, socket)
	if err != nil {
		return ""
	}
	defer c.Close()
	status, err := c.Status(ctx)
	if err != nil {
		return ""
	}
	return status.DataDir
}

// Dial connects to the hub that a configuration names; see [Locate].
func Dial(ctx context.Context, cfg *config.Loaded) (*client.Client, error) {
	socket, err := Locate(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return client.Dial(ctx, socket)
}

// SamePath reports whether two paths are one file; a link and its target are.
func SamePath(a, b string) bool {
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	x, errA := os.Stat(a)
	y, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(x, y)
}

// prepareSocketDir creates the directory of a default socket that is not in the data directory. Everybody can create
// files in its parent, so it must be the user's own.
func prepareSocketDir(cfg *config.Loaded) error {
	dir := filepath.Dir(cfg.Socket.Path)
	if cfg.Socket.Path != config.DefaultSocket(cfg.DataDir) || dir == cfg.DataDir || dir == filepath.Clean(os.TempDir()) {
		return nil
	}
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		return nil
	}
	info, statErr := os.Lstat(dir)
	if !errors.Is(err, os.ErrExist) || statErr != nil {
		return &Error{Code: CodeDataDir, Message: "cannot create the directory " + dir + " of the socket", Remedy: "choose another socket with --socket or PARLEY_SOCKET", Err: err}
	}
	if !info.IsDir() || !local.OwnedByUser(info) || info.Mode().Perm()&0o077 != 0 {
		return &Error{Code: CodeDataDir, Message: "the directory " + dir + " of the socket is not yours alone", Remedy: "choose another socket with --socket or PARLEY_SOCKET"}
	}
	return nil
}

// specifiedSocket is where the specification puts the socket. It is one place for all users of a computer, so the hub
// listens elsewhere, and offers its socket there if nobody else does.
const specifiedSocket = "/tmp/a2a-hub.sock"

// clearOffered removes a link that a killed hub of this user has left at a socket's path, when that is where hubs offer
// their sockets: what the link leads to is gone, or is a socket of this user on which nobody listens. Any other file stays.
func clearOffered(ctx context.Context, link, path string) error {
	info, err := os.Lstat(link)
	if path != link || err != nil || info.Mode().Type() != os.ModeSymlink || !local.OwnedByUser(info) {
		return nil
	}
	target, err := os.Stat(link)
	if err == nil && (!local.IsSocket(target) || !local.OwnedByUser(target)) || err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil
	}
	c, err := client.Dial(ctx, link)
	if err == nil {
		return c.Close()
	}
	if !errors.Is(err, client.ErrNotRunning) {
		return nil
	}
	return os.Remove(link)
}

// offerSocket makes link a symbolic link to the socket, for clients that know only the specified place. Anything that
// is there and not a useless link or socket of this user stays. The returned function removes the link.
func offerSocket(ctx context.Context, link, socket string) (remove func() error, ok bool) {
	if info, err := os.Lstat(link); err == nil {
		kind := info.Mode().Type()
		if kind&(os.ModeSymlink|os.ModeSocket) == 0 || !local.OwnedByUser(info) {
			return nil, false
		}
		c, err := client.Dial(ctx, link)
		if err == nil { // another hub of this user
			c.Close()
			return nil, false
		}
		if !errors.Is(err, client.ErrNotRunning) || os.Remove(link) != nil {
			return nil, false
		}
	}
	if err := os.Symlink(socket, link); err != nil {
		return nil, false
	}
	return func() error {
		if target, err := os.Readlink(link); err != nil || target != socket {
			return nil // it is no longer ours
		}
		return os.Remove(link)
	}, true
}
