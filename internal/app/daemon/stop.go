package daemon

import (
	"context"
	"fmt"
	"time"
)

// stopPatience is how long a hub may take to stop: it ends its agents'
// processes and stores what they did.
const stopPatience = 60 * time.Second

// Stop asks the hub of a data directory to stop and waits until it is gone and
// the directory is free. ask asks over the hub's interface; where that fails
// and signal is allowed, the process gets a signal instead. It returns false
// where no hub was running.
func Stop(ctx context.Context, dataDir string, ask func(context.Context) error) (Info, bool, error) {
	info, running, err := Running(dataDir)
	if err != nil {
		return Info{}, false, &Error{Code: CodeStop, Message: err.Error(), Err: err}
	}
	if !running {
		return Info{}, false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, stopPatience)
	defer cancel()
	if askErr := ask(ctx); askErr != nil {
		if info.PID == 0 {
			return info, true, &Error{Code: CodeStop, Message: "a hub is starting or stopping and does not answer", Remedy: "try again in a moment", Err: askErr}
		}
		// The lock is held, so the process of hub.json is the hub's and no other
		// that was given its number.
		if err := terminate(info.PID); err != nil {
			return info, true, &Error{Code: CodeStop, Message: fmt.Sprintf("cannot signal the hub (process %d): %v", info.PID, err), Err: err}
		}
	}
	for {
		_, running, err := Running(dataDir)
		if err == nil && !running {
			return info, true, nil
		}
		if err := wait(ctx, pollInterval); err != nil {
			return info, true, &Error{
				Code: CodeStop, Message: fmt.Sprintf("the hub (process %d) has not stopped yet", info.PID),
				Remedy: "look into " + LogPath(dataDir), Err: err,
			}
		}
	}
}
