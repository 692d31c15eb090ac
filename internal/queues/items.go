package queues

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub"
)

const (
	// agentPrefix begins the ids of the queues as agents. No session's name has a dot.
	agentPrefix = "queue."
	maxAgentID  = 64
	// maxPending bounds the items that wait to get a task. Of more the records are read again.
	maxPending = 10_000
	// unreadTime is how long a change that was announced is looked for: it may never be stored.
	unreadTime = 10 * time.Second
	// maxGenerations bounds the tasks of an item that are searched for the latest: other programs number the retries, too.
	maxGenerations = 100
	// retryPause is how long items wait for another try to give them a task.
	retryPause = time.Second
)

// Network is a hub's access to the items of its computer: an *agentnet.Network.
type Network interface {
	// WatchItems calls visit with all items, then with those that change, until ctx ends.
	WatchItems(ctx context.Context, visit func(taskID string, generation int)) error
	TrackItem(ctx context.Context, taskID string) (t work.Tracked, found bool, err error)
	// FollowItem calls visit with an item, and again after each change, until visit returns false or ctx ends.
	FollowItem(ctx context.Context, taskID string, visit func(work.Tracked) bool) error
	WithdrawItem(ctx context.Context, taskID string) error
	Queues(ctx context.Context) ([]string, error)
}

// Submitter submits items: an *agentnet.Agent.
type Submitter interface {
	Submit(ctx context.Context, s work.Submission) (taskID string, err error)
}

// Items makes each queue an agent of the hub, and each item a task of its queue: it is submitted until a worker claims
// the item, then working, and ends with the item. A task that is sent to a queue submits an item. Items is safe for
// concurrent use.
type Items struct {
	hub    *hub.Hub
	log    *slog.Logger
	kick   chan struct{} // of capacity 1; has a value when there is something pending
	rescan chan struct{} // of capacity 1; has a value when all items are to be noted again

	ready     chan struct{} // closed when the fields below are set
	net       Network
	submitter Submitter

	mu      sync.Mutex
	queues  map[string]bool // registered
	covered map[string]int  // the generations of items that a turn follows now
	pending map[string]hint // of items that may need a task, by their ids
	missed  bool            // pending has had no room
}

// hint is a generation of an item that may have no task.
type hint struct {
	generation int
	until      time.Time // when it is given up, if the record is not that of the generation by then
}

// OpenItems registers the queues whose tasks an earlier run of the hub has left open, so that they go on. It does not block.
func OpenItems(h *hub.Hub, log *slog.Logger) *Items {
	s := &Items{hub: h, log: log.With("component", "queues"), kick: make(chan struct{}, 1), rescan: make(chan struct{}, 1), ready: make(chan struct{}),
		queues: map[string]bool{}, covered: map[string]int{}, pending: map[string]hint{}}
	for _, id := range h.Suspended() {
		if strings.HasPrefix(id, agentPrefix) {
			s.register(id, strings.TrimPrefix(id, agentPrefix))
		}
	}
	return s
}

// Run follows the items until ctx ends. Call it once.
func (s *Items) Run(ctx context.Context, net Network, submitter Submitter) {
	s.net, s.submitter = net, submitter
	close(s.ready)
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { s.watch(ctx) })
	later := make(map[string]hint)
	var again <-chan time.Time // nil if nothing waits
	for {
		select {
		case <-s.kick:
		case <-again:
			again, later = nil, s.ensureAll(ctx, later)
		case <-ctx.Done():
			return
		}
		maps.Copy(later, s.ensureAll(ctx, s.take()))
		if len(later) > maxPending {
			clear(later)
			wait.Nudge(s.rescan)
		}
		if again == nil && len(later) > 0 {
			again = time.After(retryPause)
		}
	}
}

// watch notes items that may need a task, until ctx ends.
func (s *Items) watch(ctx context.Context) {
	retry := wait.Backoff{First: 100 * time.Millisecond, Most: maxPause}
	for ctx.Err() == nil {
		names, err := s.net.Queues(ctx)
		if err == nil {
			for _, name := range names {
				s.register(agentOf(name), name)
			}
			err = s.watchOnce(ctx)
		}
		if err != nil && ctx.Err() == nil {
			s.log.Debug("the items of the queues cannot be watched now", "error", err)
		}
		retry.Pause(ctx)
	}
}

// watchOnce notes all items and those that change, until ctx ends or all have to be noted again.
func (s *Items) watchOnce(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	waiting.Go(func() {
		select {
		case <-s.rescan:
			cancel()
		case <-ctx.Done():
		}
	})
	return s.net.WatchItems(ctx, s.note)
}

// note notes an item, unless a turn follows it.
func (s *Items) note(item string, generation int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if of, ok := s.covered[item]; ok && of >= generation {
		return
	}
	have, noted := s.pending[item]
	if len(s.pending) >= maxPending && !noted {
		s.missed = true
		return
	}
	s.pending[item] = hint{max(generation, have.generation), time.Now().Add(unreadTime)}
	wait.Nudge(s.kick)
}

// take returns the pending items, which are not pending then.
func (s *Items) take() map[string]hint {
	s.mu.Lock()
	defer s.mu.Unlock()
	items := s.pending
	s.pending = make(map[string]hint)
	if s.missed {
		s.missed = false
		wait.Nudge(s.rescan)
	}
	return items
}

// ensureAll gives tasks to items. It returns those that cannot have one yet.
func (s *Items) ensureAll(ctx context.Context, items map[string]hint) (later map[string]hint) {
	later = make(map[string]hint)
	full := false
	for item, of := range items {
		if full || ctx.Err() != nil {
			later[item] = of
			continue
		}
		done, read, err := s.ensure(ctx, item, of.generation)
		if !done && (read || err != nil || time.Now().Before(of.until)) {
			later[item] = of
		}
		if err != nil && ctx.Err() == nil {
			s.log.Debug("an item has no task yet", "item", item, "error", err)
		}
		full = hub.CodeOf(err) == hub.CodeUnavailable // of this queue; the order is another one the next time
	}
	return later
}

// agentOf returns the id of a queue as an agent.
func agentOf(queue string) string {
	if id := agentPrefix + queue; len(id) <= maxAgentID {
		return id
	}
	return agentPrefix + queue[:maxAgentID-len(agentPrefix)-9] + "-" + store.Digest(queue)[:8]
}

// offer registers the queue of a capability before it has items: it has a worker.
func (s *Items) offer(capability string) {
	if name, err := store.QueueName(capability); err == nil { // else the worker's claim says why
		s.register(agentOf(name), name)
	}
}

// register makes a queue an agent of the hub, unless it is one.
func (s *Items) register(id, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queues[id] {
		return
	}
	q := &queue{of: s, name: name}
	err := s.hub.Register(hub.Agent{Definition: q.definition(id), Runner: q, Durable: true, Reported: true, Residence: hub.Residence{Kind: hub.KindQueue, Hidden: true}})
	if err != nil {
		s.log.Error("a queue cannot be an agent", "agent", id, "error", err)
		return
	}
	s.queues[id] = true
}

// taskName returns the id of the task for an item's generation. The first task has the item's id if that is a UUID, as
// generated ones are.
func taskName(agent, item string, generation int) a2a.TaskID {
	if generation == 1 && uuid.Validate(item) == nil && len(item) == 36 {
		return a2a.TaskID(item)
	}
	return onceName(agent, item, generation)
}

func onceName(agent, item string, generation int) a2a.TaskID {
	return hub.OnceID(agent, fmt.Sprintf("item/%s/%d", store.Digest(item), generation))
}

// itemName returns the id of the item that a task of a queue submits.
func itemName(task string, turn int) string {
	if turn <= 1 {
		return task
	}
	return task + "." + strconv.Itoa(turn)
}

// submitted returns the id of the task that may have submitted an item.
func submitted(item string) a2a.TaskID {
	if task, turn, ok := strings.Cut(item, "."); ok && uuid.Validate(task) == nil {
		if _, err := strconv.Atoi(turn); err == nil {
			return a2a.TaskID(task)
		}
	}
	return a2a.TaskID(item)
}

// taskOf returns a task if it is one of a queue.
func (s *Items) taskOf(ctx context.Context, agent string, id a2a.TaskID) *a2a.Task {
	none := 0
	task, err := s.hub.Task(ctx, id, &none)
	if err != nil || task.Metadata[hub.MetaAgent] != agent {
		return nil
	}
	return task
}

// latest returns the latest task of an item with its generation, nil if it has none.
func (s *Items) latest(ctx context.Context, agent, item string, generation int) (*a2a.Task, int) {
	for g := generation; g > max(0, generation-maxGenerations); g-- {
		if task := s.taskOf(ctx, agent, onceName(agent, item, g)); task != nil {
			return task, g
		}
	}
	return s.taskOf(ctx, agent, submitted(item)), 1
}

// ensure gives an item a task, unless it has one. done is false if that has to wait; read is false if the record is not
// that of the generation yet: changes are announced before they are stored.
func (s *Items) ensure(ctx context.Context, item string, generation int) (done, read bool, err error) {
	t, found, err := s.net.TrackItem(ctx, item)
	if err != nil || !found || t.Generation < generation {
		return false, false, err
	}
	done, err = s.ensureTask(ctx, item, t)
	return done, true, err
}

func (s *Items) ensureTask(ctx context.Context, item string, t work.Tracked) (done bool, err error) {
	if t.State == work.Discarded {
		return true, nil
	}
	agent := agentOf(t.Capability)
	s.register(agent, t.Capability)
	open := t.State != work.Completed && t.State != work.Dead
	task, of := s.latest(ctx, agent, item, t.Generation)
	switch {
	case task == nil:
	case !task.Status.State.Terminal():
		// A task may be about to end with an earlier generation: then this one gets its own.
		return of >= t.Generation || s.covers(item, t.Generation), nil
	case task.Status.State == a2a.TaskStateCanceled && of == t.Generation && open: // the hub ended before it withdrew the item
		return true, s.net.WithdrawItem(ctx, item)
	case of >= t.Generation || !open:
		return true, nil
	}
	_, err = s.create(ctx, agent, t, task)
	return err == nil, err
}

// covers reports whether a turn follows an item's generation.
func (s *Items) covers(item string, generation int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.covered[item] >= generation
}

// cover notes that a turn follows an item's generation; 0 for its end.
func (s *Items) cover(item string, generation int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if generation == 0 {
		delete(s.covered, item)
		return
	}
	s.covered[item] = generation
}

// create stores the task of an item's generation. before is the task of an earlier one, or nil.
func (s *Items) create(ctx context.Context, agent string, t work.Tracked, before *a2a.Task) (*a2a.Task, error) {
	parts := []*a2a.Part{a2a.NewTextPart(cmp.Or(t.Description, t.TaskID))}
	var data map[string]any
	if len(t.ContextData) > 0 && json.Unmarshal(t.ContextData, &data) == nil && len(data) > 0 {
		parts = append(parts, a2a.NewDataPart(data))
	}
	msg := a2a.NewMessage(a2a.MessageRoleUser, parts...)
	msg.ContextID = uuid.NewSHA1(uuid.NameSpaceURL, []byte("parley:item:"+t.TaskID)).String()
	if before != nil {
		msg.ContextID = before.ContextID
	}
	msg.ID = fmt.Sprintf("item/%s/%d", store.Digest(t.TaskID), t.Generation)
	item := map[string]any{"taskId": t.TaskID, "capability": t.Capability, "generation": t.Generation}
	if from := agentName(s.hub, t.SubmitterGUID, t.SubmitterHandle); from != "" {
		item["submitter"] = from
	}
	req := hub.SendRequest{AgentID: agent, Message: msg, Metadata: map[string]any{MetaItem: item}, Once: taskName(agent, t.TaskID, t.Generation)}
	task, err := s.hub.Send(ctx, req)
	if hub.CodeOf(err) == hub.CodeInvalid && req.Once != onceName(agent, t.TaskID, t.Generation) { // another agent's task has the id
		req.Once = onceName(agent, t.TaskID, t.Generation)
		task, err = s.hub.Send(ctx, req)
	}
	if hub.CodeOf(err) == hub.CodeContextNotFound {
		again := *msg
		again.ContextID, req.Message = "", &again
		task, err = s.hub.Send(ctx, req)
	}
	return task, err
}

// origin returns the task of a claimed item as the origin of the task that works on it; nil if it has none.
func (s *Items) origin(ctx context.Context, claim *work.Claim) *hub.Delegation {
	if s == nil {
		return nil
	}
	select {
	case <-s.ready:
	case <-ctx.Done():
		return nil
	}
	if _, _, err := s.ensure(ctx, claim.TaskID, 1); err != nil {
		s.log.Warn("the task of an item is not known: the work on it is shown without it", "item", claim.TaskID, "error", err)
	}
	agent := agentOf(claim.Capability)
	task, _ := s.latest(ctx, agent, claim.TaskID, max(claim.Generation, 1))
	if task == nil || task.Status.State.Terminal() {
		return nil
	}
	return &hub.Delegation{By: agent, Context: task.ContextID, Task: task.ID, Chain: []string{agent}, Tasks: []a2a.TaskID{task.ID}}
}

// itemOf returns the item that a turn of a queue's task follows. own is true if the task submits it.
func (s *Items) itemOf(ctx context.Context, agent, task string, turn int) (item string, own bool) {
	t := s.taskOf(ctx, agent, a2a.TaskID(task))
	if t == nil || turn > 1 {
		return itemName(task, turn), true
	}
	m, _ := t.Metadata[MetaItem].(map[string]any)
	id, _ := m["taskId"].(string)
	generation, _ := strconv.Atoi(fmt.Sprint(m["generation"]))
	// Clients may send the same metadata, but do not choose the ids of tasks.
	if id != "" && slices.Contains([]a2a.TaskID{taskName(agent, id, generation), onceName(agent, id, generation)}, t.ID) {
		return id, false
	}
	return itemName(task, turn), true
}
