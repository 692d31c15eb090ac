package programs

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/federation/exchange"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/senders"
	"github.com/parleyhub/parley/tasks"
)

// program is the agent of a connected program.
type program struct {
	of     *Programs
	id     string // at the hub
	cardID string

	returned wait.Signal // sent when the program is connected again

	mu     sync.Mutex
	card   agent.Card // the last one
	online bool
	seen   time.Time // when it was last connected; zero while it is
}

// changed takes over what is known now, and reports whether that is new.
func (x *program) changed(card agent.Card, online bool) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	card.LastSeenAt = x.card.LastSeenAt
	if x.online == online && x.card.Equal(card) {
		return false
	}
	switch {
	case online:
		x.seen = time.Time{}
		x.returned.Send()
	case x.online:
		x.seen = time.Now().UTC().Round(0)
	}
	x.card, x.online = card, online
	return true
}

func (x *program) lastSeen() time.Time {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.seen
}

// definition returns the agent's definition. The texts are the program's.
func (x *program) definition() runner.Definition {
	x.mu.Lock()
	defer x.mu.Unlock()
	tier := x.card.Tier.Level()
	d := runner.Definition{
		ID: x.id, Name: text.Clip(cmp.Or(strings.TrimSpace(x.card.Name), x.id), maxDescriptor), Description: x.card.Description, Driver: runner.DriverLibrary,
		Tier: &tier, Sandbox: x.card.SandboxID, Permissions: runner.PermissionsAsk, WorkDir: runner.WorkDirSpec{Policy: runner.WorkDirContext},
		Limits: runner.Limits{Run: Deadline, Idle: Deadline, Concurrency: maxTasks, Queue: maxQueue},
	}
	for _, c := range x.card.Capabilities {
		d.Capabilities = append(d.Capabilities, runner.Capability{ID: c.ID, Name: c.Name, Description: c.Description})
	}
	return d
}

// public reports whether the program lets others than the hub's user and agents see its agent. mu is held.
func (x *program) public() bool { return slices.Contains(x.card.Protocols, tasks.Public) }

// residence returns where the agent is.
func (x *program) residence() hub.Residence {
	x.mu.Lock()
	defer x.mu.Unlock()
	at := hub.Residence{Kind: hub.KindLibrary, Computer: x.of.computer, Offline: !x.online, Hidden: !x.public()}
	if handle := strings.ToLower(x.cardID); runner.ValidID(handle) {
		at.Handle = handle
	}
	if x.public() {
		at.Visibility = "public"
	}
	if at.Offline {
		at.Seen = x.seen
	}
	return at
}

// Probe implements [runner.Agent].
func (x *program) Probe(context.Context) runner.Probe {
	x.mu.Lock()
	defer x.mu.Unlock()
	version := text.Clip(x.card.Version, maxDescriptor)
	if !x.online {
		return runner.Probe{Stage: runner.StageMissing, Version: version, Err: &runner.Error{Code: runner.CodeNotInstalled,
			Message: "the program is not connected", Remedy: "its tasks wait until it connects again: start it"}}
	}
	return runner.Probe{Stage: runner.StageAuthenticated, Version: version, AuthKnown: true}
}

// Open implements [runner.Agent].
func (x *program) Open(spec runner.SessionSpec) (runner.Session, error) {
	r := &exchange.Route{
		Agent: x.cardID, At: "the program", Durable: true, Hub: x.of.hub, Contact: x.contact,
		Sender:   func(agent.Tier) *exchange.Sender { return x.of.asker() },
		Chain:    func(chain []string) []string { return chain },
		Abandon:  func(string, int) {}, // the program's next connection begins without the task
		Returned: &x.returned, Describe: x.describe,
	}
	return &conversation{r.Open(spec.ContextID), x}, nil
}

// conversation is a context of the hub with a program.
type conversation struct {
	runner.Session
	with *program
}

// Turn implements [runner.Session]. The program gets the task when its sender is permitted.
func (c *conversation) Turn(ctx context.Context, turn runner.Turn, h runner.Handler) (runner.Outcome, error) {
	prompt, perr := runner.PromptText(turn.Parts, runner.Limits{}.WithDefaults().MaxPrompt)
	if perr != nil {
		return runner.Outcome{Status: runner.OutcomeFailed, ExitCode: -1}, perr
	}
	v := senders.Visit{Agent: c.with.id, Task: a2a.TaskID(turn.TaskID), Turn: turn.Number, Prompt: prompt}
	defer v.Leave()
	if err := c.with.of.gate.Permit(ctx, &v, h); err != nil {
		return senders.Refused(ctx, err)
	}
	return c.Session.Turn(ctx, turn, h)
}

func (p *Programs) asker() *exchange.Sender {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sender
}

// contact returns whether the agent can be asked now.
func (x *program) contact() exchange.Contact {
	x.mu.Lock()
	defer x.mu.Unlock()
	return exchange.Contact{Tier: x.card.Tier, Keyed: true, Ready: x.online && x.of.asker() != nil}
}

// describe adds to a request who asks, and the data that was sent with the text.
func (x *program) describe(ctx context.Context, turn runner.Turn, request map[string]any) {
	none := 0
	task, err := x.of.hub.Task(ctx, a2a.TaskID(turn.TaskID), &none)
	if err == nil {
		if sender := hub.SenderOf(task.Metadata); !sender.Own() {
			request["from"] = sender.String()
		}
	}
	if n := len(turn.Chain); n > 0 && request["from"] == nil {
		request["from"] = turn.Chain[n-1]
	}
	for _, part := range turn.Parts {
		if data, ok := part.Content.(a2a.Data); ok {
			request["data"] = data.Value
			return
		}
	}
}
