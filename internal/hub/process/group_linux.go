package process

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// awaitZombie blocks until pid, a child, has ended, and does not reap it.
func awaitZombie(pid int) bool {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
}

// maxEnviron bounds a process's environment, whose end has the marker.
const maxEnviron = 4 << 20

// processes lists the processes of /proc that this user may inspect, except zombies, which
// only their parents can remove.
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
	// The environments of other users and of setuid programs cannot be read.
	if readFile(path+"/environ", buf) == nil {
		p.marker = markerIn(buf.Bytes())
	}
	p.tag = tagOf(pid)
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

// parseStat reads "pid (name) state ppid pgrp session …". The name may contain
// parentheses: the last one ends it. The start time is the 22nd field.
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

// killSame kills p unless its id was reused meanwhile. A process descriptor prevents reuse during the check.
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

// The tag finds descendants that have cleared their environment, left the session and lost their parents (env -i
// setsid prog &), and so have neither marker nor group. It is the value of the limit on file locks, which the kernel
// has not enforced since 2.4.25 but still passes to children, and which a process without privileges can only lower.
// It is set shortly after the start; children from before have only the marker.
//
// From the top: one bit that is always set, 29 of the owner's hash, 32 random ones.
const (
	tagBit    = 1 << 61
	ownerBits = 29
)

// setTag tags pid and returns the tag. It returns 0 if the limit is set already, as in a
// hub that an agent of another hub has started.
func setTag(pid int, m Marker) uint64 {
	if limit, ok := lockLimit(pid); !ok || limit != unix.RLIM_INFINITY {
		return 0
	}
	owner, _, _ := strings.Cut(string(m), ".")
	var b [4]byte
	rand.Read(b[:]) // never fails: see crypto/rand
	tag := tagBit | hashOwner(owner)<<32 | uint64(binary.NativeEndian.Uint32(b[:]))
	if unix.Prlimit(pid, unix.RLIMIT_LOCKS, &unix.Rlimit{Cur: tag, Max: tag}, nil) != nil {
		return 0
	}
	return tag
}

// tagOf returns the tag of pid, 0 if it has none.
func tagOf(pid int) uint64 {
	if limit, ok := lockLimit(pid); ok && limit&^(tagBit-1) == tagBit {
		return limit
	}
	return 0
}

func lockLimit(pid int) (uint64, bool) {
	var limit unix.Rlimit
	err := unix.Prlimit(pid, unix.RLIMIT_LOCKS, nil, &limit)
	return limit.Max, err == nil
}

func tagOwnedBy(tag uint64, owner string) bool {
	return tag != 0 && tag>>32&(1<<ownerBits-1) == hashOwner(owner)
}

func hashOwner(owner string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(owner)) // never fails
	return h.Sum64() & (1<<ownerBits - 1)
}
