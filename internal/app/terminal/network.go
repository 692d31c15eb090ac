package terminal

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/screens"
	"github.com/parleyhub/parley/internal/base/display"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub/events"
)

func networkScreen(now func() time.Time) *screen {
	return &screen{
		short: "Net", kinds: []string{"agent.", "peer."},
		open: func(r row) *page {
			if r.agent == "" {
				return nil
			}
			return agentPage(r.subject, now)
		},
		load: func(ctx context.Context, h Hub, _ []events.Event) (table, error) {
			status, err := h.Status(ctx)
			if err != nil {
				return table{}, err
			}
			agents, err := h.Agents(ctx, true)
			if err != nil {
				return table{}, err
			}
			return networkTable(status, agents), nil
		},
	}
}

// node is a line of the network's picture.
type node struct {
	depth       int
	name, state string
	more        string
	subject
}

// networkTable draws hubs, computers, projects and agents as a tree; a broken link has a broken line.
func networkTable(status *dialect.Status, agents []dialect.Agent) table {
	nodes := append(hubNodes(status), agentNodes(agents)...)
	t := table{columns: []column{{"WHERE", 40}, {"STATE", 10}, {"", 0}}}
	for i, n := range nodes {
		r := row{key: fmt.Sprint(n.depth, n.name, n.agent), state: n.state, subject: n.subject}
		r.cells = []string{branches(nodes, i) + clean(n.name), n.state, clean(n.more)}
		t.rows = append(t.rows, r.found())
	}
	return t
}

func hubNodes(status *dialect.Status) []node {
	nodes := []node{{name: "this hub", state: "connected", more: "version " + status.Version + ", up " + display.Duration(time.Duration(status.Uptime)*time.Millisecond)}}
	if b := status.Bus; b != nil && b.Link != nil {
		nodes = append(nodes, node{depth: 1, name: "cluster " + b.Link.URL, state: linkState(b.Link.Connected), more: b.Link.Problem})
	}
	if status.Peers != nil {
		for _, p := range status.Peers.Hubs {
			nodes = append(nodes, node{depth: 1, name: "hub " + p.Name, state: linkState(p.Connected), more: strings.TrimSpace(strings.Join(p.Via, ", ") + " " + p.Problem)})
			for _, a := range p.Agents {
				nodes = append(nodes, node{depth: 2, name: a, state: linkState(p.Connected), more: "its agent", subject: subject{agent: a}})
			}
		}
	}
	for _, s := range status.MCPServers {
		nodes = append(nodes, node{depth: 1, name: "MCP server " + s.Name, state: linkState(s.Connected), more: cmp.Or(s.Problem, text.Count(s.Tools, "tool"))})
	}
	return nodes
}

// agentNodes returns agents by computer and project. Agents of other hubs stand there.
func agentNodes(agents []dialect.Agent) []node {
	agents = slices.DeleteFunc(slices.Clone(agents), func(a dialect.Agent) bool { return a.Kind == "peer" })
	slices.SortStableFunc(agents, func(a, b dialect.Agent) int {
		return cmp.Or(strings.Compare(a.Computer, b.Computer), strings.Compare(a.Project, b.Project), strings.Compare(a.ID, b.ID))
	})
	var nodes []node
	computer, project := "", ""
	for i, a := range agents {
		if i == 0 || a.Computer != computer {
			nodes = append(nodes, node{depth: 1, name: cmp.Or(a.Computer, "this computer")})
			computer, project = a.Computer, ""
		}
		n := node{depth: 2, name: a.ID, state: a.State, more: strings.TrimSpace(a.Kind + " " + a.Vendor), subject: subject{agent: a.ID, state: a.State}}
		if h := a.Health; h != nil && h.Status == "unhealthy" {
			n.state, n.more = "unhealthy", h.ErrorMessage
		}
		if a.Project != "" {
			n.depth = 3
			if a.Project != project {
				nodes = append(nodes, node{depth: 2, name: "project " + a.Project})
			}
		}
		project = a.Project
		nodes = append(nodes, n)
	}
	return nodes
}

// branches draws the lines that lead to a node.
func branches(nodes []node, i int) string {
	n := nodes[i]
	if n.depth == 0 {
		return ""
	}
	var b strings.Builder
	for d := 1; d < n.depth; d++ {
		if follows(nodes, i, d) {
			b.WriteString("│  ")
		} else {
			b.WriteString("   ")
		}
	}
	corner, link := "└", "─"
	if follows(nodes, i, n.depth) {
		corner = "├"
	}
	if screens.RoleOf(n.state) == screens.Bad {
		link = "╳"
	}
	return b.String() + corner + link + " "
}

// follows reports whether a node at this depth comes after the node i and has the same parent as it or its ancestor.
func follows(nodes []node, i, depth int) bool {
	for _, n := range nodes[i+1:] {
		if n.depth <= depth {
			return n.depth == depth
		}
	}
	return false
}

func linkState(connected bool) string {
	if connected {
		return "connected"
	}
	return "away"
}
