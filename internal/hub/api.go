// Package hub runs tasks on agents. It holds the agents and their health, the contexts (conversations) and the tasks
// with their state machine, and stores them on the bus. It knows no wire format; packages dialect and a2a translate.
//
// Tasks, messages, parts, artifacts and events are those of the A2A SDK. Those that the hub returns never change: do
// not modify them. The answer of a task is the message of its last status and part of its history; it is also the
// artifact "answer" if a subscriber saw it while the turn ran.
package hub

import (
	"encoding/json"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// SendRequest is one message for an agent.
type SendRequest struct {
	// AgentID is the agent's id. If it is empty, the message's metadata "targetAgent"
	// selects the agent, else the task Message.TaskID does.
	AgentID string
	// Message needs an ID, role user and at least one part. A TaskID continues that task:
	// the message answers its question, or follows its running turn. A ContextID
	// continues that conversation, and creates a new one.
	Message *a2a.Message
	// Metadata is stored in a new task.
	Metadata map[string]any
	// Delegation is stored in a new task that an agent delegates; nil for none. Only the
	// hub's own packages set it, never a client.
	Delegation *Delegation
	// Sender is who sends the message. The zero value is the sender of the context, see [WithSender], and without one the
	// hub's own user. It is stored in the task.
	Sender Sender
	// Once is the id of the new task; a repeated message to the same agent returns the task of the first. "" lets the
	// message's [MetaOnce] or the hub choose. Only the hub's own packages set it, never a client.
	Once a2a.TaskID
	// Timeout bounds the run; 0 means the agent's limit, which is also the maximum.
	Timeout time.Duration
}

// TaskQuery selects tasks, newest first.
type TaskQuery struct {
	ContextID string
	AgentID   string
	State     a2a.TaskState // "" is any
	After     time.Time     // changed at or after; zero is any
	Limit     int           // 1..1000, 0 means 50
	Offset    int
	// Cursor is a TaskPage.NextCursor, to continue there. It stays exact while tasks are
	// added. Offset is then ignored.
	Cursor string
	// HistoryLength bounds each task's history: nil all, 0 none.
	HistoryLength *int
	WithArtifacts bool
}

// TaskPage is a page of tasks. It ends at the query's limit, or earlier when its tasks
// exceed 16 MiB; NextCursor says whether more follow.
type TaskPage struct {
	Tasks      []*a2a.Task
	Total      int    // matching tasks on all pages
	NextCursor string // "" on the last page
}

// ContextInfo is one conversation.
type ContextInfo struct {
	ID         string
	AgentIDs   []string // in the order of their first task
	TaskIDs    []a2a.TaskID
	CreatedAt  time.Time
	LastUsedAt time.Time
	ExpiresAt  time.Time
	// WorkDirs are the directories of the agents that have one, by their ids.
	WorkDirs map[string]WorkDir
}

// HealthStatus is the specification's health of an agent.
type HealthStatus string

// The states of health. Authenticated is healthy. Installed without credentials is degraded, and so is an unknown
// login after a failed run. Missing, or an open circuit, is unhealthy. Not yet probed is unknown.
const (
	Healthy   HealthStatus = "healthy"
	Degraded  HealthStatus = "degraded"
	Unhealthy HealthStatus = "unhealthy"
	Unknown   HealthStatus = "unknown"
)

// Health is the known health of an agent.
type Health struct {
	Status    HealthStatus
	Stage     runner.Stage
	LastCheck time.Time // zero before the first
	Latency   time.Duration
	Version   string // of the CLI
	Message   string // why it is not healthy, with the remedy; else ""
	Circuit   string // closed, open, half-open
}

// AgentInfo describes one agent of the hub.
type AgentInfo struct {
	Definition   *runner.Definition // not to be changed; nil in the zero value
	Residence    Residence
	RegisteredAt time.Time
	Health       Health
	Running      int // turns
	Queued       int
	State        AgentState
	Since        time.Time // of the state; the registration, if that is not known
	Work         Work      // the zero value if it has none
	Model        string    // that answered last in this run of the hub, else the configured one; "" if it is not known
}

// VisibleTo reports whether a sender sees the agent: to senders outside, a hidden one is not there.
func (i AgentInfo) VisibleTo(s Sender) bool { return !i.Residence.Hidden || !s.Outside() }

// Own reports whether the agent is one of this hub that others may know of: not of a paired hub, and not hidden.
func (i AgentInfo) Own() bool { return i.Residence.Kind != KindPeer && !i.Residence.Hidden }

// Status is a summary of the hub.
type Status struct {
	Version     string
	StartedAt   time.Time
	Agents      []AgentInfo
	ActiveTasks int // neither ended nor interrupted
	TotalTasks  int
}

// WorkDir is the directory that an agent works in for a task: the metadata [MetaDir] of the task. The zero value is
// that of an agent without files.
type WorkDir struct {
	Path   string `json:"path"`   // absolute, without symbolic links
	Policy string `json:"policy"` // see runner.WorkDirSpec
	// Repository and Branch are those of a worktree: the directory that it was made for, in a git repository, and the
	// worktree's branch.
	Repository string `json:"repository,omitempty"`
	Branch     string `json:"branch,omitempty"`
}

// DirRequest is what a message says about the directory of its agent. The first message of a context for an agent
// decides for all; the zero value leaves the choice to the agent's definition.
type DirRequest struct {
	// Path is absolute and below the allowed roots.
	Path string `json:"path,omitempty"`
	// Project makes Path the default: it is used only if neither the context nor the definition of the agent has a
	// directory of its own. Otherwise a context that works elsewhere is an error.
	Project bool `json:"project,omitempty"`
	// Worktree requests a git worktree of the repository in Path for the context, on a branch of its own.
	Worktree bool `json:"worktree,omitempty"`
}

// DirCheck is the answer of [Hub.CheckDir].
type DirCheck struct {
	// Needed is set if an agent would work in the requested directory: it uses files, and neither its definition nor
	// the context has another.
	Needed bool `json:"needed"`
	// Allowed is set if the directory exists below an allowed root or a trusted directory.
	Allowed bool `json:"allowed"`
	// DataDir is the hub's data directory, which has the list of trusted directories.
	DataDir string `json:"dataDir"`
}

// WorkDirIn returns the directory in a task's metadata; the zero value before the first turn of a task and for an agent
// without files.
func WorkDirIn(taskMetadata map[string]any) WorkDir {
	var d WorkDir
	raw, err := json.Marshal(taskMetadata[MetaDir])
	if err != nil || json.Unmarshal(raw, &d) != nil {
		return WorkDir{}
	}
	return d
}

// Metadata keys that the hub writes into tasks, messages and parts.
const (
	MetaTargetAgent = "targetAgent"      // in a message: the id of its agent
	MetaWorkDir     = "workingDirectory" // in a context's first message for an agent: its directory, see DirRequest.Path
	MetaProject     = "projectDirectory" // in any message: the same, with DirRequest.Project
	MetaWorktree    = "worktree"         // true beside one of these: see DirRequest.Worktree
	MetaOnce        = "idempotencyKey"   // in a message without a task: a repeated message to the same agent returns the task of the first, see OnceID
	MetaAgent       = "parley.agent"     // in a task: the agent that runs it
	MetaDir         = "parley.workdir"   // in a task: the WorkDir of its agent
	MetaSummary     = "parley.summary"   // in a task: what a list shows of it, see ReadSummary
	MetaUsage       = "parley.usage"     // in a task: runner.Usage of the last turn
	MetaDenials     = "parley.denied"    // in a task: tools that were denied
	MetaError       = "parley.error"     // in a status message: {code, remedy}
	MetaNotices     = "parley.notices"
	MetaDeadline    = "parley.deadline" // in a task of a durable agent: when it fails unless it is answered before, RFC 3339
	MetaReceipts    = "parley.receipts" // in a task of a session: when it was woken for it and told of it, or that was held or refused, see Receipts
	MetaProgress    = "parley.progress" // in a working status message: how much is done, 0 to 100
	// MetaKeepDelegated, true in the metadata of A2A's CancelTask, selects Hub.CancelAlone.
	MetaKeepDelegated = "parley.keepDelegated"
	MetaDelegation    = "parley.delegation" // in a task: its Delegation
	MetaSender        = "parley.sender"     // in a task: the Sender of its latest turn's message, unless that is the hub's own user
	MetaTool          = "parley.tool"       // in a working status message: a tool call
	MetaRetry         = "parley.retry"      // in a working status message: {attempt, of, status, waitMs} of a runner.Retry, without what is 0
	MetaNotice        = "parley.notice"     // true in a status message of a session's task: it is a notice, not the agent's text
	MetaPermission    = "parley.permission" // true in the metadata of the data part with a question, see PermissionData
)

// PermissionData is the data part of an input-required status: the agent's question and its options. A message to
// the task answers it: a data part {"optionId": ID}, or text with an option's id, name or kind, or yes/allow or
// no/deny. Any other text denies, with that text as the reason.
type PermissionData struct {
	RequestID string                    `json:"requestId"`
	Title     string                    `json:"title"`
	Tool      string                    `json:"tool,omitempty"`
	Input     any                       `json:"input,omitempty"`
	Options   []runner.PermissionOption `json:"options"`
	// Sender is set if the question is whether that sender may give the agent the task. The status is auth-required then,
	// and only the hub's own user can answer.
	Sender *Sender `json:"sender,omitempty"`
}

// Code is the kind of an error of the hub, independent of the wire format.
type Code string

// The codes of an [Error]. The hub's dialect and A2A each map them to numbers.
const (
	CodeInvalid         Code = "invalid" // a parameter is wrong: Subject names it
	CodeTaskNotFound    Code = "task-not-found"
	CodeNotCancelable   Code = "not-cancelable" // the task has ended
	CodeAgentNotFound   Code = "agent-not-found"
	CodeUnavailable     Code = "unavailable" // agent missing, circuit open, queue full, hub closing
	CodeUnsupported     Code = "unsupported" // e.g. a message to a task that has ended
	CodeAuth            Code = "auth"        // the agent has no credentials
	CodeTimeout         Code = "timeout"     // the caller's or the agent's limit
	CodeContextNotFound Code = "context-not-found"
	CodeInternal        Code = "internal"
)

// Error is what the package returns. Message and Remedy are fit for users and hold no secrets; Subject is, for
// CodeInvalid, the offending parameter, e.g. "message.parts[0].text"; Err is the cause, for logs.
type Error = fault.UserError[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }
