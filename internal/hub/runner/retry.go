package runner

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub/process"
)

// Retry reports that the agent's model server refused a request, and that the agent repeats it.
type Retry struct {
	Attempt int           // the number of the request that failed, or of the repetition, as the agent counts; else in the row
	Of      int           // how many the agent makes, 0 if unknown
	Status  int           // the HTTP status, 0 if there was no answer or it is unknown
	Wait    time.Duration // until the next request, 0 if unknown
	Reason  string        // the agent's or the server's words, may be empty
}

func (Retry) event() {}

// String returns one line for users.
func (r Retry) String() string {
	var b strings.Builder
	b.WriteString(r.refusal())
	switch {
	case r.Attempt > 0 && r.Of > 0:
		fmt.Fprintf(&b, "; try %d of %d", r.Attempt, r.Of)
	case r.Attempt > 0:
		fmt.Fprintf(&b, "; try %d", r.Attempt)
	default:
		b.WriteString("; the agent tries again")
	}
	if r.Wait > 0 {
		fmt.Fprintf(&b, ", in %v", r.Wait.Round(100*time.Millisecond))
	}
	return b.String()
}

// refusal says how the model server refused the request.
func (r Retry) refusal() string {
	reason := cmp.Or(r.Reason, retryReasons[r.Status])
	switch {
	case r.Status != 0 && reason != "":
		return fmt.Sprintf("the model answered with %s (%d)", reason, r.Status)
	case r.Status != 0:
		return fmt.Sprintf("the model answered with status %d", r.Status)
	case reason != "":
		return "the model did not answer: " + reason
	}
	return "the model did not answer"
}

// retryReasons name the statuses with which model servers ask for patience.
var retryReasons = map[int]string{
	429: "too many requests", 500: "an internal error", 502: "a bad gateway", 503: "service unavailable",
	504: "a gateway timeout", 529: "overloaded",
}

// retrySubject matches what model servers and agents call a refusal that time may cure. retryVerb matches what agents
// call a repetition. A line of standard error that has both reports a retry.
var (
	retrySubject = text.Pattern(`(?i)\b(?:429|5\d\d)\b|too many requests|rate.?limit|overloaded|service unavailable|\b5xx\b|attempt \d+|connection (?:error|refused|reset|lost)|timed? ?out`)
	retryVerb    = text.Pattern(`(?i)\bretry(?:ing)?\b|\bretries\b|trying again|back(?:ing)? ?off\b|reconnecting`)
	retryOver    = text.Pattern(`(?i)exceeded retry|retry limit|(?:no|without) (?:more )?retries|not retrying|giving up|gave up|max(?:imum)? retr`)
	retryStatus  = text.Pattern(`(?i)\b(?:status(?: code)?|http(?:/[\d.]+)?|error)\b[ :=]{1,2}"?([45]\d\d)\b|\b(429|5\d\d)\b`)
	retryAttempt = text.Pattern(`(?i)(?:\battempt|\btry|\bretry(?:ing)?|reconnecting\.*)[ #(:]{1,2}(\d{1,4})\b(?:\s*(?:/|of)\s*(\d{1,4})\b)?`)
	retryWait    = text.Pattern(`(?i)\b(?:in|after) (\d{1,9}(?:\.\d{1,3})?) ?(ms|s|sec|seconds?)\b`)
	// codexRequest matches a line that codex logs for each request, see codexLog.
	codexRequest = text.Pattern(`codex_http_client::client: Request (completed|failed) .*\burl=\S*/(?:responses|chat/completions)\b.*?\bstatus=(\d{3})?`)
)

// codexLog names codex's log of requests: it repeats some of them without an event.
const codexLog = "codex_http_client::"

// geminiLog matches the beginning of an entry of gemini's log, which the hub requests in the ACP mode; logRest matches
// a further line of an entry. stackLine matches a line of a stack trace, whose numbers look like statuses.
var (
	geminiLog = text.Pattern(`^\[\d{4}-\d\d-\d\dT[\d:.]+Z\] \[([A-Z]+)\] `)
	logRest   = text.Pattern(`^(?:$|\s|[}\])]+[,;]?$)`)
	stackLine = text.Pattern(`^\s+at `)
)

// ParseRetry reads a retry out of a line in words, such as "Reconnecting... 2/5 (unexpected status 529 …)". ok is false
// if the line does not report one.
func ParseRetry(line string) (r Retry, ok bool) {
	line = text.Cut(line, maxMessage)
	if !retryVerb().MatchString(line) || retryOver().MatchString(line) || !retrySubject().MatchString(line) && !retryAttempt().MatchString(line) {
		return Retry{}, false
	}
	r.Status = firstNumber(retryStatus().FindStringSubmatch(line))
	if m := retryAttempt().FindStringSubmatch(line); m != nil {
		r.Attempt, r.Of = number(m[1]), number(m[2])
	}
	if m := retryWait().FindStringSubmatch(line); m != nil {
		r.Wait = waitOf(m[1], m[2])
	}
	if r.Status == 0 {
		r.Reason = oneLine(line, 200)
	}
	return r, true
}

// stderrReader reads the lines of an agent's standard error.
type stderrReader struct {
	report func(Retry)
	logged bool // the last entry is one of a log that the hub has requested
}

// line reports whether the line says something to users, as those of the logs that the hub has requested do not.
func (s *stderrReader) line(line string) (keep bool) {
	line = ansi().ReplaceAllString(line, "")
	if s.logged && logRest().MatchString(line) {
		return false
	}
	entry := geminiLog().FindStringSubmatch(line)
	s.logged = entry != nil || strings.Contains(line, codexLog)
	var r Retry
	ok := false
	switch {
	case entry == nil && s.logged:
		r, ok = codexRetry(line)
	case entry == nil && !stackLine().MatchString(line), entry != nil && entry[1] == "WARN":
		r, ok = ParseRetry(line)
	}
	if ok {
		s.report(r)
	}
	return !s.logged
}

// codexRetry reads a line of codex's log of requests. codex repeats requests that got no answer or an error of the
// server, and gives up after other errors.
func codexRetry(line string) (r Retry, ok bool) {
	m := codexRequest().FindStringSubmatch(line)
	if m == nil {
		return Retry{}, false
	}
	r.Status = number(m[2])
	return r, m[1] == "failed" && r.Status == 0 || r.Status >= 500
}

func firstNumber(groups []string) int {
	for _, g := range groups[min(len(groups), 1):] {
		if g != "" {
			return number(g)
		}
	}
	return 0
}

// number reads digits; too many of them are 0.
func number(digits string) int {
	n, _ := strconv.Atoi(digits)
	return n
}

func waitOf(digits, unit string) time.Duration {
	n, _ := strconv.ParseFloat(digits, 64) // digits are a number
	if strings.EqualFold(unit, "ms") {
		return time.Duration(n * float64(time.Millisecond))
	}
	return time.Duration(min(n, 1e6) * float64(time.Second))
}

// Stderr returns the reader of a process's standard error for process.Command: it passes retries to report, and omits
// lines of logs that only the hub has requested. report is called on the goroutine that reads the process.
func Stderr(report func(Retry)) func(line string) (keep bool) {
	return (&stderrReader{report: report}).line
}

var ansi = text.Pattern(`\x1b\[[0-9;]*m`)

// Watch lets w count the retries of the turn, and what ends their row.
func (a *Answer) Watch(w *process.Watch) { a.watch = w }

// Retry reports a retry. That is no progress: agents retry for ever. After the first refusal an agent may refresh its
// credentials.
func (a *Answer) Retry(r Retry) {
	a.stalled = true
	r.Reason = a.redact(oneLine(r.Reason, maxMessage))
	a.row++
	r.Attempt = cmp.Or(r.Attempt, a.row)
	if r.Status == 401 || IsAuthText(r.Reason) {
		a.authRuns++
		a.message = text.Cut(cmp.Or(r.Reason, r.String()), maxMessage)
	}
	if a.watch != nil {
		a.watch.Retry()
	}
	a.refusal = r
	if a.notices++; a.notices <= maxNotices {
		a.h.Event(r)
	}
}

// refused records an error that the agent may survive or not, as it does not say.
func (a *Answer) refused(message string) {
	a.stalled = true
	if IsAuthText(message) {
		a.authRuns++
		a.message = a.redact(text.Cut(strings.TrimSpace(message), maxMessage))
	}
	a.Notice(message)
}

// progress ends a row of retries.
func (a *Answer) progress() {
	a.row = 0
	if a.watch != nil {
		a.watch.Progress()
	}
}

// Refusal returns the retry that was reported last.
func (a *Answer) Refusal() Retry { return a.refusal }

// RetriesError returns the error of a turn that was stopped because the agent retried for too long. cause is
// context.Cause of a process.Watch's context, last the retry reported last.
func (d Definition) RetriesError(cause error, last Retry) *Error {
	limit, key := fmt.Sprintf("%d times without anything else", d.Limits.Retries), "retries"
	if errors.Is(cause, process.ErrRetryTime) {
		limit, key = fmt.Sprintf("and nothing else for %v", d.Limits.Retrying), "retrying"
	}
	return &Error{
		Code:    CodeUnavailable,
		Message: fmt.Sprintf("%s was stopped: %s, %s (limits.%s)", d.Name, last.refusal(), limit, key),
		Remedy:  fmt.Sprintf("try again later, choose another agent, or raise agents.%s.limits.%s in the configuration", d.ID, key),
		Err:     cause,
	}
}
