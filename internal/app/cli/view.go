package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/display"
	"github.com/parleyhub/parley/internal/hub"
)

// view prints the events of one stream: as one JSON value per line, as text while it
// arrives, or as a spinner until the answer is complete.
type view struct {
	app     *app
	ndjson  bool
	live    bool
	spinner atomic.Pointer[spinner] // an interrupt names what is done, too
	clean   display.Cleaner

	task    *dialect.Task // the first event
	printed bool          // a part of the answer is printed
	said    bool          // its text is
	newline bool          // the output is at the start of a line
	tool    string        // the line printed last for a tool
	notes   []string      // the notices that are printed
}

// newView returns a view. On a terminal the answer is always printed while it arrives.
func newView(a *app, live bool) *view {
	v := &view{app: a, ndjson: a.json() && live, live: !a.json() && (live || isTerminal(a.stdout)), newline: true}
	v.spinner.Store(a.spin("waiting for the agent"))
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

// snapshot handles a whole task. A second one in a stream replaces events that were dropped
// because the client was slow.
func (v *view) snapshot(t *dialect.Task) {
	if v.task != nil && v.live && v.printed {
		v.text("\n[… part of the answer was skipped; the whole is in: " + v.app.self() + " task show " + plain(t.ID) + "]\n")
	}
	if v.task == nil && v.live {
		for _, artifact := range t.Artifacts { // of a task that was already running
			v.parts(artifact.Parts)
		}
	}
	v.task = t
}

func (v *view) status(s *dialect.StatusUpdate) {
	if m := s.Status.Message; m != nil && m.Metadata[hub.MetaNotice] == true {
		v.showNotice(oneLine(m.Text()))
	}
	if s.Final || s.Status.State != dialect.StateWorking {
		return
	}
	label := "working"
	if m := s.Status.Message; m != nil {
		label = oneLine(m.Text())
		if tool, ok := m.Metadata[hub.MetaTool].(map[string]any); ok {
			v.showTool(label, tool)
		}
		if _, ok := m.Metadata[hub.MetaRetry]; ok {
			v.showNotice(label)
		}
	}
	v.spinner.Load().say(label)
}

// showTool prints a tool that the agent uses, once per call.
func (v *view) showTool(title string, tool map[string]any) {
	status, _ := tool["status"].(string)
	failed := status == "failed" || status == "denied"
	if !isTerminal(v.app.stderr) || v.app.json() {
		return
	}
	mark := "·"
	if failed {
		mark = status + ":"
	}
	line := mark + " " + fit(title, 100)
	if line == v.tool {
		return
	}
	v.tool = line
	v.spinner.Load().end()
	v.breakLine()
	v.app.note("  %s", line)
	v.spinner.Store(v.app.spin("working"))
}

// showNotice prints at once, also in a pipe, why the answer takes longer: the agent repeats a request, or a session is not woken.
func (v *view) showNotice(words string) {
	v.notes = append(v.notes, words)
	if v.app.json() { // standard error has JSON only; the answer has the notices
		return
	}
	v.spinner.Load().end()
	if v.live {
		v.breakLine()
	}
	v.app.notice(words)
	v.spinner.Store(v.app.spin("working"))
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
			v.said = true
		case p.File != nil:
			v.breakLine()
			v.text("[file " + oneLine(p.File.Name) + "]\n")
		}
	}
}

func (v *view) text(text string) {
	text = v.clean.Clean(text)
	if text == "" {
		return
	}
	v.spinner.Load().end()
	fmt.Fprint(v.app.stdout, text)
	v.printed, v.newline = true, strings.HasSuffix(text, "\n")
}

func (v *view) breakLine() {
	if !v.newline {
		fmt.Fprintln(v.app.stdout)
		v.newline = true
	}
}

// end prints the answer of a task unless it is already printed. Questions and errors of the
// agent are printed by finish.
func (v *view) end(task *dialect.Task) {
	v.spinner.Load().end()
	if v.app.json() {
		if v.ndjson {
			writeJSON(v.app.stdout, task)
		}
		return
	}
	switch {
	case v.said:
	case task.Status.State == dialect.StateCompleted: // a session's files come before its text
		v.breakLine()
		v.text(task.Text())
	case !v.printed:
		for _, artifact := range task.Artifacts {
			v.parts(artifact.Parts)
		}
	}
	v.breakLine()
}

func (v *view) close() {
	v.spinner.Load().end()
	if !v.ndjson && !v.app.json() {
		v.breakLine()
	}
}

// printOutcome prints how a task ended to stderr; its answer is on stdout. noted are the notices that are printed.
func (a *app) printOutcome(task *dialect.Task, began time.Time, noted []string) {
	id := oneLine(task.ID)
	for _, notice := range notices(task) {
		if !slices.Contains(noted, notice) {
			a.notice(notice)
		}
	}
	message := strings.TrimSpace(body(task.Status.Message.Text()))
	switch task.Status.State {
	case dialect.StateCompleted:
		if besides := attached(task); len(besides) > 0 {
			a.note("note: %s came with the answer; get it with: %s task show %s --format json", strings.Join(besides, ", "), a.self(), id)
		}
		if isTerminal(a.stderr) && isTerminal(a.stdout) {
			a.note("%s", footer(task, began))
		}
		return
	case dialect.StateInputRequired:
		a.printQuestion(task)
		return
	case dialect.StateAuthRequired:
		if permission(task) != nil { // about its sender
			a.printQuestion(task)
			return
		}
		fmt.Fprintf(a.stderr, "%s %s\n", a.errStyle.yellow("The agent needs a login:"), message)
		a.printRemedy(task, message)
		fmt.Fprintf(a.stderr, "  then continue with: %s send --task %s \"go on\"\n", a.self(), id)
		return
	case dialect.StateCanceled:
		fmt.Fprintf(a.stderr, "%s %s\n", a.errStyle.yellow("canceled:"), cmp.Or(message, "task "+id))
		return
	}
	fmt.Fprintf(a.stderr, "%s %s\n", a.errStyle.red(string(task.Status.State)+":"), cmp.Or(message, "task "+id))
	a.printRemedy(task, message)
}

// attached names what an answer has besides its text.
func attached(task *dialect.Task) (names []string) {
	for _, artifact := range task.Artifacts {
		for _, p := range artifact.Parts {
			switch {
			case p.File != nil:
				names = append(names, cmp.Or(oneLine(p.File.Name), "a file"))
			case p.Data != nil:
				names = append(names, "data")
			}
		}
	}
	return names
}

// printRemedy prints the remedy of a task's error unless the message, which was printed before, has it.
func (a *app) printRemedy(task *dialect.Task, message string) {
	if remedy := oneLine(taskError(task, "remedy")); !strings.Contains(oneLine(message), remedy) {
		fmt.Fprintf(a.stderr, "  %s\n", remedy)
	}
}

// footer returns one line about a completed task: its ids, tokens and duration.
func footer(task *dialect.Task, began time.Time) string {
	facts := []string{"task " + shortID(plain(task.ID)), "context " + shortID(plain(task.ContextID))}
	if usage, ok := task.Metadata[hub.MetaUsage].(map[string]any); ok {
		in, _ := usage["inputTokens"].(float64)
		out, _ := usage["outputTokens"].(float64)
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
	list, _ := task.Metadata[hub.MetaNotices].([]any)
	var all []string
	for _, n := range list {
		if text, ok := n.(string); ok {
			all = append(all, oneLine(text))
		}
	}
	return all
}
