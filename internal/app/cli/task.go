package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/hub"
)

func (a *app) taskCommand() *cobra.Command {
	return group("task", "Show, follow or cancel one task", "", a.taskShowCommand(), a.taskFollowCommand(), a.taskCancelCommand())
}

func (a *app) taskShowCommand() *cobra.Command {
	trace := false
	var names agentNames
	cmd := a.commandOn("show TASK", taskIDs, "Show a task: its state, messages and artifacts",
		hubCall(a, func(ctx context.Context, c *client.Client, args []string) (*shownTask, error) {
			id, err := taskID(ctx, c, args[0])
			if err != nil {
				return nil, err
			}
			names = a.agentNames(ctx, c)
			task, err := c.Task(ctx, id)
			if err != nil || !trace {
				return &shownTask{Task: task}, err
			}
			traces, err := c.Trace(ctx, task.ID)
			return &shownTask{Task: task, TaskTrace: traces}, err
		}, func(shown *shownTask) { a.printShown(shown, names) }))
	cmd.Flags().BoolVar(&trace, "trace", false, "show what the agent did in each turn: tool calls, questions, changes, usage")
	return cmd
}

func (a *app) taskCancelCommand() *cobra.Command {
	keep := false
	cmd := a.commandOn("cancel TASK", taskIDs, "Cancel a task and wait until its processes have ended",
		hubCall(a, func(ctx context.Context, c *client.Client, args []string) (*dialect.Task, error) {
			id, err := taskID(ctx, c, args[0])
			if err != nil {
				return nil, err
			}
			spinner := a.spin("canceling")
			defer spinner.end()
			if keep {
				return c.CancelAlone(ctx, id)
			}
			return c.Cancel(ctx, id)
		}, func(task *dialect.Task) {
			fmt.Fprintf(a.stdout, "Task %s is %s.\n", oneLine(task.ID), a.state(task.Status.State))
		}))
	cmd.Long = "Cancel a task and wait until its processes have ended. The tasks that its agent has\n" +
		"delegated, directly or through other agents, are canceled too."
	cmd.Flags().BoolVar(&keep, "keep-delegated", false, "do not cancel the tasks that its agent has delegated")
	return cmd
}

func (a *app) taskFollowCommand() *cobra.Command {
	return a.commandOn("follow TASK", taskIDs, "Follow a task to its end; after Ctrl-C it keeps running",
		func(cmd *cobra.Command, args []string) error {
			c, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			id, err := taskID(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			run := taskRun{app: a, client: c, live: true, keep: true}
			task, err := run.watch(cmd.Context(), true, func(ctx context.Context) (*client.Stream, error) {
				return c.Follow(ctx, id)
			})
			if err != nil {
				return err
			}
			return run.finish(task)
		})
}

func (a *app) printTask(task *dialect.Task, names agentNames) {
	a.printFacts(task, names)
	for _, notice := range notices(task) {
		a.fact("note", notice)
	}
	for i, m := range task.History {
		a.printMessage(m, i == 0 && hub.AskedBy(task.Metadata) != "")
	}
	if m := task.Status.Message; m != nil && !slices.ContainsFunc(task.History, func(h dialect.Message) bool { return h.MessageID == m.MessageID }) {
		a.printMessage(*m, false)
	}
	shown := task.Status.Message.Text()
	for _, artifact := range task.Artifacts {
		if text := partsText(artifact.Parts); text != shown {
			fmt.Fprintf(a.stdout, "\n%s\n%s\n", a.style.bold("artifact "+oneLine(artifact.Name)), body(text))
		}
	}
	if s := task.Status.State; s == dialect.StateInputRequired || s == dialect.StateAuthRequired && permission(task) != nil {
		fmt.Fprintln(a.stdout)
		a.printQuestion(task)
	}
}

// printMessage prints a message of a task; others says that it is not of the hub's user.
func (a *app) printMessage(m dialect.Message, others bool) {
	who := a.style.cyan("agent")
	switch {
	case m.Role == dialect.RoleUser && others:
		who = a.style.bold("asked")
	case m.Role == dialect.RoleUser:
		who = a.style.bold("you")
	}
	fmt.Fprintf(a.stdout, "\n%s\n%s\n", who, body(messageText(m)))
}

// body returns the text of a message below its heading, indented so that it cannot imitate another one.
func body(words string) string {
	lines := strings.Split(strings.TrimRight(plain(words), "\n"), "\n")
	for i, line := range lines {
		if line != "" {
			lines[i] = "  " + line
		}
	}
	return strings.Join(lines, "\n")
}

// messageText returns a message as a person reads it: the texts of a user's message apart, as the agent gets them, and
// of permission questions and their answers what they say.
func messageText(m dialect.Message) string {
	var texts []string
	for _, p := range m.Parts {
		option, _ := p.Data["optionId"].(string)
		switch {
		case p.Metadata[hub.MetaPermission] != nil:
			continue // the text before it asks the same
		case option != "":
			texts = append(texts, option)
		default:
			if text := partsText([]dialect.Part{p}); text != "" {
				texts = append(texts, text)
			}
		}
	}
	between := "" // an agent's answer may come in pieces
	if m.Role == dialect.RoleUser {
		between = "\n\n"
	}
	return strings.Join(texts, between)
}

// partsText returns the text of parts, with a placeholder for each file or value.
func partsText(parts []dialect.Part) string {
	var b strings.Builder
	for _, p := range parts {
		switch {
		case p.Text != nil:
			b.WriteString(*p.Text)
		case p.File != nil:
			fmt.Fprintf(&b, "\n[file %s]\n", strings.TrimSuffix(oneLine(p.File.Name)+", "+oneLine(p.File.MimeType), ", "))
		case p.Data != nil:
			b.WriteString("\n[data]\n")
		}
	}
	return b.String()
}
