package registry_test

import (
	"encoding/json"
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

// Agents of one type are the same as before in whatever order they come back, on a cluster and while it cannot be reached, and an
// agent with a new handle is none of them.
func TestAgentsComeBackAsThemselves(t *testing.T) {
	t.Parallel()
	handles := []string{"builder", "reviewer", "tester"}
	for _, away := range []bool{false, true} {
		for _, locks := range []bool{false, true} {
			if away && !locks {
				continue // nothing is remembered
			}
			for _, order := range [][]int{{0, 1, 2}, {1, 0, 2}, {2, 0, 1}, {2, 1, 0}} {
				t.Run(fmt.Sprintf("away %v, locks %v, order %v", away, locks, order), func(t *testing.T) {
					t.Parallel()
					n, hub := nettest.StartServer(t), nettest.StartServer(t)
					cfg := nettest.Linked(n, hub, "shop")
					if locks {
						cfg.StateDir = t.TempDir()
					}
					start := func(handle string) (*agentnet.Network, *agentnet.Agent) {
						network := agentnet.Open(cfg)
						wait.Eventually(t, "the bus", func() bool { s := network.Status(); return s.Local && (away || s.Connected) })
						r := nettest.Worker("go")
						r.Handle = handle
						return network, nettest.Register(t, network, r)
					}
					was, running := map[string]string{}, []*agentnet.Network{}
					for _, handle := range handles[:2] {
						network, a := start(handle)
						was[a.GUID()], running = handle, append(running, network)
					}
					for _, network := range running {
						nettest.Shut(t, network)
					}
					if away {
						n.Stop()
					}
					for _, i := range order {
						network, a := start(handles[i])
						t.Cleanup(func() { nettest.Shut(t, network) })
						if former := was[a.GUID()]; former != handles[i] && (former != "" || i < 2) {
							t.Errorf("%s is the former %q", handles[i], former)
						}
						if a.Reused() != (i < 2) {
							t.Errorf("%s was there before: %v", handles[i], a.Reused())
						}
					}
				})
			}
		}
	}
}

// An agent of a version that did not store handles keeps its identity.
func TestAnIdentityOfAnUnknownHandleIsUsedAgain(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	cfg := n.Host("host-b", "bob", "shop")
	former := nettest.Open(t, cfg)
	guid := nettest.Register(t, former, nettest.Worker("go")).GUID()
	nettest.Shut(t, former)
	record := identityOf(t, n, guid)
	v, err := record.bucket.Get(t.Context(), record.key)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(v.Value(), &fields); err != nil || fields["handle"] == nil {
		t.Fatalf("%s, %v", v.Value(), err)
	}
	delete(fields, "handle")
	data, err := json.Marshal(fields)
	if err == nil {
		_, err = record.bucket.Put(t.Context(), record.key, data)
	}
	if err != nil {
		t.Fatal(err)
	}
	if again := nettest.Register(t, nettest.Open(t, cfg), nettest.Worker("go")); again.GUID() != guid || !again.Reused() {
		t.Errorf("the GUID changed from %s to %s", guid, again.GUID())
	}
}

// Agents that never come back do not use up the slots of a project on a computer: a new agent gets the slot of the one that is away
// the longest, and not its identity.
func TestASlotOfAnAgentThatIsAwayIsUsedAgainOnACluster(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	cfg := n.Host("host-b", "bob", "shop")
	register := func(handle string) string {
		network := agentnet.Open(cfg)
		if err := network.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer nettest.Shut(t, network)
		r := nettest.Worker("go")
		r.Handle = handle
		return nettest.Register(t, network, r).GUID()
	}
	const slots = 64
	was := map[string]string{}
	for i := range slots {
		handle := fmt.Sprintf("agent-%d", i)
		was[handle] = register(handle)
	}
	was["agent-0"] = register("agent-0") // so agent-1 is away the longest
	fresh := register("fresh")
	for handle, guid := range was {
		if guid == fresh {
			t.Errorf("the new agent is %s", handle)
		}
	}
	for _, handle := range []string{"agent-0", "agent-2", "agent-63"} {
		if register(handle) != was[handle] {
			t.Errorf("%s is another one", handle)
		}
	}
	if register("agent-1") == was["agent-1"] {
		t.Error("the slot of the agent that was away the longest was not given away")
	}
}
