package runner

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/parleyhub/parley/internal/hub/process"
)

// codexJSONL reads codex exec --json.
type codexJSONL struct{}

type codexLine struct {
	Type     string `json:"type"`
	ThreadID string `json:"thread_id"`
	Message  string `json:"message"`
	Error    struct {
		Message string `json:"message"`
	} `json:"error"`
	Item  codexItem `json:"item"`
	Usage struct {
		Input  int64 `json:"input_tokens"`
		Output int64 `json:"output_tokens"`
		Cached int64 `json:"cached_input_tokens"`
	} `json:"usage"`
}

type codexItem struct {
	ID      string `json:"id"`
	Type    string `json:"type"`
	Text    string `json:"text"`
	Message string `json:"message"`
	Status  string `json:"status"`
	// command_execution
	Command  string `json:"command"`
	Output   string `json:"aggregated_output"`
	ExitCode *int   `json:"exit_code"`
	// mcp_tool_call, web_search
	Server    string          `json:"server"`
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments"`
	Query     string          `json:"query"`
	// file_change
	Changes []struct {
		Path string `json:"path"`
		Kind string `json:"kind"`
	} `json:"changes"`
}

func (c codexJSONL) Line(b []byte, a *Answer) {
	var l codexLine
	if !object(b, &l) {
		return
	}
	switch l.Type {
	case "thread.started":
		a.Session(l.ThreadID, "")
	case "item.started", "item.updated", "item.completed":
		c.item(l.Item, l.Type == "item.completed", a)
	case "turn.completed":
		a.Usage(Usage{InputTokens: l.Usage.Input, OutputTokens: l.Usage.Output, CachedTokens: l.Usage.Cached})
		a.done = true
	case "turn.failed":
		a.done = true
		a.fail(l.Error.Message)
	case "error": // a retry, or a text that turn.failed repeats
		c.failed(l.Message, a)
	}
}

// failed reports a retry, or keeps the text of an error: turn.failed follows.
func (c codexJSONL) failed(message string, a *Answer) {
	if r, ok := ParseRetry(message); ok {
		a.Retry(r)
		return
	}
	a.refused(message)
}

func (c codexJSONL) item(i codexItem, completed bool, a *Answer) {
	switch i.Type {
	case "agent_message":
		if completed {
			a.Paragraph()
			a.Text(i.Text)
		}
	case "reasoning":
		if completed {
			a.Thought(i.Text)
		}
	case "error":
		a.Notice(i.Message)
	case "command_execution", "mcp_tool_call", "file_change", "web_search":
		a.Tool(codexTool(i, completed))
	}
}

func codexTool(i codexItem, completed bool) ToolCall {
	t := ToolCall{ID: i.ID, Name: i.Type, Status: ToolRunning, Output: i.Output, Input: copyJSON(i.Arguments)}
	switch i.Type {
	case "command_execution":
		t.Title = oneLine(i.Command, 200)
		if input, err := json.Marshal(map[string]string{"command": i.Command}); err == nil {
			t.Input = input
		}
	case "mcp_tool_call":
		t.Name = i.Server + "." + i.Tool
	case "web_search":
		t.Title = oneLine(i.Query, 200)
	case "file_change":
		var paths []string
		for _, ch := range i.Changes {
			paths = append(paths, strings.TrimSpace(ch.Kind+" "+ch.Path))
			t.Files = append(t.Files, ch.Path)
		}
		t.Title = oneLine(strings.Join(paths, ", "), 200)
	}
	switch {
	case i.Status == "declined":
		t.Status = ToolDenied
	case i.Status == "failed", completed && i.ExitCode != nil && *i.ExitCode != 0:
		t.Status = ToolFailed
		if i.ExitCode != nil {
			t.Output = strings.TrimSpace(fmt.Sprintf("%s\nexit code %d", t.Output, *i.ExitCode))
		}
	case completed:
		t.Status = ToolCompleted
	}
	return t
}

func (c codexJSONL) diagnose(_ process.Exit, stderr string, _ *Answer) *Error {
	if strings.Contains(stderr, "--skip-git-repo-check") {
		return &Error{Code: CodeConfig, Message: "codex runs only in a git repository that it trusts",
			Remedy: "add --skip-git-repo-check to args of the agent, or run git init in its working directory"}
	}
	return nil
}
