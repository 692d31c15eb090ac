package websocket_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	ws "github.com/coder/websocket"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/websocket"
)

// rawPair returns both ends of a plain WebSocket connection over loopback.
func rawPair(b *testing.B) (dialled, accepted *ws.Conn) {
	b.Helper()
	conns := make(chan *ws.Conn, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := ws.Accept(w, r, nil)
		if err != nil {
			b.Error(err)
		}
		conns <- c
	}))
	b.Cleanup(server.Close)
	c, _, err := ws.Dial(patience(b), "ws"+strings.TrimPrefix(server.URL, "http"), nil)
	if err != nil {
		b.Fatal(err)
	}
	accepted = <-conns
	accepted.SetReadLimit(-1)
	b.Cleanup(func() { c.CloseNow(); accepted.CloseNow() })
	return c, accepted
}

// sendRaw sends the same message n times and returns how long it took to arrive.
func sendRaw(b *testing.B, from, to *ws.Conn, text []byte, n int) time.Duration {
	began := time.Now()
	var wg sync.WaitGroup
	wg.Go(func() {
		for range n {
			if err := from.Write(context.Background(), ws.MessageBinary, text); err != nil {
				b.Error(err)
				return
			}
		}
	})
	for range n {
		if _, _, err := to.Read(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
	wg.Wait()
	return time.Since(began)
}

// BenchmarkLoopback sends the same envelopes through a channel and, in the same run, the bytes of their frames
// through plain coder/websocket, one message each. "of-raw" is the channel's rate divided by the plain one; 0.8 is
// required.
func BenchmarkLoopback(b *testing.B) {
	for _, size := range []int{100, 1 << 10, 16 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			e := message(b, "a", "b", strings.Repeat("x", size))
			var codec transport.Codec
			text, err := codec.Append(nil, &transport.Frame{Kind: transport.Data, Seq: 1000, Ack: 1000, Envelope: e})
			if err != nil {
				b.Fatal(err)
			}
			from, to := rawPair(b)
			c := benchChannel(b)
			n := max(16<<20/len(text), 1000)
			sendRaw(b, from, to, text, n/10) // warm-up
			sendChannel(b, c, e, n/10)
			var raw, ours time.Duration
			rounds := 0
			b.SetBytes(int64(n * len(text)))
			b.ReportAllocs()
			for b.Loop() {
				ours += sendChannel(b, c, e, n)
				b.StopTimer()
				raw += sendRaw(b, from, to, text, n)
				b.StartTimer()
				rounds++
			}
			b.ReportMetric(float64(raw)/float64(ours), "of-raw")
			b.ReportMetric(float64(rounds*n)/ours.Seconds(), "envelopes/s")
			b.ReportMetric(float64(rounds*n)/raw.Seconds(), "raw-messages/s")
		})
	}
}

// benchChannel opens a channel whose other end accepts everything.
func benchChannel(b *testing.B) *channel.Channel {
	b.Helper()
	l := listen(b, websocket.ListenOptions{})
	there := channel.NewManager(channel.Options{}, func(c *channel.Channel) {
		c.OnMessage(func(context.Context, *envelope.Envelope) {})
	})
	here := channel.NewManager(channel.Options{Dialers: map[agent.Transport]transport.Dialer{agent.TransportWebSocket: &websocket.Dialer{}}}, nil)
	var wg sync.WaitGroup
	wg.Go(func() { there.Serve(context.Background(), l) })
	b.Cleanup(func() {
		here.Close()
		there.Close()
		l.Close()
		wg.Wait()
	})
	c, err := here.OpenAt(b.Context(), "a", "b", l.Endpoint())
	if err != nil {
		b.Fatal(err)
	}
	return c
}

func sendChannel(b *testing.B, c *channel.Channel, e *envelope.Envelope, n int) time.Duration {
	began := time.Now()
	for range n {
		if err := c.Send(context.Background(), e); err != nil {
			b.Fatal(err)
		}
	}
	if err := c.Flush(context.Background()); err != nil {
		b.Fatal(err)
	}
	return time.Since(began)
}

// BenchmarkConn compares the transport alone, with batches of 64 envelopes of 1 KiB, to the same bytes as one plain
// message.
func BenchmarkConn(b *testing.B) {
	frames := make([]transport.Frame, 64)
	var codec transport.Codec
	var text []byte
	for i := range frames {
		frames[i] = transport.Frame{Kind: transport.Data, Seq: uint64(i), Envelope: message(b, "a", "b", strings.Repeat("x", 1<<10))}
		var err error
		if text, err = codec.Append(text, &frames[i]); err != nil {
			b.Fatal(err)
		}
	}
	const n = 200
	from, to := rawPair(b)
	here, there := connect(b, websocket.Options{}, websocket.Options{})
	var raw, ours time.Duration
	b.SetBytes(int64(n * len(text)))
	for b.Loop() {
		began := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() {
			for range n {
				if err := here.Send(context.Background(), frames); err != nil {
					b.Error(err)
					return
				}
			}
		})
		for got := 0; got < n*len(frames); {
			received, err := there.Receive(context.Background())
			if err != nil {
				b.Fatal(err)
			}
			got += len(received)
		}
		wg.Wait()
		ours += time.Since(began)
		b.StopTimer()
		raw += sendRaw(b, from, to, text, n)
		b.StartTimer()
	}
	b.ReportMetric(float64(raw)/float64(ours), "of-raw-batches")
}
