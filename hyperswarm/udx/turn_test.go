package udx_test

import (
	"errors"
	"io"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/parleyhub/parley/hyperswarm/udx"
	"github.com/parleyhub/parley/internal/base/wait"
)

// patience bounds how long a test waits.
const patience = time.Minute

// pair is two muxes on loopback; strays receives datagrams that arrive at a and belong to no stream.
type pair struct {
	ma, mb *udx.Mux
	sa, sb *udx.Socket
	strays chan string
}

func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{ma: udx.NewMux(udx.Options{}), mb: udx.NewMux(udx.Options{}), strays: make(chan string, 16)}
	loopback := netip.MustParseAddrPort("127.0.0.1:0")
	var err error
	if p.sa, err = p.ma.Listen(loopback, func(_ *udx.Socket, data []byte, _ netip.AddrPort) { p.strays <- string(data) }); err != nil {
		t.Fatal(err)
	}
	if p.sb, err = p.mb.Listen(loopback, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(p.ma.Close(), p.mb.Close()); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (p *pair) streams(t *testing.T) (a, b *udx.Stream) {
	t.Helper()
	a, b = stream(t, p.ma), stream(t, p.mb)
	a.Connect(p.sa, p.sb.Addr(), b.ID(), false)
	b.Connect(p.sb, p.sa.Addr(), a.ID(), false)
	return a, b
}

// say sends a word and reads it at the other end.
func say(t *testing.T, from, to *udx.Stream, word string) {
	t.Helper()
	if _, err := from.Write([]byte(word)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, len(word))
	if _, err := io.ReadFull(to, buf); err != nil || string(buf) != word {
		t.Fatalf("%q, %v", buf, err)
	}
}

// reading starts a goroutine that reads at a, and sends it words until its Read reads the socket itself.
// The channel receives the last Read's result.
func (p *pair) reading(t *testing.T, a, b *udx.Stream) <-chan error {
	t.Helper()
	result, got := make(chan error, 1), make(chan struct{}, 1)
	var wg sync.WaitGroup
	t.Cleanup(func() { a.Destroy(); wg.Wait() })
	wg.Go(func() {
		buf := make([]byte, 1)
		for {
			if _, err := io.ReadFull(a, buf); err != nil || buf[0] == '.' {
				result <- err
				return
			}
			got <- struct{}{}
		}
	})
	wait.Eventually(t, "a Read that waits at its socket", func() bool {
		if _, err := b.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		<-got
		return a.AtSocket()
	})
	return result
}

func await[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatal("no datagram arrived")
	}
	return v
}

// Each event that ends a Read also ends one that reads the socket itself; the socket's goroutine then reads on.
func TestReadAtTheSocketEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(p *pair, a, b *udx.Stream) error
		want error
	}{
		"data":                  {func(_ *pair, _, b *udx.Stream) error { _, err := b.Write([]byte(".")); return err }, nil},
		"the peer's end":        {func(_ *pair, _, b *udx.Stream) error { return b.CloseWrite() }, io.EOF},
		"the peer's reset":      {func(_ *pair, _, b *udx.Stream) error { b.Destroy(); return nil }, udx.ErrReset},
		"a deadline":            {func(_ *pair, a, _ *udx.Stream) error { return a.SetReadDeadline(time.Now().Add(time.Millisecond)) }, os.ErrDeadlineExceeded},
		"a deadline for both":   {func(_ *pair, a, _ *udx.Stream) error { return a.SetDeadline(time.Unix(1, 0)) }, os.ErrDeadlineExceeded},
		"a close":               {func(_ *pair, a, _ *udx.Stream) error { return a.Close() }, udx.ErrClosed},
		"a destroy":             {func(_ *pair, a, _ *udx.Stream) error { a.Destroy(); return nil }, udx.ErrDestroyed},
		"the end of the mux":    {func(p *pair, _, _ *udx.Stream) error { return p.ma.Close() }, udx.ErrDestroyed},
		"data at other sockets": {elsewhere, nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			a, b := p.streams(t)
			result := p.reading(t, a, b)
			if err := tt.end(p, a, b); err != nil {
				t.Fatal(err)
			}
			if err := await(t, result); !errors.Is(err, tt.want) {
				t.Errorf("%v, not %v", err, tt.want)
			}
			if name == "the end of the mux" {
				return
			}
			c, d := p.streams(t)
			say(t, d, c, "another stream")
		})
	}
}

// elsewhere sends the data that ends the Read from another socket.
func elsewhere(p *pair, a, b *udx.Stream) error {
	other, err := p.ma.Listen(netip.MustParseAddrPort("127.0.0.1:0"), nil)
	if err != nil {
		return err
	}
	// A data packet with the stream's next number, as b would send it.
	h := []byte{0xff, 1, 1, 0, byte(a.ID()), byte(a.ID() >> 8), byte(a.ID() >> 16), byte(a.ID() >> 24),
		0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, '.'}
	n := uint32(b.Stats().Sent)
	h[12], h[13], h[14], h[15] = byte(n), byte(n>>8), byte(n>>16), byte(n>>24)
	return p.sb.Write(h, other.Addr())
}

// A Read that reads the socket itself dispatches the packets of other streams.
func TestReadAtTheSocketDispatchesOtherPackets(t *testing.T) {
	p := newPair(t)
	a, b := p.streams(t)
	c, d := p.streams(t)
	result := p.reading(t, a, b)
	if err := p.sb.Write([]byte("for no stream"), p.sa.Addr()); err != nil {
		t.Fatal(err)
	}
	if got := await(t, p.strays); got != "for no stream" {
		t.Errorf("%q", got)
	}
	say(t, d, c, "for another stream")
	say(t, c, d, "and back")
	if _, err := b.Write([]byte(".")); err != nil {
		t.Fatal(err)
	}
	if err := await(t, result); err != nil {
		t.Error(err)
	}
}

// A reader that stops after it has read the socket itself blocks nobody: the socket's goroutine reads on, and
// outstanding packets are acknowledged.
func TestReaderThatStopsBlocksNobody(t *testing.T) {
	p := newPair(t)
	a, b := p.streams(t)
	result := p.reading(t, a, b)
	if _, err := b.Write([]byte(".")); err != nil { // the last byte that is read
		t.Fatal(err)
	}
	if err := await(t, result); err != nil {
		t.Fatal(err)
	}
	if err := p.sb.Write([]byte("for no stream"), p.sa.Addr()); err != nil {
		t.Fatal(err)
	}
	if got := await(t, p.strays); got != "for no stream" {
		t.Errorf("%q", got)
	}
	wait.Eventually(t, "the socket's own reading", func() bool { return !p.sa.Lent() })
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	await(t, b.Done()) // everything was acknowledged
	if err := b.Err(); err != nil {
		t.Error(err)
	}
}

// Several Reads of one stream, and several echoing streams on one socket, receive all bytes.
func TestManyReadersOnOneSocket(t *testing.T) {
	p := newPair(t)
	var echoes, readers sync.WaitGroup
	for range 4 {
		a, b := p.streams(t)
		echoes.Go(func() {
			_, _ = io.Copy(b, b) // an error shows at the other end
		})
		for range 2 { // each reads what either wrote
			readers.Go(func() {
				for range 500 {
					if _, err := a.Write([]byte("x")); err != nil {
						t.Error(err)
						return
					}
					if n, err := a.Read(make([]byte, 1)); n != 1 || err != nil {
						t.Errorf("%d, %v", n, err)
						return
					}
				}
			})
		}
	}
	readers.Wait()
	if err := p.ma.Close(); err != nil {
		t.Error(err)
	}
	echoes.Wait()
}

// BenchmarkEcho measures the round trip of a short message; both ends are in this process.
func BenchmarkEcho(b *testing.B) {
	ma, mb := udx.NewMux(udx.Options{}), udx.NewMux(udx.Options{})
	loopback := netip.MustParseAddrPort("127.0.0.1:0")
	sa, err := ma.Listen(loopback, nil)
	if err != nil {
		b.Fatal(err)
	}
	sb, err := mb.Listen(loopback, nil)
	if err != nil {
		b.Fatal(err)
	}
	x, y := stream(b, ma), stream(b, mb)
	x.Connect(sa, sb.Addr(), y.ID(), false)
	y.Connect(sb, sa.Addr(), x.ID(), false)
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = io.Copy(y, y) // an error shows at the other end
	})
	buf := make([]byte, 15)
	for b.Loop() {
		if _, err := x.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(x, buf); err != nil {
			b.Fatal(err)
		}
	}
	if err := errors.Join(ma.Close(), mb.Close()); err != nil {
		b.Fatal(err)
	}
	wg.Wait()
}
