package registry_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

func remember(t *testing.T, dir, hub, agentType, handle string) *registry.Remembered {
	t.Helper()
	r, err := registry.Remember(t.Context(), store.Config{StateDir: dir, ProjectPath: "/shop", Hostname: "h"}, hub, agentType, handle)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Release)
	return r
}

// Each process has an identity of its own; one that comes back has that of its handle, else the first that is free.
func TestTheComputerRemembersIdentities(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "agents")
	a, b := remember(t, dir, "hub", "worker", "ann"), remember(t, dir, "hub", "worker", "bob")
	adm := store.Admission{GUID: "7f3c1a52-8a0e-4f5b-9d55-0d7c9f1f2b11", Secret: "a"}
	bob := store.Admission{GUID: "0b9f5a0c-3f62-4a6e-8d7e-5f2f3c1f7a42", Secret: "b"}
	for r, adm := range map[*registry.Remembered]store.Admission{a: adm, b: bob} {
		if r.GUID != "" {
			t.Errorf("a new identity: %+v", r)
		}
		if err := r.Keep(adm, map[string]string{"a": "ann", "b": "bob"}[adm.Secret]); err != nil {
			t.Fatal(err)
		}
	}
	for _, other := range []*registry.Remembered{remember(t, dir, "other hub", "worker", "ann"), remember(t, dir, "hub", "reviewer", "ann"), remember(t, dir, "hub", "worker", "ann")} {
		if other.GUID != "" {
			t.Errorf("another's identity: %s", other.GUID)
		}
		other.Release()
	}
	a.Release()
	b.Release()
	if again := remember(t, dir, "hub", "worker", "bob"); again.GUID != bob.GUID || again.Secret != "b" {
		t.Errorf("%+v", again)
	}
	first := remember(t, dir, "hub", "worker", "cid")
	if first.GUID != adm.GUID {
		t.Errorf("%+v", first)
	}
	first.Release()
	files, err := filepath.Glob(filepath.Join(dir, "*.0.json"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if info, err := os.Stat(files[0]); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("others may read the secret: %v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(files[0], []byte(`{"guid":"x`), 0o600); err != nil {
		t.Fatal(err)
	}
	if damaged := remember(t, dir, "hub", "worker", "ann"); damaged.GUID != "" {
		t.Errorf("from a damaged file: %+v", damaged)
	}
	if _, err := registry.Remember(t.Context(), store.Config{StateDir: files[0]}, "hub", "worker", "ann"); err == nil {
		t.Error("a file is no directory")
	}
}

// An agent that comes back is the same at once, though the hub takes its former process to be live, and also if the hub has
// lost the record of its identity; but not if somebody else has proven to be the holder.
func TestAnAgentThatComesBackIsTheSame(t *testing.T) {
	t.Parallel()
	r := nettest.NewHub(t)
	dir := t.TempDir()
	boss := nettest.Enter(t, r.Memberships("/boss"), nettest.Dispatcher())
	members := func(state string) *agentnet.Memberships {
		return agentnet.NewMemberships(agentnet.Config{
			BusConfig: store.Config{ProjectPath: "/shop", StateDir: state, Logger: slog.New(slog.DiscardHandler)},
			Hub:       func(context.Context) (string, error) { return "hub", nil },
		}, r.Admit)
	}
	enter := func() (*agentnet.Agent, func()) {
		t.Helper()
		l := members(dir)
		a, err := l.Register(t.Context(), nettest.Worker("go"))
		if err != nil {
			t.Fatal(err)
		}
		return a, func() {
			if err := l.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}
	}
	// crashed has the directory of a process that was killed: the files of one that lives, without its locks.
	crashed := func() {
		t.Helper()
		copied := t.TempDir()
		if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		dir = copied
	}
	first, end := enter()
	t.Cleanup(end)
	crashed()
	second, end := enter()
	t.Cleanup(end)
	if second.GUID() != first.GUID() || !second.Reused() {
		t.Errorf("%s came back as %s", first.GUID(), second.GUID())
	}
	if _, err := second.Describe(t.Context(), nettest.Worker("go", "c")); err != nil {
		t.Errorf("who comes back may say at once who it is: %v", err)
	}
	nettest.SendText(t, boss, second, "for you")
	if list, _, err := second.Wait(t.Context(), mail.Selection{}); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
	crashed()
	loseRecords(t, r, "slot.>")
	third, end := enter()
	if third.GUID() != first.GUID() {
		t.Errorf("%s came back as %s", first.GUID(), third.GUID())
	}
	end() // its record says that it is free
	again, end := enter()
	t.Cleanup(end)
	if again.GUID() != first.GUID() {
		t.Errorf("%s came back as %s", first.GUID(), again.GUID())
	}
	crashed()
	loseRecords(t, r, ">") // also that of the holder, so that the secret proves nothing
	stranger, end := enter()
	defer end()
	if stranger.GUID() == first.GUID() {
		t.Error("an agent has the GUID of one that is in the registry, without proof")
	}
}

// loseRecords removes records of identities.
func loseRecords(t *testing.T, r *nettest.Hub, keys string) {
	t.Helper()
	b, err := bus.Join(t.Context(), bus.Config{}, func(ctx context.Context) (bus.Grant, error) {
		return r.Bus.Grant(ctx, bus.GrantRequest{Access: bus.AccessNetwork})
	})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(context.Background())
	key := store.Config{}.WithDefaults().IdentityKey(keys)
	stream, err := b.JetStream().Stream(t.Context(), key.Stream)
	if err == nil {
		err = stream.Purge(t.Context(), jetstream.WithPurgeSubject(key.Subject))
	}
	if err != nil {
		t.Fatal(err)
	}
}
