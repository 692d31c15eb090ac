package exchange

import (
	"encoding/json"
	"strings"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/federation/node"
	"github.com/parleyhub/parley/internal/hub/runner"
)

const (
	maxForeignText = 4096 // bytes of a text of another hub or program
	maxMessageID   = 128  // bytes
	maxFileName    = 1024
)

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
	asking  bool            // it was shown that the agent's user is asked
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
		if a.refused = a.of != "" && a.durable && p.TaskID == "" && Temporary(p.Code); a.refused {
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

// show reports that the agent has got the prompt, or that its user is asked about the sender, if the state of its task says so.
func (a *answer) show(state string) {
	switch {
	case state == "working":
		a.h.Event(runner.Shown{})
	case state == "auth-required" && !a.asking:
		a.asking = true
		a.h.Event(runner.Notice{Text: "its user is asked whether it may take tasks of yours: the task waits for the answer"})
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
