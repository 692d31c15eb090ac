package cli

import (
	"context"
	"errors"
	"time"

	"github.com/parleyhub/parley/internal/api/client"
)

// hubAway is how long a hub may be away while somebody follows something of it: one that was
// killed may come back meanwhile.
const hubAway = time.Minute

// hubAgain is how long it is until a hub that is away is asked again.
const hubAgain = time.Second / 2

// absence is that of a hub from a command that follows something.
type absence struct {
	app   *app
	note  string
	since time.Time // zero while it is there
}

// absence returns one that has not begun; the note is for when it does.
func (a *app) absence(note string) *absence { return &absence{app: a, note: note} }

// outlast takes the error of each call to the hub. If the hub is away, it waits a moment and returns
// nil; it returns the error if that is another one, or the hub is away for too long.
func (a *absence) outlast(ctx context.Context, err error) error {
	switch {
	case err == nil:
		a.since = time.Time{}
		return nil
	case !errors.Is(err, client.ErrLost) && !errors.Is(err, client.ErrNotRunning):
		return err
	case a.since.IsZero():
		a.since = time.Now()
		a.app.note("%s", a.note)
	case time.Since(a.since) > hubAway:
		return err
	}
	select {
	case <-time.After(hubAgain):
	case <-ctx.Done():
	}
	return nil
}
