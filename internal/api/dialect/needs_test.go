package dialect_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// needyHub has tasks by their state, and agents of its own.
type needyHub struct {
	*fakeHub
	tasks  map[a2a.TaskState][]*a2a.Task
	agents []hub.AgentInfo
}

// Tasks begins with the last one, as a hub begins with the newest.
func (h *needyHub) Tasks(_ context.Context, q hub.TaskQuery) (hub.TaskPage, error) {
	all := h.tasks[q.State]
	end := len(all)
	if q.Cursor != "" {
		end, _ = strconv.Atoi(q.Cursor)
	}
	begin := max(end-q.Limit, 0)
	page := hub.TaskPage{Tasks: slices.Clone(all[begin:end]), Total: len(all)}
	slices.Reverse(page.Tasks)
	if begin > 0 {
		page.NextCursor = strconv.Itoa(begin)
	}
	return page, h.err
}

func (h *needyHub) AgentsFor(context.Context) []hub.AgentInfo { return h.agents }

// waiting returns a task that waits since some minutes after the epoch.
func waiting(id string, minutes int, parts ...*a2a.Part) *a2a.Task {
	at := epoch.Add(time.Duration(minutes) * time.Minute)
	t := &a2a.Task{ID: a2a.TaskID(id), ContextID: "c-" + id, Metadata: map[string]any{hub.MetaAgent: "codex"}, Status: a2a.TaskStatus{Timestamp: &at}}
	if parts != nil {
		t.Status.Message = &a2a.Message{ID: "m", Role: a2a.MessageRoleAgent, Parts: parts}
	}
	return t
}

func asking(sender *hub.Sender) *a2a.Part {
	data := map[string]any{"requestId": "q1", "title": "Run\nrm -rf build", "tool": "Bash", "input": map[string]any{"command": "rm -rf build"}, "options": []any{
		map[string]any{"id": "always", "name": "Always", "kind": "allow_always"}, map[string]any{"id": "once", "name": "Allow", "kind": "allow_once"},
		map[string]any{"id": "no", "name": "Deny", "kind": "reject_once"},
	}}
	if sender != nil {
		data["sender"] = map[string]any{"kind": string(sender.Kind), "id": sender.ID}
	}
	part := a2a.NewDataPart(data)
	part.Metadata = map[string]any{hub.MetaPermission: true}
	return part
}

func TestNeeds(t *testing.T) {
	agent := func(id string, health hub.Health, kind hub.Kind) hub.AgentInfo {
		return hub.AgentInfo{Definition: &runner.Definition{ID: id}, Health: health, Residence: hub.Residence{Kind: kind}}
	}
	h := &needyHub{fakeHub: &fakeHub{}, tasks: map[a2a.TaskState][]*a2a.Task{
		a2a.TaskStateInputRequired: {waiting("words", 9, a2a.NewTextPart("Which\nbranch? "+strings.Repeat("é", 1000))), waiting("may", 5, asking(nil)), waiting("silent", 7)},
		a2a.TaskStateAuthRequired:  {waiting("who", 6, asking(&hub.Sender{Kind: hub.SenderA2A, ID: "203.0.113.9"}))},
	}, agents: []hub.AgentInfo{
		agent("fine", hub.Health{Status: hub.Healthy, Stage: runner.StageAuthenticated}, ""),
		agent("absent", hub.Health{Status: hub.Unhealthy, Stage: runner.StageMissing}, ""),
		agent("elsewhere", hub.Health{Status: hub.Unhealthy, Stage: runner.StageInstalled}, hub.KindPeer),
		agent("loggedout", hub.Health{Status: hub.Unhealthy, Stage: runner.StageInstalled, LastCheck: epoch}, ""),
		agent("broken", hub.Health{Status: hub.Unhealthy, Stage: runner.StageAuthenticated}, ""),
	}}
	service := dialect.New(dialect.Config{Hub: h, Cards: &dialect.Directory{Agents: h, BaseURL: func() string { return "" }}})
	answer, _ := call(t, service, method(dialect.MethodNeeds, `{}`))
	got := read[dialect.Needs](t, answer)
	var kinds []string
	for _, n := range got.Needs {
		kinds = append(kinds, string(n.Kind)+" "+n.ID)
	}
	want := "permission task may q1, sender task who q1, question task silent, question task words, login agent loggedout, health agent broken"
	if s := strings.Join(kinds, ", "); s != want || got.Total != 6 {
		t.Fatalf("%d: %s\nwant %s", got.Total, s, want)
	}
	may, who, words := got.Needs[0], got.Needs[1], got.Needs[3]
	if may.Allow != "once" || may.Deny != "no" || may.Title != "Run rm -rf build" || may.Tool != "Bash" || may.Agent != "codex" || may.TaskID != "may" || len(may.Options) != 3 || may.Since.IsZero() {
		t.Errorf("permission: %+v", may)
	}
	if who.Sender == nil || who.Sender.ID != "203.0.113.9" {
		t.Errorf("sender: %+v", who)
	}
	if !strings.HasPrefix(words.Title, "Which branch? é") || len(words.Title) > 310 {
		t.Errorf("question: %q", words.Title)
	}
}

// failedLoops are loops that failed.
type failedLoops struct {
	list      []dialect.FailedLoop
	dismissed string
}

func (l *failedLoops) Failed() []dialect.FailedLoop { return l.list }

func (l *failedLoops) Dismiss(list string) (bool, error) {
	l.dismissed = list
	return list == "/shop/todo.md", nil
}

func TestFailedLoopsAndHeldMailWaitForTheUser(t *testing.T) {
	loops := &failedLoops{list: []dialect.FailedLoop{{List: "/shop/todo.md", At: epoch.Add(time.Minute), GivenUp: 2, Reason: "the tests\nfail"}, {List: "other", At: epoch.Add(3 * time.Minute), Reason: "no agent"}}}
	service := newService(&fakeHub{}, func(c *dialect.Config) {
		c.Loops = loops
		c.Held = func() []dialect.HeldMail {
			return []dialect.HeldMail{{GUID: "g", Agent: "reviewer", Since: epoch.Add(2 * time.Minute), From: []string{"codex", "ada", "codex"}}}
		}
	})
	answer, _ := call(t, service, method(dialect.MethodNeeds, `{}`))
	got := read[dialect.Needs](t, answer)
	if got.Total != 3 || len(got.Needs) != 3 {
		t.Fatalf("%+v", got)
	}
	first, held, last := got.Needs[0], got.Needs[1], got.Needs[2]
	if first.Kind != dialect.NeedLoop || first.List != "/shop/todo.md" || first.Title != "gave up 2 items: the tests fail" || !first.Since.Equal(epoch.Add(time.Minute)) {
		t.Errorf("%+v", first)
	}
	if held.Kind != dialect.NeedHeld || held.Agent != "reviewer" || held.Title != "3 messages of ada, codex: its program asks in its own window" {
		t.Errorf("%+v", held)
	}
	if want := "to go on, run its command again, with --retry for what it gave up; why: parley loop status /shop/todo.md"; first.Remedy != want {
		t.Errorf("the remedy is %q, want %q", first.Remedy, want)
	}
	if last.Title != "stopped: no agent" {
		t.Errorf("%+v", last)
	}
	answer, _ = call(t, service, method(dialect.MethodLoopDismiss, `{"list":"/shop/todo.md"}`))
	if got := read[dialect.LoopDismissResult](t, answer); !got.Dismissed || loops.dismissed != "/shop/todo.md" {
		t.Errorf("%+v %q", got, loops.dismissed)
	}
	answer, _ = call(t, service, method(dialect.MethodLoopDismiss, `{"list":"none"}`))
	if got := read[dialect.LoopDismissResult](t, answer); got.Dismissed {
		t.Errorf("%+v", got)
	}
	answer, _ = call(t, service, method(dialect.MethodLoopDismiss, `{}`))
	wantError(t, answer, jsonrpc.CodeInvalidParams, "INVALID_PARAMS", "list")
}

func TestATaskWhoseAgentIsNotLoggedInNeedsALogin(t *testing.T) {
	task := waiting("out", 1, a2a.NewTextPart("codex is not logged in"))
	task.Status.State = a2a.TaskStateAuthRequired
	task.Status.Message.Metadata = map[string]any{hub.MetaError: map[string]any{"code": "auth", "remedy": "run: codex login"}}
	h := &needyHub{fakeHub: &fakeHub{}, tasks: map[a2a.TaskState][]*a2a.Task{a2a.TaskStateAuthRequired: {task}}}
	answer, _ := call(t, dialect.New(dialect.Config{Hub: h, Cards: &dialect.Directory{Agents: h, BaseURL: func() string { return "" }}}), method(dialect.MethodNeeds, `{}`))
	if got := read[dialect.Needs](t, answer).Needs[0]; got.Kind != dialect.NeedLogin || got.TaskID != "out" || got.Remedy != "run: codex login" {
		t.Errorf("%+v", got)
	}
}

func TestTheRemedyOfAFailedLoopCanBePasted(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("other quotation marks")
	}
	for list, want := range map[string]string{
		"/shop/todo.md": "parley loop status /shop/todo.md", "/it's a/$(reboot).md": `parley loop status '/it'\''s a/$(reboot).md'`,
		"/süß/todo.md": "parley loop status /süß/todo.md", "queue go": "in its project: parley loop status --queue go", "queue a b": "parley loop status --queue 'a b'",
	} {
		answer, _ := call(t, newService(&fakeHub{}, func(c *dialect.Config) { c.Loops = &failedLoops{list: []dialect.FailedLoop{{List: list}}} }), method(dialect.MethodNeeds, `{}`))
		got := read[dialect.Needs](t, answer).Needs[0].Remedy
		if !strings.HasSuffix(got, want) || strings.Contains(got, "--retry") != !strings.HasPrefix(list, "queue ") {
			t.Errorf("the remedy of %q is %q, want …%q", list, got, want)
		}
	}
}

func TestNeedsFailsWithTheHub(t *testing.T) {
	f := &fakeHub{err: &hub.Error{Code: hub.CodeUnavailable, Message: "the hub is stopping"}}
	answer, _ := call(t, newService(f), method(dialect.MethodNeeds, `{}`))
	if !strings.Contains(answer, "the hub is stopping") {
		t.Error(answer)
	}
	answer, _ = call(t, newService(&fakeHub{}), method(dialect.MethodNeeds, `[]`))
	wantError(t, answer, jsonrpc.CodeInvalidParams, "INVALID_PARAMS", "")
}

// With more tasks than a page of the hub, those that wait the longest are shown.
func TestNeedsHasTheOldestOfMany(t *testing.T) {
	h := &needyHub{fakeHub: &fakeHub{}, tasks: map[a2a.TaskState][]*a2a.Task{}}
	for i := range 2500 {
		h.tasks[a2a.TaskStateInputRequired] = append(h.tasks[a2a.TaskStateInputRequired], waiting(fmt.Sprint("t", i), i))
	}
	answer, _ := call(t, dialect.New(dialect.Config{Hub: h}), method(dialect.MethodNeeds, `{}`))
	got := read[dialect.Needs](t, answer)
	if got.Total != 2500 || len(got.Needs) != 500 || got.Needs[0].TaskID != "t0" || got.Needs[499].TaskID != "t499" {
		t.Errorf("%d of %d, from %s to %s", len(got.Needs), got.Total, got.Needs[0].TaskID, got.Needs[len(got.Needs)-1].TaskID)
	}
}
