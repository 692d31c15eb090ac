// Package dhtrpc is a Kademlia table over UDP as the npm package dht-rpc has it:
// requests and responses, a routing table, tokens, and queries that walk towards
// a target. Package hyperdht builds peers and records on it.
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

// Options set a node up.
type Options struct {
	// Listen is where the node's socket is bound.
	Listen netip.AddrPort
	// Public is the address at which everybody reaches the socket, if that is
	// known; port 0 means the socket's. With it the node is persistent: it has an
	// id, enters others' tables and stores records. Without, it only asks.
	Public netip.AddrPort
	// Bootstrap names the nodes to begin with, as host:port; none makes this the
	// first one.
	Bootstrap []string
	// RequestRate is how many requests a second of one host are handled, with bursts
	// of twice as many; 0 means 200.
	RequestRate float64
	// Handle is called with each request whose command is not internal, from the
	// goroutine that reads the socket: it must not block. The request is its own.
	Handle func(*Request)
	// HandlePing is called with each datagram of at most one byte.
	HandlePing func(s *udx.Socket, from netip.AddrPort)
}

// Node is a node of the table, or one that only asks. It is safe for concurrent
// use.
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

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	tid     uint16
	pending map[uint16]*pending
	checks  int // of nodes that are said to be down
	swaps   int
	delayed int
	heard   []netip.AddrPort // nodes that answered lately, the newest last
	refresh time.Time        // of the table

	slots     chan struct{}
	hintsLeft atomic.Int32
	ready     chan struct{}
}

// Listen opens a node's socket and starts the node. It joins the table in the
// background: see WaitReady. The mux is the caller's.
func Listen(mux *udx.Mux, o Options) (*Node, error) {
	n := &Node{
		o: o, mux: mux, tokens: newTokens(), limits: newLimits(o.RequestRate),
		pending: make(map[uint16]*pending), slots: make(chan struct{}, maxInFlight), ready: make(chan struct{}),
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	var b [2]byte
	rand.Read(b[:]) // never fails
	n.tid = binary.LittleEndian.Uint16(b[:])
	n.hintsLeft.Store(maxHints)
	started := make(chan struct{}) // what arrives before the node is whole waits
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
	n.wg.Go(n.run)
	return n, nil
}

// Close ends the node and waits for its goroutines. It does not close the mux.
func (n *Node) Close() error {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.cancel()
	err := n.sock.Close()
	n.wg.Wait()
	return err
}

// Socket returns the node's socket.
func (n *Node) Socket() *udx.Socket { return n.sock }

// Mux returns the mux of the node's sockets.
func (n *Node) Mux() *udx.Mux { return n.mux }

// Persistent reports whether the node has an id and stores records.
func (n *Node) Persistent() bool { return n.public.IsValid() }

// Public returns the address at which everybody can reach the node, invalid if
// none was configured.
func (n *Node) Public() netip.AddrPort { return n.public }

// Seen returns the address at which other nodes see this one, as far as they
// agree; its port is 0 if they agree on the host only.
func (n *Node) Seen() netip.AddrPort { return n.seen.Addr() }

// ID returns the node's place in the table; a random one that others do not see,
// if it is not persistent.
func (n *Node) ID() ID { return n.id }

// Known returns how many nodes are in the table.
func (n *Node) Known() int { return n.table.len() }

// WaitReady waits until the node has joined the table, or has failed to.
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

// run joins the table and keeps it fresh.
func (n *Node) run() {
	n.join()
	close(n.ready)
	t := time.NewTicker(tick)
	defer t.Stop()
	for i := 1; ; i++ {
		select {
		case <-n.ctx.Done():
			return
		case <-t.C:
		}
		n.hintsLeft.Store(maxHints)
		if i%8 == 0 {
			n.pingOldest()
		}
		if n.needsRefresh(i) {
			n.join()
		}
	}
}

// join walks towards this node.
func (n *Node) join() {
	ctx, cancel := context.WithTimeout(n.ctx, bootstrapTimeout)
	defer cancel()
	n.mu.Lock()
	n.refresh = time.Now()
	n.mu.Unlock()
	// Whoever needs the table walks again, so an error tells nobody anything.
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

// pingOldest asks the nodes that were silent longest whether they are there.
func (n *Node) pingOldest() {
	for _, addr := range n.table.oldest(5, time.Now().Add(-recent)) {
		n.check(addr)
	}
}

// check pings a node; one that does not answer leaves the table.
func (n *Node) check(addr netip.AddrPort) {
	n.goBackground(func() {
		id := NodeID(addr)
		if _, err := n.Call(n.ctx, addr, Call{Internal: true, Command: cmdPing, Tries: 3}); err != nil && n.ctx.Err() == nil {
			n.table.remove(id)
		}
	})
}

// goBackground runs f unless the node is closed.
func (n *Node) goBackground(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.closed {
		n.wg.Go(f)
	}
}

// Receive handles a datagram of one of the node's sockets. It is the
// [udx.Handler] for sockets that the caller opens in addition.
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

// note puts the sender of a message with a true id into the table.
func (n *Node) note(m *Message, from netip.AddrPort) {
	if m.ID == nil || NodeID(from) != *m.ID {
		m.ID = nil // not an id that may be believed
		return
	}
	stale := n.table.heard(*m.ID, from, time.Now())
	if stale == nil {
		return
	}
	n.mu.Lock()
	busy := n.swaps >= maxTableSwaps
	if !busy {
		n.swaps++
	}
	n.mu.Unlock()
	if busy {
		n.table.pinged(stale)
		return
	}
	id, addr := *m.ID, from
	n.goBackground(func() {
		_, err := n.Call(n.ctx, stale.addr, Call{Internal: true, Command: cmdPing, Tries: 2})
		n.table.pinged(stale)
		n.mu.Lock()
		n.swaps--
		n.mu.Unlock()
		if err != nil && n.ctx.Err() == nil {
			n.table.remove(stale.id)
			n.table.heard(id, addr, time.Now())
		}
	})
}

// Request is a request of another node. Reply to it once or not at all.
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
	// The message outlives the datagram's buffer.
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

// pingNAT answers to another port of the host that asked.
func (n *Node) pingNAT(r *Request) {
	v := NewReader(r.Value)
	port := v.U16()
	if v.Err() != nil || port == 0 || !n.limits.pings.Allow(r.From.Addr(), 1) {
		return
	}
	r.From = netip.AddrPortFrom(r.From.Addr(), port)
	r.Accept()
}

// downHint looks after a node that is said to be down.
func (n *Node) downHint(r *Request) {
	v := NewReader(r.Value)
	addr := v.Addr()
	if v.Err() == nil && addr.Port() != 0 && n.limits.hints.Allow(r.From.Addr(), 1) && n.table.has(NodeID(addr)) {
		n.mu.Lock()
		busy := n.checks >= maxHintChecks
		if !busy {
			n.checks++
		}
		n.mu.Unlock()
		if !busy {
			n.goBackground(func() {
				if _, err := n.Call(n.ctx, addr, Call{Internal: true, Command: cmdPing, Tries: 2}); err != nil && n.ctx.Err() == nil {
					n.table.remove(NodeID(addr))
				}
				n.mu.Lock()
				n.checks--
				n.mu.Unlock()
			})
		}
	}
	r.Accept()
}

func (n *Node) delayedPing(r *Request) {
	v := NewReader(r.Value)
	wait := time.Duration(v.U32()) * time.Millisecond
	if v.Err() != nil || wait > maxDelay {
		return
	}
	n.mu.Lock()
	busy := n.delayed >= maxDelayed
	if !busy {
		n.delayed++
	}
	n.mu.Unlock()
	if busy {
		return
	}
	n.goBackground(func() {
		if pause(n.ctx, wait) {
			r.Accept()
		}
		n.mu.Lock()
		n.delayed--
		n.mu.Unlock()
	})
}

// pause waits and reports false if ctx ended meanwhile.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// closer returns the nodes to name in the answer to a request.
func (n *Node) closer(r *Request) []netip.AddrPort {
	if r.Target == nil {
		return nil
	}
	return n.table.closest(*r.Target, maxCloser)
}

// Reply answers with a value, a token for what may follow, and closer nodes.
func (r *Request) Reply(value []byte) {
	token := r.node.tokens.make(r.From.Addr())
	r.send(&Message{Value: value, Token: &token, Closer: r.node.closer(r)})
}

// ReplyCloser answers with closer nodes only.
func (r *Request) ReplyCloser() { r.send(&Message{Closer: r.node.closer(r)}) }

// ReplyValue answers with a value only; it may be nil.
func (r *Request) ReplyValue(value []byte) { r.send(&Message{Value: value}) }

// Accept answers that something was done.
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

// Proven reports whether the request's sender has shown, now or lately, that it
// receives what is sent to its host.
func (r *Request) Proven() bool { return r.node.limits.proven.has(r.From.Addr()) }

// send answers within what is granted to hosts that may not have asked at all.
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
	_ = r.Socket.Write(data, r.From) // who asked asks again
}

// sign adds the node's id to what leaves by the socket that it belongs to.
func (n *Node) sign(m *Message, s *udx.Socket) {
	if n.Persistent() && s == n.sock {
		m.ID = &n.id
	}
}

// Forward sends a message that belongs to somebody else's exchange: nobody here
// waits for an answer.
func (n *Node) Forward(s *udx.Socket, m *Message, to netip.AddrPort) {
	m.To = to
	n.sign(m, s)
	_ = s.Write(m.Append(nil), to) // who asked asks again
}

// bootstrap names the nodes to begin with.
func (n *Node) bootstrap() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.o.Bootstrap
}

// SetBootstrap replaces the nodes to begin with, and joins the DHT by them if the node
// knows nobody. It does not wait for that. The error is that of [CheckBootstrap].
func (n *Node) SetBootstrap(nodes []string) error {
	if err := CheckBootstrap(nodes); err != nil {
		return err
	}
	n.mu.Lock()
	n.o.Bootstrap = slices.Clone(nodes)
	n.mu.Unlock()
	if n.table.len() == 0 && len(nodes) > 0 {
		n.goBackground(n.join)
	}
	return nil
}

// resolve returns the addresses of the bootstrap nodes. Names that cannot be
// looked up are left out.
func (n *Node) resolve(ctx context.Context) []netip.AddrPort {
	var all []netip.AddrPort
	for _, text := range n.bootstrap() {
		if ip, rest, ok := strings.Cut(text, "@"); ok { // an address that makes the name unnecessary
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

// CheckBootstrap returns an error if a bootstrap node is not of the form
// host:port.
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
