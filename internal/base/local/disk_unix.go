//go:build unix

package local

import "golang.org/x/sys/unix"

// FreeSpace returns the space that the user can still use in the file system of dir, in bytes.
func FreeSpace(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return uint64(st.Bavail) * uint64(st.Bsize), nil
}
