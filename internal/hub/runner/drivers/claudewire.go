package drivers

import "encoding/json"

// claude speaks one JSON object a line. runner.ClaudeStream reads its events; the
// types here are the messages between claude and its host.

// claudeHeader distinguishes the lines.
type claudeHeader struct {
	Type     string `json:"type"`
	UUID     string `json:"uuid"`     // of type user
	IsReplay bool   `json:"isReplay"` // the host's own line
}

// claudeResult is the end of a turn.
type claudeResult struct {
	IsError        bool   `json:"is_error"`
	TerminalReason string `json:"terminal_reason"`
}

// claudeControl is a line of type control_request, control_cancel_request or
// control_response.
type claudeControl struct {
	RequestID string `json:"request_id"`
	Request   struct {
		Subtype     string             `json:"subtype"`
		ToolName    string             `json:"tool_name"`
		ToolUseID   string             `json:"tool_use_id"`
		Input       json.RawMessage    `json:"input"`
		Suggestions []claudeSuggestion `json:"permission_suggestions"`
	} `json:"request"`
	Response struct {
		Subtype   string `json:"subtype"` // success, error
		RequestID string `json:"request_id"`
		Error     string `json:"error"`
	} `json:"response"`
}

// claudeSuggestion is a change of claude's rules that allows similar requests
// permanently.
type claudeSuggestion struct {
	Type        string          `json:"type"`
	Rules       json.RawMessage `json:"rules,omitempty"`
	Directories json.RawMessage `json:"directories,omitempty"`
	Behavior    string          `json:"behavior,omitempty"`
	Destination string          `json:"destination"`
}

type claudeRequest struct {
	Type      string        `json:"type"`
	RequestID string        `json:"request_id"`
	Request   claudeSubtype `json:"request"`
}

type claudeSubtype struct {
	Subtype string `json:"subtype"` // initialize, interrupt
}

func newClaudeRequest(id, subtype string) claudeRequest {
	return claudeRequest{Type: "control_request", RequestID: id, Request: claudeSubtype{subtype}}
}

type claudeResponse struct {
	Type     string       `json:"type"` // control_response
	Response claudeAnswer `json:"response"`
}

type claudeAnswer struct {
	Subtype   string `json:"subtype"` // success, error
	RequestID string `json:"request_id"`
	Response  any    `json:"response,omitempty"`
	Error     string `json:"error,omitempty"`
}

type claudePermission struct {
	Behavior           string             `json:"behavior"` // allow, deny
	UpdatedInput       json.RawMessage    `json:"updatedInput,omitempty"`
	UpdatedPermissions []claudeSuggestion `json:"updatedPermissions,omitempty"`
	Message            string             `json:"message,omitempty"`
	Interrupt          bool               `json:"interrupt,omitempty"`
}

type claudeUser struct {
	Type    string            `json:"type"` // user
	UUID    string            `json:"uuid"`
	Message claudeUserMessage `json:"message"`
}

type claudeUserMessage struct {
	Role    string      `json:"role"`
	Content []textBlock `json:"content"`
}

// textBlock is a text in a prompt, for claude and codex.
type textBlock struct {
	Type string `json:"type"`
	Text string `json:"text"`
}
