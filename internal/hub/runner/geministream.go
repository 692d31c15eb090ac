package runner

import (
	"cmp"
	"encoding/json"
	"strings"

	"github.com/parleyhub/parley/internal/hub/process"
)

// geminiStream reads gemini's -o stream-json.
type geminiStream struct {
	// tooled is set after a tool call: the next text is a new paragraph.
	tooled bool
}

type geminiLine struct {
	Type       string          `json:"type"`
	SessionID  string          `json:"session_id"`
	Model      string          `json:"model"`
	Role       string          `json:"role"`
	Content    string          `json:"content"`
	ToolName   string          `json:"tool_name"`
	ToolID     string          `json:"tool_id"`
	Parameters json.RawMessage `json:"parameters"`
	Status     string          `json:"status"`
	Severity   string          `json:"severity"`
	Message    string          `json:"message"`
	Output     json.RawMessage `json:"output"`
	Error      geminiError     `json:"error"`
	Stats      struct {
		Input  int64 `json:"input_tokens"`
		Output int64 `json:"output_tokens"`
		Cached int64 `json:"cached"`
	} `json:"stats"`
}

type geminiError struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

func (g *geminiStream) Line(b []byte, a *Answer) {
	var l geminiLine
	if !object(b, &l) {
		return
	}
	switch l.Type {
	case "init":
		a.Session(l.SessionID, l.Model)
	case "message":
		if l.Role != "assistant" { // gemini repeats the prompt
			return
		}
		if g.tooled {
			a.Paragraph()
			g.tooled = false
		}
		a.Text(l.Content)
	case "tool_use":
		g.tooled = true
		a.Tool(ToolCall{
			ID: l.ToolID, Name: l.ToolName, Title: ToolTitle(l.ToolName, l.Parameters),
			Status: ToolRunning, Input: copyJSON(l.Parameters),
		})
	case "tool_result":
		a.Tool(ToolCall{ID: l.ToolID, Status: geminiStatus(l), Output: geminiOutput(l)})
	case "error": // a warning, or an error that the result repeats
		a.Notice(l.Message)
	case "result":
		a.Usage(Usage{InputTokens: l.Stats.Input, OutputTokens: l.Stats.Output, CachedTokens: l.Stats.Cached})
		a.done = true
		if l.Status != "success" {
			a.fail(l.Error.Message)
		}
	}
}

// geminiStatus returns a tool's status. A tool that the approval mode forbids is not
// registered, which is a denial for the user.
func geminiStatus(l geminiLine) ToolStatus {
	switch {
	case l.Status == "success":
		return ToolCompleted
	case l.Error.Type == "tool_not_registered", strings.Contains(l.Error.Type, "denied"),
		strings.Contains(l.Error.Type, "policy"), strings.Contains(l.Error.Type, "permission"),
		l.Status == "cancelled":
		return ToolDenied
	}
	return ToolFailed
}

func geminiOutput(l geminiLine) string {
	var text string
	if json.Unmarshal(l.Output, &text) != nil {
		text = string(l.Output)
	}
	return cmp.Or(text, l.Error.Message)
}

// The exit codes of gemini. Others are the HTTP status of the model server modulo 256.
const (
	geminiExitAuth  = 41
	geminiExitTrust = 55
	geminiExit401   = 401 % 256
)

func (g *geminiStream) diagnose(exit process.Exit, stderr string, a *Answer) *Error {
	switch exit.Code {
	case geminiExitAuth, geminiExit401:
		a.auth = true
	case geminiExitTrust:
		return &Error{Code: CodeConfig, Message: "gemini does not trust its working directory",
			Remedy: "set GEMINI_CLI_TRUST_WORKSPACE=true under env.set of the agent, or add --skip-trust to args"}
	}
	return nil
}
