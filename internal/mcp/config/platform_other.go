//go:build !unix

package config

import "io/fs"

// errNotDir is the error of opening a path below a file.
var errNotDir error = fs.ErrNotExist

// sameOwner returns true: on Windows, users' directories and their temporary directories are not writable for others.
func sameOwner(string, string) bool { return true }
