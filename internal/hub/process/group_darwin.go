package process

import (
	"bytes"
	"encoding/binary"
	"os"

	"golang.org/x/sys/unix"
)

// processes lists this user's processes. The list has no session; the group is used instead.
func processes() ([]proc, error) {
	list, err := unix.SysctlKinfoProcSlice("kern.proc.uid", os.Getuid())
	if err != nil {
		return nil, err
	}
	procs := make([]proc, 0, len(list))
	for i := range list {
		const zombie = 5 // SZOMB
		if list[i].Proc.P_stat == zombie {
			continue
		}
		pid := int(list[i].Proc.P_pid)
		procs = append(procs, proc{
			pid:     pid,
			parent:  int(list[i].Eproc.Ppid),
			group:   int(list[i].Eproc.Pgid),
			session: int(list[i].Eproc.Pgid),
			start:   list[i].Proc.P_starttime.Nano(),
			marker:  markerOf(pid),
		})
	}
	return procs, nil
}

// markerOf reads the marker from a process's arguments and environment: a count, the program, NULs, the arguments,
// the variables. For programs protected by the system it is empty.
func markerOf(pid int) string {
	b, err := unix.SysctlRaw("kern.procargs2", pid)
	if err != nil || len(b) < 4 {
		return ""
	}
	argc := int(int32(binary.NativeEndian.Uint32(b)))
	b = b[4:]
	i := bytes.IndexByte(b, 0)
	if i < 0 {
		return ""
	}
	b = bytes.TrimLeft(b[i:], "\x00")
	for range argc {
		if i = bytes.IndexByte(b, 0); i < 0 {
			return ""
		}
		b = b[i+1:]
	}
	return markerIn(b)
}

// killSame kills p unless its id was reused. Without process descriptors the id could still
// be reused between the check and the signal.
func killSame(p proc) bool {
	now, err := unix.SysctlKinfoProc("kern.proc.pid", p.pid)
	if err != nil || now.Proc.P_starttime.Nano() != p.start {
		return false
	}
	return unix.Kill(p.pid, unix.SIGKILL) == nil
}
