package install

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/parleyhub/parley/internal/app/install/jsonc"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/sessions/hooks"
)

const hookSeconds = 10 // for one hook; it takes two at most

// directory returns a program's directory, which a variable may move.
func (at Place) directory(variable, name string) string {
	if at.Project != "" {
		return filepath.Join(at.Project, name)
	}
	if at.Getenv != nil {
		if dir := at.Getenv(variable); variable != "" && filepath.IsAbs(dir) {
			return dir
		}
	}
	return filepath.Join(at.Home, name)
}

// hook is the command line of a hook. The CLIs run it with a shell.
func (at Place) hook(vendor, event string) string {
	program := at.Program
	if strings.ContainsAny(program, " \t'\"\\$`&|;<>()*?[]#~!") {
		program = text.ShellQuote(program)
	}
	return program + " hook " + vendor + " " + event
}

// server is the MCP server.
func (at Place) server() map[string]any {
	return map[string]any{"command": at.Program, "args": []string{"mcp"}}
}

type hookEntry struct {
	Matcher string        `json:"matcher,omitempty"` // of the tools
	Hooks   []hookCommand `json:"hooks"`
}

type hookCommand struct {
	Name    string `json:"name,omitempty"`
	Type    string `json:"type"`
	Command string `json:"command"`
	Timeout int    `json:"timeout"`
	Async   bool   `json:"asyncRewake,omitempty"`
	Message string `json:"rewakeMessage,omitempty"`
	Summary string `json:"rewakeSummary,omitempty"`
}

// matchers are the tools of a hook's event.
var matchers = map[string]map[string]string{"PreToolUse": hooks.EditTools, "BeforeTool": hooks.EditTools}

func (at Place) hooks(vendor string, timeout int, name string, events ...string) (all []entry) {
	for _, event := range events {
		command := hookCommand{Name: name, Type: "command", Command: at.hook(vendor, event), Timeout: timeout}
		if event == "FileChanged" { // the change of a file wakes the session
			command.Async, command.Message, command.Summary = true, "Parley:", "Parley: something is waiting"
		}
		all = append(all, entry{path: []string{"hooks", event}, value: hookEntry{Matcher: matchers[event][vendor], Hooks: []hookCommand{command}}, list: true})
	}
	return all
}

func claudeFiles(at Place) ([]file, error) {
	servers := filepath.Join(at.Home, ".claude.json")
	if at.Getenv != nil && filepath.IsAbs(at.Getenv("CLAUDE_CONFIG_DIR")) {
		servers = filepath.Join(at.Getenv("CLAUDE_CONFIG_DIR"), ".claude.json")
	}
	if at.Project != "" {
		servers = filepath.Join(at.Project, ".mcp.json")
	}
	dir := at.directory("CLAUDE_CONFIG_DIR", ".claude")
	return []file{
		{path: servers, entries: []entry{{path: []string{"mcpServers", "parley"}, value: at.server()}}},
		skillIn(dir),
		{path: filepath.Join(dir, "settings.json"),
			entries: at.hooks("claude", hookSeconds, "", "SessionStart", "SessionEnd", "UserPromptSubmit", "PreToolUse", "Stop", "Notification", "FileChanged")},
	}, nil
}

func codexFiles(at Place) ([]file, error) {
	if at.Project != "" {
		return nil, &Error{Code: CodeUnsupported, Message: "Codex has its MCP servers in the user's configuration only", Remedy: "leave out --project for codex"}
	}
	dir := at.directory("CODEX_HOME", ".codex")
	// Codex passes no other variables on: without these the server would find another hub than the hooks.
	table := fmt.Sprintf("[mcp_servers.parley]\ncommand = %s\nargs = [\"mcp\"]\nenv_vars = [\"PARLEY_CONFIG\", \"PARLEY_DATA_DIR\", \"PARLEY_SOCKET\"]\n",
		tomlString(at.Program))
	return []file{
		skillIn(dir),
		{path: filepath.Join(dir, "config.toml"), toml: table},
		{path: filepath.Join(dir, "hooks.json"), entries: at.hooks("codex", hookSeconds, "", "SessionStart", "SessionEnd", "UserPromptSubmit", "PreToolUse", "Stop", "Interrupt")},
	}, nil
}

func geminiFiles(at Place) ([]file, error) {
	dir := at.directory("", ".gemini")
	entries := []entry{{path: []string{"mcpServers", "parley"}, value: at.server()}}
	entries = append(entries, at.hooks("gemini", hookSeconds*1000, "parley", "SessionStart", "SessionEnd", "BeforeAgent", "BeforeTool", "AfterAgent", "Notification")...)
	return []file{{path: filepath.Join(dir, "settings.json"), entries: entries}, skillIn(dir)}, nil
}

// opencodePlugin is the plugin for OpenCode, which calls the hooks; PROGRAM is the command that runs Parley.
//
//go:embed opencode.js
var opencodePlugin string

// opencodeFiles are those of OpenCode: its directory has plugins and skills. It reads opencode.json and opencode.jsonc, and makes the
// latter by itself.
func opencodeFiles(at Place) ([]file, error) {
	dir := filepath.Join(at.directory("XDG_CONFIG_HOME", ".config"), "opencode")
	settings := dir
	if at.Project != "" {
		dir, settings = filepath.Join(at.Project, ".opencode"), at.Project
	}
	server := map[string]any{"type": "local", "command": []string{at.Program, "mcp"}, "enabled": true}
	files := []file{
		{path: filepath.Join(settings, "opencode.jsonc"), entries: []entry{{path: []string{"mcp", "parley"}, value: server}}},
		{path: filepath.Join(settings, "opencode.json"), entries: []entry{{path: []string{"mcp", "parley"}, value: server}}},
	}
	// One of them is enough; the other one may have been entered into before it was made.
	files[0].former = files[0].untouched(files[1])
	files[1].former = !files[0].former
	script := strings.ReplaceAll(opencodePlugin, `"PROGRAM"`, string(mustJSON(at.Program)))
	return append(files, file{path: filepath.Join(dir, "plugins", "parley.js"), skill: markedScript(script)}, skillIn(dir)), nil
}

// untouched reports whether another file is rather to be entered into: that which has Parley, or else that which exists.
func (f file) untouched(other file) bool {
	if other.hasServer() || !f.hasServer() && !exists(f.path) {
		return true
	}
	return false
}

// hasServer reports whether Parley's server is in a file.
func (f file) hasServer() bool {
	doc, _, err := read(f.path)
	if err != nil {
		return false
	}
	value, ok, err := jsonc.Get(doc, f.entries[0].path...)
	return err == nil && ok && isServer(value)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// agyFiles are those of the Antigravity CLI. Sources name several places for the user's skills, so that only a project has the skill.
func agyFiles(at Place) ([]file, error) {
	dir := filepath.Join(at.Home, ".gemini", "antigravity-cli")
	if at.Project != "" {
		dir = filepath.Join(at.Project, ".agents")
	}
	files := []file{{path: filepath.Join(dir, "mcp_config.json"), entries: []entry{{path: []string{"mcpServers", "parley"}, value: at.server()}}}}
	if at.Project != "" {
		files = append(files, skillIn(dir))
	}
	return files, nil
}

func vibeFiles(at Place) ([]file, error) {
	dir := at.directory("VIBE_HOME", ".vibe")
	element := fmt.Sprintf("[[mcp_servers]]\nname = \"parley\"\ntransport = \"stdio\"\ncommand = %s\nargs = [\"mcp\"]\n", tomlString(at.Program))
	return []file{{path: filepath.Join(dir, "config.toml"), array: element}, skillIn(dir)}, nil
}

// tomlString returns a TOML string. JSON's escapes of what a path may hold are TOML's, too.
func tomlString(s string) string { return strconv.Quote(s) }
