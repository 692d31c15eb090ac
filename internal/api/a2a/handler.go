package a2a

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"slices"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/push"
)

// Handler handles the calls of all bindings with the hub. It implements the SDK's RequestHandler without the SDK's
// execution engine: the hub runs, stores and streams tasks.
type Handler struct {
	opts Options
	log  *slog.Logger
}

var _ a2asrv.RequestHandler = (*Handler)(nil)

// The page sizes of A2A 1.0, section 3.1.4.
const (
	maxPageSize     = 100
	defaultPageSize = 50
)

// SendMessage starts or continues a task and waits until it has ended or needs input,
// unless the client wants the answer immediately.
func (h *Handler) SendMessage(ctx context.Context, req *a2a.SendMessageRequest) (a2a.SendMessageResult, error) {
	send, err := h.sendRequest(ctx, req)
	if err != nil {
		return nil, err
	}
	task, err := h.send(ctx, req.Config, send)
	if err != nil {
		return nil, fromHub(ctx, h.log, err)
	}
	return trimHistory(task, req.Config.HistoryLength), nil
}

func (h *Handler) send(ctx context.Context, config *a2a.SendMessageConfig, send hub.SendRequest) (*a2a.Task, error) {
	switch {
	case config.ReturnImmediately:
		task, err := h.opts.Hub.Send(ctx, send)
		if err != nil || config.PushConfig == nil {
			return task, err
		}
		return task, h.createConfig(ctx, task.ID, config.PushConfig)
	case config.PushConfig == nil:
		return h.opts.Hub.SendAndWait(ctx, send)
	}
	// The configuration needs the task's id before the run ends.
	sub, err := h.opts.Hub.SendAndStream(ctx, send)
	if err != nil {
		return nil, err
	}
	defer sub.Close()
	id := sub.Task().ID
	if err := h.createConfig(ctx, id, config.PushConfig); err != nil {
		return nil, err
	}
	for {
		if _, err := sub.Next(ctx); errors.Is(err, io.EOF) {
			return h.opts.Hub.Task(ctx, id, nil)
		} else if err != nil {
			return nil, err
		}
	}
}

// SendStreamingMessage starts or continues a task and yields it, then its events until it has ended or needs input.
func (h *Handler) SendStreamingMessage(ctx context.Context, req *a2a.SendMessageRequest) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		send, err := h.sendRequest(ctx, req)
		if err != nil {
			yield(nil, err)
			return
		}
		sub, err := h.opts.Hub.SendAndStream(ctx, send)
		if err != nil {
			yield(nil, fromHub(ctx, h.log, err))
			return
		}
		defer sub.Close()
		if config := req.Config.PushConfig; config != nil {
			if err := h.createConfig(ctx, sub.Task().ID, config); err != nil {
				yield(nil, fromHub(ctx, h.log, err))
				return
			}
		}
		scopeFrom(ctx).announce(sub)
		if yield(trimHistory(sub.Task(), req.Config.HistoryLength), nil) {
			h.follow(ctx, sub, yield)
		}
	}
}

// SubscribeToTask yields a task that has not ended, then its events.
func (h *Handler) SubscribeToTask(ctx context.Context, req *a2a.SubscribeToTaskRequest) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		// Ended tasks and those of other agents have no stream.
		task, err := h.task(ctx, req.Tenant, req.ID, nil)
		if err != nil {
			yield(nil, err)
			return
		}
		if task.Status.State.Terminal() {
			yield(nil, ended(task))
			return
		}
		sub, err := h.opts.Hub.Subscribe(ctx, req.ID)
		if err != nil {
			yield(nil, fromHub(ctx, h.log, err))
			return
		}
		defer sub.Close()
		scopeFrom(ctx).announce(sub)
		if yield(sub.Task(), nil) {
			h.follow(ctx, sub, yield)
		}
	}
}

// follow yields a subscription's events until it or the client ends.
func (h *Handler) follow(ctx context.Context, sub *hub.Subscription, yield func(a2a.Event, error) bool) {
	scope := scopeFrom(ctx)
	for {
		event, err := sub.Next(ctx)
		if errors.Is(err, io.EOF) || ctx.Err() != nil {
			return
		}
		if err != nil {
			yield(nil, fromHub(ctx, h.log, err))
			return
		}
		scope.announce(sub)
		if !yield(event, nil) {
			return
		}
	}
}

// announce tells whoever wants to know whether the next event of a subscription, or its end, is there already.
func (s scope) announce(sub *hub.Subscription) {
	if s.more != nil {
		*s.more = sub.Ready()
	}
}

// GetTask returns one task.
func (h *Handler) GetTask(ctx context.Context, req *a2a.GetTaskRequest) (*a2a.Task, error) {
	if err := checkHistoryLength(req.HistoryLength); err != nil {
		return nil, err
	}
	return h.task(ctx, req.Tenant, req.ID, req.HistoryLength)
}

// ListTasks returns a page of tasks, newest first.
func (h *Handler) ListTasks(ctx context.Context, req *a2a.ListTasksRequest) (*a2a.ListTasksResponse, error) {
	if err := checkHistoryLength(req.HistoryLength); err != nil {
		return nil, err
	}
	size := req.PageSize
	switch {
	case size == 0:
		size = defaultPageSize
	case size < 0 || size > maxPageSize:
		return nil, invalid("pageSize", fmt.Sprintf("must be 1 to %d", maxPageSize))
	}
	state := req.Status
	if state == "TASK_STATE_UNSPECIFIED" {
		state = ""
	}
	if !knownState(state) {
		return nil, invalid("status", "unknown task state "+text.Quote(string(state), 64))
	}
	query := hub.TaskQuery{
		ContextID:     req.ContextID,
		AgentID:       h.agentOf(ctx, req.Tenant),
		State:         state,
		Limit:         size,
		Cursor:        req.PageToken,
		HistoryLength: req.HistoryLength,
		WithArtifacts: req.IncludeArtifacts,
	}
	if req.StatusTimestampAfter != nil {
		query.After = *req.StatusTimestampAfter
	}
	page, err := h.opts.Hub.Tasks(ctx, query)
	if err != nil {
		return nil, fromHub(ctx, h.log, err)
	}
	return &a2a.ListTasksResponse{
		Tasks:         append([]*a2a.Task{}, page.Tasks...), // never null on the wire
		TotalSize:     page.Total,
		PageSize:      size,
		NextPageToken: page.NextCursor,
	}, nil
}

// CancelTask cancels a task and, unless the request's metadata says otherwise, the
// tasks delegated from it. It returns when all their processes have ended.
func (h *Handler) CancelTask(ctx context.Context, req *a2a.CancelTaskRequest) (*a2a.Task, error) {
	if _, err := h.task(ctx, req.Tenant, req.ID, new(int)); err != nil {
		return nil, err
	}
	cancel := h.opts.Hub.Cancel
	if keep, _ := req.Metadata[hub.MetaKeepDelegated].(bool); keep {
		cancel = h.opts.Hub.CancelAlone
	}
	task, err := cancel(ctx, req.ID)
	return task, fromHub(ctx, h.log, err)
}

// CreateTaskPushConfig stores a receiver of a task's events.
func (h *Handler) CreateTaskPushConfig(ctx context.Context, req *a2a.PushConfig) (*a2a.PushConfig, error) {
	if err := h.pushTask(ctx, req.Tenant, req.TaskID); err != nil {
		return nil, err
	}
	stored, err := h.opts.Push.Create(ctx, newConfig(ctx, req.TaskID, req))
	return &stored.PushConfig, fromHub(ctx, h.log, err)
}

// GetTaskPushConfig returns one configuration, or the task's first without an id, which 0.3 allows.
func (h *Handler) GetTaskPushConfig(ctx context.Context, req *a2a.GetTaskPushConfigRequest) (*a2a.PushConfig, error) {
	if err := h.pushTask(ctx, req.Tenant, req.TaskID); err != nil {
		return nil, err
	}
	if req.ID == "" && scopeFrom(ctx).version != v03 {
		return nil, invalid("id", "is required")
	}
	config, err := h.opts.Push.Get(ctx, req.TaskID, req.ID)
	return &config.PushConfig, fromHub(ctx, h.log, err)
}

// ListTaskPushConfigs returns a task's configurations in the order of their ids, at most push.MaxPerTask, on one
// page unless the client requests smaller ones. A page's token is the last id of the previous page.
func (h *Handler) ListTaskPushConfigs(ctx context.Context, req *a2a.ListTaskPushConfigRequest) (*a2a.ListTaskPushConfigResponse, error) {
	if err := h.pushTask(ctx, req.Tenant, req.TaskID); err != nil {
		return nil, err
	}
	if req.PageSize < 0 {
		return nil, invalid("pageSize", "must not be negative")
	}
	configs, err := h.opts.Push.List(ctx, req.TaskID)
	if err != nil {
		return nil, fromHub(ctx, h.log, err)
	}
	resp := &a2a.ListTaskPushConfigResponse{Configs: []*a2a.PushConfig{}}
	for _, config := range configs {
		if req.PageToken != "" && config.ID <= req.PageToken {
			continue
		}
		if req.PageSize > 0 && len(resp.Configs) == req.PageSize {
			resp.NextPageToken = resp.Configs[req.PageSize-1].ID
			break
		}
		resp.Configs = append(resp.Configs, &config.PushConfig)
	}
	return resp, nil
}

// DeleteTaskPushConfig deletes a configuration. Deleting a missing one succeeds (1.0, section 3.1.10).
func (h *Handler) DeleteTaskPushConfig(ctx context.Context, req *a2a.DeleteTaskPushConfigRequest) error {
	if err := h.pushTask(ctx, req.Tenant, req.TaskID); err != nil {
		return err
	}
	if req.ID == "" {
		return invalid("id", "is required")
	}
	return fromHub(ctx, h.log, h.opts.Push.Delete(ctx, req.TaskID, req.ID))
}

// GetExtendedAgentCard returns the card of the agent or hub with the details for
// callers with a token. A hub without a token has no such card.
func (h *Handler) GetExtendedAgentCard(ctx context.Context, req *a2a.GetExtendedAgentCardRequest) (*a2a.AgentCard, error) {
	scope := scopeFrom(ctx)
	if !h.opts.TokenRequired {
		// 1.0 has different errors for an unsupported and a missing card.
		kind := a2a.ErrUnsupportedOperation
		if scope.version == v03 {
			kind = a2a.ErrExtendedCardNotConfigured
		}
		return nil, fault(kind, "there is no extended card: the hub requires no token")
	}
	id := cmp.Or(scope.agent, req.Tenant)
	if id == "" {
		return h.extendedHubCard(ctx, scope.base), nil
	}
	info, err := h.opts.Hub.AgentFor(ctx, id)
	if err != nil {
		return nil, fromHub(ctx, h.log, err)
	}
	return h.extendedAgentCard(info, scope.base), nil
}

// sendRequest checks a message and determines its agent: that of the path, the tenant,
// the metadata, the task, or the default, in this order.
func (h *Handler) sendRequest(ctx context.Context, req *a2a.SendMessageRequest) (hub.SendRequest, error) {
	if req.Config == nil {
		req.Config = &a2a.SendMessageConfig{}
	}
	if err := checkMessage(req.Message); err != nil {
		return hub.SendRequest{}, err
	}
	if err := checkHistoryLength(req.Config.HistoryLength); err != nil {
		return hub.SendRequest{}, err
	}
	if config := req.Config.PushConfig; config != nil {
		if h.opts.Push == nil {
			return hub.SendRequest{}, a2a.ErrPushNotificationNotSupported
		}
		// Before the task starts.
		if err := h.opts.Push.Check(*config); err != nil {
			return hub.SendRequest{}, fromHub(ctx, h.log, err)
		}
	}
	agent := h.agentOf(ctx, req.Tenant)
	if req.Message.TaskID != "" {
		if _, err := h.task(ctx, req.Tenant, req.Message.TaskID, new(int)); err != nil {
			return hub.SendRequest{}, err
		}
	}
	if agent == "" {
		agent = metadataAgent(req.Metadata)
	}
	if agent == "" && req.Message.TaskID == "" && metadataAgent(req.Message.Metadata) == "" {
		agent = h.opts.DefaultAgent
	}
	return hub.SendRequest{AgentID: agent, Message: req.Message, Metadata: req.Metadata}, nil
}

func metadataAgent(metadata map[string]any) string {
	agent, _ := metadata[hub.MetaTargetAgent].(string) // ignored if it is not a string
	return agent
}

func checkMessage(m *a2a.Message) error {
	switch {
	case m == nil:
		return invalid("message", "is required")
	case m.ID == "":
		return invalid("message.messageId", "is required")
	case m.Role != a2a.MessageRoleUser:
		return invalid("message.role", "must be the user's role")
	case len(m.Parts) == 0:
		return invalid("message.parts", "at least one part is required")
	case slices.Contains(m.Parts, nil):
		return invalid("message.parts", "a part must be an object")
	}
	return nil
}

func checkHistoryLength(n *int) error {
	if n != nil && *n < 0 {
		return invalid("historyLength", "must not be negative")
	}
	return nil
}

// agentOf returns the agent of the path or else the tenant.
func (h *Handler) agentOf(ctx context.Context, tenant string) string {
	return cmp.Or(scopeFrom(ctx).agent, tenant)
}

// task returns a task that the path or tenant may see. Tasks of other agents are not
// found, so that a client of one agent learns nothing about others.
func (h *Handler) task(ctx context.Context, tenant string, id a2a.TaskID, historyLength *int) (*a2a.Task, error) {
	if id == "" {
		return nil, invalid("id", "a task id is required")
	}
	task, err := h.opts.Hub.Task(ctx, id, historyLength)
	if err != nil {
		return nil, fromHub(ctx, h.log, err)
	}
	if agent := h.agentOf(ctx, tenant); agent != "" && task.Metadata[hub.MetaAgent] != agent {
		return nil, fault(a2a.ErrTaskNotFound, "there is no task "+text.Quote(string(id), 64)+" of this agent")
	}
	return task, nil
}

// pushTask checks that push is supported and the task exists.
func (h *Handler) pushTask(ctx context.Context, tenant string, id a2a.TaskID) error {
	if h.opts.Push == nil {
		return a2a.ErrPushNotificationNotSupported
	}
	_, err := h.task(ctx, tenant, id, new(int))
	return err
}

// newConfig returns a task's configuration. In 0.3 one without an id is the task's
// default, which a later one replaces.
func newConfig(ctx context.Context, task a2a.TaskID, config *a2a.PushConfig) push.Config {
	out := push.Config{PushConfig: *config, Version: scopeFrom(ctx).version}
	out.TaskID = task
	if out.ID == "" && out.Version == v03 {
		out.ID = "default"
	}
	return out
}

// createConfig stores the configuration of a message whose task runs already. An error
// states that, so that the client does not send the message again.
func (h *Handler) createConfig(ctx context.Context, id a2a.TaskID, config *a2a.PushConfig) error {
	_, err := h.opts.Push.Create(ctx, newConfig(ctx, id, config))
	if err == nil {
		return nil
	}
	var pe *push.Error
	if !errors.As(err, &pe) || pe.Code == push.CodeInternal {
		h.log.Error("push configuration not stored", "task", id, "error", err)
		return fault(a2a.ErrInternalError, fmt.Sprintf("task %s was started, but its push configuration could not be stored", id))
	}
	return fault(wireCodeOf(fromHub(ctx, h.log, err)).err, fmt.Sprintf("task %s was started without push notifications: %s", id, pe.Error()))
}

func ended(task *a2a.Task) error {
	return fault(a2a.ErrUnsupportedOperation, fmt.Sprintf("task %s has ended (%s): there is nothing to subscribe to", task.ID, task.Status.State))
}

// trimHistory shortens a task's history to its last n messages; nil keeps all.
// The hub's task is shared, so it is copied.
func trimHistory(task *a2a.Task, n *int) *a2a.Task {
	if n == nil || len(task.History) <= *n {
		return task
	}
	short := *task
	short.History = task.History[len(task.History)-*n:]
	return &short
}

func knownState(s a2a.TaskState) bool {
	switch s {
	case "", a2a.TaskStateAuthRequired, a2a.TaskStateCanceled, a2a.TaskStateCompleted, a2a.TaskStateFailed,
		a2a.TaskStateInputRequired, a2a.TaskStateRejected, a2a.TaskStateSubmitted, a2a.TaskStateWorking:
		return true
	}
	return false
}
