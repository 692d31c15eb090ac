package dialect_test

import (
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var epoch = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)

// fakeHub is a Hub with results that the test sets. It records its calls.
type fakeHub struct {
	traces hub.TraceQuery
	totals hub.TotalsQuery // of the last Totals
	alone  bool            // CancelAlone was called
	err    error           // of every method
	task   *a2a.Task       // of every method that returns one
	events []a2a.Event     // of a stream
	page   hub.TaskPage    // of Tasks
	next   chan struct{}   // closed by a stream that waits after its events; nil: streams end there

	mu     sync.Mutex
	sent   []hub.SendRequest
	how    string // the method that was called last
	query  hub.TaskQuery
	limit  int
	id     a2a.TaskID
	length *int
	closed int // subscriptions
}

func (f *fakeHub) note(how string, req hub.SendRequest) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.how = how
	f.sent = append(f.sent, req)
}

func (f *fakeHub) Send(_ context.Context, req hub.SendRequest) (*a2a.Task, error) {
	f.note("Send", req)
	return f.task, f.err
}

func (f *fakeHub) SendAndWait(_ context.Context, req hub.SendRequest) (*a2a.Task, error) {
	f.note("SendAndWait", req)
	return f.task, f.err
}

func (f *fakeHub) SendAndStream(_ context.Context, req hub.SendRequest) (dialect.Subscription, error) {
	f.note("SendAndStream", req)
	return f.subscription()
}

func (f *fakeHub) Subscribe(_ context.Context, id a2a.TaskID) (dialect.Subscription, error) {
	f.id = id
	return f.subscription()
}

func (f *fakeHub) subscription() (dialect.Subscription, error) {
	if f.err != nil {
		return nil, f.err
	}
	return &fakeSubscription{hub: f, events: f.events}, nil
}

func (f *fakeHub) Task(_ context.Context, id a2a.TaskID, historyLength *int) (*a2a.Task, error) {
	f.id, f.length = id, historyLength
	return f.task, f.err
}

func (f *fakeHub) Traces(_ context.Context, id a2a.TaskID, q hub.TraceQuery) ([]hub.Trace, int, error) {
	f.id, f.traces = id, q
	return []hub.Trace{{Task: id, Turn: 1, State: "completed"}}, 1, f.err
}

func (f *fakeHub) Tasks(_ context.Context, query hub.TaskQuery) (hub.TaskPage, error) {
	f.query = query
	return f.page, f.err
}

func (f *fakeHub) Cancel(_ context.Context, id a2a.TaskID) (*a2a.Task, error) {
	f.id = id
	return f.task, f.err
}

func (f *fakeHub) CancelAlone(_ context.Context, id a2a.TaskID) (*a2a.Task, error) {
	f.id, f.alone = id, true
	return f.task, f.err
}

func (f *fakeHub) Contexts(_ context.Context, limit int) ([]hub.ContextInfo, error) {
	f.limit = limit
	return []hub.ContextInfo{{
		ID: "ctx-789", AgentIDs: []string{"claude-code"}, TaskIDs: []a2a.TaskID{"task-456"},
		CreatedAt: epoch, LastUsedAt: epoch.Add(time.Second), ExpiresAt: epoch.Add(24 * time.Hour),
	}, {ID: "ctx-empty", CreatedAt: epoch, LastUsedAt: epoch, ExpiresAt: epoch}}, f.err
}

func (f *fakeHub) TasksLike(part string, limit int) []a2a.TaskID {
	f.limit = limit
	return []a2a.TaskID{a2a.TaskID("task-" + part)}
}

func (f *fakeHub) ContextsLike(part string, limit int) []string {
	f.limit = limit
	return []string{"ctx-" + part}
}

func (f *fakeHub) AgentsFor(context.Context) []hub.AgentInfo {
	return []hub.AgentInfo{{
		Definition: &runner.Definition{
			ID: "claude-code", Name: "Claude Code CLI", Description: "Anthropic's coding agent", Driver: "claude-stdio",
			Skills: []runner.Skill{{ID: "code", Name: "Code", Description: "Writes code", Tags: []string{"coding"}}},
		},
		RegisteredAt: epoch,
		Health:       hub.Health{Status: hub.Healthy, Stage: runner.StageAuthenticated, LastCheck: epoch, Latency: 50 * time.Millisecond, Version: "2.0.1", Circuit: "closed"},
		Running:      1, Queued: 2,
		Residence: hub.Residence{Kind: hub.KindProgram, Handle: "claude-code", Vendor: "claude"}, Model: "claude-opus-4-5",
		State: hub.AgentWorking, Since: epoch, Work: hub.Work{Task: "task-456", Title: "Write a hello world function in Python"},
	}, {
		Definition:   &runner.Definition{ID: "gemini"},
		RegisteredAt: epoch,
		Health:       hub.Health{Status: hub.Unhealthy, Stage: runner.StageMissing, LastCheck: epoch, Message: "gemini is not installed; npm install -g it", Circuit: "closed"},
	}, {
		Definition: &runner.Definition{ID: "codex"}, RegisteredAt: epoch, Health: hub.Health{Status: hub.Degraded, LastCheck: epoch},
	}, {
		Definition: &runner.Definition{ID: "vibe"}, RegisteredAt: epoch, Health: hub.Health{Status: hub.Unknown},
	}}
}

func (f *fakeHub) Agent(id string) (hub.AgentInfo, error) {
	for _, a := range f.AgentsFor(context.Background()) {
		if a.Definition.ID == id {
			return a, nil
		}
	}
	return hub.AgentInfo{}, &hub.Error{Code: hub.CodeAgentNotFound, Message: "no agent " + id, Remedy: "see parley agents"}
}

func (f *fakeHub) CheckHealth(_ context.Context, id string) (hub.Health, error) {
	a, err := f.Agent(id)
	return a.Health, err
}

func (f *fakeHub) Status() hub.Status {
	return hub.Status{Version: "1.0.0", StartedAt: time.Now().Add(-12345 * time.Millisecond), Agents: f.AgentsFor(context.Background()), ActiveTasks: 0, TotalTasks: 5}
}

func (f *fakeHub) Totals(q hub.TotalsQuery) ([]hub.Total, bool) {
	f.totals = q
	return []hub.Total{{Agent: "echo", Day: "2026-01-31", Tasks: 2, Completed: 1, Failed: 1, Duration: 1500 * time.Millisecond}}, true
}

type fakeSubscription struct {
	hub    *fakeHub
	events []a2a.Event
}

func (s *fakeSubscription) Task() *a2a.Task { return s.hub.task }

func (s *fakeSubscription) Next(ctx context.Context) (a2a.Event, error) {
	if len(s.events) > 0 {
		event := s.events[0]
		s.events = s.events[1:]
		return event, nil
	}
	if s.hub.next != nil {
		close(s.hub.next)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return nil, io.EOF
}

func (s *fakeSubscription) Close() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	s.hub.closed++
}

func newService(f *fakeHub, change ...func(*dialect.Config)) *dialect.Service {
	cfg := dialect.Config{
		Hub:   f,
		Cards: &dialect.Directory{Agents: f, Version: "1.0.0", BaseURL: func() string { return "http://127.0.0.1:8080" }},
	}
	for _, c := range change {
		c(&cfg)
	}
	return dialect.New(cfg)
}

// specTask is the task of the specification's example of message/send.
func specTask() *a2a.Task {
	return &a2a.Task{
		ID:        "task-456",
		ContextID: "ctx-789",
		Status: a2a.TaskStatus{
			State: a2a.TaskStateCompleted,
			Message: &a2a.Message{
				ID: "resp-123", Role: a2a.MessageRoleAgent, TaskID: "task-456", ContextID: "ctx-789",
				Parts: a2a.ContentParts{a2a.NewTextPart("def hello():\n    print('Hello, World!')")},
			},
			Timestamp: &epoch,
		},
		History: []*a2a.Message{
			{ID: "msg-123", Role: a2a.MessageRoleUser, Parts: a2a.ContentParts{a2a.NewTextPart("Write a hello world function in Python")}},
			{ID: "resp-123", Role: a2a.MessageRoleAgent, Parts: a2a.ContentParts{a2a.NewTextPart("def hello(): …")}},
		},
	}
}

// FindAgent knows the agent reviewer under the name reviewer@office.
func (f *fakeHub) AgentFor(_ context.Context, id string) (hub.AgentInfo, error) { return f.Agent(id) }

func (f *fakeHub) FindAgent(_ context.Context, name, projectID string) (hub.AgentInfo, error) {
	if name == "reviewer@office" && projectID == "p1" {
		return f.Agent("claude-code")
	}
	return f.Agent(name)
}

// RenameAgent notes the name.
func (f *fakeHub) RenameAgent(id, name string) error {
	f.note("RenameAgent "+id+" "+name, hub.SendRequest{})
	return f.err
}
