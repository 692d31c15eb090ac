package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	hubcards "github.com/parleyhub/parley/discovery/hub"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/federation/node"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/negotiation"
	"github.com/parleyhub/parley/registry"
	"github.com/parleyhub/parley/router"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/websocket"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// actor is an agent in this process whose prompts name what it does.
type actor struct {
	probe   func() runner.Probe
	started chan struct{} // receives a value when a turn waits for its cancellation
	turns   chan string   // the prompts of started turns
	paid    atomic.Bool   // it works on prompts that begin with strike
}

func newActor() *actor {
	return &actor{
		probe:   func() runner.Probe { return runner.Probe{Stage: runner.StageAuthenticated, Version: "7.1\n(build 3)"} },
		started: make(chan struct{}, 16), turns: make(chan string, 256),
	}
}

func (a *actor) Probe(context.Context) runner.Probe { return a.probe() }

func (a *actor) Open(runner.SessionSpec) (runner.Session, error) { return session{a}, nil }

type session struct{ a *actor }

func (s session) Close(context.Context) error { return nil }

func (s session) Turn(ctx context.Context, t runner.Turn, h runner.Handler) (runner.Outcome, error) {
	prompt, err := runner.PromptText(t.Parts, 1<<20)
	if err != nil {
		return runner.Outcome{Status: runner.OutcomeFailed}, err
	}
	s.a.turns <- prompt
	word, rest, _ := strings.Cut(prompt, ":")
	switch word {
	case "strike":
		if s.a.paid.Load() {
			break
		}
		fallthrough
	case "fail":
		return runner.Outcome{Status: runner.OutcomeFailed}, &runner.Error{Code: runner.CodeAgent, Message: "the model is on strike", Remedy: "pay it"}
	case "hang":
		s.a.started <- struct{}{}
		<-ctx.Done()
		return runner.Outcome{Status: runner.OutcomeCanceled}, nil
	case "ask":
		return runner.Outcome{Status: runner.OutcomeInputRequired, Text: "which one?"}, nil
	case "long":
		text := strings.Repeat("ä", 150<<10) // 300 KiB
		h.Event(runner.TextDelta{Text: text})
		return runner.Outcome{Status: runner.OutcomeCompleted, Text: text}, nil
	case "words":
		for w := range strings.FieldsSeq(rest) {
			h.Event(runner.TextDelta{Text: w + " "})
		}
		return runner.Outcome{Status: runner.OutcomeCompleted, Text: strings.Join(strings.Fields(rest), " ") + " "}, nil
	}
	return runner.Outcome{Status: runner.OutcomeCompleted, Text: "did " + prompt}, nil
}

func definition(id string, change func(*runner.Definition)) runner.Definition {
	d := runner.Definition{ID: id, Driver: runner.DriverEcho, Capabilities: []runner.Capability{{ID: "work"}, {ID: "work." + id}}}
	if change != nil {
		change(&d)
	}
	d, err := d.Complete()
	if err != nil {
		panic(err)
	}
	return d
}

// auditor records events.
type auditor struct {
	refused chan telemetry.Event // security events

	mu     sync.Mutex
	events []telemetry.Event
}

func (a *auditor) Append(e telemetry.Event, _ *envelope.Envelope) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.events = append(a.events, e)
	if e.Type == telemetry.Security {
		a.refused <- e
	}
	return nil
}

func (a *auditor) find(t telemetry.EventType) []telemetry.Event {
	a.mu.Lock()
	defer a.mu.Unlock()
	var found []telemetry.Event
	for _, e := range a.events {
		if e.Type == t {
			found = append(found, e)
		}
	}
	return found
}

// rig is a hub whose node is served over HTTP.
type rig struct {
	hub   *hub.Hub
	node  *node.Node
	url   string
	audit *auditor
}

func newRig(t *testing.T, o node.Options, cfg hub.Config) *rig {
	t.Helper()
	h, err := hub.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{hub: h, audit: &auditor{refused: make(chan telemetry.Event, 100)}}
	o.Hub, o.Audit, o.Version = h, r.audit, "9.9"
	if r.node, err = node.Open(o); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	r.node.Mount(mux.Handle)
	srv := httptest.NewServer(mux)
	r.url = srv.URL
	if err := r.node.Announce(srv.URL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := errors.Join(h.Close(context.Background()), r.node.Close(context.Background()), r.node.Close(context.Background()))
		srv.Close()
		if err != nil {
			t.Error(err)
		}
	})
	return r
}

// simple returns a rig with one agent, "mars", and the actor behind it.
func simple(t *testing.T) (*rig, *actor) {
	t.Helper()
	a := newActor()
	return newRig(t, node.Options{}, hub.Config{Agents: []hub.Agent{{Definition: definition("worker", nil), Runner: a}}}), a
}

// peer is a node of the library with one agent.
type peer struct {
	*parley.Agent
	node *parley.Node
	got  chan *envelope.Envelope
}

func (r *rig) peer(t *testing.T, card agent.Card) *peer {
	t.Helper()
	n, err := parley.New(parley.Options{
		// Both ends have addressing rules; this node's allow every sender.
		Router: router.Options{Sandbox: &router.SandboxConfig{Enforced: false}},
		Channels: channel.Options{
			Dialers: map[agent.Transport]transport.Dialer{agent.TransportWebSocket: &websocket.Dialer{}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{node: n, got: make(chan *envelope.Envelope, 256)}
	t.Cleanup(func() {
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := n.Registry().EnableDiscovery("hub", &hubcards.Source{URL: r.url, Interval: 20 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if p.Agent, err = n.Join(card, func(_ context.Context, e *envelope.Envelope) { p.got <- e }); err != nil {
		t.Fatal(err)
	}
	return p
}

func remoteProgram(tier agent.Tier, sandbox string) agent.Card {
	return agent.Card{ID: "visitor", Name: "Visitor", Version: "1", Tier: tier, SandboxID: sandbox, Capabilities: []agent.Capability{}}
}

func (p *peer) send(t *testing.T, to string, kind envelope.Type, payload any) {
	t.Helper()
	if _, err := p.Send(t.Context(), to, kind, payload); err != nil {
		t.Fatal(err)
	}
}

func (p *peer) next(t *testing.T, want envelope.Type, into any) *envelope.Envelope {
	t.Helper()
	select {
	case e := <-p.got:
		if e.Type != want {
			t.Fatalf("got a %s, want a %s: %s", e.Type, want, e.Payload)
		}
		if into != nil {
			if err := e.Unmarshal(into); err != nil {
				t.Fatal(err)
			}
		}
		return e
	case <-time.After(30 * time.Second):
		t.Fatalf("no %s arrived", want)
		return nil
	}
}

// try sends a prompt to an agent until the answer is a success.
func (p *peer) try(t *testing.T, to, prompt string) {
	t.Helper()
	for late := time.After(30 * time.Second); ; {
		p.send(t, to, envelope.Request, prompt)
		select {
		case e := <-p.got:
			if e.Type == envelope.Response {
				return
			}
		case <-late:
			t.Fatalf("%s does not answer", to)
		}
	}
}

type reply struct {
	State, TaskID, ContextID, Text string
	Truncated                      bool
	Code, Message, Remedy, Cause   string
	Error                          *reply
}

// A request runs a task, and the answer is in the request's thread and trace (Req 2.4).
func TestARequestRunsATaskAndIsAnswered(t *testing.T) {
	r, _ := simple(t)
	p := r.peer(t, remoteProgram(agent.L3, ""))
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	e, err := envelope.NewFactory(agent.Identity{ID: "visitor", Tier: agent.L3}).New("worker", envelope.Request, "dig")
	if err != nil {
		t.Fatal(err)
	}
	e = e.With(func(e *envelope.Envelope) { e.Metadata.TraceParent = trace })
	if _, err := p.SendEnvelope(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	var got reply
	answer := p.next(t, envelope.Response, &got)
	if answer.Sender != "worker" || answer.CorrelationID != e.ID || answer.Metadata.TraceParent != trace {
		t.Errorf("answer %+v %+v", answer, answer.Metadata)
	}
	if got.State != "completed" || got.Text != "did dig" {
		t.Errorf("%+v", got)
	}
	task, err := r.hub.Task(t.Context(), a2a.TaskID(got.TaskID), nil)
	if err != nil {
		t.Fatal(err)
	}
	if s := hub.SenderOf(task.Metadata); s != (hub.Sender{Kind: hub.SenderProgram, ID: "visitor"}) {
		t.Errorf("the task is of %s", s)
	}
	about, _ := task.Metadata["envelope"].(map[string]any)
	if task.ContextID != got.ContextID || about["id"] != e.ID || about["sender"] != "visitor" || about["traceparent"] != trace {
		t.Errorf("the task's metadata: %v", task.Metadata)
	}
}

func TestPayloadsOfARequest(t *testing.T) {
	r, a := simple(t)
	p := r.peer(t, remoteProgram(agent.L3, ""))
	for _, tc := range []struct{ payload, prompt, code string }{
		{payload: `"dig"`, prompt: "dig"},
		{payload: `{"text":"dig","timeoutMs":1000,"more":1}`, prompt: "dig"},
		{payload: `{"text":"dig","data":{"deep":9007199254740993}}`, prompt: "9007199254740993"},
		{payload: `{"question":1}`, prompt: `"question": 1`},
		{payload: `[1,2]`, prompt: "1"},
		{payload: `null`, code: "INVALID_PAYLOAD"},
		{payload: `"  "`, code: "INVALID_PAYLOAD"},
		{payload: `{"text":""}`, code: "INVALID_PAYLOAD"},
		{payload: `{"text":5}`, code: "INVALID_PAYLOAD"},
		{payload: `{"text":"x","timeoutMs":-1}`, code: "INVALID_PAYLOAD"},
		{payload: `{"text":"x","over":[""]}`, code: "INVALID_PAYLOAD"},
		{payload: `{"text":"x","over":["` + strings.Repeat("a", 257) + `"]}`, code: "INVALID_PAYLOAD"},
		{payload: `{"text":"x","over":[` + strings.Repeat(`"a",`, 16) + `"a"]}`, code: "INVALID_PAYLOAD"},
		{payload: `{"text":"x","stream":"yes"}`, code: "INVALID_PAYLOAD"},
	} {
		p.send(t, "worker", envelope.Request, json.RawMessage(tc.payload))
		var got reply
		if tc.code != "" {
			if p.next(t, envelope.ErrorMessage, &got); got.Code != tc.code || got.Message == "" {
				t.Errorf("%s: %+v", tc.payload, got)
			}
			continue
		}
		p.next(t, envelope.Response, &got)
		if prompt := <-a.turns; !strings.Contains(prompt, tc.prompt) {
			t.Errorf("%s: the agent's prompt was %q", tc.payload, prompt)
		}
	}
}

func TestATaskThatFailsIsAnError(t *testing.T) {
	r, _ := simple(t)
	p := r.peer(t, remoteProgram(agent.L3, ""))
	p.send(t, "worker", envelope.Request, "fail:")
	var got reply
	p.next(t, envelope.ErrorMessage, &got)
	if got.Code != "TASK_FAILED" || got.State != "failed" || !strings.Contains(got.Message, "strike") || got.Remedy != "pay it" || got.Cause == "" || got.TaskID == "" {
		t.Errorf("%+v", got)
	}
}

type piece struct {
	ArtifactID, Text, Status string
	Append                   bool
}

// collect reads a stream to its end and returns its whole text.
func (p *peer) collect(t *testing.T) (string, reply) {
	t.Helper()
	p.next(t, envelope.StreamStart, nil)
	var text strings.Builder
	for {
		select {
		case e := <-p.got:
			switch e.Type {
			case envelope.StreamData:
				var c piece
				if err := e.Unmarshal(&c); err != nil {
					t.Fatal(err)
				}
				if c.ArtifactID != "" && !c.Append {
					text.Reset()
				}
				text.WriteString(c.Text)
			case envelope.StreamEnd:
				var end reply
				if err := e.Unmarshal(&end); err != nil {
					t.Fatal(err)
				}
				return text.String(), end
			default:
				t.Fatalf("%s in a stream", e.Type)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("the stream has not ended")
		}
	}
}

func TestAStreamHasTheWholeAnswer(t *testing.T) {
	r, _ := simple(t)
	p := r.peer(t, remoteProgram(agent.L3, ""))
	for prompt, want := range map[string]string{"words: a b c d": "a b c d ", "dig": "did dig", "long:": strings.Repeat("ä", 150<<10)} {
		p.send(t, "worker", envelope.Request, map[string]any{"text": prompt, "stream": true})
		text, end := p.collect(t)
		if text != want || end.State != "completed" || end.TaskID == "" || end.Error != nil {
			t.Errorf("%s: %d bytes, %+v", prompt, len(text), end)
		}
	}
	p.send(t, "worker", envelope.Request, map[string]any{"text": "fail:", "stream": true})
	if _, end := p.collect(t); end.State != "failed" || end.Error == nil || end.Error.Code != "TASK_FAILED" {
		t.Errorf("%+v", end)
	}
	p.send(t, "worker", envelope.Request, map[string]any{"text": "ask:", "stream": true})
	if _, end := p.collect(t); end.State != "input-required" || end.Text != "which one?" {
		t.Errorf("%+v", end)
	}
}

func TestALongAnswerIsMarkedAsTruncated(t *testing.T) {
	r, _ := simple(t)
	p := r.peer(t, remoteProgram(agent.L3, ""))
	p.send(t, "worker", envelope.Request, "long:")
	var got reply
	if p.next(t, envelope.Response, &got); !got.Truncated || !strings.HasPrefix(strings.Repeat("ä", 150<<10), got.Text) || len(got.Text) < 64<<10 {
		t.Errorf("%d bytes, %v", len(got.Text), got.Truncated)
	}
}

// A request in the thread of a question is the question's answer. A thread is one conversation and belongs to its
// sender.
func TestAThreadIsAConversation(t *testing.T) {
	r, _ := simple(t)
	p := r.peer(t, remoteProgram(agent.L3, ""))
	p.send(t, "worker", envelope.Request, "ask:")
	var question, answer reply
	e := p.next(t, envelope.Response, &question)
	if question.State != "input-required" || question.Text != "which one?" {
		t.Fatalf("%+v", question)
	}
	if _, err := p.Reply(t.Context(), e, envelope.Request, "the red one"); err != nil {
		t.Fatal(err)
	}
	e = p.next(t, envelope.Response, &answer)
	if answer.TaskID != question.TaskID || answer.Text != "did the red one" {
		t.Errorf("%+v after %+v", answer, question)
	}
	if _, err := p.Reply(t.Context(), e, envelope.Request, "another"); err != nil {
		t.Fatal(err)
	}
	if p.next(t, envelope.Response, &answer); answer.TaskID == question.TaskID || answer.ContextID != question.ContextID {
		t.Errorf("%+v", answer)
	}
	other := remoteProgram(agent.L3, "")
	other.ID = "stranger"
	q := r.peer(t, other)
	if _, err := q.Reply(t.Context(), e, envelope.Request, "mine"); err != nil {
		t.Fatal(err)
	}
	if q.next(t, envelope.Response, &answer); answer.ContextID == question.ContextID {
		t.Error("another agent joined the conversation")
	}
}

func TestANotificationCancels(t *testing.T) {
	r, a := simple(t)
	p := r.peer(t, remoteProgram(agent.L3, ""))
	for _, payload := range []any{"hang:", map[string]any{"text": "hang:", "stream": true}} {
		res, err := envelope.NewFactory(agent.Identity{ID: "visitor", Tier: agent.L3}).New("worker", envelope.Request, payload)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.SendEnvelope(t.Context(), res); err != nil {
			t.Fatal(err)
		}
		<-a.started
		stop, err := envelope.NewFactory(agent.Identity{ID: "visitor", Tier: agent.L3}).NewInThread(res.ID, "worker", envelope.Notification, map[string]bool{"cancel": true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.SendEnvelope(t.Context(), stop); err != nil {
			t.Fatal(err)
		}
		if payload == "hang:" {
			var got reply
			if p.next(t, envelope.ErrorMessage, &got); got.Code != "TASK_CANCELED" || got.State != "canceled" {
				t.Errorf("%+v", got)
			}
			continue
		}
		if _, end := p.collect(t); end.State != "canceled" || end.Error == nil || end.Error.Code != "TASK_CANCELED" {
			t.Errorf("%+v", end)
		}
	}
}

// Only requests and proposals run tasks.
func TestOtherEnvelopesRunNoTask(t *testing.T) {
	r, a := simple(t)
	p := r.peer(t, remoteProgram(agent.L3, ""))
	for _, kind := range envelope.Types() {
		if kind != envelope.Request && kind != envelope.TaskProposal {
			p.send(t, "worker", kind, "dig")
		}
	}
	p.send(t, "worker", envelope.Request, "last")
	p.next(t, envelope.Response, nil)
	if first := <-a.turns; first != "last" {
		t.Errorf("%q ran", first)
	}
}

func proposalFor(capabilities ...string) map[string]any {
	return map[string]any{"taskDescription": "dig", "requiredCapabilities": append([]string{}, capabilities...), "estimatedComplexity": "simple", "deadlineMs": 60000}
}

// Req 7.2, 7.3, 7.5: an acceptance has agent and time, a rejection has a reason and an alternative agent, and all are
// in one thread.
func TestProposals(t *testing.T) {
	a, b := newActor(), newActor()
	r := newRig(t, node.Options{}, hub.Config{Agents: []hub.Agent{{Definition: definition("worker", nil), Runner: a}, {Definition: definition("digger", nil), Runner: b}}})
	p := r.peer(t, remoteProgram(agent.L3, ""))
	p.send(t, "worker", envelope.TaskProposal, proposalFor("work", "work.worker"))
	var yes struct {
		AgentID, TaskID       string
		EstimatedCompletionMs int64
	}
	accept := p.next(t, envelope.TaskAccept, &yes)
	var done reply
	response := p.next(t, envelope.Response, &done)
	if yes.AgentID != "worker" || yes.EstimatedCompletionMs <= 0 || yes.TaskID != done.TaskID || done.Text != "did dig" || accept.CorrelationID != response.CorrelationID || accept.CorrelationID == "" {
		t.Errorf("%+v, %+v", yes, done)
	}

	shapeless := proposalFor()
	delete(shapeless, "estimatedComplexity")
	for _, tc := range []struct {
		payload       any
		code, instead string
	}{
		{proposalFor("work.digger"), "missing-capability", "digger"},
		{proposalFor("work.nobody"), "missing-capability", ""},
		{shapeless, "invalid-proposal", ""},
		{"dig", "invalid-proposal", ""},
	} {
		p.send(t, "worker", envelope.TaskProposal, tc.payload)
		var no negotiation.Answer
		p.next(t, envelope.TaskReject, &no)
		if no.AgentID != "worker" || string(no.RejectionReason) != tc.code || no.Message == "" || no.ProposalID == "" || no.AlternativeSuggestion != tc.instead {
			t.Errorf("%v: %+v", tc.payload, no)
		}
	}
}

// An agent that has never negotiated refuses what it has not proposed.
func TestAnAcceptanceThatNobodyAskedForIsRefused(t *testing.T) {
	r, _ := simple(t)
	p := r.peer(t, remoteProgram(agent.L3, ""))
	for range 2 {
		p.send(t, "worker", envelope.TaskAccept, negotiation.Answer{ProposalID: "p-1", AgentID: "visitor", EstimatedCompletionMs: 1})
		var refusal negotiation.Refusal
		p.next(t, envelope.ErrorMessage, &refusal)
		if refusal.ProposalID != "p-1" || refusal.Code != negotiation.CodeNotFound {
			t.Errorf("%+v", refusal)
		}
	}
}

// negotiate has a peer negotiate with the library's own Negotiator.
func (p *peer) negotiate(t *testing.T, o negotiation.Options) *negotiation.Negotiator {
	t.Helper()
	n, err := negotiation.New(p.node.Router(), p.ID(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func termsOf(task string, capabilities ...string) negotiation.Terms {
	return negotiation.Terms{TaskDescription: task, RequiredCapabilities: capabilities, EstimatedComplexity: negotiation.Simple,
		Deadline: time.Minute, Input: json.RawMessage(`{"deep":9007199254740993}`)}
}

// Req 7.1 to 7.3 and 7.5: a Negotiator of another node proposes to an agent of
// the hub, and understands its answers.
func TestANegotiatorOfAnotherNodeProposesToTheHubsAgents(t *testing.T) {
	a, b := newActor(), newActor()
	r := newRig(t, node.Options{}, hub.Config{Agents: []hub.Agent{{Definition: definition("worker", nil), Runner: a}, {Definition: definition("digger", nil), Runner: b}}})
	p := r.peer(t, remoteProgram(agent.L3, ""))
	n := p.negotiate(t, negotiation.Options{})

	asked, err := n.Propose(t.Context(), "worker", termsOf("dig", "work"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := n.Wait(t.Context(), asked.ID)
	if err != nil {
		t.Fatal(err)
	}
	if got.Status != negotiation.Accepted || got.AcceptedBy != "worker" || got.EstimatedCompletionMs < 1 {
		t.Errorf("%+v", got)
	}
	p.next(t, envelope.TaskAccept, nil)
	if done := p.next(t, envelope.Response, nil); done.CorrelationID != asked.CorrelationID {
		t.Errorf("the answer is in thread %q, want %q", done.CorrelationID, asked.CorrelationID)
	}
	if prompt := <-a.turns; !strings.HasPrefix(prompt, "dig") || !strings.Contains(prompt, "9007199254740993") {
		t.Errorf("the agent's prompt was %q", prompt)
	}

	if asked, err = n.Propose(t.Context(), "worker", termsOf("dig", "work.digger")); err != nil {
		t.Fatal(err)
	}
	if got, err = n.Wait(t.Context(), asked.ID); err != nil {
		t.Fatal(err)
	}
	if got.Status != negotiation.Rejected || got.RejectionReason != negotiation.MissingCapability || got.RejectionMessage == "" || got.AlternativeSuggestion != "digger" {
		t.Errorf("%+v", got)
	}
}

// The proposer decides whether an acceptance is in time, whatever the timestamp of its envelope. If it refuses the
// acceptance as too late, the task is canceled.
func TestATaskThatWasAcceptedTooLateIsEnded(t *testing.T) {
	r, a := simple(t)
	p := r.peer(t, remoteProgram(agent.L3, ""))
	payload := proposalFor()
	payload["proposalId"], payload["taskDescription"] = "p1", "hang: until the end"
	old, err := envelope.NewFactory(agent.Identity{ID: "visitor", Tier: agent.L3}).WithClock(func() time.Time { return time.Now().Add(-time.Hour) }).
		New("worker", envelope.TaskProposal, payload)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.SendEnvelope(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	<-a.started
	accept := p.next(t, envelope.TaskAccept, nil)
	if _, err := p.Reply(t.Context(), accept, envelope.ErrorMessage, negotiation.Refusal{ProposalID: "p1", Code: negotiation.CodeTimeout, Message: "too late"}); err != nil {
		t.Fatal(err)
	}
	var failed reply
	if p.next(t, envelope.ErrorMessage, &failed); failed.Code != "TASK_CANCELED" {
		t.Errorf("%+v", failed)
	}
}

// Only the proposer can withdraw its proposal, and only in the proposal's thread.
func TestOthersCannotEndTheTaskOfAProposal(t *testing.T) {
	r, a := simple(t)
	p := r.peer(t, remoteProgram(agent.L3, ""))
	n := p.negotiate(t, negotiation.Options{})
	asked, err := n.Propose(t.Context(), "worker", termsOf("hang: until the end"))
	if err != nil {
		t.Fatal(err)
	}
	<-a.started
	p.next(t, envelope.TaskAccept, nil)
	refusal := negotiation.Refusal{ProposalID: asked.ID, Code: negotiation.CodeTimeout}
	card := remoteProgram(agent.L3, "")
	card.ID = "stranger"
	stranger := r.peer(t, card)
	for _, from := range []*peer{p, stranger} { // in another thread, and by another agent
		e, err := envelope.New(from.ID(), "worker", envelope.ErrorMessage, refusal)
		if err != nil {
			t.Fatal(err)
		}
		if from == stranger {
			e.CorrelationID = asked.CorrelationID
		}
		if _, err := from.SendEnvelope(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	// Later requests on the same channels are answered, so the withdrawals were handled.
	stranger.send(t, "worker", envelope.Request, nil)
	stranger.next(t, envelope.ErrorMessage, nil)
	p.send(t, "worker", envelope.Request, nil)
	var failed reply
	if p.next(t, envelope.ErrorMessage, &failed); failed.Code != "INVALID_PAYLOAD" {
		t.Errorf("%+v", failed)
	}
	page, err := r.hub.Tasks(t.Context(), hub.TaskQuery{AgentID: "worker"})
	if err != nil || len(page.Tasks) != 1 || page.Tasks[0].Status.State.Terminal() {
		t.Errorf("%v, %+v", err, page.Tasks)
	}
}

// A proposal that is received twice runs one task.
func TestAProposalThatIsRepeatedIsOneTask(t *testing.T) {
	r, a := simple(t)
	p := r.peer(t, remoteProgram(agent.L3, ""))
	payload := proposalFor()
	payload["proposalId"], payload["taskDescription"] = "p1", "hang: until the end"
	for range 2 {
		p.send(t, "worker", envelope.TaskProposal, payload)
	}
	p.next(t, envelope.TaskAccept, nil)
	<-a.started
	p.send(t, "worker", envelope.Request, nil)
	p.next(t, envelope.ErrorMessage, nil) // a second acceptance would arrive before it
	page, err := r.hub.Tasks(t.Context(), hub.TaskQuery{AgentID: "worker"})
	if err != nil || len(page.Tasks) != 1 {
		t.Errorf("%v, %d tasks", err, len(page.Tasks))
	}
}

// Log records about a peer's invalid envelopes are rate-limited.
func TestPeersCannotFillTheLog(t *testing.T) {
	var lines atomic.Int64
	logger := slog.New(slog.NewTextHandler(writer(func(p []byte) { lines.Add(1) }), &slog.HandlerOptions{Level: slog.LevelWarn}))
	r := newRig(t, node.Options{Logger: logger}, hub.Config{Agents: []hub.Agent{{Definition: definition("worker", nil), Runner: newActor()}}})
	card, err := agent.Encode(remoteProgram(agent.L3, ""))
	if err != nil {
		t.Fatal(err)
	}
	m := channel.NewManager(channel.Options{
		Dialers:   map[agent.Transport]transport.Dialer{agent.TransportWebSocket: &websocket.Dialer{}},
		Introduce: func(string) json.RawMessage { return card },
	}, nil)
	defer m.Close()
	at, err := hubcards.Endpoint(r.url)
	if err != nil {
		t.Fatal(err)
	}
	c, err := m.OpenAt(t.Context(), "visitor", "worker", at)
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		e, err := envelope.New("visitor", "nobody", envelope.Request, "x")
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Send(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := lines.Load(); n < 1 || n > 100 {
		t.Errorf("the log has %d lines", n)
	}
}

type writer func([]byte)

func (w writer) Write(p []byte) (int, error) {
	w(p)
	return len(p), nil
}

// A peer whose tier is above the hub's limit is refused.
func TestPeersNeedAnAllowedTier(t *testing.T) {
	a := newActor()
	agents := []hub.Agent{{Definition: definition("worker", nil), Runner: a}}
	r := newRig(t, node.Options{}, hub.Config{Agents: agents})
	p := r.peer(t, remoteProgram(agent.L0, ""))
	at, err := hubcards.Endpoint(r.url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.node.Connect(t.Context(), "visitor", "worker", at); err == nil || !strings.Contains(err.Error(), "node.peerTier") {
		t.Errorf("connected: %v", err)
	}
	if refused := r.audit.find(telemetry.Security); len(refused) == 0 {
		t.Error("the refusal is not in the audit log")
	}
	open := newRig(t, node.Options{PeerTier: agent.L0}, hub.Config{Agents: agents})
	q := open.peer(t, remoteProgram(agent.L0, ""))
	q.send(t, "worker", envelope.Request, "dig")
	q.next(t, envelope.Response, nil)
}

// A peer cannot use the id of one of the hub's agents.
func TestAPeerCannotImpersonateAnAgentOfTheHub(t *testing.T) {
	r, a := simple(t)
	n, err := parley.New(parley.Options{Channels: channel.Options{
		Dialers: map[agent.Transport]transport.Dialer{agent.TransportWebSocket: &websocket.Dialer{}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close(context.Background()) //nolint:errcheck // at the end of the test
	card := remoteProgram(agent.L3, "")
	card.ID = "worker"
	if _, err := n.Join(card, func(context.Context, *envelope.Envelope) {}); err != nil {
		t.Fatal(err)
	}
	at, err := hubcards.Endpoint(r.url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Connect(t.Context(), "worker", "worker", at); err == nil {
		t.Error("the impostor was accepted")
	}
	if len(a.turns) != 0 || len(r.audit.find(telemetry.Security)) == 0 {
		t.Error("a task ran, or the audit log does not have it")
	}
}

// An agent in a sandbox runs no tasks for agents that it may not answer (Req 10.1, 10.2), and the refusal is in the
// audit log.
func TestAnAgentThatMayNotAnswerDoesNotWork(t *testing.T) {
	a := newActor()
	agents := []hub.Agent{
		{Definition: definition("worker", func(d *runner.Definition) { d.Sandbox = "cell" }), Runner: a},
		{Definition: definition("free", nil), Runner: newActor()},
	}
	r := newRig(t, node.Options{}, hub.Config{Agents: agents})
	p := r.peer(t, remoteProgram(agent.L3, ""))
	at, err := hubcards.Endpoint(r.url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.node.Connect(t.Context(), "visitor", "worker", at); err == nil || !strings.Contains(err.Error(), "could not answer") {
		t.Errorf("connected: %v", err)
	}
	if e := <-r.audit.refused; e.Code != parley.CodePeerRefused || e.Recipient != "worker" || e.Sender != "visitor" {
		t.Errorf("%+v", e)
	}

	// The peer changes its card, on its open channel.
	turncoat := remoteProgram(agent.L3, "cell")
	turncoat.ID = "turncoat"
	c := r.peer(t, turncoat)
	c.send(t, "worker", envelope.Request, "dig")
	c.next(t, envelope.Response, nil)
	if got := <-a.turns; got != "dig" {
		t.Errorf("the agent's prompt was %q", got)
	}
	turncoat.SandboxID = ""
	if _, err := c.node.Registry().Register(turncoat); err != nil {
		t.Fatal(err)
	}
	if _, err := c.node.Connect(t.Context(), "turncoat", "free", at); err != nil {
		t.Fatal(err)
	}
	c.send(t, "worker", envelope.Request, "dig deeper")
	if e := <-r.audit.refused; e.Code != "SANDBOX_VIOLATION" || e.Target != "worker" || e.Sender != "turncoat" {
		t.Errorf("%+v", e)
	}

	inside := remoteProgram(agent.L3, "cell")
	inside.ID = "inmate"
	q := r.peer(t, inside)
	q.send(t, "worker", envelope.Request, "dig")
	q.next(t, envelope.Response, nil)
	if first := <-a.turns; first != "dig" || len(a.turns) != 0 {
		t.Error("the refused task ran")
	}
	open := newRig(t, node.Options{CrossSandbox: []string{"visitor"}}, hub.Config{Agents: agents})
	s := open.peer(t, remoteProgram(agent.L3, ""))
	s.send(t, "worker", envelope.Request, "dig")
	s.next(t, envelope.Response, nil)
}

// await blocks until an agent's card fulfils wanted, and returns it.
func await(t *testing.T, reg *registry.Registry, id string, wanted func(agent.Card) bool) agent.Card {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	w := reg.Watch()
	defer w.Close()
	for {
		if card, err := reg.Get(id); err == nil && wanted(card) {
			return card
		}
		if _, err := w.Next(ctx); err != nil {
			t.Fatalf("the card of %s does not change: %v", id, err)
		}
	}
}

func offers(n int) func(agent.Card) bool {
	return func(c agent.Card) bool { return len(c.Capabilities) == n }
}

// The cards follow the agents' version, health, circuit, registration and removal, at the hub and at a peer.
func TestCardsFollowTheAgents(t *testing.T) {
	a := newActor()
	var mu sync.Mutex
	stage := runner.StageAuthenticated
	a.probe = func() runner.Probe {
		mu.Lock()
		defer mu.Unlock()
		return runner.Probe{Stage: stage, Version: "7.1\n(build 3)"}
	}
	r := newRig(t, node.Options{}, hub.Config{
		Agents:          []hub.Agent{{Definition: definition("worker", func(d *runner.Definition) { d.Name = "The Worker" }), Runner: a}},
		BreakerFailures: 2, BreakerPause: 50 * time.Millisecond, ProbeInterval: time.Hour,
	})
	p := r.peer(t, remoteProgram(agent.L3, ""))
	for _, reg := range []*registry.Registry{r.node.Registry(), p.node.Registry()} {
		card := await(t, reg, "worker", func(c agent.Card) bool { return c.Version == "7.1" && len(c.Endpoints) == 1 })
		if card.Name != "The Worker" || card.Tier != agent.L3 || len(card.Capabilities) != 2 || !strings.HasSuffix(card.Endpoints[0].Address, "/node") {
			t.Errorf("%+v", card)
		}
	}
	for range 2 { // the circuit opens, and allows a trial after its pause
		p.send(t, "worker", envelope.Request, "fail:")
		p.next(t, envelope.ErrorMessage, nil)
	}
	p.try(t, "worker", "dig")
	after := await(t, r.node.Registry(), "worker", offers(2))

	mu.Lock()
	stage = runner.StageMissing
	mu.Unlock()
	if _, err := r.hub.CheckHealth(t.Context(), "worker"); err != nil {
		t.Fatal(err)
	}
	for _, reg := range []*registry.Registry{r.node.Registry(), p.node.Registry()} {
		await(t, reg, "worker", offers(0))
		if card, err := reg.Get("worker"); err != nil || !node.Unavailable(card) || node.Unavailable(after) {
			t.Errorf("the card does not show that the agent is unavailable: %+v, %v", card, err)
		}
	}
	var got reply
	p.send(t, "worker", envelope.Request, "dig")
	if p.next(t, envelope.ErrorMessage, &got); got.Code != "UNAVAILABLE" || got.Remedy == "" {
		t.Errorf("%+v", got)
	}

	if err := r.hub.Register(hub.Agent{Definition: definition("late", nil), Runner: newActor()}); err != nil {
		t.Fatal(err)
	}
	await(t, p.node.Registry(), "late", offers(2))
	if err := r.hub.Deregister(t.Context(), "late"); err != nil {
		t.Fatal(err)
	}
	w := p.node.Registry().Watch()
	defer w.Close()
	for {
		if _, err := p.node.Registry().Get("late"); err != nil {
			break
		}
		if _, err := w.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// The card of an agent whose circuit is open has no capabilities until the circuit allows a trial.
func TestTheCardOfAnOpenCircuitOffersNothing(t *testing.T) {
	r := newRig(t, node.Options{}, hub.Config{
		Agents: []hub.Agent{{Definition: definition("worker", nil), Runner: newActor()}}, BreakerFailures: 2, BreakerPause: time.Hour, ProbeInterval: time.Hour,
	})
	p := r.peer(t, remoteProgram(agent.L3, ""))
	await(t, r.node.Registry(), "worker", offers(2))
	for range 2 {
		p.send(t, "worker", envelope.Request, "fail:")
		p.next(t, envelope.ErrorMessage, nil)
	}
	for _, reg := range []*registry.Registry{r.node.Registry(), p.node.Registry()} {
		await(t, reg, "worker", offers(0))
	}
	var got reply
	p.send(t, "worker", envelope.Request, "dig")
	if p.next(t, envelope.ErrorMessage, &got); got.Code != "UNAVAILABLE" {
		t.Errorf("%+v", got)
	}
}

// Requests that are pending when the hub stops are answered with the task's end.
func TestPendingRequestsAreAnsweredAtTheEnd(t *testing.T) {
	r, a := simple(t)
	p := r.peer(t, remoteProgram(agent.L3, ""))
	p.send(t, "worker", envelope.Request, "hang:")
	<-a.started
	if err := errors.Join(r.hub.Close(t.Context()), r.node.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	var got reply
	if p.next(t, envelope.ErrorMessage, &got); got.Code != "TASK_FAILED" {
		t.Errorf("%+v", got)
	}
}
