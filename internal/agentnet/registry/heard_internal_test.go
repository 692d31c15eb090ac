package registry

import (
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/agentnet/store"
)

// Silence counts since the clock was set, and not before. A time that is yet to come is one of a former clock.
func TestSilenceCountsSinceTheClockWasSet(t *testing.T) {
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	s := store.New(store.Config{Now: func() time.Time { return now }}.WithDefaults())
	defer s.Stop()
	g := New(s)
	for _, c := range []struct{ seen, set, want time.Duration }{
		{-time.Minute, -time.Hour, -time.Minute},
		{-time.Hour, -time.Minute, -time.Minute},
		{2 * time.Hour, -time.Minute, -time.Minute},
		{time.Second, -time.Hour, time.Second}, // the estimate of the clock is a little behind
	} {
		if got := g.heard(now.Add(c.seen), now.Add(c.set)).Sub(now); got != c.want {
			t.Errorf("heard %v from now, set %v from now: silent since %v from now, want %v", c.seen, c.set, got, c.want)
		}
	}
	if got := g.heard(now.Add(-time.Hour), time.Time{}); !got.Equal(now.Add(-time.Hour)) {
		t.Errorf("without a change of the clock: %v", got)
	}
}
