package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/hub"
)

// A remedy is printed once, also where the agent's message ends with it.
func TestARemedyIsPrintedOnce(t *testing.T) {
	const remedy = "log in with: claude auth login"
	for message, state := range map[string]dialect.TaskState{
		"not logged in; " + remedy:    dialect.StateAuthRequired,
		"not logged in":               dialect.StateAuthRequired,
		"it has failed; " + remedy:    dialect.StateFailed,
		"it has failed":               dialect.StateFailed,
		"nobody knows what to do now": dialect.StateFailed,
	} {
		known := map[string]any{"code": "auth", "remedy": remedy}
		want := 1
		if strings.HasPrefix(message, "nobody") {
			known, want = map[string]any{"code": "agent"}, 0
		}
		task := &dialect.Task{ID: "t", Status: dialect.TaskStatus{State: state, Message: &dialect.Message{
			Parts: []dialect.Part{dialect.TextPart(message)}, Metadata: map[string]any{hub.MetaError: known}}}}
		var out strings.Builder
		a := &app{name: "parley", stderr: &out, getenv: func(string) string { return "" }}
		a.printOutcome(task, time.Time{}, nil)
		if got := strings.Count(out.String(), remedy); got != want || !strings.Contains(out.String(), strings.SplitN(message, ";", 2)[0]) || strings.Contains(out.String(), "  \n") {
			t.Errorf("%s: the remedy is printed %d times:\n%s", message, got, out.String())
		}
	}
}
