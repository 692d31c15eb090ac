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
	"slices"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/tools/delegation"
)

// report is the one line that a hub in the background writes to its standard
// output: that it serves, or why it does not.
type report struct {
	Ready *Info  `json:"ready,omitempty"`
	Error *Error `json:"error,omitempty"`
}

// startPatience is how long a hub may take to serve: reading back the store
// of a hub with a long history takes seconds.
const startPatience = 60 * time.Second

// Start runs command, which runs a hub with RunInBackground, detached from this
// process and its terminal, and waits until the hub serves. Where another hub
// has the data directory and serves, Start returns that one with an *Error of
// CodeRunning; where it is still starting or ending, Start waits for it.
func Start(ctx context.Context, dataDir string, command []string) (Info, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startPatience, errPatience)
	defer cancel()
	for {
		info, running, err := Running(dataDir)
		if err != nil {
			return Info{}, &Error{Code: CodeStart, Message: err.Error(), Err: err}
		}
		if running && info.serves(ctx) {
			return info, &Error{Code: CodeRunning, Message: fmt.Sprintf("the hub runs already (process %d)", info.PID)}
		}
		if !running {
			info, err := launch(ctx, command)
			if CodeOf(err) != CodeRunning {
				return info, err
			}
		} // else, or when the race was lost: see what becomes of the other
		if err := wait(ctx, pollInterval); err != nil {
			return Info{}, &Error{
				Code: CodeStart, Message: "another process has locked the data directory " + dataDir + " but does not serve",
				Remedy: "look into " + LogPath(dataDir), Err: err,
			}
		}
	}
}

var errPatience = errors.New("the hub did not serve in time")

// serves tells whether the hub answers. One that was killed has its lock for
// another moment, and its run file for good.
func (i Info) serves(ctx context.Context) bool {
	if i.PID == 0 {
		return false
	}
	if i.Socket == "" {
		return true // it cannot be asked by this way
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

// maxReport bounds the report line and what is kept of standard error.
const maxReport = 64 << 10

func launch(ctx context.Context, command []string) (Info, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = withoutMarker(os.Environ())
	detach(cmd)
	keepDescriptors()
	out, err := cmd.StdoutPipe()
	if err != nil {
		return Info{}, &Error{Code: CodeStart, Message: "cannot start the hub: " + err.Error(), Err: err}
	}
	if err := cmd.Start(); err != nil {
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
		// Killed before it served, it has nothing to lose but what it stored.
		killErr := errors.Join(cmd.Process.Kill(), ignoreExit(cmd.Wait()))
		<-lines
		return Info{}, &Error{Code: CodeStart, Message: "the hub did not begin to serve in time", Remedy: "look into its log, or run it with --foreground", Err: errors.Join(err, killErr)}
	}
	if r.Ready != nil {
		return *r.Ready, errors.Join(out.Close(), cmd.Process.Release())
	}
	waitErr := cmd.Wait()
	if r.Error == nil {
		r.Error = &Error{Code: CodeStart, Message: fmt.Sprintf("the hub ended before it served (%v)", waitErr), Remedy: "run it with --foreground to see why"}
	}
	return Info{}, r.Error
}

// withoutMarker takes the mark and the token of an agent's turn out of an
// environment: with the one the hub would be ended with the turn in which it was
// started, the other is nothing for it.
func withoutMarker(env []string) []string {
	return slices.DeleteFunc(env, func(variable string) bool {
		return strings.HasPrefix(variable, process.MarkerEnv+"=") || strings.HasPrefix(variable, delegation.TokenEnv+"=")
	})
}

func ignoreExit(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
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

// send writes the report and closes the pipe. A parent that has gone does not
// keep the hub from serving.
func (r report) send(w io.WriteCloser) error {
	line, err := json.Marshal(r)
	if err == nil {
		_, err = w.Write(append(line, '\n'))
	}
	return errors.Join(err, w.Close())
}

const pollInterval = 20 * time.Millisecond

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

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
	return command, nil
}
