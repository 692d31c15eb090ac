package runner

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/parleyhub/parley/internal/process"
)

// claudeStream reads claude's --output-format stream-json, with or without
// --include-partial-messages.
type claudeStream struct {
	// streamed are the messages whose text came in pieces: the whole message that
	// follows has nothing new.
	streamed map[string]bool
	current  string // id of the message that is being streamed
}

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

func (c *claudeStream) line(b []byte, a *answer) {
	var l claudeLine
	if !object(b, &l) {
		return
	}
	switch l.Type {
	case "system":
		c.system(l, a)
	case "stream_event":
		if l.Parent == "" { // a subagent's words are not the answer
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

func (c *claudeStream) system(l claudeLine, a *answer) {
	switch l.Subtype {
	case "init":
		a.started(l.SessionID, l.Model)
	case "api_retry":
		a.retry(fmt.Sprintf("the model answered with %s (%d); try %d of %d", l.Error, l.ErrorStatus, l.Attempt, l.MaxRetries),
			l.ErrorStatus == 401)
	case "permission_denied":
		var words string
		_ = json.Unmarshal(l.Message, &words) // the name alone will do
		a.tool(ToolCall{ID: l.ToolUseID, Name: l.ToolName, Status: ToolDenied, Output: words})
	}
}

func (c *claudeStream) event(e claudeEvent, a *answer) {
	switch e.Type {
	case "message_start":
		c.current = e.Message.ID
	case "content_block_start":
		if e.ContentBlock.Type == "text" {
			a.newParagraph()
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
			a.addText(e.Delta.Text)
		case "thinking_delta":
			a.thought(e.Delta.Thinking)
		}
	}
}

func (c *claudeStream) assistant(l claudeLine, a *answer) {
	var m claudeMessage
	if !object(l.Message, &m) {
		return
	}
	for _, block := range claudeBlocks(m.Content) {
		switch block.Type {
		case "text":
			// An error comes as a message too; the result tells it again.
			if l.Parent == "" && l.Error == "" && !c.streamed[m.ID] {
				a.newParagraph()
				a.addText(block.Text)
			}
		case "thinking":
			if l.Parent == "" && !c.streamed[m.ID] {
				a.thought(block.Thinking)
			}
		case "tool_use":
			a.tool(ToolCall{
				ID: block.ID, Name: block.Name, Title: ToolTitle(block.Name, block.Input),
				Status: ToolRunning, Input: rawOr(block.Input),
			})
		}
	}
}

func (c *claudeStream) user(l claudeLine, a *answer) {
	var m claudeMessage
	if !object(l.Message, &m) {
		return
	}
	for _, block := range claudeBlocks(m.Content) {
		if block.Type != "tool_result" {
			continue
		}
		status := ToolCompleted
		switch {
		case a.wasDenied(block.ToolUseID):
			status = ToolDenied
		case block.IsError:
			status = ToolFailed
		}
		a.tool(ToolCall{ID: block.ToolUseID, Status: status, Output: claudeText(block.Content)})
	}
}

func (c *claudeStream) result(l claudeLine, a *answer) {
	a.started(l.SessionID, "")
	a.setUsage(Usage{
		InputTokens:  l.Usage.Input + l.Usage.Creation + l.Usage.Cached,
		OutputTokens: l.Usage.Output, CachedTokens: l.Usage.Cached, CostUSD: l.Cost,
	})
	for _, d := range l.Denials {
		t := ToolCall{ID: d.ID, Name: d.Name, Title: ToolTitle(d.Name, d.Input), Status: ToolDenied, Input: rawOr(d.Input)}
		if a.wasDenied(d.ID) {
			a.deny(t)
		} else {
			a.tool(t)
		}
	}
	a.done = true
	// The subtype says success also where an error is flagged.
	if l.IsError || l.Subtype != "success" {
		message := l.Result
		if message == "" {
			message = strings.Join(append([]string{l.Subtype}, l.Errors...), ": ")
		}
		a.fail(message)
		a.auth = a.auth || l.APIStatus == 401
		return
	}
	if a.text.Len() == 0 {
		a.addText(l.Result)
	}
}

// diagnose has nothing to add: claude puts its errors into the result.
func (c *claudeStream) diagnose(_ process.Exit, _ string, _ *answer) *Error { return nil }

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

func claudeText(content json.RawMessage) string {
	var text strings.Builder
	for _, b := range claudeBlocks(content) {
		text.WriteString(b.Text)
	}
	return text.String()
}

// toolSubject are the inputs of common tools that tell most about a call.
var toolSubject = []string{"command", "cmd", "file_path", "path", "notebook_path", "url", "pattern", "query", "description"}

// ToolTitle is one line for people on what a tool is used for: its name and the
// input that tells most.
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
