// Package duplex runs sessions with agents whose process stays open between turns and speaks in both directions: it
// receives prompts, streams events and asks for permissions.
//
// [Session] implements what all such protocols need: one process for a session, started by the first turn, stopped
// when idle, restarted with the agent's own session id; one turn at a time; cancellation; limits; one outcome. A
// [Dialect] implements one protocol.
package duplex

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// openTimeout bounds the handshake with a process, and the beginning of its conversation. The slowest measured
// agent needs 1.3 s on an idle machine.
const openTimeout = 60 * time.Second

// Dialect is one agent protocol.
type Dialect interface {
	// Args returns the arguments of a process that continues the conversation
	// resume, or begins one if resume is empty.
	Args(resume string) []string
	// Connect returns a connection to a process that was started with these arguments. It must not block.
	Connect(pipes Pipes) Connection
}

// Pipes are the streams of a process.
type Pipes struct {
	// Stdin blocks while the agent does not read. A write fails when the process is stopped.
	Stdin io.Writer
	// Stdout ends when the process has ended.
	Stdout  io.Reader
	WorkDir string // the agent's working directory
	MaxLine int    // bytes of the longest accepted line
}

// Connection speaks the protocol with one process. Greet is called first, then Open, then one
// Prompt after another; the other methods may be called at any time.
type Connection interface {
	// Greet runs the handshake, without a conversation. Errors of the agent are *runner.Error, its end is ErrClosed.
	Greet(ctx context.Context) error
	// Open continues the conversation resume, or begins a new one. It blocks until the agent
	// is ready for a prompt. Errors are as with Greet.
	Open(ctx context.Context, resume string, t *Turn) (Opened, error)
	// Prompt sends a prompt and blocks until the agent reports its end. Events are reported to t. When ctx ends,
	// Prompt returns and the caller stops the process. Errors are as with Open.
	Prompt(ctx context.Context, prompt string, t *Turn) (Result, error)
	// Interrupt asks the agent to stop the running prompt. It does not wait for the
	// end, but may block while the agent does not read.
	Interrupt() error
	// Resumable reports whether a new process could continue the conversation.
	Resumable() bool
	// Close is called after the end of the process. It returns when every goroutine of the connection has ended.
	Close()
}

// ErrClosed says that the connection to the agent has ended.
var ErrClosed = errors.New("the agent's connection is closed")

// Opened is the conversation that a process has begun or continued.
type Opened struct {
	// Session holds the agent's id of the conversation, empty if the agent reports it later.
	Session runner.SessionStarted
	// Lost is why the conversation could not be continued and a new one has begun;
	// empty if it was continued, or there was none.
	Lost string
}

// Result is the end of a prompt as the agent reports it.
type Result struct {
	Text     string        // the whole answer; ignored if anything was streamed
	Canceled bool          // the agent stopped on request
	Rejected bool          // the agent refused to answer
	Err      *runner.Error // the agent's error, nil if it succeeded
}

// Process is a running program: *process.Process.
type Process interface {
	Stdin() io.WriteCloser
	Stdout() io.Reader
	Stderr() string
	Ended() <-chan struct{}
	Stop(ctx context.Context, policy process.StopPolicy) process.Exit
	Close() error
	SweepOrphans() (int, error)
}

// Options configure a [Session].
type Options struct {
	Definition runner.Definition // completed
	Spec       runner.SessionSpec
	Dialect    Dialect
	// Check is called before a program is started, and refuses one that does not
	// speak the dialect with a *runner.Error. Nil accepts every program.
	Check func(ctx context.Context) error
	// Start starts the agent's program with args in the working directory, with stderr as process.Command.Stderr.
	Start func(args []string, stderr func(line string) (keep bool)) (Process, error)
	// Redact removes secrets from a text for users. Nil leaves it unchanged.
	Redact func(string) string
	// Clock times the idle process. Nil is the real clock.
	Clock Clock
}

// Clock starts timers.
type Clock interface {
	// AfterFunc calls f on its own goroutine after d, unless stop was called before.
	AfterFunc(d time.Duration, f func()) (stop func() bool)
}

type realClock struct{}

func (realClock) AfterFunc(d time.Duration, f func()) func() bool {
	return time.AfterFunc(d, f).Stop
}

// Session is one conversation. It implements runner.Session.
type Session struct {
	o Options

	running atomic.Bool // a turn runs
	closed  context.Context
	close   context.CancelFunc

	// lock guards the fields below. It is a channel so that waiting can be cancelled.
	lock    chan struct{}
	live    *program
	resume  string                // the agent's id of the conversation
	known   runner.SessionStarted // as last reported
	briefed bool                  // the conversation has received the system prompt
	turns   int                   // lets an idle timer detect that it fired late
	endIdle func() bool           // stops the idle timer, nil if there is none
}

// New returns a session. The first turn starts its process.
func New(o Options) *Session {
	if o.Clock == nil {
		o.Clock = realClock{}
	}
	if o.Redact == nil {
		o.Redact = func(s string) string { return s }
	}
	s := &Session{o: o, lock: make(chan struct{}, 1), resume: o.Spec.Resume, briefed: o.Spec.Resume != ""}
	s.closed, s.close = context.WithCancel(context.Background())
	return s
}

// ending is how a turn ended: the outcome's status and exit code, and later all of it.
type ending struct {
	runner.Outcome
	err  *runner.Error
	drop bool // the process must be stopped
}

func ended(status runner.OutcomeStatus) ending {
	return ending{Outcome: runner.Outcome{Status: status, ExitCode: -1}}
}

func failed(err *runner.Error) ending {
	e := ended(runner.OutcomeFailed)
	e.err = err
	if err.Code == runner.CodeAuth {
		// The next turn starts a process that sees the new login.
		e.Status, e.drop = runner.OutcomeAuthRequired, true
	}
	return e
}

// Turn implements runner.Session.
func (s *Session) Turn(ctx context.Context, in runner.Turn, h runner.Handler) (runner.Outcome, error) {
	start := time.Now()
	e := s.turn(ctx, in, h)
	e.Duration = time.Since(start)
	if e.err != nil {
		return e.Outcome, e.err
	}
	return e.Outcome, nil
}

func (s *Session) turn(ctx context.Context, in runner.Turn, h runner.Handler) ending {
	if !s.running.CompareAndSwap(false, true) {
		return failed(&runner.Error{Code: runner.CodeBusy, Message: s.name() + " is still answering in this session"})
	}
	defer s.running.Store(false)
	if s.closed.Err() != nil {
		return failed(&runner.Error{Code: runner.CodeInternal, Message: "the conversation with " + s.name() + " is closed"})
	}
	limits := s.o.Definition.Limits
	prompt, err := runner.BuildPrompt(in, s.o.Spec.WorkDir, limits.MaxPrompt)
	if err != nil {
		return failed(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.closed, cancel)()
	if s.acquire(ctx) != nil {
		return ended(runner.OutcomeCanceled)
	}
	defer s.release()
	s.stopIdle()

	ctx, watch := process.NewWatch(ctx, limits.Run, limits.Idle)
	defer watch.Stop()
	watch.LimitRetries(limits.Retries, limits.Retrying)
	t := newTurn(s.o, s.known, h, watch)
	e := s.answer(ctx, prompt, t, watch)
	t.endAsking()
	if e.drop {
		s.dropAndReport(t)
	}
	t.end()
	code := e.ExitCode
	e.Outcome = t.answer.Outcome(e.Status)
	e.ExitCode = code
	if started := t.answer.Started(); started != s.known {
		s.known, s.resume = started, started.ID
	}
	s.startIdle()
	return e
}

// answer sends the prompt and waits for the answer. It starts a process if none runs.
func (s *Session) answer(ctx context.Context, prompt string, t *Turn, watch *process.Watch) ending {
	if s.live != nil && wait.Closed(s.live.proc.Ended()) {
		s.dropAndReport(t)
	}
	if s.live == nil || !s.live.begun {
		l, err := s.open(ctx, t, watch)
		if err != nil {
			return s.gaveUp(ctx, err, t)
		}
		s.live = l
	}
	s.live.watch.Store(watch)
	defer s.live.watch.Store(nil)
	s.live.turn.Store(t)
	defer s.live.turn.Store(nil)
	if !s.briefed {
		prompt = runner.WithRole(s.o.Definition.SystemPrompt, prompt)
	}
	s.briefed = true
	return s.prompt(ctx, s.live, prompt, t)
}

// open continues the conversation in a process, or begins a new one and reports that.
func (s *Session) open(ctx context.Context, t *Turn, watch *process.Watch) (*program, error) {
	l, opened, err := s.start(ctx, s.resume, t, watch)
	if err != nil && s.resume != "" && ctx.Err() == nil && curable(err) {
		lost := words(err)
		l, opened, err = s.start(ctx, "", t, watch)
		opened.Lost = lost
	}
	if err != nil {
		return nil, err
	}
	if opened.Lost != "" {
		t.Notice(fmt.Sprintf("%s could not continue the earlier conversation and begins a new one: %s", s.name(), s.o.Redact(opened.Lost)))
		s.resume, s.briefed = "", false
	}
	t.Session(opened.Session)
	return l, nil
}

// words returns the text of an error without the remedy, which only the end of a turn shows.
func words(err error) string {
	if e, ok := errors.AsType[*runner.Error](err); ok {
		return e.Message
	}
	return err.Error()
}

// curable reports whether a new conversation may cure an error.
func curable(err error) bool {
	code := runner.CodeOf(err)
	return code == runner.CodeAgent || code == runner.CodeProtocol || code == ""
}

// start continues the conversation resume, or begins one if it is empty: in the process that Warm has started, if that can, or in a new one.
func (s *Session) start(ctx context.Context, resume string, t *Turn, watch *process.Watch) (*program, Opened, error) {
	if l := s.live; l != nil {
		s.live = nil
		l.watch.Store(watch)
		l.turn.Store(t)
		opened, err := s.begin(ctx, l, resume, t)
		if err == nil || ctx.Err() != nil {
			return l, opened, err
		}
		// A new process has the login and the settings of now.
	}
	l, err := s.launch(ctx, resume, t, watch)
	if err != nil {
		return nil, Opened{}, err
	}
	opened, err := s.begin(ctx, l, resume, t)
	return l, opened, err
}

// launch starts a process and greets it. Without a turn, t and watch are nil.
func (s *Session) launch(ctx context.Context, resume string, t *Turn, watch *process.Watch) (*program, error) {
	if s.o.Check != nil {
		if err := s.o.Check(ctx); err != nil {
			return nil, err
		}
	}
	l := &program{}
	l.watch.Store(watch)
	l.turn.Store(t)
	proc, err := s.o.Start(s.o.Dialect.Args(resume), runner.Stderr(l.retry))
	if err != nil {
		return nil, err
	}
	l.proc = proc
	l.conn = s.o.Dialect.Connect(Pipes{
		Stdin: proc.Stdin(), Stdout: touchReader{proc.Stdout(), l}, WorkDir: s.o.Spec.WorkDir,
		MaxLine: s.o.Definition.Limits.MaxLine,
	})
	return l, s.ready(ctx, l, l.conn.Greet)
}

// begin continues the conversation resume in a process that was greeted, or begins one.
func (s *Session) begin(ctx context.Context, l *program, resume string, t *Turn) (opened Opened, err error) {
	err = s.ready(ctx, l, func(ctx context.Context) error {
		opened, err = l.conn.Open(ctx, resume, t)
		return err
	})
	l.begun = err == nil
	return opened, err
}

// ready runs a step that a process needs before its first prompt, and stops the process if it fails.
func (s *Session) ready(ctx context.Context, l *program, step func(context.Context) error) error {
	octx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	err := step(octx)
	if err == nil {
		return nil
	}
	exit := s.stop(context.Background(), l)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case octx.Err() != nil:
		return &runner.Error{Code: runner.CodeTimeout,
			Message: fmt.Sprintf("%s did not answer its greeting within %v%s", s.name(), openTimeout, runner.QuoteTail(l.proc.Stderr())),
			Err:     err}
	default:
		return s.explain(err, l, exit, "before it was ready")
	}
}

// Warm implements runner.Warmer.
func (s *Session) Warm(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.closed, cancel)()
	if err := s.acquire(ctx); err != nil {
		return err
	}
	defer s.release()
	if s.live != nil || s.closed.Err() != nil {
		return s.closed.Err()
	}
	l, err := s.launch(ctx, s.resume, nil, nil)
	if err != nil {
		return err
	}
	s.live = l
	s.startIdle()
	return nil
}

// prompt sends one prompt and waits for its end.
func (s *Session) prompt(ctx context.Context, l *program, text string, t *Turn) ending {
	type answer struct {
		Result
		err error
	}
	giveUp, cancel := context.WithCancel(context.Background())
	defer cancel()
	answered := make(chan answer, 1)
	go func() {
		r, err := l.conn.Prompt(giveUp, text, t)
		answered <- answer{r, err}
	}()
	select {
	case a := <-answered:
		return s.result(l, a.Result, a.err, t)
	case <-ctx.Done():
	}

	// Ask the agent first, then cancel its permission requests: gemini stops only after they are answered.
	interrupted := make(chan struct{})
	go func() {
		defer close(interrupted)
		if err := l.conn.Interrupt(); err != nil {
			cancel() // the request cannot be sent
		}
		t.endAsking()
	}()
	grace := time.NewTimer(s.o.Definition.Stop.Grace)
	defer grace.Stop()
	e := s.gaveUp(ctx, context.Cause(ctx), t)
	done := false
	select {
	case a := <-answered:
		done = true
		e.drop = a.err != nil || l.conn.Resumable()
	case <-grace.C:
		e.drop = true
	}
	if !e.drop {
		select {
		case <-interrupted:
		case <-grace.C:
			e.drop = true // it has answered, but does not read
		}
	}
	if !e.drop {
		s.sweep(l, t)
		return e
	}
	s.stop(context.Background(), l)
	cancel()
	<-interrupted
	if !done {
		<-answered
	}
	return e
}

// result translates the end that the agent reported.
func (s *Session) result(l *program, r Result, err error, t *Turn) ending {
	if err != nil {
		exit := s.stop(context.Background(), l)
		e := failed(s.presentable(s.explain(err, l, exit, "in the middle of its answer")))
		e.drop, e.ExitCode = true, exit.Code
		return e
	}
	s.sweep(l, t)
	switch {
	case r.Err != nil:
		return failed(s.presentable(r.Err))
	case r.Canceled:
		return ended(runner.OutcomeCanceled)
	case r.Rejected:
		return ended(runner.OutcomeRejected)
	}
	t.Report(func(a *runner.Answer) {
		if !a.HasText() {
			a.Text(r.Text)
		}
	})
	return ended(runner.OutcomeCompleted)
}

// sweep kills processes that the turn's tools have put into the background. Children of the agent's process stay.
func (s *Session) sweep(l *program, t *Turn) {
	n, err := l.proc.SweepOrphans()
	if err != nil {
		t.Notice("processes that a tool of " + s.name() + " left behind could not be ended")
		return
	}
	if n > 0 {
		t.Notice(fmt.Sprintf("ended %s that tools of %s left behind", text.Count(n, "process"), s.name()))
	}
}

// gaveUp returns the end of a turn that was cancelled, timed out or could not begin.
func (s *Session) gaveUp(ctx context.Context, err error, t *Turn) ending {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if errors.Is(err, process.ErrRetries) || errors.Is(err, process.ErrRetryTime) {
		return failed(s.o.Definition.RetriesError(err, t.refusal()))
	}
	if errors.Is(err, process.ErrRunTime) || errors.Is(err, process.ErrIdle) {
		return failed(s.o.Definition.TimeoutError(err))
	}
	if ctx.Err() != nil {
		return ended(runner.OutcomeCanceled)
	}
	if e, ok := errors.AsType[*runner.Error](err); ok {
		return failed(s.presentable(e))
	}
	return failed(s.o.Definition.StartError(err))
}

// explain describes the end of a process or a connection.
func (s *Session) explain(err error, l *program, exit process.Exit, when string) *runner.Error {
	if e, ok := errors.AsType[*runner.Error](err); ok {
		return e
	}
	if tail := runner.Tail(l.proc.Stderr()); runner.IsAuthText(tail) {
		return &runner.Error{Code: runner.CodeAuth, Message: tail, Err: err}
	}
	how := fmt.Sprintf("exit code %d", exit.Code)
	if exit.Signal != "" {
		how = exit.Signal
	}
	out := &runner.Error{Code: runner.CodeProtocol,
		Message: fmt.Sprintf("%s ended %s (%s)%s", s.name(), when, how, runner.QuoteTail(l.proc.Stderr())),
		Remedy:  "try again; if it happens again, run the program by hand", Err: err}
	if d := s.o.Definition; d.Driver == runner.DriverACP && strings.Contains(l.proc.Stderr(), "Unknown argument: ") {
		// gemini before 0.33, for example.
		out.Message = fmt.Sprintf("this version of %s does not know the flags of driver acp (%s)", s.name(), strings.Join(d.Args, " "))
		out.Remedy = fmt.Sprintf("update it, or set agents.%s.driver: exec", d.ID)
	}
	return out
}

// presentable turns a dialect's error into one for users. It quotes the agent's words as the agent's.
func (s *Session) presentable(e *runner.Error) *runner.Error {
	words := s.o.Redact(clip(ErrorText(e.Message), maxMessage))
	switch e.Code {
	case runner.CodeAuth:
		out := s.o.Definition.AuthError(words)
		out.Err = e
		return out
	case runner.CodeAgent:
		return &runner.Error{Code: e.Code, Message: s.name() + " reported an error: " + words, Remedy: e.Remedy, Err: e}
	default:
		out := *e
		out.Message = words
		return &out
	}
}

// Close implements runner.Session. A running turn is cancelled.
func (s *Session) Close(ctx context.Context) error {
	s.close()
	if err := s.acquire(ctx); err != nil {
		return err
	}
	defer s.release()
	s.stopIdle()
	return s.drop(ctx)
}

// dropAndReport is drop within a turn.
func (s *Session) dropAndReport(t *Turn) {
	if s.drop(context.Background()) != nil {
		t.Notice("not every process that " + s.name() + " started could be ended")
	}
}

// drop stops the process, if one runs. The error says that descendants of it are still running.
func (s *Session) drop(ctx context.Context) error {
	if s.live == nil {
		return nil
	}
	exit := s.stop(ctx, s.live)
	s.live = nil
	return exit.Err
}

// stop stops a process and its connection. It may be called again.
func (s *Session) stop(ctx context.Context, l *program) process.Exit {
	exit := l.proc.Stop(ctx, s.o.Definition.StopPolicy())
	l.closing.Do(func() {
		_ = l.proc.Close() // exit holds its error
		l.conn.Close()
	})
	return exit
}

// startIdle stops the process after limits.sessionIdle without a turn.
func (s *Session) startIdle() {
	if s.live == nil {
		return
	}
	s.turns++
	turns := s.turns
	s.endIdle = s.o.Clock.AfterFunc(s.o.Definition.Limits.SessionIdle, func() {
		if s.acquire(context.Background()) != nil {
			return
		}
		defer s.release()
		if s.turns == turns && s.endIdle != nil {
			s.endIdle = nil
			_ = s.drop(context.Background()) // the next turn starts a new process
		}
	})
}

func (s *Session) stopIdle() {
	if s.endIdle != nil {
		s.endIdle()
		s.endIdle = nil
	}
}

func (s *Session) acquire(ctx context.Context) error {
	select {
	case s.lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Session) release() { <-s.lock }

func (s *Session) name() string { return s.o.Definition.Name }

// maxMessage bounds the text of an agent's error, in bytes.
const maxMessage = 8 << 10

// program is a running process with its connection.
type program struct {
	proc    Process
	conn    Connection
	watch   atomic.Pointer[process.Watch] // of the running turn
	turn    atomic.Pointer[Turn]          // the running one
	begun   bool                          // it has a conversation
	closing sync.Once
}

// retry reports a retry of which standard error tells.
func (l *program) retry(r runner.Retry) {
	if t := l.turn.Load(); t != nil {
		t.Retry(r)
	}
}

// touchReader resets the running turn's idle limit with every read.
type touchReader struct {
	r io.Reader
	l *program
}

func (r touchReader) Read(b []byte) (int, error) {
	n, err := r.r.Read(b)
	if w := r.l.watch.Load(); w != nil && n > 0 {
		w.Touch()
	}
	return n, err
}
