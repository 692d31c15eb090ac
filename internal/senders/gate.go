// Package senders decides whose tasks the hub's sessions and connected programs get: those of others than the hub's own user
// wait until the user has allowed their sender, unless the configuration has another rule.
package senders

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// Rule is what happens to a task of a sender who is not the hub's own user.
type Rule string

// The rules.
const (
	Ask   Rule = "ask" // the task waits until the user has answered
	Allow Rule = "allow"
	Deny  Rule = "deny"
)

// Policy says who may give tasks to sessions and connected programs, besides the hub's own user and the user's agents, who always may. A rule that
// is empty or unknown asks.
type Policy struct {
	Outside Rule // for peers, programs and clients on other computers
	Clients Rule // for clients on this computer
}

// rule returns the rule for a sender, and the key of the configuration that sets it.
func (p Policy) rule(s hub.Sender) (rule Rule, key string) {
	if s.Outside() {
		return p.Outside, "sessions.outside"
	}
	return p.Clients, "sessions.clients"
}

// codeRejected is the code of a task that the policy refuses.
const codeRejected runner.Code = "rejected"

// maxExcerpt bounds what the question about a sender shows of its task, in bytes.
const maxExcerpt = 4000

// The most tasks that an agent has at once from senders outside, so that these cannot keep it from its user.
const (
	maxOutside   = 50 // of all
	maxPerSender = 20
)

// Options are those of [Open]. Hub and Path are required.
type Options struct {
	Hub    *hub.Hub
	Path   string // the file of the senders that are always allowed
	Policy Policy
	Logger *slog.Logger // nil discards
	// Damaged is called if the file was damaged; nil for nobody.
	Damaged func(statefile.Damage)
}

// Gate decides whose tasks the hub's sessions and connected programs get. It is safe for concurrent use.
type Gate struct {
	hub    *hub.Hub
	policy Policy
	log    *slog.Logger
	list   *list

	mu      sync.Mutex
	outside map[*Visit]struct{} // also those that are not permitted yet
}

// Open reads the senders that are always allowed.
func Open(o Options) (*Gate, error) {
	allowed, err := read(o.Path, o.Damaged)
	if err != nil {
		return nil, err
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Gate{hub: o.Hub, policy: o.Policy, log: o.Logger.With("component", "senders"), list: allowed, outside: make(map[*Visit]struct{})}, nil
}

// Visit is a turn of a task that a sender gives to an agent.
type Visit struct {
	Agent  string // its id at the hub
	Task   a2a.TaskID
	Turn   int
	Prompt string
	Sender hub.Sender // set by [Gate.Permit]

	of *Gate
}

// Permit blocks until the agent may be given the task, and sets its sender. The error is the task's end, or that of ctx. Call
// [Visit.Leave] after the turn, whatever Permit returns.
func (g *Gate) Permit(ctx context.Context, v *Visit, h runner.Handler) error {
	v.of = g
	none := 0
	task, err := g.hub.Task(ctx, v.Task, &none)
	if err != nil {
		return err
	}
	v.Sender = hub.SenderOf(task.Metadata)
	if v.Sender.Own() {
		return nil
	}
	rule, key := g.policy.rule(v.Sender)
	if rule == Deny {
		return v.denied("its hub's configuration denies it", "ask the hub's user to set "+key+" in the configuration of their hub")
	}
	if err := g.enter(v); err != nil || rule == Allow || hub.Permitted(task.Metadata) {
		return err
	}
	return g.ask(ctx, v, h)
}

// The options of the question about a sender.
const (
	optionAllow  = "allow"
	optionAlways = "always"
	optionDeny   = "deny"
)

// ask asks the user whether the sender may give the agent tasks. Its question has the same id after a restart.
func (g *Gate) ask(ctx context.Context, v *Visit, h runner.Handler) error {
	allowed, known := g.list.wait(v.Sender)
	defer g.list.unwait(v.Sender, allowed)
	if known {
		return nil
	}
	input, err := json.Marshal(map[string]string{"task": text.Clip(v.Prompt, maxExcerpt)})
	if err != nil {
		return err
	}
	g.log.Info("a task waits until the user has answered whether its sender may give it to the agent", "task", v.Task, "agent", v.Agent,
		"sender", v.Sender.String(), "remedy", local.Program()+" task show "+string(v.Task))
	a, err := h.Permission(ctx, runner.PermissionRequest{
		ID:        fmt.Sprintf("sender-%d", v.Turn),
		Title:     fmt.Sprintf("May %s give %s this task?", v.Sender, v.Agent),
		Tool:      runner.ToolCall{Input: input},
		Sender:    true,
		Permitted: allowed,
		Options: []runner.PermissionOption{
			{ID: optionAllow, Name: "Allow this task", Kind: runner.AllowOnce},
			{ID: optionAlways, Name: "Always allow this sender", Kind: runner.AllowAlways},
			{ID: optionDeny, Name: "Deny", Kind: runner.RejectOnce},
		},
	})
	switch {
	case err != nil:
		return err
	case a.OptionID == optionAllow:
		return nil
	case a.OptionID == optionAlways:
		if err := g.list.add(v.Sender); err != nil { // the user has allowed this task in any case
			g.log.Error("a sender could not be stored: the user is asked again for its next task", "sender", v.Sender.String(), "error", err)
		}
		return nil
	}
	return v.denied(cmp.Or(text.OneLine(a.Message), "its user denied it"), "ask the hub's user")
}

// denied returns the end of a task that may not be given to the agent.
func (v *Visit) denied(why, remedy string) error {
	return &runner.Error{Code: codeRejected, Message: fmt.Sprintf("%s takes no tasks of %s: %s", v.Agent, v.Sender, why), Remedy: remedy}
}

// enter counts a turn for a sender outside. The error says that there are too many.
func (g *Gate) enter(v *Visit) error {
	if !v.Sender.Outside() {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	all, same := 0, 0
	for other := range g.outside {
		if other.Agent != v.Agent {
			continue
		}
		all++
		if other.Sender.Same(v.Sender) {
			same++
		}
	}
	if all >= maxOutside || same >= maxPerSender {
		return &runner.Error{Code: runner.CodeUnavailable, Message: fmt.Sprintf("%s has too many unfinished tasks of %s or others outside", v.Agent, v.Sender),
			Remedy: "wait until it has answered some, or cancel some; then send the message again"}
	}
	g.outside[v] = struct{}{}
	return nil
}

// Leave ends the count of a turn.
func (v *Visit) Leave() {
	if v.of == nil {
		return
	}
	v.of.mu.Lock()
	defer v.of.mu.Unlock()
	delete(v.of.outside, v)
}

// Refused returns the outcome of a turn for which [Gate.Permit] has returned an error.
func Refused(ctx context.Context, err error) (runner.Outcome, error) {
	out := runner.Outcome{Status: runner.OutcomeRejected, ExitCode: -1}
	if ctx.Err() != nil {
		out.Status, err = runner.OutcomeCanceled, nil
	}
	return out, err
}

// Allowed returns the senders that the user has always allowed, in the order in which that was.
func (g *Gate) Allowed() []Allowed { return g.list.all() }

// Revoke ends the permission of a sender: the user is asked again for its next task. Tasks that the user has allowed
// already stay allowed. The id may be shortened to what is unique; the error is hub.CodeInvalid for any other.
func (g *Gate) Revoke(id string) (Allowed, error) {
	x, err := g.list.remove(id)
	if err == nil {
		g.log.Info("a sender is not always allowed any more", "sender", x.Sender.String())
	}
	return x, err
}
