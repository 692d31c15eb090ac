package simlink_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/federation/node"
	"github.com/parleyhub/parley/internal/federation/peers"
	"github.com/parleyhub/parley/internal/federation/programs"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/senders"
	"github.com/parleyhub/parley/internal/testbed/simlink"
)

var (
	simulations    = flag.Int("simulations", 12, "how many simulations of paired hubs run")
	simulationSeed = flag.Uint64("simulation-seed", 1, "the seed of the first one")
	logs           = flag.Bool("simulation-logs", false, "print the logs of the hubs")
)

// How long a simulation of hubs lasts, in virtual time, and how long all may take to come to an end.
const (
	federatedTime = 10 * time.Second
	federatedEnd  = 30 * time.Minute
	// cancellationTime is how long cancellations may take.
	cancellationTime = 5 * time.Minute
)

// Callers at one of two or three hubs give tasks to the programs, the sessions and the library's programs of the others, answer their questions
// and cancel some. Programs pass a part to another hub's agent. Meanwhile links are cut and held back, connections break at any message, programs
// are killed, and so are hubs, also before and after any change of their stores.
func TestFederatedHubsKeepThePromises(t *testing.T) {
	tasks, ended, faults, requests, answered := 0, map[string]int{}, 0, 0, 0
	defer func() {
		fmt.Printf("simulated: %d tasks between hubs, %v, %d requests of programs, %d of them answered, %d faults\n", tasks, ended, requests, answered, faults)
		if answered == 0 && *simulations >= 4*shapes {
			t.Error("no program has asked another hub's agent")
		}
	}()
	for i := range uint64(*simulations) {
		seed := *simulationSeed + i
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			f := federate(t, seed)
			for _, b := range f.broken() {
				t.Error(b)
			}
			tasks, faults = tasks+len(f.given), faults+f.faults
			for _, g := range f.given {
				ended[string(g.last)]++
			}
			for _, a := range f.records.asked {
				requests, answered = requests+1, answered+min(1, len(a.answers))
			}
			if t.Failed() {
				t.Logf("repeat it with: go run ./tools/faults -simulations 1 -hubs -seed %d", seed)
			}
		})
	}
}

// log returns the log of the hub's processes.
func (h *federated) log() *slog.Logger {
	if !*logs {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("hub", h.name)
}

// federation is paired hubs and what was done at them.
type federation struct {
	seed     uint64
	links    *simlink.Network
	hubs     []*federated            // all
	alice    *federated              // the first one, which has the callers; the others have the agents
	pairs    [][2]identity.PublicKey // links
	programs []*goProgram
	targets  []string // the agents that the callers ask
	faults   int
	numbers  atomic.Int64
	records  *records

	mu    sync.Mutex
	given []*given
}

// The shapes of a federation: a seed has one of them.
const (
	twoHubs  = iota // alice and bob
	chain           // carol is paired with bob, whose program asks her agent
	triangle        // all are paired with each other
	shapes
)

func federate(t *testing.T, seed uint64) *federation {
	f := &federation{seed: seed, records: &records{}}
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	synctest.Test(t, func(t *testing.T) {
		f.links = simlink.New(seed)
		f.build(t, int(seed%shapes), dirs)
		f.heal()
		ctx, cancel := context.WithCancel(t.Context())
		var guarding sync.WaitGroup
		for i, h := range f.hubs[1:] {
			guarding.Go(func() { h.guard(ctx, f.random("guard", i)) })
		}
		f.run(ctx)
		f.end(ctx, func() {
			cancel()
			guarding.Wait()
		})
	})
	return f
}

// build makes the hubs and programs of a shape.
func (f *federation) build(t *testing.T, shape int, dirs []string) {
	names := []string{"alice", "bob", "carol"}
	if shape == twoHubs {
		names = names[:2]
	}
	for i, name := range names {
		f.hubs = append(f.hubs, newFederated(t, f, name, dirs[i]))
	}
	f.alice = f.hubs[0]
	for i, a := range f.hubs {
		for j, b := range f.hubs[i+1:] {
			if shape == chain && i == 0 && j > 0 {
				continue
			}
			a.pair(t, b)
			b.pair(t, a)
			f.pairs = append(f.pairs, [2]identity.PublicKey{a.key, b.key})
		}
	}
	f.targets = []string{"bob.worker", "bob.session", "bob.program"}
	asks := map[string]string{}
	if shape != twoHubs {
		asks["bob"] = "carol.worker"
	}
	if shape == triangle {
		f.targets, asks["carol"] = append(f.targets, "carol.worker", "carol.session", "carol.program"), "bob.worker"
	}
	for _, h := range f.hubs[1:] {
		g := &goProgram{f: f, at: h, asks: asks[h.name], key: identity.Generate().Public()}
		f.programs, f.pairs = append(f.programs, g), append(f.pairs, [2]identity.PublicKey{h.front, g.key})
	}
}

// heal starts what was killed.
func (f *federation) heal() {
	for _, h := range f.hubs {
		h.start()
	}
	for _, g := range f.programs {
		g.start()
	}
}

// hubOf returns the hub of an agent, by alice's name for it.
func (f *federation) hubOf(agent string) *federated {
	name, _, _ := strings.Cut(agent, ".")
	for _, h := range f.hubs {
		if h.name == name {
			return h
		}
	}
	return nil
}

func (f *federation) random(kind string, i int) *rand.Rand {
	return rand.New(rand.NewPCG(f.seed, uint64(kind[0])<<32|uint64(i)))
}

func (f *federation) run(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, federatedTime)
	defer cancel()
	var calling sync.WaitGroup
	for i := range 3 {
		calling.Go(func() { f.call(ctx, i, f.random("caller", i)) })
	}
	f.fail(ctx, f.random("faults", 0))
	for _, h := range f.hubs {
		h.calm()
	}
	calling.Wait()
}

// fail makes faults until ctx ends, and heals them.
func (f *federation) fail(ctx context.Context, random *rand.Rand) {
	for wait.Pause(ctx, time.Duration(random.IntN(2000))*time.Millisecond) {
		h := f.hubs[max(0, random.IntN(2*len(f.hubs)-1)-len(f.hubs)+1)] // rather one with agents
		link := f.pairs[random.IntN(len(f.pairs))]
		from, to := link[0], link[1]
		if random.IntN(2) == 0 {
			from, to = to, from
		}
		length := time.Duration(random.ExpFloat64()*2000) * time.Millisecond
		switch random.IntN(8) {
		case 0:
			f.links.Cut(from, to, time.Duration(random.IntN(2)*random.IntN(4000))*time.Millisecond)
			wait.Pause(ctx, length)
		case 1:
			f.links.Hold(from, to)
			wait.Pause(ctx, length)
			if random.IntN(2) == 0 {
				f.links.Cut(from, to, 0)
			}
		case 2, 3:
			f.links.Break(from, to, 1+random.IntN(30), random.IntN(2) == 0)
			wait.Pause(ctx, length)
		case 4:
			h.kill()
			wait.Pause(ctx, length)
		case 5:
			f.programs[random.IntN(len(f.programs))].kill()
			wait.Pause(ctx, length)
		default:
			h.killAt(1 + random.IntN(30))
			wait.Pause(ctx, length)
		}
		f.links.Heal(from, to)
		f.heal()
		f.faults++
	}
}

// end waits until all tasks have ended at both hubs, and ends these.
func (f *federation) end(ctx context.Context, leave func()) {
	ctx, cancel := context.WithTimeout(ctx, federatedEnd)
	defer cancel()
	for f.unfinished() && wait.Pause(ctx, time.Second) {
	}
	calm, cancel := context.WithTimeout(ctx, cancellationTime)
	defer cancel()
	for f.asks() && wait.Pause(calm, time.Second) { // the last cancellations arrive
	}
	wait.Pause(ctx, 2*time.Second) // the last answers are read
	leave()
	for _, g := range f.programs {
		g.kill()
		g.ending.Wait()
	}
	for _, h := range f.hubs {
		h.collect()
		h.kill()
	}
	for _, h := range f.hubs {
		h.ending.Wait()
	}
}

// asks reports whether a task at a hub with agents waits for an answer.
func (f *federation) asks() bool {
	return slices.ContainsFunc(f.hubs[1:], (*federated).asks)
}

func (f *federation) unfinished() bool {
	f.mu.Lock()
	given := f.given
	f.mu.Unlock()
	for _, g := range given {
		if g.acknowledged && !g.done() {
			return true
		}
	}
	return slices.ContainsFunc(f.hubs, (*federated).active)
}

// federated is a hub that can be killed: then its memory is lost, and its store and files are kept.
type federated struct {
	f      *federation
	name   string
	dir    string
	copies int
	key    identity.PublicKey
	front  identity.PublicKey // where it accepts programs
	ending sync.WaitGroup

	mu      sync.Mutex
	now     *hubProcess // nil while it is killed
	store   *hub.Memory
	stored  map[a2a.TaskID]*a2a.Task // at the end
	changes int                      // of the store until it is killed; 0 for never
}

// hubProcess is one process of a hub.
type hubProcess struct {
	of    *federated
	hub   *hub.Hub
	peers *peers.Peers
	host  *simlink.Host
	// For programs; nil without agents.
	programs *programs.Programs
	entrance *node.Node
	front    *simlink.Host
	life     context.Context // ends when it is killed
	die      context.CancelFunc
	started  bool
}

func newFederated(t *testing.T, f *federation, name, dir string) *federated {
	pair, err := identity.Load(peers.KeyPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	return &federated{f: f, name: name, dir: dir, key: pair.Public(), front: pair.Derive("programs").Public(), store: &hub.Memory{}}
}

func (h *federated) pair(t *testing.T, other *federated) {
	list, err := identity.OpenAllowList(peers.AllowPath(h.dir))
	if err == nil {
		err = list.Add(identity.Entry{Key: other.key, Name: other.name})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// process returns the running process, nil if there is none.
func (h *federated) process() *hubProcess {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.now == nil || !h.now.started {
		return nil
	}
	return h.now
}

// start starts a process unless one runs. It panics if it does not start.
func (h *federated) start() {
	h.mu.Lock()
	if h.now != nil {
		h.mu.Unlock()
		return
	}
	p := &hubProcess{of: h}
	p.life, p.die = context.WithCancel(context.Background())
	h.now, h.changes = p, 0
	store := h.store
	store.Watch = func(bool) { h.changed(p) }
	h.mu.Unlock()
	p.host, p.front = h.f.links.Start(h.key), h.f.links.Start(h.front)
	if err := p.open(store); err != nil {
		panic(fmt.Sprintf("%s does not start: %v", h.name, err))
	}
	h.mu.Lock()
	p.started = true
	h.mu.Unlock()
}

func (p *hubProcess) open(store *hub.Memory) (err error) {
	ctx, tier := context.Background(), 3
	config := hub.Config{Memory: store, Logger: p.of.log()}
	serves := p.of != p.of.f.alice
	if serves {
		d, err := runner.Definition{ID: "worker", Driver: runner.DriverEcho, Tier: &tier, Permissions: runner.PermissionsAsk,
			Limits: runner.Limits{Run: 2 * time.Minute, Idle: time.Minute, Concurrency: 10, Queue: 100}}.Complete()
		if err != nil {
			return err
		}
		config.Agents = []hub.Agent{{Definition: d, Runner: worker{p}}}
	}
	if p.hub, err = hub.New(ctx, config); err != nil {
		return err
	}
	if serves {
		d := runner.Definition{ID: "session", Name: "session", Driver: runner.DriverSession, Tier: &tier, Permissions: runner.PermissionsAsk,
			Limits: runner.Limits{Run: time.Hour, Idle: time.Hour, Concurrency: 100, Queue: 100}}
		at := hub.Residence{Kind: hub.KindSession, Handle: "Session", Computer: "laptop"}
		if err = p.hub.Register(hub.Agent{Definition: d, Runner: opened{p}, Durable: true, Residence: at}); err != nil {
			return err
		}
		if err = p.admit(); err != nil {
			return err
		}
	}
	p.peers, err = peers.Open(ctx, peers.Options{Hub: p.hub, DataDir: p.of.dir, Version: "1", Logger: p.of.log(), Link: p.host.Link()})
	return err
}

// admit accepts programs.
func (p *hubProcess) admit() error {
	gate, err := senders.Open(senders.Options{Hub: p.hub, Path: filepath.Join(p.of.dir, "senders.json"), Logger: p.of.log()})
	if err != nil {
		return err
	}
	if p.programs, err = programs.Open(programs.Options{Hub: p.hub, DataDir: p.of.dir, Gate: gate, Logger: p.of.log()}); err != nil {
		return err
	}
	if p.entrance, err = node.Open(node.Options{Hub: p.hub, Version: "1", Channels: p.programs.Watcher(), Logger: p.of.log()}); err != nil {
		return err
	}
	return errors.Join(p.programs.Serve(p.entrance), p.entrance.Listen(p.front.Link().Listener))
}

// changed counts a change of the store by a process, which may be its last one.
func (h *federated) changed(p *hubProcess) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.now != p || h.changes == 0 {
		return
	}
	if h.changes--; h.changes == 0 && p.started {
		h.end(p)
	}
}

// killAt kills the process before or after one of its next changes of the store.
func (h *federated) killAt(change int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changes = change
}

// calm ends killAt, and starts the hub if it is killed.
func (h *federated) calm() {
	h.killAt(0)
	h.start()
}

// kill kills the process.
func (h *federated) kill() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.now != nil {
		h.end(h.now)
	}
}

// end ends the process: it reaches nobody any more, and what it stores has no effect. mu is held.
func (h *federated) end(p *hubProcess) {
	h.now = nil
	p.host.Kill()
	p.front.Kill()
	p.die()
	h.store = h.store.Clone()
	h.copies++
	dir := filepath.Join(filepath.Dir(h.dir), fmt.Sprint(h.name, h.copies))
	if err := copyFiles(dir, h.dir); err != nil {
		panic(err)
	}
	h.dir = dir
	h.ending.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if p.programs != nil {
			p.programs.Close()
		}
		_ = p.hub.Close(ctx)
		if p.entrance != nil {
			_ = p.entrance.Close(ctx)
		}
		_ = p.peers.Close(ctx)
	}) // it has been killed
}

// copyFiles copies the files of a hub, each of which is replaced at once.
func copyFiles(to, from string) error {
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	for _, path := range []string{peers.KeyPath(""), peers.AllowPath(""), "peer-sessions.json", "peer-cancellations.json", "connected-programs.json", "senders.json"} {
		data, err := os.ReadFile(filepath.Join(from, path))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, path), data, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// active reports whether a task goes on.
func (h *federated) active() bool {
	p := h.process()
	return p == nil || p.hub.Status().ActiveTasks > 0
}

// asks reports whether a task waits for an answer.
func (h *federated) asks() bool {
	page, err := h.process().hub.Tasks(context.Background(), hub.TaskQuery{State: a2a.TaskStateInputRequired, Limit: 1})
	return err != nil || page.Total > 0
}

// collect notes what the hub has stored.
func (h *federated) collect() {
	h.stored = map[a2a.TaskID]*a2a.Task{}
	page, err := h.process().hub.Tasks(context.Background(), hub.TaskQuery{Limit: 1000})
	if err != nil {
		panic(err)
	}
	for _, task := range page.Tasks {
		h.stored[task.ID] = task
	}
}
