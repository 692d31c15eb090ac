package drivers

import (
	"cmp"
	"encoding/json"
	"strings"

	sdk "github.com/coder/acp-go-sdk"

	"github.com/parleyhub/parley/internal/base/edits"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
)

// notified handles a notification, on the reading goroutine. It ignores unknown methods.
func (c *acpConn) notified(method string, params json.RawMessage) {
	switch method {
	case sdk.ClientMethodSessionUpdate:
		c.update(params)
	case "$/cancel_request": // the agent withdraws a request
		var request struct {
			ID json.RawMessage `json:"requestId"`
		}
		_ = json.Unmarshal(params, &request) // there is no question without an id
		c.questions.withdraw(string(request.ID))
	}
}

// update reports an update. It ignores updates that cannot be read, and unknown kinds.
func (c *acpConn) update(params json.RawMessage) {
	var n sdk.SessionNotification
	if json.Unmarshal(params, &n) != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	pr := c.prompt
	if pr == nil {
		wait.Nudge(c.updated)
	}
	if pr == nil || n.SessionId != c.session {
		return // history, or of a turn that has ended
	}
	switch u := n.Update; {
	case u.AgentMessageChunk != nil:
		c.chunk(pr, *u.AgentMessageChunk)
	case u.AgentThoughtChunk != nil:
		pr.turn.Thought(blockText(u.AgentThoughtChunk.Content))
	case u.ToolCall != nil, u.ToolCallUpdate != nil: // the fields are the same
		var tool struct {
			Update sdk.ToolCallUpdate `json:"update"`
		}
		if json.Unmarshal(params, &tool) == nil {
			pr.turn.Tool(acpToolCall(params, tool.Update))
		}
	case u.UsageUpdate != nil:
		c.countCost(pr, *u.UsageUpdate)
	case u.SessionInfoUpdate != nil:
		c.status(pr, *u.SessionInfoUpdate)
	}
}

// chunk reports a piece of the answer. codex-acp also sends its warnings and errors
// as chunks; these have no message id.
func (c *acpConn) chunk(pr *acpPrompt, u sdk.SessionUpdateAgentMessageChunk) {
	text, id := blockText(u.Content), deref(u.MessageId)
	if c.codex && id == "" {
		if pr.failed {
			if pr.report.Len() < maxReport {
				pr.report.WriteString(text)
			}
			return
		}
		if r, ok := runner.ParseRetry(text); ok {
			pr.turn.Retry(r)
			return
		}
		pr.turn.Notice(strings.TrimSpace(text))
		return
	}
	if id != pr.message {
		pr.message = id
		pr.turn.Paragraph()
	}
	pr.turn.Text(text)
}

// maxReport bounds the text of an error, in bytes.
const maxReport = 16 << 10

// status records an error of codex-acp, which ends a failed turn as if it had succeeded.
func (c *acpConn) status(pr *acpPrompt, u sdk.SessionSessionInfoUpdate) {
	if !c.codex {
		return
	}
	codex, _ := u.Meta["codex"].(map[string]any)
	status, _ := codex["threadStatus"].(map[string]any)
	if status["type"] == "systemError" {
		pr.failed = true
	}
}

// countCost reports the cost. Agents count it for the whole session.
func (c *acpConn) countCost(pr *acpPrompt, u sdk.SessionUsageUpdate) {
	if u.Cost == nil || u.Cost.Currency != "USD" {
		return
	}
	c.cost = &u.Cost.Amount
	if pr.base == nil {
		return // a resumed session: its earlier cost is unknown
	}
	pr.usage.CostUSD = max(u.Cost.Amount-*pr.base, 0)
	pr.turn.Usage(pr.usage)
}

func blockText(b sdk.ContentBlock) string {
	switch {
	case b.Text != nil:
		return b.Text.Text
	case b.ResourceLink != nil:
		return "[" + b.ResourceLink.Name + ": " + b.ResourceLink.Uri + "]"
	case b.Image != nil:
		return "[an image, " + b.Image.MimeType + "]"
	case b.Audio != nil:
		return "[a sound, " + b.Audio.MimeType + "]"
	case b.Resource != nil && b.Resource.Resource.TextResourceContents != nil:
		return b.Resource.Resource.TextResourceContents.Text
	default:
		return ""
	}
}

// acpToolCall returns the event of a tool call. raw is its JSON, which holds the
// tool's name: the SDK's types do not know that field yet.
func acpToolCall(raw json.RawMessage, tc sdk.ToolCallUpdate) runner.ToolCall {
	return runner.ToolCall{
		ID: string(tc.ToolCallId), Name: acpToolName(raw, deref(tc.Kind)), Title: duplex.OneLine(deref(tc.Title)),
		Status: acpStatus[deref(tc.Status)], Input: toolInput(tc.RawInput), Output: acpToolOutput(tc),
		Files: acpFiles(tc),
	}
}

// acpFiles returns the files that a tool changes: those of its diffs, and the locations of a kind that changes files.
func acpFiles(tc sdk.ToolCallUpdate) (files []string) {
	for _, c := range tc.Content {
		if c.Diff != nil && len(files) < edits.MaxFiles {
			files = append(files, c.Diff.Path)
		}
	}
	switch deref(tc.Kind) {
	case sdk.ToolKindEdit, sdk.ToolKindDelete, sdk.ToolKindMove:
		for _, l := range tc.Locations[:min(len(tc.Locations), edits.MaxFiles)] {
			files = append(files, l.Path)
		}
	}
	return files
}

func acpToolName(raw json.RawMessage, kind sdk.ToolKind) string {
	type named struct {
		Name string `json:"name"`
		Meta struct {
			ClaudeCode struct {
				ToolName string `json:"toolName"`
			} `json:"claudeCode"`
		} `json:"_meta"`
	}
	var m struct {
		Update   named `json:"update"`
		ToolCall named `json:"toolCall"`
	}
	_ = json.Unmarshal(raw, &m) // without a name the kind is used
	u, t := m.Update, m.ToolCall
	return cmp.Or(u.Name, u.Meta.ClaudeCode.ToolName, t.Name, t.Meta.ClaudeCode.ToolName, string(kind))
}

var acpStatus = map[sdk.ToolCallStatus]runner.ToolStatus{
	sdk.ToolCallStatusPending:    runner.ToolPending,
	sdk.ToolCallStatusInProgress: runner.ToolRunning,
	sdk.ToolCallStatusCompleted:  runner.ToolCompleted,
	sdk.ToolCallStatusFailed:     runner.ToolFailed,
}

// acpToolOutput returns a tool's result as text. Until the tool has ended, the content describes its plan instead.
func acpToolOutput(tc sdk.ToolCallUpdate) string {
	if s, ok := tc.RawOutput.(string); ok {
		return s
	}
	if s := deref(tc.Status); s != sdk.ToolCallStatusCompleted && s != sdk.ToolCallStatusFailed {
		return ""
	}
	var pieces []string
	for _, c := range tc.Content {
		switch {
		case c.Content != nil:
			pieces = append(pieces, blockText(c.Content.Content))
		case c.Diff != nil:
			pieces = append(pieces, "[changes "+c.Diff.Path+"]")
		}
	}
	if len(pieces) == 0 {
		return string(toolInput(tc.RawOutput))
	}
	return strings.Join(pieces, "\n")
}

// toolInput returns v as JSON, nil if it is empty.
func toolInput(v any) json.RawMessage {
	if m, ok := v.(map[string]any); v == nil || ok && len(m) == 0 {
		return nil
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil // it was read from JSON
	}
	return b
}

// deref returns *p, or the zero value for nil.
func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// requested handles a request of the agent, on the reading goroutine: the user decides
// about permissions, all others are refused. Without a decision it answers that the turn
// is cancelled, as the protocol requires; gemini waits for that answer.
func (c *acpConn) requested(id json.RawMessage, method string, params json.RawMessage) {
	var req sdk.RequestPermissionRequest
	switch {
	case method != sdk.ClientMethodSessionRequestPermission:
		c.refuse(id, codeMethodNotFound, "this client does not know "+method)
		return
	case json.Unmarshal(params, &req) != nil:
		c.refuse(id, codeInvalidParams, "the request could not be read")
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock() // the prompt cannot end meanwhile
	var t *duplex.Turn
	if c.prompt != nil && req.SessionId == c.session {
		t = c.prompt.turn
	}
	c.questions.ask(t, string(id), acpQuestion(params, req), func(d duplex.Decision) {
		outcome := sdk.NewRequestPermissionOutcomeCancelled()
		if d.Answered() {
			outcome = sdk.NewRequestPermissionOutcomeSelected(sdk.PermissionOptionId(d.Option.ID))
		}
		response := sdk.RequestPermissionResponse{Outcome: outcome}
		if d.Claimed != "" { // the protocol has no field for it
			response.Meta = map[string]any{"parley": map[string]any{"claimed": d.Claimed}}
		}
		c.answer(id, response)
	})
}

func acpQuestion(params json.RawMessage, req sdk.RequestPermissionRequest) runner.PermissionRequest {
	tool := acpToolCall(params, req.ToolCall)
	options := make([]runner.PermissionOption, 0, len(req.Options))
	for _, o := range req.Options {
		options = append(options, runner.PermissionOption{
			ID: string(o.OptionId), Name: o.Name, Kind: runner.PermissionKind(o.Kind),
		})
	}
	return runner.PermissionRequest{
		ID: tool.ID, Title: "Allow " + strings.TrimSuffix(cmp.Or(tool.Title, tool.Name), "?") + "?", Tool: tool, Options: options,
	}
}
