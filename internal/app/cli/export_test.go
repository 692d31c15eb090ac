package cli

import (
	"context"
	"io"
	"os"
)

// Run runs a command line in this process, as Main does.
func Run(ctx context.Context, name string, args []string, stdin io.Reader, stdout, stderr io.Writer, env map[string]string, signals <-chan os.Signal) int {
	a := &app{name: name, stdin: stdin, stdout: stdout, stderr: stderr, getenv: func(key string) string { return env[key] }}
	return a.run(ctx, args, signals)
}

// Plain, Fit and Cells are tested by themselves.
var (
	Plain = plain
	Fit   = fit
	Cells = cells
	Quote = quote
	Short = short
)

// Cleaner is tested over pieces.
type Cleaner = cleaner

// Clean cleans a piece.
func (c *cleaner) Clean(text string) string { return c.clean(text) }

// TaskToken finds the task token of this process.
var TaskToken = taskToken

// The parts of replay are tested by themselves.
type (
	AuditFilter   = auditFilter
	ReplayOptions = replayOptions
	ReplayOutcome = replayOutcome
)

var (
	ReadAudit = readAudit
	Resend    = resend
)

// The readers of plans are tested by themselves.
var (
	ReadPlan      = readPlan
	SubTasksIn    = subTasksIn
	PlannerPrompt = plannerPrompt
)

// The demonstration is tested without its command.
var Demonstrate = demonstrate

// DemoEvent is an event of it.
type DemoEvent = demoEvent
