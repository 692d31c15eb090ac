package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

// clockVariable is the environment variable that names the file with the seconds by which a program's clock is wrong.
const clockVariable = "PARLEY_FAULTS_CLOCK"

const (
	jumpsOfTheClock = "jumps of the clock" // the fault
	maxShift        = 2 * time.Hour        // the most by which the clock is wrong
)

// wallClock is the clock of the hub's and the agents' computer. Only programs that buildShifted has built see it; the system's own clock,
// such as that of the files, stays as it is, and so do timers, as when a computer's clock is set.
type wallClock struct {
	path  string
	shift atomic.Int64 // seconds
}

func newWallClock(dir string) (*wallClock, error) {
	w := &wallClock{path: filepath.Join(dir, "clock")}
	return w, os.WriteFile(w.path, make([]byte, 8), 0o600)
}

// set makes the clock wrong by a duration.
func (w *wallClock) set(by time.Duration) error {
	f, err := os.OpenFile(w.path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	seconds := int64(by / time.Second)
	_, err = f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(seconds)), 0)
	w.shift.Store(seconds)
	return errors.Join(err, f.Close())
}

// wrong returns by how much the clock is wrong; a nil clock is right.
func (w *wallClock) wrong() time.Duration {
	if w == nil {
		return 0
	}
	return time.Duration(w.shift.Load()) * time.Second
}

// now returns the time that the programs see.
func (w *wallClock) now() time.Time { return time.Now().Add(w.wrong()) }

// What time.Now of the shifted program adds to the system's time.
const (
	readsTime  = "\tsec, nsec, mono := runtimeNow()\n"
	shiftsTime = readsTime + "\tsec += wallShift()\n"
	wallShift  = `package time

import (
	"syscall"
	"unsafe"
)

var wallShiftAt = mapWallShift()

func mapWallShift() *int64 {
	path, ok := syscall.Getenv("` + clockVariable + `")
	if !ok {
		return nil
	}
	fd, err := syscall.Open(path, syscall.O_RDONLY, 0)
	if err != nil {
		return nil
	}
	defer syscall.Close(fd)
	data, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil
	}
	return (*int64)(unsafe.Pointer(&data[0]))
}

func wallShift() int64 {
	if wallShiftAt == nil {
		return 0
	}
	return *wallShiftAt
}
`
)

// timePackage returns the directory of package time's source.
func timePackage(ctx context.Context) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	return filepath.Join(strings.TrimSpace(string(root)), "src", "time"), err
}

// shiftTime returns the source of package time with a time.Now that can be shifted.
func shiftTime(source string) (string, error) {
	if n := strings.Count(source, readsTime); n != 1 {
		return "", fmt.Errorf("time.Now reads the time in %d places", n)
	}
	return strings.Replace(source, readsTime, shiftsTime, 1), nil
}

// buildShifted builds the hub's program with a clock that can be set, by another time.Now.
func buildShifted(ctx context.Context, dir string) (program string, err error) {
	source, err := timePackage(ctx)
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(filepath.Join(source, "time.go"))
	if err != nil {
		return "", err
	}
	text, err := shiftTime(string(data))
	if err != nil {
		return "", err
	}
	now, shift := filepath.Join(dir, "time.go"), filepath.Join(dir, "wallshift.go")
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(source, "time.go"): now, filepath.Join(source, "wallshift.go"): shift}})
	if err != nil {
		return "", err
	}
	list := filepath.Join(dir, "overlay.json")
	if err := errors.Join(os.WriteFile(now, []byte(text), 0o600),
		os.WriteFile(shift, []byte(wallShift), 0o600), os.WriteFile(list, overlay, 0o600)); err != nil {
		return "", err
	}
	return buildHub(ctx, dir, "-overlay", list)
}
