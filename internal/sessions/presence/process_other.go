//go:build !linux

package presence

import (
	"errors"
	"os"
	"runtime"
	"syscall"
)

// Running returns the process that has an id now. This system does not tell when it started.
func Running(pid int) Process { return Process{PID: pid} }

// Alive reports whether a process with this id runs.
func (p Process) Alive() bool {
	x, err := os.FindProcess(p.PID)
	if err != nil {
		return false
	}
	defer func() { _ = x.Release() }()
	if runtime.GOOS == "windows" { // to find it is the proof
		return true
	}
	err = x.Signal(syscall.Signal(0))
	return err == nil || errors.Is(err, syscall.EPERM)
}

// parentOf knows the parent of this process only.
func parentOf(pid int) (parent int, name string) {
	if pid != os.Getpid() {
		return 0, ""
	}
	return os.Getppid(), ""
}

// Screens returns nothing: this system does not show what other processes do.
func Screens(string) []Process { return nil }

// ScreensOf returns nothing, as [Screens] does.
func ScreensOf(Process, string) (screens []Process, headless bool) { return nil, false }

func execOf(int) bool { return false }
