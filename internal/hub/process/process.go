// Package process runs the programs of agents, limits them, and kills all their descendants at the end.
//
// It uses no shell. The environment is an allow-list ([Environ]), and standard error is drained into a redacted
// tail. Every process leads its own session and has a [Marker] in its environment, which its descendants inherit.
// When the process ends, for whatever reason, the marked descendants are swept (found and killed), including those
// that a tool put into the background with setsid or a double fork.
//
// Platforms differ:
//
//   - Linux: markers are found through /proc. A descendant that clears its environment,
//     leaves the session and loses its parents is found by a resource limit (see
//     setTag), unless it lowers this limit too or has another user's id.
//   - macOS: markers are found through sysctl. The environment of programs protected by
//     the system is hidden; those are found while they are in the process group or
//     below another found process.
//   - Windows: a job object holds the tree. There are no gentle signals: Stop
//     terminates the job at once.
//   - others: the process group only.
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

	"github.com/parleyhub/parley/internal/base/defaults"
	"github.com/parleyhub/parley/internal/base/wait"
)

// Defaults of a [Command] and a [StopPolicy].
const (
	DefaultStderrTail = 16 << 10
	DefaultWaitDelay  = 2 * time.Second
	DefaultGrace      = 2 * time.Second
)

// MaxArg is the longest single argument: Linux refuses 131,072 bytes (MAX_ARG_STRLEN, the final NUL included).
const MaxArg = 131071

// killTimeout bounds the wait for a process after SIGKILL. Only a process that hangs in
// the kernel (a dead network file system) reaches it.
const killTimeout = 15 * time.Second

// The errors of this package, for errors.Is.
var (
	ErrNotFound    = errors.New("program not found")
	ErrArgument    = errors.New("argument cannot be passed to a program")
	ErrLineTooLong = errors.New("line too long")
	ErrRetries     = errors.New("only refused requests, more than the limit")
	ErrRetryTime   = errors.New("only refused requests within the time limit of retries")
	ErrIdle        = errors.New("no output within the idle limit")
	ErrRunTime     = errors.New("run limit reached")
	ErrNotGone     = errors.New("processes could not be ended")
)

// Command describes a process to start.
type Command struct {
	// Path is a program's name, looked up in Env's PATH, or an absolute path.
	// Entries of PATH that are not absolute are ignored.
	Path string
	Args []string // without the program's name
	// Dir is the working directory, empty for the caller's.
	Dir string
	// Env is the whole environment: see [Environ].
	Env []string
	// Secrets are removed from the end of standard error, besides those of Env.
	Secrets []string
	// Marker identifies this process and its descendants; the zero value means a new one.
	Marker Marker
	// StderrTail is how many bytes of the end of standard error are kept.
	StderrTail int
	// Stderr is called with each line of standard error, without its end and at most 8 KiB of it, until Wait returns.
	// It must not block for long. A line that it does not keep is not part of the tail. Nil keeps all.
	Stderr func(line string) (keep bool)
	// WaitDelay is how long standard output is read after the end of the process, if a
	// process that could not be swept keeps the pipe open.
	WaitDelay time.Duration
}

// Exit is how a process ended.
type Exit struct {
	// Code is the exit code, -1 if a signal ended the process.
	Code int
	// Signal names the signal that ended it, empty if it exited.
	Signal string
	// Swept is the number of descendants that were killed after the end of the process.
	Swept int
	// Err is ErrNotGone if descendants still run.
	Err error
}

// Process is a running program. The caller must close it. Its methods are safe for concurrent use.
type Process struct {
	cmd    *exec.Cmd
	marker Marker
	stdin  *os.File
	stdout *stdoutPipe
	stderr *tail
	group  group // the platform's handle of the whole tree

	ended   chan struct{} // closed when the process itself has ended
	done    chan struct{} // closed when it is reaped, its descendants are swept and stderr is drained
	exit    Exit          // set before done is closed
	finish  sync.Once     // closes done
	release sync.Once

	mu     sync.Mutex
	reaped bool // the id may be another process's, which must receive no signals
}

// Start starts cmd. The process is not bound to a context: the caller stops and closes it.
func Start(cmd Command) (*Process, error) {
	path, err := check(cmd)
	if err != nil {
		return nil, err
	}
	if cmd.Marker == "" {
		cmd.Marker = NewMarker("")
	}
	defaults.Set(&cmd.StderrTail, DefaultStderrTail)
	defaults.Set(&cmd.WaitDelay, DefaultWaitDelay)

	var pipes pipes
	if err := pipes.open(); err != nil {
		pipes.close()
		return nil, fmt.Errorf("open pipes: %w", err)
	}
	p := &Process{
		marker: cmd.Marker,
		stderr: newTail(cmd.StderrTail, NewRedactor(cmd.Env, cmd.Secrets...), cmd.Stderr),
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
	p.stdin = pipes.stdin.w
	p.stdout = &stdoutPipe{f: pipes.stdout.r, delay: cmd.WaitDelay}
	if p.group, err = newGroup(p.cmd.Process, p.marker); err != nil {
		p.abandon(pipes.stderr.r)
		return nil, fmt.Errorf("hold the processes of %s together: %w", cmd.Path, err)
	}
	go p.reap(pipes.stderr.r, cmd.WaitDelay)
	return p, nil
}

// check finds the program, and rejects arguments that the system would truncate or reject with an unclear error.
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

// LookPath finds a program in the PATH of env. It ignores entries that are not absolute,
// so that the working directory never decides which program runs.
func LookPath(name string, env []string) (string, error) {
	if name == "" {
		return "", fmt.Errorf("%w: the command is empty", ErrNotFound)
	}
	if filepath.Base(name) != name {
		if !filepath.IsAbs(name) {
			// It would be found in the working directory, which agents can write to.
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

// abandon kills a process for which newGroup failed.
func (p *Process) abandon(stderr *os.File) {
	_ = p.cmd.Process.Kill() // may have ended
	_ = p.cmd.Wait()         // the caller receives the error of newGroup
	p.releaseFiles()
	_ = stderr.Close() // read end, nothing to lose
}

// reap waits for the end of the process, sweeps its descendants and drains stderr.
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
	// After the sweep this returns at once.
	boundReads(stderr, delay)
	<-drained
	_ = stderr.Close() // read end, nothing to lose
	p.finished(exit)
}

// finished sets the result of Wait; the first call counts.
func (p *Process) finished(exit Exit) {
	p.finish.Do(func() {
		p.exit = exit
		close(p.done)
	})
}

// reapLeader reaps the process, if it is not reaped yet.
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
	if st == nil { // something else has reaped it
		return Exit{Code: -1}
	}
	return Exit{Code: st.ExitCode(), Signal: signalOf(st)}
}

// PID returns the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Marker returns the marker of the process and its descendants.
func (p *Process) Marker() Marker { return p.marker }

// Stdin returns the process's standard input. A write blocks until the process reads, or
// Stop or Close is called. It may be closed twice, also while a write blocks.
func (p *Process) Stdin() io.WriteCloser { return p.stdin }

// Stdout returns the process's standard output, as raw bytes; see [NewLines] for lines. Reads return io.EOF after
// the end of the process and its descendants. Only one goroutine may read.
func (p *Process) Stdout() io.Reader { return p.stdout }

// Stderr returns the redacted end of the process's standard error so far.
func (p *Process) Stderr() string { return p.stderr.String() }

// Ended returns a channel that is closed when the process itself has ended. Descendants may still run, see Wait.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Done returns a channel that is closed when the process is reaped and its descendants are
// swept, or Stop has returned ErrNotGone.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait blocks until Done is closed. Stdout can still be read.
func (p *Process) Wait() Exit {
	<-p.done
	return p.exit
}

// StopPolicy describes how a process is asked to end.
type StopPolicy struct {
	// Signals are sent to the process group in order. Empty means SIGKILL at once.
	Signals []os.Signal
	// Grace is the wait after each signal.
	Grace time.Duration
}

// Stop ends the process and its descendants: it closes standard input, sends the signals, each followed by the
// grace, then SIGKILL, and sweeps. It blocks until all have ended; the end of ctx shortens only the graces. Standard
// output can still be read meanwhile and afterwards. For a process that hangs in the kernel, Exit.Err is ErrNotGone.
func (p *Process) Stop(ctx context.Context, policy StopPolicy) Exit {
	_ = p.stdin.Close() // may be closed, or the process may have ended
	defaults.Set(&policy.Grace, DefaultGrace)
	for _, sig := range policy.Signals {
		if !gentleSignals || wait.Closed(p.ended) || ctx.Err() != nil {
			break
		}
		p.signal(sig)
		p.awaitEnd(ctx, policy.Grace)
	}
	if !wait.Closed(p.ended) {
		p.signal(os.Kill)
	}
	t := time.NewTimer(killTimeout)
	defer t.Stop()
	select {
	case <-p.done:
	case <-t.C:
		// Only reap waits for the kernel.
		p.finished(Exit{Code: -1, Err: ErrNotGone})
		p.releaseFiles()
	}
	return p.exit
}

// signal sends sig to the group, unless the group's id may have been reused.
func (p *Process) signal(sig os.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		p.group.signal(sig)
	}
}

func (p *Process) awaitEnd(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	select {
	case <-p.ended:
	case <-ctx.Done():
	}
}

// Close kills the process and its descendants, and releases all resources. It is
// idempotent and blocks until they have ended.
func (p *Process) Close() error {
	exit := p.Stop(context.Background(), StopPolicy{})
	p.releaseFiles()
	return exit.Err
}

func (p *Process) releaseFiles() {
	p.release.Do(func() {
		_ = p.stdin.Close()  // may be closed
		_ = p.stdout.Close() // read end, nothing to lose
	})
}

// SweepOrphans kills the marked descendants that no longer have the process as an ancestor, which tools have put
// into the background with setsid or a double fork, and returns their number. It is for the end of a turn if the
// process continues. The process's own children, such as its servers, stay.
func (p *Process) SweepOrphans() (int, error) {
	if wait.Closed(p.ended) {
		return 0, nil
	}
	return p.group.sweepOrphans(p.marker)
}
