//go:build unix

package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/parleyhub/parley/internal/base/wait"
)

const gentleSignals = true

// prepare makes the process the leader of its own session and process group, without a
// terminal on which a tool (git, ssh) could ask for a password.
func prepare(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
}

// group is the session of a process.
type group struct {
	leader int    // its process id
	tag    uint64 // inherited by descendants like the marker, 0 without one; see setTag
}

func newGroup(p *os.Process, m Marker) (group, error) {
	return group{leader: p.Pid, tag: setTag(p.Pid, m)}, nil
}

func (g group) close() {}

// signal sends sig to the process group. The leader is not reaped before the end of the
// sweep, so that its id cannot be reused.
func (g group) signal(sig os.Signal) {
	if s, ok := sig.(syscall.Signal); ok {
		_ = syscall.Kill(-g.leader, s) // ESRCH: all have ended
	}
}

// awaitEnd blocks until the process has ended, without reaping it, so that its id, which is also the group's and the
// session's, is not reused. It returns false if the system cannot do that.
func (g group) awaitEnd(p *os.Process) bool { return awaitZombie(p.Pid) }

// sweep kills the remaining descendants.
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
		return slices.DeleteFunc(procs, func(p proc) bool {
			return p.pid == self || !ownedBy(p.marker, owner) && !tagOwnedBy(p.tag, owner)
		})
	})
}

// proc is a running process of this user.
type proc struct {
	pid, parent, group, session int

	start  int64  // distinguishes it from a later process with the same id
	marker string // the value of MarkerEnv, if it could be read
	tag    uint64 // see setTag, 0 if there is none
}

// members returns the descendants of the leader: those with its marker, tag, group or
// session, and the descendants of those.
func (g group) members(procs []proc, m Marker) []proc {
	belongs := make(map[int]bool, len(procs))
	for _, p := range procs {
		belongs[p.pid] = m.in(p.marker) || g.tag != 0 && p.tag == g.tag ||
			p.group == g.leader || p.session == g.leader
	}
	// Parents are in no order: repeat until nothing is added.
	for more := true; more; {
		more = false
		for _, p := range procs {
			if !belongs[p.pid] && p.parent > 1 && (belongs[p.parent] || p.parent == g.leader) {
				belongs[p.pid], more = true, true
			}
		}
	}
	self := os.Getpid()
	return slices.DeleteFunc(slices.Clone(procs), func(p proc) bool {
		return !belongs[p.pid] || p.pid == g.leader || p.pid == self
	})
}

// orphans returns the members that no longer have the leader as an ancestor.
func (g group) orphans(procs []proc, m Marker) []proc {
	parent := make(map[int]int, len(procs))
	for _, p := range procs {
		parent[p.pid] = p.parent
	}
	return slices.DeleteFunc(g.members(procs, m), func(p proc) bool { return reaches(parent, p.pid, g.leader) })
}

func reaches(parent map[int]int, pid, ancestor int) bool {
	for range len(parent) + 1 { // the list is no snapshot, and could contain a cycle
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

// sweepRounds bounds a sweep, for a tree that forks faster than it is killed.
const sweepRounds = 200

// sweepUntilGone kills the processes that find selects until it selects none, and returns their number.
func sweepUntilGone(find func([]proc) []proc) (int, error) {
	killed := make(map[int]bool)
	pauses := wait.Backoff{First: time.Millisecond, Most: 50 * time.Millisecond}
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
		// SIGKILL takes effect with a delay.
		time.Sleep(pauses.Next())
	}
	return len(killed), fmt.Errorf("%w: new ones appear or they hang in the kernel", ErrNotGone)
}

// reapAdopted reaps killed orphans that have become children of this process, because it
// is the container's first process or a subreaper. For others Wait4 returns ECHILD.
func reapAdopted(pids map[int]bool) {
	for pid := range pids {
		var err error = unix.EINTR
		for errors.Is(err, unix.EINTR) {
			_, err = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}

// ParseSignal returns the signal INT, TERM, HUP, QUIT, USR1, USR2 or KILL, with or without the prefix SIG.
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
