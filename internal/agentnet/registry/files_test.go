package registry_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/statefile"
)

// stateFile is a file of a state directory that decides which agent a process is.
type stateFile struct {
	write func(t *testing.T)
	read  func(t *testing.T) any // by a process that becomes the agent, and ends
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// stateFiles are the files of each kind in a directory.
func stateFiles(dir string, log *bytes.Buffer) map[string]stateFile {
	cfg := shop(dir)
	cfg.RememberGUIDs, cfg.Logger = true, slog.New(slog.NewTextHandler(log, nil))
	as := registry.Registration{AgentType: "worker", Handle: "ann", Vendor: "codex", Scope: registry.ScopeProject, Conversation: "t1"}
	stored := func(t *testing.T) any {
		t.Helper()
		g := registry.New(store.New(cfg.WithDefaults()))
		id, err := g.StoredIdentity(as)
		check(t, err)
		defer id.Unlock()
		return g.NewAgent(id, as, registry.AgentOptions{}).GUID()
	}
	remembered := func(t *testing.T) *registry.Remembered {
		t.Helper()
		r, err := registry.Remember(t.Context(), cfg, "hub", as)
		check(t, err)
		return r
	}
	return map[string]stateFile{
		"*.guid": {func(t *testing.T) { stored(t) }, stored},
		"admitted.*.json": {func(t *testing.T) {
			r := remembered(t)
			check(t, r.Keep(store.Admission{GUID: "7f3c1a52-8a0e-4f5b-9d55-0d7c9f1f2b11", Secret: "hidden"}, as.Handle, as.Conversation))
			r.Release()
		}, func(t *testing.T) any {
			r := remembered(t)
			defer r.Release()
			return r.GUID + " " + r.Secret
		}},
		"said.*.json": {func(t *testing.T) {
			check(t, registry.Say(t.Context(), cfg, "hub", as))
		}, func(t *testing.T) any {
			said, ok := registry.Said(cfg, "hub", registry.Registration{AgentType: "codex", Handle: "codex", Vendor: "codex", Scope: registry.ScopeUser, Conversation: "t1"})
			if !ok {
				t.Error("nothing was said")
			}
			other := as // whoever says something has the file's lock, and mends it
			other.Conversation = "t2"
			check(t, registry.Say(t.Context(), cfg, "hub", other))
			check(t, registry.Unsay(t.Context(), cfg, "hub", other))
			return said
		}},
	}
}

// theFile returns the one file with a name, and its content.
func theFile(t *testing.T, dir, pattern string) (path string, content []byte) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	content, err = os.ReadFile(files[0])
	check(t, err)
	return files[0], content
}

func damagedFiles(t *testing.T, dir string) []statefile.Damage {
	t.Helper()
	all, err := registry.DamagedFiles(dir)
	check(t, err)
	return all
}

// A bit is flipped in each byte of each file: the process is the agent that it was, the damage is named once, before and after it is mended,
// and neither its name nor the log has the secret.
func TestAFlippedBitChangesNoAgent(t *testing.T) {
	t.Parallel()
	for pattern := range stateFiles("", nil) {
		t.Run(pattern, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "agents")
			var log bytes.Buffer
			f := stateFiles(dir, &log)[pattern]
			if all := damagedFiles(t, dir); len(all) > 0 {
				t.Errorf("without a directory %+v", all)
			}
			f.write(t)
			want := f.read(t)
			path, content := theFile(t, dir, pattern)
			for at := range content {
				flipped := slices.Clone(content)
				flipped[at] ^= 1 << (at % 8)
				check(t, os.WriteFile(path, flipped, 0o600))
				before := damagedFiles(t, dir)
				if len(before) != 1 || before[0].Path != path || !before[0].Restored || strings.Contains(before[0].Reason, "hidden") {
					t.Fatalf("byte %d: the damage is %+v", at, before)
				}
				if got := f.read(t); !reflect.DeepEqual(got, want) {
					t.Fatalf("byte %d: the agent is %v, was %v", at, got, want)
				}
				if _, now := theFile(t, dir, pattern); !bytes.Equal(now, content) {
					t.Fatalf("byte %d: the file is not restored", at)
				}
				after := damagedFiles(t, dir)
				if len(after) != 1 || after[0].ID != before[0].ID || after[0].Path != path || !after[0].Restored || after[0].Loss != before[0].Loss {
					t.Fatalf("byte %d: the damage is %+v, was %+v", at, after, before)
				}
				check(t, os.Remove(after[0].Kept))
			}
			check(t, os.Remove(path))
			if all := damagedFiles(t, dir); len(all) != 1 || !all[0].Restored {
				t.Errorf("of a file that is gone %+v", all)
			}
			if got := f.read(t); !reflect.DeepEqual(got, want) {
				t.Errorf("without its file the agent is %v, was %v", got, want)
			}
			if strings.Contains(log.String(), "hidden") {
				t.Error("the log has the secret")
			}
		})
	}
}

// What former programs have written is read, and mended from then on; what this one writes, they can read.
func TestStateFilesOfFormerPrograms(t *testing.T) {
	t.Parallel()
	const guid = "7f3c1a52-8a0e-4f5b-9d55-0d7c9f1f2b11"
	former := map[string]string{
		"*.guid":          guid + "\n" + store.Digest("ann") + "\n",
		"admitted.*.json": `{"guid":"` + guid + `","secret":"hidden","handle":"ann","conversations":["t1"]}`,
		"said.*.json":     `[{"conversation":"t1","agentType":"worker","scope":"project"}]`,
	}
	for pattern, text := range former {
		dir := filepath.Join(t.TempDir(), "agents")
		var log bytes.Buffer
		f := stateFiles(dir, &log)[pattern]
		f.write(t)
		path, content := theFile(t, dir, pattern)
		if pattern != "admitted.*.json" && bytes.HasPrefix(content, []byte(`{"sum"`)) {
			t.Errorf("former programs cannot read %s", content)
		}
		check(t, os.Remove(path+".copy"))
		check(t, os.WriteFile(path, []byte(text), 0o600))
		want := f.read(t)
		if pattern != "said.*.json" && !strings.HasPrefix(want.(string), guid) {
			t.Errorf("%s: the agent is %v", pattern, want)
		}
		_, content = theFile(t, dir, pattern)
		content[3] ^= 1
		check(t, os.WriteFile(path, content, 0o600))
		if got := f.read(t); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: the agent is %v, was %v", pattern, got, want)
		}
	}
}
