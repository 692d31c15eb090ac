package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// disk is a file system in a volatile image, mounted by way of a loop device. What programs have written and not synced is in the
// system's cache or that of the disk.
type disk struct {
	image *volatile
	mount string
}

const (
	diskSize = 512 << 20
	// A journal that is committed only by a sync keeps more in the cache.
	mountOptions = "loop,commit=600,noatime"
)

func newDisk(ctx context.Context, dir string, random *rand.Rand) (d *disk, err error) {
	image, below := filepath.Join(dir, "disk.img"), filepath.Join(dir, "volatile")
	d = &disk{mount: filepath.Join(dir, "disk")}
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, diskSize), os.Mkdir(d.mount, 0o700), os.Mkdir(below, 0o700)); err != nil {
		return nil, err
	}
	if err := command(ctx, "mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", image); err != nil {
		return nil, err
	}
	if d.image, err = newVolatile(below, image, random); err != nil {
		return nil, err
	}
	if err := d.attach(ctx); err != nil {
		return nil, errors.Join(err, d.image.close())
	}
	return d, nil
}

func command(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

func (d *disk) attach(ctx context.Context) error {
	return command(ctx, "mount", "-t", "ext4", "-o", mountOptions, d.image.path(), d.mount)
}

// close detaches the disk.
func (d *disk) close() error { return errors.Join(d.detach(context.Background()), d.image.close()) }

// detach waits until the processes that used the disk have ended.
func (d *disk) detach(ctx context.Context) (err error) {
	for late := time.Now().Add(stopTime); time.Now().Before(late); pause(ctx, 10*time.Millisecond) {
		if err = command(ctx, "umount", d.mount); err == nil {
			return nil
		}
	}
	return err
}

// hold lets the disk flush nothing until the power is cut: who waits for it has no answer.
func (d *disk) hold() { d.image.hold() }

// cut cuts the power, and ends the hub and, by kill, all other programs. What they are told from the cut on is nothing: a flush has no answer.
func (d *disk) cut(ctx context.Context, h *hub, kill func()) error {
	if err := d.image.cut(); err != nil {
		return err
	}
	_ = h.process.Process.Kill() // it may have ended
	kill()
	d.image.drain() // a process that waits for the disk cannot end
	h.kill()
	if err := d.detach(ctx); err != nil { // which writes to the disk that has no power
		return err
	}
	d.image.restore()
	return d.attach(ctx)
}

// fill fills the disk while during runs.
func (d *disk) fill(during func()) error {
	name := filepath.Join(d.mount, "ballast")
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	var free unix.Statfs_t
	for err == nil {
		if err = unix.Statfs(d.mount, &free); err != nil {
			break
		}
		size, left := int64(0), int64(free.Bavail)*free.Bsize
		if info, statErr := f.Stat(); statErr == nil {
			size = info.Size()
		}
		if left < 1<<20 {
			break
		}
		err = unix.Fallocate(int(f.Fd()), 0, size, left-left/16)
	}
	if err == nil || errors.Is(err, unix.ENOSPC) {
		err = nil
		during()
	}
	return errors.Join(err, f.Close(), os.Remove(name))
}

// The disk hangs for hangTime, and works for workTime, in turn.
const (
	hangTime = 200 * time.Millisecond
	workTime = 20 * time.Millisecond
)

// stall lets all writes to the disk wait most of the time, for a length. wait reports false if it ended early.
func (d *disk) stall(wait func(time.Duration) bool, length time.Duration) error {
	dir, err := os.Open(d.mount)
	if err != nil {
		return err
	}
	for began := time.Now(); err == nil && time.Since(began) < length; wait(workTime) {
		if err = unix.IoctlSetInt(int(dir.Fd()), fsFreeze, 0); err != nil {
			break
		}
		wait(hangTime)
		err = unix.IoctlSetInt(int(dir.Fd()), fsThaw, 0)
	}
	return errors.Join(err, dir.Close())
}

// The requests of ioctl that let writes to a file system wait, and go on, as linux/fs.h has them.
const (
	fsFreeze = 0xc0045877
	fsThaw   = 0xc0045878
)

// withoutMemoryLeft is what a hub without memory may use beside what it has.
const withoutMemoryLeft = 1 << 20

// withoutMemory lets the hub get no memory while during runs. A hub that ends of it is started again.
func (h *hub) withoutMemory(ctx context.Context, during func()) error {
	pid := h.process.Process.Pid
	status, err := statusOf(pid, "VmData")
	if err != nil {
		return err
	}
	var before unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_DATA, nil, &before); err != nil {
		return err
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_DATA, &unix.Rlimit{Cur: uint64(status + withoutMemoryLeft), Max: before.Max}, nil); err != nil {
		return err
	}
	during()
	if err := unix.Prlimit(pid, unix.RLIMIT_DATA, &before, nil); err != nil {
		return err
	}
	for late := time.Now().Add(startTime); time.Now().Before(late); pause(ctx, pollTime) {
		if ended(pid) {
			_ = h.end() // it has failed
			return h.start(ctx)
		}
		if h.healthy() {
			return nil
		}
	}
	return fmt.Errorf("the hub does not answer after a time without memory: %s", h.lastLog())
}

// ended reports whether a process of this program has ended, and was not waited for.
func ended(pid int) bool {
	state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(state), ") Z ")
}

// canLimit says that the limits of a running process can be changed.
const canLimit = true

// limitDescriptors lets the hub open no further file while during runs.
func (h *hub) limitDescriptors(during func()) error {
	pid := h.process.Process.Pid
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return err
	}
	var before unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &before); err != nil {
		return err
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(len(open)), Max: before.Max}, nil); err != nil {
		return err
	}
	during()
	return unix.Prlimit(pid, unix.RLIMIT_NOFILE, &before, nil)
}
