package runner

import (
	"encoding/json"
	"strings"
)

// vibeStream reads vibe's --output streaming: each line is one message of the
// conversation, as sent to the model. There is no final event: the turn is complete
// when vibe exits with 0 after an assistant's message without tool calls.
type vibeStream struct{}

type vibeLine struct {
	Role       string          `json:"role"`
	Content    json.RawMessage `json:"content"` // a string, or pieces with text
	Reasoning  string          `json:"reasoning_content"`
	SessionID  string          `json:"session_id"`
	ToolCallID string          `json:"tool_call_id"`
	Name       string          `json:"name"`
	ToolCalls  []struct {
		ID       string `json:"id"`
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

func (v vibeStream) Line(b []byte, a *Answer) {
	var l vibeLine
	if !object(b, &l) {
		return
	}
	a.Session(l.SessionID, "")
	switch l.Role {
	case "assistant":
		a.Thought(l.Reasoning)
		a.Paragraph()
		a.Text(textOf(l.Content))
		for _, t := range l.ToolCalls {
			input := json.RawMessage(t.Function.Arguments)
			if !json.Valid(input) {
				input = nil
			}
			a.Tool(ToolCall{
				ID: t.ID, Name: t.Function.Name, Title: ToolTitle(t.Function.Name, input),
				Status: ToolRunning, Input: input,
			})
		}
		a.done = len(l.ToolCalls) == 0
	case "tool":
		a.Tool(ToolCall{ID: l.ToolCallID, Name: l.Name, Status: vibeStatus(textOf(l.Content)), Output: textOf(l.Content)})
	}
}

// vibeStatus derives a tool's status from the text for the model: there is no field for it.
func vibeStatus(output string) ToolStatus {
	switch {
	case strings.Contains(output, "<user_cancellation>"), strings.Contains(output, "not permitted"),
		strings.Contains(output, "User rejected"), strings.Contains(output, "Tool execution not"):
		return ToolDenied
	case strings.HasPrefix(output, "<tool_error>"):
		return ToolFailed
	}
	return ToolCompleted
}

// textOf returns a JSON string, or the joined texts of a list of pieces.
func textOf(content json.RawMessage) string {
	var s string
	if json.Unmarshal(content, &s) == nil {
		return s
	}
	var pieces []struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(content, &pieces) != nil {
		return ""
	}
	var all strings.Builder
	for _, p := range pieces {
		all.WriteString(p.Text)
	}
	return all.String()
}
