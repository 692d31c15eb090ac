package runner

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
)

// Bounds of what one turn passes on besides its answer.
const (
	maxToolOutput = 64 << 10 // bytes of a tool's output that are kept
	maxTools      = 10_000   // tool calls that are told apart
	maxDenials    = 1000
	maxNotices    = 1000
	maxMessage    = 4 << 10 // bytes of an agent's error message
)

// Answer takes what an agent says and does in one turn: it bounds it, passes it on
// as events, and keeps what belongs into the outcome. It is for drivers; it is not
// safe for concurrent use.
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

	session SessionStarted
	usage   Usage
	tools   map[string]ToolCall
	denials []ToolCall
	denied  map[string]int // index in denials by the tool call's id

	done     bool   // the agent said that it has finished
	failed   bool   // the agent raised its error flag
	message  string // the agent's words on the error
	auth     bool   // the error is about credentials
	authRuns int    // retries that failed for the credentials
	stalled  bool   // the last line was a retry, no sign of life
	tooLong  error  // a line that was skipped
}

// Sink takes events, one at a time; a Handler is one.
type Sink interface{ Event(Event) }

// NewAnswer calls h.Event with what it is told. Of the answer's text at most
// maxOutput bytes count. redact takes secrets out of notices and errors. known is
// the agent's session as far as the user has heard of it.
func NewAnswer(h Sink, maxOutput int, redact func(string) string, known SessionStarted) *Answer {
	return &Answer{
		h: h, maxOutput: maxOutput, redact: redact, session: known,
		tools: make(map[string]ToolCall), denied: make(map[string]int),
	}
}

// Text adds a piece to the answer.
func (a *Answer) Text(s string) {
	if s == "" || a.truncated {
		return
	}
	if a.paragraph && a.text.Len() > 0 && a.last != '\n' {
		s = "\n\n" + s
	}
	a.paragraph = false
	s = strings.ToValidUTF8(s, "\uFFFD")
	if a.text.Len()+len(s) > a.maxOutput {
		s = cutUTF8(s, a.maxOutput-a.text.Len())
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

// Paragraph parts what comes from what was said before a tool was used.
func (a *Answer) Paragraph() { a.paragraph = true }

// Thought passes a piece of reasoning on, of all as much as of an answer.
func (a *Answer) Thought(s string) {
	if a.thoughts += len(s); s != "" && a.thoughts <= a.maxOutput {
		a.h.Event(Thought{Text: strings.ToValidUTF8(s, "\uFFFD")})
	}
}

// Tool passes a tool call on, with the name and title that an earlier event of the
// same call had. One that was denied stays so.
func (a *Answer) Tool(t ToolCall) {
	t.Output = cutUTF8(strings.ToValidUTF8(t.Output, "\uFFFD"), maxToolOutput)
	known := a.tools[t.ID]
	if t.Name == "" {
		t.Name = known.Name
	}
	if t.Title == "" {
		t.Title = known.Title
	}
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

// deny keeps a refused tool call; a later event may know its input.
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

// Usage passes on what the turn has cost so far.
func (a *Answer) Usage(u Usage) {
	if u != (Usage{}) {
		a.usage = u
		a.h.Event(u)
	}
}

// Session keeps the agent's session id, and tells it where it is news; so is a
// model, where it is named. An id that could be taken for a flag later is not kept.
func (a *Answer) Session(id, model string) {
	model = oneLine(model, 200)
	if id == "" || id == a.session.ID && (model == "" || model == a.session.Model) {
		return
	}
	if !sessionPattern.MatchString(id) {
		a.Notice("the agent's session id is not usable: the conversation cannot be continued")
		return
	}
	a.session = SessionStarted{ID: id, Model: model}
	a.h.Event(a.session)
}

// Started is the session as it is known now.
func (a *Answer) Started() SessionStarted { return a.session }

// ValidSessionID reports whether an agent's session id may be used to resume: one
// that could be taken for a flag, or is empty, may not.
func ValidSessionID(id string) bool { return sessionPattern.MatchString(id) }

var sessionPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/-]{0,255}$`)

// Notice tells the user something.
func (a *Answer) Notice(s string) {
	if a.notices++; a.notices <= maxNotices {
		a.h.Event(Notice{Text: a.redact(oneLine(s, maxMessage))})
	}
}

// fail raises the error flag; the first words count, unless they were empty.
func (a *Answer) fail(message string) {
	a.failed = true
	if a.message == "" {
		a.message = a.redact(cutUTF8(strings.TrimSpace(message), maxMessage))
	}
	if isAuthText(message) {
		a.auth = true
	}
}

// retry is an agent's notice that it tries again. It is no sign of life: agents
// try for ever. An agent may refresh its credentials after the first refusal.
func (a *Answer) retry(message string, auth bool) {
	a.stalled = true
	if auth || isAuthText(message) {
		a.authRuns++
		a.message = a.redact(cutUTF8(strings.TrimSpace(message), maxMessage))
	}
	a.Notice(message)
}

// Hopeless reports that the agent goes on trying although its credentials were
// refused more than once.
func (a *Answer) Hopeless() bool { return a.authRuns >= 2 }

// HasText reports whether there is any answer.
func (a *Answer) HasText() bool { return a.text.Len() > 0 }

// Failure is the agent's error, if it has flagged one, and whether it is about
// credentials.
func (a *Answer) Failure() (message string, auth, failed bool) {
	return a.message, a.auth, a.failed
}

// Outcome is what was gathered, with a status and no exit code.
func (a *Answer) Outcome(status OutcomeStatus) Outcome {
	return Outcome{
		Status: status, Text: a.text.String(), Truncated: a.truncated,
		Denials: a.denials, Usage: a.usage, ExitCode: -1,
	}
}

// empty reports that the agent has said and done nothing.
func (a *Answer) empty() bool { return a.text.Len() == 0 && len(a.tools) == 0 }

// authText are the words of agents, and of the model servers behind them, for
// missing or refused credentials. They are looked for in errors only, never in
// answers.
var authText = regexp.MustCompile(`(?i)not logged in|please run /login|\b401\b.{0,40}unauthori[sz]ed|unauthori[sz]ed.{0,40}\b401\b|` +
	`"code"\s*:\s*401\b|\bstatus(?: code)?:? 401\b|\bUNAUTHENTICATED\b|authentication[_ ](?:error|failed|required)|invalid[_ ](?:x-)?api[_ -]?key|incorrect api key|` +
	`api key not (?:valid|found)|missing (?:bearer|api key)|no api key|set an auth method|oauth token (?:has )?(?:expired|revoked)|` +
	`(?:run|use) .?(?:codex login|claude auth login|vibe --setup)|not authenticated|log ?in required|credentials? (?:not found|missing|expired)|missing credentials?`)

func isAuthText(s string) bool { return authText.MatchString(s) }

// IsAuthText reports whether an agent's error is about its credentials, where it
// has only words for it.
func IsAuthText(s string) bool { return isAuthText(s) }

// rawOr is b where it is JSON that may be passed on, else nil.
func rawOr(b json.RawMessage) json.RawMessage {
	if len(b) == 0 || string(b) == "null" {
		return nil
	}
	return append(json.RawMessage(nil), b...) // b lies in the line's buffer
}
