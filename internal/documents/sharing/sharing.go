// Package sharing lets agents of other processes keep replicas of the hub's documents.
//
// The hub serves documents under an agent card, [CardID]. An agent opens a channel to that card over any transport and
// attaches a replica (package crdt/replica); the first message about a document links the hub's replica with it. The
// agent's role in the document (documents.Role), which the hub's user assigns, decides what it may do. An agent without
// a role gets the same error whether the document exists or not. The rules of tiers and sandboxes apply as to every
// envelope.
package sharing

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/documents"
	"github.com/parleyhub/parley/router"
	"github.com/parleyhub/parley/telemetry"
)

// CardID is the agent to which agents of other processes open a channel. Among hubs the hub's key is appended.
const CardID = "hub-documents"

// Codes of error answers.
const (
	// CodeDenied answers an agent without the role that it needs; the security event has it too.
	CodeDenied = "DOCUMENT_ACCESS_DENIED"
	// CodeBusy answers when an agent, or all of them together, have reached the limit of documents or requests; a later
	// retry can succeed.
	CodeBusy = "DOCUMENT_LIMIT"

	codeUnavailable = "DOCUMENT_UNAVAILABLE"
	codeInvalid     = "INVALID_REQUEST"
)

// Limits of what agents can use.
const (
	maxPerAgent = 64   // documents that one agent is linked with
	maxLinks    = 4096 // of all agents
	maxRefusals = 4096 // remembered ones
)

// refusalLife is how long a refused agent gets no further answer about the same document.
const refusalLife = time.Second

// Node is a node that accepts agents of other processes: a *node.Node.
type Node interface {
	Join(card agent.Card, h router.Handler) (*parley.Agent, error)
	Parley() *parley.Node
}

// Service links documents of a library with replicas of agents. Create it with [New], attach it to nodes with
// [Service.Serve], and [Service.Close] it before the library and the nodes. It is safe for concurrent use.
type Service struct {
	library *documents.Library
	log     *slog.Logger
	ctx     context.Context
	cancel  context.CancelFunc
	running wait.Group

	mu        sync.Mutex
	endpoints []*endpoint
}

// New returns a Service for the documents of a library. A nil logger discards.
func New(library *documents.Library, log *slog.Logger) *Service {
	s := &Service{library: library, log: cmp.Or(log, slog.New(slog.DiscardHandler))}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// endpoint is the service at one node.
type endpoint struct {
	service *Service
	id      string
	node    *parley.Node
	vouch   func(agentID string) error
	access  *parley.Agent
	unclaim func() // ends receiveSync

	mu       sync.Mutex
	links    map[linkKey]*link
	refusals map[linkKey]time.Time
	limits   limiter
}

// linkKey is an agent and a document.
type linkKey struct{ agent, document string }

// link is an agent's replica that is linked with a document, or is about to be.
type link struct {
	channel *channel.Channel
	stop    context.CancelFunc
}

// Serve answers at a node under an id. vouch returns nil for the agents that the node vouches for, so that an agent of
// another node cannot be impersonated; a nil vouch accepts all.
func (s *Service) Serve(n Node, id string, vouch func(agentID string) error) error {
	if vouch == nil {
		vouch = func(string) error { return nil }
	}
	p := &endpoint{
		service: s, id: id, node: n.Parley(), vouch: vouch,
		links: make(map[linkKey]*link), refusals: make(map[linkKey]time.Time), limits: make(limiter),
	}
	card := agent.Card{
		ID: id, Name: "Documents", Version: "1", Description: "Shares documents of this hub with replicas of agents elsewhere, by channel",
		// L0, the tier of the hub: it alone may answer agents of every tier.
		Tier: agent.L0, Protocols: []string{"crdt-sync/1"}, Capabilities: []agent.Capability{},
	}
	access, err := n.Join(card, p.receive)
	if err != nil {
		return fmt.Errorf("documents cannot be shared: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.access = access
	p.unclaim = n.Parley().Router().Claim(id, isSync, p.receiveSync)
	s.endpoints = append(s.endpoints, p)
	return nil
}

// Close ends all links and waits for their goroutines.
func (s *Service) Close() {
	s.running.Stop()
	s.mu.Lock()
	endpoints := s.endpoints
	s.mu.Unlock()
	s.cancel()
	for _, p := range endpoints {
		p.unclaim()
		p.access.Leave()
	}
	s.running.Wait()
}

// receive handles the envelopes for the card. It must not block, for it serves all agents.
func (p *endpoint) receive(ctx context.Context, e *envelope.Envelope) {
	if e.Type == envelope.Request {
		p.request(ctx, e)
	}
}

func isSync(e *envelope.Envelope) bool {
	_, ok := replica.DocumentOf(e)
	return ok
}

// receiveSync handles a replica's message to a document that it is not linked with: those of a linked one go to its
// link on its channel's goroutine.
func (p *endpoint) receiveSync(_ context.Context, e *envelope.Envelope) {
	if name, _ := replica.DocumentOf(e); documents.CheckName(name) == nil {
		p.open(linkKey{e.Sender, name}, e)
	}
}

// request answers a request in a goroutine, within the sender's limits.
func (p *endpoint) request(ctx context.Context, e *envelope.Envelope) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.limits.ignored(e.Sender, now) {
		return
	}
	if !p.limits.beginRequest(e.Sender, now) {
		p.countRefusal(e.Sender, now)
		p.service.running.Go(func() {
			p.replyError(ctx, e, problem{Code: CodeBusy, Message: fmt.Sprintf("at most %d requests of an agent are answered at once", maxRequests), Remedy: "wait for the answers"})
		})
		return
	}
	if !p.service.running.Go(func() {
		p.answer(ctx, e)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.limits.endRequest(e.Sender)
	}) {
		p.limits.endRequest(e.Sender)
	}
}

// open links an agent with a document, unless it is linked. e is the agent's message.
func (p *endpoint) open(k linkKey, e *envelope.Envelope) {
	ch, ok := p.node.Channels().Between(p.id, k.agent)
	if !ok {
		return // closed meanwhile, or an agent of this process, where nothing has a replica
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	old, now := p.links[k], time.Now()
	if old != nil && old.channel == ch || now.Sub(p.refusals[k]) < refusalLife || p.limits.ignored(k.agent, now) {
		return
	}
	if old == nil && p.full(k.agent) {
		p.noteRefusal(k, now) // before its next message
		p.service.running.Go(func() { p.reportRefusal(p.service.ctx, k, e, errFull) })
		return
	}
	ctx, stop := context.WithCancel(p.service.ctx)
	l := &link{channel: ch, stop: stop}
	if !p.service.running.Go(func() { p.serve(ctx, k, l, e) }) {
		stop()
		return
	}
	if old != nil { // the agent reconnected before its former channel was closed
		old.stop()
	}
	p.links[k] = l
}

// full reports whether an agent, or all agents together, have as many links as allowed. The lock is held.
func (p *endpoint) full(agentID string) bool {
	n := 0
	for k := range p.links {
		if k.agent == agentID {
			n++
		}
	}
	return n >= maxPerAgent || len(p.links) >= maxLinks
}

// serve keeps an agent linked with a document, across epochs, until its channel is closed or ctx ends. e is the
// agent's first message.
func (p *endpoint) serve(ctx context.Context, k linkKey, l *link, e *envelope.Envelope) {
	defer func() {
		l.stop()
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.links[k] == l {
			delete(p.links, k)
		}
	}()
	for ctx.Err() == nil && p.attach(ctx, k, l, e) {
		e = nil // a new epoch, which is announced to the agent
	}
}

// attach links an agent with a document until the channel is closed or the document ends. It reports whether the
// document ended, as when a new epoch begins.
func (p *endpoint) attach(ctx context.Context, k linkKey, l *link, e *envelope.Envelope) (again bool) {
	doc, err := p.document(ctx, k)
	if err != nil {
		p.refuse(ctx, k, e, err)
		return false
	}
	filtered := &filteredLink{Channel: l.channel, permitted: func() bool { return p.permitted(k.agent) == nil }}
	detach, err := doc.Attach(filtered)
	if err != nil {
		return documents.CodeOf(err) == documents.CodeClosed && p.pause(ctx, doc)
	}
	defer detach()
	if e != nil {
		filtered.handler(ctx, e)
	}
	select {
	case <-l.channel.Done():
	case <-ctx.Done():
	case <-doc.Done():
		return l.channel.Status() != channel.Closed
	}
	return false
}

// reopening is about how long a document takes to begin a new epoch.
const reopening = 20 * time.Millisecond

// pause waits until a document has ended and a moment longer. It reports false if ctx ends first.
func (p *endpoint) pause(ctx context.Context, doc *documents.Document) bool {
	select {
	case <-doc.Done():
	case <-ctx.Done():
		return false
	}
	return wait.Pause(ctx, reopening)
}

// document opens a document if the agent has a role in it.
func (p *endpoint) document(ctx context.Context, k linkKey) (*documents.Document, error) {
	if err := p.permitted(k.agent); err != nil {
		return nil, err
	}
	role, err := p.service.library.Role(ctx, k.document, k.agent)
	if err != nil {
		return nil, err
	}
	if role == "" {
		return nil, &deniedError{k}
	}
	return p.service.library.Get(ctx, k.document)
}

// permitted returns nil if the node vouches for an agent and the rules permit its messages to the card.
func (p *endpoint) permitted(agentID string) error {
	if err := p.vouch(agentID); err != nil {
		return err
	}
	return p.node.Router().Permit(agentID, p.id)
}

// deniedError is the same whether the document exists or not.
type deniedError struct{ linkKey }

func (e *deniedError) Error() string {
	return fmt.Sprintf("the document %s is not shared with %s", e.document, e.agent)
}

// errFull refuses an agent that has a role.
var errFull = fmt.Errorf("at most %d documents are shared with an agent at once, and %d with all", maxPerAgent, maxLinks)

// problem is the payload of an error answer.
type problem struct {
	Code     string `json:"code"`
	Message  string `json:"message"`
	Remedy   string `json:"remedy,omitempty"`
	Document string `json:"document,omitempty"`
}

// refuse notes and reports a refusal to link an agent, unless ctx has ended.
func (p *endpoint) refuse(ctx context.Context, k linkKey, e *envelope.Envelope, err error) {
	if ctx.Err() != nil {
		return
	}
	p.mu.Lock()
	p.noteRefusal(k, time.Now())
	p.mu.Unlock()
	p.reportRefusal(ctx, k, e, err)
}

// noteRefusal counts a refusal and suppresses further answers for refusalLife. The lock is held.
func (p *endpoint) noteRefusal(k linkKey, now time.Time) {
	if len(p.refusals) >= maxRefusals {
		clear(p.refusals)
	}
	p.refusals[k] = now
	p.countRefusal(k.agent, now)
}

// countRefusal counts a refusal against the agent's limit. The lock is held.
func (p *endpoint) countRefusal(agentID string, now time.Time) {
	if p.limits.refuse(agentID, now) {
		p.service.log.Warn("messages of an agent are ignored for a while: it was refused too often", "agent", agentID, "for", refusedFor)
	}
}

// reportRefusal logs a refusal and answers the agent's message, if there is one.
func (p *endpoint) reportRefusal(ctx context.Context, k linkKey, e *envelope.Envelope, err error) {
	p.logRefusal(k, err)
	if e == nil {
		return
	}
	answer := problem{Document: k.document, Message: err.Error()}
	switch {
	case errors.As(err, new(*deniedError)):
		answer.Code, answer.Remedy = CodeDenied, fmt.Sprintf("the hub's user can share it: "+local.Program()+" doc share %s %s reader", k.document, k.agent)
	case errors.Is(err, errFull):
		answer.Code, answer.Remedy = CodeBusy, "close the channel, and attach fewer replicas to the next"
	default:
		answer.Code, answer.Message = codeUnavailable, "the document "+k.document+" is not available at the moment"
	}
	p.replyError(ctx, e, answer)
}

// logRefusal logs a refusal and emits a security event.
func (p *endpoint) logRefusal(k linkKey, err error) {
	p.service.log.Warn("an agent was refused access to a document", "document", k.document, "agent", k.agent, "error", err)
	p.node.Telemetry().Emit(telemetry.Event{
		Type: telemetry.Security, Sender: k.agent, Recipient: p.id, MessageType: envelope.StreamData, Code: CodeDenied, Detail: err.Error(),
	})
}

func (p *endpoint) replyError(ctx context.Context, e *envelope.Envelope, answer problem) {
	p.reply(ctx, e, envelope.ErrorMessage, answer)
}

func (p *endpoint) reply(ctx context.Context, e *envelope.Envelope, t envelope.Type, payload any) {
	if _, err := p.access.Reply(ctx, e, t, payload); err != nil {
		p.service.log.Info("an answer could not be sent", "agent", e.Sender, "error", err)
	}
}

// request is an owner's request for the roles in a document; with an agent, the agent's role is changed first.
type request struct {
	Document string          `json:"document"`
	Agent    string          `json:"agent,omitempty"`
	Role     *documents.Role `json:"role,omitempty"` // "" withdraws the role
}

// response answers a request.
type response struct {
	Document string                    `json:"document"`
	Roles    map[string]documents.Role `json:"roles"` // by agent
}

// answer executes an owner's request and answers it.
func (p *endpoint) answer(ctx context.Context, e *envelope.Envelope) {
	var r request
	if err := json.Unmarshal(e.Payload, &r); err != nil || documents.CheckName(r.Document) != nil || (r.Agent == "") != (r.Role == nil) {
		p.replyError(ctx, e, problem{Code: codeInvalid, Message: `a request is {"document": NAME}, optionally with "agent" and "role"`})
		return
	}
	if role, err := p.service.library.Role(ctx, r.Document, e.Sender); err != nil || role != documents.RoleOwner || p.permitted(e.Sender) != nil {
		err := fmt.Errorf("%s is no owner of the document %s", e.Sender, r.Document)
		p.mu.Lock()
		p.countRefusal(e.Sender, time.Now())
		p.mu.Unlock()
		p.logRefusal(linkKey{e.Sender, r.Document}, err)
		p.replyError(ctx, e, problem{Code: CodeDenied, Message: err.Error(), Document: r.Document})
		return
	}
	if r.Role != nil {
		if err := p.service.library.Share(ctx, r.Document, r.Agent, *r.Role); err != nil {
			p.replyError(ctx, e, problem{Code: codeInvalid, Message: err.Error(), Document: r.Document})
			return
		}
		p.service.log.Info("an owner has shared a document", "document", r.Document, "owner", e.Sender, "agent", r.Agent, "role", *r.Role)
	}
	roles, err := p.service.library.Shares(ctx, r.Document)
	if err != nil {
		p.replyError(ctx, e, problem{Code: codeUnavailable, Message: err.Error(), Document: r.Document})
		return
	}
	p.reply(ctx, e, envelope.Response, response{r.Document, roles})
}

// filteredLink is a channel that delivers messages only while the node vouches for the agent and the rules of tiers
// and sandboxes permit it.
type filteredLink struct {
	*channel.Channel
	permitted func() bool
	handler   channel.Handler // set by Claim
}

// Claim implements [replica.Claimer].
func (l *filteredLink) Claim(wants func(*envelope.Envelope) bool, h channel.Handler) (remove func()) {
	l.handler = func(ctx context.Context, e *envelope.Envelope) {
		if l.permitted() {
			h(ctx, e)
		}
	}
	return l.Channel.Claim(wants, l.handler)
}
