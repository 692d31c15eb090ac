package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/hub/process"
)

// probeTimeout bounds each command of a probe. The slowest agent measured takes
// 1.5 s to say its version.
const probeTimeout = 15 * time.Second

// maxProbeOutput is how much of a command's output is read.
const maxProbeOutput = 64 << 10

var versionPattern = regexp.MustCompile(`\d+\.\d+(?:\.\d+)*(?:[-+][0-9A-Za-z.+-]+)?`)

// ProbeCommand finds out about an agent by its commands, as its definition says.
// It is what every driver of an installed program does for Agent.Probe. The three
// stages: the command is there and prints its version; it is new enough; there
// are credentials.
func ProbeCommand(ctx context.Context, def Definition, opts Options) Probe {
	began := time.Now()
	out, err := runProbe(ctx, def, opts, def.Probe.Version)
	p := Probe{Stage: StageMissing, Latency: time.Since(began)}
	if err != nil {
		if ctx.Err() != nil {
			p.Stage = StageUnknown
		}
		p.Err = err
		return p
	}
	p.Stage = StageInstalled
	p.Version = versionPattern.FindString(out)
	if p.Err = def.tooOld(p.Version); p.Err != nil {
		return p
	}
	p.authenticate(ctx, def, opts)
	return p
}

// CheckVersion runs the agent's program to see whether it is new enough for the
// definition. The error is an *Error. A version that cannot be read is let pass.
func CheckVersion(ctx context.Context, def Definition, opts Options) error {
	out, err := runProbe(ctx, def, opts, def.Probe.Version)
	if err != nil {
		return err
	}
	if err := def.tooOld(versionPattern.FindString(out)); err != nil {
		return err
	}
	return nil
}

// tooOld returns nil for a version that the definition takes.
func (d Definition) tooOld(version string) *Error {
	if !older(version, d.Probe.MinVersion) {
		return nil
	}
	return &Error{
		Code:    CodeConfig,
		Message: fmt.Sprintf("%s %s is too old: %s or newer is needed", d.Name, version, d.Probe.MinVersion),
		Remedy:  d.Probe.Install,
	}
}

func (p *Probe) authenticate(ctx context.Context, def Definition, opts Options) {
	spec := def.Probe
	env := def.Environ(opts)
	switch {
	case hasCredentials(spec, env):
		p.Stage, p.AuthKnown = StageAuthenticated, true
	case len(spec.Auth) > 0:
		_, err := runProbe(ctx, def, opts, spec.Auth)
		switch {
		case err == nil:
			p.Stage, p.AuthKnown = StageAuthenticated, true
		case err.Code == CodeAgent: // it ran, and said no
			p.AuthKnown, p.Err = true, def.AuthError("")
		default:
			p.Err = err
		}
	case len(spec.AuthEnv)+len(spec.AuthFiles) > 0:
		p.AuthKnown, p.Err = true, def.AuthError("")
	}
}

// hasCredentials looks where credentials are kept, without reading them.
func hasCredentials(spec ProbeSpec, env []string) bool {
	home := ""
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if name == "HOME" || name == "USERPROFILE" && home == "" {
			home = value
		}
		for _, want := range spec.AuthEnv {
			if name == want && value != "" {
				return true
			}
		}
	}
	for _, file := range spec.AuthFiles {
		if rest, ok := strings.CutPrefix(file, "~"); ok {
			if home == "" {
				continue
			}
			file = filepath.Join(home, rest)
		}
		if info, err := os.Stat(file); err == nil && info.Size() > 0 {
			return true
		}
	}
	return false
}

// runProbe runs the agent with args and returns what it printed. An exit code
// other than 0 is an error with CodeAgent.
func runProbe(ctx context.Context, def Definition, opts Options, args []string) (string, *Error) {
	ctx, watch := process.NewWatch(ctx, probeTimeout, 0)
	defer watch.Stop()
	p, err := process.Start(NewCommand(def, opts, os.TempDir(), args))
	if err != nil {
		return "", def.StartError(err)
	}
	defer p.Close() //nolint:errcheck // ErrNotGone is of no use here
	stopped := context.AfterFunc(ctx, func() { p.Stop(ctx, process.StopPolicy{}) })
	defer stopped()
	_ = p.Stdin().Close() // nothing to say; it may have ended already
	out, err := io.ReadAll(io.LimitReader(p.Stdout(), maxProbeOutput))
	if err == nil && len(out) == maxProbeOutput {
		_, err = io.Copy(io.Discard, p.Stdout())
	}
	exit := p.Wait()
	command := def.Command + " " + strings.Join(args, " ")
	switch {
	case ctx.Err() != nil:
		return "", &Error{Code: CodeTimeout, Message: command + " did not answer in time", Err: context.Cause(ctx)}
	case err != nil:
		return "", &Error{Code: CodeInternal, Message: command + " could not be read", Err: err}
	case exit.Code != 0:
		return "", &Error{
			Code:    CodeAgent,
			Message: fmt.Sprintf("%s failed%s%s", command, exitText(exit), quoteTail(p.Stderr())),
			Remedy:  def.Probe.Install,
			Err:     errors.Join(exit.Err, fmt.Errorf("exit code %d", exit.Code)),
		}
	}
	// Some print their version to standard error.
	return string(out) + p.Stderr(), nil
}

// older reports whether version a is before b. What is not a version is not older.
func older(a, b string) bool {
	x, y := numbers(a), numbers(b)
	if len(x) == 0 {
		return false
	}
	for i, n := range y {
		switch {
		case i >= len(x) || x[i] < n:
			return true
		case x[i] > n:
			return false
		}
	}
	return false
}

// numbers are the leading numbers of a version: 2.1.0-beta has 2, 1 and 0.
func numbers(version string) []int {
	version, _, _ = strings.Cut(version, "-")
	var ns []int
	for part := range strings.SplitSeq(version, ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			break
		}
		ns = append(ns, n)
	}
	return ns
}
