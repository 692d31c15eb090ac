package bus

import "io/fs"

// checkOwner accepts every file: on Windows the data directory inherits the access list of the
// user's profile, which excludes others.
func checkOwner(string, fs.FileInfo) error { return nil }
