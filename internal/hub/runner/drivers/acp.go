package drivers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

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
	c := &acpConn{workDir: pipes.WorkDir, gate: newGate(pipes)}
	c.conn = sdk.NewConnection(c.handle, c.gate, c.gate)
	// The SDK logs what agents send, including secrets.
	c.conn.SetLogger(slog.New(slog.DiscardHandler))
	return c
}

// acpAuthRequired is the error code of agents without credentials.
const acpAuthRequired = -32000

// acpConn speaks with one agent process, which holds one session.
type acpConn struct {
	workDir string
	gate    *gate
	conn    *sdk.Connection

	// Set by Open.
	session   sdk.SessionId
	resumable bool
	codex     bool // the agent is codex-acp, see acpevents.go

	mu       sync.Mutex
	prompt   *acpPrompt // the running one; nil while a session and its history are loaded
	cost     *float64   // of the session so far, nil if unknown
	handlers sync.WaitGroup
}

type acpPrompt struct {
	turn    *duplex.Turn
	over    context.Context // ends with the prompt
	message string          // the id of the message that is streamed
	base    *float64        // the session's cost before the prompt, nil if unknown
	usage   runner.Usage
	// failed is set when codex-acp has reported an error; report collects its text.
	failed bool
	report strings.Builder
}

// acpCall sends a request and blocks until its answer. The error is a
// *sdk.RequestError of the agent, a *runner.Error, duplex.ErrClosed or ctx's. Only
// one call runs at a time.
func acpCall[T any](ctx context.Context, c *acpConn, method string, params any) (T, error) {
	defer c.gate.received()
	res, err := sdk.SendRequest[T](c.conn, ctx, method, params)
	switch {
	case err == nil:
		return res, nil
	case ctx.Err() != nil:
		return res, ctx.Err()
	case c.gate.broken() != nil:
		return res, c.gate.broken()
	}
	select {
	case <-c.conn.Done():
		return res, c.gate.cause()
	default:
		return res, err
	}
}

// Open implements duplex.Connection.
func (c *acpConn) Open(ctx context.Context, resume string, _ *duplex.Turn) (duplex.Opened, error) {
	hello, err := acpCall[sdk.InitializeResponse](ctx, c, sdk.AgentMethodInitialize, sdk.InitializeRequest{
		ProtocolVersion: sdk.ProtocolVersionNumber,
		ClientInfo:      &sdk.Implementation{Name: "parley", Version: clientVersion},
		// The agent accesses files and terminals itself.
		ClientCapabilities: sdk.ClientCapabilities{},
	})
	if err != nil {
		return duplex.Opened{}, acpFailure(err)
	}
	if hello.ProtocolVersion != sdk.ProtocolVersionNumber {
		return duplex.Opened{}, &runner.Error{
			Code:    runner.CodeProtocol,
			Message: fmt.Sprintf("the agent speaks version %d of the Agent Client Protocol, not %d", hello.ProtocolVersion, sdk.ProtocolVersionNumber),
			Remedy:  "install a version of the agent that speaks the protocol's version 1",
		}
	}
	c.codex = hello.AgentInfo != nil && strings.HasSuffix(hello.AgentInfo.Name, "codex-acp")
	can := hello.AgentCapabilities
	c.resumable = can.SessionCapabilities.Resume != nil

	var opened duplex.Opened
	if resume != "" {
		model, err := c.resume(ctx, resume, can)
		if err == nil {
			c.session = sdk.SessionId(resume)
			opened.Session = runner.SessionStarted{ID: resume, Model: model}
			return opened, nil
		}
		refused, ok := errors.AsType[*sdk.RequestError](err)
		if !ok || refused.Code == acpAuthRequired {
			return duplex.Opened{}, acpFailure(err)
		}
		opened.Lost = acpErrorText(refused)
	}
	res, err := acpCall[sdk.NewSessionResponse](ctx, c, sdk.AgentMethodSessionNew, sdk.NewSessionRequest{
		Cwd: c.workDir, McpServers: []sdk.McpServer{},
	})
	if err != nil {
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

// resume continues a session: by session/resume, or by session/load, which also
// replays the history. The history is ignored, because no prompt runs yet.
func (c *acpConn) resume(ctx context.Context, id string, can sdk.AgentCapabilities) (model string, err error) {
	switch {
	case can.SessionCapabilities.Resume != nil:
		res, err := acpCall[sdk.ResumeSessionResponse](ctx, c, sdk.AgentMethodSessionResume, sdk.ResumeSessionRequest{
			SessionId: sdk.SessionId(id), Cwd: c.workDir, McpServers: []sdk.McpServer{},
		})
		return modelOf(res.Models), err
	case can.LoadSession:
		res, err := acpCall[sdk.LoadSessionResponse](ctx, c, sdk.AgentMethodSessionLoad, sdk.LoadSessionRequest{
			SessionId: sdk.SessionId(id), Cwd: c.workDir, McpServers: []sdk.McpServer{},
		})
		return modelOf(res.Models), err
	default:
		return "", &sdk.RequestError{Message: "the agent cannot continue sessions"}
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
	pr, detach := c.attach(t)
	defer detach()
	res, err := acpCall[sdk.PromptResponse](ctx, c, sdk.AgentMethodSessionPrompt, sdk.PromptRequest{
		SessionId: c.session,
		Prompt:    []sdk.ContentBlock{sdk.TextBlock(text)},
	})
	if refused, ok := errors.AsType[*sdk.RequestError](err); ok {
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

// attach makes t the running prompt. detach ends it and cancels its permission
// requests.
func (c *acpConn) attach(t *duplex.Turn) (pr *acpPrompt, detach func()) {
	over, end := context.WithCancel(context.Background())
	c.mu.Lock()
	defer c.mu.Unlock()
	pr = &acpPrompt{turn: t, over: over, base: c.cost}
	c.prompt = pr
	return pr, func() {
		c.mu.Lock()
		c.prompt = nil
		c.mu.Unlock()
		end()
		c.handlers.Wait()
	}
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
		return duplex.Result{Err: acpError(&sdk.RequestError{Message: text})}
	}
	return duplex.Result{}
}

// count reports the usage in the final answer: in the protocol's own field, or in
// the one of gemini and others.
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
	return c.conn.SendNotification(context.Background(), sdk.AgentMethodSessionCancel, sdk.CancelNotification{SessionId: c.session})
}

// Resumable implements duplex.Connection. It is false for agents that can only load
// sessions, because gemini claims to and cannot.
func (c *acpConn) Resumable() bool { return c.resumable }

// Close implements duplex.Connection.
func (c *acpConn) Close() {
	c.gate.close()
	<-c.conn.Done()
	c.mu.Lock()
	c.prompt = nil // handlers that start later are not counted; a turn may still run
	c.mu.Unlock()
	c.handlers.Wait()
}

func acpFailure(err error) error {
	var refused *sdk.RequestError
	if errors.As(err, &refused) {
		return acpError(refused)
	}
	return err
}

func acpError(e *sdk.RequestError) *runner.Error {
	out := &runner.Error{Code: runner.CodeAgent, Message: acpErrorText(e), Err: e}
	// Some agents use the HTTP status of their model's server as the code.
	if e.Code == acpAuthRequired || e.Code == 401 || runner.IsAuthText(out.Message) {
		out.Code = runner.CodeAuth
	}
	return out
}

// acpErrorText returns the text of an error. Some agents put the cause into the
// data, or into JSON within the message.
func acpErrorText(e *sdk.RequestError) string {
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
