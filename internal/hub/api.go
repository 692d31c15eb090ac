// Package hub runs tasks on agents: it holds the agents and their health, the
// contexts (conversations), the tasks with their state machine, and stores all
// of it on the bus. It knows no wire format: package dialect and package
// a2aserver translate.
//
// Tasks, messages, parts and artifacts are those of the A2A SDK.
package hub

import (
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/hub/runner"
)

// SendRequest is one message for an agent.
type SendRequest struct {
	// AgentID names the agent. Empty means, in this order: the message's
	// metadata "targetAgent", the agent of the task that Message.TaskID names.
	AgentID string
	// Message needs an ID, role user and at least one part. A TaskID continues
	// that task (answers its question, or follows its running turn); a
	// ContextID continues that conversation, and creates it if it is new.
	Message *a2a.Message
	// Metadata is kept in a new task.
	Metadata map[string]any
	// Delegation is kept in a new task that another agent wants done; nil for none.
	// It comes from the hub's own parts, never from a client.
	Delegation *Delegation
	// Timeout bounds the run; 0 means the agent's limit, which is also the most.
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
	// Cursor goes on where TaskPage.NextCursor pointed; it stays right while
	// tasks come in. Offset is then ignored.
	Cursor string
	// HistoryLength bounds each task's history: nil all, 0 none.
	HistoryLength *int
	WithArtifacts bool
}

// TaskPage is a page of tasks. It ends at the query's limit, or earlier where
// its tasks pass 16 MiB; NextCursor tells whether more follow.
type TaskPage struct {
	Tasks      []*a2a.Task
	Total      int    // that match, on all pages
	NextCursor string // "" on the last page
}

// ContextInfo is one conversation.
type ContextInfo struct {
	ID         string
	AgentIDs   []string // that took part, in order of their first task
	TaskIDs    []a2a.TaskID
	CreatedAt  time.Time
	LastUsedAt time.Time
	ExpiresAt  time.Time
}

// HealthStatus is the specification's health of an agent.
type HealthStatus string

// The four states of health. Mapping: authenticated is healthy; installed but
// without credentials (or a login that cannot be told and a failed last run)
// is degraded; missing, or an open circuit, is unhealthy; not yet probed is
// unknown.
const (
	Healthy   HealthStatus = "healthy"
	Degraded  HealthStatus = "degraded"
	Unhealthy HealthStatus = "unhealthy"
	Unknown   HealthStatus = "unknown"
)

// Health is what is known of an agent's fitness.
type Health struct {
	Status    HealthStatus
	Stage     runner.Stage
	LastCheck time.Time // zero before the first
	Latency   time.Duration
	Version   string // of the CLI
	Message   string // why it is not healthy, with the remedy; "" if it is
	Circuit   string // closed, open, half-open
}

// AgentInfo describes one agent of the hub.
type AgentInfo struct {
	Definition   runner.Definition
	RegisteredAt time.Time
	Health       Health
	Running      int // turns
	Queued       int
}

// Status is the hub at a glance.
type Status struct {
	Version     string
	StartedAt   time.Time
	Agents      []AgentInfo
	ActiveTasks int // neither ended nor interrupted
	TotalTasks  int
}

// Metadata keys that the hub writes into tasks, messages and parts.
const (
	MetaTargetAgent = "targetAgent"      // in a message: the agent it is for
	MetaWorkDir     = "workingDirectory" // in a context's first message for an agent: where it works; below the allowed roots
	MetaOnce        = "idempotencyKey"   // in a message without a task: a second one with it, to the same agent, gets the first one's task; see OnceID
	MetaAgent       = "parley.agent"     // in a task: the agent that runs it
	MetaUsage       = "parley.usage"     // in a task: runner.Usage
	MetaDenials     = "parley.denied"    // in a task: tools that were refused
	MetaError       = "parley.error"     // in a status message: {code, remedy}
	MetaNotices     = "parley.notices"
	// MetaKeepDelegated in the metadata of A2A's CancelTask, true, is Hub.CancelAlone.
	MetaKeepDelegated = "parley.keepDelegated"
	MetaDelegation    = "parley.delegation" // in a task: who handed it over, see Delegation
	MetaTool          = "parley.tool"       // in a working status message: a tool call
	MetaPermission    = "parley.permission" // true in the metadata of the data part that is a question, see PermissionData
)

// PermissionData is the data part of an input-required status: what the agent
// wants to do and the options. A reply on the task answers it: a data part
// {"optionId": ID}, or text that is an option's id, name or kind, or a plain
// yes/allow or no/deny; any other text denies with that text as the reason.
type PermissionData struct {
	RequestID string                    `json:"requestId"`
	Title     string                    `json:"title"`
	Tool      string                    `json:"tool,omitempty"`
	Input     any                       `json:"input,omitempty"`
	Options   []runner.PermissionOption `json:"options"`
}

// The methods of *Hub, all safe for concurrent use:
//
//	New(ctx, Config) (*Hub, error)                       reads the store, begins to probe
//	Send(ctx, SendRequest) (*a2a.Task, error)            stored and started; returns at once
//	SendAndWait(ctx, SendRequest) (*a2a.Task, error)     until it ended or was interrupted; ctx's end leaves it running
//	Start(ctx, SendRequest) (*Pending, error)            SendAndWait in two steps
//	SendAndStream(ctx, SendRequest) (*Subscription, error)
//	Subscribe(ctx, a2a.TaskID) (*Subscription, error)
//	OnTurn(func(a2a.TaskID))                             told of every task that begins or goes on
//	OnAgents(func())                                     told when agents come, go, or change their health
//	Task(ctx, a2a.TaskID, historyLength *int) (*a2a.Task, error)
//	Tasks(ctx, TaskQuery) (TaskPage, error)
//	Cancel(ctx, a2a.TaskID) (*a2a.Task, error)           returns when no process is left
//	Contexts(ctx, limit int) ([]ContextInfo, error)      most recently used first
//	Agents() []AgentInfo
//	Agent(id string) (AgentInfo, error)
//	Register(Agent) error, Deregister(ctx, id string) error
//	CheckHealth(ctx, id string) (Health, error)          probes now
//	Status() Status
//	Close(ctx) error                                     ends turns, stores what they were
//
//	(*Subscription).Task() *a2a.Task                     the snapshot that the events follow
//	(*Subscription).Next(ctx) (a2a.Event, error)         io.EOF after the end or an interruption
//	(*Subscription).Close()
//
// Events are *a2a.TaskStatusUpdateEvent, *a2a.TaskArtifactUpdateEvent and, where
// a slow subscriber had to be dropped behind, a *a2a.Task to start anew from.
// Tasks and events handed out are never changed afterwards: do not change them.
//
// Where an answer is: in the message of the task's last status, always, and in
// its history. It is the artifact "answer" besides where somebody watched it
// come; see turn.
