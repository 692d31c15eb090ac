// Package dialect is the hub's own JSON-RPC dialect: the methods of the hub's specification (hub/*, message/*,
// tasks/*) with the shapes of A2A 0.3 and the specification's error codes. It translates between them and package
// hub, the same on the Unix socket and on HTTP. Pure A2A is package a2a.
//
// Parameters that the dialect knows are decoded strictly: names match by case, types must be right, duplicates are
// errors, and an error names the parameter ("message.parts[0].text"). Unknown parameters are ignored, since A2A
// clients send more than the hub's specification lists.
//
// Where the specification leaves a shape open: hub/tasks/list and hub/contexts/list return arrays, as
// hub/agents/list does; hub/tasks/page returns a page and a cursor. Uptime is in milliseconds. A health's lastCheck
// is null before the first check.
//
// The stream of hub/events sends events alone; the response has the position after the last.
//
// Streams of tasks (message/stream, tasks/resubscribe) send the task first, then status and artifact updates; the last event
// is a status update with final set. Over HTTP each event is a JSON-RPC response in an SSE event. On the socket each
// is a notification with the method stream/event and the request's id in its params; the response to the request,
// the final task, ends the stream.
package dialect

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/documents"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/events"
	"github.com/parleyhub/parley/ralph"
)

// Hub is what the dialect needs of the hub; see package hub for the methods.
type Hub interface {
	AgentLister
	Send(ctx context.Context, req hub.SendRequest) (*a2a.Task, error)
	SendAndWait(ctx context.Context, req hub.SendRequest) (*a2a.Task, error)
	SendAndStream(ctx context.Context, req hub.SendRequest) (Subscription, error)
	Subscribe(ctx context.Context, id a2a.TaskID) (Subscription, error)
	Task(ctx context.Context, id a2a.TaskID, historyLength *int) (*a2a.Task, error)
	Tasks(ctx context.Context, query hub.TaskQuery) (hub.TaskPage, error)
	Traces(ctx context.Context, id a2a.TaskID, query hub.TraceQuery) (traces []hub.Trace, turns int, err error)
	Cancel(ctx context.Context, id a2a.TaskID) (*a2a.Task, error)
	CancelAlone(ctx context.Context, id a2a.TaskID) (*a2a.Task, error)
	Contexts(ctx context.Context, limit int) ([]hub.ContextInfo, error)
	TasksLike(part string, limit int) []a2a.TaskID
	ContextsLike(part string, limit int) []string
	CheckHealth(ctx context.Context, id string) (hub.Health, error)
	Status() hub.Status
	Totals(query hub.TotalsQuery) (totals []hub.Total, more bool)
}

// Names are the names of the agents, for the hub's own user.
type Names interface {
	// FindAgent returns the agent that a name means in a project, see [hub.Hub.FindAgent].
	FindAgent(ctx context.Context, name, projectID string) (hub.AgentInfo, error)
	// RenameAgent gives an agent another handle, "" for its own. The error is a *hub.Error.
	RenameAgent(id, name string) error
}

// Subscription is a task's snapshot and the events that follow it.
type Subscription interface {
	Task() *a2a.Task
	Next(ctx context.Context) (a2a.Event, error)
	Close()
}

// OnHub returns h as the Hub of a Config.
func OnHub(h *hub.Hub) Hub { return onHub{h} }

// onHub returns the hub's subscriptions as the interface type.
type onHub struct{ *hub.Hub }

func (h onHub) SendAndStream(ctx context.Context, req hub.SendRequest) (Subscription, error) {
	return subscription(h.Hub.SendAndStream(ctx, req))
}

func (h onHub) Subscribe(ctx context.Context, id a2a.TaskID) (Subscription, error) {
	return subscription(h.Hub.Subscribe(ctx, id))
}

// subscription keeps a nil *hub.Subscription from becoming a non-nil interface.
func subscription(s *hub.Subscription, err error) (Subscription, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Gate grants and revokes credentials of the hub's bus; see package bus.
type Gate interface {
	Grant(ctx context.Context, req bus.GrantRequest) (bus.Grant, error)
	Revoke(user string) error
}

// Admission admits agents to the agents' network on the hub's bus.
type Admission interface {
	Admit(ctx context.Context, p NetworkJoinParams) (NetworkGrant, error)
}

// WorkDirs tells about agents' directories; see package hub for the methods.
type WorkDirs interface {
	CheckDir(agents []string, contextID string, r hub.DirRequest) hub.DirCheck
	Worktree(ctx context.Context, kind, name, path string) (dir hub.WorkDir, notice string, err error)
}

// Config is what a Service works with. A method whose field is nil does not exist.
// Shutdown, Gate, LoopStep, WorkDirs, Names, Senders, Sessions, Shares, Peers, Addresses and PageLink are for the service of the socket only; Claims and Threads
// also for that of the hub's page.
type Config struct {
	Hub   Hub        // required
	Cards *Directory // required
	// Bus, MCPServers and Peers return parts of hub/status; a nil one is left out.
	Bus        func() BusStatus
	MCPServers func() []MCPServerStatus
	Peers      func() *PeersStatus
	// Addresses returns where the hub is, for hub/status.
	Addresses func() Addresses
	// PageLink makes a link to the hub's page. ok is false without HTTP.
	PageLink func(viewOnly bool) (link PageLink, ok bool)
	// Shutdown starts to stop the hub and must not block.
	Shutdown func()
	// Drain stops the hub if that interrupts no task, and else returns how many tasks it would interrupt; turns that have not begun are
	// held then for some seconds. Must not block.
	Drain     func() (busy int)
	Swarms    Swarms
	Admission Admission
	Gate      Gate
	// Events are the hub's events.
	Events   *events.Log
	WorkDirs WorkDirs
	Names    Names
	Senders  Senders
	// Sessions are the open sessions of this computer.
	Sessions Sessions
	// Claims are the claims of files.
	Claims Claims
	// Threads are what agents write to each other.
	Threads Threads
	// LoopStep records a step of one of the user's loops. It reports whether the step is in the audit log.
	LoopStep func(list string, s ralph.Step) (logged bool, err error)
	// Loops, if not nil, are the loops that failed.
	Loops Loops
	// Held returns the mail that the programs of open sessions hold for their users.
	Held      func() []HeldMail
	Documents *documents.Library
	// Queues, if not nil, are the work queues of the agents' network.
	Queues Queues
	// Shares has the documents in which the service sets the roles of other processes' agents.
	Shares *documents.Library
}

// Service answers the dialect's requests. It is a jsonrpc.Handler and safe for concurrent use.
type Service struct {
	cfg     Config
	methods map[string]jsonrpc.HandlerFunc
}

// call is a request with its parameters.
type call struct {
	jsonrpc.Request
	object // the parameters
	emit   jsonrpc.Emit
}

// method reads a call's parameters and returns the action that answers it, which runs
// only if the parameters are right.
type method func(c *call) action

type action func(ctx context.Context) (any, error)

// withoutParams returns the method that takes no parameters.
func withoutParams[T any](f func(context.Context) (T, error)) method {
	return func(*call) action {
		return func(ctx context.Context) (any, error) { return f(ctx) }
	}
}

// withText returns the method whose only parameter is the named text.
func withText[T any](name string, f func(ctx context.Context, text string) (T, error)) method {
	return func(c *call) action {
		text := c.requiredText(name, maxID)
		return func(ctx context.Context) (any, error) { return f(ctx, text) }
	}
}

// New returns a service.
func New(cfg Config) *Service {
	s := &Service{cfg: cfg, methods: map[string]jsonrpc.HandlerFunc{}}
	s.add(true, rpcError, map[string]method{
		MethodStatus:       withoutParams(s.status),
		MethodAgentsList:   s.agentsList,
		MethodAgentsGet:    withText("agentId", s.agentsGet),
		MethodAgentsHealth: withText("agentId", s.agentsHealth),
		MethodTasksList:    s.tasks,
		MethodTasksPage:    s.tasks,
		MethodTasksTrace:   s.tasksTrace,
		MethodContextsList: s.contextsList,
		MethodIDs:          s.ids,
		MethodTotals:       s.totals,
		MethodNeeds:        withoutParams(s.needs),
		MethodSend:         s.send,
		MethodStream:       s.stream,
		MethodTaskGet:      s.taskGet,
		MethodTaskCancel:   s.taskCancel,
		MethodTaskFollow:   s.taskFollow,
	})
	s.add(cfg.Events != nil, eventsError, map[string]method{MethodEvents: s.events})
	s.add(cfg.PageLink != nil, rpcError, map[string]method{MethodPageLink: s.pageLink})
	s.add(cfg.Shutdown != nil, rpcError, map[string]method{MethodShutdown: withoutParams(s.shutdown)})
	s.add(cfg.Drain != nil, rpcError, map[string]method{MethodDrain: withoutParams(s.drain)})
	s.add(cfg.WorkDirs != nil, rpcError, map[string]method{MethodDirCheck: s.dirCheck, MethodWorktree: s.worktree})
	s.add(cfg.Names != nil, rpcError, map[string]method{MethodAgentsFind: s.agentsFind, MethodAgentsRename: s.agentsRename})
	s.add(cfg.Senders != nil, rpcError, map[string]method{MethodSendersList: withoutParams(s.sendersList), MethodSenderRevoke: withText("id", s.senderRevoke)})
	s.add(cfg.Sessions != nil, rpcError, map[string]method{
		MethodSessionsList: withoutParams(s.sessionsList), MethodSessionHook: s.sessionHook,
		MethodSessionEvent: s.sessionEvent,
		MethodSessionShown: withText("notice", s.sessionShown), MethodSessionServe: s.sessionServe,
		MethodSessionQuiet: s.sessionQuiet,
	})
	s.add(cfg.Claims != nil, rpcError, map[string]method{
		MethodClaimsList: withoutParams(s.claimsList), MethodClaimsCheck: s.claimsCheck, MethodClaimBreak: withText("claimId", s.claimBreak),
	})
	s.add(cfg.Threads != nil, rpcError, map[string]method{
		MethodThreadsList: withoutParams(s.threadsList), MethodThreadGet: s.thread, MethodThreadWrite: s.threadWrite,
	})
	s.add(cfg.Queues != nil, workError, map[string]method{
		MethodWorkList:    withoutParams(s.workList),
		MethodWorkRetry:   withText("taskId", s.workRetry),
		MethodWorkDiscard: withText("taskId", s.workDiscard),
	})
	s.add(cfg.Loops != nil, rpcError, map[string]method{MethodLoopDismiss: s.loopDismiss})
	s.add(cfg.LoopStep != nil, rpcError, map[string]method{MethodLoopStep: s.loopStep})
	s.add(cfg.Swarms != nil, swarmError, map[string]method{
		MethodSwarmCreate: s.swarmCreate,
		MethodSwarmGet:    s.swarmGet,
		MethodSwarmList:   withoutParams(s.swarmList),
		MethodSwarmStop:   s.swarmStop,
	})
	s.add(cfg.Gate != nil, busError, map[string]method{MethodBusJoin: s.busJoin, MethodBusLeave: withText("user", s.busLeave)})
	s.add(cfg.Admission != nil, busError, map[string]method{MethodNetworkJoin: s.networkJoin})
	s.add(cfg.Documents != nil, documentError, map[string]method{
		MethodDocumentsList:    withoutParams(s.documentsList),
		MethodDocumentsGet:     withText("name", s.document),
		MethodDocumentsWait:    s.documentsWait,
		MethodDocumentsEdit:    s.documentsEdit,
		MethodDocumentsSync:    s.documentsSync,
		MethodDocumentsCompact: withText("name", s.documentsCompact),
	})
	s.add(cfg.Shares != nil, documentError, map[string]method{
		MethodDocumentsShare:  s.documentsShare,
		MethodDocumentsShares: withText("name", s.documentsShares),
	})
	return s
}

// add adds methods whose errors wire translates, if has is set.
func (s *Service) add(has bool, wire func(error) error, methods map[string]method) {
	if !has {
		return
	}
	for name, m := range methods {
		s.methods[name] = func(ctx context.Context, req jsonrpc.Request, emit jsonrpc.Emit) (any, error) {
			c := &call{req, readParams(req.Params), emit}
			run := m(c)
			if *c.err != nil {
				return nil, *c.err
			}
			result, err := run(ctx)
			if err != nil {
				return nil, rpcError(wire(err))
			}
			return result, nil
		}
	}
}

// Handle answers one request.
func (s *Service) Handle(ctx context.Context, req jsonrpc.Request, emit jsonrpc.Emit) (any, error) {
	m, ok := s.methods[req.Method]
	if !ok {
		return nil, jsonrpc.MethodNotFound(req.Method)
	}
	return m(ctx, req, emit)
}

// Streams reports whether a method sends events.
func Streams(method string) bool {
	return method == MethodStream || method == MethodTaskFollow || method == MethodEvents
}

func (s *Service) status(context.Context) (Status, error) {
	status := fromStatusInfo(s.cfg.Hub.Status(), time.Now())
	status.PID = os.Getpid()
	if s.cfg.Bus != nil {
		busStatus := s.cfg.Bus()
		status.Bus = &busStatus
	}
	if s.cfg.MCPServers != nil {
		status.MCPServers = s.cfg.MCPServers()
	}
	if s.cfg.Addresses != nil {
		status.Addresses = s.cfg.Addresses()
	}
	if s.cfg.Peers != nil {
		status.Peers = s.cfg.Peers()
	}
	return status, nil
}

func (s *Service) agentsList(c *call) action {
	withHealth, withCards := c.boolean("includeHealth", false), c.boolean("includeCards", true)
	return func(ctx context.Context) (any, error) {
		all := s.cfg.Hub.AgentsFor(ctx)
		addresses := hub.Addresses(all)
		return each(all, func(info hub.AgentInfo) Agent {
			agent := agentOf(info, addresses, withHealth)
			if withCards {
				card := s.cfg.Cards.agentCard(info)
				agent.Card = &card
			}
			return agent
		}), nil
	}
}

// agent returns everything about an agent.
func (s *Service) agent(ctx context.Context, info hub.AgentInfo) Agent {
	agent := agentOf(info, hub.Addresses(s.cfg.Hub.AgentsFor(ctx)), true)
	card := s.cfg.Cards.agentCard(info)
	agent.Card = &card
	return agent
}

// agentOf returns an agent without its card.
func agentOf(info hub.AgentInfo, addresses map[string]string, withHealth bool) Agent {
	agent := Agent{
		ID:           info.Definition.ID,
		Name:         displayName(info),
		Description:  info.Definition.Description,
		Driver:       info.Definition.Driver,
		RegisteredAt: Time{info.RegisteredAt},
		Running:      info.Running,
		Queued:       info.Queued,
		Tier:         info.Definition.Tier,
		Sandbox:      info.Definition.Sandbox,
		Place:        placeOf(info, addresses),
	}
	for _, c := range info.Definition.Capabilities {
		agent.Capabilities = append(agent.Capabilities, c.ID)
	}
	if withHealth {
		health := fromHealth(info.Health)
		agent.Health = &health
	}
	return agent
}

func placeOf(info hub.AgentInfo, addresses map[string]string) Place {
	at := info.Residence
	p := Place{
		Kind: string(at.Kind), Handle: at.Handle, Address: addresses[info.Definition.ID], State: string(info.State), Since: Time{info.Since},
		Vendor: at.Vendor, Model: info.Model, Role: at.Type, Project: at.Folder, ProjectID: at.Project, Computer: at.Computer,
		Visibility: at.Visibility, GUID: at.GUID, Quiet: at.Quiet,
	}
	if w := info.Work; w != (hub.Work{}) {
		p.Working = &Work{string(w.Task), w.Title}
	}
	return p
}

func (s *Service) agentsGet(ctx context.Context, id string) (any, error) {
	info, err := s.cfg.Hub.AgentFor(ctx, id)
	if err != nil {
		return nil, err
	}
	return s.agent(ctx, info), nil
}

func (s *Service) agentsFind(c *call) action {
	name, project := c.requiredText("name", maxID), c.text("projectId", maxID)
	return func(ctx context.Context) (any, error) {
		info, err := s.cfg.Names.FindAgent(ctx, name, project)
		if err != nil {
			return nil, err
		}
		return s.agent(ctx, info), nil
	}
}

func (s *Service) agentsRename(c *call) action {
	id, name := c.requiredText("agentId", maxID), c.text("name", maxID)
	return func(ctx context.Context) (any, error) {
		if err := s.cfg.Names.RenameAgent(id, name); err != nil {
			return nil, err
		}
		return s.agentsGet(ctx, id)
	}
}

func (s *Service) agentsHealth(ctx context.Context, id string) (Health, error) {
	if _, err := s.cfg.Hub.AgentFor(ctx, id); err != nil {
		return Health{}, err
	}
	health, err := s.cfg.Hub.CheckHealth(ctx, id)
	return fromHealth(health), err
}

// tasks answers hub/tasks/page, and hub/tasks/list with the page's tasks alone.
func (s *Service) tasks(c *call) action {
	query := hub.TaskQuery{
		ContextID:     c.text("contextId", maxID),
		AgentID:       c.text("agentId", maxID),
		Limit:         c.limit("limit"),
		HistoryLength: c.count("historyLength", maxHistory),
		WithArtifacts: c.boolean("includeArtifacts", false),
	}
	if offset := c.count("offset", maxOffset); offset != nil {
		query.Offset = *offset
	}
	if c.Method == MethodTasksPage {
		query.Cursor = c.text("cursor", maxURI)
	}
	if query.HistoryLength == nil {
		query.HistoryLength = new(int)
	}
	state, ok := TaskState(c.text("state", maxID)), true
	if state != "" && state != StateUnknown {
		if query.State, ok = hubState(state); !ok {
			c.fail("state", "must be a task state such as \"working\" or \"completed\"")
		}
	}
	return func(ctx context.Context) (any, error) {
		var found hub.TaskPage
		var err error
		if state != StateUnknown { // no task of this hub
			found, err = s.cfg.Hub.Tasks(ctx, query)
		}
		tasks := each(found.Tasks, func(t *a2a.Task) Task { return FromTask(t, query.HistoryLength) })
		if c.Method == MethodTasksList {
			return tasks, err
		}
		return &TaskPage{Tasks: tasks, Total: found.Total, NextCursor: found.NextCursor}, err
	}
}

// tasksTrace answers hub/tasks/trace.
func (s *Service) tasksTrace(c *call) action {
	id := c.requiredText("id", maxID)
	query := hub.TraceQuery{}
	if turn := c.integer("turn", 1, maxOffset); turn != nil {
		query.Turn = int(*turn)
	}
	if limit := c.integer("limit", 1, maxTraces); limit != nil {
		query.Limit = int(*limit)
	}
	return func(ctx context.Context) (any, error) {
		traces, turns, err := s.cfg.Hub.Traces(ctx, a2a.TaskID(id), query)
		return &TaskTrace{TaskID: id, Turns: turns, Traces: append([]hub.Trace{}, traces...)}, err
	}
}

// maxTraces bounds the turns of one result of hub/tasks/trace.
const maxTraces = 50

func (s *Service) contextsList(c *call) action {
	limit := cmp.Or(c.limit("limit"), 50)
	return func(ctx context.Context) (any, error) {
		infos, err := s.cfg.Hub.Contexts(ctx, limit)
		return each(infos, fromContext), err
	}
}

func (s *Service) ids(c *call) action {
	kind, like := c.literal("kind", IDsOfTasks, IDsOfContexts), c.text("like", maxID)
	limit := cmp.Or(c.limit("limit"), 50)
	return func(context.Context) (any, error) {
		if kind == IDsOfContexts {
			return IDs{s.cfg.Hub.ContextsLike(like, limit)}, nil
		}
		return IDs{each(s.cfg.Hub.TasksLike(like, limit), func(id a2a.TaskID) string { return string(id) })}, nil
	}
}

func (s *Service) dirCheck(c *call) action {
	agents := c.texts("agentIds")
	contextID := c.text("contextId", maxID)
	r := hub.DirRequest{Path: c.requiredText("path", maxURI), Project: c.boolean("project", false), Worktree: c.boolean("worktree", false)}
	return func(context.Context) (any, error) { return s.cfg.WorkDirs.CheckDir(agents, contextID, r), nil }
}

func (s *Service) worktree(c *call) action {
	kind, name, path := c.requiredText("kind", maxID), c.requiredText("name", maxID), c.requiredText("path", maxURI)
	return func(ctx context.Context) (any, error) {
		dir, notice, err := s.cfg.WorkDirs.Worktree(ctx, kind, name, path)
		return Worktree{dir, notice}, err
	}
}

// send answers message/send. A notification does not wait for the task's end.
func (s *Service) send(c *call) action {
	message := decodeSend(c.object)
	send := s.cfg.Hub.SendAndWait
	if !message.blocking || c.IsNotification() {
		send = s.cfg.Hub.Send
	}
	return func(ctx context.Context) (any, error) {
		return answer(message.historyLength)(send(ctx, message.request))
	}
}

// answer returns what translates the hub's answer, a task or an error.
func answer(historyLength *int) func(*a2a.Task, error) (any, error) {
	return func(t *a2a.Task, err error) (any, error) {
		if err != nil {
			return nil, err
		}
		return FromTask(t, historyLength), nil
	}
}

func (s *Service) stream(c *call) action {
	if c.IsNotification() {
		return s.send(c)
	}
	message := decodeSend(c.object)
	return s.follow(c, message.historyLength, func(ctx context.Context) (Subscription, error) {
		return s.cfg.Hub.SendAndStream(ctx, message.request)
	})
}

func (s *Service) taskFollow(c *call) action {
	id, historyLength := c.task()
	return s.follow(c, historyLength, func(ctx context.Context) (Subscription, error) { return s.cfg.Hub.Subscribe(ctx, id) })
}

// follow returns the action that emits the events of a new subscription.
func (s *Service) follow(c *call, historyLength *int, subscribe func(context.Context) (Subscription, error)) action {
	return func(ctx context.Context) (any, error) {
		if c.emit == nil {
			return nil, unsupported(c.Method+" cannot be answered in a batch", "send it by itself")
		}
		sub, err := subscribe(ctx)
		if err != nil {
			return nil, err
		}
		defer sub.Close()
		return s.emitAll(ctx, c, sub, historyLength)
	}
}

// emitAll emits a subscription's events until it ends, and returns the task as it then
// is. The last event is always a final status.
func (s *Service) emitAll(ctx context.Context, c *call, sub Subscription, historyLength *int) (any, error) {
	snapshot := FromTask(sub.Task(), historyLength)
	if err := c.emit(&snapshot); err != nil {
		return nil, err
	}
	final := false
	for {
		update, err := sub.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		event, err := fromEvent(update, historyLength)
		if err != nil {
			return nil, err
		}
		if err := c.emit(event.payload()); err != nil {
			return nil, err
		}
		final = event.Status != nil && event.Status.Final
	}
	task, err := s.cfg.Hub.Task(ctx, sub.Task().ID, historyLength)
	if err != nil {
		return nil, err
	}
	result := FromTask(task, historyLength)
	if final {
		return result, nil
	}
	last := StatusUpdate{Kind: KindStatusUpdate, TaskID: result.ID, ContextID: result.ContextID, Status: result.Status, Final: true}
	return result, c.emit(&last)
}

func (s *Service) taskGet(c *call) action {
	id, historyLength := c.task()
	return func(ctx context.Context) (any, error) {
		return answer(historyLength)(s.cfg.Hub.Task(ctx, id, historyLength))
	}
}

func (s *Service) taskCancel(c *call) action {
	id, historyLength := c.task()
	cancel := s.cfg.Hub.Cancel
	if c.boolean("keepDelegated", false) {
		cancel = s.cfg.Hub.CancelAlone
	}
	return func(ctx context.Context) (any, error) { return answer(historyLength)(cancel(ctx, id)) }
}

// task reads the parameters of the methods tasks/*.
func (c *call) task() (id a2a.TaskID, historyLength *int) {
	return a2a.TaskID(c.requiredText("id", maxID)), c.count("historyLength", maxHistory)
}

func (s *Service) shutdown(context.Context) (ShutdownResult, error) {
	s.cfg.Shutdown()
	return ShutdownResult{Status: "stopping"}, nil
}

func (s *Service) drain(context.Context) (DrainResult, error) {
	if busy := s.cfg.Drain(); busy > 0 {
		return DrainResult{Status: "busy", ActiveTasks: busy}, nil
	}
	return DrainResult{Status: "stopping"}, nil
}

func (s *Service) busJoin(c *call) action {
	req := bus.GrantRequest{Access: bus.Access(c.text("access", maxID)), Namespace: c.text("namespace", maxID)}
	return func(ctx context.Context) (any, error) {
		g, err := s.cfg.Gate.Grant(ctx, req)
		return FromGrant(g), err
	}
}

// FromGrant translates a credential of the bus.
func FromGrant(g bus.Grant) BusGrant {
	return BusGrant{
		Address: g.Address, User: g.User, Password: string(g.Password), Expires: Time{g.Expires},
		StoreDir: g.StoreDir, Durability: string(g.Durability), PID: g.PID, Syncs: g.Syncs, Cluster: g.Cluster, ClockSet: Time{g.ClockSet},
	}
}

func (s *Service) networkJoin(c *call) action {
	p := NetworkJoinParams{
		AgentType: c.requiredText("agentType", maxID), Handle: c.text("handle", maxID), ProjectPath: c.text("projectPath", maxPath),
		GUID: c.text("guid", maxID), Secret: c.text("secret", maxID),
		Bucket: c.text("bucket", maxID), Inboxes: c.text("inboxes", maxID),
		Via: c.text("via", maxID), LateInbox: c.boolean("lateInbox", false),
	}
	for name, field := range map[string]*int{"registryTTL": &p.RegistryTTL, "ackTimeout": &p.AckTimeout,
		"maxDeliveryAttempts": &p.MaxAttempts, "deadLetterTTL": &p.DeadLetterTTL} {
		if n := c.count(name, maxSeconds); n != nil {
			*field = *n
		}
	}
	return func(ctx context.Context) (any, error) { return s.cfg.Admission.Admit(ctx, p) }
}

// Bounds of the parameters of hub/network/join.
const (
	maxPath    = 4096
	maxSeconds = 365 * 24 * 3600
)

func (s *Service) busLeave(_ context.Context, user string) (BusLeaveResult, error) {
	return BusLeaveResult{Status: "left"}, s.cfg.Gate.Revoke(user)
}

// LoopStepParams is a step of a loop, for the hub's events and its audit log.
type LoopStepParams struct {
	List string     `json:"list"` // the list that the loop works on
	Step ralph.Step `json:"step"`
}

// LoopStepResult reports whether the step is in the audit log.
type LoopStepResult struct {
	Logged bool `json:"logged"`
}

// Bounds of a step, in bytes.
const (
	maxLoopList = 4 << 10
	maxLoopText = 16 << 10
)

func (s *Service) loopStep(c *call) action {
	var p LoopStepParams
	if err := json.Unmarshal(c.Params, &p); err != nil {
		c.fail("params", err.Error())
	}
	switch {
	case p.List == "" || len(p.List) > maxLoopList:
		c.fail("list", "expected a text of at most 4096 bytes")
	case !p.Step.Kind.Valid():
		c.fail("step.kind", "there is no such step")
	case len(p.Step.Item)+len(p.Step.Text)+len(p.Step.Ref)+len(p.Step.Code)+len(p.Step.Detail) > maxLoopText:
		c.fail("step", "it is too long")
	}
	return func(context.Context) (any, error) {
		logged, err := s.cfg.LoopStep(p.List, p.Step)
		return LoopStepResult{Logged: logged}, err
	}
}

// LoopDismissParams name a loop by its list.
type LoopDismissParams struct {
	List string `json:"list"`
}

// LoopDismissResult reports whether the loop waited for the user.
type LoopDismissResult struct {
	Dismissed bool `json:"dismissed"`
}

// loopDismiss answers hub/loop/dismiss.
func (s *Service) loopDismiss(c *call) action {
	list := c.requiredText("list", maxLoopList)
	return func(context.Context) (any, error) {
		dismissed, err := s.cfg.Loops.Dismiss(list)
		return LoopDismissResult{dismissed}, err
	}
}
