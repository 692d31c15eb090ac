package install_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/parleyhub/parley/internal/app/install"
)

// home is a home with configuration files.
type home struct {
	install.Place
	data string
}

func newHome(t interface {
	Helper()
	Fatal(...any)
	TempDir() string
}) home {
	t.Helper()
	d := home{install.Place{Home: t.TempDir(), Program: "/usr/local/bin/parley"}, ""}
	d.data = filepath.Join(d.Home, ".a2a-hub")
	return d
}

func (d home) write(t testing.TB, name, text string) {
	t.Helper()
	path := filepath.Join(d.Home, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// files returns the texts of all files but Parley's own, by their names.
func (d home) files(t testing.TB) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(d.Home, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() || strings.HasPrefix(path, d.data) {
			return err
		}
		data, err := os.ReadFile(path)
		name, _ := filepath.Rel(d.Home, path)
		all[filepath.ToSlash(name)] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func (d home) enter(t testing.TB) (changed int) {
	t.Helper()
	for _, p := range install.Programs() {
		changes, err := p.Enter(d.Place)
		if err == nil {
			err = install.Apply(changes, d.data)
		}
		if err != nil {
			t.Fatal(p.Name, err)
		}
		changed += len(changes)
	}
	return changed
}

func (d home) leave(t testing.TB) (changed int) {
	t.Helper()
	for _, p := range install.Programs() {
		changes, err := p.Leave(d.Place, d.data)
		if err == nil {
			err = install.Apply(changes, d.data)
		}
		if err != nil {
			t.Fatal(p.Name, err)
		}
		changed += len(changes)
	}
	return changed
}

var own = map[string]string{
	".claude.json":          "{\n  \"numStartups\": 7,\n  \"mcpServers\": {\n    \"other\": {\"command\": \"x\"}\n  }\n}",
	".claude/settings.json": "{\n\t\"hooks\": {\n\t\t\"Stop\": [\n\t\t\t{\"hooks\": [{\"type\": \"command\", \"command\": \"mine\"}]}\n\t\t]\n\t},\n\t\"theme\": \"dark\"\n}\n",
	".codex/config.toml":    "# my settings\nmodel = \"x\"\n\n[mcp_servers.other]\ncommand = \"y\"",
	".codex/hooks.json":     "{\"hooks\":{}}",
	".gemini/settings.json": "{ // comments\r\n  \"ui\": {\"theme\": \"x\",},\r\n}\r\n",

	".config/opencode/opencode.jsonc":         "{\n  // mine\n  \"$schema\": \"https://opencode.ai/config.json\",\n  \"theme\": \"dark\",\n}\n",
	".gemini/antigravity-cli/mcp_config.json": "{\"mcpServers\":{\"other\":{\"command\":\"x\"}}}",
	".vibe/config.toml":                       "# mine\nactive_model = \"x\"\n\n[[mcp_servers]]\nname = \"other\"\ntransport = \"stdio\"\ncommand = \"y\"",
}

func TestInstallThenUninstallLeavesEveryByte(t *testing.T) {
	lists := map[string]string{".vibe/config.toml": "mcp_servers = [] # none\nmodel = \"x\"\n", ".config/opencode/opencode.json": "{}", ".config/opencode/opencode.jsonc": "{}"}
	for name, files := range map[string]map[string]string{"own files": own, "no files": {}, "lists": lists} {
		t.Run(name, func(t *testing.T) {
			d := newHome(t)
			for file, text := range files {
				d.write(t, file, text)
			}
			before := d.files(t)
			if d.enter(t) != 14 {
				t.Errorf("changed are %v", d.files(t))
			}
			for file, text := range d.files(t) {
				if name == "lists" && file == ".config/opencode/opencode.json" {
					continue // the other one has it
				}
				if !strings.Contains(text, "parley") || len(text) <= len(before[file]) {
					t.Errorf("%s is %s", file, text)
				}
			}
			for _, p := range install.Programs() {
				if s, err := p.State(d.Place); err != nil || s.Missing != 0 || s.Outdated != nil || s.Parts == 0 {
					t.Errorf("%s: %+v, %v", p.Name, s, err)
				}
			}
			if n := d.enter(t); n != 0 {
				t.Errorf("a repetition changed %d files", n)
			}
			d.leave(t)
			if after := d.files(t); !maps.Equal(before, after) {
				t.Errorf("before %q\nafter  %q", before, after)
			}
			if n := d.leave(t); n != 0 {
				t.Errorf("a repetition changed %d files", n)
			}
			for _, dir := range []string{".claude/skills", ".codex/skills", ".gemini/skills", ".vibe/skills", ".config/opencode/skills", ".config/opencode/plugins"} {
				if _, err := os.Stat(filepath.Join(d.Home, dir)); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s stays: %v", dir, err)
				}
			}
		})
	}
}

// A directory stays that was there, or that has something of somebody else.
func TestDirectoriesOfOthersStay(t *testing.T) {
	d := newHome(t)
	if err := os.MkdirAll(filepath.Join(d.Home, ".claude", "skills"), 0o700); err != nil {
		t.Fatal(err)
	}
	d.enter(t)
	d.write(t, ".codex/skills/mine/SKILL.md", "mine")
	d.leave(t)
	if _, err := os.Stat(filepath.Join(d.Home, ".claude", "skills")); err != nil {
		t.Error(err)
	}
	if got := d.files(t); !maps.Equal(got, map[string]string{".codex/skills/mine/SKILL.md": "mine"}) {
		t.Errorf("%q", got)
	}
	if _, err := os.Stat(filepath.Join(d.Home, ".vibe")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// OpenCode makes opencode.jsonc beside a file that Parley has made.
func TestOpenCodesTwoFiles(t *testing.T) {
	d := newHome(t)
	d.enter(t)
	d.write(t, ".config/opencode/opencode.jsonc", "{\n}\n")
	if n := d.enter(t); n != 0 {
		t.Errorf("%d files were changed again", n)
	}
	d.Program = "/opt/parley"
	if n := d.enter(t); n == 0 {
		t.Error("the path of another program stays")
	}
	text := d.files(t)[".config/opencode/opencode.json"]
	if !strings.Contains(text, `"/opt/parley"`) || !strings.Contains(text, `"mcp"`) || strings.Contains(text, "/usr/local") {
		t.Errorf("the server is %s", text)
	}
	if text := d.files(t)[".config/opencode/plugins/parley.js"]; !strings.Contains(text, `const program = "/opt/parley"`) {
		t.Errorf("the plugin is %s", text)
	}
	d.leave(t)
	if got := d.files(t); !maps.Equal(got, map[string]string{".config/opencode/opencode.jsonc": "{\n}\n"}) {
		t.Errorf("%q", got)
	}
}

func TestVibesServers(t *testing.T) {
	vibe, err := install.Find("vibe")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, before, after string }{ // what uninstall leaves of files that Parley has not noted
		{"written anew", "model = \"x\"\n\n[[mcp_servers]]\nname = \"parley\"\nargs = [\n    \"mcp\",\n]\ncommand = \"/old/parley\"\n\n[[mcp_servers]] # b\nname = \"b\"\n", "model = \"x\"\n\n\n[[mcp_servers]] # b\nname = \"b\"\n"},
		{"another's", "[[mcp_servers]]\nname = \"parley\"\nargs = [\"x\"]\n", "[[mcp_servers]]\nname = \"parley\"\nargs = [\"x\"]\n"},
		{"another table", "[x]\nmcp_servers = [1]\n", "[x]\nmcp_servers = [1]\n"},
	} {
		d := newHome(t)
		d.write(t, ".vibe/config.toml", c.before)
		changes, err := vibe.Leave(d.Place, d.data)
		if err == nil {
			err = install.Apply(changes, d.data)
		}
		if got := d.files(t)[".vibe/config.toml"]; err != nil || got != c.after {
			t.Errorf("%s: %q, %v", c.name, got, err)
		}
	}
	d := newHome(t)
	d.write(t, ".vibe/config.toml", "mcp_servers = []\n")
	d.enter(t)
	d.Program = "/opt/parley"
	d.enter(t)
	if text := d.files(t)[".vibe/config.toml"]; text != "mcp_servers = [{ name = \"parley\", transport = \"stdio\", command = \"/opt/parley\", args = [\"mcp\"] }]\n" {
		t.Errorf("%s", text)
	}
	d.data = t.TempDir() // without notes
	d.leave(t)
	if text := d.files(t)[".vibe/config.toml"]; text != "mcp_servers = []\n" {
		t.Errorf("%s", text)
	}
	d.write(t, ".vibe/config.toml", "[[mcp_servers]]\nname = \"parley\"\ncommand = \"/old/parley\"\nargs = [\"mcp\"]\n")
	if s, err := vibe.State(d.Place); err != nil || len(s.Outdated) != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	for _, text := range []string{"[[mcp_servers]]\nname = \"parley\"\ncommand = \"x\"\n", "mcp_servers = [{ name = \"b\" }]\n", "x = \"\"\"\n"} {
		d.write(t, ".vibe/config.toml", text)
		if _, err := vibe.Enter(d.Place); err == nil {
			t.Errorf("accepted: %s", text)
		}
	}
}

func TestWhatWasEditedInBetweenStays(t *testing.T) {
	d := newHome(t)
	edit := strings.NewReplacer("\"numStartups\": 7", "\"numStartups\": 8", "\"dark\"", "\"light\"", "model = \"x\"", "model = \"z\" # better",
		"\"x\",}", "\"x\", \"y\": [1]}")
	want := map[string]string{}
	for file, text := range own {
		d.write(t, file, text)
		want[file] = edit.Replace(text)
	}
	d.enter(t)
	for file, text := range d.files(t) {
		d.write(t, file, edit.Replace(text))
	}
	d.leave(t)
	if after := d.files(t); !maps.Equal(want, after) {
		t.Errorf("want  %q\nafter %q", want, after)
	}
}

// A program that writes its whole file anew keeps the values and not the bytes.
func TestAFileThatWasWrittenAnewIsCleared(t *testing.T) {
	d := newHome(t)
	d.enter(t)
	d.write(t, ".claude.json", `{"mcpServers":{"parley":{"args":["mcp"],"command":"/usr/local/bin/parley"},"b":{}}}`)
	d.write(t, ".claude/settings.json", `{"hooks":{"Stop":[{"hooks":[{"command":"/usr/local/bin/parley hook claude Stop","type":"command"}]},{"x":1}],"SessionStart":[]}}`)
	d.write(t, ".codex/config.toml", "[mcp_servers.parley]\ncommand = \"/usr/local/bin/parley\"\nargs = [ \"mcp\" ]\n\n[projects.\"/p\"]\ntrust_level = \"trusted\"\n")
	d.leave(t)
	after := d.files(t)
	for file, want := range map[string]string{
		".claude.json":          `{"mcpServers":{"b":{}}}`,
		".claude/settings.json": `{"hooks":{"Stop":[{"x":1}]}}`,
		".codex/config.toml":    "\n[projects.\"/p\"]\ntrust_level = \"trusted\"\n",
	} {
		if after[file] != want {
			t.Errorf("%s is %q", file, after[file])
		}
	}
}

// A formatter changes the space around what was entered: the lists and objects that were made for it go all the same, those that were there stay.
func TestAFormattedFileIsCleared(t *testing.T) {
	forms := map[string]func([]byte) []byte{
		"indented": func(data []byte) []byte {
			var out bytes.Buffer
			if err := json.Indent(&out, data, "", "    "); err != nil {
				t.Fatal(err)
			}
			return out.Bytes()
		},
		"compact": func(data []byte) []byte {
			var out bytes.Buffer
			if err := json.Compact(&out, data); err != nil {
				t.Fatal(err)
			}
			return out.Bytes()
		},
		"of Windows": func(data []byte) []byte { return bytes.ReplaceAll(data, []byte("\n"), []byte("\r\n")) },
	}
	for name, form := range forms {
		for settings, want := range map[string]string{
			"": "", `{}`: `{}`, `{"a":1}`: `{"a":1}`, `{"hooks":{},"a":1}`: `{"hooks":{},"a":1}`, `{"hooks":{"Stop":[],"PreToolUse":[{"x":1}]}}`: `{"hooks":{"Stop":[],"PreToolUse":[{"x":1}]}}`,
		} {
			d := newHome(t)
			if settings != "" {
				d.write(t, ".claude/settings.json", settings)
				d.write(t, ".gemini/settings.json", settings)
			}
			d.enter(t)
			for _, file := range []string{".claude/settings.json", ".gemini/settings.json"} {
				d.write(t, file, string(form([]byte(d.files(t)[file]))))
			}
			d.leave(t)
			for _, file := range []string{".claude/settings.json", ".gemini/settings.json"} {
				got, there := d.files(t)[file]
				if there != (want != "") || there && compacted(t, got) != want {
					t.Errorf("%s of %q that is %s is %q, %t", file, settings, name, got, there)
				}
			}
		}
	}
}

func compacted(t *testing.T, text string) string {
	t.Helper()
	var out bytes.Buffer
	if err := json.Compact(&out, []byte(text)); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestFilesOfAProject(t *testing.T) {
	d := newHome(t)
	d.Project = filepath.Join(d.Home, "p")
	for _, name := range []string{"agy", "claude", "gemini", "opencode", "vibe"} {
		p, err := install.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		changes, err := p.Enter(d.Place)
		if err == nil {
			err = install.Apply(changes, d.data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := slices.Sorted(maps.Keys(d.files(t))); !slices.Equal(got, []string{"p/.agents/mcp_config.json", "p/.agents/skills/parley/SKILL.md",
		"p/.claude/settings.json", "p/.claude/skills/parley/SKILL.md", "p/.gemini/settings.json", "p/.gemini/skills/parley/SKILL.md", "p/.mcp.json",
		"p/.opencode/plugins/parley.js", "p/.opencode/skills/parley/SKILL.md", "p/.vibe/config.toml", "p/.vibe/skills/parley/SKILL.md", "p/opencode.json"}) {
		t.Errorf("the files are %q", got)
	}
	codex, err := install.Find("codex")
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{second(codex.Enter(d.Place)), second(codex.Leave(d.Place, d.data)), second(codex.State(d.Place))} {
		if err == nil {
			t.Error("codex has files of a project")
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestVariablesMoveTheFiles(t *testing.T) {
	d := newHome(t)
	d.Program = "/opt/my tools/parley"
	d.Getenv = func(name string) string {
		return map[string]string{"CLAUDE_CONFIG_DIR": filepath.Join(d.Home, "c"), "CODEX_HOME": filepath.Join(d.Home, "x"),
			"XDG_CONFIG_HOME": filepath.Join(d.Home, "g"), "VIBE_HOME": filepath.Join(d.Home, "v")}[name]
	}
	d.enter(t)
	files := d.files(t)
	if got := slices.Sorted(maps.Keys(files)); !slices.Equal(got, []string{".gemini/antigravity-cli/mcp_config.json", ".gemini/settings.json", ".gemini/skills/parley/SKILL.md", "c/.claude.json",
		"c/settings.json", "c/skills/parley/SKILL.md", "g/opencode/opencode.json", "g/opencode/plugins/parley.js", "g/opencode/skills/parley/SKILL.md",
		"v/config.toml", "v/skills/parley/SKILL.md", "x/config.toml", "x/hooks.json", "x/skills/parley/SKILL.md"}) {
		t.Errorf("the files are %q", got)
	}
	if !strings.Contains(files["c/settings.json"], `"'/opt/my tools/parley' hook claude Stop"`) {
		t.Errorf("the hooks are %s", files["c/settings.json"])
	}
}

func TestWhatIsNotParleysIsRefused(t *testing.T) {
	for file, text := range map[string]string{
		".claude.json":          `{"mcpServers":{"parley":{"command":"other"}}}`,
		".claude/settings.json": `{"hooks":{"Stop":{}}}`,
		".codex/config.toml":    "[ mcp_servers . \"parley\" ]\ncommand = \"other\"\n",
		".codex/hooks.json":     `[]`,
		".gemini/settings.json": `{"mcpServers": `,
	} {
		d := newHome(t)
		d.write(t, file, text)
		before := d.files(t)
		var failed *install.Error
		for _, p := range install.Programs() {
			changes, err := p.Enter(d.Place)
			if errors.As(err, &failed) {
				continue
			}
			if err == nil {
				err = install.Apply(changes, d.data)
			}
			if err != nil {
				t.Error(err)
			}
		}
		if failed == nil || failed.Remedy == "" || !strings.Contains(failed.Error(), filepath.Join(d.Home, filepath.FromSlash(file))) || d.files(t)[file] != before[file] {
			t.Errorf("%s: %v", file, failed)
		}
	}
	d := newHome(t)
	d.write(t, ".codex/config.toml", "mcp_servers = {}\n")
	codex, _ := install.Find("codex")
	if _, err := codex.Enter(d.Place); err == nil {
		t.Error("inline servers are accepted")
	}
	if _, err := install.Find("emacs"); err == nil {
		t.Error("emacs is known")
	}
	if err := os.MkdirAll(filepath.Join(d.Home, ".gemini", "settings.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	gemini, _ := install.Find("gemini")
	if _, err := gemini.Enter(d.Place); err == nil {
		t.Error("a directory is accepted")
	}
}

func TestLinksAndModesStay(t *testing.T) {
	d := newHome(t)
	d.write(t, "dotfiles/settings.json", "{}\n")
	real := filepath.Join(d.Home, "dotfiles", "settings.json")
	if err := os.MkdirAll(filepath.Join(d.Home, ".gemini"), 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(d.Home, ".gemini", "settings.json")
	if err := os.Symlink(real, link); err != nil {
		t.Skip(err)
	}
	dangling := filepath.Join(d.Home, ".claude.json")
	if err := os.Symlink(filepath.Join(d.Home, "nowhere"), dangling); err != nil {
		t.Fatal(err)
	}
	claude, _ := install.Find("claude")
	if _, err := claude.Enter(d.Place); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("a link to nothing: %v", err)
	}
	if err := os.Remove(dangling); err != nil {
		t.Fatal(err)
	}
	d.enter(t)
	info, err := os.Lstat(link)
	if err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is %v, %v", info, err)
	}
	if info, err := os.Stat(real); err != nil || info.Mode().Perm() != 0o644 || info.Size() < 100 {
		t.Errorf("the file is %v, %v", info, err)
	}
}

func TestAFileThatChangesMeanwhileIsRefused(t *testing.T) {
	d := newHome(t)
	gemini, _ := install.Find("gemini")
	changes, err := gemini.Enter(d.Place)
	if err != nil {
		t.Fatal(err)
	}
	d.write(t, ".gemini/settings.json", "{}")
	if err := install.Apply(changes, d.data); err == nil || d.files(t)[".gemini/settings.json"] != "{}" {
		t.Errorf("%v: %v", err, d.files(t))
	}
	d.write(t, ".a2a-hub/installed.json", "{")
	if err := install.Apply(nil, d.data); err == nil {
		t.Error("a broken file of notes is accepted")
	}
	if _, err := gemini.Leave(d.Place, d.data); err == nil {
		t.Error("a broken file of notes is accepted")
	}
}

func TestProgramsArePresentByTheirCommand(t *testing.T) {
	for _, p := range install.Programs() {
		found := p.Present(func(name string) (string, error) {
			if name != p.Name {
				return "", os.ErrNotExist
			}
			return "/bin/" + name, nil
		})
		if !found || p.Present(func(string) (string, error) { return "", os.ErrNotExist }) {
			t.Error(p.Name)
		}
	}
}

// The path of another program of Parley is replaced, and what was inserted is taken out byte for byte all the same.
func TestAnEarlierProgramIsReplaced(t *testing.T) {
	d := newHome(t)
	d.write(t, ".codex/config.toml", "# mine\n")
	d.write(t, ".claude/settings.json", "{\"mine\": 1}")
	before := d.files(t)
	d.enter(t)
	first := d.files(t)
	d.Program = "/else where/parley"
	for _, p := range install.Programs() {
		if s, err := p.State(d.Place); err != nil || len(s.Outdated) == 0 || s.Missing != 0 {
			t.Errorf("%s: %+v, %v", p.Name, s, err)
		}
	}
	d.enter(t)
	for name, text := range d.files(t) {
		if strings.Contains(text, "/usr/local/bin/parley") || strings.Count(text, "else where") != strings.Count(first[name], "/usr/local/bin/parley") {
			t.Errorf("%s is %s", name, text)
		}
	}
	for _, p := range install.Programs() {
		if s, err := p.State(d.Place); err != nil || s.Outdated != nil || s.Missing != 0 {
			t.Errorf("%s: %+v, %v", p.Name, s, err)
		}
	}
	d.leave(t)
	if after := d.files(t); !maps.Equal(after, before) {
		t.Errorf("the files are %v", after)
	}
}

// A command without a path is found anew each time that it is run.
func TestACommandWithoutAPathStays(t *testing.T) {
	d := newHome(t)
	d.write(t, ".codex/config.toml", "[mcp_servers.parley]\ncommand = 'parley' # mine\nargs = ['mcp']\n")
	d.write(t, ".claude.json", `{"mcpServers":{"parley":{"command":"parley","args":["mcp"]}}}`)
	for _, name := range []string{"claude", "codex"} {
		p, _ := install.Find(name)
		if s, err := p.State(d.Place); err != nil || s.Outdated != nil {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
}

// Tables are known whatever is around them: strings and lists of many lines, comments, and tables in Parley's.
func TestTablesAreFound(t *testing.T) {
	const server = "[mcp_servers.parley]\ncommand = \"/usr/local/bin/parley\"\nargs = [\"mcp\"]\n"
	const text3 = "s = \"\"\"\n[mcp_servers.parley]\nargs = [\"mcp\"]\n\"\"\"\n"
	for text, want := range map[string]string{
		text3: text3,
		"l = [\n  \"a\", # [b\n  'c',\n]\n" + server + "\n# mine\n[t]\na = 1\n":       "l = [\n  \"a\", # [b\n  'c',\n]\n\n# mine\n[t]\na = 1\n",
		server + "[mcp_servers.parley.env]\nA = \"b\"\n[t]\n":                         "[t]\n",
		"[ mcp_servers . 'parley' ] # c\n\nargs = [\n'mcp',\n]\n\ncommand='x'":        "",
		"[mcp_servers.other]\nx = 1 # \"\n" + server + "[mcp_servers.parley.tools.a]": "[mcp_servers.other]\nx = 1 # \"\n",
		"a = \"\\\"[\"\nb = 'x\n" + server:                                            "a = \"\\\"[\"\nb = 'x\n",
	} {
		d := newHome(t)
		d.write(t, ".codex/config.toml", text)
		codex, _ := install.Find("codex")
		d.enter(t)
		if s, err := codex.State(d.Place); err != nil || s.Missing != 0 {
			t.Errorf("%q: %+v, %v", text, s, err)
		}
		d.leave(t)
		if got := d.files(t)[".codex/config.toml"]; got != want {
			t.Errorf("%q became %q", text, got)
		}
	}
	for _, text := range []string{"s = '''\n", "mcp_servers.parley.command = 'x'\n", "[mcp_servers]\nparley = {command = 'x'}\n", "[mcp_servers.parley.env]\nA = 'b'\n"} {
		d := newHome(t)
		d.write(t, ".codex/config.toml", text)
		codex, _ := install.Find("codex")
		if _, err := codex.Enter(d.Place); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

// What the user has added to Parley's table goes with it: Codex refuses the table of a server without a command.
func TestATableInParleysGoesWithIt(t *testing.T) {
	d := newHome(t)
	d.write(t, ".codex/config.toml", "a = 1\n")
	d.enter(t)
	d.write(t, ".codex/config.toml", d.files(t)[".codex/config.toml"]+"\n[mcp_servers.parley.env]\nA = 'b'\n")
	d.leave(t)
	if got := strings.TrimRight(d.files(t)[".codex/config.toml"], "\n"); got != "a = 1" {
		t.Errorf("it became %q", got)
	}
}

// Whatever a TOML file holds around it, the table goes in and out.
func TestTablesGoInAndOut(t *testing.T) {
	line := rapid.SampledFrom([]string{"", "# c", "a = 1", "[t]", "[mcp_servers.other]", "x = \"[mcp_servers.parley]\"", "s = '''", "'''"})
	codex, _ := install.Find("codex")
	root := t.TempDir()
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		at := install.Place{Home: filepath.Join(root, fmt.Sprint(n)), Program: "/bin/parley"}
		text := strings.Join(rapid.SliceOfN(line, 0, 8).Draw(rt, "lines"), rapid.SampledFrom([]string{"\n", "\r\n"}).Draw(rt, "newline"))
		path := filepath.Join(at.Home, ".codex", "config.toml")
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			rt.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			rt.Fatal(err)
		}
		changes, err := codex.Enter(at)
		if err != nil && strings.Contains(err.Error(), "a string does not end") {
			return
		}
		if err == nil {
			err = install.Apply(changes, at.Home)
		}
		if err != nil {
			rt.Fatal(err)
		}
		changes, err = codex.Leave(at, at.Home)
		if err == nil {
			err = install.Apply(changes, at.Home)
		}
		if err != nil {
			rt.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			rt.Errorf("%q became %q (%v)", text, got, err)
		}
	})
}

// What looks like Parley's is somebody else's.
func TestHooksOfOthersStay(t *testing.T) {
	for _, others := range []string{
		`{"hooks":{"Stop":[{"matcher":"mcp","hooks":[{"type":"command","command":"mine mcp"}]}]}}`,
		`{"hooks":{"SessionStart":[{"hooks":[{"type":"command","command":"other-tool hook claude Start"}]}], /* "mcp" */ },}`,
	} {
		d := newHome(t)
		d.write(t, ".claude/settings.json", others)
		d.enter(t)
		claude, _ := install.Find("claude")
		if s, err := claude.State(d.Place); err != nil || s.Missing != 0 {
			t.Errorf("entered is %+v, %v", s, err)
		}
		d.leave(t)
		if got := d.files(t)[".claude/settings.json"]; got != others {
			t.Errorf("%s became %s", others, got)
		}
	}
	d := newHome(t)
	d.enter(t)
	text := d.files(t)[".claude/settings.json"]
	edited := strings.Replace(text, `"command": "/usr/local/bin/parley hook claude Stop",`, `"command": "/usr/local/bin/parley hook claude Stop"}, {"command": "mine",`, 1)
	if edited == text {
		t.Fatal("nothing was edited")
	}
	d.write(t, ".claude/settings.json", edited)
	d.leave(t)
	if got := d.files(t)[".claude/settings.json"]; !strings.Contains(got, `"mine"`) || strings.Contains(got, "parley hook") {
		t.Errorf("a hook beside Parley's is lost: %s", got)
	}
}

// A flipped bit of the notes changes nothing of what is taken out, and is named.
func TestAFlippedBitOfTheNotesIsRestored(t *testing.T) {
	d := newHome(t)
	d.enter(t)
	notes := filepath.Join(d.data, "installed.json")
	raw, err := os.ReadFile(notes)
	if err != nil {
		t.Fatal(err)
	}
	const tries = 50
	for n := range tries {
		at := n * len(raw) / tries
		flipped := bytes.Clone(raw)
		flipped[at] ^= 1 << (n % 8)
		if err := os.WriteFile(notes, flipped, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := install.Apply(nil, d.data); err != nil {
			t.Fatal(err)
		}
		if now, err := os.ReadFile(notes); err != nil || !bytes.Equal(now, raw) {
			t.Fatalf("byte %d: %q, %v", at, now, err)
		}
	}
	if kept, err := filepath.Glob(notes + ".damaged-*"); err != nil || len(kept) != tries {
		t.Errorf("%d damaged files are kept, %v", len(kept), err)
	}
}
