//go:build unix

package bus

import (
	"io/fs"
	"os"
	"syscall"
)

// checkOwner returns an error if a file belongs to another user.
func checkOwner(path string, info fs.FileInfo) error {
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return insecure(path, "belongs to another user")
	}
	return nil
}
