package hyperdht

import (
	"cmp"
	"context"
	"errors"
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

const (
	handshakeTries     = 3
	parallelHandshakes = 3
	passiveWait        = 10 * time.Second
	maxCandidates      = 32
	walkDelay          = 200 * time.Millisecond // head start of the relays given
)

// DialOptions configure a dial. The zero value is ready to use.
type DialOptions struct {
	// Pair is the dialler's identity; nil means the node's.
	Pair *identity.Pair
	// Relays are nodes that may know the peer, from its record.
	Relays []netip.AddrPort
}

// Dial connects to the peer that listens on a key. It blocks until the peer's first packet arrives or ctx
// ends, about ten seconds at most. The connection is encrypted end to end with the owner of the key,
// whatever path the packets take.
func (n *Node) Dial(ctx context.Context, key identity.PublicKey, o DialOptions) (*secretstream.Conn, error) {
	o.Pair = cmp.Or(o.Pair, n.o.Pair)
	if !key.Valid() {
		return nil, &Error{Code: CodeInvalid, Message: "the peer's key is not a valid public key"}
	}
	if n.ctx.Err() != nil {
		return nil, errClosed
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(n.ctx, cancel)()
	d, err := n.newDial(key, o)
	if err != nil {
		return nil, err
	}
	conn, err := d.run(ctx, o.Relays)
	if err != nil {
		d.stream.Destroy()
		if n.ctx.Err() != nil {
			return nil, errClosed
		}
		return nil, err
	}
	return conn, nil
}

// dial is one attempt to reach a peer.
type dial struct {
	n       *Node
	key     identity.PublicKey
	target  dhtrpc.ID
	stream  *udx.Stream
	request []byte // the handshake's first message, the same for each candidate
	pair    *identity.Pair

	mu    sync.Mutex // guards noise: it handles one answer at a time
	noise *secretstream.Initiator
}

// answer is the peer's answer to a handshake.
type answer struct {
	payload *payload
	result  *secretstream.Result
	asked   netip.AddrPort // the node that was asked
	server  netip.AddrPort // the peer's address as that node sees it
	self    netip.AddrPort // our address as that node sees it
	relayed bool
}

func (n *Node) newDial(key identity.PublicKey, o DialOptions) (*dial, error) {
	noise, err := secretstream.NewInitiator(o.Pair, key)
	if err != nil {
		return nil, &Error{Code: CodeInvalid, Message: "the peer cannot be dialled", Err: err}
	}
	stream, err := n.mux.NewStream()
	if err != nil {
		return nil, errClosed
	}
	p := payload{firewall: n.class(), addrs: n.addresses(), streamID: stream.ID(), hasUDX: true}
	msg, err := noise.Message(encode(&p))
	if err != nil {
		stream.Destroy()
		return nil, &Error{Code: CodeInvalid, Message: "the peer cannot be dialled", Err: err}
	}
	return &dial{
		n: n, key: key, target: identity.Hash(key[:]), stream: stream, pair: o.Pair, noise: noise,
		request: encode(&relayed{mode: fromClient, noise: msg}),
	}, nil
}

// class returns the NAT class that this node announces.
func (n *Node) class() dhtrpc.Class {
	if n.rpc.Persistent() {
		return dhtrpc.Open
	}
	return dhtrpc.Unknown
}

func (d *dial) run(ctx context.Context, relays []netip.AddrPort) (*secretstream.Conn, error) {
	a, err := d.exchange(ctx, relays)
	if err != nil {
		return nil, err
	}
	if err := d.judge(a); err != nil {
		return nil, err
	}
	if err := d.connect(ctx, a); err != nil {
		return nil, err
	}
	d.n.remember(d.key, a.payload.relays)
	conn, err := secretstream.New(d.stream, a.result, d.n.o.Stream)
	if err != nil {
		return nil, d.failed(ctx, CodeUnreachable, "cannot be reached", err)
	}
	// An empty message proves to the peer that this handshake is not a recording.
	if err := conn.WriteMessage(nil); err != nil {
		conn.Destroy()
		return nil, d.failed(ctx, CodeUnreachable, "cannot be reached", err)
	}
	if err := d.confirm(ctx); err != nil {
		conn.Destroy()
		return nil, err
	}
	return conn, nil
}

func (d *dial) failed(ctx context.Context, code Code, what string, cause error) error {
	if ctx.Err() != nil && !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return ctx.Err()
	}
	if cause == nil {
		cause = ctx.Err()
	}
	return peerError(code, d.key, what, cause)
}

// exchange sends the handshake to the candidates until one answer arrives.
func (d *dial) exchange(ctx context.Context, relays []netip.AddrPort) (*answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	candidates := make(chan netip.AddrPort, maxCandidates)
	var walkErr error
	walked := make(chan struct{})
	first := append(slices.Clone(relays), d.n.remembered(d.key)...)
	started := d.n.background.Go(func() {
		defer close(walked)
		defer close(candidates)
		walkErr = d.candidates(ctx, first, candidates)
	})
	if !started {
		return nil, errClosed
	}
	answers := make(chan *answer, maxCandidates)
	flying, asked, open := 0, make(map[netip.AddrPort]bool), candidates
	for open != nil || flying > 0 {
		from := open
		if flying >= parallelHandshakes {
			from = nil
		}
		select {
		case c, ok := <-from:
			if !ok {
				open = nil
				continue
			}
			if asked[c] || len(asked) >= maxCandidates {
				continue
			}
			asked[c] = true
			flying++
			d.n.background.Go(func() { answers <- d.ask(ctx, c) })
		case a := <-answers:
			flying--
			if a != nil {
				cancel()
				<-walked
				return a, nil
			}
		case <-ctx.Done():
			<-walked
			return nil, d.failed(ctx, CodeUnanswered, "was not found in time", nil)
		}
	}
	<-walked
	switch {
	case len(asked) > 0:
		return nil, peerError(CodeUnanswered, d.key, "does not answer: it is offline, or does not allow this key", nil)
	case walkErr != nil:
		return nil, walkErr
	}
	return nil, peerError(CodePeerNotFound, d.key, "is not announced", nil)
}

// candidates sends nodes that may forward a handshake to the peer: first those given, then, after
// walkDelay, all that have its record.
func (d *dial) candidates(ctx context.Context, first []netip.AddrPort, to chan<- netip.AddrPort) error {
	put := func(a netip.AddrPort) bool {
		select {
		case to <- a:
			return true
		case <-ctx.Done():
			return false
		}
	}
	if route, ok := d.n.store.route(d.target); ok && !put(route.addr) {
		return nil
	}
	for _, a := range first {
		if !put(a) {
			return nil
		}
	}
	if len(first) > 0 && !wait.Pause(ctx, walkDelay) {
		return nil // an answer arrived
	}
	_, err := d.n.walk(ctx, dhtrpc.Walk{Target: d.target, Command: cmdFindPeer, From: first, Each: func(r *dhtrpc.Reply) bool {
		p, err := decode[Peer](r.Value)
		if err != nil || p.Key != d.key {
			return true
		}
		for _, a := range usable(p.Relays[:min(len(p.Relays), maxRelays)], r.From) {
			if !put(a) {
				return false
			}
		}
		return put(r.From)
	}})
	return err
}

// ask sends the handshake to one node. It returns nil if there is no valid answer.
func (d *dial) ask(ctx context.Context, node netip.AddrPort) *answer {
	r, err := d.n.rpc.Call(ctx, node, dhtrpc.Call{Command: cmdPeerHandshake, Target: &d.target, Value: d.request, Tries: handshakeTries})
	if err != nil || r.Value == nil {
		return nil
	}
	m, err := decode[relayed](r.Value)
	if err != nil || m.mode != reply || len(m.noise) == 0 {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	data, result, err := d.noise.Finish(m.noise)
	if err != nil {
		return nil
	}
	p, err := decode[payload](data)
	if err != nil {
		return nil
	}
	a := &answer{payload: p, result: result, asked: node, server: node, self: r.To, relayed: m.peer.IsValid()}
	if a.relayed {
		a.server = m.peer
	}
	return a
}

// judge returns an error if the peer's answer refuses the connection.
func (d *dial) judge(a *answer) error {
	switch {
	case a.payload.version != protocolVersion, a.payload.err == payloadVersion:
		return peerError(CodeIncompatible, d.key, "speaks another version of the protocol", nil)
	case a.payload.err != payloadOK || !a.payload.hasUDX:
		return peerError(CodeRefused, d.key, "cannot connect at the moment", nil)
	}
	return nil
}

// connect finds a path to the peer and connects the stream.
func (d *dial) connect(ctx context.Context, a *answer) error {
	sock := d.n.rpc.Socket()
	select {
	case first := <-d.stream.First(): // arrived before the answer
		d.stream.Connect(first.Socket, first.Addr, a.payload.streamID, false)
		return nil
	default:
	}
	switch {
	case !a.relayed:
		d.stream.Connect(sock, a.asked, a.payload.streamID, false)
		return nil
	case a.payload.firewall == dhtrpc.Open || a.payload.holepunch == nil || len(a.payload.holepunch.relays) == 0:
		d.stream.Connect(sock, reachable(a.payload.addrs, a.server), a.payload.streamID, false)
		return nil
	case d.n.rpc.Persistent(): // the peer connects to this node
		return d.await(ctx, a)
	}
	return d.punch(ctx, a)
}

// reachable returns the first public address, or else otherwise.
func reachable(all []netip.AddrPort, otherwise netip.AddrPort) netip.AddrPort {
	for _, a := range all {
		if a.Port() != 0 && !private(a.Addr()) && !reserved(a.Addr()) {
			return a
		}
	}
	return otherwise
}

// await connects to the sender of the peer's first packet.
func (d *dial) await(ctx context.Context, a *answer) error {
	select {
	case first := <-d.stream.First():
		d.stream.Connect(first.Socket, first.Addr, a.payload.streamID, false)
		return nil
	case <-time.After(passiveWait):
		return peerError(CodeUnreachable, d.key, "answers, but there is no path to it", nil)
	case <-ctx.Done():
		return d.failed(ctx, CodeUnreachable, "answers, but no path to it was found in time", nil)
	}
}

// confirm waits for the peer's first packet.
func (d *dial) confirm(ctx context.Context) error {
	if d.stream.Proven() {
		return nil
	}
	select {
	case <-d.stream.First():
		return nil
	case <-d.stream.Done():
		if d.stream.Proven() {
			return nil // closed again already: the reader finds out
		}
		return peerError(CodeUnreachable, d.key, "cannot be reached", d.stream.Err())
	case <-time.After(passiveWait):
		return peerError(CodeUnreachable, d.key, "answers, but its packets do not arrive", nil)
	case <-ctx.Done():
		return d.failed(ctx, CodeUnreachable, "answers, but its packets did not arrive in time", nil)
	}
}

// remember stores a peer's relays for the next dial.
func (n *Node) remember(key identity.PublicKey, relays []netip.AddrPort) {
	if len(relays) == 0 {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.known.keep(key, relays[:min(len(relays), maxRelays)])
}

func (n *Node) remembered(key identity.PublicKey) []netip.AddrPort {
	n.mu.Lock()
	defer n.mu.Unlock()
	relays, _ := n.known.get(key)
	return relays
}
