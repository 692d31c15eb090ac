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
)

var totalGroups = []string{"agent", "project", "day"}

func (a *app) totalsCommand() *cobra.Command {
	var p dialect.TotalsParams
	var since time.Duration
	cmd := command("totals", "Sum up tasks, durations, tokens and costs",
		hubCall(a, func(ctx context.Context, c *client.Client, _ []string) (*dialect.Totals, error) {
			var err error
			if p.AgentID, err = a.formerAgentID(ctx, c, p.AgentID); err != nil {
				return nil, err
			}
			return c.Totals(ctx, p)
		},
			func(t *dialect.Totals) { a.printTotals(t, p.By) }))
	cmd.Long = "Sum up the stored tasks by agent, project and day: how many there were and how many failed,\n" +
		"how long they took, their tokens, and their cost as far as the agents report it. Tasks that\n" +
		"were removed because of tasks.retention do not count."
	cmd.Example = "  " + a.name + " totals\n  " + a.name + " totals --by agent --since 168h"
	cmd.PreRunE = func(*cobra.Command, []string) error {
		for _, group := range p.By {
			if !slices.Contains(totalGroups, group) {
				return usage("--by %q is not one of %s", group, strings.Join(totalGroups, ", "))
			}
		}
		if since > 0 {
			p.Since = &dialect.Time{Time: time.Now().Add(-since)}
		}
		if p.Project != "" {
			p.Project = projectDir(p.Project)
		}
		return nil
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&p.By, "by", totalGroups, "how to group them: agent, project, day")
	flags.StringVar(&p.AgentID, "agent", "", "only tasks of this agent")
	flags.StringVar(&p.Project, "project", "", "only tasks that work in this directory")
	timeVar(flags, &since, "since", 0, time.Hour, "only tasks that were sent so long ago at most, such as 24h")
	a.complete(cmd, "agent", agentIDs)
	a.complete(cmd, "by", func(context.Context, *client.Client) []string { return totalGroups })
	return cmd
}

func (a *app) printTotals(t *dialect.Totals, by []string) {
	columns := []struct {
		column
		group string // shown only if tasks are grouped by it
		value func(dialect.Total) string
	}{
		{column{heading: "DAY"}, "day", func(t dialect.Total) string { return t.Day }},
		{column{heading: "AGENT"}, "agent", func(t dialect.Total) string { return t.Agent }},
		{column{heading: "TASKS"}, "", func(t dialect.Total) string { return fmt.Sprint(t.Tasks) }},
		{column{heading: "FAILED"}, "", func(t dialect.Total) string { return fmt.Sprint(t.Failed) }},
		{column{heading: "TIME"}, "", func(t dialect.Total) string {
			return (time.Duration(t.DurationMS) * time.Millisecond).Round(time.Second).String()
		}},
		{column{heading: "TOKENS"}, "", func(t dialect.Total) string { return fmt.Sprint(t.InputTokens + t.OutputTokens) }},
		{column{heading: "COST"}, "", func(t dialect.Total) string { return dollars(t.CostUSD) }},
		{column{heading: "PROJECT", weight: 1}, "project", func(t dialect.Total) string { return tilde(t.Project) }},
	}
	table := listing[dialect.Total]{none: "No tasks."}
	var values []func(dialect.Total) string
	for _, c := range columns {
		if c.group == "" || slices.Contains(by, c.group) {
			table.columns, values = append(table.columns, c.column), append(values, c.value)
		}
	}
	table.row = func(t dialect.Total) []string {
		row := make([]string, len(values))
		for i, value := range values {
			row[i] = value(t)
		}
		return row
	}
	table.table(a, a.stdout, t.Totals)
	if t.Truncated {
		a.note("There are more; --since, --agent or fewer groups in --by select some of them.")
	}
}
