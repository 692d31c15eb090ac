package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/base/display"
	"github.com/parleyhub/parley/internal/base/text"
)

func (a *app) statusCommand() *cobra.Command {
	return command("status", "Show whether the hub is running, its addresses and its load",
		hubCall(a, func(ctx context.Context, c *client.Client, _ []string) (*dialect.Status, error) {
			return c.Status(ctx)
		}, a.printStatus))
}

func (a *app) printStatus(s *dialect.Status) {
	fmt.Fprintf(a.stdout, "%s %s, process %d, up %s\n", a.style.green("The hub is running:"), oneLine(s.Version), s.PID, display.Duration(time.Duration(s.Uptime)*time.Millisecond))
	for _, address := range []struct{ label, value string }{{"socket", s.Socket}, {"data", s.DataDir}, {"http", s.HTTP}, {"grpc", s.GRPC}} {
		if address.value != "" {
			fmt.Fprintf(a.stdout, "  %-7s %s\n", address.label, oneLine(address.value))
		}
	}
	fmt.Fprintf(a.stdout, "  tasks   %d active, %d in all\n", s.ActiveTasks, s.TotalTasks)
	fmt.Fprintf(a.stdout, "  agents  %d healthy, %d degraded, %d unhealthy, %d not yet checked\n", s.Healthy, s.Degraded, s.Unhealthy, s.Unknown)
	if b := s.Bus; b != nil {
		fmt.Fprintf(a.stdout, "  bus     %s\n", describeBus(b))
		if b.Link != nil {
			fmt.Fprintf(a.stdout, "  link    %s\n", a.describeLink(b.Link))
		}
		if b.Damage != nil {
			fmt.Fprintf(a.stdout, "  damage  %s; `%s repair` lists it\n", a.style.red(b.Damage.String()), a.name)
		}
		if b.Error != "" {
			fmt.Fprintf(a.stdout, "          %s %s\n", a.style.red("error:"), oneLine(b.Error))
		}
	}
	a.printMCPServers(s.MCPServers)
	fmt.Fprintln(a.stdout)
	listing[dialect.AgentStatus]{
		columns: headings("AGENT", "HEALTH", "RUNNING", "QUEUED", "NAME"),
		row: func(agent dialect.AgentStatus) []string {
			return []string{agent.ID, agent.Status, fmt.Sprint(agent.Running), fmt.Sprint(agent.Queued), agent.Name}
		},
		paint: a.paintHealth,
	}.table(a, a.stdout, s.Agents)
	a.printNotices(s.Notices)
	a.printLog(s)
}

// printMCPServers prints the state of the MCP servers whose tools the agents share.
func (a *app) printMCPServers(servers []dialect.MCPServerStatus) {
	for i, s := range servers {
		label := ""
		if i == 0 {
			label = "mcp"
		}
		what := fmt.Sprintf("%s, %s, %s", text.Count(s.Tools, "tool"), text.Count(s.Resources, "resource"), text.Count(s.Prompts, "prompt"))
		if s.Skipped > 0 {
			what += fmt.Sprintf(", %d skipped (see the log)", s.Skipped)
		}
		if !s.Connected {
			what = a.style.red("not connected:") + " " + oneLine(s.Problem)
		}
		fmt.Fprintf(a.stdout, "  %-7s %s (%s): %s\n", label, oneLine(s.Name), oneLine(s.Kind), what)
	}
}

// printLog prints where the hub writes its log.
func (a *app) printLog(s *dialect.Status) {
	if s.DataDir == "" { // a hub of an earlier version
		return
	}
	if info, err := daemon.Read(s.DataDir); err == nil && info.PID == s.PID && info.Log != "" {
		a.note("\nlog: %s", info.Log)
	}
}

// describeLink describes the hub's link to the agents' cluster.
func (a *app) describeLink(l *dialect.LinkStatus) string {
	if l.Connected {
		return fmt.Sprintf("to the cluster at %s, for %s", oneLine(l.URL), display.Duration(time.Since(l.Since.Time)))
	}
	return a.style.red("down:") + " " + oneLine(l.Problem)
}

func describeBus(b *dialect.BusStatus) string {
	if !b.Embedded {
		return "external, " + oneLine(b.URL)
	}
	switch b.Mode {
	case "fast":
		return "embedded, durability fast: a power cut can lose the last seconds"
	case "always":
		return "embedded, durability always: each write is on disk before it is acknowledged"
	}
	return "embedded, durability " + oneLine(b.Mode) + ": acknowledged writes are on disk"
}
