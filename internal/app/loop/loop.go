// Package loop connects package ralph's loop to a hub: the hub's agents and swarms work on the
// items, and a command of the user validates the results.
package loop

import (
	"cmp"
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
	"github.com/parleyhub/parley/internal/base/defaults"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/ralph"
	"github.com/parleyhub/parley/swarm"
)

// Hub is the part of a hub's interface that dispatchers need; [client.Client] implements it.
type Hub interface {
	Send(ctx context.Context, p dialect.SendParams) (*dialect.Task, error)
	Task(ctx context.Context, id string) (*dialect.Task, error)
	Cancel(ctx context.Context, id string) (*dialect.Task, error)
	CreateSwarm(ctx context.Context, p swarm.Plan) (*swarm.Session, error)
	AwaitSwarm(ctx context.Context, id string, after uint64) (*swarm.Session, error)
}

// pollInterval is the pause between two requests for a task's state.
const pollInterval = 250 * time.Millisecond

// dispatcher is a [ralph.Dispatcher] that has the hub do a job. The hub does the jobs with one reference once.
type dispatcher func(ctx context.Context, j ralph.Job, reference string) (ralph.Outcome, error)

// swarms is a dispatcher whose references say that they are those of swarms.
type swarms struct{ dispatcher }

// Dispatch implements [ralph.Dispatcher].
func (s swarms) Dispatch(ctx context.Context, j ralph.Job, begins func(string) error) (ralph.Outcome, error) {
	return s.begin(ctx, j, uuid.NewString()+swarmSuffix, begins)
}

// Dispatch implements [ralph.Dispatcher].
func (d dispatcher) Dispatch(ctx context.Context, j ralph.Job, begins func(string) error) (ralph.Outcome, error) {
	return d.begin(ctx, j, uuid.NewString(), begins)
}

func (d dispatcher) begin(ctx context.Context, j ralph.Job, reference string, begins func(string) error) (ralph.Outcome, error) {
	if err := begins(reference); err != nil {
		return ralph.Outcome{}, err
	}
	return d(ctx, j, reference)
}

// Resume implements [ralph.Dispatcher]. It makes the loop start the work again if it failed in an
// earlier run because no agent could work, or was stopped with the loop: with the same reference it would fail again.
func (d dispatcher) Resume(ctx context.Context, j ralph.Job, reference string) (ralph.Outcome, error) {
	o, err := d(ctx, j, reference)
	switch {
	case errors.Is(err, errNoAgent):
		err = &ralph.Error{Code: ralph.CodeLost, Message: "no agent could work on it", Err: err}
	case errors.Is(err, errStopped):
		err = &ralph.Error{Code: ralph.CodeLost, Message: "its work was stopped with the loop", Err: err}
	}
	return o, err
}

// errNoAgent is the cause of failures that do not depend on the item: no agent can work, for
// example because its program is missing.
var errNoAgent = errors.New("no agent can work")

// errSwarmFailed is the cause of failures of swarms that could not go on.
var errSwarmFailed = errors.New("the swarm failed")

// errStopped is the cause of failures of work that was canceled.
var errStopped = errors.New("the work was stopped")

func noAgent(text string) error {
	return &ralph.Error{Code: ralph.CodeUnavailable, Message: text, Err: errNoAgent}
}

// Agent dispatches items to one agent of a hub. The working directory is dir; "" means the hub's default, and with
// project the agent's definition may choose another. The reference is the idempotency key of the task.
func Agent(h Hub, id, dir string, project bool) ralph.Dispatcher {
	return dispatcher(func(ctx context.Context, j ralph.Job, reference string) (ralph.Outcome, error) {
		meta := map[string]any{hub.MetaTargetAgent: id, hub.MetaOnce: reference}
		switch {
		case dir != "" && project:
			meta[hub.MetaProject] = dir
		case dir != "":
			meta[hub.MetaWorkDir] = dir
		}
		blocking := false
		task, err := h.Send(ctx, dialect.SendParams{
			Message: dialect.Message{
				Kind: dialect.KindMessage, MessageID: uuid.NewString(), Role: dialect.RoleUser,
				Parts: []dialect.Part{dialect.TextPart(j.Prompt())}, Metadata: meta,
			},
			Configuration: &dialect.SendConfig{Blocking: &blocking},
		})
		if err != nil {
			return ralph.Outcome{}, hubError(err)
		}
		return awaitTask(ctx, h, task)
	})
}

// cancelTimeout is how long the hub may take to end a task whose question nobody answers.
const cancelTimeout = 30 * time.Second

// awaitTask polls a task until it ends. A task that still asks for input is a failure: nobody answers. It is canceled,
// so that the next attempt works alone.
func awaitTask(ctx context.Context, h Hub, task *dialect.Task) (ralph.Outcome, error) {
	for {
		text, code := task.Status.Message.Text(), failureCode(task)
		switch task.Status.State {
		case dialect.StateCompleted:
			return ralph.Outcome{Text: text, Dir: hub.WorkDirIn(task.Metadata).Path}, nil
		case dialect.StateAuthRequired:
			abandon(ctx, h, task.ID)
			return ralph.Outcome{}, noAgent(text)
		case dialect.StateInputRequired:
			abandon(ctx, h, task.ID)
			return ralph.Outcome{}, errors.New("the agent asked, and nobody answered: " + text)
		case dialect.StateFailed, dialect.StateCanceled, dialect.StateRejected:
			switch {
			case code == hub.CodeStopped:
				return ralph.Outcome{}, &ralph.Error{Code: ralph.CodeLost, Message: text}
			case slices.Contains(noAgentCodes, code):
				return ralph.Outcome{}, noAgent(text)
			}
			err := fmt.Errorf("the task is %s: %s", task.Status.State, text)
			if task.Status.State == dialect.StateCanceled {
				err = fmt.Errorf("%w: %w", err, errStopped)
			}
			return ralph.Outcome{}, err
		}
		select {
		case <-time.After(pollInterval):
		case <-ctx.Done():
			return ralph.Outcome{}, ctx.Err()
		}
		var err error
		if task, err = h.Task(ctx, task.ID); err != nil {
			return ralph.Outcome{}, hubError(err)
		}
	}
}

// abandon cancels a task that waits for a person. An error is ignored: the task has ended, or the next call
// reports that the hub is gone.
func abandon(ctx context.Context, h Hub, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer cancel()
	_, _ = h.Cancel(ctx, id)
}

// noAgentCodes are the codes of tasks that failed before the agent started to work.
var noAgentCodes = []string{string(runner.CodeNotInstalled), string(runner.CodeAuth), string(runner.CodeConfig), string(hub.CodeUnavailable)}

// failureCode returns the code of a failed task, "" for any other and for one without a code.
func failureCode(task *dialect.Task) string {
	if task.Status.State != dialect.StateFailed || task.Status.Message == nil {
		return ""
	}
	info, _ := task.Status.Message.Metadata[hub.MetaError].(map[string]any)
	code, _ := info["code"].(string)
	return code
}

// Swarm dispatches each item to a swarm of a hub's agents: of those named, or of all that are able. They work in dir;
// "" means the hub's default. With split the points of an item are its sub-tasks. The reference is the swarm's id.
func Swarm(h Hub, agents []string, dir string, split bool) ralph.Dispatcher {
	parts := wholeItem
	if split {
		parts = itemPoints
	}
	return swarms{dispatcher(func(ctx context.Context, j ralph.Job, id string) (ralph.Outcome, error) {
		plan := swarm.Plan{
			ID: id, TaskDescription: j.Prompt(), RequiredCapabilities: append([]string{}, j.Item.Capabilities...), Agents: agents,
			SubTasks: parts(j), Unattended: true, // the loop is who can be asked, and tries again itself
		}
		if dir != "" {
			plan.Directory = &swarm.Directory{Path: dir}
		}
		if _, err := h.CreateSwarm(ctx, plan); err != nil {
			return ralph.Outcome{}, hubError(err)
		}
		o, err := awaitSwarm(ctx, h, j, id)
		o.Dir = dir
		return o, err
	})}
}

func awaitSwarm(ctx context.Context, h Hub, j ralph.Job, id string) (ralph.Outcome, error) {
	after := uint64(0)
	for {
		session, err := h.AwaitSwarm(ctx, id, after)
		switch {
		case err != nil:
			return ralph.Outcome{}, hubError(err)
		case session.Status == swarm.Completed:
			return ralph.Outcome{Text: string(session.Outcome)}, nil
		case session.Status == swarm.Failed && len(j.Item.Capabilities) == 0 && strings.HasPrefix(session.Error, string(swarm.CodeNoAgents)):
			return ralph.Outcome{}, noAgent("the swarm failed: " + session.Error) // the item requires no capability
		case session.Status == swarm.Failed:
			err := fmt.Errorf("%w: %s", errSwarmFailed, session.Error)
			if strings.HasPrefix(session.Error, "stopped: ") {
				err = fmt.Errorf("%w: %w", err, errStopped)
			}
			return ralph.Outcome{}, err
		}
		after = session.Sequence
	}
}

// hubError converts the hub's errors that do not depend on the item.
func hubError(err error) error {
	if errors.Is(err, client.ErrNotRunning) || errors.Is(err, client.ErrLost) || errors.Is(err, client.ErrForeignSocket) {
		return &ralph.Error{Code: ralph.CodeUnavailable, Message: "the hub is not available", Err: err}
	}
	rpc, ok := errors.AsType[*jsonrpc.Error](err)
	if !ok {
		return err
	}
	switch rpc.Code {
	case dialect.CodeTaskNotFound, dialect.CodeSwarmNotFound:
		return &ralph.Error{Code: ralph.CodeLost, Message: "the hub no longer has it", Err: err}
	case dialect.CodeAgentNotFound, dialect.CodeAgentUnavailable, dialect.CodeAuthenticationError, jsonrpc.CodeServerBusy, jsonrpc.CodeInvalidParams:
		return &ralph.Error{Code: ralph.CodeUnavailable, Message: "the agent does not accept work", Err: err}
	}
	return err
}

// Defaults of a Check.
const (
	DefaultCheckTime   = 10 * time.Minute
	DefaultCheckOutput = 64 << 10
)

// Check validates items with a command of the user. It passes if the command exits with 0. The
// command gets neither the item nor the answer.
type Check struct {
	Argv   []string
	Dir    string        // where it runs; "" is where the agent worked, else the current directory
	Limit  time.Duration // 0 means DefaultCheckTime
	Output int           // how many bytes of the end of standard output to report; 0 means DefaultCheckOutput
}

// Validate implements [ralph.Validator].
func (c *Check) Validate(ctx context.Context, _ ralph.Job, o ralph.Outcome) (ralph.Verdict, error) {
	limit, most := c.Limit, c.Output
	defaults.Set(&limit, DefaultCheckTime)
	defaults.Set(&most, DefaultCheckOutput)
	p, err := process.Start(process.Command{Path: c.Argv[0], Args: c.Argv[1:], Dir: cmp.Or(c.Dir, o.Dir), Env: os.Environ()})
	if err != nil {
		return ralph.Verdict{}, &ralph.Error{Code: ralph.CodeValidator, Message: "the check cannot be run", Err: err}
	}
	timed, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_ = p.Stdin().Close()                                      // the command gets no input
	stop := context.AfterFunc(timed, func() { _ = p.Close() }) // kills it; Wait returns the result
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

// readTail reads r to its end and returns the last most bytes.
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
