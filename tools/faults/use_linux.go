package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// processUse returns the resident memory of a process, how many files it has open, and how many processes it has started that run.
func processUse(pid int) (memory int64, descriptors, children int, err error) {
	statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, 0, 0, err
	}
	if fields := strings.Fields(string(statm)); len(fields) > 1 {
		pages, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return 0, 0, 0, err
		}
		memory = pages * int64(os.Getpagesize())
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return 0, 0, 0, err
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return 0, 0, 0, err
	}
	for _, thread := range threads {
		list, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, thread.Name()))
		if err == nil { // a thread may have ended
			children += len(strings.Fields(string(list)))
		}
	}
	return memory, len(open), children, nil
}

// peakMemory returns the most resident memory that a process has had, in bytes.
func peakMemory(pid int) (int64, error) { return statusOf(pid, "VmHWM") }

// statusOf returns what the system tells of a process's memory, in bytes.
func statusOf(pid int, what string) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, what+":"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("the system does not tell %s of process %d", what, pid)
}
