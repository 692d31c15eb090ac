package hub_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// warmAgent is an agent whose sessions can be warmed. Each writes its context to warmed once it is, or fails.
type warmAgent struct {
	*fakeAgent
	warmed chan string
	fail   bool
}

type warmSession struct {
	*fakeSession
	agent   *warmAgent
	context string
}

func (w *warmAgent) Open(spec runner.SessionSpec) (runner.Session, error) {
	s, err := w.fakeAgent.Open(spec)
	if err != nil {
		return nil, err
	}
	return &warmSession{s.(*fakeSession), w, spec.ContextID}, nil
}

func (s *warmSession) Warm(ctx context.Context) error {
	select {
	case s.agent.warmed <- s.context:
	case <-ctx.Done():
	}
	if s.agent.fail {
		return &runner.Error{Code: runner.CodeProtocol, Message: "it ended"}
	}
	return ctx.Err()
}

// spareHub returns a hub with an agent that keeps a spare or not, and the directory that it may work in.
func spareHub(t *testing.T, spare *bool, change func(*hub.Config, *runner.Definition)) (*hub.Hub, *warmAgent, string) {
	t.Helper()
	w := &warmAgent{fakeAgent: echo(), warmed: make(chan string, 100)}
	def := definition("a")
	def.Driver, def.Spare = runner.DriverExec, spare
	cfg := hub.Config{DataDir: t.TempDir(), WorkRoots: []string{t.TempDir()}}
	if change != nil {
		change(&cfg, &def)
	}
	cfg.Agents = []hub.Agent{{Definition: def, Runner: w}}
	h := newHub(t, cfg, nil)
	t.Cleanup(func() {
		if err := h.Close(context.Background()); err != nil || w.left() != 0 {
			t.Errorf("%d sessions are still open: %v", w.left(), err)
		}
	})
	return h, w, cfg.DataDir
}

func contextsIn(t *testing.T, data string) int {
	t.Helper()
	dirs, err := os.ReadDir(filepath.Join(data, "contexts"))
	if err != nil {
		t.Fatal(err)
	}
	return len(dirs)
}

func TestANewConversationGetsTheSpare(t *testing.T) {
	h, w, _ := spareHub(t, new(true), nil)
	first := send(t, h, request("a", "one"))
	for range 3 {
		spare := <-w.warmed
		if spare == first.ContextID {
			t.Fatal("the conversation that runs was warmed")
		}
		next := send(t, h, request("a", "two"))
		if next.ContextID != spare || next.Status.State != a2a.TaskStateCompleted {
			t.Errorf("a new conversation has the context %s, and the spare %s: %+v", next.ContextID, spare, next.Status)
		}
	}
	spare := <-w.warmed
	for _, known := range []string{first.ContextID, "mine"} {
		if task := send(t, h, in(known, "a", "three")); task.ContextID != known {
			t.Errorf("the conversation %s got the context %s", known, task.ContextID)
		}
	}
	if next := send(t, h, request("a", "four")); next.ContextID != spare {
		t.Errorf("after conversations that are known the next one has the context %s, and the spare %s", next.ContextID, spare)
	}
}

func TestASpareIsForItsDirectory(t *testing.T) {
	var root string
	h, w, _ := spareHub(t, new(true), func(cfg *hub.Config, _ *runner.Definition) { root = cfg.WorkRoots[0] })
	at := func(dir string) hub.SendRequest {
		r := request("a", "x")
		r.Message.Metadata = map[string]any{hub.MetaProject: dir}
		return r
	}
	send(t, h, at(root))
	spare := <-w.warmed
	if task := send(t, h, request("a", "elsewhere")); task.ContextID == spare {
		t.Error("a conversation without a directory got the spare of a project")
	}
	<-w.warmed
	task := send(t, h, at(root))
	if task.ContextID != spare {
		t.Errorf("the project's conversation has the context %s instead of the spare's", task.ContextID)
	}
	for _, spec := range w.specs() {
		if spec.ContextID == spare && spec.WorkDir != root {
			t.Errorf("the conversation works in %s", spec.WorkDir)
		}
	}
}

func TestNoSpareWithoutTheSetting(t *testing.T) {
	for name, spare := range map[string]*bool{"unset": nil, "off": new(false)} {
		t.Run(name, func(t *testing.T) {
			h, w, data := spareHub(t, spare, nil)
			send(t, h, request("a", "x"))
			send(t, h, request("a", "y"))
			if err := h.Close(t.Context()); err != nil || len(w.specs()) != 2 || contextsIn(t, data) != 2 {
				t.Errorf("%d sessions and %d directories of two conversations: %v", len(w.specs()), contextsIn(t, data), err)
			}
		})
	}
}

// Whatever ends a spare, nothing is left of it.
func TestAnUnusedSpareLeavesNothing(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *hub.Hub){
		"the hub stops":        func(t *testing.T, h *hub.Hub) { t.Helper(); must(t, h.Close(t.Context())) },
		"the agent is removed": func(t *testing.T, h *hub.Hub) { t.Helper(); must(t, h.Deregister(t.Context(), "a")) },
		"no room": func(t *testing.T, h *hub.Hub) {
			t.Helper()
			send(t, h, in("x", "a", "x"))
			send(t, h, in("x", "a", "x"))
			must(t, h.Close(t.Context()))
		},
	} {
		for _, fail := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				h, w, data := spareHub(t, new(true), func(cfg *hub.Config, _ *runner.Definition) { cfg.MaxIdleSessions = 1 })
				w.fail = fail
				conversations := map[string]bool{send(t, h, request("a", "x")).ContextID: true}
				<-w.warmed
				if name == "no room" {
					conversations["x"] = true
				}
				end(t, h)
				if n := contextsIn(t, data); n != len(conversations) {
					t.Errorf("%d directories of %d conversations", n, len(conversations))
				}
			})
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
