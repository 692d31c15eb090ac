//go:build !linux

package local

// Disk returns a name of the file system of a directory for people; "" if it is unknown.
func Disk(string) string { return "" }
