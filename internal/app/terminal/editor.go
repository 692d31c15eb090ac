package terminal

import (
	"fmt"
	"slices"
	"strings"

	tea "charm.land/bubbletea/v2"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/internal/base/display"
	"github.com/parleyhub/parley/internal/hub/events"
)

// editor edits the texts of a document in place, while others do the same.
type editor struct {
	*replica
	root string
	text string // of the root
	at   int    // the cursor, in bytes
	goal int    // the column that up and down keep, -1 for that of the cursor
	sheet
	top place // the first row that is shown
}

// firstText is the root that an empty document gets.
const firstText = "notes"

// openEditor edits the texts of a document.
func (m *model) openEditor(name string) tea.Cmd {
	e := &editor{goal: -1}
	e.resize(m.width - 1)
	i := slices.IndexFunc(m.replicas, func(c *replica) bool { return c.name == name })
	if i < 0 {
		m.replicas = append(m.replicas, newReplica(name, nil))
		i = len(m.replicas) - 1
	}
	e.replica = m.replicas[i]
	e.changed = e.follow
	m.editor = e
	e.choose(0)
	return m.sync(e.replica)
}

// closeEditor leaves the editor. What the hub lacks is sent as soon as that is possible.
func (m *model) closeEditor() tea.Cmd {
	c := m.editor.replica
	c.changed, m.editor = nil, nil
	if !c.unsaved() && !c.sending {
		m.forget(c)
	}
	return m.reload()
}

// forget drops a copy of which the hub has everything.
func (m *model) forget(c *replica) {
	if !c.unsaved() {
		m.replicas = slices.DeleteFunc(m.replicas, func(other *replica) bool { return other == c })
	}
}

// unsaved names a document with edits that the hub may lack.
func (m *model) unsaved() string {
	for _, c := range m.replicas {
		if c.unsaved() {
			return c.name
		}
	}
	return ""
}

// syncDocuments merges what is edited with the hub's documents. changed are events, nil for all.
func (m *model) syncDocuments(changed []events.Event) tea.Cmd {
	var cmds []tea.Cmd
	for _, c := range m.replicas {
		if changed == nil || slices.ContainsFunc(changed, func(e events.Event) bool { return e.Kind == events.DocumentChanged && e.Subject == c.name }) {
			cmds = append(cmds, m.sync(c))
		}
	}
	return tea.Batch(cmds...)
}

// choose goes to another text of the document.
func (e *editor) choose(by int) {
	names := e.texts()
	switch i := slices.Index(names, e.root); {
	case len(names) == 0:
		e.root = firstText
	case i < 0:
		e.root = names[0]
	default:
		e.root = names[(i+by+len(names))%len(names)]
	}
	e.at, e.top = 0, place{}
	e.set(e.read(e.root))
}

func (e *editor) set(text string) {
	e.text = text
	e.at = min(e.at, len(text))
	e.cut(text)
	e.top.piece = min(e.top.piece, len(e.begin)-1)
}

// follow adopts what others have written; the cursor stays where it is in the text.
func (e *editor) follow(change crdt.Change) {
	texts := e.texts()
	if e.text == "" && len(texts) > 0 && !slices.Contains(texts, e.root) {
		e.choose(0)
		return
	}
	unit := crdt.Units(e.text[:e.at])
	for _, t := range change.Types {
		if len(t.Path) == 1 && t.Path[0] == e.root {
			unit = moved(unit, t.List)
		}
	}
	e.set(e.read(e.root))
	e.at, e.goal = byteAt(e.text, unit), -1
}

// moved returns where a place of a text is after a change.
func moved(place int, list []crdt.ListChange) int {
	at := 0
	for _, c := range list {
		switch {
		case c.Retain > 0:
			at += c.Retain
		case c.Delete > 0:
			place -= min(c.Delete, max(place-at, 0))
		default:
			n := 1
			if s, ok := c.Insert.(string); ok {
				n = crdt.Units(s)
			} else if all, ok := c.Insert.([]any); ok {
				n = len(all)
			}
			if at < place {
				place += n
			}
			at += n
		}
	}
	return place
}

// byteAt returns the byte of a place in UTF-16 units.
func byteAt(text string, unit int) int {
	for i, r := range text {
		if unit <= 0 {
			return i
		}
		unit--
		if r > 0xffff {
			unit--
		}
	}
	return len(text)
}

// replace replaces a part of the text, from and to in bytes.
func (e *editor) replace(from, to int, by string) {
	if from == to && by == "" || e.hub == nil {
		return
	}
	if err := e.splice(e.root, crdt.Units(e.text[:from]), crdt.Units(e.text[from:to]), by); err != nil {
		e.problem = clean(err.Error())
		return
	}
	e.set(e.text[:from] + by + e.text[to:])
	e.at, e.goal = from+len(by), -1
}

// revert undoes what was written here last, or repeats it.
func (e *editor) revert(do func() ([]byte, error)) {
	update, err := do()
	if err != nil || update == nil {
		return
	}
	e.edits++
	before := e.text
	e.set(e.read(e.root))
	d := difference(before, e.text)
	e.at, e.goal = d.at+len(d.text), -1
}

// editorKey handles a key while a document is edited.
func (m *model) editorKey(k tea.KeyPressMsg, name string) tea.Cmd {
	e := m.editor
	m.notice = ""
	switch name {
	case "esc":
		return m.closeEditor()
	case "tab":
		e.choose(1)
	case "shift+tab":
		e.choose(-1)
	case "ctrl+z":
		e.revert(e.undo.Undo)
	case "ctrl+y":
		e.revert(e.undo.Redo)
	default:
		if !e.moveKey(name, m.editorRows()) {
			e.write(k, name)
		}
	}
	if e.edits > e.saved {
		return m.sync(e.replica)
	}
	return nil
}

func (e *editor) write(k tea.KeyPressMsg, name string) {
	switch name {
	case "backspace", "ctrl+h":
		e.replace(e.before(e.at), e.at, "")
	case "delete":
		e.replace(e.at, e.after(e.at), "")
	case "ctrl+w":
		i := len(strings.TrimRight(e.text[:e.at], " "))
		e.replace(strings.LastIndexAny(e.text[:i], " \n")+1, e.at, "")
	case "ctrl+u":
		e.replace(e.lineBegin(), e.at, "")
	case "ctrl+k":
		e.replace(e.at, e.lineEnd(), "")
	case "enter", "ctrl+j", "shift+enter":
		e.replace(e.at, e.at, "\n")
	default:
		e.insert(k.Text)
	}
}

// insert writes at the cursor.
func (e *editor) insert(text string) {
	e.replace(e.at, e.at, display.Plain(strings.ReplaceAll(text, "\r\n", "\n")))
}

func (e *editor) before(at int) int {
	if at == 0 {
		return 0
	}
	at--
	for at > 0 && (!runeStart(e.text, at) || joins(e.text[at:])) {
		at--
	}
	return at
}

func (e *editor) after(at int) int {
	if at >= len(e.text) {
		return at
	}
	at++
	for at < len(e.text) && (!runeStart(e.text, at) || joins(e.text[at:])) {
		at++
	}
	return at
}

func (e *editor) lineBegin() int { return strings.LastIndexByte(e.text[:e.at], '\n') + 1 }

func (e *editor) lineEnd() int {
	if i := strings.IndexByte(e.text[e.at:], '\n'); i >= 0 {
		return e.at + i
	}
	return len(e.text)
}

// moveKey moves the cursor; rows are those of the screen.
func (e *editor) moveKey(name string, rows int) bool {
	at := e.at
	switch name {
	case "left", "ctrl+b":
		at = e.before(at)
	case "right", "ctrl+f":
		at = e.after(at)
	case "home", "ctrl+a":
		at = e.lineBegin()
	case "end", "ctrl+e":
		at = e.lineEnd()
	case "ctrl+home":
		at = 0
	case "ctrl+end":
		at = len(e.text)
	case "up", "ctrl+p":
		e.moveRows(-1)
		return true
	case "down", "ctrl+n":
		e.moveRows(1)
		return true
	case "pgup":
		e.moveRows(1 - rows)
		return true
	case "pgdown":
		e.moveRows(rows - 1)
		return true
	default:
		return false
	}
	e.at, e.goal = at, -1
	return true
}

// moveRows moves the cursor by rows and keeps its column.
func (e *editor) moveRows(by int) {
	p := e.placeOf(e.at)
	if e.goal < 0 {
		e.goal = e.column(p, e.at)
	}
	e.at = e.byteOf(e.move(p, by), e.goal)
}

// click moves the cursor to a place of the screen.
func (e *editor) click(x, y int) {
	if y < 0 {
		return
	}
	p := e.move(e.top, y)
	e.at, e.goal = e.byteOf(p, x), -1
}

// editorRows is how many rows of a text are shown.
func (m *model) editorRows() int { return max(m.height, leastHeight) - 4 }

// lines returns the rows of the screen, and the place of the cursor below the title.
func (e *editor) lines(w, h int, up bool) (out []string, x, y int) {
	e.resize(w - 1)
	names := e.texts()
	title := " Document " + clean(e.name) + " · " + clean(e.root)
	if i := slices.Index(names, e.root); len(names) > 1 && i >= 0 {
		title += fmt.Sprintf(" (%d of %d)", i+1, len(names))
	}
	state, as := e.state(up)
	title = display.Fit(title, max(w-display.Cells(state)-3, 8))
	out = append(out, heading.paint(title)+as.paint("  "+display.Fit(state, max(w-display.Cells(title)-2, 1))))
	now := e.placeOf(e.at)
	e.top = e.scrolled(e.top, now, h)
	for p := e.top; len(out) <= h; {
		if p == now {
			x, y = e.column(p, e.at), len(out)
		}
		out = append(out, e.show(p))
		next := e.move(p, 1)
		if next == p {
			break
		}
		p = next
	}
	return out, x, y
}

// state says whether the hub has everything.
func (e *editor) state(up bool) (string, role) {
	switch {
	case e.hub == nil && up:
		return "loading …", dim
	case e.hub == nil:
		return "✗ the hub is away", bad
	case e.unsaved() && !up:
		return "✗ not saved: the hub is away", bad
	case e.unsaved() && e.problem != "":
		return "✗ not saved: " + e.problem, bad
	case e.unsaved():
		return "● saving …", busy
	}
	return "✓ saved", good
}
