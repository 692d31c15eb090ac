//go:build interop && linux

package documents_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"testing"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/node"
	"github.com/parleyhub/parley/internal/sharing"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/websocket"
)

// keepReplica has an agent of this process keep a replica of a hub's document over a channel. It
// ends with the test.
func keepReplica(t *testing.T, h *hub, id, room string) *replica.Replica {
	t.Helper()
	host := net.JoinHostPort("127.0.0.1", strconv.Itoa(h.port))
	at := agent.Endpoint{Transport: agent.TransportWebSocket, Address: "ws://" + host + node.Path}
	n, err := parley.New(parley.Options{Channels: channel.Options{Dialers: map[agent.Transport]transport.Dialer{
		at.Transport: &websocket.Dialer{Token: websocket.TokenFor(host, token)},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	card := agent.Card{ID: id, Name: id, Version: "1", Tier: agent.L3, Protocols: []string{"a2a/1.0"}, Capabilities: []agent.Capability{}}
	if _, err := n.Join(card, func(context.Context, *envelope.Envelope) {}); err != nil {
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
			return n.Connect(ctx, id, sharing.CardID, at)
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
