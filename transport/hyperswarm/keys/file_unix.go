//go:build !windows

package keys

import "io/fs"

func othersMayRead(info fs.FileInfo) bool { return info.Mode().Perm()&0o077 != 0 }
