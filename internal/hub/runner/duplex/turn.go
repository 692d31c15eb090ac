package duplex

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// Turn collects what an agent reports while it answers one prompt, and asks for permissions. Its methods are safe
// for concurrent use, except Ask do not wait for the handler, and do nothing after the end of the turn.
type Turn struct {
	policy    string
	handler   runner.Handler
	watch     *process.Watch // paused while the user is asked
	mailbox   *mailbox
	delivered chan struct{}

	// asking ends when the turn is cancelled or has ended.
	asking    context.Context
	endAsking context.CancelFunc
	asks      sync.WaitGroup

	mu      sync.Mutex
	answer  *runner.Answer
	over    bool
	pending int
}

func newTurn(o Options, known runner.SessionStarted, h runner.Handler, watch *process.Watch) *Turn {
	t := &Turn{
		policy: o.Definition.Permissions, handler: h, watch: watch, mailbox: newMailbox(),
		delivered: make(chan struct{}),
	}
	t.answer = runner.NewAnswer(t.mailbox, o.Definition.Limits.MaxOutput, o.Redact, known)
	t.answer.Watch(watch)
	t.asking, t.endAsking = context.WithCancel(context.Background())
	go func() {
		defer close(t.delivered)
		t.mailbox.deliver(h.Event)
	}()
	return t
}

// Report calls f with the answer. f must not block.
func (t *Turn) Report(f func(a *runner.Answer)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.over {
		f(t.answer)
	}
}

// Text adds a piece to the answer.
func (t *Turn) Text(s string) { t.Report(func(a *runner.Answer) { a.Text(s) }) }

// Paragraph begins a new message: an agent's texts before and after a tool must not run together.
func (t *Turn) Paragraph() { t.Report(func(a *runner.Answer) { a.Paragraph() }) }

// Thought adds a piece of reasoning.
func (t *Turn) Thought(s string) { t.Report(func(a *runner.Answer) { a.Thought(s) }) }

// Usage reports the turn's cost so far.
func (t *Turn) Usage(u runner.Usage) { t.Report(func(a *runner.Answer) { a.Usage(u) }) }

// Notice reports something that is neither answer nor error.
func (t *Turn) Notice(s string) { t.Report(func(a *runner.Answer) { a.Notice(s) }) }

// Retry reports that the agent repeats a request that its model server refused.
func (t *Turn) Retry(r runner.Retry) { t.Report(func(a *runner.Answer) { a.Retry(r) }) }

// refusal returns the retry that was reported last.
func (t *Turn) refusal() runner.Retry {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.answer.Refusal()
}

// Session reports the agent's id of the conversation. It may be repeated.
func (t *Turn) Session(s runner.SessionStarted) {
	t.Report(func(a *runner.Answer) { a.Session(s.ID, s.Model) })
}

// Tool reports a tool call. A denied call stays denied.
func (t *Turn) Tool(tc runner.ToolCall) {
	if tc.ID != "" && len(tc.ID) <= maxLabel {
		t.Report(func(a *runner.Answer) { a.Tool(labelled(tc)) })
	}
}

// Deny reports a tool call that the user, the policy or the agent denied.
func (t *Turn) Deny(tc runner.ToolCall) {
	tc = labelled(tc)
	tc.ID = text.Cut(tc.ID, maxLabel)
	tc.Status = runner.ToolDenied
	t.Report(func(a *runner.Answer) { a.Tool(tc) })
}

// labelled bounds a tool call's name and title.
func labelled(tc runner.ToolCall) runner.ToolCall {
	tc.Name, tc.Title = clip(tc.Name, maxLabel), clip(tc.Title, maxLabel)
	return tc
}

// Ask returns the decision on a request. It blocks until there is one, ctx ends or the
// turn ends. It must not be called on the goroutine that reads the agent.
func (t *Turn) Ask(ctx context.Context, req runner.PermissionRequest) Decision {
	req = bounded(req)
	if d, ok := t.claimed(ctx, req); ok {
		return d
	}
	if d, ok := byPolicy(t.policy, req.Options); ok {
		t.settle(req, d)
		t.decided(req, d, runner.ByPolicy)
		return d
	}
	if !t.begin() {
		if t.asking.Err() != nil {
			return Decision{}
		}
		t.Notice("the agent asks for too many permissions at once: some are refused")
		return t.refused(req, "too many requests at once")
	}
	defer t.finish()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.asking, cancel)()

	if len(req.Options) == 0 {
		t.Notice("the agent asks for a permission and offers no answer: refused")
		return t.refused(req, "the request offers no answer")
	}
	t.watch.Pause()
	answer, err := t.handler.Permission(ctx, req)
	t.watch.Resume()
	if ctx.Err() != nil {
		return Decision{}
	}
	d := decide(req, answer, err)
	t.settle(req, d)
	return d
}

// claimed refuses a request to change files that another agent has claimed, whatever the policy; ok is false if there are none.
func (t *Turn) claimed(ctx context.Context, req runner.PermissionRequest) (d Decision, ok bool) {
	guard, ok := t.handler.(runner.Guard)
	if !ok || !t.begin() {
		return Decision{}, false
	}
	defer t.finish()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.asking, cancel)()
	why := guard.Claimed(ctx, req.Tool)
	if why == (runner.Refusal{}) {
		return Decision{}, false
	}
	d = refuse(req.Options, why.Text)
	d.Claimed = why.Plain
	t.Deny(req.Tool)
	t.decided(req, d, runner.ByClaim)
	return d, true
}

// decide translates the handler's answer. An unclear answer denies.
func decide(req runner.PermissionRequest, answer runner.PermissionAnswer, err error) Decision {
	if err != nil {
		return refuse(req.Options, "nobody could be asked")
	}
	i := slices.IndexFunc(req.Options, func(o runner.PermissionOption) bool { return o.ID == answer.OptionID })
	if i < 0 {
		return refuse(req.Options, "the answer was none of the options")
	}
	return Decision{Option: req.Options[i], Message: answer.Message}
}

func (t *Turn) settle(req runner.PermissionRequest, d Decision) {
	if !d.Allowed() {
		t.Deny(req.Tool)
	}
}

// decided reports a decision that the user did not make.
func (t *Turn) decided(req runner.PermissionRequest, d Decision, by runner.Decider) {
	t.Report(func(a *runner.Answer) {
		a.Decided(runner.PermissionDecided{Request: req, Answer: runner.PermissionAnswer{OptionID: d.Option.ID, Message: d.Message}, By: by})
	})
}

// refused refuses a request about which nobody can be asked.
func (t *Turn) refused(req runner.PermissionRequest, message string) Decision {
	d := refuse(req.Options, message)
	t.Deny(req.Tool)
	t.decided(req, d, runner.ByLimit)
	return d
}

// begin registers a request. It returns false if the turn has ended or too many requests wait.
func (t *Turn) begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over || t.pending >= maxAsking {
		return false
	}
	t.pending++
	t.asks.Add(1)
	return true
}

func (t *Turn) finish() {
	t.mu.Lock()
	t.pending--
	t.mu.Unlock()
	t.asks.Done()
}

// end ends the turn: it cancels the waiting requests and returns when all events are delivered.
func (t *Turn) end() {
	t.endAsking()
	t.mu.Lock()
	t.over = true
	t.mu.Unlock()
	t.asks.Wait()
	t.mailbox.close()
	<-t.delivered
}

// Bounds of permission requests.
const (
	maxAsking  = 32   // requests of a turn that wait for an answer; more are refused
	maxOptions = 32   // options of a request
	maxLabel   = 1024 // bytes of a title, name or id
)

// Decision is the answer to a permission request. The zero value is no decision: the
// turn ended, no user could be asked, or no option fits.
type Decision struct {
	Option  runner.PermissionOption // the chosen one; its Kind says whether it allows
	Message string                  // for the agent, may be empty
	// Claimed says that another agent has claimed a file, in words that are no agent's; "" if nobody has.
	Claimed string
}

// Answered reports whether an option was chosen.
func (d Decision) Answered() bool { return d.Option.ID != "" }

// Allowed reports whether the request is granted.
func (d Decision) Allowed() bool {
	return d.Answered() && slices.Contains(runner.Allow, d.Option.Kind)
}

// byPolicy answers a request by Definition.Permissions; ok is false if the user must be asked.
func byPolicy(policy string, options []runner.PermissionOption) (d Decision, ok bool) {
	switch policy {
	case runner.PermissionsAllow:
		if o, found := runner.Choose(options, runner.Allow); found {
			return Decision{Option: o}, true
		}
		return refuse(options, "the agent offers no way to allow this"), true
	case runner.PermissionsDeny:
		return refuse(options, "this agent's configuration denies every request"), true
	default:
		return Decision{}, false
	}
}

// refuse chooses the option that denies. Without one there is no decision, which every protocol treats as a denial.
func refuse(options []runner.PermissionOption, message string) Decision {
	o, _ := runner.Choose(options, runner.Reject)
	return Decision{Option: o, Message: message}
}

// bounded shortens the request's lists and labels. It omits options of an unknown kind
// or without an id, because their effect is unknown.
func bounded(req runner.PermissionRequest) runner.PermissionRequest {
	options := make([]runner.PermissionOption, 0, min(len(req.Options), maxOptions))
	for _, o := range req.Options {
		if len(options) == maxOptions {
			break
		}
		if o.ID == "" || len(o.ID) > maxLabel || !slices.Contains(runner.Allow, o.Kind) && !slices.Contains(runner.Reject, o.Kind) {
			continue
		}
		o.Name = clip(o.Name, maxLabel)
		options = append(options, o)
	}
	req.Options = options
	req.Title = clip(req.Title, maxLabel)
	req.Tool = labelled(req.Tool)
	return req
}

// clip cuts s to at most n bytes, at the boundary of a character, and says so
// with an ellipsis where there is room for one.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	const mark = "…"
	if n <= len(mark) {
		return text.Cut(s, n)
	}
	return text.Cut(s, n-len(mark)) + mark
}

// OneLine returns a label for a text: its first line that is not empty, shortened.
func OneLine(s string) string {
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" {
			return clip(line, maxLabel)
		}
	}
	return ""
}

// ErrorText returns the readable part of an agent's error. Agents forward the JSON of their model's server.
func ErrorText(s string) string {
	s = strings.TrimSpace(s)
	var nested struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal([]byte(s), &nested) == nil && nested.Error.Message != "" {
		return nested.Error.Message
	}
	return s
}
