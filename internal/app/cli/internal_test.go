package cli

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/base/text"
)

// Run runs a command line in this process, as Main does.
func Run(ctx context.Context, name string, args []string, stdin io.Reader, stdout, stderr io.Writer, env map[string]string, signals <-chan os.Signal) int {
	a := &app{name: name, stdin: stdin, stdout: newOutput(stdout), stderr: stderr, getenv: func(key string) string { return env[key] }}
	return a.run(ctx, args, signals)
}

// Plain, Fit and Cells are tested directly.
var (
	Plain = plain
	Fit   = fit
	Cells = cells
	Quote = text.ShellQuote
	Tilde = tilde
	Path  = shellPath

	ShortID = shortID
)

// TaskToken returns the task token of this process.
var TaskToken = taskToken

// The parts of replay are tested directly.
type (
	AuditFilter   = auditFilter
	ReplayOptions = replayOptions
	ReplayOutcome = replayOutcome
)

var (
	ReadAudit = readAudit
	Resend    = resend
)

// The parsers of plans are tested directly.
var (
	ReadPlan      = readPlan
	SubTasksIn    = subTasksIn
	PlannerPrompt = plannerPrompt
)

// Demo runs the demonstration without its command.
var Demonstrate = demonstrate

// DemoEvent is an event of the demonstration.
type DemoEvent = demoEvent

// ShortIDs shortens the ids of a table.
func ShortIDs(ids []string) func(string) string {
	return shortIDs(ids, func(id string) string { return id })
}

// ParseTimeFlag returns a flag's value, "error" for a wrong one. A bare number is in milliseconds.
func ParseTimeFlag(s string) string {
	var d time.Duration
	f := &timeFlag{&d, time.Millisecond}
	if f.Set(s) != nil {
		return "error"
	}
	return f.String()
}

// Milliseconds converts a flag's value to the hub's.
func Milliseconds(s string) int64 {
	d, err := time.ParseDuration(s)
	if err != nil {
		return -1
	}
	return milliseconds(d)
}

// ReadOpen reads a pipe as a command does, with other limits.
func ReadOpen(stdin io.Reader, stderr io.Writer, note, limit time.Duration) (string, error) {
	a := &app{name: "parley", stdin: stdin, stderr: stderr, getenv: os.Getenv}
	return a.readOpen(context.Background(), note, limit)
}

// DescribeInput returns the lines of a tool's input in JSON, without colours.
func DescribeInput(raw string) string {
	var v any
	if err := json.Unmarshal([]byte(raw), &v); err != nil {
		return err.Error()
	}
	var lines []string
	for _, l := range describeInput(v) {
		lines = append(lines, l.text)
	}
	return strings.Join(lines, "\n")
}
