package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

const (
	maxAncestors = 8       // how many are searched
	maxEnviron   = 4 << 20 // bytes of an environment
)

// ancestorsEnv returns a variable of the nearest ancestor of this process that has it; "" if
// none has, or the process belongs to another user.
func ancestorsEnv(name string) string {
	pid := os.Getppid()
	for range maxAncestors {
		if pid <= 1 {
			break
		}
		if value, ok := environOf(pid, name); ok {
			return value
		}
		pid = parentOf(pid)
	}
	return ""
}

func environOf(pid int, name string) (string, bool) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return "", false
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxEnviron))
	if err != nil {
		return "", false
	}
	for kv := range bytes.SplitSeq(data, []byte{0}) {
		if value, ok := strings.CutPrefix(string(kv), name+"="); ok {
			return value, true
		}
	}
	return "", false
}

// parentOf returns the parent of a process, 0 if the process has ended.
func parentOf(pid int) int {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name, in parentheses, may contain any byte.
	_, rest, ok := bytes.Cut(stat[max(0, bytes.LastIndexByte(stat, ')')):], []byte(") "))
	fields := bytes.Fields(rest)
	if !ok || len(fields) < 2 {
		return 0
	}
	parent, err := strconv.Atoi(string(fields[1]))
	if err != nil {
		return 0
	}
	return parent
}
