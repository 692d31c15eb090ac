package duplex

import (
	"context"
	"slices"
	"sync"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// Turn collects what an agent reports while it answers one prompt, and asks for
// permissions. Its methods are safe for concurrent use, except Ask do not wait for
// the handler, and do nothing after the end of the turn.
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

// Paragraph begins a new message: an agent's texts before and after a tool must not
// run together.
func (t *Turn) Paragraph() { t.Report(func(a *runner.Answer) { a.Paragraph() }) }

// Thought adds a piece of reasoning.
func (t *Turn) Thought(s string) { t.Report(func(a *runner.Answer) { a.Thought(s) }) }

// Usage reports the turn's cost so far.
func (t *Turn) Usage(u runner.Usage) { t.Report(func(a *runner.Answer) { a.Usage(u) }) }

// Notice reports something that is neither answer nor error.
func (t *Turn) Notice(s string) { t.Report(func(a *runner.Answer) { a.Notice(s) }) }

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
	if d, ok := byPolicy(t.policy, req.Options); ok {
		t.settle(req, d)
		return d
	}
	if !t.begin() {
		if t.asking.Err() != nil {
			return Decision{}
		}
		t.Notice("the agent asks for too many permissions at once: some are refused")
		t.Deny(req.Tool)
		return refuse(req.Options, "too many requests at once")
	}
	defer t.finish()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.asking, cancel)()

	if len(req.Options) == 0 {
		t.Notice("the agent asks for a permission and offers no answer: refused")
		t.Deny(req.Tool)
		return Decision{}
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

// begin registers a request. It returns false if the turn has ended or too many
// requests wait.
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

// end ends the turn: it cancels the waiting requests and returns when all events are
// delivered.
func (t *Turn) end() {
	t.endAsking()
	t.mu.Lock()
	t.over = true
	t.mu.Unlock()
	t.asks.Wait()
	t.mailbox.close()
	<-t.delivered
}
