package work_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

func TestAnItemThatTheNetworkRefusesIsInTheDeadLetters(t *testing.T) {
	t.Parallel()
	n, hub := nettest.StartServer(t), nettest.StartServer(t)
	network := nettest.OpenLinked(t, nettest.Linked(n, hub, "shop"))
	boss := nettest.Register(t, network, nettest.Dispatcher())
	other := nettest.Register(t, nettest.Open(t, n.Host("host-b", "bob", "shop")), nettest.Dispatcher())
	nettest.Submit(t, other, "T", "go")
	if _, err := boss.Submit(t.Context(), another("T")); nettest.CategoryOf(err) != store.ConflictError {
		t.Errorf("two items with one id: %v", err)
	}
	n.Stop()
	nettest.AwaitLoss(t, network)
	if _, err := boss.Submit(t.Context(), another("T")); err != nil {
		t.Fatal(err) // the conflict is not known on this computer
	}
	n.Start()
	var letters []work.DeadLetter
	wait.Eventually(t, "the dead letter", func() bool {
		var err error
		letters, _, err = boss.DeadLetters(t.Context(), 0, "")
		return err == nil && len(letters) > 0
	})
	if len(letters) != 1 || letters[0].TaskID != "T" || letters[0].SubmitterGUID != boss.GUID() || !strings.Contains(letters[0].Detail, "another item of work with the id") {
		t.Errorf("%+v", letters)
	}
	if _, err := boss.DiscardDeadLetter(t.Context(), "T"); err != nil {
		t.Error(err)
	}
	wait.Eventually(t, "the other item, untouched", func() bool {
		s, err := other.Item(t.Context(), "T", false)
		if err == nil && s.State != work.Queued {
			t.Errorf("%+v", s)
		}
		return err == nil
	})
}

// An item whose worker died on the hub's bus moves to the network with its counts of attempts and
// claims.
func TestWorkOfADeadWorkerMovesToTheNetwork(t *testing.T) {
	n, hub := nettest.StartServer(t), nettest.StartServer(t)
	cfg := nettest.Linked(n, hub, "shop")
	cfg.AckTimeout = 5 * time.Second // for claims on a slow machine
	network := nettest.OpenLinked(t, cfg)
	boss := nettest.Register(t, network, nettest.Dispatcher())
	hand := nettest.Register(t, network, nettest.Worker("go"))
	far := n.Host("host-b", "bob", "shop")
	far.AckTimeout = 5 * time.Second // for claims on a slow machine
	other := nettest.Register(t, nettest.Open(t, far), nettest.Worker("go"))
	n.Stop()
	nettest.AwaitLoss(t, network)
	nettest.Submit(t, boss, "T", "go")
	former := nettest.ClaimTask(t, hand, "T") // this worker neither completes nor extends it
	n.Start()
	c := nettest.ClaimTask(t, other, "T")
	if c.Token != former.Token+1 || c.Attempt != former.Attempt+1 {
		t.Errorf("claimed as %+v after %+v", c, former)
	}
	if err := hand.Complete(t.Context(), "T", former.Token, work.Outcome{Success: true, Summary: "late"}); nettest.CategoryOf(err) != store.ConflictError {
		t.Errorf("a late completion: %v", err)
	}
	nettest.Complete(t, other, c)
}

// The agents of one project can create only a limited number of queues.
func TestQueuesOfAProjectAreLimited(t *testing.T) {
	r := nettest.NewHub(t)
	shop, blog := r.Memberships("/shop"), r.Memberships("/blog")
	a, twin, other := nettest.Enter(t, shop, nettest.Worker("go")), nettest.Enter(t, shop, nettest.Dispatcher()), nettest.Enter(t, blog, nettest.Worker("go"))
	for i := range work.MaxOwnedQueues {
		nettest.Submit(t, []*agentnet.Agent{a, twin}[i%2], fmt.Sprint("T-", i), fmt.Sprint("queue-", i))
	}
	for _, one := range []*agentnet.Agent{a, twin} {
		_, err := one.Submit(t.Context(), nettest.Item("one-more", "another-queue"))
		nettest.Wants(t, err, store.ConflictError, "The agents of this project have made 64 work queues")
	}
	nettest.Submit(t, a, "again", "queue-1")
	nettest.Submit(t, other, "others", "another-queue")
	nettest.Submit(t, a, "into-others", "another-queue")
}

// another returns an item with the id of nettest.Item and other content.
func another(task string) work.Submission {
	s := nettest.Item(task, "go")
	s.Description = "something else"
	return s
}
