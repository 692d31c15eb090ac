// Package dhtrpc is a Kademlia DHT over UDP, compatible with the npm package dht-rpc: requests and
// responses, their compact encoding, a routing table, tokens, and walks towards a target. Package hyperdht
// builds peers and records on it.
package dhtrpc

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parleyhub/parley/hyperswarm/udx"
	"github.com/parleyhub/parley/internal/base/wait"
)

// Internal commands.
const (
	cmdPing = iota
	cmdPingNAT
	cmdFindNode
	cmdDownHint
	cmdDelayedPing
)

// Error codes of responses.
const (
	ErrorUnknownCommand = 1
	ErrorInvalidToken   = 2
)

const (
	tick             = 5 * time.Second
	maxDelay         = 10 * time.Second
	maxDelayed       = 256
	maxHintChecks    = 10
	maxTableSwaps    = 3
	refreshInterval  = 5 * time.Minute
	bootstrapTimeout = 10 * time.Second
)

// Options configure a node.
type Options struct {
	// Listen is where the node's socket is bound.
	Listen netip.AddrPort
	// Public is the socket's public address, if known; port 0 means the socket's port. With it the node is
	// persistent: it has an id, enters other nodes' tables and stores records. Without it the node only
	// sends requests.
	Public netip.AddrPort
	// Bootstrap lists the first nodes to contact, as host:port; empty for the first node of a network.
	Bootstrap []string
	// RequestRate is how many requests per second are handled for one host, with bursts of twice as many; 0
	// means 200.
	RequestRate float64
	// Handle is called with each request whose command is not internal, from the goroutine that reads the
	// socket: it must not block. It may keep the request.
	Handle func(*Request)
	// HandlePing is called with each datagram of at most one byte.
	HandlePing func(s *udx.Socket, from netip.AddrPort)
}

// Node is a DHT node or client. It is safe for concurrent use.
type Node struct {
	o      Options
	mux    *udx.Mux
	sock   *udx.Socket
	id     ID
	public netip.AddrPort
	table  *table
	tokens *tokens
	limits limits
	seen   Sampler

	ctx        context.Context
	cancel     context.CancelFunc
	background wait.Group

	mu      sync.Mutex
	tid     uint16
	pending map[uint16]*pending
	heard   []netip.AddrPort // nodes that answered lately, newest last
	refresh time.Time        // last refresh of the table

	slots     chan struct{}
	checks    chan struct{} // slots of pings after down hints
	swaps     chan struct{}
	delayed   chan struct{}
	hintsLeft atomic.Int32
	ready     chan struct{}
}

// Listen opens a socket and starts a node. The node joins the DHT in the background; see WaitReady. The mux
// stays the caller's.
func Listen(mux *udx.Mux, o Options) (*Node, error) {
	n := &Node{
		o: o, mux: mux, tokens: newTokens(), limits: newLimits(o.RequestRate),
		pending: make(map[uint16]*pending), slots: make(chan struct{}, maxInFlight), ready: make(chan struct{}),
		checks: make(chan struct{}, maxHintChecks), swaps: make(chan struct{}, maxTableSwaps), delayed: make(chan struct{}, maxDelayed),
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	var b [2]byte
	rand.Read(b[:]) // never fails
	n.tid = binary.LittleEndian.Uint16(b[:])
	n.hintsLeft.Store(maxHints)
	started := make(chan struct{}) // datagrams that arrive before the node is set up wait
	sock, err := mux.Listen(o.Listen, func(s *udx.Socket, data []byte, from netip.AddrPort) {
		<-started
		n.Receive(s, data, from)
	})
	if err != nil {
		return nil, err
	}
	n.sock = sock
	rand.Read(n.id[:])
	if o.Public.Addr().IsValid() {
		port := o.Public.Port()
		if port == 0 {
			port = sock.Addr().Port()
		}
		n.public = netip.AddrPortFrom(o.Public.Addr().Unmap(), port)
		n.id = NodeID(n.public)
	}
	n.table = &table{own: n.id}
	close(started)
	n.background.Go(n.run)
	return n, nil
}

// Close stops the node and waits for its goroutines. It does not close the mux.
func (n *Node) Close() error {
	n.background.Stop()
	n.cancel()
	err := n.sock.Close()
	n.background.Wait()
	return err
}

// Socket returns the node's socket.
func (n *Node) Socket() *udx.Socket { return n.sock }

// Mux returns the mux of the node's sockets.
func (n *Node) Mux() *udx.Mux { return n.mux }

// Persistent reports whether the node has an id and stores records.
func (n *Node) Persistent() bool { return n.public.IsValid() }

// Public returns the node's public address, invalid if none was configured.
func (n *Node) Public() netip.AddrPort { return n.public }

// Seen returns the address at which other nodes see this one; the port is 0 if they agree only on the host.
func (n *Node) Seen() netip.AddrPort { return n.seen.Addr() }

// ID returns the node's id; a random one, not shown to others, if it is not persistent.
func (n *Node) ID() ID { return n.id }

// Known returns how many nodes are in the table.
func (n *Node) Known() int { return n.table.len() }

// WaitReady blocks until the first attempt to join the DHT is over, even a failed one.
func (n *Node) WaitReady(ctx context.Context) error {
	select {
	case <-n.ready:
		return nil
	case <-n.ctx.Done():
		return net.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run joins the DHT and refreshes the table until the node closes.
func (n *Node) run() {
	n.join()
	close(n.ready)
	for i := 1; wait.Pause(n.ctx, tick); i++ {
		n.hintsLeft.Store(maxHints)
		if i%8 == 0 {
			n.pingOldest()
		}
		if n.needsRefresh(i) {
			n.join()
		}
	}
}

// join walks towards the node's own id.
func (n *Node) join() {
	ctx, cancel := context.WithTimeout(n.ctx, bootstrapTimeout)
	defer cancel()
	n.mu.Lock()
	n.refresh = time.Now()
	n.mu.Unlock()
	// Later walks join again, so an error here does not matter.
	_, _ = n.Walk(ctx, Walk{Target: n.id, Internal: true, Command: cmdFindNode})
}

func (n *Node) needsRefresh(i int) bool {
	n.mu.Lock()
	last := n.refresh
	n.mu.Unlock()
	switch known := n.table.len(); {
	case known == 0:
		return i%2 == 0 && len(n.bootstrap()) > 0
	case known < closeness:
		return i%64 == 0
	}
	return time.Since(last) > refreshInterval
}

// pingOldest checks the nodes that were silent longest.
func (n *Node) pingOldest() {
	for _, addr := range n.table.oldest(5, time.Now().Add(-recent)) {
		n.background.Go(func() { n.check(addr, 3) })
	}
}

// check pings a node and removes it from the table if it does not answer.
func (n *Node) check(addr netip.AddrPort, tries int) bool {
	_, err := n.Call(n.ctx, addr, Call{Internal: true, Command: cmdPing, Tries: tries})
	if err == nil || n.ctx.Err() != nil {
		return true
	}
	n.table.remove(NodeID(addr))
	return false
}

// Receive handles a datagram of one of the node's sockets. It is the [udx.Handler] for additional sockets
// that the caller opens.
func (n *Node) Receive(s *udx.Socket, data []byte, from netip.AddrPort) {
	switch {
	case from.Port() == 0 || !from.Addr().Is4():
	case len(data) <= 1:
		if n.o.HandlePing != nil {
			n.o.HandlePing(s, from)
		}
	case data[0] == requestByte:
		n.request(s, data, from)
	case data[0] == responseByte:
		if m, err := Parse(data); err == nil {
			n.response(s, m, from)
		}
	}
}

// note adds the sender of a message to the table if the id is true.
func (n *Node) note(m *Message, from netip.AddrPort) {
	if m.ID == nil || NodeID(from) != *m.ID {
		m.ID = nil // forged
		return
	}
	stale := n.table.heard(*m.ID, from, time.Now())
	if stale == nil {
		return
	}
	id := *m.ID
	if !n.background.GoWithin(n.swaps, func() {
		alive := n.check(stale.addr, 2)
		n.table.pinged(stale)
		if !alive {
			n.table.heard(id, from, time.Now())
		}
	}) {
		n.table.pinged(stale)
	}
}

// Request is a request of another node. Reply at most once.
type Request struct {
	*Message
	From   netip.AddrPort
	Socket *udx.Socket

	node *Node
}

func (n *Node) request(s *udx.Socket, data []byte, from netip.AddrPort) {
	if !n.limits.requests.Allow(from.Addr(), 1) || !n.limits.all.Allow(netip.Addr{}, 1) {
		return
	}
	// The message is used after the datagram's buffer is reused.
	m, err := Parse(append([]byte(nil), data...))
	if err != nil {
		return
	}
	n.note(m, from)
	r := &Request{Message: m, From: from, Socket: s, node: n}
	if m.Token != nil {
		if !n.tokens.good(from.Addr(), *m.Token) {
			r.Refuse(ErrorInvalidToken)
			return
		}
		n.limits.proven.add(from.Addr())
	}
	switch {
	case m.Internal:
		n.internal(r)
	case n.o.Handle != nil:
		n.o.Handle(r)
	default:
		r.Refuse(ErrorUnknownCommand)
	}
}

func (n *Node) internal(r *Request) {
	switch r.Command {
	case cmdPing:
		r.Accept()
	case cmdPingNAT:
		n.pingNAT(r)
	case cmdFindNode:
		if r.Target != nil {
			r.send(&Message{Closer: n.closer(r)})
		}
	case cmdDownHint:
		n.downHint(r)
	case cmdDelayedPing:
		n.delayedPing(r)
	default:
		r.Refuse(ErrorUnknownCommand)
	}
}

// pingNAT answers to another port of the requesting host.
func (n *Node) pingNAT(r *Request) {
	v := NewReader(r.Value)
	port := v.U16()
	if v.Err() != nil || port == 0 || !n.limits.pings.Allow(r.From.Addr(), 1) {
		return
	}
	r.From = netip.AddrPortFrom(r.From.Addr(), port)
	r.Accept()
}

// downHint checks a node that another one reports as down.
func (n *Node) downHint(r *Request) {
	v := NewReader(r.Value)
	addr := v.Addr()
	if v.Err() == nil && addr.Port() != 0 && n.limits.hints.Allow(r.From.Addr(), 1) && n.table.has(NodeID(addr)) {
		n.background.GoWithin(n.checks, func() { n.check(addr, 2) })
	}
	r.Accept()
}

func (n *Node) delayedPing(r *Request) {
	v := NewReader(r.Value)
	delay := time.Duration(v.U32()) * time.Millisecond
	if v.Err() != nil || delay > maxDelay {
		return
	}
	n.background.GoWithin(n.delayed, func() {
		if wait.Pause(n.ctx, delay) {
			r.Accept()
		}
	})
}

// closer returns the nodes near the request's target.
func (n *Node) closer(r *Request) []netip.AddrPort {
	if r.Target == nil {
		return nil
	}
	return n.table.closest(*r.Target, maxCloser)
}

// Reply answers with a value, a token for a later request, and closer nodes.
func (r *Request) Reply(value []byte) {
	token := r.node.tokens.make(r.From.Addr())
	r.send(&Message{Value: value, Token: &token, Closer: r.node.closer(r)})
}

// ReplyCloser answers with closer nodes only.
func (r *Request) ReplyCloser() { r.send(&Message{Closer: r.node.closer(r)}) }

// ReplyValue answers with a value only, which may be nil.
func (r *Request) ReplyValue(value []byte) { r.send(&Message{Value: value}) }

// Accept answers with success.
func (r *Request) Accept() { r.send(&Message{}) }

// Refuse answers with an error code.
func (r *Request) Refuse(code uint64) {
	m := &Message{Error: code, Closer: r.node.closer(r)}
	if code == ErrorInvalidToken {
		token := r.node.tokens.make(r.From.Addr())
		m.Token = &token
	}
	r.send(m)
}

// Proven reports whether the sender has shown, with a token, that it receives what is sent to its host.
func (r *Request) Proven() bool { return r.node.limits.proven.has(r.From.Addr()) }

// send writes the response, within the limits for hosts whose address may be forged.
func (r *Request) send(m *Message) {
	n := r.node
	m.Response, m.TID, m.To = true, r.TID, r.From
	n.sign(m, r.Socket)
	data := m.Append(nil)
	if !r.Proven() && !n.limits.replies.Allow(r.From.Addr(), float64(len(data))) {
		m.Value = nil
		data = m.Append(data[:0])
		if !n.limits.small.Allow(r.From.Addr(), float64(len(data))) {
			return
		}
	}
	_ = r.Socket.Write(data, r.From) // the requester retries
}

// sign adds the node's id to messages that leave through the node's own socket.
func (n *Node) sign(m *Message, s *udx.Socket) {
	if n.Persistent() && s == n.sock {
		m.ID = &n.id
	}
}

// Forward sends a message of an exchange between other nodes; no answer is expected.
func (n *Node) Forward(s *udx.Socket, m *Message, to netip.AddrPort) {
	m.To = to
	n.sign(m, s)
	_ = s.Write(m.Append(nil), to) // the requester retries
}

// bootstrap returns the bootstrap nodes.
func (n *Node) bootstrap() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.o.Bootstrap
}

// SetBootstrap replaces the bootstrap nodes, and joins the DHT through them in the background if the table
// is empty. The error is that of [CheckBootstrap].
func (n *Node) SetBootstrap(nodes []string) error {
	if err := CheckBootstrap(nodes); err != nil {
		return err
	}
	n.mu.Lock()
	n.o.Bootstrap = slices.Clone(nodes)
	n.mu.Unlock()
	if n.table.len() == 0 && len(nodes) > 0 {
		n.background.Go(n.join)
	}
	return nil
}

// resolve returns the addresses of the bootstrap nodes, without those whose names do not resolve.
func (n *Node) resolve(ctx context.Context) []netip.AddrPort {
	var all []netip.AddrPort
	for _, text := range n.bootstrap() {
		if ip, rest, ok := strings.Cut(text, "@"); ok { // ip@host:port: no lookup needed
			if _, port, err := net.SplitHostPort(rest); err == nil {
				text = net.JoinHostPort(ip, port)
			}
		}
		if a, err := netip.ParseAddrPort(text); err == nil {
			all = append(all, netip.AddrPortFrom(a.Addr().Unmap(), a.Port()))
			continue
		}
		host, port, err := net.SplitHostPort(text)
		if err != nil {
			continue
		}
		p, err := net.DefaultResolver.LookupPort(ctx, "udp4", port)
		if err != nil || p > math.MaxUint16 {
			continue
		}
		ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip4", host)
		if err != nil || len(ips) == 0 {
			continue
		}
		all = append(all, netip.AddrPortFrom(ips[0].Unmap(), uint16(p)))
	}
	return all
}

// CheckBootstrap returns an error if a bootstrap node is not of the form host:port.
func CheckBootstrap(nodes []string) error {
	for _, text := range nodes {
		_, rest, ok := strings.Cut(text, "@")
		if !ok {
			rest = text
		}
		if host, port, err := net.SplitHostPort(rest); err != nil || host == "" || port == "" {
			return errors.Join(fmt.Errorf("the bootstrap node %q is not of the form host:port", text), err)
		}
	}
	return nil
}
