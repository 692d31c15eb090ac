package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub/process"
)

// probeTimeout bounds each command of a probe. The slowest measured agent needs 1.5 s to print its version.
const probeTimeout = 15 * time.Second

// maxProbeOutput bounds the output that is read of a command.
const maxProbeOutput = 64 << 10

var versionPattern = text.Pattern(`\d+\.\d+(?:\.\d+)*(?:[-+][0-9A-Za-z.+-]+)?`)

// ProbeCommand implements Agent.Probe for an installed program, by the commands of its definition: whether the
// program prints its version, is new enough, and has credentials.
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
	p.Version = versionPattern().FindString(out)
	if p.Err = def.tooOld(p.Version); p.Err != nil {
		return p
	}
	p.authenticate(ctx, def, opts)
	return p
}

// CheckVersion runs the agent's program and checks that it is new enough for the
// definition. The error is an *Error. A version that cannot be read is accepted.
func CheckVersion(ctx context.Context, def Definition, opts Options) error {
	out, err := runProbe(ctx, def, opts, def.Probe.Version)
	if err != nil {
		return err
	}
	if err := def.tooOld(versionPattern().FindString(out)); err != nil {
		return err
	}
	return nil
}

// tooOld returns nil for a version that the definition accepts.
func (d Definition) tooOld(version string) *Error {
	if !older(version, d.Probe.MinVersion) {
		return nil
	}
	return &Error{Code: CodeConfig,
		Message: fmt.Sprintf("%s %s is too old: %s or newer is needed", d.Name, version, d.Probe.MinVersion),
		Remedy:  d.Probe.Install}
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
		case err.Code == CodeAgent: // the program ran, and exited with an error
			p.AuthKnown, p.Err = true, def.AuthError("")
		default:
			p.Err = err
		}
	case len(spec.AuthEnv)+len(spec.AuthFiles) > 0:
		p.AuthKnown, p.Err = true, def.AuthError("")
	}
}

// hasCredentials checks whether credentials exist, without reading them.
func hasCredentials(spec ProbeSpec, env []string) bool {
	home := ""
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if name == "HOME" || name == "USERPROFILE" && home == "" {
			home = value
		}
		if value != "" && slices.Contains(spec.AuthEnv, name) {
			return true
		}
	}
	return slices.ContainsFunc(spec.AuthFiles, func(file string) bool {
		if rest, ok := strings.CutPrefix(file, "~"); ok {
			if home == "" {
				return false
			}
			file = filepath.Join(home, rest)
		}
		info, err := os.Stat(file)
		return err == nil && info.Size() > 0
	})
}

// runProbe runs the agent with args and returns its output. An exit code other than 0 is an error with CodeAgent.
func runProbe(ctx context.Context, def Definition, opts Options, args []string) (string, *Error) {
	ctx, watch := process.NewWatch(ctx, probeTimeout, 0)
	defer watch.Stop()
	p, err := process.Start(NewCommand(def, opts, os.TempDir(), args))
	if err != nil {
		return "", def.StartError(err)
	}
	defer p.Close() //nolint:errcheck // a probe ignores ErrNotGone
	stopped := context.AfterFunc(ctx, func() { p.Stop(ctx, process.StopPolicy{}) })
	defer stopped()
	_ = p.Stdin().Close() // may have ended already
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
		return "", &Error{Code: CodeAgent,
			Message: fmt.Sprintf("%s failed%s%s", command, exitText(exit), QuoteTail(p.Stderr())),
			Remedy:  def.Probe.Install, Err: errors.Join(exit.Err, fmt.Errorf("exit code %d", exit.Code))}
	}
	// Some agents print their version to standard error.
	return string(out) + p.Stderr(), nil
}

// older reports whether version a is older than b; false if a is no version.
func older(a, b string) bool {
	x, y := numbers(a), numbers(b)
	if len(x) == 0 {
		return false
	}
	return slices.Compare(x[:min(len(x), len(y))], y) < 0
}

// numbers returns the leading numbers of a version: 2, 1 and 0 of 2.1.0-beta.
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
