package terminal

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/screens"
	"github.com/parleyhub/parley/internal/hub/events"
	"github.com/parleyhub/parley/swarm"
)

// newScreens returns the screens of the contract in their order.
func newScreens() []*screen {
	shown := map[string]*screen{
		"needs": needsScreen(), "agents": agentsScreen(), "tasks": tasksScreen(), "conversations": conversationsScreen(), "swarms": swarmsScreen(),
		"network": networkScreen(), "documents": documentsScreen(), "timeline": timelineScreen(), "costs": costsScreen(),
	}
	all := make([]*screen, 0, len(shown))
	for _, c := range screens.All() {
		s := shown[c.ID]
		s.name, s.none = c.Title, c.None
		if s.short == "" {
			s.short = c.Title
		}
		all = append(all, s)
	}
	return all
}

// found sets what a filter looks in.
func (r row) found(more ...string) row {
	r.find = strings.ToLower(strings.Join(append(slices.Clone(r.cells), more...), " "))
	return r
}

func needsScreen() *screen {
	return &screen{
		kinds: []string{"task.", "permission.", "agent.", "deadletter."},
		load:  loadNeeds,
		open: func(r row) *page {
			switch {
			case r.item != "":
				return nil // the preview has all of it
			case r.task == "":
				return agentPage(r.subject)
			}
			return taskPage(r.subject)
		},
		preview: func(r row) []line {
			var out lines
			if r.question != nil {
				out.question(r.question)
				return out[1:] // the list says who asks
			}
			out.add(plainText, "%s", r.cells[len(r.cells)-1])
			if r.item != "" {
				out.add(dim, "work item %s", clean(r.item))
			}
			return out
		},
	}
}

// loadNeeds returns what waits for the user, as the hub says it.
func loadNeeds(ctx context.Context, h Hub, _ []events.Event) (table, error) {
	found, err := h.Needs(ctx)
	if err != nil {
		return table{}, err
	}
	t := table{columns: []column{{"WHAT", 10}, {"AGENT", 16}, {"", 0}}, total: found.Total}
	for i := range found.Needs {
		t.rows = append(t.rows, needRow(&found.Needs[i]))
	}
	return t, nil
}

func needRow(n *dialect.Need) row {
	s := subject{task: n.TaskID, context: n.ContextID, agent: n.Agent, item: n.Item, question: n.Permission(), state: "waiting"}
	if n.TaskID == "" {
		s.state = "unhealthy"
	}
	r := row{key: n.ID, subject: s, state: s.state, at: n.Since.Time}
	r.cells = []string{string(n.Kind), clean(n.Agent), cmp.Or(clean(n.Title), "waits for more input")}
	return r.found(n.TaskID, n.Item)
}

func agentsScreen() *screen {
	return &screen{
		kinds: []string{"agent.", "task.state", "permission."},
		open:  func(r row) *page { return agentPage(r.subject) },
		load: func(ctx context.Context, h Hub, _ []events.Event) (table, error) {
			agents, err := h.Agents(ctx, true)
			if err != nil {
				return table{}, err
			}
			today, err := h.Totals(ctx, dialect.TotalsParams{By: []string{"agent"}, Since: &dialect.Time{Time: startOfDay(time.Now())}})
			if err != nil {
				return table{}, err
			}
			sums := map[string]dialect.Total{}
			for _, s := range today.Totals {
				sums[s.Agent] = s
			}
			t := table{columns: []column{{"AGENT", 20}, {"STATE", 9}, {"HEALTH", 10}, {"TODAY", 5}, {"FAILED", 6}, {"COST", -8}, {"PROJECT", -16}, {"NOW", 0}}}
			slices.SortStableFunc(agents, func(a, b dialect.Agent) int {
				return cmp.Or(strings.Compare(a.Computer, b.Computer), strings.Compare(a.Project, b.Project), strings.Compare(a.ID, b.ID))
			})
			for _, a := range agents {
				t.rows = append(t.rows, agentRow(&a, sums[a.ID]))
			}
			return t, nil
		},
	}
}

func agentRow(a *dialect.Agent, today dialect.Total) row {
	r := row{key: a.ID, state: a.State, at: a.Since.Time, subject: subject{agent: a.ID, state: a.State}}
	health, doing := "", ""
	if a.Health != nil {
		health = a.Health.Status
		if health == "unhealthy" {
			r.state, doing = health, clean(a.Health.ErrorMessage)
		}
	}
	if a.Working != nil {
		doing, r.task = clean(a.Working.Title), a.Working.TaskID
	}
	count := func(n int) string {
		if n == 0 {
			return ""
		}
		return fmt.Sprint(n)
	}
	r.cells = []string{clean(cmp.Or(a.Address, a.ID)), a.State, health, count(today.Tasks), count(today.Failed), dollars(today.CostUSD), clean(a.Project), cmp.Or(doing, clean(a.Description))}
	return r.found(a.Kind, a.Computer, a.Vendor)
}

func startOfDay(t time.Time) time.Time {
	y, m, d := t.Date()
	return time.Date(y, m, d, 0, 0, 0, 0, t.Location())
}

// agentPage shows an agent with its last tasks.
func agentPage(s subject) *page {
	return &page{subject: s, title: "Agent " + clean(s.agent), kinds: []string{"agent.", "task.state"}, load: func(ctx context.Context, h Hub) (content, error) {
		agents, err := h.Agents(ctx, true)
		if err != nil {
			return content{}, err
		}
		page, err := h.Tasks(ctx, dialect.TasksListParams{AgentID: s.agent, Limit: 50})
		if err != nil {
			return content{}, err
		}
		var out lines
		if i := slices.IndexFunc(agents, func(a dialect.Agent) bool { return a.ID == s.agent }); i >= 0 {
			out.agent(&agents[i])
		} else {
			out.add(bad, "There is no such agent any more.")
		}
		out.section("Last tasks")
		for i := range page.Tasks {
			r := taskRow(&page.Tasks[i])
			out.add(roleOf(r.state), "%s %s  %-10s %s", mark(r.state), r.at.Local().Format(time.DateTime), r.state, r.cells[len(r.cells)-1])
		}
		return content{subject: s, lines: out}, nil
	}}
}

func (l *lines) agent(a *dialect.Agent) {
	l.add(roleOf(a.State), "%s %s", mark(a.State), a.State)
	for _, f := range [][2]string{
		{"kind", a.Kind}, {"name", a.Name}, {"handle", a.Handle}, {"driver", a.Driver}, {"vendor", a.Vendor}, {"model", a.Model}, {"role", a.Role},
		{"project", a.Project}, {"computer", a.Computer}, {"about", a.Description},
	} {
		if f[1] != "" {
			l.add(plainText, "%-10s %s", f[0], clean(f[1]))
		}
	}
	if a.Working != nil {
		l.add(busy, "works on   %s", clean(a.Working.Title))
	}
	if h := a.Health; h != nil {
		l.section("Health")
		l.add(roleOf(h.Status), "%s %s  %s %s", mark(h.Status), h.Status, clean(h.Stage), clean(h.Version))
		if h.ErrorMessage != "" {
			l.add(waits, "→ %s", whole(h.ErrorMessage))
		}
	}
}

func tasksScreen() *screen {
	cache := &taskCache{}
	return &screen{
		kinds: []string{"task.", "turn.ended", "permission."},
		load: func(ctx context.Context, h Hub, changed []events.Event) (table, error) {
			tasks, err := cache.load(ctx, h, changed)
			if err != nil {
				return table{}, err
			}
			t := table{columns: []column{{"AGENT", 16}, {"STATE", 14}, {"COST", 8}, {"TASK", 0}}}
			t.rows = make([]row, len(tasks))
			for i := range tasks {
				t.rows[i] = taskRow(&tasks[i])
			}
			return t, nil
		},
	}
}

func conversationsScreen() *screen {
	return &screen{
		short: "Talks", kinds: []string{"task."},
		load: func(ctx context.Context, h Hub, _ []events.Event) (table, error) {
			contexts, err := h.Contexts(ctx, 200)
			if err != nil {
				return table{}, err
			}
			page, err := h.Tasks(ctx, dialect.TasksListParams{Limit: 1000})
			if err != nil {
				return table{}, err
			}
			last := map[string]*dialect.Task{}
			for i := range page.Tasks {
				if task := &page.Tasks[i]; last[task.ContextID] == nil {
					last[task.ContextID] = task
				}
			}
			t := table{columns: []column{{"WITH", 24}, {"TASKS", 5}, {"LAST", 0}}}
			for _, c := range contexts {
				r := row{key: c.ID, at: c.LastUsedAt.Time, subject: subject{context: c.ID}}
				said := ""
				if task := last[c.ID]; task != nil {
					r.state, said = string(task.Status.State), taskRow(task).cells[3]
				}
				if len(c.AgentIDs) > 0 {
					r.agent = c.AgentIDs[len(c.AgentIDs)-1]
					r.dir = c.WorkDirs[r.agent].Path
				}
				r.cells = []string{clean(strings.Join(c.AgentIDs, ", ")), fmt.Sprint(len(c.TaskIDs)), said}
				t.rows = append(t.rows, r.found(c.ID))
			}
			return t, nil
		},
		open: func(r row) *page { return conversationPage(r.subject) },
	}
}

// conversationPage shows a conversation as a thread.
func conversationPage(s subject) *page {
	return &page{subject: s, title: "Conversation with " + clean(s.agent), kinds: []string{"task."}, follow: true, load: func(ctx context.Context, h Hub) (content, error) {
		page, err := h.Tasks(ctx, dialect.TasksListParams{ContextID: s.context, Limit: 100, HistoryLength: new(100), IncludeArtifacts: true})
		if err != nil {
			return content{}, err
		}
		var out lines
		for i := range slices.Backward(page.Tasks) {
			out.thread(&page.Tasks[i])
		}
		return content{subject: s, lines: out}, nil
	}}
}

func (l *lines) thread(t *dialect.Task) {
	agent := clean(subjectOf(t).agent)
	for _, m := range t.History {
		who, r := "you", bold
		if m.Role != dialect.RoleUser {
			who, r = agent, busy
		}
		l.add(r, "%s", who)
		l.add(plainText, "%s", indented(whole(m.Text()), "  "))
	}
	state := string(t.Status.State)
	if answer := t.Text(); answer != "" && (len(t.History) == 0 || t.History[len(t.History)-1].Text() != answer) {
		l.add(busy, "%s", agent)
		l.add(plainText, "%s", indented(whole(answer), "  "))
	}
	l.add(roleOf(state), "  %s %s %s", mark(state), state, t.Status.Timestamp.Local().Format(time.DateTime))
	l.add(plainText, "")
}

func swarmsScreen() *screen {
	return &screen{
		kinds: []string{"swarm.", "work.", "deadletter.", "loop."},
		load: func(ctx context.Context, h Hub, _ []events.Event) (table, error) {
			swarms, err := h.Swarms(ctx)
			if err != nil {
				return table{}, err
			}
			agents, err := h.Agents(ctx, false)
			if err != nil {
				return table{}, err
			}
			t := table{columns: []column{{"KIND", 6}, {"STATE", 11}, {"DONE", 9}, {"WHAT", 0}}}
			for _, s := range slices.Backward(swarms) {
				r := row{key: s.ID, state: string(s.Status), at: s.CreatedAt.Time, subject: subject{swarm: s.ID, dir: s.Directory}}
				r.cells = []string{"swarm", r.state, fmt.Sprintf("%d of %d", s.Completed, s.SubTasks), clean(s.TaskDescription)}
				t.rows = append(t.rows, r.found(s.ID, strings.Join(s.Participants, " ")))
			}
			queues, err := h.Work(ctx)
			if err != nil {
				return table{}, err
			}
			for _, x := range queues.Items {
				t.rows = append(t.rows, itemRow(&x))
			}
			for _, l := range queues.DeadLetters {
				r := row{key: "item " + l.TaskID, state: string(work.Dead), at: stamp(l.DeadAt), subject: subject{item: l.TaskID, state: string(work.Dead)}}
				r.cells = []string{"failed", clean(l.Subject[strings.LastIndexByte(l.Subject, '.')+1:]), fmt.Sprintf("%d tries", l.Attempts), clean(string(l.Reason) + " " + l.Detail)}
				t.rows = append(t.rows, r.found(l.TaskID))
			}
			for _, a := range agents {
				if a.Kind == "queue" {
					r := row{key: a.ID, state: a.State, at: a.Since.Time, subject: subject{agent: a.ID}}
					r.cells = []string{"queue", a.State, fmt.Sprintf("%d open", a.Running+a.Queued), clean(a.ID)}
					t.rows = append(t.rows, r.found())
				}
			}
			return t, nil
		},
		open: func(r row) *page {
			switch {
			case r.swarm != "":
				return swarmPage(r.subject)
			case r.agent != "":
				return agentPage(r.subject)
			}
			return nil
		},
	}
}

// itemRow shows an item of a queue; its age counts down to the end of the lease.
func itemRow(x *work.ItemStatus) row {
	r := row{key: "item " + x.TaskID, state: string(x.State), at: stamp(x.SubmittedAt)}
	r.cells = []string{"item", string(x.State), clean(x.Capability), clean(x.Description)}
	if x.State == work.Claimed {
		r.until = stamp(x.LeaseUntil)
		r.cells[3] = clean(cmp.Or(x.HolderHandle, x.HolderGUID) + ": " + x.Description)
	}
	return r.found(x.TaskID, x.HolderHandle)
}

// stamp reads a time of the agents' network; zero if there is none.
func stamp(s string) time.Time {
	at, _ := time.Parse(time.RFC3339Nano, s)
	return at
}

func swarmPage(s subject) *page {
	return &page{subject: s, title: "Swarm " + clean(s.swarm), kinds: []string{"swarm."}, load: func(ctx context.Context, h Hub) (content, error) {
		session, err := h.Swarm(ctx, s.swarm)
		if err != nil {
			return content{}, err
		}
		return content{subject: s, lines: swarmLines(session)}, nil
	}}
}

// swarmLines draws the plan as a graph: each sub-task below those that it depends on, further to the right.
func swarmLines(s *swarm.Session) []line {
	var out lines
	out.add(roleOf(string(s.Status)), "%s %s", mark(string(s.Status)), s.Status)
	out.add(plainText, "%s", whole(s.TaskDescription))
	out.add(dim, "agents %s", clean(strings.Join(s.Participants, ", ")))
	if s.Error != "" {
		out.add(bad, "%s", whole(s.Error))
	}
	out.section("Plan")
	depth := depths(s.SubTasks)
	order := slices.Clone(s.SubTasks)
	slices.SortStableFunc(order, func(a, b swarm.SubTask) int { return depth[a.ID] - depth[b.ID] })
	for _, t := range order {
		arrow := ""
		if n := depth[t.ID]; n > 0 {
			arrow = strings.Repeat("   ", n-1) + "└─▶ "
		}
		after := ""
		if len(t.DependsOn) > 0 {
			after = "  after " + clean(strings.Join(t.DependsOn, ", "))
		}
		attempt := ""
		if t.Attempt > 1 {
			attempt = fmt.Sprintf("  attempt %d", t.Attempt)
		}
		state := string(t.Status)
		out.add(roleOf(state), "%s%s %s  %s  %s%s%s", arrow, mark(state), clean(t.ID), state, clean(t.AssignedAgent), attempt, after)
		if t.Error != "" {
			out.add(bad, "     %s", clean(t.Error))
		}
	}
	for _, t := range order {
		if len(t.Result) > 0 {
			out.section("Result of " + clean(t.ID))
			out.add(plainText, "%s", resultText(t.Result))
		}
	}
	return out
}

func resultText(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return whole(s)
	}
	return whole(string(raw))
}

// depths returns how many sub-tasks come before each one, in the longest row.
func depths(tasks []swarm.SubTask) map[string]int {
	depth := map[string]int{}
	for range tasks { // a plan has no cycle
		for _, t := range tasks {
			for _, d := range t.DependsOn {
				depth[t.ID] = max(depth[t.ID], min(depth[d]+1, len(tasks)))
			}
		}
	}
	return depth
}

func networkScreen() *screen {
	return &screen{
		short: "Net", kinds: []string{"agent.", "peer."},
		open: func(r row) *page {
			if r.agent == "" {
				return nil
			}
			return agentPage(r.subject)
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

// networkTable draws hubs, computers, projects and agents as a tree.
func networkTable(status *dialect.Status, agents []dialect.Agent) table {
	t := table{columns: []column{{"WHERE", 44}, {"STATE", 12}, {"", 0}}}
	add := func(depth int, name, state, more string, s subject) {
		branch := ""
		if depth > 0 {
			branch = strings.Repeat("│  ", depth-1) + "├─ "
		}
		r := row{key: fmt.Sprint(depth, name, s.agent), state: state, subject: s, cells: []string{branch + clean(name), state, clean(more)}}
		t.rows = append(t.rows, r.found())
	}
	add(0, "this hub", "connected", "version "+status.Version+", up "+short(time.Duration(status.Uptime)*time.Millisecond), subject{})
	if b := status.Bus; b != nil && b.Link != nil {
		add(1, "cluster "+b.Link.URL, linkState(b.Link.Connected), b.Link.Problem, subject{})
	}
	if status.Peers != nil {
		for _, p := range status.Peers.Hubs {
			add(1, "hub "+p.Name, linkState(p.Connected), strings.Join(p.Via, ", ")+" "+p.Problem, subject{})
		}
	}
	for _, s := range status.MCPServers {
		add(1, "MCP server "+s.Name, linkState(s.Connected), cmp.Or(s.Problem, fmt.Sprintf("%d tools", s.Tools)), subject{})
	}
	slices.SortStableFunc(agents, func(a, b dialect.Agent) int {
		return cmp.Or(strings.Compare(a.Computer, b.Computer), strings.Compare(a.Project, b.Project), strings.Compare(a.ID, b.ID))
	})
	computer, project := "", ""
	for i, a := range agents {
		if i == 0 || a.Computer != computer {
			add(1, cmp.Or(a.Computer, "this computer"), "", "", subject{})
			computer, project = a.Computer, ""
		}
		depth := 2
		if a.Project != "" {
			depth = 3
			if a.Project != project {
				add(2, "project "+a.Project, "", "", subject{})
			}
		}
		project = a.Project
		add(depth, a.ID, a.State, a.Kind+" "+a.Vendor, subject{agent: a.ID, state: a.State})
	}
	return t
}

func linkState(connected bool) string {
	if connected {
		return "connected"
	}
	return "away"
}

func documentsScreen() *screen {
	return &screen{
		short: "Docs", kinds: []string{"document."},
		load: func(ctx context.Context, h Hub, _ []events.Event) (table, error) {
			names, err := h.Documents(ctx)
			if err != nil {
				return table{}, err
			}
			t := table{columns: []column{{"DOCUMENT", 0}}}
			for _, n := range names {
				t.rows = append(t.rows, row{key: n, subject: subject{document: n}, cells: []string{clean(n)}}.found())
			}
			return t, nil
		},
		open: func(r row) *page { return documentPage(r.subject) },
	}
}

func documentPage(s subject) *page {
	return &page{subject: s, title: "Document " + clean(s.document), kinds: []string{"document."}, load: func(ctx context.Context, h Hub) (content, error) {
		c, err := h.Document(ctx, s.document)
		if err != nil {
			return content{}, err
		}
		var out lines
		out.add(dim, "version %s   %d items   %d bytes   e edits: PATH = VALUE", clean(c.Version), c.Items, c.Bytes)
		var roots map[string]json.RawMessage
		if err := json.Unmarshal(c.Content, &roots); err != nil {
			return content{}, err
		}
		names := make([]string, 0, len(roots))
		for n := range roots {
			names = append(names, n)
		}
		slices.Sort(names)
		for _, n := range names {
			out.section(clean(n))
			out.json("  ", documentValue(roots[n]))
		}
		return content{subject: s, lines: out}, nil
	}}
}

// documentValue returns a text as it is, anything else as indented JSON.
func documentValue(raw json.RawMessage) any {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return json.RawMessage(text)
	}
	return raw
}

// maxTimeline bounds the events that the timeline shows.
const maxTimeline = 5000

func timelineScreen() *screen {
	var kept []events.Event
	return &screen{
		kinds: []string{"agent.", "task.", "turn.", "permission.", "channel.", "mail.", "work.", "deadletter.", "swarm.", "loop.", "peer.", "document.", "gap"},
		load: func(ctx context.Context, h Hub, changed []events.Event) (table, error) {
			if changed == nil {
				var err error
				if kept, err = pastEvents(ctx, h); err != nil {
					return table{}, err
				}
			}
			kept = append(kept, changed...)
			if len(kept) > maxTimeline {
				kept = slices.Clone(kept[len(kept)-maxTimeline:])
			}
			t := table{columns: []column{{"TIME", 8}, {"WHAT", 19}, {"WHO", 16}, {"", 0}}}
			for i := range slices.Backward(kept) {
				t.rows = append(t.rows, eventRow(&kept[i]))
			}
			return t, nil
		},
		open: func(r row) *page {
			switch {
			case r.task != "":
				return taskPage(r.subject)
			case r.agent != "":
				return agentPage(r.subject)
			}
			return nil
		},
	}
}

func pastEvents(ctx context.Context, h Hub) ([]events.Event, error) {
	s, err := h.HubEvents(ctx, dialect.EventsParams{Since: &dialect.Time{Time: time.Now().Add(-24 * time.Hour)}, Follow: new(false)})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var all []events.Event
	for {
		e, err := s.Next(ctx)
		if err != nil {
			return all, endOnly(err)
		}
		if e.Kind != events.Here {
			all = append(all, e)
		}
		if len(all) > 2*maxTimeline {
			all = slices.Clone(all[maxTimeline:])
		}
	}
}

func eventRow(e *events.Event) row {
	r := row{key: e.Position.String(), at: e.Time, subject: subject{task: e.Task, agent: e.Agent, context: e.Context}}
	var details []string
	for _, key := range []string{"state", "status", "outcome", "reason", "tool", "title", "from", "subTask", "step", "item", "costUsd"} {
		if v, ok := e.Data[key]; ok && fmt.Sprint(v) != "" {
			details = append(details, fmt.Sprint(v))
		}
	}
	for _, key := range []string{"state", "status", "outcome"} {
		if state, _ := e.Data[key].(string); state != "" {
			r.state = state
			break
		}
	}
	details = append(details, e.Channel, e.Subject)
	who := cmp.Or(e.Agent, e.Subject, e.Channel)
	r.cells = []string{clock(e.Time), string(e.Kind), clean(who), clean(strings.Join(details, " "))}
	return r.found(e.Task, e.Project)
}

func costsScreen() *screen {
	by := []string{"day", "agent", "project"}
	return &screen{
		kinds: []string{"turn.ended", "task.state"},
		next:  func() { by = append(by[1:], by[0]) },
		load: func(ctx context.Context, h Hub, _ []events.Event) (table, error) {
			group := by[0]
			totals, err := h.Totals(ctx, dialect.TotalsParams{By: []string{group}})
			if err != nil {
				return table{}, err
			}
			return costTable(group, totals.Totals), nil
		},
	}
}

func costTable(group string, totals []dialect.Total) table {
	t := table{columns: []column{{strings.ToUpper(group), 22}, {"TASKS", 6}, {"FAILED", 6}, {"TIME", 6}, {"TOKENS", 9}, {"COST", 8}, {"", 0}}}
	var most float64
	var sum dialect.Total
	value := func(s dialect.Total) float64 { return cmp.Or(s.CostUSD, float64(s.Tasks)/1e9) }
	for _, s := range totals {
		most = max(most, value(s))
		sum.CostUSD += s.CostUSD
		sum.Tasks += s.Tasks
		sum.Failed += s.Failed
	}
	if group != "day" {
		slices.SortStableFunc(totals, func(a, b dialect.Total) int { return cmp.Compare(value(b), value(a)) })
	}
	t.above = []line{{dim, fmt.Sprintf(" by %s (g: another way)   in all %d tasks, %d failed, %s", group, sum.Tasks, sum.Failed, cmp.Or(dollars(sum.CostUSD), "no cost reported"))}}
	for _, s := range totals {
		name := clean(cmp.Or(s.Day, s.Agent, s.Project, "conversations without one"))
		r := row{key: name, cells: []string{
			name, fmt.Sprint(s.Tasks), fmt.Sprint(s.Failed), short(time.Duration(s.DurationMS) * time.Millisecond), fmt.Sprint(s.InputTokens + s.OutputTokens),
			dollars(s.CostUSD), bar(value(s), most, 16),
		}}
		t.rows = append(t.rows, r.found())
	}
	return t
}
