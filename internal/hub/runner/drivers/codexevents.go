package drivers

import (
	"cmp"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"

	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
)

// notified handles a notification, on the reading goroutine. It ignores unknown
// methods and parameters that cannot be read.
func (c *codexConn) notified(method string, params json.RawMessage) {
	var n notification
	if json.Unmarshal(params, &n) != nil {
		return
	}
	if method == "serverRequest/resolved" {
		c.questions.withdraw(string(n.RequestID))
		return
	}
	if n.ThreadID == c.threadID() {
		switch {
		case method == "thread/tokenUsage/updated":
			c.count(n)
			return
		case method == "turn/started" && n.Turn != nil:
			c.begun(n.Turn.ID)
			return
		}
	}
	t, ok := c.running(n)
	if !ok {
		return
	}
	switch method {
	case "turn/completed":
		if n.Turn != nil {
			c.finish(*n.Turn)
		}
	case "item/agentMessage/delta":
		c.startMessage(t, n.ItemID)
		t.Text(n.Delta)
	case "item/reasoning/summaryTextDelta", "item/reasoning/textDelta", "item/plan/delta":
		t.Thought(n.Delta)
	case "item/started", "item/completed":
		if n.Item != nil {
			c.step(t, *n.Item, method == "item/completed")
		}
	case "error":
		if n.Error != nil && n.WillRetry {
			c.retry(t, *n.Error)
		}
	case "warning", "guardianWarning":
		t.Notice(n.Message)
	}
}

// running returns the turn of a notification. codex also reports the threads of
// its subagents, and turns that have ended.
func (c *codexConn) running(n notification) (*duplex.Turn, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	mine := c.turn != nil && n.ThreadID == c.thread && (n.TurnID == "" || n.TurnID == c.turnID)
	return c.turn, mine
}

func (c *codexConn) threadID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.thread
}

// maxRefused is how often credentials may be refused in a turn.
const maxRefused = 2

// retry ends a turn that codex does not: without credentials it retries for ever.
// After the first refusal it may have new ones.
func (c *codexConn) retry(t *duplex.Turn, e turnError) {
	r, ok := runner.ParseRetry(e.Message)
	if !ok {
		r = runner.Retry{Reason: duplex.ErrorText(e.Message)}
	}
	t.Retry(r)
	if codexError(e.Message, e.CodexErrorInfo).Code != runner.CodeAuth {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refused++; c.refused >= maxRefused {
		c.end(turnInfo{ID: c.turnID, Status: "failed", Error: &e})
	}
}

// finish passes the end of the turn to Prompt.
func (c *codexConn) finish(info turnInfo) {
	c.begun(info.ID)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.turn != nil && info.ID == c.turnID {
		c.end(info)
	}
}

// end passes the end of the turn to Prompt; the first call counts. mu is held.
func (c *codexConn) end(info turnInfo) {
	select {
	case c.ended <- info:
	default:
	}
}

// startMessage begins a paragraph with each new message, and reports whether the message is new.
func (c *codexConn) startMessage(t *duplex.Turn, id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams[id] {
		return false
	}
	if len(c.streams) < maxItems {
		c.streams[id] = true
		t.Paragraph()
	}
	return true
}

// count reports the usage of the running turn. codex counts the whole thread, and
// repeats the count when it resumes one.
func (c *codexConn) count(n notification) {
	if n.TokenUsage == nil {
		return
	}
	total, last := n.TokenUsage.Total, n.TokenUsage.Last
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total = &total
	if c.turn == nil || c.turnID == "" || n.TurnID != c.turnID {
		c.base = &total
		return
	}
	if c.base == nil {
		c.base = &tokens{Input: total.Input - last.Input, Cached: total.Cached - last.Cached, Output: total.Output - last.Output}
	}
	c.turn.Usage(runner.Usage{
		InputTokens:  max(total.Input-c.base.Input, 0),
		CachedTokens: max(total.Cached-c.base.Cached, 0),
		OutputTokens: max(total.Output-c.base.Output, 0),
	})
}

// step reports an item.
func (c *codexConn) step(t *duplex.Turn, it item, completed bool) {
	if it.Type == "agentMessage" {
		if completed && c.startMessage(t, it.ID) {
			t.Text(it.Text)
		}
		return
	}
	tc := codexToolCall(it)
	if tc.Name == "" {
		return // a user message, reasoning, a plan or the like
	}
	c.mu.Lock()
	if len(c.items) < maxItems {
		c.items[it.ID] = tc
	}
	c.mu.Unlock()
	t.Tool(tc)
	if it.Status == "declined" {
		t.Deny(tc)
	}
}

func codexToolCall(it item) runner.ToolCall {
	tc := runner.ToolCall{ID: it.ID, Status: codexStatus[it.Status]}
	if it.Output != nil {
		tc.Output = *it.Output
	}
	switch it.Type {
	case "commandExecution":
		tc.Name, tc.Title = "shell", duplex.OneLine(plainCommand(it.Command, it.Actions))
		tc.Input = commandInput(it.Command, it.Cwd)
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

// plainCommand returns the command as the model wrote it, without the shell that
// codex wraps around it, if it is a single command.
func plainCommand(command string, actions []action) string {
	if len(actions) == 1 && actions[0].Command != "" {
		return actions[0].Command
	}
	return command
}

var codexStatus = map[string]runner.ToolStatus{
	"inProgress": runner.ToolRunning,
	"completed":  runner.ToolCompleted,
	"failed":     runner.ToolFailed,
	"declined":   runner.ToolDenied,
}

// changeTitle names the files of a patch, if the patch lists them.
func changeTitle(changes json.RawMessage) string {
	var list []struct {
		Path string `json:"path"`
	}
	if json.Unmarshal(changes, &list) != nil || len(list) == 0 {
		return ""
	}
	names := make([]string, 0, 4)
	for _, c := range list[:min(len(list), 3)] {
		names = append(names, filepath.Base(c.Path))
	}
	if len(list) > len(names) {
		names = append(names, "…")
	}
	return "Change " + strings.Join(names, ", ")
}

func commandInput(command, cwd string) json.RawMessage {
	b, err := json.Marshal(struct {
		Command string `json:"command,omitempty"`
		Cwd     string `json:"cwd,omitempty"`
	}{command, cwd})
	if err != nil {
		return nil // strings can always be encoded
	}
	return b
}

// requested handles a request of the server, on the reading goroutine. Every
// request is answered: the user decides about approvals, all others are refused.
func (c *codexConn) requested(id json.RawMessage, method string, params json.RawMessage) {
	var a approval
	if json.Unmarshal(params, &a) != nil {
		c.refuse(id, codeInvalidParams, "the parameters of "+method+" could not be read")
		return
	}
	kind, ok := approvals[method]
	if !ok {
		c.refuse(id, codeMethodNotFound, "this client does not know "+method)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock() // the prompt cannot end meanwhile
	req := kind.request(a, c.items[a.item()])
	req.ID = string(id)
	c.questions.ask(c.turn, string(id), req, func(d duplex.Decision) {
		c.answer(id, kind.answer(a, d))
		if d.Claimed != "" {
			c.explain(d.Claimed)
		}
	})
}

// explain tells the model in the running turn why Parley has declined a request: the answer to an approval has no room for it. The server
// takes the text for its user's. An older server refuses it, which is ignored.
func (c *codexConn) explain(words string) {
	c.mu.Lock()
	params := object{"threadId": c.thread, "expectedTurnId": c.turnID, "input": textBlocks(words)}
	c.mu.Unlock()
	_ = c.send(rpcRequest{ID: c.id(), Method: "turn/steer", Params: params}) // it fails if the connection has ended
}

// approvalKind is a kind of request that the user decides.
type approvalKind struct {
	// tool and verb describe the request if its item is not known.
	tool, verb string
	words      approvalWords
	// grant is set if the answer holds the requested permissions, not a word.
	grant bool
}

// approvalWords are the words of an answer.
type approvalWords struct{ accept, acceptForSession, decline, cancel string }

var (
	newWords   = approvalWords{"accept", "acceptForSession", "decline", "cancel"}
	oldWords   = approvalWords{"approved", "approved_for_session", "denied", "abort"}
	grantWords = approvalWords{accept: "turn", acceptForSession: "session", decline: "none"}
)

// approvals are the requests by method. Older servers send the last two.
var approvals = map[string]approvalKind{
	"item/commandExecution/requestApproval": {tool: "shell", verb: "Run a command", words: newWords},
	"item/fileChange/requestApproval":       {tool: "apply_patch", verb: "Change files", words: newWords},
	"item/permissions/requestApproval": {
		tool: "request_permissions", verb: "Grant more permissions", words: grantWords, grant: true,
	},
	"execCommandApproval": {tool: "shell", verb: "Run a command", words: oldWords},
	"applyPatchApproval":  {tool: "apply_patch", verb: "Change files", words: oldWords},
}

func (a approval) item() string { return cmp.Or(a.ItemID, a.CallID) }

// command returns the command as one line; older servers send a list.
func (a approval) command() string {
	var s string
	if json.Unmarshal(a.Command, &s) == nil {
		return s
	}
	var list []string
	_ = json.Unmarshal(a.Command, &list) // without a command the kind describes the request
	return strings.Join(list, " ")
}

// offers reports whether the server accepts a decision. A server that lists none accepts all.
func (a approval) offers(decision string) bool {
	return len(a.AvailableDecisions) == 0 || slices.ContainsFunc(a.AvailableDecisions, func(d json.RawMessage) bool {
		var word string
		return json.Unmarshal(d, &word) == nil && word == decision
	})
}

// request returns the question for the user.
func (k approvalKind) request(a approval, known runner.ToolCall) runner.PermissionRequest {
	tool := known
	if tool.ID == "" {
		tool = runner.ToolCall{ID: a.item(), Name: k.tool, Title: k.verb}
	}
	if command := a.command(); command != "" {
		tool.Title = duplex.OneLine(plainCommand(command, a.CommandActions))
		tool.Input = commandInput(command, a.Cwd)
	}
	for _, input := range []json.RawMessage{a.FileChanges, a.Permissions} {
		if len(tool.Input) == 0 && string(input) != "null" {
			tool.Input = input
		}
	}
	tool.Status = runner.ToolPending
	title := k.verb
	if tool.Title != k.verb && tool.Title != "" {
		title += ": " + tool.Title
	}
	if a.GrantRoot != "" {
		title += " below " + a.GrantRoot
	}
	if a.Reason != "" {
		title += " (" + duplex.OneLine(a.Reason) + ")"
	}
	return runner.PermissionRequest{Title: title, Tool: tool, Options: k.options(a)}
}

// options returns the possible answers. Rules that codex would write into its own
// configuration are omitted: the user of a task decides about this session only.
func (k approvalKind) options(a approval) []runner.PermissionOption {
	options := []runner.PermissionOption{{ID: k.words.accept, Name: "Allow", Kind: runner.AllowOnce}}
	if k.grant || a.offers(k.words.acceptForSession) {
		options = append(options, runner.PermissionOption{
			ID: k.words.acceptForSession, Name: "Allow for this session", Kind: runner.AllowAlways,
		})
	}
	return append(options, runner.PermissionOption{ID: k.words.decline, Name: "Deny", Kind: runner.RejectOnce})
}

// answer returns the result for the server. Without a decision the turn is being
// cancelled, or no user could be asked.
func (k approvalKind) answer(a approval, d duplex.Decision) any {
	switch {
	case k.grant && d.Allowed():
		return object{"permissions": a.Permissions, "scope": d.Option.ID}
	case k.grant:
		return object{"permissions": object{}}
	case d.Answered():
		return object{"decision": d.Option.ID}
	default:
		return object{"decision": k.words.cancel}
	}
}
