// Package sharing lets agents of other processes keep replicas of the hub's documents.
//
// The hub has a card for it, [CardID]. An agent opens a channel to that card, by
// whatever transport, and attaches a replica (package crdt/replica) to the channel; the first
// message about a document links the hub's replica with it. What the agent may do
// then is its role in the document, which the hub's user gives it (documents.Role). Without
// one it gets an answer that says so, whether there is such a document or not.
//
// The rules of tiers and sandboxes hold as for every envelope.
package sharing

import (
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
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/documents"
	"github.com/parleyhub/parley/router"
	"github.com/parleyhub/parley/telemetry"
)

// CardID is the agent to whom agents of other processes open a channel. Among hubs the hub's
// key follows it.
const CardID = "hub-documents"

// Codes of the answers to agents that are refused.
const (
	// CodeDenied is that, and the code of the security event, if an agent has no role
	// in a document, or not the one it needs.
	CodeDenied = "DOCUMENT_ACCESS_DENIED"
	// CodeBusy is that if an agent, or all of them, have as many documents or requests as they
	// may; once there is room, what is asked again is granted.
	CodeBusy = "DOCUMENT_LIMIT"
)

// Bounds of what agents can use.
const (
	maxPerAgent = 64   // documents that one agent is linked with
	maxGuests   = 4096 // links
	maxRefusals = 4096 // that are remembered
)

// refusalLife is how long an agent that was refused gets no further answer about the same
// document, so that who asks all the time is not answered all the time.
const refusalLife = time.Second

// Node is where agents of other processes come in: a *node.Node.
type Node interface {
	Join(card agent.Card, h router.Handler) (*parley.Agent, error)
	Parley() *parley.Node
}

// Desk lets agents in. Make one with [New], have it sit at nodes, and [Desk.Close] it
// before the library and the nodes. It is safe for concurrent use.
type Desk struct {
	library *documents.Library
	log     *slog.Logger
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	mu     sync.Mutex
	chairs []*chair
	closed bool
}

// New returns a desk for the documents of a library. A nil logger discards.
func New(library *documents.Library, log *slog.Logger) *Desk {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	d := &Desk{library: library, log: log}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d
}

// chair is the desk at one node.
type chair struct {
	desk   *Desk
	id     string
	node   *parley.Node
	speaks func(agentID string) error
	access *parley.Agent

	mu       sync.Mutex
	guests   map[place]*guest
	refusals map[place]time.Time
	visitors visitors
}

// place is an agent at a document.
type place struct{ agent, document string }

// guest is an agent's replica that is linked, or about to be.
type guest struct {
	channel *channel.Channel
	stop    context.CancelFunc
}

// Sit has the desk answer at a node under an id. speaks says which agents that node
// vouches for, so that none of another node is taken for one of this; nil means all.
func (d *Desk) Sit(n Node, id string, speaks func(agentID string) error) error {
	if speaks == nil {
		speaks = func(string) error { return nil }
	}
	c := &chair{
		desk: d, id: id, node: n.Parley(), speaks: speaks,
		guests: make(map[place]*guest), refusals: make(map[place]time.Time),
		visitors: make(visitors),
	}
	card := agent.Card{
		ID: id, Name: "Documents", Version: "1", Description: "Shares documents of this hub with replicas of agents elsewhere, by channel",
		// L0, the hub itself: only so may agents of every tier be answered.
		Tier: agent.L0, Protocols: []string{"crdt-sync/1"}, Capabilities: []agent.Capability{},
	}
	access, err := n.Join(card, c.receive)
	if err != nil {
		return fmt.Errorf("the documents have no card: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	c.access = access
	d.chairs = append(d.chairs, c)
	return nil
}

// Close ends all links and waits for that.
func (d *Desk) Close() {
	d.mu.Lock()
	d.closed = true
	chairs := d.chairs
	d.mu.Unlock()
	d.cancel()
	for _, c := range chairs {
		c.access.Leave()
	}
	d.wg.Wait()
}

// begin counts a goroutine in, unless the desk is closed.
func (d *Desk) begin(f func()) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	d.wg.Go(f)
	return true
}

// receive takes what arrives for the card. It must be quick, for all agents wait
// for it: an agent's messages go to its own link, by its channel's goroutine.
func (c *chair) receive(ctx context.Context, e *envelope.Envelope) {
	switch e.Type {
	case envelope.StreamData:
		var head struct {
			State *string `json:"state"`
		}
		if e.Unmarshal(&head) != nil || head.State == nil || documents.CheckName(*head.State) != nil {
			return // somebody else's stream
		}
		c.welcome(place{e.Sender, *head.State}, e)
	case envelope.Request:
		c.take(ctx, e)
	}
}

// take has a request answered, unless too many of the agent's are, or were refused.
func (c *chair) take(ctx context.Context, e *envelope.Envelope) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.visitors.heard(e.Sender, now) {
		return
	}
	if !c.visitors.ask(e.Sender, now) {
		c.count(e.Sender, now)
		c.desk.begin(func() {
			c.reply(ctx, e, envelope.ErrorMessage, problem{Code: CodeBusy, Message: fmt.Sprintf("at most %d requests of an agent are answered at once", maxRequests), Remedy: "wait for the answers"})
		})
		return
	}
	if !c.desk.begin(func() {
		c.answer(ctx, e)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.visitors.answered(e.Sender)
	}) {
		c.visitors.answered(e.Sender)
	}
}

// welcome links an agent with a document, unless it is.
func (c *chair) welcome(p place, e *envelope.Envelope) {
	ch, ok := c.node.Channels().Between(c.id, p.agent)
	if !ok {
		return // it has gone meanwhile, or is of this process, where nothing has a replica
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	old, now := c.guests[p], time.Now()
	if old != nil && old.channel == ch || now.Sub(c.refusals[p]) < refusalLife || !c.visitors.heard(p.agent, now) {
		return
	}
	if old == nil && c.full(p.agent) {
		c.note(p, now) // before the next message about it comes
		c.desk.begin(func() { c.tell(c.desk.ctx, p, e, errFull) })
		return
	}
	ctx, stop := context.WithCancel(c.desk.ctx)
	g := &guest{channel: ch, stop: stop}
	if !c.desk.begin(func() { c.host(ctx, p, g, e) }) {
		stop()
		return
	}
	if old != nil { // it has come anew before its former channel was given up
		old.stop()
	}
	c.guests[p] = g
}

// full reports whether an agent, or all of them, have as many links as they may; the lock is held.
func (c *chair) full(agentID string) bool {
	n := 0
	for p := range c.guests {
		if p.agent == agentID {
			n++
		}
	}
	return n >= maxPerAgent || len(c.guests) >= maxGuests
}

// host links an agent with a document until its channel, the document or the desk
// ends. e is its first message.
func (c *chair) host(ctx context.Context, p place, g *guest, e *envelope.Envelope) {
	defer func() {
		g.stop()
		c.mu.Lock()
		if c.guests[p] == g {
			delete(c.guests, p)
		}
		c.mu.Unlock()
	}()
	gone := make(chan struct{}, 1)
	note := func(s channel.Status) {
		if s == channel.Closed {
			select {
			case gone <- struct{}{}:
			default:
			}
		}
	}
	defer g.channel.OnStatus(note)()
	note(g.channel.Status()) // it may have closed before
	for ctx.Err() == nil && c.sit(ctx, p, g, e, gone) {
		e = nil // the document has begun a new epoch, which the agent is to hear of
	}
}

// sit links an agent with a document until either ends. It reports whether it was the document,
// which may be there again in another epoch.
func (c *chair) sit(ctx context.Context, p place, g *guest, e *envelope.Envelope, gone <-chan struct{}) (again bool) {
	doc, err := c.lookUp(ctx, p)
	if err != nil {
		c.refuse(ctx, p, e, err)
		return false
	}
	link := &lawful{Channel: g.channel, permitted: func() bool { return c.permitted(p.agent) == nil }}
	leave, err := doc.Attach(link)
	if err != nil {
		return documents.CodeOf(err) == documents.CodeClosed && c.pause(ctx, doc)
	}
	defer leave()
	if e != nil {
		link.deliver(ctx, e)
	}
	select {
	case <-gone:
		return false
	case <-doc.Done():
		return true
	case <-ctx.Done():
		return false
	}
}

// reopening is about how long it takes until a new epoch of a document is there.
const reopening = 20 * time.Millisecond

// pause waits a moment after the end of a document. It reports false if ctx ends first.
func (c *chair) pause(ctx context.Context, doc *documents.Document) bool {
	select {
	case <-doc.Done():
	case <-ctx.Done():
		return false
	}
	select {
	case <-time.After(reopening):
		return true
	case <-ctx.Done():
		return false
	}
}

// lookUp returns a document if an agent may know of it.
func (c *chair) lookUp(ctx context.Context, p place) (*documents.Document, error) {
	if err := c.admit(ctx, p); err != nil {
		return nil, err
	}
	return c.desk.library.Get(ctx, p.document)
}

// admit returns nil if an agent may know of a document.
func (c *chair) admit(ctx context.Context, p place) error {
	if err := c.permitted(p.agent); err != nil {
		return err
	}
	role, err := c.desk.library.Role(ctx, p.document, p.agent)
	if err == nil && role == "" {
		err = denied(p)
	}
	return err
}

// permitted returns nil if the rules let an agent come here.
func (c *chair) permitted(agentID string) error {
	if err := c.speaks(agentID); err != nil {
		return err
	}
	return c.node.Router().Permit(agentID, c.id)
}

func denied(p place) error {
	return &deniedError{p}
}

// deniedError says the same whether there is the document or not.
type deniedError struct{ place }

func (e *deniedError) Error() string {
	return fmt.Sprintf("the document %s is not shared with %s", e.document, e.agent)
}

// problem is the payload of an answer that is an error.
type problem struct {
	Code     string `json:"code"`
	Message  string `json:"message"`
	Remedy   string `json:"remedy,omitempty"`
	Document string `json:"document,omitempty"`
}

// refuse tells an agent that it is not linked, and the log who wanted what.
func (c *chair) refuse(ctx context.Context, p place, e *envelope.Envelope, err error) {
	if ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	c.note(p, time.Now())
	c.mu.Unlock()
	c.tell(ctx, p, e, err)
}

// note remembers a refusal; the lock is held.
func (c *chair) note(p place, now time.Time) {
	if len(c.refusals) >= maxRefusals {
		clear(c.refusals)
	}
	c.refusals[p] = now
	c.count(p.agent, now)
}

// count counts a refusal of an agent; the lock is held.
func (c *chair) count(agentID string, now time.Time) {
	if c.visitors.refuse(agentID, now) {
		c.desk.log.Warn("an agent is not listened to for a while: it was refused too often", "agent", agentID, "for", refusedFor)
	}
}

// errFull is why an agent is not linked that has a role.
var errFull = fmt.Errorf("at most %d documents are shared with an agent at once, and %d with all", maxPerAgent, maxGuests)

// tell tells an agent and the log of a refusal.
func (c *chair) tell(ctx context.Context, p place, e *envelope.Envelope, err error) {
	c.log(p, err)
	if e == nil {
		return
	}
	answer := problem{Document: p.document, Message: err.Error()}
	switch {
	case errors.As(err, new(*deniedError)):
		answer.Code, answer.Remedy = CodeDenied, fmt.Sprintf("the hub's user can share it: parley doc share %s %s reader", p.document, p.agent)
	case errors.Is(err, errFull):
		answer.Code, answer.Remedy = CodeBusy, "close the channel, and attach fewer replicas to the next"
	default:
		answer.Code, answer.Message = "DOCUMENT_UNAVAILABLE", "the document "+p.document+" is not to be had at the moment"
	}
	c.reply(ctx, e, envelope.ErrorMessage, answer)
}

// log tells of a refusal, with its source.
func (c *chair) log(p place, err error) {
	c.desk.log.Warn("an agent is not let to a document", "document", p.document, "agent", p.agent, "error", err)
	c.node.Telemetry().Emit(telemetry.Event{
		Type: telemetry.Security, Sender: p.agent, Recipient: c.id, MessageType: envelope.StreamData, Code: CodeDenied, Detail: err.Error(),
	})
}

func (c *chair) reply(ctx context.Context, e *envelope.Envelope, t envelope.Type, payload any) {
	if _, err := c.access.Reply(ctx, e, t, payload); err != nil {
		c.desk.log.Info("an agent was not answered", "agent", e.Sender, "error", err)
	}
}

// request is what an owner may ask for: who has which role, after a change if it names an
// agent.
type request struct {
	Document string          `json:"document"`
	Agent    string          `json:"agent,omitempty"`
	Role     *documents.Role `json:"role,omitempty"` // "" takes it away
}

// shared answers a request.
type shared struct {
	Document string                    `json:"document"`
	Roles    map[string]documents.Role `json:"roles"` // by agent
}

// answer does what an owner asks for.
func (c *chair) answer(ctx context.Context, e *envelope.Envelope) {
	var r request
	if err := json.Unmarshal(e.Payload, &r); err != nil || documents.CheckName(r.Document) != nil || (r.Agent == "") != (r.Role == nil) {
		c.reply(ctx, e, envelope.ErrorMessage, problem{Code: "INVALID_REQUEST", Message: `a request is {"document": NAME}, or with "agent" and "role" besides`})
		return
	}
	p := place{e.Sender, r.Document}
	if role, err := c.desk.library.Role(ctx, p.document, p.agent); err != nil || role != documents.RoleOwner || c.permitted(p.agent) != nil {
		err := fmt.Errorf("%s is no owner of the document %s", p.agent, p.document)
		c.mu.Lock()
		c.count(p.agent, time.Now())
		c.mu.Unlock()
		c.log(p, err)
		c.reply(ctx, e, envelope.ErrorMessage, problem{Code: CodeDenied, Message: err.Error(), Document: p.document})
		return
	}
	if r.Role != nil {
		if err := c.desk.library.Share(ctx, r.Document, r.Agent, *r.Role); err != nil {
			c.reply(ctx, e, envelope.ErrorMessage, problem{Code: "INVALID_REQUEST", Message: err.Error(), Document: p.document})
			return
		}
		c.desk.log.Info("an owner has shared a document", "document", p.document, "owner", p.agent, "agent", r.Agent, "role", *r.Role)
	}
	roles, err := c.desk.library.Shares(ctx, r.Document)
	if err != nil {
		c.reply(ctx, e, envelope.ErrorMessage, problem{Code: "DOCUMENT_UNAVAILABLE", Message: err.Error(), Document: p.document})
		return
	}
	c.reply(ctx, e, envelope.Response, shared{r.Document, roles})
}

// lawful is a channel that hands on what the rules of tiers and sandboxes let pass: the router
// applies them to what it delivers, and what goes to a replica goes past it.
type lawful struct {
	*channel.Channel
	permitted func() bool

	mu      sync.Mutex
	handler channel.Handler
}

// OnMessage implements [replica.Link].
func (l *lawful) OnMessage(h channel.Handler) (remove func()) {
	handle := func(ctx context.Context, e *envelope.Envelope) {
		if l.permitted() {
			h(ctx, e)
		}
	}
	l.mu.Lock()
	l.handler = handle
	l.mu.Unlock()
	return l.Channel.OnMessage(handle)
}

// deliver hands on the message that came before the link.
func (l *lawful) deliver(ctx context.Context, e *envelope.Envelope) {
	l.mu.Lock()
	h := l.handler
	l.mu.Unlock()
	if h != nil {
		h(ctx, e)
	}
}
