package agentnet_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/agentnet"
)

// A server's answer that took seconds says less of the time than one that came
// at once.
func TestASlowAnswerDoesNotSpoilTheClock(t *testing.T) {
	own := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	server := own.Add(time.Hour)
	now, set := agentnet.NewClock(func() time.Time { return own })
	check := func(want time.Time) {
		t.Helper()
		if got := now(); !got.Equal(want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	check(own)
	set(server, own, own.Add(10*time.Second)) // better than none
	check(server.Add(-5 * time.Second))
	set(server, own, own)
	check(server)
	set(server, own.Add(-4*time.Second), own) // the answer was suspended on its way
	check(server)
	set(server.Add(time.Minute), own, own.Add(20*time.Millisecond)) // somebody has set the server's clock
	check(server.Add(time.Minute - 10*time.Millisecond))
}

// A server whose answer was long on its way is asked again, as on a computer that was busy
// or asleep when it came.
func TestAServerThatAnsweredLateIsAskedAgain(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	cfg := n.host("host-a", "ann", "shop")
	var looks atomic.Int64
	cfg.Now = func() time.Time { return time.Now().Add(time.Duration(min(looks.Add(1), 6)) * time.Hour) } // hours pass, and then no more
	a := register(t, open(t, cfg), worker())
	at, err := time.Parse(time.RFC3339Nano, a.Entry().LastHeartbeat)
	if off := time.Since(at).Abs(); err != nil || off > 2*time.Minute {
		t.Errorf("its clock is %v off: %v", off, err)
	}
}
