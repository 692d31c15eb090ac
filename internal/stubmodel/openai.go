package stubmodel

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

type openaiRequest struct {
	Model string          `json:"model"`
	Input json.RawMessage `json:"input"` // a string, or items
	Tools []tool          `json:"tools"`
}

type openaiItem struct {
	Type    string          `json:"type"`
	Role    string          `json:"role"`
	Output  json.RawMessage `json:"output"`
	Content []struct {
		Text string `json:"text"`
	} `json:"content"`
}

// openaiContext begins what codex puts into the user's mouth.
var openaiContext = []string{"<environment_context>", "# AGENTS.md", "<user_instructions>"}

func (q openaiRequest) talk() talk {
	var t talk
	var s string
	if json.Unmarshal(q.Input, &s) == nil {
		t.says(s)
		return t
	}
	var items []json.RawMessage
	_ = json.Unmarshal(q.Input, &items) // nothing said: the plain answer
	for _, raw := range items {
		var item openaiItem
		if json.Unmarshal(raw, &item) != nil {
			continue
		}
		switch {
		case strings.HasSuffix(item.Type, "_call_output"):
			t.answers(string(item.Output))
		case (item.Type == "message" || item.Type == "") && item.Role == "user":
			for _, c := range item.Content {
				if !slices.ContainsFunc(openaiContext, func(p string) bool { return strings.HasPrefix(c.Text, p) }) {
					t.adds(c.Text)
				}
			}
		case item.Type == "message" && item.Role == "assistant":
			t.open = false
		}
	}
	return t
}

func (h *Handler) openai(w http.ResponseWriter, r *http.Request, q openaiRequest) {
	reply := h.reply(q.talk())
	if reply.status != 0 {
		writeJSON(w, reply.status, object{"error": object{
			"message": "the stub model says " + http.StatusText(reply.status), "type": "invalid_request_error", "code": "stub",
		}})
		return
	}
	e := h.newEvents(w, r)
	response := object{
		"id": h.id("resp"), "object": "response", "status": "in_progress", "model": q.Model, "output": []any{},
		"usage": object{
			"input_tokens": 10, "input_tokens_details": object{"cached_tokens": 0},
			"output_tokens": 5, "output_tokens_details": object{"reasoning_tokens": 0}, "total_tokens": 15,
		},
	}
	e.send("response.created", object{"response": response})
	item := h.openaiCall(&reply, q)
	if item != nil {
		e.send("response.output_item.added", object{"output_index": 0, "item": item})
	} else if item = h.openaiText(e, reply); item == nil {
		return
	}
	e.send("response.output_item.done", object{"output_index": 0, "item": item})
	response["status"], response["output"] = "completed", []any{item}
	e.send("response.completed", object{"response": response})
}

// openaiText streams the text and returns the finished item, nil if the client has gone.
func (h *Handler) openaiText(e events, reply reply) object {
	id := h.id("msg")
	e.send("response.output_item.added", object{"output_index": 0, "item": object{
		"type": "message", "id": id, "role": "assistant", "status": "in_progress", "content": []any{},
	}})
	place := func(more object) object {
		more["item_id"], more["output_index"], more["content_index"] = id, 0, 0
		return more
	}
	e.send("response.content_part.added", place(object{"part": object{"type": "output_text", "text": ""}}))
	if !e.each(reply, func(_ int, piece string) {
		e.send("response.output_text.delta", place(object{"delta": piece}))
	}) {
		return nil
	}
	return object{
		"type": "message", "id": id, "role": "assistant", "status": "completed",
		"content": []any{object{"type": "output_text", "text": reply.text(), "annotations": []any{}}},
	}
}

// openaiCall is the tool's call that the reply wants: that of an MCP server, or of
// whichever shell tool this codex offers. It writes files with the shell too.
func (h *Handler) openaiCall(reply *reply, q openaiRequest) object {
	if reply.use.tool != "" {
		return h.openaiUse(reply, q)
	}
	command := reply.shell
	if reply.write != "" {
		command = "printf '%s' " + quote(Hello) + " > " + quote(reply.write)
	}
	if command == "" {
		return nil
	}
	name, args := "shell", object{"command": []string{"bash", "-lc", command}}
	switch {
	case offered(q.Tools, "exec_command"):
		name, args = "exec_command", object{"cmd": command}
		if reply.escalate {
			args["sandbox_permissions"], args["justification"] = "require_escalated", "the stub wants out"
		}
	case offered(q.Tools, "shell_command"):
		name, args = "shell_command", object{"command": command}
	}
	return h.functionCall(name, args)
}

// openaiUse calls the tool of an MCP server, whose tools codex keeps in a namespace with the server's name.
func (h *Handler) openaiUse(reply *reply, q openaiRequest) object {
	for _, space := range q.Tools {
		for _, t := range space.Tools {
			if reply.use.serves(space.Name + "_" + t.Name) {
				call := h.functionCall(t.Name, reply.use.input)
				call["namespace"] = space.Name
				return call
			}
		}
	}
	reply.pieces = noTool(reply.use.tool)
	return nil
}

func (h *Handler) functionCall(name string, args object) object {
	return object{
		"type": "function_call", "id": h.id("fc"), "call_id": h.id("call"), "name": name,
		"arguments": mustJSON(args), "status": "completed",
	}
}

// quote makes s one word of a shell line.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
