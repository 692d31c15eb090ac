package agentnet_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

// watched are the items that a network has named.
type watched struct {
	mu  sync.Mutex
	ids map[string]int
}

func watch(t *testing.T, n *agentnet.Network) *watched {
	t.Helper()
	w := &watched{ids: map[string]int{}}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		err := n.WatchItems(ctx, func(id string, generation int) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.ids[id] = generation
		})
		if err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return w
}

func (w *watched) generation(id string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ids[id]
}

// An item is followed from the hub's bus to the cluster, and withdrawn wherever it is.
func TestItemsAreFollowedToTheCluster(t *testing.T) {
	t.Parallel()
	n, hub := nettest.StartServer(t), nettest.StartServer(t)
	network := nettest.OpenLinked(t, nettest.Linked(n, hub, "shop"))
	boss := nettest.Register(t, network, nettest.Dispatcher())
	hand := nettest.Register(t, nettest.Open(t, n.Host("host-b", "bob", "shop")), nettest.Worker("go"))
	w := watch(t, network)
	for _, id := range []string{"A", "B"} {
		nettest.Submit(t, boss, id, "go")
		wait.Eventually(t, id+" is named", func() bool { return w.generation(id) == 1 })
	}
	c := nettest.Claim(t, hand)
	states := make(chan work.ItemState, 100)
	done := make(chan error, 1)
	go func() {
		done <- network.FollowItem(context.Background(), "A", func(s work.Tracked) bool {
			states <- s.State
			return s.State != work.Completed
		})
	}()
	if s := <-states; s != work.Claimed {
		t.Errorf("the item is %s", s)
	}
	nettest.Complete(t, hand, c)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if s, found, err := network.TrackItem(t.Context(), "A"); err != nil || !found || s.State != work.Completed || s.ResultSummary != "done" {
		t.Errorf("%+v, %t, %v", s, found, err)
	}
	if err := network.WithdrawItem(t.Context(), "B"); err != nil {
		t.Error(err)
	}
	if s, _, err := network.TrackItem(t.Context(), "B"); err != nil || s.State != work.Discarded {
		t.Errorf("%+v, %v", s, err)
	}
	nettest.NoClaim(t, hand)
	for _, id := range []string{"A", "none"} { // it has ended, and there is none: nothing is to be done
		if err := network.WithdrawItem(t.Context(), id); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	if err := network.FollowItem(t.Context(), "none", func(work.Tracked) bool { return true }); !store.IsNotFound(err) {
		t.Errorf("an item that does not exist: %v", err)
	}
	if _, found, err := network.TrackItem(t.Context(), "none"); found || err != nil {
		t.Errorf("%t, %v", found, err)
	}
}

// Without a cluster the hub's bus has all: queues, items, and their retries.
func TestItemsOfOneComputer(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	network := nettest.Open(t, n.Host("office", "ann", "shop"))
	boss, hand := nettest.Register(t, network, nettest.Dispatcher()), nettest.Register(t, network, nettest.Worker("go"))
	nettest.Submit(t, boss, "A", "go")
	if names, err := network.Queues(t.Context()); err != nil || !slices.Equal(names, []string{"go"}) {
		t.Errorf("the queues are %q, %v", names, err)
	}
	w := watch(t, network)
	wait.Eventually(t, "A is named", func() bool { return w.generation("A") == 1 })
	c := nettest.Claim(t, hand)
	held, err := hand.Held(t.Context())
	if err != nil || len(held) != 1 || held[0].TaskID != "A" || held[0].Token != c.Token || held[0].Attempt != 1 {
		t.Errorf("it holds %+v, %v", held, err)
	}
	if held, err := boss.Held(t.Context()); err != nil || len(held) > 0 {
		t.Errorf("others hold %+v, %v", held, err)
	}
	if _, err := hand.Reject(t.Context(), "A", c.Token, "no", true); err != nil {
		t.Fatal(err)
	}
	if held, err := hand.Held(t.Context()); err != nil || len(held) > 0 {
		t.Errorf("it holds %+v, %v", held, err)
	}
	if _, err := boss.RetryDeadLetter(t.Context(), "A", true); err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "the retry is named", func() bool { return w.generation("A") == 2 })
	if s, _, err := network.TrackItem(t.Context(), "A"); err != nil || s.Generation != 2 || s.State != work.Queued {
		t.Errorf("%+v, %v", s, err)
	}
}
