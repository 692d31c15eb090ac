package claudestdio

import (
	"encoding/json"
	"strings"
)

// claude speaks one JSON object a line. The types hold what this driver reads;
// the rest is ignored.

// header is what every line has.
type header struct {
	Type      string `json:"type"`
	Subtype   string `json:"subtype"`
	SessionID string `json:"session_id"`
	// ParentToolUseID is set on what a subagent says.
	ParentToolUseID string `json:"parent_tool_use_id"`
}

// systemLine is the union of the lines of type system.
type systemLine struct {
	Model       string `json:"model"`   // init
	Attempt     int    `json:"attempt"` // api_retry
	MaxRetries  int    `json:"max_retries"`
	Error       string `json:"error"`
	ErrorStatus int    `json:"error_status"`
	ToolName    string `json:"tool_name"` // permission_denied
	ToolUseID   string `json:"tool_use_id"`
	Message     string `json:"message"`
}

// chatLine is a line of type assistant or user.
type chatLine struct {
	UUID     string      `json:"uuid"`
	IsReplay bool        `json:"isReplay"`
	Error    string      `json:"error"` // of an assistant line that claude made up
	Message  chatMessage `json:"message"`
}

type chatMessage struct {
	ID      string  `json:"id"`
	Content content `json:"content"`
}

// content is a list of blocks, or a text.
type content []block

// UnmarshalJSON implements json.Unmarshaler.
func (c *content) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) == nil {
		*c = content{{Type: "text", Text: text}}
		return nil
	}
	var blocks []block
	if err := json.Unmarshal(b, &blocks); err != nil {
		return err
	}
	*c = blocks
	return nil
}

func (c content) text() string {
	var s strings.Builder
	for _, b := range c {
		if b.Type == "text" {
			s.WriteString(b.Text)
		}
	}
	return s.String()
}

type block struct {
	Type     string          `json:"type"`
	Text     string          `json:"text"`
	Thinking string          `json:"thinking"`
	ID       string          `json:"id"` // tool_use
	Name     string          `json:"name"`
	Input    json.RawMessage `json:"input"`

	ToolUseID string  `json:"tool_use_id"` // tool_result
	Content   content `json:"content"`
	IsError   bool    `json:"is_error"`
}

// streamLine is a piece of a message as the model's API streams it.
type streamLine struct {
	Event struct {
		Type    string `json:"type"`
		Message struct {
			ID string `json:"id"`
		} `json:"message"` // message_start
		ContentBlock block `json:"content_block"` // content_block_start
		Delta        struct {
			Type     string `json:"type"`
			Text     string `json:"text"`
			Thinking string `json:"thinking"`
		} `json:"delta"` // content_block_delta
	} `json:"event"`
}

// resultLine is the end of a turn. Its subtype says success also where is_error
// is set.
type resultLine struct {
	Subtype           string   `json:"subtype"`
	IsError           bool     `json:"is_error"`
	Result            string   `json:"result"`
	Errors            []string `json:"errors"`
	TerminalReason    string   `json:"terminal_reason"`
	APIErrorStatus    int      `json:"api_error_status"`
	TotalCostUSD      float64  `json:"total_cost_usd"`
	Usage             usage    `json:"usage"`
	PermissionDenials []denial `json:"permission_denials"`
}

type usage struct {
	Input       int64 `json:"input_tokens"`
	Output      int64 `json:"output_tokens"`
	CacheRead   int64 `json:"cache_read_input_tokens"`
	CacheCreate int64 `json:"cache_creation_input_tokens"`
}

type denial struct {
	ToolName  string          `json:"tool_name"`
	ToolUseID string          `json:"tool_use_id"`
	ToolInput json.RawMessage `json:"tool_input"`
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
