package runner

import (
	"errors"
	"os"
	"strings"

	"github.com/parleyhub/parley/internal/hub/process"
)

// Environ is the environment of the agent's processes.
func (d Definition) Environ(opts Options) []string {
	return process.Environ(opts.Environ, d.Env.Allow, d.Env.Set)
}

// NewCommand is a process of the agent with args in dir, ready for process.Start.
// Every driver starts its processes this way: the environment, the mark and the
// bounds are then those that the definition promises.
func NewCommand(def Definition, opts Options, dir string, args []string) process.Command {
	return process.Command{
		Path:       def.Command,
		Args:       args,
		Dir:        dir,
		Env:        def.Environ(opts),
		Marker:     process.NewMarker(opts.Owner),
		StderrTail: def.Limits.StderrTail,
	}
}

// SessionEnviron is the environment of a session's processes.
func (d Definition) SessionEnviron(opts Options, spec SessionSpec) []string {
	return append(d.Environ(opts), spec.Env...)
}

// NewSessionCommand is NewCommand for a process of a session.
func NewSessionCommand(def Definition, opts Options, spec SessionSpec, args []string) process.Command {
	cmd := NewCommand(def, opts, spec.WorkDir, args)
	cmd.Env = def.SessionEnviron(opts, spec)
	return cmd
}

// ModelArguments are the arguments that choose the model, none for the agent's
// default.
func (d Definition) ModelArguments() []string {
	if d.Model == "" {
		return nil
	}
	return replaceIn(d.ModelArgs, modelPlace, d.Model)
}

// replaceIn puts value for the placeholder in a copy of args.
func replaceIn(args []string, place, value string) []string {
	out := make([]string, len(args))
	for i, a := range args {
		out[i] = strings.ReplaceAll(a, place, value)
	}
	return out
}

// StopPolicy is how the agent's processes are asked to end. The definition must
// be completed.
func (d Definition) StopPolicy() process.StopPolicy {
	policy := process.StopPolicy{Grace: d.Stop.Grace}
	for _, name := range d.Stop.Signals {
		if sig, err := process.ParseSignal(name); err == nil { // Complete has refused others
			policy.Signals = append(policy.Signals, sig)
		}
	}
	return policy
}

// StartError says in words why a process of the agent could not be started.
func (d Definition) StartError(err error) *Error {
	switch {
	case errors.Is(err, process.ErrNotFound):
		return &Error{
			Code: CodeNotInstalled, Message: d.Name + " is not installed: the command " + d.Command + " was not found",
			Remedy: d.Probe.Install, Err: err,
		}
	case errors.Is(err, process.ErrArgument):
		return &Error{Code: CodeLimit, Message: "the message cannot be passed to " + d.Name + " as an argument: " + err.Error(), Err: err}
	case errors.Is(err, os.ErrPermission):
		return &Error{Code: CodeNotInstalled, Message: d.Command + " may not be run by this user", Err: err}
	}
	return &Error{Code: CodeInternal, Message: d.Name + " could not be started", Err: err}
}

// AuthError says that the agent has no valid credentials, with the agent's own
// words as detail (redacted by the caller) and the remedy.
func (d Definition) AuthError(detail string) *Error {
	msg := d.Name + " is not logged in"
	if detail = strings.TrimSpace(detail); detail != "" {
		msg += ": " + detail
	}
	return &Error{Code: CodeAuth, Message: msg, Remedy: d.Probe.Login}
}

// TimeoutError says which limit a turn has reached: cause is context.Cause of a
// process.Watch's context.
func (d Definition) TimeoutError(cause error) *Error {
	msg := d.Name + " was stopped after " + d.Limits.Run.String() + ", the limit for one turn (limits.run)"
	if errors.Is(cause, process.ErrIdle) {
		msg = d.Name + " was stopped after " + d.Limits.Idle.String() + " without output (limits.idle)"
	}
	return &Error{Code: CodeTimeout, Message: msg, Err: cause}
}
