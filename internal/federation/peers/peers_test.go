package peers_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/federation/peers"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/mcp/delegation"
	"github.com/parleyhub/parley/internal/testbed"
	"github.com/parleyhub/parley/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func startServer(t testing.TB) *testbed.Server {
	return testbed.StartNATS(t, testbed.WithoutJetStream)
}

// actor is an agent whose prompts name what it does.
type actor struct {
	started chan struct{}
	proceed chan struct{}
	sick    atomic.Bool
	hand    func(ctx context.Context, token, prompt string) (string, error) // delegates; may be nil
}

func (a *actor) Probe(context.Context) runner.Probe {
	if a.sick.Load() {
		return runner.Probe{Stage: runner.StageMissing, Version: "1"}
	}
	return runner.Probe{Stage: runner.StageAuthenticated, Version: "1"}
}

func (a *actor) Open(spec runner.SessionSpec) (runner.Session, error) {
	token := ""
	for _, kv := range spec.Env {
		token = strings.TrimPrefix(kv, delegation.TokenEnv+"=")
	}
	return turns{a, token}, nil
}

type turns struct {
	a     *actor
	token string // the conversation's task token
}

func (turns) Close(context.Context) error { return nil }

func (s turns) Turn(ctx context.Context, t runner.Turn, h runner.Handler) (runner.Outcome, error) {
	prompt, err := runner.PromptText(t.Parts, 1<<20)
	if err != nil {
		return runner.Outcome{Status: runner.OutcomeFailed}, err
	}
	if hand := s.a.hand; hand != nil && strings.HasPrefix(prompt, "hand ") {
		text, err := hand(ctx, s.token, strings.TrimPrefix(prompt, "hand "))
		return runner.Outcome{Status: runner.OutcomeCompleted, Text: text}, err
	}
	switch prompt {
	case "fail":
		return runner.Outcome{Status: runner.OutcomeFailed}, &runner.Error{Code: runner.CodeAgent, Message: "the model is on strike", Remedy: "pay it"}
	case "hang":
		s.a.started <- struct{}{}
		<-ctx.Done()
		return runner.Outcome{Status: runner.OutcomeCanceled}, nil
	case "wait":
		s.a.started <- struct{}{}
		select {
		case <-s.a.proceed:
			return runner.Outcome{Status: runner.OutcomeCompleted, Text: "waited"}, nil
		case <-ctx.Done():
			return runner.Outcome{Status: runner.OutcomeCanceled}, nil
		}
	case "slow":
		h.Event(runner.TextDelta{Text: "one "})
		s.a.started <- struct{}{}
		select {
		case <-s.a.proceed:
		case <-ctx.Done():
			return runner.Outcome{Status: runner.OutcomeCanceled}, nil
		}
		h.Event(runner.TextDelta{Text: "two"})
		return runner.Outcome{Status: runner.OutcomeCompleted, Text: "one two"}, nil
	case "ask":
		return runner.Outcome{Status: runner.OutcomeInputRequired, Text: "which one?"}, nil
	case "words":
		for _, w := range []string{"one ", "two ", "three"} {
			h.Event(runner.TextDelta{Text: w})
		}
		return runner.Outcome{Status: runner.OutcomeCompleted, Text: "one two three"}, nil
	}
	return runner.Outcome{Status: runner.OutcomeCompleted, Text: "did " + prompt}, nil
}

// auditor records the senders of events.
type auditor struct {
	mu      sync.Mutex
	senders []string
}

func (a *auditor) Append(e telemetry.Event, env *envelope.Envelope) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if env != nil {
		a.senders = append(a.senders, env.Sender)
	}
	return nil
}

func (a *auditor) has(sender string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.senders {
		if s == sender {
			return true
		}
	}
	return false
}

// party is a hub with one agent, "worker", and its peers.
type party struct {
	dir    string
	hub    *hub.Hub
	net    *peers.Peers
	audit  *auditor
	actor  *actor
	tokens *delegation.TokenSigner
	end    func()
}

func newParty(t testing.TB, n *testbed.Server, dir string, change func(*runner.Definition)) *party {
	t.Helper()
	return openParty(t, dir, change, peers.Options{NATS: connect(t, n)})
}

// connect returns a connection to NATS that reconnects quickly.
func connect(t testing.TB, n *testbed.Server) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(n.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.ReconnectJitter(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	return nc
}

func openParty(t testing.TB, dir string, change func(*runner.Definition), o peers.Options) *party {
	t.Helper()
	return openPartyProbing(t, dir, change, o, 50*time.Millisecond)
}

// openPartyProbing opens a party whose hub probes its agents at an interval.
func openPartyProbing(t testing.TB, dir string, change func(*runner.Definition), o peers.Options, every time.Duration) *party {
	t.Helper()
	tokens := delegation.NewTokenSigner()
	p := &party{dir: dir, tokens: tokens, audit: &auditor{}, actor: &actor{started: make(chan struct{}, 16), proceed: make(chan struct{})}}
	tier := 3
	d := runner.Definition{ID: "worker", Driver: runner.DriverEcho, Tier: &tier, Capabilities: []runner.Capability{{ID: "work"}}}
	if change != nil {
		change(&d)
	}
	d, err := d.Complete()
	if err != nil {
		t.Fatal(err)
	}
	if p.hub, err = hub.New(context.Background(), hub.Config{Agents: []hub.Agent{{Definition: d, Runner: p.actor}}, ProbeInterval: every, SessionEnv: tokens.Env}); err != nil {
		t.Fatal(err)
	}
	o.Hub, o.DataDir, o.Version, o.Audit = p.hub, dir, "1", p.audit
	if p.net, err = peers.Open(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	p.end = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := errors.Join(p.hub.Close(ctx), p.net.Close(ctx)); err != nil {
			t.Error(err)
		}
		if o.NATS != nil {
			o.NATS.Close()
		}
	})
	t.Cleanup(p.end)
	return p
}

// address returns the party's bootstrap address, or "" if it has none.
func (p *party) address() string {
	if a := p.net.Public(); a.IsValid() {
		return a.String()
	}
	return ""
}

// pair adds another party to the allow-list, under a name.
func (p *party) pair(t testing.TB, name string, other *party) {
	t.Helper()
	list, err := identity.OpenAllowList(peers.AllowPath(p.dir))
	if err != nil {
		t.Fatal(err)
	}
	if err := list.Add(identity.Entry{Key: other.net.Key(), Name: name, Address: other.address()}); err != nil {
		t.Fatal(err)
	}
}

func (p *party) awaitAgent(t testing.TB, id string) {
	t.Helper()
	wait.Eventually(t, id+" is healthy", func() bool {
		info, err := p.hub.Agent(id)
		return err == nil && info.Health.Status == hub.Healthy
	})
}

func message(text string) *a2a.Message {
	return a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart(text))
}

func (p *party) send(t testing.TB, agentID, text string) *a2a.Task {
	t.Helper()
	task, err := p.hub.SendAndWait(deadline(t), hub.SendRequest{AgentID: agentID, Message: message(text)})
	if err != nil {
		t.Fatal(err)
	}
	return task
}

func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func textOf(task *a2a.Task) string {
	if task.Status.Message == nil {
		return ""
	}
	var b strings.Builder
	for _, p := range task.Status.Message.Parts {
		b.WriteString(p.Text())
	}
	return b.String()
}

// two returns two paired hubs on one server.
func two(t *testing.T) (n *testbed.Server, a, b *party) {
	n = startServer(t)
	a, b = newParty(t, n, t.TempDir(), nil), newParty(t, n, t.TempDir(), nil)
	a.pair(t, "bob", b)
	b.pair(t, "alice", a)
	a.awaitAgent(t, "bob.worker")
	b.awaitAgent(t, "alice.worker")
	return n, a, b
}

// Req 1.7, 1.8, 3.6: paired hubs run tasks on each other's agents, in both directions, and each audit log names the
// other hub.
func TestTasksOnEachOthersAgents(t *testing.T) {
	t.Parallel()
	_, a, b := two(t)
	for _, c := range []struct {
		prompt, state, text string
	}{
		{"dig", "TASK_STATE_COMPLETED", "did dig"}, {"words", "TASK_STATE_COMPLETED", "one two three"},
		{"fail", "TASK_STATE_FAILED", "the model is on strike; pay it"}, {"ask", "TASK_STATE_INPUT_REQUIRED", "which one?"},
	} {
		task := a.send(t, "bob.worker", c.prompt)
		if string(task.Status.State) != c.state || textOf(task) != c.text {
			t.Errorf("%s: %s %q", c.prompt, task.Status.State, textOf(task))
		}
	}
	if task := b.send(t, "alice.worker", "back"); textOf(task) != "did back" {
		t.Errorf("got %s %q", task.Status.State, textOf(task))
	}
	if !b.audit.has("~hub-l3@" + a.net.Key().String()) {
		t.Errorf("the audit log has %v", b.audit.senders)
	}
	if _, err := a.hub.Agent("bob.alice.worker"); err == nil {
		t.Error("agents of other hubs are listed to third hubs")
	}
}

// A question of the other hub's agent is answered in the same task, as a local agent's is.
func TestAQuestionIsAnsweredInItsTask(t *testing.T) {
	t.Parallel()
	_, a, b := two(t)
	task := a.send(t, "bob.worker", "ask")
	m := message("the second")
	m.TaskID, m.ContextID = task.ID, task.ContextID
	task, err := a.hub.SendAndWait(deadline(t), hub.SendRequest{AgentID: "bob.worker", Message: m})
	if err != nil || textOf(task) != "did the second" {
		t.Fatalf("%v, %v", task, err)
	}
	page, err := b.hub.Tasks(deadline(t), hub.TaskQuery{})
	if err != nil || page.Total != 1 {
		t.Errorf("%d tasks at the other hub, %v", page.Total, err)
	}
}

func TestCancelReachesTheOtherHub(t *testing.T) {
	t.Parallel()
	_, a, b := two(t)
	task, err := a.hub.Send(deadline(t), hub.SendRequest{AgentID: "bob.worker", Message: message("hang")})
	if err != nil {
		t.Fatal(err)
	}
	<-b.actor.started
	if _, err := a.hub.Cancel(deadline(t), task.ID); err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "the other hub's task is canceled", func() bool {
		page, err := b.hub.Tasks(deadline(t), hub.TaskQuery{})
		return err == nil && len(page.Tasks) == 1 && page.Tasks[0].Status.State == a2a.TaskStateCanceled
	})
}

// A program's answer comes back over a new link too, and its text is whole and not doubled.
func TestAProgramsAnswerSurvivesTheLink(t *testing.T) {
	t.Parallel()
	_, a, b := two(t)
	sub, err := a.hub.SendAndStream(deadline(t), hub.SendRequest{AgentID: "bob.worker", Message: message("slow")})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	<-b.actor.started
	var streamed strings.Builder
	next := func() error {
		event, err := sub.Next(deadline(t))
		if up, ok := event.(*a2a.TaskArtifactUpdateEvent); ok {
			streamed.WriteString(up.Artifact.Parts[0].Text())
		}
		return err
	}
	for err == nil && streamed.Len() == 0 {
		err = next()
	}
	for _, c := range a.net.Node().Channels().Channels() {
		_ = c.Close() // returns nil
	}
	b.actor.proceed <- struct{}{}
	for err == nil {
		err = next()
	}
	if !errors.Is(err, io.EOF) || streamed.String() != "one two" {
		t.Errorf("it streamed %q, %v", streamed.String(), err)
	}
	task, err := a.hub.Task(deadline(t), sub.Task().ID, nil)
	if err != nil || task.Status.State != a2a.TaskStateCompleted || textOf(task) != "one two" {
		t.Errorf("%+v, %v", task, err)
	}
	if page, err := b.hub.Tasks(deadline(t), hub.TaskQuery{}); err != nil || page.Total != 1 {
		t.Errorf("%d tasks at the other hub, %v", page.Total, err)
	}
}

// Hubs connect only if each has added the other, and a removed hub is disconnected.
//
// WIRE-STRANGER, WIRE-REMOVED.
func TestOnlyPairedHubsConnect(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	a, b := newParty(t, n, t.TempDir(), nil), newParty(t, n, t.TempDir(), nil)
	c := newParty(t, n, t.TempDir(), nil)
	a.pair(t, "bob", b)
	a.pair(t, "carol", c)
	c.pair(t, "alice", a)
	a.awaitAgent(t, "carol.worker")
	c.awaitAgent(t, "alice.worker")
	if len(b.hub.Agents()) != 1 {
		t.Error("a hub without peers knows agents of others")
	}
	a.awaitAgent(t, "bob.worker") // a has added b, so it receives b's cards
	if _, err := a.hub.Send(deadline(t), hub.SendRequest{AgentID: "bob.worker", Message: message("dig")}); err != nil {
		t.Fatal(err)
	}
	list, err := identity.OpenAllowList(peers.AllowPath(c.dir))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := list.Remove(a.net.Key()); err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "the removed hub's agents go", func() bool { return len(c.hub.Agents()) == 1 })
	if _, err := a.hub.Send(deadline(t), hub.SendRequest{AgentID: "carol.worker", Message: message("dig")}); err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]*party{"has not paired with us": b, "has removed us": c} {
		if page, err := p.hub.Tasks(deadline(t), hub.TaskQuery{}); err != nil || page.Total != 0 {
			t.Errorf("a hub that %s runs our tasks: %d tasks, %v", name, page.Total, err)
		}
	}
}

// An agent whose tier is higher than the hub allows is not registered.
func TestTiersHoldBetweenHubs(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	zero := 0
	a, b := newParty(t, n, t.TempDir(), nil), newParty(t, n, t.TempDir(), func(d *runner.Definition) { d.Tier = &zero })
	c := newParty(t, n, t.TempDir(), func(d *runner.Definition) { two := 2; d.Tier = &two })
	a.pair(t, "bob", b)
	b.pair(t, "alice", a)
	a.pair(t, "carol", c)
	c.pair(t, "alice", a)
	b.awaitAgent(t, "alice.worker")
	a.awaitAgent(t, "carol.worker")
	if task := a.send(t, "carol.worker", "dig"); textOf(task) != "did dig" {
		t.Errorf("an agent of tier 2: %s %q", task.Status.State, textOf(task))
	}
	if _, err := a.hub.Agent("bob.worker"); err == nil {
		t.Error("a remote agent of tier 0 was registered")
	}
}

// After the server was unreachable during a task, nothing is lost or done twice (Req 3.7).
func TestTasksSurviveTheServersRestart(t *testing.T) {
	t.Parallel()
	n, a, b := two(t)
	first := a.send(t, "bob.worker", "first")
	if textOf(first) != "did first" {
		t.Fatal(textOf(first))
	}
	hanging, err := a.hub.Send(deadline(t), hub.SendRequest{AgentID: "bob.worker", Message: message("hang")})
	if err != nil {
		t.Fatal(err)
	}
	<-b.actor.started
	n.Stop()
	n.Start()
	for i := range 5 {
		if task := a.send(t, "bob.worker", "dig"); textOf(task) != "did dig" {
			t.Fatalf("task %d after the cut: %s %q", i, task.Status.State, textOf(task))
		}
	}
	if task, err := a.hub.Task(deadline(t), hanging.ID, nil); err != nil || task.Status.State != a2a.TaskStateWorking {
		t.Errorf("the task that was running is %v, %v", task.Status.State, err)
	}
	if _, err := a.hub.Cancel(deadline(t), hanging.ID); err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "seven tasks have run, and no more", func() bool {
		page, err := b.hub.Tasks(deadline(t), hub.TaskQuery{})
		return err == nil && page.Total == 7 && page.Tasks[len(page.Tasks)-1].Status.State == a2a.TaskStateCompleted
	})
}

// A hub starts while the NATS server of its peers is unreachable, and connects once the server runs.
func TestAServerThatStartsLater(t *testing.T) {
	n := startServer(t)
	n.Stop()
	dial := func() *nats.Conn {
		conn, err := bus.Dial(bus.Config{URL: bus.Secret(n.URL())})
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	a := openParty(t, t.TempDir(), nil, peers.Options{NATS: dial()})
	b := openParty(t, t.TempDir(), nil, peers.Options{NATS: dial()})
	a.pair(t, "bob", b)
	b.pair(t, "alice", a)
	n.Start()
	a.awaitAgent(t, "bob.worker")
	b.awaitAgent(t, "alice.worker")
	if task := a.send(t, "bob.worker", "dig"); textOf(task) != "did dig" {
		t.Errorf("%s %q", task.Status.State, textOf(task))
	}
}

// While the other hub is stopped, its agents are unhealthy; after its restart with the same key they are used again.
func TestAHubThatIsRestarted(t *testing.T) {
	t.Parallel()
	n, a, b := two(t)
	b.end()
	wait.Eventually(t, "its agents are unhealthy", func() bool {
		info, err := a.hub.Agent("bob.worker")
		return err == nil && info.Health.Status == hub.Unhealthy
	})
	newParty(t, n, b.dir, nil)
	a.awaitAgent(t, "bob.worker")
	if task := a.send(t, "bob.worker", "again"); textOf(task) != "did again" {
		t.Errorf("got %s %q", task.Status.State, textOf(task))
	}
}

// Changes of a remote agent's name, capabilities and health take effect here, and its running tasks continue.
func TestAChangedCardKeepsRunningTasks(t *testing.T) {
	t.Parallel()
	_, a, b := two(t)
	task, err := a.hub.Send(deadline(t), hub.SendRequest{AgentID: "bob.worker", Message: message("wait")})
	if err != nil {
		t.Fatal(err)
	}
	<-b.actor.started
	info, err := b.hub.Agent("worker")
	if err != nil {
		t.Fatal(err)
	}
	d := *info.Definition
	d.Name, d.Capabilities = "the foreman", append(d.Capabilities, runner.Capability{ID: "lead"})
	if err := b.hub.Update(d); err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "the change is known", func() bool {
		info, err := a.hub.Agent("bob.worker")
		return err == nil && info.Definition.Name == "the foreman at bob" && len(info.Definition.Capabilities) == 2
	})
	b.actor.sick.Store(true)
	wait.Eventually(t, "it is known that it cannot work", func() bool {
		info, err := a.hub.Agent("bob.worker")
		return err == nil && info.Health.Status == hub.Unhealthy && len(info.Definition.Capabilities) == 2
	})
	b.actor.sick.Store(false)
	a.awaitAgent(t, "bob.worker")
	b.actor.proceed <- struct{}{}
	wait.Eventually(t, "the task ends well", func() bool {
		got, err := a.hub.Task(deadline(t), task.ID, nil)
		return err == nil && got.Status.State == a2a.TaskStateCompleted && textOf(got) == "waited"
	})
}

func TestNames(t *testing.T) {
	t.Parallel()
	key := identity.Generate().Public()
	for name, want := range map[string]string{"bob": "bob", "": key.String()[:8], "Bob's laptop": key.String()[:8], "-x": key.String()[:8], "a.b": key.String()[:8]} {
		if got := peers.NameOf(identity.Entry{Key: key, Name: name}); got != want {
			t.Errorf("%q became %q", name, got)
		}
	}
}
