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
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/federation/peers"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/testbed/simlink"
)

var (
	simulations    = flag.Int("simulations", 12, "how many simulations of paired hubs run")
	simulationSeed = flag.Uint64("simulation-seed", 1, "the seed of the first one")
	logs           = flag.Bool("simulation-logs", false, "print the logs of the hubs")
)

// How long a simulation of hubs lasts, in virtual time, and how long all may take to come to an end.
const (
	federatedTime = 40 * time.Second
	federatedEnd  = 30 * time.Minute
	// cancellationTime is how long cancellations may take.
	cancellationTime = 5 * time.Minute
)

// Callers at one hub give tasks to a program and to a session of another hub, answer their questions and cancel some, while links
// are cut and held back, connections break at any message, and hubs are killed, also before and after any change of their
// stores.
func TestFederatedHubsKeepThePromises(t *testing.T) {
	tasks, ended, faults := 0, map[string]int{}, 0
	defer func() { fmt.Printf("simulated: %d tasks between hubs, %v, %d faults\n", tasks, ended, faults) }()
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
			if t.Failed() {
				t.Logf("repeat it with: go test -run '%s' ./internal/testbed/simlink -simulations 1 -simulation-seed %d", strings.Split(t.Name(), "/")[0], seed)
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

// federation is two paired hubs and what was done at them.
type federation struct {
	seed    uint64
	links   *simlink.Network
	alice   *federated // has the callers
	bob     *federated // has the agents
	faults  int
	records *records

	mu    sync.Mutex
	given []*given
}

func federate(t *testing.T, seed uint64) *federation {
	f := &federation{seed: seed, records: &records{}}
	dirs := [2]string{t.TempDir(), t.TempDir()}
	synctest.Test(t, func(t *testing.T) {
		f.links = simlink.New(seed)
		f.alice, f.bob = newFederated(t, f, "alice", dirs[0]), newFederated(t, f, "bob", dirs[1])
		f.alice.pair(t, f.bob)
		f.bob.pair(t, f.alice)
		f.alice.start()
		f.bob.start()
		ctx, cancel := context.WithCancel(t.Context())
		var guarding sync.WaitGroup
		guarding.Go(func() { f.guard(ctx, f.random("guard", 0)) })
		f.run(ctx)
		f.end(ctx, func() {
			cancel()
			guarding.Wait()
		})
	})
	return f
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
	f.alice.calm()
	f.bob.calm()
	calling.Wait()
}

// fail makes faults until ctx ends, and heals them.
func (f *federation) fail(ctx context.Context, random *rand.Rand) {
	for wait.Pause(ctx, time.Duration(random.IntN(3000))*time.Millisecond) {
		h := []*federated{f.alice, f.bob, f.bob}[random.IntN(3)]
		from, to := f.alice.key, f.bob.key
		if random.IntN(2) == 0 {
			from, to = to, from
		}
		length := time.Duration(random.ExpFloat64()*3000) * time.Millisecond
		switch random.IntN(7) {
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
		default:
			h.killAt(1 + random.IntN(30))
			wait.Pause(ctx, length)
		}
		f.links.Heal(from, to)
		f.alice.start()
		f.bob.start()
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
	for f.bob.asks() && wait.Pause(calm, time.Second) { // the last cancellations arrive
	}
	wait.Pause(ctx, 2*time.Second) // the last answers are read
	leave()
	for _, h := range []*federated{f.alice, f.bob} {
		h.collect()
		h.kill()
	}
	f.alice.ending.Wait()
	f.bob.ending.Wait()
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
	return f.alice.active() || f.bob.active()
}

// federated is a hub that can be killed: then its memory is lost, and its store and files are kept.
type federated struct {
	f      *federation
	name   string
	dir    string
	copies int
	key    identity.PublicKey
	ending sync.WaitGroup

	mu      sync.Mutex
	now     *hubProcess // nil while it is killed
	store   *hub.Memory
	stored  map[a2a.TaskID]*a2a.Task // at the end
	changes int                      // of the store until it is killed; 0 for never
}

// hubProcess is one process of a hub.
type hubProcess struct {
	of      *federated
	hub     *hub.Hub
	peers   *peers.Peers
	host    *simlink.Host
	life    context.Context // ends when it is killed
	die     context.CancelFunc
	started bool
}

func newFederated(t *testing.T, f *federation, name, dir string) *federated {
	pair, err := identity.Load(peers.KeyPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	return &federated{f: f, name: name, dir: dir, key: pair.Public(), store: &hub.Memory{}}
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
	p.host = h.f.links.Start(h.key)
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
	if p.of.name == "bob" {
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
	if p.of.name == "bob" {
		d := runner.Definition{ID: "session", Name: "session", Driver: runner.DriverSession, Tier: &tier, Permissions: runner.PermissionsAsk,
			Limits: runner.Limits{Run: time.Hour, Idle: time.Hour, Concurrency: 100, Queue: 100}}
		at := hub.Residence{Kind: hub.KindSession, Handle: "Session", Computer: "laptop"}
		if err = p.hub.Register(hub.Agent{Definition: d, Runner: opened{p}, Durable: true, Residence: at}); err != nil {
			return err
		}
	}
	p.peers, err = peers.Open(ctx, peers.Options{Hub: p.hub, DataDir: p.of.dir, Version: "1", Logger: p.of.log(), Link: p.host.Link()})
	return err
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
		_ = p.hub.Close(ctx)
		_ = p.peers.Close(ctx)
	}) // it has been killed
}

// copyFiles copies the files of a hub, each of which is replaced at once.
func copyFiles(to, from string) error {
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	for _, path := range []string{peers.KeyPath(""), peers.AllowPath(""), "peer-sessions.json", "peer-cancellations.json"} {
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
