// Package install enters Parley into the configuration of coding agents' programs, and takes it out again: the MCP server, the hooks
// that tell the hub of open sessions and wake them, and a skill that tells the agent what it can do.
//
// Every other byte of the files stays. What was inserted is kept in a file of the data directory, so that it can be taken out byte for
// byte, also when a file was edited in between. Trust and permission settings are never written.
package install

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/parleyhub/parley/internal/app/install/jsonc"
	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/base/text"
)

// Code says what is wrong.
type Code string

// The codes of errors.
const (
	CodeUnknown     Code = "unknown-program"
	CodeUnsupported Code = "unsupported" // Parley cannot enter itself there, or into such a file
	CodeForeign     Code = "foreign"     // what is there is not Parley's
	CodeChanged     Code = "changed"     // by another program meanwhile
	CodeUnreadable  Code = "unreadable"
	CodeUnwritable  Code = "unwritable"
)

// Error is an error for the user.
type Error = fault.UserError[Code]

// Place is where the configuration is.
type Place struct {
	Home    string // the user's
	Project string // a project's directory; "" for the user's configuration
	// Getenv returns variables that move a program's configuration; nil for none.
	Getenv func(string) string
	// Program is the command that runs Parley.
	Program string
}

// Change is the new content of one file.
type Change struct {
	Path string `json:"path"`
	// Inserted and Removed are the texts that come and go.
	Inserted []string `json:"inserted,omitempty"`
	Removed  []string `json:"removed,omitempty"`
	// Replaced are the texts that take the place of others: the paths of other programs of Parley.
	Replaced []Replacement `json:"replaced,omitempty"`

	before, after []byte
	existed       bool
	delete        bool
	dirs          []string // that were made for the file, the innermost first
}

// Replacement is a text that takes the place of another.
type Replacement struct {
	Old string `json:"old"`
	New string `json:"new"`
}

// replace replaces bytes of the new content.
func (c *Change) replace(from, to int, by string) {
	c.Replaced = append(c.Replaced, Replacement{string(c.after[from:to]), by})
	c.after = slices.Concat(c.after[:from], []byte(by), c.after[to:])
}

// note remembers what was inserted into a file.
type note struct {
	Path    string   `json:"path"`
	Created bool     `json:"created,omitempty"`
	Texts   []string `json:"texts"` // in the order in which they were inserted
	// Dirs are the directories that were made for the file, the innermost first.
	Dirs []string `json:"dirs,omitempty"`
}

// Program is a coding agent's program.
type Program struct {
	Name    string // such as claude
	Title   string
	command string
	files   func(Place) ([]file, error)
	// UserOnly programs have no configuration of a project.
	UserOnly bool
	// overruled returns what keeps the hooks from running; nil for nothing.
	overruled func(Place) []Obstacle
	// After is what the user has to know after an installation.
	After string
}

// file is a configuration file with what belongs into it.
type file struct {
	path    string
	entries []entry
	toml    string // a table for a TOML file
	array   string // a table of an array of tables for a TOML file
	skill   string // the whole text of a file of Parley's, with its mark
	former  bool   // nothing is entered any more: it is only taken out
}

// entry is an element of an array, or a member of an object, in a JSON file.
type entry struct {
	path  []string
	value any
	list  bool
}

// Programs are the programs that are known, in the order of their names.
func Programs() []Program {
	return []Program{
		{Name: "agy", Title: "Antigravity CLI", command: "agy", files: agyFiles, After: "open sessions of Antigravity get Parley's tools when they are started again; this was not tried with the program"},
		{Name: "claude", Title: "Claude Code", command: "claude", files: claudeFiles, overruled: claudeOverruled, After: "open sessions of Claude Code get the hooks when they are started again; it asks you before it uses Parley's tools, unless \"mcp__parley\" is in permissions.allow of its settings"},
		{Name: "codex", Title: "Codex", command: "codex", UserOnly: true, files: codexFiles, overruled: codexOverruled, After: "Codex asks at its next start whether you trust the hooks: say yes"},
		{Name: "gemini", Title: "Gemini CLI", command: "gemini", files: geminiFiles, overruled: geminiOverruled, After: "open sessions of Gemini CLI get the hooks when they are started again"},
		{Name: "opencode", Title: "OpenCode", command: "opencode", files: opencodeFiles, After: "open sessions of OpenCode get Parley's tools and plugin when they are started again"},
		{Name: "vibe", Title: "Vibe", command: "vibe", files: vibeFiles, After: "open sessions of Vibe get Parley's tools when they are started again; this was not tried with the program"},
	}
}

// Find returns the program with a name.
func Find(name string) (Program, error) {
	all := Programs()
	if i := slices.IndexFunc(all, func(p Program) bool { return p.Name == name }); i >= 0 {
		return all[i], nil
	}
	var names []string
	for _, p := range all {
		names = append(names, p.Name)
	}
	return Program{}, &Error{Code: CodeUnknown, Message: fmt.Sprintf("%.40q is no program that Parley can be entered into", name), Remedy: "known are " + strings.Join(names, ", ")}
}

// Present reports whether the program is on this computer, by lookPath.
func (p Program) Present(lookPath func(string) (string, error)) bool {
	_, err := lookPath(p.command)
	return err == nil
}

// Enter returns the changes that enter Parley; none if all is there.
func (p Program) Enter(at Place) (changes []Change, err error) {
	files, err := p.files(at)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if f.former {
			continue
		}
		c, err := f.enter()
		if err != nil {
			return nil, err
		}
		if len(c.Inserted)+len(c.Replaced) > 0 {
			changes = append(changes, c)
		}
	}
	return changes, nil
}

// read returns a file's content. A file that is missing is empty.
func read(path string) (data []byte, existed bool, err error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, linkErr := os.Lstat(path); errors.Is(linkErr, fs.ErrNotExist) {
			return nil, false, nil
		}
		return nil, false, &Error{Code: CodeUnreadable, Message: path + " is a link to a file that does not exist", Remedy: "make the file, or remove the link", Err: err}
	}
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is not a file")
	}
	if err == nil && info.Size() > jsonc.MaxDocument {
		err = errors.New("it is too long")
	}
	if err == nil {
		data, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, false, &Error{Code: CodeUnreadable, Message: "cannot read " + path + ": " + err.Error(), Remedy: "check the file", Err: err}
	}
	return data, true, nil
}

func (f file) enter() (c Change, err error) {
	c.Path = f.path
	c.before, c.existed, err = read(f.path)
	if err != nil {
		return c, err
	}
	c.after = c.before
	switch {
	case f.toml != "":
		return f.enterTable(c)
	case f.array != "":
		return f.enterElement(c)
	case f.skill != "":
		return f.enterSkill(c)
	}
	if len(bytes.TrimSpace(c.after)) == 0 {
		c.after = []byte("{}\n")
	}
	for _, e := range f.entries {
		if err := e.enter(&c); err != nil {
			return c, &Error{Code: CodeUnreadable, Message: "cannot change " + f.path + ": " + err.Error(), Remedy: "correct the file, and repeat the command", Err: err}
		}
	}
	return c, nil
}

// enter adds the entry unless it is there.
func (e entry) enter(c *Change) error {
	old, ok, err := jsonc.Get(c.after, e.path...)
	if err != nil {
		return err
	}
	value, err := json.MarshalIndent(e.value, "", "  ")
	if err != nil {
		return err
	}
	if ok && (e.list && e.hasHook(old) || !e.list && isServer(old)) {
		return e.renew(c, old)
	}
	if ok && !e.list {
		return fmt.Errorf("%s is there already, and it is not Parley's", strings.Join(e.path, "."))
	}
	add := jsonc.Insert
	if e.list {
		add = jsonc.Append
	}
	after, inserted, err := add(c.after, value, e.path...)
	if err != nil {
		return err
	}
	c.after, c.Inserted = after, append(c.Inserted, string(inserted))
	return nil
}

var ourHook = text.Pattern(`(^|[/\\'])(parley|a2a-hub|nats-mcp-server)(\.exe)?'? hook (claude|codex|gemini) [A-Za-z]+$`)

// isOurs reports whether a hook's command is Parley's: the one that is entered now, or that of another program of Parley.
func (e entry) isOurs(command string) bool {
	now, ok := e.value.(hookEntry)
	return ok && slices.ContainsFunc(now.Hooks, func(h hookCommand) bool { return h.Command == command }) || ourHook().MatchString(command)
}

// hookGroups are the elements of a list of hooks.
type hookGroups []struct {
	Hooks []struct{ Command string }
}

// hasHook reports whether an array has an element with one of Parley's commands.
func (e entry) hasHook(array []byte) bool {
	var groups hookGroups
	if json.Unmarshal(plainJSON(array), &groups) != nil {
		return false
	}
	for _, g := range groups {
		for _, h := range g.Hooks {
			if e.isOurs(h.Command) {
				return true
			}
		}
	}
	return false
}

// outdated reports whether a command has the path of another program than the present one. A name without a path is found anew
// each time.
func outdated(command, now string) bool { return command != now && strings.ContainsAny(command, `/\`) }

// renew puts the path of the program into what another program of Parley has entered.
func (e entry) renew(c *Change, old []byte) error {
	if !e.list {
		program, _ := serverOf(mustJSON(e.value))
		there, ok := serverOf(plainJSON(old))
		if !ok || !outdated(there, program) {
			return nil
		}
		at := append(slices.Clone(e.path), "command")
		if bytes.HasPrefix(bytes.TrimSpace(memberOf(plainJSON(old), "command")), []byte("[")) {
			at = append(at, "0")
		}
		return c.replaceValue(program, at...)
	}
	now, _ := e.value.(hookEntry)
	var groups hookGroups
	if json.Unmarshal(plainJSON(old), &groups) != nil || len(now.Hooks) != 1 {
		return nil
	}
	for i, g := range groups {
		for j, h := range g.Hooks {
			if !e.isOurs(h.Command) || !outdated(h.Command, now.Hooks[0].Command) {
				continue
			}
			if err := c.replaceValue(now.Hooks[0].Command, append(slices.Clone(e.path), strconv.Itoa(i), "hooks", strconv.Itoa(j), "command")...); err != nil {
				return err
			}
		}
	}
	return nil
}

// replaceValue replaces a text in a JSON file.
func (c *Change) replaceValue(by string, path ...string) error {
	value, err := json.Marshal(by)
	if err != nil {
		return err
	}
	from, to, ok, err := jsonc.Find(c.after, path...)
	if err == nil && ok {
		c.replace(from, to, string(value))
	}
	return err
}

// isServer reports whether a value is Parley's MCP server.
func isServer(value []byte) bool {
	_, ok := serverOf(plainJSON(value))
	return ok
}

// serverOf returns the program of a value that is Parley's MCP server: a command with arguments, or a list of both (OpenCode).
func serverOf(value []byte) (program string, ok bool) {
	var server struct{ Args []string }
	_ = json.Unmarshal(value, &server) // without arguments it is a list
	command := memberOf(value, "command")
	var words []string
	if json.Unmarshal(command, &words) == nil && len(words) == 2 {
		return words[0], words[1] == "mcp"
	}
	_ = json.Unmarshal(command, &program) // a server without a command is not outdated
	return program, slices.Equal(server.Args, []string{"mcp"})
}

// memberOf returns a member of a JSON object, nil if it has none.
func memberOf(value []byte, name string) json.RawMessage {
	var members map[string]json.RawMessage
	_ = json.Unmarshal(value, &members) // what is no object has no members
	return members[name]
}

// mustJSON encodes what has texts and lists only.
func mustJSON(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}

// plainJSON returns a value without comments and commas at the end, which only some files have.
func plainJSON(value []byte) []byte {
	if json.Valid(value) {
		return value
	}
	return jsonc.Plain(value)
}

// Leave returns the changes that take Parley out of a program's files.
func (p Program) Leave(at Place, dataDir string) (changes []Change, err error) {
	files, err := p.files(at)
	if err != nil {
		return nil, err
	}
	notes, err := readNotes(dataDir)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		c, err := f.leave(notes)
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(c.before, c.after) || c.delete {
			changes = append(changes, c)
		}
	}
	return changes, nil
}

func (f file) leave(notes []note) (c Change, err error) {
	c.Path = f.path
	c.before, c.existed, err = read(f.path)
	if err != nil || !c.existed {
		return c, err
	}
	c.after = c.before
	created, texts := false, []string(nil)
	if i := slices.IndexFunc(notes, func(n note) bool { return n.Path == f.path }); i >= 0 {
		created, texts, c.dirs = notes[i].Created, notes[i].Texts, notes[i].Dirs
	}
	switch {
	case f.toml != "":
		err = leaveTable(&c, texts)
	case f.array != "":
		err = leaveElement(&c, texts)
	case f.skill != "":
		created = true
		c.leaveSkill()
	default:
		c.takeOut(texts, false)
		err = f.remove(&c, texts)
	}
	if err != nil {
		return c, &Error{Code: CodeUnreadable, Message: "cannot change " + f.path + ": " + err.Error(), Remedy: "correct the file, and repeat the command", Err: err}
	}
	if !bytes.Equal(c.before, c.after) {
		c.Removed = []string{difference(c.before, c.after)}
	}
	c.delete = created && !bytes.Equal(c.before, c.after) && (len(bytes.TrimSpace(c.after)) == 0 || isEmpty(c.after))
	return c, nil
}

// takeOut removes the very texts that were inserted, the last one first, as long as the file stays what it is.
func (c *Change) takeOut(texts []string, toml bool) {
	for _, inserted := range slices.Backward(texts) {
		if inserted == "" || bytes.Count(c.after, []byte(inserted)) != 1 {
			continue
		}
		after := bytes.Replace(c.after, []byte(inserted), nil, 1)
		if toml || jsonc.Check(after) == nil {
			c.after = after
		}
	}
}

// remove removes what the texts did not: the file was edited.
func (f file) remove(c *Change, texts []string) error {
	if len(bytes.TrimSpace(c.after)) == 0 {
		return nil
	}
	for _, e := range f.entries {
		if err := e.remove(c); err != nil {
			return err
		}
		if err := e.removeEmpty(c, texts); err != nil {
			return err
		}
	}
	return nil
}

// removeEmpty removes the lists and objects on the way to an entry that are empty and that Parley had made, as of a file that was written anew
// in another form.
func (e entry) removeEmpty(c *Change, texts []string) (err error) {
	for n := len(e.path); n > 0; n-- {
		value, ok, err := jsonc.Get(c.after, e.path[:n]...)
		if err != nil {
			return err
		}
		if !ok || !isEmpty(value) || !made(e.path[:n], texts) {
			continue
		}
		c.after, err = jsonc.Remove(c.after, func(name string, _ []byte) bool { return name == e.path[n-1] }, e.path[:n-1]...)
		if err != nil {
			return err
		}
	}
	return nil
}

// isEmpty reports whether a value is an object or a list of nothing, also of no comment.
func isEmpty(value []byte) bool {
	value = bytes.TrimSpace(value)
	if len(value) < 2 || value[0] != '{' && value[0] != '[' {
		return false
	}
	return len(bytes.TrimSpace(value[1:len(value)-1])) == 0
}

// made reports whether one of the texts that were inserted has the member at a path.
func made(path, texts []string) bool {
	for _, text := range texts {
		doc := []byte("{" + strings.TrimLeft(text, ", \t\r\n") + "}")
		for at := range path {
			if _, ok, err := jsonc.Get(doc, path[at:]...); ok && err == nil {
				return true
			}
		}
	}
	return false
}

func (e entry) remove(c *Change) (err error) {
	last := len(e.path) - 1
	if !e.list {
		c.after, err = jsonc.Remove(c.after, func(name string, value []byte) bool { return name == e.path[last] && isServer(value) }, e.path[:last]...)
		return err
	}
	c.after, err = jsonc.Remove(c.after, func(_ string, group []byte) bool { n := e.count(group); return n > 0 && n == len(hooksOf(group)) }, e.path...)
	if err != nil {
		return err
	}
	array, ok, err := jsonc.Get(c.after, e.path...)
	var groups []json.RawMessage
	if err != nil || !ok || json.Unmarshal(plainJSON(array), &groups) != nil {
		return err
	}
	for i, group := range groups { // somebody has added a hook beside Parley's
		if e.count(group) == 0 {
			continue
		}
		parleys := func(_ string, hook []byte) bool {
			return e.count(slices.Concat([]byte(`{"hooks":[`), plainJSON(hook), []byte("]}"))) > 0
		}
		if c.after, err = jsonc.Remove(c.after, parleys, append(slices.Clone(e.path), strconv.Itoa(i), "hooks")...); err != nil {
			return err
		}
	}
	return nil
}

// hooksOf returns the commands of an element of a list of hooks.
func hooksOf(group []byte) (commands []string) {
	var g struct {
		Hooks []struct{ Command string }
	}
	if json.Unmarshal(plainJSON(group), &g) != nil {
		return nil
	}
	for _, h := range g.Hooks {
		commands = append(commands, h.Command)
	}
	return commands
}

// count returns how many of the commands of an element are Parley's.
func (e entry) count(group []byte) (n int) {
	for _, command := range hooksOf(group) {
		if e.isOurs(command) {
			n++
		}
	}
	return n
}

// difference returns the part of before that is not in after, roughly: what is between their common beginning and end.
func difference(before, after []byte) string {
	i := 0
	for i < len(before) && i < len(after) && before[i] == after[i] {
		i++
	}
	j := 0
	for j < len(before)-i && j < len(after)-i && before[len(before)-1-j] == after[len(after)-1-j] {
		j++
	}
	return string(before[i : len(before)-j])
}

// Apply writes the changes and remembers them. A file that somebody has changed since is refused.
func Apply(changes []Change, dataDir string) error {
	notes, err := readNotes(dataDir)
	if err != nil {
		return err
	}
	for _, c := range changes {
		now, existed, err := read(c.Path)
		if err != nil {
			return err
		}
		if existed != c.existed || !bytes.Equal(now, c.before) {
			return &Error{Code: CodeChanged, Message: c.Path + " has just been changed by another program", Remedy: "repeat the command"}
		}
		if !c.existed && !c.delete {
			c.dirs = missing(filepath.Dir(c.Path))
		}
		// The note comes first: what is inserted can always be taken out.
		notes = remember(notes, c)
		if err := writeNotes(dataDir, notes); err != nil {
			return err
		}
		if err := c.write(); err != nil {
			return &Error{Code: CodeUnwritable, Message: "cannot write " + c.Path + ": " + err.Error(), Remedy: "check its permissions", Err: err}
		}
	}
	removeDirs(changes)
	return nil
}

// removeDirs removes the directories that were made for files that are deleted, unless something else is in them.
func removeDirs(changes []Change) {
	var dirs []string
	for _, c := range changes {
		if !c.delete {
			continue
		}
		dirs = append(dirs, c.dirs...)
		if filepath.Base(c.Path) == skillFile { // an earlier version noted no directories
			dirs = append(dirs, filepath.Dir(c.Path))
		}
	}
	slices.SortFunc(dirs, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	for _, dir := range slices.Compact(dirs) {
		_ = os.Remove(dir) // it fails if something is in it
	}
}

// missing returns a directory and those above it that do not exist.
func missing(dir string) (all []string) {
	for {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) || filepath.Dir(dir) == dir {
			return all
		}
		all, dir = append(all, dir), filepath.Dir(dir)
	}
}

// write replaces the file, or the one that a link leads to.
func (c Change) write() error {
	if c.delete {
		return os.Remove(c.Path)
	}
	path, mode := c.Path, fs.FileMode(0o600)
	if c.existed {
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			return err
		}
		info, err := os.Stat(real)
		if err != nil {
			return err
		}
		path, mode = real, info.Mode().Perm()
	} else if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := local.ReplaceFile(path, c.after); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

// notesFile is the file of the data directory with what was inserted.
const notesFile = "installed.json"

func fileOfNotes(dataDir string) statefile.Raw {
	return statefile.Edited(filepath.Join(dataDir, notesFile))
}

func readNotes(dataDir string) (notes []note, err error) {
	f := fileOfNotes(dataDir)
	data, err := f.Read()
	if err == nil && data != nil {
		err = json.Unmarshal(data, &notes)
	}
	if err != nil {
		return nil, &Error{Code: CodeUnreadable, Message: "cannot read " + f.Path + ": " + err.Error(), Remedy: "remove the file; what Parley has entered is found without it", Err: err}
	}
	return notes, nil
}

func writeNotes(dataDir string, notes []note) error {
	data, err := json.MarshalIndent(notes, "", "  ")
	if err == nil {
		err = os.MkdirAll(dataDir, 0o700)
	}
	if err == nil {
		err = fileOfNotes(dataDir).Write(append(data, '\n'))
	}
	if err != nil {
		return &Error{Code: CodeUnwritable, Message: "cannot remember the changes in " + dataDir + ": " + err.Error(), Remedy: "check the directory", Err: err}
	}
	return nil
}

// remember returns the notes after a change.
func remember(notes []note, c Change) []note {
	i := slices.IndexFunc(notes, func(n note) bool { return n.Path == c.Path })
	if len(c.Inserted)+len(c.Replaced) == 0 {
		return slices.DeleteFunc(notes, func(n note) bool { return n.Path == c.Path })
	}
	if i < 0 {
		return append(notes, note{Path: c.Path, Created: !c.existed, Texts: c.Inserted, Dirs: c.dirs})
	}
	for j, text := range notes[i].Texts {
		for _, r := range c.Replaced {
			text = strings.ReplaceAll(text, r.Old, r.New)
		}
		notes[i].Texts[j] = text
	}
	notes[i].Texts = append(notes[i].Texts, c.Inserted...)
	return notes
}

// Entered says what of Parley a program's configuration has.
type Entered struct {
	Parts, Missing int
	// Outdated are the files with the path of another program of Parley.
	Outdated []string
}

// State returns what is entered for a program.
func (p Program) State(at Place) (s Entered, err error) {
	files, err := p.files(at)
	if err != nil {
		return s, err
	}
	for _, f := range files {
		if f.former {
			continue
		}
		c, err := f.enter()
		if err != nil {
			return s, err
		}
		s.Parts += max(len(f.entries), 1)
		s.Missing += len(c.Inserted)
		if len(c.Replaced) > 0 {
			s.Outdated = append(s.Outdated, f.path)
		}
	}
	return s, nil
}
