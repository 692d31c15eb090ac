package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub/events"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// question is a permission request of the agent in a running turn.
type question struct {
	req    runner.PermissionRequest
	asked  bool          // the status shows it
	answer chan decision // with room for one
}

type decision struct {
	answer runner.PermissionAnswer
	err    error  // then the driver denies
	by     string // see AnswerTrace.By
	agent  string // that answered, for byAgent
}

// The By of an AnswerTrace, besides the runner's deciders.
const (
	byUser  = "user"
	byAgent = "agent"
)

const maxQuestions = 100 // that wait in one turn

var (
	errDenied     = errors.New("denied by the user, and the agent offers no option that says so")
	errNoOptions  = errors.New("the agent offers no options")
	errTurnOver   = errors.New("the turn has ended")
	errTooMany    = errors.New("too many questions at a time")
	errNotAskable = errors.New("the question could not be stored")
)

// Permission implements runner.Handler: it asks the user and blocks until a message to the
// task answers. The task's status shows the first of several questions.
func (h *handler) Permission(ctx context.Context, req runner.PermissionRequest) (runner.PermissionAnswer, error) {
	tn := (*turn)(h)
	t := tn.task
	if len(req.Options) == 0 {
		return runner.PermissionAnswer{}, errNoOptions
	}
	asked := tn.rec.asked(req)
	switch t.agent.definition().Permissions {
	case runner.PermissionsAllow:
		return tn.decided(asked, req, decide(req, true, ""), runner.ByPolicy)
	case runner.PermissionsDeny:
		return tn.decided(asked, req, decide(req, false, "the configuration of this agent denies it"), runner.ByPolicy)
	}
	q := &question{req: req, answer: make(chan decision, 1)}
	if err := tn.addQuestion(q); err != nil {
		return tn.decided(asked, req, decision{answer: runner.PermissionAnswer{Message: err.Error()}, err: err}, runner.ByLimit)
	}
	t.ask()
	select {
	case d := <-q.answer:
		return tn.answered(asked, req, d)
	case <-req.Permitted:
		t.permitOtherwise(q)
	case <-ctx.Done():
	case <-tn.ctx.Done():
	}
	if t.withdraw(q) {
		t.ask()
	}
	select {
	case d := <-q.answer: // it arrived meanwhile
		return tn.answered(asked, req, d)
	default:
		return runner.PermissionAnswer{}, cmp.Or(ctx.Err(), context.Cause(tn.ctx), errNotAskable)
	}
}

// answered records a decision and returns it.
func (tn *turn) answered(asked int, req runner.PermissionRequest, d decision) (runner.PermissionAnswer, error) {
	tn.rec.answered(asked, req, d)
	return d.answer, d.err
}

// decided is answered for a decision of nobody.
func (tn *turn) decided(asked int, req runner.PermissionRequest, d decision, by runner.Decider) (runner.PermissionAnswer, error) {
	d.by = string(by)
	return tn.answered(asked, req, d)
}

func (tn *turn) addQuestion(q *question) error {
	t := tn.task
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case tn.over:
		return errTurnOver
	case len(t.questions) >= maxQuestions:
		return errTooMany
	}
	if !q.req.Sender {
		tn.start()
		if len(t.questions) == 0 {
			tn.watch.Pause()
		}
	}
	t.questions = append(t.questions, q)
	return nil
}

// ask shows the first question in the status, unless it does already.
func (t *task) ask() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.whileSettling(context.Background()); err != nil {
		panic(err) // Background never ends
	}
	if len(t.questions) == 0 || t.questions[0].asked || t.turn == nil || t.turn.over {
		return
	}
	q := t.questions[0]
	q.asked = true
	if t.asks(q.req) {
		t.stillAsks()
		return
	}
	data := permissionData(q.req)
	e := ending{state: a2a.TaskStateInputRequired, history: true, live: true}
	if q.req.Sender {
		sender := SenderOf(t.metadata)
		data.Sender = &sender
		e.state, e.history, e.gate = a2a.TaskStateAuthRequired, false, true
	}
	part := a2a.NewDataPart(plain(data))
	part.Metadata = map[string]any{MetaPermission: true}
	e.message = t.agentMessage(a2a.NewTextPart(questionText(q.req)), part)
	err := t.settle(e)
	if err != nil {
		t.hub.log.Error("an agent's question could not be asked", "task", t.id, "error", err)
		t.dropQuestion(q)
		q.answer <- decision{err: errors.Join(errNotAskable, err)}
		return
	}
	t.publish(events.PermissionAsked, func() map[string]any { // a title may be the whole command, which no event has
		return map[string]any{"request": q.req.ID, "tool": q.req.Tool.Name}
	})
	if !slices.Contains(t.questions, q) {
		t.resume() // it was withdrawn meanwhile
	}
}

func permissionData(req runner.PermissionRequest) PermissionData {
	return PermissionData{
		RequestID: req.ID, Title: questionText(req), Tool: cmp.Or(req.Tool.Name, req.Tool.Title),
		Input: rawData(req.Tool.Input), Options: req.Options,
	}
}

func questionText(req runner.PermissionRequest) string {
	title := cmp.Or(req.Title, req.Tool.Title, req.Tool.Name, "The agent asks for permission.")
	return strings.ToValidUTF8(title, "\uFFFD")
}

// resume makes the task working after a question. mu is held.
func (t *task) resume() {
	if t.status.State != a2a.TaskStateInputRequired || t.turn == nil {
		return
	}
	t.reopen()
	t.show(t.newStatus(a2a.TaskStateWorking, nil))
	t.flushSoon()
}

// dropQuestion removes a question; false if it is not there. mu is held.
func (t *task) dropQuestion(q *question) bool {
	i := slices.Index(t.questions, q)
	if i < 0 {
		return false
	}
	t.questions = slices.Delete(t.questions, i, i+1)
	if len(t.questions) == 0 && t.turn != nil && !t.turn.over {
		t.turn.watch.Resume()
	}
	return true
}

// withdraw removes a question that needs no answer. It returns true if another one may be asked.
func (t *task) withdraw(q *question) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.dropQuestion(q) {
		return false
	}
	if q.asked && !t.settling {
		t.resume() // a question about the sender stays in the status: the task has not begun
	}
	return true
}

// reply answers the question in the status, for the user or the agent that has delegated the answer. mu is held.
func (t *task) reply(msg *a2a.Message, from *Delegation) error {
	q := t.questions[0]
	d, err := parseReply(q.req, msg)
	if err != nil {
		return err
	}
	d.by = byUser
	if from != nil && from.By != "" {
		d.by, d.agent = byAgent, from.By
	}
	if q.req.Sender {
		return t.answerGate(q, d)
	}
	t.dropQuestion(q)
	t.publish(events.PermissionAnswered, func() map[string]any {
		return map[string]any{"request": q.req.ID, "option": d.answer.OptionID}
	})
	t.addHistory(msg)
	t.resume()
	q.answer <- d
	return nil
}

// parseReply reads the user's decision from a message, see PermissionData.
func parseReply(req runner.PermissionRequest, msg *a2a.Message) (decision, error) {
	var texts []string
	for i, p := range msg.Parts {
		switch c := p.Content.(type) {
		case a2a.Text:
			texts = append(texts, string(c))
		case a2a.Data:
			m, ok := c.Value.(map[string]any)
			if !ok {
				continue
			}
			id, ok := m["optionId"].(string)
			if !ok {
				continue
			}
			if rid, ok := m["requestId"].(string); ok && rid != req.ID {
				return decision{}, &Error{Code: CodeInvalid, Subject: fmt.Sprintf("message.parts[%d].data.requestId", i),
					Message: fmt.Sprintf("the open question is %q, not %q", req.ID, text.Clip(rid, 64))}
			}
			if !slices.ContainsFunc(req.Options, func(o runner.PermissionOption) bool { return o.ID == id }) {
				return decision{}, &Error{Code: CodeInvalid, Subject: fmt.Sprintf("message.parts[%d].data.optionId", i),
					Message: fmt.Sprintf("the question has no option %q", text.Clip(id, 64)), Remedy: "use the id of one of its options: " + optionIDs(req)}
			}
			note, _ := m["message"].(string) // optional: a text for the agent
			return decision{answer: runner.PermissionAnswer{OptionID: id, Message: note}}, nil
		}
	}
	return parseWords(req, strings.TrimSpace(strings.Join(texts, "\n"))), nil
}

// parseWords reads a decision from text: an option's id, name or kind, yes or no. Any
// other text denies, with the text as the reason.
func parseWords(req runner.PermissionRequest, text string) decision {
	for _, field := range []func(runner.PermissionOption) string{
		func(o runner.PermissionOption) string { return o.ID },
		func(o runner.PermissionOption) string { return o.Name },
		func(o runner.PermissionOption) string { return string(o.Kind) },
	} {
		for _, o := range req.Options {
			if v := field(o); v != "" && strings.EqualFold(v, text) {
				return decision{answer: runner.PermissionAnswer{OptionID: o.ID}}
			}
		}
	}
	switch strings.ToLower(strings.Trim(text, " .!")) {
	case "yes", "y", "allow", "ok", "okay":
		return decide(req, true, "")
	case "no", "n", "deny", "":
		return decide(req, false, "")
	}
	return decide(req, false, text)
}

// decide chooses the option that allows or denies, preferably once.
func decide(req runner.PermissionRequest, allow bool, reason string) decision {
	kinds := runner.Reject
	if allow {
		kinds = runner.Allow
	}
	o, ok := runner.Choose(req.Options, kinds)
	if !ok {
		return decision{err: errDenied}
	}
	return decision{answer: runner.PermissionAnswer{OptionID: o.ID, Message: reason}}
}

func optionIDs(req runner.PermissionRequest) string {
	ids := make([]string, len(req.Options))
	for i, o := range req.Options {
		ids[i] = o.ID
	}
	return strings.Join(ids, ", ")
}
