package runner

import (
	"cmp"
	"encoding/json"
	"strings"
	"time"
)

// ClaudeStream reads claude's --output-format stream-json, with or without
// --include-partial-messages. The zero value is ready.
type ClaudeStream struct {
	// streamed are the messages whose text arrived in pieces. The whole message that follows repeats it.
	streamed map[string]bool
	current  string  // id of the message that is being streamed
	spent    float64 // the process's cost before this turn: claude counts the whole
}

// Next prepares for the next turn of a claude that answers many prompts.
func (c *ClaudeStream) Next() { *c = ClaudeStream{spent: c.spent} }

type claudeLine struct {
	Type      string          `json:"type"`
	Subtype   string          `json:"subtype"`
	SessionID string          `json:"session_id"`
	Model     string          `json:"model"`
	Parent    string          `json:"parent_tool_use_id"`
	Event     claudeEvent     `json:"event"`
	Message   json.RawMessage `json:"message"` // an object, or words in system events
	Error     string          `json:"error"`

	// system/api_retry
	Attempt     int `json:"attempt"`
	MaxRetries  int `json:"max_retries"`
	ErrorStatus int `json:"error_status"`
	RetryDelay  int `json:"retry_delay_ms"`

	// system/permission_denied
	ToolName  string `json:"tool_name"`
	ToolUseID string `json:"tool_use_id"`

	// result
	IsError   bool           `json:"is_error"`
	Result    string         `json:"result"`
	Errors    []string       `json:"errors"`
	APIStatus int            `json:"api_error_status"`
	Cost      float64        `json:"total_cost_usd"`
	Usage     claudeUsage    `json:"usage"`
	Denials   []claudeDenial `json:"permission_denials"`
}

type claudeEvent struct {
	Type    string `json:"type"`
	Message struct {
		ID string `json:"id"`
	} `json:"message"`
	ContentBlock struct {
		Type string `json:"type"`
	} `json:"content_block"`
	Delta struct {
		Type     string `json:"type"`
		Text     string `json:"text"`
		Thinking string `json:"thinking"`
	} `json:"delta"`
}

type claudeMessage struct {
	ID      string          `json:"id"`
	Content json.RawMessage `json:"content"` // blocks, or a string
}

type claudeBlock struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	Thinking  string          `json:"thinking"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	ToolUseID string          `json:"tool_use_id"`
	Content   json.RawMessage `json:"content"`
	IsError   bool            `json:"is_error"`
}

type claudeUsage struct {
	Input    int64 `json:"input_tokens"`
	Output   int64 `json:"output_tokens"`
	Cached   int64 `json:"cache_read_input_tokens"`
	Creation int64 `json:"cache_creation_input_tokens"`
}

type claudeDenial struct {
	Name  string          `json:"tool_name"`
	ID    string          `json:"tool_use_id"`
	Input json.RawMessage `json:"tool_input"`
}

// Line reads one line of claude's output, which is valid only during the call. It
// ignores unknown events and lines that are not JSON.
func (c *ClaudeStream) Line(b []byte, a *Answer) {
	var l claudeLine
	if !object(b, &l) {
		return
	}
	switch l.Type {
	case "system":
		c.system(l, a)
	case "stream_event":
		if l.Parent == "" { // a subagent's text is not the answer
			c.event(l.Event, a)
		}
	case "assistant":
		c.assistant(l, a)
	case "user":
		c.user(l, a)
	case "result":
		c.result(l, a)
	}
}

func (c *ClaudeStream) system(l claudeLine, a *Answer) {
	switch l.Subtype {
	case "init":
		a.Session(l.SessionID, l.Model)
	case "api_retry":
		a.Retry(Retry{
			Attempt: l.Attempt, Of: l.MaxRetries, Status: l.ErrorStatus, Reason: l.Error,
			Wait: time.Duration(min(max(l.RetryDelay, 0), 1e9)) * time.Millisecond,
		})
	case "permission_denied":
		var words string
		_ = json.Unmarshal(l.Message, &words) // optional
		a.Tool(ToolCall{ID: l.ToolUseID, Name: l.ToolName, Status: ToolDenied, Output: words})
	}
}

func (c *ClaudeStream) event(e claudeEvent, a *Answer) {
	switch e.Type {
	case "message_start":
		c.current = e.Message.ID
	case "content_block_start":
		if e.ContentBlock.Type == "text" {
			a.Paragraph()
		}
	case "content_block_delta":
		switch e.Delta.Type {
		case "text_delta":
			if c.streamed == nil {
				c.streamed = make(map[string]bool)
			}
			if len(c.streamed) < maxTools {
				c.streamed[c.current] = true
			}
			a.Text(e.Delta.Text)
		case "thinking_delta":
			a.Thought(e.Delta.Thinking)
		}
	}
}

func (c *ClaudeStream) assistant(l claudeLine, a *Answer) {
	var m claudeMessage
	if !object(l.Message, &m) {
		return
	}
	for _, block := range claudeBlocks(m.Content) {
		switch block.Type {
		case "text":
			// An error is also a message; the result repeats it.
			if l.Parent == "" && l.Error == "" && !c.streamed[m.ID] {
				a.Paragraph()
				a.Text(block.Text)
			}
		case "thinking":
			if l.Parent == "" && !c.streamed[m.ID] {
				a.Thought(block.Thinking)
			}
		case "tool_use":
			a.Tool(ToolCall{
				ID: block.ID, Name: block.Name, Title: ToolTitle(block.Name, block.Input),
				Status: ToolRunning, Input: copyJSON(block.Input),
			})
		}
	}
}

func (c *ClaudeStream) user(l claudeLine, a *Answer) {
	var m claudeMessage
	if !object(l.Message, &m) {
		return
	}
	for _, block := range claudeBlocks(m.Content) {
		if block.Type != "tool_result" {
			continue
		}
		status := ToolCompleted
		if block.IsError {
			status = ToolFailed
		}
		a.Tool(ToolCall{ID: block.ToolUseID, Status: status, Output: textOf(block.Content)})
	}
}

func (c *ClaudeStream) result(l claudeLine, a *Answer) {
	a.Session(l.SessionID, "")
	a.Usage(Usage{
		InputTokens:  l.Usage.Input + l.Usage.Creation + l.Usage.Cached,
		OutputTokens: l.Usage.Output, CachedTokens: l.Usage.Cached, CostUSD: max(l.Cost-c.spent, 0),
	})
	c.spent = l.Cost
	for _, d := range l.Denials {
		t := ToolCall{ID: d.ID, Name: d.Name, Title: ToolTitle(d.Name, d.Input), Status: ToolDenied, Input: copyJSON(d.Input)}
		if a.wasDenied(d.ID) {
			a.deny(t)
		} else {
			a.Tool(t)
		}
	}
	a.done = true
	// The subtype can be success although is_error is set.
	if l.IsError || l.Subtype != "success" {
		a.fail(cmp.Or(l.Result, strings.Join(append([]string{l.Subtype}, l.Errors...), ": ")))
		a.auth = a.auth || l.APIStatus == 401
		return
	}
	if a.text.Len() == 0 {
		a.Text(l.Result)
	}
}

func claudeBlocks(content json.RawMessage) []claudeBlock {
	var blocks []claudeBlock
	if json.Unmarshal(content, &blocks) == nil {
		return blocks
	}
	var text string
	if json.Unmarshal(content, &text) == nil {
		return []claudeBlock{{Type: "text", Text: text}}
	}
	return nil
}

// toolSubject are the inputs of common tools that describe a call best.
var toolSubject = []string{"command", "cmd", "file_path", "path", "notebook_path", "url", "pattern", "query", "description"}

// ToolTitle returns one line for users about a tool call: the tool's name and the input
// that describes the call best.
func ToolTitle(name string, input json.RawMessage) string {
	var fields map[string]json.RawMessage
	if json.Unmarshal(input, &fields) != nil {
		return name
	}
	for _, key := range toolSubject {
		var value string
		if json.Unmarshal(fields[key], &value) == nil && value != "" {
			return name + ": " + oneLine(value, 200)
		}
	}
	return name
}
