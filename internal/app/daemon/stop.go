package daemon

import (
	"context"
	"fmt"
	"time"

	"github.com/parleyhub/parley/internal/base/wait"
)

// stopTimeout is how long a hub may take to stop: it ends its agents' processes and stores their results.
const stopTimeout = 60 * time.Second

// Stop stops the hub of a data directory and waits until the directory is free. It calls ask to request the stop; if
// that fails it signals the process. It returns false if no hub was running.
func Stop(ctx context.Context, dataDir string, ask func(context.Context) error) (Info, bool, error) {
	info, running, err := Running(dataDir)
	if err != nil {
		return Info{}, false, dataDirError(dataDir, err)
	}
	if !running {
		return Info{}, false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	if askErr := ask(ctx); askErr != nil {
		if info.PID == 0 {
			return info, true, &Error{Code: CodeStop, Message: "a hub is starting or stopping and does not answer", Remedy: "try again in a moment", Err: askErr}
		}
		// The lock is held, so the PID of hub.json is still that of the hub.
		if err := terminate(info.PID); err != nil {
			return info, true, &Error{Code: CodeStop, Message: fmt.Sprintf("cannot signal the hub (process %d): %v", info.PID, err), Err: err}
		}
	}
	for {
		_, running, err := Running(dataDir)
		if err == nil && !running {
			return info, true, nil
		}
		if !wait.Pause(ctx, pollInterval) {
			return info, true, &Error{
				Code: CodeStop, Message: fmt.Sprintf("the hub (process %d) has not stopped yet", info.PID),
				Remedy: "see " + LogPath(dataDir), Err: context.Cause(ctx),
			}
		}
	}
}
