package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/demo"
	"github.com/parleyhub/parley/internal/app/terminal"
	"github.com/parleyhub/parley/internal/documents"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/events"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/swarm"
)

// stage is a hub whose clock stands still, with the story of the demonstration.
type stage struct {
	now   time.Time
	tasks []dialect.Task // the newest first
	parts map[string]demo.Part
	guide *crdt.Doc
}

func newHub() *stage {
	h := &stage{now: time.Date(2026, 11, 28, 14, 0, 30, 0, time.UTC), parts: map[string]demo.Part{}, guide: crdt.New(crdt.Options{})}
	h.write("# A guide to the sky\n\n1. The moons, by saturn\n")
	states := map[string]dialect.TaskState{"venus": dialect.StateInputRequired, "titan": dialect.StateFailed, "saturn": dialect.StateCompleted, "mars": dialect.StateCompleted}
	for i, t := range demo.Tasks() {
		h.add(i, t, states[t.Agent])
	}
	for i, agent := range []string{"mars", "sun", "saturn"} {
		h.add(4+i, demo.Task{Agent: agent, Prompt: "Write a chapter about " + demo.Chapters()[i]}, []dialect.TaskState{dialect.StateCompleted, dialect.StateCompleted, dialect.StateWorking}[i])
	}
	return h
}

// ago returns the time so many seconds ago.
func (h *stage) ago(seconds int) dialect.Time {
	return dialect.Time{Time: h.now.Add(-time.Duration(seconds) * time.Second)}
}

func (h *stage) add(i int, t demo.Task, state dialect.TaskState) {
	part := demo.PartFor(t.Agent, t.Prompt)
	usage := map[string]any{}
	if state == dialect.StateCompleted {
		usage = map[string]any{"inputTokens": float64(part.In), "outputTokens": float64(part.Out), "costUsd": part.Cost}
	}
	task := dialect.Task{
		Kind: dialect.KindTask, ID: fmt.Sprintf("01a222ac-75a1-7c47-a81f-c31f95c790%02d", i), ContextID: fmt.Sprintf("01a222ac-75a1-7c5f-8d6c-e49989e6cc%02d", i),
		Status:  dialect.TaskStatus{State: state, Timestamp: h.ago(36 - 4*i)},
		History: []dialect.Message{{Role: dialect.RoleUser, Parts: []dialect.Part{dialect.TextPart(t.Prompt)}}},
		Metadata: map[string]any{
			hub.MetaAgent: t.Agent, hub.MetaDir: map[string]any{"path": "/home/ada/guide"},
			hub.MetaSummary: map[string]any{"prompt": t.Prompt, "durationMs": 9400.0, "usage": usage},
		},
	}
	for _, s := range part.Steps {
		switch {
		case s.Fails != "":
			task.Status.Message = &dialect.Message{Parts: []dialect.Part{dialect.TextPart(t.Agent + " reported an error: " + s.Fails)}}
		case s.Says != "" && state == dialect.StateCompleted:
			task.Artifacts = []dialect.Artifact{{Parts: []dialect.Part{dialect.TextPart(s.Says)}}}
		}
	}
	h.parts[task.ID] = part
	h.tasks = append([]dialect.Task{task}, h.tasks...)
}

func (h *stage) time() time.Time { return h.now }

// answered is the hub after the user has allowed what venus asks for.
func (h *stage) answered() {
	for i := range h.tasks {
		if h.tasks[i].Status.State == dialect.StateInputRequired {
			h.tasks[i].Status.State = dialect.StateWorking
		}
	}
	h.now = h.now.Add(2 * time.Second)
}

func (h *stage) Status(context.Context) (*dialect.Status, error) {
	return &dialect.Status{
		Version: "1.0.0", Uptime: 3_720_000, ActiveTasks: 2, TotalTasks: len(h.tasks), Agents: make([]dialect.AgentStatus, 5),
		Peers:      &dialect.PeersStatus{Hubs: []dialect.PeerStatus{{Name: "office", Connected: true, Via: []string{"hyperswarm"}, Agents: []string{"reviewer@office"}}, {Name: "laptop", Via: []string{"nats"}, Problem: "asleep"}}},
		MCPServers: []dialect.MCPServerStatus{{Name: "tickets", Connected: true, Tools: 4}},
	}, nil
}

func (h *stage) Agents(context.Context, bool) ([]dialect.Agent, error) {
	states := map[string]string{"saturn": "working", "venus": "working"}
	var list []dialect.Agent
	for _, a := range demo.Agents() {
		state := "idle"
		if s := states[a.ID]; s != "" {
			state = s
		}
		list = append(list, dialect.Agent{
			ID: a.ID, Description: a.About, Health: &dialect.Health{Status: "healthy"},
			Place: dialect.Place{Kind: "program", Address: a.ID, State: state, Since: h.ago(20), Project: "guide"},
		})
	}
	return list, nil
}

func (h *stage) Tasks(context.Context, dialect.TasksListParams) (*dialect.TaskPage, error) {
	return &dialect.TaskPage{Tasks: h.tasks, Total: len(h.tasks)}, nil
}

func (h *stage) Task(_ context.Context, id string) (*dialect.Task, error) {
	for i := range h.tasks {
		if h.tasks[i].ID == id {
			return &h.tasks[i], nil
		}
	}
	return nil, fmt.Errorf("there is no task %s", id)
}

func (h *stage) Trace(_ context.Context, id string) (*dialect.TaskTrace, error) {
	part := h.parts[id]
	t := hub.Trace{Turn: 1, State: "completed", StartedAt: h.ago(40).Time, EndedAt: h.ago(31).Time, Usage: runner.Usage{InputTokens: int64(part.In), OutputTokens: int64(part.Out), CostUSD: part.Cost}}
	for i, s := range part.Steps {
		if s.Tool == "" {
			continue
		}
		input, err := json.Marshal(s.Input)
		if err != nil {
			return nil, err
		}
		t.Tools = append(t.Tools, hub.ToolTrace{Name: s.Tool, Title: s.Title, Status: "completed", Input: input, Output: s.Output, StartedAt: h.ago(39 - 3*i).Time})
		if s.File != "" {
			t.Git = &hub.GitTrace{Branch: "main", Added: 3, Files: []hub.FileChange{{Path: s.File, Added: 3}}}
		}
	}
	return &dialect.TaskTrace{TaskID: id, Turns: 1, Traces: []hub.Trace{t}}, nil
}

func (h *stage) Needs(context.Context) (*dialect.Needs, error) {
	found := &dialect.Needs{}
	for i := range h.tasks {
		t := &h.tasks[i]
		if t.Status.State != dialect.StateInputRequired {
			continue
		}
		step := h.parts[t.ID].Steps[1]
		agent, _ := t.Metadata[hub.MetaAgent].(string)
		found.Needs = append(found.Needs, dialect.Need{
			ID: t.ID, Kind: dialect.NeedPermission, Since: t.Status.Timestamp, Agent: agent, Title: "Allow " + step.Title + "?", TaskID: t.ID, ContextID: t.ContextID,
			RequestID: "1", Tool: step.Tool, Input: step.Input,
			Options: []runner.PermissionOption{{ID: "allow", Name: "Allow once", Kind: runner.AllowOnce}, {ID: "deny", Name: "Deny", Kind: runner.RejectOnce}},
		})
	}
	found.Total = len(found.Needs)
	return found, nil
}

func (h *stage) Totals(_ context.Context, p dialect.TotalsParams) (*dialect.Totals, error) {
	found := &dialect.Totals{}
	for i, usd := range []float64{0.78, 4.1, 2.3, 0, 0, 3.2, 5.4, 1.9, 2.8, 4.4, 0, 0, 1.2, 2.0} {
		if usd > 0 {
			tasks := int(usd*6) + 1
			found.Totals = append(found.Totals, dialect.Total{
				Day: h.now.AddDate(0, 0, -i).Format(time.DateOnly), Tasks: tasks, Completed: tasks, Failed: (i + 1) % 2, CostUSD: usd,
				DurationMS: int64(usd * 400_000), InputTokens: int64(usd * 42_000), OutputTokens: int64(usd * 2900),
			})
		}
	}
	return found, nil
}

func (h *stage) Swarms(context.Context) ([]dialect.SwarmSummary, error) {
	return []dialect.SwarmSummary{{ID: "the-guide", TaskDescription: demo.Guide, Status: swarm.Active, Completed: 2, SubTasks: 5, CreatedAt: h.ago(30)}}, nil
}

func (h *stage) Swarm(context.Context, string) (*swarm.Session, error) {
	s := &swarm.Session{ID: "the-guide", TaskDescription: demo.Guide, Status: swarm.Active, Participants: []string{"mars", "saturn", "sun", "titan"}, CreatedAt: h.ago(30).UnixMilli()}
	for i, about := range demo.Chapters() {
		x := swarm.SubTask{ID: about, Status: swarm.TaskCompleted, AssignedAgent: []string{"mars", "sun", "saturn", "mars"}[i], Attempt: 1}
		if i >= 2 {
			x.Status = swarm.TaskRunning
		}
		if i == 3 {
			x.Attempt, x.Error = 2, "titan reported an error: the quota of this month is used up"
		}
		s.SubTasks = append(s.SubTasks, x)
	}
	s.SubTasks = append(s.SubTasks, swarm.SubTask{ID: "review", Status: swarm.TaskPending, DependsOn: demo.Chapters()})
	return s, nil
}

func (h *stage) HubEvents(context.Context, dialect.EventsParams) (terminal.Stream[events.Event], error) {
	part := func(seconds int, id, agent, state string) events.Event {
		return events.Event{Time: h.ago(seconds).Time, Kind: events.SwarmSubTask, Subject: "the-guide", Agent: agent, Data: map[string]any{"subTask": id, "state": state}}
	}
	c := demo.Chapters()
	return &list[events.Event]{[]events.Event{
		part(29, c[0], "mars", "running"), part(29, c[1], "sun", "running"), part(28, c[2], "saturn", "running"), part(28, c[3], "titan", "running"),
		part(20, c[3], "titan", "pending"), part(13, c[0], "mars", "completed"), part(12, c[3], "mars", "running"), part(7, c[1], "sun", "completed"),
	}}, nil
}

// list is a stream of what is known.
type list[E any] struct{ rest []E }

func (l *list[E]) Next(context.Context) (e E, err error) {
	if len(l.rest) == 0 {
		return e, io.EOF
	}
	e, l.rest = l.rest[0], l.rest[1:]
	return e, nil
}

func (l *list[E]) Close() error { return nil }

// What the recording does not show.

func (h *stage) FollowTask(context.Context, string) (terminal.Stream[dialect.Event], error) {
	return &list[dialect.Event]{}, nil
}
func (h *stage) Cancel(context.Context, string) (*dialect.Task, error)           { return nil, nil }
func (h *stage) Send(context.Context, dialect.SendParams) (*dialect.Task, error) { return nil, nil }
func (h *stage) Work(context.Context) (*dialect.WorkList, error)                 { return &dialect.WorkList{}, nil }
func (h *stage) RetryWork(context.Context, string) error                         { return nil }
func (h *stage) Threads(context.Context) ([]dialect.Thread, error)               { return nil, nil }
func (h *stage) Thread(context.Context, dialect.ThreadParams) (*dialect.ThreadMessages, error) {
	return nil, nil
}
func (h *stage) WriteThread(context.Context, dialect.WriteThreadParams) (*dialect.WrittenMessage, error) {
	return nil, nil
}
func (h *stage) FileClaims(context.Context) ([]dialect.FileClaim, error) { return nil, nil }
func (h *stage) BreakFileClaim(context.Context, string) (*dialect.BrokenClaim, error) {
	return nil, nil
}
func (h *stage) Contexts(context.Context, int) ([]dialect.Context, error) { return nil, nil }
func (h *stage) Documents(context.Context) ([]string, error)              { return []string{"guide"}, nil }
func (h *stage) Document(context.Context, string) (*documents.Content, error) {
	content, err := h.guide.JSON()
	return &documents.Content{Content: content}, err
}

// SyncDocument merges what the viewer writes with what the agents have written.
func (h *stage) SyncDocument(_ context.Context, _ string, has documents.Copy) (*documents.Rest, error) {
	if len(has.Update) > 0 {
		if _, err := h.guide.Apply(has.Update, nil); err != nil {
			return nil, err
		}
	}
	return &documents.Rest{Vector: h.guide.StateVector().Encode(), Update: h.guide.EncodeSince(nil)}, nil
}

// write lets an agent write at the end of the guide.
func (h *stage) write(text string) {
	if err := h.guide.Text("chapters").Append(text); err != nil {
		panic(err)
	}
}

func (h *stage) DiscardWork(context.Context, string) error { return nil }

func (h *stage) DismissLoop(context.Context, string) error { return nil }
func (h *stage) Close() error                              { return nil }
func (h *stage) EditDocument(context.Context, string, []documents.Edit) (*documents.Content, error) {
	return nil, nil
}
