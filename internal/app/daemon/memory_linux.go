package daemon

import (
	"bufio"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// ReleaseMemory returns to the system what an idle process does not need: free heap, and the pages of the program's
// file that it has touched. Pages that are needed again come back from the page cache.
func ReleaseMemory() error {
	debug.FreeOSMemory()
	program, err := os.Executable()
	if err != nil {
		return err
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return err
	}
	defer maps.Close()
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		start, end, ok := readOnlyMapping(lines.Text(), program)
		if !ok {
			continue
		}
		// Never of a mapping that can be written: that would undo the writes.
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, start, end-start, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("release %s: %w", lines.Text(), errno)
		}
	}
	return lines.Err()
}

// readOnlyMapping reads a line of /proc/self/maps: "start-end perms offset device
// inode path". ok is set for a mapping of the file that nobody can write to.
func readOnlyMapping(line, file string) (start, end uintptr, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 6 || !strings.HasSuffix(line, " "+file) || (fields[1] != "r-xp" && fields[1] != "r--p") {
		return 0, 0, false
	}
	if _, err := fmt.Sscanf(fields[0], "%x-%x", &start, &end); err != nil {
		return 0, 0, false
	}
	return start, end, start < end
}
