package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/hub"
)

var taskStates = []string{
	string(dialect.StateSubmitted), string(dialect.StateWorking), string(dialect.StateInputRequired),
	string(dialect.StateCompleted), string(dialect.StateCanceled), string(dialect.StateFailed),
	string(dialect.StateRejected), string(dialect.StateAuthRequired),
}

func (a *app) tasksCommand() *cobra.Command {
	p := dialect.TasksListParams{}
	var state string
	cmd := command("tasks", "List tasks, newest first",
		hubCall(a, func(ctx context.Context, c *client.Client, _ []string) (*dialect.TaskPage, error) {
			return tasksUpTo(ctx, c, p)
		}, a.printTasks))
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if state != "" && !slices.Contains(taskStates, state) {
			return usage("--state %q is not one of %s", state, strings.Join(taskStates, ", "))
		}
		p.State = dialect.TaskState(state)
		return checkLimit(p.Limit)
	}
	flags := cmd.Flags()
	flags.StringVar(&p.ContextID, "context", "", "only tasks of this conversation")
	flags.StringVar(&p.AgentID, "agent", "", "only tasks of this agent")
	flags.StringVar(&state, "state", "", "only tasks in this state: "+strings.Join(taskStates, ", "))
	flags.IntVar(&p.Limit, "limit", 20, "how many, 1 to 1000")
	flags.StringVar(&p.Cursor, "cursor", "", "continue from the nextCursor of an earlier page")
	a.complete(cmd, "state", func(context.Context, *client.Client) []string { return taskStates })
	a.complete(cmd, "agent", agentIDs)
	a.complete(cmd, "context", contextIDs)
	return cmd
}

// tasksUpTo returns up to p.Limit tasks. It reads several pages where the hub ended a page
// early because its tasks are long.
func tasksUpTo(ctx context.Context, c *client.Client, p dialect.TasksListParams) (*dialect.TaskPage, error) {
	limit := p.Limit
	all, err := c.Tasks(ctx, p)
	if err != nil {
		return nil, err
	}
	for all.NextCursor != "" && len(all.Tasks) < limit {
		p.Cursor, p.Limit = all.NextCursor, limit-len(all.Tasks)
		page, err := c.Tasks(ctx, p)
		if err != nil {
			return nil, err
		}
		all.Tasks = append(all.Tasks, page.Tasks...)
		all.NextCursor = page.NextCursor
	}
	return all, nil
}

func (a *app) printTasks(page *dialect.TaskPage) {
	listing[dialect.Task]{
		none:     "No tasks.",
		headings: []string{"TASK", "STATE", "AGENT", "CHANGED", "ANSWER"},
		row: func(t dialect.Task) []string {
			return []string{t.ID, string(t.Status.State), agentOf(&t), ago(time.Now(), t.Status.Timestamp.Time), t.Status.Message.Text()}
		},
		paint: a.paintState,
	}.table(a.stdout, a.style, page.Tasks)
	if len(page.Tasks) > 0 && page.Total > len(page.Tasks) {
		a.note("%d of %d tasks; --limit shows more", len(page.Tasks), page.Total)
	}
}

func agentOf(task *dialect.Task) string {
	agent, _ := task.Metadata[hub.MetaAgent].(string)
	return agent
}

func (a *app) paintState(column int, text string) string {
	if column != 1 {
		return text
	}
	return a.state(dialect.TaskState(text))
}

func (a *app) state(state dialect.TaskState) string {
	text := string(state)
	switch state {
	case dialect.StateCompleted:
		return a.style.green(text)
	case dialect.StateFailed, dialect.StateRejected:
		return a.style.red(text)
	case dialect.StateInputRequired, dialect.StateAuthRequired:
		return a.style.yellow(text)
	case dialect.StateWorking, dialect.StateSubmitted:
		return a.style.cyan(text)
	}
	return a.style.dim(text)
}
