package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
)

func (a *app) taskCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "task",
		Short: "Show, follow or cancel one task",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return usage("there is no command %q; there are show, follow and cancel", "task "+args[0])
		},
		Args: cobra.ArbitraryArgs,
	}
	cmd.AddCommand(a.taskShowCommand(), a.taskFollowCommand(), a.taskCancelCommand())
	return cmd
}

func (a *app) taskShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "show TASK",
		Short:             "Show a task: its state, messages and artifacts",
		Args:              exactly("TASK"),
		ValidArgsFunction: a.completeFirst(taskIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withHub(cmd, func(ctx context.Context, c *client.Client) error {
				task, err := c.Task(ctx, args[0])
				if err != nil {
					return err
				}
				if a.json() {
					writeJSON(a.stdout, task)
					return nil
				}
				a.printTask(task)
				return nil
			})
		},
	}
}

func (a *app) taskCancelCommand() *cobra.Command {
	keep := false
	cmd := &cobra.Command{
		Use:   "cancel TASK",
		Short: "Cancel a task and wait until its processes are gone",
		Long: "Cancel a task and wait until its processes are gone. The tasks that its agent has\n" +
			"handed on to other agents, and these to others, are canceled with it.",
		Args:              exactly("TASK"),
		ValidArgsFunction: a.completeFirst(taskIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withHub(cmd, func(ctx context.Context, c *client.Client) error {
				spinner := a.spin("canceling")
				cancel := c.Cancel
				if keep {
					cancel = c.CancelAlone
				}
				task, err := cancel(ctx, args[0])
				spinner.end()
				if err != nil {
					return err
				}
				if a.json() {
					writeJSON(a.stdout, task)
					return nil
				}
				fmt.Fprintf(a.stdout, "Task %s is %s.\n", plain(task.ID), a.state(task.Status.State))
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&keep, "keep-delegated", false, "leave running what its agent has handed on")
	return cmd
}

func (a *app) taskFollowCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "follow TASK",
		Short:             "Follow a task to its end; Ctrl-C leaves it running",
		Args:              exactly("TASK"),
		ValidArgsFunction: a.completeFirst(taskIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			run := taskRun{app: a, client: c, live: true, leave: true}
			task, err := run.watch(cmd.Context(), func(ctx context.Context) (*client.Stream, error) {
				return c.Follow(ctx, args[0])
			})
			if err != nil {
				return err
			}
			return run.finish(task)
		},
	}
}

func (a *app) printTask(task *dialect.Task) {
	row := func(label, value string) {
		if value != "" {
			fmt.Fprintf(a.stdout, "%s %s\n", a.style.dim(fmt.Sprintf("%-8s", label)), value)
		}
	}
	row("task", plain(task.ID))
	row("state", a.state(task.Status.State)+a.style.dim(" "+ago(time.Now(), task.Status.Timestamp.Time)))
	row("agent", oneLine(agentOf(task)))
	row("context", plain(task.ContextID))
	for _, notice := range notices(task) {
		row("note", notice)
	}
	for _, m := range task.History {
		a.printMessage(m)
	}
	if m := task.Status.Message; m != nil && !inHistory(task, m.MessageID) {
		a.printMessage(*m)
	}
	shown := task.Status.Message.Text()
	for _, artifact := range task.Artifacts {
		if text := artifactText(artifact); text != shown {
			fmt.Fprintf(a.stdout, "\n%s\n%s\n", a.style.bold("artifact "+oneLine(artifact.Name)), strings.TrimRight(plain(text), "\n"))
		}
	}
	if task.Status.State == dialect.StateInputRequired {
		fmt.Fprintln(a.stdout)
		a.printQuestion(task)
	}
}

func inHistory(task *dialect.Task, id string) bool {
	for _, m := range task.History {
		if m.MessageID == id {
			return true
		}
	}
	return false
}

func (a *app) printMessage(m dialect.Message) {
	who := a.style.cyan("agent")
	if m.Role == dialect.RoleUser {
		who = a.style.bold("you")
	}
	fmt.Fprintf(a.stdout, "\n%s\n%s\n", who, strings.TrimRight(plain(partsText(m.Parts)), "\n"))
}

func artifactText(artifact dialect.Artifact) string { return partsText(artifact.Parts) }

// partsText is what a person can read of parts.
func partsText(parts []dialect.Part) string {
	var b strings.Builder
	for _, p := range parts {
		switch {
		case p.Text != nil:
			b.WriteString(*p.Text)
		case p.File != nil:
			fmt.Fprintf(&b, "\n[file %s, %s]\n", p.File.Name, p.File.MimeType)
		case p.Data != nil:
			b.WriteString("\n[data]\n")
		}
	}
	return b.String()
}
