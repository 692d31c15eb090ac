// Package runner drives coding agents that live in other processes.
//
// A [Definition] says, as plain data, how one agent is started and spoken to.
// [Open] turns a definition into an [Agent]; an agent opens a [Session] for each
// conversation, and a session runs one [Turn] at a time. Whatever protocol the
// agent speaks, a turn reports the same [Event] union and ends in one [Outcome].
//
// The package knows nothing of tasks, stores or servers: package hub maps turns
// to tasks.
package runner

import (
	"context"
	"encoding/json"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
)

// Agent is one agent, ready to be probed and to open sessions. Safe for
// concurrent use.
type Agent interface {
	// Probe finds out whether the agent is there and may be used. It starts
	// short-lived processes, respects ctx and never returns an error: what went
	// wrong is in the result.
	Probe(ctx context.Context) Probe
	// Open prepares a session. It must not block on the agent: a process that
	// the driver needs is started by the first turn.
	Open(spec SessionSpec) (Session, error)
}

// Session is one conversation with an agent. Its methods may be called from any
// goroutine, but only one turn runs at a time: a second Turn waits for nothing
// and returns an error.
type Session interface {
	// Turn sends one prompt and blocks until the agent has answered and every
	// process that only this turn needed is gone. Cancelling ctx asks the agent
	// to stop, first by its protocol, then by signals; Turn then returns
	// OutcomeCanceled. The error is non-nil only where the outcome is
	// OutcomeFailed or OutcomeAuthRequired, and is then an *Error.
	Turn(ctx context.Context, turn Turn, h Handler) (Outcome, error)
	// Close ends the session's processes, also those their tools left behind.
	// It is idempotent and blocks until they are gone or ctx ends.
	Close(ctx context.Context) error
}

// Handler receives what happens during a turn. Event is called from one
// goroutine at a time, in order, and must not block for long. Permission may be
// called while Event is and blocks until somebody has answered.
type Handler interface {
	Event(Event)
	// Permission asks for a decision. When ctx ends before there is one, it
	// returns ctx's error and the driver denies the request.
	Permission(ctx context.Context, req PermissionRequest) (PermissionAnswer, error)
}

// SessionSpec says which conversation a session continues.
type SessionSpec struct {
	// ContextID is the hub's name of the conversation.
	ContextID string
	// Resume is the agent's own session id of an earlier run, empty for a new
	// conversation. A resume that fails opens a new session and emits a Notice.
	Resume string
	// WorkDir is the absolute directory that the agent works in. It exists.
	WorkDir string
	// Env is what the session's processes get besides the definition's environment,
	// as NAME=value. What is a secret has a name that says so.
	Env []string
}

// Turn is one prompt.
type Turn struct {
	// Parts is the message. Drivers pass text on as it is; what an agent cannot
	// take (files for a text-only CLI) is described in words, never dropped.
	Parts []*a2a.Part
	// TaskID marks the processes of this turn, for the sweep.
	TaskID string
	// MessageID is that of the message that Parts come from, as the client chose
	// it: not unique, and never part of a command.
	MessageID string
	// Over is the agents over whom the work has come, the first one first, and
	// TraceParent its W3C trace context: for a driver that hands it on to another hub.
	Over        []string
	TraceParent string
}

// Event is one thing that happened during a turn: TextDelta, Thought, ToolCall,
// Artifact, Usage, SessionStarted or Notice.
type Event interface{ event() }

// TextDelta is a piece of the agent's answer, in order.
type TextDelta struct{ Text string }

// Thought is a piece of the agent's reasoning; it is not part of the answer.
type Thought struct{ Text string }

// ToolCall tells of a tool that the agent uses. The same ID comes again as the
// call goes on; a later event replaces the earlier one's non-empty fields.
type ToolCall struct {
	ID     string
	Name   string          // e.g. "Bash", "write_file"
	Title  string          // one line for people
	Status ToolStatus      // "" means unchanged
	Input  json.RawMessage // bounded by Limits.MaxLine
	Output string          // bounded
}

// ToolStatus is how far a tool call is.
type ToolStatus string

// The states of a tool call.
const (
	ToolPending   ToolStatus = "pending"
	ToolRunning   ToolStatus = "running"
	ToolCompleted ToolStatus = "completed"
	ToolFailed    ToolStatus = "failed"
	ToolDenied    ToolStatus = "denied"
)

// Artifact is a product of the turn besides the answer's text.
type Artifact struct {
	ID          string // unique in the turn
	Name        string
	Description string
	Parts       []*a2a.Part
	Append      bool // adds Parts to the artifact with this ID
	Last        bool // nothing more follows for this ID
}

// Usage is what the turn has cost so far; a later event replaces an earlier one.
type Usage struct {
	InputTokens  int64   `json:"inputTokens,omitempty"`
	OutputTokens int64   `json:"outputTokens,omitempty"`
	CachedTokens int64   `json:"cachedTokens,omitempty"`
	CostUSD      float64 `json:"costUsd,omitempty"`
}

// SessionStarted carries the agent's own id of the conversation, to be kept for
// SessionSpec.Resume.
type SessionStarted struct {
	ID    string
	Model string
}

// Notice is something the user should know that is neither answer nor error:
// a retry, a session that could not be resumed, a denied tool.
type Notice struct{ Text string }

func (TextDelta) event()      {}
func (Thought) event()        {}
func (ToolCall) event()       {}
func (Artifact) event()       {}
func (Usage) event()          {}
func (SessionStarted) event() {}
func (Notice) event()         {}

// PermissionRequest is a question that only the user can answer.
type PermissionRequest struct {
	ID      string // unique in the session
	Title   string // one line for people, e.g. "Run `rm -rf build`?"
	Tool    ToolCall
	Options []PermissionOption // at least one
}

// PermissionOption is one possible answer.
type PermissionOption struct {
	ID   string         `json:"id"`
	Name string         `json:"name"`
	Kind PermissionKind `json:"kind"`
}

// PermissionKind says what an option means, whatever the agent calls it.
type PermissionKind string

// The kinds of options, those of the Agent Client Protocol.
const (
	AllowOnce    PermissionKind = "allow_once"
	AllowAlways  PermissionKind = "allow_always"
	RejectOnce   PermissionKind = "reject_once"
	RejectAlways PermissionKind = "reject_always"
)

// PermissionAnswer is the decision: the ID of one of the options, and an
// optional word to the agent where it denies.
type PermissionAnswer struct {
	OptionID string
	Message  string
}

// OutcomeStatus is how a turn ended.
type OutcomeStatus string

// The ends of a turn. Success means that the agent said so in a terminal event,
// raised no error flag and exited with 0.
const (
	OutcomeCompleted     OutcomeStatus = "completed"
	OutcomeFailed        OutcomeStatus = "failed"
	OutcomeCanceled      OutcomeStatus = "canceled"
	OutcomeInputRequired OutcomeStatus = "input-required" // the agent asks; the next message of the task goes on
	OutcomeAuthRequired  OutcomeStatus = "auth-required"
	OutcomeRejected      OutcomeStatus = "rejected"
)

// Outcome is the end of a turn.
type Outcome struct {
	Status OutcomeStatus
	// Text is the whole answer, bounded by Limits.MaxOutput. It equals the
	// joined TextDelta events where the agent streams.
	Text string
	// Truncated is set where the output passed Limits.MaxOutput.
	Truncated bool
	// Denials lists tools that were refused during the turn.
	Denials []ToolCall
	Usage   Usage
	// ExitCode is the process's, -1 where there was none or it was killed.
	ExitCode int
	Duration time.Duration
}

// Stage is how far an agent is from being usable.
type Stage string

// The stages of an agent.
const (
	StageUnknown       Stage = "unknown"
	StageMissing       Stage = "missing"       // the command is not there
	StageInstalled     Stage = "installed"     // it runs, but has no credentials (or that cannot be told)
	StageAuthenticated Stage = "authenticated" // ready
)

// Probe is the result of a health probe.
type Probe struct {
	Stage   Stage
	Version string
	// AuthKnown tells a missing login (true, StageInstalled) from an agent that
	// offers no way to find out (false, StageInstalled).
	AuthKnown bool
	Latency   time.Duration
	// Err is what went wrong, nil if nothing did. Its text is fit for users.
	Err *Error
}
