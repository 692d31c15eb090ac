package server

import (
	"context"
	"testing"
	"time"
)

// BoundTokens lets a project's clients hold that many sessions by tokens.
func BoundTokens(p *Project, n int) { p.tokens.max = n }

// ReportEvery makes waits report their progress so often.
func ReportEvery(t *testing.T, d time.Duration) {
	before := progressEvery
	progressEvery = d
	t.Cleanup(func() { progressEvery = before })
}

// IdleClock replaces the clock by which a project's agents are idle, and returns what
// looks for those that are. No agent may be there yet.
func IdleClock(p *Project, now func() time.Time) (look func(context.Context)) {
	for _, group := range p.opts.Groups {
		if g, ok := group.(*Network); ok {
			g.now = now
			return g.dismissIdle
		}
	}
	return nil
}
