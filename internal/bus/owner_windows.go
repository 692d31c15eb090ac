package bus

import (
	"io/fs"
	"os"
)

// openNoFollow opens a file to read.
func openNoFollow(path string) (*os.File, error) { return os.Open(path) }

// checkPrivate refuses what is not a regular file. On Windows the access list
// that the data directory inherits from the user's profile keeps others out;
// file modes say nothing there.
func checkPrivate(path string, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return insecure(path, "is not a regular file")
	}
	return nil
}

// checkOwner accepts: see checkPrivate.
func checkOwner(string, fs.FileInfo) error { return nil }
