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

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub"
)

// Tasks is where a service reads what happens; *hub.Hub has it.
type Tasks interface {
	Task(ctx context.Context, id a2a.TaskID, historyLength *int) (*a2a.Task, error)
	Subscribe(ctx context.Context, id a2a.TaskID) (*hub.Subscription, error)
}

// Options say how a [Service] is to be. Tasks is required; zero fields mean the
// default in the comment.
type Options struct {
	Tasks Tasks
	// Bus keeps the configurations; without one they end with the process.
	Bus *bus.Bus
	// Name is the hub's, as hub.Config.Name: "local".
	Name string
	// AllowPrivate lets webhooks be on this machine and in private networks.
	AllowPrivate bool
	Timeout      time.Duration // of one call: 15 s
	FirstPause   time.Duration // before the second try: 1 s
	MaxPause     time.Duration // between two tries: 5 min
	GiveUp       time.Duration // on one notification: 24 h
	Queue        int           // waiting notifications of one webhook: 256
	Concurrency  int           // calls at a time: 16
	MaxBody      int           // bytes of a notification: 1 MiB
	Logger       *slog.Logger  // never gets secrets; nil discards
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

// Service keeps configurations and sends notifications. Its methods are safe for
// concurrent use.
type Service struct {
	opts   Options
	log    *slog.Logger
	store  store
	client *http.Client
	calls  chan struct{} // a slot for each call that runs

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup // followers and senders

	mu     sync.Mutex
	closed bool
	tasks  map[a2a.TaskID]*followed
	total  int
	done   []*target // with nothing more to send, the oldest first
}

// followed is a task that has configurations.
type followed struct {
	targets   []*target // in the order of their ids
	following bool      // a goroutine follows the task's turn, and there is only one
	again     bool      // another turn has begun since it looked
}

// maxDone is how many configurations of ended tasks are kept to be read.
const maxDone = 1000

// Open reads the configurations and begins to send what was left to send. Have
// the hub call [Service.TurnStarted] (hub.OnTurn) before it takes messages.
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
		opts:   opts,
		log:    opts.Logger,
		store:  st,
		client: newClient(opts.AllowPrivate, opts.Timeout),
		calls:  make(chan struct{}, opts.Concurrency),
		tasks:  map[a2a.TaskID]*followed{},
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

// restore adds a stored configuration. Nothing else runs yet.
func (s *Service) restore(k key, r record) {
	t := newTarget(k, r)
	s.add(t)
	if r.Done {
		s.done = append(s.done, t)
	}
}

// Close stops sending and returns when all calls have ended. What was not
// delivered is sent after the next Open.
func (s *Service) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	s.wg.Wait()
	s.client.CloseIdleConnections()
}

// Check tells what is wrong with a configuration, as Create would.
func (s *Service) Check(c a2a.PushConfig) error {
	return check(Config{PushConfig: c}, s.opts.AllowPrivate)
}

// Create stores a configuration of a task that exists, in place of one with the
// same id, and returns it; without an id it gets one. It returns when that is
// durable. A task that has ended already is notified of at once.
func (s *Service) Create(ctx context.Context, c Config) (Config, error) {
	if err := check(c, s.opts.AllowPrivate); err != nil {
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
		// The client knows this state: it is the one it reacts to.
		t.rec.Delivered, t.queued = statusTime(task), statusTime(task)
	}
	if err := s.introduce(ctx, t); err != nil {
		return Config{}, err
	}
	s.TurnStarted(c.TaskID) // one may be running; otherwise its end is found
	return t.config(), nil
}

// introduce registers a target and stores it, in place of one with its key.
func (s *Service) introduce(ctx context.Context, t *target) error {
	t.saving.Lock() // what is delivered meanwhile is noted after this
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
		s.unregister(t)
		t.retired = true
		return &Error{Code: CodeInternal, Message: "the push configuration could not be stored", Err: err}
	}
	return nil
}

// Get returns a configuration; with an empty id the task's first.
func (s *Service) Get(_ context.Context, task a2a.TaskID, id string) (Config, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.tasks[task]; f != nil {
		for _, t := range f.targets {
			if id == "" || t.id == id {
				return t.config(), nil
			}
		}
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

// Delete removes a configuration, for good when it returns; a call that is under
// way may still arrive. That there is none is no error.
func (s *Service) Delete(ctx context.Context, task a2a.TaskID, id string) error {
	s.mu.Lock()
	t := s.find(task, id)
	s.mu.Unlock()
	if t == nil {
		return nil
	}
	s.unregister(t)
	t.retire()
	if err := s.store.delete(ctx, t.key); err != nil {
		return &Error{Code: CodeInternal, Message: "the push configuration could not be deleted", Err: err}
	}
	return nil
}

// TurnStarted tells that a turn of a task begins: from here on its events are
// sent. It does not block and costs nothing for tasks without a configuration.
func (s *Service) TurnStarted(id a2a.TaskID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.tasks[id]
	if f == nil || s.closed {
		return
	}
	if f.following {
		f.again = true
		return
	}
	f.following = true
	s.wg.Go(func() { s.follow(id, f) })
}

// register adds a target and returns the one that it replaces.
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

func (s *Service) unregister(t *target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(t)
}

// add, remove and find need s.mu.
func (s *Service) add(t *target) {
	f := s.tasks[t.task]
	if f == nil {
		f = &followed{}
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
	if len(f.targets) == 0 && !f.following {
		delete(s.tasks, t.task)
	}
}

func (s *Service) find(task a2a.TaskID, id string) *target {
	if f := s.tasks[task]; f != nil {
		for _, t := range f.targets {
			if t.id == id {
				return t
			}
		}
	}
	return nil
}

// catchUp finds what happened to a task while nobody watched. One that waits for
// its user is not followed: TurnStarted will say when it goes on.
func (s *Service) catchUp(id a2a.TaskID) {
	task, err := s.opts.Tasks.Task(s.ctx, id, nil)
	var he *hub.Error
	switch {
	case errors.As(err, &he) && he.Code == hub.CodeTaskNotFound:
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

// forget removes the configurations of a task that the hub no longer has.
func (s *Service) forget(id a2a.TaskID) {
	configs, _ := s.List(s.ctx, id) // never fails
	for _, c := range configs {
		if err := s.Delete(s.ctx, id, c.ID); err != nil {
			s.log.Warn("push configuration of a removed task stays stored", "task", id, "error", err)
		}
	}
}

// follow queues the events of a task's turns until none runs.
func (s *Service) follow(id a2a.TaskID, f *followed) {
	for {
		s.followTurn(id)
		s.mu.Lock()
		if !f.again || s.ctx.Err() != nil {
			f.following = false
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

func (s *Service) followTurn(id a2a.TaskID) {
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
	// However that ended, the task's state is what must not be missed.
	task, err := s.opts.Tasks.Task(s.ctx, id, nil)
	if err != nil {
		if s.ctx.Err() == nil {
			s.log.Warn("task with a push configuration cannot be read", "task", id, "error", err)
		}
		return
	}
	s.queueTask(id, task)
}

// queueTask queues a snapshot for the webhooks that have not had its status.
func (s *Service) queueTask(id a2a.TaskID, task *a2a.Task) {
	at := statusTime(task)
	s.each(id, func(t *target) {
		if !at.After(t.queued) {
			return
		}
		s.push(t, item{event: task, status: at, final: task.Status.State.Terminal()})
	})
}

// queueEvent queues an event as each webhook's version wants it: in 0.3 a
// notification is the task, at each change of its status.
func (s *Service) queueEvent(id a2a.TaskID, event a2a.Event) {
	if task, ok := event.(*a2a.Task); ok { // the subscription fell behind
		s.queueTask(id, task)
		return
	}
	status, _ := event.(*a2a.TaskStatusUpdateEvent)
	var snapshot *a2a.Task
	if status != nil && s.has03(id) {
		var err error
		if snapshot, err = s.opts.Tasks.Task(s.ctx, id, nil); err != nil {
			return // followTurn reads it again at the end
		}
	}
	s.each(id, func(t *target) {
		switch {
		case status == nil && t.rec.Version != v03:
			s.push(t, item{event: event})
		case status == nil:
		case t.rec.Version != v03:
			s.push(t, item{event: event, status: eventTime(status), final: status.Status.State.Terminal()})
		case snapshot != nil && statusTime(snapshot).After(t.queued):
			s.push(t, item{event: snapshot, status: statusTime(snapshot), final: snapshot.Status.State.Terminal()})
		}
	})
}

func (s *Service) has03(id a2a.TaskID) bool {
	found := false
	s.each(id, func(t *target) { found = found || t.rec.Version == v03 })
	return found
}

// each calls f for the task's webhooks that still want something, with s.mu held.
func (s *Service) each(id a2a.TaskID, f func(*target)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	followed := s.tasks[id]
	if followed == nil {
		return
	}
	for _, t := range followed.targets {
		if !t.rec.Done {
			f(t)
		}
	}
}

// push adds to a target's queue, with s.mu held, and has it sent.
func (s *Service) push(t *target, it item) {
	if len(t.queue) >= s.opts.Queue {
		// One snapshot, read when its turn comes, says what all of them did.
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

// finished keeps a target that has nothing more to send among the readable ones,
// and removes the oldest of them beyond maxDone.
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

func statusTime(task *a2a.Task) time.Time {
	if task.Status.Timestamp == nil {
		return time.Time{}
	}
	return *task.Status.Timestamp
}

func eventTime(e *a2a.TaskStatusUpdateEvent) time.Time {
	if e.Status.Timestamp == nil {
		return time.Time{}
	}
	return *e.Status.Timestamp
}
