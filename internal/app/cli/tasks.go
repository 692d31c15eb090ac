package cli

import (
	"context"
	"fmt"
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
	cmd := &cobra.Command{
		Use:   "tasks",
		Short: "List tasks, newest first",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if state != "" && !slices.Contains(taskStates, state) {
				return usage("--state %q is not one of %s", state, strings.Join(taskStates, ", "))
			}
			if p.Limit < 1 || p.Limit > 1000 {
				return usage("--limit must be between 1 and 1000")
			}
			p.State = dialect.TaskState(state)
			return a.withHub(cmd, func(ctx context.Context, c *client.Client) error {
				page, err := tasksUpTo(ctx, c, p)
				if err != nil {
					return err
				}
				if a.json() {
					writeJSON(a.stdout, page)
					return nil
				}
				a.printTasks(page)
				return nil
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&p.ContextID, "context", "", "only tasks of this conversation")
	flags.StringVar(&p.AgentID, "agent", "", "only tasks of this agent")
	flags.StringVar(&state, "state", "", "only tasks in this state: "+strings.Join(taskStates, ", "))
	flags.IntVar(&p.Limit, "limit", 20, "how many, 1 to 1000")
	flags.StringVar(&p.Cursor, "cursor", "", "go on where nextCursor of an earlier page points")
	a.complete(cmd, "state", func(context.Context, *client.Client) []string { return taskStates })
	a.complete(cmd, "agent", agentIDs)
	a.complete(cmd, "context", contextIDs)
	return cmd
}

// tasksUpTo returns as many tasks as were asked for, over several pages where
// long answers made the hub end one early.
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
	if len(page.Tasks) == 0 {
		fmt.Fprintln(a.stdout, "No tasks.")
		return
	}
	t := table{headings: []string{"TASK", "STATE", "AGENT", "CHANGED", "ANSWER"}, paint: a.paintState}
	for _, task := range page.Tasks {
		t.add(task.ID, string(task.Status.State), agentOf(&task), ago(time.Now(), task.Status.Timestamp.Time), task.Status.Message.Text())
	}
	t.write(a.stdout, a.style)
	if page.Total > len(page.Tasks) {
		a.note("%d of %d tasks; --limit shows more", len(page.Tasks), page.Total)
	}
}

func agentOf(task *dialect.Task) string {
	agent, _ := task.Metadata[hub.MetaAgent].(string) // "" where it is not there
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
