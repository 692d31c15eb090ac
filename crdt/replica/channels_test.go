package replica_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/channel/transporttest"
	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/memory"
	"github.com/parleyhub/parley/transport/websocket"
)

// star is a hub replica with channels over memory and WebSocket, and a replica at the other end of each; their
// connections can be cut.
type star struct {
	hub    *replica.Replica
	spokes []*replica.Replica
	faults []*transporttest.Faults
}

func newStar(t *testing.T) *star {
	t.Helper()
	s := &star{hub: newReplica(t, replica.Options{Agent: "sun"})}
	t.Cleanup(func() { s.hub.Close() })
	var taken sync.WaitGroup
	taken.Add(2)
	there := channel.NewManager(channel.Options{}, func(c *channel.Channel) {
		go func() { // onChannel must not block
			defer taken.Done()
			if _, err := s.hub.Attach(c); err != nil {
				t.Error(err)
			}
		}()
	})
	t.Cleanup(func() { there.Close() })

	var local memory.Network
	first, err := local.Listen("sun")
	if err != nil {
		t.Fatal(err)
	}
	second, err := websocket.Listen("127.0.0.1:0", websocket.ListenOptions{Authenticate: websocket.Tokens(map[string]string{"venus": "a long random token"})})
	if err != nil {
		t.Fatal(err)
	}
	host := strings.TrimPrefix(second.Endpoint().Address, "ws://")
	for _, spoke := range []struct {
		name     string
		by       agent.Transport
		listener transport.Listener
		dialer   transport.Dialer
	}{
		{"mars", agent.TransportLocal, first, &local},
		{"venus", agent.TransportWebSocket, second, &websocket.Dialer{Token: websocket.TokenFor(host, "a long random token")}},
	} {
		t.Cleanup(func() { spoke.listener.Close() })
		go there.Serve(context.Background(), spoke.listener)
		faults := transporttest.NewFaults(spoke.dialer)
		here := channel.NewManager(channel.Options{Dialers: map[agent.Transport]transport.Dialer{spoke.by: faults}}, nil)
		t.Cleanup(func() { here.Close() })
		r := newReplica(t, replica.Options{Agent: spoke.name})
		t.Cleanup(func() { r.Close() })
		ch, err := here.OpenAt(t.Context(), spoke.name, "sun", spoke.listener.Endpoint())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Attach(ch); err != nil {
			t.Fatal(err)
		}
		s.spokes = append(s.spokes, r)
		s.faults = append(s.faults, faults)
	}
	taken.Wait()
	return s
}

// Agents on different transports edit one document through a third agent while connections break, and end with the
// same bytes (Req 9.1, 9.2, 9.3).
func TestAgentsOnDifferentTransportsEditOneDocument(t *testing.T) {
	s := newStar(t)
	all := append([]*replica.Replica{s.hub}, s.spokes...)
	var writers sync.WaitGroup
	for i, r := range all {
		writers.Go(func() {
			for n := range 60 {
				err := r.Edit(t.Context(), func(d *crdt.Doc) error {
					if err := d.Text("t").Insert(0, fmt.Sprint(i)); err != nil {
						return err
					}
					if err := d.Counter("c").Add(1); err != nil {
						return err
					}
					return d.Array("l").Append(n)
				})
				if err != nil {
					t.Error(err)
				}
				if n%20 == 10 && i > 0 {
					s.faults[i-1].Cut()
				}
			}
		})
	}
	writers.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, r := range all {
		wait(t, ctx, r, func(d *crdt.Doc) bool { return d.Counter("c").Value() == 180 && d.Array("l").Len() == 180 })
	}
	want := content(t, s.hub)
	for i, r := range s.spokes {
		if got := content(t, r); got != want {
			t.Errorf("replica %d has\n%s\nthe hub has\n%s", i, got, want)
		}
	}
}

// wait waits for a condition and checks it after each change.
func wait(t *testing.T, ctx context.Context, r *replica.Replica, holds func(d *crdt.Doc) bool) {
	t.Helper()
	changed := make(chan struct{}, 1)
	defer r.OnUpdate(func(replica.Update) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})()
	for {
		ok := false
		if err := r.View(ctx, func(d *crdt.Doc) { ok = holds(d) }); err != nil {
			t.Fatal(err)
		}
		if ok {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("the replica has %+v\n%s", status(t, r), content(t, r))
		}
	}
}
