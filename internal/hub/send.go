package hub

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/base/budget"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// Limits of a message. The agent's limits.maxPrompt bounds the text further.
const (
	maxIDLength     = 128
	maxParts        = 1000
	maxMessageBytes = 24 << 20
	maxMetadata     = 64 << 10 // bytes
)

// Send stores a message and starts or queues its turn. It returns when the task is
// stored, and does not wait for the turn. For the errors see Code.
func (h *Hub) Send(ctx context.Context, req SendRequest) (*a2a.Task, error) {
	t, err := h.accept(ctx, req, unseen)
	if err != nil {
		return nil, err
	}
	defer h.release(t)
	snap := t.currentSnapshot()
	if err := t.ensureStored(ctx); err != nil {
		return nil, err
	}
	return snap, nil
}

// SendAndWait sends a message and blocks until its task has ended or is interrupted, and is stored. When ctx ends
// first, the task continues; it is returned in its current state, with an error of CodeTimeout.
func (h *Hub) SendAndWait(ctx context.Context, req SendRequest) (*a2a.Task, error) {
	p, err := h.Start(ctx, req)
	if err != nil {
		return nil, err
	}
	return p.Wait(ctx)
}

// Pending is a message that was accepted, see [Hub.Start].
type Pending struct {
	t     *task
	ended chan struct{}
}

// Start is the first step of [Hub.SendAndWait]: it returns when the message is accepted,
// but not yet stored, see [Pending.Stored]. The caller must call [Pending.Wait] once.
func (h *Hub) Start(ctx context.Context, req SendRequest) (*Pending, error) {
	t, err := h.accept(ctx, req, unseen)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return &Pending{t: t, ended: t.settled}, nil
}

// TaskID returns the task that the message is part of.
func (p *Pending) TaskID() a2a.TaskID { return p.t.id }

// ContextID returns the conversation of the task.
func (p *Pending) ContextID() string { return p.t.contextID }

// Stored blocks until the message is durable. Report acceptance only after that.
func (p *Pending) Stored(ctx context.Context) error { return p.t.ensureStored(ctx) }

// Wait is the second step of [Hub.SendAndWait].
func (p *Pending) Wait(ctx context.Context) (*a2a.Task, error) {
	t := p.t
	defer t.hub.release(t)
	if t.isLarge() {
		t.awaitAnswer(ctx)
		if t.ensureStored(ctx) == nil { // the end of the task reports an error
			budget.Stored(ctx)
		}
	}
	for ended := p.ended; ; {
		select {
		case <-ended:
			snap, now := t.waitable()
			switch {
			case settled(snap.Status.State):
				return snap, nil
			case now == ended:
				return snap, suspendedError(t.id)
			}
			ended = now // somebody has answered the task's question before it was seen here
		case <-ctx.Done():
			return t.currentSnapshot(), &Error{Code: CodeTimeout,
				Message: fmt.Sprintf("the answer did not arrive in time; task %s continues", t.id),
				Remedy:  "get the task later, follow it, or cancel it", Err: ctx.Err()}
		}
	}
}

// SendAndStream sends a message and subscribes to its task. The caller closes the
// subscription; the end of ctx does not.
func (h *Hub) SendAndStream(ctx context.Context, req SendRequest) (*Subscription, error) {
	var sub *Subscription
	t, err := h.accept(ctx, req, func(t *task) { sub = t.subscribe() })
	if err != nil {
		if sub != nil {
			sub.Close()
		}
		return nil, err
	}
	defer h.release(t)
	t.awaitAnswer(ctx)
	if err := t.ensureStored(ctx); err != nil {
		sub.Close()
		return nil, err
	}
	return sub, nil
}

// answerPatience is how long the first write of a task waits for the answer of an agent without a process.
const answerPatience = 2 * time.Millisecond

// awaitAnswer waits a moment for the end of a task whose agent may answer at once. Then task and answer are one write, and
// cost one wait for the disk instead of two in a row.
func (t *task) awaitAnswer(ctx context.Context) {
	if t.agent == nil || t.agent.definition().Driver != runner.DriverEcho {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, answerPatience)
	defer cancel()
	t.changed.Until(ctx, nil, func() bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.settling || settled(t.status.State)
	})
}

// minSpace is the free space without which no message is accepted, in bytes, whatever bus the hub uses.
const minSpace = 1 << 20

// noSpace returns an error if there is no space left in the data directory, else nil.
func (h *Hub) noSpace() error {
	if h.cfg.DataDir == "" {
		return nil
	}
	free, err := h.freeSpace(h.cfg.DataDir)
	if err != nil || free >= minSpace {
		return nil
	}
	return &Error{Code: CodeUnavailable, Message: "there is no space left in the data directory " + h.cfg.DataDir,
		Remedy: "free space on its disk; the hub goes on by itself"}
}

// storeError returns the error for a task that the store did not accept.
func (h *Hub) storeError(err error) error {
	if full := h.noSpace(); full != nil {
		return full
	}
	h.log.Error("a task could not be stored", "error", err)
	why, remedy := storeFailure(err)
	return &Error{Code: CodeUnavailable, Message: "the task could not be stored" + why, Err: err, Remedy: remedy}
}

// storeFailure says why the store failed, as far as that is known and fit for users, and what to do about it.
func storeFailure(err error) (why, remedy string) {
	remedy = "the hub's log says why, and " + local.Program() + " doctor shows the state of the bus"
	e, ok := errors.AsType[*bus.Error](err)
	if !ok {
		return "", remedy
	}
	return ": " + e.Message, cmp.Or(e.Remedy, remedy)
}

// ensureStored blocks until the task, as it was before the call, is durable.
func (t *task) ensureStored(ctx context.Context) error {
	if err := t.store(ctx); err != nil {
		return err
	}
	t.mu.Lock()
	if err := t.whileSettling(ctx); err != nil {
		return err
	}
	var lost error
	if settled(t.status.State) && !t.stored {
		if lost = t.notStored; lost == nil {
			lost = errNotStored
		}
	}
	t.mu.Unlock()
	if lost != nil {
		return t.hub.storeError(lost)
	}
	return nil
}

func unseen(*task) {}

// accept accepts a message and returns its task with a reference. It calls seen with the
// task locked, after the message is part of it and before any effect.
func (h *Hub) accept(ctx context.Context, req SendRequest, seen func(*task)) (*task, error) {
	if err := h.begin(); err != nil {
		return nil, err
	}
	defer h.wg.Done()
	h.accepting.Add(1)
	defer h.accepting.Add(-1) // its task is in the index by now
	if err := h.isDraining(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, contextError(err)
	}
	if err := validateMessage(req.Message, req.Metadata); err != nil {
		return nil, err
	}
	if err := h.noSpace(); err != nil {
		return nil, err
	}
	req = req.identified(ctx)
	msg := *req.Message
	var t *task
	var err error
	switch key, once := msg.Metadata[MetaOnce].(string); {
	case msg.TaskID != "":
		t, err = h.continueTask(ctx, req, &msg, seen)
	case req.Once != "":
		t, err = h.onlyTask(ctx, req, &msg, func(string) a2a.TaskID { return req.Once }, seen)
	case once:
		t, err = h.onlyTask(ctx, req, &msg, func(agent string) a2a.TaskID { return OnceID(agent, key) }, seen)
	default:
		t, err = h.newTask(req, &msg, a2a.NewTaskID(), seen)
	}
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	onTurn := h.onTurn
	h.mu.Unlock()
	h.log.LogAttrs(ctx, slog.LevelDebug, "message accepted", slog.String("task", string(t.id)), slog.String("agent", t.agentID))
	if onTurn != nil {
		onTurn(t.id)
	}
	return t, nil
}

// begin registers work that Close waits for; the caller ends it with wg.Done.
func (h *Hub) begin() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closing {
		return &Error{Code: CodeUnavailable, Message: "the hub is stopping", Remedy: "start it again, then send the message"}
	}
	h.wg.Add(1)
	return nil
}

// OnceID returns the id of the task for a message with an idempotency key to an agent, before or after the message
// is sent. A client that stores the key first can repeat the message after a crash, or check whether it arrived.
func OnceID(agentID, key string) a2a.TaskID {
	name := fmt.Appendf(nil, "%d %s %s", len(agentID), agentID, key)
	return a2a.TaskID(uuid.NewHash(sha256.New(), onceSpace, name, 8).String())
}

var onceSpace = uuid.MustParse("8a4bd7f6-6c1c-4a0e-9f50-2f6b1d1f7d11")

// onlyTask is newTask for the first message of a task with an id. For a repeated message it returns the existing task.
func (h *Hub) onlyTask(ctx context.Context, req SendRequest, msg *a2a.Message, name func(agent string) a2a.TaskID, seen func(*task)) (*task, error) {
	agentID, err := targetAgent(req)
	if err != nil {
		return nil, err
	}
	id := name(agentID)
	for {
		h.once.Lock()
		if _, known := h.index.get(id); !known {
			t, err := h.newTask(req, msg, id, seen)
			h.once.Unlock()
			return t, err
		}
		h.once.Unlock()
		t, err := h.acquire(ctx, id)
		if _, still := h.index.get(id); err != nil && !still {
			continue // it was rejected or removed meanwhile
		}
		if err == nil && t.agentID != agentID {
			h.release(t)
			return nil, invalid("message.taskId", "task %s belongs to agent %s", id, t.agentID)
		}
		if err == nil {
			t.mu.Lock()
			seen(t)
			t.mu.Unlock()
		}
		return t, err
	}
}

// newTask creates a task for a message and queues it.
func (h *Hub) newTask(req SendRequest, msg *a2a.Message, taskID a2a.TaskID, seen func(*task)) (*task, error) {
	id, err := targetAgent(req)
	if err != nil {
		return nil, err
	}
	a := h.agents.get(id)
	if a == nil {
		return nil, h.agentNotFound(id)
	}
	if err := a.reachable(req.Sender); err != nil {
		return nil, err
	}
	if err := a.checkPrompt(msg); err != nil {
		return nil, err
	}
	if msg.ContextID == "" {
		msg.ContextID = cmp.Or(h.pool.spareContext(a, msg), a2a.NewContextID())
	} else if err := h.expired.check(msg.ContextID); err != nil {
		return nil, err
	}
	done, err := a.health.admit()
	if err != nil {
		return nil, err
	}
	msg.TaskID = taskID
	now := h.index.stamp()
	rec := record{Task: &a2a.Task{
		History:  []*a2a.Message{msg},
		Metadata: taskMetadata(req, id),
		Status:   a2a.TaskStatus{State: a2a.TaskStateSubmitted, Timestamp: &now},
	}}
	e := h.index.add(head{ID: msg.TaskID, Agent: id, Context: msg.ContextID, State: a2a.TaskStateSubmitted, Created: now.UnixNano(), Updated: now.UnixNano()})
	t := newTask(h, e, rec)
	t.agent, t.stored = a, false
	t.refs = 2 // the caller's and the turn's
	t.waiting = []pending{{msg: msg, sender: req.Sender, listed: true, timeout: a.timeout(req.Timeout), done: done}}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setDeadline(a.timeout(req.Timeout))
	if err := h.admit(t, req.Delegation); err != nil {
		done(errNeutral)
		h.index.remove(t.id)
		return nil, err
	}
	seen(t)
	if err := a.enqueue(t); err != nil {
		done(errNeutral)
		h.index.remove(t.id)
		h.mu.Lock()
		delete(h.live, t.id)
		h.delegated.remove(t.id, req.Delegation)
		h.mu.Unlock()
		// A cancellation that has found the task meanwhile must not wait for a turn that never starts.
		t.waiting, t.status.State = nil, a2a.TaskStateRejected
		return nil, err
	}
	t.publishState(t.status)
	t.flushSoon()
	return t, nil
}

// continueTask adds a message to an existing task.
func (h *Hub) continueTask(ctx context.Context, req SendRequest, msg *a2a.Message, seen func(*task)) (*task, error) {
	t, err := h.acquire(ctx, msg.TaskID)
	if err != nil {
		return nil, err
	}
	ask, err := t.receive(ctx, req, msg, seen)
	if err != nil {
		h.release(t)
		return nil, err
	}
	if ask {
		t.ask() // the next question, if there is one
	}
	return t, nil
}

// receive adds a message to the task: the answer to a question, or the next turn. It returns true for an answer.
func (t *task) receive(ctx context.Context, req SendRequest, msg *a2a.Message, seen func(*task)) (answer bool, err error) {
	if err := t.checkAddress(req, msg); err != nil {
		return false, err
	}
	msg.ContextID = t.contextID
	t.mu.Lock()
	if err := t.whileSettling(ctx); err != nil {
		return false, err
	}
	if err := t.passGate(ctx, req); err != nil {
		return false, err
	}
	defer t.mu.Unlock()
	if s := t.status.State; s.Terminal() {
		return false, &Error{Code: CodeUnsupported, Message: fmt.Sprintf("task %s has ended (%s) and accepts no more messages", t.id, StateName(s)),
			Remedy: "send the message without a taskId; the contextId continues the conversation"}
	}
	if !t.hasAgent() {
		return false, t.hub.agentNotFound(t.agentID)
	}
	if err := t.agent.reachable(req.Sender); err != nil {
		return false, err
	}
	if err := t.hub.expired.check(t.contextID); err != nil {
		return false, err
	}
	if len(t.questions) > 0 && t.questions[0].asked {
		if err := t.reply(msg, req.Delegation); err != nil {
			return false, err
		}
		seen(t)
		return true, nil
	}
	if err := t.agent.checkPrompt(msg); err != nil {
		return false, err
	}
	return false, t.addTurn(req, msg, seen)
}

// addTurn queues another turn of the task. mu is held.
func (t *task) addTurn(req SendRequest, msg *a2a.Message, seen func(*task)) error {
	done, err := t.agent.health.admit()
	if err != nil {
		return err
	}
	p := pending{msg: msg, sender: req.Sender, timeout: t.agent.timeout(req.Timeout), done: done}
	if t.turn != nil || len(t.waiting) > 0 { // the task runs, or waits in the queue
		if err := t.agent.reserve(); err != nil {
			done(errNeutral)
			return err
		}
		p.reserve = true
		t.waiting = append(t.waiting, p)
		t.stored = false // until the message is in the store too
		seen(t)
		return nil
	}
	p.listed = true
	history, size, meta := t.history, t.bytes, t.metadata
	t.setDeadline(p.timeout)
	t.setSender(p.sender)
	t.waiting = append(t.waiting, p)
	t.addHistory(msg)
	t.reopen()
	seen(t)
	t.hub.retain(t) // the turn's
	if err := t.agent.enqueue(t); err != nil {
		t.hub.release(t)
		t.waiting, t.history, t.bytes, t.metadata, t.snap = nil, history, size, meta, nil
		close(t.settled)
		done(errNeutral)
		return err
	}
	t.stored = false // until the message is in the store too
	t.flushSoon()
	return nil
}

// checkAddress rejects a message with another context or agent than its task's.
func (t *task) checkAddress(req SendRequest, msg *a2a.Message) error {
	if msg.ContextID != "" && msg.ContextID != t.contextID {
		return &Error{Code: CodeInvalid, Subject: "message.contextId", Message: fmt.Sprintf("task %s belongs to another context", t.id),
			Remedy: "leave the contextId out, or send the task's own"}
	}
	want, field := req.AgentID, "agentId"
	if want == "" {
		want, _ = msg.Metadata[MetaTargetAgent].(string)
		field = "message.metadata." + MetaTargetAgent
	}
	if want != "" && want != t.agentID {
		return &Error{Code: CodeInvalid, Subject: field, Message: fmt.Sprintf("task %s belongs to agent %s, not to %q", t.id, t.agentID, text.Clip(want, 64)),
			Remedy: "leave the agent out, or send a message without a taskId"}
	}
	return nil
}

func targetAgent(req SendRequest) (string, error) {
	if req.AgentID != "" {
		return req.AgentID, nil
	}
	const field = "message.metadata." + MetaTargetAgent
	v, ok := req.Message.Metadata[MetaTargetAgent]
	if !ok {
		return "", &Error{Code: CodeInvalid, Subject: field, Message: "the message names no agent", Remedy: "set " + field + " to the id of an agent"}
	}
	id, ok := v.(string)
	if !ok || id == "" {
		return "", &Error{Code: CodeInvalid, Subject: field, Message: field + " must be the id of an agent"}
	}
	return id, nil
}

// taskMetadata returns the metadata of a new task: the caller's without the hub's own prefix, and the hub's.
func taskMetadata(req SendRequest, agent string) map[string]any {
	m := make(map[string]any, len(req.Metadata)+2)
	maps.Copy(m, req.Metadata)
	maps.DeleteFunc(m, func(k string, _ any) bool { return strings.HasPrefix(k, "parley.") })
	m[MetaAgent] = agent
	if req.Delegation != nil {
		m[MetaDelegation] = plain(req.Delegation)
	}
	if !req.Sender.Own() {
		m[MetaSender] = storedSender{Sender: req.Sender}.data()
	}
	return m
}

// checkPrompt rejects a prompt above the agent's limit.
func (a *agent) checkPrompt(msg *a2a.Message) error {
	limit := a.definition().Limits.MaxPrompt
	n := 0
	for _, p := range msg.Parts {
		n += len(p.Text())
	}
	if n <= limit {
		return nil
	}
	remedy := "shorten it, or raise the agent's limits.maxPrompt"
	if a.durable { // no configuration has its limit
		remedy = "shorten it, or write the long part to a file and name its path"
	}
	return &Error{Code: CodeInvalid, Subject: "message.parts", Message: fmt.Sprintf("the text has %d bytes; agent %s accepts %d", n, a.id, limit), Remedy: remedy}
}

// timeout returns the requested timeout, at most the agent's limit.
func (a *agent) timeout(asked time.Duration) time.Duration {
	if asked <= 0 {
		return a.definition().Limits.Run
	}
	return min(asked, a.definition().Limits.Run)
}

// validateMessage checks the fields that the hub uses, and the sizes of the others.
func validateMessage(m *a2a.Message, meta map[string]any) error {
	switch {
	case m == nil:
		return invalid("message", "there is no message")
	case m.ID == "" || len(m.ID) > 2*maxIDLength || !utf8.ValidString(m.ID):
		return invalid("message.messageId", "message.messageId must be 1 to %d bytes of text", 2*maxIDLength)
	case m.Role != a2a.MessageRoleUser:
		return invalid("message.role", "message.role must be user")
	case len(m.Parts) == 0:
		return invalid("message.parts", "message.parts must have at least one part")
	case len(m.Parts) > maxParts:
		return invalid("message.parts", "message.parts has more than %d parts", maxParts)
	case m.ContextID != "" && !validID(m.ContextID):
		return invalid("message.contextId", "message.contextId must be 1 to %d printable characters", maxIDLength)
	case m.TaskID != "" && !validID(string(m.TaskID)):
		return invalid("message.taskId", "message.taskId must be 1 to %d printable characters", maxIDLength)
	case dataSize(m.Metadata) > maxMetadata:
		return invalid("message.metadata", "message.metadata has more than %d bytes", maxMetadata)
	case dataSize(meta) > maxMetadata:
		return invalid("metadata", "metadata has more than %d bytes", maxMetadata)
	}
	if err := validateDir(m.Metadata); err != nil {
		return err
	}
	if v, given := m.Metadata[MetaOnce]; given {
		if key, ok := v.(string); !ok || !validID(key) {
			return invalid("message.metadata."+MetaOnce, "message.metadata.%s must be 1 to %d printable characters", MetaOnce, maxIDLength)
		}
	}
	size := 0
	for i, p := range m.Parts {
		if p == nil || p.Content == nil {
			return invalid(fmt.Sprintf("message.parts[%d]", i), "message.parts[%d] is empty", i)
		}
		if s, ok := p.Content.(a2a.Text); ok && !utf8.ValidString(string(s)) {
			return invalid(fmt.Sprintf("message.parts[%d].text", i), "message.parts[%d].text is not UTF-8", i)
		}
		size += partSize(p)
	}
	if size > maxMessageBytes {
		return invalid("message.parts", "message.parts has %d bytes, more than %d", size, maxMessageBytes)
	}
	return nil
}

func invalid(field, format string, args ...any) *Error {
	return &Error{Code: CodeInvalid, Subject: field, Message: fmt.Sprintf(format, args...)}
}

// validID reports whether a client's id is acceptable: printable and short. The hub never
// uses it unescaped in a path or subject.
func validID(s string) bool {
	unprintable := func(r rune) bool { return !unicode.IsPrint(r) }
	return 1 <= len(s) && len(s) <= maxIDLength && utf8.ValidString(s) && !strings.ContainsFunc(s, unprintable)
}

// errNeutral is the result of a turn that says nothing about its agent.
var errNeutral = errors.New("not caused by the agent")
