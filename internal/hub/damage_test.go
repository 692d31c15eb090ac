package hub_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// A task whose end is damaged on disk is neither run again nor said to have been cut off, although an older state of it is still there.
func TestATaskWhoseEndIsDamaged(t *testing.T) {
	for _, durable := range []bool{false, true} {
		dir, crashed := t.TempDir(), t.TempDir()
		proceed := make(chan struct{})
		agent := &fakeAgent{turn: func(context.Context, runner.Turn, runner.Handler) (runner.Outcome, error) {
			<-proceed
			return runner.Outcome{Status: runner.OutcomeCompleted, Text: "the end"}, nil
		}}
		open := func(dir string) *hub.Hub {
			return newHub(t, hub.Config{Bus: openBus(t, dir, bus.DurabilityAlways), Agents: []hub.Agent{{Definition: definition("a"), Runner: agent, Durable: durable}}}, nil)
		}
		h := open(dir)
		task, err := h.Send(t.Context(), request("a", "begin")) // it is stored then
		if err != nil {
			t.Fatal(err)
		}
		close(proceed)
		wait.Eventually(t, "it has ended", taskIs(h, task.ID, a2a.TaskStateCompleted))

		if err := os.CopyFS(crashed, os.DirFS(dir)); err != nil { // as a kill leaves it
			t.Fatal(err)
		}
		blocks, err := filepath.Glob(filepath.Join(crashed, "bus", "jetstream", "*", "streams", "PARLEY_HUB_local", "msgs", "*.blk"))
		if err != nil || len(blocks) == 0 {
			t.Fatal(blocks, err)
		}
		last := blocks[len(blocks)-1]
		raw, err := os.ReadFile(last)
		if err != nil {
			t.Fatal(err)
		}
		at := bytes.LastIndex(raw, []byte("the end"))
		raw[at] ^= 1
		raw[at+3] ^= 1
		if err := os.WriteFile(last, raw, 0o600); err != nil {
			t.Fatal(err)
		}

		agent.turn = func(context.Context, runner.Turn, runner.Handler) (runner.Outcome, error) {
			t.Error("it was run again")
			return runner.Outcome{Status: runner.OutcomeCompleted}, nil
		}
		after, err := open(crashed).Task(t.Context(), task.ID, nil)
		if err != nil || after.Status.State != a2a.TaskStateFailed || !strings.Contains(text(after.Status.Message), "damaged") {
			t.Errorf("with a durable agent %v: %+v, %v", durable, after, err)
		}
	}
}
