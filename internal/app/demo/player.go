package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/base/wait"
)

// Play plays an agent of the demonstration over the Agent Client Protocol until in ends: without a model, it does what its
// part of the story says. pace is how long a step takes.
func Play(ctx context.Context, name string, pace time.Duration, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	p := &player{name: name, pace: pace, out: out, answers: map[string]chan string{}}
	defer p.turns.Wait()
	defer cancel()
	lines := bufio.NewReader(in)
	for {
		raw, err := lines.ReadBytes('\n')
		if err != nil {
			return nil
		}
		var m message
		if json.Unmarshal(raw, &m) != nil {
			continue
		}
		p.receive(ctx, &m)
	}
}

// message is a message of the protocol, which is JSON-RPC.
type message struct {
	ID     json.RawMessage `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Params struct {
		Cwd    string `json:"cwd"`
		Prompt []struct {
			Text string `json:"text"`
		} `json:"prompt"`
	} `json:"params"`
	Result struct {
		Outcome struct {
			OptionID string `json:"optionId"`
		} `json:"outcome"`
	} `json:"result"`
}

type player struct {
	name  string
	pace  time.Duration
	turns sync.WaitGroup

	mu      sync.Mutex
	out     io.Writer
	dir     string
	spent   float64
	stop    context.CancelFunc
	answers map[string]chan string // to permission requests, by their ids
}

const (
	session     = "the-session"
	optionAllow = "allow"
	optionDeny  = "deny"
)

type object = map[string]any

func (p *player) receive(ctx context.Context, m *message) {
	switch m.Method {
	case "initialize":
		p.result(m.ID, object{"protocolVersion": 1})
	case "session/new":
		p.mu.Lock()
		p.dir = m.Params.Cwd
		p.mu.Unlock()
		p.result(m.ID, object{"sessionId": session})
	case "session/prompt":
		turn, stop := context.WithCancel(ctx)
		p.mu.Lock()
		p.stop = stop
		p.mu.Unlock()
		p.turns.Go(func() {
			defer stop()
			p.turn(turn, m)
		})
	case "session/cancel":
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.stop != nil {
			p.stop()
		}
	case "":
		p.mu.Lock()
		defer p.mu.Unlock()
		if answer := p.answers[string(m.ID)]; answer != nil {
			answer <- m.Result.Outcome.OptionID
			delete(p.answers, string(m.ID))
		}
	default:
		p.send(object{"jsonrpc": "2.0", "id": m.ID, "error": object{"code": -32601, "message": "not known"}})
	}
}

// send sends a message. After an error the hub is gone, and the input ends.
func (p *player) send(v object) {
	b, err := json.Marshal(v)
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = p.out.Write(append(b, '\n'))
}

func (p *player) result(id json.RawMessage, v object) {
	p.send(object{"jsonrpc": "2.0", "id": id, "result": v})
}

func (p *player) update(v object) {
	p.send(object{"jsonrpc": "2.0", "method": "session/update", "params": object{"sessionId": session, "update": v}})
}

// turn plays the part for a prompt.
func (p *player) turn(ctx context.Context, m *message) {
	var prompt strings.Builder
	for _, part := range m.Params.Prompt {
		prompt.WriteString(part.Text)
	}
	part := PartFor(p.name, prompt.String())
	for i, s := range part.Steps {
		if err := p.step(ctx, fmt.Sprint(p.name, "-", i+1), s); err != nil {
			if ctx.Err() != nil {
				p.result(m.ID, object{"stopReason": "cancelled"})
				return
			}
			p.send(object{"jsonrpc": "2.0", "id": m.ID, "error": object{"code": -32603, "message": err.Error()}})
			return
		}
	}
	p.mu.Lock()
	p.spent += part.Cost
	spent := p.spent
	p.mu.Unlock()
	p.update(object{"sessionUpdate": "usage_update", "size": 200_000, "used": part.In, "cost": object{"amount": spent, "currency": "USD"}})
	p.result(m.ID, object{"stopReason": "end_turn", "usage": object{"inputTokens": part.In, "outputTokens": part.Out, "totalTokens": part.In + part.Out}})
}

// step plays one step; its error ends the turn as failed.
func (p *player) step(ctx context.Context, id string, s Step) error {
	switch {
	case s.Fails != "":
		if !wait.Pause(ctx, p.pace) {
			return ctx.Err()
		}
		return fmt.Errorf("%s", s.Fails)
	case s.Tool == "":
		return p.say(ctx, s.Says)
	case s.Asks:
		return p.ask(ctx, id, s)
	}
	return p.tool(ctx, id, s)
}

// say writes an answer word by word.
func (p *player) say(ctx context.Context, text string) error {
	for _, word := range strings.SplitAfter(text, " ") {
		if !wait.Pause(ctx, p.pace/8) {
			return ctx.Err()
		}
		p.update(object{"sessionUpdate": "agent_message_chunk", "messageId": "m", "content": object{"type": "text", "text": word}})
	}
	return nil
}

func (p *player) tool(ctx context.Context, id string, s Step) error {
	p.update(object{"sessionUpdate": "tool_call", "toolCallId": id, "name": s.Tool, "title": s.Title, "status": "in_progress", "rawInput": s.Input})
	if !wait.Pause(ctx, p.pace) {
		return ctx.Err()
	}
	status, output := "completed", s.Output
	if s.File != "" {
		if err := p.write(s.File, s.Content); err != nil {
			status, output = "failed", err.Error()
		}
	}
	p.update(object{"sessionUpdate": "tool_call_update", "toolCallId": id, "status": status, "rawOutput": output})
	return nil
}

// write changes a file of the project.
func (p *player) write(name, content string) error {
	p.mu.Lock()
	dir := p.dir
	p.mu.Unlock()
	path := filepath.Join(dir, name)
	old, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	if bytes.HasSuffix(old, []byte(content)) {
		return nil
	}
	return os.WriteFile(path, append(old, content...), 0o600)
}

// ask asks for permission, and uses the tool if it is given.
func (p *player) ask(ctx context.Context, id string, s Step) error {
	answer := make(chan string, 1)
	p.mu.Lock()
	p.answers[`"`+id+`"`] = answer
	p.mu.Unlock()
	p.send(object{"jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": object{
		"sessionId": session,
		"toolCall":  object{"toolCallId": id, "name": s.Tool, "title": s.Title, "status": "pending", "rawInput": s.Input},
		"options": []object{
			{"optionId": optionAllow, "name": "Allow once", "kind": "allow_once"}, {"optionId": optionDeny, "name": "Deny", "kind": "reject_once"},
		},
	}})
	select {
	case option := <-answer:
		if option != optionAllow {
			return p.say(ctx, "Then I leave it. ")
		}
		return p.tool(ctx, id, s)
	case <-ctx.Done():
		return ctx.Err()
	}
}
