// Package dialect is the hub's own JSON-RPC dialect: the methods of the hub's
// specification (hub/*, message/*, tasks/*) with the shapes of A2A 0.3 and the
// specification's error codes. It translates between them and package hub, the
// same on the Unix socket and on HTTP. Pure A2A is package a2a.
//
// Parameters that the dialect knows are decoded strictly: names match by case,
// types must be right, duplicates are errors, and an error names the parameter
// ("message.parts[0].text"). Unknown parameters are ignored, since A2A clients
// send more than the hub's specification lists.
//
// Where the specification leaves a shape open: hub/tasks/list and
// hub/contexts/list return arrays, as hub/agents/list does; hub/tasks/page
// returns a page and a cursor. Uptime is in milliseconds. A health's lastCheck is
// null before the first check.
//
// Streams (message/stream, tasks/resubscribe) send the task first, then status
// and artifact updates; the last event is a status update with final set. Over
// HTTP each event is a JSON-RPC response in an SSE event. On the socket each is a
// notification with the method stream/event and the request's id in its params;
// the response to the request, the final task, ends the stream.
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

// Config is what a Service works with. A method whose field is nil does not exist.
// Shutdown, Gate, LoopStep, Shares and Peers are for the service of the socket only.
type Config struct {
	Hub   Hub        // required
	Cards *Directory // required
	// Bus, MCPServers and Peers return parts of hub/status; a nil one is left out.
	Bus        func() BusStatus
	MCPServers func() []MCPServerStatus
	Peers      func() *PeersStatus
	// Shutdown starts to stop the hub and must not block.
	Shutdown  func()
	Swarms    Swarms
	Admission Admission
	Gate      Gate
	// LoopStep writes a step of one of the user's loops to the audit log.
	LoopStep  func(list string, s ralph.Step) error
	Documents Documents
	// Shares sets the roles of other processes' agents in documents.
	Shares Shares
}

// Service answers the dialect's requests. It is a jsonrpc.Handler and safe for
// concurrent use.
type Service struct {
	cfg     Config
	methods map[string]method
}

// call is a request with its parameters.
type call struct {
	jsonrpc.Request
	object // the parameters
	emit   jsonrpc.Emit
}

type method func(ctx context.Context, c *call) (any, error)

// withoutParams returns the method that takes no parameters.
func withoutParams[T any](f func(context.Context) (T, error)) method {
	return func(ctx context.Context, _ *call) (any, error) { return f(ctx) }
}

// withText returns the method whose only parameter is the named text.
func withText[T any](name string, f func(ctx context.Context, text string) (T, error)) method {
	return func(ctx context.Context, c *call) (any, error) { return f(ctx, c.requiredText(name, maxID)) }
}

// New returns a service.
func New(cfg Config) *Service {
	s := &Service{cfg: cfg, methods: map[string]method{}}
	s.add(true, rpcError, map[string]method{
		MethodStatus:       withoutParams(s.status),
		MethodAgentsList:   s.agentsList,
		MethodAgentsGet:    withText("agentId", s.agentsGet),
		MethodAgentsHealth: withText("agentId", s.agentsHealth),
		MethodTasksList:    s.tasksList,
		MethodTasksPage:    s.tasksPage,
		MethodContextsList: s.contextsList,
		MethodSend:         s.send,
		MethodStream:       s.stream,
		MethodTaskGet:      s.taskGet,
		MethodTaskCancel:   s.taskCancel,
		MethodTaskFollow:   s.taskFollow,
	})
	s.add(cfg.Shutdown != nil, rpcError, map[string]method{MethodShutdown: s.shutdown})
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
		s.methods[name] = func(ctx context.Context, c *call) (any, error) {
			result, err := m(ctx, c)
			if err != nil {
				return nil, rpcError(wire(err))
			}
			return result, nil
		}
	}
}

// Handle answers one request.
func (s *Service) Handle(ctx context.Context, req jsonrpc.Request, emit jsonrpc.Emit) (result any, err error) {
	m, ok := s.methods[req.Method]
	if !ok {
		return nil, jsonrpc.MethodNotFound(req.Method)
	}
	defer func() {
		switch p := recover().(type) {
		case nil:
		case *jsonrpc.Error: // of a parameter; see fail
			result, err = nil, p
		default:
			panic(p)
		}
	}()
	return m(ctx, &call{req, readParams(req.Params), emit})
}

// Streams reports whether a method sends events.
func Streams(method string) bool { return method == MethodStream || method == MethodTaskFollow }

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
	if s.cfg.Peers != nil {
		status.Peers = s.cfg.Peers()
	}
	return status, nil
}

func (s *Service) agentsList(_ context.Context, c *call) (any, error) {
	withHealth := c.boolean("includeHealth", false)
	return each(s.cfg.Hub.Agents(), func(info hub.AgentInfo) Agent { return s.agent(info, withHealth) }), nil
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

func (s *Service) agentsGet(_ context.Context, id string) (any, error) {
	info, err := s.cfg.Hub.Agent(id)
	if err != nil {
		return nil, err
	}
	return s.agent(info, true), nil
}

func (s *Service) agentsHealth(ctx context.Context, id string) (Health, error) {
	health, err := s.cfg.Hub.CheckHealth(ctx, id)
	return fromHealth(health), err
}

func (s *Service) tasksList(ctx context.Context, c *call) (any, error) {
	page, err := s.tasks(ctx, c)
	if err != nil {
		return nil, err
	}
	return page.Tasks, nil
}

func (s *Service) tasksPage(ctx context.Context, c *call) (any, error) { return s.tasks(ctx, c) }

func (s *Service) tasks(ctx context.Context, c *call) (*TaskPage, error) {
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
			fail("state", "must be a task state such as \"working\" or \"completed\"")
		}
	}
	if state == StateUnknown { // no task of this hub
		return &TaskPage{Tasks: []Task{}}, nil
	}
	found, err := s.cfg.Hub.Tasks(ctx, query)
	if err != nil {
		return nil, err
	}
	tasks := each(found.Tasks, func(t *a2a.Task) Task { return FromTask(t, query.HistoryLength) })
	return &TaskPage{Tasks: tasks, Total: found.Total, NextCursor: found.NextCursor}, nil
}

func (s *Service) contextsList(ctx context.Context, c *call) (any, error) {
	limit := cmp.Or(c.limit("limit"), 50)
	infos, err := s.cfg.Hub.Contexts(ctx, limit)
	return each(infos, fromContext), err
}

// send answers message/send. A notification does not wait for the task's end.
func (s *Service) send(ctx context.Context, c *call) (any, error) {
	message, err := decodeSend(c.object)
	if err != nil {
		return nil, err
	}
	send := s.cfg.Hub.SendAndWait
	if !message.blocking || c.IsNotification() {
		send = s.cfg.Hub.Send
	}
	return answer(message.historyLength)(send(ctx, message.request))
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

func (s *Service) stream(ctx context.Context, c *call) (any, error) {
	if c.IsNotification() {
		return s.send(ctx, c)
	}
	message, err := decodeSend(c.object)
	if err != nil {
		return nil, err
	}
	return s.follow(ctx, c, message.historyLength, func() (Subscription, error) { return s.cfg.Hub.SendAndStream(ctx, message.request) })
}

func (s *Service) taskFollow(ctx context.Context, c *call) (any, error) {
	id, historyLength := c.task()
	return s.follow(ctx, c, historyLength, func() (Subscription, error) { return s.cfg.Hub.Subscribe(ctx, id) })
}

// follow sends a subscription's events until it ends, and returns the task as
// it then is. The last event is always a final status.
func (s *Service) follow(ctx context.Context, c *call, historyLength *int, subscribe func() (Subscription, error)) (any, error) {
	if c.emit == nil {
		return nil, unsupported(c.Method+" cannot be answered in a batch", "send it by itself")
	}
	sub, err := subscribe()
	if err != nil {
		return nil, err
	}
	defer sub.Close()
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

func (s *Service) taskGet(ctx context.Context, c *call) (any, error) {
	id, historyLength := c.task()
	return answer(historyLength)(s.cfg.Hub.Task(ctx, id, historyLength))
}

func (s *Service) taskCancel(ctx context.Context, c *call) (any, error) {
	id, historyLength := c.task()
	cancel := s.cfg.Hub.Cancel
	if c.boolean("keepDelegated", false) {
		cancel = s.cfg.Hub.CancelAlone
	}
	return answer(historyLength)(cancel(ctx, id))
}

// task reads the parameters of the methods tasks/*.
func (c *call) task() (id a2a.TaskID, historyLength *int) {
	return a2a.TaskID(c.requiredText("id", maxID)), c.count("historyLength", maxHistory)
}

func (s *Service) shutdown(context.Context, *call) (any, error) {
	s.cfg.Shutdown()
	return ShutdownResult{Status: "stopping"}, nil
}

func (s *Service) busJoin(ctx context.Context, c *call) (any, error) {
	req := bus.GrantRequest{Access: bus.Access(c.text("access", maxID)), Namespace: c.text("namespace", maxID)}
	g, err := s.cfg.Gate.Grant(ctx, req)
	return FromGrant(g), err
}

// FromGrant translates a credential of the bus.
func FromGrant(g bus.Grant) BusGrant {
	return BusGrant{
		Address: g.Address, User: g.User, Password: string(g.Password), Expires: Time{g.Expires},
		StoreDir: g.StoreDir, Durability: string(g.Durability), PID: g.PID, Cluster: g.Cluster,
	}
}

func (s *Service) networkJoin(ctx context.Context, c *call) (any, error) {
	p := NetworkJoinParams{
		AgentType: c.requiredText("agentType", maxID), ProjectPath: c.text("projectPath", maxPath),
		GUID: c.text("guid", maxID), Secret: c.text("secret", maxID),
		Bucket: c.text("bucket", maxID), Inboxes: c.text("inboxes", maxID),
		Via: c.text("via", maxID),
	}
	for name, field := range map[string]*int{"registryTTL": &p.RegistryTTL, "ackTimeout": &p.AckTimeout,
		"maxDeliveryAttempts": &p.MaxAttempts, "deadLetterTTL": &p.DeadLetterTTL} {
		if n := c.count(name, maxSeconds); n != nil {
			*field = *n
		}
	}
	return s.cfg.Admission.Admit(ctx, p)
}

// Bounds of the parameters of hub/network/join.
const (
	maxPath    = 4096
	maxSeconds = 365 * 24 * 3600
)

func (s *Service) busLeave(_ context.Context, user string) (BusLeaveResult, error) {
	return BusLeaveResult{Status: "left"}, s.cfg.Gate.Revoke(user)
}

// LoopStepParams is a step of a loop, for the hub's audit log.
type LoopStepParams struct {
	List string     `json:"list"` // the list that the loop works on
	Step ralph.Step `json:"step"`
}

// LoopStepResult reports that the step is in the log.
type LoopStepResult struct {
	Logged bool `json:"logged"`
}

// Bounds of a step, in bytes.
const (
	maxLoopList = 4 << 10
	maxLoopText = 16 << 10
)

func (s *Service) loopStep(_ context.Context, c *call) (any, error) {
	var p LoopStepParams
	if err := json.Unmarshal(c.Params, &p); err != nil {
		return nil, jsonrpc.InvalidParams("params", err.Error())
	}
	switch {
	case p.List == "" || len(p.List) > maxLoopList:
		return nil, jsonrpc.InvalidParams("list", "expected a text of at most 4096 bytes")
	case !p.Step.Kind.Valid():
		return nil, jsonrpc.InvalidParams("step.kind", "there is no such step")
	case len(p.Step.Item)+len(p.Step.Text)+len(p.Step.Ref)+len(p.Step.Detail) > maxLoopText:
		return nil, jsonrpc.InvalidParams("step", "it is too long")
	}
	return LoopStepResult{Logged: true}, s.cfg.LoopStep(p.List, p.Step)
}
