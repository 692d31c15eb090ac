package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/text"
)

// completionTimeout bounds how long a completion waits for the hub.
const completionTimeout = time.Second

// candidates asks the hub for completions.
type candidates func(context.Context, *client.Client) []string

// ask returns the completions, none without a hub.
func (a *app) ask(cmd *cobra.Command, from candidates) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
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
		panic(err) // the caller has defined the flag
	}
}

// completeWords completes the values of a flag that has only a few.
func completeWords(cmd *cobra.Command, flag string, words ...string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the caller has defined the flag
	}
}

// The flags and commands whose values are paths. All others that have no completion of their own take no files.
var (
	dirFlagNames  = []string{"dir", "data-dir", "project"}
	fileFlagNames = []string{"config", "plan", "socket"}
	dirCommands   = []string{"man"}
)

// completeRest makes the shell offer files only where a file is meant.
func completeRest(cmd *cobra.Command) {
	flags := func(f *pflag.Flag) {
		if _, ok := cmd.GetFlagCompletionFunc(f.Name); ok || f.Value.Type() == "bool" || slices.Contains(fileFlagNames, f.Name) {
			return
		}
		directive := cobra.ShellCompDirectiveNoFileComp
		if slices.Contains(dirFlagNames, f.Name) {
			directive = cobra.ShellCompDirectiveFilterDirs
		}
		_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(nil, directive)) // it has none
	}
	cmd.NonInheritedFlags().VisitAll(flags)
	if cmd.ValidArgsFunction == nil && len(cmd.ValidArgs) == 0 && !cmd.HasSubCommands() {
		directive := cobra.ShellCompDirectiveNoFileComp
		if slices.Contains(dirCommands, cmd.Name()) {
			directive = cobra.ShellCompDirectiveFilterDirs
		}
		cmd.ValidArgsFunction = cobra.FixedCompletions(nil, directive)
	}
	for _, c := range cmd.Commands() {
		completeRest(c)
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

// each converts the items of a list to completions, none with an error.
func each[T any](list []T, err error, id func(T) string) []string {
	if err != nil {
		return nil
	}
	ids := make([]string, len(list))
	for i, item := range list {
		ids[i] = id(item)
	}
	return ids
}

func agentIDs(ctx context.Context, c *client.Client) []string {
	agents, err := c.Agents(ctx, false)
	return each(agents, err, func(agent dialect.Agent) string {
		return described(addressOf(agent), strings.TrimSuffix(agent.Name+": "+agent.Description, ": "))
	})
}

func contextIDs(ctx context.Context, c *client.Client) []string {
	contexts, err := c.Contexts(ctx, 50)
	return each(contexts, err, func(one dialect.Context) string {
		return described(one.ID, text.Count(len(one.TaskIDs), "task")+" of "+strings.Join(one.AgentIDs, ", "))
	})
}

func swarmIDs(ctx context.Context, c *client.Client) []string {
	swarms, err := newestSwarms(ctx, c)
	return each(swarms, err, func(s dialect.SwarmSummary) string {
		return described(s.ID, string(s.Status)+": "+s.TaskDescription)
	})
}

func documentNames(ctx context.Context, c *client.Client) []string {
	names, err := c.Documents(ctx)
	return each(names, err, plain)
}

func taskIDs(ctx context.Context, c *client.Client) []string {
	page, err := c.Tasks(ctx, dialect.TasksListParams{Limit: 50})
	if err != nil {
		return nil
	}
	return each(page.Tasks, nil, func(task dialect.Task) string {
		return described(task.ID, agentOf(&task)+", "+string(task.Status.State)+": "+asked(&task))
	})
}

// maxDescription bounds the description of a completion, in bytes.
const maxDescription = 60

// described returns a completion with a description.
func described(id, about string) string {
	return oneLine(id) + "\t" + text.Clip(oneLine(about), maxDescription)
}

func senderIDs(ctx context.Context, c *client.Client) []string {
	senders, err := c.Senders(ctx)
	return each(senders, err, func(x dialect.AllowedSender) string { return described(x.ID, x.Kind+" "+x.Sender) })
}
