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
	cmd := &cobra.Command{
		Use:   "agents",
		Short: "List the agents, with --health also whether they can work",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withHub(cmd, func(ctx context.Context, c *client.Client) error {
				agents, err := c.Agents(ctx, health)
				if err != nil {
					return err
				}
				if health {
					a.awaitHealth(ctx, c, agents)
				}
				if a.json() {
					writeJSON(a.stdout, agents)
					return nil
				}
				a.printAgents(agents, health)
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&health, "health", false, "show each agent's health, its version and what it lacks")
	return cmd
}

// awaitHealth has the agents examined that the hub has not come to yet, as
// after its start.
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
	if len(agents) == 0 {
		fmt.Fprintln(a.stdout, "There are no agents: all are disabled in the configuration.")
		return
	}
	if !health {
		t := table{headings: []string{"AGENT", "NAME", "DRIVER", "TIER", "CAPABILITIES", "DESCRIPTION"}, paint: a.paintFirst}
		for _, agent := range agents {
			tier := ""
			if agent.Tier != nil {
				tier = fmt.Sprintf("L%d", *agent.Tier)
			}
			t.add(agent.ID, agent.Name, agent.Driver, tier, fit(strings.Join(agent.Capabilities, ", "), 40), agent.Description)
		}
		t.write(a.stdout, a.style)
		return
	}
	t := table{headings: []string{"AGENT", "HEALTH", "VERSION", "LATENCY", "CHECKED", "REMARK"}, paint: a.paintHealth}
	for _, agent := range agents {
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
		t.add(agent.ID, h.Status, firstField(h.Version), latency, ago(time.Now(), h.LastCheck.Time), remark)
	}
	t.write(a.stdout, a.style)
}

// firstField shortens "2.1.3 (Claude Code)" to the version itself.
func firstField(s string) string {
	for i, r := range s {
		if r == ' ' || r == '\n' {
			return s[:i]
		}
	}
	return s
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
