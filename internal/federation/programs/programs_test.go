package programs_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
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
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/federation/node"
	"github.com/parleyhub/parley/internal/federation/programs"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/senders"
	"github.com/parleyhub/parley/internal/testbed"
	"github.com/parleyhub/parley/negotiation"
	"github.com/parleyhub/parley/swarm"
	"github.com/parleyhub/parley/tasks"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/websocket"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testbed.Leaks()...) }

// office is a hub at which programs can connect.
type office struct {
	t    *testing.T
	dir  string
	addr string

	journal *swarm.MemoryJournal

	hub  *hub.Hub
	node *node.Node
	gate *senders.Gate
	stop func()
}

func newOffice(t *testing.T) *office {
	t.Helper()
	o := &office{t: t, dir: t.TempDir(), addr: "127.0.0.1:0", journal: new(swarm.MemoryJournal)}
	o.start()
	t.Cleanup(func() { o.stop() })
	return o
}

// start starts the hub, again or for the first time.
func (o *office) start() {
	o.t.Helper()
	b, err := bus.Open(o.t.Context(), bus.Config{DataDir: o.dir, Durability: bus.DurabilityFast})
	if err != nil {
		o.t.Fatal(err)
	}
	if o.hub, err = hub.New(o.t.Context(), hub.Config{Bus: b}); err != nil {
		o.t.Fatal(err)
	}
	if o.gate, err = senders.Open(senders.Options{Hub: o.hub, Path: filepath.Join(o.dir, "senders.json")}); err != nil {
		o.t.Fatal(err)
	}
	p, err := programs.Open(programs.Options{Hub: o.hub, DataDir: o.dir, Gate: o.gate})
	if err != nil {
		o.t.Fatal(err)
	}
	n, err := node.Open(node.Options{Hub: o.hub, Channels: p.Watcher(), Swarms: &node.SwarmOptions{Journal: o.journal, Hub: "office", Answer: time.Minute}})
	if err != nil {
		o.t.Fatal(err)
	}
	o.node = n
	if err := p.Serve(n); err != nil {
		o.t.Fatal(err)
	}
	mux := http.NewServeMux()
	n.Mount(mux.Handle)
	server := httptest.NewUnstartedServer(mux)
	if err := server.Listener.Close(); err != nil {
		o.t.Fatal(err)
	}
	if server.Listener, err = net.Listen("tcp", o.addr); err != nil {
		o.t.Fatal(err)
	}
	o.addr = server.Listener.Addr().String()
	server.Start()
	h := o.hub
	o.stop = func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		p.Close()
		n.CloseSwarms() // as the daemon does
		if err := errors.Join(h.Close(ctx), n.Close(ctx)); err != nil {
			o.t.Error(err)
		}
		server.Close()
		if err := b.Close(ctx); err != nil {
			o.t.Error(err)
		}
		o.stop = func() {}
	}
}

// program is a Go program with one agent, in this process.
type program struct {
	node *parley.Node
	end  func()
}

// connect starts a program whose agent does tasks with h.
func (o *office) connect(id string, h tasks.Handler, protocols ...string) *program {
	o.t.Helper()
	return o.connectCard(agent.Card{ID: id, Name: "Venus", Version: "1.2.3", Description: "counts", Tier: agent.L2, Protocols: protocols,
		Capabilities: []agent.Capability{{ID: "count", Name: "Count"}}}, h)
}

func (o *office) connectCard(card agent.Card, h tasks.Handler) *program {
	o.t.Helper()
	n, err := parley.New(parley.Options{Channels: channel.Options{
		ReconnectDelay: 5 * time.Millisecond,
		Dialers:        map[agent.Transport]transport.Dialer{agent.TransportWebSocket: &websocket.Dialer{}},
	}})
	if err != nil {
		o.t.Fatal(err)
	}
	me, err := n.Join(card, func(context.Context, *envelope.Envelope) {})
	if err != nil {
		o.t.Fatal(err)
	}
	at, err := hubcards.Endpoint("http://" + o.addr)
	if err != nil {
		o.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := me.ServeTasks(ctx, at, h); err != nil {
			o.t.Error(err)
		}
	})
	p := &program{node: n}
	p.end = sync.OnceFunc(func() {
		cancel()
		serving.Wait()
		if err := n.Close(context.Background()); err != nil {
			o.t.Error(err)
		}
	})
	o.t.Cleanup(p.end)
	return p
}

// await waits until an agent has a state.
func (o *office) await(id string, state hub.AgentState) {
	o.t.Helper()
	wait.Eventually(o.t, id+" is "+string(state), func() bool {
		info, err := o.hub.Agent(id)
		return err == nil && info.State == state
	})
}

func (o *office) send(id, text string, to a2a.TaskID) *hub.Pending {
	o.t.Helper()
	m := a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart(text))
	m.TaskID = to
	pending, err := o.hub.Start(o.t.Context(), hub.SendRequest{AgentID: id, Message: m})
	if err != nil {
		o.t.Fatal(err)
	}
	return pending
}

func (o *office) answer(p *hub.Pending) (a2a.TaskState, string) {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(o.t.Context(), 60*time.Second)
	defer cancel()
	task, err := p.Wait(ctx)
	if err != nil {
		o.t.Fatal(err)
	}
	return task.Status.State, textOf(task)
}

func textOf(task *a2a.Task) string {
	var b strings.Builder
	if task.Status.Message == nil {
		return ""
	}
	for _, p := range task.Status.Message.Parts {
		b.WriteString(p.Text())
	}
	return b.String()
}

// A connected program is in the directory, with what its card says, and answers tasks.
func TestAProgramIsAnAgent(t *testing.T) {
	o := newOffice(t)
	p := o.connect("venus", func(_ context.Context, task *tasks.Task) (tasks.Answer, error) {
		if task.Text != "refuse" {
			task.Report("counting", 50)
		}
		switch task.Text {
		case "fail":
			return tasks.Answer{}, errors.New("it is too much")
		case "refuse", "refuse late":
			return tasks.Refusal("it is not mine"), nil
		case "ask":
			return tasks.Question("which one?"), nil
		case "panic":
			panic("no")
		}
		if task.Turn > 1 {
			return tasks.Text("turn " + task.Text), nil
		}
		return tasks.Answer{Text: "did " + task.Text, Data: map[string]int{"n": 3}, Files: []tasks.File{{Name: "a.txt", MediaType: "text/plain", Content: []byte("abc")}, {Name: "empty"}}}, nil
	})
	o.await("venus", hub.AgentIdle)
	info, err := o.hub.Agent("venus")
	if err != nil {
		t.Fatal(err)
	}
	if d := info.Definition; info.Residence.Kind != hub.KindLibrary || d.Name != "Venus" || *d.Tier != 2 || len(d.Capabilities) != 1 || info.Health.Version != "1.2.3" {
		t.Errorf("it is %+v", info)
	}
	for text, want := range map[string]string{"x": "TASK_STATE_COMPLETED did x", "fail": "TASK_STATE_FAILED it is too much", "refuse": "TASK_STATE_REJECTED it is not mine",
		"refuse late": "TASK_STATE_FAILED it is not mine",
		"panic":       "TASK_STATE_FAILED the program's handler panicked"} {
		if state, said := o.answer(o.send("venus", text, "")); string(state)+" "+said != want {
			t.Errorf("%s: %s %q", text, state, said)
		}
	}
	asked := o.send("venus", "ask", "")
	if state, said := o.answer(asked); state != a2a.TaskStateInputRequired || said != "which one?" {
		t.Errorf("%s %q", state, said)
	}
	if state, said := o.answer(o.send("venus", "two", asked.TaskID())); state != a2a.TaskStateCompleted || said != "turn two" {
		t.Errorf("%s %q", state, said)
	}
	p.end()
	o.await("venus", hub.AgentOffline)
}

// A task waits for its program, over a restart of the hub too.
func TestATaskWaitsForItsProgram(t *testing.T) {
	o := newOffice(t)
	h := func(_ context.Context, task *tasks.Task) (tasks.Answer, error) {
		return tasks.Text("did " + task.Text), nil
	}
	p := o.connect("venus", h)
	o.await("venus", hub.AgentIdle)
	p.end()
	o.await("venus", hub.AgentOffline)
	id := o.send("venus", "it", "").TaskID()
	o.stop()
	o.start()
	o.await("venus", hub.AgentOffline)
	o.connect("venus", h)
	wait.Eventually(t, "the task is done", func() bool {
		task, err := o.hub.Task(t.Context(), id, nil)
		return err == nil && task.Status.State == a2a.TaskStateCompleted && textOf(task) == "did it"
	})
}

// A program that ends in the middle of a task gets it once more, and there is one answer.
func TestATaskOfAnEndedProgramIsGivenOnceMore(t *testing.T) {
	o := newOffice(t)
	began := make(chan struct{})
	first := o.connect("venus", func(ctx context.Context, _ *tasks.Task) (tasks.Answer, error) {
		close(began)
		<-ctx.Done()
		return tasks.Text("too late"), nil
	})
	o.await("venus", hub.AgentIdle)
	pending := o.send("venus", "it", "")
	<-began
	first.end()
	o.connect("venus", func(_ context.Context, task *tasks.Task) (tasks.Answer, error) { return tasks.Text("second"), nil })
	if state, said := o.answer(pending); state != a2a.TaskStateCompleted || said != "second" {
		t.Errorf("%s %q", state, said)
	}
}

// The hub restarts while a program works: the program does the task once, and its answer arrives.
func TestAProgramKeepsItsTaskWhenTheHubRestarts(t *testing.T) {
	o := newOffice(t)
	var count atomic.Int32
	began, release := make(chan struct{}, 8), make(chan struct{})
	o.connect("venus", func(ctx context.Context, _ *tasks.Task) (tasks.Answer, error) {
		count.Add(1)
		began <- struct{}{}
		select {
		case <-release:
		case <-ctx.Done():
		}
		return tasks.Text("done"), ctx.Err()
	})
	o.await("venus", hub.AgentIdle)
	id := o.send("venus", "it", "").TaskID()
	<-began
	o.stop()
	o.start()
	close(release)
	wait.Eventually(t, "the task is done", func() bool {
		task, err := o.hub.Task(t.Context(), id, nil)
		return err == nil && task.Status.State == a2a.TaskStateCompleted
	})
	if n := count.Load(); n != 1 {
		t.Errorf("it was done %d times", n)
	}
}

// The handler's context ends when its task is canceled.
func TestACanceledTaskEnds(t *testing.T) {
	o := newOffice(t)
	began, ended := make(chan struct{}), make(chan struct{})
	o.connect("Venus.One+1", func(ctx context.Context, _ *tasks.Task) (tasks.Answer, error) {
		close(began)
		<-ctx.Done()
		close(ended)
		return tasks.Answer{}, ctx.Err()
	})
	o.await("venus.one-1", hub.AgentIdle)
	pending := o.send("venus.one-1", "it", "")
	<-began
	if _, err := o.hub.Cancel(t.Context(), pending.TaskID()); err != nil {
		t.Fatal(err)
	}
	<-ended
	if state, _ := o.answer(pending); state != a2a.TaskStateCanceled {
		t.Errorf("it is %s", state)
	}
}

// A swarm's part for a program is a task of the hub, which goes on over restarts of both; a program and the hub's other agents
// are members of one swarm.
func TestAProgramTakesPartInASwarm(t *testing.T) {
	o := newOffice(t)
	began := make(chan struct{}, 8)
	release := make(chan struct{})
	first := o.connect("Venus", func(ctx context.Context, _ *tasks.Task) (tasks.Answer, error) {
		began <- struct{}{}
		<-ctx.Done()
		return tasks.Answer{}, ctx.Err()
	})
	o.await("venus", hub.AgentIdle)
	wait.Eventually(t, "the program has a stand-in", func() bool {
		card, err := o.node.Registry().Get("agent:venus")
		return err == nil && len(card.Capabilities) == 1
	})
	s, err := o.node.Swarms().Create(t.Context(), swarm.Plan{TaskDescription: "count all", Agents: []string{"venus"}, SubTasks: []swarm.SubTaskPlan{
		{ID: "one", Description: "count one", RequiredCapabilities: []string{"count"}}, {ID: "two", Description: "count two", DependsOn: []string{"one"}}}})
	if err != nil {
		t.Fatal(err)
	}
	<-began
	o.stop()
	o.start()
	first.end()
	o.connect("Venus", func(_ context.Context, task *tasks.Task) (tasks.Answer, error) {
		<-release
		return tasks.Text("counted: " + task.Text), nil
	})
	close(release)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err = o.node.Swarms().Wait(ctx, s.ID)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Participants) != 1 || s.Participants[0] != "venus" || !strings.Contains(string(s.Outcome), "counted: count one") || !strings.Contains(string(s.Outcome), "counted: count two") {
		t.Errorf("%q: %s", s.Participants, s.Outcome)
	}
	for _, part := range s.SubTasks {
		if part.AssignedAgent != "venus" {
			t.Errorf("part %s is of %q", part.ID, part.AssignedAgent)
		}
	}
}

// Senders outside see and reach a public agent only, and wait until the user has permitted them, over a restart of the hub.
func TestAProgramOfWhichOthersAsk(t *testing.T) {
	o := newOffice(t)
	from := make(chan string, 8)
	answer := func(_ context.Context, task *tasks.Task) (tasks.Answer, error) {
		from <- task.From
		return tasks.Text("did " + task.Text), nil
	}
	o.connect("venus", answer, tasks.Public)
	o.connect("mars", answer)
	o.await("venus", hub.AgentIdle)
	o.await("mars", hub.AgentIdle)
	stranger := hub.Sender{Kind: hub.SenderA2A, ID: "192.0.2.7", Label: "curl"}
	send := func(id string, who hub.Sender) (a2a.TaskID, error) {
		pending, err := o.hub.Start(t.Context(), hub.SendRequest{AgentID: id, Message: a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart("it")), Sender: who})
		if err != nil {
			return "", err
		}
		return pending.TaskID(), nil
	}
	state := func(id a2a.TaskID, want a2a.TaskState) {
		t.Helper()
		wait.Eventually(t, "the task is "+string(want), func() bool {
			task, err := o.hub.Task(t.Context(), id, nil)
			return err == nil && task.Status.State == want
		})
	}
	if _, err := send("mars", stranger); hub.CodeOf(err) != hub.CodeAgentNotFound {
		t.Errorf("a stranger reaches mars: %v", err)
	}
	outside := hub.WithSender(t.Context(), stranger)
	if _, err := o.hub.AgentFor(outside, "mars"); hub.CodeOf(err) != hub.CodeAgentNotFound {
		t.Errorf("a stranger sees mars: %v", err)
	}
	if venus, err := o.hub.AgentFor(outside, "venus"); err != nil || venus.Residence.Visibility != "public" {
		t.Errorf("a stranger sees %+v, %v", venus.Residence, err)
	}
	asked, err := send("venus", stranger)
	if err != nil {
		t.Fatal(err)
	}
	state(asked, a2a.TaskStateAuthRequired)
	o.stop()
	o.start()
	state(asked, a2a.TaskStateAuthRequired)
	select {
	case who := <-from:
		t.Fatalf("the program has got a task of %s", who)
	default:
	}
	o.send("venus", "always", asked)
	state(asked, a2a.TaskStateCompleted)
	if who := <-from; who != "a2a 192.0.2.7 (curl)" {
		t.Errorf("it is from %q", who)
	}
	if again, err := send("venus", stranger); err != nil {
		t.Error(err)
	} else {
		state(again, a2a.TaskStateCompleted)
	}
	other, err := send("venus", hub.Sender{Kind: hub.SenderPeer, ID: "k"})
	if err != nil {
		t.Fatal(err)
	}
	state(other, a2a.TaskStateAuthRequired)
	o.send("venus", "not today", other)
	state(other, a2a.TaskStateRejected)
}

// A program finds the public programs of its hub and none else, negotiates with one and asks it: as the user must permit that first,
// its answer comes afterwards.
func TestAProgramNegotiatesWithAnother(t *testing.T) {
	o := newOffice(t)
	did := func(_ context.Context, task *tasks.Task) (tasks.Answer, error) {
		return tasks.Text("did " + task.Text), nil
	}
	o.connect("venus", did, tasks.Public)
	o.connectCard(agent.Card{ID: "mars", Name: "Mars", Version: "1.0.0", Tier: agent.L2, Capabilities: []agent.Capability{{ID: "paint"}}}, did)
	o.await("venus", hub.AgentIdle)
	o.await("mars", hub.AgentIdle)
	n, err := parley.New(parley.Options{Channels: channel.Options{Dialers: map[agent.Transport]transport.Dialer{agent.TransportWebSocket: &websocket.Dialer{}}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	wait.Eventually(t, "both have stand-ins", func() bool {
		_, one := o.node.Registry().Get("agent:venus")
		_, other := o.node.Registry().Get("agent:mars")
		return errors.Join(one, other) == nil
	})
	if err := n.Registry().EnableDiscovery("hub", &hubcards.Source{URL: "http://" + o.addr}); err != nil {
		t.Fatal(err)
	}
	answers := make(chan *envelope.Envelope, 8)
	earth, err := n.Join(agent.Card{ID: "earth", Name: "Earth", Version: "1.0.0", Tier: agent.L2, Capabilities: []agent.Capability{}}, func(_ context.Context, e *envelope.Envelope) {
		if e.Type == envelope.Response || e.Type == envelope.ErrorMessage || e.Type == envelope.StreamEnd {
			answers <- e
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "venus is known", func() bool { _, err := n.Registry().Get("agent:venus"); return err == nil })
	if card, err := n.Registry().Get("agent:mars"); err == nil {
		t.Errorf("a program that is not public is known: %+v", card)
	}
	negotiator, err := earth.Negotiator(negotiation.Options{})
	if err != nil {
		t.Fatal(err)
	}
	propose := func(capability string) negotiation.Proposal {
		t.Helper()
		p, err := negotiator.Propose(t.Context(), "agent:venus", negotiation.Terms{
			TaskDescription: "it", RequiredCapabilities: []string{capability}, EstimatedComplexity: negotiation.Simple, Deadline: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if p, err = negotiator.Wait(t.Context(), p.ID); err != nil {
			t.Fatal(err)
		}
		return p
	}
	if p := propose("paint"); p.Status != negotiation.Rejected || p.RejectionReason != negotiation.MissingCapability || p.AlternativeSuggestion != "" {
		t.Errorf("what venus cannot do: %+v", p)
	}
	permit := func(answer string) {
		t.Helper()
		var asked a2a.TaskID
		wait.Eventually(t, "the user is asked", func() bool {
			page, err := o.hub.Tasks(t.Context(), hub.TaskQuery{AgentID: "venus", State: a2a.TaskStateAuthRequired})
			if err != nil || len(page.Tasks) != 1 {
				return false
			}
			asked = page.Tasks[0].ID
			return true
		})
		o.send("venus", answer, asked)
	}
	if p := propose("count"); p.Status != negotiation.Accepted {
		t.Fatalf("%+v", p)
	}
	permit("allow")
	if e := <-answers; e.Type != envelope.Response || !strings.Contains(string(e.Payload), `"did it"`) {
		t.Errorf("the answer is %s %s", e.Type, e.Payload)
	}
	for _, request := range []any{map[string]any{"text": "that", "stream": true}, "that"} {
		if _, err := earth.Send(t.Context(), "agent:venus", envelope.Request, request); err != nil {
			t.Fatal(err)
		}
		permit("not today")
		if e := <-answers; !strings.Contains(string(e.Payload), "TASK_REJECTED") || !strings.Contains(string(e.Payload), "not today") {
			t.Errorf("what the user denies: %s %s", e.Type, e.Payload)
		}
	}
}
