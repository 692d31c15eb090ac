// Package delegation provides MCP tools with which one agent of the hub delegates tasks to another: list_agents,
// delegate_task, get_task and cancel_task.
//
// The caller is identified by a token ([TokenSigner]) in the environment of each conversation's processes. It names the
// agent and the conversation, and is valid during the agent's turns in it. A caller without a token is the user.
//
// A delegated task records who delegated it and the delegation chain ([hub.Delegation]). An agent in the chain is not
// asked again, and the length of the chain is bounded, so that delegation loops end. The rules of tiers and sandboxes
// apply as to envelopes.
package delegation

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub"
	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
	"github.com/parleyhub/parley/telemetry"
)

// Default limits.
const (
	DefaultMaxDepth = 4  // agents in a delegation chain
	DefaultMaxOpen  = 64 // unfinished delegated tasks
)

// Options configure a [Service]. Hub and Tokens are required.
type Options struct {
	Hub    *hub.Hub
	Tokens *TokenSigner
	// Permit returns nil if an agent may delegate to another; nil permits all.
	Permit func(from, to string) error
	// Telemetry receives an event for each refusal; nil for none.
	Telemetry *telemetry.Recorder
	// Answers mails answers to sessions that do not wait for them; nil for none.
	Answers Answers
	// Refresh makes the sessions that have just registered agents of the hub, as far as that is possible now; nil if they are at once.
	Refresh func(context.Context)
	// MaxDepth bounds the delegation chain, and MaxOpen the unfinished tasks that agents have delegated; 0 means
	// DefaultMaxDepth and DefaultMaxOpen.
	MaxDepth, MaxOpen int
}

// Answers learns which sessions wait for the answers of the tasks that they have given: a *[sessions.Answers].
type Answers interface {
	// Began notes that a session has given a task, and waits for its answer until end is called; Waits that a session waits.
	// end gets what the call returns, nil for an error.
	Began(guid string, id a2a.TaskID) (end func(*a2a.Task))
	Waits(guid string, id a2a.TaskID) (end func(*a2a.Task))
}

// Service delegates tasks between agents. It is safe for concurrent use.
type Service struct {
	o Options

	mu       sync.Mutex
	open     map[a2a.TaskID]struct{} // delegated by agents, not known to have ended
	reserved int                     // delegated by agents, not in open yet
}

// New returns a Service. It needs no Close.
func New(o Options) *Service {
	o.MaxDepth = cmp.Or(max(o.MaxDepth, 0), DefaultMaxDepth)
	o.MaxOpen = cmp.Or(max(o.MaxOpen, 0), DefaultMaxOpen)
	if o.Permit == nil {
		o.Permit = func(string, string) error { return nil }
	}
	return &Service{o: o, open: make(map[a2a.TaskID]struct{})}
}

// CodeRefused is the code of the security event of a delegation that a rule forbids.
const CodeRefused = "DELEGATION_REFUSED"

// Categories of failures, in addition to mcpserver.ValidationError.
const (
	RefusedError     = "RefusedError"     // a rule forbids it
	NotFoundError    = "NotFoundError"    // no such agent or task is visible to the caller
	UnavailableError = "UnavailableError" // try again later
)

func failed(category, remedy, format string, args ...any) error {
	return &mcpserver.Failure{Category: category, Message: fmt.Sprintf(format, args...), Remedy: remedy}
}

// Identify returns the caller that a token names. The error message is fit for the caller.
func (s *Service) Identify(token string) (mcpserver.Caller, error) {
	caller, ok := s.o.Tokens.Verify(token)
	if !ok {
		return mcpserver.Caller{}, errors.New("the task token is invalid: it is from an earlier run of the hub, or wrong")
	}
	return caller, nil
}

// order is a task to delegate.
type order struct {
	caller       mcpserver.Caller
	session      hub.AgentInfo // the user's session that calls; the zero value for none
	agent, text  string
	conversation string
	traceParent  string // of the call
}

// begin submits a task to the hub.
func (s *Service) begin(ctx context.Context, o order) (*a2a.Task, error) {
	d, err := s.delegation(ctx, o)
	if err != nil {
		return nil, err
	}
	if o.agent, err = s.agentID(ctx, o); err != nil {
		return nil, err
	}
	if err := s.check(o, d); err != nil {
		s.reportRefusal(o, err)
		return nil, err
	}
	release, err := s.reserve(ctx, o.caller)
	if err != nil {
		return nil, err
	}
	defer release()
	sender, err := s.sender(ctx, d)
	if err != nil {
		return nil, err
	}
	ctx = hub.WithSender(ctx, sender)
	req := hub.SendRequest{
		AgentID: o.agent, Delegation: d, Sender: sender,
		Message: &a2a.Message{
			ID: a2a.NewMessageID(), Role: a2a.MessageRoleUser, ContextID: contextOf(o),
			Parts: a2a.ContentParts{a2a.NewTextPart(o.text)},
		},
	}
	task, err := s.o.Hub.Send(ctx, req)
	if err != nil {
		return nil, failure(err)
	}
	if o.caller.Agent != "" {
		s.mu.Lock()
		s.open[task.ID] = struct{}{}
		s.mu.Unlock()
	}
	return task, nil
}

// agentID returns the id of the agent that an order means. An unknown name is returned as it is: the rules come first.
func (s *Service) agentID(ctx context.Context, o order) (string, error) {
	caller := o.session
	if o.caller.Agent != "" {
		caller, _ = s.o.Hub.Agent(o.caller.Agent)
	}
	info, err := s.o.Hub.FindAgent(ctx, o.agent, caller.Residence.Project)
	switch hub.CodeOf(err) {
	case "":
		return info.Definition.ID, nil
	case hub.CodeAgentNotFound:
		return o.agent, nil
	}
	if o.caller.Agent != "" { // it may not know of all the agents that the error names
		return "", failed(mcpserver.ValidationError, "Use an id; list_agents lists those that you may ask.", "Several agents are called %.80q.", o.agent)
	}
	return "", failure(err)
}

// delegation returns the delegation record of the new task.
func (s *Service) delegation(ctx context.Context, o order) (*hub.Delegation, error) {
	d := &hub.Delegation{By: o.by(), Context: o.caller.Context, Session: o.session.Residence.GUID, TraceParent: o.traceParent}
	task, err := s.workOf(o)
	if err != nil {
		return nil, err
	}
	if task != "" {
		t, err := s.o.Hub.Task(ctx, task, new(0))
		if err != nil {
			return nil, failure(err)
		}
		continued(d, t)
	}
	if d.By != "" {
		d.Chain = append(d.Chain, d.By)
	}
	d.TraceParent = child(d.TraceParent)
	return d, nil
}

// by returns the agent that delegates, "" for the user.
func (o order) by() string {
	if o.caller.Agent == "" && o.session.Definition != nil {
		return o.session.Definition.ID
	}
	return o.caller.Agent
}

// workOf returns the task for which an order is made; "" for the user, and for a session that works on none.
func (s *Service) workOf(o order) (a2a.TaskID, error) {
	if o.caller.Agent == "" {
		if o.session.State != hub.AgentWorking {
			return "", nil
		}
		return o.session.Work.Task, nil
	}
	task, working := s.o.Hub.Working(o.caller.Agent, o.caller.Context)
	if !working {
		return "", failed(RefusedError, "", "The agent %s has no turn in this conversation: its token is valid only while it works.", o.caller.Agent)
	}
	return task, nil
}

// continued adds the task for which the new one is made to its delegation record.
func continued(d *hub.Delegation, t *a2a.Task) {
	d.Task = t.ID
	if from := hub.DelegationOf(t); from != nil {
		d.Chain, d.Tasks = slices.Clone(from.Chain), slices.Clone(from.Tasks)
		d.TraceParent = cmp.Or(d.TraceParent, from.TraceParent)
	}
	d.TraceParent = cmp.Or(d.TraceParent, envelopeTrace(t))
	d.Tasks = append(d.Tasks, t.ID)
}

// sender returns who sends the new task: for an agent, whoever sent the task that it works on, so that nobody reaches
// through an agent what the user has not permitted; else whoever calls.
func (s *Service) sender(ctx context.Context, d *hub.Delegation) (hub.Sender, error) {
	if d.Task == "" {
		return hub.SenderFrom(ctx), nil
	}
	t, err := s.o.Hub.Task(ctx, d.Task, new(0))
	if err != nil {
		return hub.Sender{}, failure(err)
	}
	return hub.SenderOf(t.Metadata), nil
}

// check applies the rules to a delegation by an agent.
func (s *Service) check(o order, d *hub.Delegation) error {
	if o.by() == "" {
		return nil
	}
	if o.caller.Agent == "" { // a session asks for its user, whom the rules of tiers and sandboxes do not bind
		return s.checkChain(o, d)
	}
	if err := s.o.Permit(o.caller.Agent, o.agent); err != nil {
		if _, unknown := s.o.Hub.Agent(o.agent); unknown != nil {
			return failed(NotFoundError, "list_agents lists the agents.", "There is no agent %.80q.", o.agent)
		}
		return failed(RefusedError, "Choose another agent; list_agents lists those that you may ask.", "You may not delegate to %s: %v.", o.agent, err)
	}
	return s.checkChain(o, d)
}

// checkChain refuses a delegation that would loop or goes too deep.
func (s *Service) checkChain(o order, d *hub.Delegation) error {
	const remedy = "Do it yourself, or say in your answer what you cannot do."
	chain := strings.Join(d.Chain, " → ")
	if slices.Contains(d.Chain, o.agent) {
		return failed(RefusedError, remedy, "The delegation chain is %s: %s is in it already, and delegation must not loop.", chain, o.agent)
	}
	if len(d.Chain) >= s.o.MaxDepth {
		return failed(RefusedError, remedy, "The delegation chain is %s: work is delegated at most %d times.", chain, s.o.MaxDepth-1)
	}
	return nil
}

// reportRefusal emits a security event if a rule forbids the delegation.
func (s *Service) reportRefusal(o order, err error) {
	f, ok := errors.AsType[*mcpserver.Failure](err)
	if !ok || f.Category != RefusedError {
		return
	}
	s.o.Telemetry.Emit(telemetry.Event{
		Type: telemetry.Security, Sender: o.by(), Target: o.agent, Code: CodeRefused, Detail: f.Message,
	})
}

// reserve counts an agent's task against MaxOpen until release is called. MaxOpen also bounds agents that lose their
// token on the way to their MCP server, whose chain would be empty.
func (s *Service) reserve(ctx context.Context, caller mcpserver.Caller) (release func(), err error) {
	if caller.Agent == "" {
		return func() {}, nil
	}
	if !s.tryReserve() {
		s.forgetEnded(ctx)
		if !s.tryReserve() {
			return nil, failed(UnavailableError, "Wait for one of yours with get_task, or cancel it.",
				"%d delegated tasks are unfinished, the maximum.", s.o.MaxOpen)
		}
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.reserved--
	}, nil
}

func (s *Service) tryReserve() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open)+s.reserved >= s.o.MaxOpen {
		return false
	}
	s.reserved++
	return true
}

// forgetEnded removes ended tasks from open.
func (s *Service) forgetEnded(ctx context.Context) {
	s.mu.Lock()
	ids := slices.Collect(maps.Keys(s.open))
	s.mu.Unlock()
	for _, id := range ids {
		if t, err := s.o.Hub.Task(ctx, id, new(0)); err == nil && !t.Status.State.Terminal() {
			continue
		}
		s.mu.Lock()
		delete(s.open, id)
		s.mu.Unlock()
	}
}

// contextOf returns the id of the conversation, "" for a new one. The hash separates the conversations of callers.
func contextOf(o order) string {
	if o.conversation == "" {
		return ""
	}
	by := o.by()
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s %d %s %s", len(by), by, len(o.caller.Context), o.caller.Context, o.conversation))
	return "delegated-" + hex.EncodeToString(sum[:16])
}

// find returns a task that is visible to the caller: to an agent those that it delegated in this conversation, to the
// user all.
func (s *Service) find(ctx context.Context, caller mcpserver.Caller, id string) (*a2a.Task, error) {
	t, err := s.o.Hub.Task(ctx, a2a.TaskID(id), new(0))
	if err != nil {
		return nil, failure(err)
	}
	if caller.Agent == "" {
		return t, nil
	}
	if d := hub.DelegationOf(t); d == nil || d.By != caller.Agent || d.Context != caller.Context {
		return nil, failed(NotFoundError, "Use the taskId that delegate_task returned in this conversation.", "There is no task %.80q of yours.", id)
	}
	return t, nil
}

// failure converts the hub's errors.
func failure(err error) error {
	e, ok := errors.AsType[*hub.Error](err)
	if !ok {
		return err
	}
	f := &mcpserver.Failure{Category: UnavailableError, Message: text.Sentence(e.Message), Remedy: text.Sentence(e.Remedy), Err: e.Err}
	switch e.Code {
	case hub.CodeInvalid, hub.CodeUnsupported:
		f.Category = mcpserver.ValidationError
	case hub.CodeAgentNotFound:
		f.Category, f.Remedy = NotFoundError, "list_agents lists the agents."
	case hub.CodeTaskNotFound, hub.CodeContextNotFound:
		f.Category = NotFoundError
	case hub.CodeInternal:
		f.Category = mcpserver.InternalError
	}
	return f
}

var traceParent = text.Pattern(`^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// child returns a child of a W3C trace context; a new trace if parent is invalid.
func child(parent string) string {
	var random [24]byte
	rand.Read(random[:]) // never fails: see crypto/rand
	trace, flags := hex.EncodeToString(random[:16]), "01"
	if traceParent().MatchString(parent) && parent[3:35] != strings.Repeat("0", 32) {
		trace, flags = parent[3:35], parent[53:]
	}
	return "00-" + trace + "-" + hex.EncodeToString(random[16:]) + "-" + flags
}

// envelopeTrace returns the trace context of a task that an envelope began, as package node records it.
func envelopeTrace(t *a2a.Task) string {
	about, _ := t.Metadata["envelope"].(map[string]any)
	trace, _ := about["traceparent"].(string)
	return trace
}
