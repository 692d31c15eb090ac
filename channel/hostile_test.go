package channel_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/memory"
)

// peer is the other end of a connection, written by hand.
type peer struct {
	t    *testing.T
	conn transport.Conn
}

// idOf returns the id of the channel with a secret.
func idOf(secret string) string {
	sum := sha256.Sum256([]byte("a2a.v1 channel " + secret))
	id := uuid.UUID(sum[:16])
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80
	return id.String()
}

// dialIn connects to the accepting end of l without a manager.
func dialIn(t *testing.T, l *link) *peer {
	t.Helper()
	conn, err := l.net.Dial(t.Context(), atB)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &peer{t, conn}
}

func (p *peer) send(frames ...transport.Frame) {
	p.t.Helper()
	if err := p.conn.Send(p.t.Context(), frames); err != nil {
		p.t.Fatal(err)
	}
}

// next returns the next frame of a kind.
func (p *peer) next(kind transport.Kind) transport.Frame {
	p.t.Helper()
	for {
		frames, err := p.conn.Receive(p.t.Context())
		if err != nil {
			p.t.Fatal(err)
		}
		for _, f := range frames {
			if f.Kind == kind {
				return f
			}
		}
	}
}

func hello(change func(*transport.Hello)) transport.Frame {
	h := &transport.Hello{Version: transport.Version, Channel: idOf("s"), Secret: "s", From: "mars", To: "venus", Window: 8}
	if change != nil {
		change(h)
	}
	return transport.Frame{Kind: transport.Open, Hello: h}
}

// Sequence numbers near the end of their range would overflow, and the sender would
// never finish.
func TestHandshakeWithHugeNumbersIsRefused(t *testing.T) {
	for name, change := range map[string]func(*transport.Hello){
		"received": func(h *transport.Hello) { h.Resume, h.Received = true, math.MaxUint64 },
		"base":     func(h *transport.Hello) { h.Resume, h.Base = true, math.MaxUint64 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLink(t, nil)
				p := dialIn(t, l)
				p.send(hello(change))
				if f := p.next(transport.Refuse); f.Reason.Code != string(channel.CodeInvalid) {
					t.Errorf("got %+v", f.Reason)
				}
			})
		})
	}
}

// After a restart the receiver may announce a smaller window; the sender respects it,
// although it has more envelopes unacknowledged.
func TestWindowMayShrinkAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net memory.Network
		listener, err := net.Listen("b")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		got := new(inbox)
		var wg sync.WaitGroup
		defer wg.Wait()
		start := func(window int, open func(*channel.Channel)) *channel.Manager {
			m := channel.NewManager(channel.Options{Window: window}, open)
			wg.Go(func() { m.Serve(t.Context(), listener) })
			return m
		}
		first := start(100, nil) // without a handler
		ma := channel.NewManager(channel.Options{Dialers: map[agent.Transport]transport.Dialer{agent.TransportLocal: &net}}, nil)
		defer ma.Close()
		a, err := ma.OpenAt(t.Context(), "mars", "venus", atB)
		if err != nil {
			t.Fatal(err)
		}
		send(t, a, 0, 100)
		synctest.Wait()
		if _, err := first.Suspend(t.Context()); err != nil {
			t.Fatal(err)
		}
		second := start(7, func(c *channel.Channel) { got.collect(c) })
		defer second.Close()
		if err := a.Flush(ctx(t)); err != nil {
			t.Fatal(err)
		}
		got.check(t, 100)
	})
}

// Envelopes may arrive before the end of the handshake, since networks reorder; their
// bytes are bounded.
func TestEnvelopesBeforeTheEndOfTheHandshakeAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, func(_, b *channel.Options) { b.WindowBytes = 10_000 })
		p := dialIn(t, l)
		p.send(hello(nil))
		p.next(transport.Accept)
		large := message(t, "mars", 0).With(func(e *envelope.Envelope) { e.Payload = []byte(`"` + strings.Repeat("x", 6000) + `"`) })
		for seq := range uint64(2) {
			p.send(transport.Frame{Kind: transport.Data, Seq: seq + 1, Envelope: large})
		}
		if f := p.next(transport.Refuse); f.Reason.Code != string(channel.CodeInvalid) {
			t.Errorf("got %+v", f.Reason)
		}
	})
}

// A peer that sends more bytes than the announced window loses the connection: a slow
// handler must not fill the memory.
func TestBytesOverTheReceiversLimitEndTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, func(_, b *channel.Options) { b.WindowBytes = 10_000 })
		p := dialIn(t, l)
		p.send(hello(nil))
		if f := p.next(transport.Accept); f.Hello.WindowBytes != 10_000 {
			t.Errorf("the receiver announces a window of %d bytes", f.Hello.WindowBytes)
		}
		p.send(transport.Frame{Kind: transport.Ready})
		large := message(t, "mars", 0).With(func(e *envelope.Envelope) { e.Payload = []byte(`"` + strings.Repeat("x", 6000) + `"`) })
		var frames []transport.Frame
		for seq := range uint64(5) {
			frames = append(frames, transport.Frame{Kind: transport.Data, Seq: seq + 1, Envelope: large})
		}
		p.send(frames...)
		for {
			if _, err := p.conn.Receive(t.Context()); err != nil {
				return // closed
			}
		}
	})
}

// The sender respects the receiver's byte limit even if its own is larger.
func TestSenderRespectsTheReceiversByteLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, func(_, b *channel.Options) { b.WindowBytes = 2000 })
		a, b := l.open()
		done := make(chan struct{})
		go func() { defer close(done); send(t, a, 0, 50) }()
		synctest.Wait()
		select {
		case <-done:
			t.Error("the sender sent all envelopes without a handler at the receiver")
		default:
		}
		got := collect(b)
		<-done
		if err := a.Flush(ctx(t)); err != nil {
			t.Fatal(err)
		}
		got.check(t, 50)
		if s := a.Status(); s != channel.Open {
			t.Errorf("the channel is %s", s)
		}
	})
}

// An envelope that the receiver cannot decode, e.g. of a newer schema, fails alone. The
// sender is informed even if the connection breaks at that moment.
func TestUnreadableEnvelopesAreRejected(t *testing.T) {
	for _, cut := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var failed []error
			var rec telemetry.Recorder
			l := newLink(t, func(a, b *channel.Options) {
				a.OnDeliveryFailure = func(_ *channel.Channel, e *envelope.Envelope, err error) {
					if string(e.Payload) != "666" {
						t.Errorf("envelope %s failed", e.Payload)
					}
					failed = append(failed, err)
				}
				b.Telemetry = &rec
			})
			a, b := l.open()
			got := collect(b)
			l.faults.Rewrite(func(f transport.Frame) transport.Frame {
				if f.Envelope != nil && string(f.Envelope.Payload) == "666" {
					f.Envelope, f.Err = nil, &envelope.Error{Code: envelope.CodeSchemaVersion, Message: "expected version 1, got 2"}
				}
				return f
			})
			send(t, a, 0, 5)
			send(t, a, 666, 667)
			if cut {
				l.faults.Drop(1) // the first batch on the new connection
				l.faults.Cut()
			}
			send(t, a, 5, 300)
			if err := a.Flush(ctx(t)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			got.check(t, 300)
			if len(failed) != 1 || channel.CodeOf(failed[0]) != channel.CodeDeliveryFailed || !strings.Contains(failed[0].Error(), "expected version 1, got 2") {
				t.Errorf("failed: %v", failed)
			}
			if a.Status() != channel.Open {
				t.Errorf("the channel is %s", a.Status())
			}
			if n := rec.Metrics().ErrorCount; n != 1 {
				t.Errorf("the receiver counted %d errors", n)
			}
		})
	}
}

// A process that knows only a channel's id, e.g. from a log, cannot resume it, not even
// at a receiver that restarted and has no channels.
func TestIDDoesNotProveTheSecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, nil)
		a, _ := l.open()
		for name, id := range map[string]string{"of an open channel": a.ID(), "of an unknown channel": idOf("secret")} {
			p := dialIn(t, l)
			p.send(hello(func(h *transport.Hello) { h.Channel, h.Resume = id, true }))
			if f := p.next(transport.Refuse); f.Reason.Code != string(channel.CodeInvalid) {
				t.Errorf("the id %s: %+v", name, f.Reason)
			}
		}
		if s := a.Status(); s != channel.Open {
			t.Errorf("the channel is %s", s)
		}
		p := dialIn(t, l)
		p.send(hello(func(h *transport.Hello) { h.From, h.Resume = "pluto", true }))
		p.next(transport.Accept)
	})
}

func TestRefusalStatesTheReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, func(_, b *channel.Options) {
			b.Authorize = func(context.Context, channel.Request) error { return errors.New("we are closed today") }
		})
		p := dialIn(t, l)
		p.send(hello(nil))
		if f := p.next(transport.Refuse); f.Reason.Message != "we are closed today" {
			t.Errorf("the reason is %q", f.Reason.Message)
		}
	})
}

// answer answers all that arrives, as a process does that lives.
func (p *peer) answer() {
	for {
		if _, err := p.conn.Receive(p.t.Context()); err != nil {
			return
		}
		if err := p.conn.Send(p.t.Context(), []transport.Frame{{Kind: transport.Ack}}); err != nil {
			return
		}
	}
}

// A process that was killed may leave connections on which nobody notices its end for long, also amid their handshakes.
// The next process does not wait for that, whatever number of them were killed since.
func TestAProcessThatDoesNotAnswerIsReplaced(t *testing.T) {
	for _, killed := range []string{"open", "in its handshake"} {
		t.Run(killed, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLink(t, func(_, b *channel.Options) { b.HandshakeTimeout = time.Hour })
				join := func(instance, secret string) *peer {
					p := dialIn(t, l)
					p.send(hello(func(h *transport.Hello) { h.Instance, h.Secret, h.Channel = instance, secret, idOf(secret) }))
					synctest.Wait()
					return p
				}
				for _, secret := range []string{"a", "b", "c"} {
					p := join("one", secret)
					p.next(transport.Accept)
					if killed == "open" {
						p.send(transport.Frame{Kind: transport.Ready})
						<-l.taken
					}
				}
				began := time.Now()
				second := join("two", "d") // killed while it waits for the first
				time.Sleep(time.Second)
				third := join("three", "e")
				if _, err := second.conn.Receive(t.Context()); err == nil {
					t.Error("a process that was killed has a channel after its successor")
				}
				third.next(transport.Accept)
				third.send(transport.Frame{Kind: transport.Ready})
				if c, passed := <-l.taken, time.Since(began); c.Status() != channel.Open || passed > 3*time.Second {
					t.Errorf("after %v the third's channel is %s", passed, c.Status())
				}
				if open := l.b.Channels(); len(open) != 1 {
					t.Errorf("%d channels are left", len(open))
				}
			})
		})
	}
}

// join opens a connection for mars as a process of its own.
func (l *link) join(t *testing.T, instance, secret string) *peer {
	p := dialIn(t, l)
	p.send(hello(func(h *transport.Hello) { h.Instance, h.Secret, h.Channel = instance, secret, idOf(secret) }))
	return p
}

// A process that was killed right after it has answered a probe is replaced as quickly as others.
func TestAProcessThatHasAnsweredOnceIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, nil)
		first := l.join(t, "one", "a")
		first.next(transport.Accept)
		first.send(transport.Frame{Kind: transport.Ready})
		c := <-l.taken
		c.Probe()
		first.next(transport.Data)
		first.send(transport.Frame{Kind: transport.Ack}) // its last sign
		synctest.Wait()
		time.Sleep(time.Second)
		began := time.Now()
		second := l.join(t, "two", "b")
		second.next(transport.Accept)
		if passed := time.Since(began); passed > 3*time.Second {
			t.Errorf("it was replaced after %v", passed)
		}
		if s := c.Status(); s != channel.Closed {
			t.Errorf("the channel of the first is %s", s)
		}
	})
}

// Probes of an end that lives never break its connection, however many there are and whatever else is due.
func TestProbesBreakNoLiveConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, nil)
		p := l.join(t, "one", "a")
		p.next(transport.Accept)
		p.send(transport.Frame{Kind: transport.Ready})
		c := <-l.taken
		calm := c.OnStatus(func(s channel.Status) { t.Errorf("it became %s", s) })
		send(t, c, 0, 1)
		var answers sync.WaitGroup
		defer answers.Wait()
		answers.Go(func() { // everything has arrived, nothing is handled, and each answer takes a second
			for {
				if _, err := p.conn.Receive(p.t.Context()); err != nil {
					return
				}
				time.Sleep(time.Second)
				if err := p.conn.Send(p.t.Context(), []transport.Frame{{Kind: transport.Ack, Seq: 1}}); err != nil {
					return
				}
			}
		})
		for range 500 {
			time.Sleep(90 * time.Millisecond)
			c.Probe()
		}
		synctest.Wait()
		calm()
		p.conn.Close()
	})
}

// peered is a listener whose connections come from the peers that are named.
type peered struct {
	transport.Listener
	peers chan string
}

type peerConn struct {
	transport.Conn
	peer string
}

func (c *peerConn) Peer() string { return c.peer }

func (l *peered) Accept(ctx context.Context) (transport.Conn, error) {
	conn, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return &peerConn{conn, <-l.peers}, nil
}

// Another peer that speaks for an agent of the same id is no process that replaces one of this peer's.
func TestPeersDoNotReplaceEachOthersProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, nil)
		inner, err := l.net.Listen("p")
		if err != nil {
			t.Fatal(err)
		}
		at := &peered{inner, make(chan string, 1)}
		var serving sync.WaitGroup
		defer serving.Wait()
		defer inner.Close()
		serving.Go(func() { _ = l.b.Serve(t.Context(), at) })
		join := func(from, instance, secret string) *peer {
			at.peers <- from
			conn, err := l.net.Dial(t.Context(), agent.Endpoint{Transport: agent.TransportLocal, Address: "p"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			p := &peer{t, conn}
			p.send(hello(func(h *transport.Hello) { h.Instance, h.Secret, h.Channel = instance, secret, idOf(secret) }))
			synctest.Wait()
			return p
		}
		dead := join("a", "one", "a")
		dead.next(transport.Accept)
		dead.send(transport.Frame{Kind: transport.Ready})
		<-l.taken
		second := join("a", "two", "b") // waits for the first
		join("b", "three", "c").next(transport.Accept)
		second.next(transport.Accept)
	})
}

// A channel of a process that has ended, as the next one says, is not kept for it, unless it answers or is resumed.
func TestAChannelDoesNotOutliveItsOpener(t *testing.T) {
	open := func(t *testing.T, l *link) (*peer, *channel.Channel) {
		p := l.join(t, "one", "a")
		p.next(transport.Accept)
		p.send(transport.Frame{Kind: transport.Ready})
		synctest.Wait() // a message that is on its way would count as an answer
		return p, <-l.taken
	}
	for name, c := range map[string]struct {
		want string
		try  func(*testing.T, *link, *peer, *channel.Channel)
	}{
		"its connection is broken": {"closed", func(_ *testing.T, _ *link, p *peer, c *channel.Channel) {
			p.conn.Close()
			synctest.Wait()
			c.Outlived("one")
		}},
		"its connection seems to be there": {"closed", func(_ *testing.T, _ *link, _ *peer, c *channel.Channel) { c.Outlived("one") }},
		"it answers": {"open", func(_ *testing.T, _ *link, p *peer, c *channel.Channel) {
			c.Outlived("one")
			p.next(transport.Data)
			p.send(transport.Frame{Kind: transport.Ack})
		}},
		"another process": {"reconnecting", func(_ *testing.T, _ *link, p *peer, c *channel.Channel) {
			p.conn.Close()
			c.Outlived("two")
		}},
		"it is resumed": {"reconnecting", func(t *testing.T, l *link, p *peer, c *channel.Channel) {
			c.Outlived("one")
			next := dialIn(t, l)
			next.send(hello(func(h *transport.Hello) {
				h.Instance, h.Secret, h.Channel, h.Resume = "two", "a", idOf("a"), true
			}))
			next.next(transport.Accept)
			next.send(transport.Frame{Kind: transport.Ready})
			synctest.Wait()
			next.conn.Close()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLink(t, nil)
				p, end := open(t, l)
				c.try(t, l, p, end)
				time.Sleep(3 * time.Second)
				if s := end.Status(); string(s) != c.want {
					t.Errorf("it is %s", s)
				}
				if err := end.Err(); c.want == "closed" && (err == nil || !strings.Contains(err.Error(), "the process of \"mars\" that opened the channel has ended")) {
					t.Error(err)
				}
			})
		})
	}
}

// A probe breaks the connection of a channel whose other end does not answer, and no other.
func TestAProbeFindsADeadEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, nil)
		a, b := l.open()
		a.Probe()
		b.Probe()
		time.Sleep(time.Minute)
		if a.Status() != channel.Open || b.Status() != channel.Open {
			t.Fatalf("the ends that live are %s and %s", a.Status(), b.Status())
		}
		p := dialIn(t, l)
		p.send(hello(func(h *transport.Hello) { h.From, h.Secret, h.Channel = "pluto", "x", idOf("x") }))
		p.next(transport.Accept)
		p.send(transport.Frame{Kind: transport.Ready})
		dead := <-l.taken
		dead.Probe()
		dead.Probe()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if s := dead.Status(); s != channel.Reconnecting {
			t.Errorf("the end of one that is dead is %s", s)
		}
	})
}

// Two processes with one token represent the same agent. The second is refused while
// the first is connected, and replaces it afterwards.
func TestOnlyOneProcessAtATimeRepresentsAnAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := telemetry.New(telemetry.Options{})
		l := newLink(t, func(_, b *channel.Options) { b.Telemetry = rec })
		join := func(instance, secret, to string) *peer {
			p := dialIn(t, l)
			p.send(hello(func(h *transport.Hello) {
				h.Instance, h.Secret, h.Channel, h.To = instance, secret, idOf(secret), to
			}))
			return p
		}
		opened := func(p *peer) *channel.Channel {
			p.next(transport.Accept)
			p.send(transport.Frame{Kind: transport.Ready})
			return <-l.taken
		}
		refused := func(p *peer) string {
			f := p.next(transport.Refuse)
			if f.Reason.Code != string(channel.CodeRefused) {
				t.Errorf("%+v", f.Reason)
			}
			return f.Reason.Message
		}
		first := []*peer{join("one", "a", "venus"), nil}
		mine := opened(first[0])
		go first[0].answer()
		first[1] = join("one", "b", "earth") // the same process may open another channel
		opened(first[1])
		go first[1].answer()
		if m := refused(join("two", "c", "venus")); !strings.Contains(m, "another connected process") {
			t.Error(m)
		}
		if n := rec.Metrics().SecurityEvents; n != 1 {
			t.Errorf("%d security events", n)
		}
		if s := mine.Status(); s != channel.Open {
			t.Errorf("the first process's channel is %s", s)
		}

		first[0].conn.Close()
		synctest.Wait()
		refused(join("two", "c", "venus")) // the first process still has a connection
		first[1].conn.Close()
		synctest.Wait()
		opened(join("two", "c", "venus"))
		synctest.Wait()
		if err := mine.Err(); channel.CodeOf(err) != channel.CodeRefused {
			t.Errorf("the first process's channel ended with %v", err)
		}
		refused(join("one", "a", "venus")) // the first process was replaced
	})
}

// A peer that violates the protocol on each new connection closes the channel, since
// reconnecting cannot help.
func TestRepeatedProtocolViolationsCloseTheChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, nil)
		a, b := l.open()
		l.faults.Rewrite(func(f transport.Frame) transport.Frame {
			if f.Kind == transport.Data {
				f.Ack = 99
			}
			return f
		})
		send(t, a, 0, 1)
		if err := a.Flush(ctx(t)); channel.CodeOf(err) != channel.CodeClosed || !strings.Contains(err.Error(), "acknowledges envelope 99") {
			t.Errorf("got %v", err)
		}
		if err := b.Err(); channel.CodeOf(err) != channel.CodeInvalid {
			t.Errorf("the other end: %v", err)
		}
	})
}

// Rejections of frames that were never sent, or are acknowledged, are ignored.
func TestInvalidRejectionsAreIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(t, func(_, b *channel.Options) {
			b.OnDeliveryFailure = func(*channel.Channel, *envelope.Envelope, error) { t.Error("an envelope failed") }
		})
		p := dialIn(t, l)
		p.send(hello(nil))
		p.next(transport.Accept)
		p.send(transport.Frame{Kind: transport.Ready})
		b := <-l.taken
		send(t, b, 0, 1)
		p.next(transport.Data)
		p.send(
			transport.Frame{Kind: transport.Reject, Seq: 0, Reason: &transport.Reason{}},
			transport.Frame{Kind: transport.Reject, Seq: 1}, // without a reason
			transport.Frame{Kind: transport.Reject, Seq: 2, Reason: &transport.Reason{}},
			transport.Frame{Kind: transport.Reject, Seq: 1 << 63, Reason: &transport.Reason{}},
			transport.Frame{Kind: transport.Ack, Ack: 1},
			transport.Frame{Kind: transport.Reject, Seq: 1, Reason: &transport.Reason{}},
		)
		if err := b.Flush(ctx(t)); err != nil {
			t.Fatal(err)
		}
	})
}
