//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package process

import (
	"errors"

	"golang.org/x/sys/unix"
)

// awaitZombie blocks until pid, a child, has ended, and does not reap it.
func awaitZombie(pid int) bool {
	kq, err := unix.Kqueue()
	if err != nil {
		return false
	}
	defer unix.Close(kq) //nolint:errcheck // nothing was written
	unix.CloseOnExec(kq)
	change := make([]unix.Kevent_t, 1)
	unix.SetKevent(&change[0], pid, unix.EVFILT_PROC, unix.EV_ADD|unix.EV_ONESHOT)
	change[0].Fflags = unix.NOTE_EXIT
	for {
		_, err := unix.Kevent(kq, change, make([]unix.Kevent_t, 1), nil)
		switch {
		case err == nil, errors.Is(err, unix.ESRCH): // ESRCH: a zombie already
			return true
		case !errors.Is(err, unix.EINTR):
			return false
		}
	}
}

// setTag does nothing: this system has no mark besides the environment.
func setTag(int, Marker) uint64 { return 0 }

func tagOwnedBy(uint64, string) bool { return false }
