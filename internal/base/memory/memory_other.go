//go:build !linux

package memory

import "runtime/debug"

// GiveBack returns free heap to the system. The pages of the program's file,
// which Linux gives back as well, are left to the system here.
func GiveBack() error {
	debug.FreeOSMemory()
	return nil
}
