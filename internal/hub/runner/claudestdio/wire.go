package claudestdio

import "encoding/json"

// claude speaks one JSON object a line. What it does and says is read by
// runner.ClaudeStream; the types here hold what is between claude and its host.

// header is what tells the lines apart.
type header struct {
	Type     string `json:"type"`
	UUID     string `json:"uuid"`     // of type user
	IsReplay bool   `json:"isReplay"` // the host's own line
}

// resultLine is the end of a turn.
type resultLine struct {
	IsError        bool   `json:"is_error"`
	TerminalReason string `json:"terminal_reason"`
}

// controlLine is a line of type control_request, control_cancel_request or
// control_response.
type controlLine struct {
	RequestID string `json:"request_id"`
	Request   struct {
		Subtype     string          `json:"subtype"`
		ToolName    string          `json:"tool_name"`
		ToolUseID   string          `json:"tool_use_id"`
		Input       json.RawMessage `json:"input"`
		Suggestions []suggestion    `json:"permission_suggestions"`
	} `json:"request"`
	Response struct {
		Subtype   string `json:"subtype"` // success, error
		RequestID string `json:"request_id"`
		Error     string `json:"error"`
	} `json:"response"`
}

// suggestion is a change of claude's rules that answers the like of a request
// for good.
type suggestion struct {
	Type        string          `json:"type"`
	Rules       json.RawMessage `json:"rules,omitempty"`
	Directories json.RawMessage `json:"directories,omitempty"`
	Behavior    string          `json:"behavior,omitempty"`
	Destination string          `json:"destination"`
}

// What the driver writes.

type controlRequest struct {
	Type      string         `json:"type"` // control_request
	RequestID string         `json:"request_id"`
	Request   controlSubtype `json:"request"`
}

type controlSubtype struct {
	Subtype string `json:"subtype"` // initialize, interrupt
}

type controlResponse struct {
	Type     string        `json:"type"` // control_response
	Response controlAnswer `json:"response"`
}

type controlAnswer struct {
	Subtype   string `json:"subtype"` // success, error
	RequestID string `json:"request_id"`
	Response  any    `json:"response,omitempty"`
	Error     string `json:"error,omitempty"`
}

type permissionResult struct {
	Behavior           string          `json:"behavior"` // allow, deny
	UpdatedInput       json.RawMessage `json:"updatedInput,omitempty"`
	UpdatedPermissions []suggestion    `json:"updatedPermissions,omitempty"`
	Message            string          `json:"message,omitempty"`
	Interrupt          bool            `json:"interrupt,omitempty"`
}

type userLine struct {
	Type    string      `json:"type"` // user
	UUID    string      `json:"uuid"`
	Message userMessage `json:"message"`
}

type userMessage struct {
	Role    string      `json:"role"`
	Content []textBlock `json:"content"`
}

type textBlock struct {
	Type string `json:"type"`
	Text string `json:"text"`
}
