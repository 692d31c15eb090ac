package daemon

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/federation/peers"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
)

// The hub notes, once each, what is damaged of the files that processes of agents have, and what a command has restored in its data directory.
func TestDamageThatOtherProcessesFindIsNoted(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	flip := func(pattern string) {
		t.Helper()
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) != 1 {
			t.Fatal(files, err)
		}
		raw, err := os.ReadFile(files[0])
		if err == nil {
			raw[9] ^= 1
			err = os.WriteFile(files[0], raw, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	key, err := identity.Load(peers.KeyPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	flip(peers.KeyPath(dir))
	if again, err := identity.Load(peers.KeyPath(dir)); err != nil || again.Public() != key.Public() {
		t.Fatal("the key is another one", err)
	}
	cfg := store.Config{StateDir: mcpconfig.AgentsDir(), Hostname: "h", ProjectPath: "/p"}
	remember := func() *registry.Remembered {
		t.Helper()
		r, err := registry.Remember(t.Context(), cfg, "hub", registry.Registration{AgentType: "worker", Handle: "ann"})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := remember()
	const guid = "7f3c1a52-8a0e-4f5b-9d55-0d7c9f1f2b11"
	if err := r.Keep(store.Admission{GUID: guid, Secret: "s"}, "ann", ""); err != nil {
		t.Fatal(err)
	}
	r.Release()
	synctest.Test(t, func(t *testing.T) {
		d := &daemon{cfg: &config.Loaded{Config: &config.Config{DataDir: dir}}, log: slog.New(slog.DiscardHandler)}
		later := func() {
			wait.Pause(t.Context(), 2*filesInterval)
			synctest.Wait() // it may look at this moment, too
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); d.watchFiles(ctx) }()
		synctest.Wait()
		flip(filepath.Join(mcpconfig.AgentsDir(), "admitted.*.json"))
		later()
		again := remember()
		again.Release()
		if again.GUID != guid {
			t.Errorf("the agent is %q", again.GUID)
		}
		later()
		unsent := filepath.Join(mcpconfig.UnsentDir(), "unsent-1-2.json")
		if err := errors.Join(os.MkdirAll(mcpconfig.UnsentDir(), 0o700), os.WriteFile(unsent, []byte("damaged"), 0o600)); err != nil {
			t.Fatal(err)
		}
		if _, err := statefile.KeepDamaged(unsent); err != nil {
			t.Fatal(err)
		}
		later()
		for _, path := range []string{"admitted.*.json", "admitted.*.json.copy"} {
			flip(filepath.Join(mcpconfig.AgentsDir(), path))
		}
		later()
		remember().Release() // moves it aside
		later()
		if n := len(d.damaged); n != 5 || d.damaged[3].Kept != "" || d.damaged[3].ID != d.damaged[4].ID || d.damaged[4].Kept == "" {
			t.Fatalf("noted was %+v", d.damaged)
		}
		d.damaged = d.damaged[:3]
		state := filepath.Join(dir, "loops", "0123", "state.json")
		if err := errors.Join(os.MkdirAll(filepath.Dir(state), 0o700), statefile.Edited(state).Write([]byte("the state of a loop"))); err != nil {
			t.Fatal(err)
		}
		flip(state)
		later()
		if _, err := statefile.Edited(state).Read(); err != nil { // mends it
			t.Fatal(err)
		}
		later()
		stop()
		<-done
		if len(d.damaged) != 4 || d.damaged[3].Path != state || !d.damaged[3].Restored {
			t.Fatalf("noted was %+v", d.damaged)
		}
		key, agent, message := d.damaged[0], d.damaged[1], d.damaged[2]
		if key.Path != peers.KeyPath(dir) || !key.Restored || !agent.Restored || agent.Loss == "" || message.Path != unsent || message.Restored || message.Loss == "" {
			t.Errorf("noted was %+v", d.damaged)
		}
	})
}

// A running hub mends what it reads at its starts only, so that no second damage keeps the next one from starting.
func TestARunningHubMendsItsFiles(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	dir := t.TempDir()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(prepareFormat(dir, "1", nil))
	name, err := uniqueName(dir, nil)
	check(err)
	key, err := identity.Load(peers.KeyPath(dir))
	check(err)
	files := []string{filepath.Join(dir, "format.json"), filepath.Join(dir, "hub-name"), peers.KeyPath(dir)}
	synctest.Test(t, func(t *testing.T) {
		d := &daemon{cfg: &config.Loaded{Config: &config.Config{DataDir: dir}}, log: slog.New(slog.DiscardHandler), opts: Options{Version: "1"}}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); d.watchFiles(ctx) }()
		synctest.Wait()
		later := func() {
			wait.Pause(t.Context(), 2*filesInterval)
			synctest.Wait() // it may look at this moment, too
		}
		for _, file := range files { // one after the other, as disks lose them
			check(os.Remove(file))
			later()
			check(os.Truncate(file+".copy", 1))
			later()
			check(os.Remove(file))
			later()
		}
		check(os.Truncate(files[0], 1)) // both at once: the hub knows what was there
		check(os.Truncate(files[0]+".copy", 1))
		later()
		stop()
		<-done
		if len(d.damaged) < 5 || !d.damaged[0].Restored || d.damaged[0].Path != files[0] {
			t.Errorf("noted was %+v", d.damaged)
		}
	})
	check(prepareFormat(dir, "1", func(x statefile.Damage) { t.Errorf("the next start finds %+v", x) }))
	if again, err := uniqueName(dir, nil); err != nil || again != name {
		t.Errorf("the name is %q, %v; was %q", again, err, name)
	}
	if again, err := identity.Load(peers.KeyPath(dir)); err != nil || again.Public() != key.Public() {
		t.Error("the key is another one", err)
	}
}

// What a newer program has written meanwhile stays as it is, for the next start to refuse.
func TestARunningHubLeavesTheFormatOfAnotherProgram(t *testing.T) {
	dir := t.TempDir()
	if err := prepareFormat(dir, "1", nil); err != nil {
		t.Fatal(err)
	}
	file, newer := filepath.Join(dir, "format.json"), `{"format":99,"program":"9.0.0"}`
	if err := local.ReplaceFile(file, []byte(newer)); err != nil {
		t.Fatal(err)
	}
	err := keepFormat(dir, "1", func(x statefile.Damage) { t.Errorf("it counts as %+v", x) })
	if raw, rerr := os.ReadFile(file); err != nil || rerr != nil || string(raw) != newer {
		t.Errorf("the file has %s, %v, %v", raw, err, rerr)
	}
}
