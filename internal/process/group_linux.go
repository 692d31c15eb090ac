package process

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// awaitZombie blocks until pid, a child, has ended, and leaves it to be reaped.
func awaitZombie(pid int) bool {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
}

// maxEnviron bounds what is read of a process's environment; the marker stands
// at the end of what was passed to exec, so all of it is read.
const maxEnviron = 4 << 20

// processes lists what /proc shows of the processes that this user may look
// into. Those that end meanwhile are left out, and so are zombies: only their
// parents can do something about them.
func processes() ([]proc, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	_ = dir.Close() // opened for reading
	if err != nil {
		return nil, err
	}
	procs := make([]proc, 0, len(names))
	var buf bytes.Buffer
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p, ok := readProc(pid, &buf); ok {
			procs = append(procs, p)
		}
	}
	return procs, nil
}

func readProc(pid int, buf *bytes.Buffer) (proc, bool) {
	path := "/proc/" + strconv.Itoa(pid)
	if readFile(path+"/stat", buf) != nil {
		return proc{}, false
	}
	p, state, ok := parseStat(buf.Bytes())
	if !ok || state == 'Z' || state == 'X' {
		return proc{}, false
	}
	p.pid = pid
	// Others' environments cannot be read, nor those of setuid programs.
	if readFile(path+"/environ", buf) == nil {
		p.marker = markerIn(buf.Bytes())
	}
	return p, true
}

func readFile(path string, buf *bytes.Buffer) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	buf.Reset()
	_, err = buf.ReadFrom(io.LimitReader(f, maxEnviron))
	_ = f.Close() // opened for reading
	return err
}

// parseStat reads "pid (name) state ppid pgrp session …"; the name may hold
// anything, so the last parenthesis counts. The start time is the 22nd field.
func parseStat(b []byte) (p proc, state byte, ok bool) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return proc{}, 0, false
	}
	const first, start = 3, 22 // numbers of the fields, as proc(5) counts
	f := bytes.Fields(b[i+1:])
	if len(f) <= start-first || len(f[0]) != 1 {
		return proc{}, 0, false
	}
	var n [4]int64
	for i, field := range [...]int{4, 5, 6, start} {
		v, err := strconv.ParseInt(string(f[field-first]), 10, 64)
		if err != nil {
			return proc{}, 0, false
		}
		n[i] = v
	}
	return proc{parent: int(n[0]), group: int(n[1]), session: int(n[2]), start: n[3]}, f[0][0], true
}

var markerPrefix = []byte(MarkerEnv + "=")

// markerIn finds the last value of MarkerEnv in NUL-separated variables.
func markerIn(env []byte) string {
	value := ""
	for kv := range bytes.SplitSeq(env, []byte{0}) {
		if v, ok := bytes.CutPrefix(kv, markerPrefix); ok {
			value = string(v)
		}
	}
	return value
}

// killSame kills p unless its id has become another process's meanwhile: the
// process is held by a descriptor while that is made sure.
func killSame(p proc) bool {
	h, err := os.FindProcess(p.pid)
	if err != nil {
		return false
	}
	defer h.Release() //nolint:errcheck // frees the descriptor, reports nothing
	var buf bytes.Buffer
	now, ok := readProc(p.pid, &buf)
	if !ok || now.start != p.start {
		return false
	}
	return h.Signal(os.Kill) == nil
}
