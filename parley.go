// Package parley is the coordination library: a [Node] connects a registry, a router
// and channels, so that agents of this process and of others exchange envelopes.
//
//	node, err := parley.New(parley.Options{})
//	venus, err := node.Join(card, func(ctx context.Context, e *envelope.Envelope) { fmt.Println(e.Sender) })
//	result, err := venus.Send(ctx, "mars", envelope.Request, "are you there?")
//
// For agents of other processes the node needs listeners or dialers:
//
//	err = node.Listen(listener)                            // accepts channels
//	c, err := node.Connect(ctx, "venus", "mars", endpoint) // opens one
//
// The packages agent, envelope, registry, router, channel, transport and telemetry can also be used alone.
package parley

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/negotiation"
	"github.com/parleyhub/parley/registry"
	"github.com/parleyhub/parley/router"
	"github.com/parleyhub/parley/swarm"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/toolbox"
	"github.com/parleyhub/parley/transport"
)

// Options set up a Node. With the zero Options its agents reach this process only.
type Options struct {
	Registry registry.Options
	Router   router.Options // the node sets Forwarder
	// Channels needs Dialers to reach other processes. The node sets Resolve, Authorize, Introduce, Introduced, Names,
	// Policy, Local, Routed, Ended and Telemetry.
	Channels channel.Options
	// Trust decides whether a peer may introduce an agent with this card, for a channel to the local agent r.To;
	// r.Peer is as authenticated by the transport. The peer gets the text of its error. It is called after the
	// node's own rules, which refuse the ids of local agents and of other peers' agents. Nil trusts every peer of
	// the transport, and the tier and sandbox in the card.
	Trust func(r channel.Request, card agent.Card) error
	// Speaks decides whether a peer of the transport may speak for a remote agent. It is called at both ends of
	// every channel, also for discovered agents. Nil accepts every peer, but one that has proved a key opens channels
	// for an agent NAME@KEY only if that is its key, or one at which the agent was discovered.
	Speaks func(peer, agentID string) error
}

// Node holds the agents of one process and connects them with others. Make one with
// [New] and [Node.Close] it in the end. It is safe for concurrent use.
type Node struct {
	trust    func(channel.Request, agent.Card) error
	speaks   func(peer, agentID string) error
	registry *registry.Registry
	router   *router.Router
	channels *channel.Manager
	ctx      context.Context // ends with the node
	cancel   context.CancelFunc
	serving  sync.WaitGroup
	cards    sync.Mutex // held while a peer's card is added or removed

	mu        sync.Mutex
	listeners []transport.Listener
	joined    map[string]bool // the ids of agents that have not left
	closed    bool
}

// New returns a node. It fails only for invalid tier rules. The rules of its router apply to everything that its
// agents do: to envelopes, to channels and what goes over them, to the toolbox of [Node.Toolbox] and the documents
// of [Agent.Document], and to negotiations and swarms, which use the router.
func New(o Options) (*Node, error) {
	if o.Router.Telemetry == nil {
		o.Router.Telemetry = telemetry.New(telemetry.Options{})
	}
	onError := o.Registry.OnError
	o.Registry.OnError = func(source string, err error) {
		event := telemetry.Event{Type: telemetry.ErrorEvent, Code: CodeDiscoveryFailed, Detail: source + ": " + err.Error()}
		if crash, panicked := errors.AsType[*fault.Panic](err); panicked {
			whose := "the discovery source " + source
			if source == "Options.Tiers" {
				whose = source + " of the registry"
			}
			event = telemetry.Panicked(whose, crash)
		}
		o.Router.Telemetry.Emit(event)
		if onError == nil {
			return
		}
		if crash := fault.Catch(func() { onError(source, err) }); crash != nil {
			o.Router.Telemetry.Emit(telemetry.Panicked("OnError of the registry", crash))
		}
	}
	n := &Node{trust: o.Trust, speaks: o.Speaks, joined: make(map[string]bool)}
	if announced := o.Registry.Announced; announced != nil {
		o.Registry.Announced = func(card agent.Card) agent.Card { return n.reachable(announced(card)) }
	} else {
		o.Registry.Announced = n.reachable
	}
	n.registry = registry.New(o.Registry)
	if n.trust == nil {
		n.trust = func(channel.Request, agent.Card) error { return nil }
	}
	c := o.Channels
	c.Resolve, c.Introduce, c.Ended = n.resolve, n.introduce, n.ended
	c.Authorize, c.Introduced = n.reporting(n.mayOpen), n.reporting(n.addPeerCard)
	c.Names, c.Policy, c.Local, c.Routed, c.Telemetry = names{n.registry}, rules{n}, n.isHere, true, o.Router.Telemetry
	n.channels = channel.NewManager(c, n.connect)
	o.Router.Forwarder = n.channels
	var err error
	if n.router, err = router.New(n.registry, o.Router); err != nil {
		return nil, errors.Join(err, n.channels.Close(), n.registry.Close())
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	return n, nil
}

// Registry returns the node's registry, for queries and discovery.
func (n *Node) Registry() *registry.Registry { return n.registry }

// Router returns the node's router, for its rules and to send envelopes.
func (n *Node) Router() *router.Router { return n.router }

// Channels returns the node's channels.
func (n *Node) Channels() *channel.Manager { return n.channels }

// Telemetry returns the recorder of the node's events.
func (n *Node) Telemetry() *telemetry.Recorder { return n.router.Telemetry() }

// Agent is a local agent, which sends like a [router.Port]. It is safe for concurrent use.
type Agent struct {
	*router.Port
	n    *Node
	left sync.Once
	gone chan struct{} // closed when the agent leaves
}

// Join registers a local agent; h handles its envelopes. Errors are [*registry.Error]s, with CodeConflict for the id of
// an agent that has joined and not left, and a [*router.Error] for a nil handler.
func (n *Node) Join(card agent.Card, h router.Handler) (*Agent, error) {
	if h == nil {
		return nil, &router.Error{Code: router.CodeInvalid, Subject: card.ID, Message: fmt.Sprintf("%q needs a handler for its envelopes, and it is nil", card.ID)}
	}
	if !n.reserve(card.ID) {
		return nil, &registry.Error{Code: registry.CodeConflict, Subject: card.ID,
			Message: fmt.Sprintf("an agent %q has joined already: take another id, or let that one leave first", card.ID)}
	}
	card.Origin = agent.Local
	_, err := n.registry.Register(card)
	var port *router.Port
	if err == nil {
		port, err = n.router.Attach(card.ID, h)
	}
	if err != nil {
		n.free(card.ID)
		return nil, err
	}
	return &Agent{Port: port, n: n, gone: make(chan struct{})}, nil
}

// reserve takes the id of an agent that joins, and reports whether it was free.
func (n *Node) reserve(id string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.joined[id] {
		return false
	}
	n.joined[id] = true
	return true
}

func (n *Node) free(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.joined, id)
}

// Leave removes the agent: it ends receiving, closes the agent's channels, unregisters its card and frees its id. A
// second call does nothing.
func (a *Agent) Leave() {
	a.left.Do(func() {
		close(a.gone)
		a.Close()
		for _, c := range a.n.channels.Channels() {
			if c.LocalAgent() == a.ID() {
				_ = c.Close() // returns nil
			}
		}
		a.n.registry.Unregister(a.ID())
		a.n.free(a.ID())
	})
}

// Toolbox returns a box for the tools that the node's agents share. Unless the options say otherwise, the rules of the
// node's router decide which tools an agent sees and may call, and the node's telemetry gets the events. What a served
// box shows follows the registry until the node closes; call [toolbox.Box.Refresh] after a change of the rules.
func (n *Node) Toolbox(o toolbox.Options) *toolbox.Box {
	if o.Policy == nil {
		o.Policy = n.router
	}
	if o.Telemetry == nil {
		o.Telemetry = n.Telemetry()
	}
	box := toolbox.New(o)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return box
	}
	changes := n.registry.Watch()
	n.serving.Go(func() {
		defer changes.Close()
		for {
			if _, err := changes.Next(n.ctx); err != nil {
				return
			}
			box.Refresh()
		}
	})
	return box
}

// Negotiator returns the agent's negotiator, whose proposals and answers obey the rules of the node's router. An agent
// has one.
func (a *Agent) Negotiator(o negotiation.Options) (*negotiation.Negotiator, error) {
	return negotiation.New(a.n.router, a.ID(), o)
}

// Coordinator returns a coordinator of swarms for the agent of a negotiator, under the rules of the node's router.
func (n *Node) Coordinator(by *negotiation.Negotiator, o swarm.CoordinatorOptions) *swarm.Coordinator {
	return swarm.NewCoordinator(n.router, by, o)
}

// Participant makes the agent of a negotiator take part in swarms, under the rules of the node's router.
func (n *Node) Participant(by *negotiation.Negotiator, work swarm.Worker, o swarm.ParticipantOptions) *swarm.Participant {
	return swarm.NewParticipant(n.router, by, work, o)
}

// Document returns the agent's replica of a document. Options.Agent is the agent; Options.Access counts only as far as
// the rules of the node's router permit the agents to address each other; and without Options.Telemetry the node's
// gets the events. Attach the agent's channels to it, and close it before the node.
func (a *Agent) Document(o replica.Options) (*replica.Replica, error) {
	granted := o.Access
	o.Agent = a.n.registry.AnnouncedID(a.ID(), "") // under which replicas elsewhere know it
	o.Access = func(who string) replica.Access {
		rights := a.permitted(who)
		if granted != nil {
			rights &= granted(who)
		}
		return rights
	}
	if o.Telemetry == nil {
		o.Telemetry = a.n.Telemetry()
	}
	return replica.New(o)
}

// permitted returns the rights in a document that the rules leave to an agent: to read, if this one may address it; to
// change, if it may address this one. The changes of an agent without a card come from one that may forward them.
func (a *Agent) permitted(who string) replica.Access {
	who = names{a.n.registry}.Inside(who)
	if who == a.ID() {
		return replica.Read | replica.Write | replica.Relay | replica.Keep
	}
	var rights replica.Access
	if a.n.router.Permit(a.ID(), who) == nil {
		rights |= replica.Read
	}
	switch err := a.n.router.Permit(who, a.ID()); {
	case err == nil:
		rights |= replica.Write | replica.Relay | replica.Keep
	case router.CodeOf(err) == router.CodeSenderUnknown:
		rights |= replica.Write
	}
	return rights
}

// Listen accepts channels from l until the node closes, and then closes l. Local agents without an endpoint in their
// card are introduced and announced with l's.
func (n *Node) Listen(l transport.Listener) error {
	if l == nil {
		return &channel.Error{Code: channel.CodeInvalid, Message: "the listener is nil"}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return errors.Join(errClosed, l.Close())
	}
	n.listeners = append(n.listeners, l)
	n.registry.Reannounce()
	n.serving.Go(func() {
		if err := n.channels.Serve(n.ctx, l); err != nil {
			n.Telemetry().Emit(telemetry.Event{Type: telemetry.ErrorEvent, Code: "LISTENER_FAILED", Detail: err.Error()})
		}
	})
	return nil
}

var errClosed = errors.New("the node is closed")

// Connect opens a channel from a local agent to a remote one, of which only the id and an endpoint need to be known:
// both ends exchange their agents' cards. It blocks until the channel is open or closed, or ctx ends. An agent with
// a known card, for instance from discovery, needs no Connect: the first envelope opens a channel. A channel between
// two agents of this node stays within the process; the endpoint is empty or one of the node's. The rules of tiers and
// sandboxes decide at both ends whether local may open the channel, and then about each envelope.
func (n *Node) Connect(ctx context.Context, local, remote string, at agent.Endpoint) (*channel.Channel, error) {
	remote = names{n.registry}.Inside(remote)
	c, err := n.channels.OpenAt(ctx, local, remote, at)
	if err != nil {
		return nil, err
	}
	if err := c.Ready(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// connect passes a new channel's envelopes to the router.
func (n *Node) connect(c *channel.Channel) {
	c.OnMessage(func(ctx context.Context, e *envelope.Envelope) {
		if _, isDocument := replica.DocumentOf(e); isDocument && !n.router.Claims(c.LocalAgent(), e) {
			return // for a replica that is not attached yet, or not any more; no handler can use it
		}
		receive := n.router.Receive
		if c.Own() {
			receive = n.router.ReceiveOwn
		}
		_, _ = receive(ctx, c.LocalAgent(), e) // the router reports its error
	})
}

// isLocal reports whether an agent is of this node.
func (n *Node) isLocal(id string) bool {
	known, ok := n.registry.Identity(id)
	return ok && known.Origin == agent.Local
}

// isHere reports whether the agent at an endpoint, which may be empty, is of this node.
func (n *Node) isHere(id string, at agent.Endpoint) bool {
	if !n.isLocal(id) {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return at.Address == "" || slices.ContainsFunc(n.listeners, func(l transport.Listener) bool { return l.Endpoint() == at })
}

// names are the ids of the node's agents for other programs: those that discovery announces. An agent that is addressed
// as NAME@KEY is one of another program, which may have an agent NAME of its own, so it gets the announced id.
type names struct{ registry *registry.Registry }

// Outside implements [channel.Names].
func (n names) Outside(local, remote string) string {
	if _, key := agent.SplitID(remote); key == "" {
		return local
	}
	return n.registry.AnnouncedID(local, n.registry.Source(remote))
}

// Inside implements [channel.Names].
func (n names) Inside(id string) string {
	if local, ok := n.registry.LocalID(id); ok {
		return local
	}
	return id
}

// rules are the router's rules for channels.
type rules struct{ n *Node }

// PermitChannel implements [channel.Policy].
func (r rules) PermitChannel(from, to string) error {
	err := r.n.router.PermitChannel(from, to)
	if router.CodeOf(err) == router.CodeSandboxViolation && r.n.isLocal(to) && !r.n.isLocal(from) {
		return noLocalAgent(to) // a peer's agent in a sandbox learns nothing of agents outside
	}
	return err
}

// PermitEnvelope implements [channel.Policy].
func (r rules) PermitEnvelope(to string, e *envelope.Envelope) error {
	return r.n.router.PermitEnvelope(to, e)
}

func noLocalAgent(id string) error { return absent("there is no local agent %q", id) }

// absent is the refusal of a channel that may be accepted later, for instance once this process has started.
func absent(format string, args ...any) error {
	return &channel.Error{Code: channel.CodeAbsent, Message: fmt.Sprintf(format, args...)}
}

// peerPrefix and a peer's name are the source of cards from a channel.
const peerPrefix = "peer:"

// ended removes the card of an agent from a channel when its last channel has ended.
func (n *Node) ended(c *channel.Channel) {
	n.cards.Lock()
	defer n.cards.Unlock()
	remote := c.RemoteAgent()
	source := n.registry.Source(remote)
	if !strings.HasPrefix(source, peerPrefix) {
		return // discovery manages the card
	}
	if len(n.channels.With(remote)) == 0 {
		n.registry.Lost(remote, source)
	}
}

func (n *Node) resolve(_ context.Context, id string) ([]agent.Endpoint, error) {
	card, err := n.registry.Get(id)
	return card.Endpoints, err
}

// CodePeerRefused is the code of the security event for a refused channel: to an agent
// that is not local, or from an agent that the peer may not speak for.
const CodePeerRefused = "PEER_REFUSED"

// CodeDiscoveryFailed is the code of the error event of a discovery source that fails,
// for instance because a hub does not answer.
const CodeDiscoveryFailed = "DISCOVERY_FAILED"

// reporting returns a function that decides about a channel and reports a refusal.
func (n *Node) reporting(decide func(channel.Request) error) func(context.Context, channel.Request) error {
	return func(_ context.Context, r channel.Request) error {
		err := decide(r)
		if err != nil {
			n.Telemetry().Emit(telemetry.Event{Type: telemetry.Security, Sender: r.From, Recipient: r.To, Code: CodePeerRefused, Detail: err.Error()})
		}
		return err
	}
}

// mayOpen decides about a channel before the card is known.
func (n *Node) mayOpen(r channel.Request) error {
	to, known := n.registry.Identity(r.To)
	if !known || to.Origin != agent.Local {
		return noLocalAgent(r.To)
	}
	if r.Own {
		if !n.isLocal(r.From) {
			return noLocalAgent(r.From)
		}
		return nil
	}
	if n.speaks == nil && !n.provesKey(r.Peer, r.From) {
		return fmt.Errorf("%q belongs to another key than this peer's", r.From)
	}
	if _, err := n.maySpeakFor(r); err != nil {
		return err
	}
	if _, known := n.registry.Identity(r.From); !known && len(r.Card) == 0 {
		return absent("%q must send its card", r.From)
	}
	return nil
}

// maySpeakFor returns an error if the agent is not the peer's. It reports whether the
// agent's card is from discovery.
func (n *Node) maySpeakFor(r channel.Request) (discovered bool, err error) {
	if n.speaks != nil {
		if err := n.speaks(r.Peer, r.From); err != nil {
			return false, err
		}
	}
	known, ok := n.registry.Identity(r.From)
	if !ok {
		return false, nil
	}
	source := n.registry.Source(r.From)
	switch {
	case known.Origin == agent.Local:
		return false, fmt.Errorf("a local agent already has the id %q", r.From)
	case strings.HasPrefix(source, peerPrefix) && source != peerPrefix+r.Peer:
		return false, fmt.Errorf("%q belongs to another peer", r.From)
	}
	return !strings.HasPrefix(source, peerPrefix), nil
}

// provesKey reports whether a peer that has proved a key, as on NATS and Hyperswarm, has that of an agent NAME@KEY or one
// of the keys at which the agent's hub says that it listens. It reports true for other peers and agents.
func (n *Node) provesKey(peer, agentID string) bool {
	_, key := agent.SplitID(agentID)
	if _, proved := agent.SplitID("peer@" + peer); key == "" || proved == "" || proved == key {
		return true
	}
	card, err := n.registry.Get(agentID)
	return err == nil && !strings.HasPrefix(n.registry.Source(agentID), peerPrefix) &&
		slices.ContainsFunc(card.Endpoints, func(at agent.Endpoint) bool { return strings.HasSuffix(at.Address, peer) })
}

// introduce returns a local agent's card for a peer that knows it by an id.
func (n *Node) introduce(id string) json.RawMessage {
	local, ok := n.registry.LocalID(id)
	card, err := n.registry.Get(local)
	if err != nil || !ok {
		return nil
	}
	card.ID = id
	data, _ := agent.Encode(n.reachable(card)) // of a valid card
	return data
}

// reachable returns a local agent's card for other programs: with the endpoints of the node's listeners, if it has none
// of its own and is not too large with them. If there are listeners that can be reached from anywhere, only these count.
func (n *Node) reachable(card agent.Card) agent.Card {
	if len(card.Endpoints) > 0 {
		return card
	}
	n.mu.Lock()
	var all, anywhere []agent.Endpoint
	for _, l := range n.listeners {
		all = append(all, l.Endpoint())
		if t := l.Endpoint().Transport; t == agent.TransportNATS || t == agent.TransportHyperswarm {
			anywhere = append(anywhere, l.Endpoint())
		}
	}
	n.mu.Unlock()
	listed := card
	if listed.Endpoints = all; len(anywhere) > 0 {
		listed.Endpoints = anywhere
	}
	if _, err := agent.Encode(listed); err != nil {
		return card
	}
	return listed
}

// addPeerCard stores a peer's card in the registry until its channels close.
func (n *Node) addPeerCard(r channel.Request) error {
	if r.Own {
		return nil // it is registered
	}
	card, err := agent.Decode(r.Card)
	if err != nil {
		return err
	}
	if card.ID != r.From {
		return fmt.Errorf("the card of %q is that of %q", r.From, card.ID)
	}
	discovered, err := n.maySpeakFor(r)
	if err != nil {
		return err
	}
	if err := n.trust(r, card); err != nil {
		return err
	}
	if discovered {
		return nil
	}
	n.cards.Lock()
	defer n.cards.Unlock()
	_, err = n.registry.Hold(card, peerPrefix+r.Peer)
	return err
}

// Close closes listeners and channels, then the router and the registry. It waits for running handlers, at most
// until ctx ends; do not call it from one. It is safe to call more than once.
func (n *Node) Close(ctx context.Context) error {
	n.mu.Lock()
	n.closed = true
	listeners := n.listeners
	n.listeners = nil
	n.mu.Unlock()
	n.cancel()
	var errs []error
	for _, l := range listeners {
		errs = append(errs, l.Close())
	}
	errs = append(errs, n.channels.Close(), n.router.Close(ctx), n.registry.Close())
	n.serving.Wait()
	return errors.Join(errs...)
}
