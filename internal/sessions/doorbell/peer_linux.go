package doorbell

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// checkPeer returns an error unless the process at the other end is the user's, and the given one; 0 is any.
func checkPeer(conn net.Conn, pid int) error {
	raw, ok := conn.(syscall.Conn)
	if !ok {
		return errors.New("the connection is no socket")
	}
	rc, err := raw.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var credErr error
	if err := rc.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return err
	}
	switch {
	case credErr != nil:
		return credErr
	case int(cred.Uid) != os.Geteuid():
		return errors.New("the socket is another user's")
	case pid != 0 && int(cred.Pid) != pid:
		return fmt.Errorf("the socket is of process %d, not %d", cred.Pid, pid)
	}
	return nil
}
