//go:build !linux

package bus

import (
	"fmt"
	"runtime"
)

// openSyncer fails: there is no system call that syncs one filesystem and reports its errors. The
// server then syncs every write.
func openSyncer(string) (syncer, error) {
	return nil, fmt.Errorf("%s has no syncfs", runtime.GOOS)
}
