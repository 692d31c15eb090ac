package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// shownTask is the result of task show: the task, and with --trace its traces in the same object.
type shownTask struct {
	*dialect.Task
	*dialect.TaskTrace
}

func (a *app) printShown(shown *shownTask, names agentNames) {
	if shown.TaskTrace == nil {
		a.printTask(shown.Task, names)
		return
	}
	a.printFacts(shown.Task, names)
	if first := shown.Turns - len(shown.Traces); first > 0 {
		a.note("the last %d of %d turns are shown", len(shown.Traces), shown.Turns)
	}
	for _, t := range shown.Traces {
		a.printTrace(t)
	}
}

// printFacts prints what a task's summary says.
func (a *app) printFacts(task *dialect.Task, names agentNames) {
	a.fact("task", oneLine(task.ID))
	a.fact("state", a.state(task.Status.State)+a.style.dim(" "+ago(time.Now(), task.Status.Timestamp.Time)))
	a.fact("agent", oneLine(names.of(agentOf(task))))
	a.fact("asked by", oneLine(hub.AskedBy(task.Metadata)))
	a.fact("context", oneLine(task.ContextID))
	a.fact("works in", oneLine(workDirText(hub.WorkDirIn(task.Metadata))))
	a.fact("receipts", receiptsText(hub.ReceiptsOf(task.Metadata)))
	a.printSummary(task)
}

// receiptsText says what is known of a session's attention for a task.
func receiptsText(r hub.Receipts) string {
	var facts []string
	for _, sign := range [][2]string{{"woken", r.WokenAt}, {"shown", r.ShownAt}, {"held", r.HeldAt}, {"refused", r.RefusedAt}} {
		if at, err := time.Parse(time.RFC3339Nano, sign[1]); err == nil {
			facts = append(facts, sign[0]+" "+ago(time.Now(), at))
		}
	}
	return strings.Join(facts, ", ")
}

func (a *app) printSummary(task *dialect.Task) {
	s := hub.ReadSummary(task.Metadata)
	a.fact("model", oneLine(s.Model))
	if s.Turns > 0 {
		a.fact("took", elapsed(s.Duration)+inTurns(s.Turns))
	}
	a.fact("usage", usageText(s.Usage))
}

func (a *app) fact(label, value string) {
	if value != "" {
		fmt.Fprintf(a.stdout, "%s %s\n", a.style.dim(fmt.Sprintf("%-8s", label)), value)
	}
}

func elapsed(d time.Duration) string {
	if d < time.Minute {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

func inTurns(n int) string {
	if n == 1 {
		return ""
	}
	return fmt.Sprintf(" in %d turns", n)
}

// usageText describes tokens and cost, "" if they are not known.
func usageText(u runner.Usage) string {
	var facts []string
	if u.InputTokens+u.OutputTokens > 0 {
		facts = append(facts, fmt.Sprintf("%d + %d tokens", u.InputTokens, u.OutputTokens))
	}
	if u.CostUSD > 0 {
		facts = append(facts, fmt.Sprintf("$%.4f", u.CostUSD))
	}
	return strings.Join(facts, " · ")
}

func (a *app) printTrace(t hub.Trace) {
	fmt.Fprintf(a.stdout, "\n%s %s\n", a.style.bold(fmt.Sprintf("turn %d", t.Turn)), a.traceState(t))
	if !t.StartedAt.IsZero() {
		a.fact("began", t.StartedAt.Local().Format(time.DateTime))
	}
	if t.WorkDir != nil {
		a.fact("in", oneLine(t.WorkDir.Path))
	}
	a.fact("model", oneLine(t.Model))
	a.fact("usage", usageText(t.Usage))
	a.fact("asked", indented(t.Prompt))
	for _, n := range t.Notices {
		a.fact("note", oneLine(n.Text))
	}
	for _, q := range t.Questions {
		a.printQuestionTrace(q)
	}
	for _, call := range t.Tools {
		a.printTool(call)
	}
	if n := t.Omitted.Tools; n > 0 {
		a.fact("more", fmt.Sprintf("%d tool calls did not fit into the record", n))
	}
	if n := t.Omitted.Notices + t.Omitted.Questions; n > 0 {
		a.fact("more", fmt.Sprintf("%d notices and questions did not fit into the record", n))
	}
	if t.Error != nil {
		a.fact("error", indented(t.Error.Message))
	}
	if t.Git != nil {
		a.printGit(*t.Git)
	}
	if t.Derived {
		a.fact("note", "there is no record of this turn; this is what the task says")
	}
}

func (a *app) traceState(t hub.Trace) string {
	state := a.state(dialect.TaskState(t.State))
	if t.EndedAt.IsZero() || t.StartedAt.IsZero() {
		return state
	}
	return state + a.style.dim(" after "+elapsed(t.EndedAt.Sub(t.StartedAt)))
}

// maxTraceLines bounds a text in the terminal; JSON has the whole.
const maxTraceLines = 12

// indented returns a text with its lines below each other, after a label.
func indented(s string) string {
	lines := strings.Split(strings.TrimRight(plain(s), "\n"), "\n")
	if n := len(lines); n > maxTraceLines {
		lines = append(lines[:maxTraceLines], fmt.Sprintf("… %d more lines; --format json has them", n-maxTraceLines))
	}
	return strings.Join(lines, "\n         ")
}

func (a *app) printTool(call hub.ToolTrace) {
	facts := []string{oneLine(string(call.Status))}
	if !call.EndedAt.IsZero() {
		facts = append(facts, elapsed(call.EndedAt.Sub(call.StartedAt)))
	}
	title := call.Title
	if title == "" {
		title = call.Name
	}
	a.fact("tool", oneLine(title)+a.style.dim(" ("+strings.Join(facts, ", ")+")"))
	if in := toolInput(call); in != "" {
		a.fact("  input", indented(in))
	}
	if call.Output != "" {
		a.fact("  output", indented(call.Output))
	}
}

// toolInput returns a call's input unless the title says it already.
func toolInput(call hub.ToolTrace) string {
	var fields map[string]any
	if json.Unmarshal(call.Input, &fields) == nil && len(fields) == 1 {
		for _, v := range fields {
			if s, ok := v.(string); ok && strings.Contains(call.Title, s) {
				return ""
			}
		}
	}
	return string(call.Input)
}

func (a *app) printQuestionTrace(q hub.QuestionTrace) {
	answer := "not answered"
	if q.Answer != nil {
		answer = "denied"
		if q.Answer.Allowed {
			answer = "allowed"
		}
		answer += decidedBy(q.Answer)
		if q.Answer.Message != "" {
			answer += ": " + oneLine(q.Answer.Message)
		}
	}
	a.fact("question", oneLine(q.Title)+a.style.dim(" ("+answer+")"))
}

// decidedBy says who or what answered a permission question.
func decidedBy(answer *hub.AnswerTrace) string {
	switch runner.Decider(answer.By) {
	case runner.ByPolicy:
		return " by the agent's permissions"
	case runner.ByClaim:
		return " because of another agent's claim"
	case runner.ByLimit:
		return " without asking"
	}
	return strings.TrimRight(" by the "+oneLine(answer.By+" "+answer.Agent), " ")
}

func (a *app) printGit(g hub.GitTrace) {
	commits := shortCommit(g.Before)
	if g.After != g.Before {
		commits += " → " + shortCommit(g.After)
	}
	a.fact("git", strings.TrimSpace(oneLine(g.Branch)+" "+commits))
	for _, f := range g.Files {
		change := fmt.Sprintf("+%d −%d", f.Added, f.Deleted)
		if f.Binary {
			change = "binary"
		}
		a.fact("", fmt.Sprintf("%-10s %s", change, oneLine(f.Path)))
	}
	if g.MoreFiles > 0 {
		a.fact("", fmt.Sprintf("and %d more files", g.MoreFiles))
	}
	a.fact("note", oneLine(g.Problem))
}

func shortCommit(id string) string {
	if id == "" {
		return "no commit"
	}
	return oneLine(id[:min(len(id), 10)])
}
