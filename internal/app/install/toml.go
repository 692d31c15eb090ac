package install

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/parleyhub/parley/internal/base/text"
)

// errUnended is the error of a TOML file in which a string does not end.
var errUnended = errors.New("a string does not end")

// statement is the head of a table, or a key with its value, in a TOML file. Offsets are those of its lines.
type statement struct {
	head       bool
	path       []string // of the table, or of the key in its table; nil for an array of tables, and for what is broken
	start, end int
	value      int // offset of a key's value
}

// statements reads a TOML file as far as needed to know where its tables are.
func statements(doc []byte) (all []statement, err error) {
	for at := 0; at < len(doc); {
		start := at
		for at < len(doc) && (doc[at] == ' ' || doc[at] == '\t') {
			at++
		}
		if at == len(doc) || doc[at] == '\n' || doc[at] == '\r' || doc[at] == '#' {
			at = lineEnd(doc, at)
			continue
		}
		s := statement{head: doc[at] == '[', start: start}
		if s.head {
			s.end = lineEnd(doc, at)
			rest := bytes.TrimLeft(doc[at+1:s.end], " \t")
			if path, rest := keyPath(rest); bytes.HasPrefix(rest, []byte("]")) {
				s.path = path
			}
		} else {
			path, rest := keyPath(doc[at:])
			if bytes.HasPrefix(rest, []byte("=")) {
				s.path, s.value = path, len(doc)-len(rest)+1
			}
			if s.end, err = valueEnd(doc, at); err != nil {
				return nil, err
			}
		}
		all, at = append(all, s), s.end
	}
	return all, nil
}

// lineEnd returns the offset behind the line of an offset.
func lineEnd(doc []byte, at int) int {
	if i := bytes.IndexByte(doc[at:], '\n'); i >= 0 {
		return at + i + 1
	}
	return len(doc)
}

// keyPath reads keys with points between them, and returns what is behind them.
func keyPath(text []byte) (path []string, rest []byte) {
	for {
		text = bytes.TrimLeft(text, " \t")
		n := 0
		if len(text) > 0 && (text[0] == '"' || text[0] == '\'') {
			i := bytes.IndexByte(text[1:], text[0])
			if i < 0 {
				return nil, nil
			}
			n = i + 2
			path = append(path, string(text[1:n-1]))
		} else {
			for n < len(text) && strings.IndexByte(" \t\r\n.=]#", text[n]) < 0 {
				n++
			}
			path = append(path, string(text[:n]))
		}
		text = bytes.TrimLeft(text[n:], " \t")
		if len(text) == 0 || text[0] != '.' {
			return path, text
		}
		text = text[1:]
	}
}

// valueEnd returns the offset behind the last line of a key's value, which may have several: strings in three quotes, and lists.
func valueEnd(doc []byte, at int) (int, error) {
	depth := 0
	for at < len(doc) {
		rest := doc[at:]
		switch c := doc[at]; {
		case bytes.HasPrefix(rest, []byte(`"""`)), bytes.HasPrefix(rest, []byte("'''")):
			n := quoted(rest, rest[:3])
			if n < 0 {
				return 0, errUnended
			}
			at += n
		case c == '"', c == '\'':
			n := quoted(doc[at:lineEnd(doc, at)], rest[:1])
			if n < 0 { // it is broken: the line counts
				n = 1
			}
			at += n
		case c == '#':
			at = lineEnd(doc, at)
			if doc[at-1] == '\n' {
				at--
			} else {
				return at, nil
			}
		case c == '\n' && depth <= 0:
			return at + 1, nil
		default:
			depth += strings.Count("[{", string(c)) - strings.Count("]}", string(c))
			at++
		}
	}
	return at, nil
}

// quoted returns the length of a string with its quotes, -1 if it does not end.
func quoted(text, quote []byte) int {
	for i := len(quote); i < len(text); i++ {
		if text[i] == '\\' && quote[0] == '"' {
			i++
			continue
		}
		if bytes.HasPrefix(text[i:], quote) {
			return i + len(quote)
		}
	}
	return -1
}

// tomlTable is a table of a TOML file: from its head to its last key. What is behind that, such as comments, belongs to what follows.
type tomlTable struct {
	path       []string
	start, end int
	keys       []statement
}

// serverPath is the path of Parley's table.
var serverPath = []string{"mcp_servers", "parley"}

// serverTables returns the table of the MCP server parley and those in it. inline says that servers are not in tables of their own.
func serverTables(doc []byte) (tables []tomlTable, inline bool, err error) {
	all, err := statements(doc)
	if err != nil {
		return nil, false, err
	}
	var path []string
	for _, s := range all {
		if s.head {
			path = s.path
			if slices.Equal(path[:min(len(path), 2)], serverPath) {
				tables = append(tables, tomlTable{path: path, start: s.start, end: s.end})
			}
			continue
		}
		whole := slices.Concat(path, s.path)
		switch {
		case slices.Equal(path[:min(len(path), 2)], serverPath):
			t := &tables[len(tables)-1]
			t.keys, t.end = append(t.keys, s), s.end
		case len(path) == 0 && slices.Equal(whole[:min(len(whole), 1)], serverPath[:1]), slices.Equal(whole[:min(len(whole), 2)], serverPath):
			inline = true
		}
	}
	return tables, inline, nil
}

// ours returns Parley's own table among those of [serverTables], nil if there is none.
func ours(doc []byte, tables []tomlTable) *tomlTable {
	for i, t := range tables {
		if !slices.Equal(t.path, serverPath) {
			continue
		}
		for _, k := range t.keys {
			if slices.Equal(k.path, []string{"args"}) && bytes.ContainsAny(doc[k.value:k.end], `"'`) &&
				strings.Trim(string(doc[k.value:k.end]), " \t\r\n[],\"'") == "mcp" {
				return &tables[i]
			}
		}
	}
	return nil
}

// commandOf returns the command of a table and the offsets of its value; from is 0 if it has none in one line.
func commandOf(doc []byte, t *tomlTable) (command string, from, to int) {
	for _, k := range t.keys {
		if !slices.Equal(k.path, []string{"command"}) {
			continue
		}
		value := doc[k.value:lineEnd(doc, k.value)]
		from = k.value + len(value) - len(bytes.TrimLeft(value, " \t"))
		n := -1
		if doc[from] == '"' || doc[from] == '\'' {
			n = quoted(doc[from:k.end], doc[from:from+1])
		}
		if n < 0 {
			return "", 0, 0
		}
		command = string(doc[from+1 : from+n-1])
		if doc[from] == '"' {
			if s, err := strconv.Unquote(string(doc[from : from+n])); err == nil {
				command = s
			}
		}
		return command, from, from + n
	}
	return "", 0, 0
}

// enterTable appends the table to a TOML file, or puts the program's path into the one that it has.
func (f file) enterTable(c Change) (Change, error) {
	tables, inline, err := serverTables(c.before)
	if err != nil {
		return c, &Error{Code: CodeUnreadable, Message: "cannot change " + f.path + ": " + err.Error(), Remedy: "correct the file, and repeat the command", Err: err}
	}
	if own := ours(c.before, tables); own != nil {
		f.renewTable(&c, own)
		return c, nil
	}
	if len(tables) > 0 {
		return c, &Error{Code: CodeForeign, Message: f.path + " has an MCP server parley that is not Parley's", Remedy: "rename or remove it, and repeat the command"}
	}
	if inline {
		return c, &Error{Code: CodeUnsupported, Message: f.path + " has its MCP servers in one line", Remedy: "write them as tables, such as [mcp_servers.NAME], and repeat the command"}
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

// renewTable replaces the path of another program.
func (f file) renewTable(c *Change, own *tomlTable) {
	tables, _, err := serverTables([]byte(f.toml))
	if err != nil || len(tables) == 0 {
		return // not with a table of ours
	}
	program, _, _ := commandOf([]byte(f.toml), &tables[0])
	command, from, to := commandOf(c.before, own)
	if from == 0 || !outdated(command, program) {
		return
	}
	c.replace(from, to, tomlString(program))
}

// leaveTable takes the server's tables out.
func leaveTable(c *Change, texts []string) error {
	tables, _, err := serverTables(c.before)
	if err != nil {
		return err
	}
	was := ours(c.before, tables) != nil
	c.takeOut(texts, true)
	if tables, _, err = serverTables(c.after); err != nil || !was {
		return err
	}
	for _, t := range slices.Backward(tables) {
		c.after = slices.Concat(c.after[:t.start], c.after[t.end:])
	}
	return nil
}

// elementPath is the array of tables with the MCP servers of Vibe.
const elementPath = "mcp_servers"

// elements returns the tables of the array of MCP servers whose name is parley, and the value of the array if it stands in one key.
func elements(doc []byte) (tables []tomlTable, list *statement, err error) {
	all, err := statements(doc)
	if err != nil {
		return nil, nil, err
	}
	var in *tomlTable
	top := true
	finish := func() {
		if in != nil && in.is(doc, "name", "parley") {
			tables = append(tables, *in)
		}
		in = nil
	}
	for i, s := range all {
		switch {
		case s.head:
			finish()
			top = false
			head := strings.Join(strings.Fields(string(doc[s.start:s.end])), "")
			if head == "[["+elementPath+"]]" || strings.HasPrefix(head, "[["+elementPath+"]]#") {
				in = &tomlTable{start: s.start, end: s.end}
			}
		case in != nil:
			in.keys, in.end = append(in.keys, s), s.end
		case top && slices.Equal(s.path, []string{elementPath}):
			list = &all[i]
		}
	}
	finish()
	return tables, list, nil
}

// is reports whether a key of a table is a text.
func (t *tomlTable) is(doc []byte, key, text string) bool {
	for _, k := range t.keys {
		if slices.Equal(k.path, []string{key}) && strings.Trim(string(doc[k.value:k.end]), " \t\r\n\"'") == text {
			return true
		}
	}
	return false
}

// isMCP reports whether a table runs Parley's MCP server.
func (t *tomlTable) isMCP(doc []byte) bool {
	for _, k := range t.keys {
		if slices.Equal(k.path, []string{"args"}) && strings.Trim(string(doc[k.value:k.end]), " \t\r\n[],\"'") == "mcp" {
			return true
		}
	}
	return false
}

// enterElement adds the server to the array of a TOML file, or puts the program's path into the one that it has.
func (f file) enterElement(c Change) (Change, error) {
	tables, list, err := elements(c.before)
	if err != nil {
		return c, &Error{Code: CodeUnreadable, Message: "cannot change " + f.path + ": " + err.Error(), Remedy: "correct the file, and repeat the command", Err: err}
	}
	if len(tables) > 0 {
		own := &tables[0]
		if !own.isMCP(c.before) {
			return c, &Error{Code: CodeForeign, Message: f.path + " has an MCP server parley that is not Parley's", Remedy: "rename or remove it, and repeat the command"}
		}
		ours, _, _ := elements([]byte(f.array)) // a table of ours can be read
		program, _, _ := commandOf([]byte(f.array), &ours[0])
		if command, from, to := commandOf(c.before, own); from > 0 && outdated(command, program) {
			c.replace(from, to, tomlString(program))
		}
		return c, nil
	}
	if list != nil {
		if own := ownInline().FindSubmatchIndex(c.before[list.value:list.end]); own != nil {
			f.renewInline(&c, list.value+own[2], list.value+own[3])
			return c, nil
		}
	}
	at, inserted := len(c.before), "\n"+f.array
	switch {
	case list != nil && !emptyList().Match(c.before[list.value:list.end]):
		return c, &Error{Code: CodeUnsupported, Message: f.path + " has its MCP servers in one line", Remedy: "write them as tables, such as [[mcp_servers]], and repeat the command"}
	case list != nil: // Vibe writes an empty list, beside which there can be no tables
		at = list.value + strings.IndexByte(string(c.before[list.value:list.end]), '[') + 1
		inserted = inlineTable(f.array)
	case len(c.before) == 0:
		inserted = f.array
	case c.before[len(c.before)-1] != '\n':
		inserted = "\n" + inserted
	}
	if list == nil && bytes.Contains(c.before, []byte("\r\n")) {
		inserted = strings.ReplaceAll(inserted, "\n", "\r\n")
	}
	c.after = slices.Concat(c.before[:at], []byte(inserted), c.before[at:])
	c.Inserted = []string{inserted}
	return c, nil
}

// emptyList matches the value of a key.
var emptyList = text.Pattern(`^\s*\[\s*\]\s*(?:#[^\n]*)?\s*$`)

// ownInline matches the element that [file.enterElement] puts into a list, and its command.
var ownInline = text.Pattern(`\{ name = "parley", transport = "stdio", command = ("(?:[^"\\]|\\.)*"), args = \["mcp"\] \}`)

// renewInline replaces the path of another program in an element of a list. from and to are the offsets of its command.
func (f file) renewInline(c *Change, from, to int) {
	ours := ownInline().FindStringSubmatch(inlineTable(f.array))
	command, err := strconv.Unquote(string(c.before[from:to]))
	program, ourErr := strconv.Unquote(ours[1])
	if err == nil && ourErr == nil && outdated(command, program) {
		c.replace(from, to, ours[1])
	}
}

// inlineTable returns the keys of a table as an element of a list.
func inlineTable(table string) string {
	_, keys, _ := strings.Cut(strings.TrimSuffix(table, "\n"), "\n")
	return "{ " + strings.ReplaceAll(keys, "\n", ", ") + " }"
}

// leaveElement takes the server out of the array.
func leaveElement(c *Change, texts []string) error {
	c.takeOut(texts, true)
	tables, list, err := elements(c.after)
	if err != nil {
		return err
	}
	if list != nil {
		if own := ownInline().FindIndex(c.after[list.value:list.end]); own != nil {
			c.after = slices.Concat(c.after[:list.value+own[0]], c.after[list.value+own[1]:])
			return nil
		}
	}
	for _, t := range slices.Backward(tables) {
		if t.isMCP(c.after) {
			c.after = slices.Concat(c.after[:t.start], c.after[t.end:])
		}
	}
	return nil
}
