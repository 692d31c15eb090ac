package terminal

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	tea "charm.land/bubbletea/v2"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/display"
	"github.com/parleyhub/parley/internal/documents"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/events"
	"github.com/parleyhub/parley/swarm"
)

var update = flag.Bool("update", false, "write the golden screens again")

func TestMain(m *testing.M) {
	os.Setenv("TZ", "UTC") //nolint:errcheck // the golden screens have times
	goleak.VerifyTestMain(m)
}

var noon = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

const hostile = "\x1b]0;mine\x07\x1b[31mred\u202e<b>\r\x00"

// fakeHub answers from fixed data.
type fakeHub struct {
	mu     sync.Mutex
	tasks  []dialect.Task
	sent   []dialect.SendParams
	calls  []string
	err    error
	stream []events.Event
	follow []dialect.Event
	shared *documentServer
}

func at(seconds int) dialect.Time {
	return dialect.Time{Time: noon.Add(-time.Duration(seconds) * time.Second)}
}

func fakeTask(i int, state dialect.TaskState, agent, prompt string) dialect.Task {
	return dialect.Task{
		Kind: dialect.KindTask, ID: fmt.Sprintf("0%06d-task", 900000-i), ContextID: "context-1", Status: dialect.TaskStatus{State: state, Timestamp: at(i * 60)},
		History: []dialect.Message{{Role: dialect.RoleUser, Parts: []dialect.Part{dialect.TextPart(prompt)}}},
		Metadata: map[string]any{
			hub.MetaAgent: agent, "parley.workdir": map[string]any{"path": "/home/ada/shop"},
			hub.MetaSummary: map[string]any{"prompt": prompt, "model": "m-1", "durationMs": 61000.0, "usage": map[string]any{"inputTokens": 100.0, "outputTokens": 20.0, "costUsd": 0.5}},
		},
	}
}

func newFake() *fakeHub {
	asked := fakeTask(1, dialect.StateInputRequired, "codex", "clean the build")
	part := dialect.DataPart(map[string]any{
		"requestId": "q1", "title": "Run rm -rf build?", "tool": "Bash", "input": map[string]any{"command": "rm -rf build"},
		"options": []any{map[string]any{"id": "yes", "name": "Allow once", "kind": "allow_once"}, map[string]any{"id": "no", "name": "Reject", "kind": "reject_once"}},
	})
	part.Metadata = map[string]any{hub.MetaPermission: true}
	asked.Status.Message = &dialect.Message{Parts: []dialect.Part{part}}
	free := fakeTask(2, dialect.StateInputRequired, "claude-code", "which colour")
	free.Status.Message = &dialect.Message{Parts: []dialect.Part{dialect.TextPart("Blue or green?")}}
	failed := fakeTask(3, dialect.StateFailed, "claude-code", "fix the tests "+hostile)
	failed.Status.Message = &dialect.Message{Parts: []dialect.Part{dialect.TextPart("the model is on strike " + hostile)}, Metadata: map[string]any{hub.MetaError: map[string]any{"code": "agent-failed", "remedy": "log in again"}}}
	done := fakeTask(5, dialect.StateCompleted, "echo", "say hello")
	done.Artifacts = []dialect.Artifact{{Parts: []dialect.Part{dialect.TextPart("hello, world\n\n    indented")}}}
	return &fakeHub{shared: newDocumentServer(), tasks: []dialect.Task{asked, free, failed, fakeTask(4, dialect.StateWorking, "codex", "write the docs"), done}}
}

func (f *fakeHub) call(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, name)
	return f.err
}

func (f *fakeHub) Status(context.Context) (*dialect.Status, error) {
	return &dialect.Status{
		Version: "1.2.3", Uptime: 3600_000, ActiveTasks: 1, TotalTasks: len(f.tasks), Agents: make([]dialect.AgentStatus, 3),
		Bus:   &dialect.BusStatus{Link: &dialect.LinkStatus{URL: "tls://cluster:7422", Connected: true}},
		Peers: &dialect.PeersStatus{Hubs: []dialect.PeerStatus{{Name: "laptop", Problem: "not reachable"}}}, MCPServers: []dialect.MCPServerStatus{{Name: "tickets", Connected: true, Tools: 4}},
	}, f.call("status")
}

func (f *fakeHub) Agents(context.Context, bool) ([]dialect.Agent, error) {
	agents := []dialect.Agent{
		{ID: "claude-code", Health: &dialect.Health{Status: "unhealthy", Stage: "installed", ErrorMessage: "not logged in; run: claude login", LastCheck: at(30)}, Place: dialect.Place{Kind: "program", State: "idle", Since: at(60)}},
		{ID: "codex", Description: "Codex " + hostile, Health: &dialect.Health{Status: "healthy", Version: "9"}, Place: dialect.Place{Kind: "program", State: "working", Since: at(9), Vendor: "OpenAI", Working: &dialect.Work{TaskID: f.tasks[3].ID, Title: "write the docs"}}},
		{ID: "reviewer", Place: dialect.Place{Kind: "session", State: "waiting", Project: "shop", Since: at(5), GUID: "reviewer-guid"}},
		{ID: "queue.go", Place: dialect.Place{Kind: "queue", State: "idle", Since: at(5)}},
	}
	return agents, f.call("agents")
}

func (f *fakeHub) Tasks(_ context.Context, p dialect.TasksListParams) (*dialect.TaskPage, error) {
	page := &dialect.TaskPage{}
	for _, t := range f.tasks {
		agent, _ := t.Metadata[hub.MetaAgent].(string)
		if (p.State == "" || t.Status.State == p.State) && (p.AgentID == "" || agent == p.AgentID) && (p.Cursor == "" || t.ID < p.Cursor) {
			if page.Tasks = append(page.Tasks, t); len(page.Tasks) == p.Limit {
				page.NextCursor = t.ID
				break
			}
		}
	}
	return page, f.call("tasks")
}

func (f *fakeHub) Task(_ context.Context, id string) (*dialect.Task, error) {
	for _, t := range f.tasks {
		if t.ID == id {
			return &t, f.call("task")
		}
	}
	return nil, errors.New("there is no such task")
}

func (f *fakeHub) Trace(_ context.Context, id string) (*dialect.TaskTrace, error) {
	return &dialect.TaskTrace{TaskID: id, Turns: 1, Traces: []hub.Trace{{
		Turn: 1, State: "completed", StartedAt: at(90).Time, EndedAt: at(60).Time,
		Tools:     []hub.ToolTrace{{ID: "1", Name: "Bash", Title: "Bash: go test " + hostile, Status: "completed", Input: []byte(`{"command":"go test\nagain","n":1}`), Output: "ok\nall " + hostile, StartedAt: at(80).Time}},
		Notices:   []hub.NoticeTrace{{At: at(85).Time, Text: "the model answered with 529"}},
		Questions: []hub.QuestionTrace{{At: at(84).Time, Title: "Run go test?", Answer: &hub.AnswerTrace{Allowed: true, By: "user"}}, {At: at(83).Time, Title: "Push?"}},
		Git:       &hub.GitTrace{Branch: "main", Files: []hub.FileChange{{Path: "a.go", Added: 2, Deleted: 1}}, Added: 2, Deleted: 1},
		Error:     &hub.ErrorTrace{Code: "code", Message: "a message"},
	}}}, f.call("trace")
}

func (f *fakeHub) Cancel(_ context.Context, id string) (*dialect.Task, error) {
	return nil, f.call("cancel " + id)
}

func (f *fakeHub) Send(_ context.Context, p dialect.SendParams) (*dialect.Task, error) {
	f.mu.Lock()
	f.sent = append(f.sent, p)
	f.mu.Unlock()
	return nil, f.call("send")
}

func (f *fakeHub) Totals(_ context.Context, p dialect.TotalsParams) (*dialect.Totals, error) {
	t := []dialect.Total{{Tasks: 4, Failed: 1, CostUSD: 1.25, DurationMS: 90000, InputTokens: 1000}, {Tasks: 2, CostUSD: 0.5}}
	for i := range t {
		switch p.By[0] {
		case "agent":
			t[i].Agent = []string{"codex", "echo"}[i]
		case "day":
			t[i].Day = []string{"2026-11-28", "2026-11-27"}[i]
		}
	}
	return &dialect.Totals{Totals: t}, f.call("totals " + p.By[0])
}

func (f *fakeHub) Needs(context.Context) (*dialect.Needs, error) {
	found := &dialect.Needs{}
	for _, t := range f.tasks {
		if t.Status.State != dialect.StateInputRequired {
			continue
		}
		n := dialect.Need{ID: t.ID, Kind: dialect.NeedQuestion, Since: t.Status.Timestamp, TaskID: t.ID, ContextID: t.ContextID, Title: t.Status.Message.Text()}
		n.Agent, _ = t.Metadata[hub.MetaAgent].(string)
		if q := dialect.PermissionOf(t.Status.Message.Parts); q != nil {
			n.Kind, n.Title, n.RequestID, n.Options, n.Tool, n.Input = dialect.NeedPermission, q.Title, q.RequestID, q.Options, q.Tool, q.Input
		}
		found.Needs = append(found.Needs, n)
	}
	found.Needs = append(found.Needs,
		dialect.Need{ID: "item w1", Kind: dialect.NeedDeadLetter, Since: at(20), Agent: "queue.go", Title: "timeout the worker is gone " + hostile, Item: "w1"},
		dialect.Need{ID: "loop /shop/todo.md", Kind: dialect.NeedLoop, Since: at(15), Title: "gave up 2 items: the tests fail " + hostile, List: "/shop/todo.md", Remedy: "why: parley loop status /shop/todo.md"},
		dialect.Need{ID: "held reviewer", Kind: dialect.NeedHeld, Since: at(10), Agent: "reviewer", Title: "1 message of codex: its program asks in its own window"},
		dialect.Need{ID: "agent claude-code", Kind: dialect.NeedLogin, Since: at(30), Agent: "claude-code", Title: "not logged in; run: claude login"})
	found.Total = len(found.Needs)
	return found, f.call("needs")
}

func (f *fakeHub) Work(context.Context) (*dialect.WorkList, error) {
	lease := noon.Add(90 * time.Second).Format(time.RFC3339Nano)
	return &dialect.WorkList{
		Items:       []work.ItemStatus{{TaskID: "w2", Capability: "go", State: work.Claimed, Description: "vet the module " + hostile, HolderHandle: "reviewer", LeaseUntil: lease, Attempts: 1}, {TaskID: "w3", Capability: "go", State: work.Queued, Description: "lint", SubmittedAt: at(9).Format(time.RFC3339Nano)}},
		DeadLetters: []work.DeadLetter{{TaskID: "w1", Subject: "parley.work.go", Reason: work.TimedOut, Attempts: 3, Detail: "the worker is gone"}},
	}, f.call("work")
}

func (f *fakeHub) RetryWork(_ context.Context, id string) error { return f.call("retry " + id) }

func (f *fakeHub) DiscardWork(_ context.Context, id string) error { return f.call("discard " + id) }

func (f *fakeHub) DismissLoop(_ context.Context, list string) error {
	return f.call("dismiss " + list)
}

func (f *fakeHub) Threads(context.Context) ([]dialect.Thread, error) {
	return []dialect.Thread{
		{ID: "channel:shop/general", Kind: dialect.ThreadChannel, Project: "shop", Channel: "general", Messages: 2, Newest: at(8)},
		{ID: "mail:a+b", Kind: dialect.ThreadMail, Between: []dialect.Correspondent{{GUID: "a", Handle: "ada", You: true}, {GUID: "b", Handle: "reviewer"}}, Messages: 3, Unread: 1, Newest: at(9)},
		{ID: "mail:c+d", Kind: dialect.ThreadMail, Between: []dialect.Correspondent{{GUID: "cccccccc-0"}, {GUID: "d", Handle: hostile}}, Messages: 1, Newest: at(10)},
	}, f.call("threads")
}

func (f *fakeHub) Thread(_ context.Context, p dialect.ThreadParams) (*dialect.ThreadMessages, error) {
	stamp := func(seconds int) string { return at(seconds).Format(time.RFC3339Nano) }
	if p.ThreadID == "channel:shop/general" {
		return &dialect.ThreadMessages{More: true, Messages: []dialect.ThreadMessage{
			{ID: "1", From: "codex", Text: "the lexer is done " + hostile, At: at(90), SeenBy: []dialect.Seen{{Who: "reviewer", At: new(at(60))}}}, {ID: "2", From: "ada", Text: "thank you", At: at(8)},
		}}, f.call("thread")
	}
	return &dialect.ThreadMessages{Messages: []dialect.ThreadMessage{
		{ID: "3", From: "ada", To: "reviewer", Text: "please look", At: at(70), Receipt: &mail.MessageStatus{StoredAt: stamp(70), DeliveredAt: stamp(69), ReadAt: stamp(68), HandledAt: stamp(30), Note: "looked " + hostile, Attention: mail.Attention{WokenAt: stamp(69)}}},
		{ID: "4", From: "ada", To: "reviewer", Text: "and again", At: at(9), Receipt: &mail.MessageStatus{StoredAt: stamp(9)}},
	}}, f.call("thread")
}

func (f *fakeHub) WriteThread(_ context.Context, p dialect.WriteThreadParams) (*dialect.WrittenMessage, error) {
	written := &dialect.WrittenMessage{ThreadID: p.ThreadID}
	if p.Text == "late" {
		written.Warning = "reviewer is offline"
	}
	return written, f.call("write " + p.ThreadID + " " + p.Text)
}

func (f *fakeHub) FileClaims(context.Context) ([]dialect.FileClaim, error) {
	return []dialect.FileClaim{{ID: "claim-1", Holder: "reviewer", Repository: "shop", Paths: []string{"lexer.go", "lexer_test.go"}, Mode: "exclusive", Why: "renames tokens " + hostile,
		Until: noon.Add(4 * time.Minute).Format(time.RFC3339Nano)}}, f.call("claims")
}

func (f *fakeHub) BreakFileClaim(_ context.Context, id string) (*dialect.BrokenClaim, error) {
	return nil, f.call("break " + id)
}

func (f *fakeHub) Contexts(context.Context, int) ([]dialect.Context, error) {
	return []dialect.Context{{ID: "context-1", AgentIDs: []string{"codex"}, TaskIDs: []string{"a", "b"}, LastUsedAt: at(7)}}, f.call("contexts")
}

func (f *fakeHub) Swarms(context.Context) ([]dialect.SwarmSummary, error) {
	return []dialect.SwarmSummary{{ID: "s1", TaskDescription: "a guide", Status: swarm.Active, Completed: 1, SubTasks: 2, CreatedAt: at(3)}}, f.call("swarms")
}

func (f *fakeHub) Swarm(context.Context, string) (*swarm.Session, error) {
	return &swarm.Session{ID: "s1", TaskDescription: "a guide", Status: swarm.Active, Error: "none", SubTasks: []swarm.SubTask{
		{ID: "review", Status: swarm.TaskPending, DependsOn: []string{"write"}, Attempt: 2, Error: "again"}, {ID: "write", Status: swarm.TaskCompleted, AssignedAgent: "codex", Result: []byte(`"a text"`)},
	}}, f.call("swarm")
}

func (f *fakeHub) Documents(context.Context) ([]string, error) {
	return []string{"plan"}, f.call("documents")
}

func (f *fakeHub) Document(context.Context, string) (*documents.Content, error) {
	return &documents.Content{Version: "v1", Items: 3, Bytes: 9, Content: []byte(`{"notes":"a text","plan":{"owner":"ada","steps":[1,2]}}`)}, f.call("document")
}

func (f *fakeHub) EditDocument(_ context.Context, name string, edits []documents.Edit) (*documents.Content, error) {
	return nil, f.call(fmt.Sprintf("edit %s %v %v", name, edits[0].Path, edits[0].Value))
}

func (f *fakeHub) SyncDocument(_ context.Context, name string, has documents.Copy) (*documents.Rest, error) {
	if err := f.call("sync " + name); err != nil {
		return nil, err
	}
	return f.shared.sync(has)
}

func (f *fakeHub) Close() error { return nil }

// list is a stream of given events.
type list[E any] struct{ rest []E }

func (l *list[E]) Next(context.Context) (e E, err error) {
	if len(l.rest) == 0 {
		return e, io.EOF
	}
	e, l.rest = l.rest[0], l.rest[1:]
	return e, nil
}

func (l *list[E]) Close() error { return nil }

func (f *fakeHub) HubEvents(_ context.Context, p dialect.EventsParams) (Stream[events.Event], error) {
	var found []events.Event
	for _, e := range f.stream {
		kind, _, _ := strings.Cut(string(e.Kind), ".")
		if p.Kinds == nil || slices.Contains(p.Kinds, kind) {
			found = append(found, e)
		}
	}
	return &list[events.Event]{found}, f.call("events")
}

func (f *fakeHub) FollowTask(context.Context, string) (Stream[dialect.Event], error) {
	return &list[dialect.Event]{f.follow}, f.call("follow")
}

// rig is a model whose commands run at once.
type rig struct {
	*Still
	t   testing.TB
	hub *fakeHub
}

func newRig(t testing.TB, f *fakeHub, width, height int) *rig {
	s := NewStill(f, "~/hub.sock", width, height, func() time.Time { return noon })
	t.Cleanup(s.Close)
	return &rig{s, t, f}
}

func (r *rig) keys(names ...string) *rig {
	r.Keys(names...)
	return r
}

// text returns what the screen shows, without colours.
func (r *rig) text() string {
	all, _ := r.lines()
	if len(all) != max(r.height, leastHeight) {
		r.t.Errorf("the screen has %d lines of %d", len(all), r.height)
	}
	var b strings.Builder
	for _, l := range all {
		l = display.Plain(l)
		if display.Cells(l) > r.width {
			r.t.Errorf("%q is wider than %d", l, r.width)
		}
		b.WriteString(strings.TrimRight(l, " ") + "\n")
	}
	return b.String()
}

func (r *rig) shows(parts ...string) {
	r.t.Helper()
	text := r.text()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			r.t.Errorf("no %q in\n%s", p, text)
		}
	}
}

// story is what happened in the fake hub.
func story(f *fakeHub) []events.Event {
	part := func(seconds int, id, agent, state string) events.Event {
		return events.Event{Time: at(seconds).Time, Kind: events.SwarmSubTask, Subject: "s1", Agent: agent, Data: map[string]any{"subTask": id, "state": state}}
	}
	step := func(seconds int, kind, item string, attempt int) events.Event {
		return events.Event{Time: at(seconds).Time, Kind: events.LoopStep, Subject: "/shop/todo.md", Data: map[string]any{"step": kind, "item": item, "attempt": attempt}}
	}
	all := []events.Event{
		step(100, "began", "", 0), step(99, "dispatched", "lint", 1), step(60, "failed", "lint", 1), step(55, "dispatched", "lint", 2), step(20, "completed", "lint", 2),
		part(90, "write", "codex", "running"), part(70, "write", "claude-code", "running"), part(40, "write", "claude-code", "completed"),
		part(39, "review", "codex", "running"), part(30, "review", "codex", "pending"), part(28, "review", "claude-code", "running"),
		{Time: at(9).Time, Kind: events.TaskState, Task: f.tasks[4].ID, Agent: "echo", Data: map[string]any{"state": "completed", "title": hostile}},
	}
	for i := range all {
		all[i].Position = events.Position{Sequence: uint64(i + 1)}
	}
	return all
}

func TestTasksAreInTheOrderInWhichTheyWereMade(t *testing.T) {
	f := newFake()
	for i, id := range []string{"f-of-a-key", "01-later"} {
		task := fakeTask(9, dialect.StateCompleted, "echo", "made "+id)
		task.ID, task.Status.Timestamp = id, at(-10)
		task.Metadata[hub.MetaSummary].(map[string]any)["createdAt"] = at(-i - 1).Time.Format(time.RFC3339)
		f.tasks = append(f.tasks, task)
	}
	r := newRig(t, f, 80, 24)
	r.keys("3").shows("1 of 7")
	screen := r.View().Content
	if later, keyed, before := strings.Index(screen, "made 01-later"), strings.Index(screen, "made f-of-a-key"), strings.Index(screen, "clean the build"); later < 0 || later > keyed || keyed > before {
		t.Errorf("the order is wrong:\n%s", screen)
	}
}

func TestALoopThatGaveItemsUpHasFailed(t *testing.T) {
	f := newFake()
	f.stream = append(story(f), events.Event{Position: events.Position{Sequence: 50}, Time: noon, Kind: events.LoopStep, Subject: "/shop/todo.md", Data: map[string]any{"step": "finished", "reason": "gave up 2 items"}})
	r := newRig(t, f, 80, 24)
	r.keys("5").shows("✗ loop   finished    1 done    /shop/todo.md: gave up 2 items")
	r.keys("/", "todo", "enter", "enter").shows("✗ finished", "gave up 2 items")
	newRig(t, f, 80, 24).keys("8").shows("finished gave up 2 items")
}

func TestTheTimelineNamesWhoWritesMail(t *testing.T) {
	f := newFake()
	f.stream = []events.Event{{Position: events.Position{Sequence: 1}, Time: noon, Kind: events.MailSent, Subject: "the-id-of-it",
		Data: map[string]any{"from": "guid-of-ann", "fromHandle": "ann", "to": "guid-of-bob", "toHandle": "bob"}}}
	r := newRig(t, f, 80, 24)
	r.keys("8").shows("12:00:00 mail                ann              to bob  ")
	r.keys("/", "the-id", "enter").shows("ann              to bob")
}

func TestTheTimelineIsFilteredByWordsAndNames(t *testing.T) {
	f := newFake()
	f.stream = story(f)
	for filter, want := range map[string]string{"task.state": "11:59:51 task  ", "part of a swarm": "1 of 6", "swarm.subtask": "1 of 6"} {
		newRig(t, f, 80, 24).keys("8", "/", filter, "enter").shows(want)
	}
}

func TestTheTimelineIsReplayed(t *testing.T) {
	f := newFake()
	f.stream = story(f)
	r := newRig(t, f, 80, 24).keys("8")
	pause := r.tick
	r.tick = func(time.Duration, tea.Msg) tea.Cmd { return nil }
	r.keys("p").shows("replay ▶ 1 of 12", "11:58:20 loop  ")
	s := r.current()
	r.post(replayMsg{s, s.run - 1}) // of another replay
	r.post(replayMsg{s, s.run})
	r.shows("replay ▶ 2 of 12")
	f.stream = append(f.stream, events.Event{Position: events.Position{Sequence: 99}, Time: noon, Kind: events.MailSent})
	r.keys("1", "8").shows("replay ▶ 2 of 12") // the timeline had no event of its own
	r.post([]feedMsg{{events: f.stream[len(f.stream)-1:]}})
	r.post(refreshMsg{})
	r.keys("p").shows("replay paused 2 of 13", ", . step")
	r.post(replayMsg{s, s.run - 1})
	r.keys(".", ".", ",").shows("replay paused 3 of 13")
	r.tick = pause
	r.keys("p").shows("The replay is at the end.", "1 of 13")
	r.tick = func(time.Duration, tea.Msg) tea.Cmd { return nil }
	r.keys("p", "esc").shows("1 of 13")
	r.keys("/", "todo", "enter", "p").shows("replay ▶ 1 of 5")
	r.keys("enter").shows("Loop /shop/todo.md", "attempt 2")
}

func TestGoldenScreens(t *testing.T) {
	for _, size := range [][2]int{{80, 24}, {200, 50}} {
		for name, keys := range map[string][]string{
			"1-needs": {"1"}, "2-agents": {"2"}, "3-tasks": {"3"}, "4-conversations": {"4"}, "5-swarms": {"5"}, "6-network": {"6"}, "7-documents": {"7"},
			"8-timeline": {"8"}, "9-costs": {"9"}, "task": {"3", "down", "down", "enter"}, "agent": {"2", "enter"}, "thread": {"4", "enter"},
			"swarm": {"5", "enter"}, "loop": {"5", "down", "enter"}, "document": {"7", "enter"}, "help": {"?"}, "answer": {"1", "t", "because"}, "filter": {"3", "/", "docs"},
		} {
			f := newFake()
			f.stream = story(f)
			r := newRig(t, f, size[0], size[1])
			got := r.keys(keys...).text()
			path := filepath.Join("testdata", fmt.Sprintf("%s-%dx%d.txt", name, size[0], size[1]))
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got != strings.ReplaceAll(string(want), "\r\n", "\n") {
				t.Errorf("%s (go test ./internal/app/terminal -update writes it again):\n%s", path, got)
			}
		}
	}
}

// No text of an agent reaches the terminal with its control sequences.
func TestHostileTextsAreOnlyText(t *testing.T) {
	f := newFake()
	f.tasks[2].History[0].Parts = []dialect.Part{dialect.TextPart(strings.Repeat("x", 1<<20) + hostile)}
	for _, keys := range [][]string{{"1"}, {"2"}, {"3"}, {"3", "down", "down", "enter"}, {"4", "enter"}, {"8"}} {
		all, _ := newRig(t, f, 80, 24).keys(keys...).lines()
		if text := strings.Join(all, "\n"); strings.ContainsAny(text, "\x07\r\x00\u202e") || strings.Contains(text, "\x1b]") || strings.Contains(text, "mine") {
			t.Errorf("%v: %q", keys, text)
		}
	}
}

func TestQuestionsAreAnsweredInPlace(t *testing.T) {
	for _, tt := range []struct {
		keys []string
		want string
	}{
		{[]string{"a"}, "yes"}, {[]string{"d"}, "no"}, {[]string{"enter", "a"}, "yes"},
		{[]string{"t", "not now", "enter"}, "not now"}, {[]string{"down", "t", "Blux", "backspace", "e", "enter"}, "Blue"},
	} {
		f := newFake()
		r := newRig(t, f, 80, 24).keys(tt.keys...)
		if len(f.sent) != 1 {
			t.Fatalf("%v: %d messages", tt.keys, len(f.sent))
		}
		p := f.sent[0].Message.Parts[0]
		got, _ := p.Data["optionId"].(string)
		if p.Text != nil {
			got = *p.Text
		}
		if got != tt.want || f.sent[0].Message.TaskID == "" || !strings.Contains(r.text(), "Answered") {
			t.Errorf("%v: %+v", tt.keys, f.sent[0].Message)
		}
	}
}

func TestKeysAct(t *testing.T) {
	for _, tt := range []struct {
		keys []string
		want string // a call, or a text that is shown
	}{
		{[]string{"3", "down", "down", "down", "c", "y", "enter"}, "cancel 0899996-task"},
		{[]string{"3", "down", "down", "r"}, "send"},
		{[]string{"2", "w", "hello", "enter"}, "send"},
		{[]string{":", "send codex do it", "enter"}, "send"},
		{[]string{"7", "e", "plan.title = {\"a\":1}", "enter"}, "edit plan [plan title] map[a:1]"},
		{[]string{"7", "e", "plan.title = words", "enter"}, "edit plan [plan title] words"},
		{[]string{"9", "g"}, "totals agent"},
		{[]string{"down", "down", "r"}, "retry w1"}, {[]string{"5", "down", "down", "down", "r"}, "retry w1"},
		{[]string{"5", "/", "lexer", "enter", "b", "y", "enter"}, "break claim-1"}, {[]string{"down", "down", "d", "y", "enter"}, "discard w1"}, {[]string{"/", "todo", "enter", "d"}, "dismiss /shop/todo.md"},
		{[]string{"4", "/", "general", "enter", "w", "hello", "enter"}, "write channel:shop/general hello"},
		{[]string{"4", "/", "reviewer", "enter", "enter", "w", "hello", "enter"}, "write mail:a+b hello"},
		{[]string{"2", "/", "reviewer", "enter", "m", "hello", "enter"}, "write mail:reviewer-guid hello"},
	} {
		f := newFake()
		newRig(t, f, 80, 24).keys(tt.keys...)
		if !strings.Contains(strings.Join(f.calls, "\n"), tt.want) {
			t.Errorf("%v: no %q in %q", tt.keys, tt.want, f.calls)
		}
	}
	for _, tt := range []struct {
		keys []string
		want string
	}{
		{[]string{"3", "a"}, "Answered"}, {[]string{"down", "down"}, "work item w1"}, {[]string{"/", "todo", "enter"}, "why: parley loop status /shop/todo.md"}, {[]string{"/", "todo", "enter"}, "d dismiss"},
		// Words are shown, and names are found, too.
		{[]string{"3", "/", "input-required", "enter"}, "waits for you"}, {[]string{"/", "deadletter", "enter"}, "failed work"},
		{[]string{"/", "todo", "enter", "enter"}, "Loop /shop/todo.md"}, {[]string{"/", "window", "enter"}, "asks in its own window"}, {[]string{"4", "/", "general", "enter", "enter"}, "read up to here: reviewer 11:59:00"},
		{[]string{"4", "/", "reviewer", "enter", "enter"}, "not read yet"}, {[]string{"4", "/", "reviewer", "enter", "enter"}, "handled"}, {[]string{"4", "/", "cccc", "enter", "w"}, "Nothing here to write."},
		{[]string{"4", "/", "general", "enter", "w", "late", "enter"}, "reviewer is offline"}, {[]string{"5", "/", "lexer", "enter"}, "reviewer holds lexer.go, lexer_test.go of shop"}, {[]string{"5", "/", "lexer", "enter", "b"}, "End the claim of reviewer?"}, {[]string{"5", "down", "enter"}, "2 of 6"}, {[]string{"9", "a"}, "Nothing here to allow."}, {[]string{"7", "e", "x", "enter"}, "An edit is such as"},
		{[]string{":", "nonsense", "enter"}, "There is no command"}, {[]string{":", "send x", "enter"}, "Write: send AGENT"}, {[]string{":", "help", "enter"}, "another screen"},
		{[]string{":", "tas", "tab", "enter"}, "Write: task ID"}, {[]string{":", "cost", "enter"}, " Costs"}, {[]string{":", "task nothing", "enter"}, "there is no such task"},
		{[]string{"tab"}, " Agents  1 of 4"}, {[]string{"3", "/", "strike", "enter"}, "Nothing has these words"}, {[]string{"3", "/", "docs", "esc"}, "1 of 5"},
		{[]string{"3", "/", "docs", "enter", "esc"}, "1 of 5"}, {[]string{"3", "end", "enter", "end"}, "hello, world"}, {[]string{"3", "end", "enter", "esc"}, "5 of 5"},
		{[]string{"3", "enter", "/", "bash"}, "Bash"}, {[]string{"8", "end"}, "Nothing has happened"}, {[]string{"3", "G", "k", "j", "home"}, "1 of 5"},
	} {
		newRig(t, newFake(), 80, 24).keys(tt.keys...).shows(tt.want)
	}
	for _, keys := range [][]string{{"q"}, {"ctrl+c"}, {":", "quit", "enter"}} {
		if r := newRig(t, newFake(), 80, 24).keys(keys...); !r.quit {
			t.Errorf("%v does not leave", keys)
		}
	}
}

func TestAFailedActionSaysWhy(t *testing.T) {
	f := newFake()
	r := newRig(t, f, 80, 24)
	f.err = errors.New("the store is full")
	r.keys("a").shows("This was not done: the store is full")
	r.keys("2").shows("This cannot be loaded")
}

func TestTheMouseSelects(t *testing.T) {
	r := newRig(t, newFake(), 80, 24)
	r.post(tea.MouseClickMsg{X: 24, Y: 0, Button: tea.MouseLeft})
	r.shows(" Tasks  1 of 5")
	r.post(tea.MouseClickMsg{X: 5, Y: 5, Button: tea.MouseLeft})
	r.shows("3 of 5")
	r.post(tea.MouseClickMsg{X: 5, Y: 5, Button: tea.MouseLeft})
	r.shows("Why it failed")
	r.post(tea.MouseWheelMsg{Button: tea.MouseWheelDown})
	r.post(tea.MouseWheelMsg{Button: tea.MouseWheelUp})
	if v := r.View(); v.MouseMode != tea.MouseModeCellMotion || !v.AltScreen {
		t.Errorf("%+v", v)
	}
	if v := r.keys("M").View(); v.MouseMode != tea.MouseModeNone {
		t.Error("M does not give the mouse back")
	}
}

func TestThePromptEdits(t *testing.T) {
	r := newRig(t, newFake(), 80, 24).keys("3", "/", "one two", "ctrl+w", "three", "home", "delete", "o", "end", "left", "right")
	r.shows("/ one three")
	r.post(tea.PasteMsg{Content: "\x1b[31m pasted\nline"})
	r.shows("/ one three pasted⏎line")
	r.keys("ctrl+u").shows("1 of 5")
	if v := r.View(); v.Cursor == nil {
		t.Error("the prompt has no cursor")
	}
}

func TestAChangeLoadsWhatIsShown(t *testing.T) {
	f := newFake()
	r := newRig(t, f, 80, 24).keys("3")
	f.tasks[3].Status.State = dialect.StateCompleted
	f.tasks = append([]dialect.Task{fakeTask(0, dialect.StateWorking, "echo", "a new one")}, f.tasks...)
	r.post([]feedMsg{{events: []events.Event{{Kind: events.TaskState, Task: f.tasks[4].ID}, {Kind: events.TaskRemoved, Task: "gone"}, {Kind: events.TaskState, Task: "unknown"}}}})
	r.shows("2 of 6", "a new one")
	for range maxQueue + 1 {
		r.screens[7].queue = append(r.screens[7].queue, events.Event{Kind: events.MailSent})
	}
	r.keys("8", "3").shows("2 of 6")
}

func TestAnAnswerIsShownWhileItIsWritten(t *testing.T) {
	f := newFake()
	piece := func(text string, more bool) dialect.Event {
		return dialect.Event{Artifact: &dialect.ArtifactUpdate{Artifact: dialect.Artifact{Parts: []dialect.Part{dialect.TextPart(text)}}, Append: more}}
	}
	f.follow = []dialect.Event{{Task: &f.tasks[3]}, {Status: &dialect.StatusUpdate{}}, piece("he", false), piece("llo"+hostile, true)}
	r := newRig(t, f, 80, 60)
	p := taskPage(subject{task: f.tasks[3].ID})
	r.page = p
	p.state = "working"
	cmd := r.followTask(p)
	for range 3 {
		msg, _ := cmd().(streamMsg)
		cmd = r.streamed(msg)
	}
	r.shows("Answer, as it is written", "hello")
	msg, _ := cmd().(streamMsg)
	if r.streamed(msg) == nil || p.cancel != nil {
		t.Error("the end of the stream does not load the task")
	}
}

func TestTheHubIsAwayAndBack(t *testing.T) {
	r := newRig(t, newFake(), 80, 24).keys("3")
	r.post(tableMsg{s: r.current(), err: io.ErrUnexpectedEOF}) // a load notices it before the link does
	r.shows("This cannot be loaded: unexpected EOF")
	r.post([]feedMsg{{away: io.EOF}})
	r.shows("The hub is away (~/hub.sock) for 0s", "write the docs")
	r.keys("c").shows("The hub is away; do that when it is back.")
	r.post([]feedMsg{{up: true}})
	r.shows("● ~/hub.sock · 1 working")
	r.link.hub = nil
	r.post(idleMsg{})
	r.post(clockMsg{})
	r.shows("write the docs")
}

// The stream of this hub ends after two events, and the first two attempts to connect fail.
func TestTheLinkConnectsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, dials := newFake(), 0
		f.stream = []events.Event{{Kind: events.Here}, {Kind: events.TaskState}}
		l := newLink(t.Context(), func(context.Context) (Hub, error) {
			if dials++; dials < 3 {
				return nil, errAway
			}
			return f, nil
		})
		var ups, aways int
		for ups < 2 {
			reports, _ := l.next().([]feedMsg)
			for _, r := range reports {
				if r.up {
					ups++
				}
				if r.away != nil {
					aways++
				}
			}
		}
		l.close()
		if aways != 3 {
			t.Errorf("%d times away", aways)
		}
	})
}

func TestRunLeavesTheTerminalAsItWas(t *testing.T) {
	f := newFake()
	f.stream = []events.Event{{Kind: events.Here}}
	r, w := io.Pipe()
	go func() {
		_, _ = w.Write([]byte("q")) // the test fails by its deadline
		_ = w.Close()
	}()
	var out bytes.Buffer
	err := Run(t.Context(), Options{
		Dial: func(context.Context) (Hub, error) { return f, nil }, Where: "here", Screen: 3, Input: r, Output: &out, Env: []string{"TERM=xterm-256color"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if text := out.String(); strings.Count(text, "\x1b[?1049h") != strings.Count(text, "\x1b[?1049l") {
		t.Errorf("the terminal stays changed: %q", text)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	defer w.Close()
	var out bytes.Buffer
	err := Run(ctx, Options{
		Dial:  func(context.Context) (Hub, error) { cancel(); return nil, errAway },
		Input: r, Output: &out, Env: []string{"TERM=xterm"},
	})
	if err != nil {
		t.Error(err)
	}
}

// A key and the frame after it, with 10,000 tasks.
func BenchmarkKeyAndFrame(b *testing.B) {
	f := newFake()
	for i := range 10_000 {
		f.tasks = append(f.tasks, fakeTask(i+10, dialect.StateCompleted, "echo", fmt.Sprintf("task number %d", i)))
	}
	r := newRig(b, f, 200, 50).keys("3")
	if n := r.current().len(); n < 10_000 {
		b.Fatalf("%d tasks", n)
	}
	b.ResetTimer()
	for range b.N {
		r.model.update(tea.KeyPressMsg{Code: tea.KeyDown})
		r.model.View()
	}
}
