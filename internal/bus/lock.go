package bus

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

const (
	lockName = "lock"
	// A process that looks whether a hub runs holds the lock for an instant,
	// and a hub that stops for a little longer: try again for so long.
	lockPatience = 250 * time.Millisecond
	lockRetry    = 10 * time.Millisecond
)

// lockDir takes the lock of the bus directory for this process. Two servers on
// one store would silently overwrite each other.
func lockDir(ctx context.Context, dir string) (*flock.Flock, error) {
	lock := flock.New(filepath.Join(dir, lockName))
	waitCtx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	ok, err := lock.TryLockContext(waitCtx, lockRetry)
	if ok {
		return lock, nil
	}
	if ctx.Err() != nil {
		return nil, contextError(ctx.Err(), "waiting for the lock of the data directory")
	}
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return nil, &Error{
			Code:    CodeStorage,
			Message: fmt.Sprintf("cannot lock %s", lock.Path()),
			Remedy:  "put the data directory on a local filesystem that you can write to",
			Err:     err,
		}
	}
	return nil, lockedError(dir)
}

func lockedError(dir string) error {
	return &Error{
		Code:    CodeLocked,
		Message: fmt.Sprintf("another hub uses the data directory %s", filepath.Dir(dir)),
		Remedy:  "stop it, or give this one a data directory of its own",
	}
}
