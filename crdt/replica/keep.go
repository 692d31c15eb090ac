package replica

import (
	"context"
	"time"

	"github.com/parleyhub/parley/channel"
)

// Pauses between two attempts of Keep.
const (
	keepPause    = 100 * time.Millisecond
	keepPauseMax = 5 * time.Second
)

// Keep keeps the replica linked with whom dial leads to: when the channel has closed for
// good, because the process at the other end was started anew, say, it dials again,
// with pauses that grow to 5 s. A channel that only breaks mends itself. Keep returns when
// ctx ends, with its error, or when the replica is closed. It closes the channels that
// dial has opened.
func (r *Replica) Keep(ctx context.Context, dial func(context.Context) (*channel.Channel, error)) error {
	pause := keepPause
	for {
		ch, err := dial(ctx)
		if err == nil {
			pause = keepPause
			err = r.keep(ctx, ch)
		}
		if err != nil && ctx.Err() == nil && r.ctx.Err() == nil {
			r.log.Info("a document's keeper is not reached", "document", r.state, "error", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		case <-r.ctx.Done():
			return errClosed()
		}
		pause = min(2*pause, keepPauseMax)
	}
}

// keep links the replica with a channel until that closes.
func (r *Replica) keep(ctx context.Context, ch *channel.Channel) error {
	defer ch.Close() // it returns nil
	closed := make(chan struct{}, 1)
	note := func(s channel.Status) {
		if s == channel.Closed {
			select {
			case closed <- struct{}{}:
			default:
			}
		}
	}
	defer ch.OnStatus(note)()
	note(ch.Status()) // it may have closed before
	detach, err := r.Attach(ch)
	if err != nil {
		return err
	}
	defer detach()
	select {
	case <-closed:
		return ch.Err()
	case <-ctx.Done():
	case <-r.ctx.Done():
	}
	return nil
}
