package agentnet

import (
	"context"

	"github.com/parleyhub/parley/internal/agentnet/assignment"
	"github.com/parleyhub/parley/internal/bus"
)

// AnswerTask answers a task that this computer's hub gave to the agent, and returns once the hub has stored the answer.
// It tries again until ctx ends. The claims of files that end with the task are over then.
func (a *Agent) AnswerTask(ctx context.Context, answer assignment.Answer) error {
	if err := answer.Check(); err != nil {
		return err
	}
	b, err := a.hubBus()
	if err != nil {
		return err
	}
	if err := answer.Send(ctx, b, a.GUID()); err != nil {
		return err
	}
	if answer.Outcome != assignment.InputRequired {
		a.releaseTask(ctx, answer.TaskID)
	}
	return nil
}

// ReportProgress shows to whoever waits for a task what the agent does.
func (a *Agent) ReportProgress(ctx context.Context, p assignment.Progress) error {
	if err := p.Check(); err != nil {
		return err
	}
	b, err := a.hubBus()
	if err != nil {
		return err
	}
	return p.Send(ctx, b, a.GUID())
}

// hubBus returns the bus of this computer's hub: tasks come from there.
func (a *Agent) hubBus() (*bus.Bus, error) {
	if local := a.localMember(); local != nil {
		return local.Ready()
	}
	return a.main.Ready()
}
