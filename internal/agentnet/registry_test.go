package agentnet_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/agentnet"
)

// REQ-REGISTRY-001, REQ-REGISTRY-002, REQ-REGISTRY-003, REQ-REGISTRY-004,
// REQ-REGISTRY-005, REQ-REGISTRY-007, REQ-REGISTRY-010, REQ-TOOL-REGISTER-003,
// REQ-TOOL-REGISTER-004, REQ-TOOL-REGISTER-005, REQ-TOOL-REGISTER-006, REQ-PRIV-002
func TestAForeignClientFindsTheEntry(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	a := register(t, open(t, n.host("host-a", "ann", "shop")), worker("typescript", "testing"))
	js := n.Foreign()
	kv, err := js.KeyValue(t.Context(), "agent-registry")
	if err != nil {
		t.Fatal(err)
	}
	got, err := kv.Get(t.Context(), a.GUID())
	if err != nil {
		t.Fatal(err)
	}
	if err := agentnet.CheckEntry(got.Value()); err != nil {
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
	want := map[string]any{"guid": a.GUID(), "agentType": "tdd-engineer", "handle": "worker-1", "hostname": "host-a", "projectId": "000000000000000s",
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
	n := startServer(t)
	agents := map[string]*agentnet.Agent{}
	add := func(name, host, user, project string, v agentnet.Visibility) {
		agents[name] = register(t, open(t, n.host(host, user, project)),
			agentnet.Registration{Handle: name, AgentType: "a-" + name, Scope: agentnet.ScopeProject, Visibility: v})
	}
	add("public", "host-a", "ann", "shop", agentnet.Public)
	add("private", "host-a", "ann", "shop", agentnet.Private)
	add("project", "host-a", "ann", "shop", agentnet.ProjectOnly)
	add("user", "host-a", "ann", "blog", agentnet.UserOnly)
	add("colleague", "host-b", "bob", "shop", agentnet.Public)
	add("twin", "host-b", "ann", "other", agentnet.Public)
	add("stranger", "host-c", "eve", "evil", agentnet.Public)
	open := []string{"colleague", "public", "stranger", "twin"}
	for viewer, more := range map[string][]string{
		"public": {"project", "user"}, "private": {"private", "project", "user"}, "project": {"project", "user"},
		"user": {"user"}, "colleague": {"project"}, "twin": {}, "stranger": {},
	} {
		got := []string{}
		for _, s := range discover(t, agents[viewer], agentnet.Filter{}).Agents {
			got = append(got, s.Handle)
		}
		slices.Sort(got)
		want := slices.Sorted(slices.Values(slices.Concat(open, more)))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s sees: %s", viewer, diff)
		}
		for name, a := range agents {
			entry, _, err := agents[viewer].Info(t.Context(), a.GUID())
			if sees := slices.Contains(want, name); sees != (err == nil) {
				t.Errorf("%s asks for %s: %v", viewer, name, err)
			}
			if err != nil {
				wants(t, err, agentnet.NotFoundError, "There is no agent "+a.GUID())
			}
			// REQ-TOOL-DISCOVER-004, REQ-PRIV-001, REQ-REGISTRY-006: only the same user learns the name.
			if entry.Username != "" && (name != "user" || (viewer != "user" && viewer != "public" && viewer != "private" && viewer != "project")) {
				t.Errorf("%s learns that %s is %s", viewer, name, entry.Username)
			}
		}
	}
}

// REQ-TOOL-DISCOVER-002, REQ-TOOL-DISCOVER-005, REQ-TOOL-DISCOVER-006, REQ-TOOL-DISCOVER-007, REQ-TOOL-DISCOVER-008
func TestDiscoveryFilters(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	boss := register(t, open(t, n.host("host-a", "ann", "shop")), dispatcher())
	one := register(t, open(t, n.host("host-b", "bob", "shop")), worker("TypeScript", "testing"))
	two := register(t, open(t, n.host("host-c", "cid", "blog")), worker("golang"))
	three := register(t, open(t, n.host("host-d", "dan", "blog")), worker())
	busy := agentnet.Busy
	if _, err := two.UpdatePresence(t.Context(), agentnet.Changes{Status: &busy}); err != nil {
		t.Fatal(err)
	}
	if err := three.Deregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		filter agentnet.Filter
		want   []*agentnet.Agent
	}{
		{"none", agentnet.Filter{}, []*agentnet.Agent{boss, one, two}},
		{"type", agentnet.Filter{AgentType: "dispatcher"}, []*agentnet.Agent{boss}},
		{"part of a type", agentnet.Filter{AgentType: "dispatch"}, nil},
		{"part of a capability", agentnet.Filter{Capability: "script"}, []*agentnet.Agent{one}},
		{"host", agentnet.Filter{Hostname: "HOST-C"}, []*agentnet.Agent{two}},
		{"project", agentnet.Filter{ProjectID: one.Entry().ProjectID}, []*agentnet.Agent{one}},
		{"status", agentnet.Filter{Status: agentnet.Busy}, []*agentnet.Agent{two}},
		{"scope", agentnet.Filter{Scope: agentnet.ScopeCrossProject}, []*agentnet.Agent{boss}},
		{"offline ones", agentnet.Filter{Status: agentnet.Offline}, []*agentnet.Agent{three}},
	} {
		d, err := open(t, n.host("host-z", "zoe", "none")).Agents(t.Context(), tt.filter)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{}
		for _, a := range tt.want {
			want = append(want, a.GUID())
		}
		// The order is that of heartbeats, of hosts that agree on the time but roughly.
		if diff := cmp.Diff(slices.Sorted(slices.Values(want)), slices.Sorted(slices.Values(guids(d)))); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
	if d := discover(t, boss, agentnet.Filter{Limit: 2}); len(d.Agents) != 2 || d.Total != 3 {
		t.Errorf("the first two: %+v", d)
	}
	if d := discover(t, boss, agentnet.Filter{IncludeOffline: true}); len(d.Agents) != 4 || d.Total != 4 {
		t.Errorf("with offline ones: %+v", d)
	}
	for _, f := range []agentnet.Filter{{Limit: -1}, {Limit: 1001}, {Status: "lazy"}, {Scope: "all"}} {
		_, err := boss.Discover(t.Context(), f)
		wants(t, err, agentnet.ValidationError, "Use ")
	}
}

// REQ-TOOL-REGISTER-002, REQ-REGISTRY-008
func TestWrongRegistrationsAreRefused(t *testing.T) {
	t.Parallel()
	n := open(t, startServer(t).host("host-a", "ann", "shop"))
	for name, change := range map[string]func(*agentnet.Registration){
		"type":       func(r *agentnet.Registration) { r.AgentType = "Big Boss" },
		"no type":    func(r *agentnet.Registration) { r.AgentType = "" },
		"handle":     func(r *agentnet.Registration) { r.Handle = "a b" },
		"scope":      func(r *agentnet.Registration) { r.Scope = "world" },
		"visibility": func(r *agentnet.Registration) { r.Visibility = "secret" },
		"tasks":      func(r *agentnet.Registration) { r.MaxConcurrentTasks = -1 },
		"beat":       func(r *agentnet.Registration) { r.HeartbeatInterval = 9 * time.Second },
		"capability": func(r *agentnet.Registration) { r.Capabilities = []string{""} },
		"too many":   func(r *agentnet.Registration) { r.Capabilities = slices.Repeat([]string{"a"}, 65) },
	} {
		r := worker("typescript")
		change(&r)
		if _, err := n.Register(t.Context(), r); category(err) != agentnet.ValidationError {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// REQ-TOOL-REGISTER-009, REQ-TOOL-DEREG-003, REQ-TOOL-DEREG-004, REQ-TOOL-DEREG-005, REQ-REGISTRY-014
func TestAnAgentThatComesBackIsTheSame(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	boss := register(t, open(t, n.host("host-a", "ann", "shop")), dispatcher())
	cfg := n.host("host-b", "bob", "shop")
	first := agentnet.Open(cfg)
	if err := first.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	a := register(t, first, worker("typescript"))
	shut(t, first)
	entry, live, err := boss.Info(t.Context(), a.GUID())
	if err != nil || entry.Status != agentnet.Offline || live != agentnet.Gone {
		t.Errorf("after the end: %+v, %s, %v", entry, live, err)
	}
	sent, err := boss.Send(t.Context(), agentnet.Message{Recipient: a.GUID(), Text: "while you were away"})
	if err != nil || sent.Warning == "" {
		t.Fatalf("%+v, %v", sent, err)
	}
	_, err = a.Discover(t.Context(), agentnet.Filter{})
	wants(t, err, agentnet.NotRegisteredError, "register_agent")
	again := register(t, open(t, cfg), worker("typescript"))
	if again.GUID() != a.GUID() || !again.Reused() {
		t.Errorf("was %s, is %s", a.GUID(), again.GUID())
	}
	mail, _, err := again.Read(t.Context(), agentnet.Selection{})
	if err != nil || len(mail) != 1 || mail[0].Text != "while you were away" {
		t.Errorf("%+v, %v", mail, err)
	}
	other := register(t, open(t, n.host("host-c", "bob", "shop")), worker("typescript"))
	if other.GUID() == a.GUID() {
		t.Error("another host has the same GUID")
	}
}

// Two that live at the same time are two, and each comes back as itself.
func TestTwoAgentsOfOneKindHaveTwoIdentities(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	cfg := n.host("host-b", "bob", "shop")
	cfg.StateDir = filepath.Join(t.TempDir(), "agents")
	one, two := register(t, open(t, cfg), worker()), register(t, open(t, cfg), worker())
	if one.GUID() == two.GUID() {
		t.Fatal("both are", one.GUID())
	}
	if err := one.Deregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	if three := register(t, open(t, cfg), worker()); three.GUID() != one.GUID() {
		t.Errorf("the free identity %s is not taken: %s", one.GUID(), three.GUID())
	}
}

// REQ-HEARTBEAT-001, REQ-HEARTBEAT-002, REQ-HEARTBEAT-005, REQ-HEARTBEAT-008,
// REQ-LIVENESS-002, REQ-LIVENESS-003, REQ-LIVENESS-004, REQ-REGISTRY-011, REQ-REGISTRY-012,
// REQ-REGISTRY-013, REQ-TEST-CROSS-004, REQ-TEST-CROSS-005
func TestAnAgentThatFallsSilentIsOfflineAndThenRemoved(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	clock := new(skewed)
	cfg := n.host("host-a", "ann", "shop")
	cfg.Now = clock.now
	network := open(t, cfg)
	silent := register(t, open(t, n.host("host-b", "bob", "shop")), worker("typescript"))
	_, _ = silent, clock
	see := func() agentnet.Summary {
		d, err := network.Agents(t.Context(), agentnet.Filter{IncludeOffline: true})
		if err != nil || len(d.Agents) != 1 {
			t.Fatalf("%+v, %v", d, err)
		}
		return d.Agents[0]
	}
	if s := see(); s.Status != agentnet.Active || s.PossiblyOffline {
		t.Errorf("at first: %+v", s)
	}
	clock.forward(125 * time.Second)
	if s := see(); s.Status != agentnet.Active || !s.PossiblyOffline {
		t.Errorf("after two heartbeats: %+v", s)
	}
	clock.forward(60 * time.Second)
	if s := see(); s.Status != agentnet.Offline {
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

// REQ-HEARTBEAT-005: the entry is written again and again, also if somebody has
// removed it.
func TestTheHeartbeatBringsARemovedEntryBack(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	a := register(t, open(t, agentnet.WithBeat(n.host("host-b", "bob", "shop"), 20*time.Millisecond)), worker("typescript"))
	kv, err := n.Foreign().KeyValue(t.Context(), "agent-registry")
	if err != nil {
		t.Fatal(err)
	}
	if err := kv.Purge(t.Context(), a.GUID()); err != nil {
		t.Fatal(err)
	}
	await(t, "the entry", func() bool { _, err := kv.Get(t.Context(), a.GUID()); return err == nil })
	before := a.Entry().LastHeartbeat
	await(t, "a later heartbeat", func() bool { return a.Entry().LastHeartbeat > before })
}

// A computer whose clock is wrong neither seems offline nor takes others to be.
func TestAWrongClockDoesNoHarm(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	fast, slow := new(skewed), new(skewed)
	fast.forward(5 * time.Hour)
	slow.forward(-5 * time.Hour)
	ahead, behind := n.host("host-a", "ann", "shop"), n.host("host-b", "bob", "shop")
	ahead.Now, behind.Now = fast.now, slow.now
	a, b := register(t, open(t, ahead), worker()), register(t, open(t, behind), worker())
	for _, viewer := range []*agentnet.Agent{a, b} {
		d := discover(t, viewer, agentnet.Filter{})
		if len(d.Agents) != 2 || d.Agents[0].PossiblyOffline || d.Agents[1].PossiblyOffline {
			t.Errorf("%+v", d)
		}
	}
	if c, err := open(t, ahead).Collect(t.Context(), true); err != nil || len(c.Removed) != 0 {
		t.Errorf("%+v, %v", c, err)
	}
}

// REQ-TOOL-PRESENCE-003, REQ-TOOL-PRESENCE-004, REQ-TOOL-PRESENCE-005, REQ-TOOL-PRESENCE-006, REQ-ABUSE-001, REQ-ABUSE-005
func TestPresence(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	clock := new(skewed)
	cfg := n.host("host-a", "ann", "shop")
	cfg.Now = clock.still()
	network := open(t, cfg)
	a := register(t, network, worker("typescript"))
	busy, three, offline := agentnet.Busy, 3, agentnet.Offline
	e, err := a.UpdatePresence(t.Context(), agentnet.Changes{Status: &busy, CurrentTaskCount: &three, Capabilities: []string{"golang"}})
	if err != nil || e.Status != agentnet.Busy || e.CurrentTaskCount != 3 || !slices.Equal(e.Capabilities, []string{"golang"}) {
		t.Fatalf("%+v, %v", e, err)
	}
	_, err = a.UpdatePresence(t.Context(), agentnet.Changes{Status: &offline})
	wants(t, err, agentnet.RateLimitError, "Try again in 10 seconds.")
	// Another process with the identity is refused as well: the count is on the bus.
	clock.forward(11 * time.Second)
	if e, err = a.UpdatePresence(t.Context(), agentnet.Changes{Status: &offline}); err != nil || e.Status != agentnet.Offline {
		t.Fatalf("%+v, %v", e, err)
	}
	clock.forward(11 * time.Second)
	idle := agentnet.Idle
	if e, err = a.UpdatePresence(t.Context(), agentnet.Changes{Status: &idle}); err != nil || e.Status != agentnet.Idle {
		t.Fatalf("%+v, %v", e, err)
	}
	bad, minus := agentnet.Presence("gone"), -1
	for _, c := range []agentnet.Changes{{Status: &bad}, {CurrentTaskCount: &minus}, {Capabilities: []string{""}}} {
		_, err := a.UpdatePresence(t.Context(), c)
		wants(t, err, agentnet.ValidationError, "")
	}
	if err := a.Deregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = a.UpdatePresence(t.Context(), agentnet.Changes{Status: &idle})
	wants(t, err, agentnet.NotRegisteredError, "register_agent")
}

// REQ-ABUSE-002, REQ-ABUSE-003, REQ-ABUSE-004: the limits are the identity's,
// whichever process has it.
func TestRateLimitsOutliveTheProcess(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	cfg := n.host("host-a", "ann", "shop")
	clock := new(skewed)
	cfg.Now = clock.still()
	first := agentnet.Open(cfg)
	if err := first.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	a := register(t, first, worker())
	other := register(t, open(t, n.host("host-b", "bob", "shop")), worker())
	for range 10 {
		discover(t, a, agentnet.Filter{})
	}
	for i := range 100 {
		if _, err := a.Send(t.Context(), agentnet.Message{Recipient: other.GUID(), Text: "x"}); err != nil {
			t.Fatal(i, err)
		}
	}
	for range 10 {
		if _, err := a.BroadcastOffer(t.Context(), agentnet.Broadcast{Offer: agentnet.Offer{TaskID: "t", Description: "d"}}); err != nil {
			t.Fatal(err)
		}
	}
	shut(t, first)
	clock.forward(11 * time.Second) // for the limit of registrations
	again := register(t, open(t, cfg), worker())
	if again.GUID() != a.GUID() {
		t.Fatal("not the same identity")
	}
	_, err := again.Discover(t.Context(), agentnet.Filter{})
	wants(t, err, agentnet.RateLimitError, "10 in 1m0s")
	_, err = again.Send(t.Context(), agentnet.Message{Recipient: other.GUID(), Text: "x"})
	wants(t, err, agentnet.RateLimitError, "100 in 1m0s")
	_, err = again.BroadcastOffer(t.Context(), agentnet.Broadcast{Offer: agentnet.Offer{TaskID: "t", Description: "d"}})
	wants(t, err, agentnet.RateLimitError, "10 in 1m0s")
	if _, err := other.Discover(t.Context(), agentnet.Filter{}); err != nil {
		t.Errorf("another agent is refused too: %v", err)
	}
	clock.forward(time.Minute)
	if _, err := again.Discover(t.Context(), agentnet.Filter{}); err != nil {
		t.Errorf("a minute later: %v", err)
	}
}

// REQ-TEST-CROSS-010, REQ-HEARTBEAT-006, REQ-HEARTBEAT-007
func TestAnOutageIsToldAndSurvived(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	network := open(t, agentnet.WithBeat(n.host("host-a", "ann", "shop"), 50*time.Millisecond))
	a := register(t, network, worker("typescript"))
	n.Stop()
	await(t, "the loss", func() bool { return !network.Status().Connected })
	_, err := a.Discover(t.Context(), agentnet.Filter{})
	wants(t, err, agentnet.ConnectionError, "interrupted")
	_, err = a.Send(t.Context(), agentnet.Message{Recipient: a.GUID(), Text: "x"})
	wants(t, err, agentnet.ConnectionError, "interrupted")
	before := a.Entry().LastHeartbeat
	n.Start()
	await(t, "the connection", func() bool { return network.Status().Connected })
	await(t, "a heartbeat after it", func() bool { return a.Entry().LastHeartbeat > before })
	if d := discover(t, a, agentnet.Filter{}); len(d.Agents) != 1 {
		t.Errorf("%+v", d)
	}
}

func TestANetworkThatIsNotThereIsTold(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	n.Stop()
	network := agentnet.Open(n.host("host-a", "ann", "shop"))
	t.Cleanup(func() { shut(t, network) })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := network.Ready(ctx); category(err) != agentnet.ConnectionError {
		t.Error(err)
	}
	_, err := network.Register(t.Context(), worker())
	wants(t, err, agentnet.ConnectionError, "")
	n.Start()
	if err := network.Ready(t.Context()); err != nil {
		t.Error(err)
	}
}

// REQ-REGISTRY-009: changes at the same time leave one whole entry, with each
// change in it.
func TestUpdatesAreAtomic(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	clock := new(skewed)
	cfg := agentnet.WithBeat(n.host("host-a", "ann", "shop"), time.Millisecond)
	cfg.Now = clock.now
	a := register(t, open(t, cfg), worker("typescript"))
	kv, err := n.Foreign().KeyValue(t.Context(), "agent-registry")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		clock.forward(11 * time.Second)
		if _, err := a.UpdatePresence(t.Context(), agentnet.Changes{CurrentTaskCount: &i}); err != nil {
			t.Fatal(err)
		}
		got, err := kv.Get(t.Context(), a.GUID())
		if err != nil {
			t.Fatal(err)
		}
		var entry agentnet.Entry
		if err := json.Unmarshal(got.Value(), &entry); err != nil || agentnet.CheckEntry(got.Value()) != nil || entry.CurrentTaskCount != float64(i) {
			t.Fatalf("%d: %s, %v", i, got.Value(), err)
		}
	}
}

// REQ-TOOL-DEREG-006
func TestAnAgentThatHasLeftDoesNotListen(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	boss, hand := pair(t, n)
	if err := hand.Deregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	sent := sendText(t, boss, hand, "x")
	await(t, "nobody listens", func() bool { return n.listeners("global.agent."+hand.GUID()) == 0 })
	if s, err := boss.MessageStatus(t.Context(), sent.ID); err != nil || s.Status != agentnet.Stored {
		t.Errorf("%+v, %v", s, err)
	}
	if n.listeners("global.agent."+boss.GUID()) == 0 {
		t.Error("the other one does not listen")
	}
}

// REQ-ABUSE-002, REQ-ABUSE-003, REQ-ABUSE-004: a second process of the kind, which
// lives at the same time, has a GUID of its own and no allowance of its own; nor have
// agents without end that call themselves something else.
func TestAnotherProcessIsNoWayAroundALimit(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	cfg := n.host("host-a", "ann", "shop")
	cfg.Now = new(skewed).still() // all of it within a minute, however long it takes
	a := register(t, open(t, cfg), worker())
	other := register(t, open(t, n.host("host-b", "ann", "shop")), worker())
	for range 10 {
		discover(t, a, agentnet.Filter{})
	}
	for range 10 {
		if _, err := a.BroadcastOffer(t.Context(), agentnet.Broadcast{Offer: agentnet.Offer{TaskID: "t", Description: "d"}}); err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		sendText(t, a, other, "x")
	}
	twin := register(t, open(t, cfg), worker())
	if twin.GUID() == a.GUID() {
		t.Fatal("they are one")
	}
	_, err := twin.Discover(t.Context(), agentnet.Filter{})
	wants(t, err, agentnet.RateLimitError, "10 in 1m0s")
	_, err = twin.BroadcastOffer(t.Context(), agentnet.Broadcast{Offer: agentnet.Offer{TaskID: "t", Description: "d"}})
	wants(t, err, agentnet.RateLimitError, "10 in 1m0s")
	_, err = twin.Send(t.Context(), agentnet.Message{Recipient: other.GUID(), Text: "x"})
	wants(t, err, agentnet.RateLimitError, "100 in 1m0s")
	discover(t, other, agentnet.Filter{}) // of another computer

	network := open(t, cfg)
	for i := range 11 {
		r := worker()
		r.AgentType = fmt.Sprint("worker-", i)
		again := register(t, network, r)
		for j := range 10 {
			if _, err = again.Discover(t.Context(), agentnet.Filter{}); err != nil {
				wants(t, err, agentnet.RateLimitError, "this project's agents on this computer: at most 100 in 1m0s")
				if i != 9 || j != 0 {
					t.Errorf("after %d and %d", i, j)
				}
				return
			}
		}
	}
	t.Error("there is no end")
}

// REQ-ABUSE-006, REQ-DLQ-012, REQ-REGISTRY-013, REQ-HEARTBEAT-006: what an operator looks for is in the log.
func TestTheLogTellsWhatOperatorsLookFor(t *testing.T) {
	t.Parallel()
	n := startServer(t)
	log := new(logs)
	clock := new(skewed)
	cfg := agentnet.WithBeat(n.host("host-a", "ann", "shop"), 20*time.Millisecond)
	cfg.Logger, cfg.Now = slog.New(slog.NewTextHandler(log, nil)), clock.now
	network := open(t, cfg)
	a := register(t, network, worker("go"))
	for range 16 {
		if _, err := a.Discover(t.Context(), agentnet.Filter{}); err != nil && category(err) != agentnet.RateLimitError {
			t.Fatal(err)
		}
	}
	submit(t, a, "T", "go")
	c := claim(t, a)
	if _, err := a.Reject(t.Context(), "T", c.Token, "no", true); err != nil {
		t.Fatal(err)
	}
	if _, err := a.RetryDeadLetter(t.Context(), "T", true); err != nil {
		t.Fatal(err)
	}
	c = claim(t, a)
	if _, err := a.Reject(t.Context(), "T", c.Token, "no", true); err != nil {
		t.Fatal(err)
	}
	if _, err := a.DiscardDeadLetter(t.Context(), "T"); err != nil {
		t.Fatal(err)
	}
	register(t, open(t, n.host("host-b", "bob", "shop")), worker("go"))
	clock.forward(time.Hour)
	if _, err := network.Collect(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	n.Stop()
	for _, want := range []string{
		"level=WARN msg=\"an agent goes on although a rate limit refuses it\"", "level=WARN msg=\"an item of work has failed and is in the dead letters\"",
		"level=WARN msg=\"a dead letter is retried\"", "level=WARN msg=\"a dead letter is discarded\"",
		"level=INFO msg=\"a stale entry was removed from the registry\"", "level=ERROR msg=\"a heartbeat failed\"",
	} {
		await(t, want, func() bool { return strings.Contains(log.String(), want) })
	}
	n.Start()
}
