package daemon

import (
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/windows"
)

// detach starts the process without this console.
func detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{
		CreationFlags: windows.DETACHED_PROCESS | windows.CREATE_NEW_PROCESS_GROUP,
		HideWindow:    true,
	}
}

// orphans says that a process whose parent has ended gets another one.
const orphans = false

func kill(p *os.Process) error { return p.Kill() }

// terminate kills a process: Windows has no signal to request a stop. The hub recovers as from
// a crash, and running tasks fail at its next start.
func terminate(pid int) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return p.Kill()
}

func ignoreBrokenPipes() {}

// closeDescriptorsOnExec does nothing: on Windows handles are inherited only on request.
func closeDescriptorsOnExec() {}
