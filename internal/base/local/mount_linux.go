package local

import (
	"os"
	"path/filepath"
	"strings"
)

// Disk returns a name of the file system of a directory for people, such as "/dev/sda2 at /home"; "" if it is unknown.
func Disk(dir string) string {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	return diskOf(string(raw), dir)
}

// diskOf returns the source and the place of the mount, among those of a mountinfo, that has dir.
func diskOf(mounts, dir string) (name string) {
	longest := -1
	unquote := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\134`, `\`)
	for line := range strings.Lines(mounts) {
		before, after, ok := strings.Cut(line, " - ")
		fields, source := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 5 || len(source) < 2 {
			continue
		}
		at := unquote.Replace(fields[4])
		within := dir == at || strings.HasPrefix(dir, strings.TrimSuffix(at, "/")+"/")
		if within && len(at) >= longest {
			longest, name = len(at), unquote.Replace(source[1])+" at "+at
		}
	}
	return name
}
