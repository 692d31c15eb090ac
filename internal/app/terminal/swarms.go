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
	"github.com/parleyhub/parley/ralph"
	"github.com/parleyhub/parley/swarm"
)

func swarmsScreen(now func() time.Time) *screen {
	var steps []events.Event // of loops
	return &screen{
		kinds: []string{"swarm.", "work.", "deadletter.", "loop.", "claim."},
		load: func(ctx context.Context, h Hub, changed []events.Event) (table, error) {
			if changed == nil {
				var err error
				if steps, err = pastEvents(ctx, h, now().Add(-24*time.Hour), "loop."); err != nil {
					return table{}, err
				}
			}
			for _, e := range changed {
				if e.Kind == events.LoopStep {
					steps = append(steps, e)
				}
			}
			return swarmsTable(ctx, h, steps)
		},
		open: func(r row) *page {
			switch {
			case r.swarm != "":
				return swarmPage(r.subject, now)
			case r.loop != "":
				return loopPage(r.subject, now)
			case r.agent != "":
				return agentPage(r.subject, now)
			}
			return nil
		},
		preview: func(r row) []line {
			if r.claim != "" {
				return []line{{text: r.cells[len(r.cells)-1]}, {role: dim, text: "claim " + clean(r.claim) + "; b ends it, and its holder is told by mail"}}
			}
			if r.item == "" {
				return nil
			}
			return []line{{role: bad, text: r.cells[len(r.cells)-1]}, {role: dim, text: "work item " + clean(r.item) + "; r puts it into its queue again"}}
		},
	}
}

// swarmsTable lists swarms, loops, work and queues.
func swarmsTable(ctx context.Context, h Hub, steps []events.Event) (table, error) {
	swarms, err := h.Swarms(ctx)
	if err != nil {
		return table{}, err
	}
	agents, err := h.Agents(ctx, false)
	if err != nil {
		return table{}, err
	}
	queues, err := h.Work(ctx)
	if err != nil {
		return table{}, err
	}
	held, err := h.FileClaims(ctx)
	if err != nil {
		return table{}, err
	}
	t := table{columns: []column{{"KIND", 6}, {"STATE", 11}, {"DONE", 9}, {"WHAT", 0}}}
	for _, s := range slices.Backward(swarms) {
		r := row{key: s.ID, state: string(s.Status), at: s.CreatedAt.Time, subject: subject{swarm: s.ID, dir: s.Directory}}
		r.cells = []string{"swarm", r.state, fmt.Sprintf("%d of %d", s.Completed, s.SubTasks), clean(s.TaskDescription)}
		t.rows = append(t.rows, r.found(s.ID, strings.Join(s.Participants, " ")))
	}
	t.rows = append(t.rows, loopRows(steps)...)
	for _, x := range queues.Items {
		t.rows = append(t.rows, itemRow(&x))
	}
	for _, l := range queues.DeadLetters {
		t.rows = append(t.rows, letterRow(&l))
	}
	for i := range held {
		t.rows = append(t.rows, claimRow(&held[i]))
	}
	for _, a := range agents {
		if a.Kind == "queue" {
			r := row{key: a.ID, state: a.State, at: a.Since.Time, subject: subject{agent: a.ID}}
			r.cells = []string{"queue", a.State, fmt.Sprintf("%d open", a.Running+a.Queued), clean(a.ID)}
			t.rows = append(t.rows, r.found())
		}
	}
	return t, nil
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

// claimRow shows an agent's claim of files; its age counts down to its end.
func claimRow(c *dialect.FileClaim) row {
	r := row{key: "files " + c.ID, state: string(work.Claimed), at: stamp(c.ClaimedAt), until: stamp(c.Until), subject: subject{claim: c.ID, holder: c.Holder, state: string(work.Claimed)}}
	what := clean(c.Holder) + " holds " + clean(strings.Join(c.Paths, ", ")) + " of " + clean(c.Repository)
	if c.Why != "" {
		what += ": " + clean(c.Why)
	}
	r.cells = []string{"files", clean(c.Mode), "", what}
	return r.found(c.ID)
}

func letterRow(l *work.DeadLetter) row {
	r := row{key: "item " + l.TaskID, state: string(work.Dead), at: stamp(l.DeadAt), subject: subject{item: l.TaskID, state: string(work.Dead)}}
	queue := l.Subject[strings.LastIndexByte(l.Subject, '.')+1:]
	r.cells = []string{"failed", clean(queue), fmt.Sprintf("%d tries", l.Attempts), clean(string(l.Reason) + " " + l.Detail)}
	return r.found(l.TaskID)
}

// stamp reads a time of the agents' network; zero if there is none.
func stamp(s string) time.Time {
	at, _ := time.Parse(time.RFC3339Nano, s)
	return at
}

// loopState returns the state after a step of a loop.
func loopState(e *events.Event) string {
	if reason, _ := e.Data["reason"].(string); reason != "" {
		return "failed"
	}
	switch kind, _, _ := stepOf(e); kind {
	case ralph.Finished, ralph.Done:
		return "completed"
	case ralph.Failed, ralph.Dropped:
		return "failed"
	case ralph.Halted:
		return "blocked"
	}
	return "running"
}

func stepOf(e *events.Event) (kind ralph.Kind, item string, attempt string) {
	step, _ := e.Data["step"].(string)
	item, _ = e.Data["item"].(string)
	if n := e.Data["attempt"]; n != nil && fmt.Sprint(n) != "0" {
		attempt = fmt.Sprint(n)
	}
	return ralph.Kind(step), item, attempt
}

// loopRows returns a row for each loop of which there are steps, the latest first.
func loopRows(steps []events.Event) []row {
	var rows []row
	seen := map[string]bool{}
	for i := range slices.Backward(steps) {
		e := &steps[i]
		if seen[e.Subject] {
			continue
		}
		seen[e.Subject] = true
		done := map[string]bool{}
		for j := range steps {
			if kind, item, _ := stepOf(&steps[j]); steps[j].Subject == e.Subject && kind == ralph.Done {
				done[item] = true
			}
		}
		kind, item, _ := stepOf(e)
		r := row{key: "loop " + e.Subject, state: loopState(e), at: e.Time, subject: subject{loop: e.Subject}}
		r.cells = []string{"loop", clean(screens.Word(string(kind))), fmt.Sprintf("%d done", len(done)), clean(e.Subject)}
		if item != "" {
			r.cells[3] += ": item " + clean(item)
		}
		if reason, _ := e.Data["reason"].(string); reason != "" {
			r.cells[3] += ": " + clean(reason)
		}
		rows = append(rows, r.found())
	}
	return rows
}

// loopPage shows the steps of a loop.
func loopPage(s subject, now func() time.Time) *page {
	return &page{subject: s, title: "Loop " + clean(s.loop), kinds: []string{"loop."}, follow: true, load: func(ctx context.Context, h Hub) (content, error) {
		steps, err := pastEvents(ctx, h, now().Add(-24*time.Hour), "loop.")
		if err != nil {
			return content{}, err
		}
		steps = slices.DeleteFunc(steps, func(e events.Event) bool { return e.Subject != s.loop })
		var chart gantt
		for i := range steps {
			kind, item, _ := stepOf(&steps[i])
			switch {
			case item == "":
			case kind == ralph.Dispatched, kind == ralph.Resumed:
				chart.begin(item, "", steps[i].Time)
			case loopState(&steps[i]) != "running":
				chart.end(item, loopState(&steps[i]), steps[i].Time)
			}
		}
		var out lines
		out = append(out, chart.lines("Attempts", now())...)
		out.section("Steps")
		for i := range steps {
			kind, item, attempt := stepOf(&steps[i])
			if attempt != "" {
				attempt = "  attempt " + attempt
			}
			ref, _ := steps[i].Data["ref"].(string)
			if reason, _ := steps[i].Data["reason"].(string); reason != "" {
				ref = reason
			}
			state := loopState(&steps[i])
			out.add(roleOf(state), "%s  %s %-10s %s%s  %s", clock(steps[i].Time), mark(state), clean(screens.Word(string(kind))), clean(item), attempt, clean(ref))
		}
		return content{subject: s, lines: out}, nil
	}}
}

func swarmPage(s subject, now func() time.Time) *page {
	return &page{subject: s, title: "Swarm " + clean(s.swarm), kinds: []string{"swarm."}, load: func(ctx context.Context, h Hub) (content, error) {
		session, err := h.Swarm(ctx, s.swarm)
		if err != nil {
			return content{}, err
		}
		past, err := pastEvents(ctx, h, time.UnixMilli(session.CreatedAt), "swarm.")
		if err != nil {
			return content{}, err
		}
		return content{subject: s, lines: swarmLines(session, past, now())}, nil
	}}
}

// swarmLines draws the plan as a graph: each sub-task below those that it depends on, further to the right; and a chart of
// the attempts.
func swarmLines(s *swarm.Session, past []events.Event, now time.Time) []line {
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
	for i := range order {
		out.part(&order[i], depth[order[i].ID], i+1 == len(order) || depth[order[i+1].ID] != depth[order[i].ID])
	}
	out = append(out, attempts(s, past).lines("Attempts", now)...)
	for _, t := range order {
		if len(t.Result) > 0 {
			out.section("Result of " + clean(t.ID))
			out.add(plainText, "%s", resultText(t.Result))
		}
	}
	return out
}

// part adds a sub-task to the graph.
func (l *lines) part(t *swarm.SubTask, depth int, last bool) {
	arrow := ""
	if depth > 0 {
		arrow = strings.Repeat("   ", depth-1) + "├─▶ "
		if last {
			arrow = strings.Repeat("   ", depth-1) + "└─▶ "
		}
	}
	more := ""
	if t.Attempt > 1 {
		more = fmt.Sprintf("  attempt %d", t.Attempt)
	}
	if len(t.DependsOn) > 0 {
		more += "  after " + clean(strings.Join(t.DependsOn, ", "))
	}
	state := string(t.Status)
	l.add(roleOf(state), "%s%s %s  %s  %s%s", arrow, mark(state), clean(t.ID), state, clean(t.AssignedAgent), more)
	if t.Error != "" {
		l.add(bad, "%s  %s", strings.Repeat("   ", depth), clean(t.Error))
	}
}

// attempts returns the chart of a swarm's attempts.
func attempts(s *swarm.Session, past []events.Event) *gantt {
	var chart gantt
	for i := range past {
		e := &past[i]
		id, _ := e.Data["subTask"].(string)
		if e.Subject != s.ID || id == "" {
			continue
		}
		state, _ := e.Data["state"].(string)
		if swarm.SubTaskStatus(state) == swarm.TaskRunning {
			chart.begin(id, e.Agent, e.Time)
		} else {
			chart.end(id, state, e.Time)
		}
	}
	return &chart
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
