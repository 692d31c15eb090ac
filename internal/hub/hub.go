package hub

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// Config says what a hub is made of. Zero fields mean the default in the
// comment.
type Config struct {
	// Bus stores tasks, contexts and sessions. Without one nothing outlives the
	// hub: for tests and for the conformance mode.
	Bus *bus.Bus
	// Name tells hubs apart that share one bus: [A-Za-z0-9_-]{1,32}, "local".
	Name string
	// Version is shown in Status.
	Version string
	// DataDir holds the working directories of contexts, in "contexts", and
	// worktrees, in "worktrees". It is needed where an agent's working directory
	// policy is not fixed.
	DataDir string
	// WorkRoots are directories outside DataDir that agents may work in, by
	// definition or because a message asks for it: none.
	WorkRoots []string
	// Agents are registered at the start, but for those that are disabled.
	Agents []Agent
	// Logger for starts and ends of tasks and for what goes wrong in the
	// background; never for the text of messages. Nil discards.
	Logger *slog.Logger

	// SessionEnv returns what the processes of an agent get in their environment, as
	// NAME=value, for a conversation. It must not block. Nil for nothing.
	SessionEnv func(agentID, contextID string) []string

	ContextTTL time.Duration // a context unused that long expires: 30 days
	TaskTTL    time.Duration // an ended task unchanged that long is removed: 90 days
	MaxTasks   int           // beyond, the oldest ended tasks are removed: 200,000

	ProbeInterval time.Duration // of health probes: 30 s
	ProbeTimeout  time.Duration // of one probe: 20 s

	BreakerFailures int           // consecutive failed runs that open an agent's circuit: 5
	BreakerPause    time.Duration // until a trial is let through: 30 s

	// MaxIdleSessions bounds the sessions that are kept open between turns; the
	// longest unused is closed first, and resumed when it is needed: 16.
	MaxIdleSessions int
	// MaxHistory and MaxTaskBytes bound one task. Beyond, the oldest messages
	// but the first are dropped, and artifacts left out, with a notice in the
	// task's metadata: 1,000 messages, 32 MiB.
	MaxHistory   int
	MaxTaskBytes int
}

// Agent is one agent of a hub: what it is, and what runs it.
type Agent struct {
	Definition runner.Definition
	Runner     runner.Agent
}

func (c Config) withDefaults() (Config, error) {
	set := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	setInt := func(i *int, v int) {
		if *i <= 0 {
			*i = v
		}
	}
	const day = 24 * time.Hour
	set(&c.ContextTTL, 30*day)
	set(&c.TaskTTL, 90*day)
	setInt(&c.MaxTasks, 200_000)
	set(&c.ProbeInterval, 30*time.Second)
	set(&c.ProbeTimeout, 20*time.Second)
	setInt(&c.BreakerFailures, 5)
	set(&c.BreakerPause, 30*time.Second)
	setInt(&c.MaxIdleSessions, 16)
	setInt(&c.MaxHistory, 1000)
	setInt(&c.MaxTaskBytes, 32<<20)
	if c.Name == "" {
		c.Name = "local"
	}
	if !validName(c.Name) {
		return c, &Error{Code: CodeInvalid, Subject: "name", Message: fmt.Sprintf("the hub's name %q is not 1 to 32 letters, digits, - or _", c.Name)}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

func validName(s string) bool {
	for _, r := range s {
		if !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '-' || r == '_') {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= 32
}

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
	expired *expiredContexts

	// base ends when the hub gives up waiting for its turns.
	base context.Context
	stop context.CancelCauseFunc
	// background is that of probes and upkeep, which end first.
	background context.Context
	quiet      context.CancelFunc
	wg         sync.WaitGroup // goroutines of turns, probes, upkeep and flushes

	mu      sync.Mutex
	live    map[a2a.TaskID]*task // whoever uses a task holds a reference
	descent descent              // see Cancel
	closing bool
	closed  chan struct{} // closed when Close is done
	onTurn  func(a2a.TaskID)

	once sync.Mutex // between looking for the task of an idempotency key and making it

	onAgents atomic.Pointer[[]func()] // no lock: circuits call it from within theirs
}

// Reasons for the end of a turn, as causes of its context.
var (
	errCanceled = errors.New("canceled by the user")
	errTimeout  = errors.New("the time for the run is over")
	errStopping = errors.New("the hub stopped")
	errRemoved  = errors.New("the agent was removed")
)

// New starts a hub: it reads what is stored, ends the tasks that a crash cut
// off, and begins to probe its agents in the background. The caller closes it,
// and the bus after it.
func New(ctx context.Context, cfg Config) (*Hub, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	var st store = newMemory()
	if cfg.Bus != nil {
		if st, err = openJetStream(ctx, cfg.Bus, cfg.Name); err != nil {
			return nil, &Error{Code: CodeInternal, Message: "cannot open the hub's store", Err: err}
		}
	}
	return newHub(ctx, cfg, st)
}

func newHub(ctx context.Context, cfg Config, st store) (*Hub, error) {
	h := &Hub{
		cfg:     cfg,
		log:     cfg.Logger,
		started: time.Now(),
		store:   st,
		index:   newIndex(),
		cache:   newTaskCache(256, 8<<20),
		live:    map[a2a.TaskID]*task{},
		descent: descent{},
		closed:  make(chan struct{}),
	}
	h.pool = newSessions(h)
	h.expired = newExpiredContexts()
	h.base, h.stop = context.WithCancelCause(context.Background())
	h.background, h.quiet = context.WithCancel(context.Background())
	if err := h.restore(ctx); err != nil {
		return nil, err
	}
	for _, a := range cfg.Agents {
		if a.Definition.Disabled {
			continue
		}
		if err := h.register(a); err != nil {
			h.quiet()
			h.wg.Wait()
			return nil, err
		}
	}
	h.wg.Go(func() { h.upkeep(h.background) })
	return h, nil
}

// OnTurn sets a function that the hub calls whenever a task begins or resumes,
// before anything of it can be seen: one who watches some tasks subscribes
// there. It is called by several goroutines, also at once. It must not block, and
// must not call the hub in the same goroutine.
func (h *Hub) OnTurn(f func(a2a.TaskID)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.onTurn = f
}

// OnAgents adds a function that the hub calls whenever an agent comes or goes,
// or what is known of its fitness may have changed: by a probe, a run or its
// circuit. It is called by several goroutines, also at once. It must not block, and
// must not call the hub in the same goroutine.
func (h *Hub) OnAgents(f func()) {
	for {
		old := h.onAgents.Load()
		var all []func()
		if old != nil {
			all = *old
		}
		all = append(slices.Clip(all), f)
		if h.onAgents.CompareAndSwap(old, &all) {
			return
		}
	}
}

func (h *Hub) agentsChanged() {
	if all := h.onAgents.Load(); all != nil {
		for _, f := range *all {
			f()
		}
	}
}

// Status returns the hub at a glance.
func (h *Hub) Status() Status {
	active, total := h.index.totals()
	return Status{
		Version:     h.cfg.Version,
		StartedAt:   h.started,
		Agents:      h.Agents(),
		ActiveTasks: active,
		TotalTasks:  total,
	}
}

// Close takes no more messages, ends the turns that run (their tasks fail with
// the reason), closes all sessions and returns when no process is left and
// everything is stored. When ctx ends first it returns ctx's error, and what is
// left goes on ending. The bus may be closed afterwards.
func (h *Hub) Close(ctx context.Context) error {
	h.mu.Lock()
	first := !h.closing
	h.closing = true
	h.mu.Unlock()
	if first {
		h.quiet()
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

// acquire returns a task with a reference to it that keeps it in memory: the
// live one, or one read from the store.
func (h *Hub) acquire(ctx context.Context, id a2a.TaskID) (*task, error) {
	for {
		h.mu.Lock()
		if t := h.live[id]; t != nil {
			t.refs++
			h.mu.Unlock()
			return t, nil
		}
		h.mu.Unlock()
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

// revive brings a stored task to life, unless it has changed since it was read.
func (h *Hub) revive(id a2a.TaskID, rec record) *task {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.live[id]; t != nil {
		t.refs++
		return t
	}
	e, ok := h.index.entry(id)
	if !ok || rec.Status.Timestamp == nil || !h.index.unchanged(e, *rec.Status.Timestamp) {
		return nil
	}
	t := newTask(h, e, rec)
	t.refs = 1
	h.live[id] = t
	return t
}

// release gives a reference back.
func (h *Hub) release(t *task) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t.refs--
	if t.refs == 0 {
		delete(h.live, t.id)
	}
}

// retain adds a reference for somebody who outlives the holder of one.
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
	if _, ok := h.index.get(id); !ok {
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
	return rec, nil
}

func taskNotFound(id a2a.TaskID) *Error {
	return &Error{Code: CodeTaskNotFound, Message: fmt.Sprintf("there is no task %q", clip(string(id), 64))}
}

// contextError makes an error of a caller that waits no longer.
func contextError(err error) *Error {
	return &Error{Code: CodeTimeout, Message: "the caller's time is over", Err: err}
}

// clip shortens a text of a user for a message.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n] + "…"
}
