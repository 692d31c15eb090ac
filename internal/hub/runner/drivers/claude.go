package drivers

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"sync"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
)

// claudeArgs select claude's stdio protocol: prompts and control messages as JSON lines in, the event stream and
// permission requests out. The option --permission-prompt-tool is not in claude's help; Probe.MinVersion excludes
// versions without it. The tool AskUserQuestion is disabled, because a permission request cannot represent its
// answer; claude then asks in its text.
var claudeArgs = []string{
	"-p",
	"--input-format", "stream-json",
	"--output-format", "stream-json",
	"--verbose",
	"--include-partial-messages",
	"--replay-user-messages",
	"--permission-prompt-tool", "stdio",
	"--disallowedTools=AskUserQuestion",
}

// claude speaks one JSON object a line. runner.ClaudeStream reads its events; the
// types here are the messages between claude and its host.

// claudeHeader distinguishes the lines.
type claudeHeader struct {
	Type     string `json:"type"`
	UUID     string `json:"uuid"`     // of type user
	IsReplay bool   `json:"isReplay"` // the host's own line
}

// claudeResult is the end of a turn.
type claudeResult struct {
	IsError        bool   `json:"is_error"`
	TerminalReason string `json:"terminal_reason"`
}

// claudeControl is a line of type control_request, control_cancel_request or control_response.
type claudeControl struct {
	RequestID string `json:"request_id"`
	Request   struct {
		Subtype     string             `json:"subtype"`
		ToolName    string             `json:"tool_name"`
		ToolUseID   string             `json:"tool_use_id"`
		Input       json.RawMessage    `json:"input"`
		Suggestions []claudeSuggestion `json:"permission_suggestions"`
	} `json:"request"`
	Response struct {
		Subtype   string `json:"subtype"` // success, error
		RequestID string `json:"request_id"`
		Error     string `json:"error"`
	} `json:"response"`
}

// claudeSuggestion is a change of claude's rules that allows similar requests permanently.
type claudeSuggestion struct {
	Type        string          `json:"type"`
	Rules       json.RawMessage `json:"rules,omitempty"`
	Directories json.RawMessage `json:"directories,omitempty"`
	Behavior    string          `json:"behavior,omitempty"`
	Destination string          `json:"destination"`
}

type claudeDialect struct{ def runner.Definition }

func (d claudeDialect) Args(resume string) []string {
	args := slices.Concat(claudeArgs, d.def.Args, d.def.ModelArguments())
	if resume != "" {
		args = append(args, "--resume", resume)
	}
	return args
}

func (d claudeDialect) Connect(pipes duplex.Pipes) duplex.Connection {
	c := &claudeConn{calls: newCalls[claudeControl](pipes.Stdin)}
	go c.read(pipes, c.receive)
	return c
}

// claudeConn speaks with one claude process.
type claudeConn struct {
	*calls[claudeControl]

	mu sync.Mutex
	// replays is set once claude has echoed a prompt. From then on a result counts
	// only after the echo of its prompt.
	replays bool
	prompt  *claudePrompt // the running one
	stream  runner.ClaudeStream
}

type claudePrompt struct {
	id      string
	turn    *duplex.Turn
	started bool // claude has echoed it
	ended   chan duplex.Result
}

// Greet implements duplex.Connection.
func (c *claudeConn) Greet(ctx context.Context) error {
	id, request := c.request("initialize")
	answer, err := c.call(ctx, id, request)
	if err == nil && answer.Response.Subtype != "success" {
		err = &runner.Error{Code: runner.CodeProtocol, Message: "claude refuses the stdio protocol: " + answer.Response.Error}
	}
	return err
}

// Open has nothing to do: the arguments have chosen the conversation, and its id comes with the first prompt.
func (c *claudeConn) Open(context.Context, string, *duplex.Turn) (duplex.Opened, error) {
	return duplex.Opened{}, nil
}

// request returns a new control message and its id.
func (c *claudeConn) request(subtype string) (id string, message object) {
	id = "parley-" + strconv.FormatInt(c.id(), 10)
	return id, object{"type": "control_request", "request_id": id, "request": object{"subtype": subtype}}
}

// Prompt implements duplex.Connection.
func (c *claudeConn) Prompt(ctx context.Context, text string, t *duplex.Turn) (duplex.Result, error) {
	pr := &claudePrompt{id: uuid.NewString(), turn: t, ended: make(chan duplex.Result, 1)}
	c.mu.Lock()
	c.prompt = pr
	c.stream.Next()
	c.mu.Unlock()
	defer c.detach()
	message := object{"role": "user", "content": textBlocks(text)}
	if err := c.send(object{"type": "user", "uuid": pr.id, "message": message}); err != nil {
		return duplex.Result{}, err
	}
	return await(ctx, c.calls, pr.ended)
}

// detach ends the prompt and cancels its permission requests.
func (c *claudeConn) detach() {
	c.mu.Lock()
	c.prompt = nil
	c.mu.Unlock()
	c.questions.end()
}

// Interrupt implements duplex.Connection.
func (c *claudeConn) Interrupt() error {
	_, request := c.request("interrupt")
	return c.send(request)
}

// Resumable implements duplex.Connection: claude keeps conversations on disk.
func (c *claudeConn) Resumable() bool { return true }

// receive handles one line, on the reading goroutine. It ignores lines that are not JSON or of an unknown type.
func (c *claudeConn) receive(b []byte) {
	var h claudeHeader
	if json.Unmarshal(b, &h) != nil {
		return
	}
	switch h.Type {
	case "control_request", "control_cancel_request", "control_response":
		var l claudeControl
		if json.Unmarshal(b, &l) == nil {
			c.control(h.Type, l)
		}
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	pr := c.prompt
	if pr == nil {
		return // of a turn that has ended
	}
	switch {
	case h.Type == "user" && h.IsReplay:
		c.replays = true
		pr.started = pr.started || h.UUID == pr.id
		return
	case h.Type == "result" && c.replays && !pr.started:
		// claude runs turns of its own when a background task has ended. Their results precede the prompt's echo.
		return
	}
	pr.turn.Report(func(a *runner.Answer) {
		c.stream.Line(b, a)
		switch {
		case h.Type == "result":
			pr.end(claudeEnd(b, a))
		case a.Hopeless(): // claude would retry for minutes
			pr.end(duplex.Result{Err: &runner.Error{Code: runner.CodeAuth, Message: "the credentials were refused"}})
		}
	})
}

// end reports the end of the prompt; the first call counts.
func (pr *claudePrompt) end(r duplex.Result) {
	select {
	case pr.ended <- r:
	default:
	}
}

// claudeEnd reads the end of a turn; a holds what the turn reported.
func claudeEnd(b []byte, a *runner.Answer) duplex.Result {
	fail := func(code runner.Code, message string, cause error) duplex.Result {
		return duplex.Result{Err: &runner.Error{Code: code, Message: message, Err: cause}}
	}
	var l claudeResult
	if err := json.Unmarshal(b, &l); err != nil {
		return fail(runner.CodeProtocol, "the end of claude's turn could not be understood", err)
	}
	message, auth, failed := a.Failure()
	switch {
	case !failed:
		return duplex.Result{}
	case l.TerminalReason == "aborted_streaming" || l.TerminalReason == "aborted_tools":
		return duplex.Result{Canceled: true}
	case auth:
		return fail(runner.CodeAuth, message, nil)
	default:
		return fail(runner.CodeAgent, message, nil)
	}
}

// The ids of the options: claude names none.
const (
	optionAllow  = "allow"
	optionAlways = "allow-session"
	optionDeny   = "deny"
)

// control handles a control message, on the reading goroutine. Every request is
// answered: the user decides whether a tool may run, all others are refused.
func (c *claudeConn) control(kind string, l claudeControl) {
	switch {
	case kind == "control_response":
		c.answered(l.Response.RequestID, l)
	case kind == "control_cancel_request":
		c.questions.withdraw(l.RequestID)
	case l.RequestID == "": // an answer could not be addressed
	case l.Request.Subtype != "can_use_tool":
		c.answer(l, "error", "error", "this host does not know "+duplex.OneLine(l.Request.Subtype))
	default:
		c.mu.Lock()
		defer c.mu.Unlock() // the prompt cannot end meanwhile
		var t *duplex.Turn
		if c.prompt != nil {
			t = c.prompt.turn
		}
		c.questions.ask(t, l.RequestID, claudeQuestion(l), func(d duplex.Decision) { c.decide(l, d) })
	}
}

func claudeQuestion(l claudeControl) runner.PermissionRequest {
	r := l.Request
	title := runner.ToolTitle(r.ToolName, r.Input)
	options := []runner.PermissionOption{{ID: optionAllow, Name: "Allow", Kind: runner.AllowOnce}}
	if len(forSession(r.Suggestions)) > 0 {
		options = append(options, runner.PermissionOption{ID: optionAlways, Name: "Allow for this session", Kind: runner.AllowAlways})
	}
	options = append(options, runner.PermissionOption{ID: optionDeny, Name: "Deny", Kind: runner.RejectOnce})
	return runner.PermissionRequest{
		ID:    l.RequestID,
		Title: "Allow " + title + "?",
		Tool: runner.ToolCall{
			ID: r.ToolUseID, Name: r.ToolName, Title: title, Status: runner.ToolPending, Input: r.Input,
		},
		Options: options,
	}
}

// forSession keeps the suggestions that allow similar requests, and limits them to the session: an answer to a task
// changes neither claude's configuration files nor its mode.
func forSession(list []claudeSuggestion) []claudeSuggestion {
	var out []claudeSuggestion
	for _, s := range list {
		if s.Type == "addRules" && s.Behavior == "allow" || s.Type == "addDirectories" {
			s.Destination = "session"
			out = append(out, s)
		}
	}
	return out
}

// decide answers a request. Without a decision the turn is being cancelled, or no
// user could be asked: claude must stop.
func (c *claudeConn) decide(l claudeControl, d duplex.Decision) {
	res := object{"behavior": "deny", "message": "The request was cancelled.", "interrupt": true}
	switch {
	case d.Allowed():
		res = object{"behavior": "allow", "updatedInput": l.Request.Input}
		if len(l.Request.Input) == 0 {
			res["updatedInput"] = object{}
		}
		if d.Option.ID == optionAlways {
			res["updatedPermissions"] = forSession(l.Request.Suggestions)
		}
	case d.Answered():
		res = object{"behavior": "deny", "message": cmp.Or(d.Message, "The user denied this.")}
	}
	c.answer(l, "success", "response", res)
}

// answer answers a request. After a failure the connection has ended, or claude does not
// read: the turn's end or its time limit reports that.
func (c *claudeConn) answer(l claudeControl, subtype, field string, value any) {
	response := object{"subtype": subtype, "request_id": l.RequestID, field: value}
	_ = c.send(object{"type": "control_response", "response": response})
}
