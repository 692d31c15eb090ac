package identity

import "io/fs"

// othersMayRead cannot tell on Windows, where the mode is made up.
func othersMayRead(fs.FileInfo) bool { return false }
