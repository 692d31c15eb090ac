package memory_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/channel/transporttest"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Req 3.6: the in-process transport passes the common tests of all transports.
func TestTransport(t *testing.T) {
	transporttest.Run(t, func(t *testing.T) transporttest.Transport {
		net := new(memory.Network)
		var n atomic.Int64
		return transporttest.Transport{Dialer: net, Listen: func(t testing.TB) transport.Listener {
			l, err := net.Listen(fmt.Sprint(n.Add(1)))
			if err != nil {
				t.Fatal(err)
			}
			return l
		}}
	})
}

func TestNothingIsCopied(t *testing.T) {
	a, b := memory.Pipe()
	defer a.Close()
	e, err := envelope.New("a", "b", envelope.Request, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Send(t.Context(), []transport.Frame{{Kind: transport.Data, Envelope: e}}); err != nil {
		t.Fatal(err)
	}
	got, err := b.Receive(t.Context())
	if err != nil || got[0].Envelope != e {
		t.Errorf("got %+v, %v", got, err)
	}
	if a.Peer() != "" {
		t.Error("a pipe has the name of a peer")
	}
}

func TestListenTwice(t *testing.T) {
	var net memory.Network
	l, err := net.Listen("x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := net.Listen("x"); transport.CodeOf(err) != transport.CodeInvalid {
		t.Errorf("got %v", err)
	}
	conn, err := net.Dial(t.Context(), l.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if _, err := conn.Receive(t.Context()); transport.CodeOf(err) != transport.CodeClosed {
		t.Errorf("a connection that was never accepted: %v", err)
	}
	if l, err = net.Listen("x"); err != nil {
		t.Errorf("the address is still in use after Close: %v", err)
	}
	l.Close()
}

func TestSendBlocksWithoutAReceiver(t *testing.T) {
	a, b := memory.Pipe()
	defer a.Close()
	ctx, cancel := context.WithCancel(t.Context())
	frames := make([]transport.Frame, 4096)
	if err := a.Send(ctx, frames); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- a.Send(ctx, frames[:1]) }()
	cancel()
	if err := <-done; err == nil {
		t.Error("Send on a full connection succeeds")
	}
	go func() { done <- a.Send(t.Context(), frames[:1]) }()
	if _, err := b.Receive(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// managers returns two managers; the second accepts the channels that the first opens.
func managers(tb testing.TB, onChannel func(*channel.Channel)) (*channel.Manager, agent.Endpoint) {
	var net memory.Network
	l, err := net.Listen("there")
	if err != nil {
		tb.Fatal(err)
	}
	a := channel.NewManager(channel.Options{Dialers: map[agent.Transport]transport.Dialer{agent.TransportLocal: &net}}, nil)
	b := channel.NewManager(channel.Options{}, onChannel)
	var wg sync.WaitGroup
	wg.Go(func() { b.Serve(context.Background(), l) })
	tb.Cleanup(func() {
		a.Close()
		b.Close()
		l.Close()
		wg.Wait()
	})
	return a, l.Endpoint()
}

// BenchmarkOpenChannels measures the memory of open channels, both ends of each.
func BenchmarkOpenChannels(b *testing.B) {
	const n = 10_000
	for b.Loop() {
		a, at := managers(b, nil)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range n {
			c, err := a.OpenAt(b.Context(), "mars", fmt.Sprint("agent-", i), at)
			if err != nil {
				b.Fatal(err)
			}
			if err := c.Ready(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		used := after.HeapInuse + after.StackInuse - before.HeapInuse - before.StackInuse
		b.ReportMetric(float64(used)/1e6, "MB")
		if used > 100e6 {
			b.Errorf("%d open channels take %d bytes, more than 100 MB", n, used)
		}
		if err := a.Close(); err != nil {
			b.Error(err)
		}
	}
}

func BenchmarkChannel(b *testing.B) {
	var n atomic.Int64
	done := make(chan struct{}, 1)
	var want atomic.Int64
	a, at := managers(b, func(c *channel.Channel) {
		c.OnMessage(func(context.Context, *envelope.Envelope) {
			if n.Add(1) == want.Load() {
				done <- struct{}{}
			}
		})
	})
	c, err := a.OpenAt(b.Context(), "mars", "venus", at)
	if err != nil {
		b.Fatal(err)
	}
	e, err := envelope.New("mars", "venus", envelope.Notification, "hello")
	if err != nil {
		b.Fatal(err)
	}
	want.Store(-1)
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Send(b.Context(), e); err != nil {
			b.Fatal(err)
		}
	}
	if err := c.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
}

func Example() {
	var net memory.Network
	listener, err := net.Listen("office")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer listener.Close()
	go func() {
		conn, err := net.Dial(context.Background(), listener.Endpoint())
		if err != nil {
			return
		}
		e, err := envelope.New("mars", "venus", envelope.Notification, "hello")
		if err != nil {
			return
		}
		_ = conn.Send(context.Background(), []transport.Frame{{Kind: transport.Data, Seq: 1, Envelope: e}})
	}()
	conn, err := listener.Accept(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	frames, err := conn.Receive(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(string(frames[0].Envelope.Payload))
	// Output: "hello"
}
