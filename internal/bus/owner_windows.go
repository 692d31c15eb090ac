package bus

import "io/fs"

// checkOwner accepts: on Windows the access list that the data directory
// inherits from the user's profile keeps others out.
func checkOwner(string, fs.FileInfo) error { return nil }
