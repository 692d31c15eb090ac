package hub_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/google/go-cmp/cmp"

	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

func TestAPermissionRequestMakesTheTaskInputRequired(t *testing.T) {
	h := newHub(t, hub.Config{}, map[string]*fakeAgent{"a": actor()})
	task := send(t, h, request("a", "ask:1 say:.done"))
	if task.Status.State != a2a.TaskStateInputRequired {
		t.Fatalf("state %s", task.Status.State)
	}
	parts := task.Status.Message.Parts
	if len(parts) != 2 || parts[0].Text() != "Run ls?" || parts[1].Metadata[hub.MetaPermission] != true {
		t.Fatalf("parts %+v", parts)
	}
	want := map[string]any{
		"requestId": "q1", "title": "Run ls?", "tool": "Bash", "input": map[string]any{"command": "ls"},
		"options": []any{
			map[string]any{"id": "a1", "name": "Allow", "kind": "allow_once"},
			map[string]any{"id": "r1", "name": "Reject", "kind": "reject_once"},
		},
	}
	if d := cmp.Diff(want, parts[1].Data()); d != "" {
		t.Error(d)
	}
	end := send(t, h, follow(task, "yes"))
	if end.Status.State != a2a.TaskStateCompleted || text(end.Status.Message) != "[a1  <nil>].done" {
		t.Errorf("task %+v", end)
	}
	if len(end.History) != 4 || text(end.History[2]) != "yes" {
		t.Errorf("history %+v", end.History)
	}
}

func TestRepliesToAPermissionRequest(t *testing.T) {
	h := newHub(t, hub.Config{}, map[string]*fakeAgent{"a": actor()})
	data := func(m map[string]any) *a2a.Part { return a2a.NewDataPart(m) }
	for name, tc := range map[string]struct {
		part *a2a.Part
		want string // the answer; "" if the reply is refused
		err  string
	}{
		"option id":                  {part: data(map[string]any{"optionId": "r1"}), want: "[r1  <nil>]"},
		"option id, word":            {part: data(map[string]any{"optionId": "r1", "requestId": "q1", "message": "later"}), want: "[r1 later <nil>]"},
		"unknown option":             {part: data(map[string]any{"optionId": "x"}), err: "message.parts[0].data.optionId"},
		"another question":           {part: data(map[string]any{"optionId": "a1", "requestId": "q9"}), err: "message.parts[0].data.requestId"},
		"id as text":                 {part: a2a.NewTextPart("a1"), want: "[a1  <nil>]"},
		"name":                       {part: a2a.NewTextPart(" allow\n"), want: "[a1  <nil>]"},
		"kind":                       {part: a2a.NewTextPart("reject_once"), want: "[r1  <nil>]"},
		"yes":                        {part: a2a.NewTextPart("Yes!"), want: "[a1  <nil>]"},
		"no":                         {part: a2a.NewTextPart("no."), want: "[r1  <nil>]"},
		"any other text":             {part: a2a.NewTextPart("use find instead"), want: "[r1 use find instead <nil>]"},
		"data without known fields":  {part: data(map[string]any{"x": 1}), want: "[r1  <nil>]"},
		"data that is not an object": {part: a2a.NewDataPart("a1"), want: "[r1  <nil>]"},
	} {
		t.Run(name, func(t *testing.T) {
			task := send(t, h, request("a", "ask:1"))
			m := message("")
			m.TaskID, m.Parts = task.ID, a2a.ContentParts{tc.part}
			end, err := h.SendAndWait(t.Context(), hub.SendRequest{Message: m})
			if tc.err != "" {
				if he, ok := errors.AsType[*hub.Error](err); !ok || he.Code != hub.CodeInvalid || he.Subject != tc.err {
					t.Fatalf("error %#v", err)
				}
				// The permission request is still open.
				end = send(t, h, follow(task, "yes"))
				tc.want = "[a1  <nil>]"
			} else if err != nil {
				t.Fatal(err)
			}
			if got := text(end.Status.Message); got != tc.want {
				t.Errorf("the agent received the answer %q, want %q", got, tc.want)
			}
		})
	}
}

func TestConcurrentPermissionRequestsAreAskedInOrder(t *testing.T) {
	agent := &fakeAgent{turn: func(ctx context.Context, _ runner.Turn, h runner.Handler) (runner.Outcome, error) {
		answers := make([]string, 3)
		done := make(chan struct{})
		for i, q := range []string{"one", "two", "three"} {
			// A goroutine sends each request; the next one follows once the hub
			// has queued this one.
			go func() {
				defer func() { done <- struct{}{} }()
				a, err := h.Permission(ctx, runner.PermissionRequest{ID: q, Title: q, Options: []runner.PermissionOption{
					{ID: "always", Kind: runner.AllowAlways}, {ID: "never", Kind: runner.RejectAlways}}})
				if err == nil {
					answers[i] = q + "=" + a.OptionID
				}
			}()
		}
		for range answers {
			<-done
		}
		return runner.Outcome{Status: runner.OutcomeCompleted, Text: strings.Join(answers, " ")}, nil
	}}
	h := newHub(t, hub.Config{}, map[string]*fakeAgent{"a": agent})
	task := send(t, h, request("a", "go"))
	var asked []string
	for task.Status.State == a2a.TaskStateInputRequired {
		q := text(task.Status.Message)
		asked = append(asked, q)
		reply := "yes"
		if q == "two" {
			reply = "no"
		}
		task = send(t, h, follow(task, reply))
	}
	if len(asked) != 3 || text(task.Status.Message) != "one=always two=never three=always" {
		t.Errorf("asked %q, answered %q", asked, text(task.Status.Message))
	}
}

func TestTheDefinitionMayAnswerPermissionRequests(t *testing.T) {
	for policy, want := range map[string]string{"allow": "[a1  <nil>]", "deny": "[r1 the configuration of this agent denies it <nil>]"} {
		def := definition("a")
		def.Permissions = policy
		h := newHub(t, hub.Config{Agents: []hub.Agent{{Definition: def, Runner: actor()}}}, nil)
		if got := text(send(t, h, request("a", "ask:1")).Status.Message); got != want {
			t.Errorf("%s: %q", policy, got)
		}
	}
}

func TestADenialWithoutAnOptionIsAnError(t *testing.T) {
	agent := &fakeAgent{turn: func(ctx context.Context, _ runner.Turn, h runner.Handler) (runner.Outcome, error) {
		_, none := h.Permission(ctx, runner.PermissionRequest{ID: "1"})
		_, err := h.Permission(ctx, runner.PermissionRequest{ID: "1", Options: []runner.PermissionOption{{ID: "a", Kind: runner.AllowOnce}}})
		return runner.Outcome{Status: runner.OutcomeCompleted, Text: errors.Join(none, err).Error()}, nil
	}}
	h := newHub(t, hub.Config{}, map[string]*fakeAgent{"a": agent})
	task := send(t, h, request("a", "go"))
	if text(task.Status.Message) != "The agent asks for permission." {
		t.Errorf("question %q", text(task.Status.Message))
	}
	end := send(t, h, follow(task, "no"))
	if got := text(end.Status.Message); !strings.Contains(got, "offers no options") || !strings.Contains(got, "denied by the user") {
		t.Errorf("the driver received %q", got)
	}
}

func TestAWithdrawnPermissionRequestResumesTheTask(t *testing.T) {
	withdraw, asked := make(chan struct{}), make(chan struct{})
	agent := &fakeAgent{turn: func(ctx context.Context, _ runner.Turn, h runner.Handler) (runner.Outcome, error) {
		qctx, cancel := context.WithCancel(ctx)
		go func() {
			<-withdraw
			cancel()
		}()
		_, err := h.Permission(qctx, runner.PermissionRequest{ID: "1", Title: "May I?", Options: []runner.PermissionOption{{ID: "a", Kind: runner.AllowOnce}}})
		close(asked)
		if err == nil {
			return runner.Outcome{Status: runner.OutcomeFailed}, &runner.Error{Code: runner.CodeAgent, Message: "answered"}
		}
		return runner.Outcome{Status: runner.OutcomeCompleted, Text: "went on"}, nil
	}}
	h := newHub(t, hub.Config{}, map[string]*fakeAgent{"a": agent})
	task := send(t, h, request("a", "go"))
	close(withdraw)
	<-asked
	end := await(t, h, task.ID, a2a.TaskStateCompleted)
	if text(end.Status.Message) != "went on" {
		t.Errorf("task %+v", end)
	}
}

// Whoever waits for a task whose question somebody has answered before the wait saw it waits on, and is not told that the hub stopped.
func TestAWaitOutlivesAnAnsweredQuestion(t *testing.T) {
	gate := make(chan struct{})
	h := newHub(t, hub.Config{}, map[string]*fakeAgent{"a": {turn: func(ctx context.Context, _ runner.Turn, u runner.Handler) (runner.Outcome, error) {
		_, err := u.Permission(ctx, runner.PermissionRequest{ID: "q", Title: "May I?", Options: []runner.PermissionOption{{ID: "once", Kind: runner.AllowOnce}}})
		<-gate
		return runner.Outcome{Status: runner.OutcomeCompleted, Text: "done"}, err
	}}})
	p, err := h.Start(t.Context(), request("a", "go"))
	if err != nil {
		t.Fatal(err)
	}
	asked := await(t, h, p.TaskID(), a2a.TaskStateInputRequired)
	if _, err := h.Send(t.Context(), follow(asked, "yes")); err != nil {
		t.Fatal(err)
	}
	await(t, h, p.TaskID(), a2a.TaskStateWorking)
	time.AfterFunc(50*time.Millisecond, func() { close(gate) })
	task, err := p.Wait(t.Context())
	if err != nil || task.Status.State != a2a.TaskStateCompleted {
		t.Errorf("%+v, %v", task.Status, err)
	}
}
