package delegation

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/hub"
	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
	"github.com/parleyhub/parley/telemetry"
)

// Limits where [Options] says nothing.
const (
	DefaultMaxDepth = 4  // agents over whom work comes
	DefaultMaxOpen  = 64 // delegated tasks that have not ended
)

// Options make a Service. Hub and Badges are needed.
type Options struct {
	Hub    *hub.Hub
	Badges *Badges
	// Permit returns nil if an agent may hand work to another; nil permits all.
	Permit func(from, to string) error
	// Telemetry gets an event of each refusal; nil: nobody does.
	Telemetry *telemetry.Recorder
	// MaxDepth bounds over how many agents work may come, and MaxOpen how many
	// delegated tasks of agents there are at once; 0 means DefaultMaxDepth and
	// DefaultMaxOpen.
	MaxDepth, MaxOpen int
}

// Service hands work over. It is safe for concurrent use.
type Service struct {
	o Options

	mu   sync.Mutex
	open map[a2a.TaskID]struct{} // of agents, not known to have ended
	// beginning are those of agents that are not in open yet.
	beginning int
}

// New returns a Service. It has nothing to close.
func New(o Options) *Service {
	if o.MaxDepth <= 0 {
		o.MaxDepth = DefaultMaxDepth
	}
	if o.MaxOpen <= 0 {
		o.MaxOpen = DefaultMaxOpen
	}
	if o.Permit == nil {
		o.Permit = func(string, string) error { return nil }
	}
	return &Service{o: o, open: make(map[a2a.TaskID]struct{})}
}

// CodeRefused is the code of the security event of a delegation that a rule forbids.
const CodeRefused = "DELEGATION_REFUSED"

// The categories of failures, beside mcpserver.ValidationError.
const (
	RefusedError     = "RefusedError"     // a rule forbids it
	NotFoundError    = "NotFoundError"    // there is no such agent or task, as far as the caller may know
	UnavailableError = "UnavailableError" // try again later
)

func refused(remedy, format string, args ...any) *mcpserver.Failure {
	return &mcpserver.Failure{Category: RefusedError, Message: fmt.Sprintf(format, args...), Remedy: remedy}
}

// Identify returns whose token this is. The error is fit for whoever presented it.
func (s *Service) Identify(token string) (mcpserver.Caller, error) {
	caller, ok := s.o.Badges.Holder(token)
	if !ok {
		return mcpserver.Caller{}, errors.New("the task token is not one of this hub's: it is that of an earlier run, or wrong")
	}
	return caller, nil
}

// order is what somebody wants done.
type order struct {
	caller       mcpserver.Caller
	agent, text  string
	conversation string
	traceParent  string // of the call
	timeout      time.Duration
}

// begin begins a task.
func (s *Service) begin(ctx context.Context, o order) (*a2a.Task, error) {
	d, err := s.lineage(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := s.allow(o, d); err != nil {
		s.tell(o, err)
		return nil, err
	}
	leave, err := s.room(ctx, o.caller)
	if err != nil {
		return nil, err
	}
	defer leave()
	req := hub.SendRequest{
		AgentID: o.agent, Delegation: d, Timeout: o.timeout,
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

// lineage is what the task will keep of its origin.
func (s *Service) lineage(ctx context.Context, o order) (*hub.Delegation, error) {
	d := &hub.Delegation{By: o.caller.Agent, Context: o.caller.Context}
	parent := o.traceParent
	if o.caller.Agent != "" {
		task, working := s.o.Hub.Working(o.caller.Agent, o.caller.Context)
		if !working {
			return nil, refused("", "The agent %s has no turn in this conversation: its token is good only while it works.", o.caller.Agent)
		}
		none := 0
		t, err := s.o.Hub.Task(ctx, task, &none)
		if err != nil {
			return nil, failure(err)
		}
		d.Task = task
		if from := hub.DelegationOf(t); from != nil {
			d.Chain, d.Tasks = slices.Clone(from.Chain), slices.Clone(from.Tasks)
			if parent == "" {
				parent = from.TraceParent
			}
		}
		if parent == "" {
			parent = envelopeTrace(t)
		}
		d.Chain, d.Tasks = append(d.Chain, o.caller.Agent), append(d.Tasks, task)
	}
	d.TraceParent = child(parent)
	return d, nil
}

// allow holds an order against the rules.
func (s *Service) allow(o order, d *hub.Delegation) error {
	if o.caller.Agent == "" {
		return nil
	}
	if err := s.o.Permit(o.caller.Agent, o.agent); err != nil {
		if _, known := s.agent(o.agent); !known {
			return notFound(o.agent)
		}
		return refused("Choose another agent; list_agents shows those that you may ask.", "You may not hand work to %s: %v.", o.agent, err)
	}
	over := strings.Join(d.Chain, " → ")
	if slices.Contains(d.Chain, o.agent) {
		return refused("Do it yourself, or say in your answer what you cannot do.",
			"The work has come over %s: %s is among them, and would be asked for its own work again.", over, o.agent)
	}
	if len(d.Chain) >= s.o.MaxDepth {
		return refused("Do it yourself, or say in your answer what you cannot do.",
			"The work has come over %s: it is handed on at most %d times.", over, s.o.MaxDepth-1)
	}
	return nil
}

// tell records a refusal.
func (s *Service) tell(o order, err error) {
	var f *mcpserver.Failure
	if !errors.As(err, &f) || f.Category != RefusedError {
		return
	}
	s.o.Telemetry.Emit(telemetry.Event{
		Type: telemetry.Security, Sender: o.caller.Agent, Target: o.agent, Code: CodeRefused, Detail: f.Message,
	})
}

// room keeps a place for an agent's task until leave is called, and refuses it where too
// many have not ended: an agent that lost its token on the way to its MCP server, say, is
// not stopped by the chain.
func (s *Service) room(ctx context.Context, caller mcpserver.Caller) (leave func(), err error) {
	if caller.Agent == "" {
		return func() {}, nil
	}
	if s.reserve() {
		return s.leave, nil
	}
	s.mu.Lock()
	ids := slices.Collect(maps.Keys(s.open))
	s.mu.Unlock()
	for _, id := range ids {
		none := 0
		if t, err := s.o.Hub.Task(ctx, id, &none); err == nil && !t.Status.State.Terminal() {
			continue
		}
		s.mu.Lock()
		delete(s.open, id)
		s.mu.Unlock()
	}
	if s.reserve() {
		return s.leave, nil
	}
	return nil, &mcpserver.Failure{Category: UnavailableError, Message: fmt.Sprintf("%d tasks that agents gave each other have not ended: there is no room for another.", s.o.MaxOpen),
		Remedy: "Wait for one of yours with get_task, or cancel it."}
}

func (s *Service) reserve() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open)+s.beginning >= s.o.MaxOpen {
		return false
	}
	s.beginning++
	return true
}

func (s *Service) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beginning--
}

// contextOf names the conversation. The hash keeps callers out of those of others.
func contextOf(o order) string {
	if o.conversation == "" {
		return "" // a new one
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s %d %s %s", len(o.caller.Agent), o.caller.Agent, len(o.caller.Context), o.caller.Context, o.conversation))
	return "delegated-" + hex.EncodeToString(sum[:16])
}

// find returns a task that the caller may know of: an agent those that it handed
// over in this conversation, the user all.
func (s *Service) find(ctx context.Context, caller mcpserver.Caller, id string) (*a2a.Task, error) {
	none := 0
	t, err := s.o.Hub.Task(ctx, a2a.TaskID(id), &none)
	if err != nil {
		return nil, failure(err)
	}
	if caller.Agent == "" {
		return t, nil
	}
	if d := hub.DelegationOf(t); d == nil || d.By != caller.Agent || d.Context != caller.Context {
		return nil, &mcpserver.Failure{Category: NotFoundError, Message: fmt.Sprintf("There is no task %.80q of yours.", id),
			Remedy: "Use the taskId that delegate_task returned in this conversation."}
	}
	return t, nil
}

// agent returns an agent of the hub.
func (s *Service) agent(id string) (hub.AgentInfo, bool) {
	info, err := s.o.Hub.Agent(id)
	return info, err == nil
}

func notFound(id string) *mcpserver.Failure {
	return &mcpserver.Failure{Category: NotFoundError, Message: fmt.Sprintf("There is no agent %.80q.", id), Remedy: "list_agents shows those there are."}
}

// failure puts the hub's errors into words for agents.
func failure(err error) error {
	e, ok := errors.AsType[*hub.Error](err)
	if !ok {
		return err
	}
	f := &mcpserver.Failure{Category: UnavailableError, Message: sentence(e.Message), Remedy: sentence(e.Remedy), Err: e.Err}
	switch e.Code {
	case hub.CodeInvalid, hub.CodeUnsupported:
		f.Category = mcpserver.ValidationError
	case hub.CodeAgentNotFound:
		f.Category, f.Remedy = NotFoundError, "list_agents shows those there are."
	case hub.CodeTaskNotFound, hub.CodeContextNotFound:
		f.Category = NotFoundError
	case hub.CodeInternal:
		f.Category = mcpserver.InternalError
	}
	return f
}

func sentence(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + strings.TrimSuffix(text[1:], ".") + "."
}

var traceParent = regexp.MustCompile(`^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// child returns the trace context of what parent has begun; a new one where that
// is none.
func child(parent string) string {
	var random [24]byte
	rand.Read(random[:]) // never fails: see crypto/rand
	trace, flags := hex.EncodeToString(random[:16]), "01"
	if traceParent.MatchString(parent) && parent[3:35] != strings.Repeat("0", 32) {
		trace, flags = parent[3:35], parent[53:]
	}
	return "00-" + trace + "-" + hex.EncodeToString(random[16:]) + "-" + flags
}

// envelopeTrace is the trace of a task that an envelope began; package node wrote it.
func envelopeTrace(t *a2a.Task) string {
	about, _ := t.Metadata["envelope"].(map[string]any)
	trace, _ := about["traceparent"].(string)
	return trace
}
