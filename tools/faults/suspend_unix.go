//go:build unix

package main

import (
	"errors"
	"syscall"
)

// suspend stops the hub's process while during runs.
func (h *hub) suspend(during func()) error {
	stopped := h.freeze()
	during()
	return errors.Join(stopped, h.process.Process.Signal(syscall.SIGCONT))
}

// freeze stops the hub's process.
func (h *hub) freeze() error { return h.process.Process.Signal(syscall.SIGSTOP) }
