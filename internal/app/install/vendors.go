package install

import (
	"bytes"
	"fmt"
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
	return []file{
		{path: servers, entries: []entry{{path: []string{"mcpServers", "parley"}, value: at.server()}}},
		{path: filepath.Join(at.directory("CLAUDE_CONFIG_DIR", ".claude"), "settings.json"),
			entries: at.hooks("claude", hookSeconds, "", "SessionStart", "SessionEnd", "UserPromptSubmit", "PreToolUse", "Stop", "Notification", "FileChanged")},
	}, nil
}

func codexFiles(at Place) ([]file, error) {
	if at.Project != "" {
		return nil, &Error{Message: "Codex has its MCP servers in the user's configuration only", Remedy: "leave out --project for codex"}
	}
	dir := at.directory("CODEX_HOME", ".codex")
	table := fmt.Sprintf("[mcp_servers.parley]\ncommand = %s\nargs = [\"mcp\"]\n", tomlString(at.Program))
	return []file{
		{path: filepath.Join(dir, "config.toml"), toml: table},
		{path: filepath.Join(dir, "hooks.json"), entries: at.hooks("codex", hookSeconds, "", "SessionStart", "SessionEnd", "UserPromptSubmit", "PreToolUse", "Stop", "Interrupt")},
	}, nil
}

func geminiFiles(at Place) ([]file, error) {
	settings := filepath.Join(at.directory("", ".gemini"), "settings.json")
	entries := []entry{{path: []string{"mcpServers", "parley"}, value: at.server()}}
	entries = append(entries, at.hooks("gemini", hookSeconds*1000, "parley", "SessionStart", "SessionEnd", "BeforeAgent", "BeforeTool", "AfterAgent", "Notification")...)
	return []file{{path: settings, entries: entries}}, nil
}

// tomlString returns a TOML string. JSON's escapes of what a path may hold are TOML's, too.
func tomlString(s string) string { return strconv.Quote(s) }

var serverTable = text.Pattern(`(?m)^[ \t]*\[[ \t]*mcp_servers[ \t]*\.[ \t]*(parley|"parley"|'parley')[ \t]*\]`)

var inlineServers = text.Pattern(`(?m)^[ \t]*mcp_servers[ \t]*=`)

// enterTable appends the table to a TOML file, unless it has one with its name.
func (f file) enterTable(c Change) (Change, error) {
	if at := serverTable().FindIndex(c.before); at != nil {
		if !bytes.Contains(table(c.before, at[0]), []byte(`"mcp"`)) {
			return c, &Error{Message: f.path + " has an MCP server parley that is not Parley's", Remedy: "rename or remove it, and repeat the command"}
		}
		return c, nil
	}
	if inlineServers().Match(c.before) {
		return c, &Error{Message: f.path + " has its MCP servers in one line", Remedy: "write them as tables, such as [mcp_servers.NAME], and repeat the command"}
	}
	newline := "\n"
	if bytes.Contains(c.before, []byte("\r\n")) {
		newline = "\r\n"
	}
	inserted := f.toml
	if len(c.before) > 0 {
		inserted = "\n" + inserted
		if c.before[len(c.before)-1] != '\n' {
			inserted = "\n" + inserted
		}
	}
	inserted = strings.ReplaceAll(inserted, "\n", newline)
	c.after = append(bytes.Clone(c.before), inserted...)
	c.Inserted = []string{inserted}
	return c, nil
}

// table returns the lines of the table that begins at an offset: up to an empty line, or the next table.
func table(doc []byte, at int) []byte {
	rest := doc[at:]
	end := 0
	for line := range bytes.Lines(rest) {
		words := bytes.TrimSpace(line)
		if end > 0 && (len(words) == 0 || words[0] == '[') {
			break
		}
		end += len(line)
	}
	return rest[:end]
}

// removeTable removes Parley's table from a TOML file.
func removeTable(doc []byte) []byte {
	at := serverTable().FindIndex(doc)
	if at == nil {
		return doc
	}
	t := table(doc, at[0])
	if !bytes.Contains(t, []byte(`"mcp"`)) {
		return doc
	}
	return append(bytes.Clone(doc[:at[0]]), doc[at[0]+len(t):]...)
}

// Entered says what of Parley a program's configuration has.
type Entered struct {
	Parts, Missing int
	// Other is the file with Parley's command in another form, such as with the path of an earlier program; "" for none.
	Other string
}

// State returns what is entered for a program.
func (p Program) State(at Place) (s Entered, err error) {
	files, err := p.files(at)
	if err != nil {
		return s, err
	}
	for _, f := range files {
		if err := f.state(at, &s); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (f file) state(at Place, s *Entered) error {
	doc, _, err := read(f.path)
	if err != nil {
		return err
	}
	count := func(value []byte, there bool) {
		s.Parts++
		if !there {
			s.Missing++
		} else if !bytes.Contains(value, []byte(at.Program)) {
			s.Other = f.path
		}
	}
	if f.toml != "" {
		found := serverTable().FindIndex(doc)
		if found == nil {
			count(nil, false)
		} else {
			count(table(doc, found[0]), true)
		}
		return nil
	}
	for _, e := range f.entries {
		if len(bytes.TrimSpace(doc)) == 0 {
			count(nil, false)
			continue
		}
		value, ok, err := jsonc.Get(doc, e.path...)
		if err != nil {
			return &Error{Message: f.path + ": " + err.Error(), Remedy: "correct the file", Err: err}
		}
		count(value, ok && (e.list && e.hasHook(value) || !e.list && isServer(value)))
	}
	return nil
}
