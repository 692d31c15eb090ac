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
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/transport"
)

// lost ends a connection that broke; c.mu is held.
func (c *Channel) lost(conn transport.Conn) {
	if c.conn != conn || conn == nil {
		return
	}
	c.conn, c.dying = nil, nil
	c.in.dropAhead() // comes again
	c.set(Reconnecting)
	if c.opener {
		c.m.wg.Go(c.run)
	} else {
		c.awaitReturn()
	}
	c.m.wg.Go(func() { closeConn(conn) })
}

// awaitReturn closes the channel if the opener does not come back; c.mu is held.
func (c *Channel) awaitReturn() {
	if c.giveUp == nil {
		c.giveUp = time.AfterFunc(c.m.opts.ReconnectTimeout, c.abandon)
		return
	}
	c.giveUp.Reset(c.m.opts.ReconnectTimeout)
}

func (c *Channel) abandon() {
	if c.Status() == Reconnecting {
		c.shut(c.errorf(CodeUnreachable, nil, "%q did not come back within %v", c.remote, c.m.opts.ReconnectTimeout), nil)
	}
}

// run connects the opener's end, and reads from the connection until it breaks.
// Then lost starts it anew.
func (c *Channel) run() {
	conn, err := c.persist()
	if err != nil {
		c.shut(c.unreachable(err), nil)
		return
	}
	if conn != nil {
		c.follow(conn, nil)
	}
}

// persist connects, again and again if it must, until the channel closes (nil,
// nil) or there is no more hope.
func (c *Channel) persist() (transport.Conn, error) {
	began := time.Now()
	for c.ctx.Err() == nil {
		if !pause(c.ctx, c.retreat()) {
			break
		}
		conn, err := c.connect()
		if err == nil {
			return conn, nil
		}
		c.mu.Lock()
		closed, delay := c.status == Closed, c.redial
		c.mu.Unlock()
		if !closed && (lasting(err) || time.Since(began)+delay > c.m.opts.ReconnectTimeout) {
			return nil, err
		}
	}
	return nil, nil
}

// retreat returns how long to wait before dialling: nothing at first, then twice
// as long each time, until a connection has lived for a while.
func (c *Channel) retreat() time.Duration {
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

// follow takes what arrives over conn, first what has arrived already. It blocks
// until conn breaks, unless conn calls by itself.
func (c *Channel) follow(conn transport.Conn, first []transport.Frame) {
	p, ok := conn.(transport.Pusher)
	if !ok {
		c.read(conn, first)
		return
	}
	if err := c.arrived(conn, first); err != nil {
		return
	}
	p.Push(func(frames []transport.Frame, err error) {
		if err != nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.lost(conn)
			return
		}
		_ = c.arrived(conn, frames) // it has dealt with the error
	})
}

func (c *Channel) unreachable(err error) error {
	if code := codeOf(err); code != "" {
		return err
	}
	return c.errorf(CodeUnreachable, err, "no connection to %q", c.remote)
}

// connect dials and shakes hands, at one endpoint after the other until that is done.
// After it the channel is open.
func (c *Channel) connect() (transport.Conn, error) {
	var failed error
	for range c.endpoints {
		conn, err := c.connectAt(c.endpoints[0])
		if err == nil || c.Status() == Closed || codeOf(err) == CodeRefused {
			return conn, err
		}
		if failed == nil || lasting(failed) { // as long as one gives hope there is some
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
	dialer := c.m.opts.Dialers[at.Transport]
	if dialer == nil {
		return nil, c.errorf(CodeNoEndpoint, nil, "there is no dialer for the transport %q", at.Transport)
	}
	c.mu.Lock()
	c.transport = at.Transport
	c.mu.Unlock()
	conn, err := dialer.Dial(ctx, at)
	if err != nil {
		return nil, err
	}
	if err := c.shakeHands(ctx, conn); err != nil {
		closeConn(conn)
		if c.Status() == Closed {
			c.m.forget(c) // once more: the introduction may have come after the end
		}
		return nil, err
	}
	return conn, nil
}

func (c *Channel) shakeHands(ctx context.Context, conn transport.Conn) error {
	hello := c.hello()
	if err := conn.Send(ctx, []transport.Frame{{Kind: transport.Open, Hello: hello}}); err != nil {
		return err
	}
	frames, err := conn.Receive(ctx)
	if err != nil {
		return err
	}
	answer := frames[0] // what a faulty network repeats behind it does not matter
	switch {
	case answer.Kind == transport.Refuse && answer.Reason != nil:
		return c.errorf(CodeRefused, nil, "%q refused the channel: %s", c.remote, shorten(answer.Reason.Message))
	case answer.Kind != transport.Accept || answer.Hello == nil:
		return c.errorf(CodeInvalid, nil, "the peer did not answer the handshake")
	}
	if err := c.m.introduced(ctx, Request{Peer: conn.Peer(), From: c.remote, To: c.local, Card: answer.Hello.Card, Resume: hello.Resume}); err != nil {
		return c.errorf(CodeRefused, err, "the channel to %q was not taken", c.remote)
	}
	if err := conn.Send(ctx, []transport.Frame{{Kind: transport.Ready}}); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.join(conn, answer.Hello)
}

// hello says how far this end has got.
func (c *Channel) hello() *transport.Hello {
	card := c.m.introduce(c.local)
	c.mu.Lock()
	defer c.mu.Unlock()
	instance := ""
	if c.opener {
		instance = c.m.instance
	}
	return &transport.Hello{
		Instance: instance,
		Version:  transport.Version, Channel: c.id, Secret: c.secret, From: c.local, To: c.remote,
		Resume:   c.status != Connecting || c.out.sent > 0 || c.in.received > 0,
		Received: c.in.received, Base: c.out.acked, Window: c.m.opts.Window, WindowBytes: c.m.opts.WindowBytes, Card: card,
	}
}

// fits checks the peer's hello against this end; c.mu is held.
func (c *Channel) fits(h *transport.Hello) error {
	switch {
	case h.Version != transport.Version:
		return c.errorf(CodeInvalid, nil, "the peer speaks version %d of the protocol, not %d", h.Version, transport.Version)
	case h.Channel != c.id || h.From != c.remote || h.To != c.local:
		return c.errorf(CodeInvalid, nil, "the peer speaks of another channel")
	case h.Received > c.out.sent:
		return c.errorf(CodeInvalid, nil, "the peer has got envelope %d, which was never sent", h.Received)
	case h.Received < c.out.acked:
		return c.errorf(CodeInvalid, nil, "the peer has forgotten envelopes that it had handled")
	case h.Base > c.in.received:
		return c.errorf(CodeInvalid, nil, "the peer counts on envelopes that never arrived")
	case h.Window < 1 || h.WindowBytes < 0:
		return c.errorf(CodeInvalid, nil, "the peer takes no envelopes")
	}
	return nil
}

// join makes conn the channel's connection, after the handshake; c.mu is held.
func (c *Channel) join(conn transport.Conn, h *transport.Hello) error {
	if err := c.fits(h); err != nil {
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
	c.out.has = max(c.out.has, h.Received)
	c.out.wire = h.Received                                                                               // what follows is sent again
	c.out.rejected = slices.DeleteFunc(c.out.rejected, func(r rejection) bool { return r.seq <= h.Base }) // the peer has heard of them
	c.out.ackDue, c.out.probe, c.out.probed = true, false, false
	c.startFlush()
	return nil
}

// accept deals with a connection that a peer has opened, until it breaks.
func (m *Manager) accept(conn transport.Conn, via agent.Transport) {
	c, rest, err := m.welcome(conn, via)
	if err != nil {
		m.refuse(conn, err)
		return
	}
	c.follow(conn, rest)
}

// refuse tells the peer why and ends the connection.
func (m *Manager) refuse(conn transport.Conn, err error) {
	switch code := codeOf(err); code {
	case CodeRefused, CodeInvalid, CodeTooMany: // after anything else the opener should try again
		ctx, cancel := context.WithTimeout(m.ctx, closeTimeout)
		defer cancel()
		reason := &transport.Reason{Code: string(code), Message: err.Error()}
		_ = conn.Send(ctx, []transport.Frame{{Kind: transport.Refuse, Reason: reason}}) // it notices the end anyway
	}
	closeConn(conn)
}

// welcome shakes hands as the acceptor. It returns the channel and what arrived
// after the handshake.
func (m *Manager) welcome(conn transport.Conn, via agent.Transport) (*Channel, []transport.Frame, error) {
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
	c, fresh, err := m.admit(ctx, conn, h, via)
	if err != nil {
		return nil, nil, err
	}
	rest, err := c.agree(ctx, conn, h)
	if err != nil {
		c.part(conn, fresh, err)
		return nil, nil, err
	}
	if fresh && m.onChannel != nil {
		m.onChannel(c)
	}
	return c, rest, nil
}

// agree answers the opener and waits for its word.
func (c *Channel) agree(ctx context.Context, conn transport.Conn, h *transport.Hello) ([]transport.Frame, error) {
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
		return nil, errStale // the opener has come again meanwhile
	}
	return early, c.join(conn, h)
}

// awaitReady waits for the opener's word and returns what came with it. A
// network that reorders may bring envelopes first.
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

// part takes back what admit did; the caller still has a word to say on conn.
func (c *Channel) part(conn transport.Conn, fresh bool, err error) {
	c.mu.Lock()
	if c.joining == conn {
		c.joining = nil
	}
	c.mu.Unlock()
	if fresh {
		c.shut(err, nil)
	}
}

// admit finds or makes the channel that a peer asks for.
func (m *Manager) admit(ctx context.Context, conn transport.Conn, h *transport.Hello, via agent.Transport) (c *Channel, fresh bool, err error) {
	if err := checkHello(h); err != nil {
		return nil, false, err
	}
	req := Request{Peer: conn.Peer(), From: h.From, To: h.To, Card: h.Card, Resume: h.Resume}
	refused := func(err error) error { // its text goes to the peer
		return &Error{Code: CodeRefused, ChannelID: h.Channel, Message: err.Error()}
	}
	if m.opts.Authorize != nil {
		if err := m.opts.Authorize(ctx, req); err != nil {
			return nil, false, refused(err)
		}
	}
	if c, known := m.Channel(h.Channel); known { // who knows its secret speaks for its agent
		if err := m.introduced(ctx, req); err != nil {
			return nil, false, refused(err)
		}
		err := c.readmit(conn, h)
		if err != nil && c.Status() == Closed {
			m.forget(c) // once more: the introduction may have come after the end
		}
		return c, false, err
	}
	if m.buried(h.Channel) {
		return nil, false, &Error{Code: CodeRefused, ChannelID: h.Channel, Message: "this channel is closed"}
	}
	if err := m.displace(h, conn.Peer()); err != nil {
		return nil, false, err
	}
	if c, err = m.fresh(conn, h, via); err != nil {
		return nil, false, err
	}
	// Now that the channel is known: what the introduction leaves goes when it ends.
	if err := m.introduced(ctx, req); err != nil {
		err = refused(err)
		c.part(conn, true, err)
		return nil, false, err
	}
	return c, true, nil
}

// displace keeps two processes of one peer from speaking for the same agent, as two
// that hold the same token could. The first one may as long as it is connected: the
// other is refused. When its connections are broken, it has most likely been
// started anew: the other takes its place, and what the first had open is closed.
func (m *Manager) displace(h *transport.Hello, peer string) error {
	var stale []*Channel
	for _, c := range m.With(h.From) {
		c.mu.Lock()
		other, status := !c.opener && c.peer == peer && c.instance != h.Instance, c.status
		c.mu.Unlock()
		switch {
		case !other:
		case status == Reconnecting:
			stale = append(stale, c)
		case status != Closed:
			err := &Error{Code: CodeRefused, ChannelID: h.Channel, Message: fmt.Sprintf("another process is connected that speaks for %q", h.From)}
			m.opts.Telemetry.Emit(telemetry.Event{Type: telemetry.Security, ChannelID: h.Channel, Sender: h.From, Recipient: h.To,
				Code: string(CodeRefused), Detail: err.Message, Timestamp: time.Now().UnixMilli()})
			return err
		}
	}
	for _, c := range stale {
		c.shut(c.errorf(CodeRefused, nil, "another process speaks for %q now", c.remote), nil)
	}
	return nil
}

// maxSeq bounds the numbers that a peer may begin with, so that counting on from
// them does not overflow.
const maxSeq = 1 << 62

func checkHello(h *transport.Hello) error {
	if h.Version != transport.Version {
		return &Error{Code: CodeInvalid, Message: "this end speaks another version of the protocol"}
	}
	for _, id := range []string{h.Channel, h.From, h.To, h.Secret} {
		if err := agent.CheckID(id); err != nil {
			return &Error{Code: CodeInvalid, Message: "the handshake names no channel, agents or secret", Err: err}
		}
	}
	if h.Channel != idOf(h.Secret) {
		return &Error{Code: CodeInvalid, Message: "the handshake's channel is not that of its secret"}
	}
	if h.Window < 1 {
		return &Error{Code: CodeInvalid, Message: "the handshake has no window"}
	}
	if max(h.Received, h.Base) > maxSeq {
		return &Error{Code: CodeInvalid, Message: "the handshake counts envelopes that nobody can have sent"}
	}
	return nil
}

// readmit lets the opener of a known channel come back.
func (c *Channel) readmit(conn transport.Conn, h *transport.Hello) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.opener || subtle.ConstantTimeCompare([]byte(c.secret), []byte(h.Secret)) != 1 || c.peer != conn.Peer() {
		return c.errorf(CodeRefused, nil, "this channel belongs to somebody else")
	}
	if err := c.fits(h); err != nil {
		return err
	}
	if c.status == Closed {
		return c.closedError()
	}
	if c.conn != nil { // the opener has noticed the break before us
		c.lost(c.conn)
	}
	if old := c.joining; old != nil {
		c.tell(func() { closeConn(old) })
	}
	c.joining, c.instance = conn, h.Instance
	return nil
}

// fresh makes the acceptor's end of a channel. If the opener resumes one that
// this process does not know, it was restarted: it goes on where its checkpoint
// or, without one, the opener's acknowledgements left off.
func (m *Manager) fresh(conn transport.Conn, h *transport.Hello, via agent.Transport) (*Channel, error) {
	c := m.newChannel(h.Channel, h.To, h.From, h.Secret)
	c.transport = via
	c.peer, c.instance = conn.Peer(), h.Instance
	c.joining = conn
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
	if err := c.fits(h); err != nil {
		c.cancel()
		return nil, err
	}
	return c, m.add(c)
}

// newSecret returns 128 random bits as text.
func newSecret() string { return rand.Text() }

// idOf draws a channel's id, a UUID, from its secret. Whoever resumes the channel
// at a process that has restarted, and knows it no more, so proves that it is his.
func idOf(secret string) string {
	sum := sha256.Sum256([]byte("a2a.v1 channel " + secret))
	id := uuid.UUID(sum[:16])
	id[6] = id[6]&0x0f | 0x80 // version 8: of our own making
	id[8] = id[8]&0x3f | 0x80 // the variant of RFC 9562
	return id.String()
}
