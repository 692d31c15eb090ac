package delegation_test

import (
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/mcp/delegation"
)

// Whoever may not ask an agent cannot ask it through another one.
func TestADelegatedTaskIsOfTheFirstSender(t *testing.T) {
	r := newRig(t, delegation.Options{}, map[string]func(*rig) *scripted{"venus": forward("mars"), "mars": answer("done")})
	outsider := hub.Sender{Kind: hub.SenderA2A, ID: "192.0.2.7", Label: "curl"}
	for _, from := range []hub.Sender{outsider, {}} {
		task, err := r.hub.SendAndWait(t.Context(), hub.SendRequest{AgentID: "venus", Sender: from,
			Message: a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart("build"))})
		if err != nil || task.Status.State != a2a.TaskStateCompleted {
			t.Fatalf("%+v, %v", task, err)
		}
		page, err := r.hub.Tasks(t.Context(), hub.TaskQuery{AgentID: "mars", Limit: 1})
		if err != nil || len(page.Tasks) != 1 {
			t.Fatalf("%+v, %v", page, err)
		}
		if s := hub.SenderOf(page.Tasks[0].Metadata); s != from {
			t.Errorf("the delegated task is of %s, not of %s", s, from)
		}
	}
	out, err := r.call(hub.WithSender(t.Context(), outsider), "", "delegate_task", map[string]any{"agent": "mars", "task": "build"})
	if err != nil {
		t.Fatal(err)
	}
	task, err := r.hub.Task(t.Context(), a2a.TaskID(out.TaskID), nil)
	if err != nil || hub.SenderOf(task.Metadata) != outsider {
		t.Errorf("a call from outside: %+v, %v", task, err)
	}
}
