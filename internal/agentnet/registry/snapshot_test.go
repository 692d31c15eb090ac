package registry_test

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

// Entries that other programs write, change, corrupt, delete or purge appear in the next snapshot,
// though it reads only the changes.
func TestTheSnapshotFollowsTheRegistry(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	cfg := n.Host("host-a", "ann", "shop")
	clock := new(nettest.Clock)
	cfg.Now, cfg.CollectInterval = clock.Now, time.Hour
	network := nettest.Open(t, cfg)
	kv, err := n.Foreign().KeyValue(t.Context(), "agent-registry")
	if err != nil {
		t.Fatal(err)
	}
	started := time.Now().UTC()
	entry := func(guid string, beats int) registry.Entry {
		return registry.Entry{GUID: guid, AgentType: "worker", Handle: "w", Hostname: "h", Scope: registry.ScopeUser, Visibility: store.Public, NATSURL: "nats://h:4222",
			Status: registry.Idle, RegisteredAt: started.Format("2006-01-02T15:04:05.000Z"), HeartbeatInterval: 60,
			LastHeartbeat: started.Add(time.Duration(beats) * time.Second).Format("2006-01-02T15:04:05.000Z")}
	}
	put := func(guid string, data any) {
		t.Helper()
		raw, ok := data.([]byte)
		if !ok {
			if raw, err = json.Marshal(data); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := kv.Put(t.Context(), guid, raw); err != nil {
			t.Fatal(err)
		}
	}
	look := func() []registry.Summary {
		t.Helper()
		d, err := network.Agents(t.Context(), registry.Filter{})
		if err != nil {
			t.Fatal(err)
		}
		return d.Agents
	}
	expect := func(what string, want ...string) {
		t.Helper()
		var got []string
		for _, s := range look() {
			got = append(got, s.GUID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	a, b := uuid.NewString(), uuid.NewString()
	expect("an empty registry")
	put(a, entry(a, 1))
	put(b, entry(b, 2))
	expect("two, the most recent first", b, a)
	put(a, entry(a, 3))
	expect("a heartbeat", a, b)
	if got := look()[0].LastHeartbeat; got != entry(a, 3).LastHeartbeat {
		t.Errorf("the last heartbeat is %s", got)
	}
	changed := entry(b, 4)
	changed.Status = registry.Busy
	put(b, changed)
	if got := look()[0]; got.GUID != b || got.Status != registry.Busy {
		t.Errorf("%+v", got)
	}
	spoilt, err := json.Marshal(entry(a, 5))
	if err != nil {
		t.Fatal(err)
	}
	put(a, slices.Concat(spoilt[:len(spoilt)-1], []byte(",")))
	expect("what is no JSON", b)
	put(a, entry(a, 5))
	expect("mended", a, b)
	noTime := entry(a, 5)
	noTime.LastHeartbeat = "yesterday, at half past "
	put(a, noTime)
	expect("a heartbeat at no time, as long as one", b)
	other := entry(b, 6)
	put(a, other)
	expect("another's GUID", b)
	put(a, entry(a, 7))
	if err := kv.Delete(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	expect("a deletion", a)
	stream, err := n.Foreign().Stream(t.Context(), "KV_agent-registry")
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	clock.Forward(2 * time.Hour)
	expect("a purge, after a while")
}

// A process that only collects keeps no entries: it reads all of them each time. One that discovers agents goes on with what it has.
func TestTheCollectorKeepsNoEntriesForItself(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	link := nettest.StartProxy(t, strings.TrimPrefix(n.URL(), "nats://"))
	cfg := n.Host("host-a", "ann", "shop")
	cfg.Dial, cfg.CollectInterval = nettest.DialerTo(link.URL()), time.Hour
	network := nettest.Open(t, cfg)
	nettest.Register(t, nettest.Open(t, n.Host("host-b", "bob", "blog")), nettest.Worker("go"))
	var mu sync.Mutex
	var asked strings.Builder
	link.SetTap(func(toServer bool, data []byte) bool {
		mu.Lock()
		defer mu.Unlock()
		if toServer {
			asked.Write(data)
		}
		return true
	})
	all := regexp.MustCompile(`DIRECT\.GET\.KV_agent-registry [^{]*\{[^}]*"seq":1\}`)
	readsAll := func() bool {
		mu.Lock()
		defer mu.Unlock()
		asked.Reset()
		mu.Unlock()
		_, err := network.Collect(t.Context(), true)
		mu.Lock()
		if err != nil {
			t.Fatal(err)
		}
		return all.MatchString(asked.String())
	}
	if first, second := readsAll(), readsAll(); !first || !second {
		t.Errorf("the first pass reads all entries: %t, the second: %t", first, second)
	}
	if d, err := network.Agents(t.Context(), registry.Filter{}); err != nil || d.Total != 1 {
		t.Fatalf("%+v, %v", d, err)
	}
	if readsAll() {
		t.Error("a pass reads all entries though the process has them")
	}
}
