//go:build !linux

package bus

import (
	"fmt"
	"runtime"
)

// openSyncer fails: there is no call that syncs one filesystem and reports its
// errors. The bus then lets the server sync every write.
func openSyncer(string) (syncer, error) {
	return nil, fmt.Errorf("%s has no syncfs", runtime.GOOS)
}
