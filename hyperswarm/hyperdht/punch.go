package hyperdht

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/crypto/nacl/secretbox"

	"github.com/parleyhub/parley/hyperswarm/dhtrpc"
	"github.com/parleyhub/parley/hyperswarm/udx"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/wait"
)

// Hole punching: both ends send to each other at the same time, so that each NAT takes the incoming packets
// for answers. It works if both NATs give a socket the same public address for all peers (consistent), or
// if one does and accepts packets from any port of the other's host. The ends arrange it through relays,
// which can read the messages: their content is never more than a hint.

const (
	natSamples    = 4
	natWait       = 1500 * time.Millisecond
	punchRounds   = 20
	shortRounds   = 6 // where punching succeeds soon or never
	punchInterval = 500 * time.Millisecond
	lowTTL        = 5
	nonceSize     = 24
	maxPunchAddrs = 8
	lanWait       = 500 * time.Millisecond
)

// holepunch is a hole punching message between client, relay and server.
type holepunch struct {
	mode    uint64
	id      uint64
	payload []byte
	peer    netip.AddrPort
}

func (m *holepunch) code(c *dhtrpc.Coder) {
	flags := c.Flags(m.peer.IsValid())
	c.Uint(&m.mode)
	c.Uint(&m.id)
	c.Buffer(&m.payload)
	if flags&flagPeerAddr != 0 {
		c.Addr(&m.peer)
	}
}

const (
	punchConnected = 1 << iota
	punchPunching
	punchHasAddrs
	punchHasRemote
	punchHasToken
	punchHasRemoteToken
)

// punchPayload is the encrypted content of a hole punching message.
type punchPayload struct {
	err         uint64
	firewall    dhtrpc.Class
	round       uint64
	punching    bool
	addrs       []netip.AddrPort
	remote      netip.AddrPort
	token       *[32]byte
	remoteToken *[32]byte
}

func (p *punchPayload) code(c *dhtrpc.Coder) {
	flags := c.Flags(false, p.punching, len(p.addrs) > 0, p.remote.IsValid(), p.token != nil, p.remoteToken != nil)
	p.punching = flags&punchPunching != 0
	c.Uint(&p.err)
	c.Uint((*uint64)(&p.firewall))
	c.Uint(&p.round)
	if flags&punchHasAddrs != 0 {
		c.Addrs(&p.addrs)
	}
	if c.Decodes() {
		p.addrs = p.addrs[:min(len(p.addrs), maxPunchAddrs)]
	}
	if flags&punchHasRemote != 0 {
		c.Addr(&p.remote)
	}
	c.Optional(flags&punchHasToken != 0, &p.token)
	c.Optional(flags&punchHasRemoteToken != 0, &p.remoteToken)
}

// puncher is one end of a hole punching attempt: a separate socket and the estimate of its public address.
type puncher struct {
	n         *Node
	sock      *udx.Socket
	stream    *udx.Stream
	initiator bool
	secret    [32]byte
	begun     sync.Once     // starts sampling
	sampled   chan struct{} // closed after sampling
	few       bool          // too few nodes to classify the NAT; set before sampled is closed
	pinged    chan udx.Source
	started   chan struct{} // closed when the pings begin

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	key     *[32]byte
	sampler dhtrpc.Sampler
	remote  []netip.AddrPort
	punches bool
	round   uint64
}

// newPuncher opens a socket. Its NAT is sampled when needed, or earlier with begin.
func (n *Node) newPuncher(stream *udx.Stream, initiator bool) (*puncher, error) {
	bound := n.rpc.Socket().Addr()
	sock, err := n.mux.Listen(netip.AddrPortFrom(bound.Addr(), 0), n.rpc.Receive)
	if err != nil {
		return nil, err
	}
	p := &puncher{
		n: n, sock: sock, stream: stream, initiator: initiator,
		sampled: make(chan struct{}), pinged: make(chan udx.Source, 1), started: make(chan struct{}),
	}
	rand.Read(p.secret[:]) // never fails
	p.ctx, p.cancel = context.WithCancel(n.ctx)
	n.mu.Lock()
	n.punching[sock] = p
	n.mu.Unlock()
	return p, nil
}

// begin samples the socket's NAT in the background.
func (p *puncher) begin() {
	p.begun.Do(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.ctx.Err() == nil {
			p.wg.Go(p.sample)
		}
	})
}

func (p *puncher) setKey(hash [64]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := identity.KeyedHash(hash[:], identity.PeerHolepunch[:])
	p.key = &key
}

// close stops the puncher. The socket stays open as long as a stream is connected through it.
func (p *puncher) close() {
	p.mu.Lock()
	p.cancel()
	p.mu.Unlock()
	p.wg.Wait()
	p.n.mu.Lock()
	delete(p.n.punching, p.sock)
	p.n.mu.Unlock()
	closeSocket := func() { _ = p.sock.Close() } // an error has no consequence
	if p.stream.Socket() != p.sock || !p.n.background.Go(func() {
		select {
		case <-p.stream.Done():
		case <-p.n.ctx.Done():
		}
		closeSocket()
	}) {
		closeSocket()
	}
}

// sample asks nodes at which address they see the socket.
func (p *puncher) sample() {
	defer close(p.sampled)
	ctx, cancel := context.WithTimeout(p.ctx, natWait)
	defer cancel()
	nodes := p.n.rpc.Heard()
	p.few = len(nodes) < dhtrpc.LeastSamples
	if len(nodes) >= 8 {
		nodes = nodes[5:] // spare the busiest, which answered last
	}
	var wg sync.WaitGroup
	for _, a := range nodes[:min(len(nodes), 2*natSamples)] {
		wg.Go(func() {
			if r, err := p.n.rpc.Ping(ctx, a, p.sock, 2); err == nil {
				p.sampler.Add(a, r.To)
				if p.sampler.Len() >= natSamples {
					cancel()
				}
			}
		})
	}
	wg.Wait()
}

// class waits for the samples and classifies the NAT. In a network of one or two public nodes there are too
// few samples, and the class is a guess.
func (p *puncher) class(ctx context.Context) (class dhtrpc.Class, addrs []netip.AddrPort, guess bool) {
	p.begin()
	select {
	case <-p.sampled:
	case <-p.ctx.Done():
		return dhtrpc.Unknown, nil, false
	case <-ctx.Done():
		return dhtrpc.Unknown, nil, false
	}
	if p.few {
		class, addrs = p.sampler.Guess()
		return class, addrs, true
	}
	class, addrs = p.sampler.Class()
	return class, addrs, false
}

// passable reports whether hole punching can work between two NATs.
func passable(a, b dhtrpc.Class) bool {
	steady := func(c dhtrpc.Class) bool { return c == dhtrpc.Consistent || c == dhtrpc.Open }
	return a != dhtrpc.Unknown && b != dhtrpc.Unknown && (steady(a) || steady(b))
}

// token returns what a host must send back to prove its address.
func (p *puncher) token(host netip.Addr) *[32]byte {
	t := identity.KeyedHash(p.secret[:], []byte(host.String()))
	return &t
}

func (p *puncher) seal(m *punchPayload) []byte {
	var nonce [nonceSize]byte
	rand.Read(nonce[:]) // never fails
	return secretbox.Seal(nonce[:], encode(m), &nonce, p.key)
}

func (p *puncher) open(data []byte) (*punchPayload, bool) {
	p.mu.Lock()
	key := p.key
	p.mu.Unlock()
	if key == nil || len(data) < nonceSize {
		return nil, false
	}
	nonce := [nonceSize]byte(data)
	plain, ok := secretbox.Open(nil, data[nonceSize:], &nonce, key)
	if !ok {
		return nil, false
	}
	m, err := decode[punchPayload](plain)
	return m, err == nil
}

// ping sends a packet that opens a mapping in the NAT.
func (p *puncher) ping(to netip.AddrPort, ttl int) {
	if to.Port() == 0 || !to.Addr().Is4() || reserved(to.Addr()) {
		return
	}
	// Errors are ignored: the ping is repeated.
	if ttl == 0 {
		_ = p.sock.Write([]byte{0}, to)
	} else {
		_ = p.sock.WriteTTL([]byte{0}, to, ttl)
	}
}

// punch pings the peer's addresses for a while.
func (p *puncher) punch(to []netip.AddrPort) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remote = to
	if p.punches || p.ctx.Err() != nil {
		return
	}
	p.punches = true
	close(p.started)
	p.wg.Go(func() {
		for range punchRounds {
			p.mu.Lock()
			to := p.remote
			p.mu.Unlock()
			for _, a := range to {
				p.ping(a, 0)
			}
			if !wait.Pause(p.ctx, punchInterval) {
				return
			}
		}
	})
}

// handlePing handles a datagram of one byte on a punching socket.
func (n *Node) handlePing(s *udx.Socket, from netip.AddrPort) {
	n.mu.Lock()
	p := n.punching[s]
	n.mu.Unlock()
	if p == nil {
		return
	}
	p.mu.Lock()
	expected := (p.punches || p.initiator) && slices.ContainsFunc(p.remote, func(a netip.AddrPort) bool { return a.Addr() == from.Addr() })
	p.mu.Unlock()
	switch {
	case !expected:
		return
	case !p.initiator:
		p.ping(from, 0)
		return
	}
	select {
	case p.pinged <- udx.Source{Socket: s, Addr: from}:
	default:
	}
}

// handleHolepunch passes a message to a local listener, or forwards it.
func (n *Node) handleHolepunch(r *dhtrpc.Request) {
	m, err := decode[holepunch](r.Value)
	if err != nil || r.Target == nil {
		return
	}
	if l := n.listener(*r.Target); l != nil {
		if m.mode == fromRelay && m.peer.IsValid() {
			l.holepunch(r, m)
		}
		return
	}
	switch m.mode {
	case fromClient:
		route, ok := n.store.route(*r.Target)
		if !ok {
			return
		}
		to := route.addr
		if m.peer.Addr() == to.Addr() && m.peer.Port() != 0 { // another socket of the same host
			to = m.peer
		}
		n.forwardRequest(r, to, &holepunch{mode: fromRelay, id: m.id, payload: m.payload, peer: r.From})
	case fromServer:
		n.forwardReply(r, m.peer, func(server netip.AddrPort) []byte {
			return encode(&holepunch{mode: reply, id: m.id, payload: m.payload, peer: server})
		})
	}
}

// offerPunch prepares hole punching at the listener's end.
func (l *Listener) offerPunch(s *session, p *payload) {
	relays := l.announcer.current()
	if len(relays) == 0 {
		return
	}
	puncher, err := l.n.newPuncher(s.stream, false)
	if err != nil {
		l.n.log.Warn("cannot open a socket for hole punching", "error", err)
		return
	}
	if s.client.Addr() != l.n.rpc.Seen().Addr() { // clients of the same network rarely need it
		puncher.begin()
	}
	s.puncher = puncher
	l.mu.Lock()
	for s.id = randomID(); l.punches[s.id] != nil; s.id = randomID() {
	}
	l.punches[s.id] = s
	l.mu.Unlock()
	p.holepunch = &holepunchInfo{id: s.id, relays: relays}
}

// dropPunch undoes offerPunch.
func (l *Listener) dropPunch(s *session) {
	if s.puncher == nil {
		return
	}
	l.mu.Lock()
	delete(l.punches, s.id)
	l.mu.Unlock()
	s.puncher.close()
}

// holepunch answers a client's hole punching message.
func (l *Listener) holepunch(r *dhtrpc.Request, m *holepunch) {
	l.mu.Lock()
	s := l.punches[m.id]
	l.mu.Unlock()
	if s == nil {
		return
	}
	in, ok := s.puncher.open(m.payload)
	if !ok {
		return
	}
	l.conns.GoWithin(l.workers, func() { // otherwise the client retries
		out := l.answerPunch(s.puncher, r, m, in)
		value := encode(&holepunch{mode: fromServer, payload: s.puncher.seal(out), peer: m.peer})
		l.n.rpc.Forward(s.puncher.sock, &dhtrpc.Message{TID: r.TID, Command: cmdPeerHolepunch, Target: r.Target, Value: value}, r.From)
	})
}

func (l *Listener) answerPunch(p *puncher, r *dhtrpc.Request, m *holepunch, in *punchPayload) *punchPayload {
	class, addrs, _ := p.class(l.ctx)
	// In the first round a client may not know its own class yet.
	hopeless := class == dhtrpc.Unknown || (in.punching || in.firewall != dhtrpc.Unknown) && !passable(class, in.firewall)
	if in.err != payloadOK || hopeless {
		return &punchPayload{err: payloadAborted, firewall: class}
	}
	p.mu.Lock()
	current := in.round >= p.round
	p.round = max(p.round, in.round)
	p.mu.Unlock()
	out := &punchPayload{firewall: class, addrs: addrs, round: in.round, remoteToken: in.token}
	if slices.ContainsFunc(l.announcer.current(), func(x relayInfo) bool { return x.relay == r.From }) {
		out.token = p.token(m.peer.Addr())
	}
	if slices.Contains(addrs, in.remote) {
		p.ping(m.peer, 0) // the client's packets may pass at once
	}
	if !in.punching || !current {
		return out
	}
	// Ping only the host that the relay saw: otherwise a client could name any target.
	to := slices.DeleteFunc(slices.Clone(in.addrs), func(a netip.AddrPort) bool { return a.Addr() != m.peer.Addr() })
	if !slices.Contains(to, m.peer) {
		to = append(to, m.peer)
	}
	p.punch(to)
	out.punching = true
	return out
}

// punch finds a path by hole punching, at the dialling end.
func (d *dial) punch(ctx context.Context, a *answer) error {
	if d.sameHost(ctx, a) {
		return nil
	}
	p, err := d.n.newPuncher(d.stream, true)
	if err != nil {
		return peerError(CodeUnreachable, d.key, "cannot be reached", err)
	}
	defer p.close()
	p.begin()
	p.setKey(a.result.Hash)
	rounds, err := d.arrange(ctx, p, a)
	if err != nil {
		return err
	}
	select {
	case from := <-p.pinged:
		d.stream.Connect(from.Socket, from.Addr, a.payload.streamID, false)
		return nil
	case first := <-d.stream.First():
		d.stream.Connect(first.Socket, first.Addr, a.payload.streamID, false)
		return nil
	case <-time.After(time.Duration(rounds) * punchInterval):
		return peerError(CodeUnreachable, d.key, "answers, but hole punching failed: the firewalls let no packet through", nil)
	case <-ctx.Done():
		return d.failed(ctx, CodeUnreachable, "answers, but no path to it was found in time", nil)
	}
}

// sameHost tries the path inside a network that both ends share.
func (d *dial) sameHost(ctx context.Context, a *answer) bool {
	if a.self.Addr() != a.server.Addr() {
		return false
	}
	to, ok := neighbour(a.payload.addrs, d.n.addresses())
	if !ok {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, lanWait)
	defer cancel()
	if _, err := d.n.rpc.Ping(ctx, to, nil, 1); err != nil {
		return false
	}
	d.stream.Connect(d.n.rpc.Socket(), to, a.payload.streamID, false)
	return true
}

// arrange agrees with the peer on when to punch, and returns for how many rounds to wait.
func (d *dial) arrange(ctx context.Context, p *puncher, a *answer) (rounds int, err error) {
	relay := a.payload.holepunch.relays[0]
	for _, r := range a.payload.holepunch.relays {
		if r.relay == a.asked {
			relay = r
		}
	}
	p.mu.Lock()
	p.remote = []netip.AddrPort{a.server} // its packets may pass at once
	p.mu.Unlock()
	p.ping(a.server, lowTTL)
	class, addrs, guess := p.class(ctx)
	in, from, err := d.punchRound(ctx, p, a, relay.relay, relay.peer, &punchPayload{firewall: class, addrs: addrs, remote: a.server})
	if err != nil {
		return 0, err
	}
	if in.err != payloadOK || !passable(class, in.firewall) {
		return 0, peerError(CodeUnreachable, d.key, "answers, but its firewall ("+in.firewall.String()+") or ours ("+class.String()+") cannot be passed", nil)
	}
	if relay.relay == a.asked && from.IsValid() {
		a.server = from
	}
	p.punch(append([]netip.AddrPort{a.server}, sameHostOnly(in.addrs, a.server)...))
	in, _, err = d.punchRound(ctx, p, a, a.asked, a.server, &punchPayload{
		firewall: class, addrs: addrs, round: 1, punching: true, remote: a.server,
		token: p.token(a.server.Addr()), remoteToken: in.token,
	})
	if err != nil {
		return 0, err
	}
	if in.err != payloadOK || !in.punching {
		return 0, peerError(CodeUnreachable, d.key, "answers, but refuses hole punching", nil)
	}
	if guess || class == dhtrpc.Random || in.firewall == dhtrpc.Random {
		return shortRounds, nil
	}
	return punchRounds, nil
}

// sameHostOnly returns the other addresses of the same host; other hosts are unverified.
func sameHostOnly(all []netip.AddrPort, as netip.AddrPort) []netip.AddrPort {
	return slices.DeleteFunc(slices.Clone(all), func(a netip.AddrPort) bool { return a.Addr() != as.Addr() || a == as })
}

// punchRound sends one message through a relay. It returns the peer's answer and the peer's address as the
// relay sees it.
func (d *dial) punchRound(ctx context.Context, p *puncher, a *answer, relay, peer netip.AddrPort, out *punchPayload) (*punchPayload, netip.AddrPort, error) {
	m := holepunch{mode: fromClient, id: a.payload.holepunch.id, payload: p.seal(out), peer: peer}
	r, err := d.n.rpc.Call(ctx, relay, dhtrpc.Call{Command: cmdPeerHolepunch, Target: &d.target, Value: encode(&m), Socket: p.sock, Tries: handshakeTries})
	silent := func(cause error) (*punchPayload, netip.AddrPort, error) {
		return nil, netip.AddrPort{}, d.failed(ctx, CodeUnreachable, "answers, but not to hole punching messages", cause)
	}
	if err != nil {
		return silent(err)
	}
	p.sampler.Add(relay, r.To)
	back, err := decode[holepunch](r.Value)
	if err != nil || back.mode != reply {
		return silent(err)
	}
	in, ok := p.open(back.payload)
	if !ok || in.remoteToken != nil && out.token != nil && subtle.ConstantTimeCompare(in.remoteToken[:], out.token[:]) != 1 {
		return silent(nil)
	}
	return in, back.peer, nil
}
