// Package sessions makes the open sessions of this computer agents of the hub: what is sent to one is a task, which the
// session gets by mail and answers with an MCP tool.
//
// A session is an entry in the registry of the agents' network on the hub's bus. It keeps its name and its tasks while it
// is offline, and while the hub is stopped.
package sessions

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"golang.org/x/sync/semaphore"

	"github.com/parleyhub/parley/internal/agentnet/assignment"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/senders"
)

const (
	// refreshPause bounds how often the registry is read because of changes, which heartbeats are too; perSession is added
	// for each session, since reading many costs more, and they beat more often.
	refreshPause = 50 * time.Millisecond
	perSession   = 500 * time.Microsecond
	// refreshInterval is how often it is read without a change: a session that falls silent changes nothing.
	refreshInterval = 5 * time.Second
	// returnTime is how long the sessions of the hub's last run may take to register again: their heartbeats are old if it was down for minutes.
	returnTime = 10 * time.Second
	// keepTime is how long a session without tasks is in the directory after it was last there: as long as its identity and its mail are kept.
	// The registry has its entry for minutes only.
	keepTime = 24 * time.Hour
	// maxAway bounds the sessions that the directory has without an entry in the registry.
	maxAway = 1000
)

// Assigner is a hub's access to the sessions on its bus: a *[assignment.Assigner].
type Assigner interface {
	Sessions(ctx context.Context) ([]assignment.Session, error)
	Post(ctx context.Context, n assignment.Notice) (seen time.Time, err error)
	// AttentionOf returns the signs of a message's receipt, of a message of the hub if it has no sender.
	AttentionOf(ctx context.Context, m mail.Mail) (mail.Attention, error)
	Serve(ctx context.Context, h assignment.Handler) error
}

// Options are those of [Open]. Hub, Assigner and DataDir are required.
type Options struct {
	Hub      *hub.Hub
	Assigner Assigner
	DataDir  string
	// Gate decides whose tasks the sessions get.
	Gate *senders.Gate
	// Closed returns the GUIDs of sessions that nobody sees any more, with the time at which they ended, zero if their processes still
	// run; nil for none.
	Closed func() map[string]time.Time
	// Quiet reports whether the session of a GUID is not to be disturbed; nil for none. Later changes come by [Sessions.SetQuiet].
	Quiet  func(guid string) bool
	Logger *slog.Logger
	// Damaged is called if the file of names was damaged; nil for nobody.
	Damaged func(statefile.Damage)
}

// Sessions are the sessions of a hub. They are safe for concurrent use.
type Sessions struct {
	hub      *hub.Hub
	assigner Assigner
	log      *slog.Logger
	closed   func() map[string]time.Time
	quiet    func(guid string) bool
	names    *names
	gate     *senders.Gate
	kick     chan struct{}       // of capacity 1; has a value when the registry may have changed
	reading  *semaphore.Weighted // of 1: one goroutine at a time reads the registry
	known    chan struct{}       // closed when it is known who is there; until then sessions are offline that are not
	setKnown func()              // closes known
	started  time.Time
	read     uint64 // how often the registry was read; only for whoever reads it

	mu       sync.Mutex
	agents   map[string]*session     // by GUID
	waiting  map[a2a.TaskID]*waiting // turns that wait for an answer
	messages map[string]*waiting     // by the ids of their notices
	answered wait.Signal             // sent when a turn begins to wait
}

// Open registers the sessions of the hub's last run, so that their tasks go on. It reads a file and does not block.
func Open(o Options) (*Sessions, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	n, err := readNames(filepath.Join(o.DataDir, "sessions.json"), o.Damaged)
	if err != nil {
		return nil, err
	}
	if o.Closed == nil {
		o.Closed = func() map[string]time.Time { return nil }
	}
	if o.Quiet == nil {
		o.Quiet = func(string) bool { return false }
	}
	s := &Sessions{hub: o.Hub, closed: o.Closed, quiet: o.Quiet, assigner: o.Assigner, log: o.Logger.With("component", "sessions"), names: n, gate: o.Gate, kick: make(chan struct{}, 1),
		reading: semaphore.NewWeighted(1), agents: make(map[string]*session), waiting: make(map[a2a.TaskID]*waiting), messages: make(map[string]*waiting)}
	s.known, s.started = make(chan struct{}), time.Now()
	s.setKnown = sync.OnceFunc(func() { close(s.known) })
	for _, known := range n.all() {
		s.add(known, known.entry(s.started), registry.Gone)
	}
	return s, nil
}

// Run follows the registry and takes the answers of sessions, until ctx ends.
func (s *Sessions) Run(ctx context.Context) {
	var serving sync.WaitGroup
	defer serving.Wait()
	serving.Go(func() { s.serve(ctx) })
	interval := time.NewTicker(refreshInterval)
	defer interval.Stop()
	for {
		select {
		case <-s.kick:
		case <-interval.C:
		case <-ctx.Done():
			return
		}
		if err := s.Refresh(ctx); err != nil && ctx.Err() == nil {
			s.log.Debug("the sessions cannot be read now", "error", err)
		}
		if !wait.Pause(ctx, refreshPause+time.Duration(s.count())*perSession) {
			return
		}
	}
}

func (s *Sessions) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.agents)
}

func (s *Sessions) serve(ctx context.Context) {
	retry := wait.Backoff{First: 100 * time.Millisecond, Most: 10 * time.Second}
	for {
		if err := s.assigner.Serve(ctx, s); err != nil && ctx.Err() == nil {
			s.log.Warn("the answers of sessions cannot be taken yet", "error", err)
		}
		if !retry.Pause(ctx) {
			return
		}
	}
}

// Changed implements [assignment.Handler].
func (s *Sessions) Changed() { wait.Nudge(s.kick) }

// Refresh makes the hub's sessions those of the registry. Run does it soon after each change; whoever knows of a new session calls it.
func (s *Sessions) Refresh(ctx context.Context) error {
	if err := s.reading.Acquire(ctx, 1); err != nil {
		return err
	}
	defer s.reading.Release(1)
	entries, err := s.assigner.Sessions(ctx)
	if err != nil {
		return err
	}
	closed, withdrawn := s.closed(), make(map[string]bool)
	s.read++
	there := entries[:0]
	for _, e := range entries {
		if e.Visibility == store.Private {
			withdrawn[e.GUID] = true
			continue
		}
		if at, ok := closed[e.GUID]; ok && (at.IsZero() || store.ParseTime(e.RegisteredAt).Before(at)) {
			e.Liveness = registry.Gone
		}
		there = append(there, e)
	}
	s.name(there)
	for _, e := range there {
		s.update(e)
	}
	if time.Since(s.started) > returnTime || s.allPresent() {
		s.setKnown()
	}
	for i, x := range s.absent() {
		s.vanished(ctx, x, !withdrawn[x.guid] && i < maxAway)
	}
	if err := s.names.describe(s.described); err != nil {
		s.log.Warn("what is known of the sessions cannot be stored", "error", err)
	}
	return nil
}

// allPresent reports whether no session is offline.
func (s *Sessions) allPresent() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.agents {
		if x.offline() {
			return false
		}
	}
	return true
}

// absent returns the sessions that the last reading of the registry has not found, first those that were there last.
func (s *Sessions) absent() (gone []*session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.agents {
		if x.read != s.read {
			gone = append(gone, x)
		}
	}
	slices.SortFunc(gone, func(x, y *session) int { return y.lastSeen().Compare(x.lastSeen()) })
	return gone
}

// described returns what is known of a session, for the file.
func (s *Sessions) described(guid string) (e *registry.Entry, seen time.Time, ok bool) {
	s.mu.Lock()
	x := s.agents[guid]
	s.mu.Unlock()
	if x == nil {
		return e, seen, false
	}
	if x.offline() {
		seen = x.lastSeen()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.entry, seen, true
}

// update registers a session, or changes what the hub knows of it.
func (s *Sessions) update(e assignment.Session) {
	s.mu.Lock()
	x := s.agents[e.GUID]
	s.mu.Unlock()
	if x != nil {
		x.read = s.read
		x.update(e)
		return
	}
	if known, ok := s.names.of(e.GUID); ok {
		s.add(known, e.Entry, e.Liveness)
	}
}

// name gives names to the sessions that have none, but for those that ended before this hub knew them.
func (s *Sessions) name(sessions []assignment.Session) {
	var live []*registry.Entry
	s.mu.Lock()
	for _, e := range sessions {
		if e.Liveness != registry.Gone && s.agents[e.GUID] == nil {
			live = append(live, e.Entry)
		}
	}
	s.mu.Unlock()
	if len(live) == 0 {
		return
	}
	if err := s.names.give(live, s.hub.HasAgent); err != nil {
		s.log.Error("the names of new sessions cannot be stored", "error", err)
	}
}

// add registers a session at the hub.
func (s *Sessions) add(known named, e *registry.Entry, live registry.Liveness) {
	x := &session{of: s, guid: e.GUID, name: known.Name, called: known.Called, entry: e, live: live, quiet: s.quiet(e.GUID), read: s.read}
	s.mu.Lock()
	s.agents[e.GUID] = x
	s.mu.Unlock()
	agent := hub.Agent{Definition: x.definition(), Runner: x, Durable: true, Reported: true, Residence: x.residence()}
	if err := s.hub.Register(agent); err != nil {
		s.log.Error("a session cannot be an agent", "agent", known.Name, "guid", e.GUID, "error", err)
		s.mu.Lock()
		delete(s.agents, e.GUID)
		s.mu.Unlock()
		return
	}
	s.log.Info("a session is an agent", "agent", known.Name, "guid", e.GUID, "handle", e.Handle)
}

// vanished handles a session whose entry is gone: it is removed unless it has tasks, or is kept and may still come back.
func (s *Sessions) vanished(ctx context.Context, x *session, kept bool) {
	x.mu.Lock()
	was := x.live
	x.live = registry.Gone
	at := x.residence()
	x.mu.Unlock()
	info, err := s.hub.Agent(x.name)
	if err == nil && (info.Running > 0 || info.Queued > 0 || kept && time.Since(x.lastSeen()) < keepTime) {
		if at != info.Residence {
			_ = x.showResidence()
		}
		if was != registry.Gone {
			_ = x.showDefinition() // it probes
		}
		return
	}
	s.mu.Lock()
	delete(s.agents, x.guid)
	s.mu.Unlock()
	if err := s.hub.Deregister(ctx, x.name); err != nil && ctx.Err() == nil {
		s.log.Warn("a session cannot be removed", "agent", x.name, "error", err)
	}
	if err := s.names.forget(x.guid); err != nil {
		s.log.Warn("the names of the sessions cannot be stored", "error", err)
	}
}

// Receipt implements [assignment.Handler].
func (s *Sessions) Receipt(st mail.MessageStatus) {
	s.mu.Lock()
	w := s.messages[st.MessageID]
	s.mu.Unlock()
	if w != nil {
		w.seen()
	}
}

// Signs implements [assignment.SignHandler].
func (s *Sessions) Signs(messageID string, a mail.Attention) {
	s.mu.Lock()
	w := s.messages[messageID]
	s.mu.Unlock()
	if w == nil {
		return
	}
	w.take(a)
}

// Unwoken says of a message that its session is not woken for it, and why. The task of the message shows it. It does not block.
func (s *Sessions) Unwoken(messageID, why string) {
	s.mu.Lock()
	w := s.messages[messageID]
	s.mu.Unlock()
	if w == nil {
		return
	}
	select {
	case w.notes <- why:
	default: // it has one already
	}
}

// Progress implements [assignment.Handler].
func (s *Sessions) Progress(guid string, p assignment.Progress) error {
	s.mu.Lock()
	w := s.waiting[a2a.TaskID(p.TaskID)]
	s.mu.Unlock()
	if w == nil || w.session.guid != guid {
		return noTask(p.TaskID)
	}
	select {
	case w.progress <- p:
		return nil
	default:
		return &store.Error{Code: store.RateLimitError, Message: "You report progress faster than it can be shown.", Remedy: "Report less often."}
	}
}

func noTask(id string) *store.Error {
	return &store.Error{Code: store.NotFoundError, Message: "You have no open task " + store.Quote(id) + ".",
		Remedy: "Use the taskId of the message that gave you the task; a task that was answered or canceled is closed."}
}

// Answer implements [assignment.Handler].
func (s *Sessions) Answer(ctx context.Context, guid string, a assignment.Answer) error {
	w, err := s.await(ctx, guid, a)
	if err != nil || w == nil {
		return err
	}
	sub, err := s.hub.Subscribe(ctx, a2a.TaskID(a.TaskID))
	if err != nil {
		return taskError(a.TaskID, err)
	}
	defer sub.Close()
	if !w.offer(a) {
		return &store.Error{Code: store.ConflictError, Message: "Another answer to the task is being stored.", Remedy: "Nothing more is needed."}
	}
	for {
		if stored, err := s.has(ctx, a); stored || err != nil {
			return err
		}
		_, err := sub.Next(ctx)
		switch {
		case ctx.Err() != nil:
			return unstored(err)
		case errors.Is(err, io.EOF): // the turn has ended, perhaps without the answer: the task was canceled, or its time is over
			return s.ended(ctx, guid, a)
		}
	}
}

// ended returns nil if a turn has ended with an answer, or else an error that says with what.
func (s *Sessions) ended(ctx context.Context, guid string, a assignment.Answer) error {
	if stored, err := s.has(ctx, a); stored || err != nil {
		return err
	}
	if err := s.open(ctx, guid, a.TaskID); err != nil {
		return err
	}
	return unstored(io.EOF) // the hub stops: its next run asks for the answer again
}

func unstored(err error) error {
	return &store.Error{Code: store.ConnectionError, Message: "The answer is not stored yet.", Remedy: "Call the tool again.", Err: err}
}

// await returns the turn that a session answers. It waits for the turn of a task that is being resumed. It returns nil if
// the task has the answer already.
func (s *Sessions) await(ctx context.Context, guid string, a assignment.Answer) (*waiting, error) {
	for {
		changed := s.answered.Wait()
		s.mu.Lock()
		w := s.waiting[a2a.TaskID(a.TaskID)]
		s.mu.Unlock()
		if w != nil && w.session.guid == guid {
			return w, nil
		}
		if stored, err := s.has(ctx, a); stored || err != nil {
			return nil, err
		}
		if err := s.open(ctx, guid, a.TaskID); err != nil {
			return nil, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, unstored(ctx.Err())
		}
	}
}

// has reports whether a task has an answer.
func (s *Sessions) has(ctx context.Context, a assignment.Answer) (bool, error) {
	task, err := s.hub.Task(ctx, a2a.TaskID(a.TaskID), nil)
	if err != nil {
		return false, taskError(a.TaskID, err)
	}
	return slices.ContainsFunc(task.History, func(m *a2a.Message) bool { return m.ID == a.ID }) ||
		task.Status.Message != nil && task.Status.Message.ID == a.ID, nil
}

// open returns an error unless a task of the session waits for an answer, or is about to.
func (s *Sessions) open(ctx context.Context, guid, taskID string) error {
	none := 0
	task, err := s.hub.Task(ctx, a2a.TaskID(taskID), &none)
	if err != nil {
		return taskError(taskID, err)
	}
	s.mu.Lock()
	x := s.agents[guid]
	s.mu.Unlock()
	agent, _ := task.Metadata[hub.MetaAgent].(string)
	switch state := task.Status.State; {
	case x == nil || agent != x.name:
		return noTask(taskID)
	case state.Terminal():
		return &store.Error{Code: store.ConflictError, Message: "The task has ended already: it is " + hub.StateName(state) + ".", Remedy: "Nothing more is needed."}
	case hub.Interrupted(state):
		return &store.Error{Code: store.ConflictError, Message: "The task waits for an answer to your question.", Remedy: "Wait for the reply: it comes as a message of the same task."}
	}
	return nil
}

func taskError(id string, err error) error {
	if e, ok := errors.AsType[*hub.Error](err); ok && e.Code == hub.CodeTaskNotFound {
		return noTask(id)
	}
	return unstored(err)
}

// Rename changes what people call a session of this hub; "" is its own handle again. The error is a *[hub.Error].
func (s *Sessions) Rename(id, name string) error {
	if name != "" && !handlePattern().MatchString(name) {
		return &hub.Error{Code: hub.CodeInvalid, Subject: "name", Message: fmt.Sprintf("%q cannot be an agent's name", text.Clip(name, 80)),
			Remedy: "use a to z, 0 to 9, _ and -, at most 64, beginning with a letter or digit"}
	}
	x := s.byName(id)
	if x == nil {
		return &hub.Error{Code: hub.CodeUnsupported, Message: fmt.Sprintf("agent %s is not a session of this computer", text.Clip(id, 80)),
			Remedy: "only sessions are renamed: the names of programs are in config.yaml, those of peers are their hubs'"}
	}
	if err := s.names.call(x.guid, name); err != nil {
		return &hub.Error{Code: hub.CodeInternal, Message: "the name cannot be stored", Err: err}
	}
	x.mu.Lock()
	x.called = name
	x.mu.Unlock()
	return errors.Join(x.showResidence(), x.showDefinition())
}

// SetQuiet shows in the directory whether a session of this hub is not to be disturbed. The error is a *[hub.Error].
func (s *Sessions) SetQuiet(id string, quiet bool) error {
	x := s.byName(id)
	if x == nil {
		return nil // it has just gone
	}
	x.mu.Lock()
	x.quiet = quiet
	x.mu.Unlock()
	return x.showResidence()
}

var handlePattern = text.Pattern(`^[a-z0-9][a-z0-9_-]{0,63}$`)

// byName returns the session with an id at the hub, nil if there is none.
func (s *Sessions) byName(id string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.agents {
		if x.name == id {
			return x
		}
	}
	return nil
}

// Interfaces.
var (
	_ assignment.Handler     = (*Sessions)(nil)
	_ assignment.SignHandler = (*Sessions)(nil)
	_ runner.Agent           = (*session)(nil)
)
