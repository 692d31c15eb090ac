// Package runner runs coding agents, which are programs in other processes.
//
// A [Definition] describes as plain data how one agent is started and which protocol it speaks. [Open] returns the
// [Agent] of a definition; an agent opens a [Session] for each conversation, and a session runs one [Turn] at a
// time. Every protocol reports a turn by the same [Event] union and ends it with one [Outcome].
//
// Package hub maps turns to tasks; this package knows no tasks, stores or servers.
package runner

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/fault"
)

// Agent is one agent, ready to be probed and to open sessions. Safe for concurrent use.
type Agent interface {
	// Probe checks whether the agent is installed and has credentials. It may start
	// short-lived processes, and stops them when ctx ends. The result holds the error.
	Probe(ctx context.Context) Probe
	// Open returns a session. It must not block on the agent: the first turn starts
	// the process that the driver needs.
	Open(spec SessionSpec) (Session, error)
}

// Withdrawer is an Agent whose tasks are known elsewhere while no turn runs, such as the items of a queue and the tasks of another hub.
type Withdrawer interface {
	// Withdraw withdraws a task that was canceled before the turn of this number began, or after it ended with a question. It
	// blocks for seconds at most, and logs its errors.
	Withdraw(ctx context.Context, taskID string, turn int)
}

// Session is one conversation with an agent. Its methods are safe for concurrent use,
// but only one turn runs at a time: a second Turn fails immediately.
type Session interface {
	// Turn sends one prompt and blocks until the agent has answered and every process that only this turn needed has
	// ended. When ctx ends, the agent is asked to stop, first by its protocol, then by signals; Turn then returns
	// OutcomeCanceled. The error is non-nil only for OutcomeFailed and OutcomeAuthRequired, and is an *Error.
	Turn(ctx context.Context, turn Turn, h Handler) (Outcome, error)
	// Close stops the session's processes and those that their tools left behind. It is
	// idempotent and blocks until they have ended or ctx ends.
	Close(ctx context.Context) error
}

// Warmer is a Session whose process can be started before its first turn, which then need not wait for that.
type Warmer interface {
	// Warm blocks until the process is ready for a turn. Without one it ends like any process that has no turn. It does nothing if
	// a process runs.
	Warm(ctx context.Context) error
}

// Handler receives the events of a turn. Event is called by one goroutine at a time,
// in order, and must not block for long. Permission may be called concurrently.
type Handler interface {
	Event(Event)
	// Permission asks the user for a decision and blocks until there is one. When ctx
	// ends before, it returns ctx's error and the driver denies the request.
	Permission(ctx context.Context, req PermissionRequest) (PermissionAnswer, error)
}

// Guard is a Handler that keeps agents off files that other agents have claimed.
type Guard interface {
	// Claimed returns why a tool must not run, "" if it may. It is asked before everybody else, and blocks for a second or two at most.
	Claimed(ctx context.Context, call ToolCall) (refusal Refusal)
}

// Refusal says why a tool must not run: which files other agents hold, until when, and how to ask. The zero value is none.
type Refusal struct {
	// Text is for where the agent gets it as the result of its tool. It quotes the holders' reasons, as theirs.
	Text string
	// Plain has no words of others: it may stand where an agent takes it for its user's.
	Plain string
}

// SessionSpec describes the conversation of a session.
type SessionSpec struct {
	// ContextID is the hub's id of the conversation.
	ContextID string
	// Resume is the agent's own session id of an earlier run, empty for a new
	// conversation. If it cannot be resumed, a new one begins and a Notice is reported.
	Resume string
	// WorkDir is the agent's working directory: absolute and existing.
	WorkDir string
	// Env is added to the environment of the session's processes, as NAME=value. The
	// names of secrets must look like secrets, see process.NewRedactor.
	Env []string
}

// Turn is one prompt.
type Turn struct {
	// Parts is the message. Drivers forward text unchanged; a part that an agent cannot
	// accept (a file for a text-only CLI) is described in words, never dropped.
	Parts []*a2a.Part
	// TaskID names the directory of the message's files.
	TaskID string
	// Number counts the turns of the task from 1. A turn of a durable agent that the hub's end has cut off is repeated
	// under its number.
	Number int
	// MessageID is the message's id, chosen by the client: not unique, and never part of a command.
	MessageID string
	// Chain is the delegation chain of agents, the first one first, and TraceParent its
	// W3C trace context. They are for drivers that forward the work to another hub.
	Chain       []string
	TraceParent string
}

// Event is one thing that happened during a turn: Shown, Progress, TextDelta, Thought,
// ToolCall, Artifact, Usage, SessionStarted, Notice, Retry or PermissionDecided.
type Event interface{ event() }

// Receipt reports what is known of the attention of an agent that may get the prompt long after the turn began. It does not say
// that the agent has got it.
type Receipt struct {
	Sign string // woken, shown, held or refused
	At   time.Time
}

// Shown reports that the agent has got the prompt, for agents that may get it long after the turn began.
type Shown struct{}

// Progress is what the agent says about its work, which is not part of its answer.
type Progress struct {
	Text    string
	Percent *float64 // 0 to 100; nil if the agent does not say
}

// TextDelta is a piece of the agent's answer, in order.
type TextDelta struct{ Text string }

// Thought is a piece of the agent's reasoning; it is not part of the answer.
type Thought struct{ Text string }

// ToolCall reports a tool that the agent uses. Later events with the same ID update the call, see [ToolCall.Update].
type ToolCall struct {
	ID     string
	Name   string          // e.g. "Bash", "write_file"
	Title  string          // one line for people
	Status ToolStatus      // "" means unchanged
	Input  json.RawMessage // bounded by Limits.MaxLine
	Output string          // bounded
	// Files are the paths that the call changes, where the protocol names them apart from the input; see package edits.
	Files []string
}

// Update returns the call with the non-empty fields of a later event.
func (t ToolCall) Update(later ToolCall) ToolCall {
	t.ID = later.ID
	t.Name = cmp.Or(later.Name, t.Name)
	t.Title = cmp.Or(later.Title, t.Title)
	t.Status = cmp.Or(later.Status, t.Status)
	t.Output = cmp.Or(later.Output, t.Output)
	if len(later.Files) > 0 {
		t.Files = later.Files
	}
	if len(later.Input) > 0 {
		t.Input = later.Input
	}
	return t
}

// ToolStatus is the progress of a tool call.
type ToolStatus string

// The states of a tool call.
const (
	ToolPending   ToolStatus = "pending"
	ToolRunning   ToolStatus = "running"
	ToolCompleted ToolStatus = "completed"
	ToolFailed    ToolStatus = "failed"
	ToolDenied    ToolStatus = "denied"
)

// Artifact is a result of the turn besides the answer's text.
type Artifact struct {
	ID          string // unique in the turn
	Name        string
	Description string
	Parts       []*a2a.Part
	Append      bool // adds Parts to the artifact with this ID
	Last        bool // nothing more follows for this ID
}

// Usage is the turn's cost so far; a later event replaces an earlier one.
type Usage struct {
	InputTokens  int64   `json:"inputTokens,omitempty"`
	OutputTokens int64   `json:"outputTokens,omitempty"`
	CachedTokens int64   `json:"cachedTokens,omitempty"`
	CostUSD      float64 `json:"costUsd,omitempty"`
}

// Plus returns the sum of two turns' usage.
func (u Usage) Plus(other Usage) Usage {
	return Usage{
		InputTokens: u.InputTokens + other.InputTokens, OutputTokens: u.OutputTokens + other.OutputTokens,
		CachedTokens: u.CachedTokens + other.CachedTokens, CostUSD: u.CostUSD + other.CostUSD,
	}
}

// SessionStarted reports the agent's own id of the conversation, for SessionSpec.Resume.
type SessionStarted struct {
	ID    string
	Model string
}

// Notice informs the user of something that is neither answer nor error: a session that
// could not be resumed, a denied tool.
type Notice struct{ Text string }

// PermissionDecided reports a request that was answered without [Handler.Permission].
type PermissionDecided struct {
	Request PermissionRequest
	Answer  PermissionAnswer // the zero value if the request was refused and no option says so
	By      Decider
}

// Decider is what answered a permission request instead of a user.
type Decider string

// The deciders.
const (
	ByPolicy Decider = "policy" // Definition.Permissions
	ByLimit  Decider = "limit"  // refused: too many requests wait, or the request offers no answer
	ByClaim  Decider = "claim"  // refused: another agent has claimed a file
)

func (Shown) event()             {}
func (Receipt) event()           {}
func (Progress) event()          {}
func (TextDelta) event()         {}
func (Thought) event()           {}
func (ToolCall) event()          {}
func (Artifact) event()          {}
func (Usage) event()             {}
func (SessionStarted) event()    {}
func (Notice) event()            {}
func (PermissionDecided) event() {}

// PermissionRequest asks the user whether a tool may run.
type PermissionRequest struct {
	ID      string // unique in the session
	Title   string // one line for people, e.g. "Run `rm -rf build`?"
	Tool    ToolCall
	Options []PermissionOption // at least one
	// Sender is set if the question is whether the task's sender may give it to the agent. The agent has not begun then,
	// the task waits as auth-required within its run limit, and only the hub's own user can answer.
	Sender bool
	// Permitted, if not nil, is closed when the answer to a question about the sender is known otherwise: it is the first
	// option that allows.
	Permitted <-chan struct{}
}

// PermissionOption is one possible answer.
type PermissionOption struct {
	ID   string         `json:"id"`
	Name string         `json:"name"`
	Kind PermissionKind `json:"kind"`
}

// PermissionKind is the meaning of an option, independent of the agent's name for it.
type PermissionKind string

// The kinds of options, those of the Agent Client Protocol.
const (
	AllowOnce    PermissionKind = "allow_once"
	AllowAlways  PermissionKind = "allow_always"
	RejectOnce   PermissionKind = "reject_once"
	RejectAlways PermissionKind = "reject_always"
)

// Allow and Reject are the kinds that allow and deny, the narrower one first: a later
// change of the definition does not reach what an agent remembers.
var (
	Allow  = []PermissionKind{AllowOnce, AllowAlways}
	Reject = []PermissionKind{RejectOnce, RejectAlways}
)

// Choose returns the first option of the first kind that is offered. Ids differ between agents, kinds do not.
func Choose(options []PermissionOption, kinds []PermissionKind) (option PermissionOption, ok bool) {
	for _, k := range kinds {
		for _, o := range options {
			if o.Kind == k {
				return o, true
			}
		}
	}
	return PermissionOption{}, false
}

// PermissionAnswer is the decision: the ID of one of the options, and an optional
// message for the agent if it denies.
type PermissionAnswer struct {
	OptionID string
	Message  string
}

// OutcomeStatus is how a turn ended.
type OutcomeStatus string

// The ends of a turn. Success means that the agent reported it in a final event,
// reported no error and exited with 0.
const (
	OutcomeCompleted     OutcomeStatus = "completed"
	OutcomeFailed        OutcomeStatus = "failed"
	OutcomeCanceled      OutcomeStatus = "canceled"
	OutcomeInputRequired OutcomeStatus = "input-required" // the agent asks; the next message of the task answers
	OutcomeAuthRequired  OutcomeStatus = "auth-required"
	OutcomeRejected      OutcomeStatus = "rejected"
)

// Outcome is the end of a turn.
type Outcome struct {
	Status OutcomeStatus
	// Text is the whole answer, bounded by Limits.MaxOutput. It equals the joined
	// TextDelta events of agents that stream.
	Text      string
	MessageID string     // of the answer; "" if the agent gives it none
	Truncated bool       // the output exceeded Limits.MaxOutput
	Denials   []ToolCall // tools that were denied during the turn
	Usage     Usage
	Model     string // that answered, "" if the agent does not name it
	// ExitCode is the process's, -1 if there was none or it was killed.
	ExitCode int
	Duration time.Duration
}

// Stage is how close an agent is to being usable.
type Stage string

// The stages of an agent.
const (
	StageUnknown       Stage = "unknown"
	StageMissing       Stage = "missing"       // the command was not found
	StageInstalled     Stage = "installed"     // it runs, but has no credentials, or that is unknown
	StageAuthenticated Stage = "authenticated" // ready
)

// Probe is the result of a health probe.
type Probe struct {
	Stage   Stage
	Version string
	// AuthKnown is false if the agent offers no way to check for credentials. At
	// StageInstalled it distinguishes a missing login (true).
	AuthKnown bool
	Latency   time.Duration
	// Err is why the stage was not passed, nil if unknown or passed. Its text is fit for users.
	Err *Error
}

// Code is the kind of an error of an agent.
type Code string

// The codes of an [Error].
const (
	CodeNotInstalled Code = "not-installed" // the command cannot be found or run
	CodeAuth         Code = "auth"          // missing or refused credentials
	CodeAgent        Code = "agent"         // the agent reported an error
	CodeProtocol     Code = "protocol"      // the agent's output was not understood or ended early
	CodeTimeout      Code = "timeout"       // run or idle limit reached
	CodeLimit        Code = "limit"         // prompt, line or output larger than allowed
	CodeUnavailable  Code = "unavailable"   // the model server refuses requests: too many of them, overload, an outage
	CodeBusy         Code = "busy"          // a turn is already running in this session
	CodeConfig       Code = "config"        // the definition is wrong
	CodeInternal     Code = "internal"
)

// Error is what the package returns. Message and Remedy are fit for users and hold no secrets; Subject is, for
// CodeConfig, the offending field, e.g. "workdir.path", and Message begins with it; Err is the cause, for logs.
type Error = fault.UserError[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }

// Driver returns the agent of a completed definition. It implements one protocol.
type Driver func(def Definition, opts Options) (Agent, error)

// Options are common to all agents of a hub. The zero value is valid.
type Options struct {
	// Drivers are the drivers by name besides exec and echo, see package drivers.
	Drivers map[string]Driver
	// Owner marks every process of this hub's agents, so that a later run can find the processes of a killed one
	// (process.SweepOwner). It holds neither a dot nor a colon. Empty disables the sweep.
	Owner string
	// Environ is the environment of which agents receive a part; nil is the hub's own.
	Environ []string
	// Secrets are removed from errors and notices of agents, besides those of their environment.
	Secrets []string
}

// Open completes def and returns its agent. It starts no process. The error is an *Error with CodeConfig.
func Open(def Definition, opts Options) (Agent, error) {
	def, err := def.Complete()
	if err != nil {
		return nil, err
	}
	if strings.ContainsAny(opts.Owner, ".:\x00") {
		return nil, configError("owner", "%q must not hold a dot or a colon", opts.Owner)
	}
	if opts.Environ == nil {
		opts.Environ = os.Environ()
	}
	drivers := map[string]Driver{DriverExec: openExec, DriverEcho: openEcho}
	maps.Copy(drivers, opts.Drivers)
	open, ok := drivers[def.Driver]
	if !ok {
		return nil, configError("driver", "%q is not one of %s", def.Driver,
			strings.Join(slices.Sorted(maps.Keys(drivers)), ", "))
	}
	return open(def, opts)
}
