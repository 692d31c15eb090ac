package runner

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub/process"
)

// Bounds of what one turn reports besides its answer.
const (
	maxToolOutput = 64 << 10 // bytes of a tool's output that are kept
	maxTools      = 10_000   // tool calls that are distinguished
	maxDenials    = 1000
	maxDecided    = 200
	maxNotices    = 1000
	maxMessage    = 4 << 10 // bytes of an agent's error message
)

// Answer collects what an agent reports in one turn: it bounds the data, forwards it as events, and keeps what
// belongs in the outcome. It is for drivers, and not safe for concurrent use.
type Answer struct {
	h         Sink
	redact    func(string) string
	maxOutput int

	text      strings.Builder
	last      byte // of text
	truncated bool
	paragraph bool
	thoughts  int
	notices   int
	decided   int

	session SessionStarted
	usage   Usage
	tools   map[string]ToolCall
	denials []ToolCall
	denied  map[string]int // index in denials by the tool call's id

	done     bool           // the agent reported its end
	failed   bool           // the agent reported an error
	message  string         // the agent's text of the error
	auth     bool           // the error is about credentials
	authRuns int            // retries that failed for the credentials
	stalled  bool           // the last line was a retry, which is no progress
	tooLong  error          // a line that was skipped
	refusal  Retry          // the last one
	row      int            // retries since the last progress
	watch    *process.Watch // counts retries, may be nil
}

// Sink receives events, one at a time; a Handler is one.
type Sink interface{ Event(Event) }

// NewAnswer returns an answer that reports to h. It keeps at most maxOutput bytes of text. redact removes secrets
// from notices and errors. known is the agent's session as last reported.
func NewAnswer(h Sink, maxOutput int, redact func(string) string, known SessionStarted) *Answer {
	return &Answer{
		h: h, maxOutput: maxOutput, redact: redact, session: known,
		tools: make(map[string]ToolCall), denied: make(map[string]int),
	}
}

// Text adds a piece to the answer.
func (a *Answer) Text(s string) {
	if s == "" {
		return
	}
	a.progress()
	if a.truncated {
		return
	}
	if a.paragraph && a.text.Len() > 0 && a.last != '\n' {
		s = "\n\n" + s
	}
	a.paragraph = false
	s = strings.ToValidUTF8(s, "\uFFFD")
	if a.text.Len()+len(s) > a.maxOutput {
		s = text.Cut(s, a.maxOutput-a.text.Len())
		a.truncated = true
	}
	if s != "" {
		a.text.WriteString(s)
		a.last = s[len(s)-1]
		a.h.Event(TextDelta{Text: s})
	}
	if a.truncated {
		a.Notice(fmt.Sprintf("the answer was cut at %d bytes (limits.maxOutput)", a.maxOutput))
	}
}

// Paragraph separates the next text from the text before a tool call.
func (a *Answer) Paragraph() { a.paragraph = true }

// Thought forwards a piece of reasoning, in all up to the limit of the answer.
func (a *Answer) Thought(s string) {
	a.progress()
	if a.thoughts += len(s); s != "" && a.thoughts <= a.maxOutput {
		a.h.Event(Thought{Text: strings.ToValidUTF8(s, "\uFFFD")})
	}
}

// Tool forwards a tool call, with the name and title of an earlier event of the same
// call. A denied call stays denied.
func (a *Answer) Tool(t ToolCall) {
	a.progress()
	t.Output = text.Cut(strings.ToValidUTF8(t.Output, "\uFFFD"), maxToolOutput)
	known := a.tools[t.ID]
	t.Name, t.Title = cmp.Or(t.Name, known.Name), cmp.Or(t.Title, known.Title)
	if len(a.tools) < maxTools {
		a.tools[t.ID] = ToolCall{ID: t.ID, Name: t.Name, Title: t.Title}
	}
	if a.wasDenied(t.ID) {
		t.Status = ToolDenied
	}
	if t.Status == ToolDenied {
		a.deny(t)
	}
	a.h.Event(t)
}

// deny keeps a denied tool call; a later event may add its input.
func (a *Answer) deny(t ToolCall) {
	if i, known := a.denied[t.ID]; known {
		if len(a.denials[i].Input) == 0 {
			a.denials[i].Input = t.Input
		}
		return
	}
	if len(a.denials) >= maxDenials {
		return
	}
	if t.ID != "" {
		a.denied[t.ID] = len(a.denials)
	}
	a.denials = append(a.denials, t)
}

func (a *Answer) wasDenied(id string) bool {
	_, denied := a.denied[id]
	return denied
}

// Decided forwards the decision on a permission request that the user was not asked, for the first maxDecided ones.
func (a *Answer) Decided(d PermissionDecided) {
	if a.decided++; a.decided <= maxDecided {
		a.h.Event(d)
	}
}

// Usage forwards the turn's cost so far.
func (a *Answer) Usage(u Usage) {
	if u != (Usage{}) {
		a.usage = u
		a.h.Event(u)
	}
}

// Session keeps the agent's session id, and reports it if the id or a named model is
// new. It rejects an id that could be read as a flag.
func (a *Answer) Session(id, model string) {
	model = oneLine(model, 200)
	if id == "" || id == a.session.ID && (model == "" || model == a.session.Model) {
		return
	}
	if !ValidSessionID(id) {
		a.Notice("the agent's session id is not usable: the conversation cannot be continued")
		return
	}
	a.session = SessionStarted{ID: id, Model: model}
	a.h.Event(a.session)
}

// Started returns the session as last reported.
func (a *Answer) Started() SessionStarted { return a.session }

// ValidSessionID reports whether an agent's session id may be used to resume: it is
// not empty and cannot be read as a flag.
func ValidSessionID(id string) bool { return sessionPattern().MatchString(id) }

var sessionPattern = text.Pattern(`^[A-Za-z0-9][A-Za-z0-9._:/-]{0,255}$`)

// Notice informs the user.
func (a *Answer) Notice(s string) {
	if a.notices++; a.notices <= maxNotices {
		a.h.Event(Notice{Text: a.redact(oneLine(s, maxMessage))})
	}
}

// fail records an error; the first text that is not empty counts.
func (a *Answer) fail(message string) {
	a.failed = true
	if a.message == "" {
		a.message = a.redact(text.Cut(strings.TrimSpace(message), maxMessage))
	}
	if IsAuthText(message) {
		a.auth = true
	}
}

// Hopeless reports whether the agent retries although its credentials were refused more than once.
func (a *Answer) Hopeless() bool { return a.authRuns >= 2 }

// HasText reports whether there is any answer.
func (a *Answer) HasText() bool { return a.text.Len() > 0 }

// Failure returns the agent's error, if it reported one, and whether it is about credentials.
func (a *Answer) Failure() (message string, auth, failed bool) {
	return a.message, a.auth, a.failed
}

// Outcome returns the outcome so far, with a status and no exit code.
func (a *Answer) Outcome(status OutcomeStatus) Outcome {
	return Outcome{
		Status: status, Text: a.text.String(), Truncated: a.truncated,
		Denials: a.denials, Usage: a.usage, Model: a.session.Model, ExitCode: -1,
	}
}

// empty reports whether the agent has reported neither text nor tools.
func (a *Answer) empty() bool { return a.text.Len() == 0 && len(a.tools) == 0 }

// authText matches the messages of agents and their model servers for missing or
// refused credentials. It is applied to errors only, never to answers.
var authText = text.Pattern(`(?i)not logged in|please run /login|\b401\b.{0,40}unauthori[sz]ed|unauthori[sz]ed.{0,40}\b401\b|` +
	`"code"\s*:\s*401\b|\bstatus(?: code)?:? 401\b|\bUNAUTHENTICATED\b|authentication[_ ](?:error|failed|required)|invalid[_ ](?:x-)?api[_ -]?key|incorrect api key|` +
	`api key not (?:valid|found)|missing (?:bearer|api key)|no api key|set an auth method|oauth token (?:has )?(?:expired|revoked)|` +
	`(?:run|use) .?(?:codex login|claude auth login|vibe --setup)|not authenticated|log ?in required|credentials? (?:not found|missing|expired)|missing credentials?`)

// IsAuthText reports whether the text of an agent's error is about its credentials.
func IsAuthText(s string) bool { return authText().MatchString(s) }

// copyJSON copies b out of the line's buffer; nil for null.
func copyJSON(b json.RawMessage) json.RawMessage {
	if string(b) == "null" {
		return nil
	}
	return append(json.RawMessage(nil), b...)
}
