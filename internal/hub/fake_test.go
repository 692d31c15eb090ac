package hub_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// fakeAgent is an agent in this process whose turns run the function turn.
type fakeAgent struct {
	turn  func(ctx context.Context, t runner.Turn, h runner.Handler) (runner.Outcome, error)
	probe func(ctx context.Context) runner.Probe

	mu     sync.Mutex
	opened []runner.SessionSpec
	closed int
}

func (f *fakeAgent) Probe(ctx context.Context) runner.Probe {
	if f.probe != nil {
		return f.probe(ctx)
	}
	return runner.Probe{Stage: runner.StageAuthenticated, Version: "1.0"}
}

func (f *fakeAgent) Open(spec runner.SessionSpec) (runner.Session, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened = append(f.opened, spec)
	return &fakeSession{agent: f}, nil
}

func (f *fakeAgent) specs() []runner.SessionSpec {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]runner.SessionSpec(nil), f.opened...)
}

func (f *fakeAgent) left() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.opened) - f.closed
}

type fakeSession struct {
	agent *fakeAgent
	busy  sync.Mutex
	once  sync.Once
}

func (s *fakeSession) Turn(ctx context.Context, t runner.Turn, h runner.Handler) (runner.Outcome, error) {
	if !s.busy.TryLock() {
		return runner.Outcome{Status: runner.OutcomeFailed}, &runner.Error{Code: runner.CodeBusy, Message: "busy"}
	}
	defer s.busy.Unlock()
	return s.agent.turn(ctx, t, h)
}

func (s *fakeSession) Close(context.Context) error {
	s.once.Do(func() {
		s.agent.mu.Lock()
		defer s.agent.mu.Unlock()
		s.agent.closed++
	})
	return nil
}

func prompt(t runner.Turn) string {
	var b strings.Builder
	for _, p := range t.Parts {
		b.WriteString(p.Text())
	}
	return b.String()
}

// echo is a turn that answers with the prompt.
func echo() *fakeAgent {
	return &fakeAgent{turn: func(_ context.Context, t runner.Turn, h runner.Handler) (runner.Outcome, error) {
		text := prompt(t)
		h.Event(runner.TextDelta{Text: text})
		return runner.Outcome{Status: runner.OutcomeCompleted, Text: text}, nil
	}}
}

func definition(id string) runner.Definition {
	return runner.Definition{ID: id, Driver: runner.DriverEcho}
}

// openBus opens a bus, which is closed at the end of the test.
func openBus(t testing.TB, dir string, mode bus.Durability) *bus.Bus {
	t.Helper()
	b, err := bus.Open(t.Context(), bus.Config{DataDir: dir, Durability: mode})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return b
}

// newHub starts a hub with agents by id, which is closed at the end of the test.
func newHub(t testing.TB, cfg hub.Config, agents map[string]*fakeAgent) *hub.Hub {
	t.Helper()
	for id, a := range agents {
		cfg.Agents = append(cfg.Agents, hub.Agent{Definition: definition(id), Runner: a})
	}
	h, err := hub.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(context.Background()); err != nil {
			t.Error(err)
		}
		for id, a := range agents {
			if n := a.left(); n != 0 {
				t.Errorf("%d sessions of %s are still open", n, id)
			}
		}
	})
	return h
}

func message(text string) *a2a.Message {
	return a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart(text))
}

func request(agent, text string) hub.SendRequest {
	return hub.SendRequest{AgentID: agent, Message: message(text)}
}

func text(m *a2a.Message) string {
	if m == nil {
		return ""
	}
	var b strings.Builder
	for _, p := range m.Parts {
		b.WriteString(p.Text())
	}
	return b.String()
}
