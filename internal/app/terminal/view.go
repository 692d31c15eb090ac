package terminal

import (
	"fmt"
	"strings"

	tea "charm.land/bubbletea/v2"

	"github.com/parleyhub/parley/internal/base/display"
	"github.com/parleyhub/parley/internal/base/text"
)

// The least size; a smaller terminal shows the upper left part.
const (
	leastWidth  = 40
	leastHeight = 10
)

// View implements [tea.Model].
func (m *model) View() tea.View {
	lines, cursor := m.lines()
	v := tea.NewView(strings.Join(lines, "\n"))
	v.AltScreen, v.Cursor, v.WindowTitle = true, cursor, "parley: "+m.current().name
	if m.mouse {
		v.MouseMode = tea.MouseModeCellMotion
	}
	return v
}

// lines returns the lines of the screen, exactly as many as it has, and the cursor of the prompt.
func (m *model) lines() ([]string, *tea.Cursor) {
	w, h := max(m.width, leastWidth), max(m.height, leastHeight)
	out := []string{m.tabLine(w)}
	var cursor *tea.Cursor
	switch {
	case m.help:
		out = append(out, m.helpLines(w)...)
	case m.editor != nil:
		shown, x, y := m.editor.lines(w, h-4, m.up)
		out, cursor = append(out, shown...), tea.NewCursor(x, y+1)
	case m.page != nil:
		out = append(out, m.page.lines(w, h-3, m.now())...)
	default:
		out = append(out, m.listLines(w)...)
	}
	for len(out) < h-2 {
		out = append(out, "")
	}
	out = out[:h-2]
	if m.prompt == nil {
		return append(out, dim.paint(display.Fit(m.hints(), w)), m.statusLine(w)), cursor
	}
	text, x := m.prompt.view(w)
	return append(out, text, m.statusLine(w)), tea.NewCursor(x, h-2)
}

type tab struct {
	from, to int
	text     string
}

// tabs returns the names of the screens with their columns.
func (m *model) tabs() []tab {
	w := max(m.width, leastWidth)
	for _, long := range []bool{true, false} {
		tabs, x := make([]tab, len(m.screens)), 0
		for i, s := range m.screens {
			name := s.short
			if long {
				name = s.name
			}
			name = fmt.Sprintf("%d %s", i+1, name)
			if i == 0 && m.waiting > 0 {
				name += fmt.Sprintf(" %d", m.waiting)
			}
			tabs[i] = tab{x, x + len(name), name}
			x += len(name) + 1
		}
		if x-1 <= w || !long {
			return tabs
		}
	}
	return nil
}

func (m *model) tabLine(w int) string {
	var b strings.Builder
	for i, t := range m.tabs() {
		if t.to > w {
			break
		}
		if i > 0 {
			b.WriteByte(' ')
		}
		r := dim
		switch {
		case i == m.at:
			r = selected
		case i == 0 && m.waiting > 0:
			r = waits
		}
		b.WriteString(r.paint(t.text))
	}
	return b.String()
}

// body returns how many rows the list has.
func (m *model) body() int {
	return max(max(m.height, leastHeight)-2-m.listTop()-len(m.previewLines()), 1)
}

// listTop returns the line of the first row.
func (m *model) listTop() int { return 3 + len(m.current().table.above) }

func (m *model) previewLines() []string {
	s := m.current()
	r := s.row()
	if s.preview == nil || r.key == "" {
		return nil
	}
	w, h := max(m.width, leastWidth), max(m.height, leastHeight)
	preview := s.preview(r)
	if len(preview) == 0 {
		preview = s.table.rest
	}
	if len(preview) == 0 {
		return nil
	}
	out := []string{dim.paint(strings.Repeat("─", w))}
	for _, l := range preview {
		out = append(out, l.wrapped(w)...)
	}
	if most := (h - 6) / 2; len(out) > most {
		out = append(out[:most-1], dim.paint("… Enter shows all"))
	}
	return out
}

func (m *model) listLines(w int) []string {
	s := m.current()
	out := []string{m.listTitle(s, w)}
	for _, l := range s.table.above {
		out = append(out, l.role.paint(display.Fit(flat(l.text), w)))
	}
	if s.len() == 0 {
		return append(out, "", "  "+dim.paint(m.emptyText(s)))
	}
	rows := m.body()
	s.top = min(max(s.top, s.cursor-rows+1), s.cursor)
	s.top = max(min(s.top, s.len()-rows), 0)
	out = append(out, dim.paint(s.header(w)))
	for i := s.top; i < min(s.top+rows, s.len()); i++ {
		out = append(out, m.rowLine(s, i, w))
	}
	for len(out) < rows+m.listTop()-1 {
		out = append(out, "")
	}
	return append(out, m.previewLines()...)
}

func (m *model) listTitle(s *screen, w int) string {
	count := ""
	if n := len(s.table.rows); n > 0 {
		count = fmt.Sprintf("%d of %d", s.cursor+1, s.len())
		if s.shown != nil {
			count += fmt.Sprintf(" (/%s, %d in all)", clean(s.filter), n)
		}
		if s.hidden > 0 {
			sign := "paused"
			if s.playing {
				sign = "▶"
			}
			count = fmt.Sprintf("replay %s %d of %d", sign, s.len(), s.len()+s.hidden)
		}
	}
	title := " " + s.name
	return heading.paint(title) + dim.paint(display.Fit("  "+count, max(w-len(title), 1)))
}

func (m *model) emptyText(s *screen) string {
	switch {
	case s.filter != "":
		return "Nothing has these words. Esc shows all."
	case !s.loaded && !m.up:
		return "The hub is away."
	case !s.loaded:
		return "Loading …"
	}
	return s.none
}

func (s *screen) header(w int) string {
	cells := make([]string, len(s.table.columns))
	for i, c := range s.table.columns {
		cells[i] = c.name
	}
	return s.join("   ", cells, "AGE", w)
}

func (m *model) rowLine(s *screen, i, w int) string {
	r := s.rowAt(i)
	sign := mark(r.state)
	if r.state == "" {
		sign = " "
	}
	marker := " "
	if i == s.cursor {
		marker = "›"
	}
	text := s.join(marker+sign+" ", r.cells, r.age(m.now()), w)
	if i == s.cursor {
		return selected.paint(display.Pad(text, w))
	}
	return marker + roleOf(r.state).paint(sign) + strings.TrimPrefix(text, marker+sign)
}

// ageWidth is the width of the last column, the age.
const ageWidth = 5

// join puts cells into their columns.
func (s *screen) join(begin string, cells []string, age string, w int) string {
	var b strings.Builder
	b.WriteString(begin)
	left := w - display.Cells(begin) - ageWidth
	for i, c := range cells {
		width := s.table.columns[i].width
		if width < 0 && w < wide {
			continue
		}
		width = max(width, -width)
		if i == len(cells)-1 {
			width = left - 1
		}
		width = min(width, left-1)
		if width <= 0 {
			break
		}
		b.WriteString(display.Pad(flat(c), width))
		b.WriteByte(' ')
		left -= width + 1
	}
	return b.String() + strings.Repeat(" ", max(left, 0)) + fmt.Sprintf("%*s", ageWidth, age)
}

func (m *model) statusLine(w int) string {
	if m.notice != "" {
		return m.noticeAs.paint(display.Fit(" "+m.notice, w))
	}
	if !m.up {
		return bad.paint(display.Fit(fmt.Sprintf(" ✗ The hub is away (%s) for %s; the screens continue when it is back.", m.o.Where, age(m.now(), m.awayFrom)), w))
	}
	sum := ""
	if st := m.status; st != nil {
		sum = fmt.Sprintf(" · %d working · %s · %s", st.ActiveTasks, text.Count(st.TotalTasks, "task"), text.Count(len(st.Agents), "agent"))
	}
	return good.paint(" ●") + dim.paint(display.Fit(" "+m.o.Where+sum, w-2))
}

func (m *model) hints() string {
	if m.editor != nil {
		return " Esc back  Tab next text  Ctrl+Z undo  Ctrl+Y redo"
	}
	s := m.subject()
	h := []string{"? keys"}
	switch {
	case m.page == nil:
		h = append(h, "↑↓ move", "Enter open")
	case s.document != "":
		h = append(h, "↑↓ scroll", "Enter write", "Esc back")
	default:
		h = append(h, "↑↓ scroll", "Esc back")
	}
	for _, a := range actions {
		if a.applies(s) {
			word := a.hint
			switch {
			case a.key == "d" && s.dismissible != "":
				word = "dismiss"
			case a.key == "d" && s.item != "":
				word = "discard"
			}
			h = append(h, a.key+" "+word)
		}
	}
	if m.current().next != nil && m.page == nil {
		h = append(h, "g group")
	}
	if s := m.current(); s.replays && m.page == nil {
		h = append(h, "p replay")
		if s.hidden > 0 {
			h = append(h, ", . step", "Esc end")
		}
	}
	return " " + strings.Join(append(h, "/ filter", ": command", "q quit"), "  ")
}

func (m *model) helpLines(w int) []string {
	out := []string{heading.paint(" Keys"), ""}
	add := func(key, what string) {
		out = append(out, bold.paint(display.Pad("  "+key, 16))+display.Fit(what, w-16))
	}
	add("1 … 9, Tab", "another screen; Shift+Tab goes back")
	add("↑ ↓ PgUp PgDn", "move, also k and j; Home and End, G")
	add("Enter, Esc", "open what is selected, write in a document; go back")
	add("/ :", "filter what is shown; command, with Tab to complete")
	for _, a := range actions {
		add(a.key, a.help)
	}
	add("g", "group in another way (costs)")
	add("p , .", "replay the timeline as it happened, or pause; a step back or forward")
	add("M", "give the mouse to the terminal, to select text, and take it back")
	add("q, Ctrl-C", "leave; the hub and its tasks go on")
	return append(out, "", dim.paint("  ✓ done, well   ✗ failed, offline   ? waits for you   ● at work"))
}
