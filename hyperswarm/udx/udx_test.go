package udx_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/hyperswarm/hyperswarmtest"
	"github.com/parleyhub/parley/hyperswarm/udx"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const addrA, addrB = "10.0.0.1:1000", "10.0.0.2:2000"

// ends is two connected streams on a simulated network.
type ends struct {
	net    *hyperswarmtest.Simulation
	a, b   *udx.Stream
	ma, mb *udx.Mux
	sa, sb *udx.Socket
}

func newEnds(t testing.TB, f hyperswarmtest.Faults, o udx.Options) *ends {
	t.Helper()
	e := &ends{net: hyperswarmtest.Simulate(1, f), ma: udx.NewMux(o), mb: udx.NewMux(o)}
	var err error
	if e.sa, err = e.ma.Serve(e.net.Listen(addrA), nil); err != nil {
		t.Fatal(err)
	}
	if e.sb, err = e.mb.Serve(e.net.Listen(addrB), nil); err != nil {
		t.Fatal(err)
	}
	e.a, e.b = stream(t, e.ma), stream(t, e.mb)
	t.Cleanup(func() {
		if err := errors.Join(e.ma.Close(), e.mb.Close()); err != nil {
			t.Error(err)
		}
	})
	return e
}

func stream(t testing.TB, m *udx.Mux) *udx.Stream {
	t.Helper()
	s, err := m.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (e *ends) connect() {
	e.a.Connect(e.sa, netip.MustParseAddrPort(addrB), e.b.ID(), false)
	e.b.Connect(e.sb, netip.MustParseAddrPort(addrA), e.a.ID(), false)
}

func noise(n int) []byte {
	data := make([]byte, n)
	rng := rand.NewChaCha8([32]byte{1})
	rng.Read(data)
	return data
}

// transfer sends data from one end to the other and checks it.
func transfer(t testing.TB, from, to *udx.Stream, data []byte) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := from.Write(data); err != nil {
			t.Errorf("write: %v", err)
		}
		if err := from.CloseWrite(); err != nil {
			t.Errorf("end: %v", err)
		}
	})
	got, err := io.ReadAll(to)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes arrived of %d, equal: %v, %v", len(got), len(data), bytes.Equal(got, data), err)
	}
	wg.Wait()
}

// On a faulty network the bytes arrive as written, and both streams end and are removed.
//
// WIRE-T18.
func TestBytesArriveOverAFaultyNetwork(t *testing.T) {
	const ms = time.Millisecond
	for name, f := range map[string]hyperswarmtest.Faults{
		"no fault":       {},
		"delay":          {Delay: 20 * ms},
		"1 % loss":       {Delay: 5 * ms, Loss: 0.01},
		"5 % loss":       {Delay: 5 * ms, Loss: 0.05},
		"10 % loss":      {Delay: 5 * ms, Loss: 0.1},
		"reordering":     {Delay: 5 * ms, Jitter: 10 * ms},
		"repeating":      {Delay: 5 * ms, Repeat: 0.5},
		"all faults":     {Delay: 5 * ms, Jitter: 10 * ms, Repeat: 0.1, Loss: 0.05},
		"loss, no delay": {Loss: 0.05},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnds(t, f, udx.Options{})
				e.connect()
				data := noise(2 << 20)
				began := time.Now()
				var wg sync.WaitGroup
				wg.Go(func() { transfer(t, e.a, e.b, data) })
				wg.Go(func() { transfer(t, e.b, e.a, data) })
				wg.Wait()
				<-e.a.Done()
				<-e.b.Done()
				t.Logf("%v, %+v", time.Since(began), e.a.Stats())
				if e.a.Err() != nil || e.b.Err() != nil || e.ma.Streams() != 0 || e.mb.Streams() != 0 {
					t.Errorf("%v, %v, %d and %d streams are left", e.a.Err(), e.b.Err(), e.ma.Streams(), e.mb.Streams())
				}
			})
		})
	}
}

// Packets that arrive before Connect are kept: the server's first packet may be faster than the handshake's reply.
func TestPacketsBeforeConnectAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, hyperswarmtest.Faults{Delay: time.Millisecond}, udx.Options{})
		e.b.Connect(e.sb, netip.MustParseAddrPort(addrA), e.a.ID(), false)
		if _, err := e.b.Write([]byte("first")); err != nil {
			t.Fatal(err)
		}
		first := <-e.a.First()
		if first.Addr != netip.MustParseAddrPort(addrB) || first.Socket != e.sa {
			t.Fatalf("the first packet came from %v", first)
		}
		began := time.Now()
		e.a.Connect(e.sa, first.Addr, e.b.ID(), false)
		buf := make([]byte, 9)
		n, err := e.a.Read(buf)
		if err != nil || string(buf[:n]) != "first" || time.Since(began) > 0 {
			t.Errorf("%q after %v, %v", buf[:n], time.Since(began), err)
		}
		time.Sleep(10 * time.Second) // fake time
		if st := e.b.Stats(); st.Resent != 0 {
			t.Errorf("%d packets were sent again", st.Resent)
		}
	})
}

// WIRE-T16.
func TestDeadPeerTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, hyperswarmtest.Faults{Delay: time.Millisecond}, udx.Options{})
		e.connect()
		if _, err := e.a.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := e.b.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		e.net.Set(hyperswarmtest.Faults{Loss: 1})
		began := time.Now()
		if _, err := e.a.Write([]byte("y")); err != nil {
			t.Fatal(err)
		}
		if _, err := e.a.Read(make([]byte, 1)); !errors.Is(err, udx.ErrTimeout) {
			t.Errorf("got %v", err)
		}
		if d := time.Since(began); d < 10*time.Second || d > 16*time.Second {
			t.Errorf("the timeout took %v", d)
		}
		if _, err := e.a.Write([]byte("z")); !errors.Is(err, udx.ErrTimeout) {
			t.Errorf("a later write: %v", err)
		}
	})
}

// WIRE-T22.
func TestSlowReaderStopsTheWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := udx.Options{ReceiveBuffer: 100_000, SendBuffer: 50_000}
		e := newEnds(t, hyperswarmtest.Faults{Delay: time.Millisecond, Loss: 0.02}, o)
		e.connect()
		// The sender assumes a window of 4 MiB until the peer advertises one.
		if _, err := e.b.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(e.a, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		data := noise(1 << 20)
		if err := e.a.SetWriteDeadline(time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		n, err := e.a.Write(data)
		if !errors.Is(err, os.ErrDeadlineExceeded) || n > o.ReceiveBuffer+o.SendBuffer+2000 {
			t.Fatalf("%d bytes were written, %v", n, err)
		}
		if err := e.a.SetWriteDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, n)
		if _, err := io.ReadFull(e.b, got); err != nil || !bytes.Equal(got, data[:n]) {
			t.Fatalf("%v", err)
		}
		transfer(t, e.a, e.b, data[n:])
	})
}

// WIRE-T17.
func TestDestroyResetsThePeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, hyperswarmtest.Faults{}, udx.Options{})
		e.connect()
		e.a.Destroy()
		if _, err := e.b.Read(make([]byte, 1)); !errors.Is(err, udx.ErrReset) {
			t.Errorf("the peer: %v", err)
		}
		if _, err := e.a.Read(make([]byte, 1)); !errors.Is(err, udx.ErrDestroyed) {
			t.Errorf("this end: %v", err)
		}
		if _, err := e.b.Write([]byte("x")); !errors.Is(err, udx.ErrReset) {
			t.Errorf("the peer's write: %v", err)
		}
	})
}

// Data written before Close arrives; a peer that never ends its direction times out.
func TestCloseLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, hyperswarmtest.Faults{Delay: time.Millisecond, Loss: 0.2}, udx.Options{})
		e.connect()
		data := noise(100_000)
		if _, err := e.a.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := e.a.Close(); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(e.b)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		e.net.Set(hyperswarmtest.Faults{})
		<-e.a.Done()
		if _, err := e.a.Write(data); err == nil {
			t.Error("a write to a closed stream succeeds")
		}
		if _, err := e.a.Read(data); err == nil {
			t.Error("a read of a closed stream succeeds")
		}
		<-e.b.Done()
		if !errors.Is(e.b.Err(), udx.ErrReset) {
			t.Errorf("the end that did not close: %v", e.b.Err())
		}
	})
}

// WIRE-T17: a lost END, and the lost acknowledgement of the other END, are sent again.
func TestLostEndsAreResent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, hyperswarmtest.Faults{Delay: time.Millisecond}, udx.Options{})
		e.connect()
		var mu sync.Mutex
		lost := make(map[netip.AddrPort]int)
		e.net.Tap(func(data []byte, from, _ netip.AddrPort) bool {
			mu.Lock()
			defer mu.Unlock()
			const end = 2
			if len(data) < 20 || data[2]&end == 0 || lost[from] == 2 {
				return true
			}
			lost[from]++
			return false
		})
		for _, s := range []*udx.Stream{e.a, e.b} {
			if err := s.CloseWrite(); err != nil {
				t.Fatal(err)
			}
		}
		for _, s := range []*udx.Stream{e.a, e.b} {
			if n, err := s.Read(make([]byte, 1)); n != 0 || err != io.EOF {
				t.Errorf("%d bytes, %v", n, err)
			}
			<-s.Done()
			if s.Err() != nil {
				t.Errorf("the stream ended with %v", s.Err())
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if len(lost) != 2 {
			t.Errorf("the lost packets are %v", lost)
		}
	})
}

// The address of a cautious stream may be forged, so it receives almost nothing.
func TestCautiousStreamSendsAlmostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, hyperswarmtest.Faults{}, udx.Options{})
		var mu sync.Mutex
		packets, size := 0, 0
		e.net.Tap(func(data []byte, _, to netip.AddrPort) bool {
			mu.Lock()
			defer mu.Unlock()
			if to == netip.MustParseAddrPort(addrB) {
				packets, size = packets+1, size+len(data)
			}
			return true
		})
		e.a.Connect(e.sa, netip.MustParseAddrPort(addrB), 12345, true)
		if _, err := e.a.Write([]byte("header")); err != nil {
			t.Fatal(err)
		}
		if _, err := e.a.Write(noise(100_000)); err != nil {
			t.Fatal(err)
		}
		<-e.a.Done()
		if packets > 4 || size > 4*(20+6) {
			t.Errorf("%d packets with %d bytes were sent", packets, size)
		}
		if !errors.Is(e.a.Err(), udx.ErrTimeout) {
			t.Errorf("the stream ended with %v", e.a.Err())
		}
	})
}

// Packets from another host are dropped even if they have the stream's id.
func TestPacketsOfOtherHostsAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, hyperswarmtest.Faults{}, udx.Options{})
		e.connect()
		if _, err := e.a.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := e.b.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		mallory := e.net.Listen("10.6.6.6:666")
		defer mallory.Close()
		id := e.b.ID()
		for _, types := range []byte{1, 16} { // data, destroy
			data := []byte{0xff, 1, types, 0, byte(id), byte(id >> 8), byte(id >> 16), byte(id >> 24), 0, 0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 'e', 'v', 'i', 'l'}
			if _, err := mallory.WriteToUDPAddrPort(data, netip.MustParseAddrPort(addrB)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if _, err := e.a.Write([]byte("y")); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 9)
		if n, err := e.b.Read(buf); err != nil || string(buf[:n]) != "y" || e.b.Remote().String() != addrA {
			t.Errorf("%q from %v, %v", buf[:n], e.b.Remote(), err)
		}
	})
}

func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnds(t, hyperswarmtest.Faults{}, udx.Options{})
		e.connect()
		began := time.Now()
		for _, d := range []time.Duration{-time.Second, time.Second} {
			if err := e.a.SetDeadline(time.Now().Add(d)); err != nil {
				t.Fatal(err)
			}
			if _, err := e.a.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("got %v", err)
			}
		}
		if time.Since(began) != time.Second {
			t.Errorf("the deadline took %v", time.Since(began))
		}
		if _, err := e.a.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		// A new deadline applies to a Read that is waiting.
		if err := e.a.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Second, func() {
			if err := e.a.SetDeadline(time.Time{}); err != nil {
				t.Error(err)
			}
		})
		time.AfterFunc(time.Hour, e.a.Destroy)
		if _, err := e.a.Read(make([]byte, 1)); !errors.Is(err, udx.ErrDestroyed) {
			t.Errorf("got %v", err)
		}
	})
}

// Larger packets are probed up to the path's limit.
//
// WIRE-T20.
func TestLargerPacketsAreProbed(t *testing.T) {
	for _, path := range []int{1228, 1400, 1500} {
		synctest.Test(t, func(t *testing.T) {
			e := newEnds(t, hyperswarmtest.Faults{Delay: time.Millisecond}, udx.Options{})
			e.net.Tap(func(data []byte, _, _ netip.AddrPort) bool { return len(data)+28 <= path })
			e.connect()
			go func() {
				for range 60 { // each size is tried three times at most, once in a round trip
					if _, err := e.a.Write(noise(10_000)); err != nil {
						t.Error(err)
					}
					time.Sleep(time.Second) // fake time
				}
				if err := e.a.CloseWrite(); err != nil {
					t.Error(err)
				}
			}()
			if n, err := io.Copy(io.Discard, e.b); err != nil || n != 600_000 {
				t.Errorf("%d bytes arrived, %v", n, err)
			}
			got := e.a.Stats().PacketSize + 48
			if got > path || got < path-32 && got != 1200 {
				t.Errorf("packets have %d bytes; the path allows %d", got, path)
			}
		})
	}
}

func TestLoopback(t *testing.T) {
	ma, mb := udx.NewMux(udx.Options{}), udx.NewMux(udx.Options{})
	defer ma.Close()
	defer mb.Close()
	any := netip.MustParseAddrPort("127.0.0.1:0")
	sa, err := ma.Listen(any, nil)
	if err != nil {
		t.Fatal(err)
	}
	sb, err := mb.Listen(any, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, b := stream(t, ma), stream(t, mb)
	a.Connect(sa, sb.Addr(), b.ID(), false)
	b.Connect(sb, sa.Addr(), a.ID(), false)
	transfer(t, a, b, noise(16<<20))
	transfer(t, b, a, noise(1<<20))
	t.Logf("%+v", a.Stats())
}

func BenchmarkThroughput(b *testing.B) {
	ma, mb := udx.NewMux(udx.Options{}), udx.NewMux(udx.Options{})
	defer ma.Close()
	defer mb.Close()
	any := netip.MustParseAddrPort("127.0.0.1:0")
	sa, err := ma.Listen(any, nil)
	if err != nil {
		b.Fatal(err)
	}
	sb, err := mb.Listen(any, nil)
	if err != nil {
		b.Fatal(err)
	}
	x, y := stream(b, ma), stream(b, mb)
	x.Connect(sa, sb.Addr(), y.ID(), false)
	y.Connect(sb, sa.Addr(), x.ID(), false)
	data := noise(1 << 20)
	b.SetBytes(int64(len(data)))
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := io.Copy(io.Discard, y); err != nil {
			b.Error(err)
		}
	})
	for b.Loop() {
		if _, err := x.Write(data); err != nil {
			b.Fatal(err)
		}
	}
	if err := x.CloseWrite(); err != nil {
		b.Fatal(err)
	}
	wg.Wait()
	st := x.Stats()
	b.ReportMetric(float64(st.Resent)/float64(st.Sent)*100, "resent-%")
}
