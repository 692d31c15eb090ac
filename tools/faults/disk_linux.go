package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// disk is a file system in an image, mounted by way of a loop device. What programs have written and not synced is in the
// system's cache only, not in the image: a copy of the image is what a computer would find after a power cut.
type disk struct {
	image, mount string
}

const (
	diskSize = 512 << 20
	// A journal that is committed only by a sync keeps more in the cache.
	mountOptions = "loop,commit=600,noatime"
)

func newDisk(ctx context.Context, dir string) (*disk, error) {
	d := &disk{filepath.Join(dir, "disk.img"), filepath.Join(dir, "disk")}
	if err := os.WriteFile(d.image, nil, 0o600); err != nil {
		return nil, err
	}
	if err := os.Truncate(d.image, diskSize); err != nil {
		return nil, err
	}
	if err := os.Mkdir(d.mount, 0o700); err != nil {
		return nil, err
	}
	if err := command(ctx, "mkfs.ext4", "-q", "-F", d.image); err != nil {
		return nil, err
	}
	return d, d.attach(ctx)
}

func command(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

func (d *disk) attach(ctx context.Context) error {
	return command(ctx, "mount", "-t", "ext4", "-o", mountOptions, d.image, d.mount)
}

// close detaches the disk.
func (d *disk) close() error { return d.detach(context.Background()) }

// detach waits until the processes that used the disk have ended.
func (d *disk) detach(ctx context.Context) (err error) {
	for late := time.Now().Add(stopTime); time.Now().Before(late); pause(ctx, 10*time.Millisecond) {
		if err = command(ctx, "umount", d.mount); err == nil {
			return nil
		}
	}
	return err
}

// cut ends the hub and, by kill, all other programs, and leaves on the disk what was in the image at that moment.
func (d *disk) cut(ctx context.Context, h *hub, kill func()) error {
	after := d.image + ".after"
	err := h.freeze()
	if err == nil {
		kill()
		err = d.copyQuiet(ctx, after)
		h.kill()
	}
	if err == nil {
		err = d.detach(ctx) // which writes the cache to the image that nobody uses any more
	}
	if err == nil {
		err = os.Rename(after, d.image)
	}
	if err == nil {
		err = d.attach(ctx)
	}
	return err
}

// copyQuiet copies the image at a moment at which nothing is written to it.
func (d *disk) copyQuiet(ctx context.Context, to string) error {
	for range 200 {
		before, err := d.written()
		if err != nil {
			return err
		}
		if err := command(ctx, "cp", "--sparse=always", d.image, to); err != nil {
			return err
		}
		after, err := d.written()
		if err != nil {
			return err
		}
		if before == after {
			return nil
		}
	}
	return errors.New("the disk is written to all the time")
}

// written returns what the kernel has counted for the loop device: requests that are done, and those that are under way.
func (d *disk) written() (string, error) {
	var at unix.Stat_t
	if err := unix.Stat(d.mount, &at); err != nil {
		return "", err
	}
	stat, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/stat", unix.Major(at.Dev), unix.Minor(at.Dev)))
	if err != nil {
		return "", err
	}
	fields := strings.Fields(string(stat))
	if len(fields) < 9 {
		return "", fmt.Errorf("the counters of the disk: %q", stat)
	}
	return fields[4] + " " + fields[8], nil // writes, in flight
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
