package dhtrpc_test

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhub/parley/hyperswarm/dhtrpc"
	"github.com/parleyhub/parley/hyperswarm/hyperswarmtest"
	"github.com/parleyhub/parley/hyperswarm/udx"
	"github.com/parleyhub/parley/identity"
)

// world is a set of nodes on a simulated network with simulated time.
type world struct {
	t     *testing.T
	net   *hyperswarmtest.Simulation
	nodes []*dhtrpc.Node
	muxes []*udx.Mux
}

func newWorld(t *testing.T, size int, o dhtrpc.Options) *world {
	w := &world{t: t, net: hyperswarmtest.Simulate(1, hyperswarmtest.Faults{Delay: time.Millisecond})}
	for i := range size {
		o.Public = netip.AddrPortFrom(netip.AddrFrom4([4]byte{9, 0, byte(i >> 8), byte(i + 1)}), 49737)
		w.add(o)
		o.Bootstrap = []string{w.nodes[0].Public().String()}
	}
	return w
}

func (w *world) add(o dhtrpc.Options) *dhtrpc.Node {
	w.t.Helper()
	o.Listen = o.Public
	if !o.Listen.IsValid() {
		o.Listen = netip.MustParseAddrPort("5.0.0.1:0")
	}
	mux := udx.NewMux(udx.Options{Open: func(at netip.AddrPort) (udx.PacketConn, error) { return w.net.ListenAt(at), nil }})
	n, err := dhtrpc.Listen(mux, o)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := n.WaitReady(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	w.nodes, w.muxes = append(w.nodes, n), append(w.muxes, mux)
	return n
}

func (w *world) close() {
	for i := range w.nodes {
		w.kill(i)
	}
}

func (w *world) kill(i int) {
	if err := errors.Join(w.nodes[i].Close(), w.muxes[i].Close()); err != nil {
		w.t.Error(err)
	}
}

// A table keeps up to twenty nodes of each distance, and only those that answer.
func TestTablesAreBoundedAndDropDeadNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 100, dhtrpc.Options{})
		defer w.close()
		time.Sleep(20 * time.Minute) // fake time
		first := w.nodes[0]
		known := first.Known()
		if known < 20 || known > 99 {
			t.Errorf("the first node knows %d of 99 others", known)
		}
		for i := 50; i < 100; i++ {
			w.kill(i)
		}
		time.Sleep(30 * time.Minute)
		if got := first.Known(); got > 49 {
			t.Errorf("the first node knows %d nodes, but only 49 are alive", got)
		}
		asker := w.add(dhtrpc.Options{Bootstrap: []string{first.Public().String()}})
		began := time.Now()
		found, err := asker.Walk(context.Background(), dhtrpc.Walk{Target: identity.Hash([]byte("x")), Internal: true, Command: 2})
		if err != nil || len(found) != 20 {
			t.Errorf("the walk found %d nodes, %v", len(found), err)
		}
		if d := time.Since(began); d > time.Second {
			t.Errorf("the walk took %v: it queried dead nodes", d)
		}
	})
}

// A token is valid for about 15 seconds, for its host. Commit fetches a new one when it has expired.
//
// WIRE-T23.
func TestTokensExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stored atomic.Int32
		w := newWorld(t, 2, dhtrpc.Options{Handle: func(r *dhtrpc.Request) {
			switch {
			case r.Command == 3:
				r.Reply(nil)
			case r.Token != nil:
				stored.Add(1)
				r.Accept()
			}
		}})
		defer w.close()
		ctx := context.Background()
		asker := w.add(dhtrpc.Options{Bootstrap: []string{w.nodes[0].Public().String()}})
		target := [32]byte{1}
		for _, wait := range []time.Duration{0, 6 * time.Second, 16 * time.Second, time.Hour} {
			found, err := asker.Walk(ctx, dhtrpc.Walk{Target: target, Command: 3})
			if err != nil || len(found) != 2 {
				t.Fatalf("%d nodes, %v", len(found), err)
			}
			time.Sleep(wait) // fake time
			r, err := asker.Call(ctx, found[0].From, dhtrpc.Call{Command: 4, Target: &target, Token: found[0].Token})
			if err != nil {
				t.Fatal(err)
			}
			if expired := r.Error == dhtrpc.ErrorInvalidToken; expired != (wait > 15*time.Second) {
				t.Errorf("after %v the reply has the error code %d", wait, r.Error)
			}
			before := stored.Load()
			done, _ := asker.Commit(ctx, dhtrpc.Call{Command: 4, Target: &target}, found, func(*dhtrpc.Reply) []byte { return nil })
			if len(done) != 2 || stored.Load() != before+2 {
				t.Errorf("after %v %d nodes have stored", wait, len(done))
			}
		}
	})
}

// A down hint makes a node ping the named node and remove it only if it does not answer.
func TestHints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 4, dhtrpc.Options{})
		defer w.close()
		ctx := context.Background()
		n, gone := w.nodes[0], w.nodes[3].Public()
		hint := func(a netip.AddrPort) {
			t.Helper()
			if _, err := w.nodes[1].Call(ctx, n.Public(), dhtrpc.Call{Internal: true, Command: 3, Value: dhtrpc.AppendAddr(nil, a)}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Second) // fake time
		}
		hint(w.nodes[2].Public())
		if n.Known() != 3 {
			t.Errorf("a live node was removed: %d are known", n.Known())
		}
		w.kill(3)
		hint(gone)
		if n.Known() != 2 {
			t.Errorf("%d nodes are known; one of three is dead", n.Known())
		}
	})
}

// A node that starts before its bootstrap node joins later.
func TestNodeJoinsWhenItsBootstrapNodeStartsLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, dhtrpc.Options{})
		defer w.close()
		first := dhtrpc.Options{Public: netip.MustParseAddrPort("9.0.0.1:49737")}
		early := w.add(dhtrpc.Options{Public: netip.MustParseAddrPort("9.0.0.2:49737"), Bootstrap: []string{first.Public.String()}})
		if early.Known() != 0 {
			t.Fatal("a node is known before any other has started")
		}
		w.add(first)
		time.Sleep(time.Minute) // fake time
		if early.Known() != 1 {
			t.Error("the node has not joined its network")
		}
	})
}

func TestForwardPingAndHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := make(chan *dhtrpc.Request, 1)
		w := newWorld(t, 2, dhtrpc.Options{Handle: func(r *dhtrpc.Request) {
			if r.Proven() {
				t.Error("a host that has sent no token is proven")
			}
			r.ReplyCloser()
			got <- r
		}})
		defer w.close()
		a, b := w.nodes[0], w.nodes[1]
		a.Forward(a.Socket(), &dhtrpc.Message{TID: 77, Command: 9, Value: []byte("for you")}, b.Public())
		if r := <-got; r.TID != 77 || string(r.Value) != "for you" || r.From != a.Public() || *r.ID != a.ID() {
			t.Errorf("got %+v", r)
		}
		if r, err := a.Ping(context.Background(), b.Public(), nil, 1); err != nil || r.To != a.Public() {
			t.Errorf("%+v, %v", r, err)
		}
		if heard := a.Heard(); len(heard) != 1 || heard[0] != b.Public() {
			t.Errorf("the nodes that answered are %v", heard)
		}
		if a.Mux() != w.muxes[0] {
			t.Error("Mux returns another mux")
		}
	})
}

// A hostile public node cannot make a walk send requests into the caller's private network.
func TestWalksDoNotEnterPrivateNetworks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, dhtrpc.Options{})
		defer w.close()
		var mu sync.Mutex
		sent := make(map[netip.AddrPort]int)
		w.net.Tap(func(_ []byte, _, to netip.AddrPort) bool {
			mu.Lock()
			defer mu.Unlock()
			sent[to]++
			return true
		})
		hostile := w.net.Listen("6.6.6.6:6")
		defer hostile.Close()
		named := []netip.AddrPort{netip.MustParseAddrPort("192.168.1.1:53"), netip.MustParseAddrPort("127.0.0.1:53"), netip.MustParseAddrPort("224.0.0.1:1"), netip.MustParseAddrPort("7.7.7.7:7")}
		go func() {
			buf := make([]byte, 2048)
			for {
				n, from, err := hostile.ReadFromUDPAddrPort(buf)
				if err != nil {
					return
				}
				m, err := dhtrpc.Parse(buf[:n])
				if err != nil || m.Response {
					continue
				}
				answer := dhtrpc.Message{Response: true, TID: m.TID, To: from, Closer: named}
				if _, err := hostile.WriteToUDPAddrPort(answer.Append(nil), from); err != nil {
					return
				}
			}
		}()
		if _, err := w.nodes[0].Walk(context.Background(), dhtrpc.Walk{Internal: true, Command: 2, From: []netip.AddrPort{netip.MustParseAddrPort("6.6.6.6:6")}}); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, a := range named[:3] {
			if sent[a] > 0 {
				t.Errorf("%d datagrams went to %v", sent[a], a)
			}
		}
		if sent[named[3]] == 0 {
			t.Error("the walk did not query the public address that was named")
		}
	})
}
