package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"golang.org/x/sync/semaphore"

	"github.com/parleyhub/parley/internal/base/defaults"
	"github.com/parleyhub/parley/internal/base/handlers"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub/events"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// Config configures a hub. Zero fields mean the default in the comment.
type Config struct {
	// Bus stores tasks, contexts and sessions. Without one they are in memory, for tests and the conformance mode.
	Bus *bus.Bus
	// Memory has what is stored without a bus, for simulations of hubs that start again: a new one.
	Memory *Memory
	// Name identifies the hub among those on one bus: [A-Za-z0-9_-]{1,32}, "local".
	Name string
	// Version is reported in Status.
	Version string
	// DataDir holds the working directories of contexts, in "contexts", and worktrees, in
	// "worktrees". It is required unless all agents' directories are fixed.
	DataDir string
	// Heads is the file with the heads of all tasks in DataDir, if it is being read already; nil if not.
	Heads *Heads
	// WorkRoots are directories outside DataDir that agents may work in, if a definition or a message says so: none.
	WorkRoots []string
	// Trusted returns more such directories; it is called at every use, so that a change takes effect at once. One that
	// has become a symbolic link is ignored. Nil is none.
	Trusted func() ([]string, error)
	// Agents are registered at the start, except disabled ones.
	Agents []Agent
	// Logger receives the ends of turns and errors in the background, never the text of messages. Nil discards.
	Logger *slog.Logger

	// Events records what changes; nil records nothing. It outlives the hub.
	Events *events.Log

	// SessionEnv returns additions to the environment of an agent's processes in a
	// context, as NAME=value. It must not block. Nil adds nothing.
	SessionEnv func(agentID, contextID string) []string

	// HeldFiles returns those of some files that other agents have claimed exclusively than the one of this conversation. Its agent's
	// program is refused to change them. It ends with ctx. Nil is none.
	HeldFiles func(ctx context.Context, agentID, contextID string, files []string) ([]HeldFile, error)

	ContextTTL time.Duration // an unused context expires after it: 30 days
	TaskTTL    time.Duration // an ended task is removed after it: 90 days
	MaxTasks   int           // above it the oldest ended tasks are removed: 200,000

	ProbeInterval time.Duration // of health probes: 30 s
	ProbeTimeout  time.Duration // of one probe: 20 s

	BreakerFailures int           // consecutive failed runs that open an agent's circuit: 5
	BreakerPause    time.Duration // until the open circuit admits a trial: 30 s

	// Trace bounds the traces of turns. Secrets are texts that must not be in them, besides those of the environment.
	Trace   TraceConfig
	Secrets []string

	// MaxIdleSessions bounds the sessions that stay open between turns: 16. The least
	// recently used is closed first, and resumed by its next turn.
	MaxIdleSessions int
	// MaxHistory and MaxTaskBytes bound one task: 1,000 messages, 32 MiB. Beyond them the oldest messages except the
	// first are dropped, and artifacts omitted, with a notice in the task's metadata.
	MaxHistory   int
	MaxTaskBytes int
}

// Agent is one agent of a hub, with its driver.
type Agent struct {
	Definition runner.Definition
	Runner     runner.Agent
	// Durable agents keep what they were given while the hub is stopped, as an open session does. Turns that a stop or a
	// crash cuts off are repeated, with the same runner.Turn.Number, as soon as the agent is registered again; until then
	// their tasks stay as they are. A task's [MetaDeadline] says how long it may wait in all.
	Durable bool
	// Reported agents are probed when they are registered and updated, and when somebody asks, but not at intervals: whoever
	// registers one calls [Hub.Update] when its health changes. The probe must not block.
	Reported bool
	// Residence says what the agent is and where. Its zero value is a program that the hub starts.
	Residence Residence
}

func (c Config) withDefaults() (Config, error) {
	const day = 24 * time.Hour
	defaults.Set(&c.ContextTTL, 30*day)
	defaults.Set(&c.TaskTTL, 90*day)
	defaults.Set(&c.MaxTasks, 200_000)
	defaults.Set(&c.Trace.MaxBytes, 256<<10)
	defaults.Set(&c.Trace.TotalBytes, 1<<30)
	defaults.Set(&c.Trace.TTL, 90*day)
	c.Trace.MaxBytes = max(c.Trace.MaxBytes, minTraceBytes)
	defaults.Set(&c.ProbeInterval, 30*time.Second)
	defaults.Set(&c.ProbeTimeout, 20*time.Second)
	defaults.Set(&c.BreakerFailures, 5)
	defaults.Set(&c.BreakerPause, 30*time.Second)
	defaults.Set(&c.MaxIdleSessions, 16)
	defaults.Set(&c.MaxHistory, 1000)
	defaults.Set(&c.MaxTaskBytes, 32<<20)
	c.Name = cmp.Or(c.Name, "local")
	if !validName().MatchString(c.Name) {
		return c, &Error{Code: CodeInvalid, Subject: "name", Message: fmt.Sprintf("the hub's name %q is not 1 to 32 letters, digits, - or _", c.Name)}
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return c, nil
}

var validName = text.Pattern(`^[A-Za-z0-9_-]{1,32}$`)

// Hub runs tasks on agents. All methods are safe for concurrent use.
type Hub struct {
	cfg     Config
	log     *slog.Logger
	started time.Time
	store   store
	index   *index
	agents  agents
	cache   *taskCache
	pool    *sessions
	expired expiredContexts
	meters  meters

	writes *semaphore.Weighted // of large tasks, see reserveWrite

	freeSpace func(dir string) (uint64, error) // of the disk of a directory, in bytes

	// base is the context of turns, which Close cancels.
	base context.Context
	stop context.CancelCauseFunc
	// background is the context of probes and upkeep, which end first.
	background     context.Context
	stopBackground context.CancelFunc
	wg             sync.WaitGroup // goroutines of turns, probes, upkeep and writes

	titles    titles
	accepting atomic.Int64 // messages that are becoming tasks
	draining  atomic.Bool  // see Drain
	holding   holding

	mu        sync.Mutex
	live      map[a2a.TaskID]*task    // every user of a task holds a reference
	suspended map[string][]a2a.TaskID // of durable agents that are not registered, by agent; see resume
	delegated delegated               // see Cancel
	closing   bool
	closed    chan struct{} // closed when Close is done
	onTurn    func(a2a.TaskID)

	once sync.Mutex // held between the lookup of an idempotency key and the creation of its task

	onAgents handlers.List[func()] // not under mu: circuits call it under their own lock
}

// Reasons for the end of a turn, as causes of its context; process.ErrRunTime is another.
var (
	errCanceled = errors.New("canceled by the user")
	errStopping = errors.New("the hub stopped")
	errRemoved  = errors.New("the agent was removed")
)

// New starts a hub: it reads the store, fails the tasks that a crash has interrupted, and starts to probe its agents
// in the background. The caller closes the hub, and the bus after it.
func New(ctx context.Context, cfg Config) (*Hub, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	var st store = cmp.Or(cfg.Memory, &Memory{})
	if cfg.Bus != nil {
		js, err := openJetStream(ctx, cfg.Bus, cfg.Name, cfg.Trace.TTL)
		if err != nil {
			return nil, &Error{Code: CodeInternal, Message: "cannot open the hub's store", Err: err}
		}
		js.log, js.headsDir, js.ahead = cfg.Logger, cfg.DataDir, cfg.Heads
		st = js
		cfg.Trace.MaxBytes = min(cfg.Trace.MaxBytes, js.piece)
	}
	return newHub(ctx, cfg, st)
}

func newHub(ctx context.Context, cfg Config, st store) (*Hub, error) {
	h := &Hub{
		cfg:       cfg,
		log:       cfg.Logger,
		started:   time.Now(),
		store:     st,
		freeSpace: local.FreeSpace,
		writes:    newWrites(),
		index:     newIndex(),
		cache:     newTaskCache(256, 8<<20),
		live:      map[a2a.TaskID]*task{},
		delegated: delegated{},
		suspended: map[string][]a2a.TaskID{},
		agents:    agents{byID: map[string]*agent{}},
		expired:   expiredContexts{at: map[string]time.Time{}},
		closed:    make(chan struct{}),
	}
	h.pool = newSessions(h)
	h.base, h.stop = context.WithCancelCause(context.Background())
	h.background, h.stopBackground = context.WithCancel(context.Background())
	if err := h.restore(ctx); err != nil {
		return nil, err
	}
	for _, a := range cfg.Agents {
		if a.Definition.Disabled {
			continue
		}
		if err := h.register(a); err != nil {
			h.stopBackground()
			h.wg.Wait()
			return nil, err
		}
	}
	h.wg.Go(func() { h.upkeep(h.background) })
	return h, nil
}

// OnTurn sets a function that the hub calls whenever a task begins or resumes, before
// any of its events, so that a watcher of some tasks can subscribe. It is called
// concurrently, and for what the hub has resumed already. It must not block, and must not call the hub in the same goroutine.
func (h *Hub) OnTurn(f func(a2a.TaskID)) {
	h.mu.Lock()
	h.onTurn = f
	live := slices.Collect(maps.Keys(h.live))
	h.mu.Unlock()
	for _, id := range live {
		f(id)
	}
}

// OnAgents adds a function that the hub calls whenever an agent is added, removed or updated, or its health may have
// changed by more than the times of the last probe. It is called concurrently. It must not block, and must not call the hub in the same goroutine.
func (h *Hub) OnAgents(f func()) {
	h.onAgents.Add(f)
}

func (h *Hub) agentsChanged() {
	for _, f := range h.onAgents.All() {
		(*f)()
	}
}

// Busy reports whether a task has neither ended nor waits for a person.
func (h *Hub) Busy() bool {
	active, _ := h.index.totals()
	return active > 0
}

// Status returns a summary of the hub.
func (h *Hub) Status() Status {
	active, total := h.index.totals()
	return Status{
		Version: h.cfg.Version, StartedAt: h.started, Agents: h.Agents(), ActiveTasks: active, TotalTasks: total,
	}
}

// Close rejects new messages, ends the running turns (their tasks fail with the reason), closes all sessions and
// returns when all processes have ended and everything is stored. When ctx ends first, it returns an error of
// CodeTimeout and the shutdown continues. The bus may be closed afterwards.
func (h *Hub) Close(ctx context.Context) error {
	h.mu.Lock()
	first := !h.closing
	h.closing = true
	h.mu.Unlock()
	if first {
		h.stopHold()
		h.stopBackground()
		h.stop(errStopping)
		go func() {
			defer close(h.closed)
			for _, a := range h.agents.all() {
				a.failWaiting(errStopping)
			}
			h.wg.Wait()
			h.pool.closeAll()
		}()
	}
	select {
	case <-h.closed:
		return nil
	case <-ctx.Done():
		return &Error{Code: CodeTimeout, Message: "the hub did not stop in time: agents are still ending", Err: ctx.Err()}
	}
}

// acquire returns a task with a reference that keeps it in memory: the live one, or one read from the store.
func (h *Hub) acquire(ctx context.Context, id a2a.TaskID) (*task, error) {
	for {
		if t := h.acquireLive(id); t != nil {
			return t, nil
		}
		rec, err := h.read(ctx, id)
		if err != nil {
			return nil, err
		}
		if t := h.revive(id, rec); t != nil {
			return t, nil
		}
		if err := ctx.Err(); err != nil {
			return nil, contextError(err)
		}
	}
}

// acquireLive returns a live task with a reference, nil if it is not live.
func (h *Hub) acquireLive(id a2a.TaskID) *task {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.live[id]
	if t != nil {
		t.refs++
	}
	return t
}

// revive makes a stored task live, or returns nil if it has changed since it was read.
func (h *Hub) revive(id a2a.TaskID, rec record) *task {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.live[id]; t != nil {
		t.refs++
		return t
	}
	if rec.Status.Timestamp == nil {
		return nil
	}
	e := h.index.entryAt(id, rec.Status.Timestamp.UnixNano())
	if e == nil {
		return nil
	}
	t := newTask(h, e, rec)
	t.refs = 1
	h.live[id] = t
	return t
}

// release drops a reference.
func (h *Hub) release(t *task) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t.refs--
	if t.refs == 0 {
		delete(h.live, t.id)
	}
}

// retain adds a reference; the caller holds one.
func (h *Hub) retain(t *task) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t.refs++
}

// read returns a task that is not live, from the cache or the store.
func (h *Hub) read(ctx context.Context, id a2a.TaskID) (record, error) {
	if rec, ok := h.cache.get(id); ok {
		return rec, nil
	}
	hd, ok := h.index.get(id)
	if !ok {
		return record{}, taskNotFound(id)
	}
	body, err := h.store.task(ctx, id)
	switch {
	case errors.Is(err, errNotStored):
		return record{}, taskNotFound(id)
	case ctx.Err() != nil:
		return record{}, contextError(ctx.Err())
	case err != nil:
		return record{}, &Error{Code: CodeInternal, Message: fmt.Sprintf("cannot read task %s", id), Err: err}
	}
	rec, err := decodeRecord(body)
	if err != nil {
		return record{}, &Error{Code: CodeInternal, Message: fmt.Sprintf("task %s is stored in a form that cannot be read", id), Err: err}
	}
	rec.summarize(time.Unix(0, hd.Created))
	return rec, nil
}

func taskNotFound(id a2a.TaskID) *Error {
	return &Error{Code: CodeTaskNotFound, Message: fmt.Sprintf("there is no task %q", text.Clip(string(id), 64))}
}

// contextError returns the error for a caller whose context has ended.
func contextError(err error) *Error {
	return &Error{Code: CodeTimeout, Message: "the caller's time is over", Err: err}
}
