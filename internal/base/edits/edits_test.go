package edits_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/base/edits"
)

func TestFilesOfEachProgramsTools(t *testing.T) {
	const patch = "*** Begin Patch\n*** Update File: a.go\n@@\n-x\n+y\n*** Add File: sub/b.go\n+z\n*** Move to: c.go\n*** Delete File: d.go\n*** End Patch"
	quoted, err := json.Marshal(patch)
	if err != nil {
		t.Fatal(err)
	}
	all := []string{"a.go", "sub/b.go", "c.go", "d.go"}
	for _, c := range []struct {
		name, tool, input string
		want              []string
	}{
		{"claude edit", "Edit", `{"file_path":"a.go","old_string":"*** Update File: no.go"}`, []string{"a.go"}},
		{"claude notebook", "NotebookEdit", `{"notebook_path":"n.ipynb"}`, []string{"n.ipynb"}},
		{"claude read", "Read", `{"file_path":"a.go"}`, nil},
		{"gemini", "write_file", `{"file_path":"a.go","content":"x"}`, []string{"a.go"}},
		{"vibe write", "write_file", `{"path":"a.go","content":"x"}`, []string{"a.go"}},
		{"vibe replace", "search_replace", `{"file_path":"a.go","content":"x"}`, []string{"a.go"}},
		{"opencode", "edit", `{"filePath":"a.go"}`, []string{"a.go"}},
		{"opencode patch", "patch", `{"patchText":` + string(quoted) + `}`, all},
		{"codex hook", "apply_patch", `{"command":` + string(quoted) + `}`, all},
		{"codex shell", "shell", `{"command":` + string(quoted) + `,"path":"no.go"}`, all},
		{"codex older shell", "shell", `{"command":["apply_patch",` + string(quoted) + `]}`, all},
		{"shell without a patch", "Bash", `{"command":"rm a.go"}`, nil},
		{"codex changes", "apply_patch", `[{"path":"a.go","kind":{"type":"update","move_path":"b.go"}},{"path":"c.go","kind":"add"},7]`, []string{"a.go", "b.go", "c.go"}},
		{"codex older changes", "apply_patch", `{"a.go":{"type":"update","move_path":"b.go"},"c.go":{"update":{"move_path":"d.go"}}}`, []string{"a.go", "b.go", "c.go", "d.go"}},
		{"nothing", "Edit", ``, nil},
		{"a word", "Edit", `"a.go"`, nil},
		{"no object of changes", "apply_patch", `{"a.go":7}`, nil},
		{"twice", "apply_patch", `[{"path":"a.go"},{"path":"a.go"}]`, []string{"a.go"}},
	} {
		dir := t.TempDir()
		var want []string
		for _, name := range c.want {
			want = append(want, filepath.Join(dir, filepath.FromSlash(name)))
		}
		if got := edits.Files(c.tool, json.RawMessage(c.input), dir); !slices.Equal(got, want) {
			t.Errorf("%s: %q, not %q", c.name, got, want)
		}
	}
}

func TestAShellsPatchIsBelowItsDirectory(t *testing.T) {
	dir := t.TempDir()
	input, err := json.Marshal(map[string]string{"command": "*** Add File: a.go", "cwd": dir})
	if err != nil {
		t.Fatal(err)
	}
	if got := edits.Files("shell", input, "elsewhere"); !slices.Equal(got, []string{filepath.Join(dir, "a.go")}) {
		t.Errorf("%q", got)
	}
}

func TestAbsolutePathsStay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.go")
	input, err := json.Marshal(map[string]string{"file_path": path})
	if err != nil {
		t.Fatal(err)
	}
	if got := edits.Files("Write", input, "elsewhere"); !slices.Equal(got, []string{path}) {
		t.Errorf("%q", got)
	}
}

func TestInputsAreBounded(t *testing.T) {
	var list []string
	for i := range 2 * edits.MaxFiles {
		list = append(list, fmt.Sprintf(`{"path":"f%d"}`, i))
	}
	if got := edits.Files("apply_patch", json.RawMessage("["+strings.Join(list, ",")+"]"), "/"); len(got) != edits.MaxFiles {
		t.Errorf("%d files of a list", len(got))
	}
	patch := `{"command":"` + strings.Repeat(`*** Add File: x\n`, 2*edits.MaxFiles) + `"}`
	if got := edits.Files("apply_patch", json.RawMessage(patch), "/"); len(got) != 1 {
		t.Errorf("%d files of a patch", len(got))
	}
	if got := edits.Files("Edit", json.RawMessage(`{"file_path":"`+strings.Repeat("x", 5000)+`"}`), "/"); got != nil {
		t.Error("a path that is too long is returned")
	}
}
