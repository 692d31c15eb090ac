package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/display"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

var taskStates = []string{
	string(dialect.StateSubmitted), string(dialect.StateWorking), string(dialect.StateInputRequired),
	string(dialect.StateCompleted), string(dialect.StateCanceled), string(dialect.StateFailed),
	string(dialect.StateRejected), string(dialect.StateAuthRequired),
}

func (a *app) tasksCommand() *cobra.Command {
	p := dialect.TasksListParams{}
	var state string
	var names agentNames
	cmd := command("tasks", "List tasks, newest first",
		hubCall(a, func(ctx context.Context, c *client.Client, _ []string) (*dialect.TaskPage, error) {
			var err error
			if p.ContextID, err = contextID(ctx, c, p.ContextID, false); err != nil {
				return nil, err
			}
			if p.AgentID, err = a.formerAgentID(ctx, c, p.AgentID); err != nil {
				return nil, err
			}
			page, err := tasksUpTo(ctx, c, p)
			if err == nil && len(page.Tasks) == 0 {
				a.noteUnknownAgent(ctx, c, p.AgentID)
			}
			names = a.agentNames(ctx, c)
			return page, err
		}, func(page *dialect.TaskPage) { a.printTasks(page, names) }))
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
	completeWords(cmd, "state", taskStates...)
	a.complete(cmd, "agent", agentIDs)
	a.complete(cmd, "context", contextIDs)
	return cmd
}

// noteUnknownAgent says that the hub has no such agent. That is no error: tasks outlive their agents.
func (a *app) noteUnknownAgent(ctx context.Context, c *client.Client, id string) {
	if id == "" {
		return
	}
	agents, err := c.Agents(ctx, false)
	known := idsOf(agents, func(agent dialect.Agent) string { return agent.ID })
	if err == nil && !slices.Contains(known, id) {
		a.note("%s", strings.TrimRight(fmt.Sprintf("There is no agent %q; %s", id, didYouMean(id, known)), "; "))
	}
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

func (a *app) printTasks(page *dialect.TaskPage, names agentNames) {
	tasks := slices.Clone(page.Tasks) // the hub lists the last changed first
	slices.SortStableFunc(tasks, func(x, y dialect.Task) int { return createdAt(&y).Compare(createdAt(&x)) })
	a.tasksListing(tasks, names, time.Now()).table(a, a.stdout, tasks)
	if len(page.Tasks) > 0 && page.Total > len(page.Tasks) {
		a.note("%d of %s; --limit shows more", len(page.Tasks), text.Count(page.Total, "task"))
	}
}

func (a *app) tasksListing(tasks []dialect.Task, names agentNames, now time.Time) listing[dialect.Task] {
	shorten := shortIDs(tasks, func(t dialect.Task) string { return t.ID })
	return listing[dialect.Task]{
		none: "No tasks.",
		columns: []column{
			{heading: "TASK"}, {heading: "STATE"}, {heading: "AGENT", weight: 1, least: 11}, {heading: "AGE"}, {heading: "TOOK"}, {heading: "COST"},
			{heading: "PROJECT", weight: 1, extra: true}, {heading: "ASKED", weight: 4, least: 16},
		},
		row: func(t dialect.Task) []string {
			return []string{
				shorten(t.ID), string(t.Status.State), names.of(agentOf(&t)), age(now, createdAt(&t)), took(&t, now), cost(&t), project(&t), asked(&t),
			}
		},
		paint: a.paintState,
	}
}

func agentOf(task *dialect.Task) string {
	agent, _ := task.Metadata[hub.MetaAgent].(string)
	return agent
}

// asked returns the first line of what a task was asked.
func asked(task *dialect.Task) string { return oneLine(hub.ReadSummary(task.Metadata).Prompt) }

// createdAt returns when a task was created; its last change, if the hub does not say.
func createdAt(task *dialect.Task) time.Time {
	if at := hub.ReadSummary(task.Metadata).CreatedAt; !at.IsZero() {
		return at
	}
	return task.Status.Timestamp.Time
}

// age formats how long ago something was, for a column.
func age(now, then time.Time) string { return display.Duration(max(now.Sub(then), 0)) }

// took formats how long the turns of a task took; of a task that runs, the time since it was created.
func took(task *dialect.Task, now time.Time) string {
	d := hub.ReadSummary(task.Metadata).Duration
	if !task.Status.State.Final() {
		d = now.Sub(createdAt(task))
	}
	if d < time.Second {
		return "<1s"
	}
	return display.Duration(d)
}

// cost formats what a task cost, "" if its agent does not say.
func cost(task *dialect.Task) string { return dollars(hub.ReadSummary(task.Metadata).Usage.CostUSD) }

// dollars formats a cost for a column, "" for none.
func dollars(usd float64) string {
	switch {
	case usd <= 0:
		return ""
	case usd < 0.01:
		return "<$0.01"
	default:
		return fmt.Sprintf("$%.2f", usd)
	}
}

// project returns the name of the directory that a task works in, "" if that is the conversation's own.
func project(task *dialect.Task) string {
	d := workDirOf(task)
	if d.Policy == runner.WorkDirContext || d.Path == "" {
		return ""
	}
	return filepath.Base(cmp.Or(d.Repository, d.Path))
}

// workDirOf returns the directory that a task works in, the zero value if the hub does not say.
func workDirOf(task *dialect.Task) hub.WorkDir {
	var d hub.WorkDir
	raw, err := json.Marshal(task.Metadata[hub.MetaDir])
	if err != nil || json.Unmarshal(raw, &d) != nil {
		return hub.WorkDir{}
	}
	return d
}

func (a *app) paintState(column int, text string) string {
	if column != 1 {
		return text
	}
	return a.state(dialect.TaskState(text))
}

func (a *app) state(state dialect.TaskState) string {
	text := oneLine(string(state))
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
