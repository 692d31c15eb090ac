//go:build unix

package ysync

import "syscall"

const canAttempt = true

// attempt writes what the system accepts of b without waiting. The caller has the turn.
func (s *socket) attempt(b []byte) (n int, err error) {
	s.unsent = b
	failed := s.raw.Write(s.attempted)
	s.unsent = nil
	if failed != nil {
		return 0, failed
	}
	if s.err == syscall.EAGAIN {
		return 0, nil
	}
	return max(s.sent, 0), s.err
}

// writeNow is the function of [syscall.RawConn.Write] that writes s.unsent; a closure of its own would be allocated for each
// frame of each client.
func (s *socket) writeNow(fd uintptr) bool {
	for {
		s.sent, s.err = syscall.Write(int(fd), s.unsent)
		if s.err != syscall.EINTR {
			return true // never wait until it is writable
		}
	}
}
