package replica

import (
	"context"
	"time"

	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/internal/base/wait"
)

// Pauses between two attempts of KeepConnected.
const (
	keepPause    = 100 * time.Millisecond
	keepPauseMax = 5 * time.Second
)

// KeepConnected keeps the replica attached to the channel that dial opens. When the channel has closed for
// good, e.g. because the other process was restarted, it dials again, with pauses that grow to 5 s. A
// channel that only loses its connection reconnects itself. KeepConnected blocks until ctx ends or the
// replica is closed, and closes the channels that dial has opened.
func (r *Replica) KeepConnected(ctx context.Context, dial func(context.Context) (*channel.Channel, error)) error {
	if dial == nil {
		return &Error{Code: CodeInvalid, Message: "the function that dials the document's keeper is nil"}
	}
	retry := wait.Backoff{First: keepPause, Most: keepPauseMax}
	for {
		ch, err := dial(ctx)
		if err == nil {
			retry.Reset()
			err = r.keep(ctx, ch)
		}
		if err != nil && ctx.Err() == nil && r.ctx.Err() == nil {
			r.log.Info("a document's keeper cannot be reached", "error", err)
		}
		select {
		case <-time.After(retry.Next()):
		case <-ctx.Done():
			return ctx.Err()
		case <-r.ctx.Done():
			return errClosed()
		}
	}
}

// keep attaches the replica to a channel until the channel closes.
func (r *Replica) keep(ctx context.Context, ch *channel.Channel) error {
	defer ch.Close() // returns nil
	detach, err := r.Attach(ch)
	if err != nil {
		return err
	}
	defer detach()
	select {
	case <-ch.Done():
		return ch.Err()
	case <-ctx.Done():
	case <-r.ctx.Done():
	}
	return nil
}
