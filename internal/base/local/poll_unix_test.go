//go:build unix

package local_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/parleyhub/parley/internal/base/local"
)

// blocking returns the ends of a pipe as a process gets its standard input.
func blocking(t *testing.T) (r, w *os.File) {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe(fds[:]); err != nil {
		t.Fatal(err)
	}
	r, w = os.NewFile(uintptr(fds[0]), "r"), os.NewFile(uintptr(fds[1]), "w")
	t.Cleanup(func() { _ = r.Close(); _ = w.Close() }) // perhaps closed already
	return r, w
}

func TestAPipeBecomesPollable(t *testing.T) {
	r, w := blocking(t)
	in := local.Pollable(r)
	if err := in.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err) // a file that blocks a thread has no deadlines
	}
	if _, err := in.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a read that is over: %v", err)
	}
	if err := in.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	go w.Write([]byte("x")) //nolint:errcheck // the read fails then
	buf := make([]byte, 2)
	if n, err := in.Read(buf); n != 1 || buf[0] != 'x' || err != nil {
		t.Errorf("read %q, %v", buf[:n], err)
	}
}

func TestAFileAndASharedSocketStayAsTheyAre(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if local.Pollable(file) != file {
		t.Error("a file was changed")
	}
	r, _ := blocking(t)
	if local.Pollable(r, r) != r {
		t.Error("what is also the output was changed")
	}
}
