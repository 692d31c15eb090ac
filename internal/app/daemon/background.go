package daemon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/server"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/mcp/delegation"
)

// report is the line that a hub in the background writes to its standard output: that it is
// ready, or why it failed to start.
type report struct {
	Ready *Info  `json:"ready,omitempty"`
	Error *Error `json:"error,omitempty"`
}

// startTimeout is how long a hub may take to get ready: recovering the store of a hub with a
// long history takes seconds.
const startTimeout = 60 * time.Second

// Start runs command, which calls [RunInBackground], detached from this process and its terminal, and waits until
// the hub is ready. If another hub has the data directory and is ready, Start returns its Info with an *Error with
// CodeRunning; if that hub is starting or stopping, Start waits for it.
func Start(ctx context.Context, dataDir string, command []string) (Info, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errStartTimeout)
	defer cancel()
	for {
		info, running, err := Running(dataDir)
		if err != nil {
			return Info{}, dataDirError(dataDir, err)
		}
		if running && info.answers(ctx) {
			return info, &Error{Code: CodeRunning, Message: fmt.Sprintf("the hub is already running (process %d)", info.PID)}
		}
		if !running {
			info, err := launchAlone(ctx, dataDir, command)
			if CodeOf(err) != CodeRunning {
				return info, err
			}
		}
		// Another process has the lock: wait for what it does.
		if !wait.Pause(ctx, pollInterval) {
			return Info{}, &Error{
				Code: CodeStart, Message: "another process has locked the data directory " + dataDir + " but does not answer",
				Remedy: "see " + LogPath(dataDir), Err: context.Cause(ctx),
			}
		}
	}
}

var errStartTimeout = errors.New("the hub was not ready in time")

// answers reports whether the hub answers on its socket; without a socket it returns true. A
// killed hub keeps its lock for a moment, and its run file stays.
func (i Info) answers(ctx context.Context) bool {
	if i.PID == 0 || i.Socket == "" {
		return i.PID != 0
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c, err := client.Dial(ctx, i.Socket)
	if err != nil {
		return false
	}
	defer c.Close()
	status, err := c.Status(ctx)
	return err == nil && status.PID == i.PID
}

// launchAlone is launch, unless another process is launching a hub of the data directory: then it returns an *Error with
// CodeRunning. So of several processes whose hub was killed one starts another, and the others wait for it.
func launchAlone(ctx context.Context, dataDir string, command []string) (Info, error) {
	if err := makePrivate(dataDir); err != nil {
		return launch(ctx, command) // the hub reports it
	}
	starting := flock.New(filepath.Join(dataDir, startName), flock.SetPermissions(0o600))
	free, err := starting.TryLock()
	if err != nil {
		return launch(ctx, command)
	}
	if free {
		defer func() { _ = starting.Unlock() }() // it ends with the process at the latest
		var running bool
		if _, running, err = Running(dataDir); err == nil && !running {
			return launch(ctx, command)
		}
	}
	return Info{}, &Error{Code: CodeRunning, Message: "another process is starting the hub"}
}

// maxReport bounds the report, in bytes.
const maxReport = 64 << 10

func launch(ctx context.Context, command []string) (Info, error) {
	cmd := hubProcess(command)
	closeDescriptorsOnExec()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return Info{}, &Error{Code: CodeStart, Message: "cannot start the hub: " + err.Error(), Err: err}
	}
	lines := make(chan report, 1)
	go func() { // ends with the line, or when out is closed below
		lines <- readReport(out)
	}()
	var r report
	select {
	case r = <-lines:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		killErr := errors.Join(kill(cmd.Process), ignoreExit(cmd.Wait()))
		<-lines
		return Info{}, &Error{Code: CodeStart, Message: "the hub was not ready in time", Remedy: "see its log, or run it with --foreground", Err: errors.Join(err, killErr)}
	}
	if r.Ready != nil && r.Ready.PID == cmd.Process.Pid {
		return *r.Ready, errors.Join(out.Close(), cmd.Process.Release())
	}
	if r.Ready != nil {
		return *r.Ready, errors.Join(out.Close(), ignoreExit(cmd.Wait()))
	}
	waitErr := cmd.Wait()
	if r.Error == nil {
		r.Error = &Error{Code: CodeStart, Message: "the hub ended before it was ready", Remedy: "run it with --foreground to see why"}
		if waitErr != nil {
			r.Error.Message += fmt.Sprintf(" (%v)", waitErr)
		}
	}
	return Info{}, r.Error
}

// hubProcess returns the process that runs command, detached. It has the name under which this program was called: the
// path of this program's file may be the target of the link, and the hub names the program in its messages.
func hubProcess(command []string) *exec.Cmd {
	cmd := exec.Command(command[0], command[1:]...)
	if name := local.Program(); local.ProgramOf(command[0]) != name {
		cmd.Args[0] = name
	}
	cmd.Env = withoutSession(os.Environ())
	if orphans {
		cmd.Env = append(cmd.Env, leaveEnv+"=1")
	}
	detach(cmd)
	return cmd
}

// leaveEnv is set for a process that is to call [LeaveParent].
const leaveEnv = "PARLEY_LEAVE_PARENT"

// LeaveParent starts this program again and reports true, if it is a process of [Start]: the hub is no child of the process that has
// started it then. An open session may have: Claude Code takes what its descendants send for the session's own. A program that runs
// hubs calls it first and exits if it reports true.
func LeaveParent() bool {
	if os.Getenv(leaveEnv) == "" {
		return false
	}
	path, err := os.Executable()
	if err == nil {
		err = os.Unsetenv(leaveEnv)
	}
	if err == nil {
		cmd := exec.Command(path, os.Args[1:]...)
		cmd.Args[0], cmd.Stdout = os.Args[0], os.Stdout
		err = cmd.Start()
	}
	if err != nil {
		e := &Error{Code: CodeStart, Message: "cannot start the hub: " + err.Error(), Err: err}
		_ = report{Error: e}.send(os.Stdout) // nobody reads it if that fails
	}
	return true
}

// sessionEnv are the variables of an agent's turn or an open session. A hub with the mark of a turn would be ended with it; it does
// not need the others, some of which are secret.
var sessionEnv = []string{process.MarkerEnv, delegation.TokenEnv, leaveEnv, "CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_MESSAGING_SOCKET",
	"CLAUDE_CODE_MESSAGING_TOKEN", "CLAUDE_CODE_SESSION_ID", "CLAUDE_CODE_SESSION_ATTENDED", "CLAUDE_ENV_FILE", "CLAUDE_PID", "CLAUDE_PROJECT_DIR",
	"GEMINI_CLI", "GEMINI_CWD", "GEMINI_PROJECT_DIR", "GEMINI_SESSION_ID"}

// withoutSession removes sessionEnv from an environment.
func withoutSession(env []string) []string {
	return slices.DeleteFunc(env, func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return slices.Contains(sessionEnv, name)
	})
}

func ignoreExit(err error) error {
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil
	}
	return err
}

func readReport(r io.Reader) report {
	var rep report
	line, err := bufio.NewReader(io.LimitReader(r, maxReport)).ReadBytes('\n')
	if err != nil || json.Unmarshal(bytes.TrimSpace(line), &rep) != nil {
		return report{}
	}
	return rep
}

// minSpace is the free space without which a hub cannot start: the streams of its store, in bytes.
const minSpace = 1 << 20

// fullError returns the error of a start that failed with err: that no space is left in the data directory if so, which
// the parts of the hub report in several ways, else err.
func fullError(dataDir string, err error) error {
	free, spaceErr := local.FreeSpace(dataDir)
	if !local.DiskFull(err) && (spaceErr != nil || free >= minSpace) {
		return err
	}
	return &Error{
		Code: CodeDataDir, Message: "there is no space left in the data directory " + dataDir,
		Remedy: "free space on its disk, or choose another directory with --data-dir", Err: err,
	}
}

// send writes the report and closes the pipe.
func (r report) send(w io.WriteCloser) error {
	line, err := json.Marshal(r)
	if err == nil {
		_, err = w.Write(append(line, '\n'))
	}
	return errors.Join(err, w.Close())
}

const pollInterval = 20 * time.Millisecond

// Command returns the command line for [Start] that runs the hub of a configuration. program
// is the command that runs `parley start --background`; by default it is this program.
func Command(cfg *config.Loaded, program ...string) ([]string, error) {
	if len(program) == 0 {
		path, err := os.Executable()
		if err != nil {
			return nil, &Error{Code: CodeStart, Message: "cannot find this program's own file", Err: err}
		}
		program = []string{path, "start", "--background"}
	}
	// The paths are absolute, because the background process changes its directory.
	command := append(slices.Clone(program), "--socket="+cfg.Socket.Path, "--data-dir="+cfg.DataDir)
	if cfg.Found {
		command = append(command, "--config="+cfg.File)
	}
	if cfg.Origin("http.port").Kind == config.FromFlag {
		command = append(command, "--http-port="+strconv.Itoa(cfg.HTTP.Port))
	}
	if cfg.Origin("http.enabled").Kind == config.FromFlag && !cfg.HTTP.Enabled {
		command = append(command, "--no-http")
	}
	if cfg.Origin("bus.durability").Kind == config.FromFlag {
		command = append(command, "--durability="+cfg.Bus.Durability)
	}
	return command, nil
}

// RunInBackground is [Run] in the process that [Start] has started: it writes the log to the data directory, and to
// reportTo the report that Start waits for. loadErr is the error of loading the configuration, for the report.
func RunInBackground(ctx context.Context, cfg *config.Loaded, loadErr error, reportTo io.WriteCloser, opts Options) error {
	ignoreBrokenPipes()
	fail := func(err error) error {
		if loadErr == nil {
			err = fullError(cfg.DataDir, err)
		}
		e := &Error{Code: CodeStart, Message: err.Error(), Err: err}
		var de *Error
		var se *server.Error
		switch {
		case errors.As(err, &de):
			e = de
		case errors.As(err, &se) && se.Code == server.CodeInUse:
			e = &Error{Code: CodeInUse, Message: se.Message, Remedy: se.Remedy, Err: err}
		}
		return errors.Join(err, report{Error: e}.send(reportTo))
	}
	if loadErr != nil {
		return fail(loadErr)
	}
	if err := makePrivate(cfg.DataDir); err != nil {
		return fail(err)
	}
	if err := os.Chdir(cfg.DataDir); err != nil { // another directory could not be unmounted
		return fail(err)
	}
	opts.Log, opts.KeepLock = LogPath(cfg.DataDir), true
	logFile, err := OpenLog(opts.Log)
	if err != nil {
		return fail(err)
	}
	opts.Logger = NewLogger(logFile, cfg.Logging, false)
	ready := false
	opts.Ready = func(info Info) {
		ready = true
		if err := (report{Ready: &info}).send(reportTo); err != nil {
			opts.Logger.Warn("the process that started the hub has ended", "error", err)
		}
	}
	err = Run(ctx, cfg, opts)
	if CodeOf(err) == CodeRunning {
		opts.Logger.Info("another hub has the data directory; this one is not needed", "error", err)
	} else if err != nil {
		opts.Logger.Error("the hub ended", "error", err)
	}
	err = errors.Join(err, logFile.Close())
	if err != nil && !ready {
		return fail(err)
	}
	return err
}
