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
	"github.com/parleyhub/parley/internal/base/display"
)

func (a *app) contextsCommand() *cobra.Command {
	var limit int
	var names agentNames
	cmd := command("contexts", "List conversations, most recently used first",
		hubCall(a, func(ctx context.Context, c *client.Client, _ []string) ([]dialect.Context, error) {
			names = a.agentNames(ctx, c)
			return c.Contexts(ctx, limit)
		}, func(contexts []dialect.Context) { a.printContexts(contexts, names) }))
	cmd.PreRunE = func(*cobra.Command, []string) error { return checkLimit(limit) }
	cmd.Flags().IntVar(&limit, "limit", 20, "how many, 1 to 1000")
	return cmd
}

func checkLimit(limit int) error {
	if limit < 1 || limit > 1000 {
		return usage("--limit must be between 1 and 1000")
	}
	return nil
}

func (a *app) printContexts(contexts []dialect.Context, names agentNames) {
	now := time.Now()
	shorten := shortIDs(contexts, func(c dialect.Context) string { return c.ID })
	listing[dialect.Context]{
		none: "No conversations.",
		columns: []column{
			{heading: "CONTEXT", weight: 2, least: 16}, {heading: "TASKS"}, {heading: "USED"}, {heading: "EXPIRES", extra: true}, {heading: "AGENTS", weight: 1}, {heading: "WORKS IN", weight: 2},
		},
		row: func(c dialect.Context) []string {
			var agents []string
			for _, id := range c.AgentIDs {
				agents = append(agents, names.of(id))
			}
			return []string{shorten(c.ID), fmt.Sprint(len(c.TaskIDs)), ago(now, c.LastUsedAt.Time), "in " + display.Duration(c.ExpiresAt.Sub(now)), strings.Join(agents, ", "), contextDirs(c)}
		},
	}.table(a, a.stdout, contexts)
}

// contextDirs returns the directories in which a context's agents work.
func contextDirs(c dialect.Context) string {
	var dirs []string
	for _, id := range c.AgentIDs {
		if dir := c.WorkDirs[id]; dir.Path != "" && !slices.Contains(dirs, tilde(dir.Path)) {
			dirs = append(dirs, tilde(dir.Path))
		}
	}
	return strings.Join(dirs, ", ")
}
