package hub

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/wait"
)

// task is a task in memory while references to it exist, see Hub.acquire: an active one, or one in use.
//
// An end or interruption is stored before it becomes visible: settle writes the task's
// future state, and only then changes it.
type task struct {
	hub       *Hub
	id        a2a.TaskID
	contextID string
	agent     *agent // nil if the agent was removed
	agentID   string
	entry     *entry
	refs      int // the hub's lock guards it

	// save is held during a write of the task to the store. It is locked before mu.
	save sync.Mutex

	mu        sync.Mutex
	status    a2a.TaskStatus
	history   []*a2a.Message // appended or replaced, never changed: snapshots share it
	artifacts []*a2a.Artifact
	bytes     int            // of history and artifacts
	metadata  map[string]any // without the summary; replaced, never changed
	tally     tally
	project   string // the directory that the task works for; "" for none
	delegated bool   // by an agent, whose turn may wait for it
	turns     int
	turn      *turn // the running one
	// waiting are the messages of the next turns. Unless a turn runs, the task is in the
	// agent's queue for the first.
	waiting []pending
	// resumed are the messages of the next turns of a suspended task, see Hub.resume.
	resumed   []waitingMessage
	questions []*question
	stored    bool          // a head is in the store
	notStored error         // why its end is not in the store
	held      bool          // the next hub begins its turn, see Hub.Drain
	settling  bool          // an end or interruption is being written
	settled   chan struct{} // closed when the task has ended or is interrupted
	suspended bool          // the hub stops; its next run goes on with the task
	changed   wait.Signal   // see waitChange and awaitAnswer
	flush     *time.Timer   // calls flushNow
	flushing  bool          // flush is scheduled

	log log
	// snap is the current snapshot; nil after a change.
	snap *a2a.Task
}

// pending is a message that waits for its turn.
type pending struct {
	msg     *a2a.Message
	sender  Sender
	listed  bool // it is in the history
	timeout time.Duration
	reserve bool                   // the agent's queue counts it separately
	done    func(agentFault error) // reports to the circuit breaker
	began   time.Time              // of a turn that the end of a hub has cut off; zero for now
}

func newTask(h *Hub, e *entry, r record) *task {
	t := &task{
		hub: h, id: e.id, contextID: e.context.id, agent: h.agents.get(e.agent), agentID: e.agent, entry: e,
		status: r.Status, history: r.History, artifacts: r.Artifacts, metadata: r.Metadata, tally: r.Tally, turns: r.Turns,
		resumed: r.waiting(), stored: true, settled: make(chan struct{}),
	}
	t.project = projectOf(r.Task)
	_, t.delegated = t.metadata[MetaDelegation]
	if _, shown := t.metadata[MetaSummary]; shown { // of a task that was read
		t.metadata = maps.Clone(t.metadata)
		delete(t.metadata, MetaSummary)
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

// hasAgent reports whether the task's agent is registered. It may have been registered since the task was read, which a subscriber keeps in
// memory. mu is held.
func (t *task) hasAgent() bool {
	if t.agent == nil {
		t.agent = t.hub.agents.get(t.agentID)
	}
	return t.agent != nil
}

// snapshot returns the current task. mu is held.
func (t *task) snapshot() *a2a.Task {
	if t.snap != nil {
		return t.snap
	}
	s := &a2a.Task{
		ID: t.id, ContextID: t.contextID, Status: t.status, Metadata: t.shownMeta(),
		History: slices.Clip(t.history), Artifacts: slices.Clip(t.artifacts),
	}
	if t.turn != nil {
		// From now on the growing answer is visible as an artifact.
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

// waitable returns the task, and what is closed when it has ended, is interrupted or suspended.
func (t *task) waitable() (*a2a.Task, chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.snapshot(), t.settled
}

// head returns the task's head for the store.
func (t *task) head(status a2a.TaskStatus, live bool) head {
	return head{
		ID: t.id, Agent: t.agentID, Context: t.contextID, State: status.State,
		Created: t.entry.created, Updated: status.Timestamp.UnixNano(), Live: live, Durable: t.agent != nil && t.agent.durable, Held: t.held, Spent: t.spent(),
	}
}

// show changes the state and emits the change, which must be legal. mu is held.
func (t *task) show(status a2a.TaskStatus) {
	if status.State != t.status.State {
		t.publishState(status)
	}
	t.status = status
	t.snap = nil
	t.hub.index.update(t.entry, status.State, *status.Timestamp)
	t.log.add(&a2a.TaskStatusUpdateEvent{TaskID: t.id, ContextID: t.contextID, Status: status})
}

// advance changes the state if that is legal. mu is held.
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

// agentMessage returns a message of the agent.
func (t *task) agentMessage(parts ...*a2a.Part) *a2a.Message {
	return &a2a.Message{ID: a2a.NewMessageID(), Role: a2a.MessageRoleAgent, TaskID: t.id, ContextID: t.contextID, Parts: parts}
}

// addHistory appends a message, and drops the oldest except the first above the limits. mu is held.
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
	maps.Copy(m, t.metadata)
	m[key] = value
	t.metadata = m
	t.snap = nil
}

const maxNotices = 50

// notice adds a notice to the task's metadata, unless it is there. mu is held.
func (t *task) notice(text string) {
	old, _ := t.metadata[MetaNotices].([]any)
	if len(old) >= maxNotices || slices.Contains(old, any(text)) {
		return
	}
	t.setMeta(MetaNotices, append(slices.Clip(old), text))
}

// body encodes the task with a status and an ending. It omits the output of a turn that
// continues, which is in the deltas. mu is held.
func (t *task) body(status a2a.TaskStatus, e ending) ([]byte, error) {
	r := record{
		Task: &a2a.Task{
			ID: t.id, ContextID: t.contextID, Status: status, Metadata: t.metadata,
			History: t.history, Artifacts: mergeArtifacts(t.artifacts, e.output),
		},
		Turns: t.turns, Tally: t.tally,
	}
	if t.turn != nil && (e.state == "" || e.live) {
		r.Turns--
	}
	if e.history && e.message != nil {
		r.History = append(slices.Clip(t.history), e.message)
	}
	for _, w := range t.resumed {
		r.addWaiting(w)
	}
	for _, w := range t.waiting {
		if !w.listed {
			r.addWaiting(waitingMessage{w.msg, w.sender})
		}
	}
	return encodeRecord(r)
}

// store writes the task, and returns when that is durable.
func (t *task) store(ctx context.Context) error {
	t.mu.Lock()
	size := t.bytes
	t.mu.Unlock()
	written, err := t.hub.reserveWrite(ctx, size)
	if err != nil {
		return contextError(err)
	}
	defer written()
	t.save.Lock()
	defer t.save.Unlock()
	t.mu.Lock()
	if t.settling || settled(t.status.State) && t.stored {
		t.mu.Unlock()
		return nil // settle writes it, or has written it
	}
	h := t.head(t.status, true)
	body, err := t.body(t.status, ending{})
	t.mu.Unlock()
	if err == nil {
		err = t.hub.store.putTask(ctx, h, body)
	}
	if err != nil {
		return t.hub.storeError(err)
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
	history bool            // message is added to the history
	output  []*a2a.Artifact // of the turn, added to the task
	live    bool            // the turn continues
	gate    bool            // the turn has not begun, see task.gated
}

// settle ends or interrupts the task: it writes the new state, then shows it. mu is held and settling is not set;
// settle unlocks mu while it writes. After an error nothing has changed.
func (t *task) settle(e ending) error {
	steps, err := path(t.status.State, e.state)
	if (e.gate || t.gated()) && !t.status.State.Terminal() {
		steps, err = []a2a.TaskState{e.state}, nil
	}
	if err != nil {
		return err
	}
	passing := t.status
	if len(steps) > 1 {
		passing = t.newStatus(steps[0], nil)
	}
	final := t.newStatus(e.state, e.message)
	t.settling = true
	t.changed.Send()
	t.stopFlush()
	tn := t.turn
	size := t.bytes
	for _, a := range e.output {
		size += partsSize(a.Parts)
	}
	t.mu.Unlock()

	t.saveTrace(tn)
	written, err := t.hub.reserveWrite(context.Background(), size) // the others' writes end
	if err == nil {
		err = t.writeEnding(final, e)
		written()
	}

	t.mu.Lock()
	hadOutput := tn != nil && tn.storedAny
	t.settling = false
	t.changed.Send()
	if err != nil {
		if e.live {
			return err // the question cannot be asked; the turn continues
		}
		t.hub.log.Error("a task's result could not be stored", "task", t.id, "state", final.State, "error", err)
		t.notStored = err
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
	if settled(final.State) && !wait.Closed(t.settled) {
		defer close(t.settled) // last, see run
	}
	if final.State.Terminal() {
		t.hub.meters.taskEnded(t.agentID, final.State)
		if from := DelegationOf(&a2a.Task{Metadata: t.metadata}); from != nil {
			t.hub.mu.Lock()
			t.hub.delegated.remove(t.id, from)
			t.hub.mu.Unlock()
		}
		t.hub.cache.put(record{Task: t.snapshot(), Turns: t.turns, Tally: t.tally}, t.bytes)
	}
	if hadOutput && !e.live {
		t.dropDeltas()
	}
	return nil
}

// unstored returns the status of a task whose end could not be stored: failed, as a restart would report it.
func (t *task) unstored(final a2a.TaskStatus) a2a.TaskStatus {
	why, remedy := storeFailure(t.notStored)
	msg := t.agentMessage(a2a.NewTextPart("the task's result could not be stored" + why))
	msg.Metadata = errorMeta(string(CodeInternal), remedy+"; then send the message again")
	final.State, final.Message = a2a.TaskStateFailed, msg
	return final
}

// writeEnding stores the task with its ending. settling is set, so that nobody else changes what is stored.
func (t *task) writeEnding(final a2a.TaskStatus, e ending) error {
	t.mu.Lock()
	body, err := t.body(final, e)
	h := t.head(final, e.live)
	t.mu.Unlock()
	if err != nil {
		return err
	}
	return t.write(h, body)
}

// write stores a head and body, with two retries. Other writers see settling and do not write.
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

// dropDeltas removes, in the background, output that the body holds by now. While a later
// turn has stored output, all of it stays.
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

// reopen prepares an interrupted task for its next turn. mu is held.
func (t *task) reopen() {
	if Interrupted(t.status.State) && wait.Closed(t.settled) {
		t.settled = make(chan struct{})
	}
}

// whileSettling blocks until no end or interruption is being written. mu is held before
// and after, except after an error.
func (t *task) whileSettling(ctx context.Context) error {
	for t.settling {
		if err := t.waitChange(ctx); err != nil {
			return err
		}
	}
	return nil
}

// waitChange blocks until a turn of the task starts, or the task begins to be settled or is settled. mu is held
// before and after, except after an error.
func (t *task) waitChange(ctx context.Context) error {
	changed := t.changed.Wait()
	t.mu.Unlock()
	select {
	case <-changed:
	case <-ctx.Done():
		return contextError(ctx.Err())
	}
	t.mu.Lock()
	return nil
}

// endWaiting ends a task that was removed from the queue.
func (t *task) endWaiting(cause error) {
	if t.outlives(cause) {
		t.suspend()
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	report(t.dropWaiting(), errNeutral)
	if err := t.settle(t.cutOff(cause)); err != nil {
		t.hub.log.Error("a waiting task could not be ended", "task", t.id, "error", err)
	}
}

// dropWaiting moves the waiting messages to the history. mu is held.
func (t *task) dropWaiting() []pending {
	dropped := t.waiting
	t.waiting = nil
	for _, p := range dropped {
		if !p.listed {
			t.addHistory(p.msg)
		}
		if p.reserve {
			t.agent.unreserve()
		}
	}
	return dropped
}

// report reports turns that did not run to the circuit breaker.
func report(w []pending, err error) {
	for _, p := range w {
		p.done(err)
	}
}

// cutOff returns the ending for a reason outside the agent.
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

// CodeStopped is the code in MetaError of a task that the hub's end interrupted.
const CodeStopped = "hub-stopped"

func (t *task) errorMessage(code, text, remedy string) *a2a.Message {
	m := t.agentMessage(a2a.NewTextPart(withRemedy(text, remedy)))
	m.Metadata = errorMeta(code, remedy)
	return m
}

func withRemedy(text, remedy string) string {
	if remedy == "" {
		return text
	}
	return text + "; " + remedy
}

func errorMeta(code, remedy string) map[string]any {
	return map[string]any{MetaError: map[string]any{"code": code, "remedy": remedy}}
}

// flushDelay is how long output is buffered before it is shown, unless none was shown for as long, and how long an accepted
// task may stay unstored before it is reported.
const flushDelay = 100 * time.Millisecond

// flushSoon schedules flushNow. mu is held.
func (t *task) flushSoon() {
	if t.flushing {
		return
	}
	t.flushing = true
	t.hub.wg.Add(1)
	if t.flush == nil {
		t.flush = time.AfterFunc(flushDelay, t.flushNow)
		return
	}
	t.flush.Reset(flushDelay)
}

// stopFlush cancels the scheduled flushNow. mu is held.
func (t *task) stopFlush() {
	if t.flushing && t.flush.Stop() {
		t.flushing = false
		t.hub.wg.Done()
	}
}

// flushNow shows buffered output, and stores the task if it is not stored yet.
func (t *task) flushNow() {
	defer t.hub.wg.Done()
	t.mu.Lock()
	t.flushing = false
	store := !t.stored && !t.settling
	if t.turn != nil && !t.settling {
		if !t.agent.durable { // which says when it has got the task
			t.turn.start()
		}
		t.turn.showText(false)
	}
	t.mu.Unlock()
	if store {
		if err := t.store(context.Background()); err != nil {
			t.hub.log.Warn("a task could not be stored while it runs", "task", t.id, "error", err)
		}
	}
	t.storeOutput()
	t.flushTrace()
}

// stateNames are the states in the spelling of the hub's specification.
var stateNames = map[a2a.TaskState]string{
	a2a.TaskStateSubmitted: "submitted", a2a.TaskStateWorking: "working", a2a.TaskStateCompleted: "completed",
	a2a.TaskStateFailed: "failed", a2a.TaskStateCanceled: "canceled", a2a.TaskStateRejected: "rejected",
	a2a.TaskStateInputRequired: "input-required", a2a.TaskStateAuthRequired: "auth-required",
}

// StateName returns a state in the spelling of the hub's specification; one from elsewhere may be unknown.
func StateName(s a2a.TaskState) string {
	if name, ok := stateNames[s]; ok {
		return name
	}
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(string(s), "TASK_STATE_"), "_", "-"))
}

// partsSize returns the bytes of content of parts.
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
