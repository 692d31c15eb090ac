//go:build interop

// Package hyperswarmjs_test connects transport/hyperswarm with the npm packages
// hyperswarm and hyperdht, on private DHTs on loopback:
//
//	npm install --prefix test/interop
//	go test -tags interop ./test/interop/hyperswarmjs
//
// PARLEY_INTEROP_NODE_MODULES names another node_modules directory. If it is set, a missing requirement fails the
// tests instead of skipping them.
package hyperswarmjs_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/hyperswarm/hyperswarmtest"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/identity"
)

func TestMain(m *testing.M) {
	if os.Getenv(peerVariable) != "" {
		if err := servePeer(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

const mebibyte = 1 << 20

// networks are the DHTs that the tests run on, named after the implementation of their nodes.
var networks = map[string]func(t *testing.T, js *driver) []string{
	"javascript": func(t *testing.T, js *driver) []string { return js.do("testnet", args{"size": 10}).Bootstrap },
	"go": func(t *testing.T, js *driver) []string {
		bootstrap, _ := hyperswarmtest.Network(t, 6)
		return bootstrap
	},
	"mixed": func(t *testing.T, js *driver) []string {
		bootstrap, _ := hyperswarmtest.Network(t, 5)
		js.do("testnet", args{"size": 5, "bootstrap": bootstrap[:1]})
		return bootstrap
	},
}

// each runs a test on every network.
func each(t *testing.T, test func(t *testing.T, js *driver, bootstrap []string)) {
	for name, network := range networks {
		t.Run(name, func(t *testing.T) {
			js := javascript(t)
			test(t, js, network(t, js))
		})
	}
}

func noise(n int) []byte {
	data := make([]byte, n)
	rng := rand.NewChaCha8([32]byte{1})
	rng.Read(data)
	return data
}

func sum(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}

func public(t *testing.T, text string) identity.PublicKey {
	t.Helper()
	k, err := identity.ParsePublicKey(text)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// exchange sends data to a peer that echoes, and checks the echo.
func exchange(t *testing.T, c *secretstream.Conn, data []byte) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := c.Write(data); err != nil {
			t.Error(err)
		}
	})
	got := make([]byte, len(data))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the echoed data differs: %v", err)
	}
	wg.Wait()
}

// A Go client connects to a JavaScript server, and they exchange 64 MiB in each direction.
//
// WIRE-T2, WIRE-T8, WIRE-T20.
func TestGoDialsJavaScript(t *testing.T) {
	each(t, func(t *testing.T, js *driver, bootstrap []string) {
		dht := js.do("dht", args{"bootstrap": bootstrap})
		server := js.do("listen", args{"id": dht.ID, "mode": "echo"})
		n := hyperswarmtest.Node(t, hyperdht.Options{Bootstrap: bootstrap})
		began := time.Now()
		conn, err := n.Dial(hyperswarmtest.Context(t), public(t, server.Key), hyperdht.DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Destroy()
		t.Logf("connected after %v", time.Since(began))
		for range 200 {
			exchange(t, conn, []byte("a short message"))
		}
		began = time.Now()
		exchange(t, conn, noise(64*mebibyte))
		t.Logf("64 MiB in each direction took %v", time.Since(began))
	})
}

// A JavaScript client connects to a Go server.
//
// WIRE-T3, WIRE-T4, WIRE-T8.
func TestJavaScriptDialsGo(t *testing.T) {
	each(t, func(t *testing.T, js *driver, bootstrap []string) {
		for name, o := range map[string]hyperdht.Options{
			"asking only": {Bootstrap: bootstrap},
			"public":      {Bootstrap: bootstrap, Public: hyperswarmtest.Loopback},
		} {
			t.Run(name, func(t *testing.T) {
				n := hyperswarmtest.Node(t, o)
				l := hyperswarmtest.Listen(hyperswarmtest.Context(t), t, n)
				dht := js.do("dht", args{"bootstrap": bootstrap})
				dialled := js.start("dial", args{"id": dht.ID, "key": l.Key().String(), "mode": "sink"})
				conn, err := l.Accept(hyperswarmtest.Context(t))
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Destroy()
				c := <-dialled
				if c.Failed != "" {
					t.Fatal(c.Failed)
				}
				data := noise(64 * mebibyte)
				began := time.Now()
				if _, err := conn.Write(data); err != nil {
					t.Fatal(err)
				}
				if got := js.do("received", args{"id": c.ID, "count": len(data)}); got.Hash != sum(data) {
					t.Errorf("%d bytes arrived, %s", got.Received, got.Error)
				}
				t.Logf("64 MiB to JavaScript in %v", time.Since(began))
				began = time.Now()
				sent := js.start("send", args{"id": c.ID, "size": 64 * mebibyte})
				h := sha256.New()
				if _, err := io.CopyN(h, conn, 64*mebibyte); err != nil {
					t.Fatal(err)
				}
				if want := <-sent; want.Hash != hex.EncodeToString(h.Sum(nil)) {
					t.Errorf("the received data differs: %s", want.Failed)
				}
				t.Logf("64 MiB from JavaScript in %v", time.Since(began))
				if err := conn.Close(); err != nil {
					t.Error(err)
				}
				if end := js.do("closed", args{"id": c.ID}); !end.Ended || end.Error != "" {
					t.Errorf("the connection ended with %+v", end)
				}
			})
		}
	})
}

// A message that the server sends first arrives at once.
//
// WIRE-T5, WIRE-T6.
func TestServerSpeaksFirst(t *testing.T) {
	each(t, func(t *testing.T, js *driver, bootstrap []string) {
		dht := js.do("dht", args{"bootstrap": bootstrap})
		server := js.do("listen", args{"id": dht.ID, "mode": "speak"})
		n := hyperswarmtest.Node(t, hyperdht.Options{Bootstrap: bootstrap})
		conn, err := n.Dial(hyperswarmtest.Context(t), public(t, server.Key), hyperdht.DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Destroy()
		began := time.Now()
		m, err := conn.ReadMessage()
		if err != nil || string(m) != "hello from javascript" {
			t.Errorf("got %q, %v", m, err)
		}
		t.Logf("the first message arrived after %v", time.Since(began))

		l := hyperswarmtest.Listen(hyperswarmtest.Context(t), t, n)
		dialled := js.start("dial", args{"id": dht.ID, "key": l.Key().String(), "mode": "sink"})
		back, err := l.Accept(hyperswarmtest.Context(t))
		if err != nil {
			t.Fatal(err)
		}
		defer back.Destroy()
		if _, err := back.Write([]byte("hello from go")); err != nil {
			t.Fatal(err)
		}
		c := <-dialled
		began = time.Now()
		if got := js.do("received", args{"id": c.ID, "count": 13}); got.Received != 13 {
			t.Errorf("got %+v", got)
		}
		t.Logf("the first message arrived after %v", time.Since(began))
	})
}

// WIRE-T9, WIRE-T10, WIRE-T11.
func TestRecordsBothWays(t *testing.T) {
	each(t, func(t *testing.T, js *driver, bootstrap []string) {
		ctx := hyperswarmtest.Context(t)
		n := hyperswarmtest.Node(t, hyperdht.Options{Bootstrap: bootstrap})
		dht := js.do("dht", args{"bootstrap": bootstrap})
		ours, theirs := identity.FromSeed([32]byte{1}), identity.FromSeed([32]byte{2})
		seed := theirs.Seed()
		if err := n.PutMutable(ctx, ours, []byte("from go"), 5); err != nil {
			t.Fatal(err)
		}
		if r := js.do("mutableGet", args{"id": dht.ID, "key": ours.Public().String()}); r.Value != hex.EncodeToString([]byte("from go")) || r.Seq != 5 {
			t.Errorf("JavaScript reads %+v", r)
		}
		js.do("mutablePut", args{"id": dht.ID, "seed": hex.EncodeToString(seed[:]), "value": hex.EncodeToString([]byte("from js")), "seq": 7})
		if r, err := n.GetMutable(ctx, theirs.Public(), 0); err != nil || string(r.Value) != "from js" || r.Seq != 7 {
			t.Errorf("Go reads %q of version %d, %v", r.Value, r.Seq, err)
		}
		if err := n.PutMutable(ctx, theirs, []byte("late"), 6); hyperdht.CodeOf(err) != hyperdht.CodeStale {
			t.Errorf("an older version: %v", err)
		}
		if err := n.PutMutable(ctx, theirs, []byte("other"), 7); hyperdht.CodeOf(err) != hyperdht.CodeExists {
			t.Errorf("a version in use: %v", err)
		}
		hash, err := n.PutImmutable(ctx, bytes.Repeat([]byte{7}, 900))
		if err != nil {
			t.Fatal(err)
		}
		if r := js.do("immutableGet", args{"id": dht.ID, "hash": hex.EncodeToString(hash[:])}); len(r.Value) != 1800 {
			t.Errorf("JavaScript reads %+v", r)
		}
		put := js.do("immutablePut", args{"id": dht.ID, "value": "0102"})
		h, err := hex.DecodeString(put.Hash)
		if err != nil {
			t.Fatal(err)
		}
		if v, err := n.GetImmutable(ctx, [32]byte(h)); err != nil || string(v) != "\x01\x02" {
			t.Errorf("Go reads %x, %v", v, err)
		}
		topic := identity.Hash([]byte("topic"))
		if err := n.Announce(ctx, topic, ours, nil, nil); err != nil {
			t.Fatal(err)
		}
		if r := js.do("lookup", args{"id": dht.ID, "topic": hex.EncodeToString(topic[:])}); len(r.Keys) != 1 || r.Keys[0] != ours.Public().String() {
			t.Errorf("JavaScript finds %v", r.Keys)
		}
		if err := n.Unannounce(ctx, topic, ours); err != nil {
			t.Fatal(err)
		}
		if r := js.do("lookup", args{"id": dht.ID, "topic": hex.EncodeToString(topic[:])}); len(r.Keys) != 0 {
			t.Errorf("JavaScript still finds %v", r.Keys)
		}
	})
}

// A refused peer gets no answer, whichever implementation refuses it.
//
// WIRE-T12.
func TestRefusedPeers(t *testing.T) {
	js := javascript(t)
	bootstrap := networks["javascript"](t, js)
	n := hyperswarmtest.Node(t, hyperdht.Options{Bootstrap: bootstrap})
	dht := js.do("dht", args{"bootstrap": bootstrap})
	server := js.do("listen", args{"id": dht.ID, "allow": identity.Generate().Public().String()})
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	if _, err := n.Dial(ctx, public(t, server.Key), hyperdht.DialOptions{}); hyperdht.CodeOf(err) != hyperdht.CodeUnanswered {
		t.Errorf("Go is refused: %v", err)
	}
	l, err := n.Listen(hyperdht.ListenOptions{Allow: func(identity.PublicKey) bool { return false }})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.WaitAnnounced(ctx); err != nil {
		t.Fatal(err)
	}
	if r := js.try("dial", args{"id": dht.ID, "key": l.Key().String()}); r.Failed != "PEER_CONNECTION_FAILED" {
		t.Errorf("JavaScript is refused: %+v", r)
	}
}
