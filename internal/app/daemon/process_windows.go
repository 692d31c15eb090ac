package daemon

import (
	"io/fs"
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

// terminate ends a process. Windows has no signal that asks: the hub's store
// survives it as it survives a crash, and running turns become failed at the
// next start.
func terminate(pid int) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return p.Kill()
}

// ownedByUser trusts the directory: Windows keeps a user's profile to the user.
func ownedByUser(fs.FileInfo) bool { return true }

func surviveParent() {}

// keepDescriptors has nothing to do: handles are passed on by name only.
func keepDescriptors() {}
