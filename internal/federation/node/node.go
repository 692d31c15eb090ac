// Package node gives the hub's agents to the coordination library: each is a card
// in a registry, and an envelope that is sent to one runs a task on it, the way
// that every task runs.
//
// The cards are kept true. An agent that cannot take a task, because its program
// is missing or its circuit is open, keeps its card but offers no capabilities,
// so that nobody who asks for a capability is sent to it; one who asks for the
// agent itself is told why it cannot.
//
// Programs with the library, package parley, reach the agents over WebSocket at
// [Path], and find them at [CardsPath]. What envelopes say to an agent and it to
// them is described in docs/coordination.md.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	hubcards "github.com/parleyhub/parley/discovery/hub"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/tools/delegation"
	"github.com/parleyhub/parley/registry"
	"github.com/parleyhub/parley/router"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/websocket"
)

// Where peers reach the node on the hub's HTTP server.
const (
	Path      = hubcards.Path
	CardsPath = hubcards.CardsPath
)

// Options set up a Node. Hub is needed.
type Options struct {
	Hub *hub.Hub
	// Version is the hub's; it stands on the card of an agent whose own is not known.
	Version string
	// PeerTier is the highest tier that agents of other processes may have here;
	// NoTier means L2.
	PeerTier agent.Tier
	// CrossSandbox are agents that those in any sandbox may address.
	CrossSandbox []string
	// Audit keeps decisions, deliveries between tiers and refusals; nil: nothing
	// does. It must outlive the node.
	Audit router.Auditor
	// Swarms has the hub coordinate swarms; nil: its agents only take part in
	// those of others.
	Swarms *SwarmOptions
	Logger *slog.Logger // nil discards
	// Network makes it a node for other hubs instead of one for programs that come
	// over HTTP; nil: the latter.
	Network *Network
}

// Network is how a node meets other hubs.
type Network struct {
	// Name returns the id under which other hubs know an agent of this one.
	Name func(agentID string) string
	// Here is the reverse: what an agent of any hub is called at this one.
	Here func(id string) string
	// Dialers lead to other hubs.
	Dialers map[agent.Transport]transport.Dialer
	// Listeners let them in. The node closes them.
	Listeners []transport.Listener
	// Sources find their agents and announce this hub's, by name.
	Sources map[string]registry.Source
	// Speaks decides for which agents a peer may speak; see [parley.Options].
	Speaks func(peer, agentID string) error
	// RemoteTTL is how long the card of another hub's agent stays after it was last
	// seen.
	RemoteTTL time.Duration
	// Closed is told of each channel that has closed; nil: nobody. It must not block.
	Closed func(local, remote string)
}

// Bounds of what peers can use.
const (
	maxConns    = 1024
	maxChannels = 10_000
	maxCards    = 20_000
	maxWork     = 2048 // envelopes whose answers are under way
	maxLogged   = 60   // warnings or errors of one type in the log, in a minute
)

// Node is the hub's agents as cards. Make one with [Open] and [Node.Close] it in
// the end, after the hub. It is safe for concurrent use.
type Node struct {
	hub      *hub.Hub
	version  string
	peerTier agent.Tier
	audit    router.Auditor
	log      *slog.Logger
	node     *parley.Node
	network  *Network            // nil of one for programs
	listener *websocket.Listener // nil of one for hubs
	swarms   *Swarms             // nil without Options.Swarms

	changed chan struct{} // holds one if the agents may have changed
	stop    context.CancelFunc
	watcher sync.WaitGroup
	slots   chan struct{} // of maxWork

	mu       sync.Mutex
	desks    map[string]*desk // by agent
	endpoint string           // where peers reach the node; "" while nobody can
	work     sync.WaitGroup   // of answers under way; counted up under mu
	closed   bool
}

// Open makes a node of the agents of a hub. Nobody can reach it before
// [Node.Mount].
func Open(o Options) (*Node, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.PeerTier == agent.NoTier {
		o.PeerTier = agent.L2
	}
	n := &Node{
		hub: o.Hub, version: o.Version, peerTier: o.PeerTier, audit: o.Audit, log: o.Logger,
		changed: make(chan struct{}, 1), slots: make(chan struct{}, maxWork), desks: make(map[string]*desk),
	}
	n.network = o.Network
	var err error
	if n.node, err = parley.New(n.options(&o)); err != nil {
		return nil, fmt.Errorf("open the node: %w", err)
	}
	if n.network != nil {
		err = n.openNetwork()
	} else {
		err = n.openListener()
	}
	if err != nil {
		return nil, errors.Join(err, n.node.Close(context.Background()))
	}
	n.sync()
	if o.Swarms != nil { // with the agents there, since it may have work for them at once
		if n.swarms, err = n.openSwarms(*o.Swarms); err != nil {
			n.CloseSwarms()
			return nil, errors.Join(err, n.node.Close(context.Background()))
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	n.stop = stop
	n.watcher.Go(func() { n.watch(ctx) })
	n.hub.OnAgents(n.wake)
	n.wake() // what changed before
	return n, nil
}

func (n *Node) options(o *Options) parley.Options {
	sinks := []telemetry.Sink{telemetry.Limit(telemetry.Logger(o.Logger), maxLogged, time.Minute), telemetry.SinkFunc(n.auditRest)}
	p := parley.Options{
		Registry: registry.Options{MaxCards: maxCards},
		Router: router.Options{
			Sandbox: &router.SandboxConfig{Enforced: true, CrossSandboxAllowList: o.CrossSandbox},
			Audit:   o.Audit,
		},
		Channels: channel.Options{MaxChannels: maxChannels},
		Trust:    n.trust,
	}
	if o.Network != nil {
		p.Registry.RemoteTTL, p.Channels.Dialers, p.Speaks = o.Network.RemoteTTL, o.Network.Dialers, o.Network.Speaks
		sinks = append(sinks, telemetry.SinkFunc(n.followChannels))
	}
	p.Router.Telemetry = telemetry.New(telemetry.Options{Sinks: sinks})
	return p
}

// openListener lets programs in over HTTP.
func (n *Node) openListener() error {
	n.listener = websocket.NewListener(websocket.ListenOptions{
		// The hub's HTTP server has checked Host, Origin and token: all that come this
		// far hold the same token and are one peer.
		Authenticate: func(*http.Request) (string, error) { return "http", nil },
		MaxConns:     maxConns,
		OnRefuse: func(_ *http.Request, reason error) {
			n.log.Info("a connection of a peer was refused", "reason", reason)
		},
	})
	return n.node.Listen(n.listener)
}

// openNetwork lets other hubs in, and looks for their agents.
func (n *Node) openNetwork() error {
	var errs []error
	for _, l := range n.network.Listeners {
		errs = append(errs, n.node.Listen(l))
	}
	for name, s := range n.network.Sources {
		errs = append(errs, n.Registry().EnableDiscovery(name, s))
	}
	return errors.Join(errs...)
}

// followChannels tells the network of channels that have closed.
func (n *Node) followChannels(e telemetry.Event) {
	if n.network.Closed != nil && e.Type == telemetry.ChannelState && e.Detail == string(channel.Closed) {
		n.network.Closed(e.Sender, e.Recipient)
	}
}

// Join adds an agent that is not the hub's own, under an id that none of those has.
func (n *Node) Join(card agent.Card, h router.Handler) (*parley.Agent, error) {
	if n.network != nil && len(card.Endpoints) == 0 {
		card.Endpoints = n.endpoints()
	}
	return n.node.Join(card, h)
}

// Channels returns the channels to other processes.
func (n *Node) Channels() *channel.Manager { return n.node.Channels() }

// Mount adds what peers need to an HTTP server that checks who they are.
func (n *Node) Mount(mount func(pattern string, h http.Handler)) {
	mount("GET "+Path, n.listener)
	mount("GET "+CardsPath, http.HandlerFunc(n.serveCards))
}

// Announce puts into the cards where peers reach the node: the URL of the HTTP
// server in which it is mounted, "http://127.0.0.1:8080".
func (n *Node) Announce(baseURL string) error {
	at, err := hubcards.Endpoint(baseURL)
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.endpoint = at.Address
	n.mu.Unlock()
	n.wake()
	return nil
}

// Parley returns the node of the library, for those who join agents to it.
func (n *Node) Parley() *parley.Node { return n.node }

// Registry returns the cards.
func (n *Node) Registry() *registry.Registry { return n.node.Registry() }

// Telemetry returns where the node's events go.
func (n *Node) Telemetry() *telemetry.Recorder { return n.node.Telemetry() }

// trust decides which agents of other processes come in.
//
// One that the agent which it wants could not answer hears it here: later on, the
// same rules would keep the hub from telling it.
func (n *Node) trust(r channel.Request, card agent.Card) error {
	if card.Tier < n.peerTier {
		return fmt.Errorf("this hub takes agents of other processes from tier %v on, and %q is of %v; node.peerTier in its config.yaml says so",
			n.peerTier, card.ID, card.Tier)
	}
	return n.mayAnswer(r.To, card.Identity())
}

// mayAnswer returns nil if the rules let an agent of the hub address somebody.
func (n *Node) mayAnswer(id string, to agent.Identity) error {
	from, known := n.Registry().Identity(id)
	if !known {
		return fmt.Errorf("there is no agent %q here", id)
	}
	if err := n.node.Router().MayAddress(from, to); err != nil {
		return fmt.Errorf("%s could not answer: %w", id, err)
	}
	return nil
}

// auditRest audits what the router does not: calls of tools, refused delegations,
// and refused channels.
func (n *Node) auditRest(e telemetry.Event) {
	refused := e.Type == telemetry.Security && (e.ChannelID != "" || e.Code == parley.CodePeerRefused || e.Code == delegation.CodeRefused)
	if n.audit == nil || !refused && e.Type != telemetry.ToolInvocation {
		return
	}
	if err := n.audit.Append(e, nil); err != nil {
		n.log.Error("an event could not be audited", "type", e.Type, "error", err)
	}
}

// wake has the cards looked through. It never blocks.
func (n *Node) wake() {
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

func (n *Node) watch(ctx context.Context) {
	for {
		select {
		case <-n.changed:
			n.sync()
		case <-ctx.Done():
			return
		}
	}
}

// sync makes the cards what the hub's agents are now. One goroutine at a time
// calls it.
func (n *Node) sync() {
	endpoints := n.endpoints()
	present := make(map[string]bool)
	for _, info := range n.hub.Agents() {
		id := info.Definition.ID
		if n.network != nil {
			if info.Definition.Driver == runner.DriverPeer {
				continue // who wants it asks its own hub
			}
			id = n.network.Name(id)
		}
		present[id] = true
		if err := n.present(cardOf(info, id, n.version, endpoints), info.Definition.ID); err != nil {
			n.log.Error("an agent has no card", "agent", id, "error", err)
		}
	}
	for _, d := range n.all() {
		if !present[d.id] {
			d.leaveSwarms()
			d.access.Leave()
			n.mu.Lock()
			delete(n.desks, d.id)
			n.mu.Unlock()
		}
	}
}

// endpoints are where peers reach the node.
func (n *Node) endpoints() []agent.Endpoint {
	if n.network == nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.endpoint == "" {
			return nil
		}
		return []agent.Endpoint{{Transport: agent.TransportWebSocket, Address: n.endpoint}}
	}
	var all []agent.Endpoint
	for _, l := range n.network.Listeners {
		all = append(all, l.Endpoint())
	}
	return all
}

func (n *Node) all() []*desk {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Collect(maps.Values(n.desks))
}

// present registers an agent's card, unless it is as it was.
func (n *Node) present(card agent.Card, agentID string) error {
	n.mu.Lock()
	d := n.desks[card.ID]
	n.mu.Unlock()
	if d == nil {
		d = &desk{n: n, id: card.ID, agent: agentID, offers: make(map[offerKey]undertaking)}
		access, err := n.node.Join(card, d.handle)
		if err != nil {
			return err
		}
		d.access, d.card = access, card
		if err := d.joinSwarms(); err != nil {
			access.Leave()
			return err
		}
		n.mu.Lock()
		n.desks[card.ID] = d
		n.mu.Unlock()
		return nil
	}
	if d.card.Equal(card) {
		return nil
	}
	if _, err := n.Registry().Register(card); err != nil {
		return err
	}
	d.card = card
	return nil
}

// begin takes a place for an answer; it waits for one until ctx ends. The caller
// calls end if it is true.
func (n *Node) begin(ctx context.Context) bool {
	select {
	case n.slots <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		<-n.slots
		return false
	}
	n.work.Add(1)
	return true
}

func (n *Node) end() {
	<-n.slots
	n.work.Done()
}

// Close ends the node: answers that are due are given, at most until ctx ends,
// then channels are closed. Close the hub before, so that they are due. A second
// call does nothing.
func (n *Node) Close(ctx context.Context) error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	n.mu.Unlock()
	n.stop()
	n.watcher.Wait()
	n.CloseSwarms()
	answered := make(chan struct{})
	go func() { // ends at the latest when the router has ended the answers' context
		n.work.Wait()
		close(answered)
	}()
	select {
	case <-answered:
		n.flush(ctx)
	case <-ctx.Done():
	}
	err := n.node.Close(ctx)
	<-answered
	return err
}

// flushTime is how long peers may take to handle the last answers.
const flushTime = 2 * time.Second

// flush waits until peers have handled what was sent to them: closing a channel
// drops the rest.
func (n *Node) flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, flushTime)
	defer cancel()
	var peers sync.WaitGroup
	for _, c := range n.node.Channels().Channels() {
		peers.Go(func() {
			if err := c.Flush(ctx); err != nil {
				n.log.Info("a peer may not have heard the last answer", "agent", c.LocalAgent(), "peer", c.RemoteAgent(), "error", err)
			}
		})
	}
	peers.Wait()
}

// refused records that an agent did not work for somebody to whom it could not
// answer.
func (n *Node) refused(d *desk, e *envelope.Envelope, cause error) {
	event := telemetry.Of(telemetry.Security, e)
	event.Target, event.Code = d.id, string(router.CodeOf(cause))
	event.Detail = "no task was begun: " + cause.Error()
	n.Telemetry().Emit(event)
	if n.audit == nil {
		return
	}
	if err := n.audit.Append(event, nil); err != nil {
		n.log.Error("a refusal could not be audited", "error", err)
	}
}
