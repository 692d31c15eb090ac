package transporttest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/transport"
)

// Transport is a transport under test.
type Transport struct {
	Dialer transport.Dialer
	// Listen returns a new listener for each call. The test closes it.
	Listen func(t testing.TB) transport.Listener
	// Envelopes is the number that each fault test sends in each direction; 0 means 2000.
	Envelopes int
}

// patience bounds each blocking call, so that a test that hangs fails.
const patience = 2 * time.Minute

// Run runs the tests that every transport must pass: of connections, and of channels on top of them under cuts,
// half-open connections, slow readers, repeated and reordered frames and restarts. It calls make for each test.
func Run(t *testing.T, make func(t *testing.T) Transport) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, Transport)
	}{
		{"FramesArriveInOrder", framesArriveInOrder},
		{"AllKindsOfFrames", allKindsOfFrames},
		{"LargeEnvelopes", largeEnvelopes},
		{"TooLargeLeavesTheConnection", tooLarge},
		{"BothWaysAtOnce", bothWaysAtOnce},
		{"CloseWakesBothEnds", closeWakesBothEnds},
		{"CloseLosesNothing", closeLosesNothing},
		{"ContextEndsReceive", contextEndsReceive},
		{"ListenerClose", listenerClose},
		{"DialNobody", dialNobody},
		{"ChannelBothWays", channelBothWays},
		{"ChannelCut", channelCut},
		{"ChannelHalfOpen", channelHalfOpen},
		{"ChannelSlowReader", channelSlowReader},
		{"ChannelRepeatedAndReorderedFrames", channelChaos},
		{"ChannelRestart", channelRestart},
	} {
		t.Run(test.name, func(t *testing.T) {
			tr := make(t)
			if tr.Envelopes == 0 {
				tr.Envelopes = 2000
			}
			test.run(t, tr)
		})
	}
}

func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func listen(t testing.TB, tr Transport) transport.Listener {
	t.Helper()
	l := tr.Listen(t)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close the listener: %v", err)
		}
	})
	return l
}

// connect returns the two ends of a connection.
func connect(t testing.TB, tr Transport) (dialled, accepted transport.Conn) {
	t.Helper()
	l := listen(t, tr)
	type result struct {
		conn transport.Conn
		err  error
	}
	got := make(chan result, 1)
	go func() {
		conn, err := l.Accept(deadline(t))
		got <- result{conn, err}
	}()
	dialled, err := tr.Dialer.Dial(deadline(t), l.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	r := <-got
	if r.err != nil {
		t.Fatal(r.err)
	}
	t.Cleanup(func() { dialled.Close(); r.conn.Close() })
	return dialled, r.conn
}

func newEnvelope(t testing.TB, from, to string, payload any) *envelope.Envelope {
	t.Helper()
	e, err := envelope.New(from, to, envelope.Notification, payload)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func numbered(t testing.TB, from, to uint64) []transport.Frame {
	var frames []transport.Frame
	for n := from; n < to; n++ {
		frames = append(frames, transport.Frame{Kind: transport.Data, Seq: n, Envelope: newEnvelope(t, "a", "b", n)})
	}
	return frames
}

// collect receives n frames, or fewer after a failure.
func collect(t testing.TB, c transport.Conn, n int) (got []transport.Frame) {
	t.Helper()
	for len(got) < n {
		frames, err := c.Receive(deadline(t))
		if err != nil || len(frames) == 0 {
			t.Errorf("Receive returned %d frames after %d: %v", len(frames), len(got), err)
			break
		}
		got = append(got, frames...)
	}
	return got
}

// receive receives n frames of data and checks their order.
func receive(t testing.TB, c transport.Conn, n int) {
	t.Helper()
	for i, f := range collect(t, c, n) {
		if f.Seq != uint64(i) || f.Envelope == nil || string(f.Envelope.Payload) != fmt.Sprint(i) {
			t.Errorf("got frame %d %+v, want %d", f.Seq, f.Envelope, i)
			return
		}
	}
}

func framesArriveInOrder(t *testing.T, tr Transport) {
	a, b := connect(t, tr)
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := uint64(0); n < 3000; n += 30 {
			frames := numbered(t, n, n+30)
			if err := a.Send(deadline(t), frames); err != nil {
				t.Error(err)
				return
			}
			clear(frames) // Send must not retain the slice
		}
	})
	receive(t, b, 3000)
	wg.Wait()
}

func allKindsOfFrames(t *testing.T, tr Transport) {
	a, b := connect(t, tr)
	hello := &transport.Hello{Version: 1, Channel: "c", Secret: "s", From: "a", To: "b", Resume: true, Received: 1, Base: 2, Window: 3, Card: []byte(`{"id":"a"}`)}
	sent := []transport.Frame{
		{Kind: transport.Open, Hello: hello},
		{Kind: transport.Accept, Hello: hello},
		{Kind: transport.Ready},
		{Kind: transport.Refuse, Reason: &transport.Reason{Code: "X", Message: "no"}},
		{Kind: transport.Data, Seq: 1 << 60, Ack: 7},
		{Kind: transport.Ack, Seq: 8, Ack: 9},
		{Kind: transport.Close, Reason: &transport.Reason{Code: "Y", Message: "bye"}},
	}
	if err := a.Send(deadline(t), sent); err != nil {
		t.Fatal(err)
	}
	got := collect(t, b, len(sent))
	for i := range got {
		if describe(got[i]) != describe(sent[i]) {
			t.Errorf("got %s, want %s", describe(got[i]), describe(sent[i]))
		}
	}
}

func describe(f transport.Frame) string {
	return fmt.Sprintf("%d %d %d %v %+v %+v", f.Kind, f.Seq, f.Ack, f.Envelope, f.Hello, f.Reason)
}

func largeEnvelopes(t *testing.T, tr Transport) {
	a, b := connect(t, tr)
	text := strings.Repeat("x", envelope.DefaultMaxSize-1000)
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 5 {
			if err := a.Send(deadline(t), []transport.Frame{{Kind: transport.Data, Seq: 1, Envelope: newEnvelope(t, "a", "b", text)}}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for _, f := range collect(t, b, 5) {
		if len(f.Envelope.Payload) != len(text)+2 {
			t.Errorf("%d bytes arrived of %d", len(f.Envelope.Payload), len(text)+2)
		}
	}
	wg.Wait()
}

// A transport without a size limit delivers the envelope; one with a limit refuses it
// with CodeTooLarge, and the connection still works.
func tooLarge(t *testing.T, tr Transport) {
	a, b := connect(t, tr)
	huge := transport.Frame{Kind: transport.Data, Seq: 99, Envelope: newEnvelope(t, "a", "b", strings.Repeat("x", 8*envelope.DefaultMaxSize))}
	err := a.Send(deadline(t), []transport.Frame{huge})
	if err == nil {
		frames, err := b.Receive(deadline(t))
		if err != nil || frames[0].Seq != 99 {
			t.Errorf("the envelope was sent and did not arrive: %v", err)
		}
	} else if transport.CodeOf(err) != transport.CodeTooLarge {
		t.Errorf("got %v", err)
	}
	if err := a.Send(deadline(t), numbered(t, 0, 1)); err != nil {
		t.Fatal(err)
	}
	receive(t, b, 1)
}

func bothWaysAtOnce(t *testing.T, tr Transport) {
	a, b := connect(t, tr)
	var wg sync.WaitGroup
	for _, c := range []transport.Conn{a, b} {
		wg.Go(func() {
			for n := uint64(0); n < 500; n++ {
				if err := c.Send(deadline(t), numbered(t, n, n+1)); err != nil {
					t.Error(err)
					return
				}
			}
		})
		wg.Go(func() { receive(t, c, 500) })
	}
	wg.Wait()
}

func closeWakesBothEnds(t *testing.T, tr Transport) {
	a, b := connect(t, tr)
	var wg sync.WaitGroup
	for _, c := range []transport.Conn{a, b} {
		wg.Go(func() {
			if _, err := c.Receive(deadline(t)); err == nil || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Receive on a closed connection: %v", err)
			}
		})
	}
	for range 2 { // the second Close does nothing
		if err := a.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	wg.Wait()
	err := a.Send(deadline(t), numbered(t, 0, 1))
	if c := transport.CodeOf(err); err == nil || c == transport.CodeNotSent || c == transport.CodeTooLarge {
		t.Errorf("Send on a closed connection: %v", err)
	}
	if !transport.NothingSent(err) {
		t.Errorf("Send on a closed connection does not say that nothing was sent: %#v", err)
	}
}

// Frames sent before Close arrive, although the closing end has unread ones.
func closeLosesNothing(t *testing.T, tr Transport) {
	a, b := connect(t, tr)
	if err := b.Send(deadline(t), numbered(t, 0, 10)); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := a.Send(deadline(t), numbered(t, 0, 100)); err != nil {
			t.Error(err)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	receive(t, b, 100)
	if _, err := b.Receive(deadline(t)); transport.CodeOf(err) != transport.CodeClosed {
		t.Errorf("Receive after the last frame: %v", err)
	}
	wg.Wait()
}

func contextEndsReceive(t *testing.T, tr Transport) {
	_, b := connect(t, tr)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := b.Receive(ctx); err == nil {
		t.Error("Receive with a context that has ended returned frames")
	}
}

func listenerClose(t *testing.T, tr Transport) {
	l := tr.Listen(t)
	done := make(chan error, 1)
	go func() {
		_, err := l.Accept(deadline(t))
		done <- err
	}()
	for range 2 {
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if err := <-done; transport.CodeOf(err) != transport.CodeClosed {
		t.Errorf("Accept: %v", err)
	}
	if _, err := tr.Dialer.Dial(deadline(t), l.Endpoint()); err == nil {
		t.Error("a closed listener can be dialled")
	}
}

func dialNobody(t *testing.T, tr Transport) {
	if _, err := tr.Dialer.Dial(deadline(t), agent.Endpoint{Transport: "pigeon"}); transport.CodeOf(err) != transport.CodeInvalid {
		t.Errorf("an endpoint of another transport: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	l := listen(t, tr)
	if conn, err := tr.Dialer.Dial(ctx, l.Endpoint()); err == nil {
		conn.Close() // a transport may connect before it checks ctx
	}
}

// ends is a channel with a manager at each end.
type ends struct {
	t        testing.TB
	tr       Transport
	faults   *Faults
	listener transport.Listener
	ma, mb   *channel.Manager
	serving  sync.WaitGroup
	a        *channel.Channel
	taken    chan *channel.Channel
	atA, atB *Sequence
	saved    *checkpoints
}

// quick returns options with short timeouts, so that faults are noticed soon.
func quick() channel.Options {
	return channel.Options{AckTimeout: 300 * time.Millisecond, GapTimeout: 100 * time.Millisecond,
		ReconnectDelay: time.Millisecond, AckDelay: time.Millisecond, HandshakeTimeout: 5 * time.Second}
}

func newEnds(t testing.TB, tr Transport) *ends {
	t.Helper()
	e := &ends{t: t, tr: tr, faults: NewFaults(tr.Dialer), listener: listen(t, tr), taken: make(chan *channel.Channel, 1),
		atA: new(Sequence), atB: new(Sequence), saved: &checkpoints{at: make(map[string]uint64)}}
	o := quick()
	o.Dialers = map[agent.Transport]transport.Dialer{e.listener.Endpoint().Transport: e.faults}
	e.ma = channel.NewManager(o, nil)
	e.startB()
	var err error
	if e.a, err = e.ma.OpenAt(deadline(t), "a", "b", e.listener.Endpoint()); err != nil {
		t.Fatal(err)
	}
	e.a.OnMessage(e.atA.Handle)
	if err := e.a.Ready(deadline(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.ma.Close(); err != nil {
			t.Error(err)
		}
		if err := e.mb.Close(); err != nil {
			t.Error(err)
		}
		e.serving.Wait()
	})
	return e
}

// startB starts the accepting end, as a starting process would.
func (e *ends) startB() {
	o := quick()
	o.Checkpoints = e.saved
	e.mb = channel.NewManager(o, func(c *channel.Channel) {
		c.OnMessage(e.atB.Handle)
		select {
		case <-e.taken:
		default:
		}
		e.taken <- c
	})
	m := e.mb
	e.serving.Go(func() {
		if err := m.Serve(context.Background(), e.listener); err != nil {
			e.t.Errorf("serve: %v", err)
		}
	})
}

func (e *ends) b() *channel.Channel {
	select {
	case c := <-e.taken:
		e.taken <- c
		return c
	case <-deadline(e.t).Done():
		e.t.Fatal("the other end did not open")
		return nil
	}
}

// send sends the numbers from to to-1, and calls do, if not nil, after every so many.
func send(t testing.TB, c *channel.Channel, from, to, every int, do func()) {
	ctx := deadline(t)
	for n := from; n < to; n++ {
		if err := c.Send(ctx, newEnvelope(t, c.LocalAgent(), c.RemoteAgent(), n)); err != nil {
			t.Errorf("send %d: %v", n, err)
			return
		}
		if do != nil && n%every == every-1 {
			do()
		}
	}
}

func (e *ends) flush() {
	e.t.Helper()
	for _, c := range []*channel.Channel{e.a, e.b()} {
		if err := c.Flush(deadline(e.t)); err != nil {
			e.t.Fatalf("flush: %v", err)
		}
	}
}

type checkpoints struct {
	mu sync.Mutex
	at map[string]uint64
}

func (c *checkpoints) Load(id string) (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at[id], nil
}

func (c *checkpoints) Save(id string, handled uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at[id] = handled
	return nil
}

func channelBothWays(t *testing.T, tr Transport) { bothWays(t, newEnds(t, tr)) }

func bothWays(t *testing.T, e *ends) {
	tr := e.tr
	var wg sync.WaitGroup
	for _, c := range []*channel.Channel{e.a, e.b()} {
		wg.Go(func() { send(t, c, 0, tr.Envelopes, 1, nil) })
	}
	wg.Wait()
	e.flush()
	e.atA.Check(t, tr.Envelopes)
	e.atB.Check(t, tr.Envelopes)
}

func channelCut(t *testing.T, tr Transport) {
	e := newEnds(t, tr)
	b := e.b()
	var wg sync.WaitGroup
	wg.Go(func() { send(t, e.a, 0, tr.Envelopes, max(tr.Envelopes/7, 1), e.faults.Cut) })
	wg.Go(func() { send(t, b, 0, tr.Envelopes, max(tr.Envelopes/5, 1), e.faults.Cut) })
	wg.Wait()
	e.flush()
	e.atA.Check(t, tr.Envelopes)
	e.atB.Check(t, tr.Envelopes)
}

func channelHalfOpen(t *testing.T, tr Transport) {
	e := newEnds(t, tr)
	send(t, e.a, 0, tr.Envelopes, max(tr.Envelopes/3, 1), e.faults.Freeze)
	e.flush()
	e.atB.Check(t, tr.Envelopes)
}

func channelSlowReader(t *testing.T, tr Transport) {
	e := newEnds(t, tr)
	release, held := make(chan struct{}), make(chan struct{})
	var once sync.Once
	e.b().OnMessage(func(context.Context, *envelope.Envelope) {
		once.Do(func() { close(held); <-release })
	})
	var wg sync.WaitGroup
	wg.Go(func() { send(t, e.a, 0, tr.Envelopes, 1, nil) })
	<-held
	// The sender fills the window and then blocks, for longer than AckTimeout. A slow
	// reader must not count as a dead one.
	ctx, cancel := context.WithTimeout(deadline(t), 4*quick().AckTimeout)
	defer cancel()
	if err := e.a.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("flush while the reader sleeps: %v", err)
	}
	close(release)
	wg.Wait()
	e.flush()
	e.atB.Check(t, tr.Envelopes)
}

func channelChaos(t *testing.T, tr Transport) {
	e := newEnds(t, tr)
	e.faults.Chaos(uint64(tr.Envelopes))
	bothWays(t, e)
}

// The accepting end restarts several times between envelopes.
func channelRestart(t *testing.T, tr Transport) {
	e := newEnds(t, tr)
	send(t, e.a, 0, tr.Envelopes, max(tr.Envelopes/4, 1), func() {
		if _, err := e.mb.Suspend(deadline(t)); err != nil {
			t.Errorf("suspend: %v", err)
		}
		e.startB()
	})
	if err := e.a.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	e.atB.Check(t, tr.Envelopes)
}

// Sequence checks that received payloads count up from 0, each once and in order. The
// zero Sequence is ready; it is safe for concurrent use.
type Sequence struct {
	mu    sync.Mutex
	n     int
	wrong []string // the first few unexpected payloads
}

// Handle records an envelope; it is a [channel.Handler].
func (s *Sequence) Handle(_ context.Context, e *envelope.Envelope) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if string(e.Payload) != fmt.Sprint(s.n) && len(s.wrong) < 10 {
		s.wrong = append(s.wrong, fmt.Sprintf("%s came as number %d", e.Payload, s.n))
	}
	s.n++
}

// Check fails the test unless exactly n have arrived, in order.
func (s *Sequence) Check(t testing.TB, n int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n != n || len(s.wrong) > 0 {
		t.Errorf("%d arrived of %d; %v", s.n, n, s.wrong)
	}
}
