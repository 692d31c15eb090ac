package store_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/testbed"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testbed.Leaks()...) }

// An answer that took seconds determines the time less precisely than a prompt one.
func TestASlowAnswerDoesNotSpoilTheClock(t *testing.T) {
	own := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	server := own.Add(time.Hour)
	clock := store.NewClock(func() time.Time { return own }, nil)
	now, set := clock.Now, func(server, before, after time.Time) { clock.Set(server, before, after, false) }
	check := func(want time.Time) {
		t.Helper()
		if got := now(); !got.Equal(want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	check(own)
	set(server, own, own.Add(10*time.Second)) // imprecise, but better than none
	check(server.Add(-5 * time.Second))
	set(server, own, own)
	check(server)
	set(server, own.Add(-4*time.Second), own) // the answer was delayed on its way
	check(server)
	set(server.Add(time.Minute), own, own.Add(20*time.Millisecond)) // the server's clock was set
	check(server.Add(time.Minute - 10*time.Millisecond))
	set(server.Add(time.Hour), own, own.Add(10*time.Second)) // and once more: a slow answer is better than another clock
	check(server.Add(time.Hour - 5*time.Second))
}

// The time of a server on this computer is set with the computer's clock. For one on another computer the time is measured again.
func TestTheTimeIsSetWithTheComputersClock(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, local := range []bool{true, false} {
		var set time.Duration
		clock := store.NewClock(func() time.Time { return now }, func() time.Duration { return set })
		clock.Set(now, now, now, local)
		set -= time.Hour
		want := map[bool]time.Time{true: now.Add(-time.Hour), false: now}[local]
		if got := clock.Now(); !got.Equal(want) || clock.Outdated() == local {
			t.Errorf("local %v: %v, want %v; outdated %v", local, got, want, clock.Outdated())
		}
		clock.Set(now.Add(-time.Hour), now, now, local)
		if got := clock.Now(); !got.Equal(now.Add(-time.Hour)) || clock.Outdated() {
			t.Errorf("local %v: measured again, it is %v", local, got)
		}
	}
}

// The time is requested again after a slow answer, as from a computer that was busy or asleep.
func TestTheTimeIsRequestedAgainAfterASlowAnswer(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	cfg := n.Host("host-a", "ann", "shop")
	var looks atomic.Int64
	cfg.Now = func() time.Time { return time.Now().Add(time.Duration(min(looks.Add(1), 6)) * time.Hour) } // an hour passes for each of the first six calls
	a := nettest.Register(t, nettest.Open(t, cfg), nettest.Worker())
	at, err := time.Parse(time.RFC3339Nano, a.Entry().LastHeartbeat)
	if off := time.Since(at).Abs(); err != nil || off > 2*time.Minute {
		t.Errorf("its clock is %v off: %v", off, err)
	}
}

// REQ-ABUSE-002, REQ-ABUSE-003, REQ-ABUSE-004: rate limits belong to an identity, whichever
// process uses it.
func TestRateLimitsOutliveTheProcess(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	cfg := n.Host("host-a", "ann", "shop")
	clock := new(nettest.Clock)
	cfg.Now = clock.Still()
	first := agentnet.Open(cfg)
	if err := first.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	a := nettest.Register(t, first, nettest.Worker())
	other := nettest.Register(t, nettest.Open(t, n.Host("host-b", "bob", "shop")), nettest.Worker())
	for range 10 {
		nettest.Discover(t, a, registry.Filter{})
	}
	for i := range 100 {
		if _, err := a.Send(t.Context(), mail.Message{Recipient: other.GUID(), Text: "x"}); err != nil {
			t.Fatal(i, err)
		}
	}
	for range 10 {
		if _, err := a.BroadcastOffer(t.Context(), mail.Broadcast{Offer: mail.Offer{TaskID: "t", Description: "d"}}); err != nil {
			t.Fatal(err)
		}
	}
	nettest.Shut(t, first)
	again := nettest.Register(t, nettest.Open(t, cfg), nettest.Worker())
	if again.GUID() != a.GUID() {
		t.Fatal("not the same identity")
	}
	_, err := again.Discover(t.Context(), registry.Filter{})
	nettest.Wants(t, err, store.RateLimitError, "10 in 1m0s")
	_, err = again.Send(t.Context(), mail.Message{Recipient: other.GUID(), Text: "x"})
	nettest.Wants(t, err, store.RateLimitError, "100 in 1m0s")
	_, err = again.BroadcastOffer(t.Context(), mail.Broadcast{Offer: mail.Offer{TaskID: "t", Description: "d"}})
	nettest.Wants(t, err, store.RateLimitError, "10 in 1m0s")
	if _, err := other.Discover(t.Context(), registry.Filter{}); err != nil {
		t.Errorf("another agent is refused too: %v", err)
	}
	clock.Forward(time.Minute)
	if _, err := again.Discover(t.Context(), registry.Filter{}); err != nil {
		t.Errorf("a minute later: %v", err)
	}
}

// REQ-TEST-CROSS-010, REQ-HEARTBEAT-006, REQ-HEARTBEAT-007
func TestAnOutageIsReportedAndSurvived(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	network := nettest.Open(t, nettest.WithBeat(n.Host("host-a", "ann", "shop"), 50*time.Millisecond))
	a := nettest.Register(t, network, nettest.Worker("typescript"))
	n.Stop()
	wait.Eventually(t, "the loss", func() bool { return !network.Status().Connected })
	_, err := a.Discover(t.Context(), registry.Filter{})
	nettest.Wants(t, err, store.ConnectionError, "interrupted")
	_, err = a.Send(t.Context(), mail.Message{Recipient: a.GUID(), Text: "x"})
	nettest.Wants(t, err, store.ConnectionError, "interrupted")
	before := a.Entry().LastHeartbeat
	n.Start()
	wait.Eventually(t, "the connection", func() bool { return network.Status().Connected })
	wait.Eventually(t, "a heartbeat after it", func() bool { return a.Entry().LastHeartbeat > before })
	wait.Eventually(t, "the registry", func() bool { // its streams may have to be created again
		d, err := a.Discover(t.Context(), registry.Filter{})
		if err != nil && nettest.CategoryOf(err) != store.ConnectionError {
			t.Error(err)
		}
		return err == nil && len(d.Agents) == 1
	})
}

func TestAnUnreachableNetworkIsReported(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	n.Stop()
	network := agentnet.Open(n.Host("host-a", "ann", "shop"))
	t.Cleanup(func() { nettest.Shut(t, network) })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := network.Ready(ctx); nettest.CategoryOf(err) != store.ConnectionError {
		t.Error(err)
	}
	_, err := network.Register(t.Context(), nettest.Worker())
	nettest.Wants(t, err, store.ConnectionError, "")
	n.Start()
	if err := network.Ready(t.Context()); err != nil {
		t.Error(err)
	}
}

// REQ-ABUSE-002, REQ-ABUSE-003, REQ-ABUSE-004: each agent has limits of its own; those of a project on a computer share a
// higher ceiling, which more processes and more agent types do not avoid.
func TestAnotherProcessDoesNotAvoidALimit(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	cfg := n.Host("host-a", "ann", "shop")
	cfg.Now = new(nettest.Clock).Still() // all calls are within one minute, however long they take
	a := nettest.Register(t, nettest.Open(t, cfg), nettest.Worker())
	other := nettest.Register(t, nettest.Open(t, n.Host("host-b", "ann", "shop")), nettest.Worker())
	for range 10 {
		nettest.Discover(t, a, registry.Filter{})
	}
	for range 10 {
		if _, err := a.BroadcastOffer(t.Context(), mail.Broadcast{Offer: mail.Offer{TaskID: "t", Description: "d"}}); err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		nettest.SendText(t, a, other, "x")
	}
	twin := nettest.Register(t, nettest.Open(t, cfg), nettest.Worker())
	if twin.GUID() == a.GUID() {
		t.Fatal("both have the same GUID")
	}
	for range 10 { // each agent has its own limit
		nettest.Discover(t, twin, registry.Filter{})
	}
	_, err := twin.Discover(t.Context(), registry.Filter{})
	nettest.Wants(t, err, store.RateLimitError, "Too many queries of the registry: at most 10 in 1m0s are allowed to an agent")

	network := nettest.Open(t, cfg)
	for i := range 11 {
		r := nettest.Worker()
		r.AgentType = fmt.Sprint("worker-", i)
		again := nettest.Register(t, network, r)
		for j := range 10 {
			if _, err = again.Discover(t.Context(), registry.Filter{}); err != nil {
				nettest.Wants(t, err, store.RateLimitError, "this project's agents on this computer together: at most 100 in 1m0s")
				nettest.Discover(t, other, registry.Filter{}) // another computer is not limited
				if i != 8 || j != 0 {
					t.Errorf("after %d and %d", i, j)
				}
				return
			}
		}
	}
	t.Error("there is no limit")
}
