package websocket_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	ws "github.com/coder/websocket"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/websocket"
)

// connect returns both ends of a connection.
func connect(t testing.TB, here, there websocket.Options) (dialled, accepted transport.Conn) {
	t.Helper()
	l := listenUntilTheEnd(t, websocket.ListenOptions{Options: there})
	dialled = dial(t, &websocket.Dialer{Options: here}, l.Endpoint())
	return dialled, accept(t, l)
}

// raw returns a connection whose dialling end is a plain WebSocket.
func raw(t *testing.T, o websocket.Options) (*ws.Conn, transport.Conn) {
	t.Helper()
	l := listenUntilTheEnd(t, websocket.ListenOptions{Options: o})
	c, _, err := ws.Dial(patience(t), l.Endpoint().Address, &ws.DialOptions{Subprotocols: []string{websocket.Subprotocol}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.CloseNow() })
	return c, accept(t, l)
}

func data(t testing.TB, payload any) transport.Frame {
	t.Helper()
	return transport.Frame{Kind: transport.Data, Seq: 1, Envelope: message(t, "a", "b", payload)}
}

// Frames sent before Close arrive, although closing a socket with unread data discards data in flight.
func TestFramesSentBeforeCloseArrive(t *testing.T) {
	for range 50 {
		a, b := connect(t, websocket.Options{}, websocket.Options{})
		if err := b.Send(patience(t), []transport.Frame{data(t, strings.Repeat("never read", 1000))}); err != nil {
			t.Fatal(err)
		}
		sent := []transport.Frame{data(t, strings.Repeat("x", 200_000)), {Kind: transport.Close, Reason: &transport.Reason{Code: "X"}}}
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := a.Send(patience(t), sent); err != nil {
				t.Error(err)
			}
			a.Close()
		})
		var got []transport.Kind
		for {
			frames, err := b.Receive(patience(t))
			if err != nil {
				if transport.CodeOf(err) != transport.CodeClosed {
					t.Errorf("after the last frame: %v", err)
				}
				break
			}
			for _, f := range frames {
				got = append(got, f.Kind)
			}
		}
		wg.Wait()
		if len(got) != 2 || got[1] != transport.Close {
			t.Fatalf("received %v", got)
		}
	}
}

// The end of the connection ends a waiting Receive; the error tells a close from a break.
func TestReceiveReturnsHowTheConnectionEnded(t *testing.T) {
	a, b := connect(t, websocket.Options{}, websocket.Options{})
	a.Close()
	if _, err := b.Receive(patience(t)); transport.CodeOf(err) != transport.CodeClosed || !strings.Contains(err.Error(), "the peer closed it") {
		t.Errorf("got %v", err)
	}
	if err := b.Send(patience(t), []transport.Frame{{Kind: transport.Ready}}); transport.CodeOf(err) != transport.CodeClosed {
		t.Errorf("got %v", err)
	}
}

func TestCanceledReceiveLosesNothing(t *testing.T) {
	a, b := connect(t, websocket.Options{}, websocket.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Receive(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	if err := a.Send(patience(t), []transport.Frame{data(t, 1)}); err != nil {
		t.Fatal(err)
	}
	if frames, err := b.Receive(patience(t)); err != nil || len(frames) != 1 {
		t.Errorf("got %v, %v", frames, err)
	}
}

// In a half-open connection both sockets are open, but nothing passes. Receive and Send detect that and fail.
func TestHalfOpenConnectionsAreDetected(t *testing.T) {
	o := websocket.Options{PingInterval: 20 * time.Millisecond, PingTimeout: 50 * time.Millisecond}
	for name, use := range map[string]func(transport.Conn) error{
		"receiving": func(c transport.Conn) error { _, err := c.Receive(patience(t)); return err },
		"sending": func(c transport.Conn) error {
			big := []transport.Frame{data(t, strings.Repeat("x", 500_000))}
			for { // first fills the kernel's buffers, then blocks until the failure is detected
				if err := c.Send(patience(t), big); err != nil {
					return err
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := listenUntilTheEnd(t, websocket.ListenOptions{Options: o})
			p := newProxy(t, l.Endpoint())
			a := dial(t, &websocket.Dialer{Options: o}, p.Endpoint())
			b := accept(t, l)
			p.Silence()
			var wg sync.WaitGroup
			for _, c := range []transport.Conn{a, b} {
				wg.Go(func() {
					if err := use(c); transport.CodeOf(err) != transport.CodeClosed {
						t.Errorf("got %v", err)
					}
				})
			}
			wg.Wait()
		})
	}
}

// An idle connection stays open.
func TestIdleConnectionsStay(t *testing.T) {
	o := websocket.Options{PingInterval: time.Millisecond, PingTimeout: time.Minute}
	a, b := connect(t, o, o)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := a.Receive(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("after many pings: %v", err)
	}
	if err := a.Send(patience(t), []transport.Frame{{Kind: transport.Ready}}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Receive(patience(t)); err != nil {
		t.Fatal(err)
	}
}

// onePipe is a listener with a single connection.
type onePipe struct {
	conn chan net.Conn
	once sync.Once
	done chan struct{}
}

func (l *onePipe) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *onePipe) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *onePipe) Addr() net.Addr { return &net.TCPAddr{} }

// eager buffers everything that is written, so that writes never block.
type eager struct {
	net.Conn
	mu     sync.Mutex
	change sync.Cond
	buf    []byte
	over   bool
}

func newEager(c net.Conn) *eager {
	e := &eager{Conn: c}
	e.change.L = &e.mu
	go func() {
		for {
			b := e.take()
			if b == nil {
				return
			}
			_, _ = c.Write(b) // the reader detects an error
		}
	}()
	return e
}

// take returns the bytes to write, nil at the end.
func (e *eager) take() (b []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(e.buf) == 0 && !e.over {
		e.change.Wait()
	}
	b, e.buf = e.buf, nil
	return b
}

func (e *eager) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over {
		return 0, net.ErrClosed
	}
	e.buf = append(e.buf, p...)
	e.change.Signal()
	return len(p), nil
}

func (e *eager) Close() error {
	e.mu.Lock()
	e.over = true
	e.change.Signal()
	e.mu.Unlock()
	return e.Conn.Close()
}

// listenInside returns a listener and a dialer with one connection between them, without a network, for tests with
// fake time.
func listenInside(t *testing.T, here, there websocket.Options) (*websocket.Listener, *websocket.Dialer) {
	t.Helper()
	l := websocket.NewListener(websocket.ListenOptions{Options: there, URL: "ws://127.0.0.1:1"})
	a, b := net.Pipe()
	in := &onePipe{conn: make(chan net.Conn, 1), done: make(chan struct{})}
	in.conn <- newEager(b)
	server := &http.Server{Handler: l, ErrorLog: quiet}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(in); !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(func() {
		if err := errors.Join(l.Close(), server.Close()); err != nil {
			t.Error(err)
		}
		serving.Wait()
	})
	return l, &websocket.Dialer{Options: here, DialContext: func(context.Context, string, string) (net.Conn, error) { return newEager(a), nil }}
}

// A pause between calls of Receive does not count as silence of the peer.
func TestPauseInReceiveIsNotSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := websocket.Options{PingInterval: 5 * time.Millisecond, PingTimeout: 5 * time.Millisecond}
		patient := websocket.Options{PingInterval: time.Hour}
		l, d := listenInside(t, patient, o)
		a := dial(t, d, l.Endpoint())
		b := accept(t, l)
		const n = 5
		var sending sync.WaitGroup
		sending.Go(func() {
			for i := range n {
				if err := a.Send(patience(t), []transport.Frame{data(t, i)}); err != nil {
					t.Error(err)
				}
			}
		})
		time.Sleep(100 * time.Millisecond) // fake time: many intervals
		for got := 0; got < n; {
			frames, err := b.Receive(patience(t))
			if err != nil {
				t.Fatal(err)
			}
			got += len(frames)
		}
		sending.Wait()
	})
}

// A Send to a peer that reads nothing blocks until its context ends or the connection is closed.
func TestSendUnblocks(t *testing.T) {
	big := []transport.Frame{data(t, strings.Repeat("x", 900_000))}
	fill := func(ctx context.Context, c transport.Conn) error {
		for {
			if err := c.Send(ctx, big); err != nil {
				return err
			}
		}
	}
	t.Run("context", func(t *testing.T) {
		a, _ := connect(t, websocket.Options{}, websocket.Options{})
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if err := fill(ctx, a); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if err := a.Send(t.Context(), big); transport.CodeOf(err) != transport.CodeClosed {
			t.Errorf("a send after that: %v", err)
		}
	})
	t.Run("close", func(t *testing.T) {
		a, _ := connect(t, websocket.Options{}, websocket.Options{})
		time.AfterFunc(100*time.Millisecond, func() { a.Close() })
		if err := fill(patience(t), a); transport.CodeOf(err) != transport.CodeClosed {
			t.Errorf("got %v", err)
		}
	})
}

// A message over the peer's limit is refused before it is sent, and the connection stays open.
func TestMessagesOverThePeersLimitAreRefused(t *testing.T) {
	small := websocket.Options{}
	small.Codec.Envelope.MaxSize = 600_000
	large := websocket.Options{}
	large.Codec.Envelope.MaxSize = 2 << 20
	for name, ends := range map[string]func() (from, to transport.Conn){
		"to the listener": func() (from, to transport.Conn) { return connect(t, large, small) },
		"to the dialer":   func() (from, to transport.Conn) { to, from = connect(t, small, large); return from, to },
	} {
		t.Run(name, func(t *testing.T) {
			from, to := ends()
			err := from.Send(patience(t), []transport.Frame{data(t, 1), data(t, strings.Repeat("x", 700_000))})
			if transport.CodeOf(err) != transport.CodeTooLarge {
				t.Fatalf("got %v", err)
			}
			if err := from.Send(patience(t), []transport.Frame{data(t, strings.Repeat("x", 500_000))}); err != nil {
				t.Fatal(err)
			}
			if frames, err := to.Receive(patience(t)); err != nil || len(frames[0].Envelope.Payload) != 500_002 {
				t.Errorf("%v", err)
			}
		})
	}
}

// An invalid message closes the connection with a status that states the reason.
func TestHostileMessages(t *testing.T) {
	for name, test := range map[string]struct {
		kind   ws.MessageType
		data   string
		status ws.StatusCode
	}{
		"text":             {ws.MessageText, "hello", ws.StatusInvalidFramePayloadData},
		"unknown frame":    {ws.MessageBinary, "\xff", ws.StatusInvalidFramePayloadData},
		"half a frame":     {ws.MessageBinary, "\x05\x01", ws.StatusInvalidFramePayloadData},
		"too many frames":  {ws.MessageBinary, strings.Repeat("\x03", 100_000), ws.StatusInvalidFramePayloadData},
		"a length of 2^63": {ws.MessageBinary, "\x01\xff\xff\xff\xff\xff\xff\xff\xff\x7f", ws.StatusInvalidFramePayloadData},
		"too large":        {ws.MessageBinary, strings.Repeat("\x03", 3<<20), ws.StatusMessageTooBig},
	} {
		t.Run(name, func(t *testing.T) {
			c, conn := raw(t, websocket.Options{})
			var wg sync.WaitGroup
			wg.Go(func() {
				frames, err := conn.Receive(patience(t))
				if code := transport.CodeOf(err); code != transport.CodeInvalid && code != transport.CodeClosed {
					t.Errorf("got %v, %v", frames, err)
				}
			})
			c.Write(patience(t), test.kind, []byte(test.data)) // a message that is too large may fail
			if _, _, err := c.Read(patience(t)); test.status != ws.StatusMessageTooBig && ws.CloseStatus(err) != test.status {
				t.Errorf("the client receives: %v", err)
			}
			wg.Wait()
		})
	}
}

// An empty message has no frames and is skipped.
func TestEmptyMessagesAreSkipped(t *testing.T) {
	c, conn := raw(t, websocket.Options{})
	for _, m := range []string{"", "", "\x03"} {
		if err := c.Write(patience(t), ws.MessageBinary, []byte(m)); err != nil {
			t.Fatal(err)
		}
	}
	if frames, err := conn.Receive(patience(t)); err != nil || len(frames) != 1 || frames[0].Kind != transport.Ready {
		t.Errorf("got %v, %v", frames, err)
	}
}

// Small frames that exceed one message are sent in several.
func TestManySmallFrames(t *testing.T) {
	a, b := connect(t, websocket.Options{}, websocket.Options{})
	const n = 3*transport.MaxFrames + 1
	frames := make([]transport.Frame, n)
	for i := range frames {
		frames[i] = transport.Frame{Kind: transport.Ack, Seq: uint64(i)}
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := a.Send(patience(t), frames); err != nil {
			t.Error(err)
		}
	})
	for next := uint64(0); next < n; {
		got, err := b.Receive(patience(t))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range got {
			if f.Seq != next {
				t.Fatalf("got %d, want %d", f.Seq, next)
			}
			next++
		}
	}
	wg.Wait()
}

// Received envelopes do not change although buffers and slices are reused.
func TestReceivedEnvelopesDoNotChange(t *testing.T) {
	a, b := connect(t, websocket.Options{}, websocket.Options{})
	var kept []*envelope.Envelope
	for i := range 100 {
		if err := a.Send(patience(t), []transport.Frame{data(t, strings.Repeat(string(rune('a'+i%26)), 1000))}); err != nil {
			t.Fatal(err)
		}
		frames, err := b.Receive(patience(t))
		if err != nil {
			t.Fatal(err)
		}
		kept = append(kept, frames[0].Envelope)
	}
	for i, e := range kept {
		if want := `"` + strings.Repeat(string(rune('a'+i%26)), 1000) + `"`; string(e.Payload) != want {
			t.Fatalf("envelope %d has changed", i)
		}
	}
}

func TestEndpointsOfOtherTransports(t *testing.T) {
	_, err := new(websocket.Dialer).Dial(t.Context(), agent.Endpoint{Transport: agent.TransportNATS, Address: "ws://127.0.0.1:1"})
	if transport.CodeOf(err) != transport.CodeInvalid {
		t.Errorf("got %v", err)
	}
}
