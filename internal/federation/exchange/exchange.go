// Package exchange has the turns of agents that are reached by envelopes: those of other hubs, and those of connected Go
// programs.
package exchange

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

const (
	maxAnswers = 4096            // buffered envelopes of one answer
	cancelTime = 3 * time.Second // for the agent's end to cancel a task
	// repeatTime is how long an answer may be silent before its request is repeated: its end may be lost.
	repeatTime   = 2 * time.Minute
	sessionPause = 30 * time.Second // the same for a durable agent, whose text is not always streamed
)

// Route is the way to an agent. Set the fields before the first use; it is then safe for concurrent use.
type Route struct {
	Agent string // its id in the node
	At    string // where it is, for errors: the name of its hub
	// Durable agents have tasks that wait for them: requests are made only when the agent is ready, and with keys.
	Durable bool
	// Hub has the tasks.
	Hub *hub.Hub
	// Contact returns how to ask the agent now.
	Contact func() Contact
	// Sender returns who asks agents of a tier, nil for none.
	Sender func(agent.Tier) *Sender
	// Chain returns a delegation chain as the agent's end knows it.
	Chain func([]string) []string
	// Abandon is called with a turn that was canceled before the agent's end has confirmed it.
	Abandon func(task string, turn int)
	// Returned is sent when the agent can be reached again, so that it is asked at once; nil: it is asked again after a pause.
	Returned *wait.Signal
	// Describe adds to the payload of a request; nil adds nothing.
	Describe func(ctx context.Context, turn runner.Turn, request map[string]any)
}

// Contact is what is known of an agent before a request.
type Contact struct {
	Tier  agent.Tier
	Keyed bool // requests may have keys
	Ready bool // it can be reached now
}

// Open returns a conversation, which is a thread of envelopes.
func (r *Route) Open(thread string) runner.Session { return &session{r: r, thread: thread} }

type session struct {
	r      *Route
	thread string
	busy   sync.Mutex
}

// Close implements [runner.Session]. The agent's end keeps the conversation.
func (s *session) Close(context.Context) error { return nil }

// Turn implements [runner.Session]. It sends a request to the agent and reads the stream of its answer.
func (s *session) Turn(ctx context.Context, turn runner.Turn, h runner.Handler) (runner.Outcome, error) {
	if !s.busy.TryLock() {
		return failed(runner.CodeBusy, "a turn is running already in this session", "")
	}
	defer s.busy.Unlock()
	prompt, perr := runner.PromptText(turn.Parts, runner.Limits{}.WithDefaults().MaxPrompt)
	if perr != nil {
		return runner.Outcome{Status: runner.OutcomeFailed, ExitCode: -1}, perr
	}
	x := &exchange{s: s, turn: turn, prompt: prompt, answer: answer{h: h}, began: time.Now()}
	return x.run(ctx)
}

func failed(code runner.Code, message, remedy string) (runner.Outcome, error) {
	return runner.Outcome{Status: runner.OutcomeFailed, ExitCode: -1}, &runner.Error{Code: code, Message: message, Remedy: remedy}
}

// exchange is one turn at another hub's agent. Its request has a key if that hub knows keys; then it is repeated whenever the
// link was lost, and the other hub answers with what the first one has led to.
type exchange struct {
	s      *session
	turn   runner.Turn
	prompt string
	answer answer
	began  time.Time
	sent   bool // a request has left
	waits  bool // the sender was told that the task waits
}

// run repeats the request until it is answered. The hub ends ctx at the turn's deadline.
func (x *exchange) run(ctx context.Context) (runner.Outcome, error) {
	retry := wait.Backoff{First: 100 * time.Millisecond, Most: 10 * time.Second}
	for {
		var returned <-chan struct{}
		if back := x.s.r.Returned; back != nil {
			returned = back.Wait()
		}
		out, err, ended := x.attempt(ctx)
		if ended {
			out.ExitCode, out.Duration = -1, time.Since(x.began)
			return out, err
		}
		if x.answer.started {
			retry.Reset()
		}
		if !pause(ctx, retry.Next(), returned) {
			x.abandon(ctx)
			return x.canceled(), nil
		}
	}
}

// pause waits for d, or until the agent has returned. It reports false if ctx ends first.
func pause(ctx context.Context, d time.Duration, returned <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-returned:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// attempt sends the request once and reads its answer. It returns ended unless the request is to be repeated.
func (x *exchange) attempt(ctx context.Context) (out runner.Outcome, err error, ended bool) {
	r := x.s.r
	at := r.Contact()
	switch {
	case r.Durable && !at.Ready:
		x.sayWaits(ctx)
		return out, nil, false
	case x.sent && !at.Ready:
		return x.lost()
	}
	f := r.Sender(at.Tier)
	if f == nil {
		out, err = failed(runner.CodeConfig, "the hub cannot send to agents of tier "+at.Tier.String(), "")
		return out, err, true
	}
	answers, done := f.Subscribe(r.Agent, x.s.thread)
	defer done()
	id, err := f.Send(ctx, r.Agent, x.s.thread, envelope.Request, x.request(ctx, at.Keyed), x.turn.TraceParent)
	if err != nil {
		if r.Durable || ctx.Err() != nil || x.sent {
			return out, nil, false
		}
		out, err = failed(runner.CodeAgent, fmt.Sprintf("cannot send the request to %s: %v", r.At, err), "")
		return out, err, true
	}
	x.sent = true
	x.answer.begin(id, at.Keyed, r.Durable)
	return x.read(ctx, f, answers, at.Keyed)
}

// sayWaits tells the sender once that the agent cannot be reached yet.
func (x *exchange) sayWaits(ctx context.Context) {
	if x.waits || x.sent {
		return
	}
	x.waits = true
	x.answer.h.Event(hub.WaitingNotice(x.s.r.At+" is not connected", x.s.r.Hub.Deadline(ctx, a2a.TaskID(x.turn.TaskID))))
}

// request returns the payload of the request.
func (x *exchange) request(ctx context.Context, keyed bool) map[string]any {
	asked := map[string]any{"text": x.prompt, "stream": true}
	if len(x.turn.Chain) > 0 {
		asked["over"] = x.s.r.Chain(x.turn.Chain)
	}
	if x.s.r.Describe != nil {
		x.s.r.Describe(ctx, x.turn, asked)
	}
	if !keyed {
		return asked
	}
	asked["key"], asked["turn"] = x.turn.TaskID, x.turn.Number
	if left := x.s.r.remaining(ctx, x.turn.TaskID); left > 0 {
		asked["timeoutMs"] = left.Milliseconds()
	}
	return asked
}

// remaining returns how long a task may still take; 0 if it has no deadline.
func (r *Route) remaining(ctx context.Context, id string) time.Duration {
	deadline := r.Hub.Deadline(ctx, a2a.TaskID(id))
	if deadline.IsZero() {
		return 0
	}
	return max(time.Until(deadline), time.Second)
}

// lost is the end of a turn whose answer is lost.
func (x *exchange) lost() (runner.Outcome, error, bool) {
	out, err := failed(runner.CodeProtocol, "the connection with "+x.s.r.At+" ended before its answer; the task may still run there",
		"look there, or send the message again")
	return out, err, true
}

// read handles the answer until it ends.
func (x *exchange) read(ctx context.Context, f *Sender, answers <-chan *envelope.Envelope, keyed bool) (out runner.Outcome, err error, ended bool) {
	pause := repeatTime
	if x.s.r.Durable {
		pause = sessionPause
	}
	silent := time.NewTimer(pause)
	defer silent.Stop()
	for {
		select {
		case e, ok := <-answers:
			switch {
			case !ok && keyed:
				return out, nil, false
			case !ok:
				return x.lost()
			case e == nil && keyed:
				return out, nil, false
			case e == nil:
				continue
			}
			silent.Reset(pause)
			out, err, ended = x.answer.handle(e)
			if x.answer.refused {
				return out, nil, false
			}
			if ended {
				return out, err, true
			}
		case <-silent.C:
			if keyed {
				return out, nil, false
			}
		case <-ctx.Done():
			out, err = x.cancel(ctx, f, answers, keyed)
			return out, err, true
		}
	}
}

// cancel cancels the turn at the other hub and waits briefly for its end.
func (x *exchange) cancel(ctx context.Context, f *Sender, answers <-chan *envelope.Envelope, keyed bool) (runner.Outcome, error) {
	if x.s.r.Durable && hub.Stopping(ctx) {
		return x.canceled(), nil // the hub's next run goes on with it
	}
	timer := time.NewTimer(cancelTime)
	defer timer.Stop()
	last, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelTime)
	defer stop()
	// If this does not arrive, the timer ends the turn here.
	payload := Cancellation(x.turn.TaskID, x.turn.Number)
	if !keyed {
		payload = map[string]any{"cancel": true}
	}
	_, _ = f.Send(last, x.s.r.Agent, x.s.thread, envelope.Notification, payload, "")
	for {
		select {
		case e, ok := <-answers:
			if !ok {
				x.abandon(ctx)
				return x.canceled(), nil
			}
			if e == nil {
				continue // the timer ends the turn, and the cancellation is repeated
			}
			if out, err, ended := x.answer.handle(e); ended {
				return out, err
			}
		case <-timer.C:
			x.abandon(ctx)
			return x.canceled(), nil
		}
	}
}

func (x *exchange) canceled() runner.Outcome {
	return runner.Outcome{Status: runner.OutcomeCanceled, ExitCode: -1, Text: x.answer.text.String()}
}

// abandon ends a turn that was canceled before the agent's end has ended it.
func (x *exchange) abandon(ctx context.Context) {
	r := x.s.r
	if r.Durable && hub.Stopping(ctx) || !r.Contact().Keyed {
		return
	}
	r.Abandon(x.turn.TaskID, x.turn.Number)
}

// Cancellation is the payload that cancels a turn.
func Cancellation(task string, turn int) map[string]any {
	return map[string]any{"cancel": true, "key": task, "turn": turn}
}

// Temporary reports whether the error with a code may not come again.
func Temporary(code string) bool { return code == "UNAVAILABLE" || code == "TIMEOUT" }
