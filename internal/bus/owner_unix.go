//go:build unix

package bus

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// openNoFollow opens a file to read; a symbolic link or a pipe in its place is
// an error or harmless.
func openNoFollow(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
}

// checkPrivate refuses what is not a regular file of this user's with a mode
// that keeps all others out.
func checkPrivate(path string, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return insecure(path, "is not a regular file")
	}
	if err := checkOwner(path, info); err != nil {
		return err
	}
	if perm := info.Mode().Perm(); perm&0o077 != 0 {
		return insecure(path, fmt.Sprintf("has mode %04o, other users may have read it", perm))
	}
	return nil
}

// checkOwner refuses what belongs to another user.
func checkOwner(path string, info fs.FileInfo) error {
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return insecure(path, "belongs to another user")
	}
	return nil
}
