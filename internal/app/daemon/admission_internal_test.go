package daemon

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/bus"
)

// An agent that is refused with a limit gives up its identity. A network that is not ready yet refuses nobody.
func TestOnlyARefusalEndsAnIdentity(t *testing.T) {
	for code, want := range map[store.Code]bus.Code{
		store.ConnectionError: bus.CodeNotRunning, store.InternalError: bus.CodeStorage, store.ValidationError: bus.CodeConfig,
		store.ConflictError: bus.CodeLimit, store.NotRegisteredError: bus.CodeLimit,
	} {
		if got := bus.CodeOf(busError(&store.Error{Code: code})); got != want {
			t.Errorf("%s: %s, want %s", code, got, want)
		}
	}
	if err := busError(nil); err != nil {
		t.Error(err)
	}
}

// Two operators would answer on the same subjects: one with the defaults, and one for agents that leave them out.
func TestAgentsWithoutSettingsHaveTheDefaults(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	cfg, err := mcpConfig("")
	if err != nil {
		t.Fatal(err)
	}
	settings := func(p dialect.NetworkJoinParams) dialect.NetworkJoinParams {
		return settingsOf(withSettings(store.Config{}, p))
	}
	configured := settings(NetworkSettings(cfg))
	if got := settings(dialect.NetworkJoinParams{AgentType: "a", ProjectPath: "/p", GUID: "g", Secret: "s", Via: dialect.ViaHub}); got != configured {
		t.Errorf("%+v, want %+v", got, configured)
	}
	if got := settings(dialect.NetworkJoinParams{AckTimeout: 7}); got == configured || got.AckTimeout != 7 {
		t.Errorf("%+v", got)
	}
}

// The hub's assigner may be the first in the network, and the first inbox decides on the kind of all.
func TestTheAssignerHasTheUsersSettings(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	d := &daemon{}
	if got := d.assignerConfig(); got.Inboxes != store.InboxesPerAgent || got.Bucket != (store.Config{}).WithDefaults().Bucket {
		t.Errorf("without settings: %s, %s", got.Inboxes, got.Bucket)
	}
	dir := filepath.Join(home, ".nats-mcp")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	settings := `{"crossComputer": {"inboxes": "shared", "registryBucket": "agents-of-ours"}}`
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := d.assignerConfig(); got.Inboxes != store.InboxesShared || got.Bucket != "agents-of-ours" {
		t.Errorf("%s, %s", got.Inboxes, got.Bucket)
	}
}
