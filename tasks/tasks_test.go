package tasks_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/tasks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hub stands for a hub: it sends requests to the agent "venus" and receives the answers.
type hub struct {
	t       *testing.T
	node    *parley.Node
	me      *parley.Agent
	answers chan *envelope.Envelope
}

func newHub(t *testing.T) *hub {
	t.Helper()
	n, err := parley.New(parley.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	h := &hub{t: t, node: n, answers: make(chan *envelope.Envelope, 1000)}
	join := func(id string, f func(context.Context, *envelope.Envelope)) *parley.Agent {
		a, err := n.Join(agent.Card{ID: id, Name: id, Version: "1", Tier: agent.L2, Capabilities: []agent.Capability{}}, f)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	h.me = join(tasks.Hub, func(_ context.Context, e *envelope.Envelope) { h.answers <- e })
	join("venus", func(context.Context, *envelope.Envelope) {})
	return h
}

func (h *hub) serve(f tasks.Handler, o tasks.Options) *tasks.Server {
	h.t.Helper()
	s, err := tasks.New(h.node.Router(), "venus", f, o)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(s.Close)
	return s
}

type fields = map[string]any

func (h *hub) send(kind envelope.Type, payload any) {
	h.t.Helper()
	if _, err := h.me.Send(context.Background(), "venus", kind, payload); err != nil {
		h.t.Fatal(err)
	}
}

func (h *hub) ask(text, key string) {
	h.t.Helper()
	h.send(envelope.Request, fields{"text": text, "key": key, "turn": 1, "data": nil, "timeoutMs": 3_600_000, "from": "bob", "over": []string{"a"}})
}

// part is an envelope of an answer.
type part struct {
	kind envelope.Type
	fields
}

// next returns the next envelope.
func (h *hub) next() part {
	h.t.Helper()
	select {
	case e := <-h.answers:
		p := part{kind: e.Type}
		if err := json.Unmarshal(e.Payload, &p.fields); err != nil {
			h.t.Fatal(err)
		}
		return p
	case <-time.After(time.Minute):
		h.t.Fatal("there is no answer")
		return part{}
	}
}

// answer returns the last envelope of an answer, with the text of the others.
func (h *hub) answer() (last part, said string) {
	h.t.Helper()
	for {
		p := h.next()
		if p.kind != envelope.StreamStart && p.kind != envelope.StreamData {
			return p, said
		}
		for _, name := range []string{"status", "text", "file"} {
			if text, ok := p.fields[name].(string); ok && text != "" {
				said += "[" + text + "]"
			}
		}
	}
}

func TestAHandlerAnswers(t *testing.T) {
	h := newHub(t)
	h.serve(func(_ context.Context, task *tasks.Task) (tasks.Answer, error) {
		if task.ID != task.Text || task.Turn != 1 || task.From != "bob" || len(task.Chain) != 1 || task.Data != nil || time.Until(task.Deadline) < time.Minute || task.Context == "" {
			t.Errorf("the task is %+v", task)
		}
		switch task.Text {
		case "report":
			task.Report("half", 50)
			return tasks.Text("done"), nil
		case "fail":
			return tasks.Answer{}, errors.New("too much")
		case "panic":
			panic("no")
		case "refuse":
			return tasks.Refusal("not mine"), nil
		case "ask":
			return tasks.Question("which?"), nil
		case "outcome":
			return tasks.Answer{Outcome: "sold"}, nil
		case "nothing":
			return tasks.Refusal(" "), nil
		case "no JSON":
			return tasks.Answer{Data: math.Inf(1)}, nil
		case "data":
			return tasks.Answer{Data: strings.Repeat("x", 1<<20)}, nil
		case "large":
			return tasks.Answer{Files: []tasks.File{{Content: make([]byte, tasks.MaxAnswer+1)}}}, nil
		}
		return tasks.Answer{Text: strings.Repeat("y", 200<<10), Data: 5, Files: []tasks.File{{Name: "a", Content: make([]byte, 300<<10)}, {}}}, nil
	}, tasks.Options{})
	for text, want := range map[string]string{
		"report": "completed <nil> [half][done]", "fail": "failed too much ", "panic": "failed the program's handler panicked ",
		"refuse": "rejected not mine ", "ask": "input-required <nil> ", "outcome": "failed the program gave the task an outcome that does not exist ",
		"nothing": "failed the program gave no text with its question or refusal ", "data": "failed the data of the answer is too large: send it as a file ",
		"large": "failed the answer is larger than 16 MiB ",
		"all":   "completed <nil> [" + strings.Repeat("y", 128<<10) + "][" + strings.Repeat("y", 72<<10) + "][a][a][file-2]",
	} {
		h.ask(text, text)
		last, said := h.answer()
		var message any
		if failure, ok := last.fields["error"].(fields); ok {
			message = failure["message"]
		}
		if got := fmt.Sprintf("%v %v %s", last.fields["state"], message, said); got != want {
			t.Errorf("%s: %.300s", text, got)
		}
		if text == "ask" && last.fields["text"] != "which?" {
			t.Errorf("the question is %v", last.fields)
		}
	}
	h.ask("no JSON", "no JSON")
	if last, _ := h.answer(); last.fields["state"] != "failed" {
		t.Errorf("%v", last)
	}
}

// A repeated request is followed, and answered once more; the task is done once.
func TestARepeatedRequestIsDoneOnce(t *testing.T) {
	h := newHub(t)
	began, release, times := make(chan struct{}, 8), make(chan struct{}), 0
	h.serve(func(context.Context, *tasks.Task) (tasks.Answer, error) {
		times++
		began <- struct{}{}
		<-release
		return tasks.Text("done"), nil
	}, tasks.Options{})
	h.ask("x", "x")
	<-began
	if p := h.next(); p.kind != envelope.StreamStart || p.fields["resumed"] != nil || p.fields["state"] != "submitted" {
		t.Errorf("it begins with %v", p)
	}
	h.ask("x", "x")
	if p := h.next(); p.kind != envelope.StreamStart || p.fields["resumed"] != true {
		t.Errorf("it is repeated with %v", p)
	}
	close(release)
	first, _ := h.answer()
	h.ask("x", "x")
	last, said := h.answer()
	if said != "[done]" || last.fields["messageId"] != first.fields["messageId"] || times != 1 {
		t.Errorf("%v, %q, done %d times", last, said, times)
	}
}

// A canceled task ends, also one that waits for others, and one that is not known is confirmed.
func TestATaskIsCanceled(t *testing.T) {
	h := newHub(t)
	began := make(chan struct{}, 8)
	h.serve(func(ctx context.Context, task *tasks.Task) (tasks.Answer, error) {
		began <- struct{}{}
		<-ctx.Done()
		return tasks.Answer{}, ctx.Err()
	}, tasks.Options{Concurrency: 1})
	h.ask("x", "running")
	<-began
	h.ask("x", "waiting")
	for range 2 {
		if p := h.next(); p.kind != envelope.StreamStart {
			t.Errorf("%v", p)
		}
	}
	for _, key := range []string{"waiting", "running", "unknown"} {
		h.send(envelope.Notification, fields{"cancel": true, "key": key, "turn": 1})
	}
	ends := make(map[envelope.Type]int)
	for range 5 {
		p, _ := h.answer()
		if p.fields["state"] != "canceled" {
			t.Errorf("%v", p)
		}
		ends[p.kind]++
	}
	if ends[envelope.StreamEnd] != 2 || ends[envelope.Response] != 3 {
		t.Errorf("they end %v", ends)
	}
}

func TestRequestsThatCannotBeReadAreRefused(t *testing.T) {
	h := newHub(t)
	s := h.serve(func(context.Context, *tasks.Task) (tasks.Answer, error) { return tasks.Text("x"), nil }, tasks.Options{})
	h.send(envelope.Notification, fields{"text": "a notification without a key is left alone"})
	for _, payload := range []any{"x", fields{"text": "x"}, fields{"text": "x", "key": "k"}, fields{"text": " ", "key": "k", "turn": 1},
		fields{"text": "x", "key": "k", "turn": 1, "timeoutMs": -1}, fields{"text": "x", "key": strings.Repeat("k", 200), "turn": 1}} {
		h.send(envelope.Request, payload)
		if p := h.next(); p.kind != envelope.ErrorMessage || p.fields["code"] != "INVALID_PAYLOAD" {
			t.Errorf("%v: %v", payload, p)
		}
	}
	if _, err := tasks.New(h.node.Router(), "venus", func(context.Context, *tasks.Task) (tasks.Answer, error) { return tasks.Answer{}, nil }, tasks.Options{}); tasks.CodeOf(err) != tasks.CodeTaken {
		t.Error(err)
	}
	if _, err := tasks.New(h.node.Router(), "venus", nil, tasks.Options{}); tasks.CodeOf(err) != tasks.CodeInvalid {
		t.Error(err)
	}
	s.Close()
	h.serve(func(context.Context, *tasks.Task) (tasks.Answer, error) { return tasks.Text("x"), nil }, tasks.Options{})
}

// A task that is being worked on is said to be so after a while, without a report.
func TestAPauseIsWork(t *testing.T) {
	h := newHub(t)
	release := make(chan struct{})
	h.serve(func(context.Context, *tasks.Task) (tasks.Answer, error) { <-release; return tasks.Refusal("no"), nil }, tasks.Options{Decision: time.Millisecond})
	h.ask("x", "x")
	if p := h.next(); p.kind != envelope.StreamStart {
		t.Errorf("%v", p)
	}
	if p := h.next(); p.kind != envelope.StreamData || p.fields["state"] != "working" {
		t.Errorf("%v", p)
	}
	close(release)
	if last, _ := h.answer(); last.fields["state"] != "rejected" {
		t.Errorf("%v", last)
	}
}
