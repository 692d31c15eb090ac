package drivers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
)

// codex's approval policy and sandbox, unless the definition's arguments configure them. "untrusted" asks before
// every command that is not known to be read-only; with permissions allow, codex asks only to leave its sandbox.
const (
	codexAsk     = "untrusted"
	codexAllow   = "on-request"
	codexSandbox = "workspace-write"
)

// codexDialect drives codex through its app-server: JSON-RPC on standard input and
// output, with threads on disk, streamed answers, approvals and interrupts.
type codexDialect struct{ def runner.Definition }

func (d codexDialect) Args(string) []string {
	if slices.Contains(d.def.Args, "app-server") {
		return slices.Clone(d.def.Args)
	}
	return append([]string{"app-server"}, d.def.Args...)
}

func (d codexDialect) Connect(pipes duplex.Pipes) duplex.Connection {
	c := &codexConn{dialect: d, workDir: pipes.WorkDir, rpc: newRPC(pipes, "")}
	go c.serve(pipes, c.requested, c.notified)
	return c
}

// thread returns the settings of a thread. Configuration in the definition's
// arguments (-c approval_policy=…) is not overridden.
func (d codexDialect) thread(workDir string) threadParams {
	params := threadParams{Cwd: workDir, Model: d.def.Model}
	if !d.configures("approval_policy") {
		params.ApprovalPolicy = codexAsk
		if d.def.Permissions == runner.PermissionsAllow {
			params.ApprovalPolicy = codexAllow
		}
	}
	if !d.configures("sandbox_mode") {
		params.Sandbox = codexSandbox
	}
	return params
}

func (d codexDialect) configures(key string) bool {
	return slices.ContainsFunc(d.def.Args, func(a string) bool { return strings.HasPrefix(a, key+"=") })
}

// codexConn speaks with one app-server, which holds one thread.
type codexConn struct {
	rpc
	dialect codexDialect
	workDir string
	program string // NAME/VERSION (SYSTEM) …, with the client's NAME and the server's VERSION; set by Greet

	mu      sync.Mutex
	thread  string
	turn    *duplex.Turn    // of the running prompt
	turnID  string          // empty until the server has reported it
	started chan struct{}   // closed when turnID is known
	ended   chan turnInfo   // receives the end of the running prompt
	streams map[string]bool // messages of the running turn that were streamed
	last    string          // the id of the previous turn
	total   *tokens         // of the thread so far
	base    *tokens         // total before the running turn
	refused int             // how often the credentials were refused in the running turn
	items   map[string]runner.ToolCall
}

// maxItems bounds the tool calls of a turn that are kept for approval requests, which name them by id only.
const maxItems = 1024

// Greet implements duplex.Connection.
func (c *codexConn) Greet(ctx context.Context) error {
	var hello struct {
		UserAgent string `json:"userAgent"`
	}
	client := object{"name": "parley", "title": "Parley", "version": clientVersion}
	if err := c.request(ctx, "initialize", object{"clientInfo": client}, &hello); err != nil {
		return codexFailure(err)
	}
	c.program = hello.UserAgent
	return c.send(rpcRequest{Method: "initialized"})
}

// Open implements duplex.Connection.
func (c *codexConn) Open(ctx context.Context, resume string, _ *duplex.Turn) (opened duplex.Opened, err error) {
	params := c.dialect.thread(c.workDir)
	if resume != "" {
		again := params
		again.ThreadID, again.ExcludeTurns = resume, true
		opened.Session, err = c.begin(ctx, "thread/resume", again)
		if err == nil {
			return opened, nil
		}
		// Only after the server's own refusal can it begin a new thread.
		refused, ok := errors.AsType[*rpcError](err)
		if !ok {
			return opened, codexFailure(err)
		}
		opened.Lost = refused.Message
	}
	if opened.Session, err = c.begin(ctx, "thread/start", params); err != nil {
		return duplex.Opened{}, codexTooOld(err, c.program)
	}
	return opened, nil
}

func (c *codexConn) begin(ctx context.Context, method string, params threadParams) (runner.SessionStarted, error) {
	var res threadResult
	if err := c.request(ctx, method, params, &res); err != nil {
		return runner.SessionStarted{}, err
	}
	if res.Thread.ID == "" {
		return runner.SessionStarted{}, &runner.Error{Code: runner.CodeProtocol, Message: "the agent did not say which thread it began"}
	}
	c.mu.Lock()
	c.thread = res.Thread.ID
	c.mu.Unlock()
	return runner.SessionStarted{ID: res.Thread.ID, Model: res.Model}, nil
}

// Prompt implements duplex.Connection.
func (c *codexConn) Prompt(ctx context.Context, prompt string, t *duplex.Turn) (duplex.Result, error) {
	ended := c.attach(t)
	defer c.detach()
	var res struct {
		Turn turnInfo `json:"turn"`
	}
	err := c.request(ctx, "turn/start", object{"threadId": c.threadID(), "input": textBlocks(prompt)}, &res)
	if refused, ok := errors.AsType[*rpcError](err); ok {
		return duplex.Result{Err: codexError(refused.Message, nil)}, nil
	}
	if err != nil {
		return duplex.Result{}, err
	}
	c.begun(res.Turn.ID)
	info, err := await(ctx, c.calls, ended)
	if err != nil {
		return duplex.Result{}, err
	}
	return info.result(), nil
}

func (info turnInfo) result() duplex.Result {
	switch {
	case info.Status == "completed":
		return duplex.Result{}
	case info.Status == "interrupted":
		return duplex.Result{Canceled: true}
	case info.Error == nil:
		return duplex.Result{Err: &runner.Error{Code: runner.CodeAgent,
			Message: fmt.Sprintf("it ended the turn as %q without a reason", info.Status)}}
	}
	return duplex.Result{Err: codexError(info.Error.Message, info.Error.CodexErrorInfo)}
}

// attach makes t the running prompt.
func (c *codexConn) attach(t *duplex.Turn) <-chan turnInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turn, c.turnID = t, ""
	c.started = make(chan struct{})
	c.ended = make(chan turnInfo, 1)
	c.streams = make(map[string]bool)
	c.items = make(map[string]runner.ToolCall)
	c.base, c.refused = c.total, 0
	return c.ended
}

// detach ends the prompt and cancels its permission requests.
func (c *codexConn) detach() {
	c.mu.Lock()
	c.last = cmp.Or(c.turnID, c.last)
	c.turn = nil
	c.mu.Unlock()
	c.questions.end()
}

// begun records the turn's id, from the first message that names it.
func (c *codexConn) begun(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.turn == nil || c.turnID != "" || id == "" || id == c.last {
		return
	}
	c.turnID = id
	close(c.started)
}

// Interrupt stops the turn by its id, and waits until the server has reported it.
func (c *codexConn) Interrupt() error {
	c.mu.Lock()
	started, running := c.started, c.turn != nil
	c.mu.Unlock()
	if !running {
		return nil
	}
	select {
	case <-started:
	case <-c.done:
		return c.cause()
	}
	c.mu.Lock()
	params := object{"threadId": c.thread, "turnId": c.turnID}
	c.mu.Unlock()
	// The answer is empty; the end of the turn is what counts.
	return c.send(rpcRequest{ID: c.id(), Method: "turn/interrupt", Params: params})
}

// Resumable implements duplex.Connection: codex keeps threads on disk.
func (c *codexConn) Resumable() bool { return true }

// codexTooOld recognizes an app-server without threads among other refusals. Such
// a server reports the method as a request that it cannot read.
func codexTooOld(err error, userAgent string) error {
	refused, ok := errors.AsType[*rpcError](err)
	if !ok || refused.Code != codeMethodNotFound && refused.Code != codeInvalidRequest {
		return codexFailure(err)
	}
	return &runner.Error{Code: runner.CodeProtocol,
		Message: "this codex (" + duplex.OneLine(userAgent) + ") does not speak the app-server protocol with threads: " + refused.Message,
		Remedy:  "update codex, or set driver: exec for this agent", Err: err}
}

// codexFailure translates a refusal of the server for users; other errors stay.
func codexFailure(err error) error {
	if refused, ok := errors.AsType[*rpcError](err); ok {
		return codexError(refused.Message, nil)
	}
	return err
}

func codexError(message string, info json.RawMessage) *runner.Error {
	var word string
	_ = json.Unmarshal(info, &word) // an object is another kind of error
	e := &runner.Error{Code: runner.CodeAgent, Message: cmp.Or(strings.TrimSpace(message), "it did not say which")}
	if word == "unauthorized" || runner.IsAuthText(message) {
		e.Code = runner.CodeAuth
	}
	return e
}
