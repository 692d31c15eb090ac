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

func (a *app) contextsCommand() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "contexts",
		Short: "List conversations, most recently used first",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 || limit > 1000 {
				return usage("--limit must be between 1 and 1000")
			}
			return a.withHub(cmd, func(ctx context.Context, c *client.Client) error {
				contexts, err := c.Contexts(ctx, limit)
				if err != nil {
					return err
				}
				if a.json() {
					writeJSON(a.stdout, contexts)
					return nil
				}
				a.printContexts(contexts)
				return nil
			})
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 20, "how many, 1 to 1000")
	return cmd
}

func (a *app) printContexts(contexts []dialect.Context) {
	if len(contexts) == 0 {
		fmt.Fprintln(a.stdout, "No conversations.")
		return
	}
	now := time.Now()
	t := table{headings: []string{"CONTEXT", "TASKS", "USED", "EXPIRES", "AGENTS"}}
	for _, c := range contexts {
		t.add(c.ID, fmt.Sprint(len(c.TaskIDs)), ago(now, c.LastUsedAt.Time), "in "+short(c.ExpiresAt.Sub(now)), strings.Join(c.AgentIDs, ", "))
	}
	t.write(a.stdout, a.style)
}
