//go:build interop && linux

package documents_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/channel/transporttest"
	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/hyperswarm/hyperswarmtest"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/documents/sharing"
	"github.com/parleyhub/parley/internal/federation/node"
	"github.com/parleyhub/parley/internal/federation/peers"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/hyperswarm"
	natslink "github.com/parleyhub/parley/transport/nats"
	"github.com/parleyhub/parley/transport/websocket"
)

// member is an agent of this process with a replica of a hub's document.
type member struct {
	id, room, card string
	at             agent.Endpoint
	faults         *transporttest.Faults // of its connections
	saved          *replica.Saved        // before its last restart

	*replica.Replica
	node    *parley.Node
	stop    context.CancelFunc
	keeping sync.WaitGroup
}

// keepReplica starts an agent of this process with a replica of a hub's document over HTTP.
func keepReplica(t *testing.T, h *hub, id, room string) *member {
	t.Helper()
	host := net.JoinHostPort("127.0.0.1", strconv.Itoa(h.port))
	at := agent.Endpoint{Transport: agent.TransportWebSocket, Address: "ws://" + host + node.Path}
	return keep(t, id, room, sharing.CardID, at, &websocket.Dialer{Token: websocket.TokenFor(host, token)})
}

// keepPeersReplica starts an agent of this process with a replica of another hub's document over a NATS
// server. The agent belongs to the hub whose key it has.
func keepPeersReplica(t *testing.T, server string, own *identity.Pair, name string, of identity.PublicKey, room string) *member {
	t.Helper()
	conn, err := nats.Connect(server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	at := agent.Endpoint{Transport: agent.TransportNATS, Address: natslink.Address("", of)}
	return keep(t, signedcard.ID(name, own.Public()), room, signedcard.ID(sharing.CardID, of), at, &natslink.Dialer{Options: natslink.Options{Conn: conn, Pair: own}})
}

// keepSwarmReplica is keepPeersReplica over Hyperswarm.
func keepSwarmReplica(t *testing.T, bootstrap []string, own *identity.Pair, name string, of *identity.Pair, room string) *member {
	t.Helper()
	at := agent.Endpoint{Transport: agent.TransportHyperswarm, Address: peers.ChannelsKey(of).String()}
	n := hyperswarmtest.Node(t, hyperdht.Options{Bootstrap: bootstrap, Stream: secretstream.Options{MaxMessage: new(transport.Codec).MaxMessage()}})
	return keep(t, signedcard.ID(name, own.Public()), room, signedcard.ID(sharing.CardID, of.Public()), at, &hyperswarm.Dialer{Node: n, Pair: own})
}

// keep starts an agent of this process with a replica of a document over a channel to a card. It
// ends with the test.
func keep(t *testing.T, id, room, card string, at agent.Endpoint, dialer transport.Dialer) *member {
	t.Helper()
	m := &member{id: id, room: room, card: card, at: at, faults: transporttest.NewFaults(dialer)}
	m.start(t)
	t.Cleanup(func() { m.end(t) })
	return m
}

func (m *member) start(t *testing.T) {
	t.Helper()
	var err error
	m.node, err = parley.New(parley.Options{Channels: channel.Options{Dialers: map[agent.Transport]transport.Dialer{m.at.Transport: m.faults}}})
	if err != nil {
		t.Fatal(err)
	}
	own := agent.Card{ID: m.id, Name: "agent", Version: "1", Tier: agent.L3, Protocols: []string{"a2a/1.0"}, Capabilities: []agent.Capability{}}
	if _, err := m.node.Join(own, func(_ context.Context, e *envelope.Envelope) {
		if e.Type == envelope.ErrorMessage {
			t.Logf("%s received %s", m.id, e.Payload)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if m.Replica, err = replica.New(replica.Options{Agent: m.id, State: m.room, Saved: m.saved}); err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, m.stop = context.WithCancel(context.Background())
	m.keeping.Go(func() {
		_ = m.KeepConnected(ctx, func(ctx context.Context) (*channel.Channel, error) {
			return m.node.Connect(ctx, m.id, m.card, m.at)
		}) // it ends with ctx
	})
}

func (m *member) end(t *testing.T) {
	t.Helper()
	m.stop()
	m.keeping.Wait()
	saved, err := m.Save(context.Background())
	if err != nil {
		t.Error(err)
	}
	m.saved = &saved
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if err := m.node.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

// appendAll appends values to the replica's list, one change each.
func appendAll(t *testing.T, r *replica.Replica, name string, n int) (values []string) {
	for i := range n {
		value := fmt.Sprintf("%s-%d", name, i)
		if err := r.Edit(t.Context(), func(d *crdt.Doc) error { return d.Array("list").Append(value) }); err != nil {
			t.Error(err)
		}
		values = append(values, value)
	}
	return values
}

// bytesOf returns the encoded state of a replica's document.
func bytesOf(t *testing.T, r *replica.Replica) (state string) {
	t.Helper()
	if err := r.View(t.Context(), func(d *crdt.Doc) { state = string(d.Snapshot()) }); err != nil {
		t.Fatal(err)
	}
	return state
}
