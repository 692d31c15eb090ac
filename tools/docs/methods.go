package main

import (
	"fmt"
	"go/parser"
	"go/token"
	"reflect"
	"slices"
	"strings"

	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/documents"
	"github.com/parleyhub/parley/internal/hub/events"
	"github.com/parleyhub/parley/swarm"
)

// method is a method of the hub's JSON-RPC dialect.
type method struct {
	name, about    string
	params, result reflect.Type // nil params: none
	event          reflect.Type // of a stream, nil of a method that answers once
	socket         bool         // on the socket only
}

// none are the parameters of a method without any.
type none = struct{}

func call[P, R any](name, about string) method {
	m := method{name: name, about: about, params: reflect.TypeFor[P](), result: reflect.TypeFor[R]()}
	if m.params == reflect.TypeFor[none]() {
		m.params = nil
	}
	return m
}

func onSocket[P, R any](name, about string) method {
	m := call[P, R](name, about)
	m.socket = true
	return m
}

func stream[P, R, E any](name, about string) method {
	m := call[P, R](name, about)
	m.event = reflect.TypeFor[E]()
	return m
}

// methods are those of internal/api/dialect, in the order of docs/http-api.md.
var methods = []method{
	call[none, dialect.Status](dialect.MethodStatus, "The status of the hub; on the socket also where it is."),
	call[dialect.AgentsListParams, []dialect.Agent](dialect.MethodAgentsList, "The agents."),
	call[dialect.AgentParams, dialect.Agent](dialect.MethodAgentsGet, "One agent."),
	call[dialect.AgentParams, dialect.Health](dialect.MethodAgentsHealth, "The health of an agent, probed now."),
	onSocket[dialect.FindAgentParams, dialect.Agent](dialect.MethodAgentsFind, "The agent that a person means by a name."),
	onSocket[dialect.RenameAgentParams, dialect.Agent](dialect.MethodAgentsRename, "Changes what a session is called."),
	onSocket[none, []dialect.OpenSession](dialect.MethodSessionsList, "The open sessions of this computer."),
	onSocket[dialect.SessionHookParams, dialect.SessionHookAnswer](dialect.MethodSessionHook, "An event of an open session, from its program's hook."),
	onSocket[dialect.SessionEventParams, dialect.SessionEventAnswer](dialect.MethodSessionEvent, "An event of an open session, as its program's hook has got it."),
	onSocket[dialect.SessionShownParams, dialect.SessionShown](dialect.MethodSessionShown, "Reports that a session has got a notice."),
	onSocket[dialect.SessionServeParams, dialect.OpenSession](dialect.MethodSessionServe, "The session that an MCP server serves."),
	onSocket[dialect.SessionQuietParams, dialect.SessionQuietParams](dialect.MethodSessionQuiet, "Turns do not disturb on or off for a session."),
	onSocket[none, []dialect.FileClaim](dialect.MethodClaimsList, "The claims of files."),
	onSocket[dialect.FileCheckParams, []dialect.HeldFile](dialect.MethodClaimsCheck, "Which of some files other agents have claimed."),
	onSocket[dialect.BreakClaimParams, dialect.BrokenClaim](dialect.MethodClaimBreak, "Ends a claim for its holder, who is told."),
	onSocket[none, []dialect.Thread](dialect.MethodThreadsList, "The channels and the mail of agents."),
	onSocket[dialect.ThreadParams, dialect.ThreadMessages](dialect.MethodThreadGet, "The latest messages of a channel or of the mail of two agents, with who has seen them."),
	onSocket[dialect.WriteThreadParams, dialect.WrittenMessage](dialect.MethodThreadWrite, "Writes a message as the hub's user."),
	onSocket[none, []dialect.AllowedSender](dialect.MethodSendersList, "The senders that the user has always allowed."),
	onSocket[dialect.RevokeSenderParams, dialect.AllowedSender](dialect.MethodSenderRevoke, "Revokes the permission of a sender."),
	call[dialect.TasksListParams, []dialect.Task](dialect.MethodTasksList, "Tasks, the newest first."),
	call[dialect.TasksListParams, dialect.TaskPage](dialect.MethodTasksPage, "Tasks, the newest first, with a cursor."),
	call[dialect.TraceParams, dialect.TaskTrace](dialect.MethodTasksTrace, "What the agent did in the last turns of a task."),
	call[dialect.SwarmCreateParams, swarm.Session](dialect.MethodSwarmCreate, "Starts a swarm."),
	call[dialect.SwarmParams, swarm.Session](dialect.MethodSwarmGet, "A swarm; may wait until it has changed."),
	call[none, []dialect.SwarmSummary](dialect.MethodSwarmList, "The running swarms and those of the last day."),
	call[dialect.SwarmStopParams, swarm.Session](dialect.MethodSwarmStop, "Stops a swarm and cancels its agents' tasks."),
	call[dialect.ContextsListParams, []dialect.Context](dialect.MethodContextsList, "Conversations, the most recently used first."),
	call[dialect.IDsParams, dialect.IDs](dialect.MethodIDs, "Completes an abbreviated id."),
	call[dialect.SendParams, dialect.Task](dialect.MethodSend, "Sends a message to an agent."),
	stream[dialect.SendParams, dialect.Task, dialect.Event](dialect.MethodStream, "Sends a message to an agent and follows its task."),
	call[dialect.TaskParams, dialect.Task](dialect.MethodTaskGet, "One task."),
	call[dialect.TaskParams, dialect.Task](dialect.MethodTaskCancel, "Cancels a task."),
	stream[dialect.TaskParams, dialect.Task, dialect.Event](dialect.MethodTaskFollow, "Follows a task."),
	onSocket[none, dialect.DrainResult](dialect.MethodDrain, "Stops the hub if that interrupts no task."),
	onSocket[none, dialect.ShutdownResult](dialect.MethodShutdown, "Stops the hub."),
	onSocket[dialect.BusJoinParams, dialect.BusGrant](dialect.MethodBusJoin, "A credential of the bus."),
	onSocket[dialect.NetworkJoinParams, dialect.NetworkGrant](dialect.MethodNetworkJoin, "An agent's membership in the agents' network."),
	onSocket[dialect.NetworkRestParams, dialect.NetworkRested](dialect.MethodNetworkRest, "Keeps an agent's membership while it is not connected to the bus."),
	onSocket[dialect.BusLeaveParams, dialect.BusLeaveResult](dialect.MethodBusLeave, "Withdraws a credential of the bus."),
	onSocket[dialect.MCPParams, none](dialect.MethodMCP, "Turns the connection into one of MCP."),
	call[none, dialect.Needs](dialect.MethodNeeds, "What waits for the user."),
	call[none, dialect.WorkList](dialect.MethodWorkList, "The open items and the failed ones of the work queues."),
	call[dialect.WorkItemParams, work.DeadLetter](dialect.MethodWorkRetry, "Puts failed work back into its queue."),
	call[dialect.WorkItemParams, work.DeadLetter](dialect.MethodWorkDiscard, "Removes failed work for good."),
	call[dialect.LoopDismissParams, dialect.LoopDismissResult](dialect.MethodLoopDismiss, "Stops a loop that failed from waiting for the user."),
	call[dialect.TotalsParams, dialect.Totals](dialect.MethodTotals, "The stored tasks summed up."),
	stream[dialect.EventsParams, dialect.EventsResult, events.Event](dialect.MethodEvents, "What changes in the hub."),
	onSocket[dialect.PageLinkParams, dialect.PageLink](dialect.MethodPageLink, "A link to the hub's page."),
	onSocket[dialect.DirCheckParams, dialect.DirCheck](dialect.MethodDirCheck, "Whether an agent would work in a directory, and may."),
	onSocket[dialect.WorktreeParams, dialect.Worktree](dialect.MethodWorktree, "Makes a git worktree, or finds it."),
	onSocket[dialect.LoopStepParams, dialect.LoopStepResult](dialect.MethodLoopStep, "Records a step of a loop."),
	call[none, []string](dialect.MethodDocumentsList, "The names of the documents."),
	call[dialect.DocumentParams, documents.Content](dialect.MethodDocumentsGet, "A document."),
	call[dialect.DocumentParams, documents.Content](dialect.MethodDocumentsWait, "A document, once its version is another one."),
	call[dialect.DocumentEditParams, documents.Content](dialect.MethodDocumentsEdit, "Edits a document."),
	call[dialect.DocumentSyncParams, documents.Rest](dialect.MethodDocumentsSync, "Merges a copy of a document, and returns what the copy lacks."),
	call[dialect.DocumentParams, dialect.DocumentCompacted](dialect.MethodDocumentsCompact, "Drops what a document remembers of deleted parts."),
	onSocket[dialect.DocumentShareParams, map[string]documents.Role](dialect.MethodDocumentsShare, "Sets the role of an agent in a document."),
	onSocket[dialect.DocumentParams, map[string]documents.Role](dialect.MethodDocumentsShares, "The roles in a document."),
}

// checkMethods returns an error if a method of the dialect is not described.
func checkMethods() error {
	file, err := parser.ParseFile(token.NewFileSet(), "internal/api/dialect/hubtypes.go", nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	var missing []string
	for _, c := range constantsOf(file) {
		if strings.HasPrefix(c.name, "Method") && !slices.ContainsFunc(methods, func(m method) bool { return m.name == c.value }) {
			missing = append(missing, c.value)
		}
	}
	if missing != nil {
		return fmt.Errorf("add %q to methods in tools/docs/methods.go", missing)
	}
	return nil
}
