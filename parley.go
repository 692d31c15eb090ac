// Package parley puts the coordination library together: a [Node] is a registry,
// a router and channels, wired so that agents of this process and of others
// exchange envelopes.
//
//	node, err := parley.New(parley.Options{})
//	venus, err := node.Join(card, func(ctx context.Context, e *envelope.Envelope) { … })
//	result, err := venus.Send(ctx, "mars", envelope.Request, "are you there?")
//
// For agents of other processes give the node dialers and listeners:
//
//	node.Listen(listener)                       // let others in
//	node.Connect(ctx, "venus", "mars", endpoint) // go there
//
// The parts can be had alone, too: see the packages agent, envelope, registry,
// router, channel, transport and telemetry.
package parley

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/registry"
	"github.com/parleyhub/parley/router"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/transport"
)

// Options set up a Node. The zero Options make one without a way out of this
// process.
type Options struct {
	// Registry sets up the registry: how long remote cards stay, how many there
	// may be.
	Registry registry.Options
	// Router sets up the router. The node sets its Forwarder.
	Router router.Options
	// Channels sets up the channels. Dialers is what reaches other processes. The
	// node sets Resolve, Authorize, Introduce, Introduced, Ended and Telemetry.
	Channels channel.Options
	// Trust decides whether a peer may bring in an agent with this card, for a
	// channel to the local agent r.To; r.Peer is who the transport says it is. The
	// text of its error reaches the peer. It is asked after the node's own rules,
	// which keep a peer from taking the id of a local agent or of another peer's.
	// Nil trusts every peer that the transport lets in: for its tier and sandbox,
	// an agent's own card is then believed.
	Trust func(r channel.Request, card agent.Card) error
	// Speaks decides whether a peer, as the transport names it, may speak for an agent
	// of elsewhere: of every channel at either end, also where discovery knows the
	// agent and no card was sent. Nil believes every peer that the transport lets in.
	Speaks func(peer, agentID string) error
}

// Node is the agents of one process and their ways to others. Make one with
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
	cards    sync.Mutex // held while a peer's card comes or goes

	mu        sync.Mutex
	listeners []transport.Listener
	closed    bool
}

// New returns a node. It fails only for tier rules that make no sense.
func New(o Options) (*Node, error) {
	if o.Router.Telemetry == nil {
		o.Router.Telemetry = telemetry.New(telemetry.Options{})
	}
	told := o.Registry.OnError
	o.Registry.OnError = func(source string, err error) {
		o.Router.Telemetry.Emit(telemetry.Event{Type: telemetry.ErrorEvent, Code: CodeDiscoveryFailed, Detail: source + ": " + err.Error()})
		if told != nil {
			told(source, err)
		}
	}
	n := &Node{trust: o.Trust, speaks: o.Speaks, registry: registry.New(o.Registry)}
	if n.trust == nil {
		n.trust = func(channel.Request, agent.Card) error { return nil }
	}
	c := o.Channels
	c.Resolve, c.Authorize, c.Introduce, c.Introduced, c.Ended = n.resolve, n.authorize, n.introduce, n.introduced, n.forget
	c.Telemetry = telemetry.SinkFunc(func(e telemetry.Event) {
		if e.Type != telemetry.MessageSent && e.Type != telemetry.MessageReceived { // the router counts these
			o.Router.Telemetry.Emit(e)
		}
	})
	n.channels = channel.NewManager(c, n.adopt)
	o.Router.Forwarder = n.channels
	var err error
	if n.router, err = router.New(n.registry, o.Router); err != nil {
		return nil, errors.Join(err, n.channels.Close(), n.registry.Close())
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	return n, nil
}

// Registry returns the node's registry: for queries, changes and discovery.
func (n *Node) Registry() *registry.Registry { return n.registry }

// Router returns the node's router: for its rules, and to send any envelope.
func (n *Node) Router() *router.Router { return n.router }

// Channels returns the node's channels.
func (n *Node) Channels() *channel.Manager { return n.channels }

// Telemetry returns where the node's events go.
func (n *Node) Telemetry() *telemetry.Recorder { return n.router.Telemetry() }

// Agent is a local agent's access to the others: see [router.Port] for how it
// sends. It is safe for concurrent use.
type Agent struct {
	*router.Port
	n *Node
}

// Join registers a local agent; h gets what arrives for it. Errors are
// [*registry.Error]s.
func (n *Node) Join(card agent.Card, h router.Handler) (*Agent, error) {
	card.Origin = agent.Local
	if _, err := n.registry.Register(card); err != nil {
		return nil, err
	}
	port, err := n.router.Attach(card.ID, h)
	if err != nil {
		return nil, err
	}
	return &Agent{Port: port, n: n}, nil
}

// Leave takes the agent out: nothing arrives any more, its channels close and its
// card goes.
func (a *Agent) Leave() {
	a.Close()
	for _, c := range a.n.channels.Channels() {
		if c.LocalAgent() == a.ID() {
			_ = c.Close() // returns nil
		}
	}
	a.n.registry.Unregister(a.ID())
}

// Listen lets peers in over l until the node closes, and then closes l. Local
// agents whose cards name no endpoint are introduced with that of l.
func (n *Node) Listen(l transport.Listener) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return errors.Join(errClosed, l.Close())
	}
	n.listeners = append(n.listeners, l)
	n.serving.Go(func() {
		if err := n.channels.Serve(n.ctx, l); err != nil {
			n.Telemetry().Emit(telemetry.Event{Type: telemetry.ErrorEvent, Code: "LISTENER_FAILED", Detail: err.Error()})
		}
	})
	return nil
}

var errClosed = errors.New("the node is closed")

// Connect opens a channel from a local agent to one elsewhere, of which only the
// id and an endpoint need to be known: the two introduce themselves with their
// cards, and each end's router then knows the other's agent. It blocks until the
// channel is open, closed or ctx ends. An agent whose card is known, by
// discovery say, needs no Connect: the first envelope opens a channel.
func (n *Node) Connect(ctx context.Context, local, remote string, at agent.Endpoint) (*channel.Channel, error) {
	c, err := n.channels.OpenAt(ctx, local, remote, at)
	if err != nil {
		return nil, err
	}
	if err := c.Ready(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// adopt wires a new channel to the router.
func (n *Node) adopt(c *channel.Channel) {
	c.OnMessage(func(ctx context.Context, e *envelope.Envelope) {
		// Its error is an event of the router's; the channel has nobody to tell.
		_, _ = n.router.Receive(ctx, c.LocalAgent(), e)
	})
}

// peerPrefix marks cards that came over a channel, by the peer's name.
const peerPrefix = "peer:"

// forget drops the card of an agent that came over a channel, when its last
// channel has ended.
func (n *Node) forget(c *channel.Channel) {
	n.cards.Lock() // a new channel's card comes after its look, or before
	defer n.cards.Unlock()
	remote := c.RemoteAgent()
	source := n.registry.Source(remote)
	if !strings.HasPrefix(source, peerPrefix) {
		return // discovery looks after it
	}
	if len(n.channels.With(remote)) == 0 {
		n.registry.Lost(remote, source)
	}
}

// resolve returns where an agent can be reached.
func (n *Node) resolve(_ context.Context, id string) ([]agent.Endpoint, error) {
	card, err := n.registry.Get(id)
	return card.Endpoints, err
}

// CodePeerRefused is the code of the security event of a channel that was not
// taken: for an agent that is not here, or in the name of one that the peer may
// not bring.
const CodePeerRefused = "PEER_REFUSED"

// CodeDiscoveryFailed is the code of the error event of a discovery source that
// failed: a hub that does not answer, or wants another token.
const CodeDiscoveryFailed = "DISCOVERY_FAILED"

// refused records that a peer's channel is not taken, if err says so.
func (n *Node) refused(r channel.Request, err error) error {
	if err != nil {
		n.Telemetry().Emit(telemetry.Event{Type: telemetry.Security, Sender: r.From, Recipient: r.To, Code: CodePeerRefused, Detail: err.Error()})
	}
	return err
}

// authorize decides on a channel by what is known without a card.
func (n *Node) authorize(_ context.Context, r channel.Request) error {
	return n.refused(r, n.mayOpen(r))
}

func (n *Node) mayOpen(r channel.Request) error {
	to, known := n.registry.Identity(r.To)
	if !known || to.Origin != agent.Local {
		return fmt.Errorf("there is no agent %q here", r.To)
	}
	if _, err := n.mayBring(r); err != nil {
		return err
	}
	if _, known := n.registry.Identity(r.From); !known && len(r.Card) == 0 {
		return fmt.Errorf("%q must introduce itself with its card", r.From)
	}
	return nil
}

// mayBring keeps a peer from speaking for an agent of somebody else. It reports
// whether discovery knows the agent, whose card then stands.
func (n *Node) mayBring(r channel.Request) (discovered bool, err error) {
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
		return false, fmt.Errorf("%q is an agent of this process", r.From)
	case strings.HasPrefix(source, peerPrefix) && source != peerPrefix+r.Peer:
		return false, fmt.Errorf("%q came with another peer", r.From)
	}
	return !strings.HasPrefix(source, peerPrefix), nil
}

// introduce returns a local agent's card for its peers.
func (n *Node) introduce(id string) json.RawMessage {
	card, err := n.registry.Get(id)
	if err != nil || card.Origin != agent.Local {
		return nil
	}
	if len(card.Endpoints) == 0 {
		n.mu.Lock()
		for _, l := range n.listeners {
			card.Endpoints = append(card.Endpoints, l.Endpoint())
		}
		n.mu.Unlock()
	}
	data, err := agent.Encode(card)
	if err != nil {
		return nil // too large with its endpoints: it goes without an introduction
	}
	return data
}

// introduced takes a peer's card into the registry, until its channels close.
func (n *Node) introduced(_ context.Context, r channel.Request) error {
	return n.refused(r, n.bring(r))
}

func (n *Node) bring(r channel.Request) error {
	card, err := agent.Decode(r.Card)
	if err != nil {
		return err
	}
	if card.ID != r.From {
		return fmt.Errorf("the card of %q is that of %q", r.From, card.ID)
	}
	discovered, err := n.mayBring(r)
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

// Close closes listeners and channels, then the router and the registry. It waits
// for receivers that are running, at most until ctx ends; do not call it from
// one. It is safe to call more than once.
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
