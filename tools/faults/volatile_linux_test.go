package main

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// What was synced survives a power cut, and what was not is lost, or there in part.
func TestAVolatileDiskLosesWhatWasNotSynced(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount a disk")
	}
	dir := t.TempDir()
	d, err := newDisk(t.Context(), dir, rand.New(rand.NewPCG(1, 1)))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EPERM) {
		t.Skipf("disks cannot be mounted here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.close(); err != nil {
			t.Error(err)
		}
	}()
	write := func(name string, sync bool) {
		f, err := os.Create(filepath.Join(d.mount, name))
		if err == nil {
			_, err = f.Write(bytes.Repeat([]byte(name), 1<<12))
		}
		if err == nil && sync {
			err = f.Sync()
		}
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 6 {
		synced, not := name("synced", i), name("not", i)
		write(synced, true)
		write(not, false)
		if err := d.image.cut(); err != nil {
			t.Fatal(err)
		}
		d.image.drain()
		if err := d.detach(t.Context()); err != nil {
			t.Fatal(err)
		}
		d.image.restore()
		if err := d.attach(t.Context()); err != nil {
			t.Fatal(err)
		}
		for k := range i + 1 {
			name := name("synced", k)
			data, err := os.ReadFile(filepath.Join(d.mount, name))
			if err != nil || !bytes.Equal(data, bytes.Repeat([]byte(name), 1<<12)) {
				t.Errorf("cut %d: %s: %v, %d bytes", i, name, err, len(data))
			}
		}
		if data, err := os.ReadFile(filepath.Join(d.mount, not)); err == nil {
			t.Errorf("cut %d: what was not synced is there, %d bytes", i, len(data))
		}
	}
}
