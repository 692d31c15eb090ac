//go:build unix

package daemon_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/base/wait"
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
}
