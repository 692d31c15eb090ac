package bus

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

const (
	lockName = "lock"
	// A process that checks for a hub holds the lock for an instant, and a hub that stops a
	// little longer: retry that long.
	lockTimeout = 250 * time.Millisecond
	lockRetry   = 10 * time.Millisecond
)

// lockDir locks the bus directory for this process. Two servers with one store would overwrite
// each other's data without an error.
func lockDir(ctx context.Context, dir string) (*flock.Flock, error) {
	lock := flock.New(filepath.Join(dir, lockName))
	waitCtx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	ok, err := lock.TryLockContext(waitCtx, lockRetry)
	if ok {
		return lock, nil
	}
	if ctx.Err() != nil {
		return nil, contextError(ctx.Err(), "waiting for the lock of the data directory")
	}
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return nil, errorf(CodeStorage, err, "put the data directory on a local filesystem that you can write to",
			"cannot lock %s", lock.Path())
	}
	return nil, errorf(CodeLocked, nil, "stop it, or set another data directory for this one",
		"another hub uses the data directory %s", filepath.Dir(dir))
}
