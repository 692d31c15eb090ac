package terminal

import (
	"strings"

	tea "charm.land/bubbletea/v2"

	"github.com/parleyhub/parley/internal/base/display"
)

// prompt is a line in which the user writes.
type prompt struct {
	label  string
	text   []rune
	at     int // the cursor
	change func(text string)
	submit func(text string) tea.Cmd
}

// maxPrompt bounds what is written, in characters.
const maxPrompt = 16 << 10

func (p *prompt) insert(s string) {
	r := []rune(display.Plain(strings.ReplaceAll(s, "\r\n", "\n")))
	if len(p.text)+len(r) > maxPrompt {
		return
	}
	p.text = append(p.text[:p.at:p.at], append(r, p.text[p.at:]...)...)
	p.at += len(r)
}

func (p *prompt) remove(from, to int) {
	from = max(from, 0)
	if to = min(to, len(p.text)); from < to {
		p.text = append(p.text[:from:from], p.text[to:]...)
		p.at = from
	}
}

// key handles a key that is neither Enter nor Esc.
func (p *prompt) key(k tea.KeyPressMsg) {
	switch k.String() {
	case "left", "ctrl+b":
		p.at = max(p.at-1, 0)
	case "right", "ctrl+f":
		p.at = min(p.at+1, len(p.text))
	case "home", "ctrl+a":
		p.at = 0
	case "end", "ctrl+e":
		p.at = len(p.text)
	case "backspace", "ctrl+h":
		p.remove(p.at-1, p.at)
	case "delete":
		p.remove(p.at, p.at+1)
	case "ctrl+u":
		p.remove(0, p.at)
	case "ctrl+k":
		p.remove(p.at, len(p.text))
	case "ctrl+w":
		i := p.at
		for i > 0 && p.text[i-1] == ' ' {
			i--
		}
		for i > 0 && p.text[i-1] != ' ' {
			i--
		}
		p.remove(i, p.at)
	case "alt+enter", "ctrl+j":
		p.insert("\n")
	default:
		p.insert(k.Text)
	}
	p.changed()
}

func (p *prompt) changed() {
	if p.change != nil {
		p.change(string(p.text))
	}
}

// view returns the line of this width, and the column of the cursor.
func (p *prompt) view(width int) (string, int) {
	show := func(r []rune) string { return strings.ReplaceAll(string(r), "\n", "⏎") }
	room := max(width-display.Cells(p.label)-2, 4)
	before := show(p.text[:p.at])
	for display.Cells(before) > room {
		_, after, _ := cutRune(before)
		before = after
	}
	column := display.Cells(p.label) + 1 + display.Cells(before)
	return display.Fit(p.label+" "+before+show(p.text[p.at:]), width), column
}

func cutRune(s string) (first rune, rest string, ok bool) {
	for i, r := range s {
		if i > 0 {
			return first, s[i:], true
		}
		first = r
	}
	return first, "", s != ""
}
