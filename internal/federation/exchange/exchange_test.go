package exchange_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/federation/exchange"
	"github.com/parleyhub/parley/internal/federation/node"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/testbed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testbed.Leaks()...) }

// bench is a node with a sender and an agent "venus", which answers as the test says.
type bench struct {
	t      *testing.T
	sender *exchange.Sender
	route  *exchange.Route
	asked  []map[string]any // the payloads that venus has received
	given  []string         // the turns that were abandoned

	mu     sync.Mutex
	script func(payload map[string]any, reply func(envelope.Type, any))
}

func newBench(t *testing.T, durable, keyed bool) *bench {
	t.Helper()
	h, err := hub.New(t.Context(), hub.Config{})
	if err != nil {
		t.Fatal(err)
	}
	n, err := node.Open(node.Options{Hub: h})
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t}
	t.Cleanup(func() {
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if err := h.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if b.sender, err = exchange.NewSender(n, "~sender", agent.L0); err != nil {
		t.Fatal(err)
	}
	var venus *parley.Agent
	joined := make(chan struct{})
	venus, err = n.Join(agent.Card{ID: "venus", Name: "Venus", Version: "1", Tier: agent.L2, Capabilities: []agent.Capability{}},
		func(ctx context.Context, e *envelope.Envelope) {
			<-joined
			var payload map[string]any
			if err := e.Unmarshal(&payload); err != nil {
				t.Error(err)
			}
			b.mu.Lock()
			b.asked = append(b.asked, payload)
			script := b.script
			b.mu.Unlock()
			script(payload, func(kind envelope.Type, answer any) {
				if fields, ok := answer.(map[string]any); ok && fields["of"] == nil && keyed {
					fields["of"] = e.ID
				}
				if _, err := venus.Reply(ctx, e, kind, answer); err != nil {
					t.Error(err)
				}
			})
		})
	if err != nil {
		t.Fatal(err)
	}
	close(joined)
	b.route = &exchange.Route{
		Agent: "venus", At: "office", Durable: durable, Hub: h,
		Contact: func() exchange.Contact { return exchange.Contact{Tier: agent.L2, Keyed: keyed, Ready: true} },
		Sender:  func(agent.Tier) *exchange.Sender { return b.sender },
		Chain:   func(chain []string) []string { return chain },
		Abandon: func(task string, _ int) { b.given = append(b.given, task) },
	}
	return b
}

// log is a handler that writes the events down.
type log struct {
	mu    sync.Mutex
	lines []string
}

func (l *log) Event(e runner.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch e := e.(type) {
	case runner.Shown:
		l.lines = append(l.lines, "shown")
	case runner.Progress:
		l.lines = append(l.lines, "progress "+e.Text)
	case runner.Notice:
		l.lines = append(l.lines, "notice "+e.Text)
	case runner.TextDelta:
		l.lines = append(l.lines, "text "+e.Text)
	case runner.Artifact:
		l.lines = append(l.lines, fmt.Sprintf("artifact %s %s %v %s", e.ID, e.Parts[0].Filename, e.Parts[0].Data(), e.Parts[0].Raw()))
	}
}

func (l *log) Permission(context.Context, runner.PermissionRequest) (runner.PermissionAnswer, error) {
	return runner.PermissionAnswer{}, context.Canceled
}

func (l *log) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

type fields = map[string]any

func (b *bench) turn(ctx context.Context, script func(fields, func(envelope.Type, any))) (runner.Outcome, string, error) {
	b.t.Helper()
	b.mu.Lock()
	b.script = script
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var l log
	s := b.route.Open("thread")
	out, err := s.Turn(ctx, runner.Turn{Parts: a2a.ContentParts{a2a.NewTextPart("do it")}, TaskID: "task", Number: 1, Chain: []string{"a"}}, &l)
	if cerr := s.Close(ctx); cerr != nil {
		b.t.Error(cerr)
	}
	return out, l.text(), err
}

func TestAnAnswerIsStreamed(t *testing.T) {
	b := newBench(t, true, true)
	b.route.Describe = func(_ context.Context, _ runner.Turn, request map[string]any) { request["from"] = "somebody" }
	out, events, err := b.turn(t.Context(), func(asked fields, reply func(envelope.Type, any)) {
		if asked["text"] != "do it" || asked["key"] != "task" || asked["from"] != "somebody" || asked["over"] == nil {
			t.Errorf("asked %v", asked)
		}
		reply(envelope.StreamData, fields{"text": "of an earlier turn", "of": "another"})
		reply(envelope.StreamStart, fields{"state": "working"})
		for _, chunk := range []fields{
			{"status": "reading", "percent": 10}, {"text": "did "}, {"text": "it"}, {"data": fields{"n": 1}, "artifactId": "data"},
			{"file": "a", "size": 3, "bytes": []byte("ab"), "artifactId": "file-1"}, {"file": "a", "size": 3, "bytes": []byte("c"), "artifactId": "file-1"},
			{"file": "b", "size": 1, "bytes": []byte("abc")}, {"file": "c"},
		} {
			reply(envelope.StreamData, chunk)
		}
		reply(envelope.StreamEnd, fields{"state": "completed", "messageId": "m"})
	})
	if err != nil || out.Status != runner.OutcomeCompleted || out.Text != "did it" || out.MessageID != "m" {
		t.Errorf("%+v, %v", out, err)
	}
	want := `shown
progress reading
text did 
text it
artifact data  map[n:1] 
artifact file-1 a <nil> abc
notice the file b stays at the other hub
notice the file c stays at the other hub`
	if events != want {
		t.Errorf("the events are\n%s", events)
	}
}

func TestAnswersEndTurns(t *testing.T) {
	for name, c := range map[string]struct {
		kind   envelope.Type
		answer any
		status runner.OutcomeStatus
		text   string
		code   runner.Code
	}{
		"question":        {envelope.StreamEnd, fields{"state": "input-required", "text": "which?"}, runner.OutcomeInputRequired, "which?", ""},
		"canceled":        {envelope.StreamEnd, fields{"state": "canceled"}, runner.OutcomeCanceled, "", ""},
		"failed":          {envelope.StreamEnd, fields{"state": "failed", "messageId": strings.Repeat("m", 200)}, runner.OutcomeFailed, "", runner.CodeAgent},
		"canceled there":  {envelope.StreamEnd, fields{"state": "failed", "error": fields{"message": "x", "state": "canceled"}}, runner.OutcomeCanceled, "", ""},
		"refused":         {envelope.StreamEnd, fields{"state": "rejected", "error": fields{"message": "no", "state": "rejected"}}, runner.OutcomeRejected, "no", ""},
		"refused, remedy": {envelope.ErrorMessage, fields{"message": "no; ask", "cause": "rejected", "remedy": "ask"}, runner.OutcomeRejected, "no", "rejected"},
		"no credentials":  {envelope.ErrorMessage, fields{"message": "log in", "state": "auth-required"}, runner.OutcomeAuthRequired, "", runner.CodeAuth},
		"no message":      {envelope.ErrorMessage, fields{}, runner.OutcomeFailed, "", runner.CodeAgent},
		"no answer":       {envelope.StreamEnd, fields{"state": 5}, runner.OutcomeFailed, "", runner.CodeProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			out, _, err := newBench(t, false, true).turn(t.Context(), func(_ fields, reply func(envelope.Type, any)) {
				reply(envelope.StreamStart, fields{"state": "submitted"})
				reply(c.kind, c.answer)
			})
			if out.Status != c.status || out.Text != c.text || runner.CodeOf(err) != c.code || out.MessageID != "" {
				t.Errorf("%+v, %v", out, err)
			}
		})
	}
}

// A request with a key is repeated when the agent cannot take it now, when its answers are lost and when it is asked again;
// the text then comes whole.
func TestARequestIsRepeated(t *testing.T) {
	b := newBench(t, true, true)
	turn := 0
	out, _, err := b.turn(t.Context(), func(_ fields, reply func(envelope.Type, any)) {
		turn++
		switch turn {
		case 1:
			reply(envelope.ErrorMessage, fields{"code": "UNAVAILABLE", "message": "later"})
		case 2:
			reply(envelope.StreamStart, fields{"state": "working"})
			reply(envelope.StreamData, fields{"text": "one"})
			b.sender.CloseAnswers("venus")
		case 3:
			reply(envelope.StreamStart, fields{"state": "working", "resumed": true})
			b.sender.AskAgain("mars")
			b.sender.AskAgain("venus")
		default:
			reply(envelope.StreamStart, fields{"state": "working", "resumed": true})
			reply(envelope.StreamData, fields{"text": "one, two"})
			reply(envelope.StreamEnd, fields{"state": "completed"})
		}
	})
	if err != nil || out.Text != "one, two" || len(b.asked) < 4 {
		t.Errorf("%+v, %v, %d", out, err, len(b.asked))
	}
}

// The answer to a request without a key is lost with the connection.
func TestWithoutAKeyAnAnswerCanBeLost(t *testing.T) {
	b := newBench(t, false, false)
	out, _, err := b.turn(t.Context(), func(_ fields, reply func(envelope.Type, any)) {
		reply(envelope.StreamStart, fields{})
		b.sender.AskAgain("venus") // changes nothing
		b.sender.CloseAnswers("venus")
	})
	if out.Status != runner.OutcomeFailed || runner.CodeOf(err) != runner.CodeProtocol {
		t.Errorf("%+v, %v", out, err)
	}
	b.route.Agent = "nobody"
	if _, _, err := b.turn(t.Context(), nil); runner.CodeOf(err) != runner.CodeAgent {
		t.Error(err)
	}
	b.route.Sender = func(agent.Tier) *exchange.Sender { return nil }
	if _, _, err := b.turn(t.Context(), nil); runner.CodeOf(err) != runner.CodeConfig {
		t.Error(err)
	}
}

// A canceled turn is canceled at the agent, and abandoned if that does not confirm it.
func TestATurnIsCanceled(t *testing.T) {
	for name, confirms := range map[string]bool{"confirmed": true, "not confirmed": false} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, true, true)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var answer func(envelope.Type, any)
			out, _, err := b.turn(ctx, func(asked fields, reply func(envelope.Type, any)) {
				switch {
				case asked["cancel"] == nil:
					answer = reply
					reply(envelope.StreamStart, fields{"state": "working"})
					cancel()
				case asked["key"] != "task" || asked["turn"] != 1.0:
					t.Errorf("canceled %v", asked)
				case confirms:
					answer(envelope.StreamEnd, fields{"state": "canceled"})
				default:
					b.sender.CloseAnswers("venus")
				}
			})
			if err != nil || out.Status != runner.OutcomeCanceled || confirms == (len(b.given) > 0) {
				t.Errorf("%+v, %v", out, err)
			}
		})
	}
}

// A durable agent is asked when it can be reached, and the sender is told that the task waits, once; a turn that is canceled before
// is abandoned.
func TestADurableAgentIsWaitedFor(t *testing.T) {
	b := newBench(t, true, true)
	ready := make(chan struct{})
	b.route.Contact = func() exchange.Contact {
		select {
		case <-ready:
			return exchange.Contact{Tier: agent.L2, Keyed: true, Ready: true}
		default:
			close(ready) // the next time
			return exchange.Contact{Tier: agent.L2, Keyed: true}
		}
	}
	out, events, err := b.turn(t.Context(), func(_ fields, reply func(envelope.Type, any)) {
		reply(envelope.StreamStart, fields{})
		reply(envelope.StreamEnd, fields{"state": "completed"})
	})
	if err != nil || out.Status != runner.OutcomeCompleted || strings.Count(events, "is not connected: the task waits for it") != 1 {
		t.Errorf("%+v, %v; %s", out, err, events)
	}
	ctx, cancel := context.WithCancel(t.Context())
	b.route.Contact = func() exchange.Contact { cancel(); return exchange.Contact{Tier: agent.L2, Keyed: true} }
	if out, _, err := b.turn(ctx, nil); err != nil || out.Status != runner.OutcomeCanceled || len(b.given) != 1 {
		t.Errorf("%+v, %v, abandoned %v", out, err, b.given)
	}
}
