package hub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub/events"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// agent is one agent of the hub: its definition, its queue and its health.
type agent struct {
	hub        *Hub
	id         string
	run        runner.Agent
	durable    bool // see Agent.Durable
	reported   bool // see Agent.Reported
	configured bool // the hub starts with it
	registered time.Time
	health     *health
	cancel     context.CancelFunc // stops its probes in the background

	mu      sync.Mutex
	def     *runner.Definition // see definition; it is replaced, never changed
	at      Residence
	moved   time.Time // when it became reachable, or busy or not, last
	model   string    // that answered last
	queue   queue
	removed bool
}

// definition returns the current definition: [Hub.Update] may change all but the id.
func (a *agent) definition() runner.Definition {
	a.mu.Lock()
	defer a.mu.Unlock()
	return *a.def
}

func (a *agent) residence() Residence {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.at
}

// agents is the registry, in order of registration.
type agents struct {
	mu   sync.RWMutex
	byID map[string]*agent
	list []*agent
}

func (r *agents) get(id string) *agent {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.byID[id]
}

func (r *agents) all() []*agent {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Clone(r.list)
}

func (r *agents) add(a *agent) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byID[a.id] != nil {
		return false
	}
	r.byID[a.id] = a
	r.list = append(r.list, a)
	return true
}

func (r *agents) remove(id string) *agent {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.byID[id]
	delete(r.byID, id)
	r.list = slices.DeleteFunc(r.list, func(x *agent) bool { return x == a })
	return a
}

// Register adds an agent to a running hub. The error is CodeInvalid if its ID is malformed or in use.
func (h *Hub) Register(a Agent) error {
	if err := h.begin(); err != nil {
		return err
	}
	defer h.wg.Done()
	return h.register(a)
}

func (h *Hub) register(a Agent) error {
	if !runner.ValidID(a.Definition.ID) {
		return &Error{Code: CodeInvalid, Subject: "id",
			Message: fmt.Sprintf("%q cannot be an agent's id: use a to z, 0 to 9, '.', '_' and '-', at most 64", text.Clip(a.Definition.ID, 80))}
	}
	if a.Runner == nil {
		return &Error{Code: CodeInvalid, Subject: "driver", Message: fmt.Sprintf("agent %s has no driver", a.Definition.ID)}
	}
	def := a.Definition // a copy, so that the rest of a is not kept with it
	def.Limits = def.Limits.WithDefaults()
	ag := &agent{
		hub: h, id: def.ID, def: &def, at: a.residence(), run: a.Runner, durable: a.Durable, reported: a.Reported,
		configured: h.configured(def.ID) && !a.Durable,
		registered: time.Now().UTC(),
		cancel:     func() {},
		queue:      queue{agent: def.ID, concurrency: def.Limits.Concurrency, limit: def.Limits.Queue},
	}
	ag.health = newHealth(ag)
	probing := h.background
	if !ag.reported {
		probing, ag.cancel = context.WithCancel(h.background)
	}
	if !h.agents.add(ag) {
		ag.cancel()
		return &Error{Code: CodeInvalid, Subject: "id", Message: fmt.Sprintf("there is an agent %s already", def.ID)}
	}
	if !ag.reported {
		h.wg.Go(func() { ag.health.watch(probing) })
	}
	h.resume(ag)
	h.cfg.Events.Publish(events.Event{Kind: events.AgentAdded, Agent: def.ID})
	if ag.reported {
		ag.health.update(probing)
	}
	h.agentsChanged()
	return nil
}

// Update replaces an agent's definition: its name, skills, tier and limits. Its driver, its sessions and its tasks
// stay; the new limits apply to running tasks too. The error is CodeAgentNotFound.
func (h *Hub) Update(d runner.Definition) error {
	if err := h.begin(); err != nil {
		return err
	}
	defer h.wg.Done()
	a := h.agents.get(d.ID)
	if a == nil {
		return h.agentNotFound(d.ID)
	}
	d.Limits = d.Limits.WithDefaults()
	a.mu.Lock()
	a.def = &d
	a.queue.concurrency, a.queue.limit = d.Limits.Concurrency, d.Limits.Queue
	next := a.queue.next()
	a.mu.Unlock()
	a.start(next...)
	h.cfg.Events.Publish(events.Event{Kind: events.AgentUpdated, Agent: d.ID})
	if a.reported {
		a.health.update(h.background)
	} else {
		a.health.probeSoon()
	}
	h.agentsChanged()
	return nil
}

// Deregister removes an agent: its tasks fail with the reason, its sessions are closed.
// It returns when all its processes have ended, or ctx ends.
func (h *Hub) Deregister(ctx context.Context, id string) error {
	a := h.agents.remove(id)
	if a == nil {
		return h.agentNotFound(id)
	}
	a.cancel()
	a.mu.Lock()
	a.removed = true
	a.mu.Unlock()
	h.cfg.Events.Publish(events.Event{Kind: events.AgentRemoved, Agent: id})
	h.agentsChanged()
	a.failWaiting(errRemoved)
	var errs []error
	for _, t := range h.liveWhere(func(t *task) bool { return t.agent == a }) {
		t.mu.Lock()
		err := t.endTurns(ctx, errRemoved)
		if err == nil {
			t.mu.Unlock()
		}
		errs = append(errs, err)
		h.release(t)
	}
	return errors.Join(append(errs, h.pool.closeWhere(ctx, func(s *session) bool { return s.key.agent == id }))...)
}

// liveWhere returns the tasks in memory that match, with a reference to each.
func (h *Hub) liveWhere(match func(*task) bool) []*task {
	h.mu.Lock()
	defer h.mu.Unlock()
	var ts []*task
	for _, t := range h.live {
		if match(t) {
			t.refs++
			ts = append(ts, t)
		}
	}
	return ts
}

// Agents returns all agents in the order of their registration.
func (h *Hub) Agents() []AgentInfo {
	all := h.agents.all()
	infos := make([]AgentInfo, len(all))
	for i, a := range all {
		infos[i] = a.info()
	}
	return infos
}

// Agent returns one agent; the error is CodeAgentNotFound.
func (h *Hub) Agent(id string) (AgentInfo, error) {
	a := h.agents.get(id)
	if a == nil {
		return AgentInfo{}, h.agentNotFound(id)
	}
	return a.info(), nil
}

// HasAgent reports whether an agent has an id.
func (h *Hub) HasAgent(id string) bool { return h.agents.get(id) != nil }

func (h *Hub) agentNotFound(id string) *Error {
	err := &Error{Code: CodeAgentNotFound, Message: fmt.Sprintf("there is no agent %q", text.Clip(id, 64)),
		Remedy: "the list of agents names those there are"}
	var ids []string
	for _, a := range h.agents.all() {
		ids = append(ids, a.id)
		if handle := a.residence().Handle; handle != a.id {
			ids = append(ids, handle)
		}
	}
	if near := text.Nearest(id, ids); near != "" {
		err.Message += fmt.Sprintf("; did you mean %q?", near)
	}
	return err
}

// enqueue starts a task's next turn, now or when it is first in the queue. The caller's
// reference to the task passes to the turn.
func (a *agent) enqueue(t *task) error {
	a.mu.Lock()
	if a.removed {
		a.mu.Unlock()
		return a.hub.agentNotFound(a.id)
	}
	start, err := a.queue.push(t)
	a.mu.Unlock()
	if start {
		a.start(t)
	}
	return err
}

// resume is enqueue for a task that was admitted before the hub stopped: the queue's limit does not count.
func (a *agent) resume(t *task) error {
	a.mu.Lock()
	if a.removed {
		a.mu.Unlock()
		return a.hub.agentNotFound(a.id)
	}
	start := a.queue.pushBeyond(t)
	for i := range t.waiting[1:] {
		t.waiting[1+i].reserve = true
		a.queue.waiting++
	}
	a.mu.Unlock()
	if start {
		a.start(t)
	}
	return nil
}

// start runs tasks that the queue has admitted.
func (a *agent) start(tasks ...*task) {
	for _, t := range tasks {
		a.hub.wg.Go(func() {
			defer a.hub.release(t)
			t.run()
		})
	}
}

// turnsDone ends a task's turns and starts the next tasks.
func (a *agent) turnsDone(t *task) {
	a.mu.Lock()
	next := a.queue.done(t.contextID)
	a.mu.Unlock()
	a.start(next...)
}

// reserve counts a message that waits for its task's running turn; unreserve ends its wait.
func (a *agent) reserve() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.queue.reserve()
}

func (a *agent) unreserve() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.queue.waiting--
}

// dequeue removes a waiting task from the queue; false if it does not wait.
func (a *agent) dequeue(t *task) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.queue.remove(t)
}

// withdraw withdraws a task whose turn ends before it has begun, if it is canceled.
func (a *agent) withdraw(ctx context.Context, id a2a.TaskID, turn int, cause error) {
	if w, ok := a.run.(runner.Withdrawer); ok && errors.Is(cause, errCanceled) {
		w.Withdraw(ctx, string(id), turn)
	}
}

// failWaiting ends every waiting task.
func (a *agent) failWaiting(cause error) {
	a.mu.Lock()
	held := a.queue.held && a.hub.draining.Load()
	waiting := a.queue.drain()
	a.mu.Unlock()
	for _, t := range waiting {
		if held && errors.Is(cause, errStopping) {
			t.keep()
		}
		t.endWaiting(cause)
		a.hub.release(t)
	}
}
