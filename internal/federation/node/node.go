// Package node makes the hub's agents reachable for the coordination library: each
// has a card in a registry, and an envelope to it runs a task.
//
// The cards follow the agents' health. An unhealthy agent keeps its card without capabilities, so that searches for
// a capability skip it; requests to the agent itself are answered with the reason.
//
// Programs with the library, package parley, connect over WebSocket at [Path] and
// read the cards at [CardsPath]. docs/coordination.md describes the payloads.
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	hubcards "github.com/parleyhub/parley/discovery/hub"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/mcp/delegation"
	"github.com/parleyhub/parley/registry"
	"github.com/parleyhub/parley/router"
	"github.com/parleyhub/parley/tasks"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/websocket"
)

// The node's paths on the hub's HTTP server.
const (
	Path      = hubcards.Path
	CardsPath = hubcards.CardsPath
)

// Options are those of [Open]. Hub is required.
type Options struct {
	Hub *hub.Hub
	// Version is the hub's. It is on the cards of agents whose own is unknown.
	Version string
	// PeerTier is the highest tier that agents of other processes may have here; NoTier means L2.
	PeerTier agent.Tier
	// CrossSandbox are agents that may be addressed from any sandbox.
	CrossSandbox []string
	// Audit records decisions, deliveries between tiers and refusals; nil records nothing. It must outlive the node.
	Audit router.Auditor
	// Swarms makes the hub coordinate swarms; with nil its agents only take part in others'.
	Swarms *SwarmOptions
	Logger *slog.Logger // nil discards
	// Channels follows the channels to other processes and hubs.
	Channels ChannelWatcher
	// Federation makes the node serve other hubs instead of programs over HTTP.
	Federation *Federation
}

// Federation are the options of a node for other hubs.
type Federation struct {
	// GlobalID returns the id by which other hubs know an agent of this one.
	GlobalID func(agentID string) string
	// LocalID is the reverse: the id at this hub of an agent of any hub.
	LocalID func(id string) string
	// Dialers connect to other hubs.
	Dialers map[agent.Transport]transport.Dialer
	// Listeners accept connections of other hubs. The node closes them.
	Listeners []transport.Listener
	// Sources, by name, find their agents and announce this hub's.
	Sources map[string]registry.Source
	// Speaks returns an error unless a peer may speak for an agent; see [parley.Options].
	Speaks func(peer, agentID string) error
	// RemoteTTL is how long another hub's card stays after it was last seen.
	RemoteTTL time.Duration
}

// ChannelWatcher has functions that are called with the agents of a channel, of which the first is this node's. Nil ones are
// not called. They must not block.
type ChannelWatcher struct {
	Closed func(local, remote string) // the channel is closed
	// Reopened is called for each channel that is open again after it has broken. The other end may have started again
	// meanwhile.
	Reopened func(local, remote string)
	Changed  func(local, remote string) // after each change of the channel's state
}

// syncPause bounds how often the cards are compared with the agents: a thousand of them may change at once.
const syncPause = 50 * time.Millisecond

// Bounds of what other processes and hubs can use.
const (
	maxConns    = 1024
	maxChannels = 10_000
	maxCards    = 20_000
	maxWork     = 2048    // envelopes that are being answered
	maxThreads  = 8 << 20 // bytes of the envelopes that are kept by thread
	maxLogged   = 60      // log lines of one type in a minute
)

// Node serves the hub's agents with the library's node. [Open] returns one; [Node.Close]
// it after the hub. It is safe for concurrent use.
type Node struct {
	*parley.Node
	o        Options
	listener *websocket.Listener // nil in a node for hubs
	swarms   *Swarms             // nil without Options.Swarms
	leaving  atomic.Bool         // CloseSwarms was called
	opened   chan struct{}       // closed after swarms is set
	began    time.Time

	open    context.Context // ends when Close begins
	changed chan struct{}   // buffers one change of the agents
	stop    context.CancelFunc
	watcher sync.WaitGroup
	slots   chan struct{} // of maxWork answers

	mu         sync.Mutex
	responders map[string]*responder // by agent
	broken     map[string]bool       // ids of channels that reconnect
	endpoint   string                // of the listener; "" before Announce
	work       sync.WaitGroup        // answers in progress; added to under mu
	closed     bool
}

// Open returns a node for the agents of a hub. Programs can connect after [Node.Mount].
func Open(o Options) (*Node, error) {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.PeerTier == agent.NoTier {
		o.PeerTier = agent.L2
	}
	n := &Node{o: o, began: time.Now(), changed: make(chan struct{}, 1), slots: make(chan struct{}, maxWork), opened: make(chan struct{}), responders: make(map[string]*responder), broken: make(map[string]bool)}
	var ctx context.Context
	ctx, n.stop = context.WithCancel(context.Background())
	n.open = ctx
	var err error
	if n.Node, err = parley.New(n.options()); err != nil {
		return nil, fmt.Errorf("open the node: %w", err)
	}
	if n.o.Federation != nil {
		err = n.openFederation()
	} else {
		err = n.openListener()
	}
	if err != nil {
		return nil, errors.Join(err, n.Node.Close(context.Background()))
	}
	n.sync()
	if o.Swarms != nil { // after the agents, since it may have work for them at once
		if n.swarms, err = n.openSwarms(*o.Swarms); err != nil {
			n.CloseSwarms()
			return nil, errors.Join(err, n.Node.Close(context.Background()))
		}
	}
	close(n.opened)
	n.watcher.Go(func() { n.watch(ctx) })
	n.o.Hub.OnAgents(n.wake)
	n.wake() // for earlier changes
	return n, nil
}

func (n *Node) options() parley.Options {
	o := &n.o
	sinks := []telemetry.Sink{telemetry.Limit(telemetry.Logger(o.Logger), maxLogged, time.Minute), telemetry.SinkFunc(n.auditRest)}
	p := parley.Options{
		Registry: registry.Options{MaxCards: maxCards},
		Router: router.Options{
			Sandbox: &router.SandboxConfig{Enforced: true, CrossSandboxAllowList: append([]string{tasks.Hub}, o.CrossSandbox...)},
			Audit:   o.Audit,
			Prepare: n.prepare,
			Threads: &envelope.Threads{MaxBytes: maxThreads},
		},
		Channels: channel.Options{MaxChannels: maxChannels},
		Trust:    n.trust,
	}
	if o.Federation != nil {
		p.Registry.RemoteTTL, p.Channels.Dialers, p.Speaks = o.Federation.RemoteTTL, o.Federation.Dialers, o.Federation.Speaks
	}
	sinks = append(sinks, telemetry.SinkFunc(n.followChannels))
	p.Router.Telemetry = telemetry.New(telemetry.Options{Sinks: sinks})
	return p
}

// openListener accepts programs over HTTP.
func (n *Node) openListener() error {
	n.listener = websocket.NewListener(websocket.ListenOptions{
		// The hub's HTTP server has checked Host, Origin and token. All programs have the
		// same token, so they are one peer.
		Authenticate: func(*http.Request) (string, error) { return "http", nil },
		MaxConns:     maxConns,
		OnRefuse: func(_ *http.Request, reason error) {
			n.o.Logger.Info("a program's connection was refused", "reason", reason)
		},
	})
	return n.Listen(n.listener)
}

// openFederation accepts other hubs and discovers their agents.
func (n *Node) openFederation() error {
	var errs []error
	for _, l := range n.o.Federation.Listeners {
		errs = append(errs, n.Listen(l))
	}
	for name, s := range n.o.Federation.Sources {
		errs = append(errs, n.Registry().EnableDiscovery(name, s))
	}
	return errors.Join(errs...)
}

// followChannels reports channels that have closed or are open again.
func (n *Node) followChannels(e telemetry.Event) {
	if e.Type != telemetry.ChannelState {
		return
	}
	state := channel.Status(e.Detail)
	n.mu.Lock()
	broken := n.broken[e.ChannelID]
	delete(n.broken, e.ChannelID)
	if state == channel.Reconnecting {
		n.broken[e.ChannelID] = true
	}
	n.mu.Unlock()
	if f := n.o.Channels.Reopened; state == channel.Open && broken && f != nil {
		f(e.Sender, e.Recipient)
	}
	if f := n.o.Channels.Closed; state == channel.Closed && f != nil {
		f(e.Sender, e.Recipient)
	}
	if f := n.o.Channels.Changed; f != nil {
		f(e.Sender, e.Recipient)
	}
}

// Join adds an agent that is not the hub's own. Its id must be free. Other hubs see the run of this one in its card; see [RunOf].
func (n *Node) Join(card agent.Card, h router.Handler) (*parley.Agent, error) {
	if n.o.Federation != nil {
		card.Protocols = append(slices.Clip(card.Protocols), runMark+n.Channels().Instance())
		if len(card.Endpoints) == 0 {
			card.Endpoints = n.endpoints()
		}
	}
	return n.Node.Join(card, h)
}

// Mount adds the node's handlers to an HTTP server, which must authenticate requests.
func (n *Node) Mount(mount func(pattern string, h http.Handler)) {
	mount("GET "+Path, n.listener)
	mount("GET "+CardsPath, http.HandlerFunc(n.serveCards))
}

// Announce sets the endpoint in the cards to the HTTP server in which the node is
// mounted, such as "http://127.0.0.1:8080".
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

// Parley returns the library's node.
func (n *Node) Parley() *parley.Node { return n.Node }

// trust admits an agent of another process, or returns why not. It refuses a caller that the wanted agent may not
// answer: the same rules would later block the hub's error envelope.
func (n *Node) trust(r channel.Request, card agent.Card) error {
	if card.Tier < n.o.PeerTier {
		return fmt.Errorf("this hub admits agents of other processes from tier %v on, and %q has %v; see node.peerTier in its config.yaml",
			n.o.PeerTier, card.ID, card.Tier)
	}
	return n.mayAnswer(r.To, card.Identity())
}

// mayAnswer returns nil if an agent of the hub may address the given one.
func (n *Node) mayAnswer(id string, to agent.Identity) error {
	from, known := n.Registry().Identity(id)
	if !known {
		return fmt.Errorf("there is no agent %q here", id)
	}
	if err := n.Router().MayAddress(from, to); err != nil {
		return fmt.Errorf("%s could not answer: %w", id, err)
	}
	return nil
}

// auditRest audits what the router does not: refused tool calls, delegations and channels.
func (n *Node) auditRest(e telemetry.Event) {
	refused := e.Type == telemetry.Security && (e.ChannelID != "" || e.SourceAgent != "" || e.Code == parley.CodePeerRefused || e.Code == delegation.CodeRefused)
	if n.o.Audit == nil || !refused {
		return
	}
	n.append(e)
}

func (n *Node) append(e telemetry.Event) {
	if err := n.o.Audit.Append(e, nil); err != nil {
		n.o.Logger.Error("cannot audit an event", "type", e.Type, "error", err)
	}
}

// wake makes watch call sync. It never blocks.
func (n *Node) wake() { wait.Nudge(n.changed) }

func (n *Node) watch(ctx context.Context) {
	later := time.NewTimer(presencePause) // the cards of agents that are expected back change without an event
	defer later.Stop()
	for {
		select {
		case <-n.changed:
		case <-later.C:
		case <-ctx.Done():
			return
		}
		if n.sync() {
			later.Reset(presencePause)
		}
		if !wait.Pause(ctx, syncPause) {
			return
		}
	}
}

// sync updates the cards to the hub's agents. It reports whether an agent is away and expected back. One goroutine at a time calls it.
func (n *Node) sync() (expecting bool) {
	endpoints := n.endpoints()
	present := make(map[string]bool)
	for _, info := range n.o.Hub.Agents() {
		id := info.Definition.ID
		if info.Definition.Driver == runner.DriverSwarm {
			continue
		}
		if info.Residence.Kind == hub.KindLibrary && n.o.Federation == nil {
			id = standInPrefix + id // its program has its card here, with the same id
		}
		if n.o.Federation != nil {
			if !info.Own() {
				continue // other hubs connect to its own hub
			}
			id = n.o.Federation.GlobalID(id)
		}
		present[id] = true
		expecting = expecting || info.Residence.Offline && expected(info, n.began)
		if err := n.present(cardOf(info, id, n.o.Version, endpoints, n.o.Federation != nil, n.began), info.Definition.ID); err != nil {
			n.o.Logger.Error("cannot register an agent's card", "agent", id, "error", err)
		}
	}
	for _, d := range n.all() {
		if !present[d.id] {
			d.leaveSwarms()
			d.access.Leave()
			n.mu.Lock()
			delete(n.responders, d.id)
			n.mu.Unlock()
		}
	}
	return expecting
}

// endpoints returns the endpoints for the cards.
func (n *Node) endpoints() []agent.Endpoint {
	if n.o.Federation == nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.endpoint == "" {
			return nil
		}
		return []agent.Endpoint{{Transport: agent.TransportWebSocket, Address: n.endpoint}}
	}
	var all []agent.Endpoint
	for _, l := range n.o.Federation.Listeners {
		all = append(all, l.Endpoint())
	}
	return all
}

func (n *Node) all() []*responder {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Collect(maps.Values(n.responders))
}

// present registers an agent's card if it has changed.
func (n *Node) present(card agent.Card, agentID string) error {
	n.mu.Lock()
	d := n.responders[card.ID]
	n.mu.Unlock()
	if d == nil {
		return n.join(&responder{n: n, id: card.ID, agent: agentID}, card)
	}
	if n.Registry().Holds(card) {
		return nil
	}
	_, err := n.Registry().Register(card)
	return err
}

// join adds an agent. [Node.prepare] finds it before its first envelope.
func (n *Node) join(d *responder, card agent.Card) (err error) {
	n.mu.Lock()
	n.responders[d.id] = d
	n.mu.Unlock()
	if d.access, err = n.Node.Join(card, d.handle); err != nil {
		n.mu.Lock()
		delete(n.responders, d.id)
		n.mu.Unlock()
	}
	return err
}

// begin waits for a slot for an answer until ctx ends. If it returns true, the caller must call end.
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

// Close sends pending answers, at most until ctx ends, and closes the channels. Close
// the hub before, so that all tasks have ended. A second call does nothing.
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
	go func() { // ends when the router has closed, at the latest
		n.work.Wait()
		close(answered)
	}()
	select {
	case <-answered:
		n.flush(ctx)
	case <-ctx.Done():
	}
	err := n.Node.Close(ctx)
	<-answered
	return err
}

// flushTime is how long receivers may take for the last answers.
const flushTime = 2 * time.Second

// flush waits until the sent envelopes are handled. Closing a channel drops the rest.
func (n *Node) flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, flushTime)
	defer cancel()
	var peers sync.WaitGroup
	for _, c := range n.Channels().Channels() {
		peers.Go(func() {
			if err := c.Flush(ctx); err != nil {
				n.o.Logger.Info("the last answer may be lost", "agent", c.LocalAgent(), "peer", c.RemoteAgent(), "error", err)
			}
		})
	}
	peers.Wait()
}

// refused records a request whose sender the agent may not answer.
func (n *Node) refused(d *responder, e *envelope.Envelope, cause error) {
	event := telemetry.Of(telemetry.Security, e)
	event.Target, event.Code = d.id, string(router.CodeOf(cause))
	event.Detail = "no task was started: " + cause.Error()
	n.Telemetry().Emit(event)
	if n.o.Audit != nil {
		n.append(event)
	}
}
