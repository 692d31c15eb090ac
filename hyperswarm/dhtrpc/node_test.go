package dhtrpc_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/parleyhub/parley/hyperswarm/dhtrpc"
	"github.com/parleyhub/parley/hyperswarm/udx"
	"github.com/parleyhub/parley/identity"
)

var loopback = netip.MustParseAddrPort("127.0.0.1:0")

// patience bounds how long a test waits.
const patience = time.Minute

func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func node(t testing.TB, o dhtrpc.Options) *dhtrpc.Node {
	t.Helper()
	o.Listen = loopback
	mux := udx.NewMux(udx.Options{})
	n, err := dhtrpc.Listen(mux, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(n.Close(), mux.Close()); err != nil {
			t.Error(err)
		}
	})
	if err := n.WaitReady(deadline(t)); err != nil {
		t.Fatal(err)
	}
	return n
}

// network returns nodes that know each other.
func network(t testing.TB, size int, o dhtrpc.Options) []*dhtrpc.Node {
	t.Helper()
	var nodes []*dhtrpc.Node
	for range size {
		o.Public = loopback
		nodes = append(nodes, node(t, o))
		o.Bootstrap = []string{nodes[0].Public().String()}
	}
	return nodes
}

// A walk finds the nodes closest to the target.
func TestWalkFindsTheClosest(t *testing.T) {
	nodes := network(t, 30, dhtrpc.Options{})
	asker := node(t, dhtrpc.Options{Bootstrap: []string{nodes[0].Public().String()}})
	if asker.Persistent() || asker.Known() == 0 {
		t.Fatalf("a node without a public address is persistent: %v, and knows %d", asker.Persistent(), asker.Known())
	}
	target := identity.Hash([]byte("target"))
	found, err := asker.Walk(deadline(t), dhtrpc.Walk{Target: target, Internal: true, Command: 2})
	if err != nil {
		t.Fatal(err)
	}
	distance := func(id dhtrpc.ID) []byte {
		d := make([]byte, 32)
		for i := range d {
			d[i] = id[i] ^ target[i]
		}
		return d
	}
	slices.SortFunc(nodes, func(a, b *dhtrpc.Node) int { return bytes.Compare(distance(a.ID()), distance(b.ID())) })
	if len(found) != 20 {
		t.Fatalf("the walk found %d nodes", len(found))
	}
	for i, r := range found[:10] { // which of the distant nodes are known varies
		if *r.ID != nodes[i].ID() {
			t.Errorf("node %d is not the next closest", i)
		}
	}
	if seen := asker.Seen(); seen.Addr() != loopback.Addr() || seen.Port() != asker.Socket().Addr().Port() {
		t.Errorf("nodes see the caller at %v", seen)
	}
}

// A walk skips dead nodes and ends.
func TestWalkSkipsDeadNodes(t *testing.T) {
	nodes := network(t, 12, dhtrpc.Options{})
	for _, n := range nodes[8:] {
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
	}
	asker := node(t, dhtrpc.Options{Bootstrap: []string{nodes[0].Public().String()}})
	found, err := asker.Walk(deadline(t), dhtrpc.Walk{Target: nodes[9].ID(), Internal: true, Command: 2})
	if err != nil || len(found) != 8 {
		t.Errorf("the walk found %d nodes, %v", len(found), err)
	}
}

func TestWalkWithoutNodes(t *testing.T) {
	alone := node(t, dhtrpc.Options{Public: loopback})
	if found, err := alone.Walk(deadline(t), dhtrpc.Walk{Internal: true, Command: 2}); err != nil || len(found) != 0 {
		t.Errorf("the first node of a network found %d nodes, %v", len(found), err)
	}
	gone, err := net.ListenUDP("udp4", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer gone.Close()
	lost := node(t, dhtrpc.Options{Bootstrap: []string{fmt.Sprintf("127.0.0.1:%d", gone.LocalAddr().(*net.UDPAddr).Port)}})
	if _, err := lost.Walk(deadline(t), dhtrpc.Walk{Internal: true, Command: 2}); !errors.Is(err, dhtrpc.ErrNoNodes) {
		t.Errorf("got %v", err)
	}
}

// A commit needs a valid token; an expired one is replaced once.
//
// WIRE-T23.
func TestCommitNeedsAValidToken(t *testing.T) {
	var mu sync.Mutex
	var got []string
	handle := func(r *dhtrpc.Request) {
		if r.Command == 3 {
			r.Reply([]byte("a reply"))
			return
		}
		if r.Token != nil {
			mu.Lock()
			got = append(got, string(r.Value))
			mu.Unlock()
			r.Accept()
		}
	}
	nodes := network(t, 4, dhtrpc.Options{Handle: handle})
	asker := node(t, dhtrpc.Options{Bootstrap: []string{nodes[0].Public().String()}})
	target := identity.Hash([]byte("x"))
	found, err := asker.Walk(deadline(t), dhtrpc.Walk{Target: target, Command: 3})
	if err != nil || len(found) != 4 || string(found[0].Value) != "a reply" {
		t.Fatalf("%d nodes, %v", len(found), err)
	}
	*found[0].Token = [32]byte{1} // as if it had expired
	done, refused := asker.Commit(deadline(t), dhtrpc.Call{Command: 4, Target: &target}, found, func(*dhtrpc.Reply) []byte { return []byte("v") })
	mu.Lock()
	stored := len(got)
	mu.Unlock()
	if len(done) != 4 || len(refused) != 0 || stored != 4 {
		t.Errorf("%d nodes have accepted, %v refused, %d have stored", len(done), refused, stored)
	}
	r, err := asker.Call(deadline(t), nodes[1].Public(), dhtrpc.Call{Command: 4, Token: &[32]byte{9}})
	if err != nil || r.Error != dhtrpc.ErrorInvalidToken || r.Token == nil {
		t.Errorf("a false token: %+v, %v", r, err)
	}
}

// client is a socket that sends any messages.
type client struct {
	t    *testing.T
	conn *net.UDPConn
	to   netip.AddrPort
	tid  uint16 // of the latest request
}

func newClient(t *testing.T, to *dhtrpc.Node) *client {
	t.Helper()
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(loopback))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &client{t: t, conn: conn, to: to.Public()}
}

func (c *client) send(m *dhtrpc.Message) {
	c.t.Helper()
	if _, err := c.conn.WriteToUDPAddrPort(m.Append(nil), c.to); err != nil {
		c.t.Fatal(err)
	}
}

// receive returns the next datagram.
func (c *client) receive() []byte {
	c.t.Helper()
	data := c.receiveWithin(patience)
	if data == nil {
		c.t.Fatal("no datagram arrived")
	}
	return data
}

// receiveWithin returns the next datagram, or nil if none arrives within d.
func (c *client) receiveWithin(d time.Duration) []byte {
	c.t.Helper()
	if err := c.conn.SetReadDeadline(time.Now().Add(d)); err != nil {
		c.t.Fatal(err)
	}
	buf := make([]byte, 2048)
	n, _, err := c.conn.ReadFromUDPAddrPort(buf)
	if err != nil {
		return nil
	}
	return buf[:n]
}

// ask sends a request, repeats it if it is lost, and returns the answer.
func (c *client) ask(m *dhtrpc.Message) *dhtrpc.Message {
	c.t.Helper()
	c.tid += 2
	m.TID = c.tid
	return c.answer(m)
}

// askInVain sends a request that gets no answer and then a ping. It returns the first answer to either.
func (c *client) askInVain(m *dhtrpc.Message) *dhtrpc.Message {
	c.t.Helper()
	c.tid += 2
	m.TID = c.tid
	return c.answer(m, &dhtrpc.Message{TID: m.TID + 1, Internal: true})
}

// answer sends messages repeatedly until one of them is answered.
func (c *client) answer(messages ...*dhtrpc.Message) *dhtrpc.Message {
	c.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		for _, m := range messages {
			c.send(m)
		}
		for data := c.receiveWithin(time.Second); data != nil; data = c.receiveWithin(time.Second) {
			r, err := dhtrpc.Parse(data)
			if err != nil {
				c.t.Fatal(err)
			}
			if slices.ContainsFunc(messages, func(m *dhtrpc.Message) bool { return m.TID == r.TID }) {
				return r
			}
		}
	}
	c.t.Fatal("no answer arrived")
	return nil
}

func TestInternalCommands(t *testing.T) {
	n := network(t, 2, dhtrpc.Options{})[0]
	c := newClient(t, n)
	port := c.conn.LocalAddr().(*net.UDPAddr).Port
	target := &dhtrpc.ID{}
	for name, x := range map[string]struct {
		m     dhtrpc.Message
		check func(*dhtrpc.Message) bool
	}{
		"ping":                  {dhtrpc.Message{Internal: true}, func(r *dhtrpc.Message) bool { return r.ID != nil && r.Error == 0 && int(r.To.Port()) == port }},
		"ping a port":           {dhtrpc.Message{Internal: true, Command: 1, Value: []byte{byte(port), byte(port >> 8)}}, func(r *dhtrpc.Message) bool { return r.Error == 0 }},
		"ping port 0":           {dhtrpc.Message{Internal: true, Command: 1, Value: []byte{0, 0}}, nil},
		"find node":             {dhtrpc.Message{Internal: true, Command: 2, Target: target}, func(r *dhtrpc.Message) bool { return len(r.Closer) == 1 && r.Token == nil }},
		"find nothing":          {dhtrpc.Message{Internal: true, Command: 2}, nil},
		"hint":                  {dhtrpc.Message{Internal: true, Command: 3, Value: make([]byte, 6)}, func(r *dhtrpc.Message) bool { return r.Error == 0 }},
		"delayed ping":          {dhtrpc.Message{Internal: true, Command: 4, Value: []byte{1, 0, 0, 0}}, func(r *dhtrpc.Message) bool { return r.Error == 0 }},
		"ping delayed too much": {dhtrpc.Message{Internal: true, Command: 4, Value: []byte{0, 0, 1, 0}}, nil},
		"unknown":               {dhtrpc.Message{Internal: true, Command: 99}, func(r *dhtrpc.Message) bool { return r.Error == 1 }},
		"no handler":            {dhtrpc.Message{Command: 3, Target: target}, func(r *dhtrpc.Message) bool { return r.Error == 1 && len(r.Closer) == 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			if x.check == nil {
				if r := c.askInVain(&x.m); r.TID == x.m.TID {
					t.Errorf("the answer is %+v", r)
				}
				return
			}
			if r := c.ask(&x.m); !x.check(r) {
				t.Errorf("the answer is %+v", r)
			}
		})
	}
}

// A node with a false id, or without one, is not added to the table.
func TestOnlyValidIDsEnterTheTable(t *testing.T) {
	n := node(t, dhtrpc.Options{Public: loopback})
	c := newClient(t, n)
	c.ask(&dhtrpc.Message{Internal: true})
	c.ask(&dhtrpc.Message{Internal: true, ID: &dhtrpc.ID{1}})
	if n.Known() != 0 {
		t.Error("a node without a valid id is in the table")
	}
	id := dhtrpc.NodeID(c.conn.LocalAddr().(*net.UDPAddr).AddrPort())
	c.ask(&dhtrpc.Message{Internal: true, ID: &id})
	if n.Known() != 1 {
		t.Error("a node with a valid id is not in the table")
	}
}

// Requests with a forged source address do not make a node flood that address.
//
// WIRE-T26.
func TestRepliesToUnprovenHostsAreBounded(t *testing.T) {
	big := bytes.Repeat([]byte{1}, 1000)
	n := node(t, dhtrpc.Options{Public: loopback, Handle: func(r *dhtrpc.Request) { r.Reply(big) }})
	c := newClient(t, n)
	if err := c.conn.SetReadBuffer(4 << 20); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for range 1000 {
		c.send(&dhtrpc.Message{Command: 3})
	}
	got, took := 0, time.Duration(0)
	var token *[32]byte
	for data := c.receive(); data != nil; data = c.receiveWithin(300 * time.Millisecond) {
		got, took = got+len(data), time.Since(began)
		if r, err := dhtrpc.Parse(data); err == nil && r.Token != nil {
			token = r.Token
		}
	}
	// The limits are 64 KiB of full replies and 16 KiB of short ones; each refills once a second.
	if most := int((80 << 10) * (1 + took.Seconds())); got > most {
		t.Errorf("%d bytes were sent in %v to an unproven host, more than %d", got, took, most)
	}
	if token == nil {
		t.Fatal("no reply has a token")
	}
	if r := c.ask(&dhtrpc.Message{Command: 3, Token: token}); len(r.Value) != len(big) {
		t.Error("a host that has sent its token is still limited")
	}
}

// A response is accepted only from the node that received the request.
func TestResponsesOfOthersAreIgnored(t *testing.T) {
	n := node(t, dhtrpc.Options{Public: loopback})
	silent, mallory := newClient(t, n), newClient(t, n)
	done := make(chan error, 1)
	go func() {
		_, err := n.Ping(deadline(t), silent.conn.LocalAddr().(*net.UDPAddr).AddrPort(), nil, 1)
		done <- err
	}()
	asked, err := dhtrpc.Parse(silent.receive())
	if err != nil {
		t.Fatal(err)
	}
	mallory.send(&dhtrpc.Message{Response: true, TID: asked.TID})
	if err := <-done; !errors.Is(err, dhtrpc.ErrTimeout) {
		t.Errorf("got %v", err)
	}
}

func TestClassesOfNAT(t *testing.T) {
	at := func(texts ...string) *dhtrpc.Sampler {
		s := new(dhtrpc.Sampler)
		for i, text := range texts {
			s.Add(netip.AddrPortFrom(netip.AddrFrom4([4]byte{9, 9, 9, byte(i)}), 1), netip.MustParseAddrPort(text))
		}
		return s
	}
	for want, s := range map[string]*dhtrpc.Sampler{
		"unknown []":             at("1.1.1.1:1", "1.1.1.1:1"),
		"consistent [1.1.1.1:1]": at("1.1.1.1:1", "1.1.1.1:1", "1.1.1.1:1", "1.1.1.1:2"),
		"random [1.1.1.1:0]":     at("1.1.1.1:1", "1.1.1.1:2", "1.1.1.1:3"),
	} {
		class, addrs := s.Class()
		if got := fmt.Sprint(class, " ", addrs); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if a := at("1.1.1.1:1", "1.1.1.1:2").Addr(); a != netip.MustParseAddrPort("1.1.1.1:0") {
		t.Errorf("samples with one host and several ports give %v", a)
	}
	if a := at("1.1.1.1:1", "2.1.1.1:2").Addr(); a.IsValid() {
		t.Errorf("samples with different hosts give %v", a)
	}
}

func TestLimiterBoundsHosts(t *testing.T) {
	l := dhtrpc.NewLimiter(1, 5, 100)
	host := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}) }
	for i := range 10_000 {
		if !l.Allow(host(i), 1) {
			t.Fatalf("the new host %d is refused", i)
		}
	}
	busy := host(10_000)
	for range 5 {
		l.Allow(busy, 1)
	}
	if l.Allow(busy, 1) {
		t.Error("a host exceeds its limit")
	}
}

func TestBootstrapIsChecked(t *testing.T) {
	for _, good := range []string{"127.0.0.1:1", "localhost:49737", "127.0.0.1@example.org:1"} {
		if err := dhtrpc.CheckBootstrap([]string{good}); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{"", "localhost", ":1", "a:b:c"} {
		if err := dhtrpc.CheckBootstrap([]string{bad}); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

// WIRE-T25.
func FuzzReceive(f *testing.F) {
	f.Add([]byte{3, 4, 7, 0, 127, 0, 0, 1, 1, 0, 0})
	mux := udx.NewMux(udx.Options{})
	n, err := dhtrpc.Listen(mux, dhtrpc.Options{Listen: loopback, Public: loopback, Handle: func(r *dhtrpc.Request) { r.Reply(nil) }})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		n.Close()
		mux.Close()
	})
	f.Fuzz(func(t *testing.T, data []byte) {
		n.Receive(n.Socket(), data, netip.MustParseAddrPort("127.0.0.1:9"))
	})
}

// The expected bytes come from the npm packages.
//
// WIRE-T1.
func TestNodeIDVector(t *testing.T) {
	id := dhtrpc.NodeID(netip.MustParseAddrPort("127.0.0.1:49737"))
	if got := hex.EncodeToString(id[:]); got != "d1dcf835b0d62b9230c41393cb96a34f5f8b9f814f421ca3382dfc1678022e0e" {
		t.Errorf("got %s", got)
	}
}
