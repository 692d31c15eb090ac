//go:build unix

package local

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Pollable returns a file whose reads wait in the poller of the runtime instead of in a thread of their own, where the system can: for a
// pipe or a socket. Otherwise it returns the file itself, as for one that is also one of the others, whose writes would fail instead of
// waiting. A thread that waits makes the runtime wake up every 20 µs for some milliseconds after each read. Of the two files only
// the returned one may be used, while the other is reachable.
func Pollable(f *os.File, others ...*os.File) *os.File {
	info, err := f.Stat()
	if err != nil || info.Mode()&(os.ModeNamedPipe|os.ModeSocket) == 0 {
		return f
	}
	if slices.ContainsFunc(others, func(other *os.File) bool {
		o, err := other.Stat()
		return err == nil && os.SameFile(info, o)
	}) {
		return f
	}
	fd := int(f.Fd())
	if unix.SetNonblock(fd, true) != nil {
		return f
	}
	return os.NewFile(uintptr(fd), f.Name())
}
