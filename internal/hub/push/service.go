package push

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/google/uuid"
	"golang.org/x/time/rate"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub"
)

// Tasks provides tasks and their events; *hub.Hub implements it.
type Tasks interface {
	Task(ctx context.Context, id a2a.TaskID, historyLength *int) (*a2a.Task, error)
	Subscribe(ctx context.Context, id a2a.TaskID) (*hub.Subscription, error)
}

// Options configure a [Service]. Tasks is required; other zero fields mean the default in the comment.
type Options struct {
	Tasks Tasks
	// Bus stores the configurations; without one they end with the process.
	Bus *bus.Bus
	// Name is the hub's, as hub.Config.Name: "local".
	Name string
	// AllowPrivate allows webhooks on this machine and in private networks.
	AllowPrivate bool
	Timeout      time.Duration // of one request: 15 s
	FirstPause   time.Duration // before the first retry: 1 s
	MaxPause     time.Duration // before a retry: 5 min
	GiveUp       time.Duration // on one notification: 24 h
	Queue        int           // waiting notifications of one webhook: 256
	Concurrency  int           // concurrent requests: 16
	MaxBody      int           // bytes of a notification: 1 MiB
	Logger       *slog.Logger  // never receives secrets; nil discards
}

func (o Options) withDefaults() Options {
	o.Name = cmp.Or(o.Name, "local")
	o.Timeout = cmp.Or(o.Timeout, 15*time.Second)
	o.FirstPause = cmp.Or(o.FirstPause, time.Second)
	o.MaxPause = cmp.Or(o.MaxPause, 5*time.Minute)
	o.GiveUp = cmp.Or(o.GiveUp, 24*time.Hour)
	o.Queue = cmp.Or(o.Queue, 256)
	o.Concurrency = cmp.Or(o.Concurrency, 16)
	o.MaxBody = cmp.Or(o.MaxBody, 1<<20)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	return o
}

// Service keeps configurations and sends notifications. Its methods are safe for concurrent use.
type Service struct {
	opts   Options
	log    *slog.Logger
	store  store
	client *http.Client
	calls  chan struct{} // holds one token for each running request
	// refusals limits the log.
	refusals rate.Sometimes

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup // watching and sending goroutines

	mu     sync.Mutex
	closed bool
	tasks  map[a2a.TaskID]*watched
	total  int
	done   []*target // with nothing left to send, the oldest first
}

// watched is a task with configurations.
type watched struct {
	targets  []*target // in the order of their ids
	watching bool      // a goroutine watches the task's turns
	again    bool      // another turn has begun since that goroutine subscribed
}

// maxDone is how many configurations of ended tasks are kept for clients to read.
const maxDone = 1000

// Open reads the configurations and sends outstanding notifications. The hub must call
// [Service.TurnStarted] (hub.OnTurn) before it accepts messages.
func Open(ctx context.Context, opts Options) (*Service, error) {
	opts = opts.withDefaults()
	var st store = noStore{}
	if opts.Bus != nil {
		kv, err := openStore(ctx, opts.Bus, opts.Name)
		if err != nil {
			return nil, &Error{Code: CodeInternal, Message: "cannot open the store of push configurations", Err: err}
		}
		st = kv
	}
	s := &Service{
		opts: opts, log: opts.Logger, store: st, client: newClient(opts.AllowPrivate, opts.Timeout),
		calls: make(chan struct{}, opts.Concurrency), tasks: map[a2a.TaskID]*watched{},
		refusals: rate.Sometimes{First: 10, Interval: 10 * time.Second},
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	if err := st.load(ctx, s.restore); err != nil {
		s.stop()
		return nil, &Error{Code: CodeInternal, Message: "cannot read the push configurations", Err: err}
	}
	var left []a2a.TaskID
	for id, f := range s.tasks {
		if slices.ContainsFunc(f.targets, func(t *target) bool { return !t.rec.Done }) {
			left = append(left, id)
		}
	}
	s.wg.Go(func() {
		for _, id := range left {
			s.catchUp(id)
		}
	})
	return s, nil
}

// restore adds a stored configuration. It needs no lock: nothing else runs yet.
func (s *Service) restore(k key, r record) {
	t := newTarget(k, r)
	s.add(t)
	if r.Done {
		s.done = append(s.done, t)
	}
}

// Close stops sending and returns when all requests have ended. The next Open sends the outstanding notifications.
func (s *Service) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	s.wg.Wait()
	s.client.CloseIdleConnections()
}

// Check validates a configuration, as Create does.
func (s *Service) Check(c a2a.PushConfig) error {
	return s.check(Config{PushConfig: c})
}

// check logs refused addresses: who configures the hub may not be who sees the error. Only some are logged, so that no
// client can fill the log.
func (s *Service) check(c Config) error {
	err := check(c, s.opts.AllowPrivate)
	if errors.Is(err, errPrivateURL) {
		s.refusals.Do(func() {
			s.log.Warn("refused a push configuration: the webhook is on this machine or in a private network",
				"task", c.TaskID, "host", text.Clip(hostOf(c.URL), 200), "remedy", errPrivateURL.Remedy)
		})
	}
	return err
}

// Create stores a configuration of an existing task, and returns it with an id. It replaces one with the same id,
// and returns when the change is durable. The end of a task that has ended already is sent at once.
func (s *Service) Create(ctx context.Context, c Config) (Config, error) {
	if err := s.check(c); err != nil {
		return Config{}, err
	}
	if c.ID == "" {
		c.ID = uuid.NewString()
	}
	task, err := s.opts.Tasks.Task(ctx, c.TaskID, new(int))
	if err != nil {
		return Config{}, err
	}
	t := newTarget(key{c.TaskID, c.ID}, record{Config: c.PushConfig, Version: c.Version})
	if hub.Interrupted(task.Status.State) {
		// The client knows this state already.
		t.rec.Delivered, t.queued = statusTime(task.Status), statusTime(task.Status)
	}
	if err := s.introduce(ctx, t); err != nil {
		return Config{}, err
	}
	s.TurnStarted(c.TaskID) // a turn may be running, or the task may have ended
	return t.config(), nil
}

// introduce registers and stores a target, and replaces one with its key.
func (s *Service) introduce(ctx context.Context, t *target) error {
	t.saving.Lock() // deliveries meanwhile are stored after this
	defer t.saving.Unlock()
	first := t.rec
	old, err := s.register(t)
	if err != nil {
		return err
	}
	if old != nil {
		old.retire()
	}
	if err := s.store.put(ctx, t.key, first); err != nil {
		s.mu.Lock()
		s.remove(t)
		s.mu.Unlock()
		t.retired = true
		return &Error{Code: CodeInternal, Message: "the push configuration could not be stored", Err: err}
	}
	return nil
}

// Get returns a configuration; with an empty id the task's first.
func (s *Service) Get(_ context.Context, task a2a.TaskID, id string) (Config, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.find(task, id); t != nil {
		return t.config(), nil
	}
	return Config{}, &Error{Code: CodeNotFound, Message: "the task has no such push configuration"}
}

// List returns a task's configurations in the order of their ids.
func (s *Service) List(_ context.Context, task a2a.TaskID) ([]Config, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.tasks[task]
	if f == nil {
		return nil, nil
	}
	configs := make([]Config, len(f.targets))
	for i, t := range f.targets {
		configs[i] = t.config()
	}
	return configs, nil
}

// Delete removes a configuration durably, if it exists. A running request may still arrive.
func (s *Service) Delete(ctx context.Context, task a2a.TaskID, id string) error {
	s.mu.Lock()
	t := s.find(task, id)
	if t == nil || id == "" {
		s.mu.Unlock()
		return nil
	}
	s.remove(t)
	s.mu.Unlock()
	t.retire()
	if err := s.store.delete(ctx, t.key); err != nil {
		return &Error{Code: CodeInternal, Message: "the push configuration could not be deleted", Err: err}
	}
	return nil
}

// TurnStarted reports that a turn of a task begins, whose events are then sent. It does not
// block, and ignores tasks without a configuration.
func (s *Service) TurnStarted(id a2a.TaskID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.tasks[id]
	if f == nil || s.closed {
		return
	}
	if f.watching {
		f.again = true
		return
	}
	f.watching = true
	s.wg.Go(func() { s.watch(id, f) })
}

// register adds a target and returns the one that it replaces, if any.
func (s *Service) register(t *target) (old *target, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, &Error{Code: CodeLimit, Message: "the hub is stopping"}
	}
	old = s.find(t.task, t.id)
	if old == nil {
		if f := s.tasks[t.task]; f != nil && len(f.targets) >= MaxPerTask {
			return nil, &Error{Code: CodeLimit, Message: fmt.Sprintf("a task has at most %d push configurations", MaxPerTask)}
		}
		if s.total >= maxTotal {
			return nil, &Error{Code: CodeLimit, Message: fmt.Sprintf("the hub keeps at most %d push configurations", maxTotal)}
		}
	} else {
		s.remove(old)
	}
	s.add(t)
	return old, nil
}

// add adds a target. mu is held, as for remove and find.
func (s *Service) add(t *target) {
	f := s.tasks[t.task]
	if f == nil {
		f = &watched{}
		s.tasks[t.task] = f
	}
	i, _ := slices.BinarySearchFunc(f.targets, t.id, func(t *target, id string) int { return cmp.Compare(t.id, id) })
	f.targets = slices.Insert(f.targets, i, t)
	s.total++
}

func (s *Service) remove(t *target) {
	f := s.tasks[t.task]
	if f == nil {
		return
	}
	i := slices.Index(f.targets, t)
	if i < 0 {
		return
	}
	f.targets = slices.Delete(f.targets, i, i+1)
	s.total--
	if len(f.targets) == 0 && !f.watching {
		delete(s.tasks, t.task)
	}
}

// find returns a task's target, with an empty id the first; nil if there is none.
func (s *Service) find(task a2a.TaskID, id string) *target {
	if f := s.tasks[task]; f != nil {
		for _, t := range f.targets {
			if id == "" || t.id == id {
				return t
			}
		}
	}
	return nil
}

// catchUp queues the changes of a task while the service did not run. It does not watch an
// interrupted task: TurnStarted reports when that resumes.
func (s *Service) catchUp(id a2a.TaskID) {
	task, err := s.opts.Tasks.Task(s.ctx, id, nil)
	switch {
	case hub.CodeOf(err) == hub.CodeTaskNotFound:
		s.forget(id)
	case err != nil:
		if s.ctx.Err() == nil {
			s.log.Warn("task with a push configuration cannot be read", "task", id, "error", err)
		}
	case task.Status.State.Terminal(), hub.Interrupted(task.Status.State):
		s.queueTask(id, task)
	default:
		s.TurnStarted(id)
	}
}

// forget removes the configurations of a task that the hub has removed.
func (s *Service) forget(id a2a.TaskID) {
	configs, _ := s.List(s.ctx, id) // never fails
	for _, c := range configs {
		if err := s.Delete(s.ctx, id, c.ID); err != nil {
			s.log.Warn("push configuration of a removed task stays stored", "task", id, "error", err)
		}
	}
}

// watch queues the events of a task's turns until none runs.
func (s *Service) watch(id a2a.TaskID, f *watched) {
	for {
		s.watchTurn(id)
		s.mu.Lock()
		if !f.again || s.ctx.Err() != nil {
			f.watching = false
			if len(f.targets) == 0 {
				delete(s.tasks, id)
			}
			s.mu.Unlock()
			return
		}
		f.again = false
		s.mu.Unlock()
	}
}

func (s *Service) watchTurn(id a2a.TaskID) {
	sub, err := s.opts.Tasks.Subscribe(s.ctx, id)
	if err == nil {
		defer sub.Close()
		s.queueTask(id, sub.Task())
		for {
			event, err := sub.Next(s.ctx)
			if err != nil {
				break
			}
			s.queueEvent(id, event)
		}
	}
	// The subscription may have missed the task's last state.
	task, err := s.opts.Tasks.Task(s.ctx, id, nil)
	if err != nil {
		if s.ctx.Err() == nil {
			s.log.Warn("task with a push configuration cannot be read", "task", id, "error", err)
		}
		return
	}
	s.queueTask(id, task)
}

// queueTask queues a snapshot for the webhooks that have not received its status.
func (s *Service) queueTask(id a2a.TaskID, task *a2a.Task) {
	it := snapshot(task)
	s.each(id, func(t *target) {
		if it.status.After(t.queued) {
			s.push(t, it)
		}
	})
}

// queueEvent queues an event in the format of each webhook's version: in 0.3 that is the
// whole task, at each change of its status.
func (s *Service) queueEvent(id a2a.TaskID, event a2a.Event) {
	if task, ok := event.(*a2a.Task); ok { // the subscription fell behind
		s.queueTask(id, task)
		return
	}
	it := item{event: event}
	var whole item // for 0.3
	if status, ok := event.(*a2a.TaskStatusUpdateEvent); ok {
		it.status, it.final = statusTime(status.Status), status.Status.State.Terminal()
		if s.has03(id) {
			task, err := s.opts.Tasks.Task(s.ctx, id, nil)
			if err != nil {
				return // watchTurn reads it again at the end
			}
			whole = snapshot(task)
		}
	}
	s.each(id, func(t *target) {
		switch {
		case t.rec.Version != v03:
			s.push(t, it)
		case whole.status.After(t.queued):
			s.push(t, whole)
		}
	})
}

func (s *Service) has03(id a2a.TaskID) bool {
	found := false
	s.each(id, func(t *target) { found = found || t.rec.Version == v03 })
	return found
}

// each calls do, with s.mu held, for the task's webhooks that are not done.
func (s *Service) each(id a2a.TaskID, do func(*target)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.tasks[id]
	if f == nil {
		return
	}
	for _, t := range f.targets {
		if !t.rec.Done {
			do(t)
		}
	}
}

// push adds an item to a target's queue and starts sending. s.mu is held.
func (s *Service) push(t *target, it item) {
	if len(t.queue) >= s.opts.Queue {
		// One snapshot, read when it is sent, replaces them all.
		t.queue = append(t.queue[:0], item{latest: true})
	} else if n := len(t.queue); n == 0 || !t.queue[n-1].latest {
		t.queue = append(t.queue, it)
	}
	if it.status.After(t.queued) {
		t.queued = it.status
	}
	if !t.sending && !s.closed {
		t.sending = true
		s.wg.Go(func() { s.send(t) })
	}
}

// finished keeps a target with nothing left to send, and removes the oldest above maxDone.
func (s *Service) finished(t *target) {
	s.mu.Lock()
	s.done = append(s.done, t)
	var old *target
	if len(s.done) > maxDone {
		old, s.done = s.done[0], s.done[1:]
		s.remove(old)
	}
	s.mu.Unlock()
	if old == nil || !old.retire() {
		return
	}
	if err := s.store.delete(s.ctx, old.key); err != nil && s.ctx.Err() == nil {
		s.log.Warn("old push configuration stays stored", "task", old.task, "error", err)
	}
}

func statusTime(status a2a.TaskStatus) (at time.Time) {
	if status.Timestamp != nil {
		at = *status.Timestamp
	}
	return at
}
