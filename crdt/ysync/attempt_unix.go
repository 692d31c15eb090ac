//go:build unix

package ysync

import "syscall"

const canAttempt = true

// attempt writes what the system accepts of b without waiting. The caller has the turn.
func (s *socket) attempt(b []byte) (n int, err error) {
	failed := s.raw.Write(func(fd uintptr) bool {
		for {
			n, err = syscall.Write(int(fd), b)
			if err != syscall.EINTR {
				return true // never wait until it is writable
			}
		}
	})
	if failed != nil {
		return 0, failed
	}
	if err == syscall.EAGAIN {
		return 0, nil
	}
	return max(n, 0), err
}
