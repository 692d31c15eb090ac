package agentnet_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/testbed"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

// While the link is down, the agents of a computer discover each other, exchange mail and claim
// each other's work. Items claimed here are completed here, the others move to the network once
// the link is back, and each item is on one bus only.
func TestAgentsOfAComputerWorkWithoutTheLink(t *testing.T) {
	t.Parallel()
	n, hub := nettest.StartServer(t), nettest.StartServer(t)
	shop, blog := nettest.OpenLinked(t, nettest.Linked(n, hub, "shop")), nettest.OpenLinked(t, nettest.Linked(n, hub, "blog"))
	boss, hand := nettest.Register(t, shop, nettest.Dispatcher()), nettest.Register(t, blog, nettest.Worker("go"))
	other := nettest.Register(t, nettest.Open(t, n.Host("host-b", "bob", "shop")), nettest.Worker("go"))
	if shop.Notice() != "" {
		t.Errorf("a notice though the link is up: %s", shop.Notice())
	}
	nettest.Submit(t, boss, "before", "go")
	nettest.Complete(t, other, nettest.ClaimTask(t, other, "before")) // the item was submitted to the network directly
	n.Stop()
	nettest.AwaitLoss(t, shop, blog)
	if !strings.Contains(shop.Notice(), "link to the agents' network is down") {
		t.Errorf("%q", shop.Notice())
	}

	if got := nettest.GUIDs(nettest.Discover(t, boss, registry.Filter{})); !slices.Contains(got, hand.GUID()) || slices.Contains(got, other.GUID()) {
		t.Errorf("found %q, want %s of this computer and not %s", got, hand.GUID(), other.GUID())
	}
	waiting := make(chan []mail.Mail, 1)
	go func() {
		mail, _, err := hand.Wait(t.Context(), mail.Selection{})
		if err != nil {
			t.Error(err)
		}
		waiting <- mail
	}()
	sent := nettest.SendText(t, boss, hand, "are you there?")
	if mail := <-waiting; sent.Queued || len(mail) != 1 || mail[0].Text != "are you there?" {
		t.Errorf("%+v: %+v", sent, mail)
	}
	if s, err := boss.MessageStatus(t.Context(), sent.ID); err != nil || s.Status != mail.Read {
		t.Errorf("%+v, %v", s, err)
	}

	nettest.Submit(t, boss, "ends here", "go")
	nettest.Complete(t, hand, nettest.ClaimTask(t, hand, "ends here"))
	if s := nettest.State(t, boss, "ends here"); s.State != work.Completed || s.ResultSummary != "done" {
		t.Errorf("%+v", s)
	}
	nettest.Submit(t, boss, "begun here", "go")
	begun := nettest.ClaimTask(t, hand, "begun here")
	nettest.Submit(t, boss, "for others", "go")
	if s := nettest.State(t, boss, "for others"); s.State != work.Queued {
		t.Errorf("%+v", s)
	}
	n.Start()
	for _, network := range []*agentnet.Network{shop, blog} {
		wait.Eventually(t, "the link", func() bool { return network.Status().Connected })
	}
	done := nettest.ClaimTask(t, other, "for others")
	nettest.Complete(t, other, done)
	nettest.Complete(t, hand, begun)
	for task, holder := range map[string]*agentnet.Agent{"before": other, "ends here": hand, "begun here": hand, "for others": other} {
		if s := nettest.State(t, boss, task); s.State != work.Completed || s.HolderGUID != holder.GUID() {
			t.Errorf("%s: %+v", task, s)
		}
	}
	wait.Eventually(t, "each item in one place", func() bool { return nettest.OnlyOnce(t, shop) == "" })
	if err := boss.Complete(t.Context(), done.TaskID, done.Token, work.Outcome{Success: true, Summary: "me"}); nettest.CategoryOf(err) != store.ConflictError {
		t.Errorf("a completion by another agent: %v", err)
	}
}

// letters is the mail from one agent to another: increasing numbers, of which some sends were
// acknowledged.
type letters struct {
	from, to *agentnet.Agent
	mu       sync.Mutex
	acked    []int
	read     []int
}

func (l *letters) send(t *testing.T, count int) {
	for i := range count {
		l.sendOne(t, i)
		<-time.After(time.Duration(rand.IntN(300)) * time.Millisecond)
	}
}

func (l *letters) sendOne(t *testing.T, i int) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err := l.from.Send(ctx, mail.Message{Recipient: l.to.GUID(), Text: strconv.Itoa(i)})
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.acked = append(l.acked, i)
	case nettest.CategoryOf(err) != store.ConnectionError:
		t.Error(i, err)
	}
}

// judge returns what is wrong with the mail that was read.
func (l *letters) judge(name string) (wrong []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	times, acked, last := map[int]int{}, map[int]bool{}, -1
	for _, i := range l.acked {
		acked[i] = true
	}
	for _, i := range l.read {
		if times[i]++; times[i] > 1 {
			wrong = append(wrong, fmt.Sprintf("%s: %d came twice", name, i))
		}
		if acked[i] && i < last {
			wrong = append(wrong, fmt.Sprintf("%s: %d came after %d", name, i, last))
		}
		if acked[i] {
			last = i
		}
	}
	for _, i := range l.acked {
		if times[i] == 0 {
			wrong = append(wrong, fmt.Sprintf("%s: %d was acknowledged and never came", name, i))
		}
	}
	return wrong
}

func (l *letters) allRead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, i := range l.acked {
		if !slices.Contains(l.read, i) {
			return false
		}
	}
	return true
}

// readLetters reads an agent's mail until ctx ends.
func readLetters(ctx context.Context, t *testing.T, to *agentnet.Agent, by map[string]*letters) {
	for ctx.Err() == nil {
		turn, cancel := context.WithTimeout(ctx, time.Second)
		mail, _, err := to.Wait(turn, mail.Selection{})
		cancel()
		if err != nil && nettest.CategoryOf(err) != store.ConnectionError && ctx.Err() == nil {
			t.Error(err)
		}
		for _, m := range mail {
			i, err := strconv.Atoi(m.Text)
			l := by[m.SenderGUID]
			if err != nil || l == nil {
				t.Errorf("unexpected mail: %+v", m)
				continue
			}
			l.mu.Lock()
			l.read = append(l.read, i)
			l.mu.Unlock()
		}
	}
}

// Two computers with hubs use one server. The link of one is cut and the server and the hubs are
// killed repeatedly while mail and work continue. Every acknowledged message must arrive once and
// in order, and each item must be completed once, on one bus.
func TestHubsAndTheirLinkAreKilledWhileWorkGoesOn(t *testing.T) {
	t.Parallel()
	killing.Lock()
	defer killing.Unlock()
	const mails = 45 // for each pair: an agent that sends to two others may send 100 messages per minute
	address := fmt.Sprintf("127.0.0.1:%d", testbed.FreePorts(t, 1)[0])
	store := t.TempDir()
	srv := startChild(t, "server", address, store, "", func(event) {})
	t.Cleanup(func() { srv.kill() })
	link := nettest.StartProxy(t, address)
	computer := func(name, url string) (*agentnet.Network, nettest.HubProcess) {
		hub := nettest.NewProcess(t)
		cfg := killConfig(url, name)
		cfg.DialLocal, cfg.StateDir = killDial(hub.Dir), t.TempDir()
		return nettest.OpenLinked(t, cfg), hub
	}
	netA, hubA := computer("host-a", link.URL())
	netB, hubB := computer("host-b", "nats://"+address)
	boss := nettest.Register(t, netA, nettest.Dispatcher())
	handA, handB := nettest.Register(t, netA, nettest.Worker("go")), nettest.Register(t, netB, nettest.Worker("go"))

	seed := *killSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	items := 0
	t.Logf("-kill-items=%d -kill-seed=%d", *killItems, seed)
	random := rand.New(rand.NewPCG(seed, 1))
	faults := map[string]func(){
		"server killed": func() { srv.kill(); srv = startChild(t, "server", address, store, "", func(event) {}) },
		"link down": func() {
			link.SetDown(true)
			defer link.SetDown(false)
			nettest.AwaitLoss(t, netA)
			task := fmt.Sprint("local-", random.Uint64(), "-") // never hopeless
			submitRetried(t, boss, task)
			wait.Eventually(t, "the end of work without the link", func() bool {
				s, err := boss.Item(t.Context(), task, false)
				return err == nil && s.State == work.Completed
			})
		},
		"hub of a killed": func() { hubA.Kill() },
		"hub of b killed": func() { hubB.Kill() },
	}
	pairs := map[string]*letters{
		"in a": {from: boss, to: handA}, "a to b": {from: boss, to: handB}, "b to a": {from: handB, to: handA},
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var reading, sending sync.WaitGroup
	reading.Go(func() {
		readLetters(ctx, t, handA, map[string]*letters{boss.GUID(): pairs["in a"], handB.GUID(): pairs["b to a"]})
	})
	reading.Go(func() { readLetters(ctx, t, handB, map[string]*letters{boss.GUID(): pairs["a to b"]}) })
	for _, l := range pairs {
		sending.Go(func() { l.send(t, mails) })
	}
	var mu sync.Mutex
	var all history
	for name, a := range map[string]*agentnet.Agent{"host-a": handA, "host-b": handB} {
		for range killLoops {
			w := &hand{name: name, agent: a, tell: func(e event) {
				mu.Lock()
				defer mu.Unlock()
				all = append(all, e)
			}}
			reading.Go(func() { w.work(ctx) })
		}
	}
	faulty := make(chan struct{}) // closed when the faults are over
	mended := sync.OnceFunc(func() { close(faulty) })
	defer func() { // also if the test fails earlier
		mended()
		stop()
		sending.Wait()
		reading.Wait()
	}()
	sending.Go(func() {
		for items = 0; ; items++ {
			select {
			case <-faulty:
				return
			case <-time.After(time.Duration(rand.IntN(100)) * time.Millisecond):
				submitRetried(t, boss, fmt.Sprint("T", items))
			}
		}
	})
	names := slices.Sorted(maps.Keys(faults))
	times := map[string]int{}
	for round := range max(len(names), *killItems/50) {
		name := names[random.IntN(len(names))]
		if round < len(names) {
			name = names[round]
		}
		faults[name]()
		times[name]++
		<-time.After(time.Duration(random.IntN(800)) * time.Millisecond)
	}
	mended()
	sending.Wait()
	states := itemStates(t, boss, items)
	wait.Eventually(t, "all mail", func() bool {
		return !slices.ContainsFunc(slices.Collect(maps.Values(pairs)), func(l *letters) bool { return !l.allRead() })
	})
	wait.Eventually(t, "each item in one place", func() bool { return nettest.OnlyOnce(t, netA) == "" && nettest.OnlyOnce(t, netB) == "" })
	wait.Eventually(t, "an empty queue on the hub's bus", func() bool { return queueLength(t, victim{dial: killDial(hubA.Dir)}, "go") == 0 })
	stop()
	reading.Wait()
	for name, l := range pairs {
		for _, w := range l.judge(name) {
			t.Error(w)
		}
	}
	for _, w := range all.judge(killSlack) {
		t.Error(w)
	}
	if states[work.Completed]+states[work.Dead] != items {
		t.Errorf("%d items: %v", items, states)
	}
	t.Logf("%d items: %v; faults: %v", items, states, times)
}

// REQ-ABUSE-003: an agent of a cluster and of a hub has one rate limit for mail, whichever bus the
// mail uses and whether the link is up.
func TestTwoBusesShareOneRateLimit(t *testing.T) {
	n, hub := nettest.StartServer(t), nettest.StartServer(t)
	clock := new(nettest.Clock)
	now := clock.Still()
	cfg := nettest.Linked(n, hub, "shop")
	cfg.Now = now
	shop, blog := nettest.OpenLinked(t, cfg), nettest.OpenLinked(t, nettest.Linked(n, hub, "blog"))
	boss, hand := nettest.Register(t, shop, nettest.Dispatcher()), nettest.Register(t, blog, nettest.Worker("go"))
	other := nettest.Register(t, nettest.Open(t, n.Host("host-b", "bob", "shop")), nettest.Worker("go"))
	for range 50 {
		nettest.SendText(t, boss, hand, "here")
		nettest.SendText(t, boss, other, "there")
	}
	refused := func(a *agentnet.Agent, why string) {
		t.Helper()
		for _, to := range []*agentnet.Agent{hand, other} {
			_, err := a.Send(t.Context(), mail.Message{Recipient: to.GUID(), Text: "too many"})
			nettest.Wants(t, err, store.RateLimitError, "100 in 1m0s")
			if t.Failed() {
				t.Fatal(why)
			}
		}
	}
	refused(boss, "both ways together")
	clock.Forward(2 * time.Minute)
	n.Stop()
	nettest.AwaitLoss(t, shop)
	for range 50 {
		nettest.SendText(t, boss, hand, "here")
		nettest.SendText(t, boss, other, "later")
	}
	refused(boss, "while the link is down")
	n.Start()
	wait.Eventually(t, "the link", func() bool { return shop.Status().Connected })
	refused(boss, "once the link is back")
}
