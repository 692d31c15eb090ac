// Package loop lets package ralph's loop use a hub: its agents and swarms do the
// items, and a command of the user's validates them.
package loop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/ralph"
	"github.com/parleyhub/parley/swarm"
)

// Hub is what a dispatcher needs of a hub; a [client.Client] is one.
type Hub interface {
	Send(ctx context.Context, p dialect.SendParams) (*dialect.Task, error)
	Task(ctx context.Context, id string) (*dialect.Task, error)
	CreateSwarm(ctx context.Context, p swarm.Plan) (*swarm.Session, error)
	AwaitSwarm(ctx context.Context, id string, after uint64) (*swarm.Session, error)
}

// look is how often a task is asked for.
const look = 250 * time.Millisecond

// Agent dispatches to one agent of a hub.
type Agent struct {
	Hub Hub
	ID  string
	Dir string // that it works in; "" leaves it to the hub
}

// Dispatch implements [ralph.Dispatcher]. The reference is the idempotency key of
// the task.
func (a *Agent) Dispatch(ctx context.Context, j ralph.Job, begins func(string) error) (ralph.Outcome, error) {
	key := uuid.NewString()
	if err := begins(key); err != nil {
		return ralph.Outcome{}, err
	}
	return a.send(ctx, j, key)
}

// Resume implements [ralph.Dispatcher]: the hub takes the same message once, however
// often it comes.
func (a *Agent) Resume(ctx context.Context, j ralph.Job, key string) (ralph.Outcome, error) {
	return again(a.send(ctx, j, key))
}

// errUnfit is in the error of work that failed because nobody could do any: the program
// is missing, say. That is not the fault of an item.
var errUnfit = errors.New("nobody can work")

func unfit(text string) error {
	return &ralph.Error{Code: ralph.CodeUnavailable, Message: text, Err: errUnfit}
}

// again has work that failed because nobody could do any in an earlier run begun anew,
// since under its name it would be the same failure for ever.
func again(o ralph.Outcome, err error) (ralph.Outcome, error) {
	if errors.Is(err, errUnfit) {
		return o, &ralph.Error{Code: ralph.CodeLost, Message: "nobody could do it", Err: err}
	}
	return o, err
}

func (a *Agent) send(ctx context.Context, j ralph.Job, key string) (ralph.Outcome, error) {
	meta := map[string]any{hub.MetaTargetAgent: a.ID, hub.MetaOnce: key}
	if a.Dir != "" {
		meta[hub.MetaWorkDir] = a.Dir
	}
	blocking := false
	task, err := a.Hub.Send(ctx, dialect.SendParams{
		Message: dialect.Message{
			Kind: dialect.KindMessage, MessageID: uuid.NewString(), Role: dialect.RoleUser,
			Parts: []dialect.Part{dialect.TextPart(j.Prompt())}, Metadata: meta,
		},
		Configuration: &dialect.SendConfig{Blocking: &blocking},
	})
	if err != nil {
		return ralph.Outcome{}, away(err)
	}
	return a.wait(ctx, task)
}

// wait asks for a task until it rests. One that asks something is a failure: nobody
// is there to answer.
func (a *Agent) wait(ctx context.Context, task *dialect.Task) (ralph.Outcome, error) {
	for {
		text := answer(task)
		switch task.Status.State {
		case dialect.StateCompleted:
			return ralph.Outcome{Text: text}, nil
		case dialect.StateFailed:
			switch code := failureCode(task); {
			case code == hub.CodeStopped:
				return ralph.Outcome{}, &ralph.Error{Code: ralph.CodeLost, Message: text}
			case slices.Contains(unfitCodes, code):
				return ralph.Outcome{}, unfit(text)
			}
			return ralph.Outcome{}, fmt.Errorf("the task is %s: %s", task.Status.State, text)
		case dialect.StateAuthRequired:
			return ralph.Outcome{}, unfit(text)
		case dialect.StateCanceled, dialect.StateRejected, dialect.StateInputRequired:
			return ralph.Outcome{}, fmt.Errorf("the task is %s: %s", task.Status.State, text)
		}
		select {
		case <-time.After(look):
		case <-ctx.Done():
			return ralph.Outcome{}, ctx.Err()
		}
		var err error
		if task, err = a.Hub.Task(ctx, task.ID); err != nil {
			return ralph.Outcome{}, away(err)
		}
	}
}

// unfitCodes are those of tasks that failed before the agent had a look at them.
var unfitCodes = []string{string(runner.CodeNotInstalled), string(runner.CodeAuth), string(runner.CodeConfig), string(hub.CodeUnavailable)}

// failureCode is why a task failed, "" if the hub does not say.
func failureCode(task *dialect.Task) string {
	if task.Status.Message == nil {
		return ""
	}
	why, _ := task.Status.Message.Metadata[hub.MetaError].(map[string]any)
	code, _ := why["code"].(string)
	return code
}

func answer(task *dialect.Task) string {
	text := ""
	if m := task.Status.Message; m != nil {
		for _, p := range m.Parts {
			if p.Text != nil {
				text += *p.Text
			}
		}
	}
	return text
}

// Swarm dispatches each item to a swarm of a hub's agents.
type Swarm struct {
	Hub    Hub
	Agents []string // that may take part; none: everybody who is able
}

// Dispatch implements [ralph.Dispatcher]. The reference is the swarm's id.
func (s *Swarm) Dispatch(ctx context.Context, j ralph.Job, begins func(string) error) (ralph.Outcome, error) {
	id := uuid.NewString()
	if err := begins(id); err != nil {
		return ralph.Outcome{}, err
	}
	return s.create(ctx, j, id)
}

// Resume implements [ralph.Dispatcher]: creating the same swarm again does nothing.
func (s *Swarm) Resume(ctx context.Context, j ralph.Job, id string) (ralph.Outcome, error) {
	return again(s.create(ctx, j, id))
}

func (s *Swarm) create(ctx context.Context, j ralph.Job, id string) (ralph.Outcome, error) {
	_, err := s.Hub.CreateSwarm(ctx, swarm.Plan{
		ID: id, TaskDescription: j.Prompt(), RequiredCapabilities: append([]string{}, j.Item.Capabilities...), Agents: s.Agents,
		SubTasks: []swarm.SubTaskPlan{{ID: "item", Description: j.Prompt()}},
	})
	if err != nil {
		return ralph.Outcome{}, away(err)
	}
	return s.wait(ctx, j, id)
}

func (s *Swarm) wait(ctx context.Context, j ralph.Job, id string) (ralph.Outcome, error) {
	after := uint64(0)
	for {
		session, err := s.Hub.AwaitSwarm(ctx, id, after)
		switch {
		case err != nil:
			return ralph.Outcome{}, away(err)
		case session.Status == swarm.Completed:
			return ralph.Outcome{Text: string(session.Outcome)}, nil
		case session.Status == swarm.Failed && len(j.Item.Capabilities) == 0 && strings.HasPrefix(session.Error, string(swarm.CodeNoAgents)):
			return ralph.Outcome{}, unfit("the swarm failed: " + session.Error) // whatever it was for
		case session.Status == swarm.Failed:
			return ralph.Outcome{}, errors.New("the swarm failed: " + session.Error)
		}
		after = session.Sequence
	}
}

// away says which errors are not the item's fault.
func away(err error) error {
	var rpc *jsonrpc.Error
	switch {
	case errors.Is(err, client.ErrNotRunning), errors.Is(err, client.ErrLost), errors.Is(err, client.ErrForeignSocket):
		return &ralph.Error{Code: ralph.CodeUnavailable, Message: "the hub is away", Err: err}
	case !errors.As(err, &rpc):
		return err
	case slices.Contains([]int{dialect.CodeTaskNotFound, dialect.CodeSwarmNotFound}, rpc.Code):
		return &ralph.Error{Code: ralph.CodeLost, Message: "the hub does not know it any more", Err: err}
	case slices.Contains([]int{dialect.CodeAgentNotFound, dialect.CodeAgentUnavailable, dialect.CodeAuthenticationError, jsonrpc.CodeServerBusy, jsonrpc.CodeInvalidParams}, rpc.Code):
		return &ralph.Error{Code: ralph.CodeUnavailable, Message: "the agent cannot be given work", Err: err}
	}
	return err
}

// Defaults of a Check.
const (
	DefaultCheckTime   = 10 * time.Minute
	DefaultCheckOutput = 64 << 10
)

// Check validates items with a command of the user's. It passes if the command exits
// with 0. Nothing of the item or of the answer reaches the command.
type Check struct {
	Argv   []string
	Dir    string        // "" is the working directory
	Limit  time.Duration // 0 means DefaultCheckTime
	Output int           // bytes of standard output that are kept, its end; 0 means DefaultCheckOutput
}

// Validate implements [ralph.Validator].
func (c *Check) Validate(ctx context.Context, _ ralph.Job, _ ralph.Outcome) (ralph.Verdict, error) {
	limit, most := c.Limit, c.Output
	if limit <= 0 {
		limit = DefaultCheckTime
	}
	if most <= 0 {
		most = DefaultCheckOutput
	}
	p, err := process.Start(process.Command{Path: c.Argv[0], Args: c.Argv[1:], Dir: c.Dir, Env: os.Environ()})
	if err != nil {
		return ralph.Verdict{}, &ralph.Error{Code: ralph.CodeValidator, Message: "the check cannot be run", Err: err}
	}
	timed, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_ = p.Stdin().Close()                                      // it reads nothing
	stop := context.AfterFunc(timed, func() { _ = p.Close() }) // kills it; Wait tells how it ended
	output := readTail(p.Stdout(), most)
	exit := p.Wait()
	stop()
	stderr := p.Stderr()
	if err := errors.Join(p.Close(), ctx.Err()); err != nil {
		return ralph.Verdict{}, err
	}
	report := output
	if stderr != "" {
		report += "\n" + stderr
	}
	switch {
	case timed.Err() != nil:
		return ralph.Verdict{Report: fmt.Sprintf("%s\nthe check took longer than %s", report, limit)}, nil
	case exit.Code == 0:
		return ralph.Verdict{OK: true}, nil
	case exit.Signal != "":
		return ralph.Verdict{Report: fmt.Sprintf("%s\nthe check was ended by %s", report, exit.Signal)}, nil
	}
	return ralph.Verdict{Report: fmt.Sprintf("%s\nthe check exited with %d", report, exit.Code)}, nil
}

// readTail reads everything and keeps the end.
func readTail(r io.Reader, most int) string {
	var kept []byte
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		kept = append(kept, buf[:n]...)
		if len(kept) > most {
			kept = slices.Clone(kept[len(kept)-most:])
		}
		if err != nil {
			return string(kept)
		}
	}
}
