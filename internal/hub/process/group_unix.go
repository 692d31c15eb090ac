//go:build unix

package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const gentleSignals = true

// prepare puts the process into a session of its own: it leads a process group,
// and has no terminal that a tool (git, ssh) could ask for a password on.
func prepare(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
}

// group is the session of a process, by the id of its leader, and a tag that its
// descendants inherit beside the marker, 0 where there is none.
type group struct {
	leader int
	tag    uint64
}

func newGroup(p *os.Process, m Marker) (group, error) {
	return group{leader: p.Pid, tag: setTag(p.Pid, m)}, nil
}

func (g group) close() {}

// signal sends sig to the process group. The leader is not reaped before the
// sweep is over, so the id cannot have become another's.
func (g group) signal(sig os.Signal) {
	if s, ok := sig.(syscall.Signal); ok {
		_ = syscall.Kill(-g.leader, s) // ESRCH: all have ended
	}
}

// awaitEnd blocks until the process has ended, without reaping it: its id stays
// taken, and with it the group's and the session's. It reports false where that
// cannot be done.
func (g group) awaitEnd(p *os.Process) bool { return awaitZombie(p.Pid) }

// sweep kills what is left of the process's tree.
func (g group) sweep(m Marker) (int, error) {
	g.signal(os.Kill)
	return sweepUntilGone(func(procs []proc) []proc { return g.members(procs, m) })
}

func (g group) sweepOrphans(m Marker) (int, error) {
	return sweepUntilGone(func(procs []proc) []proc { return g.orphans(procs, m) })
}

func sweepOwner(owner string) (int, error) {
	self := os.Getpid()
	return sweepUntilGone(func(procs []proc) []proc {
		var found []proc
		for _, p := range procs {
			if p.pid != self && (ownedBy(p.marker, owner) || tagOwnedBy(p.tag, owner)) {
				found = append(found, p)
			}
		}
		return found
	})
}

// proc is a running process of this user as the platform's list shows it.
type proc struct {
	pid, parent, group, session int

	start  int64  // tells it from a later process with the same id
	marker string // value of MarkerEnv, if it could be read
	tag    uint64 // see setTag, 0 if there is none
}

// members are the processes that belong to the leader: by the marker or the tag, by
// the group or session, or below one that does.
func (g group) members(procs []proc, m Marker) []proc {
	belongs := make(map[int]bool, len(procs))
	for _, p := range procs {
		belongs[p.pid] = m.in(p.marker) || g.tag != 0 && p.tag == g.tag ||
			p.group == g.leader || p.session == g.leader
	}
	// Parents stand in no order, so go on until nothing is added.
	for more := true; more; {
		more = false
		for _, p := range procs {
			if !belongs[p.pid] && p.parent > 1 && (belongs[p.parent] || p.parent == g.leader) {
				belongs[p.pid], more = true, true
			}
		}
	}
	self := os.Getpid()
	var found []proc
	for _, p := range procs {
		if belongs[p.pid] && p.pid != g.leader && p.pid != self {
			found = append(found, p)
		}
	}
	return found
}

// orphans are the members that have lost the leader as an ancestor.
func (g group) orphans(procs []proc, m Marker) []proc {
	parent := make(map[int]int, len(procs))
	for _, p := range procs {
		parent[p.pid] = p.parent
	}
	var found []proc
	for _, p := range g.members(procs, m) {
		if !reaches(parent, p.pid, g.leader) {
			found = append(found, p)
		}
	}
	return found
}

func reaches(parent map[int]int, pid, ancestor int) bool {
	for range len(parent) + 1 { // a list read while processes come and go could hold a circle
		if pid == ancestor {
			return true
		}
		next, ok := parent[pid]
		if !ok || next <= 1 {
			return false
		}
		pid = next
	}
	return false
}

// Bounds of a sweep. A tree that forks faster than it is killed (each round
// kills all that were found) is given up after them.
const (
	sweepRounds  = 200
	sweepMaxWait = 50 * time.Millisecond
)

// sweepUntilGone kills what find selects until it selects nothing, and reports
// how many processes there were.
func sweepUntilGone(find func([]proc) []proc) (int, error) {
	killed := make(map[int]bool)
	wait := time.Millisecond
	for range sweepRounds {
		procs, err := processes()
		if err != nil {
			return len(killed), fmt.Errorf("%w: list processes: %w", ErrNotGone, err)
		}
		found := find(procs)
		if len(found) == 0 {
			reapAdopted(killed)
			return len(killed), nil
		}
		for _, p := range found {
			if killSame(p) {
				killed[p.pid] = true
			}
		}
		// SIGKILL takes effect a moment later.
		time.Sleep(wait)
		wait = min(2*wait, sweepMaxWait)
	}
	return len(killed), fmt.Errorf("%w: new ones appear or they hang in the kernel", ErrNotGone)
}

// reapAdopted reaps killed orphans that have become children of this process:
// where it is the container's first process or a subreaper. Others' ids give
// ECHILD.
func reapAdopted(pids map[int]bool) {
	for pid := range pids {
		var err error = unix.EINTR
		for errors.Is(err, unix.EINTR) {
			_, err = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}

// ParseSignal knows INT, TERM, HUP, QUIT, USR1, USR2 and KILL, with or without
// SIG before them.
func ParseSignal(name string) (os.Signal, error) {
	s := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(name), "SIG"))
	switch s {
	case unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGKILL:
		return s, nil
	}
	return nil, fmt.Errorf("signal %q is not one of INT, TERM, HUP, QUIT, USR1, USR2, KILL", name)
}

func signalOf(st *os.ProcessState) string {
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return unix.SignalName(ws.Signal())
	}
	return ""
}
