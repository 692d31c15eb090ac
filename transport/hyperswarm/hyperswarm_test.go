package hyperswarm_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel/transporttest"
	"github.com/parleyhub/parley/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/hyperswarm/hyperswarmtest"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/hyperswarm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func anybody(identity.PublicKey) bool { return true }

func options(bootstrap []string) hyperdht.Options {
	return hyperdht.Options{Bootstrap: bootstrap, Stream: secretstream.Options{MaxMessage: new(transport.Codec).MaxMessage()}}
}

func listen(t testing.TB, o hyperswarm.ListenOptions) transport.Listener {
	t.Helper()
	if o.Pair == nil {
		o.Pair = identity.Generate()
	}
	l, err := hyperswarm.Listen(hyperswarmtest.Context(t), o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Req 3.6 and 3.7: the transport passes the common tests of all transports.
func TestTransport(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 4)
	server, client := hyperswarmtest.Node(t, options(bootstrap)), hyperswarmtest.Node(t, options(bootstrap))
	transporttest.Run(t, func(*testing.T) transporttest.Transport {
		return transporttest.Transport{
			Dialer: &hyperswarm.Dialer{Node: client},
			Listen: func(t testing.TB) transport.Listener {
				return listen(t, hyperswarm.ListenOptions{Node: server, Allow: anybody})
			},
		}
	})
}

// Only allowed keys connect; by default none is. Peer returns the proved key.
//
// WIRE-STRANGER.
func TestOnlyAllowedPeersConnect(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 4)
	server, client := hyperswarmtest.Node(t, options(bootstrap)), hyperswarmtest.Node(t, options(bootstrap))
	dialer := &hyperswarm.Dialer{Node: client}
	closed := listen(t, hyperswarm.ListenOptions{Node: server})
	defer closed.Close()
	if _, err := dialer.Dial(hyperswarmtest.Context(t), closed.Endpoint()); transport.CodeOf(err) != transport.CodeUnreachable {
		t.Errorf("no key is allowed: %v", err)
	}
	open := listen(t, hyperswarm.ListenOptions{Node: server, Allow: func(k identity.PublicKey) bool { return k == client.Key() }})
	defer open.Close()
	here, err := dialer.Dial(hyperswarmtest.Context(t), open.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	there, err := open.Accept(hyperswarmtest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	if there.Peer() != client.Key().String() || here.Peer() != open.Endpoint().Address {
		t.Errorf("the peers are %s and %s", there.Peer(), here.Peer())
	}
}

// A peer that is not an agent is detected: other programs of the DHT can connect to the key.
func TestPeersThatAreNotAgents(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 4)
	server, client := hyperswarmtest.Node(t, options(bootstrap)), hyperswarmtest.Node(t, options(bootstrap))
	l := listen(t, hyperswarm.ListenOptions{Node: server, Allow: anybody})
	defer l.Close()
	key, err := identity.ParsePublicKey(l.Endpoint().Address)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"GET / HTTP/1.1", hyperswarm.Greeting, hyperswarm.Greeting + "\x01"} {
		c, err := client.Dial(hyperswarmtest.Context(t), key, hyperdht.DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.WriteMessage([]byte(text)); err != nil {
			t.Fatal(err)
		}
		for err == nil { // the greeting, then the end
			_, err = c.ReadMessage()
		}
		c.Destroy()
	}
	other := hyperswarmtest.Listen(hyperswarmtest.Context(t), t, server)
	defer other.Close()
	go func() {
		if c, err := other.Accept(context.Background()); err == nil {
			if err := c.WriteMessage([]byte("I am something else")); err != nil {
				t.Error(err)
			}
			<-c.Confirmed()
		}
	}()
	dialer := &hyperswarm.Dialer{Node: client}
	to := agent.Endpoint{Transport: agent.TransportHyperswarm, Address: other.Key().String()}
	if _, err := dialer.Dial(hyperswarmtest.Context(t), to); transport.CodeOf(err) != transport.CodeInvalid || !strings.Contains(err.Error(), "not an agent") {
		t.Errorf("got %v", err)
	}
}

func TestDialRefusesInvalidKeys(t *testing.T) {
	d := &hyperswarm.Dialer{}
	for _, address := range []string{"", "xyz", strings.Repeat("0", 64)} {
		_, err := d.Dial(context.Background(), agent.Endpoint{Transport: agent.TransportHyperswarm, Address: address})
		if transport.CodeOf(err) != transport.CodeInvalid {
			t.Errorf("%q: %v", address, err)
		}
	}
}

// An invalid frame ends the connection with an error that says so.
//
// WIRE-FRAME.
func TestInvalidFrames(t *testing.T) {
	bootstrap, _ := hyperswarmtest.Network(t, 4)
	server, client := hyperswarmtest.Node(t, options(bootstrap)), hyperswarmtest.Node(t, options(bootstrap))
	l := listen(t, hyperswarm.ListenOptions{Node: server, Allow: anybody})
	defer l.Close()
	key, err := identity.ParsePublicKey(l.Endpoint().Address)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.Dial(hyperswarmtest.Context(t), key, hyperdht.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Destroy()
	for _, m := range []string{hyperswarm.Greeting + "\x80\x80\x40", "\xff\xff"} {
		if err := c.WriteMessage([]byte(m)); err != nil {
			t.Fatal(err)
		}
	}
	there, err := l.Accept(hyperswarmtest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	if _, err := there.Receive(hyperswarmtest.Context(t)); transport.CodeOf(err) != transport.CodeInvalid {
		t.Errorf("got %v", err)
	}
	if err := there.Send(context.Background(), []transport.Frame{{Kind: transport.Ready}}); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("a send after the end: %v", err)
	}
}
