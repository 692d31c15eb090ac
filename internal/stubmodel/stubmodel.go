// Package stubmodel is a model server without a model: it lets real coding CLIs run in tests, offline and always the
// same. It speaks enough of the APIs of Anthropic (Messages), Google (generateContent) and OpenAI (Responses) for
// the CLIs of these vendors.
//
// The last thing that the user said decides the answer:
//
//	TOOL:cmd    use the shell tool with cmd, then repeat what it said
//	ESC:cmd     the same, asking to leave codex's sandbox
//	WRITE:path  use the tool that writes files, then repeat what it said
//	USE:tool {} use the tool of an MCP server with these arguments, then repeat what it
//	            said; of several lines with it, one after the other
//	SLOW        200 pieces, 100 ms apart
//	HTTPnnn     fail with that HTTP status
//	HTTPnnnxK   fail with that HTTP status K times, then answer what is behind it
//	REMEMBER    tell how many times the user has spoken in this conversation
//
// and otherwise it is [Hello], in pieces.
package stubmodel

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parleyhub/parley/internal/base/text"
)

// Hello is the answer to everything that is not a directive.
const Hello = "def hello():\n    print(\"Hello from the stub model\")\n"

// The pace of the answers.
const (
	pieceDelay = 2 * time.Millisecond
	slowDelay  = 100 * time.Millisecond
	slowPieces = 200
)

// maxBody bounds a request; the CLIs send tens of kilobytes.
const maxBody = 32 << 20

// maxToolEcho is how much of a tool's result is repeated.
const maxToolEcho = 1400

// Handler serves all three APIs. It is for loopback: it checks no credentials.
// The zero value is ready and safe for concurrent use.
type Handler struct {
	// Pause is the least time between the pieces of an answer, 2 ms by default.
	Pause time.Duration
	// Script, if not nil, decides first: from what the user said last, what a tool has said after that, and how many tools have.
	// It returns a directive USE or WRITE, a text to speak, or "" for the usual answer.
	Script func(said, result string, used int) string

	ids atomic.Int64

	mu     sync.Mutex
	failed map[string]int // by the message, how often it has failed
}

// ServeHTTP implements [http.Handler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	switch path := r.URL.Path; {
	case strings.HasSuffix(path, "/messages/count_tokens"):
		writeJSON(w, http.StatusOK, object{"input_tokens": 10})
	case strings.HasSuffix(path, "/messages"):
		serve(h.anthropic, w, r, raw)
	case strings.HasSuffix(path, ":streamGenerateContent"):
		serve(h.geminiStream, w, r, raw)
	case strings.HasSuffix(path, ":generateContent"):
		serve(h.geminiOnce, w, r, raw)
	case strings.HasSuffix(path, ":countTokens"):
		writeJSON(w, http.StatusOK, object{"totalTokens": 10})
	case strings.HasSuffix(path, "/responses") && r.Method == http.MethodPost:
		serve(h.openai, w, r, raw)
	case strings.HasSuffix(path, "/models"):
		writeJSON(w, http.StatusOK, object{"object": "list", "data": []any{}, "models": []any{}})
	case path == "/" || r.Method == http.MethodHead: // "are you there?"
	default:
		writeJSON(w, http.StatusNotFound, object{"error": object{"message": "the stub model has no " + path}})
	}
}

// serve decodes a request of one of the APIs.
func serve[Request any](answer func(http.ResponseWriter, *http.Request, Request), w http.ResponseWriter, r *http.Request, raw []byte) {
	var req Request
	if err := json.Unmarshal(raw, &req); err != nil {
		writeJSON(w, http.StatusBadRequest, object{"error": object{"message": err.Error()}})
		return
	}
	answer(w, r, req)
}

// object is a JSON object of an answer.
type object = map[string]any

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client has gone
}

func (h *Handler) id(prefix string) string {
	return fmt.Sprintf("%s_stub%06d", prefix, h.ids.Add(1))
}

// talk is what matters of a conversation.
type talk struct {
	last   string // what the user said last, without an answer between
	result string // what a tool said after that
	used   int    // how many tools have said something
	turns  int    // how often the user has spoken
	open   bool   // nothing has followed on what the user said last
}

// says adds something that the user said.
func (t *talk) says(text string) {
	if text != "" {
		t.last, t.result, t.used = text, "", 0
		t.turns++
	}
}

// adds is says for a CLI that may have the model answer several messages at once. One that was canceled before is over, unless it uses
// a tool.
func (t *talk) adds(text string) {
	if t.open && text != "" && strings.Contains(t.last, "USE:") {
		t.last += "\n" + text
		t.turns++
		return
	}
	t.says(text)
	t.open = text != ""
}

// answers adds what a tool said.
func (t *talk) answers(result string) {
	t.result = result
	t.used++
	t.open = false
}

// reply is what the model does: fail, use a tool, or speak.
type reply struct {
	status   int
	shell    string
	escalate bool
	write    string
	use      toolUse
	pieces   []string
	delay    time.Duration
}

// toolUse is the use of a tool that an MCP server offers.
type toolUse struct {
	tool  string // the server's name for it
	input object
}

// serves reports whether the tool that the CLI calls name is the one to use: the
// CLIs put the name of the server before that of the tool.
func (u toolUse) serves(name string) bool {
	return u.tool != "" && strings.HasPrefix(name, "mcp_") && strings.HasSuffix(name, "_"+u.tool)
}

// tool is a tool that the CLI offers, or the namespace of an MCP server with its tools.
type tool struct {
	Name  string `json:"name"`
	Tools []tool `json:"tools"`
}

func offered(tools []tool, name string) bool {
	return slices.ContainsFunc(tools, func(t tool) bool { return t.Name == name })
}

// wants returns the name and the input of the tool that the reply uses; "" if it uses
// none. shell and write are the CLI's names of its own tools.
func (r *reply) wants(shell, write string, tools []tool) (name string, input object) {
	switch {
	case r.shell != "":
		return shell, object{"command": r.shell, "description": "stub"}
	case r.write != "":
		return write, object{"file_path": r.write, "content": Hello}
	case r.use.tool == "":
		return "", nil
	}
	for _, t := range tools {
		if r.use.serves(t.Name) {
			return t.Name, r.use.input
		}
	}
	r.pieces = noTool(r.use.tool)
	return "", nil
}

func (r reply) text() string { return strings.Join(r.pieces, "") }

var statusDirective = text.Pattern(`HTTP([45]\d\d)(?:x(\d{1,3}))?`)

// maxScripts bounds the messages whose failures are counted.
const maxScripts = 10_000

// fails returns the status with which the message fails this time, 0 if it does not.
func (h *Handler) fails(t talk) int {
	m := statusDirective().FindStringSubmatch(t.last)
	if m == nil {
		return 0
	}
	status, _ := strconv.Atoi(m[1]) // three digits
	if m[2] == "" {
		return status
	}
	times, _ := strconv.Atoi(m[2]) // at most three digits
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failed == nil || len(h.failed) >= maxScripts {
		h.failed = make(map[string]int)
	}
	if h.failed[t.last] >= times {
		return 0
	}
	h.failed[t.last]++
	return status
}

func (h *Handler) next(t talk) string {
	if h.Script == nil {
		return ""
	}
	return h.Script(t.last, t.result, t.used)
}

func (h *Handler) reply(t talk) reply {
	if status := h.fails(t); status != 0 {
		return reply{status: status}
	}
	if next := h.next(t); next != "" {
		if use, ok := strings.CutPrefix(next, "USE:"); ok {
			return useReply(use)
		}
		if path, ok := strings.CutPrefix(next, "WRITE:"); ok {
			return reply{write: path}
		}
		return reply{pieces: inPieces(next, 8), delay: pieceDelay}
	}
	if uses := strings.Split(t.last, "USE:")[1:]; t.used < len(uses) {
		return useReply(uses[t.used])
	}
	if t.result != "" {
		return reply{pieces: []string{"tool ", "said: ", t.result[:min(len(t.result), maxToolEcho)]}, delay: pieceDelay}
	}
	tool, escaping, path := directive(t.last, "TOOL:"), directive(t.last, "ESC:"), directive(t.last, "WRITE:")
	switch {
	case tool != "":
		return reply{shell: tool}
	case escaping != "":
		return reply{shell: escaping, escalate: true}
	case path != "":
		return reply{write: path}
	case strings.Contains(t.last, "SLOW"):
		r := reply{delay: slowDelay}
		for i := range slowPieces {
			r.pieces = append(r.pieces, fmt.Sprintf("tick %d\n", i))
		}
		return r
	case strings.Contains(t.last, "REMEMBER"):
		return reply{pieces: []string{fmt.Sprintf("user turns seen: %d", t.turns)}, delay: pieceDelay}
	}
	return reply{pieces: inPieces(Hello, 8), delay: pieceDelay}
}

// useReply reads what is behind USE: a tool and, in the same line, its arguments.
func useReply(text string) reply {
	line, _, _ := strings.Cut(text, "\n")
	tool, args, _ := strings.Cut(line, " ")
	use := toolUse{tool: tool, input: object{}}
	if args != "" {
		if err := json.Unmarshal([]byte(args), &use.input); err != nil {
			return reply{pieces: []string{"bad arguments: " + err.Error()}}
		}
	}
	return reply{use: use}
}

// noTool is the answer where the CLI does not offer the tool.
func noTool(tool string) []string { return []string{"there is no tool " + tool} }

// directive is the rest of the line behind name, "" if there is none.
func directive(text, name string) string {
	_, rest, _ := strings.Cut(text, name)
	line, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(line)
}

func inPieces(s string, size int) (pieces []string) {
	for piece := range slices.Chunk([]byte(s), size) {
		pieces = append(pieces, string(piece))
	}
	return pieces
}

// events is a stream of server-sent events.
type events struct {
	w     http.ResponseWriter
	r     *http.Request
	pause time.Duration
}

func (h *Handler) newEvents(w http.ResponseWriter, r *http.Request) events {
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	return events{w, r, h.Pause}
}

// send writes one event; its name, where there is one, is its type too.
func (e events) send(name string, v object) {
	if name != "" {
		v["type"] = name
		fmt.Fprintf(e.w, "event: %s\n", name)
	}
	fmt.Fprintf(e.w, "data: %s\n\n", mustJSON(v))
	_ = http.NewResponseController(e.w).Flush() // the client has gone
}

// mustJSON is for maps of strings and numbers.
func mustJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// each sends every piece at the reply's pace, until the client goes.
func (e events) each(r reply, send func(i int, piece string)) bool {
	for i, piece := range r.pieces {
		send(i, piece)
		select {
		case <-e.r.Context().Done():
			return false
		case <-time.After(max(r.delay, e.pause)):
		}
	}
	return true
}
