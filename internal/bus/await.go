package bus

import (
	"context"
	"errors"
	"time"
)

// ErrStopped is the cause of the error of an attempt to join a hub that was stopped in order, and that nobody is starting.
var ErrStopped = errors.New("the hub was stopped")

const (
	// awaitTime is how long after the loss of a connection a call waits for the next one.
	awaitTime = 5 * time.Second
	// handoverTime is the same for a hub that was stopped: within it another version may replace the hub.
	handoverTime = 2 * time.Second
)

// Await blocks while a connection that has just been lost is being made again, so that a call that has sent nothing yet need not fail. It
// ends with ctx, five seconds after the loss, and two seconds after the loss of a hub that was stopped: calls in a longer outage fail at once.
func (b *Bus) Await(ctx context.Context) {
	for b.awaitChange(ctx) {
	}
}

// awaitChange is one wait for a change of the connection. It reports false if there is nothing to wait for any more.
func (b *Bus) awaitChange(ctx context.Context) bool {
	changed, st := b.link.changed.Wait(), b.link.status()
	var left time.Duration
	switch {
	case st.state == StateConnected && b.conn.IsConnected():
		return false
	case st.state == StateConnected: // the link is about to notice the loss
		left = awaitTime
	case st.state == StateReconnecting && st.lastErr != nil && errors.Is(st.lastErr, ErrStopped):
		left = handoverTime - time.Since(st.since)
	case st.state == StateReconnecting:
		left = awaitTime - time.Since(st.since)
	}
	if left <= 0 {
		return false
	}
	late := time.NewTimer(left)
	defer late.Stop()
	select {
	case <-changed:
		return true
	case <-late.C:
	case <-ctx.Done():
	}
	return false
}
