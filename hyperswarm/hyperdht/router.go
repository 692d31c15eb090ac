package hyperdht

import (
	"net/netip"
	"time"

	"github.com/parleyhub/parley/hyperswarm/dhtrpc"
)

// forwardKey identifies a forwarded message: the client's message number and target.
type forwardKey struct {
	command uint64
	tid     uint16
	target  dhtrpc.ID
	client  netip.AddrPort
}

const (
	forwardLife  = 15 * time.Second // answers within 10 s are forwarded
	maxForwarded = 8192
)

// handleHandshake passes a handshake to a local listener, or forwards it.
func (n *Node) handleHandshake(r *dhtrpc.Request) {
	if r.Target == nil {
		return
	}
	m, err := decode[relayed](r.Value)
	if r.Value != nil && err != nil {
		return
	}
	if l := n.listener(*r.Target); l != nil {
		l.handshake(r, m)
		return
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
			return encode(&relayed{mode: reply, noise: m.noise, peer: server})
		})
	}
}

// forwardRequest forwards a client's message to the server. The destination is always the route of this
// node, never one that the client names.
func (n *Node) forwardRequest(r *dhtrpc.Request, to netip.AddrPort, m message) {
	if !n.forwards.Allow(r.From.Addr(), 1) {
		return
	}
	n.mu.Lock()
	n.forwarded.keep(forwardKey{r.Command, r.TID, *r.Target, r.From}, to.Addr())
	n.mu.Unlock()
	n.rpc.Forward(r.Socket, &dhtrpc.Message{TID: r.TID, Command: r.Command, Target: r.Target, Value: encode(m)}, to)
}

// forwardReply forwards a server's answer to the client, once for each request.
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
