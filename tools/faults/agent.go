package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// agent is a session of an agent: an MCP server's process in a project, which outlives the hub. Its methods are for one goroutine.
type agent struct {
	process *exec.Cmd
	in      io.WriteCloser
	answers chan []byte // lines of the process, until it ends
	calls   int
	guid    string
	again   bool // it was registered with this GUID before

	scope, visibility string // of its registration
}

// capability is the queue that work goes to.
const capability = "upgrades"

// join starts an agent in the project of all agents and registers it.
func join(ctx context.Context, h *hub, handle string) (*agent, error) {
	a, err := launch(h, handle)
	if err == nil {
		if err = a.register(ctx, handle); err != nil {
			a.leave()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", handle, err)
	}
	return a, nil
}

// launch starts the process of an agent.
func launch(h *hub, handle string) (*agent, error) {
	a := &agent{process: h.command("mcp"), answers: make(chan []byte, 16), scope: "user", visibility: "project-only"}
	if h.public {
		a.scope, a.visibility = "cross-project", "public"
	}
	a.process.Dir = h.project()
	in, err := a.process.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := a.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	a.in = in
	if h.agentLogs { // what an agent says of its own failure
		log, err := os.OpenFile(filepath.Join(h.dir, handle+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, err
		}
		defer log.Close() //nolint:errcheck // the process has its own
		a.process.Stderr = log
	}
	if err := h.run(a.process); err != nil {
		return nil, err
	}
	go a.read(out)
	return a, nil
}

// register begins the session and registers the agent.
func (a *agent) register(ctx context.Context, handle string) error {
	params := map[string]any{"protocolVersion": "2025-06-18", "capabilities": map[string]any{}, "clientInfo": map[string]any{"name": handle, "version": "1"}}
	err := a.ask(ctx, "initialize", params, nil)
	if err == nil {
		_, err = io.WriteString(a.in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n")
	}
	if err == nil {
		err = a.tool(ctx, "set_handle", map[string]any{"handle": handle}, nil)
	}
	var entry struct {
		GUID  string
		Again bool
	}
	if err == nil {
		err = a.tool(ctx, "register_agent", map[string]any{"agentType": "worker", "capabilities": []string{capability}, "scope": a.scope, "visibility": a.visibility}, &entry)
	}
	a.guid, a.again = entry.GUID, entry.Again
	return err
}

// read ends with the process.
func (a *agent) read(out io.Reader) {
	defer close(a.answers)
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 32<<20)
	for lines.Scan() {
		a.answers <- append([]byte(nil), lines.Bytes()...)
	}
}

// leave ends the session.
func (a *agent) leave() {
	_ = a.in.Close() // the server ends with its input
	killed := time.AfterFunc(stopTime, func() { _ = a.process.Process.Kill() })
	for range a.answers { // until the end
	}
	_ = a.process.Wait()
	killed.Stop()
}

// tool calls a tool. Agents wait for an answer longer than clients over HTTP, for the hub may be away meanwhile.
func (a *agent) tool(ctx context.Context, tool string, arguments, result any) error {
	var answer struct {
		IsError           bool            `json:"isError"`
		Content           json.RawMessage `json:"content"`
		StructuredContent json.RawMessage `json:"structuredContent"`
		Meta              struct {
			Error struct{ Category string } `json:"io.parley/error"`
		} `json:"_meta"`
	}
	if err := a.ask(ctx, "tools/call", map[string]any{"name": tool, "arguments": arguments}, &answer); err != nil {
		return err
	}
	if answer.IsError {
		return &toolError{tool, answer.Meta.Error.Category, string(answer.Content)}
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(answer.StructuredContent, result)
}

// toolError is the answer of a tool that has failed.
type toolError struct{ tool, category, text string }

func (e *toolError) Error() string { return e.tool + ": " + e.text }

func (a *agent) ask(ctx context.Context, method string, params, result any) error {
	a.calls++
	request, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": a.calls, "method": method, "params": params})
	if err == nil {
		_, err = a.in.Write(append(request, '\n'))
	}
	if err != nil {
		return err
	}
	late := time.After(startTime)
	for {
		select {
		case line, ok := <-a.answers:
			if !ok {
				return errors.New("the MCP server has ended")
			}
			var answer struct {
				ID     int
				Result json.RawMessage
				Error  json.RawMessage
			}
			if err := json.Unmarshal(line, &answer); err != nil {
				return err
			}
			if answer.ID != a.calls {
				continue // a notification, or the answer of a call that was late
			}
			if answer.Error != nil {
				return fmt.Errorf("refused: %s", answer.Error)
			}
			if result == nil {
				return nil
			}
			return json.Unmarshal(answer.Result, result)
		case <-late:
			return fmt.Errorf("%s: no answer within %v", method, startTime)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
