package presence

import (
	"os"
	"strconv"
)

// ProcessOf returns the process of the session of a vendor's program whose hook or MCP server this process is. Codex has one for all
// its sessions, so that it is zero there.
func ProcessOf(vendor string, getenv func(string) string) Process {
	if vendor == Codex {
		return Process{}
	}
	if vendor == Claude {
		if pid, err := strconv.Atoi(getenv("CLAUDE_PID")); err == nil && pid > 1 {
			if p := Running(pid); p.Alive() {
				return p
			}
		}
	}
	return SessionOf(os.Getpid())
}

// Headless reports whether the session of a vendor's program that has started this process has never had a terminal.
func Headless(vendor string, getenv func(string) string) bool {
	if vendor == Codex {
		return execOf(os.Getpid())
	}
	entry := getenv("CLAUDE_CODE_ENTRYPOINT")
	return vendor == Claude && entry != "" && entry != "cli"
}
