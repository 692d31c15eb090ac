package secretstream_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/hyperswarm/hyperswarmtest"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/hyperswarm/udx"
	"github.com/parleyhub/parley/identity"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// results returns the results of a handshake at both ends.
func results(t testing.TB) (a, b *secretstream.Result) {
	t.Helper()
	alice, bob := identity.Generate(), identity.Generate()
	i, err := secretstream.NewInitiator(alice, bob.Public())
	if err != nil {
		t.Fatal(err)
	}
	m, err := i.Message(nil)
	if err != nil {
		t.Fatal(err)
	}
	r, _, _, err := secretstream.NewResponder(bob, m)
	if err != nil {
		t.Fatal(err)
	}
	m, b, err = r.Finish(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, a, err = i.Finish(m); err != nil {
		t.Fatal(err)
	}
	return a, b
}

// streams returns the two ends of a UDX stream on a network in memory.
func streams(t testing.TB, f hyperswarmtest.Faults) (a, b *udx.Stream) {
	t.Helper()
	net := hyperswarmtest.Simulate(1, f)
	var ends [2]*udx.Stream
	var socks [2]*udx.Socket
	for i, at := range []string{"10.0.0.1:1", "10.0.0.2:2"} {
		m := udx.NewMux(udx.Options{})
		t.Cleanup(func() {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
		var err error
		if socks[i], err = m.Serve(net.Listen(at), nil); err != nil {
			t.Fatal(err)
		}
		if ends[i], err = m.NewStream(); err != nil {
			t.Fatal(err)
		}
	}
	ends[0].Connect(socks[0], netip.MustParseAddrPort("10.0.0.2:2"), ends[1].ID(), false)
	ends[1].Connect(socks[1], netip.MustParseAddrPort("10.0.0.1:1"), ends[0].ID(), false)
	return ends[0], ends[1]
}

func conns(t testing.TB, f hyperswarmtest.Faults, o secretstream.Options) (a, b *secretstream.Conn) {
	t.Helper()
	x, y := streams(t, f)
	ra, rb := results(t)
	a, err := secretstream.New(x, ra, o)
	if err != nil {
		t.Fatal(err)
	}
	if b, err = secretstream.New(y, rb, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Destroy)
	t.Cleanup(b.Destroy)
	return a, b
}

func TestMessagesArriveWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := conns(t, hyperswarmtest.Faults{Delay: 5 * time.Millisecond, Loss: 0.05}, secretstream.Options{})
		sizes := []int{1, 7, 8, 16, 1000, 65536, 1 << 20, 3}
		var wg sync.WaitGroup
		for _, c := range []*secretstream.Conn{a, b} {
			wg.Go(func() {
				for i, n := range sizes {
					if err := c.WriteMessage(bytes.Repeat([]byte{byte(i)}, n)); err != nil {
						t.Error(err)
					}
				}
				if err := c.CloseWrite(); err != nil {
					t.Error(err)
				}
			})
			wg.Go(func() {
				for i, n := range sizes {
					m, err := c.ReadMessage()
					if err != nil || !bytes.Equal(m, bytes.Repeat([]byte{byte(i)}, n)) {
						t.Errorf("message %d has %d bytes, %v", i, len(m), err)
					}
				}
				if _, err := c.ReadMessage(); !errors.Is(err, io.EOF) {
					t.Errorf("at the end of the stream: %v", err)
				}
			})
		}
		wg.Wait()
	})
}

func TestReadReturnsTheBytesWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := conns(t, hyperswarmtest.Faults{Delay: time.Millisecond}, secretstream.Options{})
		data := bytes.Repeat([]byte("0123456789"), 30_000)
		go func() {
			if _, err := a.Write(data); err != nil {
				t.Error(err)
			}
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		}()
		got, err := io.ReadAll(b)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		if b.RemoteAddr().String() != "10.0.0.1:1" || b.LocalAddr().String() != "10.0.0.2:2" || a.Initiator() == b.Initiator() {
			t.Error("Initiator or RemoteKey is wrong at one end")
		}
	})
}

// Only a message under the stream's keys confirms the peer.
func TestConfirmedByTheFirstMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := conns(t, hyperswarmtest.Faults{Delay: time.Millisecond}, secretstream.Options{KeepAlive: -1})
		time.Sleep(time.Second) // fake time: the headers have arrived
		select {
		case <-b.Confirmed():
			t.Fatal("a header alone confirmed the peer")
		default:
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := b.WaitConfirmed(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("WaitConfirmed: %v", err)
		}
		if err := a.WriteMessage(nil); err != nil {
			t.Fatal(err)
		}
		if err := b.WaitConfirmed(context.Background()); err != nil {
			t.Fatal(err)
		}
		<-b.Confirmed()
	})
}

func TestKeepAliveDetectsADeadPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := hyperswarmtest.Faults{Delay: time.Millisecond}
		a, b := conns(t, net, secretstream.Options{})
		if err := b.WaitConfirmed(context.Background()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute) // idle
		if err := a.WriteMessage([]byte("still here")); err != nil {
			t.Fatal(err)
		}
		if m, err := b.ReadMessage(); err != nil || string(m) != "still here" {
			t.Fatalf("%q, %v", m, err)
		}
		began := time.Now()
		a.Stream().(*udx.Stream).Destroy()
		if _, err := b.ReadMessage(); !errors.Is(err, udx.ErrReset) || time.Since(began) > time.Second {
			t.Errorf("the read failed with %v after %v", err, time.Since(began))
		}
	})
}

// raw connects to a peer that has completed the handshake and then sends what the test writes.
func raw(t *testing.T, o secretstream.Options, say func(*testing.T, *udx.Stream, *secretstream.Result)) error {
	t.Helper()
	x, y := streams(t, hyperswarmtest.Faults{})
	ra, rb := results(t)
	c, err := secretstream.New(y, rb, o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Destroy()
	say(t, x, ra)
	_, err = c.ReadMessage()
	return err
}

// WIRE-FRAME.
func TestHostilePeers(t *testing.T) {
	write := func(data []byte) func(*testing.T, *udx.Stream, *secretstream.Result) {
		return func(t *testing.T, s *udx.Stream, _ *secretstream.Result) {
			if _, err := s.Write(data); err != nil {
				t.Error(err)
			}
		}
	}
	header := func(t *testing.T, s *udx.Stream, r *secretstream.Result) { // a valid one, made by a real end
		c, err := secretstream.New(s, r, secretstream.Options{KeepAlive: -1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Destroy)
	}
	for name, c := range map[string]struct {
		say  func(*testing.T, *udx.Stream, *secretstream.Result)
		want error
	}{
		"header of another size": {write([]byte{55, 0, 0}), secretstream.ErrProtocol},
		"header of 16 MiB":       {write([]byte{255, 255, 255}), secretstream.ErrProtocol},
		"another stream's id":    {write(append([]byte{56, 0, 0}, make([]byte, 56)...)), secretstream.ErrProtocol},
		"frame below the minimum": {func(t *testing.T, s *udx.Stream, r *secretstream.Result) {
			header(t, s, r)
			write([]byte{16, 0, 0})(t, s, r)
		}, secretstream.ErrProtocol},
		"forged frame": {func(t *testing.T, s *udx.Stream, r *secretstream.Result) {
			header(t, s, r)
			write(append([]byte{20, 0, 0}, make([]byte, 20)...))(t, s, r)
		}, secretstream.ErrForged},
		"frame over the limit": {func(t *testing.T, s *udx.Stream, r *secretstream.Result) {
			header(t, s, r)
			write([]byte{255, 255, 255})(t, s, r)
		}, secretstream.ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if err := raw(t, secretstream.Options{}, c.say); !errors.Is(err, c.want) {
					t.Errorf("got %v, want %v", err, c.want)
				}
			})
		})
	}
}

// The announced length of a frame allocates no memory before the bytes arrive.
//
// WIRE-T27.
func TestAnnouncedLengthAllocatesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y := streams(t, hyperswarmtest.Faults{})
		ra, rb := results(t)
		sender, err := secretstream.New(x, ra, secretstream.Options{KeepAlive: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer sender.Destroy()
		c, err := secretstream.New(y, rb, secretstream.Options{MaxMessage: 1<<24 - 1})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Destroy()
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		if _, err := x.Write([]byte{0xff, 0xff, 0xff - 1}); err != nil {
			t.Fatal(err)
		}
		if _, err := x.Write(make([]byte, 10_000)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		runtime.GC()
		runtime.ReadMemStats(&after)
		if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 2<<20 {
			t.Errorf("%d bytes are allocated", grown)
		}
	})
}

func TestWriteMessageRefusesTooLargeMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := conns(t, hyperswarmtest.Faults{}, secretstream.Options{})
		if err := a.WriteMessage(make([]byte, 1<<24)); err == nil {
			t.Error("a message of 16 MiB was accepted")
		}
		if err := a.WriteMessage([]byte("fits")); err != nil {
			t.Errorf("a write after the refused one: %v", err)
		}
	})
}
