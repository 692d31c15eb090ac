//go:build !linux

package daemon

import "runtime/debug"

// ReleaseMemory returns free heap to the system. The pages of the program's file,
// which Linux gives back as well, are left to the system here.
func ReleaseMemory() error {
	debug.FreeOSMemory()
	return nil
}

// releaseProgram does nothing.
func releaseProgram() error { return nil }
