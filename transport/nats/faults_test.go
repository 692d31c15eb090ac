package nats_test

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/channel/transporttest"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/nats"
)

const messages = 3000

// link is a channel over NATS.
type link struct {
	a, b     *channel.Channel
	atA, atB transporttest.Sequence
}

// newLink opens a channel between two connections to NATS. Faults are detected quickly.
func newLink(t testing.TB, here, there *natsgo.Conn) *link {
	t.Helper()
	o := channel.Options{AckTimeout: 500 * time.Millisecond, GapTimeout: 50 * time.Millisecond, AckDelay: time.Millisecond,
		ReconnectDelay: time.Millisecond, HandshakeTimeout: 2 * time.Second}
	const silence = 600 * time.Millisecond
	listener := listen(t, nats.ListenOptions{Options: nats.Options{Conn: there, Silence: silence}, Allow: anybody})
	p := new(link)
	taken := make(chan *channel.Channel, 1)
	mb := channel.NewManager(o, func(c *channel.Channel) {
		c.OnMessage(p.atB.Handle)
		taken <- c
	})
	o.Dialers = map[agent.Transport]transport.Dialer{
		agent.TransportNATS: &nats.Dialer{Options: nats.Options{Conn: here, Pair: identity.Generate(), Silence: silence}},
	}
	ma := channel.NewManager(o, nil)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := mb.Serve(context.Background(), listener); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(func() {
		for _, err := range []error{ma.Close(), mb.Close(), listener.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
		wg.Wait()
	})
	var err error
	if p.a, err = ma.OpenAt(t.Context(), "a", "b", listener.Endpoint()); err != nil {
		t.Fatal(err)
	}
	p.a.OnMessage(p.atA.Handle)
	if err := p.a.Ready(deadline(t)); err != nil {
		t.Fatal(err)
	}
	p.b = <-taken
	return p
}

// exchange sends n envelopes in each direction, and calls fault at intervals.
func (p *link) exchange(t testing.TB, n, every int, fault func()) {
	t.Helper()
	ctx := deadline(t)
	var wg sync.WaitGroup
	for _, c := range []*channel.Channel{p.a, p.b} {
		wg.Go(func() {
			for i := range n {
				e, err := envelope.New(c.LocalAgent(), c.RemoteAgent(), envelope.Notification, i)
				if err == nil {
					err = c.Send(ctx, e)
				}
				if err != nil {
					t.Errorf("%s, envelope %d: %v", c.LocalAgent(), i, err)
					return
				}
				if fault != nil && c == p.a && i%every == every-1 {
					fault()
				}
			}
			if err := c.Flush(ctx); err != nil {
				t.Errorf("%s: flush: %v", c.LocalAgent(), err)
			}
		})
	}
	wg.Wait()
	p.atA.Check(t, n)
	p.atB.Check(t, n)
}

// The server is killed and restarted several times; each envelope arrives once, in order (Req 3.4, 3.7).
func TestChannelSurvivesServerRestarts(t *testing.T) {
	n := startServer(t)
	p := newLink(t, n.connect(t), n.connect(t))
	p.exchange(t, messages, messages/4, func() {
		n.Stop()
		n.Start()
	})
}

// proxy forwards connections between an end and the server, and can cut them.
type proxy struct {
	t     testing.TB
	to    string
	l     net.Listener
	wg    sync.WaitGroup
	mu    sync.Mutex
	conns map[net.Conn]bool
}

func newProxy(t testing.TB, n *natsServer) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, to: n.Addr(), l: l, conns: make(map[net.Conn]bool)}
	p.wg.Go(p.serve)
	t.Cleanup(func() {
		l.Close()
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) serve() {
	for {
		in, err := p.l.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.to)
		if err != nil {
			in.Close()
			continue
		}
		for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
			p.mu.Lock()
			p.conns[way[0]] = true
			p.mu.Unlock()
			p.wg.Go(func() {
				_, _ = io.Copy(way[0], way[1]) // ends when the connection is cut
				in.Close()
				out.Close()
			})
		}
	}
}

// cut ends all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
	clear(p.conns)
}

func (p *proxy) connect(t testing.TB) *natsgo.Conn {
	t.Helper()
	nc, err := natsgo.Connect("nats://"+p.l.Addr().String(), natsgo.MaxReconnects(-1), natsgo.ReconnectWait(time.Millisecond), natsgo.ReconnectJitter(0, 0), natsgo.ErrorHandler(quiet))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// One end's connection to the server is cut repeatedly; the channel resends what NATS loses (Req 3.7).
func TestChannelSurvivesCutsToTheServer(t *testing.T) {
	n := startServer(t)
	between := newProxy(t, n)
	p := newLink(t, between.connect(t), n.connect(t))
	p.exchange(t, messages, messages/6, between.cut)
}

// A reader that does not read blocks its sender, so that NATS queues nothing and counts no slow consumer.
func TestSlowReaderBlocksItsSender(t *testing.T) {
	n := startServer(t)
	here, there := n.connect(t), n.connect(t)
	l := listen(t, nats.ListenOptions{Options: nats.Options{Conn: there}, Allow: anybody})
	defer l.Close()
	a, b := pair(t, &nats.Dialer{Options: nats.Options{Conn: here, Pair: identity.Generate()}}, l)
	e, err := envelope.New("a", "b", envelope.Notification, string(make([]byte, 100<<10)))
	if err != nil {
		t.Fatal(err)
	}
	const frames = 40 // some 24 MB as JSON
	sent := make(chan int, frames)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(sent)
		for i := range frames {
			if err := a.Send(deadline(t), []transport.Frame{{Kind: transport.Data, Seq: uint64(i), Envelope: e}}); err != nil {
				t.Error(err)
				return
			}
			sent <- i
		}
	})
	for range 3 {
		<-sent
	}
	// What can still be sent is limited by the window and the buffers.
	time.AfterFunc(300*time.Millisecond, func() {
		if n := len(sent); n > 12 {
			t.Errorf("%d more frames were sent while nobody reads", n)
		}
		wg.Go(func() {
			for got := 0; got < frames; {
				fs, err := b.Receive(deadline(t))
				if err != nil {
					t.Error(err)
					return
				}
				got += len(fs)
			}
		})
	})
	for range sent {
	}
	wg.Wait()
	if n := n.NATS().NumSlowConsumers(); n != 0 {
		t.Errorf("%d slow consumers", n)
	}
}

// A killed process closes its connection to NATS; its peers detect that at once.
func TestKilledPeerIsDetected(t *testing.T) {
	n := startServer(t)
	here, there := n.connect(t), n.connect(t)
	l := listen(t, nats.ListenOptions{Options: nats.Options{Conn: there, Silence: 500 * time.Millisecond}, Allow: anybody})
	defer l.Close()
	_, b := pair(t, &nats.Dialer{Options: nats.Options{Conn: here, Pair: identity.Generate()}}, l)
	here.Close()
	if _, err := b.Receive(deadline(t)); transport.CodeOf(err) != transport.CodeClosed {
		t.Errorf("got %v", err)
	}
}

// An allowed peer cannot make the other end publish to arbitrary subjects.
func TestPeerCannotNameArbitrarySubjects(t *testing.T) {
	n := startServer(t)
	owner := identity.Generate()
	l := listen(t, nats.ListenOptions{Options: nats.Options{Conn: n.connect(t), Pair: owner}, Allow: anybody})
	defer l.Close()
	w := n.connect(t)
	const api = "$JS.API.STREAM.DELETE.TASKS"
	for _, own := range []string{api, "", "parley.link.*", "parley.link.>", "parley.link." + api, "parley.hub." + owner.Public().String(), "parley.link.0123456789012345678901 x"} {
		i, err := secretstream.NewInitiator(identity.Generate(), owner.Public())
		if err != nil {
			t.Fatal(err)
		}
		msg, err := i.Message([]byte(own))
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Publish(l.Endpoint().Address, append([]byte{'O'}, msg...)); err != nil {
			t.Fatal(err)
		}
	}
	sub, err := w.SubscribeSync(">")
	if err != nil {
		t.Fatal(err)
	}
	if m, err := sub.NextMsg(200 * time.Millisecond); err == nil {
		t.Errorf("%q was published to %s", m.Data, m.Subject)
	}
}

// A flood of handshakes is dropped, not queued, and a peer can connect soon afterwards.
//
// WIRE-HANDSHAKE-FLOOD.
func TestFloodOfHandshakesIsDropped(t *testing.T) {
	n := startServer(t)
	owner := identity.Generate()
	l := listen(t, nats.ListenOptions{Options: nats.Options{Conn: n.connect(t), Pair: owner}, Allow: anybody})
	defer l.Close()
	w := n.connect(t)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		junk := make([]byte, 100)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			junk[0], junk[1], junk[2], junk[3] = 'O', byte(i), byte(i>>8), byte(i>>16)
			if err := w.Publish(l.Endpoint().Address, junk); err != nil {
				t.Error(err)
				return
			}
			if i%1000 == 0 {
				_ = w.Flush() // as fast as the server accepts them
			}
		}
	})
	d := &nats.Dialer{Options: nats.Options{Conn: n.connect(t), Pair: identity.Generate()}}
	for range 5 { // some attempts may be dropped
		ctx, cancel := context.WithTimeout(deadline(t), time.Second)
		c, err := d.Dial(ctx, l.Endpoint())
		cancel()
		if err == nil {
			c.Close()
			break
		}
	}
	close(stop)
	wg.Wait()
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		c, err := d.Dial(deadline(t), l.Endpoint())
		if err == nil {
			c.Close()
			return
		}
	}
	t.Error("no peer can connect after the flood")
}

// BenchmarkEcho measures the round trip of one envelope.
func BenchmarkEcho(b *testing.B) {
	n := startServer(b)
	tr := ends(b, n)
	l := tr.Listen(b)
	defer l.Close()
	here, there := pair(b, tr.Dialer, l)
	ctx := context.Background()
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			frames, err := there.Receive(ctx)
			if err != nil || there.Send(ctx, frames) != nil {
				return
			}
		}
	})
	e, err := envelope.New("a", "b", envelope.Notification, "hello")
	if err != nil {
		b.Fatal(err)
	}
	frames := []transport.Frame{{Kind: transport.Data, Seq: 1, Envelope: e}}
	for b.Loop() {
		if err := here.Send(ctx, frames); err != nil {
			b.Fatal(err)
		}
		if _, err := here.Receive(ctx); err != nil {
			b.Fatal(err)
		}
	}
	here.Close()
	wg.Wait()
}

// BenchmarkThroughput measures one stream of envelopes of 64 KiB.
func BenchmarkThroughput(b *testing.B) {
	n := startServer(b)
	tr := ends(b, n)
	l := tr.Listen(b)
	defer l.Close()
	here, there := pair(b, tr.Dialer, l)
	ctx := context.Background()
	e, err := envelope.New("a", "b", envelope.Notification, string(make64k()))
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(64 << 10)
	done := make(chan struct{})
	total := 0
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(done)
		for {
			frames, err := there.Receive(ctx)
			if err != nil {
				return
			}
			for _, f := range frames {
				if f.Seq == 1 {
					return
				}
			}
		}
	})
	for b.Loop() {
		if err := here.Send(ctx, []transport.Frame{{Kind: transport.Data, Seq: 2, Envelope: e}}); err != nil {
			b.Fatal(err)
		}
		total++
	}
	if err := here.Send(ctx, []transport.Frame{{Kind: transport.Data, Seq: 1}}); err != nil {
		b.Fatal(err)
	}
	<-done
	wg.Wait()
}

func make64k() []byte {
	text := make([]byte, 64<<10)
	for i := range text {
		text[i] = 'a' + byte(i%26)
	}
	return text
}

// While there is no server, NATS refuses to publish if it may not buffer. Nothing has left then, and Send says so (Req
// 3.5).
func TestSendSaysThatNATSRefused(t *testing.T) {
	n := startServer(t)
	nc, err := natsgo.Connect(n.URL(), natsgo.MaxReconnects(-1), natsgo.ReconnectWait(time.Hour), natsgo.ReconnectBufSize(-1), natsgo.ErrorHandler(quiet))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	l := listen(t, nats.ListenOptions{Options: nats.Options{Conn: n.connect(t)}, Allow: anybody})
	defer l.Close()
	here, _ := pair(t, &nats.Dialer{Options: nats.Options{Conn: nc, Pair: identity.Generate()}}, l)
	n.Stop()
	wait.Eventually(t, "the server is lost", nc.IsReconnecting)
	for range 2 { // the second finds the connection over
		err := here.Send(deadline(t), []transport.Frame{{Kind: transport.Ack, Seq: 1}})
		if transport.CodeOf(err) != transport.CodeClosed || !transport.NothingSent(err) {
			t.Errorf("Send without a server: %v, nothing sent: %v", err, transport.NothingSent(err))
		}
	}
	n.Start() // for the listener's end
}
