package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
)

// completionPatience bounds how long a Tab waits for the hub.
const completionPatience = time.Second

// candidates asks the hub for completions; without a hub there are none.
type candidates func(context.Context, *client.Client) []string

func (a *app) ask(cmd *cobra.Command, from candidates) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionPatience)
	defer cancel()
	c, err := a.connect(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
	return from(ctx, c), cobra.ShellCompDirectiveNoFileComp
}

// complete completes the values of a flag.
func (a *app) complete(cmd *cobra.Command, flag string, from candidates) {
	err := cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return a.ask(cmd, from)
	})
	if err != nil {
		panic(err) // the flag is defined by the caller
	}
}

// completeFirst completes the first argument.
func (a *app) completeFirst(from candidates) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.ask(cmd, from)
	}
}

func agentIDs(ctx context.Context, c *client.Client) []string {
	agents, err := c.Agents(ctx, false)
	if err != nil {
		return nil
	}
	ids := make([]string, 0, len(agents))
	for _, agent := range agents {
		ids = append(ids, agent.ID+"\t"+oneLine(agent.Name))
	}
	return ids
}

func contextIDs(ctx context.Context, c *client.Client) []string {
	contexts, err := c.Contexts(ctx, 50)
	if err != nil {
		return nil
	}
	ids := make([]string, 0, len(contexts))
	for _, one := range contexts {
		ids = append(ids, plain(one.ID))
	}
	return ids
}

func taskIDs(ctx context.Context, c *client.Client) []string {
	page, err := c.Tasks(ctx, dialect.TasksListParams{Limit: 50})
	if err != nil {
		return nil
	}
	ids := make([]string, 0, len(page.Tasks))
	for _, task := range page.Tasks {
		ids = append(ids, plain(task.ID)+"\t"+string(task.Status.State))
	}
	return ids
}
