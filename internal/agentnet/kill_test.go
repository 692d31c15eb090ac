package agentnet_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/testbed"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

func TestMain(m *testing.M) {
	nettest.HubMain()
	if role := os.Getenv(childRole); role != "" {
		os.Exit(beChild(role))
	}
	goleak.VerifyTestMain(m, testbed.Leaks()...)
}

var (
	killItems = flag.Int("kill-items", 200, "items of work in each test that kills processes; `make soak` has 10000")
	killSeed  = flag.Uint64("kill-seed", 0, "seed of the faults; 0 takes a new one")
)

const (
	killWorkers = 4
	killLoops   = 3 // items that a worker holds at the same time, at most
	killLease   = 2 * time.Second
	killTries   = 4
	// killSlack is how much shorter than granted a lease may appear, because of leaseTolerance and
	// because a suspended server reports its time late.
	killSlack = killLease/10 + 500*time.Millisecond
)

// childRole is the environment variable that makes the test binary a worker or server process.
const childRole = "PARLEY_MESH_TEST_CHILD"

func beChild(role string) int {
	switch role {
	case "worker":
		return beWorker(os.Getenv(childRole+"_AT"), os.Getenv(childRole+"_STATE"), os.Getenv(childRole+"_NAME"))
	case "idle":
		agentnet.Open(killConfig(os.Getenv(childRole+"_AT"), os.Getenv(childRole+"_NAME")))
		select {} // until it is killed
	case "holder":
		return beHolder(os.Getenv(childRole+"_AT"), os.Getenv(childRole+"_STATE"), os.Getenv(childRole+"_NAME"))
	case "rester":
		return beRester(os.Getenv(childRole + "_AT"))
	case "server":
		return beServer(os.Getenv(childRole+"_AT"), os.Getenv(childRole+"_STATE"))
	}
	return 2
}

// beServer runs a stock server on an address until it is killed.
func beServer(address, dir string) int {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return 2
	}
	opts, err := serverOptions(host, dir)
	if err != nil {
		return 2
	}
	if _, err := fmt.Sscan(port, &opts.Port); err != nil {
		return 2
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	srv.Start()
	srv.WaitForShutdown()
	return 1 // the server stopped by itself
}

// killDial connects to a server by its URL, or to a hub by its directory. It starts the hub if it
// is not running.
func killDial(at string) func(context.Context) (*bus.Bus, error) {
	log := slog.New(slog.DiscardHandler)
	if !filepath.IsAbs(at) {
		return func(ctx context.Context) (*bus.Bus, error) {
			return bus.Open(ctx, bus.Config{URL: bus.Secret(at), Logger: log})
		}
	}
	return nettest.HubProcess{Dir: at}.Dial(bus.AccessNetwork, "")
}

func killConfig(at, host string) agentnet.Config {
	return agentnet.Config{BusConfig: store.Config{
		Hostname: host, Username: "ann", ProjectPath: "/home/ann/shop", ProjectID: "0123456789abcdef",
		AckTimeout: killLease, MaxAttempts: killTries, CollectInterval: 5 * time.Second,
		Dial: killDial(at), Logger: slog.New(slog.DiscardHandler),
	}}
}

// beWorker claims and handles items and reports each step on standard output, until it is killed.
func beWorker(at, stateDir, name string) int {
	ctx := context.Background()
	cfg := killConfig(at, name)
	cfg.StateDir = stateDir
	n := agentnet.Open(cfg)
	for {
		if err := n.Ready(ctx); err != nil {
			return 1
		}
		r := nettest.Worker("go")
		r.HeartbeatInterval = beatEvery
		a, err := n.Register(ctx, r)
		if err == nil {
			var loops sync.WaitGroup
			w := &hand{name: name, agent: a}
			w.say(event{})
			for range killLoops {
				loops.Go(func() { w.work(ctx) })
			}
			loops.Wait()
		}
		e, ok := errors.AsType[*store.Error](err)
		if !ok || (e.Code != store.ConnectionError && e.Code != store.RateLimitError) {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		<-time.After(max(e.RetryAfter, 50*time.Millisecond))
	}
}

// beHolder claims one item, reports that and keeps it until it is killed.
func beHolder(at, stateDir, name string) int {
	ctx := context.Background()
	cfg := killConfig(at, name)
	cfg.StateDir = stateDir
	n := agentnet.Open(cfg)
	if err := n.Ready(ctx); err != nil {
		return 1
	}
	a, err := n.Register(ctx, nettest.Worker("go"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	w := &hand{name: name, agent: a}
	c, err := a.Claim(ctx, nil)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	w.say(event{What: "claim", Task: c.TaskID, Token: c.Token, Lease: lease(c.LeaseUntil)})
	select {} // until it is killed
}

// hand is one worker.
type hand struct {
	name  string
	agent *agentnet.Agent
	tell  func(event) // if set, replaces standard output
	mu    sync.Mutex  // guards standard output
}

// say reports an event to the test in one write, so that a killed process reports it whole or, at
// worst, cut off.
func (w *hand) say(e event) {
	e.Worker, e.GUID = w.name, w.agent.GUID()
	if w.tell != nil {
		w.tell(e)
		return
	}
	line, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = os.Stdout.Write(append(line, '\n')) // the test may have ended
}

func (w *hand) work(ctx context.Context) {
	for ctx.Err() == nil {
		begin := time.Now()
		turn, cancel := context.WithTimeout(ctx, time.Second)
		c, err := w.agent.Claim(turn, nil)
		cancel()
		if err != nil || c == nil {
			<-time.After(10 * time.Millisecond)
			continue
		}
		w.say(event{What: "claim", Task: c.TaskID, Token: c.Token, Begin: begin, End: time.Now(), Lease: lease(c.LeaseUntil)})
		w.treat(ctx, c)
	}
}

func lease(until string) time.Time {
	at, err := time.Parse(time.RFC3339Nano, until)
	if err != nil {
		panic(err)
	}
	return at
}

// treat handles an item: most are completed quickly, some take longer than the lease, and hopeless
// ones are refused.
func (w *hand) treat(ctx context.Context, c *work.Claim) {
	choice := rand.IntN(100)
	switch {
	case isHopeless(c.TaskID):
		w.refuse(ctx, c, choice < 50)
		return
	case choice == 0:
		<-time.After(killLease + killLease/2)
	case choice < 10:
		<-time.After(time.Duration(rand.IntN(300)) * time.Millisecond)
		var until string
		if !w.try(ctx, c, "extend", func(ctx context.Context) (err error) {
			until, err = w.agent.Extend(ctx, c.TaskID, c.Token)
			return err
		}, func() time.Time { return lease(until) }) {
			return
		}
	case choice < 14:
		w.refuse(ctx, c, false)
		return
	}
	<-time.After(time.Duration(rand.IntN(10)) * time.Millisecond)
	w.try(ctx, c, "complete", func(ctx context.Context) error {
		return w.agent.Complete(ctx, c.TaskID, c.Token, work.Outcome{Success: true, Summary: w.name})
	}, nil)
}

func (w *hand) refuse(ctx context.Context, c *work.Claim, final bool) {
	w.say(event{What: "rejecting", Task: c.TaskID, Token: c.Token, Begin: time.Now()})
	w.try(ctx, c, "reject", func(ctx context.Context) error {
		_, err := w.agent.Reject(ctx, c.TaskID, c.Token, "not for me", final)
		return err
	}, nil)
}

// isHopeless reports whether no worker can complete a task.
func isHopeless(task string) bool { return strings.HasSuffix(task, "99") }

// try calls f, again after connection errors, and reports the event if f succeeds.
func (w *hand) try(ctx context.Context, c *work.Claim, what string, f func(context.Context) error, until func() time.Time) bool {
	begin := time.Now()
	for {
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := f(attempt)
		cancel()
		if err == nil {
			e := event{What: what, Task: c.TaskID, Token: c.Token, Begin: begin, End: time.Now()}
			if until != nil {
				e.Lease = until()
			}
			w.say(e)
			return true
		}
		if nettest.CategoryOf(err) != store.ConnectionError || ctx.Err() != nil {
			return false // too late: another worker holds the item
		}
		<-time.After(20 * time.Millisecond)
	}
}

// child is a process that runs beChild.
type child struct {
	cmd  *exec.Cmd
	read sync.WaitGroup
}

func startChild(t *testing.T, role, at, stateDir, name string, said func(event)) *child {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: exec.Command(exe)}
	c.cmd.Env = append(os.Environ(), childRole+"="+role, childRole+"_AT="+at, childRole+"_STATE="+stateDir, childRole+"_NAME="+name)
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.read.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var e event
			if json.Unmarshal(lines.Bytes(), &e) == nil { // a killed process may leave half a line
				said(e)
			}
		}
	})
	return c
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// kill sends SIGKILL, whatever the process is doing.
func (c *child) kill() {
	if c.cmd.ProcessState != nil {
		return
	}
	_ = c.cmd.Process.Kill() // it may have ended already
	c.read.Wait()
	_ = c.cmd.Wait() // killed
}

// victim is a network whose processes are killed and restarted.
type victim struct {
	at, workersAt string            // for killDial
	faults        map[string]func() // by name; each returns when the fault is over
	dial          func(context.Context) (*bus.Bus, error)
	presence      bool // check presence too, which takes three heartbeats
}

// stockVictim is a stock server. The workers reach it through a proxy that cuts their connections.
func stockVictim(t *testing.T) victim {
	address := fmt.Sprintf("127.0.0.1:%d", testbed.FreePorts(t, 1)[0])
	dir := t.TempDir()
	start := func() *child { return startChild(t, "server", address, dir, "", func(event) {}) }
	srv := start()
	t.Cleanup(func() { srv.kill() })
	p := nettest.StartProxy(t, address)
	url := "nats://" + address
	return victim{at: url, workersAt: p.URL(), dial: killDial(url), faults: map[string]func(){
		"server killed":    func() { srv.kill(); srv = start() },
		"server suspended": func() { nap(srv.pid()) },
		"connections cut":  p.Cut,
	}}
}

// hubVictim is a hub with the embedded bus.
func hubVictim(t *testing.T) victim {
	hub := nettest.NewProcess(t)
	return victim{at: hub.Dir, workersAt: hub.Dir, dial: killDial(hub.Dir), faults: map[string]func(){
		"hub killed": func() { hub.Kill() },
		"hub suspended": func() {
			if id := hub.PID(); id > 0 {
				nap(id)
			}
		},
	}}
}

// nap suspends a process for a while, sometimes for longer than a lease.
func nap(pid int) {
	if suspend(pid) {
		<-time.After(time.Duration(rand.Int64N(int64(killLease * 3 / 2))))
		resume(pid)
	}
}

// crew is the workers' processes and the events they reported.
type crew struct {
	t         *testing.T
	at        string
	dir       string
	processes [killWorkers]*child

	mu         sync.Mutex
	history    history
	identities map[string]map[string]bool
}

func startCrew(t *testing.T, at string) *crew {
	c := &crew{t: t, at: at, dir: t.TempDir(), identities: map[string]map[string]bool{}}
	for i := range c.processes {
		c.start(i)
	}
	t.Cleanup(c.kill)
	return c
}

func (c *crew) start(i int) {
	name := fmt.Sprint("host-", i)
	c.processes[i] = startChild(c.t, "worker", c.at, filepath.Join(c.dir, name), name, func(e event) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.history = append(c.history, e)
		if c.identities[e.Worker] == nil {
			c.identities[e.Worker] = map[string]bool{}
		}
		c.identities[e.Worker][e.GUID] = true
	})
}

// desert kills one worker without restarting it. It returns its GUID and those of the other
// workers.
func (c *crew) desert() (gone string, live []string) {
	c.t.Helper()
	wait.Eventually(c.t, "all workers", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.identities) == killWorkers
	})
	c.processes[0].kill()
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, guids := range c.identities {
		for guid := range guids {
			if name == "host-0" {
				gone = guid
			} else {
				live = append(live, guid)
			}
		}
	}
	return gone, live
}

func (c *crew) kill() {
	for _, p := range c.processes {
		p.kill()
	}
}

// Workers and the server are killed, suspended and disconnected at random moments while items are
// processed. The history of all workers must show at most one holder of each item at a time and no
// success of a former holder. Every submitted item must end once, completed or in the dead
// letters, and the queue must be empty.
func TestKilledProcessesLoseNoWork(t *testing.T) {
	t.Parallel()
	for name, make := range map[string]func(*testing.T) victim{"stock server": stockVictim, "hub": hubVictim} {
		t.Run(name, func(t *testing.T) {
			killing.Lock()
			defer killing.Unlock()
			loseNoWork(t, make(t))
		})
	}
}

// killing serializes the tests that kill processes: two of them at a time would only wait for the
// computer.
var killing sync.Mutex

// The same with three servers, including presence, for which heartbeats must be missed. It is the
// slowest test of the package and therefore starts early, as a test of its own.
func TestKilledProcessesOfAClusterLoseNoWork(t *testing.T) {
	t.Parallel()
	loseNoWork(t, clusterVictim(t))
}

func loseNoWork(t *testing.T, v victim) {
	seed := *killSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("-kill-items=%d -kill-seed=%d", *killItems, seed)
	begin := time.Now()
	boss := nettest.Register(t, nettest.Open(t, killConfig(v.at, "host-boss")), nettest.Dispatcher())
	reader := nettest.Dispatcher()
	reader.AgentType = "reader"
	mail := &letters{from: boss, to: nettest.Register(t, nettest.Open(t, killConfig(v.at, "host-reader")), reader)}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan struct{})
	var reading, sending sync.WaitGroup
	reading.Go(func() { readLetters(ctx, t, mail.to, map[string]*letters{boss.GUID(): mail}) })
	sending.Go(func() { mail.sendUntil(t, done) })
	workers := startCrew(t, v.workersAt)
	victims := maps.Clone(v.faults)
	victims["worker killed"] = func() {
		i := random.IntN(killWorkers)
		workers.processes[i].kill()
		workers.start(i)
	}
	victims["worker suspended"] = func() { nap(workers.processes[random.IntN(killWorkers)].pid()) }
	names := slices.Sorted(maps.Keys(victims)) // sorted, so that the seed determines the order
	times := map[string]int{}
	const perFault = 100 // items
	rounds := max(len(names), *killItems/perFault)
	for round := range rounds {
		var submitting sync.WaitGroup
		for lane := range 8 {
			submitting.Go(func() {
				for i := round**killItems/rounds + lane; i < (round+1)**killItems/rounds; i += 8 {
					submitRetried(t, boss, fmt.Sprint("T", i))
				}
			})
		}
		<-time.After(time.Duration(random.IntN(200)) * time.Millisecond)
		name := names[random.IntN(len(names))]
		if round < len(names) {
			name = names[round] // each fault at least once
		}
		victims[name]()
		times[name]++
		submitting.Wait()
	}
	var watching sync.WaitGroup
	defer watching.Wait() // also if the test fails earlier
	if v.presence {
		gone, live := workers.desert()
		watching.Go(func() { judgePresence(t, boss, gone, live) })
	}
	states := itemStates(t, boss, *killItems)
	wait.Eventually(t, "an empty queue", func() bool { return queueLength(t, v, "go") == 0 })
	close(done)
	sending.Wait()
	mail.judgeMail(t, stop, &reading)
	watching.Wait()
	workers.kill()
	judgeEnd(t, boss, workers, states)
	t.Logf("%d items and %d messages in %v: %v; faults: %v; %d events", *killItems, len(mail.read), time.Since(begin).Round(time.Second), states, times, len(workers.history))
}

func submitRetried(t *testing.T, boss *agentnet.Agent, task string) {
	if err := retried(t, func(ctx context.Context) error { _, err := boss.Submit(ctx, nettest.Item(task, "go")); return err }); err != nil {
		t.Error(task, err)
	}
}

func queueLength(t *testing.T, v victim, capability string) uint64 {
	b, err := v.dial(t.Context())
	if err != nil {
		return 1 // the server is restarting
	}
	defer b.Close(t.Context()) //nolint:errcheck // a test's
	s, err := b.JetStream().Stream(t.Context(), "GLOBAL_WORKQUEUE_"+capability)
	if err != nil {
		return 1
	}
	return s.CachedInfo().State.Msgs
}

// judgeEnd compares what the workers reported with the stored state of the network.
func judgeEnd(t *testing.T, boss *agentnet.Agent, c *crew, states map[work.ItemState]int) {
	t.Helper()
	for _, w := range c.history.judge(killSlack) {
		t.Error(w)
	}
	if sum := states[work.Completed] + states[work.Dead]; sum != *killItems {
		t.Errorf("%d of %d items ended: %v", sum, *killItems, states)
	}
	dead := map[string]int{}
	letters, _, err := boss.DeadLetters(t.Context(), work.MaxDeadLimit, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range letters {
		dead[l.TaskID]++
		if dead[l.TaskID] > 1 {
			t.Errorf("%s is in the dead letters %d times", l.TaskID, dead[l.TaskID])
		}
		if l.Attempts < killTries && l.Reason != work.Refused {
			t.Errorf("%s is dead after %d attempts: %s", l.TaskID, l.Attempts, l.Reason)
		}
	}
	if len(dead) != states[work.Dead] {
		t.Errorf("%d items are dead, but %d are in the dead letters", states[work.Dead], len(dead))
	}
	for _, e := range c.history {
		if e.What != "complete" {
			continue
		}
		if s := nettest.State(t, boss, e.Task); s.State != work.Completed || s.HolderGUID != e.GUID {
			t.Errorf("%s was reported completed by %s, but is %s by %s", e.Task, e.GUID, s.State, s.HolderGUID)
		}
		if dead[e.Task] > 0 {
			t.Errorf("%s is completed and in the dead letters", e.Task)
		}
	}
	for host, guids := range c.identities {
		if len(guids) != 1 {
			t.Errorf("%s had %d identities: that of a killed process must be free at once", host, len(guids))
		}
	}
}

// REQ-DLQ-001: the lease of a killed worker is acted on by whoever is there, though nobody claims work: another
// process, the hub, or the process that starts next if none was left.
func TestLeasesOfKilledWorkersAreActedOn(t *testing.T) {
	t.Parallel()
	t.Run("stock server", func(t *testing.T) {
		killing.Lock()
		defer killing.Unlock()
		s := leaseScene{t, stockVictim(t)}
		s.submit()
		other := s.child("idle")
		s.holderIsKilled()
		s.queuedAgain()
		lease := s.holderIsKilled()
		other.kill() // nobody is left
		wait.Eventually(t, "the end of the lease", func() bool { return time.Now().After(lease.Add(time.Second)) })
		if state := s.state(); state != work.Claimed {
			t.Errorf("the item is %s, but nobody is there", state)
		}
		s.child("idle")
		s.queuedAgain()
	})
	t.Run("hub", func(t *testing.T) {
		killing.Lock()
		defer killing.Unlock()
		hub := nettest.NewProcess(t)
		s := leaseScene{t, victim{workersAt: hub.Dir, at: hub.Dir, dial: killDial(hub.Dir)}}
		s.submit()
		s.holderIsKilled()
		hub.Kill()
		hub.Start(t) // no agent joins its network
		s.queuedAgain()
	})
}

// leaseScene is a network with one item, T.
type leaseScene struct {
	t *testing.T
	victim
}

// submit submits the item by a process that leaves.
func (s leaseScene) submit() {
	s.t.Helper()
	n := nettest.Open(s.t, killConfig(s.at, "host-boss"))
	nettest.Submit(s.t, nettest.Register(s.t, n, nettest.Dispatcher()), "T", "go")
	nettest.Shut(s.t, n)
}

// child starts a process: a holder claims the item, an idle one opens the network only.
func (s leaseScene) child(role string, said ...func(event)) *child {
	s.t.Helper()
	tell := func(event) {}
	if len(said) > 0 {
		tell = said[0]
	}
	c := startChild(s.t, role, s.workersAt, s.t.TempDir(), "host-"+role, tell)
	s.t.Cleanup(c.kill)
	return c
}

// holderIsKilled has a process claim the item, kills it, and returns when its lease ends.
func (s leaseScene) holderIsKilled() time.Time {
	s.t.Helper()
	claims := make(chan event, 1)
	c := s.child("holder", func(e event) { claims <- e })
	select {
	case e := <-claims:
		c.kill()
		return e.Lease
	case <-time.After(time.Minute):
		s.t.Fatal("nobody claims the item")
		return time.Time{}
	}
}

// queuedAgain waits until the stored record says that the item waits for a worker.
func (s leaseScene) queuedAgain() {
	s.t.Helper()
	wait.Eventually(s.t, "that the item waits again", func() bool { return s.state() == work.Queued })
}

// state reads the item's record as a program without Parley does.
func (s leaseScene) state() work.ItemState {
	s.t.Helper()
	b, err := s.dial(s.t.Context())
	if err != nil {
		return "" // the server is restarting
	}
	defer b.Close(s.t.Context()) //nolint:errcheck // a test's
	records, err := b.JetStream().Stream(s.t.Context(), store.ItemStream)
	if err != nil {
		return ""
	}
	m, err := records.GetLastMsgForSubject(s.t.Context(), store.ItemSubject+"*")
	if err != nil {
		return ""
	}
	x, err := work.Decode(m.Data)
	if err != nil {
		s.t.Fatal(err)
	}
	return x.State
}
