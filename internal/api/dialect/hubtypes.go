package dialect

import (
	"encoding/json"

	"github.com/parleyhub/parley/internal/bus/damage"
	"github.com/parleyhub/parley/internal/hub"
)

// Method names.
const (
	MethodStatus       = "hub/status"
	MethodAgentsList   = "hub/agents/list"
	MethodAgentsGet    = "hub/agents/get"
	MethodAgentsHealth = "hub/agents/health"
	MethodAgentsFind   = "hub/agents/find"    // only on the socket
	MethodAgentsRename = "hub/agents/rename"  // only on the socket
	MethodSendersList  = "hub/senders/list"   // only on the socket
	MethodSenderRevoke = "hub/senders/revoke" // only on the socket
	MethodSessionsList = "hub/sessions/list"  // only on the socket
	MethodSessionHook  = "hub/sessions/hook"  // only on the socket
	MethodSessionEvent = "hub/sessions/event" // only on the socket
	MethodSessionShown = "hub/sessions/shown" // only on the socket
	MethodSessionServe = "hub/sessions/serve" // only on the socket
	MethodSessionQuiet = "hub/sessions/quiet" // only on the socket
	MethodClaimsList   = "hub/claims/list"    // only on the socket
	MethodClaimsCheck  = "hub/claims/check"   // only on the socket
	MethodThreadsList  = "hub/threads/list"   // only on the socket and the page
	MethodThreadGet    = "hub/threads/get"    // only on the socket and the page
	MethodThreadWrite  = "hub/threads/write"  // only on the socket and the page
	MethodClaimBreak   = "hub/claims/break"   // only on the socket
	MethodTasksList    = "hub/tasks/list"
	MethodTasksPage    = "hub/tasks/page"
	MethodTasksTrace   = "hub/tasks/trace"
	MethodContextsList = "hub/contexts/list"
	MethodIDs          = "hub/ids"
	MethodDirCheck     = "hub/workdir/check"    // only on the socket
	MethodWorktree     = "hub/workdir/worktree" // only on the socket
	MethodSwarmCreate  = "hub/swarms/create"
	MethodSwarmGet     = "hub/swarms/get"
	MethodSwarmList    = "hub/swarms/list"
	MethodSwarmStop    = "hub/swarms/stop"
	MethodShutdown     = "hub/shutdown"
	MethodDrain        = "hub/drain"
	MethodBusJoin      = "hub/bus/join"
	MethodNetworkJoin  = "hub/network/join"
	MethodNetworkRest  = "hub/network/rest"
	MethodBusLeave     = "hub/bus/leave"
	MethodMCP          = "hub/mcp"
	MethodLoopStep     = "hub/loop/step"
	MethodLoopDismiss  = "hub/loop/dismiss"
	MethodEvents       = "hub/events"
	MethodTotals       = "hub/totals"
	MethodNeeds        = "hub/needs"
	MethodWorkList     = "hub/work/list"
	MethodWorkRetry    = "hub/work/retry"
	MethodWorkDiscard  = "hub/work/discard"
	MethodPageLink     = "hub/page/link" // only on the socket

	MethodDocumentsList    = "hub/documents/list"
	MethodDocumentsGet     = "hub/documents/get"
	MethodDocumentsWait    = "hub/documents/wait"
	MethodDocumentsEdit    = "hub/documents/edit"
	MethodDocumentsSync    = "hub/documents/sync"
	MethodDocumentsCompact = "hub/documents/compact"
	MethodDocumentsShare   = "hub/documents/share"
	MethodDocumentsShares  = "hub/documents/shares"

	MethodSend       = "message/send"
	MethodStream     = "message/stream"
	MethodTaskGet    = "tasks/get"
	MethodTaskCancel = "tasks/cancel"
	MethodTaskFollow = "tasks/resubscribe"
)

// NotifyEvent is the method of the notifications with the events of a stream on
// the socket; their params are a StreamEvent.
const NotifyEvent = "stream/event"

// StreamEvent is an event of the stream of the request with this id.
type StreamEvent struct {
	ID    json.RawMessage `json:"id"`
	Event Event           `json:"event"`
}

// Status is the result of hub/status.
type Status struct {
	Version     string        `json:"version"`
	Uptime      int64         `json:"uptime"` // milliseconds
	StartedAt   Time          `json:"startedAt"`
	Agents      []AgentStatus `json:"agents"`
	ActiveTasks int           `json:"activeTasks"` // neither ended nor waiting for its user
	TotalTasks  int           `json:"totalTasks"`
	AgentCounts
	Bus *BusStatus `json:"bus,omitempty"`
	// MCPServers are the MCP servers whose tools the agents share.
	MCPServers []MCPServerStatus `json:"mcpServers,omitempty"`
	// Peers is the status of hubs on other machines; only on the socket, and only if peers.enabled is set.
	Peers *PeersStatus `json:"peers,omitempty"`
	PID   int          `json:"pid,omitempty"`
	Addresses
}

// Addresses are where a hub is on its computer. Only the socket reports them.
type Addresses struct {
	DataDir string `json:"dataDir,omitempty"`
	Socket  string `json:"socket,omitempty"`
	HTTP    string `json:"http,omitempty"` // base URL
	GRPC    string `json:"grpc,omitempty"` // host:port
	// Notices say where an address is not the configured one, for people.
	Notices []string `json:"notices,omitempty"`
}

// PeersStatus is the status of the paired hubs.
type PeersStatus struct {
	Key    string       `json:"key"`              // this hub's
	Public string       `json:"public,omitempty"` // the address by which others find this hub
	Hubs   []PeerStatus `json:"hubs"`             // the paired ones
}

// PeerStatus is the status of a paired hub.
type PeerStatus struct {
	Name      string   `json:"name"`
	Key       string   `json:"key"`
	Connected bool     `json:"connected"`           // it sends messages now
	Via       []string `json:"via"`                 // hyperswarm, nats
	LastHeard *Time    `json:"lastHeard,omitempty"` // since this hub started; else missing
	Agents    []string `json:"agents"`              // its agents, by their names here
	Problem   string   `json:"problem,omitempty"`   // why its statements or one of its agents are refused
}

// BusStatus is the status of the hub's store.
type BusStatus struct {
	Mode     string `json:"mode"`     // durability: commit, always or fast
	Embedded bool   `json:"embedded"` // in the hub's process, not an external server
	URL      string `json:"url,omitempty"`
	Error    string `json:"error,omitempty"` // why it does not answer
	// Link is the embedded bus's link to a cluster; missing without one.
	Link *LinkStatus `json:"link,omitempty"`
	// Damage counts the damage of the embedded store that no repair has settled; missing without any.
	Damage *DamageStatus `json:"damage,omitempty"`
}

// DamageStatus counts the damage of the hub's store.
type DamageStatus struct {
	damage.Counts
	Newest Time `json:"newest"` // when the newest was found
}

// LinkStatus is the status of the hub's link to the cluster of the agents' network.
type LinkStatus struct {
	Connected bool   `json:"connected"`
	Since     Time   `json:"since"`
	URL       string `json:"url"`
	Server    string `json:"server,omitempty"`  // the connected server of the cluster
	Problem   string `json:"problem,omitempty"` // why it is not connected
	Remedy    string `json:"remedy,omitempty"`
}

// MCPServerStatus is the status of an MCP server whose tools the agents share: a
// configured server, or a remote agent.
type MCPServerStatus struct {
	Name      string `json:"name"`
	Kind      string `json:"kind"` // command, url, agent or peer
	Connected bool   `json:"connected"`
	Since     Time   `json:"since"`             // when it was connected or lost
	Problem   string `json:"problem,omitempty"` // why it is not connected
	Tools     int    `json:"tools"`
	Resources int    `json:"resources"` // including templates
	Prompts   int    `json:"prompts"`
	Skipped   int    `json:"skipped,omitempty"` // tools, resources and prompts that were refused; the log says why
}

// MCPParams are the params of hub/mcp, which turns a connection of the socket into an MCP connection: after the
// answer {}, both ends send MCP messages, one per line. It must be the connection's first request.
type MCPParams struct {
	// Token identifies an agent of the hub: PARLEY_TASK_TOKEN of its environment. Empty is the user.
	Token string `json:"token,omitempty"`
}

// AgentStatus is the short status of an agent.
type AgentStatus struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Status  string `json:"status"` // healthy, degraded, unhealthy or unknown
	Running int    `json:"running"`
	Queued  int    `json:"queued"`
}

// Agent is one element of the result of hub/agents/list, and the result of hub/agents/get.
type Agent struct {
	ID           string     `json:"id"`
	Name         string     `json:"name"`
	Description  string     `json:"description,omitempty"`
	Driver       string     `json:"driver,omitempty"`
	Card         *AgentCard `json:"card,omitempty"`   // missing with includeCards false
	Health       *Health    `json:"health,omitempty"` // with includeHealth
	RegisteredAt Time       `json:"registeredAt"`
	Running      int        `json:"running"`
	Queued       int        `json:"queued"`
	Place
	// Tier, Capabilities and Sandbox are for the routing of envelopes.
	Tier         *int     `json:"tier,omitempty"`
	Capabilities []string `json:"capabilities,omitempty"`
	Sandbox      string   `json:"sandbox,omitempty"`
}

// Place is what an agent is, where it is and what it does now.
type Place struct {
	Kind string `json:"kind"` // program, session, peer, library or queue
	// Handle is the name by which people call the agent. Address is the shortest name that means only this agent.
	Handle     string `json:"handle"`
	Address    string `json:"address"`
	State      string `json:"state"` // idle, working, waiting or offline
	Since      Time   `json:"since"` // of the state
	Working    *Work  `json:"working,omitempty"`
	Vendor     string `json:"vendor,omitempty"`
	Model      string `json:"model,omitempty"`
	Role       string `json:"role,omitempty"`      // of a session: its type in the agents' network
	Project    string `json:"project,omitempty"`   // the name of its directory
	ProjectID  string `json:"projectId,omitempty"` // in the agents' network
	Computer   string `json:"computer,omitempty"`
	Visibility string `json:"visibility,omitempty"` // of a session
	GUID       string `json:"guid,omitempty"`       // of a session
	Quiet      bool   `json:"quiet,omitempty"`      // of a session: nothing wakes it, it sees what is new at its next turn
}

// Work is what an agent works on, or for which it waits for a person.
type Work struct {
	TaskID string `json:"taskId"`
	Title  string `json:"title,omitempty"`
}

// FindAgentParams are the parameters of hub/agents/find, whose result is the Agent that a person means.
type FindAgentParams struct {
	Name      string `json:"name"`                // an id, or a handle, alone or as HANDLE.PROJECT and HANDLE@COMPUTER
	ProjectID string `json:"projectId,omitempty"` // of the caller, in the agents' network
}

// RenameAgentParams are the parameters of hub/agents/rename, whose result is the renamed Agent.
type RenameAgentParams struct {
	AgentID string `json:"agentId"`
	Name    string `json:"name"` // "" for the name that the session has by itself
}

// Health is the result of hub/agents/health.
type Health struct {
	Status       string `json:"status"`    // healthy, degraded, unhealthy or unknown
	LastCheck    Time   `json:"lastCheck"` // null before the first check
	LatencyMs    *int64 `json:"latencyMs,omitempty"`
	ErrorMessage string `json:"errorMessage,omitempty"` // includes the remedy
	Stage        string `json:"stage,omitempty"`        // missing, installed, authenticated or unknown
	Version      string `json:"version,omitempty"`      // of the agent's program
	Circuit      string `json:"circuit,omitempty"`      // closed, open or half-open
}

// AgentCard describes an agent, or the hub, in the specification's shape.
type AgentCard struct {
	ProtocolVersion    string                    `json:"protocolVersion"`
	Name               string                    `json:"name"`
	Description        string                    `json:"description"`
	URL                string                    `json:"url"`
	Version            string                    `json:"version"`
	Provider           Provider                  `json:"provider"`
	Skills             []Skill                   `json:"skills"`
	Capabilities       Capabilities              `json:"capabilities"`
	DefaultInputModes  []string                  `json:"defaultInputModes"`
	DefaultOutputModes []string                  `json:"defaultOutputModes"`
	SecuritySchemes    map[string]SecurityScheme `json:"securitySchemes,omitempty"`
	Security           []map[string][]string     `json:"security,omitempty"`
}

// Provider is the organization behind an agent.
type Provider struct {
	Name string `json:"name"`
	URL  string `json:"url,omitempty"`
}

// Skill is a skill of an agent.
type Skill struct {
	ID          string   `json:"id"`
	Name        string   `json:"name"`
	Description string   `json:"description"`
	Tags        []string `json:"tags"`
	InputModes  []string `json:"inputModes,omitempty"`
	OutputModes []string `json:"outputModes,omitempty"`
}

// Capabilities are the optional abilities of an agent.
type Capabilities struct {
	Streaming              bool `json:"streaming"`
	PushNotifications      bool `json:"pushNotifications"`
	StateTransitionHistory bool `json:"stateTransitionHistory"`
}

// SecurityScheme is a way to authenticate.
type SecurityScheme struct {
	Type   string `json:"type"`
	Scheme string `json:"scheme"`
}

// Context is one element of the result of hub/contexts/list.
type Context struct {
	ID         string   `json:"id"`
	AgentIDs   []string `json:"agentIds"`
	TaskIDs    []string `json:"taskIds"`
	CreatedAt  Time     `json:"createdAt"`
	LastUsedAt Time     `json:"lastUsedAt"`
	ExpiresAt  Time     `json:"expiresAt"`
	// WorkDirs are the directories of the agents that have one, by their ids.
	WorkDirs map[string]hub.WorkDir `json:"workDirs,omitempty"`
}

// WorktreeParams are the params of hub/workdir/worktree: it makes one git worktree of the repository in Path for each
// kind and name.
type WorktreeParams struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	Path string `json:"path"`
}

// Worktree is the result of hub/workdir/worktree.
type Worktree struct {
	hub.WorkDir
	Notice string `json:"notice,omitempty"` // for the user
}

// DirCheck is the result of hub/workdir/check.
type DirCheck = hub.DirCheck

// DirCheckParams are the params of hub/workdir/check.
type DirCheckParams struct {
	AgentIDs  []string `json:"agentIds,omitempty"` // none: all
	ContextID string   `json:"contextId,omitempty"`
	hub.DirRequest
}

// TaskPage is the result of hub/tasks/page. A page ends after 16 MiB, so one that is
// not the last may have fewer tasks than the limit.
type TaskPage struct {
	Tasks      []Task `json:"tasks"`
	Total      int    `json:"total"`                // matching tasks on all pages
	NextCursor string `json:"nextCursor,omitempty"` // missing on the last page
}

// AgentsListParams are the parameters of hub/agents/list.
type AgentsListParams struct {
	IncludeHealth bool  `json:"includeHealth,omitempty"`
	IncludeCards  *bool `json:"includeCards,omitempty"` // true unless given: a list without them is a third as long
}

// AgentParams are the parameters of hub/agents/get and hub/agents/health.
type AgentParams struct {
	AgentID string `json:"agentId"`
}

// TasksListParams are the parameters of hub/tasks/list and hub/tasks/page, which return the newest tasks first and
// at most 16 MiB; only hub/tasks/page reports that more follow, with a cursor.
type TasksListParams struct {
	ContextID string    `json:"contextId,omitempty"`
	AgentID   string    `json:"agentId,omitempty"`
	State     TaskState `json:"state,omitempty"`
	Limit     int       `json:"limit,omitempty"` // 1..1000, default 50
	Offset    int       `json:"offset,omitempty"`
	Cursor    string    `json:"cursor,omitempty"` // hub/tasks/page only; Offset is then ignored
	// HistoryLength is the most messages per task; default 0.
	HistoryLength    *int `json:"historyLength,omitempty"`
	IncludeArtifacts bool `json:"includeArtifacts,omitempty"`
}

// TraceParams are the parameters of hub/tasks/trace.
type TraceParams struct {
	ID    string `json:"id"`
	Turn  int    `json:"turn,omitempty"`  // the only turn, from 1; default the last ones
	Limit int    `json:"limit,omitempty"` // 1..50 turns, default 20
}

// TaskTrace is the result of hub/tasks/trace.
type TaskTrace struct {
	TaskID string      `json:"taskId"`
	Turns  int         `json:"turns"`  // that have begun
	Traces []hub.Trace `json:"traces"` // the oldest first
}

// ContextsListParams are the parameters of hub/contexts/list.
type ContextsListParams struct {
	Limit int `json:"limit,omitempty"` // 1..1000, default 50
}

// Values of IDsParams.Kind.
const (
	IDsOfTasks    = "task"
	IDsOfContexts = "context"
)

// IDsParams are the parameters of hub/ids, which completes an abbreviated id.
type IDsParams struct {
	Kind  string `json:"kind"`            // task or context
	Like  string `json:"like,omitempty"`  // a beginning or an end of the ids; empty for all
	Limit int    `json:"limit,omitempty"` // 1..1000, default 50
}

// IDs is the result of hub/ids: the ids that match, the most recently used first.
type IDs struct {
	IDs []string `json:"ids"`
}

// SendParams are the parameters of message/send and message/stream.
type SendParams struct {
	Message       Message        `json:"message"`
	Configuration *SendConfig    `json:"configuration,omitempty"`
	Metadata      map[string]any `json:"metadata,omitempty"` // stored with a new task
}

// SendConfig are options of the answer to a message.
type SendConfig struct {
	// HistoryLength bounds the history in the answer: nil all, 0 none.
	HistoryLength *int `json:"historyLength,omitempty"`
	// Blocking waits until the task has ended or waits for its user; default true.
	Blocking *bool `json:"blocking,omitempty"`
	// Timeout bounds the agent's run, in milliseconds; 0 means the agent's limit.
	Timeout int64 `json:"timeout,omitempty"`
	// AcceptedOutputModes are MIME types; agents may ignore them.
	AcceptedOutputModes []string `json:"acceptedOutputModes,omitempty"`
}

// TaskParams are the parameters of tasks/get, tasks/cancel and tasks/resubscribe.
type TaskParams struct {
	ID            string `json:"id"`
	HistoryLength *int   `json:"historyLength,omitempty"` // tasks/get, and the snapshots of tasks/resubscribe
	// KeepDelegated keeps tasks/cancel from canceling tasks that were delegated from this one.
	KeepDelegated bool `json:"keepDelegated,omitempty"`
}

// PageLinkParams are the parameters of hub/page/link.
type PageLinkParams struct {
	ViewOnly bool `json:"viewOnly,omitempty"` // the browser that opens the link can change nothing
}

// PageLink is the result of hub/page/link: a link to the hub's page for a browser. It can be opened once, until it expires.
type PageLink struct {
	URL     string `json:"url"`
	Expires Time   `json:"expires"`
}

// BusJoinParams are the parameters of hub/bus/join.
type BusJoinParams struct {
	Access    string `json:"access,omitempty"`    // project (default), network, or cluster: the linked one
	Namespace string `json:"namespace,omitempty"` // for the access project
}

// BusGrant is the result of hub/bus/join: a credential for one connection to the
// hub's NATS server, made before it expires.
type BusGrant struct {
	Address    string `json:"address"` // host:port
	User       string `json:"user"`
	Password   string `json:"password"`
	Expires    Time   `json:"expires"`
	StoreDir   string `json:"storeDir"`        // of the server; synced by the process if durability is commit
	Syncs      bool   `json:"syncs,omitempty"` // the hub syncs messages whose acknowledgements go to $PARLEY.ack.NAME.NUMBER, and forwards these
	Durability string `json:"durability"`      // commit, always or fast
	PID        int    `json:"pid"`             // of the hub
	// Cluster is the URL of the cluster behind the hub's link; missing for the hub's own bus.
	Cluster string `json:"cluster,omitempty"`
	// ClockSet is when the hub noticed that the computer's clock was set, or that the computer has slept; missing if it has not.
	ClockSet Time `json:"clockSet,omitzero"`
}

// NetworkJoinParams are the parameters of hub/network/join: an agent, and its
// process's configuration of the network. Times are in seconds; 0 is the default.
type NetworkJoinParams struct {
	AgentType   string `json:"agentType"`
	ProjectPath string `json:"projectPath"`
	// Handle is the agent's name: a new process gets the identity of a former one of the same name only.
	Handle string `json:"handle,omitempty"`
	// GUID and Secret are from an earlier NetworkGrant, to rejoin after a restart of the hub.
	GUID   string `json:"guid,omitempty"`
	Secret string `json:"secret,omitempty"`
	// Via is empty for the network on the hub's bus. To join the linked cluster's
	// network an agent asks twice: with ViaHub for its identity on the hub's bus, then
	// with that identity's GUID and secret and ViaCluster for its connection.
	Via string `json:"via,omitempty"`
	// LateInbox is set by programs that need no inbox before there is mail: the hub makes it with the agent's first message.
	LateInbox bool `json:"lateInbox,omitempty"`

	Bucket        string `json:"bucket,omitempty"` // of the registry
	Inboxes       string `json:"inboxes,omitempty"`
	RegistryTTL   int    `json:"registryTTL,omitempty"`
	AckTimeout    int    `json:"ackTimeout,omitempty"`
	MaxAttempts   int    `json:"maxDeliveryAttempts,omitempty"`
	DeadLetterTTL int    `json:"deadLetterTTL,omitempty"`
}

// Values of NetworkJoinParams.Via.
const (
	ViaHub     = "hub"
	ViaCluster = "cluster"
)

// NetworkGrant is the result of hub/network/join: a credential for the agents'
// network of this computer that is restricted to the agent's own identity.
type NetworkGrant struct {
	BusGrant
	GUID    string `json:"guid"`
	Slot    string `json:"slot"`   // the key of its identity's record
	Secret  string `json:"secret"` // to rejoin
	Again   bool   `json:"again"`  // the GUID was an agent's of the same type before
	Control string `json:"desk"`   // the subject on which it asks for queues
	// Mark identifies the hub's store in the agent's record at the cluster.
	Mark string `json:"mark,omitempty"`
}

// NetworkRestParams are the params of hub/network/rest, by which an agent gives up its connection to the hub's NATS server for as long as
// nothing uses it. It must be the first request of a connection of its own, and is answered at the end of the rest. Before, the hub sends the
// notification hub/network/resting: from then on the agent keeps its identity without the other connection, for as long as this one lasts. The
// client sends the notifications hub/network/beat, a heartbeat, and hub/network/wake, which ends the rest.
type NetworkRestParams struct {
	GUID string `json:"guid"`
	// User is that of the credential that the other connection has used.
	User string `json:"user"`
}

// Notifications during a rest.
const (
	NotifyResting = "hub/network/resting"
	NotifyBeat    = "hub/network/beat"
	NotifyWake    = "hub/network/wake"
)

// NetworkRested is the result of hub/network/rest: a credential for a new connection with the same rights.
type NetworkRested struct {
	BusGrant
	// Reason is why the rest has ended.
	Reason RestEnd `json:"reason"`
}

// RestEnd is why a rest has ended.
type RestEnd string

// The ends of a rest.
const (
	RestAsked RestEnd = "asked" // by the client
	RestMail  RestEnd = "mail"  // there is mail for the agent
	RestEntry RestEnd = "entry" // a heartbeat failed: the agent has to write its registry entry anew
)

// BusLeaveParams are the parameters of hub/bus/leave.
type BusLeaveParams struct {
	User string `json:"user"`
}

// BusLeaveResult is the result of hub/bus/leave.
type BusLeaveResult struct {
	Status string `json:"status"` // left
}

// DrainResult is the result of hub/drain.
type DrainResult struct {
	Status      string `json:"status"`                // "stopping", or "busy": then turns that have not begun are held for some seconds
	ActiveTasks int    `json:"activeTasks,omitempty"` // that the hub would interrupt
}

// ShutdownResult is the result of hub/shutdown.
type ShutdownResult struct {
	Status string `json:"status"` // "stopping"
}
