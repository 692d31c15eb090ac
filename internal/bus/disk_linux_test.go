package bus_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/internal/bus"
)

// smallDisk mounts a disk of its own of 64 MiB, until the end of the test.
func smallDisk(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting a disk needs root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64m"); err != nil {
		t.Skipf("a disk cannot be mounted here: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

// fill writes a file until a disk is full, and returns it.
func fill(t *testing.T, dir string) string {
	t.Helper()
	name := filepath.Join(dir, "filler")
	f, err := os.Create(name)
	must(t, err)
	defer f.Close()
	for _, size := range []int{1 << 20, 4 << 10} {
		for {
			if _, err := f.Write(make([]byte, size)); err != nil {
				break
			}
		}
	}
	return name
}

func store(t *testing.T, b *bus.Bus, ctx context.Context, n int) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	_, err := b.Publish(ctx, &nats.Msg{Subject: "s.x", Data: fmt.Appendf(nil, "%d", n)})
	return err
}

// On a full disk each call fails at once and says which disk, reads go on, and everything works again by itself when
// there is space. It is so in the hub and in a process that has joined it, and for a start.
func TestAFullDisk(t *testing.T) {
	data := smallDisk(t)
	dir := filepath.Join(data, "data")
	b, err := bus.Open(t.Context(), bus.Config{DataDir: dir})
	must(t, err)
	stream := ensureStream(t, b, "S", "s.>")
	must(t, store(t, b, t.Context(), 1))
	filler := fill(t, data)
	refused := func(b *bus.Bus) {
		t.Helper()
		begun := time.Now()
		err := store(t, b, t.Context(), 2)
		if bus.CodeOf(err) != bus.CodeStorage || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), data) || !strings.Contains(err.Error(), "is full") {
			t.Fatalf("on a full disk: %v", err)
		}
		t.Logf("refused after %v: %v", time.Since(begun), err)
	}
	refused(b)
	if m, err := stream.GetMsg(t.Context(), 1); err != nil || string(m.Data) != "1" {
		t.Errorf("on a full disk a message cannot be read: %v", err)
	}
	if problem := b.Info().StorageError; !strings.Contains(problem, "is full") {
		t.Errorf("the bus reports %q", problem)
	}
	// Somebody has used the reserve, too: a start is refused with the reason. With it, a start succeeds for reading.
	must(t, b.Close(t.Context()))
	if fd, err := os.OpenFile(filler, os.O_APPEND|os.O_WRONLY, 0); err == nil {
		for {
			if _, err := fd.Write(make([]byte, 4<<10)); err != nil {
				break
			}
		}
		must(t, fd.Close())
	}
	if _, err := bus.Open(t.Context(), bus.Config{DataDir: dir}); bus.CodeOf(err) != bus.CodeStorage || !strings.Contains(err.Error(), "is full") {
		t.Fatalf("a start on a full disk: %v", err)
	}
	must(t, os.Truncate(filler, 58<<20))
	b, err = bus.Open(t.Context(), bus.Config{DataDir: dir})
	must(t, err)
	defer func() { must(t, b.Close(context.WithoutCancel(t.Context()))) }()
	stream = ensureStream(t, b, "S", "s.>")
	must(t, store(t, b, bus.Urgent(t.Context()), 2)) // what ends something still fits
	refused(b)
	must(t, os.Remove(filler))
	begun := time.Now()
	for err := store(t, b, t.Context(), 3); err != nil; err = store(t, b, t.Context(), 3) {
		if time.Since(begun) > 30*time.Second {
			t.Fatalf("with space again: %v", err)
		}
	}
	t.Logf("works again after %v", time.Since(begun))
	if m, err := stream.GetMsg(t.Context(), 3); err != nil || string(m.Data) != "3" {
		t.Errorf("the third message: %v", err)
	}
}
