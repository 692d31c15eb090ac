package terminal

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/screens"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/events"
)

// subjectOf returns what actions on a task are about.
func subjectOf(t *dialect.Task) subject {
	s := subject{task: t.ID, context: t.ContextID, state: string(t.Status.State), question: questionOf(t)}
	s.agent, _ = t.Metadata[hub.MetaAgent].(string)
	if dir, ok := t.Metadata["parley.workdir"].(map[string]any); ok {
		s.dir, _ = dir["path"].(string)
	}
	return s
}

// questionOf returns the permission that a task asks for, nil if it asks for none.
func questionOf(t *dialect.Task) *hub.PermissionData {
	if t.Status.Message == nil {
		return nil
	}
	return dialect.PermissionOf(t.Status.Message.Parts)
}

// taskCache holds the tasks between loads, so that a change loads only what has changed.
type taskCache struct{ tasks map[string]dialect.Task }

const (
	taskPageSize = 1000
	maxTasks     = 20_000
	maxSingle    = 20  // changed tasks that are asked for one by one
	newest       = 100 // tasks that each load asks for
)

// load returns the tasks, the newest first. changed are the events since the last load, nil at the first.
func (c *taskCache) load(ctx context.Context, h Hub, changed []events.Event) ([]dialect.Task, error) {
	if changed == nil || c.tasks == nil || len(changed) >= maxQueue {
		return c.all(ctx, h)
	}
	page, err := h.Tasks(ctx, dialect.TasksListParams{Limit: newest})
	if err != nil {
		return nil, err
	}
	fresh := map[string]bool{}
	for _, t := range page.Tasks {
		c.tasks[t.ID], fresh[t.ID] = t, true
	}
	var old []string
	for _, e := range changed {
		if e.Kind == events.TaskRemoved {
			delete(c.tasks, e.Task)
		} else if e.Task != "" && !fresh[e.Task] {
			old, fresh[e.Task] = append(old, e.Task), true
		}
	}
	if len(old) > maxSingle {
		return c.all(ctx, h)
	}
	for _, id := range old {
		if t, err := h.Task(ctx, id); err == nil { // else it was removed meanwhile
			t.History, t.Artifacts = nil, nil
			c.tasks[id] = *t
		}
	}
	return c.sorted(), nil
}

func (c *taskCache) all(ctx context.Context, h Hub) ([]dialect.Task, error) {
	tasks := make(map[string]dialect.Task)
	p := dialect.TasksListParams{Limit: taskPageSize}
	for len(tasks) < maxTasks {
		page, err := h.Tasks(ctx, p)
		if err != nil {
			return nil, err
		}
		for _, t := range page.Tasks {
			tasks[t.ID] = t
		}
		if p.Cursor = page.NextCursor; p.Cursor == "" {
			break
		}
	}
	c.tasks = tasks
	return c.sorted(), nil
}

// sorted returns the tasks, the newest first. Ids are not in the order of creation: those of loops and swarms are made from keys.
func (c *taskCache) sorted() []dialect.Task {
	out := make([]dialect.Task, 0, len(c.tasks))
	created := make(map[string]time.Time, len(c.tasks))
	for id, t := range c.tasks {
		out = append(out, t)
		if created[id] = hub.ReadSummary(t.Metadata).CreatedAt; created[id].IsZero() {
			created[id] = t.Status.Timestamp.Time
		}
	}
	slices.SortFunc(out, func(a, b dialect.Task) int {
		return cmp.Or(created[b.ID].Compare(created[a.ID]), strings.Compare(b.ID, a.ID))
	})
	return out
}

func taskRow(t *dialect.Task) row {
	s := hub.ReadSummary(t.Metadata)
	r := row{key: t.ID, subject: subjectOf(t), state: string(t.Status.State), at: t.Status.Timestamp.Time}
	r.cells = []string{clean(r.agent), screens.Word(r.state), dollars(s.Usage.CostUSD), clean(s.Prompt)}
	var why lines
	why.problem(t)
	r.why = why
	return r.found(r.state, t.ID, r.dir)
}

// taskPage shows one task in full.
func taskPage(s subject) *page {
	return &page{subject: s, title: "Task " + clean(s.task), stream: true, kinds: []string{"task.", "turn.", "permission."}, load: func(ctx context.Context, h Hub) (content, error) {
		t, err := h.Task(ctx, s.task)
		if err != nil {
			return content{}, err
		}
		trace, err := h.Trace(ctx, s.task)
		if err != nil {
			trace = &dialect.TaskTrace{} // a queue's item has none
		}
		return content{subject: subjectOf(t), lines: taskLines(t, trace.Traces)}, nil
	}}
}

// lines collects the lines of a page.
type lines []line

func (l *lines) add(r role, format string, args ...any) {
	*l = append(*l, line{r, fmt.Sprintf(format, args...)})
}

func (l *lines) section(name string) {
	*l = append(*l, line{}, line{heading, name})
}

func taskLines(t *dialect.Task, traces []hub.Trace) []line {
	s, sum := subjectOf(t), hub.ReadSummary(t.Metadata)
	var out lines
	out.add(roleOf(s.state), "%s %s", mark(s.state), screens.Word(s.state))
	out.add(plainText, "agent %s   %s   %s   %s %s", clean(s.agent), clean(sum.Model), sum.Duration.Round(time.Second/10), usageText(sum.Usage.InputTokens, sum.Usage.OutputTokens), dollars(sum.Usage.CostUSD))
	if s.dir != "" {
		out.add(dim, "directory %s", clean(s.dir))
	}
	out.add(dim, "conversation %s", clean(s.context))
	out.changed("", traces)
	out.problem(t)
	if s.question != nil {
		out.question(s.question)
	} else if roleOf(s.state) == waits {
		out.section("The agent asks")
		out.add(waits, "%s", whole(t.Status.Message.Text()))
		out.remedy(t)
	}
	out.section("Asked")
	for _, m := range t.History {
		if m.Role == dialect.RoleUser {
			out.add(plainText, "%s", whole(m.Text()))
		}
	}
	for i := range traces {
		out.turn(&traces[i])
	}
	if answer := t.Text(); answer != "" && roleOf(s.state) != waits {
		out.section("Answer")
		out.add(plainText, "%s", whole(answer))
	}
	return out
}

// problem says why a task failed, and the remedy.
func (l *lines) problem(t *dialect.Task) {
	if roleOf(string(t.Status.State)) != bad || t.Status.Message == nil {
		return
	}
	l.section("Why it failed")
	l.add(bad, "%s", whole(t.Status.Message.Text()))
	l.remedy(t)
}

// remedy says what to do about a task that has failed or waits, if that is known.
func (l *lines) remedy(t *dialect.Task) {
	if e, ok := t.Status.Message.Metadata[hub.MetaError].(map[string]any); ok {
		if remedy, _ := e["remedy"].(string); remedy != "" {
			l.add(waits, "→ %s", clean(remedy))
		}
	}
}

func (l *lines) question(q *hub.PermissionData) {
	l.section("The agent asks for permission")
	l.add(waits, "%s", clean(q.Title))
	if q.Tool != "" {
		l.add(plainText, "tool %s", clean(q.Tool))
	}
	if q.Input != nil {
		l.json("", q.Input)
	}
	for _, o := range q.Options {
		l.add(dim, "  · %s", clean(o.Name))
	}
}

// json adds a value of JSON, a member a line.
func (l *lines) json(indent string, v any) {
	raw, ok := v.(json.RawMessage)
	if !ok {
		var err error
		if raw, err = json.Marshal(v); err != nil {
			return
		}
	}
	var members map[string]any
	if json.Unmarshal(raw, &members) != nil {
		l.add(plainText, "%s%s", indent, whole(string(raw)))
		return
	}
	keys := make([]string, 0, len(members))
	for k := range members {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		value, ok := members[k].(string)
		if !ok {
			b, err := json.Marshal(members[k])
			if err != nil {
				continue
			}
			value = string(b)
		}
		l.add(plainText, "%s%s: %s", indent, clean(k), strings.ReplaceAll(whole(value), "\n", "\n"+indent+"  "))
	}
}

// turn adds the timeline of one turn: tool calls, questions, notices, changes.
func (l *lines) turn(t *hub.Trace) {
	took := ""
	if !t.EndedAt.IsZero() {
		took = "  " + t.EndedAt.Sub(t.StartedAt).Round(time.Second/10).String()
	}
	l.section(fmt.Sprintf("Turn %d  %s%s  %s %s", t.Turn, clean(screens.Word(string(t.State))), took, usageText(t.Usage.InputTokens, t.Usage.OutputTokens), dollars(t.Usage.CostUSD)))
	type item struct {
		at  time.Time
		add func()
	}
	var items []item
	for _, c := range t.Tools {
		items = append(items, item{c.StartedAt, func() { l.tool(&c) }})
	}
	for _, n := range t.Notices {
		items = append(items, item{n.At, func() { l.add(waits, "%s  %s", clock(n.At), clean(n.Text)) }})
	}
	for _, q := range t.Questions {
		items = append(items, item{q.At, func() { l.asked(&q) }})
	}
	slices.SortStableFunc(items, func(a, b item) int { return a.at.Compare(b.at) })
	for _, i := range items {
		i.add()
	}
	if t.Error != nil {
		l.add(bad, "%s: %s", clean(t.Error.Code), clean(t.Error.Message))
	}
	l.changes(t.Git)
}

func (l *lines) tool(c *hub.ToolTrace) {
	r := roleOf(string(c.Status))
	l.add(r, "%s  %s %s", clock(c.StartedAt), mark(string(c.Status)), clean(cmp.Or(c.Title, c.Name)))
	if len(c.Input) > 0 && !bytes.Equal(c.Input, []byte("{}")) {
		l.json("            ", json.RawMessage(c.Input))
	}
	if c.Output != "" {
		l.add(dim, "%s", indented(whole(c.Output), "            "))
	}
}

func (l *lines) asked(q *hub.QuestionTrace) {
	answer, r := "not answered", waits
	if a := q.Answer; a != nil {
		answer, r = "denied", bad
		if a.Allowed {
			answer, r = "allowed", good
		}
		answer += " by " + clean(cmp.Or(a.Agent, a.By))
	}
	l.add(r, "%s  ? %s: %s", clock(q.At), clean(q.Title), answer)
}

// changed sums up what the turns have changed.
func (l *lines) changed(indent string, traces []hub.Trace) {
	var names []string
	added, deleted := 0, 0
	for _, t := range traces {
		if t.Git == nil {
			continue
		}
		added += t.Git.Added
		deleted += t.Git.Deleted
		for _, f := range t.Git.Files {
			if !slices.Contains(names, clean(f.Path)) {
				names = append(names, clean(f.Path))
			}
		}
	}
	if len(names) > 0 {
		l.add(plainText, indent+"changed +%d -%d in %s", added, deleted, strings.Join(names, ", "))
	}
}

func (l *lines) changes(g *hub.GitTrace) {
	if g == nil || len(g.Files) == 0 {
		return
	}
	l.add(bold, "changed %s: +%d -%d on %s", text.Count(len(g.Files)+g.MoreFiles, "file"), g.Added, g.Deleted, clean(g.Branch))
	for _, f := range g.Files {
		l.add(plainText, "  %s  +%d -%d", clean(f.Path), f.Added, f.Deleted)
	}
}

func clock(t time.Time) string { return t.Local().Format(time.TimeOnly) }

func usageText(in, out int64) string {
	if in+out == 0 {
		return ""
	}
	return fmt.Sprintf("%d + %d tokens", in, out)
}

func indented(s, by string) string { return by + strings.ReplaceAll(s, "\n", "\n"+by) }
