package sessions_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

// collect removes a session's entry from the registry, as the collector does some minutes after its last heartbeat.
func (o *office) collect(guid string) {
	o.t.Helper()
	cfg := o.computer().BusConfig
	b, err := cfg.Dial(o.t.Context())
	if err != nil {
		o.t.Fatal(err)
	}
	defer b.Close(context.Background())
	key := cfg.WithDefaults().EntryKey(guid)
	stream, err := b.JetStream().Stream(o.t.Context(), key.Stream)
	if err == nil {
		err = stream.Purge(o.t.Context(), jetstream.WithPurgeSubject(key.Subject))
	}
	if err != nil {
		o.t.Fatal(err)
	}
}

// A session that is away is in the directory for a day, as what it was, also when the registry has forgotten it and the hub was restarted: a
// peer goes on seeing it, and a task for it waits.
func TestASessionThatIsAwayIsKeptForADay(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	network := nettest.Open(t, o.computer())
	a := o.register(network, registry.Registration{Handle: "reviewer", Visibility: store.Public, Capabilities: []string{"review"}})
	guid, name := a.GUID(), o.name(a)
	if _, err := network.Leave(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	o.await(guid, hub.Unhealthy)
	is := func(when string) {
		t.Helper()
		wait.Eventually(t, "the registry is read", func() bool { return o.sessions.Refresh(t.Context()) == nil })
		info, ok := o.agent(guid)
		at := info.Residence
		if !ok || info.Definition.ID != name || info.State != hub.AgentOffline || at.Hidden || at.Handle != "reviewer" || time.Since(at.Seen) > time.Minute || len(info.Definition.Capabilities) != 1 {
			t.Errorf("%s it is %v %+v", when, ok, info)
		}
	}
	o.collect(guid)
	is("when its entry is gone")
	o.stop()
	o.start()
	is("after a restart")
	o.stop()
	path := filepath.Join(o.dir, "sessions.json")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	from, to := []byte(`"seen":"20`), []byte(`"seen":"19`) // a century ago
	if bytes.Count(data, from) != 1 {
		t.Fatalf("%s", data)
	}
	_, fields, _ := bytes.Cut(bytes.Replace(data, from, to, 1), []byte(`",`)) // without its checksum, as former programs wrote it
	if err := os.WriteFile(path, append([]byte("{"), fields...), 0o600); err != nil {
		t.Fatal(err)
	}
	o.start()
	wait.Eventually(t, "it is forgotten", func() bool {
		_, ok := o.agent(guid)
		return !ok
	})
}

// A session that has withdrawn itself is not kept.
func TestASessionThatIsPrivateIsNotKept(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	r := registry.Registration{Handle: "reviewer", AgentType: "reviewer", Scope: registry.ScopeProject}
	a := o.session(r)
	r.Visibility = store.Private
	if _, err := a.Describe(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "it is forgotten", func() bool {
		_, ok := o.agent(a.GUID())
		return !ok
	})
}
