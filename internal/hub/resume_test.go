package hub_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// person is a durable agent: it answers a turn when the test says so, in whichever hub it is registered then.
type person struct {
	mu      sync.Mutex
	prompts []string          // of the turns, with their numbers
	shown   map[string]bool   // the prompts that it has got
	answers map[string]string // by prompt
	changed wait.Signal
}

func newPerson() *person { return &person{shown: map[string]bool{}, answers: map[string]string{}} }

func (p *person) show(prompt string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shown[prompt] = true
	p.changed.Send()
}

func (p *person) answer(prompt, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers[prompt] = text
	p.changed.Send()
}

func (p *person) asked() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.prompts)
}

// agent returns the person as an agent of one hub.
func (p *person) agent() *fakeAgent {
	return &fakeAgent{turn: func(ctx context.Context, t runner.Turn, h runner.Handler) (runner.Outcome, error) {
		asked := prompt(t)
		p.mu.Lock()
		p.prompts = append(p.prompts, asked+"#"+string(rune('0'+t.Number)))
		p.mu.Unlock()
		for {
			changed := p.changed.Wait()
			p.mu.Lock()
			answer, answered := p.answers[asked]
			shown := p.shown[asked]
			p.mu.Unlock()
			if shown || answered {
				h.Event(runner.Shown{})
			}
			if question, asks := strings.CutPrefix(answer, "?"); asks {
				return runner.Outcome{Status: runner.OutcomeInputRequired, Text: question}, nil
			}
			if answered {
				return runner.Outcome{Status: runner.OutcomeCompleted, Text: answer, MessageID: "answer-to-" + asked}, nil
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return runner.Outcome{Status: runner.OutcomeCanceled}, nil
			}
		}
	}}
}

func (p *person) register(t *testing.T, h *hub.Hub) {
	t.Helper()
	def := definition("ann")
	def.Limits = runner.Limits{Run: time.Hour, Concurrency: 2, Queue: 2}
	if err := h.Register(hub.Agent{Definition: def, Runner: p.agent(), Durable: true, Residence: hub.Residence{Handle: "reviewer"}}); err != nil {
		t.Fatal(err)
	}
}

// asksBack gives the agent a task, for which it asks something: the task waits for a person.
func (p *person) asksBack(t *testing.T, h *hub.Hub) *a2a.Task {
	t.Helper()
	p.answer("first", "?which one")
	task, err := h.SendAndWait(t.Context(), request("ann", "first"))
	if err != nil || task.Status.State != a2a.TaskStateInputRequired {
		t.Fatalf("%+v, %v", task, err)
	}
	return task
}

func taskIs(h *hub.Hub, id a2a.TaskID, state a2a.TaskState) func() bool {
	return func() bool {
		task, err := h.Task(context.Background(), id, nil)
		return err == nil && task.Status.State == state
	}
}

// personHub starts a hub with its data in dir, in which ann is not registered yet.
func personHub(t *testing.T, dir string) (h *hub.Hub, stop func()) {
	t.Helper()
	b, err := bus.Open(t.Context(), bus.Config{DataDir: dir, Durability: bus.DurabilityFast})
	if err != nil {
		t.Fatal(err)
	}
	if h, err = hub.New(t.Context(), hub.Config{Bus: b}); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		if err := errors.Join(h.Close(context.Background()), b.Close(context.Background())); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return h, stop
}

func TestATaskOfADurableAgentOutlivesTheHub(t *testing.T) {
	dir, ann := t.TempDir(), newPerson()
	h, stop := personHub(t, dir)
	ann.register(t, h)
	ids := map[string]a2a.TaskID{}
	for _, text := range []string{"seen", "unseen", "third", "fourth"} { // the last two wait in the queue
		task, err := h.Send(t.Context(), request("ann", text))
		if err != nil {
			t.Fatal(err)
		}
		ids[text] = task.ID
	}
	ann.show("seen")
	wait.Eventually(t, "the task that was shown is being worked on", taskIs(h, ids["seen"], a2a.TaskStateWorking))
	stop()
	restarted := time.Now()

	h, stop = personHub(t, dir)
	for text, id := range ids {
		want := a2a.TaskStateSubmitted
		if text == "seen" {
			want = a2a.TaskStateWorking
		}
		if task, err := h.Task(t.Context(), id, nil); err != nil || task.Status.State != want {
			t.Errorf("%s: %+v, %v", text, task, err)
		}
	}
	if got := h.Suspended(); !slices.Equal(got, []string{"ann"}) {
		t.Errorf("suspended agents: %v", got)
	}
	if task, err := h.Cancel(t.Context(), ids["fourth"]); err != nil || task.Status.State != a2a.TaskStateCanceled {
		t.Errorf("cancel while the agent is away: %+v, %v", task, err)
	}
	ann.register(t, h)
	for _, text := range []string{"seen", "unseen", "third"} {
		ann.answer(text, "done: "+text)
	}
	for _, text := range []string{"seen", "unseen", "third"} {
		wait.Eventually(t, text+" is answered after the restart", taskIs(h, ids[text], a2a.TaskStateCompleted))
		task, err := h.Task(t.Context(), ids[text], nil)
		if err != nil || len(task.History) != 2 || task.History[1].ID != "answer-to-"+text {
			t.Errorf("%+v, %v", task, err)
		}
		if s := hub.ReadSummary(task.Metadata); s.StartedAt.After(restarted) {
			t.Errorf("%s has begun at the hub's restart: %+v", text, s)
		}
	}
	if task, err := h.Task(t.Context(), ids["fourth"], nil); err != nil || task.Status.State != a2a.TaskStateCanceled {
		t.Errorf("%+v, %v", task, err)
	}
	stop()
	for _, turn := range ann.asked() {
		if !strings.HasSuffix(turn, "#1") || strings.HasPrefix(turn, "fourth") {
			t.Errorf("the agent was given the turn %s", turn)
		}
	}
}

// A task whose next turn begins while somebody reads it from the store is not shown as it was: what is stored of it and
// what is shown change one after the other, so that its state would seem to go back.
func TestATaskThatBecomesLiveIsShownAsItIsNow(t *testing.T) {
	ann := newPerson()
	h, store, err := hub.NewWatched(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close(context.Background())
	ann.register(t, h)
	task := ann.asksBack(t, h)
	ann.show("second")
	id := task.ID
	var read atomic.Bool
	store.Next(func() {
		read.Store(true)
		m := message("second")
		m.TaskID = id
		if _, err := h.Send(t.Context(), hub.SendRequest{Message: m}); err != nil {
			t.Error(err)
		}
		wait.Eventually(t, "the next turn is shown", taskIs(h, id, a2a.TaskStateWorking))
	})
	wait.Eventually(t, "the task is read from the store", func() bool { // it may be in memory still
		task, err = h.Task(t.Context(), id, nil)
		return read.Load()
	})
	if err != nil || task.Status.State != a2a.TaskStateWorking {
		t.Errorf("%+v, %v", task, err)
	}
}

// A task that waits for a person is in no one's memory; the directory names it all the same.
func TestTheDirectoryNamesATaskThatWaitsForAPerson(t *testing.T) {
	dir, ann := t.TempDir(), newPerson()
	h, stop := personHub(t, dir)
	ann.register(t, h)
	task := ann.asksBack(t, h)
	for _, when := range []string{"while the hub runs", "after its restart"} {
		for range 2 {
			if a, err := h.Agent("ann"); err != nil || a.State != hub.AgentWaiting || a.Work != (hub.Work{Task: task.ID, Title: "first"}) {
				t.Errorf("%s: %s %+v, %v", when, a.State, a.Work, err)
			}
		}
		stop()
		h, stop = personHub(t, dir)
		ann.register(t, h)
	}
}

// A store that hangs is not asked for the title of each task in a list, and is asked again later.
func TestAStoreThatHangsDelaysOneTitle(t *testing.T) {
	ann := newPerson()
	h, store, err := hub.NewWatched(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close(context.Background())
	ann.register(t, h)
	title := func() string {
		a, err := h.Agent("ann")
		if err != nil {
			t.Error(err)
		}
		return a.Work.Title
	}
	store.Hangs.Store(true)
	ann.asksBack(t, h)
	wait.Eventually(t, "the task has left memory", func() bool { return title() == "" })
	for range 20 {
		if got := title(); got != "" {
			t.Errorf("the title is %q", got)
		}
	}
	if n := store.Asked.Load(); n > 10 { // once, or once more for each second that this took
		t.Errorf("the store was asked %d times", n)
	}
	store.Hangs.Store(false)
	wait.Eventually(t, "the title is read", func() bool { return title() == "first" })
}

// Each message to a task is a turn of its own, also those that wait while the hub stops.
func TestQuestionsOfADurableAgentOutliveTheHub(t *testing.T) {
	dir, ann := t.TempDir(), newPerson()
	h, stop := personHub(t, dir)
	ann.register(t, h)
	task := ann.asksBack(t, h)
	for _, text := range []string{"second", "third"} {
		m := message(text)
		m.TaskID = task.ID
		if _, err := h.Send(t.Context(), hub.SendRequest{Message: m}); err != nil {
			t.Fatal(err)
		}
	}
	asking := make(chan error, 1)
	go func() {
		_, err := h.SendAndWait(context.Background(), request("ann", "other"))
		asking <- err
	}()
	wait.Eventually(t, "both conversations have a turn", func() bool { return len(ann.asked()) == 3 })
	stop()
	if err := <-asking; hub.CodeOf(err) != hub.CodeUnavailable || !strings.Contains(err.Error(), "stays open") {
		t.Errorf("whoever waited got %v", err)
	}

	h, _ = personHub(t, dir)
	ann.answer("second", "two")
	ann.answer("third", "three")
	ann.register(t, h)
	wait.Eventually(t, "the conversation goes on", taskIs(h, task.ID, a2a.TaskStateCompleted))
	end, err := h.Task(t.Context(), task.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, m := range end.History {
		texts = append(texts, text(m))
	}
	if got := strings.Join(texts, ", "); got != "first, which one, second, two, third, three" {
		t.Errorf("the history is %s", got)
	}
}

func TestADurableAgentHasUntilTheDeadline(t *testing.T) {
	dir, ann := t.TempDir(), newPerson()
	h, stop := personHub(t, dir)
	ann.register(t, h)
	req := request("ann", "slow")
	req.Timeout = 20 * time.Millisecond
	task, err := h.SendAndWait(t.Context(), req)
	if err != nil || task.Status.State != a2a.TaskStateFailed || !strings.Contains(text(task.Status.Message), "reviewer has not answered by its deadline") {
		t.Errorf("%+v, %v", task, err)
	}
	req = request("ann", "slow, too")
	req.Timeout = 30 * time.Minute
	if task, err = h.Send(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	at, err := time.Parse(time.RFC3339, task.Metadata[hub.MetaDeadline].(string))
	if left := time.Until(at); err != nil || left < 20*time.Minute || left > 31*time.Minute {
		t.Errorf("the deadline is %v, %v", task.Metadata[hub.MetaDeadline], err)
	}
	stop()
	h, _ = personHub(t, dir)
	if now, err := h.Task(t.Context(), task.ID, nil); err != nil || now.Metadata[hub.MetaDeadline] != task.Metadata[hub.MetaDeadline] {
		t.Errorf("%+v, %v", now, err)
	}
	for range 10 { // those who do not answer are not broken
		if info, err := h.Agent("ann"); err == nil && info.Health.Circuit != "closed" {
			t.Errorf("circuit %s", info.Health.Circuit)
		}
	}
}

// Cancellations that come while the hub stops do not keep it from stopping: the tasks are canceled, or the hub's next run goes on with
// them.
func TestCancellationsDuringAStopEnd(t *testing.T) {
	for round := range 20 {
		synctest.Test(t, func(t *testing.T) {
			h, err := hub.NewInMemory(t.Context(), hub.Config{})
			if err != nil {
				t.Fatal(err)
			}
			def := definition("ann")
			def.Limits = runner.Limits{Run: time.Hour, Concurrency: 50, Queue: 50}
			if err := h.Register(hub.Agent{Definition: def, Runner: newPerson().agent(), Durable: true}); err != nil {
				t.Fatal(err)
			}
			var tasks []a2a.TaskID
			for i := range 100 {
				task, err := h.Send(t.Context(), request("ann", fmt.Sprint("look ", i)))
				if err != nil {
					t.Fatal(err)
				}
				tasks = append(tasks, task.ID)
			}
			synctest.Wait()
			for _, id := range tasks {
				go func() { _, _ = h.Cancel(context.Background(), id) }() // it may come too late
			}
			for range 5 * round { // the stop comes after some of them
				runtime.Gosched()
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := h.Close(ctx); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A task that somebody watches takes an answer as soon as its agent is registered again.
func TestAWatchedQuestionIsAnsweredAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stored hub.Memory
		ann := newPerson()
		start := func() *hub.Hub {
			h, err := hub.New(t.Context(), hub.Config{Memory: &stored})
			if err != nil {
				t.Fatal(err)
			}
			return h
		}
		h := start()
		ann.register(t, h)
		ann.answer("look", "?where")
		task, err := h.SendAndWait(t.Context(), request("ann", "look"))
		if err != nil || task.Status.State != a2a.TaskStateInputRequired {
			t.Fatalf("%+v, %v", task, err)
		}
		if err := h.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		h = start()
		watching, err := h.Subscribe(t.Context(), task.ID)
		if err != nil {
			t.Fatal(err)
		}
		defer watching.Close()
		ann.register(t, h)
		ann.answer("there", "thanks")
		m := message("there")
		m.TaskID = task.ID
		if task, err = h.SendAndWait(t.Context(), hub.SendRequest{Message: m}); err != nil || task.Status.State != a2a.TaskStateCompleted {
			t.Errorf("%+v, %v", task, err)
		}
		if err := h.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}
