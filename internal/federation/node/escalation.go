package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/registry"
	"github.com/parleyhub/parley/swarm"
)

// EscalationAgent is the id of the agent whose tasks ask what to do about sub-tasks that no agent could do. It is
// registered when the first one asks.
const EscalationAgent = "swarm-coordinator"

// The options of a question besides agents, whose ids they cannot be.
const (
	optionRetry  = ":retry"
	optionGiveUp = ":give-up"
)

// maxOffered is how many other agents a question offers. An answer may name any.
const maxOffered = 8

// escalations is the Reporter of the hub's coordinator: it asks the submitter of a swarm, by a task that is
// input-required until it is answered. It is also the agent of these tasks. A question that is open when the hub stops
// fails with it; the next hub that leads the swarm asks again.
type escalations struct {
	hub      *hub.Hub
	log      *slog.Logger
	registry *registry.Registry

	mu    sync.Mutex
	asked map[string]*escalation // by message id
}

var _ swarm.Redirector = (*escalations)(nil)

// escalation is one question.
type escalation struct {
	request runner.PermissionRequest
	decided chan decision // buffers the decision
}

type decision struct {
	again bool
	to    string
}

// Finished implements [swarm.Reporter]: whoever submitted the swarm follows it.
func (e *escalations) Finished(context.Context, swarm.Session) {}

// Escalate implements [swarm.Reporter].
func (e *escalations) Escalate(ctx context.Context, s swarm.Session, t swarm.SubTask) bool {
	again, _ := e.Redirect(ctx, s, t)
	return again
}

// Redirect implements [swarm.Redirector]. It blocks until the question is answered, its task is canceled or ctx ends.
func (e *escalations) Redirect(ctx context.Context, s swarm.Session, t swarm.SubTask) (again bool, to string) {
	if s.Unattended {
		return false, ""
	}
	err := e.register()
	if err == nil {
		var d decision
		if d, err = e.ask(ctx, s, t); err == nil {
			return d.again, d.to
		}
	}
	if ctx.Err() == nil {
		e.log.Error("nobody can be asked about a sub-task that no agent could do; it fails", "swarm", s.ID, "subTask", t.ID, "error", err)
	}
	return false, ""
}

// register registers the agent of the questions, unless it is.
func (e *escalations) register() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if info, err := e.hub.Agent(EscalationAgent); err == nil {
		if info.Definition.Driver != runner.DriverSwarm {
			return fmt.Errorf("the configuration has an agent with the id %s", EscalationAgent)
		}
		return nil
	}
	const most = 1000 // open questions, of all swarms
	return e.hub.Register(hub.Agent{Runner: e, Definition: runner.Definition{
		ID: EscalationAgent, Name: "Swarm coordinator", Driver: runner.DriverSwarm, Description: "Asks what to do when a swarm cannot go on.",
		WorkDir: runner.WorkDirSpec{Policy: runner.WorkDirContext}, Limits: runner.Limits{Concurrency: most, Queue: most},
	}})
}

// ask asks and waits for the decision.
func (e *escalations) ask(ctx context.Context, s swarm.Session, t swarm.SubTask) (decision, error) {
	x := &escalation{request: e.question(s, t), decided: make(chan decision, 1)}
	m := a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart(x.request.Title))
	e.mu.Lock()
	e.asked[m.ID] = x
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.asked, m.ID)
	}()
	about := map[string]any{"swarm": map[string]any{"id": s.ID, "subTask": t.ID, "attempt": t.Attempt}}
	task, err := e.hub.Send(ctx, hub.SendRequest{AgentID: EscalationAgent, Message: m, Metadata: about})
	if err != nil {
		return decision{}, err
	}
	end, err := e.await(ctx, task.ID)
	if ctx.Err() != nil { // the swarm was stopped, or another hub leads it
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
		defer cancel()
		if _, err := e.hub.Cancel(stop, task.ID); err != nil && hub.CodeOf(err) != hub.CodeNotCancelable {
			e.log.Warn("a question about a swarm that has ended stays open", "task", task.ID, "error", err)
		}
		return decision{}, ctx.Err()
	}
	if err != nil {
		return decision{}, err
	}
	select {
	case d := <-x.decided:
		return d, nil
	default:
		return decision{}, errors.New(failureOf(end).Message)
	}
}

// await blocks until a task has ended.
func (e *escalations) await(ctx context.Context, id a2a.TaskID) (*a2a.Task, error) {
	for {
		sub, err := e.hub.Subscribe(ctx, id)
		if err != nil {
			return nil, err
		}
		if now := sub.Task(); now.Status.State.Terminal() {
			sub.Close()
			return now, nil
		}
		for err == nil { // up to the end or an interruption
			_, err = sub.Next(ctx)
		}
		sub.Close()
		if !errors.Is(err, io.EOF) {
			return nil, err
		}
	}
}

// question describes a sub-task that no agent could do, with what can be done about it.
func (e *escalations) question(s swarm.Session, t swarm.SubTask) runner.PermissionRequest {
	why := "no agent can do it"
	switch {
	case t.Error != "":
		why = "it has failed " + text.Count(t.Attempt, "time") + ", most recently: " + text.Cut(text.OneLine(t.Error), maxQuestion)
	case len(t.RequiredCapabilities) > 0:
		why += ": it requires " + strings.Join(t.RequiredCapabilities, ", ")
	}
	input, err := json.Marshal(map[string]any{"swarm": s.ID, "subTask": t.ID, "task": text.Cut(t.Description, maxQuestion), "attempts": t.Attempt, "lastAgent": t.AssignedAgent})
	if err != nil {
		input = nil // these values always marshal
	}
	q := runner.PermissionRequest{
		ID: s.ID + " " + t.ID, Title: fmt.Sprintf("The swarm cannot go on with %q: %s. Try again?", text.Cut(t.ID, 64), why),
		Tool:    runner.ToolCall{ID: t.ID, Name: "swarm", Input: input},
		Options: []runner.PermissionOption{{ID: optionRetry, Name: "Try again", Kind: runner.AllowOnce}},
	}
	for _, id := range e.others(t) {
		q.Options = append(q.Options, runner.PermissionOption{ID: id, Name: "Give it to " + id, Kind: runner.AllowOnce})
	}
	q.Options = append(q.Options, runner.PermissionOption{ID: optionGiveUp, Name: "Give up: the swarm fails", Kind: runner.RejectOnce})
	return q
}

// others lists agents that may do a sub-task instead of its last one.
func (e *escalations) others(t swarm.SubTask) []string {
	var ids []string
	for _, info := range e.hub.Agents() {
		id := info.Definition.ID
		card, err := e.registry.Get(id)
		if id == t.AssignedAgent || err != nil || info.Health.Status == hub.Unhealthy {
			continue
		}
		if _, lacking := lacks(card, t.RequiredCapabilities); !lacking {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids[:min(len(ids), maxOffered)]
}

// Probe implements [runner.Agent].
func (e *escalations) Probe(context.Context) runner.Probe {
	return runner.Probe{Stage: runner.StageAuthenticated, AuthKnown: true}
}

// Open implements [runner.Agent].
func (e *escalations) Open(runner.SessionSpec) (runner.Session, error) {
	return escalationSession{e}, nil
}

type escalationSession struct{ e *escalations }

// Close implements [runner.Session].
func (escalationSession) Close(context.Context) error { return nil }

// Turn implements [runner.Session]: it asks the question that belongs to the message.
func (s escalationSession) Turn(ctx context.Context, turn runner.Turn, h runner.Handler) (runner.Outcome, error) {
	s.e.mu.Lock()
	x := s.e.asked[turn.MessageID]
	s.e.mu.Unlock()
	if x == nil {
		return runner.Outcome{Status: runner.OutcomeRejected, Text: "This agent only asks what to do about swarms that cannot go on; it takes no tasks.", ExitCode: -1}, nil
	}
	answer, err := h.Permission(ctx, x.request)
	if err != nil {
		x.decided <- decision{}
		if errors.Is(err, context.Canceled) || ctx.Err() != nil {
			return runner.Outcome{Status: runner.OutcomeCanceled, ExitCode: -1}, nil
		}
		return runner.Outcome{Status: runner.OutcomeFailed, ExitCode: -1}, &runner.Error{Code: runner.CodeInternal, Message: "the question could not be asked", Err: err}
	}
	d, said := s.e.decide(answer)
	x.decided <- d
	return runner.Outcome{Status: runner.OutcomeCompleted, Text: said, ExitCode: -1}, nil
}

// decide reads an answer: an option, or the id of an agent.
func (e *escalations) decide(answer runner.PermissionAnswer) (d decision, said string) {
	chosen := answer.OptionID
	if word := strings.TrimSpace(answer.Message); chosen == optionGiveUp && word != "" { // a free text
		if _, err := e.hub.Agent(word); err == nil {
			chosen = word
		}
	}
	switch chosen {
	case optionGiveUp:
		return decision{}, "The swarm gives up, and fails."
	case optionRetry:
		return decision{again: true}, "The swarm tries again."
	}
	return decision{again: true, to: chosen}, "The swarm tries again, with " + chosen + "."
}
