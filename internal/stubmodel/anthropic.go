package stubmodel

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strings"
)

type anthropicRequest struct {
	Model    string `json:"model"`
	Stream   bool   `json:"stream"`
	Messages []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"` // a string, or blocks
	} `json:"messages"`
	Tools []tool `json:"tools"`
}

type anthropicBlock struct {
	Type    string          `json:"type"`
	Text    string          `json:"text"`
	Content json.RawMessage `json:"content"`
}

// wakes marks the notification with which Claude Code begins a turn by itself.
const wakes = "[SYSTEM NOTIFICATION"

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
			case b.Type == "text" && (!strings.HasPrefix(b.Text, "<system-reminder>") || strings.Contains(b.Text, wakes)):
				text += b.Text
			}
		}
		if !isResult {
			t.says(text)
		}
	}
	return t
}

func (h *Handler) anthropic(w http.ResponseWriter, r *http.Request, q anthropicRequest) {
	reply := h.reply(q.talk())
	if reply.status != 0 {
		writeJSON(w, reply.status, object{"type": "error", "error": object{
			"type": cmp.Or(anthropicErrors[reply.status], "api_error"), "message": "the stub model says " + http.StatusText(reply.status),
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
	e := h.newEvents(w, r)
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
	name, input := reply.wants("Bash", "Write", q.Tools)
	if name == "" {
		return nil
	}
	if !offered(q.Tools, name) {
		reply.pieces = []string{"ok"}
		return nil
	}
	return object{"type": "tool_use", "id": h.id("toolu"), "name": name, "input": input}
}

var anthropicErrors = map[int]string{
	http.StatusUnauthorized: "authentication_error", http.StatusTooManyRequests: "rate_limit_error", 529: "overloaded_error",
}
