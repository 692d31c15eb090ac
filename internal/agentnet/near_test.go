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
	"github.com/parleyhub/parley/internal/hubtest"
	"github.com/parleyhub/parley/internal/natstest"
)

// linked is a computer with a hub at a cluster.
func linked(n, hub *natsServer, project string) agentnet.Config {
	cfg := n.host("host-a", "ann", project)
	cfg.DialLocal = dialer(hub)
	return cfg
}

// openLinked returns when both the network and the hub's bus can be used.
func openLinked(t *testing.T, cfg agentnet.Config) *agentnet.Network {
	t.Helper()
	network := open(t, cfg)
	await(t, "the hub's bus", func() bool { return network.Status().Near })
	return network
}

// lose waits until networks have noticed that the link is down.
func lose(t *testing.T, networks ...*agentnet.Network) {
	t.Helper()
	for _, n := range networks {
		await(t, "the loss", func() bool { return !n.Status().Connected })
	}
}

func claimTask(t *testing.T, a *agentnet.Agent, task string) *agentnet.Claim {
	t.Helper()
	var c *agentnet.Claim
	await(t, "a claim of "+task, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		var err error
		c, err = a.Claim(ctx, nil)
		if err != nil && category(err) != agentnet.ConnectionError {
			t.Fatal(err)
		}
		return c != nil
	})
	if c.TaskID != task {
		t.Fatalf("claimed %s, want %s", c.TaskID, task)
	}
	return c
}

func anotherItem(task string) agentnet.Submission {
	s := item(task, "go")
	s.Description = "something else"
	return s
}

func complete(t *testing.T, a *agentnet.Agent, c *agentnet.Claim) {
	t.Helper()
	if err := a.Complete(t.Context(), c.TaskID, c.Token, agentnet.Outcome{Success: true, Summary: "done"}); err != nil {
		t.Fatal(err)
	}
}

// While the link is down the agents of a computer find each other, write to each
// other and work for each other. What was begun here ends here, the rest is done in
// the network when the link is back, and each is in one place.
func TestAComputersAgentsGoOnWithoutTheLink(t *testing.T) {
	t.Parallel()
	n, hub := startServer(t), startServer(t)
	shop, blog := openLinked(t, linked(n, hub, "shop")), openLinked(t, linked(n, hub, "blog"))
	boss, hand := register(t, shop, dispatcher()), register(t, blog, worker("go"))
	other := register(t, open(t, n.host("host-b", "bob", "shop")), worker("go"))
	if shop.Notice() != "" {
		t.Errorf("a notice though the link is up: %s", shop.Notice())
	}
	submit(t, boss, "before", "go")
	complete(t, other, claimTask(t, other, "before")) // it went to the network at once
	n.Stop()
	lose(t, shop, blog)
	if !strings.Contains(shop.Notice(), "link to the agents' network is down") {
		t.Errorf("%q", shop.Notice())
	}

	if got := guids(discover(t, boss, agentnet.Filter{})); !slices.Contains(got, hand.GUID()) || slices.Contains(got, other.GUID()) {
		t.Errorf("found %q, of which %s is here and %s is not", got, hand.GUID(), other.GUID())
	}
	waiting := make(chan []agentnet.Mail, 1)
	go func() {
		mail, _, err := hand.Wait(t.Context(), agentnet.Selection{})
		if err != nil {
			t.Error(err)
		}
		waiting <- mail
	}()
	sent := sendText(t, boss, hand, "are you there?")
	if mail := <-waiting; sent.Queued || len(mail) != 1 || mail[0].Text != "are you there?" {
		t.Errorf("%+v: %+v", sent, mail)
	}
	if s, err := boss.MessageStatus(t.Context(), sent.ID); err != nil || s.Status != agentnet.Read {
		t.Errorf("%+v, %v", s, err)
	}

	submit(t, boss, "ends here", "go")
	complete(t, hand, claimTask(t, hand, "ends here"))
	if s := state(t, boss, "ends here"); s.State != agentnet.Completed || s.ResultSummary != "done" {
		t.Errorf("%+v", s)
	}
	submit(t, boss, "begun here", "go")
	begun := claimTask(t, hand, "begun here")
	submit(t, boss, "for others", "go")
	if s := state(t, boss, "for others"); s.State != agentnet.Queued {
		t.Errorf("%+v", s)
	}
	n.Start()
	for _, network := range []*agentnet.Network{shop, blog} {
		await(t, "the link", func() bool { return network.Status().Connected })
	}
	done := claimTask(t, other, "for others")
	complete(t, other, done)
	complete(t, hand, begun)
	for task, holder := range map[string]*agentnet.Agent{"before": other, "ends here": hand, "begun here": hand, "for others": other} {
		if s := state(t, boss, task); s.State != agentnet.Completed || s.HolderGUID != holder.GUID() {
			t.Errorf("%s: %+v", task, s)
		}
	}
	await(t, "each item in one place", func() bool { return onlyOnce(t, shop) == "" })
	if err := boss.Complete(t.Context(), done.TaskID, done.Token, agentnet.Outcome{Success: true, Summary: "me"}); category(err) != agentnet.ConflictError {
		t.Errorf("somebody else's completion: %v", err)
	}
}

// onlyOnce says which item is listed more than once.
func onlyOnce(t *testing.T, n *agentnet.Network) string {
	t.Helper()
	items, err := n.Items(t.Context(), "")
	if err != nil {
		return err.Error()
	}
	seen := map[string]bool{}
	for _, x := range items {
		if seen[x.TaskID] {
			return x.TaskID
		}
		seen[x.TaskID] = true
	}
	return ""
}

// An agent that starts without the link is the same when it is back, and when it
// starts without the link again.
func TestAnAgentThatStartsWithoutTheLinkEntersTheNetworkLater(t *testing.T) {
	t.Parallel()
	n, hub := startServer(t), startServer(t)
	cfg := linked(n, hub, "shop")
	cfg.StateDir = t.TempDir()
	other := register(t, open(t, n.host("host-b", "bob", "shop")), dispatcher())
	n.Stop()
	start := func() (*agentnet.Network, *agentnet.Agent) {
		network := agentnet.Open(cfg)
		await(t, "the hub's bus", func() bool { return network.Status().Near })
		return network, register(t, network, worker("go"))
	}
	network, a := start()
	guid := a.GUID()
	if s := sendText(t, a, other, "hello"); !s.Queued {
		t.Errorf("%+v", s)
	}
	n.Start()
	await(t, "the agent in the network", func() bool {
		e, _, err := other.Info(t.Context(), guid)
		return err == nil && e.GUID == guid
	})
	var got []string
	await(t, "its mail", func() bool { got = append(got, tryTexts(t, other)...); return len(got) > 0 })
	await(t, "an answer", func() bool {
		_, err := other.Send(t.Context(), agentnet.Message{Recipient: guid, Text: "hello yourself"})
		return err == nil
	})
	await(t, "its arrival", func() bool { return slices.Contains(tryTexts(t, a), "hello yourself") })
	shut(t, network)
	n.Stop()
	network, a = start()
	if a.GUID() != guid || !a.Reused() {
		t.Errorf("%s came back as %s", guid, a.GUID())
	}
	n.Start()
	await(t, "the network", func() bool { return network.Status().Connected })
	shut(t, network)
	network = open(t, cfg)
	if again := register(t, network, worker("go")); again.GUID() != guid {
		t.Errorf("%s came back as %s", guid, again.GUID())
	}
}

// What the network does not take is not lost either.
func TestAnItemThatTheNetworkRefusesIsInTheDeadLetters(t *testing.T) {
	t.Parallel()
	n, hub := startServer(t), startServer(t)
	network := openLinked(t, linked(n, hub, "shop"))
	boss := register(t, network, dispatcher())
	other := register(t, open(t, n.host("host-b", "bob", "shop")), dispatcher())
	submit(t, other, "T", "go")
	if _, err := boss.Submit(t.Context(), anotherItem("T")); category(err) != agentnet.ConflictError {
		t.Errorf("two items of one name: %v", err)
	}
	n.Stop()
	lose(t, network)
	if _, err := boss.Submit(t.Context(), anotherItem("T")); err != nil {
		t.Fatal(err) // nobody here can know
	}
	n.Start()
	var letters []agentnet.DeadLetter
	await(t, "the dead letter", func() bool {
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
	await(t, "the other item, untouched", func() bool {
		s, err := other.Item(t.Context(), "T", false)
		if err == nil && s.State != agentnet.Queued {
			t.Errorf("%+v", s)
		}
		return err == nil
	})
}

// Work whose worker died on the hub's bus goes to the network, and keeps count of
// its attempts and claims.
func TestWorkOfADeadWorkerMovesToTheNetwork(t *testing.T) {
	n, hub := startServer(t), startServer(t)
	cfg := linked(n, hub, "shop")
	cfg.AckTimeout = 5 * time.Second // for claims on a slow machine
	network := openLinked(t, cfg)
	boss := register(t, network, dispatcher())
	hand := register(t, network, worker("go"))
	far := n.host("host-b", "bob", "shop")
	far.AckTimeout = 5 * time.Second // for claims on a slow machine
	other := register(t, open(t, far), worker("go"))
	n.Stop()
	lose(t, network)
	submit(t, boss, "T", "go")
	former := claimTask(t, hand, "T") // and it is never heard of again
	n.Start()
	c := claimTask(t, other, "T")
	if c.Token != former.Token+1 || c.Attempt != former.Attempt+1 {
		t.Errorf("claimed as %+v after %+v", c, former)
	}
	if err := hand.Complete(t.Context(), "T", former.Token, agentnet.Outcome{Success: true, Summary: "late"}); category(err) != agentnet.ConflictError {
		t.Errorf("a late completion: %v", err)
	}
	complete(t, other, c)
}

// letters is the mail from one agent to another: numbers that grow, of which some
// were acknowledged.
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
	_, err := l.from.Send(ctx, agentnet.Message{Recipient: l.to.GUID(), Text: strconv.Itoa(i)})
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.acked = append(l.acked, i)
	case category(err) != agentnet.ConnectionError:
		t.Error(i, err)
	}
}

// judge says what is wrong with what was read.
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
		mail, _, err := to.Wait(turn, agentnet.Selection{})
		cancel()
		if err != nil && category(err) != agentnet.ConnectionError && ctx.Err() == nil {
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

// Two computers with hubs at one server. The link of one is cut, the server is killed, and
// so are the hubs, again and again, while mail and work flow. All acknowledged
// mail arrives once and in order, and each item of work is done once, in one place.
func TestHubsAndTheirLinkAreKilledWhileWorkGoesOn(t *testing.T) {
	t.Parallel()
	killing.Lock()
	defer killing.Unlock()
	const mails = 45 // of each pair; a sender of two may send 100 in a minute
	address := fmt.Sprintf("127.0.0.1:%d", natstest.FreePorts(t, 1)[0])
	store := t.TempDir()
	srv := startChild(t, "server", address, store, "", func(event) {})
	t.Cleanup(func() { srv.kill() })
	link := startProxy(t, address)
	computer := func(name, url string) (*agentnet.Network, hubtest.Hub) {
		hub := hubtest.New(t)
		cfg := killConfig(url, name)
		cfg.DialLocal, cfg.StateDir = killDial(hub.Dir), t.TempDir()
		return openLinked(t, cfg), hub
	}
	netA, hubA := computer("host-a", link.url())
	netB, hubB := computer("host-b", "nats://"+address)
	boss := register(t, netA, dispatcher())
	handA, handB := register(t, netA, worker("go")), register(t, netB, worker("go"))

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
			link.setDown(true)
			defer link.setDown(false)
			lose(t, netA)
			task := fmt.Sprint("local-", random.Uint64())
			submitRetried(t, boss, task)
			await(t, "the end of work without the link", func() bool {
				s, err := boss.Item(t.Context(), task, false)
				return err == nil && s.State == agentnet.Completed
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
	faulty := make(chan struct{}) // until it is closed
	mended := sync.OnceFunc(func() { close(faulty) })
	defer func() { // also where the test fails before its end
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
	await(t, "all mail", func() bool {
		return !slices.ContainsFunc(slices.Collect(maps.Values(pairs)), func(l *letters) bool { return !l.allRead() })
	})
	await(t, "each item in one place", func() bool { return onlyOnce(t, netA) == "" && onlyOnce(t, netB) == "" })
	await(t, "an empty queue on the hub's bus", func() bool { return queueLength(t, victim{dial: killDial(hubA.Dir)}, "go") == 0 })
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
	if states[agentnet.Completed]+states[agentnet.Dead] != items {
		t.Errorf("%d items: %v", items, states)
	}
	t.Logf("%d items: %v; faults: %v", items, states, times)
}

// REQ-ABUSE-003: an agent at a cluster that has a hub, too, has one allowance, whichever
// way its mail goes and whether the link is up.
func TestTwoPlacesAreNoTwoAllowances(t *testing.T) {
	n, hub := startServer(t), startServer(t)
	clock := new(skewed)
	now := clock.still()
	cfg := linked(n, hub, "shop")
	cfg.Now = now
	shop, blog := openLinked(t, cfg), openLinked(t, linked(n, hub, "blog"))
	boss, hand := register(t, shop, dispatcher()), register(t, blog, worker("go"))
	other := register(t, open(t, n.host("host-b", "bob", "shop")), worker("go"))
	for range 50 {
		sendText(t, boss, hand, "here")
		sendText(t, boss, other, "there")
	}
	refused := func(a *agentnet.Agent, why string) {
		t.Helper()
		for _, to := range []*agentnet.Agent{hand, other} {
			_, err := a.Send(t.Context(), agentnet.Message{Recipient: to.GUID(), Text: "too many"})
			wants(t, err, agentnet.RateLimitError, "100 in 1m0s")
			if t.Failed() {
				t.Fatal(why)
			}
		}
	}
	refused(boss, "both ways together")
	clock.forward(11 * time.Second) // for the limit of registrations
	refused(register(t, shop, dispatcher()), "a twin")
	away := n.host("host-a", "ann", "shop")
	away.Now = now
	refused(register(t, open(t, away), dispatcher()), "a process without the hub")

	clock.forward(2 * time.Minute)
	n.Stop()
	lose(t, shop)
	for range 50 {
		sendText(t, boss, hand, "here")
		sendText(t, boss, other, "later")
	}
	refused(boss, "while the link is down")
	n.Start()
	await(t, "the link", func() bool { return shop.Status().Connected })
	refused(boss, "once the link is back")
}
