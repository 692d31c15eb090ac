package hub_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// actor is an agent whose prompts are sequences of instructions, executed in order:
//
//	say:TEXT  tool  ask  wait  complete  input  auth  reject  fail  crash  panic
func actor() *fakeAgent {
	return &fakeAgent{turn: func(ctx context.Context, t runner.Turn, h runner.Handler) (runner.Outcome, error) {
		var said strings.Builder
		outcome := func(s runner.OutcomeStatus) (runner.Outcome, error) {
			return runner.Outcome{Status: s, Text: said.String()}, nil
		}
		for _, w := range strings.Fields(prompt(t)) {
			switch name, arg, _ := strings.Cut(w, ":"); name {
			case "say":
				said.WriteString(arg)
				h.Event(runner.TextDelta{Text: arg})
			case "tool":
				h.Event(runner.ToolCall{ID: "1", Name: "Bash", Title: "Run ls", Status: runner.ToolRunning})
			case "artifact":
				h.Event(runner.Artifact{ID: arg, Name: arg, Parts: []*a2a.Part{a2a.NewTextPart(arg)}})
			case "usage":
				h.Event(runner.Usage{InputTokens: 3, OutputTokens: 4})
			case "notice":
				h.Event(runner.Notice{Text: arg})
			case "session":
				h.Event(runner.SessionStarted{ID: arg})
			case "think":
				h.Event(runner.Thought{Text: "hm"})
			case "ask":
				a, err := h.Permission(ctx, runner.PermissionRequest{ID: "q" + arg, Title: "Run ls?",
					Tool: runner.ToolCall{Name: "Bash", Input: []byte(`{"command":"ls"}`)},
					Options: []runner.PermissionOption{
						{ID: "a" + arg, Name: "Allow", Kind: runner.AllowOnce}, {ID: "r" + arg, Name: "Reject", Kind: runner.RejectOnce},
					}})
				if err != nil && ctx.Err() != nil {
					return outcome(runner.OutcomeCanceled)
				}
				s := fmt.Sprintf("[%s %s %v]", a.OptionID, a.Message, err)
				said.WriteString(s)
				h.Event(runner.TextDelta{Text: s})
			case "wait":
				<-ctx.Done()
				return outcome(runner.OutcomeCanceled)
			case "input":
				return outcome(runner.OutcomeInputRequired)
			case "auth":
				o, _ := outcome(runner.OutcomeAuthRequired)
				return o, &runner.Error{Code: runner.CodeAuth, Message: "no credentials", Remedy: "log in"}
			case "reject":
				return outcome(runner.OutcomeRejected)
			case "fail":
				o, _ := outcome(runner.OutcomeFailed)
				return o, &runner.Error{Code: runner.CodeAgent, Message: "the model is overloaded", Remedy: "wait a minute"}
			case "limit":
				o, _ := outcome(runner.OutcomeFailed)
				return o, &runner.Error{Code: runner.CodeLimit, Message: "too long"}
			case "panic":
				panic("a bug in the driver")
			}
		}
		return outcome(runner.OutcomeCompleted)
	}}
}

func errorCode(t *testing.T, task *a2a.Task) string {
	t.Helper()
	if task.Status.Message == nil {
		return ""
	}
	m, _ := task.Status.Message.Metadata[hub.MetaError].(map[string]any)
	code, _ := m["code"].(string)
	return code
}

func send(t testing.TB, h *hub.Hub, req hub.SendRequest) *a2a.Task {
	t.Helper()
	task, err := h.SendAndWait(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	return task
}

func follow(task *a2a.Task, text string) hub.SendRequest {
	m := message(text)
	m.TaskID = task.ID
	return hub.SendRequest{Message: m}
}

// await follows a task until it has reached a state, and returns the task.
func await(t testing.TB, h *hub.Hub, id a2a.TaskID, want a2a.TaskState) *a2a.Task {
	t.Helper()
	sub, err := h.Subscribe(context.Background(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	task := sub.Task()
	for task.Status.State != want {
		if _, err := sub.Next(context.Background()); err != nil {
			t.Fatalf("task %s is %s and not %s: %v", id, task.Status.State, want, err)
		}
		if task, err = h.Task(context.Background(), id, nil); err != nil {
			t.Fatal(err)
		}
	}
	return task
}

// HUB-AGENT-EXECUTE.
func TestOutcomesDetermineTaskStates(t *testing.T) {
	h := newHub(t, hub.Config{BreakerFailures: 100}, map[string]*fakeAgent{"a": actor()})
	for _, tc := range []struct {
		prompt string
		state  a2a.TaskState
		text   string
		code   string
		arts   string // joined texts of the artifacts
	}{
		{"say:hello", a2a.TaskStateCompleted, "hello", "", ""},
		{"say:a say:b tool think say:c", a2a.TaskStateCompleted, "abc", "", ""},
		{"nothing", a2a.TaskStateCompleted, "", "", ""},
		{"say:which? input", a2a.TaskStateInputRequired, "which?", "", ""},
		{"auth", a2a.TaskStateAuthRequired, "no credentials; log in", "auth", ""},
		{"reject", a2a.TaskStateRejected, "the agent refused the task", "rejected", ""},
		{"say:no reject", a2a.TaskStateFailed, "no", "rejected", ""},
		{"say:half fail", a2a.TaskStateFailed, "the model is overloaded; wait a minute", "agent", "half"},
		{"say:half panic", a2a.TaskStateFailed, "the agent's driver crashed; see the hub's log", "internal", "half"},
		{"artifact:x artifact:y say:done", a2a.TaskStateCompleted, "done", "", "xy"},
	} {
		t.Run(tc.prompt, func(t *testing.T) {
			task := send(t, h, request("a", tc.prompt))
			var arts strings.Builder
			for _, a := range task.Artifacts {
				arts.WriteString(a.Parts[0].Text())
			}
			if task.Status.State != tc.state || text(task.Status.Message) != tc.text || errorCode(t, task) != tc.code || arts.String() != tc.arts {
				t.Errorf("state %s, text %q, code %q, artifacts %q", task.Status.State, text(task.Status.Message), errorCode(t, task), arts.String())
			}
			if task.Status.Timestamp == nil || task.History[0].TaskID != task.ID || task.History[0].ContextID != task.ContextID {
				t.Errorf("task %+v", task)
			}
		})
	}
}

func TestMetadataContainsUsageDenialsAndNotices(t *testing.T) {
	agent := &fakeAgent{turn: func(_ context.Context, _ runner.Turn, h runner.Handler) (runner.Outcome, error) {
		h.Event(runner.Notice{Text: "retried"})
		h.Event(runner.Notice{Text: "retried"})
		return runner.Outcome{
			Status: runner.OutcomeCompleted, Text: "ok", Truncated: true, Usage: runner.Usage{InputTokens: 7, CostUSD: 0.5},
			Denials: []runner.ToolCall{{ID: "1", Name: "Bash", Input: []byte(`{"command":"rm"}`)}},
		}, nil
	}}
	h := newHub(t, hub.Config{}, map[string]*fakeAgent{"a": agent})
	req := request("a", "go")
	req.Metadata = map[string]any{"mine": "kept", "parley.agent": "forged", "parley.other": 1}
	task := send(t, h, req)
	want := map[string]any{
		"mine":          "kept",
		hub.MetaAgent:   "a",
		hub.MetaUsage:   map[string]any{"inputTokens": 7.0, "costUsd": 0.5},
		hub.MetaDenials: []any{map[string]any{"id": "1", "name": "Bash", "input": map[string]any{"command": "rm"}}},
		hub.MetaNotices: []any{"retried", "the answer was cut: it is longer than the agent's limits.maxOutput"},
		hub.MetaSummary: task.Metadata[hub.MetaSummary],
	}
	if d := cmp.Diff(want, task.Metadata); d != "" {
		t.Error(d)
	}
}

func TestARetryIsShownAtOnceAndKeptAsANotice(t *testing.T) {
	release := make(chan struct{})
	agent := &fakeAgent{turn: func(_ context.Context, _ runner.Turn, h runner.Handler) (runner.Outcome, error) {
		h.Event(runner.Retry{Attempt: 1, Of: 3, Status: 529, Wait: time.Second})
		<-release
		return runner.Outcome{Status: runner.OutcomeCompleted, Text: "ok"}, nil
	}}
	h := newHub(t, hub.Config{}, map[string]*fakeAgent{"a": agent})
	done := make(chan *a2a.Task)
	go func() { done <- send(t, h, request("a", "go")) }()
	const words = "the model answered with overloaded (529); try 1 of 3, in 1s"
	wait.Eventually(t, "the retry is shown", func() bool {
		page, err := h.Tasks(t.Context(), hub.TaskQuery{})
		if err != nil || len(page.Tasks) != 1 || page.Tasks[0].Status.Message == nil {
			return false
		}
		m := page.Tasks[0].Status.Message
		return m.Metadata[hub.MetaRetry] != nil && m.Parts[0].Text() == words
	})
	close(release)
	if got := (<-done).Metadata[hub.MetaNotices]; !cmp.Equal(got, []any{words}) {
		t.Errorf("notices %v", got)
	}
}

func TestSendRefusesInvalidRequests(t *testing.T) {
	h := newHub(t, hub.Config{}, map[string]*fakeAgent{"a": actor(), "b": actor()})
	done := send(t, h, request("a", "say:x"))
	asks := send(t, h, request("a", "input"))
	req := func(change func(*hub.SendRequest)) hub.SendRequest {
		r := request("a", "x")
		change(&r)
		return r
	}
	for name, tc := range map[string]struct {
		req   hub.SendRequest
		code  hub.Code
		field string
	}{
		"no message":      {hub.SendRequest{AgentID: "a"}, hub.CodeInvalid, "message"},
		"no id":           {req(func(r *hub.SendRequest) { r.Message.ID = "" }), hub.CodeInvalid, "message.messageId"},
		"wrong role":      {req(func(r *hub.SendRequest) { r.Message.Role = a2a.MessageRoleAgent }), hub.CodeInvalid, "message.role"},
		"no parts":        {req(func(r *hub.SendRequest) { r.Message.Parts = nil }), hub.CodeInvalid, "message.parts"},
		"nil part":        {req(func(r *hub.SendRequest) { r.Message.Parts = append(r.Message.Parts, nil) }), hub.CodeInvalid, "message.parts[1]"},
		"empty part":      {req(func(r *hub.SendRequest) { r.Message.Parts[0] = &a2a.Part{} }), hub.CodeInvalid, "message.parts[0]"},
		"broken UTF-8":    {req(func(r *hub.SendRequest) { r.Message.Parts[0] = a2a.NewTextPart("\xff") }), hub.CodeInvalid, "message.parts[0].text"},
		"many parts":      {req(func(r *hub.SendRequest) { r.Message.Parts = make(a2a.ContentParts, 1001) }), hub.CodeInvalid, "message.parts"},
		"huge part":       {req(func(r *hub.SendRequest) { r.Message.Parts[0] = a2a.NewRawPart(make([]byte, 25<<20)) }), hub.CodeInvalid, "message.parts"},
		"huge prompt":     {req(func(r *hub.SendRequest) { r.Message.Parts[0] = a2a.NewTextPart(strings.Repeat("x", 1<<20+1)) }), hub.CodeInvalid, "message.parts"},
		"huge metadata":   {req(func(r *hub.SendRequest) { r.Metadata = map[string]any{"x": strings.Repeat("x", 1<<17)} }), hub.CodeInvalid, "metadata"},
		"control context": {req(func(r *hub.SendRequest) { r.Message.ContextID = "a\nb" }), hub.CodeInvalid, "message.contextId"},
		"long context":    {req(func(r *hub.SendRequest) { r.Message.ContextID = strings.Repeat("x", 129) }), hub.CodeInvalid, "message.contextId"},
		"long task":       {req(func(r *hub.SendRequest) { r.Message.TaskID = a2a.TaskID(strings.Repeat("x", 129)) }), hub.CodeInvalid, "message.taskId"},
		"no agent":        {req(func(r *hub.SendRequest) { r.AgentID = "" }), hub.CodeInvalid, "message.metadata.targetAgent"},
		"agent no text":   {req(func(r *hub.SendRequest) { r.AgentID, r.Message.Metadata = "", map[string]any{"targetAgent": 1} }), hub.CodeInvalid, "message.metadata.targetAgent"},
		"unknown agent":   {req(func(r *hub.SendRequest) { r.AgentID = "nobody" }), hub.CodeAgentNotFound, ""},
		"unknown task":    {req(func(r *hub.SendRequest) { r.Message.TaskID = "nothing" }), hub.CodeTaskNotFound, ""},
		"subject as task": {req(func(r *hub.SendRequest) { r.Message.TaskID = "*.>" }), hub.CodeTaskNotFound, ""},
		"ended task":      {follow(done, "more"), hub.CodeUnsupported, ""},
		"other context":   {req(func(r *hub.SendRequest) { r.Message.TaskID, r.Message.ContextID = asks.ID, done.ContextID }), hub.CodeInvalid, "message.contextId"},
		"other agent":     {req(func(r *hub.SendRequest) { r.Message.TaskID, r.AgentID = asks.ID, "b" }), hub.CodeInvalid, "agentId"},
		"other agent meta": {req(func(r *hub.SendRequest) {
			r.Message.TaskID, r.AgentID, r.Message.Metadata = asks.ID, "", map[string]any{"targetAgent": "b"}
		}), hub.CodeInvalid, "message.metadata.targetAgent"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := h.Send(t.Context(), tc.req)
			he, ok := errors.AsType[*hub.Error](err)
			if !ok || he.Code != tc.code || he.Subject != tc.field {
				t.Errorf("error %#v", err)
			}
		})
	}
	if page, err := h.Tasks(t.Context(), hub.TaskQuery{}); err != nil || page.Total != 2 {
		t.Errorf("tasks after refused messages: %d, %v", page.Total, err)
	}
}

func TestMetadataNamesTheAgent(t *testing.T) {
	h := newHub(t, hub.Config{}, map[string]*fakeAgent{"a": actor()})
	m := message("say:x")
	m.Metadata = map[string]any{hub.MetaTargetAgent: "a"}
	m.ContextID = "my context / ü *.>"
	task := send(t, h, hub.SendRequest{Message: m})
	if task.ContextID != "my context / ü *.>" || task.Metadata[hub.MetaAgent] != "a" {
		t.Errorf("task %+v", task)
	}
	if m.TaskID != "" {
		t.Error("Send has changed the caller's message")
	}
}

func TestTheNextMessageContinuesAnInputRequiredTask(t *testing.T) {
	h := newHub(t, hub.Config{}, map[string]*fakeAgent{"a": actor()})
	task := send(t, h, request("a", "say:which? input"))
	end := send(t, h, follow(task, "say:thanks"))
	if end.ID != task.ID || end.Status.State != a2a.TaskStateCompleted {
		t.Fatalf("task %+v", end)
	}
	var got []string
	for _, m := range end.History {
		got = append(got, string(m.Role)+" "+text(m))
	}
	want := []string{"ROLE_USER say:which? input", "ROLE_AGENT which?", "ROLE_USER say:thanks", "ROLE_AGENT thanks"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	zero, two := 0, 2
	short, err := h.Task(t.Context(), task.ID, &two)
	if err != nil || len(short.History) != 2 || text(short.History[1]) != "thanks" {
		t.Errorf("history of two messages: %+v, %v", short, err)
	}
	none, err := h.Task(t.Context(), task.ID, &zero)
	if err != nil || len(none.History) != 0 {
		t.Errorf("history of no messages: %+v, %v", none, err)
	}
}

func TestTheNextMessageRetriesAnAuthRequiredTask(t *testing.T) {
	h := newHub(t, hub.Config{}, map[string]*fakeAgent{"a": actor()})
	task := send(t, h, request("a", "auth"))
	if end := send(t, h, follow(task, "say:in")); end.Status.State != a2a.TaskStateCompleted {
		t.Errorf("task %+v", end)
	}
}

func TestAMessageToARunningTaskIsItsNextTurn(t *testing.T) {
	release := make(chan struct{})
	agent := &fakeAgent{turn: func(ctx context.Context, turn runner.Turn, h runner.Handler) (runner.Outcome, error) {
		h.Event(runner.TextDelta{Text: prompt(turn)})
		if prompt(turn) == "one" {
			<-release
		}
		return runner.Outcome{Status: runner.OutcomeCompleted, Text: prompt(turn)}, nil
	}}
	h := newHub(t, hub.Config{}, map[string]*fakeAgent{"a": agent})
	sub, err := h.SendAndStream(t.Context(), request("a", "one"))
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	await(t, h, sub.Task().ID, a2a.TaskStateWorking)
	if _, err := h.Send(t.Context(), follow(sub.Task(), "two")); err != nil {
		t.Fatal(err)
	}
	close(release)
	end := await(t, h, sub.Task().ID, a2a.TaskStateCompleted)
	var got []string
	for _, m := range end.History {
		got = append(got, text(m))
	}
	if d := cmp.Diff([]string{"one", "one", "two", "two"}, got); d != "" {
		t.Error(d)
	}
	if len(end.Artifacts) != 2 || end.Artifacts[0].ID != "answer" || end.Artifacts[1].ID != "answer-2" {
		t.Errorf("artifacts %+v", end.Artifacts)
	}
}

// HUB-TASK-CONCURRENCY.
func TestTurnsAreLimitedPerContextAndPerAgent(t *testing.T) {
	var mu sync.Mutex
	var running, most int
	perContext := map[string]int{}
	var order []string
	agent := &fakeAgent{}
	agent.turn = func(_ context.Context, turn runner.Turn, _ runner.Handler) (runner.Outcome, error) {
		context, _, _ := strings.Cut(prompt(turn), " ")
		mu.Lock()
		running++
		most = max(most, running)
		perContext[context]++
		if perContext[context] > 1 {
			t.Errorf("two turns at once in %s", context)
		}
		order = append(order, prompt(turn))
		mu.Unlock()
		runtime.Gosched()
		mu.Lock()
		running--
		perContext[context]--
		mu.Unlock()
		return runner.Outcome{Status: runner.OutcomeCompleted}, nil
	}
	def := definition("a")
	def.Limits = runner.Limits{Concurrency: 3, Queue: 1000}
	h := newHub(t, hub.Config{Agents: []hub.Agent{{Definition: def, Runner: agent}}}, nil)
	var wg sync.WaitGroup
	ids := make(chan a2a.TaskID, 200)
	for c := range 10 {
		wg.Go(func() {
			for i := range 20 {
				m := message(fmt.Sprintf("c%d %d", c, i))
				m.ContextID = fmt.Sprintf("c%d", c)
				task, err := h.Send(context.Background(), hub.SendRequest{AgentID: "a", Message: m})
				if err != nil {
					t.Error(err)
					return
				}
				ids <- task.ID
			}
		})
	}
	wg.Wait()
	close(ids)
	for id := range ids {
		await(t, h, id, a2a.TaskStateCompleted)
	}
	if most > 3 {
		t.Errorf("%d turns at once", most)
	}
	last := map[string]int{}
	for _, p := range order {
		var c, i int
		if _, err := fmt.Sscanf(p, "c%d %d", &c, &i); err != nil {
			t.Fatal(err)
		}
		if key := fmt.Sprint(c); last[key] != i {
			t.Fatalf("context %d: message %d before %d", c, i, last[key])
		}
		last[fmt.Sprint(c)]++
	}
}

func TestAFullQueueRefusesAndStoresNothing(t *testing.T) {
	def := definition("a")
	def.Limits = runner.Limits{Concurrency: 1, Queue: 2}
	agent := actor()
	h := newHub(t, hub.Config{Agents: []hub.Agent{{Definition: def, Runner: agent}}}, nil)
	var tasks []*a2a.Task
	for range 3 {
		task, err := h.Send(t.Context(), request("a", "wait"))
		if err != nil {
			t.Fatal(err)
		}
		tasks = append(tasks, task)
	}
	_, err := h.Send(t.Context(), request("a", "wait"))
	if he, ok := errors.AsType[*hub.Error](err); !ok || he.Code != hub.CodeUnavailable || he.Remedy == "" {
		t.Fatalf("error %v", err)
	}
	if _, err := h.Send(t.Context(), follow(tasks[0], "more")); hub.CodeOf(err) != hub.CodeUnavailable {
		t.Fatalf("a follow-up: error %v", err)
	}
	if info, err := h.Agent("a"); err != nil || info.Running != 1 || info.Queued != 2 {
		t.Errorf("agent %+v, %v", info, err)
	}
	for i := len(tasks) - 1; i >= 0; i-- { // queued tasks first
		end, err := h.Cancel(t.Context(), tasks[i].ID)
		if err != nil || end.Status.State != a2a.TaskStateCanceled {
			t.Errorf("Cancel = %+v, %v", end, err)
		}
	}
	if page, err := h.Tasks(t.Context(), hub.TaskQuery{}); err != nil || page.Total != 3 {
		t.Errorf("%d tasks, %v", page.Total, err)
	}
	if info, err := h.Agent("a"); err != nil || info.Running != 0 || info.Queued != 0 {
		t.Errorf("agent %+v, %v", info, err)
	}
}

// HUB-AGENT-CANCEL.
func TestCancel(t *testing.T) {
	h := newHub(t, hub.Config{}, map[string]*fakeAgent{"a": actor()})
	for name, prompt := range map[string]string{
		"running": "say:half wait", "asking": "say:half ask", "waiting for input": "say:half input", "without credentials": "auth",
	} {
		t.Run(name, func(t *testing.T) {
			task, err := h.Send(t.Context(), request("a", prompt))
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]a2a.TaskState{"running": a2a.TaskStateWorking, "without credentials": a2a.TaskStateAuthRequired}[name]
			if want == "" {
				want = a2a.TaskStateInputRequired
			}
			await(t, h, task.ID, want)
			var wg sync.WaitGroup
			var canceled atomic.Int32
			for range 3 { // concurrently
				wg.Go(func() {
					end, err := h.Cancel(context.Background(), task.ID)
					switch {
					case err == nil && end.Status.State == a2a.TaskStateCanceled:
						canceled.Add(1)
					case hub.CodeOf(err) != hub.CodeNotCancelable:
						t.Errorf("Cancel = %+v, %v", end, err)
					}
				})
			}
			wg.Wait()
			if canceled.Load() == 0 {
				t.Error("no call of Cancel has succeeded")
			}
			if _, err := h.Cancel(t.Context(), task.ID); hub.CodeOf(err) != hub.CodeNotCancelable {
				t.Errorf("a second Cancel: %v", err)
			}
		})
	}
	if _, err := h.Cancel(t.Context(), "nothing"); hub.CodeOf(err) != hub.CodeTaskNotFound {
		t.Errorf("unknown task: %v", err)
	}
}

// HUB-TASK-TIMEOUT.
func TestTimeoutsEndARun(t *testing.T) {
	h := newHub(t, hub.Config{}, map[string]*fakeAgent{"a": actor()})
	req := request("a", "say:half wait")
	req.Timeout = time.Millisecond
	task := send(t, h, req)
	if task.Status.State != a2a.TaskStateFailed || errorCode(t, task) != string(hub.CodeTimeout) || len(task.Artifacts) != 1 {
		t.Errorf("task %+v", task)
	}
}

func TestACallersTimeoutLeavesTheTaskRunning(t *testing.T) {
	h := newHub(t, hub.Config{}, map[string]*fakeAgent{"a": actor()})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	task, err := h.SendAndWait(ctx, request("a", "wait"))
	if hub.CodeOf(err) != hub.CodeTimeout || task == nil {
		t.Fatalf("SendAndWait = %v, %v", task, err)
	}
	await(t, h, task.ID, a2a.TaskStateWorking)
	if _, err := h.Send(ctx, request("a", "wait")); hub.CodeOf(err) != hub.CodeTimeout {
		t.Errorf("Send after the caller's timeout: %v", err)
	}
}

func TestCloseFailsRunningAndQueuedTasks(t *testing.T) {
	agent := actor()
	def := definition("a")
	def.Limits.Concurrency = 1
	h, err := hub.New(t.Context(), hub.Config{Agents: []hub.Agent{{Definition: def, Runner: agent}}})
	if err != nil {
		t.Fatal(err)
	}
	var subs []*hub.Subscription
	for range 3 {
		sub, err := h.SendAndStream(t.Context(), request("a", "say:half wait"))
		if err != nil {
			t.Fatal(err)
		}
		defer sub.Close()
		subs = append(subs, sub)
	}
	if err := h.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, sub := range subs {
		task, err := h.Task(t.Context(), sub.Task().ID, nil)
		if err != nil || task.Status.State != a2a.TaskStateFailed || errorCode(t, task) != "hub-stopped" {
			t.Errorf("task %+v, %v", task, err)
		}
		for err = error(nil); err == nil; _, err = sub.Next(t.Context()) {
		}
		if err != io.EOF {
			t.Errorf("Next: %v", err)
		}
	}
	if n := agent.left(); n != 0 {
		t.Errorf("%d sessions are still open", n)
	}
	if _, err := h.Send(t.Context(), request("a", "x")); hub.CodeOf(err) != hub.CodeUnavailable {
		t.Errorf("Send after Close: %v", err)
	}
	if err := h.Close(t.Context()); err != nil {
		t.Errorf("a second Close: %v", err)
	}
}

func TestCloseDoesNotWaitForever(t *testing.T) {
	stuck := make(chan struct{})
	agent := &fakeAgent{turn: func(context.Context, runner.Turn, runner.Handler) (runner.Outcome, error) {
		<-stuck
		return runner.Outcome{Status: runner.OutcomeCanceled}, nil
	}}
	h, err := hub.New(t.Context(), hub.Config{Agents: []hub.Agent{{Definition: definition("a"), Runner: agent}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Send(t.Context(), request("a", "x")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.Close(ctx); hub.CodeOf(err) != hub.CodeTimeout {
		t.Errorf("Close = %v", err)
	}
	close(stuck)
	if err := h.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestEventsAfterATurnAreIgnored(t *testing.T) {
	late := make(chan struct{})
	var handler runner.Handler
	agent := &fakeAgent{turn: func(_ context.Context, _ runner.Turn, h runner.Handler) (runner.Outcome, error) {
		handler = h
		return runner.Outcome{Status: runner.OutcomeInputRequired, Text: "which?"}, nil
	}}
	h := newHub(t, hub.Config{}, map[string]*fakeAgent{"a": agent})
	sub, err := h.SendAndStream(t.Context(), request("a", "go"))
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close() // keeps the task in memory, so that the handler's task is the hub's
	newReplica(sub.Task()).follow(t, sub)
	task, err := h.Task(t.Context(), sub.Task().ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(late)
		handler.Event(runner.TextDelta{Text: "late"})
		handler.Event(runner.ToolCall{ID: "1"})
		handler.Event(runner.Notice{Text: "late"})
		if _, err := handler.Permission(context.Background(), runner.PermissionRequest{Options: []runner.PermissionOption{{ID: "a"}}}); err == nil {
			t.Error("a permission request after the turn was answered")
		}
	}()
	<-late
	got, err := h.Task(t.Context(), task.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(task, got); d != "" {
		t.Error(d)
	}
}

// HUB-REGISTRY-REGISTER.
func TestAgentsAreRegisteredAndDeregistered(t *testing.T) {
	h := newHub(t, hub.Config{}, nil)
	agent := actor()
	a := hub.Agent{Definition: definition("late"), Runner: agent}
	if err := h.Register(a); err != nil {
		t.Fatal(err)
	}
	if err := h.Register(a); hub.CodeOf(err) != hub.CodeInvalid {
		t.Errorf("second Register: %v", err)
	}
	for _, id := range []string{"", "Upper", "-x", strings.Repeat("x", 65), "a/b"} {
		if err := h.Register(hub.Agent{Definition: definition(id), Runner: agent}); hub.CodeOf(err) != hub.CodeInvalid {
			t.Errorf("id %q: %v", id, err)
		}
	}
	task, err := h.Send(t.Context(), request("late", "wait"))
	if err != nil {
		t.Fatal(err)
	}
	asks := send(t, h, request("late", "input"))
	if err := h.Deregister(t.Context(), "late"); err != nil {
		t.Fatal(err)
	}
	if got, err := h.Task(t.Context(), task.ID, nil); err != nil || got.Status.State != a2a.TaskStateFailed {
		t.Errorf("task %+v, %v", got, err)
	}
	if n := agent.left(); n != 0 {
		t.Errorf("%d sessions are still open", n)
	}
	if _, err := h.Send(t.Context(), request("late", "x")); hub.CodeOf(err) != hub.CodeAgentNotFound {
		t.Errorf("Send: %v", err)
	}
	if _, err := h.Send(t.Context(), follow(asks, "x")); hub.CodeOf(err) != hub.CodeAgentNotFound {
		t.Errorf("Send to a task of the removed agent: %v", err)
	}
	if err := h.Deregister(t.Context(), "late"); hub.CodeOf(err) != hub.CodeAgentNotFound {
		t.Errorf("Deregister: %v", err)
	}
	if _, err := h.Agent("late"); hub.CodeOf(err) != hub.CodeAgentNotFound {
		t.Errorf("Agent: %v", err)
	}
}

// Agents and users act on tasks concurrently; every reported change of state is checked.
// HUB-TYPE-TRANSITIONS.
func TestTasksChangeStateOnlyAsSpecified(t *testing.T) {
	h := newHub(t, hub.Config{BreakerFailures: 1 << 20}, map[string]*fakeAgent{"a": actor()})
	legal := arrows()
	rapid.Check(t, func(rt *rapid.T) {
		words := rapid.SampledFrom([]string{"say:x", "say:y", "tool", "ask:1", "ask:2", "artifact:z", "input", "auth", "reject", "fail", "wait", "panic", "notice:n", "usage"})
		prompts := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) string {
			return strings.Join(rapid.SliceOfN(words, 0, 5).Draw(rt, "words"), " ") + " ."
		}), 1, 4).Draw(rt, "prompts")
		sub, err := h.SendAndStream(context.Background(), request("a", prompts[0]))
		if err != nil {
			rt.Fatal(err)
		}
		id := sub.Task().ID
		watch := func(sub *hub.Subscription, from a2a.TaskState) a2a.TaskState {
			for {
				ev, err := sub.Next(context.Background())
				if err == io.EOF {
					return from
				}
				if err != nil {
					rt.Fatal(err)
				}
				st, ok := ev.(*a2a.TaskStatusUpdateEvent)
				if !ok || st.Status.State == from {
					continue
				}
				if !legal[[2]a2a.TaskState{from, st.Status.State}] {
					rt.Errorf("%q: from %s to %s", prompts, from, st.Status.State)
				}
				from = st.Status.State
			}
		}
		var wg sync.WaitGroup
		if rapid.Bool().Draw(rt, "cancel") || strings.Contains(strings.Join(prompts, " "), "wait") {
			wg.Go(func() {
				if _, err := h.Cancel(context.Background(), id); err != nil && hub.CodeOf(err) != hub.CodeNotCancelable {
					rt.Error(err)
				}
			})
		}
		state := watch(sub, a2a.TaskStateSubmitted)
		sub.Close()
		for _, p := range prompts[1:] {
			m := message(p)
			m.TaskID = id
			sub, err := h.SendAndStream(context.Background(), hub.SendRequest{Message: m})
			if hub.CodeOf(err) == hub.CodeUnsupported {
				break
			}
			if err != nil {
				rt.Fatal(err)
			}
			state = watch(sub, sub.Task().Status.State)
			sub.Close()
		}
		wg.Wait()
		end, err := h.Task(context.Background(), id, nil)
		if err != nil {
			rt.Fatal(err)
		}
		if !end.Status.State.Terminal() {
			if _, err := h.Cancel(context.Background(), id); err != nil && hub.CodeOf(err) != hub.CodeNotCancelable {
				rt.Fatal(err)
			}
		} else if state.Terminal() && state != end.Status.State {
			rt.Errorf("the last reported state is %s, the task's is %s", state, end.Status.State)
		}
	})
}

// A hub is replaced by another version only when no task would be interrupted.
func TestADrainedHubHasNoTaskToInterrupt(t *testing.T) {
	b := openBus(t, t.TempDir(), "fast")
	h := newHub(t, hub.Config{Bus: b}, map[string]*fakeAgent{"actor": actor()})
	working, err := h.Send(t.Context(), request("actor", "wait"))
	if err != nil {
		t.Fatal(err)
	}
	if busy := h.Drain(); busy != 1 {
		t.Fatalf("%d tasks would be interrupted, want 1", busy)
	}
	asking, err := h.SendAndWait(t.Context(), request("actor", "input"))
	if err != nil || asking.Status.State != a2a.TaskStateInputRequired {
		t.Fatalf("a hub that is not drained accepts messages: %v, %v", asking, err)
	}
	if _, err := h.Cancel(t.Context(), working.ID); err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "the hub is idle", func() bool { return h.Drain() == 0 })
	if _, err := h.Send(t.Context(), request("actor", "say:late")); hub.CodeOf(err) != hub.CodeUnavailable {
		t.Errorf("a drained hub: %v", err)
	}
	if task, err := h.Task(t.Context(), asking.ID, nil); err != nil || task.Status.State != a2a.TaskStateInputRequired {
		t.Errorf("the question: %v, %v", task, err)
	}
}

// withdrawer is an agent whose tasks are known elsewhere.
type withdrawer struct {
	*fakeAgent
	withdrawn []string
}

func (w *withdrawer) Withdraw(_ context.Context, task string, turn int) {
	w.withdrawn = append(w.withdrawn, fmt.Sprint(task, " ", turn))
}

// Whoever has asked a question is told that nobody answers it any more.
func TestACanceledQuestionIsWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent := &withdrawer{fakeAgent: actor()}
		h, err := hub.NewInMemory(t.Context(), hub.Config{Agents: []hub.Agent{{Definition: definition("ann"), Runner: agent}}})
		if err != nil {
			t.Fatal(err)
		}
		task, err := h.SendAndWait(t.Context(), request("ann", "input"))
		if err != nil || task.Status.State != a2a.TaskStateInputRequired {
			t.Fatalf("%+v, %v", task, err)
		}
		if _, err := h.Cancel(t.Context(), task.ID); err != nil {
			t.Fatal(err)
		}
		if want := []string{string(task.ID) + " 1"}; !slices.Equal(agent.withdrawn, want) {
			t.Errorf("withdrawn: %q, want %q", agent.withdrawn, want)
		}
		if err := h.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}
