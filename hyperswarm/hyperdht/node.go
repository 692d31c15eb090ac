// Package hyperdht finds peers by their public keys and topics, connects to them under end-to-end
// encryption, and keeps small signed records, compatible with the npm package hyperdht.
//
// A [Node] with a public address is part of the DHT: it stores records and forwards handshakes for others, within
// limits. A node without one is a client, which peers reach with the help of the nodes that are part of it.
//
// There are no built-in bootstrap nodes: a node without any is the first of its own network.
package hyperdht

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/parleyhub/parley/hyperswarm/dhtrpc"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/hyperswarm/udx"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/wait"
)

// Options configure a [Node].
type Options struct {
	// Listen is the address to bind the UDP socket to; the zero value means any port of all interfaces.
	Listen netip.AddrPort
	// Public is the socket's public address, if it has one; port 0 means the socket's port. It makes the
	// node part of the DHT.
	Public netip.AddrPort
	// Bootstrap lists nodes of the DHT, as host:port.
	Bootstrap []string
	// Pair is the node's identity; nil means a new one.
	Pair *identity.Pair
	// Stream configures the encryption of the connections.
	Stream secretstream.Options
	// UDX configures the streams below them.
	UDX udx.Options
	// HandshakeRate is how many handshakes per second one host may begin with the node's listeners, with
	// bursts of ten times as many; 0 means 5.
	HandshakeRate float64
	// RequestRate is how many requests per second the node handles for one host; 0 means
	// 200. It forwards a twentieth of that.
	RequestRate float64
	// Logger receives failures that no call returns; nil discards them.
	Logger *slog.Logger
}

// Node is a DHT node or client. It is safe for concurrent use.
type Node struct {
	o     Options
	mux   *udx.Mux
	rpc   *dhtrpc.Node
	store *store
	log   *slog.Logger

	signatures *dhtrpc.Limiter // signature checks, per host
	forwards   *dhtrpc.Limiter
	handshakes *admission // handshakes that others begin with our listeners

	ctx        context.Context
	cancel     context.CancelFunc
	background wait.Group

	mu        sync.Mutex
	listeners map[dhtrpc.ID]*Listener
	forwarded *cache[forwardKey, netip.Addr] // handshakes that this node forwards
	known     *cache[identity.PublicKey, []netip.AddrPort]
	punching  map[*udx.Socket]*puncher
}

// maxKnown is how many peers' relays are remembered.
const maxKnown = 512

// Listen opens a node. The node joins the DHT in the background; queries may begin before it has.
func Listen(o Options) (*Node, error) {
	if err := dhtrpc.CheckBootstrap(o.Bootstrap); err != nil {
		return nil, &Error{Code: CodeInvalid, Message: "the bootstrap nodes cannot be used", Err: err}
	}
	if a := o.Public.Addr(); a.IsValid() && (!a.Unmap().Is4() || a.IsUnspecified()) {
		return nil, &Error{Code: CodeInvalid, Message: "the public address must be an IPv4 address, not " + a.String()}
	}
	if !o.Listen.Addr().IsValid() {
		o.Listen = netip.AddrPortFrom(netip.IPv4Unspecified(), o.Listen.Port())
	}
	if !o.Listen.Addr().Unmap().Is4() {
		return nil, &Error{Code: CodeInvalid, Message: "the node listens on IPv4 only, not at " + o.Listen.String()}
	}
	if o.Pair == nil {
		o.Pair = identity.Generate()
	}
	o.HandshakeRate, o.RequestRate = cmp.Or(o.HandshakeRate, 5), cmp.Or(o.RequestRate, 200)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	n := &Node{
		o: o, mux: udx.NewMux(o.UDX), store: newStore(), log: o.Logger,
		signatures: dhtrpc.NewLimiter(50, 200, 8192),
		forwards:   dhtrpc.NewLimiter(o.RequestRate/20, o.RequestRate/5, 8192),
		handshakes: newAdmission(o.HandshakeRate),
		listeners:  make(map[dhtrpc.ID]*Listener),
		forwarded:  newCache[forwardKey, netip.Addr](forwardLife, maxForwarded),
		known:      newCache[identity.PublicKey, []netip.AddrPort](time.Hour, maxKnown),
		punching:   make(map[*udx.Socket]*puncher),
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	ready := make(chan struct{}) // the handlers need n.rpc
	rpc, err := dhtrpc.Listen(n.mux, dhtrpc.Options{
		Listen: o.Listen, Public: o.Public, Bootstrap: o.Bootstrap, RequestRate: o.RequestRate,
		Handle:     func(r *dhtrpc.Request) { <-ready; n.handle(r) },
		HandlePing: func(s *udx.Socket, from netip.AddrPort) { <-ready; n.handlePing(s, from) },
	})
	if err != nil {
		n.cancel()
		_ = n.mux.Close() // it has no streams yet
		return nil, &Error{Code: CodeInvalid, Message: "the DHT node cannot start", Err: err}
	}
	n.rpc = rpc
	close(ready)
	return n, nil
}

// Close closes the node, its listeners and its connections, and waits for them.
func (n *Node) Close() error {
	if !n.background.Stop() {
		return nil
	}
	n.mu.Lock()
	all := slices.Collect(maps.Values(n.listeners))
	n.mu.Unlock()
	var wg sync.WaitGroup
	for _, l := range all {
		wg.Go(func() { _ = l.Close() }) // it always succeeds
	}
	wg.Wait()
	n.cancel()
	_ = n.rpc.Close() // mux.Close closes the same socket and returns the error
	err := n.mux.Close()
	n.background.Wait()
	return err
}

// Key returns the node's own key.
func (n *Node) Key() identity.PublicKey { return n.o.Pair.Public() }

// Pair returns the node's identity.
func (n *Node) Pair() *identity.Pair { return n.o.Pair }

// Addr returns the local address of the node's socket.
func (n *Node) Addr() netip.AddrPort { return n.rpc.Socket().Addr() }

// Public returns the node's public address, invalid if none was configured.
func (n *Node) Public() netip.AddrPort { return n.rpc.Public() }

// SetBootstrap replaces the bootstrap nodes; see Options.Bootstrap. It does not wait for their answers.
func (n *Node) SetBootstrap(nodes []string) error {
	if err := n.rpc.SetBootstrap(nodes); err != nil {
		return &Error{Code: CodeInvalid, Message: "the bootstrap nodes cannot be used", Err: err}
	}
	return nil
}

// Known returns how many other nodes are in the routing table.
func (n *Node) Known() int { return n.rpc.Known() }

// Streams returns the number of streams, including those that are being closed.
func (n *Node) Streams() int { return n.mux.Streams() }

// WaitReady blocks until the first attempt to join the DHT is over, even a failed one.
func (n *Node) WaitReady(ctx context.Context) error { return n.rpc.WaitReady(ctx) }

// handle answers a request of another node. Invalid requests get no answer.
func (n *Node) handle(r *dhtrpc.Request) {
	switch r.Command {
	case cmdPeerHandshake:
		n.handleHandshake(r)
		return
	case cmdPeerHolepunch:
		n.handleHolepunch(r)
		return
	}
	if !n.rpc.Persistent() {
		r.Refuse(dhtrpc.ErrorUnknownCommand)
		return
	}
	if r.Target == nil {
		if r.Command > cmdImmutableGet {
			r.Refuse(dhtrpc.ErrorUnknownCommand)
		}
		return
	}
	switch r.Command {
	case cmdFindPeer:
		n.handleFindPeer(r)
	case cmdLookup:
		var value []byte
		if all := n.store.lookup(*r.Target); len(all) > 0 {
			value = encode((*peers)(&all))
		}
		r.Reply(value)
	case cmdAnnounce, cmdUnannounce:
		n.handleAnnounce(r)
	case cmdMutablePut:
		n.handleMutablePut(r)
	case cmdMutableGet:
		n.handleMutableGet(r)
	case cmdImmutablePut:
		n.handleImmutablePut(r)
	case cmdImmutableGet:
		value, _ := n.store.getImmutable(*r.Target)
		r.Reply(value)
	default:
		r.Refuse(dhtrpc.ErrorUnknownCommand)
	}
}

func (n *Node) handleFindPeer(r *dhtrpc.Request) {
	var value []byte
	if p, ok := n.peer(*r.Target); ok {
		value = encode(&p)
	}
	r.Reply(value)
}

// peer returns the record of a peer that listens on this node or is announced here.
func (n *Node) peer(target dhtrpc.ID) (Peer, bool) {
	if l := n.listener(target); l != nil {
		return Peer{Key: l.Key(), Relays: l.Relays()}, true
	}
	route, ok := n.store.route(target)
	return route.peer, ok
}

func (n *Node) handleAnnounce(r *dhtrpc.Request) {
	if r.Token == nil || !n.signatures.Allow(r.From.Addr(), 1) {
		return
	}
	a, err := decode[announcement](r.Value)
	if err != nil {
		return
	}
	space := identity.Announce
	if r.Command == cmdUnannounce {
		space = identity.Unannounce
	}
	if !identity.Verify(a.peer.Key, a.signable(space, *r.Target, n.rpc.ID(), *r.Token), a.signature) {
		return
	}
	peer := Peer{Key: a.peer.Key, Relays: a.peer.Relays[:min(len(a.peer.Relays), maxRelays)]}
	own := identity.Hash(peer.Key[:]) == *r.Target
	switch {
	case r.Command == cmdUnannounce:
		n.store.unannounce(*r.Target, peer.Key)
		if own && n.listener(*r.Target) == nil {
			n.store.removeRoute(*r.Target)
		}
	case !own:
		if !n.store.announce(*r.Target, peer, r.From.Addr()) {
			return
		}
	case n.listener(*r.Target) == nil: // a local listener has precedence
		n.store.unannounce(*r.Target, peer.Key)
		if !n.store.setRoute(*r.Target, route{r.From, peer}) {
			return
		}
	}
	r.Accept()
}

func (n *Node) handleMutablePut(r *dhtrpc.Request) {
	if r.Token == nil || !n.signatures.Allow(r.From.Addr(), 1) {
		return
	}
	m, err := decode[signedPut](r.Value)
	if err != nil || len(m.value) > maxRecordSize || identity.Hash(m.key[:]) != *r.Target || !identity.Verify(m.key, m.signable(), m.signature) {
		return
	}
	switch code, ok := n.store.putMutable(*r.Target, m.mutable, r.From.Addr()); {
	case code != 0:
		r.Refuse(code)
	case ok:
		r.Reply(nil)
	}
}

func (n *Node) handleMutableGet(r *dhtrpc.Request) {
	v := dhtrpc.NewReader(r.Value)
	least := v.Uint()
	if v.Err() != nil {
		return
	}
	var value []byte
	if m, ok := n.store.getMutable(*r.Target); ok && m.seq >= least {
		value = encode(&m)
	}
	r.Reply(value)
}

func (n *Node) handleImmutablePut(r *dhtrpc.Request) {
	if r.Token == nil || r.Value == nil || len(r.Value) > maxRecordSize || identity.Hash(r.Value) != *r.Target {
		return
	}
	if n.store.putImmutable(*r.Target, r.Value, r.From.Addr()) {
		r.Reply(nil)
	}
}

// listener returns the listener for the key with a target.
func (n *Node) listener(target dhtrpc.ID) *Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.listeners[target]
}
