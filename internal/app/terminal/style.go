package terminal

import (
	"cmp"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/parleyhub/parley/internal/api/screens"
	"github.com/parleyhub/parley/internal/base/display"
)

// role is the meaning of a text, which decides its colour. The colours are the terminal's own sixteen, so that they fit
// its background; without colours the words say the same.
type role string

const (
	plainText role = ""
	bold      role = "1"
	dim       role = "2"
	selected  role = "7"
	bad       role = "31"
	good      role = "32"
	waits     role = "33"
	busy      role = "36"
	heading   role = "1;34"
)

func (r role) paint(s string) string {
	if r == plainText || s == "" {
		return s
	}
	return "\x1b[" + string(r) + "m" + s + "\x1b[0m"
}

// roles are the colours of the contract's roles.
var roles = map[screens.Role]role{screens.Plain: dim, screens.Good: good, screens.Bad: bad, screens.Waits: waits, screens.Busy: busy}

// roleOf returns the colour of a state of an agent, a task, a sub-task or a link.
func roleOf(state string) role { return roles[screens.RoleOf(state)] }

// mark returns the sign of a state, for those who see no colours.
func mark(state string) string { return screens.Mark(state) }

// age returns how long ago a time was.
func age(now, then time.Time) string {
	if then.IsZero() {
		return ""
	}
	return display.Duration(max(now.Sub(then), 0))
}

// age returns how old a row is; of one that ends, how long it lasts.
func (r *row) age(now time.Time) string {
	if r.until.IsZero() {
		return age(now, r.at)
	}
	return "-" + display.Duration(max(r.until.Sub(now), 0))
}

func dollars(usd float64) string {
	switch {
	case usd == 0:
		return ""
	case usd < 0.01:
		return fmt.Sprintf("$%.4f", usd)
	}
	return fmt.Sprintf("$%.2f", usd)
}

// bar draws a share of a whole in n columns.
func bar(value, whole float64, n int) string {
	if whole <= 0 || n <= 0 {
		return ""
	}
	eighths := int(value / whole * float64(n) * 8)
	full := strings.Repeat("█", eighths/8)
	if rest := eighths % 8; rest > 0 {
		full += string([]rune(" ▏▎▍▌▋▊▉")[rest])
	}
	return cmp.Or(full, "▏")
}

// clean returns a text of an agent as one line without control sequences, of a bounded length.
func clean(s string) string {
	if len(s) > maxCell {
		s = s[:maxCell]
	}
	return display.OneLine(visible(s))
}

// flat is the last guard of a line that is made of several texts: it keeps the spaces, which draw trees and charts.
func flat(s string) string {
	if len(s) > maxCell {
		s = s[:maxCell]
	}
	return strings.NewReplacer("\n", " ", "\t", " ").Replace(visible(s))
}

const (
	maxCell = 2 << 10  // bytes of a text in a line of a list
	maxText = 64 << 10 // bytes of a text that is shown in full
)

// whole returns a long text of an agent without control sequences: its end, if it is too long.
func whole(s string) string {
	note := ""
	if len(s) > maxText {
		note = fmt.Sprintf("… %d bytes before this are not shown\n", len(s)-maxText)
		s = s[len(s)-maxText:]
	}
	return note + visible(s)
}

// visible removes terminal sequences and shows what a reader would not see by its code, as the page does. Terminals do not agree
// on the width of long stacks of marks and of variants, so these are left out.
func visible(s string) string {
	var b strings.Builder
	marks := 0
	for _, r := range display.Plain(strings.ToValidUTF8(s, "")) {
		if !unicode.In(r, unicode.Mn, unicode.Me) {
			marks = 0
		} else if marks++; marks > maxMarks || r >= 0xfe00 && r <= 0xfe0f || r >= 0xe0100 {
			continue
		}
		switch {
		case r == '\n', r == '\t', unicode.IsGraphic(r):
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, "⟨U+%04X⟩", r)
		}
	}
	return b.String()
}

// maxMarks bounds the marks above and below one character.
const maxMarks = 2
