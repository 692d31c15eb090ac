package acp

import (
	"context"
	"encoding/json"
	"strings"

	sdk "github.com/coder/acp-go-sdk"

	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
)

// handle takes what the agent sends on its own. The connection calls it on one
// goroutine for the updates, in order, and on one more for each request: a
// permission may be asked for before the update that tells of its tool.
func (p *peer) handle(ctx context.Context, method string, params json.RawMessage) (any, *sdk.RequestError) {
	switch method {
	case sdk.ClientMethodSessionUpdate:
		p.update(params)
		p.gate.handled()
		return nil, nil
	case sdk.ClientMethodSessionRequestPermission:
		return p.permission(ctx, params)
	default:
		return nil, sdk.NewMethodNotFound(method)
	}
}

// update passes an update on. Those that cannot be read, or are of an unknown
// kind, are passed over.
func (p *peer) update(params json.RawMessage) {
	var n sdk.SessionNotification
	if json.Unmarshal(params, &n) != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	pr := p.prompt
	if pr == nil || n.SessionId != p.session {
		return // history, or of a turn that is over
	}
	switch u := n.Update; {
	case u.AgentMessageChunk != nil:
		p.chunk(pr, *u.AgentMessageChunk)
	case u.AgentThoughtChunk != nil:
		pr.turn.Thought(blockText(u.AgentThoughtChunk.Content))
	case u.ToolCall != nil:
		tc := u.ToolCall
		pr.turn.Tool(toolCall(params, toolFields{
			id: tc.ToolCallId, title: tc.Title, kind: tc.Kind, status: tc.Status,
			input: tc.RawInput, output: tc.RawOutput, content: tc.Content,
		}))
	case u.ToolCallUpdate != nil:
		tc := u.ToolCallUpdate
		pr.turn.Tool(toolCall(params, toolFields{
			id: tc.ToolCallId, title: deref(tc.Title), kind: deref(tc.Kind), status: deref(tc.Status),
			input: tc.RawInput, output: tc.RawOutput, content: tc.Content,
		}))
	case u.UsageUpdate != nil:
		p.spent(pr, *u.UsageUpdate)
	case u.SessionInfoUpdate != nil:
		p.status(pr, *u.SessionInfoUpdate)
	}
}

// chunk takes a piece of the answer. codex-acp also reports its warnings and
// errors this way; they are no part of a message, and so have no message's id.
func (p *peer) chunk(pr *prompt, u sdk.SessionUpdateAgentMessageChunk) {
	text, id := blockText(u.Content), deref(u.MessageId)
	if p.codex && id == "" {
		if pr.failed {
			if pr.report.Len() < maxReport {
				pr.report.WriteString(text)
			}
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

// maxReport is how much of an error's text is kept.
const maxReport = 16 << 10

// status notices an error of codex-acp, which ends its turns as if there had
// been none.
func (p *peer) status(pr *prompt, u sdk.SessionSessionInfoUpdate) {
	if !p.codex {
		return
	}
	codex, _ := u.Meta["codex"].(map[string]any)
	status, _ := codex["threadStatus"].(map[string]any)
	if status["type"] == "systemError" {
		pr.failed = true
	}
}

// spent reports the cost, which agents count for the whole session.
func (p *peer) spent(pr *prompt, u sdk.SessionUsageUpdate) {
	if u.Cost == nil || u.Cost.Currency != "USD" {
		return
	}
	p.cost = &u.Cost.Amount
	if pr.base == nil {
		return // a session that goes on: what it had cost before is not known
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

// toolFields are those that the SDK's three types of a tool call share.
type toolFields struct {
	id            sdk.ToolCallId
	title         string
	kind          sdk.ToolKind
	status        sdk.ToolCallStatus
	input, output any
	content       []sdk.ToolCallContent
}

// toolCall makes an event of a tool call. raw is where it was read from: the
// tool's name is newer than the SDK's types.
func toolCall(raw json.RawMessage, f toolFields) runner.ToolCall {
	return runner.ToolCall{
		ID:     string(f.id),
		Name:   toolName(raw, f.kind),
		Title:  duplex.OneLine(f.title),
		Status: toolStatus(f.status),
		Input:  encode(f.input),
		Output: toolOutput(f),
	}
}

func toolName(raw json.RawMessage, kind sdk.ToolKind) string {
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
	_ = json.Unmarshal(raw, &m) // without a name the kind has to do
	for _, n := range []named{m.Update, m.ToolCall} {
		if n.Name != "" {
			return n.Name
		}
		if n.Meta.ClaudeCode.ToolName != "" {
			return n.Meta.ClaudeCode.ToolName
		}
	}
	return string(kind)
}

func toolStatus(s sdk.ToolCallStatus) runner.ToolStatus {
	switch s {
	case sdk.ToolCallStatusPending:
		return runner.ToolPending
	case sdk.ToolCallStatusInProgress:
		return runner.ToolRunning
	case sdk.ToolCallStatusCompleted:
		return runner.ToolCompleted
	case sdk.ToolCallStatusFailed:
		return runner.ToolFailed
	default:
		return ""
	}
}

// toolOutput is what a tool has answered, as text. Until it has ended the content
// describes what it is about to do.
func toolOutput(f toolFields) string {
	if s, ok := f.output.(string); ok {
		return s
	}
	if f.status != sdk.ToolCallStatusCompleted && f.status != sdk.ToolCallStatusFailed {
		return ""
	}
	var pieces []string
	for _, c := range f.content {
		switch {
		case c.Content != nil:
			pieces = append(pieces, blockText(c.Content.Content))
		case c.Diff != nil:
			pieces = append(pieces, "[changes "+c.Diff.Path+"]")
		}
	}
	if len(pieces) == 0 && f.output != nil {
		return string(encode(f.output))
	}
	return strings.Join(pieces, "\n")
}

// encode is v as JSON, nothing for what is empty.
func encode(v any) json.RawMessage {
	if m, ok := v.(map[string]any); v == nil || ok && len(m) == 0 {
		return nil
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil // it was read from JSON
	}
	return b
}

func deref[T any](p *T) T {
	var zero T
	if p == nil {
		return zero
	}
	return *p
}

// permission has a person decide. Without a decision the agent is told that the
// turn is cancelled, which the protocol wants and gemini waits for.
func (p *peer) permission(ctx context.Context, params json.RawMessage) (any, *sdk.RequestError) {
	var req sdk.RequestPermissionRequest
	if err := json.Unmarshal(params, &req); err != nil {
		return nil, sdk.NewInvalidParams(map[string]any{"error": "the request could not be read"})
	}
	pr := p.begin(req.SessionId)
	if pr == nil {
		return cancelled(), nil
	}
	defer p.handlers.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(pr.over, cancel)()

	d := pr.turn.Ask(ctx, question(params, req))
	if !d.Answered() {
		return cancelled(), nil
	}
	return sdk.RequestPermissionResponse{
		Outcome: sdk.NewRequestPermissionOutcomeSelected(sdk.PermissionOptionId(d.Option.ID)),
	}, nil
}

func cancelled() sdk.RequestPermissionResponse {
	return sdk.RequestPermissionResponse{Outcome: sdk.NewRequestPermissionOutcomeCancelled()}
}

// begin returns the running prompt and counts a handler in, nil if there is none
// for the session.
func (p *peer) begin(session sdk.SessionId) *prompt {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.prompt == nil || session != p.session {
		return nil
	}
	p.handlers.Add(1)
	return p.prompt
}

func question(params json.RawMessage, req sdk.RequestPermissionRequest) runner.PermissionRequest {
	tc := req.ToolCall
	tool := toolCall(params, toolFields{
		id: tc.ToolCallId, title: deref(tc.Title), kind: deref(tc.Kind), status: deref(tc.Status),
		input: tc.RawInput, output: tc.RawOutput, content: tc.Content,
	})
	title := tool.Title
	if title == "" {
		title = tool.Name
	}
	options := make([]runner.PermissionOption, 0, len(req.Options))
	for _, o := range req.Options {
		options = append(options, runner.PermissionOption{
			ID: string(o.OptionId), Name: o.Name, Kind: runner.PermissionKind(o.Kind),
		})
	}
	return runner.PermissionRequest{
		ID:      string(tc.ToolCallId),
		Title:   "Allow " + title + "?",
		Tool:    tool,
		Options: options,
	}
}
