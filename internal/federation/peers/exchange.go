package peers

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/federation/node"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

const (
	maxAnswers = 4096            // buffered envelopes of one answer
	cancelTime = 3 * time.Second // for the other hub to cancel a task
	// repeatTime is how long an answer may be silent before its request is repeated: its end may be lost.
	repeatTime   = 2 * time.Minute
	sessionPause = 30 * time.Second // the same for a session, whose text is not streamed
	maxMessageID = 128              // bytes
	maxFileName  = 1024
)

// exchange is one turn at another hub's agent. Its request has a key if that hub knows keys; then it is repeated whenever the
// link was lost, and the other hub answers with what the first one has led to.
type exchange struct {
	s      *session
	turn   runner.Turn
	prompt string
	answer answer
	began  time.Time
	sent   bool // a request has left
}

// run repeats the request until it is answered. The hub ends ctx at the turn's deadline.
func (x *exchange) run(ctx context.Context) (runner.Outcome, error) {
	retry := wait.Backoff{First: 100 * time.Millisecond, Most: 10 * time.Second}
	for {
		out, err, ended := x.attempt(ctx)
		if ended {
			out.ExitCode, out.Duration = -1, time.Since(x.began)
			return out, err
		}
		if x.answer.started {
			retry.Reset()
		}
		if !retry.Pause(ctx) {
			x.abandon(ctx)
			return x.canceled(), nil
		}
	}
}

// attempt sends the request once and reads its answer. It returns ended unless the request is to be repeated.
func (x *exchange) attempt(ctx context.Context) (out runner.Outcome, err error, ended bool) {
	r := x.s.r
	at := r.contact()
	switch {
	case r.durable && !at.ready:
		return out, nil, false
	case x.sent && !at.ready:
		return x.lost()
	}
	f := r.peers.sender(at.tier)
	if f == nil {
		out, err = failed(runner.CodeConfig, "the hub cannot send to agents of tier "+at.tier.String(), "")
		return out, err, true
	}
	answers, done := f.subscribe(r.id, x.s.thread)
	defer done()
	id, err := f.send(ctx, r.id, x.s.thread, envelope.Request, x.request(ctx, at.keyed), x.turn.TraceParent)
	if err != nil {
		if r.durable || ctx.Err() != nil || x.sent {
			return out, nil, false
		}
		out, err = failed(runner.CodeAgent, fmt.Sprintf("cannot send the request to %s: %v", r.peer, err), "")
		return out, err, true
	}
	x.sent = true
	x.answer.begin(id, at.keyed, r.durable)
	return x.read(ctx, f, answers, at.keyed)
}

// request returns the payload of the request.
func (x *exchange) request(ctx context.Context, keyed bool) map[string]any {
	asked := map[string]any{"text": x.prompt, "stream": true}
	if len(x.turn.Chain) > 0 {
		asked["over"] = x.s.r.peers.globalIDs(x.turn.Chain)
	}
	if !keyed {
		return asked
	}
	asked["key"], asked["turn"] = x.turn.TaskID, x.turn.Number
	if left := x.s.r.peers.remaining(ctx, x.turn.TaskID); left > 0 {
		asked["timeoutMs"] = left.Milliseconds()
	}
	return asked
}

// remaining returns how long a task may still take; 0 if it has no deadline.
func (p *Peers) remaining(ctx context.Context, id string) time.Duration {
	none := 0
	task, err := p.o.Hub.Task(ctx, a2a.TaskID(id), &none)
	if err != nil {
		return 0
	}
	at, _ := task.Metadata[hub.MetaDeadline].(string)
	deadline, err := time.Parse(time.RFC3339, at)
	if err != nil {
		return 0
	}
	return max(time.Until(deadline), time.Second)
}

// lost is the end of a turn whose answer is lost.
func (x *exchange) lost() (runner.Outcome, error, bool) {
	out, err := failed(runner.CodeProtocol, "the connection with "+x.s.r.peer+" ended before its answer; the task may still run there",
		"look there, or send the message again")
	return out, err, true
}

// read handles the answer until it ends.
func (x *exchange) read(ctx context.Context, f *sender, answers <-chan *envelope.Envelope, keyed bool) (out runner.Outcome, err error, ended bool) {
	pause := repeatTime
	if x.s.r.durable {
		pause = sessionPause
	}
	silent := time.NewTimer(pause)
	defer silent.Stop()
	for {
		select {
		case e, ok := <-answers:
			switch {
			case !ok && keyed:
				return out, nil, false
			case !ok:
				return x.lost()
			case e == nil && keyed:
				return out, nil, false
			case e == nil:
				continue
			}
			silent.Reset(pause)
			out, err, ended = x.answer.handle(e)
			if x.answer.refused {
				return out, nil, false
			}
			if ended {
				return out, err, true
			}
		case <-silent.C:
			if keyed {
				return out, nil, false
			}
		case <-ctx.Done():
			out, err = x.cancel(ctx, f, answers, keyed)
			return out, err, true
		}
	}
}

// cancel cancels the turn at the other hub and waits briefly for its end.
func (x *exchange) cancel(ctx context.Context, f *sender, answers <-chan *envelope.Envelope, keyed bool) (runner.Outcome, error) {
	if x.s.r.durable && hub.Stopping(ctx) {
		return x.canceled(), nil // the hub's next run goes on with it
	}
	timer := time.NewTimer(cancelTime)
	defer timer.Stop()
	last, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelTime)
	defer stop()
	// If this does not arrive, the timer ends the turn here.
	payload := cancellation(x.turn.TaskID, x.turn.Number)
	if !keyed {
		payload = map[string]any{"cancel": true}
	}
	_, _ = f.send(last, x.s.r.id, x.s.thread, envelope.Notification, payload, "")
	for {
		select {
		case e, ok := <-answers:
			if !ok {
				x.abandon(ctx)
				return x.canceled(), nil
			}
			if e == nil {
				continue // the timer ends the turn, and the cancellation is repeated
			}
			if out, err, ended := x.answer.handle(e); ended {
				return out, err
			}
		case <-timer.C:
			x.abandon(ctx)
			return x.canceled(), nil
		}
	}
}

func (x *exchange) canceled() runner.Outcome {
	return runner.Outcome{Status: runner.OutcomeCanceled, ExitCode: -1, Text: x.answer.text.String()}
}

// contact is what is known of an agent before a request.
type contact struct {
	tier  agent.Tier
	keyed bool // requests may have keys
	ready bool // it has a card now
}

// contact returns how to ask the agent now. A durable agent is asked with keys only.
func (r *remote) contact() contact {
	card, err := r.peers.node.Registry().Get(r.id)
	r.mu.Lock()
	defer r.mu.Unlock()
	c := contact{tier: r.card.Tier, keyed: r.keyed, ready: err == nil}
	if r.durable {
		c.keyed, c.ready = true, err == nil && node.Keyed(card)
	}
	return c
}

// answer reads the envelopes of an answer, over several requests with one key.
type answer struct {
	h       runner.Handler
	of      string // the id of the latest request, if it has a key
	durable bool
	started bool // earlier envelopes belong to an earlier turn
	refused bool // the other hub cannot take the request now
	text    strings.Builder
	resumed bool            // the text follows whole
	whole   strings.Builder // of a resumed answer
	file    []byte          // the part of a file that has come
}

// begin expects the answer to a new request.
func (a *answer) begin(id string, keyed, durable bool) {
	a.of, a.durable, a.started, a.refused, a.file = "", durable, false, false, nil
	if keyed {
		a.of = id
	}
}

func (a *answer) handle(e *envelope.Envelope) (out runner.Outcome, err error, ended bool) {
	if !a.concerns(e) {
		return out, nil, false
	}
	switch e.Type {
	case envelope.StreamStart:
		a.start(e)
	case envelope.StreamData:
		if a.started {
			a.data(e)
		}
	case envelope.StreamEnd:
		if a.started {
			out, err = a.end(e)
			return out, err, true
		}
	case envelope.ErrorMessage:
		var p node.Failure
		if json.Unmarshal(e.Payload, &p) != nil || p.Message == "" {
			p.Message = "the other hub's error cannot be read"
		}
		if a.refused = a.of != "" && a.durable && p.TaskID == "" && temporary(p.Code); a.refused {
			return out, nil, false
		}
		out, err = a.fail(&p)
		return out, err, true
	}
	return out, nil, false
}

// concerns reports whether an envelope belongs to the latest request.
func (a *answer) concerns(e *envelope.Envelope) bool {
	if a.of == "" {
		return true
	}
	var p struct {
		Of string `json:"of"`
	}
	return json.Unmarshal(e.Payload, &p) == nil && p.Of == a.of
}

func (a *answer) start(e *envelope.Envelope) {
	a.started = true
	var p node.Start
	if a.of == "" || json.Unmarshal(e.Payload, &p) != nil {
		return
	}
	a.show(p.State)
	if p.Resumed {
		a.resumed = true
		a.whole.Reset()
	}
}

// show reports that the agent has got the prompt, if the state of its task says so.
func (a *answer) show(state string) {
	if state == "working" {
		a.h.Event(runner.Shown{})
	}
}

func (a *answer) data(e *envelope.Envelope) {
	var c node.Chunk
	if json.Unmarshal(e.Payload, &c) != nil {
		return // from another version
	}
	a.show(c.State)
	switch {
	case c.Status != "" && a.durable:
		a.h.Event(runner.Progress{Text: c.Status, Percent: c.Percent})
	case c.Status != "":
		a.h.Event(runner.Notice{Text: c.Status})
	case c.Text != "" && a.resumed:
		a.whole.WriteString(c.Text)
	case c.Text != "":
		a.text.WriteString(c.Text)
		a.h.Event(runner.TextDelta{Text: c.Text})
	case c.Data != nil:
		a.h.Event(runner.Artifact{ID: c.ArtifactID, Parts: []*a2a.Part{a2a.NewDataPart(c.Data)}, Append: c.Append})
	case c.Size != nil:
		a.addFile(c)
	case c.File != "":
		a.h.Event(runner.Notice{Text: "the file " + c.File + " stays at the other hub"})
	}
}

// maxFile bounds a file of another hub in bytes. The hub bounds all of a task.
const maxFile = 16 << 20

// addFile collects a file, and reports it when it is complete.
func (a *answer) addFile(c node.Chunk) {
	name := text.Valid(c.File, maxFileName)
	if *c.Size < 0 || *c.Size > maxFile || len(a.file)+len(c.Bytes) > *c.Size {
		a.file = nil
		a.h.Event(runner.Notice{Text: "the file " + name + " stays at the other hub"})
		return
	}
	a.file = append(a.file, c.Bytes...)
	if len(a.file) < *c.Size {
		return
	}
	part := a2a.NewRawPart(a.file)
	part.Filename, part.MediaType = name, text.Valid(c.MediaType, maxFileName)
	a.file = nil
	a.h.Event(runner.Artifact{ID: c.ArtifactID, Name: name, Parts: []*a2a.Part{part}, Append: c.Append})
}

// answered returns the text of the answer, and shows the part of it that was not shown.
func (a *answer) answered() string {
	if !a.resumed {
		return a.text.String()
	}
	whole := a.whole.String()
	if rest, extends := strings.CutPrefix(whole, a.text.String()); extends && rest != "" && a.text.Len() > 0 {
		a.h.Event(runner.TextDelta{Text: rest})
	}
	return whole
}

func (a *answer) end(e *envelope.Envelope) (runner.Outcome, error) {
	var r node.Result
	if err := json.Unmarshal(e.Payload, &r); err != nil {
		return failed(runner.CodeProtocol, "the other hub's answer cannot be read", "")
	}
	out := runner.Outcome{Text: a.answered()}
	switch r.State {
	case "completed":
		out.Status = runner.OutcomeCompleted
	case "canceled":
		out.Status = runner.OutcomeCanceled
	case "input-required":
		out.Status = runner.OutcomeInputRequired
		if !strings.HasPrefix(r.Text, out.Text) {
			r.Text = out.Text + r.Text
		}
		out.Text = r.Text
	default:
		if r.Error == nil {
			r.Error = &node.Failure{State: r.State, Message: "the task ended " + text.Valid(r.State, maxForeignText)}
		}
		failure, err := a.fail(r.Error)
		failure.MessageID = messageID(r.MessageID)
		return failure, err
	}
	out.MessageID = messageID(r.MessageID)
	return out, nil
}

// messageID returns the other hub's id of a message if it can be one here, else "".
func messageID(id string) string {
	if len(id) > maxMessageID || text.Valid(id, maxMessageID) != id {
		return ""
	}
	return id
}

func (a *answer) fail(p *node.Failure) (runner.Outcome, error) {
	out := runner.Outcome{Status: runner.OutcomeFailed, Text: a.text.String(), ExitCode: -1}
	remedy, code := text.Valid(p.Remedy, maxForeignText), runner.CodeAgent
	message := text.Valid(strings.TrimSuffix(p.Message, "; "+p.Remedy), maxForeignText) // the text of a task has both
	switch {
	case p.State == "canceled":
		out.Status = runner.OutcomeCanceled
		return out, nil
	case p.State == "rejected", p.Cause == "rejected":
		out.Status, out.Text = runner.OutcomeRejected, message
		if p.Remedy == "" {
			return out, nil
		}
		code = "rejected"
	case p.State == "auth-required":
		out.Status, code = runner.OutcomeAuthRequired, runner.CodeAuth
	}
	return out, &runner.Error{Code: code, Message: message, Remedy: remedy}
}
