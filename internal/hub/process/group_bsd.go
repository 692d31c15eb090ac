//go:build dragonfly || freebsd || netbsd || openbsd

package process

import "golang.org/x/sys/unix"

// processes returns none: only the process group is killed here.
func processes() ([]proc, error) { return nil, nil }

func killSame(p proc) bool { return unix.Kill(p.pid, unix.SIGKILL) == nil }

// setTag does nothing: this system has no mark besides the environment.
func setTag(int, Marker) uint64 { return 0 }

func tagOwnedBy(uint64, string) bool { return false }
