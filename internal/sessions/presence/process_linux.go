package presence

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Running returns the process that has an id now, zero if there is none.
func Running(pid int) Process {
	_, fields := stat(pid)
	if len(fields) < 20 {
		return Process{}
	}
	return Process{pid, string(fields[19])} // field 22; the first here is field 3
}

// Alive reports whether the process runs.
func (p Process) Alive() bool {
	_, fields := stat(p.PID)
	return len(fields) >= 20 && (p.Start == "" || p.Start == string(fields[19])) && string(fields[0]) != "Z"
}

// stat returns the name of a process and the fields behind it.
func stat(pid int) (name string, fields [][]byte) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", nil
	}
	open, end := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')') // the name may contain any byte
	if open < 0 || end < open {
		return "", nil
	}
	return string(data[open+1 : end]), bytes.Fields(data[end+1:])
}

// parentOf returns the parent of a process and the parent's name.
func parentOf(pid int) (parent int, name string) {
	_, fields := stat(pid)
	if len(fields) < 2 {
		return 0, ""
	}
	parent, err := strconv.Atoi(string(fields[1]))
	if err != nil {
		return 0, ""
	}
	name, _ = stat(parent)
	return parent, name
}

// Screens returns the processes of this user that show Codex sessions of a directory: those of the program codex that work in
// it, or were told to, but its daemon and what that starts. It reads one file for each process of this computer.
func Screens(dir string) (all []Process) {
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, x := range processes {
		pid, err := strconv.Atoi(x.Name())
		if err != nil || len(all) == maxScreens {
			continue
		}
		if name, _ := stat(pid); name != "codex" {
			continue
		}
		if p := Running(pid); p.PID != 0 && shows(pid, dir) {
			all = append(all, p)
		}
	}
	return all
}

// ScreensOf returns the processes one of which shows the Codex session of an MCP server in a directory: the server's parent, unless that
// is Codex's daemon. headless says that the parent is a Codex without a terminal.
func ScreensOf(server Process, dir string) (screens []Process, headless bool) {
	parent := SessionOf(server.PID)
	name, _ := stat(parent.PID)
	switch args := arguments(parent.PID); {
	case parent == (Process{}) || name != "codex":
		return nil, false
	case slices.Contains(args, "app-server"):
		return Screens(dir), false
	case withoutTerminal(args):
		return nil, true
	}
	return []Process{parent}, false
}

func withoutTerminal(args []string) bool {
	return slices.Contains(args, "exec") || slices.Contains(args, "mcp-server")
}

// execOf reports whether a process was started by a Codex without a terminal.
func execOf(pid int) bool {
	parent := SessionOf(pid)
	name, _ := stat(parent.PID)
	return name == "codex" && withoutTerminal(arguments(parent.PID))
}

// arguments returns the command line of a process, nil if it cannot be read.
func arguments(pid int) []string {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
}

// shows reports whether a process of codex is a terminal program for a directory.
func shows(pid int, dir string) bool {
	args := arguments(pid)
	if args == nil || slices.Contains(args, "app-server") || withoutTerminal(args) {
		return false
	}
	cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	if err == nil && filepath.Clean(cwd) == filepath.Clean(dir) {
		return true
	}
	return slices.ContainsFunc(args, func(arg string) bool {
		return arg == dir || strings.TrimPrefix(arg, "--cd=") == dir
	})
}
