package websocket_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/channel/transporttest"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/websocket"
)

// messages is the number of envelopes of each fault test; the full run has 100,000.
var messages = flag.Int("messages", 3000, "envelopes in each fault test")

// patience bounds how long a test waits.
func patience(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// quick are options with which faults are detected quickly.
func quick() channel.Options {
	return channel.Options{AckTimeout: 500 * time.Millisecond, GapTimeout: 50 * time.Millisecond, AckDelay: time.Millisecond,
		ReconnectDelay: time.Millisecond, HandshakeTimeout: 2 * time.Second}
}

// pair is a channel over WebSocket through a proxy that causes faults.
type pair struct {
	a, b     *channel.Channel
	atA, atB transporttest.Sequence
}

// newPair opens a channel to a listener through the proxy that between returns. Faults are detected quickly.
func newPair(t testing.TB, between func(agent.Endpoint) agent.Endpoint) *pair {
	t.Helper()
	return newPairWith(t, quick(), websocket.Options{PingInterval: 200 * time.Millisecond, PingTimeout: 300 * time.Millisecond}, between)
}

func newPairWith(t testing.TB, o channel.Options, settings websocket.Options, between func(agent.Endpoint) agent.Endpoint) *pair {
	t.Helper()
	l := listen(t, websocket.ListenOptions{Options: settings})
	return newPairOn(t, o, l, &websocket.Dialer{Options: settings}, between(l.Endpoint()))
}

// newPairOn opens a channel to a listener at an endpoint that leads to it. A proxy in between must run until the
// pair's own cleanup has ended.
func newPairOn(t testing.TB, o channel.Options, l *websocket.Listener, d *websocket.Dialer, at agent.Endpoint) *pair {
	t.Helper()
	p := new(pair)
	taken := make(chan *channel.Channel, 1)
	mb := channel.NewManager(o, func(c *channel.Channel) {
		c.OnMessage(p.atB.Handle)
		taken <- c
	})
	o.Dialers = map[agent.Transport]transport.Dialer{agent.TransportWebSocket: d}
	ma := channel.NewManager(o, nil)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := mb.Serve(context.Background(), l); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(func() {
		for _, err := range []error{ma.Close(), mb.Close(), l.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
		wg.Wait()
	})
	var err error
	if p.a, err = ma.OpenAt(t.Context(), "a", "b", at); err != nil {
		t.Fatal(err)
	}
	p.a.OnMessage(p.atA.Handle)
	if err := p.a.Ready(patience(t)); err != nil {
		t.Fatal(err)
	}
	p.b = <-taken
	return p
}

func message(t testing.TB, from, to string, payload any) *envelope.Envelope {
	t.Helper()
	e, err := envelope.New(from, to, envelope.Notification, payload)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// exchange sends n envelopes in each direction, and calls fault at intervals.
func (p *pair) exchange(t testing.TB, n, every int, fault func()) {
	t.Helper()
	ctx := patience(t)
	var wg sync.WaitGroup
	for _, c := range []*channel.Channel{p.a, p.b} {
		wg.Go(func() {
			for i := range n {
				if err := c.Send(ctx, message(t, c.LocalAgent(), c.RemoteAgent(), i)); err != nil {
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

func TestChannelSurvivesCuts(t *testing.T) {
	var p *proxy
	c := newPair(t, func(to agent.Endpoint) agent.Endpoint { p = newProxy(t, to); return p.Endpoint() })
	c.exchange(t, *messages, max(*messages/10, 1), p.Cut)
}

// Every connection is cut after a number of bytes: in the HTTP headers, in the handshake of the channel, or in the
// middle of a frame.
func TestChannelSurvivesCutsAnywhere(t *testing.T) {
	var p *proxy
	c := newPair(t, func(to agent.Endpoint) agent.Endpoint { p = newProxy(t, to); return p.Endpoint() })
	r := rand.New(rand.NewPCG(1, 2))
	p.CutAfter(func() int {
		if r.IntN(3) == 0 {
			return 1 + r.IntN(2000) // an early cut
		}
		return 1 + r.IntN(100*(*messages))
	})
	p.Cut()
	c.exchange(t, *messages, 1, nil)
}

func TestChannelSurvivesHalfOpenConnections(t *testing.T) {
	var p *proxy
	c := newPair(t, func(to agent.Endpoint) agent.Endpoint { p = newProxy(t, to); return p.Endpoint() })
	c.exchange(t, *messages, max(*messages/3, 1), p.Silence)
}

func TestChannelOverASlowNetwork(t *testing.T) {
	var p *proxy
	c := newPair(t, func(to agent.Endpoint) agent.Endpoint { p = newProxy(t, to); return p.Endpoint() })
	p.Slow(time.Millisecond)
	c.exchange(t, min(*messages, 3000), 1, nil)
}

func TestChannelSurvivesRepeatedAndReorderedMessages(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			c := newPair(t, func(to agent.Endpoint) agent.Endpoint { return newShuffler(t, to, seed).Endpoint() })
			c.exchange(t, *messages, 1, nil)
		})
	}
}

// A slow handler blocks its sender; the channel neither breaks nor buffers without limit.
func TestChannelWithASlowHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := channel.Options{AckTimeout: 2 * time.Second}
		settings := websocket.Options{PingInterval: 100 * time.Millisecond}
		l, d := listenInside(t, settings, settings)
		c := newPairOn(t, o, l, d, l.Endpoint())
		release := make(chan struct{})
		var once sync.Once
		c.b.OnMessage(func(context.Context, *envelope.Envelope) { once.Do(func() { <-release }) })
		var broke sync.Map
		c.a.OnStatus(func(s channel.Status) { broke.Store(s, true) })
		done := make(chan struct{})
		go func() { defer close(done); c.exchange(t, *messages, 1, nil) }()
		// Longer than the detection of a dead peer; the envelopes behind the first one wait.
		time.Sleep(3 * o.AckTimeout) // fake time
		close(release)
		<-done
		if _, ok := broke.Load(channel.Reconnecting); ok {
			t.Error("the channel treated a slow handler as a dead peer")
		}
	})
}

// A receiver with smaller limits receives the envelopes within them; the sender receives failures for the rest.
func TestEnvelopesOverTheReceiversLimits(t *testing.T) {
	small := websocket.Options{}
	small.Codec.Envelope.MaxSize = 10_000
	l := listenUntilTheEnd(t, websocket.ListenOptions{Options: small})
	var got transporttest.Sequence
	there := channel.NewManager(quick(), func(c *channel.Channel) { c.OnMessage(got.Handle) })
	failed := make(chan error, 10)
	o := quick()
	o.Dialers = map[agent.Transport]transport.Dialer{agent.TransportWebSocket: &websocket.Dialer{}}
	o.OnDeliveryFailure = func(_ *channel.Channel, _ *envelope.Envelope, err error) { failed <- err }
	here := channel.NewManager(o, nil)
	var wg sync.WaitGroup
	wg.Go(func() { there.Serve(context.Background(), l) })
	defer wg.Wait()
	defer there.Close()
	defer here.Close()
	c, err := here.OpenAt(t.Context(), "a", "b", l.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	ctx := patience(t)
	for i := range 100 {
		if i%20 == 10 { // the receiver's codec refuses 20 KB; its transport refuses 700 KB
			size := 20_000
			if i == 50 {
				size = 700_000
			}
			if err := c.Send(ctx, message(t, "a", "b", strings.Repeat("x", size))); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Send(ctx, message(t, "a", "b", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	got.Check(t, 100)
	for range 5 {
		select {
		case err := <-failed:
			var e *channel.Error
			if !errors.As(err, &e) || e.Code != channel.CodeDeliveryFailed {
				t.Errorf("got %v", err)
			}
		case <-ctx.Done():
			t.Fatal("the sender received no failure")
		}
	}
	if s := c.Status(); s != channel.Open {
		t.Errorf("the channel is %s", s)
	}
}

// The receiving process is killed several times while messages arrive. Each message is handled once and in order:
// the file to which the handler appends is also its checkpoint.
func TestReceiverIsKilled(t *testing.T) {
	file := filepath.Join(t.TempDir(), "handled")
	r := startReceiver(t, "127.0.0.1:0", file)
	o := quick()
	o.Dialers = map[agent.Transport]transport.Dialer{agent.TransportWebSocket: &websocket.Dialer{}}
	m := channel.NewManager(o, nil)
	defer m.Close()
	c, err := m.OpenAt(t.Context(), "a", "b", agent.Endpoint{Transport: agent.TransportWebSocket, Address: r.url})
	if err != nil {
		t.Fatal(err)
	}
	ctx := patience(t)
	every := max(*messages/5, 1)
	for i := range *messages {
		if err := c.Send(ctx, message(t, "a", "b", i)); err != nil {
			t.Fatalf("envelope %d: %v", i, err)
		}
		if i%every == every/2 {
			r.kill(t)
			r = startReceiver(t, strings.TrimPrefix(r.url, "ws://"), file)
		}
	}
	if err := c.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	r.kill(t)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	if len(lines) != *messages {
		t.Errorf("%d of %d envelopes were handled", len(lines), *messages)
	}
	for i, line := range lines {
		if line != fmt.Sprint(i) {
			t.Fatalf("envelope %d is %s", i, line)
		}
	}
}

// receiver is a process that accepts channels: another run of this test's program.
type receiver struct {
	cmd *exec.Cmd
	url string
}

// Environment variables of a receiver.
const (
	receiverAddress = "PARLEY_TEST_RECEIVER_ADDRESS"
	receiverFile    = "PARLEY_TEST_RECEIVER_FILE"
)

func startReceiver(t *testing.T, address, file string) *receiver {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), receiverAddress+"="+address, receiverFile+"="+file)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := &receiver{cmd: cmd}
	t.Cleanup(func() { cmd.Process.Kill() })
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the receiver does not start: %v", err)
	}
	r.url = strings.TrimSpace(url)
	return r
}

func (r *receiver) kill(t *testing.T) {
	t.Helper()
	if err := r.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	r.cmd.Wait() // returns that it was killed
}

// receive is the receiver's main function.
func receive(address, file string) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	l, err := websocket.Listen(address, websocket.ListenOptions{})
	if err != nil {
		return err
	}
	fmt.Println(l.Endpoint().Address)
	o := quick()
	o.Checkpoints = fileCheckpoint(file)
	m := channel.NewManager(o, func(c *channel.Channel) {
		c.OnMessage(func(_ context.Context, e *envelope.Envelope) {
			if _, err := fmt.Fprintf(f, "%s\n", e.Payload); err != nil { // one write: a line is written completely or not at all
				panic(err)
			}
		})
	})
	return m.Serve(context.Background(), l)
}

// fileCheckpoint is the file to which the handler appends a line for each envelope: the handler's effect and the
// checkpoint are the same write.
type fileCheckpoint string

func (f fileCheckpoint) Load(string) (uint64, error) {
	data, err := os.ReadFile(string(f))
	return uint64(bytes.Count(data, []byte("\n"))), err
}

func (f fileCheckpoint) Save(string, uint64) error { return nil }
