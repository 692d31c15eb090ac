package stubmodel

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

type anthropicRequest struct {
	Model    string `json:"model"`
	Stream   bool   `json:"stream"`
	Messages []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"` // a string, or blocks
	} `json:"messages"`
	Tools []struct {
		Name string `json:"name"`
	} `json:"tools"`
}

type anthropicBlock struct {
	Type    string          `json:"type"`
	Text    string          `json:"text"`
	Content json.RawMessage `json:"content"`
}

func (q anthropicRequest) talk() talk {
	var t talk
	for _, m := range q.Messages {
		if m.Role != "user" {
			continue
		}
		var s string
		if json.Unmarshal(m.Content, &s) == nil {
			t.says(s)
			continue
		}
		var blocks []anthropicBlock
		if json.Unmarshal(m.Content, &blocks) != nil {
			continue
		}
		text, isResult := "", false
		for _, b := range blocks {
			switch {
			case b.Type == "tool_result":
				isResult = true
				t.answers(string(b.Content))
			case b.Type == "text" && !strings.HasPrefix(b.Text, "<system-reminder>"):
				text += b.Text
			}
		}
		if !isResult {
			t.says(text)
		}
	}
	return t
}

func (q anthropicRequest) hasTool(name string) bool {
	return slices.ContainsFunc(q.Tools, func(t struct {
		Name string `json:"name"`
	}) bool {
		return t.Name == name
	})
}

func (h *Handler) anthropic(w http.ResponseWriter, r *http.Request, q anthropicRequest) {
	reply := q.talk().reply()
	if reply.status != 0 {
		writeJSON(w, reply.status, object{"type": "error", "error": object{
			"type": anthropicError(reply.status), "message": "the stub model says " + http.StatusText(reply.status),
		}})
		return
	}
	tool := h.anthropicTool(&reply, q)
	usage := object{"input_tokens": 10, "output_tokens": 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
	message := object{
		"id": h.id("msg"), "type": "message", "role": "assistant", "model": q.Model,
		"content": []any{}, "stop_reason": nil, "stop_sequence": nil, "usage": usage,
	}
	stop := "end_turn"
	if tool != nil {
		stop = "tool_use"
	}
	if !q.Stream {
		message["stop_reason"] = stop
		message["content"] = []any{object{"type": "text", "text": reply.text()}}
		if tool != nil {
			message["content"] = []any{tool}
		}
		writeJSON(w, http.StatusOK, message)
		return
	}
	e := newEvents(w, r)
	e.send("message_start", object{"message": message})
	if tool != nil {
		sendToolUse(e, tool)
	} else if !sendText(e, reply) {
		return
	}
	e.send("content_block_stop", object{"index": 0})
	e.send("message_delta", object{"delta": object{"stop_reason": stop, "stop_sequence": nil}, "usage": object{"output_tokens": 12}})
	e.send("message_stop", object{})
}

func sendText(e events, reply reply) bool {
	e.send("content_block_start", object{"index": 0, "content_block": object{"type": "text", "text": ""}})
	return e.each(reply, func(_ int, piece string) {
		e.send("content_block_delta", object{"index": 0, "delta": object{"type": "text_delta", "text": piece}})
	})
}

func sendToolUse(e events, tool object) {
	input := mustJSON(tool["input"])
	e.send("content_block_start", object{"index": 0, "content_block": object{
		"type": "tool_use", "id": tool["id"], "name": tool["name"], "input": object{},
	}})
	e.send("content_block_delta", object{"index": 0, "delta": object{"type": "input_json_delta", "partial_json": input}})
}

// anthropicTool is the tool's use that the reply wants. Side questions that the
// CLI asks without its tools are answered in words.
func (h *Handler) anthropicTool(reply *reply, q anthropicRequest) object {
	var name string
	var input object
	switch {
	case reply.shell != "":
		name, input = "Bash", object{"command": reply.shell, "description": "stub"}
	case reply.write != "":
		name, input = "Write", object{"file_path": reply.write, "content": Hello}
	case reply.use.tool != "":
		for _, t := range q.Tools {
			if reply.use.serves(t.Name) {
				return object{"type": "tool_use", "id": h.id("toolu"), "name": t.Name, "input": reply.use.input}
			}
		}
		reply.pieces = noTool(reply.use.tool)
		return nil
	default:
		return nil
	}
	if !q.hasTool(name) {
		reply.pieces = []string{"ok"}
		return nil
	}
	return object{"type": "tool_use", "id": h.id("toolu"), "name": name, "input": input}
}

func anthropicError(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case 529:
		return "overloaded_error"
	}
	return "api_error"
}

// mustJSON is for maps of strings.
func mustJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}
