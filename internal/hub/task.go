package hub

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
)

// task is a task in memory: one that is active, or that somebody looks at. It
// is there while there are references to it, see Hub.acquire.
//
// What others may see of a settled state (an end or an interruption) is stored
// before it is shown: settle writes the task as it will be, and only then
// changes it.
type task struct {
	hub       *Hub
	id        a2a.TaskID
	contextID string
	agent     *agent // nil where the agent is gone
	agentID   string
	entry     *entry
	refs      int // belongs to the hub's lock

	// save is held during a write of the task to the store. Taken before mu.
	save sync.Mutex

	mu        sync.Mutex
	status    a2a.TaskStatus
	history   []*a2a.Message // only appended to, or replaced: snapshots share it
	artifacts []*a2a.Artifact
	bytes     int            // of history and artifacts
	metadata  map[string]any // replaced, never changed
	turns     int
	turn      *turn // that runs
	// waiting are the messages of the turns to come. The first one's task is in
	// the agent's queue unless a turn runs.
	waiting   []pending
	questions []*question
	stored    bool          // a head is in the store
	settling  bool          // an end or interruption is being written
	settled   chan struct{} // closed when the task has ended or is interrupted
	changed   chan struct{} // see waitChange; nil if nobody waits
	pulse     *time.Timer   // does what is put off: see beat
	pulsing   bool

	log log
	// snap is the snapshot of the present; nil after a change.
	snap *a2a.Task
}

// pending is a message that waits for its turn.
type pending struct {
	msg     *a2a.Message
	listed  bool // in the history already
	timeout time.Duration
	reserve bool                   // it counts in the agent's queue by itself
	done    func(agentFault error) // tells the circuit breaker
}

func newTask(h *Hub, e *entry, r record) *task {
	t := &task{
		hub: h, id: e.id, contextID: e.context.id, agent: h.agents.get(e.agent), agentID: e.agent, entry: e,
		status: r.Status, history: r.History, artifacts: r.Artifacts, metadata: r.Metadata, turns: r.Turns,
		stored: true, settled: make(chan struct{}),
	}
	for _, m := range t.history {
		t.bytes += partsSize(m.Parts)
	}
	for _, a := range t.artifacts {
		t.bytes += partsSize(a.Parts)
	}
	if settled(t.status.State) {
		close(t.settled)
	}
	return t
}

// Snapshot

// snapshot returns the task as it is. mu is held.
func (t *task) snapshot() *a2a.Task {
	if t.snap != nil {
		return t.snap
	}
	s := &a2a.Task{
		ID: t.id, ContextID: t.contextID, Status: t.status, Metadata: t.metadata,
		History: slices.Clip(t.history), Artifacts: slices.Clip(t.artifacts),
	}
	if t.turn != nil {
		// Whoever sees the answer grow sees it as an artifact from now on.
		t.turn.reveal()
		s.Artifacts = append(s.Artifacts, t.turn.artifacts()...)
	}
	t.snap = s
	return s
}

func (t *task) currentSnapshot() *a2a.Task {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.snapshot()
}

// head describes the task for the store.
func (t *task) head(status a2a.TaskStatus, live bool) head {
	return head{
		ID: t.id, Agent: t.agentID, Context: t.contextID, State: status.State,
		Created: t.entry.created, Updated: status.Timestamp.UnixNano(), Live: live,
	}
}

// Changes

// show changes the state and tells those who watch. mu is held; the change is
// legal.
func (t *task) show(status a2a.TaskStatus) {
	t.status = status
	t.snap = nil
	t.hub.index.update(t.entry, status.State, *status.Timestamp)
	t.emit(&a2a.TaskStatusUpdateEvent{TaskID: t.id, ContextID: t.contextID, Status: status})
}

// advance changes the state to one in which work goes on. mu is held.
func (t *task) advance(to a2a.TaskState, msg *a2a.Message) error {
	if err := CheckTransition(t.status.State, to); err != nil {
		return err
	}
	t.show(t.newStatus(to, msg))
	return nil
}

func (t *task) newStatus(state a2a.TaskState, msg *a2a.Message) a2a.TaskStatus {
	now := t.hub.index.stamp()
	return a2a.TaskStatus{State: state, Message: msg, Timestamp: &now}
}

// agentMessage makes a message of the agent's.
func (t *task) agentMessage(parts ...*a2a.Part) *a2a.Message {
	return &a2a.Message{ID: a2a.NewMessageID(), Role: a2a.MessageRoleAgent, TaskID: t.id, ContextID: t.contextID, Parts: parts}
}

// addHistory appends a message, and drops the oldest but the first where there
// are too many. mu is held.
func (t *task) addHistory(m *a2a.Message) {
	t.history = append(t.history, m)
	t.bytes += partsSize(m.Parts)
	t.snap = nil
	dropped := 0
	for len(t.history)-dropped > t.hub.cfg.MaxHistory || t.bytes > t.hub.cfg.MaxTaskBytes && len(t.history)-dropped > 2 {
		dropped++
		t.bytes -= partsSize(t.history[dropped].Parts)
	}
	if dropped > 0 {
		t.history = slices.Concat(t.history[:1], t.history[1+dropped:])
		t.notice("the oldest messages of this task's history were dropped: it is too long")
	}
}

// setMeta replaces one value of the metadata. mu is held.
func (t *task) setMeta(key string, value any) {
	m := make(map[string]any, len(t.metadata)+1)
	for k, v := range t.metadata {
		m[k] = v
	}
	m[key] = value
	t.metadata = m
	t.snap = nil
}

const maxNotices = 50

// notice adds to the task's notices, unless it is among them. mu is held.
func (t *task) notice(text string) {
	old, _ := t.metadata[MetaNotices].([]any)
	if len(old) >= maxNotices || slices.Contains(old, any(text)) {
		return
	}
	t.setMeta(MetaNotices, append(slices.Clip(old), text))
}

// emit shows an event to those who watch. mu is held.
func (t *task) emit(ev a2a.Event) { t.log.add(ev) }

// Writing

// body encodes the task with a status, and with what an ending adds. The output
// of a turn that goes on is not part of it: that is in the deltas. mu is held.
func (t *task) body(status a2a.TaskStatus, e ending) ([]byte, error) {
	r := record{
		Task: &a2a.Task{
			ID: t.id, ContextID: t.contextID, Status: status, Metadata: t.metadata,
			History: t.history, Artifacts: mergeArtifacts(t.artifacts, e.output),
		},
		Turns: t.turns,
	}
	if t.turn != nil && (e.state == "" || e.live) {
		r.Turns--
	}
	if e.history && e.message != nil {
		r.History = append(slices.Clip(t.history), e.message)
	}
	for _, w := range t.waiting {
		if !w.listed {
			r.Waiting = append(r.Waiting, w.msg)
		}
	}
	return encodeRecord(r)
}

// store writes the task as it is, and returns when that is durable.
func (t *task) store(ctx context.Context) error {
	t.save.Lock()
	defer t.save.Unlock()
	t.mu.Lock()
	if t.settling || settled(t.status.State) && t.stored {
		t.mu.Unlock()
		return nil // whoever settles it writes it, or has
	}
	h := t.head(t.status, true)
	body, err := t.body(t.status, ending{})
	t.mu.Unlock()
	if err == nil {
		err = t.hub.store.putTask(ctx, h, body)
	}
	if err != nil {
		return &Error{Code: CodeInternal, Message: "the task could not be stored", Err: err}
	}
	t.mu.Lock()
	t.stored = true
	t.mu.Unlock()
	return nil
}

// ending is how a task is settled.
type ending struct {
	state   a2a.TaskState
	message *a2a.Message    // of the status
	history bool            // message becomes part of the history
	output  []*a2a.Artifact // of the turn, become part of the task
	live    bool            // a turn still runs: a permission is asked for
}

// settle ends or interrupts the task: it writes what it will be, then shows it.
// mu is held, and settling is not set; settle gives mu back while it writes. The
// error is non-nil where nothing has changed.
func (t *task) settle(e ending) error {
	steps, err := path(t.status.State, e.state)
	if err != nil {
		return err
	}
	passing := t.status
	if len(steps) > 1 {
		passing = t.newStatus(steps[0], nil)
	}
	final := t.newStatus(e.state, e.message)
	t.settling = true
	t.stopPulse()
	body, err := t.body(final, e)
	hadOutput := t.turn != nil && t.turn.storedAny
	t.mu.Unlock()

	if err == nil {
		err = t.write(t.head(final, e.live), body)
	}

	t.mu.Lock()
	t.settling = false
	t.change()
	if err != nil {
		if e.live {
			return err // the question cannot be asked; the turn goes on
		}
		t.hub.log.Error("a task's result could not be stored", "task", t.id, "state", final.State, "error", err)
		final = t.unstored(final)
	}
	if len(steps) > 1 {
		t.show(passing)
	}
	if e.history && e.message != nil {
		t.addHistory(e.message)
	}
	if !e.live {
		t.addArtifacts(e.output)
		t.turn = nil
	}
	t.stored = err == nil
	t.show(final)
	if !isClosed(t.settled) {
		close(t.settled)
	}
	if final.State.Terminal() {
		if from := DelegationOf(&a2a.Task{Metadata: t.metadata}); from != nil {
			t.hub.mu.Lock()
			t.hub.descent.remove(t.id, from)
			t.hub.mu.Unlock()
		}
		t.hub.cache.put(record{Task: t.snapshot(), Turns: t.turns}, t.bytes)
	}
	if hadOutput && !e.live {
		t.dropDeltas()
	}
	return nil
}

// unstored is what a task is shown as that could not be stored: never as
// something that a restart would take back.
func (t *task) unstored(final a2a.TaskStatus) a2a.TaskStatus {
	msg := t.agentMessage(a2a.NewTextPart("the task's result could not be stored; see the hub's log"))
	msg.Metadata = errorMeta(string(CodeInternal), "check the disk's free space and the hub's log, then send the message again")
	final.State, final.Message = a2a.TaskStateFailed, msg
	return final
}

// write stores a head, again if need be: a turn's result is worth waiting for. The
// others who write see that the task is being settled, and leave it alone.
func (t *task) write(h head, body []byte) error {
	var err error
	for try := range 3 {
		if try > 0 {
			time.Sleep(time.Duration(try) * 200 * time.Millisecond)
		}
		if err = t.writeOnce(h, body); err == nil {
			return nil
		}
	}
	return err
}

func (t *task) writeOnce(h head, body []byte) error {
	t.save.Lock()
	defer t.save.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	return t.hub.store.putTask(ctx, h, body)
}

// dropDeltas removes output that the head holds by now. It matters to nobody
// when; output of a later turn must stay, and the older one with it.
func (t *task) dropDeltas() {
	t.hub.wg.Go(func() {
		t.save.Lock()
		defer t.save.Unlock()
		t.mu.Lock()
		needed := t.turn != nil && t.turn.storedAny
		t.mu.Unlock()
		if needed {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
		defer cancel()
		if err := t.hub.store.dropDeltas(ctx, t.id); err != nil {
			t.hub.log.Warn("stored output of an ended turn could not be removed", "task", t.id, "error", err)
		}
	})
}

// reopen makes an interrupted task one that waits for work. mu is held.
func (t *task) reopen() {
	if Interrupted(t.status.State) && isClosed(t.settled) {
		t.settled = make(chan struct{})
	}
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// whileSettling waits until no end or interruption is being written. mu is held
// before and after, unless an error is returned.
func (t *task) whileSettling(ctx context.Context) error {
	for t.settling {
		if err := t.waitChange(ctx); err != nil {
			return err
		}
	}
	return nil
}

// waitChange waits until the task has begun to run, or has been settled. mu is
// held before and after, unless an error is returned.
func (t *task) waitChange(ctx context.Context) error {
	if t.changed == nil {
		t.changed = make(chan struct{})
	}
	changed := t.changed
	t.mu.Unlock()
	select {
	case <-changed:
	case <-ctx.Done():
		return contextError(ctx.Err())
	}
	t.mu.Lock()
	return nil
}

// change wakes whoever waits in waitChange. mu is held.
func (t *task) change() {
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

// endWaiting ends a task whose turn was taken out of the queue.
func (t *task) endWaiting(cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	report(t.takeWaiting(), errNeutral)
	if err := t.settle(t.cutOff(cause)); err != nil {
		t.hub.log.Error("a waiting task could not be ended", "task", t.id, "error", err)
	}
}

// takeWaiting moves the messages that wait into the history. mu is held.
func (t *task) takeWaiting() []pending {
	w := t.waiting
	t.waiting = nil
	n := 0
	for _, p := range w {
		if !p.listed {
			t.addHistory(p.msg)
		}
		if p.reserve {
			n++
		}
	}
	if n > 0 && t.agent != nil {
		t.agent.unreserve(n)
	}
	return w
}

// report tells the circuit breaker of turns that did not take place.
func report(w []pending, err error) {
	for _, p := range w {
		p.done(err)
	}
}

// cutOff is the ending of a task for a reason that is not its agent's.
func (t *task) cutOff(cause error) ending {
	e := ending{state: a2a.TaskStateFailed, history: true}
	switch {
	case errors.Is(cause, errCanceled):
		return ending{state: a2a.TaskStateCanceled}
	case errors.Is(cause, errRemoved):
		e.message = t.errorMessage(string(CodeUnavailable), "the agent was removed from the hub", "send the message to another agent")
	default:
		e.message = t.errorMessage(CodeStopped, "the hub stopped before the task ended", "send the message again")
	}
	return e
}

// CodeStopped is the code in MetaError of a task that the hub's end cut off.
const CodeStopped = "hub-stopped"

func (t *task) errorMessage(code, text, remedy string) *a2a.Message {
	full := text
	if remedy != "" {
		full += "; " + remedy
	}
	m := t.agentMessage(a2a.NewTextPart(full))
	m.Metadata = errorMeta(code, remedy)
	return m
}

func errorMeta(code, remedy string) map[string]any {
	return map[string]any{MetaError: map[string]any{"code": code, "remedy": remedy}}
}

// The pulse: what is put off for a moment so that it need not be done twice.

// pulseEvery is how long output is gathered before it is shown, and how long a
// task that nobody has been told of may go unstored.
const pulseEvery = 100 * time.Millisecond

// startPulse arranges a beat. mu is held.
func (t *task) startPulse() {
	if t.pulsing {
		return
	}
	t.pulsing = true
	t.hub.wg.Add(1)
	if t.pulse == nil {
		t.pulse = time.AfterFunc(pulseEvery, t.beat)
		return
	}
	t.pulse.Reset(pulseEvery)
}

// stopPulse takes the next beat back. mu is held.
func (t *task) stopPulse() {
	if t.pulsing && t.pulse.Stop() {
		t.pulsing = false
		t.hub.wg.Done()
	}
}

// beat shows the output that was gathered, and stores what is not stored yet.
func (t *task) beat() {
	defer t.hub.wg.Done()
	t.mu.Lock()
	t.pulsing = false
	store := !t.stored && !t.settling
	if t.turn != nil && !t.settling {
		t.turn.beat()
	}
	t.mu.Unlock()
	if store {
		if err := t.store(context.Background()); err != nil {
			t.hub.log.Warn("a task could not be stored while it runs", "task", t.id, "error", err)
		}
	}
	t.storeOutput()
}

// logEnd tells the log of an end or interruption.
func (t *task) logEnd(began time.Time, status a2a.TaskStatus) {
	t.hub.log.LogAttrs(context.Background(), slog.LevelInfo, "turn ended",
		slog.String("task", string(t.id)), slog.String("agent", t.agentID), slog.String("state", stateName(status.State)),
		slog.Duration("took", time.Since(began)))
}

// stateName returns a state as the hub's specification spells it.
func stateName(s a2a.TaskState) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(string(s), "TASK_STATE_"), "_", "-"))
}

// partsSize returns how many bytes of content parts hold.
func partsSize(parts a2a.ContentParts) int {
	n := 0
	for _, p := range parts {
		n += partSize(p)
	}
	return n
}

func partSize(p *a2a.Part) int {
	if p == nil {
		return 0
	}
	n := len(p.Filename) + len(p.MediaType) + dataSize(p.Metadata)
	switch c := p.Content.(type) {
	case a2a.Text:
		n += len(c)
	case a2a.Raw:
		n += len(c)
	case a2a.URL:
		n += len(c)
	case a2a.Data:
		n += dataSize(c.Value)
	}
	return n
}

// dataSize estimates the bytes of structured data.
func dataSize(v any) int {
	switch v := v.(type) {
	case string:
		return len(v) + 2
	case map[string]any:
		n := 2
		for k, e := range v {
			n += len(k) + 4 + dataSize(e)
		}
		return n
	case []any:
		n := 2
		for _, e := range v {
			n += 1 + dataSize(e)
		}
		return n
	default:
		return 8
	}
}
