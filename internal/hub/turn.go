package hub

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/rawjson"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub/events"
	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// turn is one prompt of a task at the agent. The task's lock guards its fields.
//
// While a turn runs, its text grows as the artifact "answer" ("answer-2" in the second turn and so on). The artifact
// is part of the task only once a subscriber or a snapshot has shown it. At the end of the turn the whole text is
// the status's message, and the last message of the history. Thus a plain send returns a status message without an
// artifact, and a streamed artifact is never removed. A failed turn always keeps its output as the artifact.
type turn struct {
	task   *task
	n      int
	began  time.Time
	ctx    context.Context
	cancel context.CancelCauseFunc
	watch  *process.Watch      // of the timeout; paused while the user is asked
	rec    *recorder           // nil for a turn without a trace
	redact func(string) string // of the agent's and the hub's secrets; nil before record, and for an agent without tools

	text    strings.Builder
	shown   int       // bytes of text that were emitted
	emitted time.Time // when text was last emitted
	seen    bool      // the text was shown as an artifact
	others  []*a2a.Artifact
	bytes   int // of others
	usage   runner.Usage
	tools   map[string]runner.ToolCall
	session chan struct{} // closed when the session's record is stored; nil without one
	over    bool

	dir      string          // that the agent works in; set before its turn begins
	checked  map[string]bool // files that a tool has changed
	toCheck  []string        // those of them whose claims are not known yet
	checking bool
	checks   sync.WaitGroup

	unsaved   []byte // artifacts to store, as lines
	written   int    // bytes of text in the store
	storedAny bool   // some output is in the store
}

const (
	chunkSize    = 8 << 10 // of text that is shown without waiting for flushDelay
	maxArtifacts = 1000    // of one turn
	maxTools     = 1000    // tool calls whose states are tracked
)

// run runs the task's turns while messages wait. The agent's queue has admitted the task.
func (t *task) run() {
	began := time.Now()
	for more := true; more; {
		t.mu.Lock()
		if cause := context.Cause(t.hub.base); cause != nil {
			t.mu.Unlock()
			t.agent.turnsDone(t)
			t.endWaiting(cause)
			return
		}
		p := t.waiting[0]
		t.waiting = slices.Clone(t.waiting[1:])
		if p.reserve {
			t.agent.unreserve()
		}
		if !p.listed {
			t.addHistory(p.msg)
		}
		t.setSender(p.sender)
		t.turns++
		tn := &turn{task: t, n: t.turns, began: p.began}
		if tn.began.IsZero() {
			tn.began = time.Now()
		}
		tn.ctx, tn.cancel = context.WithCancelCause(t.hub.base)
		tn.ctx, tn.watch = process.NewWatch(tn.ctx, p.timeout, 0)
		t.turn = tn
		t.changed.Send()
		t.publish(events.TurnBegan, func() map[string]any { return map[string]any{"turn": tn.n} })
		t.flushSoon()
		t.mu.Unlock()

		out, err := tn.do(p.msg)
		more = t.endTurn(tn, p, out, err)
		tn.watch.Stop()
		tn.cancel(nil)
	}
	t.mu.Lock()
	state := t.status.State
	t.mu.Unlock()
	t.yield()
	t.hub.log.LogAttrs(context.Background(), slog.LevelInfo, "turn ended",
		slog.String("task", string(t.id)), slog.String("agent", t.agentID), slog.String("state", StateName(state)),
		slog.String("took", time.Since(began).Round(100*time.Microsecond).String())) // JSON would have nanoseconds
}

// yield lets whoever waits for the end of the hub's only task go on first, on this thread: another thread would have to be woken
// for it. While there are other tasks, the threads are awake, and it would be one more switch.
func (t *task) yield() {
	t.hub.mu.Lock()
	alone := len(t.hub.live) == 1
	t.hub.mu.Unlock()
	if alone {
		runtime.Gosched()
	}
}

// do runs the turn at the agent. A panic of the driver is a failure.
func (tn *turn) do(msg *a2a.Message) (out runner.Outcome, err error) {
	t := tn.task
	defer func() {
		tn.watch.Pause() // the time after the turn does not count
		if r := recover(); r != nil {
			t.hub.log.Error("an agent's driver panicked", "agent", t.agentID, "task", t.id, "panic", r, "stack", string(debug.Stack()))
			out = runner.Outcome{Status: runner.OutcomeFailed}
			err = &runner.Error{Code: runner.CodeInternal, Message: "the agent's driver crashed", Remedy: "see the hub's log"}
		}
	}()
	if err := tn.keep(msg); err != nil {
		return tn.notBegun(), err
	}
	s, err := t.hub.pool.open(tn.ctx, t.agent, t.contextID, requestedDir(msg))
	tn.record(msg, s)
	if err != nil {
		return tn.notBegun(), err
	}
	defer func() { t.hub.pool.done(s, broken(err)) }()
	err = errPanicked
	turn := runner.Turn{Parts: msg.Parts, TaskID: string(t.id), Number: tn.n, MessageID: msg.ID}
	t.mu.Lock()
	if s.dir != (WorkDir{}) {
		t.setMeta(MetaDir, plain(s.dir))
		t.project = s.dir.project()
	}
	if s.notice != "" {
		t.notice(s.notice)
		s.notice = ""
	}
	from := DelegationOf(&a2a.Task{Metadata: t.metadata})
	t.mu.Unlock()
	if from != nil {
		turn.Chain, turn.TraceParent = from.Chain, from.TraceParent
	}
	repository := tn.watchChanges(s.dir)
	tn.dir = s.dir.Path
	out, err = s.session.Turn(tn.ctx, turn, (*handler)(tn))
	tn.checks.Wait()
	if repository != nil {
		tn.rec.setGit(repository.end(context.WithoutCancel(tn.ctx)))
	}
	t.mu.Lock()
	saved := tn.session
	t.mu.Unlock()
	if saved != nil {
		<-saved
	}
	return out, err
}

// notBegun returns the outcome of a turn that did not reach its agent: it has failed, or was cut off before.
func (tn *turn) notBegun() runner.Outcome {
	t := tn.task
	t.agent.withdraw(context.WithoutCancel(tn.ctx), t.id, tn.n, context.Cause(tn.ctx))
	if tn.ctx.Err() != nil {
		return runner.Outcome{Status: runner.OutcomeCanceled}
	}
	return runner.Outcome{Status: runner.OutcomeFailed}
}

// keep stores the task if its message has an idempotency key: the message may come again when the hub was killed, and must not begin
// the work once more.
func (tn *turn) keep(msg *a2a.Message) error {
	if _, keyed := msg.Metadata[MetaOnce]; !keyed {
		return nil
	}
	t := tn.task
	t.mu.Lock()
	stored := t.stored
	t.mu.Unlock()
	if stored {
		return nil
	}
	return t.store(tn.ctx)
}

var errPanicked = errors.New("the driver panicked")

// broken reports whether a session must be closed after an error. The next turn resumes the
// conversation in a new session.
func broken(err error) bool {
	code := runner.CodeOf(err)
	return err != nil && code != runner.CodeLimit && code != runner.CodeAuth
}

// endTurn applies the turn's outcome. It returns true if another turn follows at once.
func (t *task) endTurn(tn *turn, p pending, out runner.Outcome, err error) (more bool) {
	cause := context.Cause(tn.ctx)
	asked := cause != nil && out.Status == runner.OutcomeInputRequired
	if t.outlives(cause) && (asked || out.Status == runner.OutcomeCanceled) {
		p.done(errNeutral)
		t.suspend()
		return false
	}
	if asked {
		t.agent.withdraw(context.WithoutCancel(tn.ctx), t.id, tn.n, errCanceled) // nobody answers the question
	}
	fault := agentFault(out, err, cause, p.timeout < t.agent.definition().Limits.Run)
	if t.agent.durable {
		fault = errNeutral // whoever does not answer in time is not broken
	}
	p.done(fault)
	t.agent.health.ran(fault)
	t.agent.answered(out.Model)

	t.mu.Lock()
	tn.over = true
	if lerr := t.whileSettling(context.Background()); lerr != nil {
		panic(lerr) // Background never ends
	}
	t.questions = nil // of a driver that ended before the answer
	t.resume()
	tn.showText(true)
	t.outcomeMeta(tn, out)
	tn.publishEnd(out)
	e := t.ending(tn, p.timeout, out, err, cause)
	tn.rec.end(TraceState(StateName(e.state)), errorTrace(e.message), tn.usage, out.Model)
	if len(t.waiting) > 0 && (out.Status == runner.OutcomeCompleted || out.Status == runner.OutcomeInputRequired) && cause == nil {
		t.proceed(tn, e)
		t.mu.Unlock()
		t.saveTrace(tn)
		if err := t.store(context.Background()); err != nil {
			t.hub.log.Warn("a task could not be stored between two turns", "task", t.id, "error", err)
		} else if tn.storedAny {
			t.dropDeltas()
		}
		return true
	}
	waiting := t.dropWaiting()
	t.agent.turnsDone(t)
	if err := t.settle(e); err != nil {
		t.hub.log.Error("a turn ended in an illegal state of its task", "task", t.id, "error", err)
		e = ending{state: a2a.TaskStateFailed, output: e.output, message: t.errorMessage(string(CodeInternal), err.Error(), "")}
		if err := t.settle(e); err != nil {
			t.hub.log.Error("a task could not be ended", "task", t.id, "error", err)
		}
	}
	t.mu.Unlock()
	report(waiting, errNeutral)
	return false
}

// proceed adds the turn's result to a task with another turn. mu is held.
func (t *task) proceed(tn *turn, e ending) {
	if t.status.State != a2a.TaskStateWorking {
		t.show(t.newStatus(a2a.TaskStateWorking, nil))
	}
	if e.message != nil {
		t.addHistory(e.message)
		t.show(t.newStatus(a2a.TaskStateWorking, e.message))
	}
	t.addArtifacts(e.output)
	t.turn = nil
	t.snap = nil
}

// outcomeMeta writes the turn's usage and denials into the metadata. mu is held.
func (t *task) outcomeMeta(tn *turn, out runner.Outcome) {
	if u := out.Usage; u != (runner.Usage{}) {
		tn.usage = u
	}
	if tn.usage != (runner.Usage{}) {
		t.setMeta(MetaUsage, plain(tn.usage))
	}
	t.tally.add(tn, out.Model)
	t.hub.index.spend(t.entry, t.spent())
	if len(out.Denials) > 0 {
		denied := make([]any, len(out.Denials))
		for i, d := range out.Denials {
			denied[i] = toolData(tn.redacted(d))
		}
		t.setMeta(MetaDenials, denied)
	}
	if out.Truncated {
		t.notice("the answer was cut: it is longer than the agent's limits.maxOutput")
	}
}

// ending maps the turn's outcome to an ending of the task. mu is held.
func (t *task) ending(tn *turn, timeout time.Duration, out runner.Outcome, err, cause error) ending {
	text := strings.ToValidUTF8(out.Text, "\uFFFD")
	if text == "" {
		text = tn.answer()
	}
	if cause != nil && out.Status != runner.OutcomeCompleted {
		tn.seen = true
		e := t.cutOff(cause)
		if errors.Is(cause, process.ErrRunTime) {
			e.message = t.errorMessage(string(CodeTimeout),
				fmt.Sprintf("the agent did not end within %s", timeout), "send the message with a longer timeout, or raise the agent's limits.run")
			if t.agent.durable {
				e.message = t.late()
			}
		}
		e.output = tn.artifacts()
		return e
	}
	e := ending{history: true}
	switch out.Status {
	case runner.OutcomeCompleted, runner.OutcomeInputRequired:
		e.state = a2a.TaskStateCompleted
		if out.Status == runner.OutcomeInputRequired {
			e.state = a2a.TaskStateInputRequired
		}
		if text != "" {
			e.message = t.agentMessage(a2a.NewTextPart(text))
		}
	case runner.OutcomeCanceled:
		tn.seen = true
		e.state = a2a.TaskStateCanceled
		if at := t.deadline(); t.agent.durable && !at.IsZero() && time.Now().After(at) {
			// The hub was killed when the deadline came, and had withdrawn the task already.
			e.state, e.message = a2a.TaskStateFailed, t.late()
		}
	case runner.OutcomeRejected:
		e.state = a2a.TaskStateRejected
		if t.status.State != a2a.TaskStateSubmitted && !t.gated() {
			e.state = a2a.TaskStateFailed // working tasks cannot be rejected
		}
		if err == nil && text != "" {
			e.message = t.agentMessage(a2a.NewTextPart(text))
			e.message.Metadata = errorMeta("rejected", "")
			break
		}
		e.message = t.outcomeError(err, "rejected", "the agent refused the task")
	case runner.OutcomeAuthRequired:
		e.state = a2a.TaskStateAuthRequired
		e.message = t.outcomeError(err, string(runner.CodeAuth), "the agent has no credentials")
	default:
		tn.seen = true
		e.state = a2a.TaskStateFailed
		e.message = t.outcomeError(err, string(runner.CodeAgent), "the agent failed")
	}
	if e.message != nil {
		e.message.ID = cmp.Or(out.MessageID, e.message.ID)
	}
	e.output = tn.artifacts()
	return e
}

// late returns the message of a durable agent's task that was not answered in time. mu is held.
func (t *task) late() *a2a.Message {
	return t.errorMessage(string(CodeTimeout), fmt.Sprintf("%s has not answered by its deadline, %s", t.agent.residence().Handle, t.deadline().Format(time.RFC3339)),
		"ask another agent, or send the message again with a longer timeout")
}

// outcomeError returns the message of a failed turn.
func (t *task) outcomeError(err error, code, text string) *a2a.Message {
	if re, ok := errors.AsType[*runner.Error](err); ok {
		return t.errorMessage(string(re.Code), re.Message, re.Remedy)
	}
	if he, ok := errors.AsType[*Error](err); ok {
		return t.errorMessage(string(he.Code), he.Message, he.Remedy)
	}
	if err != nil {
		t.hub.log.Error("a turn failed", "task", t.id, "agent", t.agentID, "error", err)
	}
	return t.errorMessage(code, text, "")
}

// addArtifacts adds artifacts to the task. They replace those with the same ID. mu is held.
func (t *task) addArtifacts(as []*a2a.Artifact) {
	if len(as) == 0 {
		return
	}
	t.artifacts = mergeArtifacts(t.artifacts, as)
	for _, a := range as {
		t.bytes += partsSize(a.Parts)
	}
	t.snap = nil
}

func mergeArtifacts(old, add []*a2a.Artifact) []*a2a.Artifact {
	if len(add) == 0 {
		return slices.Clip(old)
	}
	all := slices.Clone(old)
	for _, a := range add {
		if i := slices.IndexFunc(all, func(o *a2a.Artifact) bool { return o.ID == a.ID }); i >= 0 {
			all[i] = a
		} else {
			all = append(all, a)
		}
	}
	return all
}

// answer returns the text so far, without an incomplete character at its end. mu is held.
func (tn *turn) answer() string {
	s := tn.text.String()
	if tn.over {
		return strings.ToValidUTF8(s, "\uFFFD")
	}
	return s[:runner.WholeRunes(s)]
}

func (tn *turn) answerID() a2a.ArtifactID {
	if tn.n == 1 {
		return "answer"
	}
	return a2a.ArtifactID(fmt.Sprintf("answer-%d", tn.n))
}

// artifacts returns the visible output of the turn so far. mu is held.
func (tn *turn) artifacts() []*a2a.Artifact {
	text := tn.answer()
	if !tn.seen || text == "" {
		return slices.Clip(tn.others)
	}
	return append([]*a2a.Artifact{tn.answerArtifact(text)}, tn.others...)
}

func (tn *turn) answerArtifact(text string) *a2a.Artifact {
	return &a2a.Artifact{ID: tn.answerID(), Name: "answer", Parts: a2a.ContentParts{a2a.NewTextPart(text)}}
}

// reveal shows all text so far, and makes it an artifact. mu is held.
func (tn *turn) reveal() {
	if tn.text.Len() == 0 {
		return
	}
	tn.seen = true
	tn.emitText(tn.over)
}

// showText emits the new text if the task has subscribers. mu is held.
func (tn *turn) showText(last bool) {
	if tn.task.log.watched() || tn.shown > 0 {
		tn.emitText(last)
	}
}

func (tn *turn) emitText(last bool) {
	s := tn.text.String()
	end := len(s)
	if !last {
		end = runner.WholeRunes(s)
	}
	if end <= tn.shown {
		return
	}
	chunk := strings.ToValidUTF8(s[tn.shown:end], "\uFFFD")
	tn.task.log.add(&a2a.TaskArtifactUpdateEvent{
		TaskID: tn.task.id, ContextID: tn.task.contextID,
		Artifact: tn.answerArtifact(chunk), Append: tn.shown > 0, LastChunk: last,
	})
	tn.shown = end
	tn.emitted = time.Now()
	tn.seen = true
}

// start makes the task working, unless it is. Before the first event the agent may still
// reject the task. mu is held.
func (tn *turn) start() {
	t := tn.task
	if s := t.status.State; s == a2a.TaskStateWorking || t.settling || len(t.questions) > 0 || s.Terminal() {
		return
	}
	if err := t.advance(a2a.TaskStateWorking, nil); err != nil {
		t.hub.log.Error("a turn runs in a task that cannot become working", "task", t.id, "error", err)
	}
}

// startStored is start for a task that may outlive the hub: its state never goes back, so that it is stored before it is
// shown. mu is held, but not while the state is written.
func (tn *turn) startStored() {
	t := tn.task
	if s := t.status.State; s == a2a.TaskStateWorking || t.settling || s.Terminal() {
		return
	}
	if err := t.settle(ending{state: a2a.TaskStateWorking, live: true}); err != nil {
		t.hub.log.Warn("a task that is being worked on is shown as such later: it could not be stored", "task", t.id, "error", err)
	}
}

// notice shows a notice of a task whose agent may not have got it, once.
func (tn *turn) notice(n runner.Notice) {
	t := tn.task
	words := text.Clip(strings.ToValidUTF8(n.Text, "\uFFFD"), 2000)
	old, _ := t.metadata[MetaNotices].([]any)
	if slices.Contains(old, any(words)) {
		return
	}
	t.notice(words)
	t.flushSoon()
	if s := t.status.State; (s == a2a.TaskStateSubmitted || s == a2a.TaskStateWorking) && !t.settling {
		m := t.agentMessage(a2a.NewTextPart(words))
		m.Metadata = map[string]any{MetaNotice: true}
		t.show(t.newStatus(s, m))
	}
}

// progress shows what the agent says about its work.
func (tn *turn) progress(ev runner.Progress) {
	t := tn.task
	if t.status.State != a2a.TaskStateWorking || t.settling {
		return // the status shows a question
	}
	m := t.agentMessage(a2a.NewTextPart(text.Clip(strings.ToValidUTF8(ev.Text, "\uFFFD"), 2000)))
	if ev.Percent != nil {
		m.Metadata = map[string]any{MetaProgress: *ev.Percent}
	}
	t.show(t.newStatus(a2a.TaskStateWorking, m))
}

// handler is a turn as runner.Handler.
type handler turn

// Event implements runner.Handler.
func (h *handler) Event(ev runner.Event) {
	tn := (*turn)(h)
	t := tn.task
	recorded := tn.rec.event(ev)
	if call, ok := ev.(runner.ToolCall); ok {
		ev = tn.redacted(call)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if tn.over {
		return // a driver that continues after its turn
	}
	if r, ok := ev.(runner.Receipt); ok {
		t.receipt(r)
		return
	}
	if n, ok := ev.(runner.Notice); ok && t.agent.durable { // it does not say that the agent has got the task
		tn.notice(n)
		return
	}
	if _, shown := ev.(runner.Shown); shown && t.agent.durable {
		tn.startStored()
	}
	tn.start()
	if recorded {
		t.flushSoon()
	}
	switch ev := ev.(type) {
	case runner.Shown:
		// tn.start did it
	case runner.Progress:
		tn.progress(ev)
	case runner.TextDelta:
		tn.addText(ev.Text)
	case runner.Artifact:
		tn.addArtifact(ev)
	case runner.ToolCall:
		tn.addTool(ev)
	case runner.Usage:
		tn.usage = ev
	case runner.SessionStarted:
		tn.sessionStarted(ev)
	case runner.Retry:
		tn.retry(ev)
	case runner.Notice:
		t.notice(text.Clip(strings.ToValidUTF8(ev.Text, "\uFFFD"), 2000))
	case runner.Thought, runner.PermissionDecided:
		// The hub neither stores nor shows reasoning; the recorder has the decision.
	}
}

func (tn *turn) addText(text string) {
	if text == "" {
		return
	}
	tn.text.WriteString(text)
	tn.task.snap = nil
	if tn.task.log.watched() && (tn.shown == 0 || tn.text.Len()-tn.shown >= chunkSize || time.Since(tn.emitted) >= flushDelay) {
		tn.emitText(false)
	}
	tn.task.flushSoon()
}

func (tn *turn) addArtifact(ev runner.Artifact) {
	t := tn.task
	size := partsSize(ev.Parts)
	if len(ev.Parts) == 0 || ev.ID == "" {
		return
	}
	i := slices.IndexFunc(tn.others, func(a *a2a.Artifact) bool { return string(a.ID) == ev.ID })
	if t.bytes+tn.bytes+size > t.hub.cfg.MaxTaskBytes || i < 0 && len(tn.others) >= maxArtifacts {
		t.notice(fmt.Sprintf("artifact %s was omitted or truncated: the task is too large", text.Clip(ev.ID, 64)))
		return
	}
	tn.bytes += size
	if i >= 0 && !ev.Append {
		tn.bytes -= partsSize(tn.others[i].Parts)
	}
	a := &a2a.Artifact{ID: a2a.ArtifactID(ev.ID), Name: ev.Name, Description: ev.Description, Parts: ev.Parts}
	up := &a2a.TaskArtifactUpdateEvent{TaskID: t.id, ContextID: t.contextID, Artifact: a, LastChunk: ev.Last}
	up.Append = i >= 0 && ev.Append
	tn.putArtifact(a, ev.Append)
	t.snap = nil
	t.log.add(up)
	if line, err := json.Marshal(delta{Turn: tn.n, Artifact: up}); err == nil { // an error leaves it in memory only
		tn.unsaved = append(append(tn.unsaved, line...), '\n')
	}
	t.flushSoon()
}

// putArtifact adds an artifact to the output, which snapshots share, or replaces or extends the one with its id.
func (tn *turn) putArtifact(a *a2a.Artifact, extend bool) {
	i := slices.IndexFunc(tn.others, func(o *a2a.Artifact) bool { return o.ID == a.ID })
	if i < 0 {
		tn.others = append(slices.Clip(tn.others), a)
		return
	}
	if extend {
		whole := *tn.others[i]
		whole.Parts = append(whole.Parts, a.Parts...) // snapshots see their own length
		a = &whole
	}
	tn.others = slices.Clone(tn.others)
	tn.others[i] = a
}

func (tn *turn) addTool(ev runner.ToolCall) {
	if tn.tools == nil {
		tn.tools = map[string]runner.ToolCall{}
	}
	call := tn.tools[ev.ID].Update(ev)
	if _, ok := tn.tools[ev.ID]; ok || len(tn.tools) < maxTools {
		tn.tools[ev.ID] = call
	}
	tn.publishTool(call)
	tn.edited(call)
	t := tn.task
	if t.status.State != a2a.TaskStateWorking || t.settling {
		return // the status shows a question
	}
	title := cmp.Or(call.Title, call.Name, "a tool")
	m := t.agentMessage(a2a.NewTextPart(title))
	m.Metadata = map[string]any{MetaTool: toolData(call)}
	t.show(t.newStatus(a2a.TaskStateWorking, m))
}

// redacted returns a call without the secrets that its title, input and output contain.
func (tn *turn) redacted(c runner.ToolCall) runner.ToolCall {
	if tn.redact == nil {
		return c
	}
	c.Title, c.Output = tn.redact(c.Title), tn.redact(c.Output)
	if len(c.Input) > 0 {
		c.Input = json.RawMessage(tn.redact(string(c.Input)))
	}
	return c
}

// retry shows a retry at once, and keeps it as a notice.
func (tn *turn) retry(r runner.Retry) {
	t := tn.task
	words := text.Clip(strings.ToValidUTF8(r.String(), "\uFFFD"), 2000)
	t.notice(words)
	if t.status.State != a2a.TaskStateWorking || t.settling {
		return // the status shows a question
	}
	data := map[string]any{}
	for k, v := range map[string]int64{
		"attempt": int64(r.Attempt), "of": int64(r.Of), "status": int64(r.Status), "waitMs": r.Wait.Milliseconds(),
	} {
		if v > 0 {
			data[k] = v
		}
	}
	m := t.agentMessage(a2a.NewTextPart(words))
	m.Metadata = map[string]any{MetaRetry: data}
	t.show(t.newStatus(a2a.TaskStateWorking, m))
}

// toolData returns a tool call for the metadata.
func toolData(c runner.ToolCall) map[string]any {
	m := map[string]any{}
	for k, v := range map[string]string{
		"id": c.ID, "name": c.Name, "title": c.Title, "status": string(c.Status), "output": c.Output,
	} {
		if v != "" {
			m[k] = strings.ToValidUTF8(v, "\uFFFD")
		}
	}
	if v := rawData(c.Input); v != nil {
		m["input"] = v
	}
	return m
}

// rawData decodes an agent's JSON; invalid JSON becomes text.
func rawData(raw json.RawMessage) any {
	if len(raw) == 0 {
		return nil
	}
	if !json.Valid(raw) {
		return strings.ToValidUTF8(string(raw), "\uFFFD")
	}
	return rawjson.Value(raw)
}

// plain converts a value to the decoded form of its JSON, so that a task looks the same before and after a restart.
func plain(v any) any {
	b, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	return rawData(b)
}

func (tn *turn) sessionStarted(ev runner.SessionStarted) {
	prev := tn.session
	saved := make(chan struct{})
	tn.session = saved
	t := tn.task
	t.hub.wg.Go(func() {
		defer close(saved)
		if prev != nil {
			<-prev
		}
		t.hub.pool.started(t.agent, t.contextID, ev.ID)
	})
}

// storeOutput stores the new output of the running turn.
func (t *task) storeOutput() {
	t.save.Lock()
	defer t.save.Unlock()
	t.mu.Lock()
	tn := t.turn
	if tn == nil || t.settling || !t.stored {
		t.mu.Unlock()
		return
	}
	data := tn.unsaved
	tn.unsaved = nil
	text := tn.text.String()
	if end := runner.WholeRunes(text); end > tn.written {
		if line, err := json.Marshal(delta{Turn: tn.n, Text: text[tn.written:end]}); err == nil { // a string always encodes
			data = append(append(data, line...), '\n')
		}
		tn.written = end
	}
	if len(data) > 0 {
		tn.storedAny = true
	}
	t.mu.Unlock()
	if len(data) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	if err := t.hub.store.appendDelta(ctx, t.id, data); err != nil {
		t.hub.log.Warn("output of a running task could not be stored", "task", t.id, "error", err)
	}
}
