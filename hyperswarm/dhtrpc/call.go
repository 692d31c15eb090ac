package dhtrpc

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/parleyhub/parley/hyperswarm/udx"
	"github.com/parleyhub/parley/identity"
)

const (
	tryTimeout  = time.Second
	usualTries  = 4
	maxInFlight = 80
	maxHeard    = 32
)

// ErrTimeout reports that a node did not answer.
var ErrTimeout = errors.New("the node does not answer")

// Call is a request to a node.
type Call struct {
	Internal bool
	Command  uint64
	Target   *ID
	Token    *[32]byte
	Value    []byte
	// Tries is how often the request is sent, one second apart; 0 means 4.
	Tries int
	// Socket is the socket to send from; nil means the node's.
	Socket *udx.Socket
}

// Reply is the answer to a call.
type Reply struct {
	*Message
	From   netip.AddrPort
	Socket *udx.Socket // on which it was received
}

type pending struct {
	to     netip.AddrPort
	answer chan *Reply
}

// Call sends a request and blocks until the answer, ctx's end or [ErrTimeout]. A reply with an error code
// is a reply.
func (n *Node) Call(ctx context.Context, to netip.AddrPort, c Call) (*Reply, error) {
	select {
	case n.slots <- struct{}{}:
		defer func() { <-n.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-n.ctx.Done():
		return nil, net.ErrClosed
	}
	p := &pending{to: to, answer: make(chan *Reply, 1)}
	tid := n.reserve(p)
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.pending, tid)
	}()
	sock := cmp.Or(c.Socket, n.sock)
	m := &Message{TID: tid, To: to, Internal: c.Internal, Command: c.Command, Target: c.Target, Token: c.Token, Value: c.Value}
	n.sign(m, sock)
	data := m.Append(nil)
	timeout := time.Tick(tryTimeout)
	for range cmp.Or(c.Tries, usualTries) {
		_ = sock.Write(data, to) // retried below
		select {
		case r := <-p.answer:
			return r, nil
		case <-timeout:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-n.ctx.Done():
			return nil, net.ErrClosed
		}
	}
	return nil, ErrTimeout
}

// reserve gives a call an id that no other has. There is one: at most maxInFlight calls run.
func (n *Node) reserve(p *pending) uint16 {
	n.mu.Lock()
	defer n.mu.Unlock()
	for n.tid++; n.pending[n.tid] != nil; n.tid++ {
	}
	n.pending[n.tid] = p
	return n.tid
}

// response delivers a response to the call that waits for it, if it comes from the node that was asked.
func (n *Node) response(s *udx.Socket, m *Message, from netip.AddrPort) {
	n.mu.Lock()
	p := n.pending[m.TID]
	if p == nil || p.to != from {
		n.mu.Unlock()
		return
	}
	delete(n.pending, m.TID)
	n.heard = append(n.heard, from)
	n.heard = n.heard[max(0, len(n.heard)-maxHeard):]
	n.mu.Unlock()
	n.note(m, from)
	// Until enough nodes with an id have answered, a bootstrap node's view counts as well.
	if s == n.sock && (m.ID != nil || n.seen.Len() < max(len(n.bootstrap()), 1)) {
		n.seen.Add(from, m.To)
	}
	m.Value = append([]byte(nil), m.Value...) // the datagram's buffer is reused; empty becomes nil
	p.answer <- &Reply{Message: m, From: from, Socket: s}
}

// Heard returns nodes that have answered lately, newest first.
func (n *Node) Heard() []netip.AddrPort {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []netip.AddrPort
	for _, a := range slices.Backward(n.heard) {
		if !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}

// Ping pings a node through a socket of the caller's. The reply says at which address the node sees that socket.
func (n *Node) Ping(ctx context.Context, to netip.AddrPort, s *udx.Socket, tries int) (*Reply, error) {
	return n.Call(ctx, to, Call{Internal: true, Command: cmdPing, Socket: s, Tries: tries})
}

// Commit sends a request with a token to each of the nodes that a walk has found, with the value that f
// makes for it. A node whose token has expired is asked again with the fresh one. It returns the replies of
// the nodes that accepted, and the error codes of those that refused.
func (n *Node) Commit(ctx context.Context, c Call, nodes []*Reply, f func(r *Reply) []byte) ([]*Reply, []uint64) {
	type result struct{ reply, asked *Reply }
	results := make(chan result, len(nodes))
	asked := 0
	for _, node := range nodes {
		if node.Token == nil || node.ID == nil {
			continue
		}
		asked++
		go func() {
			call := c
			r, at := (*Reply)(nil), node
			for range 2 {
				call.Token, call.Value = at.Token, f(at)
				var err error
				if r, err = n.Call(ctx, at.From, call); err != nil || r.Error != ErrorInvalidToken || r.Token == nil {
					break
				}
				fresh := *at.Message
				fresh.Token = r.Token
				at = &Reply{Message: &fresh, From: at.From, Socket: at.Socket}
			}
			results <- result{r, at}
		}()
	}
	var done []*Reply
	var refused []uint64
	for range asked {
		switch r := <-results; {
		case r.reply == nil:
		case r.reply.Error != 0:
			refused = append(refused, r.reply.Error)
		default:
			done = append(done, r.reply)
		}
	}
	return done, refused
}

// NodeID returns the id of a DHT node at an address.
func NodeID(a netip.AddrPort) ID {
	var b [6]byte
	return identity.Hash(AppendAddr(b[:0], a))
}
