package claudestdio

import (
	"encoding/json"
	"fmt"

	"github.com/parleyhub/parley/internal/runner"
)

func (p *peer) system(pr *prompt, h header, b []byte) {
	var l systemLine
	if json.Unmarshal(b, &l) != nil {
		return
	}
	switch h.Subtype {
	case "init":
		pr.turn.Session(runner.SessionStarted{ID: h.SessionID, Model: l.Model})
	case "api_retry":
		pr.turn.Notice(fmt.Sprintf("claude tries again (%d of %d): %s", l.Attempt, l.MaxRetries, l.Error))
		pr.retry(l)
	case "permission_denied":
		pr.turn.Deny(runner.ToolCall{ID: l.ToolUseID, Name: l.ToolName, Output: l.Message})
	}
}

// retry gives up where claude does not: it tries for minutes with credentials that
// were refused. After the first refusal it may have got new ones.
func (pr *prompt) retry(l systemLine) {
	if l.ErrorStatus != 401 && l.Error != wordAuth {
		return
	}
	if pr.refusals++; pr.refusals < maxRefusals {
		return
	}
	pr.end(resultLine{IsError: true, APIErrorStatus: 401, Result: "the credentials were refused"})
}

// maxRefusals is how often credentials may be refused in a turn.
const maxRefusals = 2

// stream takes a piece of a message. What a subagent says is not the answer.
func (pr *prompt) stream(h header, b []byte) {
	var l streamLine
	if json.Unmarshal(b, &l) != nil {
		return
	}
	switch e := l.Event; e.Type {
	case "message_start":
		if h.ParentToolUseID == "" {
			pr.message = e.Message.ID
			pr.turn.Paragraph()
		}
	case "content_block_start":
		if e.ContentBlock.Type == "tool_use" {
			pr.turn.Tool(runner.ToolCall{ID: e.ContentBlock.ID, Name: e.ContentBlock.Name, Status: runner.ToolPending})
		}
	case "content_block_delta":
		if h.ParentToolUseID != "" {
			return
		}
		if len(pr.streamed) < maxMessages {
			pr.streamed[pr.message] = true
		}
		pr.turn.Thought(e.Delta.Thinking)
		pr.turn.Text(e.Delta.Text)
	}
}

// assistant takes a whole message; its text counts only if it was not streamed.
func (pr *prompt) assistant(h header, b []byte) {
	var l chatLine
	if json.Unmarshal(b, &l) != nil {
		return
	}
	if l.Error != "" {
		// The text is the error's, and comes again with the result.
		pr.word = l.Error
		return
	}
	whole := h.ParentToolUseID == "" && !pr.streamed[l.Message.ID]
	if whole {
		pr.turn.Paragraph()
	}
	for _, c := range l.Message.Content {
		switch {
		case c.Type == "tool_use":
			pr.turn.Tool(runner.ToolCall{
				ID: c.ID, Name: c.Name, Title: runner.ToolTitle(c.Name, c.Input), Status: runner.ToolRunning, Input: c.Input,
			})
		case c.Type == "text" && whole:
			pr.turn.Text(c.Text)
		case c.Type == "thinking" && whole:
			pr.turn.Thought(c.Thinking)
		}
	}
}

// user takes the results of tools, and the echo of the prompt.
func (p *peer) user(pr *prompt, h header, b []byte) {
	var l chatLine
	if json.Unmarshal(b, &l) != nil {
		return
	}
	if l.IsReplay {
		p.replays = true
		pr.started = pr.started || l.UUID == pr.id
		return
	}
	for _, c := range l.Message.Content {
		if c.Type != "tool_result" {
			continue
		}
		status := runner.ToolCompleted
		if c.IsError {
			status = runner.ToolFailed
		}
		pr.turn.Tool(runner.ToolCall{ID: c.ToolUseID, Status: status, Output: c.Content.text()})
	}
}

// result ends the prompt, once. claude also takes turns of its own, when a task
// in the background has ended: their results come before the prompt's echo.
func (p *peer) result(pr *prompt, b []byte) {
	if p.replays && !pr.started {
		return
	}
	var r resultLine
	if err := json.Unmarshal(b, &r); err != nil {
		r = resultLine{IsError: true, Result: "the end of the turn could not be understood"}
	}
	pr.end(r)
}

func (pr *prompt) end(r resultLine) {
	select {
	case pr.ended <- r:
	default: // it said so before
	}
}
