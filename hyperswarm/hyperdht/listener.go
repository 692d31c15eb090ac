package hyperdht

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"net/netip"
	"sync"
	"time"

	"github.com/parleyhub/parley/hyperswarm/dhtrpc"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/hyperswarm/udx"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/wait"
)

const (
	answerLife     = 10 * time.Second // how long a repeated message gets the same answer
	replayLife     = 10 * time.Minute
	maxReplays     = 65536
	confirmTime    = 15 * time.Second
	maxUnconfirmed = 256
	maxWorkers     = 32 // concurrent handshakes
	maxWaiting     = 64 // connections that wait for Accept
)

// ListenOptions configure a listener.
type ListenOptions struct {
	// Pair is the key to listen on; nil means the node's own.
	Pair *identity.Pair
	// Allow decides who may connect; nil allows everyone. A refused peer gets no answer.
	Allow identity.Allow
}

// Listener accepts connections for a key. It is safe for concurrent use.
type Listener struct {
	n      *Node
	pair   *identity.Pair
	target dhtrpc.ID
	allow  identity.Allow

	conns   *wait.Backlog[*secretstream.Conn]
	ctx     context.Context // of conns
	workers chan struct{}
	pending chan struct{} // slots of connections that are not confirmed

	mu       sync.Mutex
	sessions *cache[[32]byte, *session]                         // by the hash of the first message
	replays  *cache[[secretstream.EphemeralSize]byte, struct{}] // ephemeral keys seen
	punches  map[uint64]*session

	announcer announcer
}

// session is one handshake.
type session struct {
	done    chan struct{} // closed when the answer is known
	answer  []byte        // nil if none is given
	began   time.Time
	id      uint64
	stream  *udx.Stream
	result  *secretstream.Result
	payload *payload // the client's
	client  netip.AddrPort
	puncher *puncher
}

// Listen announces a key and accepts connections for it. The announcement runs in the background; see WaitAnnounced.
func (n *Node) Listen(o ListenOptions) (*Listener, error) {
	o.Pair = cmp.Or(o.Pair, n.o.Pair)
	public := o.Pair.Public()
	l := &Listener{
		n: n, pair: o.Pair, target: identity.Hash(public[:]), allow: o.Allow,
		workers: make(chan struct{}, maxWorkers), pending: make(chan struct{}, maxUnconfirmed),
		sessions: newCache[[32]byte, *session](answerLife*3/2, 4096),
		replays:  newCache[[secretstream.EphemeralSize]byte, struct{}](replayLife*3/2, maxReplays),
		punches:  make(map[uint64]*session),
		conns:    wait.NewBacklog(n.ctx, maxWaiting, (*secretstream.Conn).Destroy, errListenerClosed),
	}
	l.ctx = l.conns.Context()
	l.announcer.init(l)
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.background.Stopped():
		return nil, errClosed
	case n.listeners[l.target] != nil:
		return nil, &Error{Code: CodeAlreadyStarted, Message: "the node listens on this key already"}
	}
	n.listeners[l.target] = l
	l.conns.Go(l.announcer.run)
	return l, nil
}

// Key returns the listener's key.
func (l *Listener) Key() identity.PublicKey { return l.pair.Public() }

// WaitAnnounced blocks until peers can find the listener, or returns the error of the first attempt to announce it.
func (l *Listener) WaitAnnounced(ctx context.Context) error {
	select {
	case <-l.announcer.first:
		return l.announcer.err()
	case <-l.ctx.Done():
		return errClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Relays returns the nodes that forward handshakes to this listener now, which are announced with its key;
// the node itself is the first if it is public.
func (l *Listener) Relays() []netip.AddrPort { return l.announcer.addresses() }

// Accept returns the next connection. The peer has proved its key, but the handshake may be a replayed
// recording: only data proves that the peer is present (see [secretstream.Conn.Confirmed]). Until then
// nothing but the header is sent, and after 15 s the connection is destroyed.
func (l *Listener) Accept(ctx context.Context) (*secretstream.Conn, error) {
	return l.conns.Accept(ctx)
}

func errListenerClosed() error { return &Error{Code: CodeClosed, Message: "the listener is closed"} }

// Close stops the listener and withdraws its announcement. Accepted connections stay open.
func (l *Listener) Close() error {
	l.conns.Stop()
	l.n.mu.Lock()
	if l.n.listeners[l.target] == l {
		delete(l.n.listeners, l.target)
	}
	l.n.mu.Unlock()
	l.conns.Close()
	return nil
}

// handshake handles a client's message; m.mode says on which way it was received.
func (l *Listener) handshake(r *dhtrpc.Request, m *relayed) {
	client, direct := r.From, false
	switch m.mode {
	case fromClient:
		direct = true
	case fromRelay, fromSecondRelay:
		if !m.peer.IsValid() || m.peer.Port() == 0 {
			return
		}
		client = m.peer
	default:
		return
	}
	key := identity.Hash(m.noise)
	l.mu.Lock()
	s, seen := l.sessions.get(key)
	if seen && time.Since(s.began) > answerLife {
		l.mu.Unlock()
		return
	}
	if !seen {
		if !l.n.handshakes.allow(client.Addr(), r.From.Addr()) {
			l.mu.Unlock()
			return
		}
		s = &session{done: make(chan struct{}), began: time.Now(), client: client}
		l.sessions.keep(key, s)
	}
	l.mu.Unlock()
	started := l.conns.GoWithin(l.workers, func() {
		if !seen {
			l.begin(s, r, m.noise, direct)
			close(s.done)
		}
		select {
		case <-s.done:
			l.reply(s, r, m)
		case <-l.ctx.Done():
		}
	})
	if !started && !seen { // the client retries
		l.mu.Lock()
		defer l.mu.Unlock()
		l.sessions.remove(key)
	}
}

// reply sends the session's answer along the way of the message.
func (l *Listener) reply(s *session, r *dhtrpc.Request, m *relayed) {
	if s.answer == nil {
		return
	}
	out := &relayed{mode: fromServer, noise: s.answer, peer: m.peer}
	to := r.From
	switch m.mode {
	case fromClient:
		out = &relayed{mode: reply, noise: s.answer}
		r.ReplyValue(encode(out))
		return
	case fromSecondRelay:
		if !m.relay.IsValid() || m.relay.Port() == 0 {
			return
		}
		to = m.relay
	}
	sock := r.Socket
	if s.puncher != nil { // the client must see this socket's mapping
		sock = s.puncher.sock
	}
	l.n.rpc.Forward(sock, &dhtrpc.Message{TID: r.TID, Command: cmdPeerHandshake, Target: r.Target, Value: encode(out)}, to)
}

// begin runs the handshake and connects the session's stream if the client is allowed.
func (l *Listener) begin(s *session, r *dhtrpc.Request, msg []byte, direct bool) {
	if len(msg) < secretstream.EphemeralSize {
		return
	}
	ephemeral := [secretstream.EphemeralSize]byte(msg)
	l.mu.Lock()
	_, replayed := l.replays.get(ephemeral)
	l.mu.Unlock()
	if replayed || len(l.pending) == maxUnconfirmed {
		return
	}
	responder, remote, data, err := secretstream.NewResponder(l.pair, msg)
	if err != nil {
		return
	}
	if l.allow != nil && !l.allow(remote) {
		l.n.log.Debug("a peer was refused", "peer", remote)
		return
	}
	l.mu.Lock()
	_, replayed = l.replays.get(ephemeral)
	l.replays.keep(ephemeral, struct{}{})
	l.mu.Unlock()
	if replayed {
		return
	}
	p, err := decode[payload](data)
	if err != nil {
		return
	}
	s.payload = p
	switch {
	case p.version != protocolVersion:
		l.finish(s, responder, &payload{err: payloadVersion, firewall: l.n.class()})
	case !p.hasUDX:
		l.finish(s, responder, &payload{err: payloadAborted, firewall: l.n.class()})
	default:
		l.open(s, r, responder, direct)
	}
}

func (l *Listener) finish(s *session, responder *secretstream.Responder, p *payload) bool {
	msg, result, err := responder.Finish(encode(p))
	if err != nil {
		l.n.log.Warn("a handshake cannot be answered", "error", err)
		return false
	}
	s.answer, s.result = msg, result
	return true
}

// open creates the session's stream and connects it in the background.
func (l *Listener) open(s *session, r *dhtrpc.Request, responder *secretstream.Responder, direct bool) {
	stream, err := l.n.mux.NewStream()
	if err != nil {
		return
	}
	s.stream = stream
	p := &payload{firewall: l.n.class(), addrs: l.n.addresses(), streamID: stream.ID(), hasUDX: true, relays: l.announcer.addresses()}
	straight := direct || s.payload.firewall == dhtrpc.Open
	if !straight && !l.n.rpc.Persistent() {
		l.offerPunch(s, p)
	}
	if !l.finish(s, responder, p) {
		stream.Destroy()
		l.dropPunch(s)
		return
	}
	if s.puncher != nil {
		s.puncher.setKey(s.result.Hash)
	}
	started := l.conns.GoWithin(l.pending, func() {
		defer l.dropPunch(s)
		l.serve(s, r.Socket, straight)
	})
	if !started {
		s.answer = nil
		stream.Destroy()
		l.dropPunch(s)
	}
}

// serve connects a session's stream and delivers the connection.
func (l *Listener) serve(s *session, sock *udx.Socket, straight bool) {
	if straight {
		s.stream.Connect(sock, s.client, s.payload.streamID, true)
	} else if !l.awaitClient(s) {
		s.stream.Destroy()
		return
	}
	conn, err := secretstream.New(s.stream, s.result, l.n.o.Stream)
	if err != nil {
		s.stream.Destroy()
		return
	}
	if !l.conns.Offer(conn) {
		l.n.log.Warn("the backlog of accepted connections is full: a connection was dropped")
		conn.Destroy()
		return
	}
	ctx, cancel := context.WithTimeout(l.ctx, confirmTime)
	defer cancel()
	switch err := conn.WaitConfirmed(ctx); {
	case err == nil:
		l.n.handshakes.met(s.client.Addr())
	case l.ctx.Err() == nil:
		conn.Destroy()
	}
}

// awaitClient waits for the client's first packet and connects to its sender.
func (l *Listener) awaitClient(s *session) bool {
	t := time.NewTimer(passiveWait)
	defer t.Stop()
	var extended <-chan struct{}
	if s.puncher != nil {
		extended = s.puncher.started
	}
	for {
		select {
		case first := <-s.stream.First():
			s.stream.Connect(first.Socket, first.Addr, s.payload.streamID, false)
			return true
		case <-extended: // hole punching takes longer
			extended = nil
			t.Reset(2 * passiveWait)
		case <-t.C:
			return false
		case <-l.ctx.Done():
			return false
		}
	}
}

// randomID returns an unguessable number of 32 bits.
func randomID() uint64 {
	var b [4]byte
	rand.Read(b[:]) // never fails
	return uint64(binary.LittleEndian.Uint32(b[:]))
}
