//go:build !linux

package cli

import "runtime/debug"

// giveBackMemory returns free heap to the system. The pages of the program's file,
// which Linux gives back as well, are left to the system here.
func giveBackMemory() error {
	debug.FreeOSMemory()
	return nil
}
