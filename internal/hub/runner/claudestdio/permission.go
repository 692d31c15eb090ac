package claudestdio

import (
	"encoding/json"

	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
)

// The ids of the options: claude names none.
const (
	optionAllow  = "allow"
	optionAlways = "allow-session"
	optionDeny   = "deny"
)

// requested takes a request of claude, on the goroutine that reads. Each one is
// answered: a person decides whether a tool may run, all others are refused.
func (p *peer) requested(b []byte) {
	var l controlLine
	if json.Unmarshal(b, &l) != nil || l.RequestID == "" {
		return // there is nothing to address an answer to
	}
	if l.Request.Subtype != "can_use_tool" {
		p.send(controlAnswer{Subtype: "error", RequestID: l.RequestID, Error: "this host does not know " + duplex.OneLine(l.Request.Subtype)})
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock() // so that the prompt cannot end meanwhile
	var t *duplex.Turn
	if p.prompt != nil {
		t = p.prompt.turn
	}
	p.questions.Ask(t, l.RequestID, question(l), func(d duplex.Decision) { p.decide(l, d) })
}

// withdrawn lets go of a request that claude has settled otherwise.
func (p *peer) withdrawn(b []byte) {
	var l controlLine
	if json.Unmarshal(b, &l) == nil {
		p.questions.Withdraw(l.RequestID)
	}
}

func question(l controlLine) runner.PermissionRequest {
	r := l.Request
	title := runner.ToolTitle(r.ToolName, r.Input)
	options := []runner.PermissionOption{{ID: optionAllow, Name: "Allow", Kind: runner.AllowOnce}}
	if len(forSession(r.Suggestions)) > 0 {
		options = append(options, runner.PermissionOption{ID: optionAlways, Name: "Allow for this session", Kind: runner.AllowAlways})
	}
	options = append(options, runner.PermissionOption{ID: optionDeny, Name: "Deny", Kind: runner.RejectOnce})
	return runner.PermissionRequest{
		ID:    l.RequestID,
		Title: "Allow " + title + "?",
		Tool: runner.ToolCall{
			ID: r.ToolUseID, Name: r.ToolName, Title: title, Status: runner.ToolPending, Input: r.Input,
		},
		Options: options,
	}
}

// forSession keeps the suggestions that answer the like of a request, and lets
// them hold for the session only: whoever answers a task neither changes files
// of claude's configuration nor its mode.
func forSession(list []suggestion) []suggestion {
	var out []suggestion
	for _, s := range list {
		if s.Type == "addRules" && s.Behavior == "allow" || s.Type == "addDirectories" {
			s.Destination = "session"
			out = append(out, s)
		}
	}
	return out
}

// decide answers a request. Without a decision the turn is being cancelled, or
// nobody could be asked: then claude is not to go on either.
func (p *peer) decide(l controlLine, d duplex.Decision) {
	input := l.Request.Input
	if len(input) == 0 {
		input = json.RawMessage("{}")
	}
	var res permissionResult
	switch {
	case d.Allowed():
		res = permissionResult{Behavior: "allow", UpdatedInput: input}
		if d.Option.ID == optionAlways {
			res.UpdatedPermissions = forSession(l.Request.Suggestions)
		}
	case d.Answered():
		res = permissionResult{Behavior: "deny", Message: d.Message}
		if res.Message == "" {
			res.Message = "The user denied this."
		}
	default:
		res = permissionResult{Behavior: "deny", Message: "The request was cancelled.", Interrupt: true}
	}
	p.send(controlAnswer{Subtype: "success", RequestID: l.RequestID, Response: res})
}

// send answers; where that fails the connection is over, or claude does not
// read: the turn's end or its time limit tells.
func (p *peer) send(a controlAnswer) {
	_ = p.out.Send(controlResponse{Type: "control_response", Response: a})
}
