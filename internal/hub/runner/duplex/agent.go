package duplex

import (
	"context"
	"path/filepath"
	"sync/atomic"

	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// Agent is an installed program that speaks a dialect. It implements runner.Agent and is safe for concurrent use.
type Agent struct {
	def     runner.Definition
	opts    runner.Options
	dialect Dialect

	checked atomic.Bool // set once the program was new enough
}

// NewAgent returns the agent of a completed definition. It starts no process.
func NewAgent(def runner.Definition, opts runner.Options, dialect Dialect) *Agent {
	return &Agent{def: def, opts: opts, dialect: dialect}
}

// Probe implements runner.Agent.
func (a *Agent) Probe(ctx context.Context) runner.Probe {
	return runner.ProbeCommand(ctx, a.def, a.opts)
}

// Open implements runner.Agent.
func (a *Agent) Open(spec runner.SessionSpec) (runner.Session, error) {
	if !filepath.IsAbs(spec.WorkDir) {
		return nil, &runner.Error{Code: runner.CodeInternal, Message: "the working directory is not absolute"}
	}
	if !runner.ValidSessionID(spec.Resume) {
		spec.Resume = ""
	}
	redactor := process.NewRedactor(a.def.SessionEnviron(a.opts, spec), a.opts.Secrets...)
	return New(Options{
		Definition: a.def,
		Spec:       spec,
		Dialect:    a.dialect,
		Check:      a.check,
		Start: func(args []string, stderr func(string) bool) (Process, error) {
			cmd := runner.NewSessionCommand(a.def, a.opts, spec, args)
			cmd.Stderr = stderr
			return process.Start(cmd)
		},
		Redact: redactor.Redact,
	}), nil
}

// check refuses a program that is too old for its protocol, which would fail
// silently or worse. It runs the program until it was new enough once.
func (a *Agent) check(ctx context.Context) error {
	if a.def.Probe.MinVersion == "" || a.checked.Load() {
		return nil
	}
	if err := runner.CheckVersion(ctx, a.def, a.opts); err != nil {
		return err
	}
	a.checked.Store(true)
	return nil
}
