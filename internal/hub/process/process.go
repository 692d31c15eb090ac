// Package process starts the programs that agents are, feeds them, bounds them
// and makes sure that nothing of them is left behind.
//
// No shell is involved, the environment is an allow-list ([Environ]), standard
// error is always drained into a redacted tail, and every process begins a
// session of its own and carries a [Marker] in its environment that all its
// descendants inherit. When the process ends, however it ends, the marked
// descendants are swept: also those that a tool put into the background with
// setsid or a double fork.
//
// What a platform can do:
//
//   - Linux: markers are found through /proc. A descendant that clears its
//     environment, leaves the session and loses its parents is known by a second
//     mark, a resource limit (see setTag). Only one that lowers this limit too
//     escapes, or one with another user's id.
//   - macOS: the same through sysctl. The environment of programs protected by
//     the system is hidden; those are found while they are in the process group
//     or below a process that was found.
//   - Windows: a job object holds the tree. There are no gentle signals: Stop
//     ends the job at once.
//   - elsewhere: the process group only.
package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Defaults of a [Command] and a [StopPolicy].
const (
	DefaultStderrTail = 16 << 10
	DefaultWaitDelay  = 2 * time.Second
	DefaultGrace      = 2 * time.Second
)

// MaxArg is the longest single argument: Linux refuses 131,072 bytes
// (MAX_ARG_STRLEN, the final NUL included).
const MaxArg = 131071

// killTimeout bounds the wait for a process that was sent SIGKILL. Only one
// that hangs in the kernel (a dead network file system) reaches it.
const killTimeout = 15 * time.Second

// The errors of this package, to be told apart with errors.Is.
var (
	ErrNotFound    = errors.New("program not found")
	ErrArgument    = errors.New("argument cannot be passed to a program")
	ErrLineTooLong = errors.New("line too long")
	ErrIdle        = errors.New("no output within the idle limit")
	ErrRunTime     = errors.New("run limit reached")
	ErrNotGone     = errors.New("processes could not be ended")
)

// Command is what to start.
type Command struct {
	// Path is a program's name, looked up in Env's PATH, or an absolute path.
	// Entries of PATH that are not absolute are passed over.
	Path string
	Args []string // without the program's name
	// Dir is the working directory, empty for the caller's.
	Dir string
	// Env is the whole environment: see [Environ].
	Env []string
	// Marker tells this process and its descendants from all others; the zero
	// value stands for a new one.
	Marker Marker
	// StderrTail is how many bytes of standard error are kept.
	StderrTail int
	// WaitDelay is how long reads of standard output go on after the end of the
	// process while something that could not be swept holds the pipe open.
	WaitDelay time.Duration
}

// Exit is how a process ended.
type Exit struct {
	// Code is the exit code, -1 if a signal ended the process.
	Code int
	// Signal names the signal that ended it, empty if it exited.
	Signal string
	// Swept is how many descendants had outlived the process and were killed.
	Swept int
	// Err is ErrNotGone if descendants are still there.
	Err error
}

// Process is a running program. Every Process must be closed. Its methods may
// be called from any goroutine.
type Process struct {
	cmd    *exec.Cmd
	marker Marker
	stdin  *stdinPipe
	stdout *stdoutPipe
	stderr *tail
	group  group // what the platform keeps to end the whole tree

	ended   chan struct{} // closed when the process itself has ended
	done    chan struct{} // closed when it is reaped, its descendants swept, stderr drained
	exit    Exit          // set before done is closed
	finish  sync.Once     // closes done
	release sync.Once

	mu     sync.Mutex
	reaped bool // the id may be another process's: no more signals
}

// Start starts cmd. It does not bind the process to a context: the caller stops
// and closes it.
func Start(cmd Command) (*Process, error) {
	path, err := check(cmd)
	if err != nil {
		return nil, err
	}
	if cmd.Marker == "" {
		cmd.Marker = NewMarker("")
	}
	if cmd.StderrTail <= 0 {
		cmd.StderrTail = DefaultStderrTail
	}
	if cmd.WaitDelay <= 0 {
		cmd.WaitDelay = DefaultWaitDelay
	}

	var pipes pipes
	if err := pipes.open(); err != nil {
		pipes.close()
		return nil, fmt.Errorf("open pipes: %w", err)
	}
	p := &Process{
		marker: cmd.Marker,
		stderr: newTail(cmd.StderrTail, NewRedactor(cmd.Env)),
		ended:  make(chan struct{}),
		done:   make(chan struct{}),
	}
	p.cmd = &exec.Cmd{
		Path:   path,
		Args:   append([]string{cmd.Path}, cmd.Args...),
		Dir:    cmd.Dir,
		Env:    cmd.Marker.addTo(cmd.Env),
		Stdin:  pipes.stdin.r,
		Stdout: pipes.stdout.w,
		Stderr: pipes.stderr.w,
	}
	prepare(p.cmd)
	if err := p.cmd.Start(); err != nil {
		pipes.close()
		return nil, startError(cmd.Path, err)
	}
	pipes.closeChildEnds()
	p.stdin = &stdinPipe{f: pipes.stdin.w}
	p.stdout = &stdoutPipe{f: pipes.stdout.r, delay: cmd.WaitDelay}
	if p.group, err = newGroup(p.cmd.Process, p.marker); err != nil {
		p.abandon(pipes.stderr.r)
		return nil, fmt.Errorf("hold the processes of %s together: %w", cmd.Path, err)
	}
	go p.reap(pipes.stderr.r, cmd.WaitDelay)
	return p, nil
}

// check finds the program and refuses arguments that the system would cut or
// refuse itself, less clearly.
func check(cmd Command) (string, error) {
	if strings.ContainsRune(cmd.Path, 0) {
		return "", fmt.Errorf("%w: the program's name contains a NUL byte", ErrArgument)
	}
	for i, a := range cmd.Args {
		if strings.ContainsRune(a, 0) {
			return "", fmt.Errorf("%w: argument %d contains a NUL byte", ErrArgument, i+1)
		}
		if len(a) > MaxArg {
			return "", fmt.Errorf("%w: argument %d has %d bytes, the most is %d", ErrArgument, i+1, len(a), MaxArg)
		}
	}
	return LookPath(cmd.Path, cmd.Env)
}

// LookPath finds a program in the PATH of env. Entries that are not absolute
// are passed over, so that the working directory never decides what runs.
func LookPath(name string, env []string) (string, error) {
	if name == "" {
		return "", fmt.Errorf("%w: the command is empty", ErrNotFound)
	}
	if filepath.Base(name) != name {
		if !filepath.IsAbs(name) {
			// It would be looked up in the working directory, which agents write to.
			return "", fmt.Errorf("%w: %s is neither a name nor an absolute path", ErrNotFound, name)
		}
		path, err := exec.LookPath(name)
		if err != nil {
			return "", startError(name, err)
		}
		return path, nil
	}
	for _, dir := range filepath.SplitList(lookup(env, "PATH")) {
		if !filepath.IsAbs(dir) {
			continue
		}
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: %s is not in PATH", ErrNotFound, name)
}

func startError(path string, err error) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%w: %s: %w", ErrNotFound, path, err)
	}
	return fmt.Errorf("start %s: %w", path, err)
}

// abandon gets rid of a process that could not be taken into a group.
func (p *Process) abandon(stderr *os.File) {
	_ = p.cmd.Process.Kill() // it may have ended by itself
	_ = p.cmd.Wait()         // the error that the caller gets is the group's
	p.releaseFiles()
	_ = stderr.Close() // read end, nothing to lose
}

// reap waits for the end of the process, sweeps what it left, drains stderr.
func (p *Process) reap(stderr *os.File, delay time.Duration) {
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		p.stderr.drain(stderr)
	}()
	if !p.group.awaitEnd(p.cmd.Process) {
		p.reapLeader()
	}
	close(p.ended)
	swept, err := p.group.sweep(p.marker)
	p.reapLeader()
	exit := exitOf(p.cmd.ProcessState)
	exit.Swept, exit.Err = swept, err
	p.group.close()
	p.stdout.processEnded()
	// With the descendants gone this returns at once.
	boundReads(stderr, delay)
	<-drained
	_ = stderr.Close() // read end, nothing to lose
	p.finished(exit)
}

// finished sets the exit that Wait reports; the first call counts.
func (p *Process) finished(exit Exit) {
	p.finish.Do(func() {
		p.exit = exit
		close(p.done)
	})
}

// reapLeader reaps the process, the first time that it is called.
func (p *Process) reapLeader() {
	if p.cmd.ProcessState != nil {
		return
	}
	_ = p.cmd.Wait() // how it ended is in ProcessState
	p.mu.Lock()
	p.reaped = true
	p.mu.Unlock()
}

func exitOf(st *os.ProcessState) Exit {
	if st == nil { // the system lost it: something else has reaped it
		return Exit{Code: -1}
	}
	return Exit{Code: st.ExitCode(), Signal: signalOf(st)}
}

// PID is the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Marker is what the process and its descendants carry.
func (p *Process) Marker() Marker { return p.marker }

// Stdin is the process's standard input. A write blocks until the process reads
// or Stop or Close is called. Closing it twice is harmless.
func (p *Process) Stdin() io.WriteCloser { return p.stdin }

// Stdout is the process's standard output, as raw bytes: see [NewLines] for
// lines. It reports io.EOF when the process and everything that could be swept
// is gone. Only one goroutine may read.
func (p *Process) Stdout() io.Reader { return p.stdout }

// Stderr is the redacted end of what the process has written to standard error.
func (p *Process) Stderr() string { return p.stderr.String() }

// Ended is closed when the process itself has ended; descendants may still be
// there. See Wait.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Done is closed when the process is reaped and its descendants are swept, or Stop
// has given it up.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait blocks until the process has ended and its descendants are gone, or Stop has
// given it up. The reader of Stdout goes on on its own.
func (p *Process) Wait() Exit {
	<-p.done
	return p.exit
}

// StopPolicy is how a process is asked to end.
type StopPolicy struct {
	// Signals are sent to the process group one after another. Empty means
	// SIGKILL at once.
	Signals []os.Signal
	// Grace is the time after each signal.
	Grace time.Duration
}

// Stop ends the process and its descendants: it closes standard input, sends
// the signals with the grace between them, then SIGKILL, and sweeps. It blocks
// until all are gone; the end of ctx cuts the graces short but not the rest.
// Standard output can still be read, during the graces and afterwards. Only a
// process that hangs in the kernel is given up, with ErrNotGone.
func (p *Process) Stop(ctx context.Context, policy StopPolicy) Exit {
	_ = p.stdin.Close() // already closed, or the process is gone: either is fine
	if policy.Grace <= 0 {
		policy.Grace = DefaultGrace
	}
	for _, sig := range policy.Signals {
		if !gentleSignals || p.hasEnded() || ctx.Err() != nil {
			break
		}
		p.signal(sig)
		p.awaitEnd(ctx, policy.Grace)
	}
	if !p.hasEnded() {
		p.signal(os.Kill)
	}
	t := time.NewTimer(killTimeout)
	defer t.Stop()
	select {
	case <-p.done:
	case <-t.C:
		// Nobody is to wait for the kernel but reap.
		p.finished(Exit{Code: -1, Err: ErrNotGone})
		p.releaseFiles()
	}
	return p.exit
}

// signal sends sig to the group while its id is certainly still the group's.
func (p *Process) signal(sig os.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		p.group.signal(sig)
	}
}

func (p *Process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

func (p *Process) awaitEnd(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-p.ended:
	case <-ctx.Done():
	case <-t.C:
	}
}

// Close kills what still runs and frees everything. It is idempotent and blocks
// until the process and its descendants are gone.
func (p *Process) Close() error {
	exit := p.Stop(context.Background(), StopPolicy{})
	p.releaseFiles()
	return exit.Err
}

func (p *Process) releaseFiles() {
	p.release.Do(func() {
		_ = p.stdin.Close()  // may be closed already
		_ = p.stdout.Close() // read end, nothing to lose
	})
}

// SweepOrphans kills those marked descendants that no longer have the process
// among their ancestors: what a tool put into the background with setsid or a
// double fork. It is for the end of a turn of a process that goes on; what the
// process itself looks after (its own servers, say) stays. It reports how many
// there were.
func (p *Process) SweepOrphans() (int, error) {
	if p.hasEnded() {
		return 0, nil
	}
	return p.group.sweepOrphans(p.marker)
}
