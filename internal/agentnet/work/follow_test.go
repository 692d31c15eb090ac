package work_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

// Whoever takes care of a computer's items sees each from its submission to its end, and may withdraw it.
func TestItemsAreFollowed(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	net := nettest.Open(t, n.Host("host-a", "ann", "shop"))
	boss := nettest.Register(t, net, nettest.Dispatcher())
	hand := nettest.Register(t, nettest.Open(t, n.Host("host-b", "bob", "blog")), nettest.Worker("typescript"))
	ctx, cancel := context.WithCancel(t.Context())
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	nettest.Submit(t, boss, "TASK-1", "TypeScript")
	seen := make(chan string, 100)
	following.Go(func() {
		if err := net.WatchItems(ctx, func(id string, generation int) {
			if generation == 1 {
				seen <- id
			}
		}); err != nil {
			t.Error(err)
		}
	})
	if id := <-seen; id != "TASK-1" {
		t.Errorf("watched %s", id)
	}
	if queues, err := net.Queues(t.Context()); err != nil || !slices.Equal(queues, []string{"typescript"}) {
		t.Errorf("the queues are %v, %v", queues, err)
	}
	states := make(chan work.ItemState, 100)
	following.Go(func() {
		if err := net.FollowItem(ctx, "TASK-1", func(x work.Tracked) bool {
			states <- x.State
			return x.State != work.Completed
		}); err != nil {
			t.Error(err)
		}
		close(states)
	})
	if s := <-states; s != work.Queued {
		t.Errorf("at first it is %s", s)
	}
	c := nettest.Claim(t, hand)
	wait.Eventually(t, "the claim is seen", func() bool { return <-states == work.Claimed })
	if x, found, err := net.TrackItem(t.Context(), "TASK-1"); err != nil || !found || x.HolderGUID != hand.GUID() || x.Generation != 1 || x.MaxAttempts != 3 {
		t.Errorf("it is %+v, %t, %v", x, found, err)
	}
	nettest.Complete(t, hand, c)
	last := work.Claimed
	for s := range states {
		last = s
	}
	if last != work.Completed {
		t.Errorf("at last it is %s", last)
	}
	if x, found, err := net.TrackItem(t.Context(), "TASK-1"); err != nil || !found || x.ResultSummary != "done" {
		t.Errorf("it is %+v, %t, %v", x, found, err)
	}
}

func TestAWithdrawnItemIsClaimedByNobody(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	net := nettest.Open(t, n.Host("host-a", "ann", "shop"))
	boss := nettest.Register(t, net, nettest.Dispatcher())
	hand := nettest.Register(t, nettest.Open(t, n.Host("host-b", "bob", "blog")), nettest.Worker("typescript"))
	nettest.Submit(t, boss, "TASK-1", "typescript")
	for range 2 {
		if err := net.WithdrawItem(t.Context(), "TASK-1"); err != nil {
			t.Fatal(err)
		}
	}
	nettest.NoClaim(t, hand)
	if s := nettest.State(t, boss, "TASK-1"); s.State != work.Discarded {
		t.Errorf("it is %s", s.State)
	}
	nettest.Submit(t, boss, "TASK-2", "typescript")
	c := nettest.Claim(t, hand)
	if err := net.WithdrawItem(t.Context(), "TASK-2"); err != nil {
		t.Fatal(err)
	}
	if err := hand.Complete(t.Context(), c.TaskID, c.Token, work.Outcome{Success: true}); store.CodeOf(err) == "" {
		t.Error("the holder of a withdrawn item completed it")
	}
	if err := net.WithdrawItem(t.Context(), "none"); err != nil {
		t.Errorf("an item that does not exist: %v", err)
	}
	if err := net.FollowItem(t.Context(), "none", func(work.Tracked) bool { return true }); !store.IsNotFound(err) {
		t.Errorf("an item that does not exist is followed: %v", err)
	}
	if _, found, err := net.TrackItem(t.Context(), "none"); found || err != nil {
		t.Errorf("an item that does not exist is tracked: %v", err)
	}
}

func TestAWorkerFindsItsClaimsAgain(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss, hand := nettest.Pair(t, n)
	for _, id := range []string{"TASK-1", "TASK-2", "TASK-3"} {
		nettest.Submit(t, boss, id, "typescript")
	}
	first, second := nettest.Claim(t, hand), nettest.Claim(t, hand)
	nettest.Complete(t, hand, first)
	held, err := hand.Held(t.Context())
	if err != nil || len(held) != 1 || held[0].TaskID != second.TaskID || held[0].Token != second.Token || held[0].Description != second.Description {
		t.Errorf("it holds %+v, %v", held, err)
	}
	if held, err := boss.Held(t.Context()); err != nil || len(held) != 0 {
		t.Errorf("who has claimed nothing holds %+v, %v", held, err)
	}
}
