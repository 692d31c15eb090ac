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
	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/node"
	"github.com/parleyhub/parley/internal/sharing"
	"github.com/parleyhub/parley/registry/signedcard"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/hyperswarm/keys"
	natslink "github.com/parleyhub/parley/transport/nats"
	"github.com/parleyhub/parley/transport/websocket"
)

// keepReplica has an agent of this process keep a replica of a hub's document over HTTP. It
// ends with the test.
func keepReplica(t *testing.T, h *hub, id, room string) *replica.Replica {
	t.Helper()
	host := net.JoinHostPort("127.0.0.1", strconv.Itoa(h.port))
	at := agent.Endpoint{Transport: agent.TransportWebSocket, Address: "ws://" + host + node.Path}
	return keep(t, id, room, sharing.CardID, at, &websocket.Dialer{Token: websocket.TokenFor(host, token)})
}

// keepPeersReplica has an agent of this process, which is of one hub by having its key, keep a replica
// of another hub's document over a NATS server.
func keepPeersReplica(t *testing.T, server string, own *keys.Pair, name string, of keys.PublicKey, room string) *replica.Replica {
	t.Helper()
	conn, err := nats.Connect(server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	at := agent.Endpoint{Transport: agent.TransportNATS, Address: natslink.Address("", of)}
	return keep(t, signedcard.ID(name, own.Public()), room, signedcard.ID(sharing.CardID, of), at, &natslink.Dialer{Options: natslink.Options{Conn: conn, Pair: own}})
}

// keep has an agent of this process keep a replica of a document over a channel to a card.
func keep(t *testing.T, id, room, card string, at agent.Endpoint, dialer transport.Dialer) *replica.Replica {
	t.Helper()
	n, err := parley.New(parley.Options{Channels: channel.Options{Dialers: map[agent.Transport]transport.Dialer{at.Transport: dialer}}})
	if err != nil {
		t.Fatal(err)
	}
	own := agent.Card{ID: id, Name: "agent", Version: "1", Tier: agent.L3, Protocols: []string{"a2a/1.0"}, Capabilities: []agent.Capability{}}
	if _, err := n.Join(own, func(_ context.Context, e *envelope.Envelope) {
		if e.Type == envelope.ErrorMessage {
			t.Logf("%s hears %s", id, e.Payload)
		}
	}); err != nil {
		t.Fatal(err)
	}
	r, err := replica.New(replica.Options{Agent: id, State: room})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var keeping sync.WaitGroup
	keeping.Go(func() {
		_ = r.Keep(ctx, func(ctx context.Context) (*channel.Channel, error) {
			return n.Connect(ctx, id, card, at)
		}) // it ends with ctx
	})
	t.Cleanup(func() {
		stop()
		keeping.Wait()
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return r
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

// bytesOf is a replica's whole document.
func bytesOf(t *testing.T, r *replica.Replica) (state string) {
	t.Helper()
	if err := r.View(t.Context(), func(d *crdt.Doc) { state = string(d.Snapshot()) }); err != nil {
		t.Fatal(err)
	}
	return state
}
