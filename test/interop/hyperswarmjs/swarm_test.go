//go:build interop

package hyperswarmjs_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parleyhub/parley/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/hyperswarm/hyperswarmtest"
	"github.com/parleyhub/parley/hyperswarm/swarm"
	"github.com/parleyhub/parley/hyperswarm/udx"
	"github.com/parleyhub/parley/identity"
)

func newSwarm(t testing.TB, bootstrap []string) *swarm.Swarm {
	t.Helper()
	s := swarm.New(swarm.Options{Node: hyperswarmtest.Node(t, hyperdht.Options{Bootstrap: bootstrap})})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func join(t testing.TB, s *swarm.Swarm, topic [32]byte, r swarm.Role) {
	t.Helper()
	j, err := s.Join(topic, r)
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Flushed(hyperswarmtest.Context(t)); err != nil {
		t.Fatal(err)
	}
}

// npm's hyperswarm and this one find each other by a topic, on any DHT.
//
// WIRE-T2, WIRE-T3.
func TestSwarms(t *testing.T) {
	each(t, func(t *testing.T, js *driver, bootstrap []string) {
		for _, who := range []string{"Go joins first", "JavaScript joins first"} {
			t.Run(who, func(t *testing.T) {
				topic := identity.Hash([]byte(who))
				text := hex.EncodeToString(topic[:])
				ours := newSwarm(t, bootstrap)
				theirs := js.do("swarm", args{"bootstrap": bootstrap, "mode": "echo"})
				if who == "Go joins first" {
					join(t, ours, topic, swarm.Server)
					js.do("join", args{"id": theirs.ID, "topic": text, "server": false, "client": true})
				} else {
					js.do("join", args{"id": theirs.ID, "topic": text, "server": true, "client": false})
					join(t, ours, topic, swarm.Client)
				}
				c, err := ours.Accept(hyperswarmtest.Context(t))
				if err != nil {
					t.Fatal(err)
				}
				if c.RemoteKey().String() != theirs.Key {
					t.Error("the connection has the wrong key")
				}
				exchange(t, c.Conn, noise(mebibyte))
			})
		}
	})
}

// Two JavaScript swarms find each other on a DHT of Go nodes.
//
// WIRE-T7.
func TestJavaScriptSwarmsOnAGoDHT(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 6)
	a, b := javascript(t), javascript(t)
	topic := identity.Hash([]byte("topic"))
	text := hex.EncodeToString(topic[:])
	x := a.do("swarm", args{"bootstrap": bootstrap, "mode": "echo"})
	y := b.do("swarm", args{"bootstrap": bootstrap, "mode": "sink"})
	a.do("join", args{"id": x.ID, "topic": text, "server": true, "client": true})
	b.do("join", args{"id": y.ID, "topic": text, "server": true, "client": true})
	conns := b.do("connected", args{"id": y.ID, "count": 1})
	if conns.Keys[0] != x.Key {
		t.Fatal("the connection has the wrong key")
	}
	sent := b.do("send", args{"id": conns.Conns[0], "size": 4 * mebibyte})
	if got := b.do("received", args{"id": conns.Conns[0], "count": 4 * mebibyte}); got.Hash != sent.Hash {
		t.Errorf("%d bytes were echoed", got.Received)
	}
	seed := identity.Generate().Seed()
	dht := a.do("dht", args{"bootstrap": bootstrap})
	a.do("mutablePut", args{"id": dht.ID, "seed": hex.EncodeToString(seed[:]), "value": "00ff", "seq": 3})
	other := b.do("dht", args{"bootstrap": bootstrap})
	if r := b.do("mutableGet", args{"id": other.ID, "key": identity.FromSeed(seed).Public().String()}); r.Value != "00ff" || r.Seq != 3 {
		t.Errorf("got %+v", r)
	}
}

// If both sides dial at once, one connection remains, the same at both ends, whichever has the larger key.
//
// WIRE-T13.
func TestSimultaneousDials(t *testing.T) {
	js := javascript(t)
	bootstrap := networks["javascript"](t, js)
	for n := range 6 {
		topic := identity.Hash([]byte{byte(n)})
		ours := newSwarm(t, bootstrap)
		theirs := js.do("swarm", args{"bootstrap": bootstrap, "mode": "echo"})
		joined := js.start("join", args{"id": theirs.ID, "topic": hex.EncodeToString(topic[:]), "server": true, "client": true})
		join(t, ours, topic, swarm.Server|swarm.Client)
		<-joined
		again, err := ours.Join(topic, 0) // both may have looked up before the other's announcement
		if err != nil {
			t.Fatal(err)
		}
		again.Refresh()
		works := make(chan struct{}, 10)
		ctx, cancel := context.WithCancel(hyperswarmtest.Context(t))
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				c, err := ours.Accept(ctx)
				if err != nil {
					return
				}
				wg.Go(func() {
					defer context.AfterFunc(ctx, c.Destroy)()
					if _, err := c.Write([]byte("hello")); err != nil {
						return
					}
					if _, err := io.ReadFull(c, make([]byte, 5)); err == nil {
						works <- struct{}{}
					}
				})
			}
		})
		select {
		case <-works:
		case <-ctx.Done():
			t.Error("no connection transmits data")
		}
		if got := ours.Connected(); len(got) != 1 {
			t.Errorf("%d connections", len(got))
		}
		cancel()
		wg.Wait()
	}
}

// lossy drops a share of the datagrams in both directions.
type lossy struct {
	*net.UDPConn
	part float64
	mu   sync.Mutex
	rng  *rand.Rand
}

func (l *lossy) drop() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rng.Float64() < l.part
}

func (l *lossy) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	for {
		n, from, err := l.UDPConn.ReadFromUDPAddrPort(b)
		if err != nil || !l.drop() {
			return n, from, err
		}
	}
}

func (l *lossy) WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error) {
	if l.drop() {
		return len(b), nil
	}
	return l.UDPConn.WriteToUDPAddrPort(b, to)
}

func openLossy(part float64) func(netip.AddrPort) (udx.PacketConn, error) {
	return func(at netip.AddrPort) (udx.PacketConn, error) {
		conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
		if err != nil {
			return nil, err
		}
		err = errors.Join(conn.SetReadBuffer(4<<20), conn.SetWriteBuffer(4<<20))
		return &lossy{UDPConn: conn, part: part, rng: rand.New(rand.NewPCG(1, 1))}, err
	}
}

// 64 MiB arrive completely in each direction although one datagram of twenty is lost.
//
// WIRE-T18.
func TestLoss(t *testing.T) {
	js := javascript(t)
	bootstrap := networks["javascript"](t, js)
	for _, part := range []float64{0.01, 0.05} {
		dht := js.do("dht", args{"bootstrap": bootstrap})
		server := js.do("listen", args{"id": dht.ID, "mode": "sink"})
		n := hyperswarmtest.Node(t, hyperdht.Options{Bootstrap: bootstrap, UDX: udx.Options{Open: openLossy(part)}})
		conn, err := n.Dial(hyperswarmtest.Context(t), public(t, server.Key), hyperdht.DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		id := js.do("accepted", args{"id": server.ID, "count": 1}).Conns[0]
		data := noise(64 * mebibyte)
		began := time.Now()
		if _, err := conn.Write(data); err != nil {
			t.Fatal(err)
		}
		if got := js.do("received", args{"id": id, "count": len(data)}); got.Hash != sum(data) {
			t.Errorf("%d bytes arrived, %s", got.Received, got.Error)
		}
		t.Logf("loss %v: 64 MiB to JavaScript in %v, %+v", part, time.Since(began), conn.Stream().(*udx.Stream).Stats())
		began = time.Now()
		sent := js.start("send", args{"id": id, "size": len(data)})
		got := make([]byte, len(data))
		if _, err := io.ReadFull(conn, got); err != nil {
			t.Fatal(err)
		}
		if r := <-sent; r.Hash != sum(got) {
			t.Errorf("the received data differs: %s", r.Failed)
		}
		t.Logf("loss %v: 64 MiB from JavaScript in %v", part, time.Since(began))
		conn.Destroy()
	}
}

// A reader that pauses blocks the writer, and nothing is lost.
//
// WIRE-T22.
func TestSlowReaders(t *testing.T) {
	js := javascript(t)
	bootstrap := networks["javascript"](t, js)
	dht := js.do("dht", args{"bootstrap": bootstrap})
	server := js.do("listen", args{"id": dht.ID, "mode": "sink"})
	n := hyperswarmtest.Node(t, hyperdht.Options{Bootstrap: bootstrap})
	conn, err := n.Dial(hyperswarmtest.Context(t), public(t, server.Key), hyperdht.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Destroy()
	id := js.do("accepted", args{"id": server.ID, "count": 1}).Conns[0]
	sent := js.start("send", args{"id": id, "size": 16 * mebibyte})
	select {
	case r := <-sent:
		t.Errorf("JavaScript sent everything while nobody read: %+v", r)
	case <-time.After(3 * time.Second):
	}
	got, err := io.ReadAll(io.LimitReader(conn, 16*mebibyte))
	if err != nil {
		t.Fatal(err)
	}
	if r := <-sent; r.Hash != sum(got) {
		t.Errorf("the received data differs: %s", r.Failed)
	}
}

// The peer of a killed process detects that by a timeout.
//
// WIRE-T16.
func TestKilledPeer(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 6)
	js := javascript(t)
	dht := js.do("dht", args{"bootstrap": bootstrap})
	server := js.do("listen", args{"id": dht.ID, "mode": "echo"})
	n := hyperswarmtest.Node(t, hyperdht.Options{Bootstrap: bootstrap})
	conn, err := n.Dial(hyperswarmtest.Context(t), public(t, server.Key), hyperdht.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Destroy()
	exchange(t, conn, []byte("hello"))
	js.kill()
	began := time.Now()
	if _, err := conn.ReadMessage(); !errors.Is(err, udx.ErrTimeout) {
		t.Errorf("got %v", err)
	}
	t.Logf("detected after %v", time.Since(began))
}

// breakable is a socket that can be cut off, like that of a computer without power.
type breakable struct {
	*net.UDPConn
	cut *atomic.Bool
}

func (b breakable) WriteToUDPAddrPort(data []byte, to netip.AddrPort) (int, error) {
	if b.cut.Load() {
		return len(data), nil
	}
	return b.UDPConn.WriteToUDPAddrPort(data, to)
}

// WIRE-T16: a JavaScript program detects a dead peer by a timeout as well.
func TestJavaScriptDetectsADeadPeer(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 6)
	js := javascript(t)
	var cut atomic.Bool
	n := hyperswarmtest.Node(t, hyperdht.Options{Bootstrap: bootstrap, UDX: udx.Options{Open: func(at netip.AddrPort) (udx.PacketConn, error) {
		c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
		return breakable{c, &cut}, err
	}}})
	l := hyperswarmtest.Listen(hyperswarmtest.Context(t), t, n)
	dht := js.do("dht", args{"bootstrap": bootstrap})
	dialled := js.do("dial", args{"id": dht.ID, "key": l.Key().String(), "mode": "echo"})
	conn, err := l.Accept(hyperswarmtest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Destroy()
	exchange(t, conn, []byte("hello"))
	cut.Store(true)
	began := time.Now()
	if end := js.do("closed", args{"id": dialled.ID}); end.Error == "" {
		t.Errorf("the connection ended with %+v", end)
	}
	t.Logf("detected after %v", time.Since(began))
}

// Few packets are resent to a peer whose process is busy most of the time.
//
// WIRE-T19.
func TestBusyPeer(t *testing.T) {
	js := javascript(t)
	bootstrap := networks["javascript"](t, js)
	dht := js.do("dht", args{"bootstrap": bootstrap})
	server := js.do("listen", args{"id": dht.ID, "mode": "echo"})
	n := hyperswarmtest.Node(t, hyperdht.Options{Bootstrap: bootstrap})
	conn, err := n.Dial(hyperswarmtest.Context(t), public(t, server.Key), hyperdht.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Destroy()
	busy := js.start("busy", args{"on": 200, "off": 50, "times": 12})
	for range 12 {
		exchange(t, conn, bytes.Repeat([]byte("x"), 100_000))
	}
	<-busy
	if st := conn.Stream().(*udx.Stream).Stats(); st.Resent*20 > st.Sent {
		t.Errorf("%d packets of %d were sent again", st.Resent, st.Sent)
	} else {
		t.Logf("%+v", st)
	}
}

// The Go end detects whether a JavaScript program has ended or destroyed its stream.
//
// WIRE-T17.
func TestPeerEndsAndResets(t *testing.T) {
	js := javascript(t)
	bootstrap := networks["javascript"](t, js)
	dht := js.do("dht", args{"bootstrap": bootstrap})
	server := js.do("listen", args{"id": dht.ID, "mode": "sink"})
	n := hyperswarmtest.Node(t, hyperdht.Options{Bootstrap: bootstrap})
	for count, c := range []struct {
		op   string
		want error
	}{{"end", io.EOF}, {"destroy", udx.ErrReset}} {
		conn, err := n.Dial(hyperswarmtest.Context(t), public(t, server.Key), hyperdht.DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		id := js.do("accepted", args{"id": server.ID, "count": count + 1}).Conns[count]
		js.do(c.op, args{"id": id})
		if _, err := conn.ReadMessage(); !errors.Is(err, c.want) {
			t.Errorf("after %s: %v", c.op, err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		<-conn.Ended()
	}
	if got := n.Streams(); got != 0 {
		t.Errorf("%d streams are left", got)
	}
}
