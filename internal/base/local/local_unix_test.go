//go:build unix

package local_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/parleyhub/parley/internal/base/local"
)

func TestOwners(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(file)
	if err != nil || !local.OwnedByUser(info) {
		t.Errorf("a file of one's own: %v", err)
	}
	if !local.SameOwner(file, dir) || !local.SameOwner(filepath.Join(dir, "missing"), dir) {
		t.Error("a file of one's own, or one without a known owner, is refused")
	}
	if os.Geteuid() != 0 {
		return // only root can give a file away
	}
	const other, another = 12345, 23456
	if err := os.Chown(file, other, -1); err != nil {
		t.Fatal(err)
	}
	info, err = os.Stat(file)
	if err != nil || local.OwnedByUser(info) || local.SameOwner(file, dir) {
		t.Errorf("another user's file in a directory of one's own: %v", err)
	}
	if err := os.Chown(dir, another, -1); err != nil {
		t.Fatal(err)
	}
	if local.SameOwner(file, dir) {
		t.Error("another user's file in a third user's directory is accepted")
	}
	if err := os.Chown(dir, other, -1); err != nil {
		t.Fatal(err)
	}
	if !local.SameOwner(file, dir) {
		t.Error("another user's file in a directory of that user is refused")
	}
}

func TestSyncDir(t *testing.T) {
	dir := t.TempDir()
	if err := local.SyncDir(dir); err != nil {
		t.Error(err)
	}
	if err := local.SyncDir(filepath.Join(dir, "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of a missing directory: %v", err)
	}
}

func TestSockets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || !local.IsSocket(info) {
		t.Errorf("a socket is not recognised: %v", err)
	}
	if _, err := net.Dial("unix", path); !local.NotListening(err) {
		t.Errorf("nothing listens, but: %v", err)
	}
	if _, err := net.Dial("unix", path+"x"); !local.NotListening(err) {
		t.Errorf("there is no socket, but: %v", err)
	}
	if local.NotListening(fs.ErrPermission) {
		t.Error("a refused permission counts as not listening")
	}
	if _, err := os.Stat(filepath.Join(path, "below")); !errors.Is(err, local.ErrNotDir) {
		t.Errorf("a path below a file: %v", err)
	}
}

func TestFreeSpace(t *testing.T) {
	if free, err := local.FreeSpace(t.TempDir()); err != nil || free == 0 {
		t.Errorf("%d, %v", free, err)
	}
	if _, err := local.FreeSpace(filepath.Join(t.TempDir(), "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of a missing directory: %v", err)
	}
}

func TestErrorsOfAWriteAreDistinguished(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	_, unread := w.WriteString("x")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name         string
		err          error
		closed, full bool
	}{
		{"nobody reads the pipe", unread, true, false},
		{"no space is left", &fs.PathError{Op: "write", Path: "f", Err: syscall.ENOSPC}, false, true},
		{"the user's quota is used up", &fs.PathError{Op: "write", Path: "f", Err: syscall.EDQUOT}, false, true},
		{"the file is closed", fs.ErrClosed, false, false},
	} {
		if local.PipeClosed(c.err) != c.closed || local.DiskFull(c.err) != c.full {
			t.Errorf("%s: closed %t, full %t", c.name, local.PipeClosed(c.err), local.DiskFull(c.err))
		}
	}
}
