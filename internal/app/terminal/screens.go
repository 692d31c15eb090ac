package terminal

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/screens"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/events"
)

// newScreens returns the screens of the contract in their order. now is the time at which they load.
func newScreens(now func() time.Time) []*screen {
	shown := map[string]*screen{
		"needs": needsScreen(now), "agents": agentsScreen(now), "tasks": tasksScreen(), "conversations": conversationsScreen(), "swarms": swarmsScreen(now),
		"network": networkScreen(now), "documents": documentsScreen(), "timeline": timelineScreen(now), "costs": costsScreen(now),
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
	r.find = strings.Join(r.cells, " ")
	for _, m := range more {
		r.find += " " + clean(m)
	}
	r.find = strings.ToLower(r.find)
	return r
}

func needsScreen(now func() time.Time) *screen {
	return &screen{
		kinds: []string{"task.", "permission.", "agent.", "deadletter.", "loop.", "mail.held"},
		load:  loadNeeds,
		open: func(r row) *page {
			switch {
			case r.item != "":
				return nil // the preview has all of it
			case r.loop != "":
				return loopPage(r.subject, now)
			case r.task == "":
				return agentPage(r.subject, now)
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
			return append(out, r.why...)
		},
	}
}

// loadNeeds returns what waits for the user, as the hub says it.
func loadNeeds(ctx context.Context, h Hub, _ []events.Event) (table, error) {
	found, err := h.Needs(ctx)
	if err != nil {
		return table{}, err
	}
	t := table{columns: []column{{"WHAT", 11}, {"AGENT", 16}, {"", 0}}, total: found.Total}
	for i := range found.Needs {
		t.rows = append(t.rows, needRow(&found.Needs[i]))
	}
	return t, nil
}

func needRow(n *dialect.Need) row {
	s := subject{task: n.TaskID, context: n.ContextID, agent: n.Agent, item: n.Item, question: n.Permission(), state: "waiting"}
	switch {
	case n.TaskID != "":
	case n.Kind == dialect.NeedHealth || n.Kind == dialect.NeedLogin:
		s.state = "unhealthy"
	case n.Kind == dialect.NeedDeadLetter:
		s.state = "dead"
	case n.Kind == dialect.NeedLoop:
		s.state, s.loop, s.dismissible = "failed", n.List, n.List
	}
	r := row{key: n.ID, subject: s, state: s.state, at: n.Since.Time}
	who := n.Agent
	if n.Remedy != "" {
		r.why = append(r.why, line{waits, "→ " + clean(n.Remedy)})
	}
	if n.List != "" {
		who = filepath.Base(n.List)
		r.why = append(r.why, line{dim, "list " + clean(n.List) + "; d dismisses this"})
	}
	r.cells = []string{screens.Word(string(n.Kind)), clean(who), cmp.Or(clean(n.Title), "waits for more input")}
	return r.found(string(n.Kind), n.TaskID, n.Item, n.List)
}

func agentsScreen(now func() time.Time) *screen {
	return &screen{
		kinds: []string{"agent.", "task.state", "permission."},
		open:  func(r row) *page { return agentPage(r.subject, now) },
		load: func(ctx context.Context, h Hub, _ []events.Event) (table, error) {
			agents, err := h.Agents(ctx, true)
			if err != nil {
				return table{}, err
			}
			today, err := h.Totals(ctx, dialect.TotalsParams{By: []string{"agent"}, Since: &dialect.Time{Time: startOfDay(now())}})
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
	if a.Kind == string(hub.KindSession) && a.GUID != "" {
		r.session = a.GUID
	}
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
func agentPage(s subject, now func() time.Time) *page {
	return &page{subject: s, title: "Agent " + clean(s.agent), kinds: []string{"agent.", "task.state"}, load: func(ctx context.Context, h Hub) (content, error) {
		agents, err := h.Agents(ctx, true)
		if err != nil {
			return content{}, err
		}
		totals, err := h.Totals(ctx, dialect.TotalsParams{AgentID: s.agent, By: []string{"day"}})
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
		out.figures(totals.Totals, now())
		out.section("Last tasks")
		for i := range page.Tasks {
			r := taskRow(&page.Tasks[i])
			out.add(roleOf(r.state), "%s %s  %-13s %s", mark(r.state), r.at.Local().Format(time.DateTime), screens.Word(r.state), r.cells[len(r.cells)-1])
			if i >= maxTraced {
				continue
			}
			if trace, err := h.Trace(ctx, r.task); err == nil { // a queue's item has none
				out.changed("    ", trace.Traces)
			}
		}
		return content{subject: s, lines: out}, nil
	}}
}

// maxTraced bounds the tasks of which an agent's page says what they have changed.
const maxTraced = 8

// figures says what an agent did today, and draws its last days.
func (l *lines) figures(daily []dialect.Total, now time.Time) {
	if len(daily) == 0 {
		return
	}
	l.section("Figures")
	for _, x := range costLines(now, daily) {
		l.add(x.role, "%s", strings.TrimSpace(x.text))
	}
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
	if a.Quiet {
		l.add(plainText, "%-10s %s", "quiet", "nothing wakes it; it sees what is new at its next turn")
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
		preview: func(r row) []line {
			var out lines
			if r.question != nil {
				out.question(r.question)
			}
			return append(out, r.why...)[min(1, len(out)+len(r.why)):] // without the empty line before the heading
		},
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
			t.rest = lastFailure(t.rows)
			return t, nil
		},
	}
}

// lastFailure says why the last task that failed did.
func lastFailure(rows []row) []line {
	i := slices.IndexFunc(rows, func(r row) bool { return len(r.why) > 0 })
	if i < 0 {
		return nil
	}
	var out lines
	out.add(heading, "The last failure: %s, %s", clean(rows[i].agent), rows[i].cells[len(rows[i].cells)-1])
	return append(out, rows[i].why[min(2, len(rows[i].why)):]...) // without the empty line and the heading
}

func conversationsScreen() *screen {
	return &screen{
		short: "Talks", kinds: []string{"task.", "channel.", "mail."},
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
			t := table{columns: []column{{"WITH", 24}, {"COUNT", 5}, {"LAST", 0}}}
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
			threads, err := h.Threads(ctx)
			if err != nil {
				return table{}, err
			}
			for i := range threads {
				t.rows = append(t.rows, threadRow(&threads[i]))
			}
			slices.SortStableFunc(t.rows, func(a, b row) int { return b.at.Compare(a.at) })
			return t, nil
		},
		open: func(r row) *page {
			if r.context == "" {
				return threadPage(r)
			}
			return conversationPage(r.subject)
		},
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
	for i, m := range t.History {
		who, r := "you", bold
		if i == 0 {
			who = cmp.Or(clean(hub.AskedBy(t.Metadata)), who)
		}
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
	l.add(roleOf(state), "  %s %s %s", mark(state), screens.Word(state), t.Status.Timestamp.Local().Format(time.DateTime))
	l.add(plainText, "")
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
		out.add(dim, "version %s   %d items   %d bytes   Enter writes in its texts; e sets a value", clean(c.Version), c.Items, c.Bytes)
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
