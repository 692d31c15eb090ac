package work

import (
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/agentnet/store"
)

// A lease counts until its end, also by a clock that was set back since the item was claimed.
func TestALeaseCountsUntilItsEnd(t *testing.T) {
	const lease = 30 * time.Second
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	for at, want := range map[time.Duration]verdict{
		-2 * lease:       isFree,
		-lease / 2:       isHeld,
		time.Second:      isHeld, // another computer's estimate of the clock is a little ahead
		2 * time.Minute:  isHeld,
		90 * time.Minute: isHeld,
	} {
		claimed := now.Add(at)
		x := record{State: Claimed, QueueSequence: 7, ClaimedAt: store.Timestamp(claimed), LeaseUntil: store.Timestamp(claimed.Add(lease))}
		if got := x.verdict(Order{}, 7, now, lease); got != want {
			t.Errorf("claimed %v from now: %v, want %v", at, got, want)
		}
	}
}
