package dhtrpc

import (
	"context"
	"errors"
	"net"
	"net/netip"
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

// ErrTimeout says that a node did not answer.
var ErrTimeout = errors.New("the node does not answer")

// Call is a request to a node.
type Call struct {
	Internal bool
	Command  uint64
	Target   *ID
	Token    *[32]byte
	Value    []byte
	// Tries is how often it is sent, with a second between; 0 means 4 times.
	Tries int
	// Socket sends it; nil means the node's.
	Socket *udx.Socket
}

// Reply is the answer to a call.
type Reply struct {
	*Message
	From   netip.AddrPort
	Socket *udx.Socket // that it came in on
}

type pending struct {
	to     netip.AddrPort
	answer chan *Reply
}

// Call sends a request and waits for the answer. It returns [ErrTimeout] when
// there is none. A reply with an error code is a reply.
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
	tid, err := n.reserve(p)
	if err != nil {
		return nil, err
	}
	defer n.free(tid)
	sock := c.Socket
	if sock == nil {
		sock = n.sock
	}
	m := &Message{TID: tid, To: to, Internal: c.Internal, Command: c.Command, Target: c.Target, Token: c.Token, Value: c.Value}
	n.sign(m, sock)
	data := m.Append(nil)
	if c.Tries == 0 {
		c.Tries = usualTries
	}
	t := time.NewTicker(tryTimeout)
	defer t.Stop()
	for range c.Tries {
		_ = sock.Write(data, to) // the next try comes soon
		select {
		case r := <-p.answer:
			return r, nil
		case <-t.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-n.ctx.Done():
			return nil, net.ErrClosed
		}
	}
	return nil, ErrTimeout
}

// errBusy cannot come up while at most maxInFlight calls run.
var errBusy = errors.New("too many calls are under way")

// reserve gives a call a number that no other has.
func (n *Node) reserve(p *pending) (uint16, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for range 1 << 16 {
		n.tid++
		if n.pending[n.tid] == nil {
			n.pending[n.tid] = p
			return n.tid, nil
		}
	}
	return 0, errBusy
}

func (n *Node) free(tid uint16) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.pending, tid)
}

// response hands a response to the call that waits for it. Only the node that
// was asked can answer.
func (n *Node) response(s *udx.Socket, m *Message, from netip.AddrPort) {
	n.mu.Lock()
	p := n.pending[m.TID]
	if p == nil || p.to != from {
		n.mu.Unlock()
		return
	}
	delete(n.pending, m.TID)
	n.heard = append(n.heard, from)
	if len(n.heard) > maxHeard {
		n.heard = append(n.heard[:0], n.heard[1:]...)
	}
	n.mu.Unlock()
	n.note(m, from)
	if s == n.sock && (m.ID != nil || n.isBootstrap(from)) {
		n.seen.Add(from, m.To)
	}
	m.Value = append([]byte(nil), m.Value...) // it outlives the datagram's buffer
	if len(m.Value) == 0 {
		m.Value = nil
	}
	p.answer <- &Reply{Message: m, From: from, Socket: s}
}

// isBootstrap reports whether a node that has no id may speak of our address.
func (n *Node) isBootstrap(netip.AddrPort) bool { return n.seen.Len() < max(len(n.bootstrap()), 1) }

// Heard returns nodes that have answered lately, the newest first.
func (n *Node) Heard() []netip.AddrPort {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []netip.AddrPort
	seen := make(map[netip.AddrPort]bool)
	for i := len(n.heard) - 1; i >= 0; i-- {
		if a := n.heard[i]; !seen[a] {
			seen[a] = true
			all = append(all, a)
		}
	}
	return all
}

// Ping asks a node whether it is there, once through a socket of the caller's.
// The reply says where the node sees that socket.
func (n *Node) Ping(ctx context.Context, to netip.AddrPort, s *udx.Socket, tries int) (*Reply, error) {
	return n.Call(ctx, to, Call{Internal: true, Command: cmdPing, Socket: s, Tries: tries})
}

// Commit sends a call that changes something to nodes that a walk has found,
// with their tokens, and returns those that have accepted it. f makes each node's
// value. A node whose token has expired meanwhile is asked again with a fresh
// one.
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

// idOf returns a node's id.
// NodeID returns the id of a DHT node at an address.
func NodeID(a netip.AddrPort) ID {
	var b [6]byte
	return identity.Hash(AppendAddr(b[:0], a))
}
