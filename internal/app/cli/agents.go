package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/hub"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
)

type agentsFlags struct {
	health, watch        bool
	kind, state, project string
}

// agentKinds are the kinds of agents in the order of the list, with their headings.
var agentKinds = []struct{ kind, heading string }{
	{string(hub.KindSession), "Open sessions"},
	{string(hub.KindProgram), "Programs that the hub starts"},
	{string(hub.KindPeer), "Agents of other hubs"},
	{string(hub.KindLibrary), "Connected programs"},
	{string(hub.KindQueue), "Work queues"},
}

func (a *app) agentsCommand() *cobra.Command {
	var f agentsFlags
	cmd := command("agents", "List the agents, with --health also whether they can work",
		a.onHub(func(ctx context.Context, c *client.Client, _ []string) error {
			return a.repeat(ctx, f.watch, func(ctx context.Context, w io.Writer) error { return a.showAgents(ctx, c, f, w) })
		}))
	cmd.Long = `List everybody who can be asked: the programs that the hub starts, the sessions that people
have open, and the agents of other hubs. AGENT is what send, task and swarm take; it is the
shortest name that means only this agent. Where two have the same handle, the project,
the computer or the other hub tells them apart, as in reviewer.shop and reviewer@office.`
	cmd.Example = "  " + a.name + " agents --state working -w\n  " + a.name + " agents --kind session --project shop"
	kinds, states := make([]string, len(agentKinds)), idsOf(hub.AgentStates(), func(s hub.AgentState) string { return string(s) })
	for i, k := range agentKinds {
		kinds[i] = k.kind
	}
	cmd.PreRunE = func(*cobra.Command, []string) error {
		switch {
		case f.kind != "" && !slices.Contains(kinds, f.kind):
			return usage("--kind %q is not one of %s", f.kind, strings.Join(kinds, ", "))
		case f.state != "" && !slices.Contains(states, f.state):
			return usage("--state %q is not one of %s", f.state, strings.Join(states, ", "))
		}
		return nil
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.health, "health", false, "show each agent's health, its version and what is missing")
	flags.StringVar(&f.kind, "kind", "", "only agents of this kind: "+strings.Join(kinds, ", "))
	flags.StringVar(&f.state, "state", "", "only agents in this state: "+strings.Join(states, ", "))
	flags.StringVar(&f.project, "project", "", "only agents of the project with this name or id; . is the one here")
	flags.BoolVarP(&f.watch, "watch", "w", false, "print it again whenever it changes, until Ctrl-C")
	cmd.MarkFlagsMutuallyExclusive("health", "watch")
	completeWords(cmd, "kind", kinds...)
	completeWords(cmd, "state", states...)
	cmd.AddCommand(a.renameAgentCommand(), a.quietAgentCommand())
	return cmd
}

// showAgents prints the agents that the flags select.
func (a *app) showAgents(ctx context.Context, c *client.Client, f agentsFlags, w io.Writer) error {
	cards := a.json()
	agents, err := c.ListAgents(ctx, dialect.AgentsListParams{IncludeHealth: f.health, IncludeCards: &cards})
	if err != nil {
		return err
	}
	if f.project == "." {
		f.project = projectHere()
	}
	agents = slices.DeleteFunc(agents, func(x dialect.Agent) bool {
		return f.kind != "" && x.Kind != f.kind || f.state != "" && x.State != f.state ||
			f.project != "" && !strings.EqualFold(x.Project, f.project) && x.ProjectID != f.project
	})
	if f.health {
		a.awaitHealth(ctx, c, agents)
	}
	if a.json() {
		writeJSON(w, agents)
		return nil
	}
	a.printAgents(w, agents, f)
	return nil
}

func (a *app) renameAgentCommand() *cobra.Command {
	var reset bool
	cmd := command("rename AGENT NAME", "Change the name by which a session is called",
		a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
			id, err := a.agentID(ctx, c, args[0])
			if err != nil {
				return err
			}
			name := ""
			if !reset {
				name = args[1]
			}
			agent, err := c.RenameAgent(ctx, dialect.RenameAgentParams{AgentID: id, Name: name})
			if err != nil {
				return err
			}
			return a.print(agent, func() {
				fmt.Fprintf(a.stdout, "%s is called %s\n", oneLine(args[0]), oneLine(agent.Handle))
				if agent.Address != agent.Handle {
					a.note("others have that name too; this one is %s", oneLine(agent.Address))
				}
			})
		}))
	cmd.Long = "Change the name by which a session is called. The session keeps it when it is closed and opened\nagain. Its id stays, so that scripts that use the id go on working."
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if reset {
			return exactly("AGENT")(cmd, args)
		}
		if err := exactly("AGENT", "NAME")(cmd, args); err != nil {
			return err
		}
		if args[1] == "" { // the hub would take it for --reset
			return usage("the name is empty; --reset gives the session the name back that it has by itself")
		}
		return nil
	}
	cmd.Flags().BoolVar(&reset, "reset", false, "give it the name back that it has by itself")
	cmd.ValidArgsFunction = a.completeFirst(agentIDs)
	return cmd
}

func (a *app) quietAgentCommand() *cobra.Command {
	var off bool
	cmd := command("quiet AGENT", "Do not wake a session: it sees what is new in its next turn",
		a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
			id, err := a.agentID(ctx, c, args[0])
			if err != nil {
				return err
			}
			p := dialect.SessionQuietParams{AgentID: id, Quiet: !off}
			if err := c.QuietSession(ctx, p); err != nil {
				return err
			}
			return a.print(p, func() {
				if off {
					fmt.Fprintf(a.stdout, "%s is woken when something is new for it\n", oneLine(args[0]))
					return
				}
				fmt.Fprintf(a.stdout, "%s is not woken; `%s agents quiet %s --off` ends that\n", oneLine(args[0]), a.name, oneLine(args[0]))
			})
		}))
	cmd.Long = "Do not disturb: the hub does not wake the session when mail or a task arrives. It sees what is new in\nits next turn. That stays so when the session is closed and opened again; `parley agents` shows it as\nquiet."
	cmd.Args = exactly("AGENT")
	cmd.Flags().BoolVar(&off, "off", false, "let it be woken again")
	cmd.ValidArgsFunction = a.completeFirst(agentIDs)
	return cmd
}

// agentID returns the id of the agent that a name means here; "" for "".
func (a *app) agentID(ctx context.Context, c *client.Client, name string) (string, error) {
	if name == "" {
		return "", nil
	}
	agent, err := c.FindAgent(ctx, dialect.FindAgentParams{Name: name, ProjectID: projectHere()})
	if err != nil {
		if e, ok := errors.AsType[*jsonrpc.Error](err); ok && e.Code == jsonrpc.CodeMethodNotFound {
			return name, nil // a hub of an earlier version, which knows ids only
		}
		return "", err
	}
	return agent.ID, nil
}

// agentIDsOf returns the ids of the agents that names mean here.
func (a *app) agentIDsOf(ctx context.Context, c *client.Client, names []string) ([]string, error) {
	if names == nil {
		return nil, nil
	}
	ids := make([]string, len(names))
	for i, name := range names {
		var err error
		if ids[i], err = a.agentID(ctx, c, name); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// agentNames are what people write for the agents that the hub has, by id.
type agentNames map[string]string

// agentNames returns none where ids are printed, or if the hub does not say them.
func (a *app) agentNames(ctx context.Context, c *client.Client) agentNames {
	if a.json() {
		return nil
	}
	agents, err := c.Agents(ctx, false)
	if err != nil {
		return nil
	}
	names := make(agentNames, len(agents))
	for _, agent := range agents {
		names[agent.ID] = addressOf(agent)
	}
	return names
}

// of returns the name of an agent; its id, if the hub does not have it any more.
func (n agentNames) of(id string) string { return cmp.Or(n[id], id) }

// all returns the names of agents.
func (n agentNames) all(ids []string) []string {
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = n.of(id)
	}
	return names
}

// formerAgentID is agentID for an agent that may be gone: a name that no agent has is returned as it is.
func (a *app) formerAgentID(ctx context.Context, c *client.Client, name string) (string, error) {
	id, err := a.agentID(ctx, c, name)
	if e, ok := errors.AsType[*jsonrpc.Error](err); ok && e.Code == dialect.CodeAgentNotFound {
		return name, nil
	}
	return id, err
}

// projectHere returns the id of the project of the current directory in the agents' network, "" if it is not known.
func projectHere() string {
	cfg, err := mcpconfig.Load(mcpconfig.Sources{})
	if err != nil {
		return ""
	}
	return cfg.ProjectID
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

// printAgents prints the agents, grouped by their kinds if there are several.
func (a *app) printAgents(w io.Writer, agents []dialect.Agent, f agentsFlags) {
	list := a.agentsListing(f.health, time.Now())
	if f.watch { // the age of a state would change all the time
		list.row = func(agent dialect.Agent) []string { return agentRow(agent, clock) }
	}
	groups := make(map[string][]dialect.Agent)
	for _, x := range agents {
		groups[x.Kind] = append(groups[x.Kind], x)
	}
	peers := groups[string(hub.KindPeer)]
	slices.SortFunc(peers, func(x, y dialect.Agent) int { return cmp.Compare(x.Address, y.Address) }) // they came in any order
	if len(peers) == len(agents) {
		agents = peers
	}
	if len(groups) <= 1 {
		if f.kind != "" || f.state != "" || f.project != "" {
			list.none = "There is no such agent."
		}
		if f.kind == string(hub.KindSession) && f.state == "" && f.project == "" {
			list.none = fmt.Sprintf("No session is open. `%s install` enters Parley into the CLIs here; one that is started then is listed.", a.name)
		}
		list.table(a, w, agents)
	}
	first := true
	for _, k := range agentKinds {
		if len(groups) <= 1 || len(groups[k.kind]) == 0 {
			continue
		}
		if !first {
			fmt.Fprintln(w)
		}
		first = false
		fmt.Fprintln(w, a.style.bold(k.heading))
		list.table(a, w, groups[k.kind])
	}
	if width := a.columns(a.stdout); f.health && width > 0 {
		a.printCutRemarks(w, list, agents, width)
	}
}

// printCutRemarks prints the remarks for which a table is too narrow: they say what to do.
func (a *app) printCutRemarks(w io.Writer, list listing[dialect.Agent], agents []dialect.Agent, width int) {
	var table strings.Builder
	rows := list.rows(agents)
	list.render(&table, width, style{}, rows)
	for i, row := range rows {
		remark := row[len(row)-1]
		if strings.Contains(table.String(), remark) {
			continue
		}
		fmt.Fprintf(w, "\n%s\n%s", a.style.bold(oneLine(addressOf(agents[i]))), hanging("  ", "  ", remark, width))
	}
}

func (a *app) agentsListing(health bool, now time.Time) listing[dialect.Agent] {
	list := listing[dialect.Agent]{
		none: "There are no agents: all are disabled in the configuration.",
		columns: []column{
			{heading: "AGENT"}, {heading: "STATE"}, {heading: "SINCE"}, {heading: "WORKS ON", weight: 2, least: 12}, {heading: "PROJECT", weight: 1, extra: true},
			{heading: "COMPUTER", weight: 1, extra: true}, {heading: "MODEL", weight: 1, extra: true}, {heading: "TIER", extra: true},
			{heading: "CAPABILITIES", weight: 1, extra: true}, {heading: "DESCRIPTION", weight: 2, least: 20},
		},
		row: func(agent dialect.Agent) []string {
			return agentRow(agent, func(at time.Time) string { return ago(now, at) })
		},
		paint: a.paintAgent,
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

// quietMark stands behind the state of a session that is not to be disturbed.
const quietMark = ", quiet"

// agentRow returns the row of an agent; since formats when its state began.
func agentRow(agent dialect.Agent, since func(time.Time) string) []string {
	tier, work := "", ""
	if agent.Tier != nil {
		tier = fmt.Sprintf("L%d", *agent.Tier)
	}
	if agent.Working != nil {
		work = cmp.Or(agent.Working.Title, "task "+shortID(agent.Working.TaskID))
	}
	about := agent.Description
	if agent.Kind == string(hub.KindSession) {
		about = strings.TrimSpace(strings.Join(slices.Compact([]string{agent.Vendor, agent.Role}), " ")) // without a role it is its program
	}
	state := agent.State
	if agent.Quiet {
		state += quietMark
	}
	return []string{addressOf(agent), state, since(agent.Since.Time), work, agent.Project, agent.Computer, agent.Model, tier,
		strings.Join(agent.Capabilities, ", "), cmp.Or(about, agent.Name)}
}

func clock(at time.Time) string { return at.Local().Format(time.TimeOnly) }

// addressOf returns what a person writes for an agent; its id, if the hub is of an earlier version.
func addressOf(agent dialect.Agent) string { return cmp.Or(agent.Address, agent.ID) }

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
	return []string{addressOf(agent), h.Status, version, latency, ago(now, h.LastCheck.Time), remark}
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

func (a *app) paintAgent(column int, text string) string {
	if column != 1 {
		return a.paintFirst(column, text)
	}
	switch hub.AgentState(strings.TrimSuffix(text, quietMark)) {
	case hub.AgentWorking:
		return a.style.green(text)
	case hub.AgentWaiting:
		return a.style.yellow(text)
	case hub.AgentOffline:
		return a.style.dim(text)
	}
	return text
}
