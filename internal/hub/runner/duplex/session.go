// Package duplex keeps conversations with agents whose process speaks in both
// directions: it answers prompts, streams what happens and asks for permissions,
// and lives on between the turns.
//
// [Session] is what the drivers claude-stdio, codex-appserver and acp have in
// common: one process a session, begun by the first turn, ended when it was not
// used for a while, begun again with the agent's own session id when it died;
// one turn at a time; cancelling; limits; the way from what an agent says to one
// outcome. A driver adds a [Dialect], which knows one protocol.
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

	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// openTimeout bounds the start of a process and its greeting. The slowest agent
// measured takes 1.3 s on an idle machine.
const openTimeout = 60 * time.Second

// Dialect is one agent protocol.
type Dialect interface {
	// Args are the arguments of a process that continues the conversation
	// resume, or begins one where it is empty.
	Args(resume string) []string
	// Connect begins to speak on the pipes of a process that was started with
	// those arguments. It must not block.
	Connect(pipes Pipes) Connection
}

// Conn is what a peer gets of a process.
type Pipes struct {
	// Stdin may block while the agent does not read. A write fails when the
	// process is stopped.
	Stdin io.Writer
	// Stdout ends when the process has ended.
	Stdout io.Reader
	// WorkDir is where the agent works.
	WorkDir string
	// MaxLine is the longest line that is taken.
	MaxLine int
}

// Peer speaks the protocol with one process. Open comes first, then one Prompt
// after another; the others may be called at any time.
type Connection interface {
	// Open greets the agent and continues the conversation resume, or begins a
	// new one. It blocks until the agent is ready for a prompt. Errors of the
	// agent are *runner.Error, its end is ErrClosed.
	Open(ctx context.Context, resume string, t *Turn) (Opened, error)
	// Prompt sends a prompt and blocks until the agent has said that it is
	// done. Everything on the way goes to t. The end of ctx gives up: the
	// process will be ended. Errors as with Open.
	Prompt(ctx context.Context, prompt string, t *Turn) (Result, error)
	// Interrupt asks the agent to stop the running prompt. It does not wait for
	// the end, but may block while the agent does not read.
	Interrupt() error
	// Resumable reports whether a new process could continue the conversation.
	Resumable() bool
	// Close is called when the process is gone. It returns when every goroutine
	// of the peer has ended.
	Close()
}

// ErrClosed says that the connection to the agent has ended.
var ErrClosed = errors.New("the agent's connection is closed")

// Opened is what came of a greeting.
type Opened struct {
	// Session is the agent's id of the conversation, empty where the agent tells
	// it later.
	Session runner.SessionStarted
	// Lost says why the conversation could not be continued, empty if it was or
	// there was none. A new one has begun then.
	Lost string
}

// Result is how an agent says that a prompt ended.
type Result struct {
	// Text is the whole answer, for agents that do not stream; it counts only
	// where nothing was streamed.
	Text string
	// Canceled is set when the agent stopped because it was asked to.
	Canceled bool
	// Rejected is set when the agent refused to answer.
	Rejected bool
	// Err is the agent's error, nil if it succeeded.
	Err *runner.Error
}

// Process is what a session needs of a running program: *process.Process.
type Process interface {
	Stdin() io.WriteCloser
	Stdout() io.Reader
	Stderr() string
	Ended() <-chan struct{}
	Stop(ctx context.Context, policy process.StopPolicy) process.Exit
	Close() error
	SweepOrphans() (int, error)
}

// Options are what a session works with.
type Options struct {
	Definition runner.Definition // completed
	Spec       runner.SessionSpec
	Dialect    Dialect
	// Check refuses a program that does not speak the dialect, before one is
	// started. Nil takes every one. The error is a *runner.Error.
	Check func(ctx context.Context) error
	// Start starts the agent's program with args in the working directory.
	Start func(args []string) (Process, error)
	// Redact takes secrets out of a text that a user will see. Nil leaves it.
	Redact func(string) string
	// Clock measures the time without a turn. Nil is the real one.
	Clock Clock
}

// Clock is the time that a session's idle process is measured by.
type Clock interface {
	// AfterFunc calls f on its own goroutine after d, unless the returned
	// function was called before.
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
	life    context.Context
	endLife context.CancelFunc // by Close

	// slot is held by whoever uses what follows. It is a channel so that
	// waiting can end.
	slot    chan struct{}
	live    *link
	resume  string                // the agent's id of the conversation
	known   runner.SessionStarted // what was last told of it
	briefed bool                  // the conversation has had the system prompt
	turns   int                   // tells an idle timer that it is late
	unidle  func() bool
}

// New returns a session. Nothing is started before the first turn.
func New(o Options) *Session {
	if o.Clock == nil {
		o.Clock = realClock{}
	}
	if o.Redact == nil {
		o.Redact = func(s string) string { return s }
	}
	s := &Session{
		o:       o,
		slot:    make(chan struct{}, 1),
		resume:  o.Spec.Resume,
		briefed: o.Spec.Resume != "",
	}
	s.life, s.endLife = context.WithCancel(context.Background())
	return s
}

// ending is how a turn ended.
type ending struct {
	status   runner.OutcomeStatus
	err      *runner.Error
	exitCode int
	drop     bool // the process is to be ended
}

func canceled() ending { return ending{status: runner.OutcomeCanceled, exitCode: -1} }

func failed(err *runner.Error) ending {
	e := ending{status: runner.OutcomeFailed, err: err, exitCode: -1}
	if err.Code == runner.CodeAuth {
		// The next turn starts a process that sees the new login.
		e.status, e.drop = runner.OutcomeAuthRequired, true
	}
	return e
}

// Turn implements runner.Session.
func (s *Session) Turn(ctx context.Context, in runner.Turn, h runner.Handler) (runner.Outcome, error) {
	start := time.Now()
	var e ending
	out := runner.Outcome{}
	switch {
	case !s.running.CompareAndSwap(false, true):
		e = failed(&runner.Error{Code: runner.CodeBusy, Message: s.name() + " is still answering in this session"})
		out = runner.Outcome{Status: e.status, ExitCode: -1}
	default:
		defer s.running.Store(false)
		out, e = s.turn(ctx, in, h)
	}
	out.Duration = time.Since(start)
	if e.err != nil {
		return out, e.err
	}
	return out, nil
}

func (s *Session) turn(ctx context.Context, in runner.Turn, h runner.Handler) (runner.Outcome, ending) {
	if s.life.Err() != nil {
		e := failed(&runner.Error{Code: runner.CodeInternal, Message: "the conversation with " + s.name() + " is closed"})
		return runner.Outcome{Status: e.status, ExitCode: -1}, e
	}
	prompt, bad := runner.BuildPrompt(in, s.o.Spec.WorkDir, s.o.Definition.Limits.MaxPrompt)
	if bad != nil {
		e := failed(bad)
		return runner.Outcome{Status: e.status, ExitCode: -1}, e
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	if s.acquire(ctx) != nil {
		return runner.Outcome{Status: runner.OutcomeCanceled, ExitCode: -1}, canceled()
	}
	defer s.release()
	s.stopIdle()

	limits := s.o.Definition.Limits
	ctx, watch := process.NewWatch(ctx, limits.Run, limits.Idle)
	defer watch.Stop()
	t := newTurn(s.o, s.known, h, watch)
	e := s.answer(ctx, prompt, t, watch)
	t.endAsking()
	if e.drop {
		s.dropAndTell(t)
	}
	t.end()
	out, started := t.result(e.status)
	if started != s.known {
		s.known, s.resume = started, started.ID
	}
	s.startIdle()

	out.ExitCode = e.exitCode
	return out, e
}

// answer has the prompt answered, by a new process where there is none.
func (s *Session) answer(ctx context.Context, prompt string, t *Turn, watch *process.Watch) ending {
	if s.live != nil && s.live.ended() {
		s.dropAndTell(t)
	}
	if s.live == nil {
		l, err := s.open(ctx, t, watch)
		if err != nil {
			return s.gaveUp(ctx, err)
		}
		s.live = l
	}
	s.live.watch.Store(watch)
	defer s.live.watch.Store(nil)
	if !s.briefed {
		prompt = runner.WithRole(s.o.Definition.SystemPrompt, prompt)
	}
	s.briefed = true
	return s.prompt(ctx, s.live, prompt, t)
}

// open starts a process and continues the conversation, or begins a new one and
// says so.
func (s *Session) open(ctx context.Context, t *Turn, watch *process.Watch) (*link, error) {
	l, opened, err := s.start(ctx, s.resume, t, watch)
	if err != nil && s.resume != "" && ctx.Err() == nil && mayBeTheSession(err) {
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

// words are an error's without the remedy, which is for the end of a turn.
func words(err error) string {
	if e, ok := errors.AsType[*runner.Error](err); ok {
		return e.Message
	}
	return err.Error()
}

// mayBeTheSession tells the errors that a new conversation may cure.
func mayBeTheSession(err error) bool {
	e, ok := errors.AsType[*runner.Error](err)
	return !ok || e.Code == runner.CodeAgent || e.Code == runner.CodeProtocol
}

func (s *Session) start(ctx context.Context, resume string, t *Turn, watch *process.Watch) (*link, Opened, error) {
	if s.o.Check != nil {
		if err := s.o.Check(ctx); err != nil {
			return nil, Opened{}, err
		}
	}
	proc, err := s.o.Start(s.o.Dialect.Args(resume))
	if err != nil {
		return nil, Opened{}, err
	}
	l := &link{proc: proc}
	l.watch.Store(watch)
	l.conn = s.o.Dialect.Connect(Pipes{
		Stdin:   proc.Stdin(),
		Stdout:  touchReader{proc.Stdout(), l},
		WorkDir: s.o.Spec.WorkDir,
		MaxLine: s.o.Definition.Limits.MaxLine,
	})
	octx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	opened, err := l.conn.Open(octx, resume, t)
	if err == nil {
		return l, opened, nil
	}
	exit := s.stop(context.Background(), l)
	switch {
	case ctx.Err() != nil:
		return nil, Opened{}, context.Cause(ctx)
	case octx.Err() != nil:
		return nil, Opened{}, &runner.Error{
			Code:    runner.CodeTimeout,
			Message: fmt.Sprintf("%s did not answer its greeting within %v%s", s.name(), openTimeout, s.stderr(l)),
			Err:     err,
		}
	default:
		return nil, Opened{}, s.explain(err, l, exit, "before it was ready")
	}
}

// prompt sends one prompt and waits for its end.
func (s *Session) prompt(ctx context.Context, l *link, text string, t *Turn) ending {
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
		return s.ended(l, a.Result, a.err, t)
	case <-ctx.Done():
	}

	// Ask the agent first. What it waits for from us is answered right behind:
	// gemini does not stop before.
	interrupted := make(chan struct{})
	go func() {
		defer close(interrupted)
		if err := l.conn.Interrupt(); err != nil {
			cancel() // it cannot be asked
		}
		t.endAsking()
	}()
	grace := time.NewTimer(s.o.Definition.Stop.Grace)
	defer grace.Stop()
	e := s.gaveUp(ctx, context.Cause(ctx))
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
			e.drop = true // it has answered, and does not read
		}
	}
	if e.drop {
		s.stop(context.Background(), l)
		cancel()
		<-interrupted
		if !done {
			<-answered
		}
		return e
	}
	s.sweep(l, t)
	return e
}

// ended turns the end that the agent told into that of the turn.
func (s *Session) ended(l *link, r Result, err error, t *Turn) ending {
	if err != nil {
		exit := s.stop(context.Background(), l)
		e := failed(s.presentable(s.explain(err, l, exit, "in the middle of its answer")))
		e.drop, e.exitCode = true, exit.Code
		return e
	}
	s.sweep(l, t)
	switch {
	case r.Err != nil:
		return failed(s.presentable(r.Err))
	case r.Canceled:
		return canceled()
	case r.Rejected:
		return ending{status: runner.OutcomeRejected, exitCode: -1}
	}
	t.Report(func(a *runner.Answer) {
		if !a.HasText() {
			a.Text(r.Text)
		}
	})
	return ending{status: runner.OutcomeCompleted, exitCode: -1}
}

// sweep ends what the turn's tools have put into the background. What still
// belongs to the agent's process lives as long as it.
func (s *Session) sweep(l *link, t *Turn) {
	n, err := l.proc.SweepOrphans()
	if err != nil {
		t.Notice("processes that a tool of " + s.name() + " left behind could not be ended")
		return
	}
	if n > 0 {
		t.Notice(fmt.Sprintf("%d process(es) that tools of %s left behind were ended", n, s.name()))
	}
}

// gaveUp is the end of a turn that was cancelled, ran out of time, or could not
// begin.
func (s *Session) gaveUp(ctx context.Context, err error) ending {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if errors.Is(err, process.ErrRunTime) || errors.Is(err, process.ErrIdle) {
		return failed(s.o.Definition.TimeoutError(err))
	}
	if ctx.Err() != nil {
		return canceled()
	}
	if e, ok := errors.AsType[*runner.Error](err); ok {
		return failed(s.presentable(e))
	}
	return failed(s.o.Definition.StartError(err))
}

// explain says what ended a process or a connection.
func (s *Session) explain(err error, l *link, exit process.Exit, when string) *runner.Error {
	if e, ok := errors.AsType[*runner.Error](err); ok {
		return e
	}
	if tail := tailOf(l.proc.Stderr()); runner.IsAuthText(tail) {
		return &runner.Error{Code: runner.CodeAuth, Message: tail, Err: err}
	}
	how := fmt.Sprintf("exit code %d", exit.Code)
	if exit.Signal != "" {
		how = exit.Signal
	}
	return &runner.Error{
		Code:    runner.CodeProtocol,
		Message: fmt.Sprintf("%s ended %s (%s)%s", s.name(), when, how, s.stderr(l)),
		Remedy:  "try again; if it happens again, run the program by hand",
		Err:     err,
	}
}

// stderr is the end of what the process said on standard error, for the end of a
// message. The process package has redacted it.
func (s *Session) stderr(l *link) string {
	tail := tailOf(l.proc.Stderr())
	if tail == "" {
		return ""
	}
	return ": " + tail
}

// maxStderr is how much of standard error goes into a message.
const maxStderr = 1000

func tailOf(stderr string) string {
	stderr = strings.TrimSpace(stderr)
	if len(stderr) > maxStderr {
		stderr = "…" + strings.ToValidUTF8(stderr[len(stderr)-maxStderr:], "")
	}
	return stderr
}

// presentable makes of a dialect's error one for users. The words of agents are
// put into a sentence that says whose they are.
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
	s.endLife()
	if err := s.acquire(ctx); err != nil {
		return err
	}
	defer s.release()
	s.stopIdle()
	return s.drop(ctx)
}

// dropAndTell is drop within a turn.
func (s *Session) dropAndTell(t *Turn) {
	if s.drop(context.Background()) != nil {
		t.Notice("not every process that " + s.name() + " started could be ended")
	}
}

// drop ends the process, if there is one. The error says that something of it is
// still there.
func (s *Session) drop(ctx context.Context) error {
	if s.live == nil {
		return nil
	}
	exit := s.stop(ctx, s.live)
	s.live = nil
	return exit.Err
}

// stop ends a process and its protocol. It may be called again.
func (s *Session) stop(ctx context.Context, l *link) process.Exit {
	exit := l.proc.Stop(ctx, s.o.Definition.StopPolicy())
	l.closing.Do(func() {
		_ = l.proc.Close() // what it could report is in exit
		l.conn.Close()
	})
	return exit
}

// startIdle ends the process when no turn comes for a while.
func (s *Session) startIdle() {
	if s.live == nil {
		return
	}
	s.turns++
	turns := s.turns
	s.unidle = s.o.Clock.AfterFunc(s.o.Definition.Limits.SessionIdle, func() {
		if s.acquire(context.Background()) != nil {
			return
		}
		defer s.release()
		if s.turns == turns && s.unidle != nil {
			s.unidle = nil
			// Nobody is there to be told; the next turn starts a new process.
			_ = s.drop(context.Background())
		}
	})
}

func (s *Session) stopIdle() {
	if s.unidle != nil {
		s.unidle()
		s.unidle = nil
	}
}

func (s *Session) acquire(ctx context.Context) error {
	select {
	case s.slot <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Session) release() { <-s.slot }

func (s *Session) name() string { return s.o.Definition.Name }

// maxMessage is how many bytes of an agent's error are shown.
const maxMessage = 8 << 10

// link is a running process with its protocol.
type link struct {
	proc    Process
	conn    Connection
	watch   atomic.Pointer[process.Watch] // of the running turn
	closing sync.Once
}

func (l *link) ended() bool {
	select {
	case <-l.proc.Ended():
		return true
	default:
		return false
	}
}

// touchReader tells the running turn's clocks of every sign of life.
type touchReader struct {
	r io.Reader
	l *link
}

func (r touchReader) Read(b []byte) (int, error) {
	n, err := r.r.Read(b)
	if w := r.l.watch.Load(); w != nil && n > 0 {
		w.Touch()
	}
	return n, err
}
