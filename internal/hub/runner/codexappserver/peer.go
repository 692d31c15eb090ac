package codexappserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
)

// peer speaks with one app-server, which holds one thread.
type peer struct {
	dialect *dialect
	conn    duplex.Conn
	rpc     *rpc

	questions duplex.Questions

	mu      sync.Mutex
	thread  string
	turn    *duplex.Turn // of the running prompt
	turnID  string       // "" until the server has told it
	started chan struct{}
	ended   chan turnInfo // gets the end of the running prompt
	streams map[string]bool
	last    string  // the id of the turn before
	total   *tokens // of the thread so far
	base    *tokens // total before the running turn
	refused int     // times that the credentials were refused in the running turn
	items   map[string]runner.ToolCall
}

// maxItems is how many tool calls of a turn are kept for approval requests,
// which name them by id only.
const maxItems = 1024

func (p *peer) Open(ctx context.Context, resume string, t *duplex.Turn) (duplex.Opened, error) {
	var hello initializeResult
	err := p.rpc.call(ctx, "initialize", initializeParams{ClientInfo: client}, &hello)
	if err != nil {
		return duplex.Opened{}, agentError(err)
	}
	if err := p.rpc.notify("initialized", nil); err != nil {
		return duplex.Opened{}, err
	}
	opened := duplex.Opened{}
	if resume != "" {
		params := p.dialect.thread(p.conn.WorkDir)
		params.ThreadID, params.ExcludeTurns = resume, true
		th, err := p.begin(ctx, "thread/resume", params)
		if err == nil {
			opened.Session = th
			return opened, nil
		}
		// Only the server's own refusal leaves it able to begin a new thread.
		var refused *wireError
		if !errors.As(err, &refused) {
			return duplex.Opened{}, agentError(err)
		}
		opened.Lost = refused.Message
	}
	th, err := p.begin(ctx, "thread/start", p.dialect.thread(p.conn.WorkDir))
	if err != nil {
		return duplex.Opened{}, tooOld(err, hello.UserAgent)
	}
	opened.Session = th
	return opened, nil
}

func (p *peer) begin(ctx context.Context, method string, params threadParams) (runner.SessionStarted, error) {
	var res threadResult
	if err := p.rpc.call(ctx, method, params, &res); err != nil {
		return runner.SessionStarted{}, err
	}
	if res.Thread.ID == "" {
		return runner.SessionStarted{}, &runner.Error{Code: runner.CodeProtocol, Message: "the agent did not say which thread it began"}
	}
	p.mu.Lock()
	p.thread = res.Thread.ID
	p.mu.Unlock()
	return runner.SessionStarted{ID: res.Thread.ID, Model: res.Model}, nil
}

func (p *peer) Prompt(ctx context.Context, prompt string, t *duplex.Turn) (duplex.Result, error) {
	ended := p.attach(t)
	defer p.detach()
	var res turnResult
	err := p.rpc.call(ctx, "turn/start", turnStartParams{
		ThreadID: p.threadID(),
		Input:    []userInput{{Type: "text", Text: prompt}},
	}, &res)
	var refused *wireError
	switch {
	case errors.As(err, &refused):
		return duplex.Result{Err: classify(refused.Message, nil)}, nil
	case err != nil:
		return duplex.Result{}, err
	}
	p.begun(res.Turn.ID)
	info, err := duplex.Await(ctx, ended, p.rpc.done, p.rpc.cause)
	if err != nil {
		return duplex.Result{}, err
	}
	return result(info), nil
}

func result(info turnInfo) duplex.Result {
	switch info.Status {
	case "completed":
		return duplex.Result{}
	case "interrupted":
		return duplex.Result{Canceled: true}
	}
	if info.Error == nil {
		return duplex.Result{Err: &runner.Error{
			Code: runner.CodeAgent, Message: fmt.Sprintf("it ended the turn as %q without a reason", info.Status),
		}}
	}
	return duplex.Result{Err: classify(info.Error.Message, info.Error.CodexErrorInfo)}
}

// attach makes t the running prompt.
func (p *peer) attach(t *duplex.Turn) <-chan turnInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turn, p.turnID = t, ""
	p.started = make(chan struct{})
	p.ended = make(chan turnInfo, 1)
	p.streams = make(map[string]bool)
	p.items = make(map[string]runner.ToolCall)
	p.base, p.refused = p.total, 0
	return p.ended
}

// detach ends the prompt: what is asked for is let go.
func (p *peer) detach() {
	p.mu.Lock()
	if p.turnID != "" {
		p.last = p.turnID
	}
	p.turn = nil
	p.mu.Unlock()
	p.questions.End()
}

// begun tells the turn's id, from whichever message names it first.
func (p *peer) begun(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.turn == nil || p.turnID != "" || id == "" || id == p.last {
		return
	}
	p.turnID = id
	close(p.started)
}

// Interrupt stops the turn by its id, which it waits for if the server has not
// told it yet.
func (p *peer) Interrupt() error {
	p.mu.Lock()
	started, running := p.started, p.turn != nil
	p.mu.Unlock()
	if !running {
		return nil
	}
	select {
	case <-started:
	case <-p.rpc.done:
		return p.rpc.cause()
	}
	p.mu.Lock()
	params := interruptParams{ThreadID: p.thread, TurnID: p.turnID}
	p.mu.Unlock()
	// The answer is empty; the end of the turn is what counts.
	return p.rpc.send("turn/interrupt", params)
}

// Resumable implements duplex.Peer: threads are kept on disk.
func (p *peer) Resumable() bool { return true }

func (p *peer) Close() {
	p.rpc.close()
	p.detach()
}

// tooOld tells an app-server that has no threads yet from other refusals. Such a
// server takes the method for a request that it cannot read.
func tooOld(err error, userAgent string) error {
	var refused *wireError
	if !errors.As(err, &refused) || (refused.Code != codeMethodNotFound && refused.Code != codeInvalidRequest) {
		return agentError(err)
	}
	return &runner.Error{
		Code:    runner.CodeProtocol,
		Message: "this codex (" + duplex.OneLine(userAgent) + ") does not speak the app-server protocol with threads: " + refused.Message,
		Remedy:  "update codex, or set driver: exec for this agent",
		Err:     err,
	}
}

// agentError makes a refusal of the server an error for users; others stay.
func agentError(err error) error {
	var refused *wireError
	if errors.As(err, &refused) {
		return classify(refused.Message, nil)
	}
	return err
}

func classify(message string, info json.RawMessage) *runner.Error {
	var word string
	_ = json.Unmarshal(info, &word) // an object is another kind of error
	e := &runner.Error{Code: runner.CodeAgent, Message: strings.TrimSpace(message)}
	if e.Message == "" {
		e.Message = "it did not say which"
	}
	if word == "unauthorized" || runner.IsAuthText(message) {
		e.Code = runner.CodeAuth
	}
	return e
}
