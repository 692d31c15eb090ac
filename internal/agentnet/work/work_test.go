package work_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/testbed"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testbed.Leaks()...) }

// REQ-WORKQUEUE-001, REQ-WORKQUEUE-002, REQ-WORKQUEUE-003, REQ-WORKQUEUE-004, REQ-DLQ-001
func TestAnItemIsCompletedAndItsResultRead(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss, hand := nettest.Pair(t, n)
	stranger := nettest.Register(t, nettest.Open(t, n.Host("host-x", "eve", "evil")), nettest.Worker("typescript"))
	nettest.Submit(t, boss, "TASK-1", "TypeScript")
	nettest.Submit(t, boss, "TASK-1", "TypeScript") // a repeated submission is no error
	js := n.Foreign()
	stream, err := js.Stream(t.Context(), "GLOBAL_WORKQUEUE_typescript")
	if err != nil {
		t.Fatal(err)
	}
	if c := stream.CachedInfo().Config; c.Retention != jetstream.WorkQueuePolicy || c.Storage != jetstream.FileStorage ||
		!slices.Equal(c.Subjects, []string{"global.workqueue.typescript"}) || stream.CachedInfo().State.Msgs != 1 {
		t.Errorf("the queue is %+v", stream.CachedInfo())
	}
	consumer, err := stream.Consumer(t.Context(), "workers")
	if err != nil || consumer.CachedInfo().Config.AckWait != 5*time.Minute {
		t.Errorf("%v, %v", consumer, err)
	}
	if s := nettest.State(t, boss, "TASK-1"); s.State != work.Queued || s.Attempts != 0 {
		t.Errorf("%+v", s)
	}
	c := nettest.Claim(t, hand)
	if c.TaskID != "TASK-1" || c.Description != "do TASK-1" || string(c.ContextData) != `{"n":1}` || c.SubmitterHandle != "boss" ||
		c.Attempt != 1 || c.MaxAttempts != 3 || c.Token != 1 || !slices.Equal(c.RequiredCapabilities, []string{"TypeScript"}) {
		t.Errorf("%+v", c)
	}
	nettest.NoClaim(t, stranger)
	if s := nettest.State(t, boss, "TASK-1"); s.State != work.Claimed || s.HolderGUID != hand.GUID() || s.LeaseUntil == "" {
		t.Errorf("%+v", s)
	}
	waiting := make(chan work.ItemStatus)
	go func() {
		s, err := boss.Item(t.Context(), "TASK-1", true)
		if err != nil {
			t.Error(err)
		}
		waiting <- s
	}()
	outcome := work.Outcome{Success: true, Summary: "tests pass", Result: map[string]any{"coverage": 95.0}}
	if err := hand.Complete(t.Context(), "TASK-1", c.Token, outcome); err != nil {
		t.Fatal(err)
	}
	s := <-waiting
	if s.State != work.Completed || s.Success == nil || !*s.Success || s.ResultSummary != "tests pass" || string(s.ResultData) != `{"coverage":95}` {
		t.Errorf("%+v", s)
	}
	if err := hand.Complete(t.Context(), "TASK-1", c.Token, outcome); err != nil {
		t.Errorf("completed again: %v", err)
	}
	if s := nettest.State(t, stranger, "TASK-1"); s.ResultSummary != "" || s.ResultData != nil || s.Description != "" {
		t.Errorf("an unrelated agent gets %+v", s)
	}
	_, err = stranger.Submit(t.Context(), work.Submission{Capability: "typescript", Offer: mail.Offer{TaskID: "TASK-1", Description: "other"}})
	nettest.Wants(t, err, store.ConflictError, "another item")
	wait.Eventually(t, "the queue is empty", func() bool {
		info, err := stream.Info(t.Context())
		return err == nil && info.State.Msgs == 0
	})
}

func TestAnItemDeliveredAtTheDeadlineIsAvailableAtOnce(t *testing.T) {
	t.Parallel()
	network := nettest.Open(t, nettest.StartServer(t).Host("host", "ann", "shop"))
	hand := nettest.Register(t, network, nettest.Worker("go"))
	nettest.Submit(t, hand, "A", "go")
	nettest.Complete(t, hand, nettest.Claim(t, hand))
	nettest.Submit(t, hand, "B", "go")
	over, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	var c *work.Claim
	wait.Eventually(t, "the item", func() bool {
		var err error
		if c, err = hand.Claim(over, nil); err != nil {
			t.Fatal(err)
		}
		return c != nil
	})
	if c.TaskID != "B" || c.Attempt != 1 {
		t.Errorf("claimed %+v", c)
	}
}

// An item has one holder; a former holder is refused.
func TestALateCompletionIsRefused(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss := nettest.Register(t, nettest.Open(t, n.Short("host-a")), nettest.Dispatcher())
	slow, quick := nettest.Register(t, nettest.Open(t, n.Short("host-b")), nettest.Worker("go")), nettest.Register(t, nettest.Open(t, n.Short("host-c")), nettest.Worker("go"))
	nettest.Submit(t, boss, "T", "go")
	old := nettest.Claim(t, slow)
	again := nettest.Claim(t, quick) // after the lease has ended
	if again.TaskID != "T" || again.Attempt != 2 || again.Token <= old.Token {
		t.Fatalf("%+v after %+v", again, old)
	}
	outcome := work.Outcome{Success: true, Summary: "late"}
	nettest.Wants(t, slow.Complete(t.Context(), "T", old.Token, outcome), store.ConflictError, "your lease ended, and worker-1 has claimed it")
	_, err := slow.Extend(t.Context(), "T", old.Token)
	nettest.Wants(t, err, store.ConflictError, "do not hold")
	_, err = slow.Reject(t.Context(), "T", old.Token, "no", false)
	nettest.Wants(t, err, store.ConflictError, "do not hold")
	nettest.Wants(t, slow.Complete(t.Context(), "T", again.Token, outcome), store.ConflictError, "do not hold") // a stolen token
	nettest.Wants(t, quick.Complete(t.Context(), "T", old.Token, outcome), store.ConflictError, "token 2")
	if err := quick.Complete(t.Context(), "T", again.Token, work.Outcome{Success: true, Summary: "mine"}); err != nil {
		t.Fatal(err)
	}
	nettest.Wants(t, slow.Complete(t.Context(), "T", old.Token, outcome), store.ConflictError, "is completed already, by worker-1")
	if s := nettest.State(t, boss, "T"); s.ResultSummary != "mine" {
		t.Errorf("%+v", s)
	}
	nettest.Wants(t, quick.Complete(t.Context(), "nothing", 1, outcome), store.NotFoundError, "no item of work")
	nettest.Wants(t, quick.Complete(t.Context(), "T", 1, work.Outcome{}), store.ValidationError, "summary")
}

// A worker that extends its lease keeps the item.
func TestAnExtendedLeaseKeepsTheItem(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	const lease = 5 * time.Second // long enough for extensions on a slow machine
	long := func(host string) *agentnet.Network {
		cfg := n.Host(host, "ann", "shop")
		cfg.AckTimeout = lease
		return nettest.Open(t, cfg)
	}
	boss := nettest.Register(t, long("host-a"), nettest.Dispatcher())
	hand, other := nettest.Register(t, long("host-b"), nettest.Worker("go")), nettest.Register(t, long("host-c"), nettest.Worker("go"))
	nettest.Submit(t, boss, "T", "go")
	c := nettest.Claim(t, hand)
	for begin := time.Now(); time.Since(begin) < 3*lease/2; {
		if until, err := hand.Extend(t.Context(), "T", c.Token); err != nil || until < c.LeaseUntil {
			t.Fatal(until, err)
		}
		nettest.NoClaim(t, other)
	}
	if err := hand.Complete(t.Context(), "T", c.Token, work.Outcome{Success: false, Summary: "it cannot be done"}); err != nil {
		t.Fatal(err)
	}
	if s := nettest.State(t, boss, "T"); s.State != work.Completed || *s.Success {
		t.Errorf("%+v", s)
	}
}

// A server that is killed forgets its newest deliveries, and delivers their messages again while their holders have them.
func TestAnItemThatTheServerDeliversAgainIsFreeWhenItsHolderRejectsIt(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss, hand := nettest.Pair(t, n)
	for i := range 3 { // the server ignores acknowledgements with numbers that it has not given
		nettest.Submit(t, boss, fmt.Sprintf("EARLIER-%d", i), "go")
		nettest.Complete(t, hand, nettest.Claim(t, hand, "go"))
	}
	nettest.Submit(t, boss, "T", "go")
	c := nettest.Claim(t, hand, "go")
	js := n.Foreign()
	consumer, err := js.Consumer(t.Context(), "GLOBAL_WORKQUEUE_go", "workers")
	if err != nil {
		t.Fatal(err)
	}
	config := consumer.CachedInfo().Config
	if err := js.DeleteConsumer(t.Context(), "GLOBAL_WORKQUEUE_go", "workers"); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateConsumer(t.Context(), "GLOBAL_WORKQUEUE_go", config); err != nil {
		t.Fatal(err)
	}
	other := nettest.Register(t, nettest.Open(t, n.Host("host-c", "ann", "shop")), nettest.Worker("go"))
	nettest.NoClaim(t, other)
	if _, err := hand.Reject(t.Context(), "T", c.Token, "the hub stopped", false); err != nil {
		t.Fatal(err)
	}
	if again := nettest.Claim(t, other); again.TaskID != "T" || again.Attempt != 2 {
		t.Errorf("%+v", again)
	}
}

// A worker that is killed before it has claimed the item of a message leaves it delivered.
func TestWhoStartsTheServerMakesDeliveredItemsAvailable(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss, hand := nettest.Pair(t, n)
	nettest.Submit(t, boss, "HELD", "go")
	held := nettest.Claim(t, hand, "go")
	nettest.Submit(t, boss, "T", "go")
	consumer, err := n.Foreign().Consumer(t.Context(), "GLOBAL_WORKQUEUE_go", "workers")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := consumer.Next(); err != nil {
		t.Fatal(err)
	}
	nettest.NoClaim(t, hand)
	resume(t, n)
	if c := nettest.Claim(t, hand, "go"); c.TaskID != "T" || c.Attempt != 1 {
		t.Errorf("%+v", c)
	}
	nettest.NoClaim(t, hand)
	nettest.Complete(t, hand, held)
}

// After a power cut a queue's consumer may be further than its messages.
func TestWhoStartsTheServerMakesItemsAvailableThatThePositionHasPassed(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss, hand := nettest.Pair(t, n)
	nettest.Submit(t, boss, "1", "go")
	nettest.Complete(t, hand, nettest.Claim(t, hand, "go"))
	if _, err := n.Foreign().ResetConsumerToSequence(t.Context(), "GLOBAL_WORKQUEUE_go", "workers", 1000); err != nil {
		t.Fatal(err)
	}
	nettest.Submit(t, boss, "2", "go")
	nettest.NoClaim(t, hand)
	resume(t, n)
	if c := nettest.Claim(t, hand, "go"); c.TaskID != "2" || c.Attempt != 1 {
		t.Errorf("%+v", c)
	}
}

// resume does what a hub does that has just started a server, until the test ends.
func resume(t *testing.T, n *nettest.Server) {
	t.Helper()
	b, err := nettest.Dialer(n)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var resuming sync.WaitGroup
	resuming.Go(func() { agentnet.ResumeWork(ctx, b, "", slog.New(slog.DiscardHandler)) })
	t.Cleanup(func() {
		stop()
		resuming.Wait()
		if err := b.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// REQ-DLQ-002, REQ-DLQ-003, REQ-DLQ-004, REQ-DLQ-005, REQ-DLQ-006, REQ-DLQ-007,
// REQ-DLQ-008, REQ-DLQ-009, REQ-DLQ-010, REQ-TEST-CROSS-006A
func TestDeadLetters(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	cfg := n.Short("host-a")
	cfg.MaxAttempts = 2
	boss := nettest.Register(t, nettest.Open(t, cfg), nettest.Dispatcher())
	cfg.Hostname = "host-b"
	hand := nettest.Register(t, nettest.Open(t, cfg), nettest.Worker("go"))
	nettest.Submit(t, boss, "times-out", "go")
	first := nettest.Claim(t, hand, "go")
	second := nettest.Claim(t, hand, "go")
	if first.Attempt != 1 || second.Attempt != 2 {
		t.Errorf("%+v, %+v", first, second)
	}
	var list []work.DeadLetter
	wait.Eventually(t, "the dead letter", func() bool {
		nettest.NoClaim(t, hand, "go")
		list = nettest.DeadLetters(t, boss, "")
		return len(list) == 1
	})
	l := list[0]
	if l.TaskID != "times-out" || l.Subject != "global.workqueue.go" || l.Attempts != 2 || l.LastAssignedAgent != hand.GUID() ||
		l.Reason != work.TimedOut || l.LastAttemptAt == "" || !strings.Contains(string(l.Payload), `"taskDescription":"do times-out"`) {
		t.Errorf("%+v", l)
	}
	nettest.Wants(t, hand.Complete(t.Context(), "times-out", second.Token, work.Outcome{Success: true, Summary: "late"}), store.ConflictError, "dead letters")
	stream, err := n.Foreign().Stream(t.Context(), "GLOBAL_WORKQUEUE_DEADLETTER")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := stream.GetLastMsgForSubject(t.Context(), "global.workqueue.deadletter")
	if err != nil {
		t.Fatal(err)
	}
	var record map[string]any
	if err := json.Unmarshal(raw.Data, &record); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"originalTaskId", "originalSubject", "deliveryAttempts", "lastAttemptAt", "lastAssignedAgent", "failureReason", "originalPayload"} {
		if record[name] == nil {
			t.Errorf("%s is missing in %s", name, raw.Data)
		}
	}

	// Rejected for good, and after the last attempt, by agents with enough time.
	cfg.AckTimeout = store.DefaultAckTimeout
	cfg.Hostname = "host-c"
	boss = nettest.Register(t, nettest.Open(t, cfg), nettest.Dispatcher())
	cfg.Hostname = "host-d"
	hand = nettest.Register(t, nettest.Open(t, cfg), nettest.Worker("rust"))
	nettest.Submit(t, boss, "refused", "rust")
	c := nettest.Claim(t, hand, "rust")
	if dead, err := hand.Reject(t.Context(), "refused", c.Token, "needs a licence", true); err != nil || !dead {
		t.Fatal(dead, err)
	}
	nettest.Submit(t, boss, "refused-twice", "rust")
	for attempt := 1; attempt <= 2; attempt++ {
		c := nettest.Claim(t, hand, "rust")
		if c.TaskID != "refused-twice" || c.Attempt != attempt {
			t.Errorf("%+v", c)
		}
		if dead, err := hand.Reject(t.Context(), c.TaskID, c.Token, "not mine", false); err != nil || dead != (attempt == 2) {
			t.Fatal(dead, err)
		}
	}
	names := []string{}
	for _, l := range nettest.DeadLetters(t, boss, "Rust") {
		names = append(names, fmt.Sprintf("%s %s %s %d", l.TaskID, l.Reason, l.Detail, l.Attempts))
	}
	if diff := cmp.Diff([]string{"refused explicit-reject needs a licence 1", "refused-twice explicit-reject not mine 2"}, names); diff != "" {
		t.Error(diff)
	}
	if list, more, err := boss.DeadLetters(t.Context(), 2, ""); err != nil || len(list) != 2 || !more {
		t.Errorf("%+v, %v, %v", list, more, err)
	}

	// Retried with and without the count of attempts so far.
	if _, err := boss.RetryDeadLetter(t.Context(), "refused-twice", false); err != nil {
		t.Fatal(err)
	}
	c = nettest.Claim(t, hand, "rust")
	if c.TaskID != "refused-twice" || c.Attempt != 3 {
		t.Errorf("%+v", c)
	}
	if dead, err := hand.Reject(t.Context(), c.TaskID, c.Token, "still not", false); err != nil || !dead {
		t.Errorf("after one more attempt: %v, %v", dead, err)
	}
	if _, err := boss.RetryDeadLetter(t.Context(), "refused-twice", true); err != nil {
		t.Fatal(err)
	}
	c = nettest.Claim(t, hand, "rust")
	if c.Attempt != 1 {
		t.Errorf("%+v", c)
	}
	if err := hand.Complete(t.Context(), c.TaskID, c.Token, work.Outcome{Success: true, Summary: "at last"}); err != nil {
		t.Fatal(err)
	}
	if l, err := boss.DiscardDeadLetter(t.Context(), "refused"); err != nil || l.TaskID != "refused" {
		t.Errorf("%+v, %v", l, err)
	}
	if list := nettest.DeadLetters(t, boss, "rust"); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	if s := nettest.State(t, boss, "refused"); s.State != work.Discarded {
		t.Errorf("%+v", s)
	}
	for _, id := range []string{"refused", "refused-twice", "nothing"} {
		_, err := boss.RetryDeadLetter(t.Context(), id, true)
		nettest.Wants(t, err, store.NotFoundError, "no dead letter")
		_, err = boss.DiscardDeadLetter(t.Context(), id)
		nettest.Wants(t, err, store.NotFoundError, "no dead letter")
	}
	_, _, err = boss.DeadLetters(t.Context(), 1001, "")
	nettest.Wants(t, err, store.ValidationError, "1 to 1000")
}

// REQ-DLQ-011, REQ-WORKQUEUE-CONFIG-001
func TestDeadLettersExpire(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	cfg := n.Host("host-a", "ann", "shop")
	cfg.DeadLetterTTL = 2 * time.Second
	a := nettest.Register(t, nettest.Open(t, cfg), nettest.Worker("go"))
	nettest.Submit(t, a, "T", "go")
	c := nettest.Claim(t, a)
	refused := time.Now()
	if _, err := a.Reject(t.Context(), "T", c.Token, "no", true); err != nil {
		t.Fatal(err)
	}
	if len(nettest.DeadLetters(t, a, "")) != 1 && time.Since(refused) < cfg.DeadLetterTTL {
		t.Error("the dead letter is missing")
	}
	wait.Eventually(t, "its end", func() bool { return len(nettest.DeadLetters(t, a, "")) == 0 })
	wait.Eventually(t, "the end of its record", func() bool {
		_, err := a.Item(t.Context(), "T", false)
		return nettest.CategoryOf(err) == store.NotFoundError
	})
}

// once returns a computer whose items may be claimed once.
func once(n *nettest.Server, host string) agentnet.Config {
	cfg := n.Host(host, "bob", "shop")
	cfg.MaxAttempts = 1
	return cfg
}

// The collector moves items that no worker claims any more to the dead letters, with the reason.
func TestTheCollectorMovesUnclaimedItemsToDeadLetters(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	clock := new(nettest.Clock)
	cfg := n.Host("host-a", "ann", "shop")
	cfg.MaxAttempts, cfg.Now = 1, clock.Now
	network := nettest.Open(t, cfg)
	boss := nettest.Register(t, network, nettest.Dispatcher())
	worker := nettest.Register(t, nettest.Open(t, once(n, "host-b")), nettest.Worker("go"))
	nettest.Submit(t, boss, "T", "go")
	nettest.Claim(t, worker)
	if _, err := worker.Deregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c, err := network.Collect(t.Context(), true); err != nil || c.Buried != 0 {
		t.Errorf("while the lease runs: %+v, %v", c, err)
	}
	clock.Forward(20 * time.Minute)
	if c, err := network.Collect(t.Context(), true); err != nil || c.Buried != 1 {
		t.Errorf("%+v, %v", c, err)
	}
	if list := nettest.DeadLetters(t, boss, ""); len(list) != 1 || list[0].Reason != work.AgentOffline {
		t.Errorf("%+v", list)
	}
}

// The collector queues an item again if its message is lost.
func TestTheCollectorQueuesLostItemsAgain(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	clock := new(nettest.Clock)
	cfg := n.Host("host-a", "ann", "shop")
	cfg.Now = clock.Now
	network := nettest.Open(t, cfg)
	boss := nettest.Register(t, network, nettest.Worker("go"))
	nettest.Submit(t, boss, "T", "go")
	stream, err := n.Foreign().Stream(t.Context(), "GLOBAL_WORKQUEUE_go")
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	nettest.NoClaim(t, boss)
	clock.Forward(20 * time.Minute)
	if c, err := network.Collect(t.Context(), true); err != nil || c.Repaired != 1 {
		t.Fatalf("%+v, %v", c, err)
	}
	if c := nettest.Claim(t, boss); c.TaskID != "T" || c.Attempt != 1 {
		t.Errorf("%+v", c)
	}
}

// A queue that has lost its messages in a power cut counts them from 1 again: another item's message is no item's own.
func TestTheCollectorKnowsAnItemsMessage(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	clock := new(nettest.Clock)
	cfg := n.Host("host-a", "ann", "shop")
	cfg.Now = clock.Now
	network := nettest.Open(t, cfg)
	boss := nettest.Register(t, network, nettest.Worker("go"))
	nettest.Submit(t, boss, "T", "go")
	js := n.Foreign()
	stream, err := js.Stream(t.Context(), "GLOBAL_WORKQUEUE_go")
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(t.Context(), "GLOBAL_WORKQUEUE_go"); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), stream.CachedInfo().Config); err != nil {
		t.Fatal(err)
	}
	ack, err := js.Publish(t.Context(), "global.workqueue.go", []byte(`{"taskId":"other","taskDescription":"d","requiredCapabilities":["go"]}`))
	if err != nil || ack.Sequence != 1 {
		t.Fatal(ack, err)
	}
	clock.Forward(20 * time.Minute)
	if c, err := network.Collect(t.Context(), true); err != nil || c.Repaired != 1 {
		t.Errorf("%+v, %v", c, err)
	}
}

// Other programs put work and invalid messages into the queue; none of them is lost.
func TestForeignItems(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	hand := nettest.Register(t, nettest.Open(t, n.Host("host-a", "ann", "shop")), nettest.Worker("go"))
	nettest.Submit(t, hand, "ours", "go")
	js := n.Foreign()
	for _, data := range []string{`{"taskId":"foreign","taskDescription":"d","requiredCapabilities":["go"]}`, "nonsense", `{"taskId":""}`, `{"taskId":"x","contextData":[1]}`} {
		if _, err := js.Publish(t.Context(), "global.workqueue.go", []byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"ours", "foreign"} {
		c := nettest.Claim(t, hand)
		if c.TaskID != want {
			t.Errorf("%+v", c)
		}
		if err := hand.Complete(t.Context(), c.TaskID, c.Token, work.Outcome{Success: true, Summary: "ok"}); err != nil {
			t.Fatal(err)
		}
	}
	var list []work.DeadLetter
	wait.Eventually(t, "the burial of the others", func() bool {
		nettest.NoClaim(t, hand)
		list = nettest.DeadLetters(t, hand, "go")
		return len(list) >= 3
	})
	if len(list) != 3 || list[0].TaskID != "unreadable-go-3" || !strings.Contains(string(list[0].Payload), "nonsense") {
		t.Errorf("%+v", list)
	}
}

// A delivery for a cancelled claim does not count as an attempt: an item that no worker held does
// not become a dead letter.
func TestACancelledClaimIsNoAttempt(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss, hand := nettest.Pair(t, n)
	nettest.Submit(t, boss, "T", "typescript")
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 * store.DefaultMaxAttempts {
		if c, err := hand.Claim(gone, nil); c != nil || err != nil {
			t.Fatalf("%+v, %v", c, err)
		}
	}
	if c := nettest.Claim(t, hand); c.TaskID != "T" || c.Attempt != 1 {
		t.Errorf("%+v", c)
	}
}

// An item that is too long for a record and a second item with the same id become dead letters,
// and claims continue.
func TestInvalidForeignItemsAreDeadLetters(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	hand := nettest.Register(t, nettest.Open(t, n.Host("host-a", "ann", "shop")), nettest.Worker("go"))
	nettest.Submit(t, hand, "ours", "go")
	js := n.Foreign()
	foreign := `{"taskId":"foreign","taskDescription":"d", "requiredCapabilities":["go"], "contextData": {"a": "<>"}}`
	for _, data := range []string{
		`{"taskId":"long","taskDescription":"` + strings.Repeat("\x01", 900<<10) + `"}`,
		`{"taskId":"valid but long","taskDescription":"` + strings.Repeat("\\u0001", 160<<10) + `"}`,
		foreign, foreign,
		`{"taskId":"ours","taskDescription":"something else"}`,
	} {
		if _, err := js.Publish(t.Context(), "global.workqueue.go", []byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"ours", "foreign"} {
		c := nettest.Claim(t, hand)
		if c.TaskID != want {
			t.Errorf("%+v", c)
		}
		nettest.Complete(t, hand, c)
	}
	var letters []work.DeadLetter
	wait.Eventually(t, "the burial of the others", func() bool {
		nettest.NoClaim(t, hand)
		letters = nettest.DeadLetters(t, hand, "go")
		return len(letters) >= 3
	})
	var found []string
	for _, l := range letters {
		found = append(found, l.TaskID)
		if len(l.Payload) > 512<<10 || !strings.Contains(string(l.Payload), "taskId") {
			t.Errorf("%s: %d bytes", l.TaskID, len(l.Payload))
		}
	}
	if !slices.Equal(found, []string{"unreadable-go-2", "unreadable-go-3", "unreadable-go-6"}) {
		t.Errorf("%q", found)
	}
}

// The collector reaches every abandoned item, however many items wait and whatever other records
// exist.
func TestTheCollectorPassesOverNoItem(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	clock := new(nettest.Clock)
	cfg := n.Host("host-a", "ann", "shop")
	cfg.MaxAttempts, cfg.Now = 1, clock.Now
	network := nettest.Open(t, cfg)
	boss := nettest.Register(t, network, nettest.Dispatcher())
	hand := nettest.Register(t, nettest.Open(t, once(n, "host-b")), nettest.Worker("go"))
	nettest.Submit(t, boss, "forged", "other")
	js := n.Foreign()
	records, err := js.Stream(t.Context(), "GLOBAL_WORK_ITEMS")
	if err != nil {
		t.Fatal(err)
	}
	record, err := records.GetMsg(t.Context(), records.CachedInfo().State.LastSeq)
	if err == nil {
		record, err = records.GetLastMsgForSubject(t.Context(), record.Subject)
	}
	if err != nil {
		t.Fatal(err)
	}
	forged := strings.Replace(string(record.Data), `"capability":"other"`, `"capability":"no queue"`, 1)
	if _, err := js.Publish(t.Context(), record.Subject, []byte(forged)); err != nil || forged == string(record.Data) {
		t.Fatal(forged, err)
	}
	for i := range work.MaxSwept {
		nettest.Submit(t, boss, fmt.Sprint("waits ", i), "other")
	}
	nettest.Submit(t, boss, "T", "go")
	nettest.Claim(t, hand)
	if _, err := hand.Deregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	clock.Forward(20 * time.Minute)
	wait.Eventually(t, "its burial", func() bool {
		c, err := network.Collect(t.Context(), true)
		if err != nil {
			t.Fatal(err)
		}
		return c.Buried == 1
	})
}

func TestInvalidWorkIsRefused(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	a := nettest.Register(t, nettest.Open(t, n.Host("host-a", "ann", "shop")), registry.Registration{Handle: "a", AgentType: "a", Scope: registry.ScopeUser, Capabilities: []string{"Ünï code"}})
	for name, s := range map[string]work.Submission{
		"no queue":    {Offer: mail.Offer{Description: "d"}},
		"reserved":    nettest.Item("T", "deadletter"),
		"wildcard":    nettest.Item("T", "*"),
		"dots":        nettest.Item("T", "a.b"),
		"long":        nettest.Item("T", strings.Repeat("a", 65)),
		"deadline":    {Capability: "go", Offer: mail.Offer{Description: "d", Deadline: "soon"}},
		"long id":     nettest.Item(strings.Repeat("a", 257), "go"),
		"much data":   {Capability: "go", Offer: mail.Offer{Description: "d", ContextData: map[string]any{"a": strings.Repeat("x", 70000)}}},
		"not encoded": {Capability: "go", Offer: mail.Offer{Description: "d", ContextData: map[string]any{"a": func() {}}}},
	} {
		if _, err := a.Submit(t.Context(), s); nettest.CategoryOf(err) != store.ValidationError {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := a.Claim(t.Context(), nil)
	nettest.Wants(t, err, store.ValidationError, "no queue to claim from")
	_, err = a.Claim(t.Context(), []string{">"})
	nettest.Wants(t, err, store.ValidationError, "cannot name a work queue")
	_, err = a.Item(t.Context(), "nothing", false)
	nettest.Wants(t, err, store.NotFoundError, "no item")
	nettest.NoClaim(t, a, "nobody-has-this")
	if names := n.Foreign().StreamNames(t.Context(), jetstream.WithStreamListSubject("global.workqueue.nobody-has-this")); len(names.Name()) != 0 {
		t.Error("a claim has created a queue")
	}
}

// Every item ends once although workers disappear with their claims, exceed their leases and
// reject items, and the server is restarted.
func TestNoItemIsLostOrDoneTwice(t *testing.T) {
	t.Parallel()
	const items, workers = 120, 6
	n := nettest.StartServer(t)
	cfg := n.Short("host-a")
	cfg.MaxAttempts = 5
	boss := nettest.Register(t, nettest.Open(t, cfg), nettest.Dispatcher())
	for i := range items {
		nettest.Submit(t, boss, fmt.Sprint("T", i), []string{"go", "rust"}[i%2])
	}
	var mu sync.Mutex
	done := map[string]int{} // acknowledged completions
	perform := func(ctx context.Context, name string) {
		for ctx.Err() == nil {
			c := cfg
			c.Hostname = name
			network := agentnet.Open(c)
			func() {
				if network.Ready(ctx) != nil {
					return
				}
				a, err := network.Register(ctx, nettest.Worker("go", "rust"))
				if err != nil {
					return
				}
				for ctx.Err() == nil {
					claim, err := a.Claim(ctx, nil)
					if err != nil {
						return
					}
					if claim == nil {
						continue
					}
					switch rand.IntN(10) {
					case 0:
						return // disappears with the item
					case 1:
						if _, err := a.Reject(ctx, claim.TaskID, claim.Token, "not now", false); err != nil {
							return
						}
						continue
					}
					if err := a.Complete(ctx, claim.TaskID, claim.Token, work.Outcome{Success: true, Summary: name}); err == nil {
						mu.Lock()
						done[claim.TaskID]++
						mu.Unlock()
					}
				}
			}()
			closing, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			_ = network.Close(closing) // the server may be down
			cancel()
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for i := range workers {
		running.Go(func() { perform(ctx, fmt.Sprint("host-", i)) })
	}
	running.Go(func() {
		for range 3 {
			select {
			case <-time.After(700 * time.Millisecond):
			case <-ctx.Done():
				return
			}
			n.Stop()
			n.Start()
		}
	})
	states := map[work.ItemState]int{}
	wait.Eventually(t, "the end of all items", func() bool {
		clear(states)
		for i := range items {
			s, err := boss.Item(t.Context(), fmt.Sprint("T", i), false)
			if err != nil {
				return false
			}
			states[s.State]++
		}
		return states[work.Completed]+states[work.Dead] == items
	})
	stop()
	running.Wait()
	dead := map[string]bool{}
	list, _, err := boss.DeadLetters(t.Context(), 1000, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range list {
		if dead[l.TaskID] {
			t.Errorf("%s is in the dead letters twice", l.TaskID)
		}
		dead[l.TaskID] = true
	}
	for i := range items {
		id := fmt.Sprint("T", i)
		s := nettest.State(t, boss, id)
		switch {
		case done[id] > 1:
			t.Errorf("%s was completed %d times", id, done[id])
		case done[id] == 1 && s.State != work.Completed:
			t.Errorf("%s was completed, but is %s", id, s.State)
		case s.State == work.Dead && !dead[id]:
			t.Errorf("%s is dead but not in the dead letters", id)
		}
	}
	t.Logf("%v", states)
}
