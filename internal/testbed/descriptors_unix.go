//go:build unix

package testbed

import (
	"os"
	"syscall"
	"testing"
)

// LeaveDescriptors lets this process open only so many more files, until restore is called. For a test in a process of its own.
func LeaveDescriptors(tb testing.TB, free int) (restore func()) {
	tb.Helper()
	var usual syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &usual); err != nil {
		tb.Fatal(err)
	}
	few := usual
	few.Cur = 64
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		tb.Fatal(err)
	}
	var all []*os.File
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			break
		}
		all = append(all, f)
	}
	for _, f := range all[len(all)-free:] {
		_ = f.Close()
	}
	return func() {
		for _, f := range all[:len(all)-free] {
			_ = f.Close()
		}
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &usual); err != nil {
			tb.Fatal(err)
		}
	}
}
