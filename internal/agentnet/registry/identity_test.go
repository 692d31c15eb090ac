package registry_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

// An agent that starts without the link keeps its GUID when the link is back, and when it starts
// without the link again.
func TestAnAgentStartedWithoutTheLinkRegistersLater(t *testing.T) {
	t.Parallel()
	n, hub := nettest.StartServer(t), nettest.StartServer(t)
	cfg := nettest.Linked(n, hub, "shop")
	cfg.StateDir = t.TempDir()
	other := nettest.Register(t, nettest.Open(t, n.Host("host-b", "bob", "shop")), nettest.Dispatcher())
	n.Stop()
	start := func() (*agentnet.Network, *agentnet.Agent) {
		network := agentnet.Open(cfg)
		wait.Eventually(t, "the hub's bus", func() bool { return network.Status().Local })
		return network, nettest.Register(t, network, nettest.Worker("go"))
	}
	network, a := start()
	guid := a.GUID()
	if s := nettest.SendText(t, a, other, "hello"); !s.Queued {
		t.Errorf("%+v", s)
	}
	n.Start()
	wait.Eventually(t, "the agent in the network", func() bool {
		e, _, err := other.Info(t.Context(), guid)
		return err == nil && e.GUID == guid
	})
	var got []string
	wait.Eventually(t, "its mail", func() bool { got = append(got, nettest.TryTexts(t, other)...); return len(got) > 0 })
	wait.Eventually(t, "an answer", func() bool {
		_, err := other.Send(t.Context(), mail.Message{Recipient: guid, Text: "hello yourself"})
		return err == nil
	})
	wait.Eventually(t, "its arrival", func() bool { return slices.Contains(nettest.TryTexts(t, a), "hello yourself") })
	nettest.Shut(t, network)
	n.Stop()
	network, a = start()
	if a.GUID() != guid || !a.Reused() {
		t.Errorf("the GUID changed from %s to %s", guid, a.GUID())
	}
	n.Start()
	wait.Eventually(t, "the network", func() bool { return network.Status().Connected })
	nettest.Shut(t, network)
	network = nettest.Open(t, cfg)
	if again := nettest.Register(t, network, nettest.Worker("go")); again.GUID() != guid {
		t.Errorf("the GUID changed from %s to %s", guid, again.GUID())
	}
}

// An identity whose former holder releases it late, while the next one takes it, is taken all the same: the lock says that nobody
// else has it.
func TestAnIdentityThatChangesWhileItIsTakenIsTaken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		changes int
		same    bool
	}{{1, true}, {4, true}, {50, false}} {
		t.Run(fmt.Sprintf("%d changes", c.changes), func(t *testing.T) {
			t.Parallel()
			n := nettest.StartServer(t)
			cfg := n.Host("host-b", "bob", "shop")
			cfg.StateDir = t.TempDir()
			former := agentnet.Open(cfg)
			if err := former.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			guid := nettest.Register(t, former, nettest.Worker("go")).GUID()
			nettest.Shut(t, former)
			record := identityOf(t, n, guid)
			left := 0 // set once the network is open; only the agent that registers looks at the clock then
			var mu sync.Mutex
			cfg.Now = func() time.Time {
				mu.Lock()
				defer mu.Unlock()
				if left > 0 {
					left--
					record.touch(t)
				}
				return time.Now()
			}
			network := nettest.Open(t, cfg)
			mu.Lock()
			left = c.changes
			mu.Unlock()
			again := nettest.Register(t, network, nettest.Worker("go"))
			mu.Lock()
			defer mu.Unlock()
			if (again.GUID() == guid) != c.same || again.Reused() != c.same {
				t.Errorf("after %d changes the GUID %s is %s, used again %t", c.changes-left, guid, again.GUID(), again.Reused())
			}
			left = 0
		})
	}
}

// identity is the record of an identity in its bucket.
type identity struct {
	bucket jetstream.KeyValue
	key    string
}

// identityOf returns the record that says which process uses a GUID.
func identityOf(t *testing.T, n *nettest.Server, guid string) identity {
	t.Helper()
	kv, err := n.Foreign().KeyValue(t.Context(), store.Config{Bucket: "agent-registry"}.IdentityBucket())
	if err != nil {
		t.Fatal(err)
	}
	keys, err := kv.Keys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if v, err := kv.Get(t.Context(), key); err == nil && strings.HasPrefix(key, "slot.") && strings.Contains(string(v.Value()), guid) {
			return identity{kv, key}
		}
	}
	t.Fatalf("%s has no record in %q", guid, keys)
	return identity{}
}

// touch writes the record again, unchanged.
func (r identity) touch(t *testing.T) {
	v, err := r.bucket.Get(t.Context(), r.key)
	if err == nil {
		_, err = r.bucket.Put(t.Context(), r.key, v.Value())
	}
	if err != nil {
		t.Error(err)
	}
}
