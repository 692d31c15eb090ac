package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/hub"
)

// view shows the events of one stream: as NDJSON, as text that comes live, or
// with a spinner until the answer is there.
type view struct {
	app     *app
	ndjson  bool
	live    bool
	spinner *spinner
	clean   cleaner

	task     *dialect.Task // the first event
	printed  bool          // some of the answer has been
	newline  bool          // what was printed last ended a line
	toldTool string        // the tool that was told last
}

// newView makes a view. On a terminal the answer always comes live.
func newView(a *app, live bool) *view {
	v := &view{app: a, ndjson: a.json() && live, live: !a.json() && (live || isTerminal(a.stdout)), newline: true}
	v.spinner = a.spin("waiting for the agent")
	return v
}

func (v *view) show(e dialect.Event) {
	if v.ndjson {
		writeJSON(v.app.stdout, e)
		return
	}
	switch {
	case e.Task != nil:
		v.snapshot(e.Task)
	case e.Status != nil:
		v.status(e.Status)
	case e.Artifact != nil && v.live:
		v.artifact(e.Artifact)
	}
}

// snapshot takes a task in. A second one in a stream stands for events that
// were lost because this side was slow.
func (v *view) snapshot(t *dialect.Task) {
	if v.task != nil && v.live && v.printed {
		v.text("\n[… part of the answer was skipped; the whole is in: " + v.app.self() + " task show " + plain(t.ID) + "]\n")
	}
	if v.task == nil && v.live {
		for _, artifact := range t.Artifacts { // of a task that was under way
			v.parts(artifact.Parts)
		}
	}
	v.task = t
}

func (v *view) status(s *dialect.StatusUpdate) {
	if s.Final || s.Status.State != dialect.StateWorking {
		return
	}
	label := "working"
	if m := s.Status.Message; m != nil {
		label = oneLine(m.Text())
		if tool, ok := m.Metadata[hub.MetaTool].(map[string]any); ok {
			v.tool(label, tool)
		}
	}
	v.spinner.say(label)
}

// tool tells people once of a tool that the agent uses.
func (v *view) tool(title string, tool map[string]any) {
	status, _ := tool["status"].(string) // "" where it is not there
	if !isTerminal(v.app.stderr) || v.app.json() || title == v.toldTool && status != "failed" && status != "denied" {
		return
	}
	v.toldTool = title
	v.spinner.end()
	v.breakLine()
	mark := "·"
	if status == "failed" || status == "denied" {
		mark = status + ":"
	}
	v.app.note("  %s %s", mark, fit(title, 100))
	v.spinner = v.app.spin("working")
}

func (v *view) artifact(u *dialect.ArtifactUpdate) {
	if !u.Append && v.printed {
		v.breakLine()
	}
	v.parts(u.Artifact.Parts)
}

func (v *view) parts(parts []dialect.Part) {
	for _, p := range parts {
		switch {
		case p.Text != nil:
			v.text(*p.Text)
		case p.File != nil:
			v.breakLine()
			v.text("[file " + oneLine(p.File.Name) + "]\n")
		}
	}
}

func (v *view) text(text string) {
	text = v.clean.clean(text)
	if text == "" {
		return
	}
	v.spinner.end()
	fmt.Fprint(v.app.stdout, text)
	v.printed, v.newline = true, strings.HasSuffix(text, "\n")
}

func (v *view) breakLine() {
	if !v.newline {
		fmt.Fprintln(v.app.stdout)
		v.newline = true
	}
}

// end prints the answer of a task where it has not come live. What the agent
// did not put into the answer, a question or an error, is finish's.
func (v *view) end(task *dialect.Task) {
	v.spinner.end()
	if v.app.json() {
		if v.ndjson {
			writeJSON(v.app.stdout, task)
		}
		return
	}
	if !v.printed && task.Status.State == dialect.StateCompleted {
		v.text(task.Text())
	}
	if !v.printed && task.Status.State != dialect.StateCompleted {
		for _, artifact := range task.Artifacts {
			v.parts(artifact.Parts)
		}
	}
	v.breakLine()
}

// say changes what the spinner says.
func (v *view) say(label string) { v.spinner.say(label) }

func (v *view) close() {
	v.spinner.end()
	if !v.ndjson && !v.app.json() {
		v.breakLine()
	}
}

// printOutcome tells people how a task ended, on stderr: stdout has the answer.
func (a *app) printOutcome(task *dialect.Task, began time.Time) {
	id := plain(task.ID)
	for _, notice := range notices(task) {
		a.note("note: %s", notice)
	}
	message := strings.TrimSpace(plain(task.Status.Message.Text()))
	switch task.Status.State {
	case dialect.StateCompleted:
		if isTerminal(a.stderr) && isTerminal(a.stdout) {
			a.note("%s", footer(task, began))
		}
		return
	case dialect.StateInputRequired:
		a.printQuestion(task)
		return
	case dialect.StateAuthRequired:
		fmt.Fprintf(a.stderr, "%s %s\n", a.errStyle.yellow("The agent needs a login:"), message)
		a.printRemedy(task)
		fmt.Fprintf(a.stderr, "  afterwards go on with: %s send --task %s \"go on\"\n", a.self(), id)
		return
	case dialect.StateCanceled:
		fmt.Fprintf(a.stderr, "%s %s\n", a.errStyle.yellow("canceled:"), orText(message, "task "+id))
		return
	}
	fmt.Fprintf(a.stderr, "%s %s\n", a.errStyle.red(string(task.Status.State)+":"), orText(message, "task "+id))
	if remedy, _ := taskError(task)["remedy"].(string); !strings.Contains(message, plain(remedy)) {
		a.printRemedy(task)
	}
}

func (a *app) printRemedy(task *dialect.Task) {
	if remedy, _ := taskError(task)["remedy"].(string); remedy != "" {
		fmt.Fprintf(a.stderr, "  %s\n", plain(remedy))
	}
}

func orText(text, instead string) string {
	if text == "" {
		return instead
	}
	return text
}

// footer is one line about a task that is done: what a user needs for going on.
func footer(task *dialect.Task, began time.Time) string {
	facts := []string{"task " + plain(task.ID), "context " + plain(task.ContextID)}
	if usage, ok := task.Metadata[hub.MetaUsage].(map[string]any); ok {
		in, _ := usage["inputTokens"].(float64)   // 0 where it is not there
		out, _ := usage["outputTokens"].(float64) // the same
		if in+out > 0 {
			facts = append(facts, fmt.Sprintf("%.0f + %.0f tokens", in, out))
		}
	}
	if !began.IsZero() {
		facts = append(facts, time.Since(began).Round(100*time.Millisecond).String())
	}
	return strings.Join(facts, " · ")
}

func notices(task *dialect.Task) []string {
	list, _ := task.Metadata[hub.MetaNotices].([]any) // nil where it is not there
	var all []string
	for _, n := range list {
		if text, ok := n.(string); ok {
			all = append(all, oneLine(text))
		}
	}
	return all
}
