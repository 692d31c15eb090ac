package simlink_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/testbed/simlink"
	"github.com/parleyhub/parley/tasks"
	"github.com/parleyhub/parley/transport"
)

// relayed is how long a program waits for another agent's answer.
const relayed = 20 * time.Second

// goProgram is a Go program with an agent of a hub, over the coordination library. It outlives its hub, and can be killed.
type goProgram struct {
	f      *federation
	at     *federated
	asks   string // the agent, as its hub knows it, to which the program passes a part of its work; "" for none
	key    identity.PublicKey
	ending sync.WaitGroup

	mu  sync.Mutex
	now *programProcess // nil while it is killed
}

// programProcess is one process of a program.
type programProcess struct {
	of   *goProgram
	host *simlink.Host
	node *parley.Node
	me   *parley.Agent
	life context.Context // ends when it is killed
	die  context.CancelFunc

	mu      sync.Mutex
	open    *channel.Channel                   // to the agent that it asks
	answers map[string]chan *envelope.Envelope // by thread
}

// asked is a request of a program to another agent, with what came back.
type asked struct {
	prompt  string
	target  string
	answers []*envelope.Envelope
}

// start starts a process unless one runs.
func (g *goProgram) start() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.now != nil {
		return
	}
	p := &programProcess{of: g, host: g.f.links.Start(g.key), answers: map[string]chan *envelope.Envelope{}}
	p.life, p.die = context.WithCancel(context.Background())
	endpoint := g.front()
	var err error
	p.node, err = parley.New(parley.Options{Channels: channel.Options{Dialers: map[agent.Transport]transport.Dialer{endpoint.Transport: p.host.Link().Dialer}}})
	if err == nil {
		card := agent.Card{ID: "program", Name: "Program", Version: "1", Tier: agent.L3, Protocols: []string{tasks.Public}, Capabilities: []agent.Capability{}}
		p.me, err = p.node.Join(card, p.receive)
	}
	if err != nil {
		panic(fmt.Sprintf("the program of %s does not start: %v", g.at.name, err))
	}
	g.now = p
	g.ending.Go(func() {
		for p.life.Err() == nil {
			_ = p.me.ServeTasks(p.life, endpoint, p.do) // the hub may be away at first
			wait.Pause(p.life, 100*time.Millisecond)
		}
		_ = p.node.Close(context.Background()) // it was killed
	})
}

// front returns where the hub accepts programs.
func (g *goProgram) front() agent.Endpoint { return simlink.Endpoint(g.at.front) }

// kill kills the process: it reaches nobody any more.
func (g *goProgram) kill() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.now != nil {
		g.now.host.Kill()
		g.now.die()
		g.now = nil
	}
}

// do does a task: it says some words, asks if it is told to, passes a part on, and answers.
func (p *programProcess) do(ctx context.Context, t *tasks.Task) (tasks.Answer, error) {
	records := p.of.f.records
	x := records.note(&execution{prompt: t.Text, task: t.ID, turn: t.Turn, by: p, life: p.life})
	if x == nil {
		return tasks.Answer{}, context.Canceled
	}
	t.Report("half of it", 50)
	if !wait.Pause(ctx, lengthOf(x.prompt)) {
		return tasks.Answer{}, ctx.Err()
	}
	if asks(x.prompt) && t.Turn == 1 {
		return tasks.Question("which one?"), nil
	}
	said := "did " + x.prompt
	if p.of.asks != "" && strings.Contains(x.prompt, "relay") {
		said += " with " + p.relay(ctx, fmt.Sprintf("%s-of-%s 1s", strings.Fields(x.prompt)[0], t.ID))
	}
	if ctx.Err() != nil || !records.change(x, func() { x.said = said }) {
		return tasks.Answer{}, context.Canceled
	}
	return tasks.Text(said), nil
}

// relay gives a part of a task to another agent and returns the answer, or what is known without one.
func (p *programProcess) relay(ctx context.Context, prompt string) string {
	ctx, cancel := context.WithTimeout(ctx, relayed)
	defer cancel()
	a := p.of.f.records.asks(prompt+" "+p.of.f.number(), p.of.asks)
	if err := p.connect(ctx); err != nil {
		return "nobody: " + err.Error()
	}
	answers, err := p.send(ctx, a)
	if err != nil {
		return "nobody: " + err.Error()
	}
	select {
	case e := <-answers:
		p.of.f.records.answered(p, a, e)
		select { // one more would be one too many
		case e := <-answers:
			p.of.f.records.answered(p, a, e)
		case <-time.After(time.Second):
		}
		return fmt.Sprintf("%s %s", e.Type, e.Payload)
	case <-ctx.Done():
		return "no answer"
	}
}

// send sends a request, and returns where its answers arrive.
func (p *programProcess) send(ctx context.Context, a *asked) (<-chan *envelope.Envelope, error) {
	me, _ := p.node.Registry().Identity(p.me.ID())
	e, err := envelope.NewFactory(me).New(a.target, envelope.Request, a.prompt)
	if err != nil {
		return nil, err
	}
	_, err = p.node.Router().Send(ctx, e)
	return p.answersOf(e.Thread()), err
}

// connect opens the channel to the agent that the program asks, unless it is open.
func (p *programProcess) connect(ctx context.Context) error {
	p.mu.Lock()
	c := p.open
	p.mu.Unlock()
	if c != nil && c.Status() != channel.Closed {
		return c.Ready(ctx)
	}
	c, err := p.node.Connect(ctx, p.me.ID(), p.of.asks, p.of.front())
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.open = c
	p.mu.Unlock()
	return nil
}

// answersOf returns where the answers of a thread arrive.
func (p *programProcess) answersOf(thread string) chan *envelope.Envelope {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.answers[thread] == nil {
		p.answers[thread] = make(chan *envelope.Envelope, 8)
	}
	return p.answers[thread]
}

func (p *programProcess) receive(_ context.Context, e *envelope.Envelope) {
	if e.Type == envelope.Response || e.Type == envelope.ErrorMessage {
		p.answersOf(e.Thread()) <- e // nobody sends eight
	}
}

// asks notes a request of a program.
func (r *records) asks(prompt, target string) *asked {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := &asked{prompt: prompt, target: target}
	r.asked = append(r.asked, a)
	return a
}

// answered notes an answer, unless the program was killed.
func (r *records) answered(p *programProcess, a *asked, e *envelope.Envelope) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.life.Err() == nil {
		a.answers = append(a.answers, e)
	}
}

// number returns another number with each call.
func (f *federation) number() string { return fmt.Sprint(f.numbers.Add(1)) }

// checkAsked returns the promises about a program's request that were broken: it is done once, as one task, and an answer is what the other
// agent has said.
func (f *federation) checkAsked(a *asked) (broken []string) {
	say := func(format string, args ...any) {
		broken = append(broken, fmt.Sprintf("the program's request %q to %s: ", a.prompt, a.target)+fmt.Sprintf(format, args...))
	}
	done := f.records.of(a.prompt)
	if len(done) > 1 {
		say("it was done %d times", len(done))
	}
	if len(a.answers) > 1 {
		say("it has %d answers", len(a.answers))
	}
	for _, e := range a.answers {
		if e.Type != envelope.Response {
			continue
		}
		var answer struct{ Text string }
		if err := e.Unmarshal(&answer); err != nil || len(done) == 0 || done[0].said == "" || !strings.HasSuffix(done[0].said, answer.Text) || answer.Text == "" {
			say("the answer %s is of nobody: %v", e.Payload, done)
		}
	}
	return broken
}
