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
	"time"

	sdk "github.com/coder/acp-go-sdk"

	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
)

// acpDialect is the Agent Client Protocol, version 1, on standard input and output.
type acpDialect struct{ def runner.Definition }

func (d acpDialect) Args(string) []string {
	return slices.Concat(d.def.Args, d.def.ModelArguments())
}

func (d acpDialect) Connect(pipes duplex.Pipes) duplex.Connection {
	c := &acpConn{workDir: pipes.WorkDir, rpc: newRPC(pipes, "2.0"), updated: make(chan struct{}, 1)}
	go c.serve(pipes, c.requested, c.notified)
	return c
}

// acpAuthRequired is the error code of agents without credentials.
const acpAuthRequired = -32000

// acpConn speaks with one agent process, which holds one session. It uses the types of the SDK, but not its
// connection, which trusts agents: it queues and starts whatever they send.
type acpConn struct {
	rpc
	workDir string

	// Set by Greet.
	can    sdk.AgentCapabilities
	codex  bool // the agent is codex-acp, see acpevents.go
	gemini bool // the agent is gemini, see load

	session sdk.SessionId // set by Open

	updated chan struct{} // of capacity 1; has a value after an update outside a prompt

	mu     sync.Mutex
	prompt *acpPrompt // the running one; nil while a session and its history are loaded
	cost   *float64   // of the session so far, nil if unknown
}

type acpPrompt struct {
	turn    *duplex.Turn
	message string   // the id of the message that is streamed
	base    *float64 // the session's cost before the prompt, nil if unknown
	usage   runner.Usage
	// failed is set when codex-acp has reported an error; report collects its text.
	failed bool
	report strings.Builder
}

// Greet implements duplex.Connection.
func (c *acpConn) Greet(ctx context.Context) error {
	var hello sdk.InitializeResponse
	err := c.request(ctx, sdk.AgentMethodInitialize, sdk.InitializeRequest{
		ProtocolVersion: sdk.ProtocolVersionNumber,
		ClientInfo:      &sdk.Implementation{Name: "parley", Version: clientVersion},
		// The agent accesses files and terminals itself.
		ClientCapabilities: sdk.ClientCapabilities{},
	}, &hello)
	if err != nil {
		return acpFailure(err)
	}
	if hello.ProtocolVersion != sdk.ProtocolVersionNumber {
		return &runner.Error{Code: runner.CodeProtocol,
			Message: fmt.Sprintf("the agent speaks version %d of the Agent Client Protocol, not %d", hello.ProtocolVersion, sdk.ProtocolVersionNumber),
			Remedy:  "install a version of the agent that speaks the protocol's version 1"}
	}
	if hello.AgentInfo != nil {
		c.codex = strings.HasSuffix(hello.AgentInfo.Name, "codex-acp")
		c.gemini = hello.AgentInfo.Name == "gemini-cli"
	}
	c.can = hello.AgentCapabilities
	return nil
}

// Open implements duplex.Connection.
func (c *acpConn) Open(ctx context.Context, resume string, _ *duplex.Turn) (duplex.Opened, error) {
	var opened duplex.Opened
	if resume != "" {
		model, err := c.resume(ctx, resume)
		if err == nil {
			opened.Session = runner.SessionStarted{ID: resume, Model: model}
			return opened, nil
		}
		refused, ok := errors.AsType[*rpcError](err)
		if !ok || refused.Code == acpAuthRequired {
			return duplex.Opened{}, acpFailure(err)
		}
		opened.Lost = acpErrorText(refused)
	}
	var res sdk.NewSessionResponse
	request := sdk.NewSessionRequest{Cwd: c.workDir, McpServers: []sdk.McpServer{}}
	if err := c.request(ctx, sdk.AgentMethodSessionNew, request, &res); err != nil {
		return duplex.Opened{}, acpFailure(err)
	}
	if res.SessionId == "" {
		return duplex.Opened{}, &runner.Error{Code: runner.CodeProtocol, Message: "the agent did not name the session that it began"}
	}
	c.session = res.SessionId
	c.cost = new(float64)
	opened.Session = runner.SessionStarted{ID: string(res.SessionId), Model: modelOf(res.Models)}
	return opened, nil
}

// historyPause is the pause after which a loaded session's history has ended: nothing in the protocol says so, and
// gemini sends it after its response.
const historyPause = 250 * time.Millisecond

// resume continues a session and sets c.session: by session/resume, or by session/load, which also
// replays the history. The history is ignored, because no prompt runs yet.
func (c *acpConn) resume(ctx context.Context, id string) (model string, err error) {
	var res struct {
		Models *sdk.SessionModelState `json:"models"`
	}
	c.session = sdk.SessionId(id)
	switch {
	case c.can.SessionCapabilities.Resume != nil:
		err = c.request(ctx, sdk.AgentMethodSessionResume, sdk.ResumeSessionRequest{
			SessionId: c.session, Cwd: c.workDir, McpServers: []sdk.McpServer{},
		}, &res)
	case c.can.LoadSession:
		if err = c.load(ctx, id, &res); err == nil {
			err = c.skipHistory(ctx)
		}
	default:
		err = &rpcError{Message: "the agent cannot continue sessions"}
	}
	return modelOf(res.Models), err
}

// load loads a session and sets c.session. Before gemini (0.61.0) loads one, it begins an empty session with the same id, in a
// file that is named after the id and the minute. In the minute in which the session began, that is the session's own file,
// whose messages are lost. So its id is spelled with a space before it, which gemini trims when it looks for the session.
func (c *acpConn) load(ctx context.Context, id string, res any) (err error) {
	spellings := []sdk.SessionId{sdk.SessionId(id)}
	if c.gemini {
		spellings = []sdk.SessionId{sdk.SessionId(" " + id), sdk.SessionId(id)}
	}
	for _, spelling := range spellings {
		c.session = spelling
		err = c.request(ctx, sdk.AgentMethodSessionLoad, sdk.LoadSessionRequest{
			SessionId: c.session, Cwd: c.workDir, McpServers: []sdk.McpServer{},
		}, res)
		if _, refused := errors.AsType[*rpcError](err); !refused {
			break
		}
	}
	return err
}

// skipHistory blocks until no update has come for historyPause.
func (c *acpConn) skipHistory(ctx context.Context) error {
	pause := time.NewTimer(historyPause)
	defer pause.Stop()
	for {
		select {
		case <-c.updated:
			pause.Reset(historyPause)
		case <-pause.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func modelOf(m *sdk.SessionModelState) string {
	if m == nil {
		return ""
	}
	return string(m.CurrentModelId)
}

// Prompt implements duplex.Connection.
func (c *acpConn) Prompt(ctx context.Context, text string, t *duplex.Turn) (duplex.Result, error) {
	pr := c.attach(t)
	defer c.detach()
	var res sdk.PromptResponse
	err := c.request(ctx, sdk.AgentMethodSessionPrompt, sdk.PromptRequest{
		SessionId: c.session,
		Prompt:    []sdk.ContentBlock{sdk.TextBlock(text)},
	}, &res)
	if refused, ok := errors.AsType[*rpcError](err); ok {
		return duplex.Result{Err: acpError(refused)}, nil
	}
	if err != nil {
		return duplex.Result{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	pr.count(res)
	return pr.result(res.StopReason), nil
}

// attach makes t the running prompt.
func (c *acpConn) attach(t *duplex.Turn) *acpPrompt {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.prompt = &acpPrompt{turn: t, base: c.cost}
	return c.prompt
}

// detach ends the prompt and cancels its permission requests.
func (c *acpConn) detach() {
	c.mu.Lock()
	c.prompt = nil
	c.mu.Unlock()
	c.questions.end()
}

// result translates the agent's reason for stopping.
func (pr *acpPrompt) result(reason sdk.StopReason) duplex.Result {
	switch reason {
	case sdk.StopReasonCancelled:
		return duplex.Result{Canceled: true}
	case sdk.StopReasonRefusal:
		return duplex.Result{Rejected: true}
	case sdk.StopReasonMaxTokens:
		pr.turn.Notice("the answer is cut off: the agent reached its limit of tokens")
	case sdk.StopReasonMaxTurnRequests:
		pr.turn.Notice("the agent stopped before it was done: it reached its limit of steps")
	}
	if pr.failed {
		text := cmp.Or(strings.TrimSpace(pr.report.String()), "it did not say which")
		return duplex.Result{Err: acpError(&rpcError{Message: text})}
	}
	return duplex.Result{}
}

// count reports the usage in the final answer: in the protocol's own field, or in the one of gemini and others.
func (pr *acpPrompt) count(res sdk.PromptResponse) {
	u := pr.usage
	if res.Usage != nil {
		u.InputTokens, u.OutputTokens = int64(res.Usage.InputTokens), int64(res.Usage.OutputTokens)
		if res.Usage.CachedReadTokens != nil {
			u.CachedTokens = int64(*res.Usage.CachedReadTokens)
		}
	} else if in, out, ok := quota(res.Meta); ok {
		u.InputTokens, u.OutputTokens = in, out
	}
	pr.turn.Usage(u)
}

func quota(meta map[string]any) (in, out int64, ok bool) {
	var m struct {
		Quota struct {
			Tokens *struct {
				Input  int64 `json:"input_tokens"`
				Output int64 `json:"output_tokens"`
			} `json:"token_count"`
		} `json:"quota"`
	}
	b, err := json.Marshal(meta)
	if err != nil || json.Unmarshal(b, &m) != nil || m.Quota.Tokens == nil {
		return 0, 0, false
	}
	return m.Quota.Tokens.Input, m.Quota.Tokens.Output, true
}

// Interrupt implements duplex.Connection.
func (c *acpConn) Interrupt() error {
	params := sdk.CancelNotification{SessionId: c.session}
	return c.send(rpcRequest{Version: c.version, Method: sdk.AgentMethodSessionCancel, Params: params})
}

// Resumable implements duplex.Connection. It is false for agents that can only load
// sessions: that takes gemini more than a second, and after a cancelled turn its process is as good as before.
func (c *acpConn) Resumable() bool { return c.can.SessionCapabilities.Resume != nil }

func acpFailure(err error) error {
	if refused, ok := errors.AsType[*rpcError](err); ok {
		return acpError(refused)
	}
	return err
}

func acpError(e *rpcError) *runner.Error {
	out := &runner.Error{Code: runner.CodeAgent, Message: acpErrorText(e), Err: e}
	// Some agents use the HTTP status of their model's server as the code.
	if e.Code == acpAuthRequired || e.Code == 401 || runner.IsAuthText(out.Message) {
		out.Code = runner.CodeAuth
	}
	return out
}

// acpErrorText returns the text of an error. Some agents put the cause into the
// data, or into JSON within the message.
func acpErrorText(e *rpcError) string {
	text := duplex.ErrorText(e.Message)
	if data, ok := e.Data.(map[string]any); ok {
		for _, key := range []string{"details", "message"} {
			if s, ok := data[key].(string); ok && s != "" && !strings.Contains(text, s) {
				text += ": " + s
			}
		}
	}
	if text == "" {
		return fmt.Sprintf("it answered with code %d", e.Code)
	}
	return text
}
