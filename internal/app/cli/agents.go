package cli

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
)

func (a *app) agentsCommand() *cobra.Command {
	var health bool
	cmd := command("agents", "List the agents, with --health also whether they can work",
		hubCall(a, func(ctx context.Context, c *client.Client, _ []string) ([]dialect.Agent, error) {
			agents, err := c.Agents(ctx, health)
			if health && err == nil {
				a.awaitHealth(ctx, c, agents)
			}
			return agents, err
		}, func(agents []dialect.Agent) { a.printAgents(agents, health) }))
	cmd.Flags().BoolVar(&health, "health", false, "show each agent's health, its version and what is missing")
	return cmd
}

// awaitHealth has the hub probe the agents that it has not probed yet, as after its start.
func (a *app) awaitHealth(ctx context.Context, c *client.Client, agents []dialect.Agent) {
	spinner := a.spin("examining the agents")
	defer spinner.end()
	var wait sync.WaitGroup
	for i := range agents {
		if agents[i].Health != nil && !agents[i].Health.LastCheck.IsZero() {
			continue
		}
		wait.Go(func() {
			if health, err := c.CheckHealth(ctx, agents[i].ID); err == nil {
				agents[i].Health = health // else it stays unknown
			}
		})
	}
	wait.Wait()
}

func (a *app) printAgents(agents []dialect.Agent, health bool) {
	list := a.agentsListing(health, time.Now())
	list.table(a, a.stdout, agents)
	if width := a.columns(a.stdout); health && width > 0 {
		a.printCutRemarks(list, agents, width)
	}
}

// printCutRemarks prints the remarks for which a table is too narrow: they say what to do.
func (a *app) printCutRemarks(list listing[dialect.Agent], agents []dialect.Agent, width int) {
	var table strings.Builder
	rows := list.rows(agents)
	list.render(&table, width, style{}, rows)
	for i, row := range rows {
		remark := row[len(row)-1]
		if strings.Contains(table.String(), remark) {
			continue
		}
		fmt.Fprintf(a.stdout, "\n%s\n%s", a.style.bold(oneLine(agents[i].ID)), hanging("  ", "  ", remark, width))
	}
}

func (a *app) agentsListing(health bool, now time.Time) listing[dialect.Agent] {
	list := listing[dialect.Agent]{
		none: "There are no agents: all are disabled in the configuration.",
		columns: []column{
			{heading: "AGENT"}, {heading: "NAME", weight: 1, least: 12}, {heading: "DRIVER", extra: true}, {heading: "TIER", extra: true},
			{heading: "CAPABILITIES", weight: 1, extra: true}, {heading: "DESCRIPTION", weight: 3, least: 30},
		},
		row:   agentRow,
		paint: a.paintFirst,
	}
	if health {
		list.columns = []column{
			{heading: "AGENT"}, {heading: "HEALTH"}, {heading: "VERSION", weight: 1}, {heading: "LATENCY", extra: true}, {heading: "CHECKED", extra: true},
			{heading: "REMARK", weight: 3, least: 30},
		}
		list.row = func(agent dialect.Agent) []string { return healthRow(agent, now) }
		list.paint = a.paintHealth
	}
	return list
}

func agentRow(agent dialect.Agent) []string {
	tier := ""
	if agent.Tier != nil {
		tier = fmt.Sprintf("L%d", *agent.Tier)
	}
	return []string{agent.ID, agent.Name, agent.Driver, tier, strings.Join(agent.Capabilities, ", "), agent.Description}
}

func healthRow(agent dialect.Agent, now time.Time) []string {
	h := agent.Health
	if h == nil {
		h = &dialect.Health{Status: "unknown"}
	}
	latency := ""
	if h.LatencyMs != nil {
		latency = fmt.Sprintf("%d ms", *h.LatencyMs)
	}
	remark := h.ErrorMessage
	if remark == "" && h.Circuit == "open" {
		remark = "paused after repeated failures"
	}
	version, _, _ := strings.Cut(strings.ReplaceAll(h.Version, "\n", " "), " ") // of "2.1.3 (Claude Code)"
	return []string{agent.ID, h.Status, version, latency, ago(now, h.LastCheck.Time), remark}
}

func (a *app) paintFirst(column int, text string) string {
	if column == 0 {
		return a.style.bold(text)
	}
	return text
}

func (a *app) paintHealth(column int, text string) string {
	if column != 1 {
		return a.paintFirst(column, text)
	}
	switch text {
	case "healthy":
		return a.style.green(text)
	case "degraded":
		return a.style.yellow(text)
	case "unhealthy":
		return a.style.red(text)
	}
	return a.style.dim(text)
}
