//go:build unix

package daemon

import (
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
)

// detach puts the process into a session of its own: the terminal's signals and
// its end do not reach it.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// terminate asks a process to end.
func terminate(pid int) error { return syscall.Kill(pid, syscall.SIGTERM) }

func ownedByUser(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}

// surviveParent lets writes to a pipe that nobody reads any more fail instead
// of killing the process.
func surviveParent() { signal.Ignore(syscall.SIGPIPE) }

// keepDescriptors keeps what this process was started with open, beyond the
// three standard ones, from the processes that it starts: a hub in the
// background would hold a script's pipe and let its reader wait for ever, and
// agents would get what is none of theirs.
func keepDescriptors() {
	entries, err := os.ReadDir("/dev/fd")
	if err != nil {
		return // not a system that shows them
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
}
