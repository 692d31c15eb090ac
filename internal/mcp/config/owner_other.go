//go:build !unix

package config

// sameOwner accepts: on Windows users' directories, and the directories for their
// temporary files, are not open to others.
func sameOwner(string, string) bool { return true }
