package hub

import (
	"errors"
	"fmt"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// Trace is the record of one turn of a task: what was asked, what the agent did and what came of it. Secrets in its
// texts are redacted as in the hub's log. A text that was cut ends with the marker "… [cut: N bytes in all]". Its
// JSON is that of the store and of the hub's interfaces.
type Trace struct {
	Task      a2a.TaskID      `json:"taskId"`
	Turn      int             `json:"turn"` // from 1
	Agent     string          `json:"agentId"`
	State     TraceState      `json:"state"`
	Prompt    string          `json:"prompt,omitzero"`
	WorkDir   *WorkDir        `json:"workdir,omitzero"` // nil for an agent without files
	Model     string          `json:"model,omitzero"`   // that the agent reported, else the configured one
	StartedAt time.Time       `json:"startedAt,omitzero"`
	EndedAt   time.Time       `json:"endedAt,omitzero"` // zero while it runs, and of an interrupted turn
	Tools     []ToolTrace     `json:"tools,omitzero"`
	Notices   []NoticeTrace   `json:"notices,omitzero"`
	Questions []QuestionTrace `json:"questions,omitzero"`
	Usage     runner.Usage    `json:"usage,omitzero"`
	Git       *GitTrace       `json:"git,omitzero"` // nil outside a git repository
	Error     *ErrorTrace     `json:"error,omitzero"`
	Omitted   OmittedTrace    `json:"omitted,omitzero"`
	// Derived is set if there is no record of the turn, because the agent has neither files nor tools (echo), an older
	// hub ran it or the record's retention has ended: the trace has only what the task says.
	Derived bool `json:"derived,omitzero"`
}

// TraceState is the state of a turn: how it ended, as the task's state after it, or one of the constants.
type TraceState string

// The states of a turn that are not those of a task.
const (
	TraceRunning     TraceState = "running"
	TraceInterrupted TraceState = "interrupted" // the hub was killed while the turn ran
	TraceUnknown     TraceState = "unknown"     // derived, of an earlier turn than the last
)

// ToolTrace is a tool call.
type ToolTrace struct {
	ID        string            `json:"id,omitzero"`
	Name      string            `json:"name,omitzero"`
	Title     string            `json:"title,omitzero"`
	Status    runner.ToolStatus `json:"status,omitzero"`
	Input     jsontext.Value    `json:"input,omitzero"` // JSON of any kind; a string if it was cut
	Output    string            `json:"output,omitzero"`
	StartedAt time.Time         `json:"startedAt,omitzero"`
	EndedAt   time.Time         `json:"endedAt,omitzero"`
}

// NoticeTrace is a notice of the agent's driver, such as a retry.
type NoticeTrace struct {
	At   time.Time `json:"at,omitzero"`
	Text string    `json:"text,omitzero"`
}

// QuestionTrace is a permission question.
type QuestionTrace struct {
	ID      string                    `json:"id,omitzero"`
	At      time.Time                 `json:"at,omitzero"`
	Title   string                    `json:"title,omitzero"`
	Tool    string                    `json:"tool,omitzero"`
	Input   jsontext.Value            `json:"input,omitzero"`
	Options []runner.PermissionOption `json:"options,omitzero"`
	Answer  *AnswerTrace              `json:"answer,omitzero"` // nil if there was none before the turn ended
}

// AnswerTrace is the answer to a permission question.
type AnswerTrace struct {
	At      time.Time `json:"at,omitzero"`
	Option  string    `json:"optionId,omitzero"` // "" if no option fits a denial
	Allowed bool      `json:"allowed"`
	By      string    `json:"by,omitzero"`      // user, agent, policy (the agent's permissions), claim (of files) or limit (refused unasked)
	Agent   string    `json:"agentId,omitzero"` // that answered, if By is agent
	Message string    `json:"message,omitzero"`
}

// ErrorTrace is why a turn failed.
type ErrorTrace struct {
	Code    string `json:"code,omitzero"`
	Message string `json:"message,omitzero"`
}

// OmittedTrace counts what did not fit into the trace.
type OmittedTrace struct {
	Tools     int `json:"tools,omitzero"`
	Notices   int `json:"notices,omitzero"`
	Questions int `json:"questions,omitzero"`
}

// Bounds of a trace. Texts are in bytes of JSON.
const (
	// minTraceBytes is the smallest TraceConfig.MaxBytes.
	minTraceBytes = 16 << 10

	maxTraceInput     = 8 << 10
	maxTraceOutput    = 16 << 10
	maxTracePrompt    = 16 << 10
	maxTraceLine      = 512 // of a title, name, id or path
	maxTraceMessage   = 2 << 10
	maxTraceNotices   = 200
	maxTraceQuestions = 100
	maxTraceOptions   = 16
	// Each element of a list costs its texts, and this for its other members.
	elementBytes = 256
)

var errTrace = errors.New("a stored trace cannot be decoded")

func encodeTrace(t *Trace) ([]byte, error) { return jsonv2.Marshal(t) }

func decodeTrace(body []byte) (Trace, error) {
	var t Trace
	if err := jsonv2.Unmarshal(body, &t); err != nil {
		return Trace{}, fmt.Errorf("%w: %w", errTrace, err)
	}
	return t, nil
}

// room is how many bytes of JSON a part of a trace may still use.
type room int

// take reserves n bytes; false if there is less room.
func (r *room) take(n int) bool {
	if n > int(*r) {
		return false
	}
	*r -= room(n)
	return true
}

// text returns s, or as much of it as fits into limit and the room, with a marker. whole is the length before any
// cut, and larger than that of s if something is missing at its end already.
func (r *room) text(s string, whole, limit int) string {
	limit = min(limit, int(*r))
	if whole > len(s) || quotedLen(s) > limit {
		mark := fmt.Sprintf("… [cut: %d bytes in all]", whole)
		s = cutQuoted(s, limit-len(mark)-2)
		if limit >= len(mark)+2 {
			s += mark
		}
	}
	if s != "" {
		*r -= room(quotedLen(s))
	}
	return s
}

// quotedLen returns the length of s, which is UTF-8, as a JSON string.
func quotedLen(s string) int {
	n := len(s) + len(`""`)
	for i := range len(s) {
		n += escapeLen(s[i])
	}
	return n
}

// escapeLen returns how many bytes JSON adds to a byte.
func escapeLen(c byte) int {
	switch {
	case c == '"', c == '\\', c == '\b', c == '\f', c == '\n', c == '\r', c == '\t':
		return 1
	case c < ' ':
		return len(`\u0000`) - 1
	}
	return 0
}

// cutQuoted returns the longest prefix of s, in whole characters, that has at most n bytes of JSON without the quotes.
func cutQuoted(s string, n int) string {
	for i := range len(s) {
		if n -= 1 + escapeLen(s[i]); n < 0 {
			return text.Cut(s, i)
		}
	}
	return s
}
