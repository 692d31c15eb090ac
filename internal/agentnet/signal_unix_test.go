//go:build unix

package agentnet_test

import "syscall"

// suspend stops a process where it is, as a closed lid does.
func suspend(pid int) bool { return syscall.Kill(pid, syscall.SIGSTOP) == nil }

// resume lets it go on.
func resume(pid int) { _ = syscall.Kill(pid, syscall.SIGCONT) } // it may have been killed
