package hub_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/budget"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// A large request keeps of its memory only what its prompt needs while its agent works.
func TestALargeRequestGivesMemoryBackOnceItIsStored(t *testing.T) {
	working, end := make(chan struct{}), make(chan struct{})
	agent := &fakeAgent{turn: func(ctx context.Context, _ runner.Turn, _ runner.Handler) (runner.Outcome, error) {
		close(working)
		select {
		case <-end:
		case <-ctx.Done():
		}
		return runner.Outcome{Status: runner.OutcomeCompleted, Text: "done"}, nil
	}}
	h := newHub(t, hub.Config{Bus: openBus(t, t.TempDir(), bus.DurabilityFast)}, map[string]*fakeAgent{"worker": agent})
	memory := budget.New(400, time.Minute)
	share, err := memory.Acquire(t.Context(), 400)
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		ctx := budget.WithShare(t.Context(), share, 100)
		_, err := h.SendAndWait(ctx, hub.SendRequest{AgentID: "worker", Message: message(strings.Repeat("x", 40<<10))})
		answered <- err
	}()
	<-working
	others, err := memory.Acquire(t.Context(), 300) // waits until the prompt is stored
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := memory.Acquire(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(end)
	if err := <-answered; err != nil {
		t.Error(err)
	}
	others.Release()
	share.Release()
}

func TestTheSizeOfAnEventIsThatOfItsContent(t *testing.T) {
	text := a2a.NewTextPart(strings.Repeat("x", 1000))
	artifact := &a2a.Artifact{Parts: a2a.ContentParts{text}}
	for name, event := range map[string]a2a.Event{
		"task":     &a2a.Task{History: []*a2a.Message{{}}, Artifacts: []*a2a.Artifact{artifact}},
		"message":  &a2a.Message{Parts: a2a.ContentParts{text}},
		"status":   &a2a.TaskStatusUpdateEvent{Status: a2a.TaskStatus{Message: &a2a.Message{Parts: a2a.ContentParts{text}}}},
		"artifact": &a2a.TaskArtifactUpdateEvent{Artifact: artifact},
	} {
		if n := hub.ContentSize(event); n < 1000 || n > 1100 {
			t.Errorf("%s: %d bytes", name, n)
		}
	}
	if n := hub.ContentSize(nil); n != 0 {
		t.Errorf("nothing: %d bytes", n)
	}
}
