package stubmodel

import (
	"cmp"
	"encoding/json"
	"net/http"
)

type geminiRequest struct {
	Contents []struct {
		Role  string `json:"role"`
		Parts []struct {
			Text             string `json:"text"`
			FunctionResponse *struct {
				Response json.RawMessage `json:"response"`
			} `json:"functionResponse"`
		} `json:"parts"`
	} `json:"contents"`
	Tools []struct {
		Functions []tool `json:"functionDeclarations"`
	} `json:"tools"`
	GenerationConfig struct {
		MimeType string          `json:"responseMimeType"`
		Schema   json.RawMessage `json:"responseJsonSchema"`
	} `json:"generationConfig"`
}

func (q geminiRequest) talk() talk {
	var t talk
	for _, c := range q.Contents {
		if c.Role != "user" && c.Role != "" {
			continue
		}
		text, isResult := "", false
		for _, p := range c.Parts {
			text += p.Text
			if p.FunctionResponse != nil {
				isResult = true
				t.answers(string(p.FunctionResponse.Response))
			}
		}
		if !isResult {
			t.says(text)
		}
	}
	return t
}

// sideAnswer fits every question that gemini asks for itself in JSON: which model to take, who speaks next.
const sideAnswer = `{"reasoning":"stub","model_choice":"flash","next_speaker":"user","complexity_reasoning":"stub","complexity_score":1}`

func (h *Handler) geminiReply(q geminiRequest) reply {
	if q.GenerationConfig.MimeType == "application/json" || len(q.GenerationConfig.Schema) > 0 {
		if r := h.reply(q.talk()); r.status != 0 {
			return r
		}
		return reply{pieces: []string{sideAnswer}, delay: pieceDelay}
	}
	return h.reply(q.talk())
}

func (h *Handler) geminiOnce(w http.ResponseWriter, _ *http.Request, q geminiRequest) {
	reply := h.geminiReply(q)
	if geminiFails(w, reply) {
		return
	}
	part := q.tool(&reply)
	if part == nil {
		part = object{"text": reply.text()}
	}
	writeJSON(w, http.StatusOK, h.geminiChunk(part, true))
}

func (h *Handler) geminiStream(w http.ResponseWriter, r *http.Request, q geminiRequest) {
	reply := h.geminiReply(q)
	if geminiFails(w, reply) {
		return
	}
	e := h.newEvents(w, r)
	if tool := q.tool(&reply); tool != nil {
		e.send("", h.geminiChunk(tool, true))
		return
	}
	e.each(reply, func(i int, piece string) {
		e.send("", h.geminiChunk(object{"text": piece}, i == len(reply.pieces)-1))
	})
}

func geminiFails(w http.ResponseWriter, reply reply) bool {
	if reply.status == 0 {
		return false
	}
	status := cmp.Or(geminiErrors[reply.status], "INTERNAL")
	writeJSON(w, reply.status, object{"error": object{
		"code": reply.status, "message": "the stub model says " + http.StatusText(reply.status), "status": status,
	}})
	return true
}

var geminiErrors = map[int]string{
	http.StatusBadRequest: "INVALID_ARGUMENT", http.StatusUnauthorized: "UNAUTHENTICATED",
	http.StatusForbidden: "PERMISSION_DENIED", http.StatusTooManyRequests: "RESOURCE_EXHAUSTED",
}

// tool is the tool's use that the reply wants.
func (q geminiRequest) tool(reply *reply) object {
	var functions []tool
	for _, t := range q.Tools {
		functions = append(functions, t.Functions...)
	}
	if name, args := reply.wants("run_shell_command", "write_file", functions); name != "" {
		return object{"functionCall": object{"name": name, "args": args}}
	}
	return nil
}

func (h *Handler) geminiChunk(part object, last bool) object {
	candidate := object{"index": 0, "content": object{"role": "model", "parts": []any{part}}}
	if last {
		candidate["finishReason"] = "STOP"
	}
	return object{
		"candidates": []any{candidate}, "modelVersion": "stub", "responseId": h.id("resp"),
		"usageMetadata": object{"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15},
	}
}
