package codexappserver

import (
	"encoding/json"
	"path/filepath"
	"strings"

	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
)

// notified takes a notification, on the goroutine that reads. Unknown methods
// and parameters that cannot be read are passed over.
func (p *peer) notified(method string, params json.RawMessage) {
	var n note
	if json.Unmarshal(params, &n) != nil {
		return
	}
	if method == "serverRequest/resolved" {
		p.questions.Withdraw(string(n.RequestID))
		return
	}
	if n.ThreadID == p.threadID() {
		switch {
		case method == "thread/tokenUsage/updated":
			p.spent(n)
			return
		case method == "turn/started" && n.Turn != nil:
			p.begun(n.Turn.ID)
			return
		}
	}
	t, ok := p.running(n)
	if !ok {
		return
	}
	switch method {
	case "turn/completed":
		if n.Turn != nil {
			p.finish(*n.Turn)
		}
	case "item/agentMessage/delta":
		p.stream(t, n.ItemID)
		t.Text(n.Delta)
	case "item/reasoning/summaryTextDelta", "item/reasoning/textDelta", "item/plan/delta":
		t.Thought(n.Delta)
	case "item/started", "item/completed":
		if n.Item != nil {
			p.step(t, *n.Item, method == "item/completed")
		}
	case "item/commandExecution/outputDelta":
		// The whole output comes with the item's end.
	case "error":
		if n.Error != nil && n.WillRetry {
			p.retry(t, *n.Error)
		}
	case "warning", "guardianWarning":
		t.Notice(n.Message)
	}
}

// running returns the turn that a notification belongs to: codex also tells of
// the threads of its subagents, and of turns that are over.
func (p *peer) running(n note) (*duplex.Turn, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.turn == nil || n.ThreadID != p.thread {
		return nil, false
	}
	if n.TurnID != "" && n.TurnID != p.turnID {
		return nil, false
	}
	return p.turn, true
}

func (p *peer) threadID() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.thread
}

// retry gives up where codex does not: it tries for ever without credentials.
// After the first refusal it may have got new ones.
func (p *peer) retry(t *duplex.Turn, e turnError) {
	t.Notice("codex tries again: " + duplex.ErrorText(e.Message))
	if classify(e.Message, e.CodexErrorInfo).Code != runner.CodeAuth {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refused++; p.refused >= maxRefused {
		p.end(turnInfo{ID: p.turnID, Status: "failed", Error: &e})
	}
}

// maxRefused is how often credentials may be refused in a turn.
const maxRefused = 2

// finish hands the end of the turn to Prompt, once.
func (p *peer) finish(info turnInfo) {
	p.begun(info.ID)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.turn != nil && info.ID == p.turnID {
		p.end(info)
	}
}

// end hands the end of the turn to Prompt. The caller holds p.mu.
func (p *peer) end(info turnInfo) {
	select {
	case p.ended <- info:
	default: // it said so before
	}
}

// stream begins a new paragraph with each new message.
func (p *peer) stream(t *duplex.Turn, id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.streams[id] || len(p.streams) >= maxItems {
		return
	}
	p.streams[id] = true
	t.Paragraph()
}

func (p *peer) streamed(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.streams[id]
}

// spent reports what the running turn has cost: codex counts the whole thread, and
// repeats the count when it continues one.
func (p *peer) spent(n note) {
	if n.TokenUsage == nil {
		return
	}
	total, last := n.TokenUsage.Total, n.TokenUsage.Last
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total = &total
	if p.turn == nil || p.turnID == "" || n.TurnID != p.turnID {
		p.base = &total
		return
	}
	if p.base == nil {
		p.base = &tokens{Input: total.Input - last.Input, Cached: total.Cached - last.Cached, Output: total.Output - last.Output}
	}
	p.turn.Usage(runner.Usage{
		InputTokens:  max(total.Input-p.base.Input, 0),
		CachedTokens: max(total.Cached-p.base.Cached, 0),
		OutputTokens: max(total.Output-p.base.Output, 0),
	})
}

// step reports an item.
func (p *peer) step(t *duplex.Turn, it item, completed bool) {
	switch it.Type {
	case "agentMessage":
		if completed && !p.streamed(it.ID) {
			p.stream(t, it.ID)
			t.Text(it.Text)
		}
		return
	case "userMessage", "hookPrompt", "reasoning", "plan", "contextCompaction":
		return
	}
	tc := toolCall(it)
	if tc.Name == "" {
		return
	}
	p.mu.Lock()
	if len(p.items) < maxItems {
		p.items[it.ID] = tc
	}
	p.mu.Unlock()
	t.Tool(tc)
	if it.Status == "declined" {
		t.Deny(tc)
	}
}

func toolCall(it item) runner.ToolCall {
	tc := runner.ToolCall{ID: it.ID, Status: toolStatus(it.Status)}
	if it.Output != nil {
		tc.Output = *it.Output
	}
	switch it.Type {
	case "commandExecution":
		tc.Name, tc.Title = "shell", duplex.OneLine(plainCommand(it.Command, it.Actions))
		tc.Input = object("command", it.Command, "cwd", it.Cwd)
	case "fileChange":
		tc.Name, tc.Title = "apply_patch", changeTitle(it.Changes)
		tc.Input = it.Changes
	case "mcpToolCall":
		tc.Name, tc.Title, tc.Input = it.Server+"/"+it.Tool, it.Tool, it.Arguments
	case "dynamicToolCall", "collabAgentToolCall":
		tc.Name, tc.Title, tc.Input = it.Tool, it.Tool, it.Arguments
	case "webSearch":
		tc.Name, tc.Title = "web_search", duplex.OneLine(it.Query)
	}
	return tc
}

// plainCommand is the command as the model wrote it, without the shell that codex
// puts around it, where that is one command.
func plainCommand(command string, actions []action) string {
	if len(actions) == 1 && actions[0].Command != "" {
		return actions[0].Command
	}
	return command
}

func toolStatus(s string) runner.ToolStatus {
	switch s {
	case "inProgress":
		return runner.ToolRunning
	case "completed":
		return runner.ToolCompleted
	case "failed":
		return runner.ToolFailed
	case "declined":
		return runner.ToolDenied
	default:
		return ""
	}
}

// changeTitle names the files of a patch, if it says which.
func changeTitle(changes json.RawMessage) string {
	var list []struct {
		Path string `json:"path"`
	}
	if json.Unmarshal(changes, &list) != nil || len(list) == 0 {
		return ""
	}
	names := make([]string, 0, 3)
	for _, c := range list[:min(len(list), 3)] {
		names = append(names, filepath.Base(c.Path))
	}
	if len(list) > len(names) {
		names = append(names, "…")
	}
	return "Change " + strings.Join(names, ", ")
}

// object is a JSON object of the pairs whose value is not empty.
func object(pairs ...string) json.RawMessage {
	m := make(map[string]string, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			m[pairs[i]] = pairs[i+1]
		}
	}
	b, err := json.Marshal(m)
	if err != nil {
		return nil // strings can always be encoded
	}
	return b
}

// requested takes a request of the server, on the goroutine that reads. Each one
// is answered: a person decides about approvals, everything else is refused.
func (p *peer) requested(id json.RawMessage, method string, params json.RawMessage) {
	var a approval
	if json.Unmarshal(params, &a) != nil {
		p.refuse(id, codeInvalidParams, "the parameters of "+method+" could not be read")
		return
	}
	kind, ok := approvals[method]
	if !ok {
		p.refuse(id, codeMethodNotFound, "this client does not know "+method)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock() // so that the prompt cannot end meanwhile
	req := kind.request(a, p.items[a.item()])
	req.ID = string(id)
	p.questions.Ask(p.turn, string(id), req, func(d duplex.Decision) { p.answer(id, kind.answer(a, d)) })
}

// answer and refuse send; where that fails the connection is over, or the server
// does not read: the turn's end or its time limit tells.
func (p *peer) answer(id json.RawMessage, result any) { _ = p.rpc.answer(id, result) }

func (p *peer) refuse(id json.RawMessage, code int, text string) { _ = p.rpc.refuse(id, code, text) }
