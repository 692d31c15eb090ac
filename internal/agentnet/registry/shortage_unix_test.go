//go:build unix

package registry_test

import (
	"bytes"
	"os"
	"os/exec"
	"reflect"
	"testing"

	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/testbed"
)

// shortageEnv makes the test binary a process that can open few files.
const shortageEnv = "PARLEY_REGISTRY_TEST_FILES"

// Without descriptors nobody becomes another agent, nor is what the computer remembers written anew.
func TestWithoutDescriptorsNobodyBecomesAnotherAgent(t *testing.T) {
	if os.Getenv(shortageEnv) == "" {
		t.Parallel()
		exe, err := os.Executable()
		check(t, err)
		cmd := exec.Command(exe, "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), shortageEnv+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	dir := t.TempDir()
	cfg := shop(dir)
	cfg.RememberGUIDs = true
	as := registry.Registration{AgentType: "worker", Handle: "ann", Vendor: "codex", Scope: registry.ScopeProject, Conversation: "t1"}
	for pattern, f := range stateFiles(dir, new(bytes.Buffer)) {
		t.Log(pattern)
		f.write(t)
	}
	stored := func() (string, error) {
		g := registry.New(store.New(cfg.WithDefaults()))
		id, err := g.StoredIdentity(as)
		if err != nil {
			return "", err
		}
		defer id.Unlock()
		return g.NewAgent(id, as, registry.AgentOptions{}).GUID(), nil
	}
	remembered := func() (string, error) {
		r, err := registry.Remember(t.Context(), cfg, "hub", as)
		if err != nil {
			return "", err
		}
		defer r.Release()
		return r.GUID, nil
	}
	said := func() (string, error) { // by another conversation, which keeps the first one's
		other := as
		other.Conversation = "t2"
		if err := registry.Say(t.Context(), cfg, "hub", other); err != nil {
			return "", err
		}
		have, ok := registry.Said(cfg, "hub", registry.Registration{AgentType: "codex", Handle: "codex", Vendor: "codex", Conversation: "t1"})
		if !ok {
			return "nothing", nil
		}
		return have.AgentType, nil
	}
	for name, become := range map[string]func() (string, error){"stored": stored, "remembered": remembered, "said": said} {
		want, err := become()
		check(t, err)
		short := 0
		for free := range 12 {
			restore := testbed.LeaveDescriptors(t, free)
			got, err := become()
			restore()
			switch {
			case statefile.IsShortage(err):
				short++
			case err != nil || got != want && !(name == "said" && free == 0):
				t.Errorf("%s, with %d descriptors: %q, %v; was %q", name, free, got, err, want)
			}
			if got, err := become(); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s, after %d descriptors: %q, %v; was %q", name, free, got, err, want)
			}
		}
		if short == 0 || short == 12 {
			t.Errorf("%s: %d of 12 times descriptors were missing", name, short)
		}
	}
}
