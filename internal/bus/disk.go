package bus

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/base/local"
)

// The space of the store's disk, in bytes. After a write that fails, the server stores nothing more in the stream, also
// when there is space again. So the bus refuses messages before the disk is full, and keeps a file whose removal makes
// room for what is under way.
const (
	leastSpace   = 8 << 20 // with less, messages are refused
	reserveSpace = 8 << 20 // size of the reserve
	urgentSpace  = 1 << 20 // with less, urgent ones too
	reserveFile  = "reserve"

	spaceInterval = 20 * time.Millisecond  // between two looks at the disk
	watchInterval = 250 * time.Millisecond // between two looks of the goroutine that reopens the store

	// The pause before the store is opened again after a failed write: whoever waits for the server hears of it before.
	firstReopening = time.Second
	lastReopening  = time.Minute
	// steadyStore is how long the store must have been open for the next failure to be another one.
	steadyStore = 10 * time.Second
)

// disk watches the space of the store's disk. It is safe for concurrent use.
type disk struct {
	dir  string
	hold bool // this process keeps the reserve
	free func(dir string) (uint64, error)

	mu   sync.Mutex
	at   time.Time // of the last look
	left uint64
	full bool
}

func newDisk(dir string, hold bool) *disk {
	return &disk{dir: dir, hold: hold, free: local.FreeSpace}
}

func (d *disk) reserve() string { return filepath.Join(d.dir, reserveFile) }

// look reads the free space, unless that was done a moment ago. While a disk is full its reserve is removed; it is full
// until there is space for the reserve again.
func (d *disk) look() (left uint64, full bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Since(d.at) < spaceInterval {
		return d.left, d.full
	}
	left, err := d.free(d.dir)
	if err != nil { // unknown: the server tries
		return d.left, d.full
	}
	d.at, d.left = time.Now(), left
	switch {
	case left < leastSpace && !d.full:
		d.full = true
		if d.hold {
			_ = os.Remove(d.reserve()) // it may not exist
		}
	case d.full && left >= leastSpace+2*reserveSpace, d.full && !d.hold && left >= leastSpace:
		d.full = false
		d.refill(left)
	}
	return d.left, d.full
}

// refill writes the reserve if there is ample space.
func (d *disk) refill(left uint64) {
	if !d.hold || left < leastSpace+2*reserveSpace {
		return
	}
	if info, err := os.Stat(d.reserve()); err == nil && info.Size() == reserveSpace {
		return
	}
	err := os.WriteFile(d.reserve(), make([]byte, reserveSpace), 0o600)
	if err != nil {
		_ = os.Remove(d.reserve())
	}
}

// check returns an error while the disk is full. Urgent calls use the last of the space.
func (d *disk) check(ctx context.Context) error {
	left, full := d.look()
	if !full || left >= urgentSpace && isUrgent(ctx) {
		return nil
	}
	return d.fullError(nil)
}

func (d *disk) fullError(cause error) *Error {
	d.mu.Lock()
	left := d.left
	d.mu.Unlock()
	name := local.Disk(d.dir)
	if name != "" {
		name = " (" + name + ")"
	}
	return errorf(CodeStorage, cause, "free space on it: Parley goes on by itself within seconds, and what is stored can be read meanwhile",
		"the disk of %s%s is full: %s are left", filepath.Dir(d.dir), name, mebibytes(left))
}

func mebibytes(n uint64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

type urgentKey struct{}

// Urgent marks calls that end something, such as the last state of a task: on a full disk they use its reserve.
func Urgent(ctx context.Context) context.Context { return context.WithValue(ctx, urgentKey{}, true) }

func isUrgent(ctx context.Context) bool { return ctx.Value(urgentKey{}) != nil }

// openDisk begins to watch the disk of the store. hold says that this process keeps the reserve. A disk on which nothing
// can be written any more is an error.
func (b *Bus) openDisk(hold bool) error {
	b.disk = newDisk(b.dir, hold)
	left, full := b.disk.look()
	if !hold {
		return nil
	}
	if full {
		b.log.Error("the disk is full: nothing new is stored until there is space", "directory", b.dir, "left", left)
		if left, err := b.disk.free(b.dir); err == nil && left < urgentSpace {
			return b.disk.fullError(nil)
		}
		return nil
	}
	b.disk.mu.Lock()
	defer b.disk.mu.Unlock()
	b.disk.refill(left)
	return nil
}

// checkDisk returns an error if the disk of the store has no space for a message.
func (b *Bus) checkDisk(ctx context.Context) error {
	if b.disk == nil {
		return nil
	}
	return b.disk.check(ctx)
}

// watchDisk logs when the disk is full, and has space again, until ctx ends. If the server could not write meanwhile, it
// opens the store again.
func (b *Bus) watchDisk(ctx context.Context) {
	ticks := time.NewTicker(watchInterval)
	defer ticks.Stop()
	was, failing := false, false
	var failed, opened time.Time // when the server could not write, and the store was opened again
	pause := firstReopening      // until the store is opened again
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		left, full := b.disk.look()
		if full != was {
			if was = full; full {
				b.log.Error("the disk is full: nothing new is stored until there is space", "directory", b.dir, "left", left)
			} else {
				b.log.Info("the disk has space again", "directory", b.dir, "left", left)
			}
		}
		switch {
		case b.embedded.log.write.Load() == nil:
			failing = false
		case !failing:
			failed, failing = time.Now(), true
			if failed.Sub(opened) > steadyStore {
				pause = firstReopening
			}
		case !full && time.Since(failed) >= pause && checkFiles(b.dir) == nil:
			if b.reopen(ctx) {
				opened, failing = time.Now(), false
			} else {
				failed = time.Now()
			}
			pause = min(2*pause, lastReopening)
		}
	}
}
