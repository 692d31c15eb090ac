package process

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

// gentleSignals is false: a console event reaches only programs of the same console, and a
// hub in the background has none.
const gentleSignals = false

func prepare(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{
		CreationFlags: windows.CREATE_NEW_PROCESS_GROUP | windows.CREATE_NO_WINDOW,
	}
}

// group is a job object. It contains the process and its descendants, and all of them end with the job, even when
// the hub is killed. Children that the process starts before it is added to the job are not in it.
type group struct {
	job     windows.Handle
	process windows.Handle
}

func newGroup(p *os.Process, _ Marker) (group, error) {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return group{}, fmt.Errorf("create a job object: %w", err)
	}
	info := windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION{
		BasicLimitInformation: windows.JOBOBJECT_BASIC_LIMIT_INFORMATION{
			LimitFlags: windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE,
		},
	}
	_, err = windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation,
		uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info)))
	if err != nil {
		windows.CloseHandle(job)
		return group{}, fmt.Errorf("set up a job object: %w", err)
	}
	const access = windows.PROCESS_SET_QUOTA | windows.PROCESS_TERMINATE | windows.SYNCHRONIZE
	h, err := windows.OpenProcess(access, false, uint32(p.Pid))
	if err != nil {
		windows.CloseHandle(job)
		return group{}, fmt.Errorf("open the process: %w", err)
	}
	if err := windows.AssignProcessToJobObject(job, h); err != nil {
		windows.CloseHandle(h)
		windows.CloseHandle(job)
		return group{}, fmt.Errorf("add the process to the job: %w", err)
	}
	return group{job: job, process: h}, nil
}

func (g group) close() {
	windows.CloseHandle(g.process)
	windows.CloseHandle(g.job)
}

func (g group) signal(os.Signal) { _ = windows.TerminateJobObject(g.job, 1) }

func (g group) awaitEnd(*os.Process) bool {
	ev, err := windows.WaitForSingleObject(g.process, windows.INFINITE)
	return err == nil && ev == windows.WAIT_OBJECT_0
}

func (g group) sweep(Marker) (int, error) {
	if err := windows.TerminateJobObject(g.job, 1); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrNotGone, err)
	}
	return 0, nil
}

// sweepOrphans does nothing: a job does not distinguish orphans.
func (g group) sweepOrphans(Marker) (int, error) { return 0, nil }

// sweepOwner does nothing: jobs end with their hub.
func sweepOwner(string) (int, error) { return 0, nil }

// ParseSignal accepts the names of other platforms; Stop ignores the signals here.
func ParseSignal(name string) (os.Signal, error) {
	switch strings.TrimPrefix(strings.ToUpper(name), "SIG") {
	case "INT":
		return os.Interrupt, nil
	case "TERM":
		return syscall.SIGTERM, nil
	case "HUP", "QUIT", "USR1", "USR2", "KILL":
		return os.Kill, nil
	}
	return nil, fmt.Errorf("signal %q is not one of INT, TERM, HUP, QUIT, USR1, USR2, KILL", name)
}

func signalOf(*os.ProcessState) string { return "" }
