package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// TraceConfig bounds the traces of turns. Zero fields mean the default in the comment.
type TraceConfig struct {
	Disabled   bool
	MaxBytes   int           // of one trace, at least 16 KiB: 256 KiB
	TotalBytes int64         // of all traces, above which the oldest are removed: 1 GiB
	TTL        time.Duration // a trace is removed after it, and with its task: 90 days
}

// TraceQuery selects traces of a task.
type TraceQuery struct {
	Turn  int // the only one; 0 is the last ones
	Limit int // 1..50, 0 means 20
}

// Limits of a TraceQuery.
const (
	defaultTraces = 20
	maxTraces     = 50
)

// Traces returns the traces of a task's turns, the oldest first, and how many turns have begun. It returns fewer
// traces than its limit above 16 MiB.
func (h *Hub) Traces(ctx context.Context, id a2a.TaskID, q TraceQuery) (traces []Trace, turns int, err error) {
	if q.Turn < 0 || q.Limit < 0 || q.Limit > maxTraces {
		return nil, 0, invalid("limit", "limit must be 1 to %d, and turn not negative", maxTraces)
	}
	if q.Limit == 0 {
		q.Limit = defaultTraces
	}
	task, turns, running, err := h.turnsOf(ctx, id)
	if err != nil {
		return nil, 0, err
	}
	last := turns
	if q.Turn > 0 {
		if last, q.Limit = q.Turn, 1; q.Turn > turns {
			return nil, 0, invalid("turn", "task %s has %d turns", id, turns)
		}
	}
	size := 0
	for n := last; n > max(last-q.Limit, 0) && size < maxPageBytes; n-- {
		if n == turns && running != nil {
			traces = append(traces, running.current())
			continue
		}
		body, err := h.store.trace(ctx, id, n)
		if err != nil && !errors.Is(err, errNotStored) {
			return nil, 0, &Error{Code: CodeInternal, Message: fmt.Sprintf("cannot read turn %d of task %s", n, id), Err: err}
		}
		size += len(body)
		traces = append(traces, h.storedTrace(task, n, turns, body))
	}
	slices.Reverse(traces)
	return traces, turns, nil
}

// turnsOf returns a task, the number of its turns and the recorder of the running one, if it has one.
func (h *Hub) turnsOf(ctx context.Context, id a2a.TaskID) (task *a2a.Task, turns int, running *recorder, err error) {
	if t := h.acquireLive(id); t != nil {
		defer h.release(t)
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.turn != nil {
			running = t.turn.rec
		}
		return &a2a.Task{ID: t.id, ContextID: t.contextID, Status: t.status, Metadata: t.shownMeta(), History: slices.Clip(t.history)}, t.turns, running, nil
	}
	rec, err := h.read(ctx, id)
	if err != nil {
		return nil, 0, nil, err
	}
	return rec.Task, rec.Turns, nil, nil
}

// storedTrace decodes a trace; without one, or if it cannot be decoded, it is derived from the task.
func (h *Hub) storedTrace(task *a2a.Task, n, turns int, body []byte) Trace {
	if body != nil {
		t, err := decodeTrace(body)
		if err == nil {
			return t
		}
		h.log.Error("a trace cannot be read", "task", task.ID, "turn", n, "error", err)
	}
	return derivedTrace(task, n, turns)
}

// derivedTrace returns what a task says of one of its turns.
func derivedTrace(task *a2a.Task, n, turns int) Trace {
	s := ReadSummary(task.Metadata)
	agent, _ := task.Metadata[MetaAgent].(string)
	t := Trace{Task: task.ID, Turn: n, Agent: agent, State: TraceUnknown, Derived: true}
	redact := (*process.Redactor)(nil).Redact
	if n == 1 && len(task.History) > 0 {
		head := room(maxTracePrompt)
		prompt := redact(process.Beginning(promptText(task.History[0].Parts), maxTracePrompt))
		t.Prompt = head.text(prompt, len(prompt), maxTracePrompt)
	}
	if n != turns {
		return t
	}
	t.State, t.StartedAt, t.Model = TraceState(StateName(task.Status.State)), s.StartedAt, s.Model
	if isActive(task.Status.State) {
		t.State = TraceRunning
	} else if at := task.Status.Timestamp; at != nil {
		t.EndedAt = traceTime(*at)
	}
	u, _ := task.Metadata[MetaUsage].(map[string]any)
	t.Usage, t.Error = readUsage(u), errorTrace(task.Status.Message)
	if d := WorkDirIn(task.Metadata); d != (WorkDir{}) {
		t.WorkDir = &d
	}
	notices, _ := task.Metadata[MetaNotices].([]any)
	for _, n := range notices {
		if s, ok := n.(string); ok {
			t.Notices = append(t.Notices, NoticeTrace{Text: s})
		}
	}
	return t
}

// promptText returns the text of a message, with the names of its files.
func promptText(parts a2a.ContentParts) string {
	var b strings.Builder
	for _, p := range parts {
		if b.Len() > 0 {
			b.WriteString("\n")
		}
		if _, ok := p.Content.(a2a.Text); ok && p.Filename == "" {
			b.WriteString(p.Text())
		} else {
			fmt.Fprintf(&b, "[%s %s]", cmp.Or(p.MediaType, "file"), text.OneLine(p.Filename))
		}
	}
	return b.String()
}

// errorTrace returns the error in a status's message, nil if there is none.
func errorTrace(m *a2a.Message) *ErrorTrace {
	if m == nil {
		return nil
	}
	meta, ok := m.Metadata[MetaError].(map[string]any)
	if !ok {
		return nil
	}
	var words strings.Builder
	for _, p := range m.Parts {
		words.WriteString(p.Text())
	}
	return &ErrorTrace{Code: member[string](meta, "code"), Message: words.String()}
}

// record begins the turn's trace, unless it would say nothing that the task does not. s is nil if there is no session.
func (tn *turn) record(msg *a2a.Message, s *session) {
	t := tn.task
	def := t.agent.definition()
	if def.Driver == runner.DriverEcho {
		return
	}
	trace := Trace{Task: t.id, Turn: tn.n, Agent: t.agentID, Model: def.Model, StartedAt: tn.began}
	var env []string
	if s != nil {
		env = s.env
		if s.dir != (WorkDir{}) {
			trace.WorkDir = &s.dir
		}
	}
	tn.redact = t.hub.redactor(def, env).Redact
	if t.hub.cfg.Trace.Disabled {
		return
	}
	rec := newRecorder(trace, promptText(msg.Parts), t.hub.cfg.Trace.MaxBytes, tn.redact)
	t.mu.Lock()
	tn.rec = rec
	t.flushSoon()
	t.mu.Unlock()
}

// redactor recognizes the secrets of an agent's environment and of the hub.
func (h *Hub) redactor(def runner.Definition, sessionEnv []string) *process.Redactor {
	env := slices.Concat(os.Environ(), def.SessionEnviron(runner.Options{}, runner.SessionSpec{Env: sessionEnv}))
	return process.NewRedactor(env, h.cfg.Secrets...)
}

// watchChanges begins to watch the repository that the turn works in, if there is one.
func (tn *turn) watchChanges(dir WorkDir) *changes {
	if tn.rec == nil || dir.Path == "" {
		return nil
	}
	own, err := resolve(tn.task.hub.pool.dirs.data)
	if err != nil {
		own = "" // the hub has no data directory
	}
	return watchChanges(tn.ctx, dir.Path, own)
}

// saveTrace stores the trace of a turn and returns when that is durable. The turn goes on after an error, which is logged.
func (t *task) saveTrace(tn *turn) {
	if tn == nil || tn.rec == nil {
		return
	}
	t.save.Lock()
	defer t.save.Unlock()
	body, err := tn.rec.bytes()
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
		defer cancel()
		err = t.hub.store.putTrace(ctx, t.id, tn.n, body)
	}
	if err != nil {
		t.hub.log.Warn("the trace of a turn could not be stored", "task", t.id, "turn", tn.n, "error", err)
	}
}

// flushTrace stores the running turn's trace if it has changed, at most once in a while.
func (t *task) flushTrace() {
	t.mu.Lock()
	tn := t.turn
	if tn == nil || tn.rec == nil || t.settling || !t.stored {
		t.mu.Unlock()
		return
	}
	t.mu.Unlock()
	changed, due := tn.rec.due()
	if due {
		t.saveTrace(tn)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if changed && t.turn == tn && !t.settling {
		t.flushSoon()
	}
}

// interruptTrace marks the trace of a turn that a crash has interrupted; found is false if none was stored.
func (h *Hub) interruptTrace(ctx context.Context, id a2a.TaskID, turn int) (found bool, err error) {
	body, err := h.store.trace(ctx, id, turn)
	if errors.Is(err, errNotStored) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	trace, err := decodeTrace(body)
	if err != nil || trace.State != TraceRunning {
		return true, nil // marked before, or unreadable, which Traces reports
	}
	trace.State = TraceInterrupted
	if body, err = encodeTrace(&trace); err != nil {
		return true, err
	}
	return true, h.store.putTrace(ctx, id, turn, body)
}

// trimTraces removes the oldest traces above Config.Trace.TotalBytes.
func (h *Hub) trimTraces(ctx context.Context) {
	if err := h.store.trimTraces(ctx, h.cfg.Trace.TotalBytes); err != nil && ctx.Err() == nil {
		h.log.Warn("old traces could not be removed", "error", err)
	}
}
