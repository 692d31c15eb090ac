package daemon

import (
	"bufio"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// ReleaseMemory returns to the system what an idle process does not need: free heap, and the pages of the program's
// file that it has touched.
func ReleaseMemory() error {
	debug.FreeOSMemory()
	return releaseProgram()
}

// releaseProgram returns the pages of the program's file to the system. Pages that are needed again come back from the page cache.
func releaseProgram() error {
	all, err := programMappings()
	if err != nil {
		return err
	}
	for _, m := range all {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("release the program's pages at %x: %w", m.start, errno)
		}
	}
	return nil
}

// mapping is a part of the address space.
type mapping struct{ start, end uintptr }

// programMappings returns the mappings of the program's file that nobody can write to: releasing others would undo the writes. They stay as
// they are while the process runs.
var programMappings = sync.OnceValues(func() (all []mapping, err error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	defer maps.Close()
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		if start, end, ok := readOnlyMapping(lines.Text(), program); ok {
			all = append(all, mapping{start, end})
		}
	}
	return all, lines.Err()
})

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
