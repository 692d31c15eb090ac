package duplex

import (
	"context"
	"sync"

	"github.com/parleyhub/parley/internal/hub/runner"
)

// pauser stops the clocks of a turn while a person is asked.
type pauser interface {
	Pause()
	Resume()
}

// Turn takes what an agent says while it answers one prompt: an Answer for many
// goroutines, whose events reach the handler without holding up the agent, and
// which also answers permission requests. After the end of the turn its methods do
// nothing.
type Turn struct {
	policy    string
	handler   runner.Handler
	clocks    pauser
	mailbox   *mailbox
	delivered chan struct{}

	// asking ends when the turn is cancelled or over.
	asking    context.Context
	endAsking context.CancelFunc
	asks      sync.WaitGroup

	mu      sync.Mutex
	answer  *runner.Answer
	over    bool
	pending int
}

func newTurn(o Options, known runner.SessionStarted, h runner.Handler, clocks pauser) *Turn {
	t := &Turn{
		policy:    o.Definition.Permissions,
		handler:   h,
		clocks:    clocks,
		mailbox:   newMailbox(),
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

// Tell lets f tell the answer something. f must not block.
func (t *Turn) Report(f func(a *runner.Answer)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.over {
		f(t.answer)
	}
}

// Text adds a piece to the answer.
func (t *Turn) Text(s string) { t.Report(func(a *runner.Answer) { a.Text(s) }) }

// Paragraph says that the next piece begins a new message: agents say something
// before and after each tool, and the pieces must not run together.
func (t *Turn) Paragraph() { t.Report(func(a *runner.Answer) { a.Paragraph() }) }

// Thought adds a piece of reasoning.
func (t *Turn) Thought(s string) { t.Report(func(a *runner.Answer) { a.Thought(s) }) }

// Usage reports the turn's cost so far.
func (t *Turn) Usage(u runner.Usage) { t.Report(func(a *runner.Answer) { a.Usage(u) }) }

// Notice tells the user something that is neither answer nor error.
func (t *Turn) Notice(s string) { t.Report(func(a *runner.Answer) { a.Notice(s) }) }

// Session reports the agent's id of the conversation. Saying it again is
// harmless.
func (t *Turn) Session(s runner.SessionStarted) {
	t.Report(func(a *runner.Answer) { a.Session(s.ID, s.Model) })
}

// Tool reports a tool call. One that was denied stays so.
func (t *Turn) Tool(tc runner.ToolCall) {
	if tc.ID != "" && len(tc.ID) <= maxLabel {
		t.Report(func(a *runner.Answer) { a.Tool(labelled(tc)) })
	}
}

// Deny records a tool that was refused, by whomever.
func (t *Turn) Deny(tc runner.ToolCall) {
	tc = labelled(tc)
	tc.ID = cut(tc.ID, maxLabel)
	tc.Status = runner.ToolDenied
	t.Report(func(a *runner.Answer) { a.Tool(tc) })
}

// labelled bounds a tool call's words for people.
func labelled(tc runner.ToolCall) runner.ToolCall {
	tc.Name, tc.Title = clip(tc.Name, maxLabel), clip(tc.Title, maxLabel)
	return tc
}

// Ask gets a decision on a request and blocks until there is one, ctx ends or
// the turn is over. It must not be called on the goroutine that reads the
// agent; Go runs it on another.
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
	t.clocks.Pause()
	answer, err := t.handler.Permission(ctx, req)
	t.clocks.Resume()
	if ctx.Err() != nil {
		return Decision{}
	}
	d := decide(req, answer, err)
	t.settle(req, d)
	return d
}

// decide turns the handler's answer into a decision. Whatever is not a clear
// answer denies.
func decide(req runner.PermissionRequest, answer runner.PermissionAnswer, err error) Decision {
	if err != nil {
		return refuse(req.Options, "nobody could be asked")
	}
	for _, o := range req.Options {
		if o.ID == answer.OptionID {
			return Decision{Option: o, Message: answer.Message}
		}
	}
	return refuse(req.Options, "the answer was none of the options")
}

func (t *Turn) settle(req runner.PermissionRequest, d Decision) {
	if !d.Allowed() {
		t.Deny(req.Tool)
	}
}

// begin counts a request in; it refuses when the turn is over or too many wait.
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

// end closes the turn: requests that wait are let go, and what was reported is
// delivered before it returns.
func (t *Turn) end() {
	t.endAsking()
	t.mu.Lock()
	t.over = true
	t.mu.Unlock()
	t.asks.Wait()
	t.mailbox.close()
	<-t.delivered
}

// result is what the turn has gathered, and the session as it is known now. Call
// it after end.
func (t *Turn) result(status runner.OutcomeStatus) (runner.Outcome, runner.SessionStarted) {
	return t.answer.Outcome(status), t.answer.Started()
}
