package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"
)

// runSeries runs campaigns with the seeds from c.seed on, prints a line of each and, of several, their sum, and returns the broken
// promises of the first one that fails, whose seed c has then. An interrupt ends it before the next campaign's end.
func runSeries(ctx context.Context, out io.Writer, c *campaign, runs int) (broken []string, err error) {
	dir, err := os.MkdirTemp("", "parley-faults-program-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // temporary
	if c.program == "" {
		build := func() (string, error) { return buildHub(ctx, dir) }
		if c.clocks {
			build = func() (string, error) { return buildShifted(ctx, dir) }
		}
		if c.program, err = build(); err != nil {
			return nil, err
		}
	}
	var sum result
	began, n := time.Now(), 0
	for ; n < runs && len(broken) == 0 && err == nil; n++ {
		if n > 0 {
			c.seed++
		}
		var r result
		if r, err = run(ctx, out, *c); err == nil {
			fmt.Fprintf(out, "seed %d: %v\n", c.seed, r)
			sum.add(r)
			broken = r.broken
		}
	}
	if runs > 1 {
		fmt.Fprintf(out, "sum of %d: %v; %.0f s\n", n, sum, time.Since(began).Seconds())
	}
	return broken, err
}

// add adds what another campaign has done.
func (r *result) add(o result) {
	r.acknowledged, r.unknown, r.calls = r.acknowledged+o.acknowledged, r.unknown+o.unknown, r.calls+o.calls
	r.judged, r.undecided = r.judged+o.judged, r.undecided+o.undecided
	if r.faults == nil {
		r.faults = faultCounts{}
	}
	for kind, n := range o.faults {
		r.faults[kind] += n
	}
}
