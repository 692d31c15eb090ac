package queues_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/queues"
	"github.com/parleyhub/parley/internal/testbed"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

func TestMain(m *testing.M) {
	nettest.HubMain()
	goleak.VerifyTestMain(m, testbed.Leaks()...)
}

const (
	hubGUID    = "5b1c3a52-7a0e-4c5e-9d1a-0a4a35b0e001"
	workerGUID = "5b1c3a52-7a0e-4c5e-9d1a-0a4a35b0e002"
)

// office is a hub with workers. The bus of the queues stays when it stops, unlike a real hub's.
type office struct {
	t     *testing.T
	dir   string
	net   *nettest.Server
	agent *program
	lease time.Duration
	// member changes a worker's access to the queues; nil for no change.
	member  func(queues.Member) queues.Member
	workers []queues.Worker
	follow  bool // the items are tasks

	boss *agentnet.Agent // submits items
	hub  *hub.Hub
	stop func()
}

func newOffice(t *testing.T, changes ...func(*office)) *office {
	t.Helper()
	o := &office{t: t, dir: t.TempDir(), net: nettest.StartServer(t), agent: newProgram(), lease: time.Minute,
		workers: []queues.Worker{{Agent: "codex", Capability: "Go", Count: 2}}}
	for _, change := range changes {
		change(o)
	}
	o.boss = nettest.Register(t, nettest.Open(t, o.config()), nettest.Dispatcher())
	o.start()
	return o
}

func (o *office) config() agentnet.Config {
	cfg := o.net.Host("office", "ann", "shop")
	cfg.AckTimeout = o.lease
	return cfg
}

// start starts the hub and its workers, again or for the first time.
func (o *office) start() {
	o.t.Helper()
	b, err := bus.Open(o.t.Context(), bus.Config{DataDir: o.dir, Durability: bus.DurabilityFast})
	if err != nil {
		o.t.Fatal(err)
	}
	o.hub, err = hub.New(o.t.Context(), hub.Config{Bus: b, Agents: []hub.Agent{{
		Definition: runner.Definition{ID: "codex", Driver: runner.DriverEcho}, Runner: o.agent}}})
	if err != nil {
		o.t.Fatal(err)
	}
	network := agentnet.Open(o.config())
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	h := o.hub
	var items *queues.Items
	if o.follow {
		items = queues.OpenItems(h, slog.New(slog.DiscardHandler))
		running.Go(func() {
			if err := network.Ready(ctx); err != nil {
				return // it ends at once
			}
			m, err := network.RegisterWorker(ctx, hubGUID, "hub")
			if err != nil {
				o.t.Error(err)
				return
			}
			items.Run(ctx, network, m)
		})
	}
	running.Go(func() {
		queues.Run(ctx, queues.Options{Hub: h, Items: items, Workers: o.workers, Lease: o.lease, Join: func(ctx context.Context, agent string) (queues.Member, error) {
			if err := network.Ready(ctx); err != nil {
				return nil, err
			}
			m, err := network.RegisterWorker(ctx, workerGUID, agent)
			if err != nil || o.member == nil {
				return m, err
			}
			return o.member(m), nil
		}})
	})
	o.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		closing, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := errors.Join(network.Close(closing), h.Close(closing), b.Close(closing)); err != nil {
			o.t.Error(err)
		}
	})
	o.t.Cleanup(o.stop)
}

func (o *office) submit(id string) {
	o.t.Helper()
	nettest.Submit(o.t, o.boss, id, "go")
}

func (o *office) awaitItem(id string, state work.ItemState) work.ItemStatus {
	o.t.Helper()
	wait.Eventually(o.t, id+" is "+string(state), func() bool { return nettest.State(o.t, o.boss, id).State == state })
	return nettest.State(o.t, o.boss, id)
}

// tasks returns the tasks of an item, the latest first.
func (o *office) tasks(item string) []*a2a.Task {
	o.t.Helper()
	page, err := o.hub.Tasks(o.t.Context(), hub.TaskQuery{})
	if err != nil {
		o.t.Fatal(err)
	}
	var of []*a2a.Task
	for _, t := range page.Tasks {
		if m, _ := t.Metadata[queues.MetaItem].(map[string]any); m["taskId"] == item && t.Metadata[hub.MetaAgent] == "codex" {
			of = append(of, t)
		}
	}
	return of
}

func (o *office) awaitTask(item string, state a2a.TaskState) *a2a.Task {
	o.t.Helper()
	wait.Eventually(o.t, "the task of "+item+" is "+string(state), func() bool {
		all := o.tasks(item)
		return len(all) > 0 && all[0].Status.State == state
	})
	return o.tasks(item)[0]
}

// program is an agent that does what the test says.
type program struct {
	mu   sync.Mutex
	turn func(ctx context.Context, turn runner.Turn, h runner.Handler) (runner.Outcome, error)
	runs []string // the texts of its turns
}

func newProgram() *program {
	p := &program{}
	p.answer("done")
	return p
}

func (p *program) does(turn func(context.Context, runner.Turn, runner.Handler) (runner.Outcome, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turn = turn
}

func (p *program) answer(text string) {
	p.does(func(context.Context, runner.Turn, runner.Handler) (runner.Outcome, error) {
		return runner.Outcome{Status: runner.OutcomeCompleted, Text: text}, nil
	})
}

func (p *program) fail(message string) {
	p.does(func(context.Context, runner.Turn, runner.Handler) (runner.Outcome, error) {
		return runner.Outcome{Status: runner.OutcomeFailed}, &runner.Error{Code: runner.CodeAgent, Message: message}
	})
}

// hang has the program work until it is interrupted.
func (p *program) hang() {
	p.does(func(ctx context.Context, _ runner.Turn, h runner.Handler) (runner.Outcome, error) {
		h.Event(runner.TextDelta{Text: "so far"})
		<-ctx.Done()
		return runner.Outcome{Status: runner.OutcomeCanceled}, nil
	})
}

func (p *program) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.runs)
}

func (p *program) Probe(context.Context) runner.Probe {
	return runner.Probe{Stage: runner.StageAuthenticated, AuthKnown: true}
}

func (p *program) Open(runner.SessionSpec) (runner.Session, error) { return p, nil }

func (p *program) Close(context.Context) error { return nil }

func (p *program) Turn(ctx context.Context, turn runner.Turn, h runner.Handler) (runner.Outcome, error) {
	text, err := runner.PromptText(turn.Parts, 1<<20)
	if err != nil {
		return runner.Outcome{Status: runner.OutcomeFailed}, err
	}
	p.mu.Lock()
	p.runs = append(p.runs, text)
	f := p.turn
	p.mu.Unlock()
	return f(ctx, turn, h)
}

func TestAQueueDrainsWithNobodyThere(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.agent.does(func(_ context.Context, turn runner.Turn, h runner.Handler) (runner.Outcome, error) {
		h.Event(runner.Artifact{ID: "d", Name: "d", Parts: []*a2a.Part{a2a.NewDataPart(map[string]any{"safe": true})}, Last: true})
		return runner.Outcome{Status: runner.OutcomeCompleted, Text: "It is safe."}, nil
	})
	for _, id := range []string{"A", "B", "C"} {
		o.submit(id)
	}
	for _, id := range []string{"A", "B", "C"} {
		s := o.awaitItem(id, work.Completed)
		if s.ResultSummary != "It is safe." || !*s.Success || s.HolderHandle != "codex" || s.Attempts != 1 {
			t.Errorf("%s: %+v", id, s)
		}
		tasks := o.tasks(id)
		if len(tasks) != 1 {
			t.Fatalf("%s has %d tasks", id, len(tasks))
		}
		var result struct {
			Agent, Task, Answer string
			Data                []map[string]any
		}
		if err := json.Unmarshal(s.ResultData, &result); err != nil || result.Agent != "codex" || result.Task != string(tasks[0].ID) ||
			result.Answer != "It is safe." || len(result.Data) != 1 || result.Data[0]["safe"] != true {
			t.Errorf("%s: %s, %v", id, s.ResultData, err)
		}
		item := tasks[0].Metadata[queues.MetaItem].(map[string]any)
		if item["capability"] != "go" || item["submitter"] != "boss" || item["attempt"] != 1.0 && item["attempt"] != 1 {
			t.Errorf("%s: the task says %v", id, item)
		}
	}
	if got := o.agent.runs[0]; !strings.HasPrefix(got, "do ") || !strings.Contains(got, `"n"`) {
		t.Errorf("the agent got %q", got)
	}
}

func TestALongAnswerFitsIntoTheQueue(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.agent.answer(strings.Repeat("é", 300<<10))
	o.submit("A")
	s := o.awaitItem("A", work.Completed)
	if !strings.HasSuffix(s.ResultSummary, "…") || len(s.ResultSummary) > 4096 || !strings.Contains(string(s.ResultData), "omitted") {
		t.Errorf("%d bytes, %s", len(s.ResultSummary), s.ResultData)
	}
	o.agent.answer("")
	o.submit("B")
	if s := o.awaitItem("B", work.Completed); !strings.Contains(s.ResultSummary, "without an answer") {
		t.Errorf("%+v", s)
	}
}

// An agent that fails leaves the item to the queue's rules: it is tried again, then it is a dead letter with the reason.
func TestFailuresFollowTheRulesOfTheQueue(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.agent.fail("no model")
	o.submit("A")
	s := o.awaitItem("A", work.Dead)
	if s.FailureReason != work.Refused || s.FailureDetail != "codex: no model" || s.Attempts != 3 {
		t.Errorf("%+v", s)
	}
	if n := len(o.tasks("A")); n != 3 || o.agent.count() != 3 {
		t.Errorf("%d tasks, %d runs", n, o.agent.count())
	}
	o.agent.answer("better now")
	if _, err := o.boss.RetryDeadLetter(t.Context(), "A", true); err != nil {
		t.Fatal(err)
	}
	if s := o.awaitItem("A", work.Completed); s.ResultSummary != "better now" {
		t.Errorf("%+v", s)
	}
	if n := len(o.tasks("A")); n != 4 {
		t.Errorf("%d tasks", n)
	}
}

func TestAnAgentRefuses(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.agent.does(func(context.Context, runner.Turn, runner.Handler) (runner.Outcome, error) {
		return runner.Outcome{Status: runner.OutcomeRejected, Text: "not mine"}, nil
	})
	o.submit("A")
	if s := o.awaitItem("A", work.Dead); s.FailureDetail != "codex: not mine" {
		t.Errorf("%+v", s)
	}
}

func TestATaskThatAPersonCancelsIsADeadLetter(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.agent.hang()
	o.submit("A")
	task := o.awaitTask("A", a2a.TaskStateWorking)
	if _, err := o.hub.Cancel(t.Context(), task.ID); err != nil {
		t.Fatal(err)
	}
	if s := o.awaitItem("A", work.Dead); s.Attempts != 1 || !strings.Contains(s.FailureDetail, "canceled") {
		t.Errorf("%+v", s)
	}
}

// The lease is extended while the agent works.
func TestALongTaskKeepsItsItem(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	extended := make(chan struct{}, 100)
	o := newOffice(t, func(o *office) {
		o.lease = 2 * time.Second
		o.member = func(m queues.Member) queues.Member { return &spy{Member: m, extended: extended} }
	})
	o.agent.does(func(ctx context.Context, _ runner.Turn, _ runner.Handler) (runner.Outcome, error) {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return runner.Outcome{Status: runner.OutcomeCompleted, Text: "done"}, nil
	})
	o.submit("A")
	for range 5 { // more than a lease
		<-extended
	}
	close(release)
	if s := o.awaitItem("A", work.Completed); s.Attempts != 1 {
		t.Errorf("%+v", s)
	}
	if o.agent.count() != 1 {
		t.Errorf("the agent ran %d times", o.agent.count())
	}
}

// A worker whose item somebody else has got cancels its task.
func TestALostItemIsLeft(t *testing.T) {
	t.Parallel()
	s := &spy{}
	o := newOffice(t, func(o *office) {
		o.lease = 2 * time.Second
		o.workers[0].Count = 1
		o.member = func(m queues.Member) queues.Member { s.Member = m; return s }
	})
	o.agent.hang()
	o.submit("A")
	task := o.awaitTask("A", a2a.TaskStateWorking)
	s.lose() // from now on extensions are refused
	wait.Eventually(t, "the task is canceled", func() bool {
		now, err := o.hub.Task(t.Context(), task.ID, nil)
		return err == nil && now.Status.State == a2a.TaskStateCanceled
	})
	if got := nettest.State(t, o.boss, "A"); got.State == work.Dead || got.State == work.Completed {
		t.Errorf("the item is %+v", got)
	}
	s.find()
	o.agent.answer("done")
	o.awaitItem("A", work.Completed)
}

// spy observes a worker's access to the queues, and can break it.
type spy struct {
	queues.Member
	extended chan<- struct{}

	mu     sync.Mutex
	lost   bool
	failed int // calls of Complete that still fail
}

func (s *spy) lose() { s.set(true) }
func (s *spy) find() { s.set(false) }

func (s *spy) set(lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = lost
}

func (s *spy) Extend(ctx context.Context, taskID string, token int) (string, error) {
	s.mu.Lock()
	lost := s.lost
	s.mu.Unlock()
	if lost {
		token = -1
	}
	until, err := s.Member.Extend(ctx, taskID, token)
	if err == nil && s.extended != nil {
		s.extended <- struct{}{}
	}
	return until, err
}

func question(ctx context.Context, h runner.Handler) (runner.Outcome, error) {
	answer, err := h.Permission(ctx, runner.PermissionRequest{ID: "1", Title: "Which file?",
		Options: []runner.PermissionOption{{ID: "a", Name: "a.go", Kind: runner.AllowOnce}, {ID: "b", Name: "b.go", Kind: runner.RejectOnce}}})
	if err != nil {
		return runner.Outcome{Status: runner.OutcomeCanceled}, err
	}
	return runner.Outcome{Status: runner.OutcomeCompleted, Text: "used " + answer.OptionID}, nil
}

// While an agent's question is open the item stays claimed; the answer continues the work.
func TestAQuestionThatIsAnswered(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.agent.does(func(ctx context.Context, _ runner.Turn, h runner.Handler) (runner.Outcome, error) {
		return question(ctx, h)
	})
	o.submit("A")
	task := o.awaitTask("A", a2a.TaskStateInputRequired)
	if s := nettest.State(t, o.boss, "A"); s.State != work.Claimed {
		t.Errorf("%+v", s)
	}
	reply := a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart("a"))
	reply.TaskID = task.ID
	if _, err := o.hub.Send(t.Context(), hub.SendRequest{Message: reply}); err != nil {
		t.Fatal(err)
	}
	if s := o.awaitItem("A", work.Completed); s.ResultSummary != "used a" || s.Attempts != 1 {
		t.Errorf("%+v", s)
	}
}

// A question that nobody answers for as long as a lease returns the item to the queue, with the question as the reason.
func TestAQuestionThatNobodyAnswers(t *testing.T) {
	t.Parallel()
	o := newOffice(t, func(o *office) { o.lease = time.Second })
	o.agent.does(func(context.Context, runner.Turn, runner.Handler) (runner.Outcome, error) {
		return runner.Outcome{Status: runner.OutcomeInputRequired, Text: "which file?"}, nil
	})
	o.submit("A")
	s := o.awaitItem("A", work.Dead)
	if !strings.Contains(s.FailureDetail, "which file?") || s.FailureReason != work.Refused || s.Attempts != 3 {
		t.Errorf("%+v", s)
	}
	for _, task := range o.tasks("A") {
		if task.Status.State != a2a.TaskStateCanceled {
			t.Errorf("a task is %s", task.Status.State)
		}
	}
}

// The hub stops while an agent works: the task fails, and the item is given out again when the hub runs.
func TestTheHubStopsInTheMiddle(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.agent.hang()
	o.submit("A")
	o.awaitTask("A", a2a.TaskStateWorking)
	o.stop()
	if s := nettest.State(t, o.boss, "A"); s.State != work.Claimed || s.Attempts != 1 {
		t.Errorf("%+v", s)
	}
	o.agent.answer("done")
	o.start()
	if s := o.awaitItem("A", work.Completed); s.Attempts != 2 || s.ResultSummary != "done" {
		t.Errorf("%+v", s)
	}
	all := o.tasks("A")
	if len(all) != 2 || all[1].Status.State != a2a.TaskStateFailed || o.agent.count() != 2 {
		t.Errorf("%d tasks, %d runs: %+v", len(all), o.agent.count(), all)
	}
}

// step is where a hub ends.
type step struct {
	queues.Member
	ended  chan struct{} // closed when the step is reached
	once   sync.Once
	before bool // it ends between the claim and the task
}

func (s *step) end(ctx context.Context) error {
	s.once.Do(func() { close(s.ended) })
	<-ctx.Done()
	return ctx.Err()
}

func (s *step) Claim(ctx context.Context, capabilities []string) (*work.Claim, error) {
	c, err := s.Member.Claim(ctx, capabilities)
	if c != nil && s.before {
		return nil, s.end(ctx)
	}
	return c, err
}

func (s *step) Complete(ctx context.Context, _ string, _ int, _ work.Outcome) error {
	return s.end(ctx)
}

// Wherever the hub ends, an item is run by one task, and what that has answered is the item's result.
func TestAnItemIsRunOnce(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]bool{"after the claim": true, "after the task, before the item": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &step{ended: make(chan struct{}), before: before}
			o := newOffice(t, func(o *office) {
				o.workers[0].Count = 1
				o.member = func(m queues.Member) queues.Member { s.Member = m; return s }
			})
			o.agent.answer("first")
			o.submit("A")
			<-s.ended
			o.stop()
			o.member = nil
			o.agent.answer("second")
			o.start()
			got := o.awaitItem("A", work.Completed)
			want := map[bool]string{true: "second", false: "first"}[before]
			if got.Attempts != 1 || got.ResultSummary != want || len(o.tasks("A")) != 1 || o.agent.count() != 1 {
				t.Errorf("%+v, %d tasks, %d runs", got, len(o.tasks("A")), o.agent.count())
			}
		})
	}
}

// The lease of an item that the agent has done ends before the hub comes back, and the item is claimed again.
func TestAnAnswerSurvivesItsLease(t *testing.T) {
	t.Parallel()
	s := &step{ended: make(chan struct{})}
	o := newOffice(t, func(o *office) {
		o.lease = 2 * time.Second
		o.workers[0].Count = 1
		o.member = func(m queues.Member) queues.Member { s.Member = m; return s }
	})
	o.agent.answer("first")
	o.submit("A")
	<-s.ended
	o.stop()
	o.awaitItem("A", work.Queued)
	o.member = func(m queues.Member) queues.Member { return forgetful{m} }
	o.agent.answer("second")
	o.start()
	if got := o.awaitItem("A", work.Completed); got.Attempts != 2 || got.ResultSummary != "first" || o.agent.count() != 1 {
		t.Errorf("%+v, %d runs", got, o.agent.count())
	}
}

// forgetful does not know what it holds, as when the cluster cannot be reached.
type forgetful struct{ queues.Member }

func (forgetful) Held(context.Context) ([]*work.Claim, error) { return nil, nil }

// An item that was held is finished although no worker is configured for its queue any more.
func TestAWorkerThatIsConfiguredNoMore(t *testing.T) {
	t.Parallel()
	s := &step{ended: make(chan struct{})}
	o := newOffice(t, func(o *office) { o.member = func(m queues.Member) queues.Member { s.Member = m; return s } })
	o.submit("A")
	<-s.ended
	o.stop()
	o.member, o.workers = nil, []queues.Worker{{Agent: "codex", Capability: "other", Count: 1}}
	o.start()
	o.awaitItem("A", work.Completed)
}

// An agent that cannot work leaves the queue to others.
func TestAnAgentThatCannotWorkClaimsNothing(t *testing.T) {
	t.Parallel()
	o := newOffice(t, func(o *office) { o.workers[0].Agent = "nobody" })
	o.submit("A")
	hand := nettest.Register(t, nettest.Open(t, o.config()), nettest.Worker("go"))
	c := nettest.Claim(t, hand)
	nettest.Complete(t, hand, c)
	o.awaitItem("A", work.Completed)
}

// A deadline bounds the task.
func TestAnItemsDeadlineBoundsItsTask(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.agent.hang()
	item := work.Submission{Capability: "go", Offer: mail.Offer{TaskID: "A", Description: "x", Deadline: time.Now().Add(3 * time.Second).UTC().Format(time.RFC3339Nano)}}
	if _, err := o.boss.Submit(t.Context(), item); err != nil {
		t.Fatal(err)
	}
	o.awaitTask("A", a2a.TaskStateFailed)
	o.agent.answer("done")
	o.awaitItem("A", work.Completed)
}

// An outage of the queues' bus does not cost the answer.
func TestAnAnswerWaitsForTheQueue(t *testing.T) {
	t.Parallel()
	s := &spy{failed: 3}
	o := newOffice(t, func(o *office) { o.member = func(m queues.Member) queues.Member { s.Member = m; return s } })
	o.submit("A")
	if got := o.awaitItem("A", work.Completed); got.Attempts != 1 || o.agent.count() != 1 {
		t.Errorf("%+v, %d runs", got, o.agent.count())
	}
}

func (s *spy) Complete(ctx context.Context, taskID string, token int, o work.Outcome) error {
	s.mu.Lock()
	s.failed--
	failed := s.failed >= 0
	s.mu.Unlock()
	if failed {
		return errors.New("no connection")
	}
	return s.Member.Complete(ctx, taskID, token, o)
}
