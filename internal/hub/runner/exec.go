package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub/process"
)

// execAgent runs a program once for each turn. The program's own sessions continue conversations.
type execAgent struct {
	def  Definition
	opts Options
}

func openExec(def Definition, opts Options) (Agent, error) {
	return &execAgent{def: def, opts: opts}, nil
}

func (e *execAgent) Probe(ctx context.Context) Probe {
	return ProbeCommand(ctx, e.def, e.opts)
}

func (e *execAgent) Open(spec SessionSpec) (Session, error) {
	if !filepath.IsAbs(spec.WorkDir) {
		return nil, &Error{Code: CodeInternal, Message: "the working directory is not absolute"}
	}
	s := &execSession{agent: e, spec: spec, running: make(chan struct{}, 1)}
	s.closed, s.close = context.WithCancel(context.Background())
	if ValidSessionID(spec.Resume) {
		s.resume = spec.Resume
	}
	return s, nil
}

// execSession is a conversation. Between turns there is no process.
type execSession struct {
	agent  *execAgent
	spec   SessionSpec
	closed context.Context
	close  context.CancelFunc

	running chan struct{} // holds a token while a turn runs, which guards the rest
	resume  string        // the program's session id
	begun   bool          // the program has received the role
}

// Turn implements [Session].
func (s *execSession) Turn(ctx context.Context, turn Turn, h Handler) (Outcome, error) {
	began := time.Now()
	out, err := s.guarded(ctx, turn, h)
	out.Duration = time.Since(began)
	if err != nil {
		return failed(out, err)
	}
	return out, nil
}

// guarded runs turn unless another one runs.
func (s *execSession) guarded(ctx context.Context, turn Turn, h Handler) (Outcome, *Error) {
	select {
	case s.running <- struct{}{}:
		defer func() { <-s.running }()
	default:
		return Outcome{ExitCode: -1}, errBusy(s.agent.def)
	}
	if s.closed.Err() != nil {
		return Outcome{ExitCode: -1}, errBusy(s.agent.def)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.closed, cancel)()
	return s.turn(ctx, turn, h)
}

// turn runs the program, and again with a new session if the old one is lost.
func (s *execSession) turn(ctx context.Context, turn Turn, h Handler) (Outcome, *Error) {
	prompt, err := BuildPrompt(turn, s.spec.WorkDir, s.agent.def.Limits.MaxPrompt)
	if err != nil {
		return Outcome{ExitCode: -1}, err
	}
	resume := s.resume
	if len(s.agent.def.Session.Resume) == 0 {
		resume = ""
	}
	r, err := s.run(ctx, prompt, resume, h)
	if err == nil && resume != "" && r.sessionLost() {
		h.Event(Notice{Text: fmt.Sprintf("%s has lost this conversation (%s): it begins a new one", s.agent.def.Name, resume)})
		s.resume, s.begun = "", false
		r, err = s.run(ctx, prompt, "", h)
	}
	if err != nil {
		return Outcome{ExitCode: -1}, err
	}
	out, err := r.outcome(ctx)
	if err == nil && out.Status == OutcomeCompleted && r.answer.session.ID == "" {
		r.answer.Session(r.newID, "") // the program does not repeat it
	}
	s.resume = cmp.Or(r.answer.session.ID, s.resume)
	s.begun = s.begun || !r.answer.empty()
	return out, err
}

// run runs the program once and blocks until all its processes have ended.
func (s *execSession) run(ctx context.Context, prompt, resume string, h Handler) (*execRun, *Error) {
	def := s.agent.def
	if resume == "" || !s.begun && s.spec.Resume == "" {
		prompt = WithRole(def.SystemPrompt, prompt)
	}
	args, newID, err := execArgs(def, resume, prompt)
	if err != nil {
		return nil, err
	}
	cmd := NewSessionCommand(def, s.agent.opts, s.spec, args)
	if err := refuseBatch(def, cmd); err != nil {
		return nil, err
	}
	r := &execRun{
		def: def, parser: newParser(def), newID: newID,
		answer: NewAnswer(h, def.Limits.MaxOutput, process.NewRedactor(cmd.Env, cmd.Secrets...).Redact, SessionStarted{}),
	}
	if def.Prompt == PromptArg {
		prompt = ""
	}
	if err := r.do(ctx, cmd, prompt); err != nil {
		return nil, err
	}
	return r, nil
}

// execArgs returns the program's arguments, and the session id if the hub chooses it.
// The prompt, which could be read as a flag, is last.
func execArgs(def Definition, resume, prompt string) (args []string, newID string, err *Error) {
	args = slices.Clone(def.Args)
	switch {
	case resume != "" && def.Session.ResumeReplaces:
		args = replaceIn(def.Session.Resume, sessionPlace, resume)
	case resume != "":
		args = append(args, replaceIn(def.Session.Resume, sessionPlace, resume)...)
	default:
		if hasPlace(def.Session.New, sessionPlace) {
			newID = uuid.NewString()
		}
		args = append(args, replaceIn(def.Session.New, sessionPlace, newID)...)
	}
	args = append(args, def.ModelArguments()...)
	args = append(args, def.PermissionArgs[def.Permissions]...)
	if def.Prompt != PromptArg {
		return args, newID, nil
	}
	if strings.ContainsRune(prompt, 0) {
		return nil, "", &Error{Code: CodeLimit, Message: "the message contains a NUL byte, which cannot be passed to " + def.Name}
	}
	for _, arg := range def.PromptArgs {
		arg = strings.ReplaceAll(arg, promptPlace, prompt)
		if len(arg) > process.MaxArg {
			return nil, "", &Error{Code: CodeLimit,
				Message: fmt.Sprintf("the message is longer than the %d bytes that %s takes as an argument", process.MaxArg, def.Name),
				Remedy:  "send long text as a file, or let the agent read its prompt from standard input (prompt: stdin)"}
		}
		args = append(args, arg)
	}
	return args, newID, nil
}

// refuseBatch keeps messages out of the arguments of a batch file, which Windows passes to a shell.
func refuseBatch(def Definition, cmd process.Command) *Error {
	if runtime.GOOS != "windows" || def.Prompt != PromptArg {
		return nil
	}
	path, err := process.LookPath(cmd.Path, cmd.Env)
	if err != nil {
		return def.StartError(err)
	}
	if ext := strings.ToLower(filepath.Ext(path)); ext == ".bat" || ext == ".cmd" {
		return &Error{Code: CodeConfig,
			Message: def.Command + " is a batch file: a message cannot safely be one of its arguments",
			Remedy:  "use prompt: stdin, or name the program that the batch file starts"}
	}
	return nil
}

// Close cancels a running turn and waits for its end. Later turns are refused.
func (s *execSession) Close(ctx context.Context) error {
	s.close()
	select {
	case s.running <- struct{}{}: // no turn runs, also if ctx has ended
		<-s.running
		return nil
	default:
	}
	select {
	case s.running <- struct{}{}:
		<-s.running
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// execRun is one run of the program.
type execRun struct {
	def    Definition
	parser parser
	newID  string

	mu     sync.Mutex // guards answer while the program runs: both its outputs are read
	answer *Answer

	exit   process.Exit
	stderr string
	cause  error // why the hub stopped the program, nil if it did not
}

// errHopeless is the cause if an agent would retry for ever.
var errHopeless = errors.New("credentials refused")

func (r *execRun) do(ctx context.Context, cmd process.Command, prompt string) *Error {
	if ctx.Err() != nil {
		r.cause, r.exit.Code = ctx.Err(), -1
		return nil
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	limited, watch := process.NewWatch(ctx, r.def.Limits.Run, r.def.Limits.Idle)
	defer watch.Stop()
	watch.LimitRetries(r.def.Limits.Retries, r.def.Limits.Retrying)
	r.answer.Watch(watch)
	cmd.Stderr = Stderr(r.retry)

	p, err := process.Start(cmd)
	if err != nil {
		return r.def.StartError(err)
	}
	var owned sync.WaitGroup
	defer owned.Wait()
	defer p.Close() //nolint:errcheck // the exit holds the error
	owned.Go(func() {
		// A program that does not read its input causes EPIPE. Its output shows whether that is an error.
		_, _ = io.WriteString(p.Stdin(), prompt)
		_ = p.Stdin().Close() // may be closed by Stop
	})
	owned.Go(func() {
		select {
		case <-limited.Done():
			p.Stop(context.Background(), r.def.StopPolicy())
		case <-p.Done():
		}
	})

	if r.parser == nil {
		r.readText(watch.Reader(p.Stdout()))
	} else {
		r.readLines(p.Stdout(), watch, stop)
	}
	r.exit = p.Wait()
	r.stderr = p.Stderr()
	r.cause = context.Cause(limited)
	return nil
}

// retry reports a retry of which standard error tells.
func (r *execRun) retry(retry Retry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer.Retry(retry)
}

// readText reports raw output as it arrives, in whole characters.
func (r *execRun) readText(stdout io.Reader) {
	buf := make([]byte, 32<<10)
	n := 0
	for {
		m, err := stdout.Read(buf[n:])
		n += m
		whole := n
		if err == nil {
			whole = WholeRunes(buf[:n])
		}
		r.mu.Lock()
		r.answer.Text(string(buf[:whole]))
		r.mu.Unlock()
		n = copy(buf, buf[whole:n])
		if err != nil {
			return
		}
	}
}

// WholeRunes returns the length of text without an incomplete character at its end.
func WholeRunes[T string | []byte](text T) int {
	for i := len(text) - 1; i >= max(len(text)-utf8.UTFMax, 0); i-- {
		if utf8.RuneStart(text[i]) {
			if !utf8.FullRuneInString(string(text[i:])) {
				return i
			}
			break
		}
	}
	return len(text)
}

func (r *execRun) readLines(stdout io.Reader, watch *process.Watch, stop context.CancelCauseFunc) {
	lines := process.NewLines(stdout, r.def.Limits.MaxLine)
	for {
		line, err := lines.Next()
		switch {
		case errors.Is(err, process.ErrLineTooLong):
			r.mu.Lock()
			r.answer.tooLong = err
			r.answer.Notice("a line of the agent's output was skipped: " + err.Error())
			r.mu.Unlock()
			continue
		case err != nil:
			return
		}
		if r.line(line) {
			watch.Touch()
		}
		if r.hopeless() {
			stop(errHopeless)
		}
	}
}

// line parses a line. It reports whether the line is progress.
func (r *execRun) line(line []byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer.stalled = false
	r.parser.Line(line, r.answer)
	return !r.answer.stalled
}

func (r *execRun) hopeless() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.answer.Hopeless()
}

// lostSession matches the errors for an unknown session. Programs print them to standard error even in JSON mode.
var lostSession = text.Pattern(`(?i)no conversation found|no (?:saved |previous )?(?:session|conversation|thread|rollout)s? (?:found|with|for)|` +
	`(?:session|conversation|thread|rollout)\b.{0,80}(?:not found|not exist|unknown|invalid)|(?:unknown|invalid|no such) (?:session|conversation|thread)`)

// sessionLost reports whether a resume failed because the session does not exist: the
// program has ended with an error before it reported anything.
func (r *execRun) sessionLost() bool {
	if r.cause != nil || r.exit.Code == 0 || !r.answer.empty() || r.answer.auth {
		return false
	}
	return lostSession().MatchString(r.stderr) || lostSession().MatchString(r.answer.message)
}

// outcome decides how the turn ended. Success is a reported end without an error, and exit code 0.
func (r *execRun) outcome(ctx context.Context) (Outcome, *Error) {
	a := r.answer
	// An agent that finished before it was stopped has succeeded.
	if a.done && !a.failed && r.exit.Code == 0 {
		r.cause = nil
	}
	var special *Error
	if d, ok := r.parser.(diagnoser); ok {
		special = d.diagnose(r.exit, r.stderr, a)
	} else if r.parser == nil {
		a.done = r.exit.Code == 0
	}
	out := a.Outcome(OutcomeCompleted)
	out.ExitCode = r.exit.Code
	switch {
	case errors.Is(r.cause, errHopeless):
		return out, r.def.AuthError(a.message)
	case r.cause != nil && ctx.Err() != nil:
		out.Status = OutcomeCanceled
		return out, nil
	case r.cause != nil && a.authRuns > 0:
		return out, r.def.AuthError(a.message)
	case errors.Is(r.cause, process.ErrRetries), errors.Is(r.cause, process.ErrRetryTime):
		return out, r.def.RetriesError(r.cause, a.refusal)
	case r.cause != nil:
		return out, r.def.TimeoutError(r.cause)
	case r.authFailed():
		return out, r.def.AuthError(r.words())
	case special != nil:
		return out, special
	case a.failed || r.exit.Code != 0:
		return out, &Error{Code: CodeAgent,
			Message: fmt.Sprintf("%s reported an error%s%s", r.def.Name, exitText(r.exit), QuoteTail(r.words()))}
	case !a.done && a.tooLong != nil:
		return out, &Error{Code: CodeLimit, Message: r.def.Name + ": " + a.tooLong.Error(), Remedy: "raise limits.maxLine of the agent", Err: a.tooLong}
	case !a.done:
		return out, &Error{Code: CodeProtocol,
			Message: fmt.Sprintf("%s ended without saying that it had finished%s%s", r.def.Name, exitText(r.exit), QuoteTail(r.stderr))}
	case r.exit.Err != nil:
		a.Notice("not every process that the agent started could be ended")
	}
	return out, nil
}

// words returns the agent's text of its error: from its output, else from standard
// error, else, for plain text, its answer.
func (r *execRun) words() string {
	switch {
	case r.answer.message != "":
		return r.answer.message
	case strings.TrimSpace(r.stderr) != "":
		return r.stderr
	case r.parser == nil:
		return r.answer.redact(text.Cut(r.answer.text.String(), maxMessage))
	}
	return ""
}

// authFailed reports whether the program failed because of its credentials.
func (r *execRun) authFailed() bool {
	if r.exit.Code == 0 && !r.answer.failed {
		return false
	}
	return r.answer.auth || IsAuthText(r.words()) || !r.answer.failed && IsAuthText(r.stderr)
}

// failed returns the outcome of a turn that ended with err.
func failed(out Outcome, err *Error) (Outcome, error) {
	out.Status = OutcomeFailed
	if err.Code == CodeAuth {
		out.Status = OutcomeAuthRequired
	}
	return out, err
}

func errBusy(def Definition) *Error {
	return &Error{Code: CodeBusy, Message: "a turn of " + def.Name + " is already running in this conversation"}
}

// exitText describes how a process ended, for the end of a sentence.
func exitText(e process.Exit) string {
	switch {
	case e.Signal != "":
		return " (ended by " + e.Signal + ")"
	case e.Code != 0:
		return fmt.Sprintf(" (exit code %d)", e.Code)
	}
	return ""
}

// Tail returns the end of what an agent has written to standard error, for a message:
// at most 1000 bytes.
func Tail(stderr string) string {
	const most = 1000
	stderr = strings.TrimSpace(stderr)
	if len(stderr) > most {
		stderr = "…" + strings.ToValidUTF8(stderr[len(stderr)-most:], "")
	}
	return stderr
}

// QuoteTail returns [Tail] for the end of a sentence: behind a colon, or empty.
func QuoteTail(stderr string) string {
	if stderr = Tail(stderr); stderr == "" {
		return ""
	}
	return ": " + stderr
}
