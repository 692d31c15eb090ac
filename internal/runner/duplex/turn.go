package duplex

import (
	"context"
	"strings"
	"sync"

	"github.com/parleyhub/parley/internal/runner"
)

// maxToolOutput is how many bytes of a tool's output are passed on.
const maxToolOutput = 64 << 10

// pauser stops the clocks of a turn while a person is asked.
type pauser interface {
	Pause()
	Resume()
}

// Turn takes what an agent says while it answers one prompt. It bounds it,
// answers permission requests by the definition's policy or the handler, and
// passes the rest on in order. Its methods may be called from any goroutine;
// after the end of the turn they do nothing.
type Turn struct {
	policy    string
	maxOutput int
	maxInput  int
	handler   runner.Handler
	clocks    pauser
	mailbox   *mailbox
	delivered chan struct{}

	// asking ends when the turn is cancelled or over.
	asking    context.Context
	endAsking context.CancelFunc
	asks      sync.WaitGroup

	mu        sync.Mutex
	over      bool
	pending   int
	text      strings.Builder
	thoughts  int
	truncated bool
	paragraph bool
	usage     runner.Usage
	denials   []runner.ToolCall
	denied    map[string]bool
	session   runner.SessionStarted
}

func newTurn(def runner.Definition, known runner.SessionStarted, h runner.Handler, clocks pauser) *Turn {
	t := &Turn{
		policy:    def.Permissions,
		maxOutput: def.Limits.MaxOutput,
		maxInput:  def.Limits.MaxLine,
		handler:   h,
		session:   known,
		clocks:    clocks,
		mailbox:   newMailbox(),
		delivered: make(chan struct{}),
		denied:    make(map[string]bool),
	}
	t.asking, t.endAsking = context.WithCancel(context.Background())
	go func() {
		defer close(t.delivered)
		t.mailbox.deliver(h.Event)
	}()
	return t
}

// Text adds a piece to the answer.
func (t *Turn) Text(s string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s == "" || t.over {
		return
	}
	if t.paragraph && t.text.Len() > 0 && !strings.HasSuffix(t.text.String(), "\n") {
		s = "\n\n" + s
	}
	t.paragraph = false
	room := t.maxOutput - t.text.Len()
	if len(s) > room {
		t.truncated = true
		s = cut(s, room)
	}
	if s == "" {
		return
	}
	t.text.WriteString(s)
	t.mailbox.put(runner.TextDelta{Text: s})
}

// Paragraph says that the next piece begins a new message: agents say something
// before and after each tool, and the pieces must not run together.
func (t *Turn) Paragraph() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.paragraph = true
}

// HasText reports whether there is any answer yet.
func (t *Turn) HasText() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Len() > 0
}

// Thought adds a piece of reasoning; as much of it is passed on as of an answer.
func (t *Turn) Thought(s string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s = cut(s, max(t.maxOutput-t.thoughts, 0))
	if s == "" || t.over {
		return
	}
	t.thoughts += len(s)
	t.mailbox.put(runner.Thought{Text: s})
}

// Tool reports a tool call. One that was denied stays so.
func (t *Turn) Tool(tc runner.ToolCall) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if tc.ID == "" || len(tc.ID) > maxLabel || t.over {
		return
	}
	if t.denied[tc.ID] {
		tc.Status = runner.ToolDenied
	}
	t.mailbox.put(t.boundTool(tc))
}

func (t *Turn) boundTool(tc runner.ToolCall) runner.ToolCall {
	tc.Name = clip(tc.Name, maxLabel)
	tc.Title = clip(tc.Title, maxLabel)
	tc.Output = clip(tc.Output, maxToolOutput)
	if len(tc.Input) > t.maxInput {
		tc.Input = nil
	}
	return tc
}

// Usage reports the turn's cost so far.
func (t *Turn) Usage(u runner.Usage) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over || u == (runner.Usage{}) {
		return
	}
	t.usage = u
	t.mailbox.put(u)
}

// Notice tells the user something that is neither answer nor error.
func (t *Turn) Notice(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over || text == "" {
		return
	}
	t.mailbox.put(runner.Notice{Text: clip(text, maxLabel)})
}

// Session reports the agent's id of the conversation, where it is news. An id
// that cannot be used to resume is not kept.
func (t *Turn) Session(s runner.SessionStarted) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over || !runner.ValidSessionID(s.ID) || s == t.session {
		return
	}
	t.session = s
	t.mailbox.put(s)
}

// Deny records a tool that was refused, by whomever.
func (t *Turn) Deny(tc runner.ToolCall) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over || t.denied[tc.ID] || len(t.denials) >= maxTools {
		return
	}
	tc = t.boundTool(tc)
	tc.Status = runner.ToolDenied
	t.denials = append(t.denials, tc)
	if tc.ID != "" && len(tc.ID) <= maxLabel {
		t.denied[tc.ID] = true
		t.mailbox.put(tc)
	}
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

func (t *Turn) started() runner.SessionStarted {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.session
}

// outcome is what the turn has gathered. Call it after end.
func (t *Turn) outcome(status runner.OutcomeStatus) runner.Outcome {
	t.mu.Lock()
	defer t.mu.Unlock()
	return runner.Outcome{
		Status:    status,
		Text:      t.text.String(),
		Truncated: t.truncated,
		Denials:   t.denials,
		Usage:     t.usage,
		ExitCode:  -1,
	}
}
