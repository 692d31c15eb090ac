package acp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	sdk "github.com/coder/acp-go-sdk"

	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
)

// clientVersion is that of this client's use of the protocol; the hub's own says
// nothing to an agent.
const clientVersion = "1"

// codeAuthRequired is what agents answer without credentials.
const codeAuthRequired = -32000

// peer speaks with one agent process, which holds one session.
type peer struct {
	workDir string
	gate    *gate
	conn    *sdk.Connection

	// Set by Open.
	session   sdk.SessionId
	resumable bool
	codex     bool // the agent is codex-acp: see its quirks in events.go

	mu       sync.Mutex
	prompt   *prompt  // the running one; nil while a session is loaded, whose history is not news
	cost     *float64 // of the session so far, nil if that is not known
	handlers sync.WaitGroup
}

// prompt is the running one.
type prompt struct {
	turn    *duplex.Turn
	over    context.Context // ends with the prompt
	message string          // the id of the message that is streamed
	base    *float64        // what the session had cost before, nil if that is not known
	usage   runner.Usage
	// failed is set when codex-acp has reported an error, and report collects
	// what it says of it.
	failed bool
	report strings.Builder
}

// call sends a request and blocks until its answer. The error is a
// *sdk.RequestError of the agent, a *runner.Error, duplex.ErrClosed or ctx's.
// There is one call at a time.
func call[T any](ctx context.Context, p *peer, method string, params any) (T, error) {
	defer p.gate.taken()
	res, err := sdk.SendRequest[T](p.conn, ctx, method, params)
	switch {
	case err == nil:
		return res, nil
	case ctx.Err() != nil:
		return res, ctx.Err()
	case p.gate.broken() != nil:
		return res, p.gate.broken()
	}
	select {
	case <-p.conn.Done():
		return res, p.gate.cause()
	default:
		return res, err
	}
}

// Open implements duplex.Peer.
func (p *peer) Open(ctx context.Context, resume string, t *duplex.Turn) (duplex.Opened, error) {
	hello, err := call[sdk.InitializeResponse](ctx, p, sdk.AgentMethodInitialize, sdk.InitializeRequest{
		ProtocolVersion: sdk.ProtocolVersionNumber,
		ClientInfo:      &sdk.Implementation{Name: "parley", Version: clientVersion},
		// Files and terminals are the agent's own business.
		ClientCapabilities: sdk.ClientCapabilities{},
	})
	if err != nil {
		return duplex.Opened{}, agentError(err)
	}
	if hello.ProtocolVersion != sdk.ProtocolVersionNumber {
		return duplex.Opened{}, &runner.Error{
			Code:    runner.CodeProtocol,
			Message: fmt.Sprintf("the agent speaks version %d of the Agent Client Protocol, not %d", hello.ProtocolVersion, sdk.ProtocolVersionNumber),
			Remedy:  "install a version of the agent that speaks the protocol's version 1",
		}
	}
	p.codex = hello.AgentInfo != nil && strings.HasSuffix(hello.AgentInfo.Name, "codex-acp")
	can := hello.AgentCapabilities
	p.resumable = can.SessionCapabilities.Resume != nil

	var opened duplex.Opened
	if resume != "" {
		model, err := p.resume(ctx, resume, can)
		if err == nil {
			p.session = sdk.SessionId(resume)
			opened.Session = runner.SessionStarted{ID: resume, Model: model}
			return opened, nil
		}
		var refused *sdk.RequestError
		if !errors.As(err, &refused) || refused.Code == codeAuthRequired {
			return duplex.Opened{}, agentError(err)
		}
		opened.Lost = errorText(refused)
	}
	res, err := call[sdk.NewSessionResponse](ctx, p, sdk.AgentMethodSessionNew, sdk.NewSessionRequest{
		Cwd: p.workDir, McpServers: []sdk.McpServer{},
	})
	if err != nil {
		return duplex.Opened{}, agentError(err)
	}
	if res.SessionId == "" {
		return duplex.Opened{}, &runner.Error{Code: runner.CodeProtocol, Message: "the agent did not name the session that it began"}
	}
	p.session = res.SessionId
	p.cost = new(float64)
	opened.Session = runner.SessionStarted{ID: string(res.SessionId), Model: modelOf(res.Models)}
	return opened, nil
}

// resume continues a session: by session/resume, or by session/load, which also
// sends the history again. Nobody listens to it: there is no prompt yet.
func (p *peer) resume(ctx context.Context, id string, can sdk.AgentCapabilities) (model string, err error) {
	switch {
	case can.SessionCapabilities.Resume != nil:
		res, err := call[sdk.ResumeSessionResponse](ctx, p, sdk.AgentMethodSessionResume, sdk.ResumeSessionRequest{
			SessionId: sdk.SessionId(id), Cwd: p.workDir, McpServers: []sdk.McpServer{},
		})
		return modelOf(res.Models), err
	case can.LoadSession:
		res, err := call[sdk.LoadSessionResponse](ctx, p, sdk.AgentMethodSessionLoad, sdk.LoadSessionRequest{
			SessionId: sdk.SessionId(id), Cwd: p.workDir, McpServers: []sdk.McpServer{},
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

// Prompt implements duplex.Peer.
func (p *peer) Prompt(ctx context.Context, text string, t *duplex.Turn) (duplex.Result, error) {
	pr, detach := p.attach(t)
	defer detach()
	res, err := call[sdk.PromptResponse](ctx, p, sdk.AgentMethodSessionPrompt, sdk.PromptRequest{
		SessionId: p.session,
		Prompt:    []sdk.ContentBlock{sdk.TextBlock(text)},
	})
	var refused *sdk.RequestError
	switch {
	case errors.As(err, &refused):
		return duplex.Result{Err: classify(refused)}, nil
	case err != nil:
		return duplex.Result{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	pr.count(res)
	return pr.result(res.StopReason), nil
}

// attach makes t the running prompt, until detach, which lets go of what is
// still asked for.
func (p *peer) attach(t *duplex.Turn) (pr *prompt, detach func()) {
	over, end := context.WithCancel(context.Background())
	p.mu.Lock()
	defer p.mu.Unlock()
	pr = &prompt{turn: t, over: over, base: p.cost}
	p.prompt = pr
	return pr, func() {
		p.mu.Lock()
		p.prompt = nil
		p.mu.Unlock()
		end()
		p.handlers.Wait()
	}
}

// result reads the reason for which the agent stopped.
func (pr *prompt) result(reason sdk.StopReason) duplex.Result {
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
		text := strings.TrimSpace(pr.report.String())
		if text == "" {
			text = "it did not say which"
		}
		return duplex.Result{Err: classify(&sdk.RequestError{Message: text})}
	}
	return duplex.Result{}
}

// count reports the usage that comes with the end: in the protocol's own field,
// or in the one of gemini and others.
func (pr *prompt) count(res sdk.PromptResponse) {
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

// Interrupt implements duplex.Peer.
func (p *peer) Interrupt() error {
	return p.conn.SendNotification(context.Background(), sdk.AgentMethodSessionCancel, sdk.CancelNotification{SessionId: p.session})
}

// Resumable implements duplex.Peer. Agents that only load sessions are not
// counted in: gemini says that it can, and cannot.
func (p *peer) Resumable() bool { return p.resumable }

// Close implements duplex.Peer.
func (p *peer) Close() {
	p.gate.close()
	<-p.conn.Done()
	p.mu.Lock()
	p.prompt = nil // what comes now is counted no more: a turn may still run
	p.mu.Unlock()
	p.handlers.Wait()
}

// agentError makes a refusal of the agent an error for users; others stay.
func agentError(err error) error {
	var refused *sdk.RequestError
	if errors.As(err, &refused) {
		return classify(refused)
	}
	return err
}

func classify(e *sdk.RequestError) *runner.Error {
	out := &runner.Error{Code: runner.CodeAgent, Message: errorText(e), Err: e}
	// Some agents pass on the status of their model's server as the code.
	if e.Code == codeAuthRequired || e.Code == 401 || runner.IsAuthText(out.Message) {
		out.Code = runner.CodeAuth
	}
	return out
}

// errorText is the text of an error. Agents hide the interesting part in the
// data, or in JSON within the message.
func errorText(e *sdk.RequestError) string {
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
