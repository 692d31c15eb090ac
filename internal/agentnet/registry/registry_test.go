package registry_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/testbed"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testbed.Leaks()...) }

// REQ-REGISTRY-001, REQ-REGISTRY-002, REQ-REGISTRY-003, REQ-REGISTRY-004,
// REQ-REGISTRY-005, REQ-REGISTRY-007, REQ-REGISTRY-010, REQ-TOOL-REGISTER-003,
// REQ-TOOL-REGISTER-004, REQ-TOOL-REGISTER-005, REQ-TOOL-REGISTER-006, REQ-PRIV-002
func TestAForeignClientFindsTheEntry(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	a := nettest.Register(t, nettest.Open(t, n.Host("host-a", "ann", "shop")), nettest.Worker("typescript", "testing"))
	js := n.Foreign()
	kv, err := js.KeyValue(t.Context(), "agent-registry")
	if err != nil {
		t.Fatal(err)
	}
	got, err := kv.Get(t.Context(), a.GUID())
	if err != nil {
		t.Fatal(err)
	}
	if err := checkEntry(got.Value()); err != nil {
		t.Error(err)
	}
	var entry map[string]any
	if err := json.Unmarshal(got.Value(), &entry); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"registeredAt", "lastHeartbeat"} {
		at, err := time.Parse(time.RFC3339Nano, entry[name].(string))
		if err != nil || time.Since(at).Abs() > time.Minute {
			t.Errorf("%s is %v", name, entry[name])
		}
		delete(entry, name)
	}
	want := map[string]any{"guid": a.GUID(), "agentType": "tdd-engineer", "handle": "worker-1", "hostname": "host-a", "projectId": "000000000000000s", "project": "shop",
		"scope": "project", "visibility": "public", "natsUrl": n.URL(), "capabilities": []any{"typescript", "testing"}, "status": "active",
		"heartbeatInterval": 60.0, "maxConcurrentTasks": 0.0, "currentTaskCount": 0.0}
	if diff := cmp.Diff(want, entry); diff != "" {
		t.Error(diff)
	}
	if id, err := uuid.Parse(a.GUID()); err != nil || id.Version() != 4 {
		t.Errorf("the GUID is %s", a.GUID())
	}
	stream, err := js.Stream(t.Context(), "KV_agent-registry")
	if err != nil {
		t.Fatal(err)
	}
	if c := stream.CachedInfo().Config; c.Storage != jetstream.FileStorage || c.MaxAge != 24*time.Hour || c.MaxMsgsPerSubject != 1 {
		t.Errorf("the bucket is %+v", c)
	}
}

// REQ-TOOL-DISCOVER-003, REQ-TOOL-GETINFO-002, REQ-TOOL-GETINFO-003,
// REQ-TOOL-GETINFO-004, REQ-TEST-CROSS-001, REQ-TEST-CROSS-003, REQ-TEST-CROSS-008, REQ-PRIV-003
func TestVisibility(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	agents := map[string]*agentnet.Agent{}
	add := func(name, host, user, project string, v registry.Visibility) {
		agents[name] = nettest.Register(t, nettest.Open(t, n.Host(host, user, project)),
			registry.Registration{Handle: name, AgentType: "a-" + name, Scope: registry.ScopeProject, Visibility: v})
	}
	add("public", "host-a", "ann", "shop", store.Public)
	add("private", "host-a", "ann", "shop", store.Private)
	add("project", "host-a", "ann", "shop", store.ProjectOnly)
	add("user", "host-a", "ann", "blog", store.UserOnly)
	add("colleague", "host-b", "bob", "shop", store.Public)
	add("twin", "host-b", "ann", "other", store.Public)
	add("stranger", "host-c", "eve", "evil", store.Public)
	open := []string{"colleague", "public", "stranger", "twin"}
	for viewer, more := range map[string][]string{
		"public": {"project", "user"}, "private": {"private", "project", "user"}, "project": {"project", "user"},
		"user": {"user"}, "colleague": {"project"}, "twin": {}, "stranger": {},
	} {
		got := []string{}
		for _, s := range nettest.Discover(t, agents[viewer], registry.Filter{}).Agents {
			got = append(got, s.Handle)
		}
		slices.Sort(got)
		want := slices.Sorted(slices.Values(slices.Concat(open, more)))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s finds: %s", viewer, diff)
		}
		for name, a := range agents {
			entry, _, err := agents[viewer].Info(t.Context(), a.GUID())
			if sees := slices.Contains(want, name); sees != (err == nil) {
				t.Errorf("%s queries %s: %v", viewer, name, err)
			}
			if err != nil {
				nettest.Wants(t, err, store.NotFoundError, "There is no agent "+a.GUID())
			}
			// REQ-TOOL-DISCOVER-004, REQ-PRIV-001, REQ-REGISTRY-006: only agents of the same user get the user
			// name.
			if entry.Username != "" && (name != "user" || (viewer != "user" && viewer != "public" && viewer != "private" && viewer != "project")) {
				t.Errorf("%s gets the user name of %s: %s", viewer, name, entry.Username)
			}
		}
	}
}

// REQ-TOOL-DISCOVER-002, REQ-TOOL-DISCOVER-005, REQ-TOOL-DISCOVER-006, REQ-TOOL-DISCOVER-007, REQ-TOOL-DISCOVER-008
func TestDiscoveryFilters(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss := nettest.Register(t, nettest.Open(t, n.Host("host-a", "ann", "shop")), nettest.Dispatcher())
	one := nettest.Register(t, nettest.Open(t, n.Host("host-b", "bob", "shop")), nettest.Worker("TypeScript", "testing"))
	two := nettest.Register(t, nettest.Open(t, n.Host("host-c", "cid", "blog")), nettest.Worker("golang"))
	three := nettest.Register(t, nettest.Open(t, n.Host("host-d", "dan", "blog")), nettest.Worker())
	busy := registry.Busy
	if _, err := two.UpdatePresence(t.Context(), registry.Changes{Status: busy}); err != nil {
		t.Fatal(err)
	}
	if _, err := three.Deregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		filter registry.Filter
		want   []*agentnet.Agent
	}{
		{"none", registry.Filter{}, []*agentnet.Agent{boss, one, two}},
		{"type", registry.Filter{AgentType: "dispatcher"}, []*agentnet.Agent{boss}},
		{"part of a type", registry.Filter{AgentType: "dispatch"}, nil},
		{"part of a capability", registry.Filter{Capability: "script"}, []*agentnet.Agent{one}},
		{"host", registry.Filter{Hostname: "HOST-C"}, []*agentnet.Agent{two}},
		{"project", registry.Filter{ProjectID: one.Entry().ProjectID}, []*agentnet.Agent{one}},
		{"status", registry.Filter{Status: registry.Busy}, []*agentnet.Agent{two}},
		{"scope", registry.Filter{Scope: registry.ScopeCrossProject}, []*agentnet.Agent{boss}},
		{"offline ones", registry.Filter{Status: registry.Offline}, []*agentnet.Agent{three}},
	} {
		d, err := nettest.Open(t, n.Host("host-z", "zoe", "none")).Agents(t.Context(), tt.filter)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{}
		for _, a := range tt.want {
			want = append(want, a.GUID())
		}
		// Agents are ordered by heartbeat, and the hosts' clocks agree only roughly.
		if diff := cmp.Diff(slices.Sorted(slices.Values(want)), slices.Sorted(slices.Values(nettest.GUIDs(d)))); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
	if d := nettest.Discover(t, boss, registry.Filter{Limit: 2}); len(d.Agents) != 2 || d.Total != 3 {
		t.Errorf("the first two: %+v", d)
	}
	if d := nettest.Discover(t, boss, registry.Filter{IncludeOffline: true}); len(d.Agents) != 4 || d.Total != 4 {
		t.Errorf("with offline agents: %+v", d)
	}
	for _, f := range []registry.Filter{{Limit: -1}, {Limit: 1001}, {Status: "lazy"}, {Scope: "all"}} {
		_, err := boss.Discover(t.Context(), f)
		nettest.Wants(t, err, store.ValidationError, "Use ")
	}
}

// REQ-TOOL-REGISTER-002, REQ-REGISTRY-008
func TestInvalidRegistrationsAreRefused(t *testing.T) {
	t.Parallel()
	n := nettest.Open(t, nettest.StartServer(t).Host("host-a", "ann", "shop"))
	for name, change := range map[string]func(*registry.Registration){
		"type":       func(r *registry.Registration) { r.AgentType = "Big Boss" },
		"no type":    func(r *registry.Registration) { r.AgentType = "" },
		"handle":     func(r *registry.Registration) { r.Handle = "a b" },
		"scope":      func(r *registry.Registration) { r.Scope = "world" },
		"visibility": func(r *registry.Registration) { r.Visibility = "secret" },
		"tasks":      func(r *registry.Registration) { r.MaxConcurrentTasks = -1 },
		"beat":       func(r *registry.Registration) { r.HeartbeatInterval = 9 * time.Second },
		"capability": func(r *registry.Registration) { r.Capabilities = []string{""} },
		"too many":   func(r *registry.Registration) { r.Capabilities = slices.Repeat([]string{"a"}, 65) },
	} {
		r := nettest.Worker("typescript")
		change(&r)
		if _, err := n.Register(t.Context(), r); nettest.CategoryOf(err) != store.ValidationError {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// REQ-TOOL-REGISTER-009, REQ-TOOL-DEREG-003, REQ-TOOL-DEREG-004, REQ-TOOL-DEREG-005, REQ-REGISTRY-014
func TestAReturningAgentKeepsItsGUID(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss := nettest.Register(t, nettest.Open(t, n.Host("host-a", "ann", "shop")), nettest.Dispatcher())
	cfg := n.Host("host-b", "bob", "shop")
	first := agentnet.Open(cfg)
	if err := first.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	a := nettest.Register(t, first, nettest.Worker("typescript"))
	nettest.Shut(t, first)
	entry, live, err := boss.Info(t.Context(), a.GUID())
	if err != nil || entry.Status != registry.Offline || live != registry.Gone {
		t.Errorf("after deregistration: %+v, %s, %v", entry, live, err)
	}
	sent, err := boss.Send(t.Context(), mail.Message{Recipient: a.GUID(), Text: "while you were away"})
	if err != nil || sent.Warning == "" {
		t.Fatalf("%+v, %v", sent, err)
	}
	_, err = a.Discover(t.Context(), registry.Filter{})
	nettest.Wants(t, err, store.NotRegisteredError, "register_agent")
	again := nettest.Register(t, nettest.Open(t, cfg), nettest.Worker("typescript"))
	if again.GUID() != a.GUID() || !again.Reused() {
		t.Errorf("the GUID changed from %s to %s", a.GUID(), again.GUID())
	}
	mail, _, err := again.Read(t.Context(), mail.Selection{})
	if err != nil || len(mail) != 1 || mail[0].Text != "while you were away" {
		t.Errorf("%+v, %v", mail, err)
	}
	other := nettest.Register(t, nettest.Open(t, n.Host("host-c", "bob", "shop")), nettest.Worker("typescript"))
	if other.GUID() == a.GUID() {
		t.Error("another host has the same GUID")
	}
}

// Two agents of a kind that run at the same time have two GUIDs, and each keeps its own after a
// restart.
func TestTwoAgentsOfOneKindHaveTwoIdentities(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	cfg := n.Host("host-b", "bob", "shop")
	cfg.StateDir = filepath.Join(t.TempDir(), "agents")
	one, two := nettest.Register(t, nettest.Open(t, cfg), nettest.Worker()), nettest.Register(t, nettest.Open(t, cfg), nettest.Worker())
	if one.GUID() == two.GUID() {
		t.Fatal("both have the GUID", one.GUID())
	}
	if _, err := one.Deregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	if three := nettest.Register(t, nettest.Open(t, cfg), nettest.Worker()); three.GUID() != one.GUID() {
		t.Errorf("the free identity %s is not reused: %s", one.GUID(), three.GUID())
	}
}

// REQ-HEARTBEAT-001, REQ-HEARTBEAT-002, REQ-HEARTBEAT-005, REQ-HEARTBEAT-008,
// REQ-LIVENESS-002, REQ-LIVENESS-003, REQ-LIVENESS-004, REQ-REGISTRY-011, REQ-REGISTRY-012,
// REQ-REGISTRY-013, REQ-TEST-CROSS-004, REQ-TEST-CROSS-005
func TestAnAgentWithoutHeartbeatsIsOfflineAndThenRemoved(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	clock := new(nettest.Clock)
	cfg := n.Host("host-a", "ann", "shop")
	cfg.Now = clock.Now
	network := nettest.Open(t, cfg)
	silent := nettest.Register(t, nettest.Open(t, n.Host("host-b", "bob", "shop")), nettest.Worker("typescript"))
	_, _ = silent, clock
	see := func() registry.Summary {
		d, err := network.Agents(t.Context(), registry.Filter{IncludeOffline: true})
		if err != nil || len(d.Agents) != 1 {
			t.Fatalf("%+v, %v", d, err)
		}
		return d.Agents[0]
	}
	if s := see(); s.Status != registry.Active || s.PossiblyOffline {
		t.Errorf("at first: %+v", s)
	}
	clock.Forward(125 * time.Second)
	if s := see(); s.Status != registry.Active || !s.PossiblyOffline {
		t.Errorf("after two heartbeats: %+v", s)
	}
	clock.Forward(60 * time.Second)
	if s := see(); s.Status != registry.Offline {
		t.Errorf("after three: %+v", s)
	}
	c, err := network.Collect(t.Context(), true)
	if err != nil || !slices.Equal(c.Removed, []string{silent.GUID()}) {
		t.Fatalf("%+v, %v", c, err)
	}
	removals, err := network.Removals(t.Context())
	if err != nil || len(removals) != 1 || removals[0].GUID != silent.GUID() || removals[0].Handle != "worker-1" || removals[0].RemovedBy != "host-a" {
		t.Errorf("the audit log: %+v, %v", removals, err)
	}
	if c, err := network.Collect(t.Context(), false); err != nil || c.Skipped {
		t.Errorf("the first pass by the timer: %+v, %v", c, err)
	}
	if c, err := network.Collect(t.Context(), false); err != nil || !c.Skipped {
		t.Errorf("a second pass within the interval: %+v, %v", c, err)
	}
}

// REQ-CONFIG-CROSS-001, REQ-LIVENESS-002, REQ-LIVENESS-003: an agent is offline after timeoutThreshold, and after three of its
// heartbeats if they end before.
func TestTheTimeoutThresholdCountsForAllAgents(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	for i, c := range []struct{ threshold, heartbeat, live, possibly, gone time.Duration }{
		{180 * time.Second, 60 * time.Second, 110 * time.Second, 130 * time.Second, 185 * time.Second},
		{60 * time.Second, 60 * time.Second, 30 * time.Second, 45 * time.Second, 65 * time.Second},
		{600 * time.Second, 60 * time.Second, 110 * time.Second, 130 * time.Second, 185 * time.Second},
		{180 * time.Second, 300 * time.Second, 110 * time.Second, 130 * time.Second, 185 * time.Second},
	} {
		user := fmt.Sprint("user", i)
		clock := new(nettest.Clock)
		cfg := n.Host("host-a", user, "shop")
		cfg.Now, cfg.TimeoutThreshold = clock.Now, c.threshold
		network := nettest.Open(t, cfg)
		silent := nettest.Worker("typescript")
		silent.HeartbeatInterval = c.heartbeat
		guid := nettest.Register(t, nettest.Open(t, n.Host("host-b", user, "shop")), silent).GUID()
		for _, at := range []struct {
			after time.Duration
			want  registry.Liveness
		}{{c.live, registry.Live}, {c.possibly - c.live, registry.PossiblyOffline}, {c.gone - c.possibly, registry.Gone}} {
			clock.Forward(at.after)
			d, err := network.Agents(t.Context(), registry.Filter{IncludeOffline: true})
			if err != nil {
				t.Fatal(err)
			}
			s := d.Agents[slices.IndexFunc(d.Agents, func(s registry.Summary) bool { return s.GUID == guid })]
			if (s.Status == registry.Offline) != (at.want == registry.Gone) || s.PossiblyOffline != (at.want == registry.PossiblyOffline) {
				t.Errorf("case %d: %+v, want %s", i, s, at.want)
			}
		}
	}
}

// Coming back as oneself, also at once, is no update that is limited.
func TestARestartKeepsTheRegistration(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	cfg := n.Host("host-a", "ann", "shop")
	cfg.Now = new(nettest.Clock).Still()
	guid := ""
	for i := range 3 {
		network := agentnet.Open(cfg)
		if err := network.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		a := nettest.Register(t, network, nettest.Worker("typescript"))
		if i > 0 && a.GUID() != guid {
			t.Errorf("start %d has the GUID %s, not %s", i, a.GUID(), guid)
		}
		guid = a.GUID()
		nettest.Shut(t, network)
	}
}

// Whoever leaves during an outage learns that others do not see it yet, and is shown as offline when the link is back.
func TestWhoLeavesDuringAnOutageIsOfflineAfterIt(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	cfg := n.Host("host-a", "ann", "shop")
	cfg.StateDir = t.TempDir()
	network := nettest.Open(t, cfg)
	ann := nettest.Register(t, network, nettest.Worker("typescript"))
	bob := nettest.Register(t, nettest.Open(t, n.Host("host-b", "bob", "shop")), nettest.Worker("go"))
	n.Stop()
	wait.Eventually(t, "the outage is noticed", func() bool { return !network.Status().Connected })
	if later, err := network.Leave(t.Context(), ann); err != nil || !later {
		t.Errorf("leaves later: %v, %v", later, err)
	}
	if _, err := ann.Discover(t.Context(), registry.Filter{}); nettest.CategoryOf(err) != store.NotRegisteredError {
		t.Errorf("an agent that has left: %v", err)
	}
	n.Start()
	wait.Eventually(t, "the agent is shown as offline", func() bool {
		e, live, err := bob.Info(t.Context(), ann.GUID())
		return err == nil && live == registry.Gone && e.Status == registry.Offline
	})
	again := nettest.Register(t, network, nettest.Worker("typescript"))
	if again.GUID() != ann.GUID() {
		t.Errorf("it came back as %s, not %s", again.GUID(), ann.GUID())
	}
}

// Whoever leaves during an outage and comes back before its end stays: the old departure does not end the new registration.
func TestWhoComesBackDuringAnOutageStays(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	cfg := n.Host("host-a", "ann", "shop")
	cfg.StateDir = t.TempDir() // its lock says at once that the former process has left
	network := nettest.Open(t, cfg)
	ann := nettest.Register(t, network, nettest.Worker("typescript"))
	bob := nettest.Register(t, nettest.Open(t, n.Host("host-b", "bob", "shop")), nettest.Worker("go"))
	n.Stop()
	wait.Eventually(t, "the outage is noticed", func() bool { return !network.Status().Connected })
	if later, err := network.Leave(t.Context(), ann); err != nil || !later {
		t.Errorf("leaves later: %v, %v", later, err)
	}
	n.Start()
	again := nettest.Open(t, cfg)
	if err := again.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	back := nettest.Register(t, again, nettest.Worker("typescript"))
	if back.GUID() != ann.GUID() {
		t.Errorf("it came back as %s, not %s", back.GUID(), ann.GUID())
	}
	nettest.Shut(t, network) // its departure has been decided by then
	var live registry.Liveness
	wait.Eventually(t, "the other is connected again", func() bool {
		var err error
		_, live, err = bob.Info(t.Context(), back.GUID())
		return err == nil
	})
	if live != registry.Live {
		t.Errorf("it is shown as %s", live)
	}
}

// REQ-HEARTBEAT-005: each heartbeat writes the entry, also if it was removed.
func TestAHeartbeatRestoresARemovedEntry(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	a := nettest.Register(t, nettest.Open(t, nettest.WithBeat(n.Host("host-b", "bob", "shop"), 20*time.Millisecond)), nettest.Worker("typescript"))
	kv, err := n.Foreign().KeyValue(t.Context(), "agent-registry")
	if err != nil {
		t.Fatal(err)
	}
	if err := kv.Purge(t.Context(), a.GUID()); err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "the entry", func() bool { _, err := kv.Get(t.Context(), a.GUID()); return err == nil })
	before := a.Entry().LastHeartbeat
	wait.Eventually(t, "a later heartbeat", func() bool { return a.Entry().LastHeartbeat > before })
}

// An agent on a computer with a wrong clock neither appears offline nor sees others as offline.
func TestAWrongClockDoesNotAffectPresence(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	fast, slow := new(nettest.Clock), new(nettest.Clock)
	fast.Forward(5 * time.Hour)
	slow.Forward(-5 * time.Hour)
	ahead, behind := n.Host("host-a", "ann", "shop"), n.Host("host-b", "bob", "shop")
	ahead.Now, behind.Now = fast.Now, slow.Now
	a, b := nettest.Register(t, nettest.Open(t, ahead), nettest.Worker()), nettest.Register(t, nettest.Open(t, behind), nettest.Worker())
	for _, viewer := range []*agentnet.Agent{a, b} {
		d := nettest.Discover(t, viewer, registry.Filter{})
		if len(d.Agents) != 2 || d.Agents[0].PossiblyOffline || d.Agents[1].PossiblyOffline {
			t.Errorf("%+v", d)
		}
	}
	if c, err := nettest.Open(t, ahead).Collect(t.Context(), true); err != nil || len(c.Removed) != 0 {
		t.Errorf("%+v, %v", c, err)
	}
}

// REQ-TOOL-PRESENCE-003, REQ-TOOL-PRESENCE-004, REQ-TOOL-PRESENCE-005, REQ-TOOL-PRESENCE-006, REQ-ABUSE-001, REQ-ABUSE-005
func TestPresence(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	clock := new(nettest.Clock)
	cfg := n.Host("host-a", "ann", "shop")
	cfg.Now = clock.Still()
	network := nettest.Open(t, cfg)
	a := nettest.Register(t, network, nettest.Worker("typescript"))
	busy, three, offline := registry.Busy, 3, registry.Offline
	e, err := a.UpdatePresence(t.Context(), registry.Changes{Status: busy, CurrentTaskCount: &three, Capabilities: []string{"golang"}})
	if err != nil || e.Status != registry.Busy || e.CurrentTaskCount != 3 || !slices.Equal(e.Capabilities, []string{"golang"}) {
		t.Fatalf("%+v, %v", e, err)
	}
	_, err = a.UpdatePresence(t.Context(), registry.Changes{Status: offline})
	nettest.Wants(t, err, store.RateLimitError, "Try again in 10 seconds.")
	// Another process with the same identity is refused too: the count is stored on the bus.
	clock.Forward(11 * time.Second)
	if e, err = a.UpdatePresence(t.Context(), registry.Changes{Status: offline}); err != nil || e.Status != registry.Offline {
		t.Fatalf("%+v, %v", e, err)
	}
	clock.Forward(11 * time.Second)
	idle := registry.Idle
	if e, err = a.UpdatePresence(t.Context(), registry.Changes{Status: idle}); err != nil || e.Status != registry.Idle {
		t.Fatalf("%+v, %v", e, err)
	}
	bad, minus := registry.Presence("gone"), -1
	for _, c := range []registry.Changes{{Status: bad}, {CurrentTaskCount: &minus}, {Capabilities: []string{""}}} {
		_, err := a.UpdatePresence(t.Context(), c)
		nettest.Wants(t, err, store.ValidationError, "")
	}
	if _, err := a.Deregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = a.UpdatePresence(t.Context(), registry.Changes{Status: idle})
	nettest.Wants(t, err, store.NotRegisteredError, "register_agent")
}

// REQ-REGISTRY-009: concurrent updates leave one complete entry with every change.
func TestUpdatesAreAtomic(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	clock := new(nettest.Clock)
	cfg := nettest.WithBeat(n.Host("host-a", "ann", "shop"), time.Millisecond)
	cfg.Now = clock.Now
	a := nettest.Register(t, nettest.Open(t, cfg), nettest.Worker("typescript"))
	kv, err := n.Foreign().KeyValue(t.Context(), "agent-registry")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		clock.Forward(11 * time.Second)
		if _, err := a.UpdatePresence(t.Context(), registry.Changes{CurrentTaskCount: &i}); err != nil {
			t.Fatal(err)
		}
		got, err := kv.Get(t.Context(), a.GUID())
		if err != nil {
			t.Fatal(err)
		}
		var entry registry.Entry
		if err := json.Unmarshal(got.Value(), &entry); err != nil || checkEntry(got.Value()) != nil || entry.CurrentTaskCount != float64(i) {
			t.Fatalf("%d: %s, %v", i, got.Value(), err)
		}
	}
}

// REQ-TOOL-DEREG-006
func TestADeregisteredAgentHasNoSubscription(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss, hand := nettest.Pair(t, n)
	if _, err := hand.Deregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	sent := nettest.SendText(t, boss, hand, "x")
	wait.Eventually(t, "nobody listens", func() bool { return n.Listeners("global.agent."+hand.GUID()) == 0 })
	if s, err := boss.MessageStatus(t.Context(), sent.ID); err != nil || s.Status != mail.Stored {
		t.Errorf("%+v, %v", s, err)
	}
	if n.Listeners("global.agent."+boss.GUID()) == 0 {
		t.Error("the other agent has no subscription")
	}
}

// A hub has thousands of agents that do nothing. The test is not parallel, since it counts goroutines.
func TestAnIdleAgentHasNoGoroutine(t *testing.T) {
	const more = 40
	n := nettest.StartServer(t)
	network := nettest.Open(t, nettest.WithBeat(n.Host("host-a", "ann", "shop"), 20*time.Millisecond))
	agents := []*agentnet.Agent{nettest.Register(t, network, nettest.Worker("go"))}
	few := goroutinesOfAgents()
	for range more {
		agents = append(agents, nettest.Register(t, network, nettest.Worker("go")))
	}
	wait.Eventually(t, "no agent has a goroutine", func() bool { return goroutinesOfAgents() <= few })
	for _, a := range agents {
		before := a.Entry().LastHeartbeat
		wait.Eventually(t, "each has a heartbeat", func() bool { return a.Entry().LastHeartbeat > before })
	}
}

// goroutinesOfAgents counts the goroutines of this process that agents of registries have.
func goroutinesOfAgents() int {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	count := 0
	for stack := range strings.SplitSeq(string(stacks), "\n\n") {
		if strings.Contains(stack, "/internal/agentnet/registry.(") {
			count++
		}
	}
	return count
}

// REQ-ABUSE-006, REQ-DLQ-012, REQ-REGISTRY-013, REQ-HEARTBEAT-006: the log has what operators look
// for.
func TestTheLogHasWhatOperatorsLookFor(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	log := new(nettest.Logs)
	clock := new(nettest.Clock)
	cfg := nettest.WithBeat(n.Host("host-a", "ann", "shop"), 20*time.Millisecond)
	cfg.Logger, cfg.Now = slog.New(slog.NewTextHandler(log, nil)), clock.Now
	network := nettest.Open(t, cfg)
	a := nettest.Register(t, network, nettest.Worker("go"))
	for range 16 {
		if _, err := a.Discover(t.Context(), registry.Filter{}); err != nil && nettest.CategoryOf(err) != store.RateLimitError {
			t.Fatal(err)
		}
	}
	nettest.Submit(t, a, "T", "go")
	c := nettest.Claim(t, a)
	if _, err := a.Reject(t.Context(), "T", c.Token, "no", true); err != nil {
		t.Fatal(err)
	}
	if _, err := a.RetryDeadLetter(t.Context(), "T", true); err != nil {
		t.Fatal(err)
	}
	c = nettest.Claim(t, a)
	if _, err := a.Reject(t.Context(), "T", c.Token, "no", true); err != nil {
		t.Fatal(err)
	}
	if _, err := a.DiscardDeadLetter(t.Context(), "T"); err != nil {
		t.Fatal(err)
	}
	nettest.Register(t, nettest.Open(t, n.Host("host-b", "bob", "shop")), nettest.Worker("go"))
	clock.Forward(time.Hour)
	if _, err := network.Collect(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	n.Stop()
	for _, want := range []string{
		"level=WARN msg=\"an agent ignores a rate limit\"", "level=WARN msg=\"an item of work has failed and is in the dead letters\"",
		"level=WARN msg=\"a dead letter is retried\"", "level=WARN msg=\"a dead letter is discarded\"",
		"level=INFO msg=\"a stale entry was removed from the registry\"", "level=ERROR msg=\"a heartbeat failed\"",
	} {
		wait.Eventually(t, want, func() bool { return strings.Contains(log.String(), want) })
	}
	n.Start()
}

// checkEntry returns why the published schema rejects an entry's JSON.
func checkEntry(data []byte) error {
	_, err := registry.DecodeEntry(data)
	return err
}
