package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
	// callTime bounds one call; its outcome is unknown afterwards.
	callTime = 10 * time.Second
	channel  = "roadmap" // of the hub's own project, and of that of the agents
	// maxMessages bounds the messages of all clients together of one kind: a channel is read at the end with one call.
	maxMessages = 900
)

func name(kind string, i int) string { return fmt.Sprintf("%s-%d", kind, i) }

// perform sends operations one after the other until ctx ends, and records them. Their numbers begin with first.
func perform(ctx context.Context, sender string, first, most int, all *history, send func(ctx context.Context, text string) error) {
	for number := first; number-first < most && ctx.Err() == nil; number++ {
		o := operation{sender: sender, number: number}
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime) // the last one ends, too
		err := send(call, o.text())
		cancel()
		if errors.Is(err, errNotSent) {
			number--
			pause(ctx, 20*time.Millisecond)
			continue
		}
		o.acknowledged = err == nil
		all.add(o)
	}
}

// errNotSent says that the hub has got nothing, or refused it before it did anything.
var errNotSent = errors.New("not sent")

// unavailable is the code of a refusal of the hub that is stopping; staysOpen is in it if the task is stored, and done by the next hub.
const (
	unavailable = `"AGENT_UNAVAILABLE"`
	staysOpen   = "stays open"
)

// sendTasks gives tasks to the echo agent, all in one conversation of the sender.
func sendTasks(ctx context.Context, h *hub, c campaign, sender string, all *history) {
	sent := 0
	perform(ctx, sender, 0, 1<<30, all, func(call context.Context, text string) (err error) {
		c.rest(ctx)
		for range maxRepeats {
			if err = sendTask(call, h, sender, text); err == nil || errors.Is(err, errNotSent) || !pause(ctx, 50*time.Millisecond) {
				break
			}
		}
		if sent++; err == nil && sent%10 == 0 { // as if the answer had been lost
			_ = sendTask(call, h, sender, text) // it was acknowledged before
		}
		return err
	})
}

// maxRepeats is how often a task is sent whose outcome is not known.
const maxRepeats = 3

// sendTask gives a task to the echo agent.
func sendTask(ctx context.Context, h *hub, sender, text string) error {
	state, err := giveTask(ctx, h, "echo", sender, text, true)
	if err == nil && state != "completed" {
		err = fmt.Errorf("the task is %s", state)
	}
	return err
}

// giveTask gives a task to an agent and returns its state, at its end if it waits.
func giveTask(ctx context.Context, h *hub, agent, sender, text string, waits bool) (state string, err error) {
	var task struct {
		Status struct {
			State string `json:"state"`
		} `json:"status"`
	}
	err = call(ctx, h, "", nil, "message/send", map[string]any{"configuration": map[string]any{"blocking": waits}, "message": map[string]any{
		"kind": "message", "messageId": text, "role": "user", "contextId": sender, "metadata": map[string]any{"targetAgent": agent, "idempotencyKey": text},
		"parts": []any{map[string]any{"kind": "text", "text": text}},
	}}, &task)
	return task.Status.State, err
}

// sendMessages sends messages to a channel.
func sendMessages(ctx context.Context, h *hub, sender string, all *history) {
	var s *session
	perform(ctx, sender, 0, maxMessages/8, all, func(ctx context.Context, text string) (err error) {
		if s == nil {
			if s, err = open(ctx, h, sender); err != nil {
				s = nil
				return errNotSent
			}
		}
		var sent struct{ Queued bool }
		if err = s.tool(ctx, "send_message", map[string]any{"channel": channel, "message": text}, &sent); err != nil {
			s = nil // of another process, perhaps
		} else if sent.Queued {
			err = errQueued
		}
		return err
	})
}

// errQueued says that a message is not in the channel yet.
var errQueued = errors.New("queued")

// session is an MCP session of a sender.
type session struct {
	h      *hub
	header http.Header
}

func open(ctx context.Context, h *hub, handle string) (*session, error) {
	s := &session{h: h, header: http.Header{"Accept": {"application/json, text/event-stream"}}}
	params := map[string]any{"protocolVersion": "2025-06-18", "capabilities": map[string]any{}, "clientInfo": map[string]any{"name": handle, "version": "1"}}
	if err := call(ctx, s.h, "mcp", s.header, "initialize", params, nil); err != nil {
		return nil, err
	}
	if err := call(ctx, s.h, "mcp", s.header, "notifications/initialized", nil, nil); err != nil {
		return nil, err
	}
	return s, s.tool(ctx, "set_handle", map[string]any{"handle": handle}, nil)
}

func (s *session) tool(ctx context.Context, tool string, arguments, result any) error {
	var answer struct {
		IsError           bool            `json:"isError"`
		Content           json.RawMessage `json:"content"`
		StructuredContent json.RawMessage `json:"structuredContent"`
	}
	if err := call(ctx, s.h, "mcp", s.header, "tools/call", map[string]any{"name": tool, "arguments": arguments}, &answer); err != nil {
		return err
	}
	if answer.IsError {
		return fmt.Errorf("%s: %s", tool, answer.Content)
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(answer.StructuredContent, result)
}

// call makes a JSON-RPC call to a path of the hub over HTTP and decodes the result. The header gets the session that the answer begins.
func call(ctx context.Context, h *hub, path string, header http.Header, method string, params, result any) error {
	request := map[string]any{"jsonrpc": "2.0", "method": method, "params": params}
	notification := strings.HasPrefix(method, "notifications/")
	if !notification {
		request["id"] = 1
	}
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url()+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	for k, v := range header {
		r.Header[k] = v
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := h.web.Do(r)
	if err != nil {
		if strings.Contains(err.Error(), "connection refused") {
			return errNotSent
		}
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	if id := resp.Header.Get("Mcp-Session-Id"); id != "" && header != nil {
		header.Set("Mcp-Session-Id", id)
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s: status %d", method, resp.StatusCode)
	}
	if notification {
		return nil
	}
	return decode(resp, result)
}

// decode reads the answer of a call, which may be the last event of a stream.
func decode(resp *http.Response, result any) error {
	var data []byte
	var err error
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 32<<20)
		for lines.Scan() {
			if event, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: ")); ok && bytes.Contains(event, []byte(`"id":1`)) {
				data = bytes.Clone(event)
			}
		}
		err = lines.Err()
	} else {
		data, err = io.ReadAll(resp.Body)
	}
	if err != nil {
		return err
	}
	var answer struct {
		Result json.RawMessage `json:"result"`
		Error  json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return err
	}
	if bytes.Contains(answer.Error, []byte(unavailable)) && !bytes.Contains(answer.Error, []byte(staysOpen)) {
		return errNotSent
	}
	if answer.Error != nil {
		return fmt.Errorf("refused: %s", answer.Error)
	}
	if result == nil || answer.Result == nil {
		return nil
	}
	return json.Unmarshal(answer.Result, result)
}

// collect returns what the hub has in the end, by sender, oldest first.
func collect(ctx context.Context, h *hub, clients int) (map[string][]string, error) {
	found := map[string][]string{}
	for i := range clients {
		sender := name("tasks", i)
		texts, err := tasksOf(ctx, h, sender)
		if err != nil {
			return nil, err
		}
		found[sender] = texts
	}
	s, err := open(ctx, h, "reader")
	if err != nil {
		return nil, err
	}
	var read messages
	if err := s.tool(ctx, "read_messages", read.query(channel), &read); err != nil {
		return nil, err
	}
	return found, read.addTo(found)
}

// messages is what is read of a channel.
type messages struct {
	Messages []struct{ Message string }
	Omitted  int
}

// query returns the arguments with which a channel is read.
func (*messages) query(channel string) map[string]any {
	return map[string]any{"channel": channel, "limit": 1000}
}

// addTo adds the messages by sender, oldest first.
func (m *messages) addTo(found map[string][]string) error {
	if m.Omitted > 0 {
		return fmt.Errorf("a channel has %d messages too many to check", m.Omitted)
	}
	for _, x := range m.Messages {
		found[senderOf(x.Message)] = append(found[senderOf(x.Message)], x.Message)
	}
	return nil
}

// tasksOf returns the answers of the completed tasks of a conversation, of all for "". Agents answer with the prompt.
func tasksOf(ctx context.Context, h *hub, contextID string) (texts []string, err error) {
	all, err := endsOf(ctx, h, contextID)
	for _, e := range all {
		if e.state == "completed" {
			texts = append(texts, e.answer)
		}
	}
	return texts, err
}

// end is what has become of a task.
type end struct{ prompt, state, answer string }

// ended reports whether the task has ended.
func (e end) ended() bool {
	return e.state == "completed" || e.state == "failed" || e.state == "canceled" || e.state == "rejected"
}

// endsOf returns the tasks of a conversation, of all for "", oldest first.
func endsOf(ctx context.Context, h *hub, contextID string) (all []end, err error) {
	for cursor := ""; ; {
		var page struct {
			Tasks []struct {
				Status struct {
					State   string
					Message *struct{ Parts []struct{ Text string } }
				}
				Metadata struct {
					Summary struct{ Prompt string } `json:"parley.summary"`
				}
			}
			NextCursor string
		}
		params := map[string]any{"limit": 1000}
		if contextID != "" {
			params["contextId"] = contextID
		}
		if cursor != "" {
			params["cursor"] = cursor
		}
		if err := call(ctx, h, "", nil, "hub/tasks/page", params, &page); err != nil {
			return nil, err
		}
		for _, t := range page.Tasks {
			e := end{prompt: t.Metadata.Summary.Prompt, state: t.Status.State}
			if t.Status.Message != nil && len(t.Status.Message.Parts) == 1 {
				e.answer = t.Status.Message.Parts[0].Text
			}
			all = append(all, e)
		}
		if cursor = page.NextCursor; cursor == "" {
			slices.Reverse(all)
			return all, nil
		}
	}
}
