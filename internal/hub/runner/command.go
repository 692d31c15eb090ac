package runner

import (
	"errors"
	"os"
	"strings"

	"github.com/parleyhub/parley/internal/hub/process"
)

// Environ returns the environment of the agent's processes.
func (d Definition) Environ(opts Options) []string {
	return process.Environ(opts.Environ, d.Env.Allow, d.Env.Set)
}

// NewCommand returns a command of the agent with args in dir, for process.Start. Every driver uses it, so that the
// environment, the marker and the bounds are those of the definition.
func NewCommand(def Definition, opts Options, dir string, args []string) process.Command {
	return process.Command{
		Path: def.Command, Args: args, Dir: dir, Env: def.Environ(opts), Marker: process.NewMarker(opts.Owner),
		StderrTail: def.Limits.StderrTail, Secrets: opts.Secrets,
	}
}

// SessionEnviron returns the environment of a session's processes.
func (d Definition) SessionEnviron(opts Options, spec SessionSpec) []string {
	return append(d.Environ(opts), spec.Env...)
}

// NewSessionCommand is [NewCommand] for a process of a session.
func NewSessionCommand(def Definition, opts Options, spec SessionSpec, args []string) process.Command {
	cmd := NewCommand(def, opts, spec.WorkDir, args)
	cmd.Env = def.SessionEnviron(opts, spec)
	return cmd
}

// ModelArguments returns the arguments that choose the model, none for the agent's default.
func (d Definition) ModelArguments() []string {
	if d.Model == "" {
		return nil
	}
	return replaceIn(d.ModelArgs, modelPlace, d.Model)
}

// replaceIn returns args with value in place of the placeholder.
func replaceIn(args []string, place, value string) []string {
	out := make([]string, len(args))
	for i, a := range args {
		out[i] = strings.ReplaceAll(a, place, value)
	}
	return out
}

// StopPolicy returns how the agent's processes are stopped. The definition must be completed.
func (d Definition) StopPolicy() process.StopPolicy {
	policy := process.StopPolicy{Grace: d.Stop.Grace}
	for _, name := range d.Stop.Signals {
		if sig, err := process.ParseSignal(name); err == nil { // Complete has rejected others
			policy.Signals = append(policy.Signals, sig)
		}
	}
	return policy
}

// StartError translates an error of process.Start for users.
func (d Definition) StartError(err error) *Error {
	switch {
	case errors.Is(err, process.ErrNotFound):
		return &Error{Code: CodeNotInstalled,
			Message: d.Name + " is not installed: the command " + d.Command + " was not found",
			Remedy:  d.Probe.Install, Err: err}
	case errors.Is(err, process.ErrArgument):
		return &Error{Code: CodeLimit, Message: "the message cannot be passed to " + d.Name + " as an argument: " + err.Error(), Err: err}
	case errors.Is(err, os.ErrPermission):
		return &Error{Code: CodeNotInstalled, Message: d.Command + " may not be run by this user", Err: err}
	}
	return &Error{Code: CodeInternal, Message: d.Name + " could not be started", Err: err}
}

// AuthError returns the error of an agent without valid credentials. detail is the
// agent's own text, redacted by the caller.
func (d Definition) AuthError(detail string) *Error {
	msg := d.Name + " is not logged in"
	if detail = strings.TrimSpace(detail); detail != "" {
		msg += ": " + detail
	}
	return &Error{Code: CodeAuth, Message: msg, Remedy: d.Probe.Login}
}

// TimeoutError returns the error for the limit that a turn has reached. cause is
// context.Cause of a process.Watch's context.
func (d Definition) TimeoutError(cause error) *Error {
	msg := d.Name + " was stopped after " + d.Limits.Run.String() + ", the limit for one turn (limits.run)"
	if errors.Is(cause, process.ErrIdle) {
		msg = d.Name + " was stopped after " + d.Limits.Idle.String() + " without output (limits.idle)"
	}
	return &Error{Code: CodeTimeout, Message: msg, Err: cause}
}
