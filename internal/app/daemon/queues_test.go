//go:build unix

package daemon_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub"
)

// The configured workers drain a queue, also what was submitted while they did not run.
func TestWorkersDrainAQueue(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	r := run(t, mustLoad(t, dir, "http.enabled=false"))
	defer func() { r.end(t) }()
	ann := enter(t, membershipsOf(t, dir, "/shop"), "dispatcher")
	submit := func(task string) {
		t.Helper()
		if _, err := ann.Submit(t.Context(), work.Submission{Capability: "go", Offer: mail.Offer{TaskID: task, Description: "say " + task}}); err != nil {
			t.Fatal(err)
		}
	}
	submit("A")
	r.end(t)
	if err := os.WriteFile(filepath.Join(dir, "config.yaml"), []byte("workers:\n  - {agent: echo, capability: go}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r = run(t, mustLoad(t, dir, "http.enabled=false"))
	wait.Eventually(t, "the hub is back", func() bool {
		_, err := ann.Item(t.Context(), "A", false)
		return err == nil
	})
	submit("B")
	for _, task := range []string{"A", "B"} {
		s, err := ann.Item(t.Context(), task, true)
		if err != nil || s.State != work.Completed || s.HolderHandle != "echo" {
			t.Errorf("%s: %+v, %v", task, s, err)
		}
	}
	c := dialHub(t, r.info.Socket)
	sent, err := c.Send(t.Context(), dialect.SendParams{Message: dialect.Message{
		Kind: dialect.KindMessage, MessageID: "1", Role: dialect.RoleUser, Parts: []dialect.Part{dialect.TextPart("say C")},
		Metadata: map[string]any{hub.MetaTargetAgent: "queue.go"}}})
	if err != nil || sent.Status.State != "completed" || !strings.Contains(sent.Text(), "say C") {
		t.Fatalf("%+v, %v", sent, err)
	}
	wait.Eventually(t, "the tasks of the items have ended", func() bool {
		page, err := c.Tasks(t.Context(), dialect.TasksListParams{AgentID: "queue.go", State: "completed"})
		return err == nil && page.Total == 3
	})
}
