package hyperdht

import (
	"net/netip"
	"time"

	"github.com/parleyhub/parley/hyperswarm/dhtrpc"
)

// forwardKey names a message on its way: the client's, by its number, towards a
// target.
type forwardKey struct {
	command uint64
	tid     uint16
	target  dhtrpc.ID
	client  netip.AddrPort
}

const (
	forwardLife  = 15 * time.Second // an answer that comes within 10 s is let through
	maxForwarded = 8192
)

// handleHandshake is for a listener of ours, or is forwarded.
func (n *Node) handleHandshake(r *dhtrpc.Request) {
	if r.Target == nil {
		return
	}
	m, err := parseRelayed(r.Value)
	if r.Value != nil && err != nil {
		return
	}
	if l := n.listener(*r.Target); l != nil {
		if m != nil {
			l.handshake(r, m)
		}
		return
	}
	if m == nil {
		m = &relayed{}
	}
	switch m.mode {
	case fromClient:
		route, ok := n.store.route(*r.Target)
		if !ok {
			r.ReplyCloser()
			return
		}
		n.forwardRequest(r, route.addr, &relayed{mode: fromRelay, noise: m.noise, peer: r.From})
	case fromServer:
		n.forwardReply(r, m.peer, func(server netip.AddrPort) []byte {
			return (&relayed{mode: reply, noise: m.noise, peer: server}).append(nil)
		})
	}
}

// forwardRequest sends a client's message on to the server. What the client says
// about where the server is counts for nothing: the route does.
func (n *Node) forwardRequest(r *dhtrpc.Request, to netip.AddrPort, m interface{ append([]byte) []byte }) {
	if !n.forwards.Allow(r.From.Addr(), 1) {
		return
	}
	n.mu.Lock()
	n.forwarded.keep(forwardKey{r.Command, r.TID, *r.Target, r.From}, to.Addr())
	n.mu.Unlock()
	n.rpc.Forward(r.Socket, &dhtrpc.Message{TID: r.TID, Command: r.Command, Target: r.Target, Value: m.append(nil)}, to)
}

// forwardReply sends a server's answer on to the client that asked: only if it
// did, and only once.
func (n *Node) forwardReply(r *dhtrpc.Request, client netip.AddrPort, value func(server netip.AddrPort) []byte) {
	if !client.IsValid() {
		return
	}
	k := forwardKey{r.Command, r.TID, *r.Target, client}
	n.mu.Lock()
	host, ok := n.forwarded.get(k)
	if ok && host == r.From.Addr() {
		n.forwarded.remove(k)
	}
	n.mu.Unlock()
	if !ok || host != r.From.Addr() {
		return
	}
	n.rpc.Forward(r.Socket, &dhtrpc.Message{Response: true, TID: r.TID, Value: value(r.From)}, client)
}
