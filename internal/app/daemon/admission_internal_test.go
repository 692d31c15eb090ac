package daemon

import (
	"testing"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/api/dialect"
)

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
