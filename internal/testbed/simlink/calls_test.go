package simlink_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub"
)

// given is a task that a caller has given to another hub's agent.
type given struct {
	agent  string
	prompt string
	id     a2a.TaskID
	limit  time.Duration

	acknowledged bool
	cancels      bool // the caller has canceled it, with whatever answer
	orphaned     bool // its hub did not know the agent then: it has started again, and the other hub could not be reached

	answers  map[string]*a2a.Message // of the caller, by the id of the question
	answered string                  // the question whose answer was acknowledged

	mu       sync.Mutex
	observed []string // what its caller has seen, if that has changed
	last     a2a.TaskState
	backward []string // changes that must not be
}

func (g *given) done() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last.Terminal()
}

// rank orders the states: a task never goes back.
func rank(s a2a.TaskState) int {
	switch {
	case s.Terminal():
		return 2
	case s == a2a.TaskStateSubmitted, s == a2a.TaskStateUnspecified:
		return 0
	}
	return 1
}

// see notes a state that the caller sees.
func (g *given) see(s a2a.TaskStatus) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := string(s.State) + " " + textOf(s.Message)
	if n := len(g.observed); n > 0 {
		before := g.observed[n-1]
		if rank(s.State) < rank(g.last) || g.last.Terminal() && now != before {
			g.backward = append(g.backward, before+" -> "+now)
		}
		if before == now {
			return
		}
	}
	g.observed, g.last = append(g.observed, now), s.State
}

func textOf(m *a2a.Message) string {
	if m == nil {
		return ""
	}
	var b strings.Builder
	for _, p := range m.Parts {
		if t, ok := p.Content.(a2a.Text); ok {
			b.WriteString(string(t))
		}
	}
	return b.String()
}

// call gives tasks to the other hubs' agents until ctx ends, and follows each to its end.
func (f *federation) call(ctx context.Context, caller int, random *rand.Rand) {
	var following sync.WaitGroup
	for number := 0; wait.Pause(ctx, time.Duration(random.IntN(2500))*time.Millisecond); number++ {
		g := &given{answers: map[string]*a2a.Message{}, agent: f.targets[random.IntN(len(f.targets))], limit: time.Duration(10+random.IntN(60)) * time.Second}
		words := []string{fmt.Sprintf("%d-%d", caller, number), time.Duration(random.ExpFloat64() * float64(2*time.Second)).Round(time.Millisecond).String()}
		if random.IntN(3) == 0 {
			words = append(words, "ask")
		}
		if random.IntN(4) == 0 {
			words = append(words, "gate")
		}
		if random.IntN(2) == 0 {
			words = append(words, "relay")
		}
		g.prompt = strings.Join(words, " ")
		g.id = hub.OnceID(g.agent, g.prompt)
		f.mu.Lock()
		f.given = append(f.given, g)
		f.mu.Unlock()
		cancelAfter := time.Duration(0)
		if random.IntN(5) == 0 {
			cancelAfter = time.Duration(random.IntN(6000)) * time.Millisecond
		}
		following.Go(func() { f.follow(ctx, g, cancelAfter, rand.New(rand.NewPCG(f.seed, uint64(caller*1000+number)))) })
	}
	following.Wait()
}

// follow gives a task, and watches it to its end, also after ctx.
func (f *federation) follow(ctx context.Context, g *given, cancelAfter time.Duration, random *rand.Rand) {
	for ctx.Err() == nil && !g.acknowledged {
		if p := f.alice.process(); p != nil {
			calling, cancel := context.WithTimeout(p.life, 10*time.Second)
			_, err := p.hub.Send(calling, hub.SendRequest{AgentID: g.agent, Message: g.message(g.prompt), Timeout: g.limit})
			cancel()
			g.acknowledged = err == nil && p.life.Err() == nil
		}
		wait.Pause(ctx, 200*time.Millisecond)
	}
	if !g.acknowledged {
		return
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), federatedEnd/2)
	defer cancel()
	if cancelAfter > 0 {
		stop := time.AfterFunc(cancelAfter, func() { f.cancel(last, g) })
		defer stop.Stop()
	}
	for !g.done() && wait.Pause(last, time.Duration(20+random.IntN(300))*time.Millisecond) {
		if p := f.alice.process(); p != nil {
			f.look(p, g, random)
		}
	}
}

// message returns the message that begins the task.
func (g *given) message(text string) *a2a.Message {
	m := a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart(text))
	m.ID = g.prompt
	m.Metadata = map[string]any{hub.MetaOnce: g.prompt}
	return m
}

// look follows the task at a process until that is killed, or the task has ended or asks; it answers a question.
func (f *federation) look(p *hubProcess, g *given, random *rand.Rand) {
	sub, err := p.hub.Subscribe(p.life, g.id)
	if err != nil {
		return
	}
	defer sub.Close()
	now := sub.Task().Status
	for {
		if p.life.Err() != nil { // what a killed process says reaches nobody
			return
		}
		g.see(now)
		if hub.Interrupted(now.State) && now.Message != nil && now.Message.ID != g.answered {
			f.answer(p, g, now.Message, random)
			return
		}
		event, err := sub.Next(p.life)
		if err != nil {
			return
		}
		switch e := event.(type) {
		case *a2a.Task:
			now = e.Status
		case *a2a.TaskStatusUpdateEvent:
			now = e.Status
		}
	}
}

// answer answers a question once, after a while at times. It repeats an answer that may be lost unless the task has it.
func (f *federation) answer(p *hubProcess, g *given, question *a2a.Message, random *rand.Rand) {
	if random.IntN(2) == 0 && !wait.Pause(p.life, time.Duration(random.IntN(5000))*time.Millisecond) {
		return
	}
	m := g.answers[question.ID]
	if m == nil {
		m = a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart([]string{"allow", "deny"}[random.IntN(2)]))
		m.TaskID = g.id
		g.answers[question.ID] = m
	}
	calling, cancel := context.WithTimeout(p.life, 10*time.Second)
	defer cancel()
	task, err := p.hub.Task(calling, g.id, nil)
	if err != nil || slices.ContainsFunc(task.History, func(x *a2a.Message) bool { return x.ID == m.ID }) {
		return
	}
	_, err = p.hub.Send(calling, hub.SendRequest{Message: m, Timeout: g.limit})
	if p.life.Err() == nil && err == nil {
		g.answered = question.ID
	}
}

// cancel cancels a task, again and again until a hub has answered.
func (f *federation) cancel(ctx context.Context, g *given) {
	for ctx.Err() == nil && !g.done() {
		if p := f.alice.process(); p != nil {
			g.mu.Lock()
			g.cancels, g.orphaned = true, g.orphaned || !p.hub.HasAgent(g.agent)
			g.mu.Unlock()
			calling, cancel := context.WithTimeout(p.life, 20*time.Second)
			_, err := p.hub.Cancel(calling, g.id)
			cancel()
			if p.life.Err() == nil && (err == nil || hub.CodeOf(err) == hub.CodeNotCancelable) {
				return
			}
		}
		wait.Pause(ctx, 200*time.Millisecond)
	}
}

// guard is a hub's user, who decides whether senders may ask the session and the program.
func (h *federated) guard(ctx context.Context, random *rand.Rand) {
	for wait.Pause(ctx, time.Duration(random.IntN(2000))*time.Millisecond) {
		p := h.process()
		if p == nil {
			continue
		}
		page, err := p.hub.Tasks(ctx, hub.TaskQuery{State: a2a.TaskStateAuthRequired})
		if err != nil {
			continue
		}
		for _, task := range page.Tasks {
			said := "allow"
			if random.IntN(3) == 0 {
				said = "deny"
			}
			m := a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart(said))
			m.TaskID = task.ID
			calling, cancel := context.WithTimeout(p.life, 5*time.Second)
			_, _ = p.hub.Send(calling, hub.SendRequest{Message: m}) // it asks again otherwise
			cancel()
		}
	}
}

// broken returns the promises that were broken.
func (f *federation) broken() (all []string) {
	for _, g := range f.given {
		for _, b := range f.check(g) {
			all = append(all, fmt.Sprintf("%s %q (%s): %s; seen: %q", g.agent, g.prompt, g.id, b, g.observed))
		}
	}
	for _, a := range f.records.asked {
		all = append(all, f.checkAsked(a)...)
	}
	for _, h := range f.hubs {
		for _, task := range h.stored {
			g := f.of(task.ID)
			if !task.Status.State.Terminal() && (g == nil || !f.excused(task, g)) {
				all = append(all, fmt.Sprintf("%s has task %s for ever: %s; %s", h.name, task.ID, stateOf(task), f.origin(g)))
			}
		}
	}
	return all
}

// of returns the caller's task that a task at one of the hubs is about.
func (f *federation) of(id a2a.TaskID) *given {
	for _, g := range f.given {
		if g.id == id {
			return g
		}
		for _, x := range f.records.of(g.prompt) {
			if a2a.TaskID(x.task) == id {
				return g
			}
		}
	}
	return nil
}

// origin describes a caller's task.
func (f *federation) origin(g *given) string {
	if g == nil {
		return "nobody has given it"
	}
	return fmt.Sprintf("it is of %s %q, %s; seen: %q", g.agent, g.prompt, stateOf(f.alice.stored[g.id]), g.observed)
}

// excused reports whether a task may wait for ever: its question, for the answer of a caller who does not know that the task
// was accepted, or whose hub was killed, so that a program's task has failed there, and goes on at the other hub, or was canceled
// while the other hub was unknown.
func (f *federation) excused(task *a2a.Task, g *given) bool {
	here := f.alice.stored[g.id]
	return hub.Interrupted(task.Status.State) && (!g.acknowledged || g.orphaned ||
		strings.HasSuffix(g.agent, ".worker") && here.Status.State == a2a.TaskStateFailed && strings.Contains(textOf(here.Status.Message), "the hub stopped"))
}

// check returns the promises about a task that were broken.
func (f *federation) check(g *given) (broken []string) {
	say := func(format string, args ...any) { broken = append(broken, fmt.Sprintf(format, args...)) }
	task := f.alice.stored[g.id]
	switch {
	case task == nil && g.acknowledged:
		say("it is lost")
	case task == nil:
		return nil
	}
	for _, b := range g.backward {
		say("it has gone back: %s", b)
	}
	tasks := map[string]bool{}
	type turn struct {
		task string
		turn int
		by   any
	}
	turns := map[turn]int{}
	said := map[string]bool{}
	for _, x := range f.records.of(g.prompt) {
		tasks[x.task] = true
		if x.said != "" {
			said[x.said] = true
		}
		by := x.by
		if strings.HasSuffix(g.agent, ".worker") {
			by = nil // not even by another process
		}
		turns[turn{x.task, x.turn, by}]++
	}
	if len(tasks) > 1 {
		say("it was done as %d tasks", len(tasks))
	}
	for turn, n := range turns {
		if n > 1 && !strings.HasSuffix(g.agent, ".session") {
			say("turn %d of %s was done %d times", turn.turn, turn.task, n)
		}
	}
	if task == nil {
		return broken
	}
	text := textOf(task.Status.Message)
	var there *a2a.Task
	for id := range tasks {
		there = f.hubOf(g.agent).stored[a2a.TaskID(id)]
	}
	switch task.Status.State {
	case a2a.TaskStateCompleted:
		if there == nil || there.Status.State != a2a.TaskStateCompleted || !strings.HasSuffix(textOf(there.Status.Message), text) {
			say("completed with %q, but there it is %s", text, stateOf(there))
		}
	case a2a.TaskStateCanceled:
		if !g.cancels {
			say("nobody has canceled it")
		}
	case a2a.TaskStateFailed:
		if there != nil && there.Status.State == a2a.TaskStateCompleted && !slices.ContainsFunc(admitted, func(s string) bool { return strings.Contains(text, s) }) {
			say("failed with %q, but there it is %s", text, stateOf(there))
		}
	}
	return broken
}

// admitted are parts of the failures that leave open what has happened at the other hub.
var admitted = []string{"may still run there", "the hub stopped", "has not answered by its deadline", "did not end within"}

func stateOf(task *a2a.Task) string {
	if task == nil {
		return "not there"
	}
	return fmt.Sprintf("%s %q", task.Status.State, textOf(task.Status.Message))
}
