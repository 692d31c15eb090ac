package dialect

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub"
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
	Cancel(ctx context.Context, id a2a.TaskID) (*a2a.Task, error)
	CancelAlone(ctx context.Context, id a2a.TaskID) (*a2a.Task, error)
	Contexts(ctx context.Context, limit int) ([]hub.ContextInfo, error)
	CheckHealth(ctx context.Context, id string) (hub.Health, error)
	Status() hub.Status
}

// Subscription is a task's snapshot and the events that follow it.
type Subscription interface {
	Task() *a2a.Task
	Next(ctx context.Context) (a2a.Event, error)
	Close()
}

// Gate gives and withdraws credentials of the hub's bus; see package bus.
type Gate interface {
	Grant(ctx context.Context, req bus.GrantRequest) (bus.Grant, error)
	Revoke(user string) error
}

// Reception lets agents into the agents' network on the hub's bus, one by one.
type Reception interface {
	Receive(ctx context.Context, p NetworkJoinParams) (NetworkGrant, error)
}

// Config is what a Service works with.
type Config struct {
	Hub   Hub        // required
	Cards *Directory // required
	// Bus tells where the hub keeps its data; nil leaves it out of hub/status.
	Bus func() BusStatus
	// MCPServers tells how the MCP servers are whose tools the agents share; nil
	// leaves them out of hub/status.
	MCPServers func() []MCPServerStatus
	// Peers tells how the hubs on other machines are, nil for none; where it is nil
	// itself they are left out of hub/status: give it to the service of the socket only.
	Peers func() *PeersStatus
	// Shutdown begins to stop the hub and must not block. Where it is nil, there
	// is no method hub/shutdown: give it to the service of the socket only.
	Shutdown func()
	// Swarms leads swarms of agents. Where it is nil, there are no methods
	// hub/swarms/*.
	Swarms Swarms
	// Reception lets agents into the agents' network. Where it is nil, there is no
	// method hub/network/join.
	Reception Reception
	// Gate lets the user's other processes into the hub's bus. Where it is nil,
	// there are no methods hub/bus/*: give it to the service of the socket only.
	Gate Gate
	// LoopStep puts a step of one of the user's loops into the audit log. Where it is
	// nil, there is no method hub/loop/step: give it to the service of the socket only.
	LoopStep func(list string, s ralph.Step) error
	// Documents are the hub's. Where it is nil, there are no methods hub/documents/*.
	Documents Documents
	// Shares gives agents of other processes roles in documents. Where it is nil, there are no
	// methods for that: give it to the service of the socket only.
	Shares Shares
}

// Service answers the dialect's requests. It is a jsonrpc.Handler and safe for
// concurrent use.
type Service struct {
	cfg     Config
	methods map[string]method
}

type method func(ctx context.Context, req jsonrpc.Request, emit jsonrpc.Emit) (any, error)

// New returns a service.
func New(cfg Config) *Service {
	s := &Service{cfg: cfg}
	s.methods = map[string]method{
		MethodStatus:       s.status,
		MethodAgentsList:   s.agentsList,
		MethodAgentsGet:    s.agentsGet,
		MethodAgentsHealth: s.agentsHealth,
		MethodTasksList:    s.tasksList,
		MethodTasksPage:    s.tasksPage,
		MethodContextsList: s.contextsList,
		MethodSend:         s.send,
		MethodStream:       s.stream,
		MethodTaskGet:      s.taskGet,
		MethodTaskCancel:   s.taskCancel,
		MethodTaskFollow:   s.taskFollow,
	}
	if cfg.Shutdown != nil {
		s.methods[MethodShutdown] = s.shutdown
	}
	if cfg.Swarms != nil {
		s.methods[MethodSwarmCreate] = s.swarmCreate
		s.methods[MethodSwarmGet] = s.swarmGet
		s.methods[MethodSwarmList] = s.swarmList
		s.methods[MethodSwarmStop] = s.swarmStop
	}
	if cfg.Gate != nil {
		s.methods[MethodBusJoin] = s.busJoin
		s.methods[MethodBusLeave] = s.busLeave
	}
	if cfg.LoopStep != nil {
		s.methods[MethodLoopStep] = s.loopStep
	}
	if cfg.Reception != nil {
		s.methods[MethodNetworkJoin] = s.networkJoin
	}
	if cfg.Documents != nil {
		s.methods[MethodDocumentsList] = s.documentsList
		s.methods[MethodDocumentsGet] = s.documentsGet
		s.methods[MethodDocumentsWait] = s.documentsWait
		s.methods[MethodDocumentsEdit] = s.documentsEdit
		s.methods[MethodDocumentsCompact] = s.documentsCompact
	}
	if cfg.Shares != nil {
		s.methods[MethodDocumentsShare] = s.documentsShare
		s.methods[MethodDocumentsShares] = s.documentsShares
	}
	return s
}

// Handle answers one request.
func (s *Service) Handle(ctx context.Context, req jsonrpc.Request, emit jsonrpc.Emit) (any, error) {
	m, ok := s.methods[req.Method]
	if !ok {
		return nil, jsonrpc.MethodNotFound(req.Method)
	}
	result, err := m(ctx, req, emit)
	if err != nil {
		return nil, rpcError(err)
	}
	return result, nil
}

// Streams tells whether a method sends events.
func Streams(method string) bool { return method == MethodStream || method == MethodTaskFollow }

func (s *Service) status(_ context.Context, req jsonrpc.Request, _ jsonrpc.Emit) (any, error) {
	if params := readParams(req.Params); params.err != nil {
		return nil, params.err
	}
	status := fromStatusInfo(s.cfg.Hub.Status(), time.Now())
	status.PID = os.Getpid()
	if s.cfg.Bus != nil {
		busStatus := s.cfg.Bus()
		status.Bus = &busStatus
	}
	if s.cfg.MCPServers != nil {
		status.MCPServers = s.cfg.MCPServers()
	}
	if s.cfg.Peers != nil {
		status.Peers = s.cfg.Peers()
	}
	return status, nil
}

func (s *Service) agentsList(_ context.Context, req jsonrpc.Request, _ jsonrpc.Emit) (any, error) {
	params := readParams(req.Params)
	withHealth := params.boolean("includeHealth", false)
	if params.err != nil {
		return nil, params.err
	}
	infos := s.cfg.Hub.Agents()
	agents := make([]Agent, 0, len(infos))
	for _, info := range infos {
		agents = append(agents, s.agent(info, withHealth))
	}
	return agents, nil
}

func (s *Service) agent(info hub.AgentInfo, withHealth bool) Agent {
	agent := Agent{
		ID:           info.Definition.ID,
		Name:         displayName(info),
		Description:  info.Definition.Description,
		Driver:       info.Definition.Driver,
		Card:         s.cfg.Cards.agentCard(info),
		RegisteredAt: Time{info.RegisteredAt},
		Running:      info.Running,
		Queued:       info.Queued,
		Tier:         info.Definition.Tier,
		Sandbox:      info.Definition.Sandbox,
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

func (s *Service) agentsGet(_ context.Context, req jsonrpc.Request, _ jsonrpc.Emit) (any, error) {
	id, err := agentParam(req)
	if err != nil {
		return nil, err
	}
	info, err := s.cfg.Hub.Agent(id)
	if err != nil {
		return nil, err
	}
	return s.agent(info, true), nil
}

func (s *Service) agentsHealth(ctx context.Context, req jsonrpc.Request, _ jsonrpc.Emit) (any, error) {
	id, err := agentParam(req)
	if err != nil {
		return nil, err
	}
	health, err := s.cfg.Hub.CheckHealth(ctx, id)
	if err != nil {
		return nil, err
	}
	return fromHealth(health), nil
}

func agentParam(req jsonrpc.Request) (string, error) {
	params := readParams(req.Params)
	id := params.requiredText("agentId", maxID)
	if params.err != nil {
		return "", params.err
	}
	return id, nil
}

func (s *Service) tasksList(ctx context.Context, req jsonrpc.Request, _ jsonrpc.Emit) (any, error) {
	page, err := s.tasks(ctx, req)
	if err != nil {
		return nil, err
	}
	return page.Tasks, nil
}

func (s *Service) tasksPage(ctx context.Context, req jsonrpc.Request, _ jsonrpc.Emit) (any, error) {
	return s.tasks(ctx, req)
}

func (s *Service) tasks(ctx context.Context, req jsonrpc.Request) (*TaskPage, error) {
	params := readParams(req.Params)
	query := hub.TaskQuery{
		ContextID:     params.text("contextId", maxID),
		AgentID:       params.text("agentId", maxID),
		Limit:         params.limit("limit"),
		HistoryLength: params.count("historyLength", maxHistory),
		WithArtifacts: params.boolean("includeArtifacts", false),
	}
	if offset := params.count("offset", maxOffset); offset != nil {
		query.Offset = *offset
	}
	if req.Method == MethodTasksPage {
		query.Cursor = params.text("cursor", maxURI)
	}
	if query.HistoryLength == nil {
		query.HistoryLength = new(int)
	}
	known := true
	if name := TaskState(params.text("state", maxID)); name == StateUnknown {
		known = false
	} else if name != "" {
		var ok bool
		if query.State, ok = hubState(name); !ok {
			params.fail("state", "must be a task state such as \"working\" or \"completed\"")
		}
	}
	switch {
	case params.err != nil:
		return nil, params.err
	case !known: // no task of this hub is in an unknown state
		return &TaskPage{Tasks: []Task{}}, nil
	}
	found, err := s.cfg.Hub.Tasks(ctx, query)
	if err != nil {
		return nil, err
	}
	page := &TaskPage{Tasks: make([]Task, 0, len(found.Tasks)), Total: found.Total, NextCursor: found.NextCursor}
	for _, t := range found.Tasks {
		page.Tasks = append(page.Tasks, FromTask(t, query.HistoryLength))
	}
	return page, nil
}

func (s *Service) contextsList(ctx context.Context, req jsonrpc.Request, _ jsonrpc.Emit) (any, error) {
	params := readParams(req.Params)
	limit := params.limit("limit")
	if params.err != nil {
		return nil, params.err
	}
	if limit == 0 {
		limit = 50
	}
	infos, err := s.cfg.Hub.Contexts(ctx, limit)
	if err != nil {
		return nil, err
	}
	contexts := make([]Context, 0, len(infos))
	for _, info := range infos {
		contexts = append(contexts, fromContext(info))
	}
	return contexts, nil
}

// send answers message/send. A notification waits for nothing, as nobody hears
// of the end.
func (s *Service) send(ctx context.Context, req jsonrpc.Request, _ jsonrpc.Emit) (any, error) {
	call, err := decodeSend(req.Params)
	if err != nil {
		return nil, err
	}
	send := s.cfg.Hub.SendAndWait
	if !call.blocking || req.IsNotification() {
		send = s.cfg.Hub.Send
	}
	task, err := send(ctx, call.request)
	if err != nil {
		return nil, err
	}
	return FromTask(task, call.historyLength), nil
}

func (s *Service) stream(ctx context.Context, req jsonrpc.Request, emit jsonrpc.Emit) (any, error) {
	if req.IsNotification() {
		return s.send(ctx, req, nil)
	}
	call, err := decodeSend(req.Params)
	if err != nil {
		return nil, err
	}
	if emit == nil {
		return nil, cannotStream(req.Method)
	}
	sub, err := s.cfg.Hub.SendAndStream(ctx, call.request)
	if err != nil {
		return nil, err
	}
	return s.follow(ctx, sub, call.historyLength, emit)
}

func (s *Service) taskFollow(ctx context.Context, req jsonrpc.Request, emit jsonrpc.Emit) (any, error) {
	id, historyLength, err := taskParams(req)
	if err != nil {
		return nil, err
	}
	if emit == nil {
		return nil, cannotStream(req.Method)
	}
	sub, err := s.cfg.Hub.Subscribe(ctx, id)
	if err != nil {
		return nil, err
	}
	return s.follow(ctx, sub, historyLength, emit)
}

func cannotStream(method string) error {
	return unsupported(method+" cannot be answered in a batch", "send it by itself")
}

// follow sends a subscription's events until it ends, and returns the task as
// it then is. The last event is always a final status.
func (s *Service) follow(ctx context.Context, sub Subscription, historyLength *int, emit jsonrpc.Emit) (any, error) {
	defer sub.Close()
	snapshot := FromTask(sub.Task(), historyLength)
	if err := emit(&snapshot); err != nil {
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
		if err := emit(event.payload()); err != nil {
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
	if err := emit(&last); err != nil {
		return nil, err
	}
	return result, nil
}

func (s *Service) taskGet(ctx context.Context, req jsonrpc.Request, _ jsonrpc.Emit) (any, error) {
	id, historyLength, err := taskParams(req)
	if err != nil {
		return nil, err
	}
	task, err := s.cfg.Hub.Task(ctx, id, historyLength)
	if err != nil {
		return nil, err
	}
	return FromTask(task, historyLength), nil
}

func (s *Service) taskCancel(ctx context.Context, req jsonrpc.Request, _ jsonrpc.Emit) (any, error) {
	id, historyLength, err := taskParams(req)
	if err != nil {
		return nil, err
	}
	params := readParams(req.Params)
	keep := params.boolean("keepDelegated", false)
	if params.err != nil {
		return nil, params.err
	}
	cancel := s.cfg.Hub.Cancel
	if keep {
		cancel = s.cfg.Hub.CancelAlone
	}
	task, err := cancel(ctx, id)
	if err != nil {
		return nil, err
	}
	return FromTask(task, historyLength), nil
}

func taskParams(req jsonrpc.Request) (a2a.TaskID, *int, error) {
	params := readParams(req.Params)
	id := params.requiredText("id", maxID)
	historyLength := params.count("historyLength", maxHistory)
	if params.err != nil {
		return "", nil, params.err
	}
	return a2a.TaskID(id), historyLength, nil
}

func (s *Service) shutdown(context.Context, jsonrpc.Request, jsonrpc.Emit) (any, error) {
	s.cfg.Shutdown()
	return ShutdownResult{Status: "stopping"}, nil
}

func (s *Service) busJoin(ctx context.Context, req jsonrpc.Request, _ jsonrpc.Emit) (any, error) {
	params := readParams(req.Params)
	access, namespace := params.text("access", maxID), params.text("namespace", maxID)
	if params.err != nil {
		return nil, params.err
	}
	g, err := s.cfg.Gate.Grant(ctx, bus.GrantRequest{Access: bus.Access(access), Namespace: namespace})
	if err != nil {
		return nil, busError(err)
	}
	return FromGrant(g), nil
}

// FromGrant is a credential as the hub sends it.
func FromGrant(g bus.Grant) BusGrant {
	return BusGrant{
		Address: g.Address, User: g.User, Password: string(g.Password), Expires: Time{g.Expires},
		StoreDir: g.StoreDir, Durability: string(g.Durability), PID: g.PID, Cluster: g.Cluster,
	}
}

func (s *Service) networkJoin(ctx context.Context, req jsonrpc.Request, _ jsonrpc.Emit) (any, error) {
	params := readParams(req.Params)
	p := NetworkJoinParams{
		AgentType: params.requiredText("agentType", maxID), ProjectPath: params.text("projectPath", maxPath),
		GUID: params.text("guid", maxID), Secret: params.text("secret", maxID),
		Bucket: params.text("bucket", maxID), Inboxes: params.text("inboxes", maxID),
		Via: params.text("via", maxID),
	}
	for name, field := range map[string]*int{"registryTTL": &p.RegistryTTL, "ackTimeout": &p.AckTimeout,
		"maxDeliveryAttempts": &p.MaxAttempts, "deadLetterTTL": &p.DeadLetterTTL} {
		if n := params.count(name, maxSeconds); n != nil {
			*field = *n
		}
	}
	if params.err != nil {
		return nil, params.err
	}
	grant, err := s.cfg.Reception.Receive(ctx, p)
	if err != nil {
		return nil, busError(err)
	}
	return grant, nil
}

// The limits of what hub/network/join takes.
const (
	maxPath    = 4096
	maxSeconds = 365 * 24 * 3600
)

func (s *Service) busLeave(_ context.Context, req jsonrpc.Request, _ jsonrpc.Emit) (any, error) {
	params := readParams(req.Params)
	user := params.requiredText("user", maxID)
	if params.err != nil {
		return nil, params.err
	}
	if err := s.cfg.Gate.Revoke(user); err != nil {
		return nil, busError(err)
	}
	return BusLeaveResult{Status: "left"}, nil
}
