package work_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

// records reads the stored records of items as a program without Parley does, so that no read acts on a lease.
type records struct {
	t      *testing.T
	stream jetstream.Stream
}

func recordsOf(t *testing.T, n *nettest.Server) records {
	t.Helper()
	stream, err := n.Foreign().Stream(t.Context(), "GLOBAL_WORK_ITEMS")
	if err != nil {
		t.Fatal(err)
	}
	return records{t, stream}
}

// of returns the stored record of a task; tests that use it have few items.
func (r records) of(taskID string) (fields map[string]any, subject string) {
	r.t.Helper()
	info, err := r.stream.Info(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	for seq := info.State.FirstSeq; seq <= info.State.LastSeq; seq++ {
		m, err := r.stream.GetMsg(r.t.Context(), seq)
		if err != nil {
			continue // replaced by a newer record
		}
		var x map[string]any
		if json.Unmarshal(m.Data, &x) == nil && x["taskId"] == taskID {
			fields, subject = x, m.Subject
		}
	}
	return fields, subject
}

func (r records) state(taskID string) work.ItemState {
	fields, _ := r.of(taskID)
	state, _ := fields["state"].(string)
	return work.ItemState(state)
}

// becomes waits until the stored record of a task has a state, and logs how long after the end of the lease that was.
func (r records) becomes(taskID string, want work.ItemState, lease string) {
	r.t.Helper()
	wait.Eventually(r.t, taskID+" is "+string(want), func() bool { return r.state(taskID) == want })
	r.t.Logf("%s is %s %v after the end of its lease", taskID, want, time.Since(store.ParseTime(lease)).Round(time.Millisecond))
}

// short returns a computer whose items may be claimed twice, for a second each. Its collector does not run in a test.
func short(n *nettest.Server, host string) agentnet.Config {
	cfg := n.Short(host)
	cfg.MaxAttempts, cfg.CollectInterval = 2, time.Hour
	return cfg
}

// REQ-DLQ-001, REQ-DLQ-003: a lease that ends is acted on by any process of the network, also when nobody claims work.
func TestEndedLeasesAreActedOnThoughNobodyClaims(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	nettest.Open(t, short(n, "host-idle")) // has no agent
	gone := nettest.Open(t, short(n, "host-a"))
	holder := nettest.Register(t, gone, nettest.Worker("go"))
	nettest.Submit(t, holder, "T", "go")
	stored := recordsOf(t, n)
	first := nettest.Claim(t, holder)
	stored.becomes("T", work.Queued, first.LeaseUntil)
	second := nettest.Claim(t, holder)
	if second.Attempt != 2 || second.Token <= first.Token {
		t.Errorf("claimed again: %+v after %+v", second, first)
	}
	nettest.Shut(t, gone) // the only agent leaves with the item
	stored.becomes("T", work.Dead, second.LeaseUntil)
	letters, err := n.Foreign().Stream(t.Context(), "GLOBAL_WORKQUEUE_DEADLETTER")
	if err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "the dead letter", func() bool {
		info, err := letters.Info(t.Context())
		return err == nil && info.State.Msgs == 1
	})
	queue, err := n.Foreign().Stream(t.Context(), "GLOBAL_WORKQUEUE_go")
	if err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "an empty queue", func() bool {
		info, err := queue.Info(t.Context())
		return err == nil && info.State.Msgs == 0
	})
}

// Of many processes that watch, one acts on each lease: no record is written twice, and no dead letter is.
func TestOneProcessActsOnALease(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	const items, others = 40, 6
	cfg := n.Host("host-a", "ann", "shop")
	cfg.AckTimeout, cfg.MaxAttempts = 2*time.Second, 1
	holder := nettest.Register(t, nettest.Open(t, cfg), nettest.Worker("go"))
	for i := range others {
		cfg.Hostname = fmt.Sprint("other-", i)
		nettest.Open(t, cfg)
	}
	for i := range items {
		nettest.Submit(t, holder, fmt.Sprint("T", i), "go")
	}
	for range items {
		nettest.Claim(t, holder)
	}
	letters, err := n.Foreign().Stream(t.Context(), "GLOBAL_WORKQUEUE_DEADLETTER")
	if err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "all dead letters", func() bool {
		info, err := letters.Info(t.Context())
		return err == nil && info.State.Msgs >= items
	})
	stored := recordsOf(t, n)
	for i := range items {
		wait.Eventually(t, "the number of the letter in the record", func() bool {
			fields, _ := stored.of(fmt.Sprint("T", i))
			return fields["deadSequence"] != nil
		})
	}
	info, err := stored.stream.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Submitted, claimed, dead, and dead with the number of the letter.
	if info.State.LastSeq != 4*items {
		t.Errorf("%d records were written for %d items, want 4 for each", info.State.LastSeq, items)
	}
	if info, err := letters.Info(t.Context()); err != nil || info.State.LastSeq != items {
		t.Errorf("%d dead letters for %d items, %v", info.State.LastSeq, items, err)
	}
}

// A lease begins anew when the computer's clock is set back: its holder keeps all of it, and nobody waits for its end by the former clock.
func TestALeaseBeginsAnewWhenTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	var set atomic.Int64
	boss, worker, _ := onHub(t, &set, store.Config{AckTimeout: time.Second})
	nettest.Submit(t, boss, "T", "go")
	nettest.Claim(t, worker)
	const back = 2 * time.Hour
	set.Store(int64(-back))
	wait.Eventually(t, "the end of the lease", func() bool { return nettest.State(t, boss, "T").State == work.Queued })
	again := nettest.Claim(t, worker)
	if off := time.Until(store.ParseTime(again.LeaseUntil)) + back; off.Abs() > time.Hour {
		t.Errorf("the lease of the next claim ends %v from when it should", off)
	}
}

// A message that a worker was killed with comes again also if the computer's clock was set: its time in the server is one of the former clock.
func TestItemsComeAgainWhenTheClockWasSet(t *testing.T) {
	t.Parallel()
	var set atomic.Int64
	boss, worker, hub := onHub(t, &set, store.Config{CollectInterval: 100 * time.Millisecond})
	nettest.Submit(t, boss, "T", "go")
	b, err := bus.Join(t.Context(), bus.Config{}, network(hub))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	c, err := b.JetStream().Consumer(t.Context(), store.QueueStreamPrefix+"go", store.QueueGroup)
	if err != nil {
		t.Fatal(err)
	}
	lost, err := c.Fetch(1)
	if err != nil {
		t.Fatal(err)
	}
	for range lost.Messages() { // nobody claims it
	}
	nettest.NoClaim(t, worker)
	set.Store(int64(time.Hour))
	if c := nettest.Claim(t, worker); c.TaskID != "T" {
		t.Errorf("%+v", c)
	}
}

// network asks a hub for access to the agents' network on its bus.
func network(hub *bus.Bus) bus.Ask {
	return func(ctx context.Context) (bus.Grant, error) {
		return hub.Grant(ctx, bus.GrantRequest{Access: bus.AccessNetwork})
	}
}

// onHub registers a dispatcher and a worker at a hub on this computer, whose clock was set by set.
func onHub(t *testing.T, set *atomic.Int64, cfg store.Config) (boss, worker *agentnet.Agent, hub *bus.Bus) {
	t.Helper()
	hub, err := bus.Open(t.Context(), bus.Config{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := hub.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	cfg.Hostname, cfg.Username, cfg.Logger = "host-a", "ann", slog.New(slog.DiscardHandler)
	cfg.ClockSet = func() time.Duration { return time.Duration(set.Load()) }
	cfg.Dial = func(ctx context.Context) (*bus.Bus, error) { return bus.Join(ctx, bus.Config{}, network(hub)) }
	n := nettest.Open(t, agentnet.Config{BusConfig: cfg})
	return nettest.Register(t, n, nettest.Dispatcher()), nettest.Register(t, n, nettest.Worker("go")), hub
}

// No reader is shown a lease that has ended by the server's time: the first one acts on it.
func TestNoEndedLeaseIsShown(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	holder := nettest.Register(t, nettest.Open(t, n.Host("host-a", "ann", "shop")), nettest.Worker("go"))
	clock := new(nettest.Clock)
	cfg := n.Host("host-b", "bob", "shop")
	cfg.Now = clock.Now
	network := nettest.Open(t, cfg) // its timers do not notice how the clock is moved
	boss := nettest.Register(t, network, nettest.Dispatcher())
	nettest.Submit(t, boss, "read", "go")
	nettest.Submit(t, boss, "listed", "go")
	const later = store.DefaultAckTimeout + time.Minute
	shown := func() (read, listed work.ItemStatus) {
		nettest.Claim(t, holder)
		nettest.Claim(t, holder)
		clock.Forward(later)
		defer clock.Forward(-later) // or the network's timers would act on the next leases at once
		read = nettest.State(t, boss, "read")
		items, err := network.Items(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range items {
			if x.TaskID == "listed" {
				listed = x
			}
		}
		return read, listed
	}
	for attempt := 1; attempt < store.DefaultMaxAttempts; attempt++ {
		read, listed := shown()
		for _, x := range []work.ItemStatus{read, listed} {
			if x.State != work.Queued || x.LeaseUntil != "" || x.FailureReason == "" || x.Attempts != attempt {
				t.Errorf("after attempt %d: %+v", attempt, x)
			}
		}
	}
	read, listed := shown()
	for _, x := range []work.ItemStatus{read, listed} {
		if x.State != work.Dead || x.LeaseUntil != "" {
			t.Errorf("after the last attempt: %+v", x)
		}
	}
	if list := nettest.DeadLetters(t, boss, ""); len(list) != 2 {
		t.Errorf("the dead letters are %+v", list)
	}
}

// A worker that finishes late has its result accepted if nobody has begun the item since.
func TestALateResultCountsIfNobodyHasClaimedTheItemSince(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss := nettest.Register(t, nettest.Open(t, n.Short("host-a")), nettest.Dispatcher())
	slow := nettest.Register(t, nettest.Open(t, n.Short("host-b")), nettest.Worker("go"))
	nettest.Submit(t, boss, "T", "go")
	nettest.Submit(t, boss, "U", "go")
	c, d := nettest.Claim(t, slow), nettest.Claim(t, slow)
	stored := recordsOf(t, n)
	stored.becomes("T", work.Queued, c.LeaseUntil)
	nettest.Wants(t, boss.Complete(t.Context(), "T", c.Token, work.Outcome{Success: true, Summary: "stolen"}), store.ConflictError, "waits in its queue")
	if err := slow.Complete(t.Context(), "T", c.Token, work.Outcome{Success: true, Summary: "late"}); err != nil {
		t.Fatal(err)
	}
	if s := nettest.State(t, boss, "T"); s.State != work.Completed || s.ResultSummary != "late" {
		t.Errorf("%+v", s)
	}
	stored.becomes("U", work.Queued, d.LeaseUntil)
	until, err := slow.Extend(t.Context(), "U", d.Token)
	if err != nil || until <= d.LeaseUntil {
		t.Errorf("extended until %s, %v", until, err)
	}
	if _, err := slow.Reject(t.Context(), "U", d.Token, "no", false); err != nil {
		t.Fatal(err)
	}
	nettest.Wants(t, slow.Complete(t.Context(), "U", d.Token, work.Outcome{Success: true, Summary: "after all"}), store.ConflictError, "waits in its queue")
}

// A process that has lost its connection acts on what has ended meanwhile when it is back; so does one that starts.
func TestLeasesThatEndInAnOutageAreActedOnAfterIt(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	proxy := nettest.StartProxy(t, n.Addr())
	cfg := short(n, "host-a")
	cfg.Dial = nettest.DialerTo(proxy.URL())
	network := nettest.Open(t, cfg)
	holder := nettest.Register(t, network, nettest.Worker("go"))
	nettest.Submit(t, holder, "T", "go")
	c := nettest.Claim(t, holder)
	proxy.SetDown(true)
	nettest.AwaitLoss(t, network)
	stored := recordsOf(t, n)
	wait.Eventually(t, "the end of the lease", func() bool { return time.Now().After(store.ParseTime(c.LeaseUntil).Add(time.Second)) })
	if state := stored.state("T"); state != work.Claimed {
		t.Fatalf("nobody is there, but the item is %s", state)
	}
	proxy.SetDown(false)
	stored.becomes("T", work.Queued, c.LeaseUntil)
	d := nettest.Claim(t, holder)
	nettest.Shut(t, network)
	wait.Eventually(t, "the end of the lease", func() bool { return time.Now().After(store.ParseTime(d.LeaseUntil).Add(time.Second)) })
	nettest.Open(t, short(n, "host-b"))
	stored.becomes("T", work.Dead, d.LeaseUntil)
}

// The dead letter of a process that died before it stored one is stored by another.
func TestADeadLetterThatWasNotStoredIsStored(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss := nettest.Register(t, nettest.Open(t, n.Host("host-a", "ann", "shop")), nettest.Worker("go"))
	nettest.Submit(t, boss, "T", "go")
	nettest.Claim(t, boss)
	stored := recordsOf(t, n)
	fields, subject := stored.of("T")
	fields["state"], fields["failureReason"], fields["finishedAt"] = "dead", "timeout", store.Timestamp(time.Now())
	data, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Foreign().Publish(t.Context(), subject, data); err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "the dead letter", func() bool { return len(nettest.DeadLetters(t, boss, "")) == 1 })
}

// Forged records and announcements of records that the server refused neither end a lease nor keep one.
func TestAnnouncementsThatAreNotStoredDecideNothing(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	var logs nettest.Logs
	cfg := short(n, "host-a")
	cfg.AckTimeout, cfg.Logger = 3*time.Second, slog.New(slog.NewTextHandler(&logs, nil))
	holder := nettest.Register(t, nettest.Open(t, cfg), nettest.Worker("go"))
	nettest.Submit(t, holder, "T", "go")
	c := nettest.Claim(t, holder)
	stored := recordsOf(t, n)
	fields, subject := stored.of("T")
	refused := func(state work.ItemState, token int, until time.Time) {
		fields["state"], fields["token"], fields["leaseUntil"] = state, token, store.Timestamp(until)
		data, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		_, err = n.Foreign().Publish(t.Context(), subject, data, jetstream.WithExpectLastSequencePerSubject(1<<40))
		if err == nil {
			t.Fatal("the record was stored")
		}
	}
	refused(work.Claimed, c.Token+1, time.Now().Add(-time.Hour)) // ended long ago: the record is read, and has not
	refused(work.Queued, c.Token, time.Now().Add(-time.Hour))    // of an older lease
	if s := nettest.State(t, holder, "T").State; s != work.Claimed {
		t.Errorf("the item is %s", s)
	}
	stored.becomes("T", work.Queued, c.LeaseUntil)
	if strings.Contains(logs.String(), "could not be acted on") {
		t.Errorf("the log says\n%s", logs.String())
	}
}
