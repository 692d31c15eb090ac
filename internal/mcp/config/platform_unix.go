//go:build unix

package config

import (
	"os"
	"syscall"
)

// errNotDir is the error of opening a path below a file.
var errNotDir error = syscall.ENOTDIR

// sameOwner reports whether a file belongs to the owner of a directory, to the user of this process or to root. A file
// without a known owner counts as the user's.
func sameOwner(file, dir string) bool {
	owner, ok := ownerOf(file)
	if !ok || owner == 0 || owner == os.Geteuid() {
		return true
	}
	other, ok := ownerOf(dir)
	return ok && owner == other
}

func ownerOf(path string) (uid int, ok bool) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}
