package hub

import (
	"encoding/json"
	"strings"
	"sync"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// recorder writes the trace of a running turn. It is safe for concurrent use and never blocks on I/O. Its own lock
// keeps the redaction of long texts out of the task's lock. The nil recorder records nothing.
type recorder struct {
	redact func(string) string

	mu     sync.Mutex
	trace  Trace
	tools  map[string]int // index in trace.Tools by the call's id
	closed bool           // the turn has ended
	dirty  bool           // something changed since the last bytes
	saved  time.Time      // of the last bytes
	size   int            // of the last bytes

	// What the parts may still use.
	head, calls, talk, changes room
}

// newRecorder returns the recorder of a turn. Its trace has at most maxBytes bytes of JSON.
func newRecorder(t Trace, prompt string, maxBytes int, redact func(string) string) *recorder {
	part := room(maxBytes / 8)
	r := &recorder{
		redact: redact, trace: t, tools: map[string]int{}, dirty: true,
		head: part, calls: 5 * part, talk: part, changes: part - minTraceBytes/16,
	}
	r.trace.State = TraceRunning
	r.trace.StartedAt = traceTime(t.StartedAt)
	r.head.take(minTraceBytes / 16) // for the members' names, times and numbers
	r.trace.Agent = r.line(&r.head, t.Agent)
	r.trace.Model = r.line(&r.head, t.Model)
	if d := t.WorkDir; d != nil {
		r.trace.WorkDir = &WorkDir{
			Path: r.line(&r.head, d.Path), Policy: r.line(&r.head, d.Policy),
			Repository: r.line(&r.head, d.Repository), Branch: r.line(&r.head, d.Branch),
		}
	}
	// Half of the head stays free for the error.
	r.trace.Prompt = r.text(&r.head, prompt, min(maxTracePrompt, int(r.head)/2))
	return r
}

// traceTime returns a time as traces store it: in UTC, in milliseconds.
func traceTime(at time.Time) time.Time { return at.UTC().Truncate(time.Millisecond) }

func now() time.Time { return traceTime(time.Now()) }

// text returns a text redacted and bounded.
func (r *recorder) text(part *room, s string, limit int) string {
	whole := len(s)
	known := process.Beginning(strings.ToValidUTF8(s, "\uFFFD"), limit)
	shown := r.redact(known)
	if len(known) < whole {
		whole = max(whole, len(shown)+1)
	} else {
		whole = len(shown)
	}
	return part.text(shown, whole, limit)
}

// line is text for a short text.
func (r *recorder) line(part *room, s string) string { return r.text(part, s, maxTraceLine) }

// json returns an agent's JSON redacted and bounded. What is cut, or is no JSON, becomes a string.
func (r *recorder) json(part *room, raw json.RawMessage) jsontext.Value {
	if len(raw) == 0 {
		return nil
	}
	if len(raw) <= maxTraceInput {
		v, err := jsonv2.Marshal(jsontext.Value(r.redact(string(raw))))
		if err == nil && len(v) <= maxTraceInput && part.take(len(v)) {
			return v
		}
	}
	s := r.text(part, string(raw), maxTraceInput)
	if s == "" {
		return nil
	}
	v, err := jsontext.AppendQuote(nil, s)
	if err != nil {
		return nil // s is UTF-8
	}
	return v
}

// event records an event of the driver. It reports whether the trace has changed.
func (r *recorder) event(ev runner.Event) bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	switch ev := ev.(type) {
	case runner.ToolCall:
		r.tool(ev)
	case runner.Notice:
		r.notice(ev.Text)
	case runner.Retry:
		r.notice(ev.String())
	case runner.Usage:
		r.trace.Usage = ev
	case runner.SessionStarted:
		r.model(ev.Model)
	case runner.PermissionDecided:
		r.answer(r.question(ev.Request), ev.Request, decision{answer: ev.Answer, by: string(ev.By)})
	default:
		return false
	}
	r.dirty = true
	return true
}

// tool adds a call, or updates the one with its id. mu is held.
func (r *recorder) tool(ev runner.ToolCall) {
	i, known := r.tools[ev.ID]
	if !known || ev.ID == "" {
		if !r.calls.take(elementBytes) {
			r.trace.Omitted.Tools++
			return
		}
		i = len(r.trace.Tools)
		r.tools[ev.ID] = i
		r.trace.Tools = append(r.trace.Tools, ToolTrace{ID: r.line(&r.calls, ev.ID), StartedAt: now()})
	}
	call := &r.trace.Tools[i]
	r.replace(&r.calls, &call.Name, ev.Name, maxTraceLine)
	r.replace(&r.calls, &call.Title, ev.Title, maxTraceLine)
	r.replace(&r.calls, &call.Output, ev.Output, maxTraceOutput)
	if len(ev.Input) > 0 {
		r.calls += room(len(call.Input))
		call.Input = r.json(&r.calls, ev.Input)
	}
	switch ev.Status {
	case runner.ToolPending, runner.ToolRunning:
		call.Status = ev.Status
	case runner.ToolCompleted, runner.ToolFailed, runner.ToolDenied:
		call.Status = ev.Status
		if call.EndedAt.IsZero() {
			call.EndedAt = now()
		}
	}
}

// replace replaces a text by a later one, unless that is empty. mu is held.
func (r *recorder) replace(part *room, old *string, s string, limit int) {
	if s == "" {
		return
	}
	if *old != "" {
		*part += room(quotedLen(*old))
	}
	*old = r.text(part, s, limit)
}

// model replaces the model. mu is held.
func (r *recorder) model(name string) { r.replace(&r.head, &r.trace.Model, name, maxTraceLine) }

// notice adds a notice. mu is held.
func (r *recorder) notice(s string) {
	if len(r.trace.Notices) >= maxTraceNotices || !r.talk.take(elementBytes) {
		r.trace.Omitted.Notices++
		return
	}
	r.trace.Notices = append(r.trace.Notices, NoticeTrace{At: now(), Text: r.text(&r.talk, s, maxTraceMessage)})
}

// asked records a permission question, and returns its index for answered; -1 if it does not fit.
func (r *recorder) asked(req runner.PermissionRequest) int {
	if r == nil {
		return -1
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return -1
	}
	r.dirty = true
	return r.question(req)
}

// question adds a permission question, see asked. mu is held.
func (r *recorder) question(req runner.PermissionRequest) int {
	// The answer's room is reserved with the question's.
	if len(r.trace.Questions) >= maxTraceQuestions || !r.talk.take(2*elementBytes) {
		r.trace.Omitted.Questions++
		return -1
	}
	q := QuestionTrace{ID: r.line(&r.talk, req.ID), At: now(), Title: r.line(&r.talk, questionText(req)), Tool: r.line(&r.talk, toolName(req))}
	q.Input = r.json(&r.talk, req.Tool.Input)
	for _, o := range req.Options[:min(len(req.Options), maxTraceOptions)] {
		if !r.talk.take(elementBytes / 4) {
			break
		}
		q.Options = append(q.Options, runner.PermissionOption{
			ID: r.line(&r.talk, o.ID), Name: r.line(&r.talk, o.Name), Kind: runner.PermissionKind(r.line(&r.talk, string(o.Kind))),
		})
	}
	r.trace.Questions = append(r.trace.Questions, q)
	return len(r.trace.Questions) - 1
}

// answered records the decision on a question.
func (r *recorder) answered(i int, req runner.PermissionRequest, d decision) {
	if i < 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.dirty = true
	r.answer(i, req, d)
}

// answer adds a decision to the question i, -1 for none. mu is held.
func (r *recorder) answer(i int, req runner.PermissionRequest, d decision) {
	if i < 0 {
		return
	}
	r.trace.Questions[i].Answer = &AnswerTrace{
		At: now(), Option: r.line(&r.talk, d.answer.OptionID), Allowed: d.err == nil && allows(req, d.answer.OptionID),
		By: d.by, Agent: r.line(&r.talk, d.agent), Message: r.text(&r.talk, d.answer.Message, maxTraceMessage),
	}
}

// setGit records the repository's state.
func (r *recorder) setGit(g *GitTrace) {
	if r == nil || g == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.dirty = true
	part := r.changes
	kept := *g
	kept.Before, kept.After = r.line(&part, g.Before), r.line(&part, g.After)
	kept.Branch, kept.Problem = r.line(&part, g.Branch), r.line(&part, g.Problem)
	kept.Files = nil
	for i, f := range g.Files {
		if !part.take(elementBytes / 2) {
			kept.MoreFiles += len(g.Files) - i
			break
		}
		f.Path = r.line(&part, f.Path)
		kept.Files = append(kept.Files, f)
	}
	r.trace.Git = &kept
}

// end records how the turn ended. Later changes are ignored.
func (r *recorder) end(state TraceState, fail *ErrorTrace, usage runner.Usage, model string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed, r.dirty = true, true
	r.trace.State, r.trace.EndedAt = state, now()
	if usage != (runner.Usage{}) {
		r.trace.Usage = usage
	}
	r.model(model)
	if fail != nil {
		r.trace.Error = &ErrorTrace{Code: r.line(&r.head, fail.Code), Message: r.text(&r.head, fail.Message, maxTraceMessage)}
	}
}

// current returns the trace as it is now.
func (r *recorder) current() Trace {
	r.mu.Lock()
	defer r.mu.Unlock()
	body, err := encodeTrace(&r.trace)
	if err != nil {
		return Trace{}
	}
	t, err := decodeTrace(body) // a copy that shares nothing
	if err != nil {
		return Trace{}
	}
	return t
}

// due reports whether the trace has changed and may be stored again. A large trace is stored less often.
func (r *recorder) due() (changed, due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pause := time.Second + time.Duration(r.size>>16)*time.Second
	return r.dirty && !r.closed, r.dirty && !r.closed && time.Since(r.saved) >= pause
}

// bytes returns the trace for the store.
func (r *recorder) bytes() ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	body, err := encodeTrace(&r.trace)
	r.dirty, r.saved, r.size = false, time.Now(), len(body)
	return body, err
}

func toolName(req runner.PermissionRequest) string {
	if req.Tool.Name != "" {
		return req.Tool.Name
	}
	return text.OneLine(req.Tool.Title)
}

// allows reports whether an option of a request allows.
func allows(req runner.PermissionRequest, id string) bool {
	for _, o := range req.Options {
		if o.ID == id {
			return o.Kind == runner.AllowOnce || o.Kind == runner.AllowAlways
		}
	}
	return false
}
