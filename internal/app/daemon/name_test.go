package daemon_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/parleyhub/parley/internal/app/daemon"
)

// Hubs that share a bus must not take each other's tasks for their own.
func TestHubsOnOneBusHaveNamesThatLast(t *testing.T) {
	t.Parallel()
	a, b := t.TempDir(), t.TempDir()
	name := func(dir string, embedded bool) string {
		t.Helper()
		name, err := daemon.HubName(dir, embedded)
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	first := name(a, false)
	if again := name(a, false); again != first {
		t.Errorf("the name changed from %s to %s", first, again)
	}
	if other := name(b, false); other == first {
		t.Error("two hubs have one name")
	}
	if got := name(t.TempDir(), true); got != "local" {
		t.Errorf("on a bus of its own: %s", got)
	}
	if err := os.WriteFile(filepath.Join(a, "hub-name"), []byte("../x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := daemon.HubName(a, false); err == nil {
		t.Errorf("a damaged file gives %q", got)
	}
}
