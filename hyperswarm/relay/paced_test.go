package relay

import (
	"bytes"
	"context"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
)

// All paths of one peer share its rate limit.
//
// WIRE-RELAY.
func TestPathsOfAPeerShareARateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const perSecond, size = 1 << 20, 5 << 20
		pace := rate.NewLimiter(perSecond, perSecond)
		began := time.Now()
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				r := &paced{from: bytes.NewReader(make([]byte, size)), ctx: context.Background(), pace: pace, came: func() {}}
				if n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r, make([]byte, copySize)); n != size || err != nil {
					t.Errorf("%d bytes, %v", n, err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(began).Seconds(); took < 8.5 || took > 9.5 { // fake time; the first MiB passes at once
			t.Errorf("10 MiB at 1 MiB/s took %.1f s", took)
		}
	})
}

func TestRateLimitEndsWithTheServer(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	r := &paced{from: bytes.NewReader(make([]byte, 10)), ctx: ctx, pace: rate.NewLimiter(1, copySize), came: func() {}}
	if _, err := r.Read(make([]byte, 10)); err == nil {
		t.Error("a read succeeds after the server has ended")
	}
}
