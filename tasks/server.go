package tasks

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/defaults"
	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/router"
	"github.com/parleyhub/parley/telemetry"
)

// Code is the kind of an [Error].
type Code string

// The codes of an [Error].
const (
	CodeInvalid Code = "INVALID_TASK_SERVER" // no router, or no handler
	CodeTaken   Code = "TASK_SERVER_EXISTS"  // the agent has a server already
)

// Error is what the package returns.
type Error = fault.Error[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }

// DefaultConcurrency is the default of [Options].Concurrency.
const DefaultConcurrency = 16

// DefaultDecision is the default of [Options].Decision.
const DefaultDecision = 5 * time.Second

// Options set up a Server. The zero Options are valid.
type Options struct {
	Concurrency int // tasks that the handler does at once; more wait. 0 means DefaultConcurrency
	// Decision is the time in which a handler can refuse its task. After it, or after the first report, the task is being
	// worked on, and a refusal fails it. 0 means DefaultDecision.
	Decision time.Duration
}

// The bounds of what a server remembers.
const (
	maxOpen     = 1000     // tasks that are not done
	maxKept     = 1000     // answers that can be sent again
	maxKeptSize = 64 << 20 // bytes of these
)

// Server does the tasks that a hub gives to an agent. Make one with [New], and Close it in the end. It is safe for
// concurrent use.
type Server struct {
	r        *router.Router
	id       string
	handler  Handler
	stop     func() // ends receiving
	free     func()
	slots    chan struct{}
	decision time.Duration
	ctx      context.Context
	cancel   context.CancelFunc
	working  wait.Group

	mu       sync.Mutex
	runs     map[key]*run
	kept     []*run // those that are done, the oldest first
	keptSize int
}

// key is a turn of a task.
type key struct {
	task string
	turn int
}

// run is one turn.
type run struct {
	key    key
	cancel context.CancelFunc // ends the handler's context
	done   chan struct{}      // closed when answer is set

	mu       sync.Mutex
	answer   *result
	started  bool
	status   string
	percent  float64
	news     chan struct{} // of capacity 1; has a value when there is something to report
	unstream func()        // ends the stream of an earlier request
}

// New makes an agent of the router do tasks. The agent's other handlers do not receive the hub's requests.
func New(r *router.Router, agentID string, h Handler, o Options) (*Server, error) {
	if r == nil || h == nil {
		return nil, &Error{Code: CodeInvalid, Subject: agentID, Message: fmt.Sprintf("%q needs a router and a handler for tasks", agentID)}
	}
	free, ok := r.Reserve(agentID, "tasks")
	if !ok {
		return nil, &Error{Code: CodeTaken, Subject: agentID, Message: fmt.Sprintf("%q serves tasks already", agentID)}
	}
	defaults.Set(&o.Concurrency, DefaultConcurrency)
	defaults.Set(&o.Decision, DefaultDecision)
	s := &Server{r: r, id: agentID, handler: h, free: free, decision: o.Decision, slots: make(chan struct{}, o.Concurrency), runs: make(map[key]*run)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.stop = r.Claim(agentID, concerns, s.receive)
	return s, nil
}

// concerns reports whether an envelope is the hub's about a task.
func concerns(e *envelope.Envelope) bool {
	return e.Sender == Hub && (e.Type == envelope.Request || e.Type == envelope.Notification)
}

// Close cancels the tasks that are not done, and waits for their handlers. The hub gives them again when the agent serves
// tasks the next time. A second call does nothing.
func (s *Server) Close() {
	s.stop()
	s.working.Stop()
	s.cancel()
	s.working.Wait()
	s.free()
}

// receive handles an envelope of the hub. It does not block.
func (s *Server) receive(_ context.Context, e *envelope.Envelope) {
	q, err := readRequest(e)
	switch {
	case err != nil && e.Type == envelope.Request:
		s.refuse(e, "INVALID_PAYLOAD", "the request cannot be read: "+err.Error())
	case err != nil:
	case q.Cancel:
		s.canceled(e, key{q.Key, q.Turn})
	case e.Type == envelope.Request:
		s.request(e, q)
	}
}

// request begins a turn, or sends what a repeated request has led to.
func (s *Server) request(e *envelope.Envelope, q request) {
	x, known := s.begin(key{q.Key, q.Turn})
	if x == nil {
		s.refuse(e, "UNAVAILABLE", "the program has too many tasks")
		return
	}
	if !known {
		ctx, cancel := context.WithCancel(s.ctx)
		x.cancel = cancel
		t := q.task(e, x)
		if !s.working.Go(func() { s.do(ctx, x, t) }) {
			cancel()
			return // it closes
		}
	}
	s.follow(e, x, known)
}

// begin returns the run of a turn; nil if there are too many.
func (s *Server) begin(k key) (x *run, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.runs[k]; x != nil {
		return x, true
	}
	if len(s.runs)-len(s.kept) >= maxOpen {
		return nil, false
	}
	x = &run{key: k, done: make(chan struct{}), news: make(chan struct{}, 1), percent: -1}
	s.runs[k] = x
	return x, false
}

// do runs the handler.
func (s *Server) do(ctx context.Context, x *run, t *Task) {
	defer x.cancel()
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		s.interrupted(x)
		return
	}
	defer func() { <-s.slots }()
	if !t.Deadline.IsZero() {
		var end context.CancelFunc
		ctx, end = context.WithDeadline(ctx, t.Deadline)
		defer end()
	}
	begun := time.AfterFunc(s.decision, x.begun)
	defer begun.Stop()
	var a Answer
	err := fault.CatchError(func() (err error) { a, err = s.handler(ctx, t); return err })
	if s.ctx.Err() != nil {
		return // the hub gives the task again
	}
	if crash, panicked := errors.AsType[*fault.Panic](err); panicked {
		event := telemetry.Panicked("the handler of tasks", crash)
		event.Recipient = s.id
		s.r.Telemetry().Emit(event)
		err = errors.New("the program's handler panicked")
	}
	s.finish(x, resultOf(a, err))
}

// interrupted ends a run whose context has ended, unless the server closes.
func (s *Server) interrupted(x *run) {
	if s.ctx.Err() == nil {
		s.finish(x, &result{outcome: canceled})
	}
}

// finish sets the answer of a run, unless it has one, and keeps it so that it can be sent again.
func (s *Server) finish(x *run, r *result) {
	r.id = "task-" + uuid.NewString()
	r.text = strings.ToValidUTF8(r.text, "\uFFFD")
	x.mu.Lock()
	first := x.answer == nil
	if first {
		x.answer = r
		close(x.done)
	}
	x.mu.Unlock()
	if !first {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = append(s.kept, x)
	s.keptSize += r.size()
	for len(s.kept) > maxKept || s.keptSize > maxKeptSize {
		old := s.kept[0]
		s.kept = s.kept[1:]
		s.keptSize -= old.answer.size() // it does not change any more
		delete(s.runs, old.key)
	}
}

// canceled ends the turn that the hub has canceled, and confirms it.
func (s *Server) canceled(e *envelope.Envelope, k key) {
	s.mu.Lock()
	x := s.runs[k]
	s.mu.Unlock()
	if x != nil {
		s.finish(x, &result{outcome: canceled})
		x.cancel()
	}
	s.working.Go(func() {
		s.reply(s.ctx, e, envelope.Response, end{State: string(canceled), Of: e.ID})
	})
}

func (s *Server) refuse(e *envelope.Envelope, code, message string) {
	s.working.Go(func() {
		s.reply(s.ctx, e, envelope.ErrorMessage, failure{Code: code, Message: text.Valid(message, maxMessage), Of: e.ID})
	})
}

// follow sends what a turn does and its answer, in answer to its latest request.
func (s *Server) follow(e *envelope.Envelope, x *run, known bool) {
	ctx, cancel := context.WithCancel(s.ctx)
	x.mu.Lock()
	if x.unstream != nil {
		x.unstream()
	}
	x.unstream = cancel
	x.mu.Unlock()
	if !s.working.Go(func() { defer cancel(); x.stream(ctx, stream{s, x, e}, known) }) {
		cancel()
	}
}

// stream sends until the turn is done, or ctx ends.
func (x *run) stream(ctx context.Context, to stream, known bool) {
	if !to.start(ctx, x.state(), known) {
		return
	}
	for {
		select {
		case <-x.done:
			select { // the last report is part of what the sender knows
			case <-x.news:
				if !to.data(ctx, x.current()) {
					return
				}
			default:
			}
			to.end(ctx, x.answer)
			return
		case <-x.news:
			if !to.data(ctx, x.current()) {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

func (x *run) begun() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.started = true
	wait.Nudge(x.news)
}

func (x *run) report(status string, percent float64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.started = true
	x.status, x.percent = text.Valid(status, maxStatus), min(percent, 100)
	wait.Nudge(x.news)
}

func (x *run) state() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.started {
		return "submitted"
	}
	return "working"
}

// current returns what the turn does now.
func (x *run) current() chunk {
	x.mu.Lock()
	defer x.mu.Unlock()
	c := chunk{State: "working", Status: x.status}
	if percent := x.percent; percent >= 0 && c.Status != "" {
		c.Percent = &percent
	}
	return c
}

// reply answers an envelope, and reports whether the answer was sent.
func (s *Server) reply(ctx context.Context, e *envelope.Envelope, t envelope.Type, payload any) bool {
	me, known := s.r.Registry().Identity(s.id)
	if !known {
		return false // the agent has left
	}
	answer, err := envelope.NewFactory(me).Reply(e, t, payload)
	if err == nil {
		_, err = s.r.SendWait(ctx, answer)
	}
	return err == nil
}
