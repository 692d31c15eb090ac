//go:build unix

package install_test

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/app/install"
)

// ofProject are the files of a project's scope, by the file of the user's with the same kind of content.
var ofProject = map[string]string{
	".claude.json": ".mcp.json", ".claude/settings.json": ".claude/settings.json", ".gemini/settings.json": ".gemini/settings.json",
	".config/opencode/opencode.jsonc": "opencode.jsonc", ".gemini/antigravity-cli/mcp_config.json": ".agents/mcp_config.json", ".vibe/config.toml": ".vibe/config.toml",
}

// edited is what a person changes while Parley is entered: a value, a comment, and something new in front.
var edited = strings.NewReplacer("\"numStartups\": 7", "\"numStartups\": 8, \"new\": [1, 2]", "\"dark\"", "\"light\"", "# my settings", "# my own settings\r\n\r\n#",
	"# mine", "# ours", "// mine", "// ours", "\"command\": \"x\"", "\"command\":\"z\" ", "\"command\":\"x\"", "\"command\":\"z\"", "// comments", "// no comments")

// forms are the ways in which a file may be there. Each writes a text; nil is a file that is missing.
var forms = map[string]func(t *testing.T, path, text string){
	"as it is": writeAs(0o600, func(s string) string { return s }),
	"CRLF":     writeAs(0o644, func(s string) string { return strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\n", "\r\n") }),
	"no end":   writeAs(0o644, func(s string) string { return strings.TrimRight(s, "\r\n") }),
	"reserved": writeAs(0o444, func(s string) string { return s + "\n\n" }),
	"linked": func(t *testing.T, path, text string) {
		real := filepath.Join(filepath.Dir(path), "real-"+filepath.Base(path))
		writeAs(0o600, func(s string) string { return s })(t, real, text)
		if err := os.Symlink(real, path); err != nil {
			t.Skip(err)
		}
	},
	"missing": nil,
}

func writeAs(mode fs.FileMode, form func(string) string) func(t *testing.T, path, text string) {
	return func(t *testing.T, path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(form(text)), mode); err != nil {
			t.Fatal(err)
		}
	}
}

// Each program's files are in each scope as they were, byte for byte, whatever they look like, also if they are edited between, and their
// modes and links stay.
func TestEveryScopeOfEveryProgramIsRestored(t *testing.T) {
	t.Parallel()
	for name, write := range forms {
		for _, project := range []bool{false, true} {
			for _, edits := range []bool{false, true} {
				if edits && write == nil || !edits && write != nil && name != "as it is" {
					continue
				}
				d := newHome(t)
				top := d.Home
				if project {
					top = filepath.Join(d.Home, "p")
					d.Project = top
				}
				for file, text := range own {
					if project {
						file = ofProject[file]
					}
					if file == "" || write == nil {
						continue
					}
					path := filepath.Join(top, filepath.FromSlash(file))
					if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
						t.Fatal(err)
					}
					write(t, path, text)
				}
				want, modes := d.files(t), d.modes(t)
				for _, p := range d.programs() {
					d.change(t, p.Enter)
				}
				between := d.files(t)
				for file, text := range between {
					if strings.HasSuffix(file, "SKILL.md") || strings.HasSuffix(file, "parley.js") || !edits {
						continue
					}
					d.overwrite(t, file, edited.Replace(text))
					want[file] = edited.Replace(want[file])
				}
				for _, p := range d.programs() {
					d.change(t, func(at install.Place) ([]install.Change, error) { return p.Leave(at, d.data) })
				}
				if got := d.files(t); len(between) <= len(want) || !maps.Equal(got, want) || !maps.Equal(d.modes(t), modes) {
					t.Errorf("%s, project %t, edited %t:\nwant %q %v\ngot  %q %v", name, project, edits, want, modes, got, d.modes(t))
				}
			}
		}
	}
}

// programs are those that have the scope.
func (d home) programs() (all []install.Program) {
	for _, p := range install.Programs() {
		if d.Project == "" || p.Name != "codex" {
			all = append(all, p)
		}
	}
	return all
}

func (d home) change(t *testing.T, of func(install.Place) ([]install.Change, error)) {
	t.Helper()
	changes, err := of(d.Place)
	if err == nil {
		err = install.Apply(changes, d.data)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// overwrite writes a file's text where it is, as an editor does that keeps modes and links.
func (d home) overwrite(t *testing.T, file, text string) {
	t.Helper()
	path := filepath.Join(d.Home, filepath.FromSlash(file))
	info, err := os.Stat(path)
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o600)
	}
	if err == nil {
		err = os.Chmod(path, info.Mode())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// modes are the modes of all files, with whether they are links.
func (d home) modes(t *testing.T) map[string]fs.FileMode {
	t.Helper()
	all := map[string]fs.FileMode{}
	for file := range d.files(t) {
		info, err := os.Lstat(filepath.Join(d.Home, filepath.FromSlash(file)))
		if err != nil {
			t.Fatal(err)
		}
		all[file] = info.Mode()
	}
	return all
}
