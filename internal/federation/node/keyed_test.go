package node_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/federation/node"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// otherHub is the sender of another hub, in the node itself.
type otherHub struct {
	*parley.Agent
	identity agent.Identity
	got      chan *envelope.Envelope
}

// federated returns a hub with the agent worker that serves other hubs.
func federated(t *testing.T, agents ...hub.Agent) (*node.Node, *hub.Hub) {
	t.Helper()
	h, err := hub.New(t.Context(), hub.Config{Agents: agents})
	if err != nil {
		t.Fatal(err)
	}
	same := func(id string) string { return id }
	n, err := node.Open(node.Options{Hub: h, Version: "1", Federation: &node.Federation{GlobalID: same, LocalID: same}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(h.Close(context.Background()), n.Close(context.Background())); err != nil {
			t.Error(err)
		}
	})
	return n, h
}

func join(t *testing.T, n *node.Node, digit string) *otherHub {
	t.Helper()
	o := &otherHub{got: make(chan *envelope.Envelope, 256)}
	card := agent.Card{ID: "hub@" + strings.Repeat(digit, 64), Name: "hub", Version: "1", Tier: agent.L3, Capabilities: []agent.Capability{}, Origin: agent.Local}
	o.identity = card.Identity()
	var err error
	if o.Agent, err = n.Join(card, func(_ context.Context, e *envelope.Envelope) { o.got <- e }); err != nil {
		t.Fatal(err)
	}
	return o
}

// send sends in a thread, and returns the envelope's id.
func (o *otherHub) send(t *testing.T, thread string, kind envelope.Type, payload any) string {
	t.Helper()
	e, err := envelope.NewFactory(o.identity).NewInThread(thread, "worker", kind, payload)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.SendEnvelope(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	return e.ID
}

func turnOf(key string, turn int, text string) map[string]any {
	return map[string]any{"key": key, "turn": turn, "text": text, "stream": true}
}

// streamed is the answer to a request with a key.
type streamed struct {
	start  node.Start
	chunks []node.Chunk
	end    node.Result
	text   string
}

// read reads the answer to a request, and skips what belongs to others.
func (o *otherHub) read(t *testing.T, of string) (s streamed) {
	t.Helper()
	for {
		select {
		case e := <-o.got:
			var mine struct{ Of string }
			if err := e.Unmarshal(&mine); err != nil || mine.Of != of {
				continue
			}
			var c node.Chunk
			var err error
			switch e.Type {
			case envelope.StreamStart:
				err = e.Unmarshal(&s.start)
			case envelope.StreamData:
				err = e.Unmarshal(&c)
				s.chunks = append(s.chunks, c)
				s.text += c.Text
			default:
				if err = e.Unmarshal(&s.end); err == nil {
					return s
				}
			}
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("no answer")
		}
	}
}

func total(t *testing.T, h *hub.Hub) int {
	t.Helper()
	page, err := h.Tasks(t.Context(), hub.TaskQuery{})
	if err != nil {
		t.Fatal(err)
	}
	return page.Total
}

// A request that is repeated with its key is answered with what the first one has led to, whole; the key is its hub's.
func TestARequestWithAKeyStartsOneTurn(t *testing.T) {
	t.Parallel()
	n, h := federated(t, hub.Agent{Definition: definition("worker", nil), Runner: newActor()})
	a, b := join(t, n, "a"), join(t, n, "b")
	first := a.read(t, a.send(t, "thread", envelope.Request, turnOf("k", 1, "words: one two three")))
	if first.text != "one two three " || first.start.Resumed || first.end.State != "completed" || first.end.MessageID == "" {
		t.Errorf("%+v", first)
	}
	again := a.read(t, a.send(t, "thread", envelope.Request, turnOf("k", 1, "words: one two three")))
	if again.text != first.text || !again.start.Resumed || again.end.TaskID != first.end.TaskID || again.end.MessageID != first.end.MessageID {
		t.Errorf("%+v", again)
	}
	other := b.read(t, b.send(t, "thread", envelope.Request, turnOf("k", 1, "words: mine")))
	if other.text != "mine " || other.start.Resumed || other.end.TaskID == first.end.TaskID {
		t.Errorf("another hub's key: %+v", other)
	}
	if n := total(t, h); n != 2 {
		t.Errorf("%d tasks", n)
	}
}

// The second turn answers the question of the first, once; a third one after the end is a task of its own.
func TestTheTurnsOfATaskOfAnotherHub(t *testing.T) {
	t.Parallel()
	n, h := federated(t, hub.Agent{Definition: definition("worker", nil), Runner: newActor()})
	a := join(t, n, "a")
	first := a.read(t, a.send(t, "thread", envelope.Request, turnOf("k", 1, "ask")))
	if first.end.State != "input-required" || first.end.Text != "which one?" {
		t.Fatalf("%+v", first)
	}
	if again := a.read(t, a.send(t, "thread", envelope.Request, turnOf("k", 1, "ask"))); again.end.Text != "which one?" || !again.start.Resumed {
		t.Errorf("%+v", again)
	}
	second := a.read(t, a.send(t, "thread", envelope.Request, turnOf("k", 2, "this")))
	again := a.read(t, a.send(t, "thread", envelope.Request, turnOf("k", 2, "this")))
	if second.text != "did this" || again.text != second.text || second.end.TaskID != first.end.TaskID || again.end.TaskID != first.end.TaskID {
		t.Errorf("%+v, %+v", second, again)
	}
	third := a.read(t, a.send(t, "thread", envelope.Request, turnOf("k", 3, "more")))
	if third.text != "did more" || third.end.TaskID == first.end.TaskID || third.end.ContextID != first.end.ContextID {
		t.Errorf("%+v", third)
	}
	if n := total(t, h); n != 2 {
		t.Errorf("%d tasks", n)
	}
	failed := a.read(t, a.send(t, "other", envelope.Request, turnOf("f", 1, "fail")))
	if failed.end.Error == nil || failed.end.Error.State != "failed" || failed.end.Error.Remedy != "pay it" {
		t.Errorf("%+v", failed.end)
	}
}

func TestCancellationsWithKeys(t *testing.T) {
	t.Parallel()
	worker := newActor()
	n, _ := federated(t, hub.Agent{Definition: definition("worker", nil), Runner: worker})
	a := join(t, n, "a")
	asked := a.send(t, "thread", envelope.Request, turnOf("k", 1, "hang"))
	<-worker.started
	repeated := a.send(t, "thread", envelope.Request, turnOf("k", 1, "hang")) // it takes over the answer
	a.send(t, "elsewhere", envelope.Notification, map[string]any{"cancel": true, "key": "k", "turn": 1})
	if end := a.read(t, repeated).end; end.State != "canceled" {
		t.Errorf("%+v, after %s", end, asked)
	}
	for _, key := range []string{"k", "unknown"} { // there is nothing left to cancel, and nothing at all
		id := a.send(t, "elsewhere", envelope.Notification, map[string]any{"cancel": true, "key": key, "turn": 1})
		if end := a.read(t, id).end; end.State != "canceled" {
			t.Errorf("%s: %+v", key, end)
		}
	}
}

func TestInvalidKeys(t *testing.T) {
	t.Parallel()
	n, h := federated(t, hub.Agent{Definition: definition("worker", nil), Runner: newActor()})
	a := join(t, n, "a")
	for name, payload := range map[string]map[string]any{
		"no turn": turnOf("k", 0, "x"), "a long key": turnOf(strings.Repeat("k", 129), 1, "x"), "a late turn": turnOf("k", 1001, "x"), "no key": turnOf("", 1, "x"),
	} {
		a.send(t, "thread", envelope.Request, payload)
		var failure node.Failure
		if e := <-a.got; e.Type != envelope.ErrorMessage || e.Unmarshal(&failure) != nil || failure.Code != "INVALID_PAYLOAD" {
			t.Errorf("%s: %s", name, e.Payload)
		}
	}
	id := a.send(t, "thread", envelope.Notification, map[string]any{"cancel": true, "key": "k", "turn": 2000})
	var failure node.Failure
	if e := <-a.got; e.Unmarshal(&failure) != nil || failure.Code != "INVALID_PAYLOAD" || failure.Of != id {
		t.Errorf("%s", e.Payload)
	}
	if n := total(t, h); n != 0 {
		t.Errorf("%d tasks", n)
	}
}

// giver answers with files.
type giver struct{ content []byte }

func (giver) Probe(context.Context) runner.Probe { return runner.Probe{Stage: runner.StageMissing} }

func (g giver) Open(runner.SessionSpec) (runner.Session, error) { return giving{g}, nil }

type giving struct{ g giver }

func (giving) Close(context.Context) error { return nil }

func (s giving) Turn(_ context.Context, _ runner.Turn, h runner.Handler) (runner.Outcome, error) {
	raw, named := a2a.NewRawPart(s.g.content), a2a.NewTextPart("a text")
	raw.Filename, named.Filename = "a.bin", "b.txt"
	done := 25.0
	h.Event(runner.Progress{Text: "writing", Percent: &done})
	h.Event(runner.Artifact{ID: "files", Parts: []*a2a.Part{raw, named, a2a.NewDataPart(map[string]any{"n": 1.0})}})
	return runner.Outcome{Status: runner.OutcomeCompleted, Text: "here", MessageID: "the answer"}, nil
}

// A file comes in parts, with its size; the card says of a session what and where it is, also while it is offline.
func TestASessionForOtherHubs(t *testing.T) {
	t.Parallel()
	content := []byte(strings.Repeat("0123456789", 60_000))
	at := hub.Residence{Kind: hub.KindSession, Handle: "Ann", Type: "reviewer", Project: "shop", Computer: "laptop"}
	n, _ := federated(t, hub.Agent{Definition: definition("worker", nil), Runner: giver{content}, Durable: true, Residence: at})
	wait.Eventually(t, "it is known to be offline", func() bool {
		card, err := n.Registry().Get("worker")
		s, ok := node.SessionOf(card)
		return err == nil && ok && s == node.Session{Handle: "Ann", Type: "reviewer", Project: "shop", Computer: "laptop", Offline: true} && !node.Unavailable(card)
	})
	if _, ok := node.SessionOf(agent.Card{Protocols: []string{"parley-session/1"}}); ok {
		t.Error("a session that knows no keys")
	}
	a := join(t, n, "a")
	for range 2 {
		got := a.read(t, a.send(t, "thread", envelope.Request, turnOf("k", 1, "x")))
		files, sizes := make(map[string]string), make(map[string]int)
		for _, c := range got.chunks {
			if c.File != "" && c.Size != nil {
				files[c.File] += string(c.Bytes)
				sizes[c.File] = *c.Size
			}
		}
		if files["a.bin"] != string(content) || sizes["a.bin"] != len(content) || files["b.txt"] != "a text" || got.text != "here" || got.end.MessageID != "the answer" {
			t.Errorf("%d and %d bytes, %q, %+v", len(files["a.bin"]), sizes["a.bin"], files["b.txt"], got.end)
		}
	}
}
