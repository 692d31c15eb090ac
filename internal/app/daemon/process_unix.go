//go:build unix

package daemon

import (
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
)

// detach starts the process in a new session: the terminal's signals do not reach it.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// orphans says that a process whose parent has ended gets another one.
const orphans = true

// kill ends a process that [detach] has detached, and what it has started in its group.
func kill(p *os.Process) error { return syscall.Kill(-p.Pid, syscall.SIGKILL) }

// terminate requests that a process ends, with SIGTERM.
func terminate(pid int) error { return syscall.Kill(pid, syscall.SIGTERM) }

// ignoreBrokenPipes makes writes to a closed pipe fail instead of killing the process.
func ignoreBrokenPipes() { signal.Ignore(syscall.SIGPIPE) }

// closeDescriptorsOnExec makes the processes that this one starts inherit only the standard
// descriptors. Otherwise a hub in the background would keep a script's pipe open, and its
// reader would wait forever; agents would get files of others.
func closeDescriptorsOnExec() {
	entries, err := os.ReadDir("/dev/fd")
	if err != nil {
		return // the system does not list them
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
}
