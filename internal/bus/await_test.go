package bus_test

import (
	"cmp"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/testbed/simnet"
)

// A call waits for the connection that has just been lost, and not longer than that may be made again.
func TestAwait(t *testing.T) {
	stopped := &bus.Error{Code: bus.CodeNotRunning, Message: "the hub was stopped", Err: bus.ErrStopped}
	for name, tt := range map[string]struct {
		away   time.Duration // of the server; 0 for good
		reason error         // of the attempts to connect meanwhile
		late   time.Duration // of the call, after the loss
		given  time.Duration // to the call; 0 for any time
		want   time.Duration
		ok     bool
	}{
		"connected":              {away: time.Nanosecond, late: 30 * time.Second, ok: true},
		"back after a second":    {away: time.Second, want: time.Second, ok: true},
		"away for good":          {want: 5 * time.Second},
		"a later call":           {late: 3 * time.Second, want: 2 * time.Second},
		"a call in a long one":   {late: time.Minute},
		"a call that ends":       {given: time.Second, want: time.Second},
		"stopped":                {reason: stopped, want: 2 * time.Second},
		"a call long after that": {reason: stopped, late: 3 * time.Second},
		"replaced":               {away: time.Second, reason: stopped, want: time.Second, ok: true},
	} {
		t.Run(name, func(t *testing.T) {
			simnet.Run(t, 1, func(t *testing.T, n *simnet.Network) {
				c := n.Computer("a")
				b, err := c.Process().Dial(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer b.Close(t.Context()) //nolint:errcheck // the server may be away
				c.CutBecause(tt.reason)
				lost := time.Now()
				if tt.away > 0 {
					time.AfterFunc(tt.away, c.Heal)
				}
				synctest.Wait()
				wait.Pause(t.Context(), tt.late)
				ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(tt.given, time.Hour))
				defer cancel()
				begun := time.Now()
				b.Await(ctx)
				took, con := time.Since(begun), b.Connection()
				// The next attempt comes some time after the server is back.
				if took < tt.want || took > tt.want+time.Second || tt.want == 0 && took > 0 {
					t.Errorf("it waited for %v, want %v", took, tt.want)
				}
				if connected := con.State == bus.StateConnected; connected != tt.ok || !con.LostSince(lost) || !connected && tt.reason != nil && !errors.Is(con.Err, tt.reason) {
					t.Errorf("the connection is %+v", con)
				}
			})
		})
	}
}
