package channel

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/memory"
)

// lost replaces a broken connection; c.mu is held.
func (c *Channel) lost(conn transport.Conn) {
	if c.conn != conn || conn == nil {
		return
	}
	c.conn, c.dying = nil, nil
	c.in.dropAhead() // it will be sent again
	c.set(Reconnecting)
	if c.opener {
		c.m.wg.Go(c.run)
	} else {
		c.awaitReturn()
	}
	c.m.wg.Go(func() { closeConn(conn) })
}

// awaitReturn closes the channel unless the opener reconnects in time; c.mu is held.
func (c *Channel) awaitReturn() {
	limit := c.m.opts.ReconnectTimeout
	if c.outlived {
		limit = 0
	}
	if c.giveUp == nil {
		c.giveUp = time.AfterFunc(limit, c.abandon)
		return
	}
	c.giveUp.Reset(limit)
}

func (c *Channel) abandon() {
	c.mu.Lock()
	waiting, outlived := c.status == Reconnecting, c.outlived
	c.mu.Unlock()
	switch {
	case !waiting:
	case outlived:
		c.shut(c.errorf(CodeUnreachable, nil, "the process of %q that opened the channel has ended", c.remote), nil)
	default:
		c.shut(c.errorf(CodeUnreachable, nil, "%q did not reconnect within %v", c.remote, c.m.opts.ReconnectTimeout), nil)
	}
}

// Outlived tells the channel that another process has the agent at the other end now, instead of that whose manager had
// this [Manager.Instance]. If that one opened the channel, and does not answer, the channel closes instead of waiting for it.
// One that was opened here is probed. It does not wait. A process that resumes the channel keeps it.
func (c *Channel) Outlived(instance string) {
	c.mu.Lock()
	if !c.opener && c.instance == instance {
		if c.outlived = true; c.status == Reconnecting && c.joining == nil {
			c.awaitReturn()
		}
	}
	c.mu.Unlock()
	c.Probe()
}

// run connects the opener's end and receives until the connection breaks; then lost starts it again.
func (c *Channel) run() {
	conn, err := c.connectWithRetry()
	if err != nil {
		c.shut(c.unreachable(err), nil)
		return
	}
	if conn != nil {
		c.receiveFrom(conn, nil)
	}
}

// connectWithRetry connects. It returns nil, nil if the channel closes meanwhile, and an error if retrying cannot
// help or ReconnectTimeout is over: the last attempt begins at its end.
func (c *Channel) connectWithRetry() (transport.Conn, error) {
	end := time.Now().Add(c.m.opts.ReconnectTimeout)
	for c.ctx.Err() == nil {
		if !wait.Pause(c.ctx, min(c.nextDelay(), max(time.Until(end), 0))) {
			break
		}
		last := !time.Now().Before(end)
		conn, err := c.connect()
		if err == nil {
			return conn, nil
		}
		if c.Status() != Closed && (c.lasting(err) || last) {
			return nil, err
		}
	}
	return nil, nil
}

// nextDelay returns the backoff before the next attempt: 0 at first, then doubled each
// time. A connection that lasted for a while resets it.
func (c *Channel) nextDelay() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	delay := c.redial
	if !c.joined.IsZero() && time.Since(c.joined) > maxReconnectDelay {
		delay = c.m.opts.ReconnectDelay
	}
	c.joined = time.Time{}
	c.redial = min(max(2*delay, c.m.opts.ReconnectDelay), maxReconnectDelay)
	return delay
}

// receiveFrom receives from conn, after the frames that have arrived already. It
// blocks until conn breaks, unless conn pushes.
func (c *Channel) receiveFrom(conn transport.Conn, first []transport.Frame) {
	p, ok := conn.(transport.Pusher)
	if !ok {
		c.read(conn, first)
		return
	}
	if err := c.receive(conn, first); err != nil {
		return
	}
	p.Push(func(frames []transport.Frame, err error) {
		if err != nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.lost(conn)
			return
		}
		_ = c.receive(conn, frames) // it has handled the error
	})
}

func (c *Channel) unreachable(err error) error {
	switch CodeOf(err) {
	case "":
		return c.errorf(CodeUnreachable, err, "no connection to %q", c.remote)
	case CodeAbsent:
		return c.errorf(CodeUnreachable, err, "%q did not come back within %v", c.remote, c.m.opts.ReconnectTimeout)
	}
	return err
}

// connect dials one endpoint after the other until a handshake succeeds, which opens the channel.
func (c *Channel) connect() (transport.Conn, error) {
	var failed error
	for range c.endpoints {
		conn, err := c.connectAt(c.endpoints[0])
		if err == nil || c.Status() == Closed || CodeOf(err) == CodeRefused {
			return conn, err
		}
		if failed == nil || c.lasting(failed) { // an error that a retry may cure counts most
			failed = err
		}
		c.mu.Lock()
		c.endpoints = append(c.endpoints[1:], c.endpoints[0])
		c.mu.Unlock()
	}
	return nil, failed
}

func (c *Channel) connectAt(at agent.Endpoint) (transport.Conn, error) {
	ctx, cancel := context.WithTimeout(c.ctx, c.m.opts.HandshakeTimeout)
	defer cancel()
	c.mu.Lock()
	if !c.own {
		c.transport = at.Transport
	}
	c.mu.Unlock()
	conn, err := c.dialOnce(ctx, at)
	if err != nil {
		return nil, err
	}
	if err := c.openHandshake(ctx, conn); err != nil {
		closeConn(conn)
		if c.Status() == Closed {
			c.m.forget(c) // again: the introduction may have followed the end
		}
		return nil, err
	}
	return conn, nil
}

// dialOnce makes one connection, within the process for a local agent.
func (c *Channel) dialOnce(ctx context.Context, at agent.Endpoint) (conn transport.Conn, err error) {
	if c.own {
		here, there := memory.Pipe()
		if !c.m.start(func() { c.m.accept(there, agent.TransportLocal, true) }) {
			return nil, c.closedError()
		}
		return here, nil
	}
	dialer := c.m.opts.Dialers[at.Transport]
	if dialer == nil {
		return nil, c.errorf(CodeNoEndpoint, nil, "there is no dialer for the transport %q", at.Transport)
	}
	err = c.m.call("a dialer", func() error { conn, err = dialer.Dial(ctx, at); return err })
	return conn, err
}

func (c *Channel) openHandshake(ctx context.Context, conn transport.Conn) error {
	hello := c.hello()
	if err := conn.Send(ctx, []transport.Frame{{Kind: transport.Open, Hello: hello}}); err != nil {
		return err
	}
	frames, err := conn.Receive(ctx)
	if err != nil {
		return err
	}
	answer := frames[0] // a faulty network may have repeated it
	switch {
	case answer.Kind == transport.Refuse && answer.Reason != nil:
		code := CodeRefused
		if hello.Resume && answer.Reason.Code == string(CodeAbsent) {
			code = CodeAbsent
		}
		return c.errorf(code, nil, "%q refused the channel: %s", c.remote, text.Valid(answer.Reason.Message, maxReason))
	case answer.Kind != transport.Accept || answer.Hello == nil:
		return c.errorf(CodeInvalid, nil, "the peer did not answer the handshake")
	}
	if err := c.m.introduced(ctx, Request{Peer: conn.Peer(), From: c.remote, To: c.local, Card: answer.Hello.Card, Resume: hello.Resume, Own: c.own}); err != nil {
		return c.errorf(CodeRefused, err, "the channel to %q was not accepted", c.remote)
	}
	if err := c.m.opts.Policy.PermitChannel(c.local, c.remote); err != nil { // now that the card is known
		return c.errorf(CodeRefused, err, "%q may not open a channel to %q", c.local, c.remote)
	}
	if err := conn.Send(ctx, []transport.Frame{{Kind: transport.Ready}}); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.join(conn, answer.Hello)
}

// hello returns this end's part of the handshake.
func (c *Channel) hello() *transport.Hello {
	card := c.m.opts.Introduce(c.alias)
	c.mu.Lock()
	defer c.mu.Unlock()
	instance := ""
	if c.opener {
		instance = c.m.instance
	}
	return &transport.Hello{
		Instance: instance,
		Version:  transport.Version, Channel: c.id, Secret: c.secret, From: c.alias, To: c.remote,
		Resume:   c.status != Connecting || c.out.sent > 0 || c.in.received > 0,
		Received: c.in.received, Base: c.out.acked, Window: c.m.opts.Window, WindowBytes: c.m.opts.WindowBytes, Card: card,
	}
}

// checkPeer checks the peer's hello against this end; c.mu is held.
func (c *Channel) checkPeer(h *transport.Hello) error {
	switch {
	case h.Version != transport.Version:
		return c.errorf(CodeInvalid, nil, "the peer speaks version %d of the protocol, not %d", h.Version, transport.Version)
	case h.Channel != c.id || h.From != c.remote || h.To != c.alias:
		return c.errorf(CodeInvalid, nil, "the peer names another channel")
	case h.Received > c.out.sent:
		return c.errorf(CodeInvalid, nil, "the peer has received envelope %d, which was never sent", h.Received)
	case h.Received < c.out.acked:
		return c.errorf(CodeInvalid, nil, "the peer has forgotten envelopes that it had handled")
	case h.Base > c.in.received:
		return c.errorf(CodeInvalid, nil, "the peer expects acknowledgements of envelopes that never arrived")
	case h.Window < 1 || h.WindowBytes < 0:
		return c.errorf(CodeInvalid, nil, "the peer accepts no envelopes")
	}
	return nil
}

// join makes conn the channel's connection, after the handshake; c.mu is held.
func (c *Channel) join(conn transport.Conn, h *transport.Hello) error {
	if err := c.checkPeer(h); err != nil {
		return err
	}
	if !c.set(Open) {
		return c.closedError()
	}
	c.conn, c.joining, c.peer, c.joined = conn, nil, conn.Peer(), time.Now()
	if c.giveUp != nil {
		c.giveUp.Stop()
	}
	c.out.window = min(h.Window, maxWindow)
	if c.out.windowBytes = c.m.opts.WindowBytes; h.WindowBytes > 0 {
		c.out.windowBytes = min(h.WindowBytes, c.out.windowBytes)
	}
	c.out.delivered = max(c.out.delivered, h.Received)
	c.out.wire = h.Received // what follows is sent again
	// The peer knows of these rejections.
	c.out.rejected = slices.DeleteFunc(c.out.rejected, func(r rejection) bool { return r.seq <= h.Base })
	c.out.ackDue, c.out.probe = true, false
	c.startFlush()
	return nil
}

// accept serves a connection that a peer has opened, until it breaks.
func (m *Manager) accept(conn transport.Conn, via agent.Transport, own bool) {
	c, rest, err := m.handshake(conn, via, own)
	if err != nil {
		m.refuse(conn, err)
		return
	}
	c.receiveFrom(conn, rest)
}

// refuse sends the peer the reason and ends the connection.
func (m *Manager) refuse(conn transport.Conn, err error) {
	switch code := CodeOf(err); code {
	case CodeRefused, CodeAbsent, CodeInvalid, CodeTooMany: // after other errors the opener should retry
		ctx, cancel := context.WithTimeout(m.ctx, closeTimeout)
		defer cancel()
		reason := &transport.Reason{Code: string(code), Message: err.Error()}
		_ = conn.Send(ctx, []transport.Frame{{Kind: transport.Refuse, Reason: reason}}) // the peer notices the end anyway
	}
	closeConn(conn)
}

// handshake is the acceptor's. It returns the channel and the frames that arrived after the handshake.
func (m *Manager) handshake(conn transport.Conn, via agent.Transport, own bool) (*Channel, []transport.Frame, error) {
	ctx, cancel := context.WithTimeout(m.ctx, m.opts.HandshakeTimeout)
	defer cancel()
	frames, err := conn.Receive(ctx)
	if err != nil {
		return nil, nil, err
	}
	h := frames[0].Hello
	if frames[0].Kind != transport.Open || h == nil {
		return nil, nil, &Error{Code: CodeInvalid, Message: "a connection begins with the handshake"}
	}
	c, err := m.admit(ctx, conn, h, via, own)
	if err != nil {
		return nil, nil, err
	}
	rest, err := c.respond(ctx, conn, h)
	if err != nil {
		c.abortHandshake(conn, err)
		return nil, nil, err
	}
	c.mu.Lock()
	fresh := c.fresh
	c.fresh = false
	c.mu.Unlock()
	if fresh {
		m.announce(c)
	}
	return c, rest, nil
}

// respond answers the opener and waits until it is ready.
func (c *Channel) respond(ctx context.Context, conn transport.Conn, h *transport.Hello) ([]transport.Frame, error) {
	if err := conn.Send(ctx, []transport.Frame{{Kind: transport.Accept, Hello: c.hello()}}); err != nil {
		return nil, err
	}
	early, err := c.awaitReady(ctx, conn)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.joining != conn {
		return nil, errStale // the opener has connected again meanwhile
	}
	return early, c.join(conn, h)
}

// awaitReady waits for the opener's Ready frame and returns the frames received with
// it. A network that reorders may deliver envelopes first.
func (c *Channel) awaitReady(ctx context.Context, conn transport.Conn) (early []transport.Frame, err error) {
	size := 0
	for len(early) <= 2*c.m.opts.Window && size <= c.m.opts.WindowBytes {
		frames, err := conn.Receive(ctx)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(frames, func(f transport.Frame) bool { return f.Kind == transport.Ready })
		early = append(early, frames...)
		if i >= 0 {
			return early, nil
		}
		for _, f := range frames {
			size += sizeOf(f.Envelope)
		}
	}
	return nil, c.errorf(CodeInvalid, nil, "the opener did not finish the handshake")
}

// abortHandshake undoes admit, unless the opener has connected again meanwhile. The caller still sends on conn.
func (c *Channel) abortHandshake(conn transport.Conn, err error) {
	c.mu.Lock()
	last := c.joining == conn
	if last {
		c.joining = nil
	}
	fresh := c.fresh
	c.mu.Unlock()
	if last && fresh {
		c.shut(err, nil)
	}
}

// admit finds or makes the channel that a peer requests.
func (m *Manager) admit(ctx context.Context, conn transport.Conn, h *transport.Hello, via agent.Transport, own bool) (*Channel, error) {
	if err := checkHello(h); err != nil {
		return nil, err
	}
	local := h.To
	if !own {
		local = m.opts.Names.Inside(h.To)
	}
	req := Request{Peer: conn.Peer(), From: h.From, To: local, Card: h.Card, Resume: h.Resume, Own: own}
	refused := func(err error) error { // the peer gets its text
		code := CodeRefused
		if h.Resume && CodeOf(err) == CodeAbsent {
			code = CodeAbsent
		}
		return &Error{Code: code, Subject: h.Channel, Message: err.Error()}
	}
	if err := m.opts.Authorize(ctx, req); err != nil {
		return nil, refused(err)
	}
	introduced := func() error {
		if err := m.introduced(ctx, req); err != nil {
			return refused(err)
		}
		if err := m.opts.Policy.PermitChannel(h.From, local); err != nil { // now that the peer's present card is known
			return refused(err)
		}
		return nil
	}
	c := m.end(h.Channel, false)
	if other := m.end(h.Channel, true); c == nil && other != nil && !other.matches(h.Secret, local, h.From) {
		c = other // which refuses it
	}
	if c != nil { // reattach checks the secret
		if err := introduced(); err != nil {
			return nil, err
		}
		err := c.reattach(conn, h)
		if err != nil && c.Status() == Closed {
			m.forget(c) // again: the introduction may have followed the end
		}
		return c, err
	}
	if m.hasTombstone(h.Channel) {
		return nil, &Error{Code: CodeRefused, Subject: h.Channel, Message: "this channel is closed"}
	}
	if err := m.displace(ctx, h, conn.Peer()); err != nil {
		return nil, err
	}
	c, err := m.newAcceptor(conn, h, local, via, own)
	if err != nil {
		return nil, err
	}
	// After the channel is known, since its end removes what the introduction left.
	if err := introduced(); err != nil {
		c.abortHandshake(conn, err)
		return nil, err
	}
	return c, nil
}

// displace keeps two processes of one peer, which share a token, from speaking for the same agent. While the first
// is connected, the second is refused. Once the first's connections are broken, or it does not answer, the second
// replaces it (a restart, usually), and the first's channels are closed. It blocks until the first has answered, at
// most for ProbeTimeout.
func (m *Manager) displace(ctx context.Context, h *transport.Hello, peer string) error {
	end := m.contend(h, peer)
	first := m.others(h, peer)
	for _, c := range first {
		c.Probe() // all of them at once
	}
	asking, cancel := context.WithTimeout(ctx, m.opts.ProbeTimeout)
	defer cancel()
	alive := slices.ContainsFunc(first, func(c *Channel) bool { return c.alive(asking) })
	switch newest := end(); {
	case alive:
		err := &Error{Code: CodeRefused, Subject: h.Channel, Message: fmt.Sprintf("another connected process speaks for %q", h.From)}
		m.opts.Telemetry.Emit(telemetry.Event{Type: telemetry.Security, ChannelID: h.Channel, Sender: h.From, Recipient: h.To,
			Code: string(CodeRefused), Detail: err.Message, Timestamp: time.Now().UnixMilli()})
		return err
	case !newest:
		return errStale
	case ctx.Err() != nil:
		return ctx.Err()
	}
	for _, c := range first {
		c.shut(c.errorf(CodeRefused, nil, "another process speaks for %q now", c.remote), nil)
	}
	return nil
}

// others returns the channels that other processes of a peer have opened for the same agent.
func (m *Manager) others(h *transport.Hello, peer string) []*Channel {
	return slices.DeleteFunc(m.With(h.From), func(c *Channel) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.opener || c.peer != peer || c.instance == h.Instance
	})
}

// speaker is a peer that speaks for an agent.
type speaker struct{ agent, peer string }

// contest is about which process of a peer speaks for an agent.
type contest struct {
	newest   string // the instance that came last
	handling int    // handshakes
}

// contend adds a handshake of a peer to the contest for its agent. end removes it, and reports whether no other process has come
// since: one that was killed while it waited must not get a channel after its successor.
func (m *Manager) contend(h *transport.Hello, peer string) (end func() (newest bool)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	who := speaker{h.From, peer}
	about := m.contests[who]
	if about == nil {
		about = &contest{}
		m.contests[who] = about
	}
	about.newest = h.Instance
	about.handling++
	return func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		if about.handling--; about.handling == 0 {
			delete(m.contests, who)
		}
		return about.newest == h.Instance
	}
}

// maxSeq bounds the sequence numbers that a peer may begin with, so that they cannot overflow.
const maxSeq = 1 << 62

func checkHello(h *transport.Hello) error {
	invalid := func(message string, cause error) error {
		return &Error{Code: CodeInvalid, Message: message, Err: cause}
	}
	if h.Version != transport.Version {
		return invalid("this end speaks another version of the protocol", nil)
	}
	for _, id := range []string{h.Channel, h.From, h.To, h.Secret} {
		if err := agent.CheckID(id); err != nil {
			return invalid("the handshake names no channel, agents or secret", err)
		}
	}
	switch {
	case h.Channel != idOf(h.Secret):
		return invalid("the handshake's channel is not that of its secret", nil)
	case h.Window < 1:
		return invalid("the handshake has no window", nil)
	case max(h.Received, h.Base) > maxSeq:
		return invalid("the handshake's sequence numbers are out of range", nil)
	}
	return nil
}

// reattach gives a known channel the opener's new connection.
func (c *Channel) reattach(conn transport.Conn, h *transport.Hello) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.opener || subtle.ConstantTimeCompare([]byte(c.secret), []byte(h.Secret)) != 1 || c.peer != conn.Peer() {
		return c.errorf(CodeRefused, nil, "this channel belongs to another peer")
	}
	if err := c.checkPeer(h); err != nil {
		return err
	}
	if c.status == Closed {
		return c.closedError()
	}
	c.outlived = c.outlived && c.instance == h.Instance // not for lost
	if c.conn != nil {                                  // the opener noticed the break first
		c.lost(c.conn)
	}
	if old := c.joining; old != nil {
		c.notify(func() { closeConn(old) })
	}
	c.joining, c.instance = conn, h.Instance
	return nil
}

// newAcceptor makes the acceptor's end of a channel. If the opener resumes a channel
// that this process does not know, this process has restarted: it continues from its
// checkpoint or, without one, from the opener's acknowledgements.
func (m *Manager) newAcceptor(conn transport.Conn, h *transport.Hello, local string, via agent.Transport, own bool) (*Channel, error) {
	c := m.newChannel(h.Channel, local, h.From, h.Secret)
	c.alias, c.transport, c.own = h.To, via, own
	c.peer, c.instance = conn.Peer(), h.Instance
	c.joining, c.fresh = conn, true
	if h.Resume {
		c.in.received = h.Base
		if m.opts.Checkpoints != nil {
			handled, err := m.opts.Checkpoints.Load(h.Channel)
			if err != nil {
				c.cancel()
				return nil, c.errorf(CodeRefused, err, "the channel's checkpoint cannot be read")
			}
			c.in.received = max(handled, h.Base)
		}
		c.in.handled = c.in.received
		c.out.sent, c.out.acked = h.Received, h.Received
	}
	if err := c.checkPeer(h); err != nil {
		c.cancel()
		return nil, err
	}
	return c, m.add(c)
}

// newSecret returns 128 random bits as text.
func newSecret() string { return rand.Text() }

// idOf derives a channel's id, a UUID, from its secret. An opener that resumes the
// channel after the acceptor has restarted thereby proves that it owns the channel.
func idOf(secret string) string {
	sum := sha256.Sum256([]byte("a2a.v1 channel " + secret))
	id := uuid.UUID(sum[:16])
	id[6] = id[6]&0x0f | 0x80 // version 8: custom
	id[8] = id[8]&0x3f | 0x80 // the variant of RFC 9562
	return id.String()
}
