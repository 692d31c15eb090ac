package server

import (
	"context"
	"testing"
	"time"
)

// BoundTokens sets how many clients of a project may have tokens.
func BoundTokens(p *Project, n int) { p.tokens.max = n }

// ReportEvery sets the interval of progress notifications.
func ReportEvery(t *testing.T, d time.Duration) {
	before := progressEvery
	progressEvery = d
	t.Cleanup(func() { progressEvery = before })
}

// IdleClock replaces the clock for idle agents of a project, which must have none yet, and returns the function that
// deregisters them.
func IdleClock(p *Project, now func() time.Time) (deregisterIdle func(context.Context)) {
	for _, group := range p.opts.Groups {
		if g, ok := group.(*Network); ok {
			g.now = now
			return g.deregisterIdle
		}
	}
	return nil
}
