// Package display prepares text for a terminal: it removes control sequences, and measures, cuts and wraps by the
// columns that text takes.
package display

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/width"

	"github.com/parleyhub/parley/internal/base/text"
)

// Cleaner removes terminal control sequences from text that arrives in pieces. The text of
// agents and peers is untrusted: it must not move the cursor, change the window's title,
// write the clipboard or reorder what the user reads.
type Cleaner struct{ state cleanState }

type cleanState int

const (
	cleanText   cleanState = iota
	cleanEscape            // after ESC
	cleanCSI               // ESC [ … final byte
	cleanString            // ESC ] P X ^ _ … ended by BEL or ESC \
	cleanStringEscape
)

// Clean returns the next piece of text without control sequences.
func (c *Cleaner) Clean(text string) string {
	var b strings.Builder
	b.Grow(len(text))
	for _, r := range text {
		if c.keep(r) {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func (c *Cleaner) keep(r rune) bool {
	switch c.state {
	case cleanEscape:
		c.state = afterEscape(r)
		return false
	case cleanCSI:
		if r >= 0x40 && r <= 0x7e || r == '\n' {
			c.state = cleanText
		}
		return r == '\n'
	case cleanString:
		switch r {
		case 0x07, 0x9c:
			c.state = cleanText
		case 0x1b:
			c.state = cleanStringEscape
		case '\n': // no such sequence spans lines: keep the rest
			c.state = cleanText
			return true
		}
		return false
	case cleanStringEscape:
		c.state = afterEscape(r)
		return false
	}
	switch {
	case r == 0x1b:
		c.state = cleanEscape
	case r == 0x9b:
		c.state = cleanCSI
	case r == 0x90 || r == 0x98 || r == 0x9d || r == 0x9e || r == 0x9f:
		c.state = cleanString
	case r == '\n' || r == '\t':
		return true
	default:
		return !unicode.IsControl(r) && !reorders(r) && !isTag(r)
	}
	return false
}

func afterEscape(r rune) cleanState {
	switch r {
	case '[':
		return cleanCSI
	case ']', 'P', 'X', '^', '_':
		return cleanString
	case 0x1b:
		return cleanEscape
	case ' ', '#', '%', '(', ')', '*', '+', '-', '.', '/': // one more byte follows
		return cleanEscape
	}
	return cleanText
}

// reorders reports whether r changes the order in which text is displayed.
func reorders(r rune) bool {
	return r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 || r == 0x200e || r == 0x200f || r == 0x061c
}

// EscapeJSON escapes the characters in encoded JSON that a terminal obeys or that change the order of what is displayed:
// control characters but the line feed, and marks of direction. The value stays the same: JSON has them in strings only,
// where every character may be escaped.
func EscapeJSON(encoded []byte) []byte {
	clean := true
	for _, r := range string(encoded) {
		if clean = !escaped(r); !clean {
			break
		}
	}
	if clean {
		return encoded
	}
	out := make([]byte, 0, len(encoded)+64)
	for _, r := range string(encoded) {
		if escaped(r) {
			out = fmt.Appendf(out, `\u%04x`, r)
			continue
		}
		out = utf8.AppendRune(out, r)
	}
	return out
}

func escaped(r rune) bool { return r != '\n' && unicode.IsControl(r) || reorders(r) }

// Plain removes terminal control sequences from text.
func Plain(text string) string {
	var c Cleaner
	return c.Clean(text)
}

// Indented indents every line of another agent's text but the first, so that it cannot imitate what stands around it. Every
// character that a terminal or a model could treat as a line break counts as one. Other control characters, which could make a
// terminal overwrite text, marks of direction, and characters that only a model sees are replaced by visible ones.
func Indented(text string) string {
	var b strings.Builder
	b.Grow(len(text))
	text = strings.ReplaceAll(text, "\r\n", "\n")
	for _, r := range text {
		switch {
		case strings.ContainsRune("\n\r\v\f\u0085\u2028\u2029", r):
			b.WriteString("\n    ")
			continue
		case r == '\t':
		case r < ' ':
			r += '\u2400' // the symbol for the control character
		case r == '\u007f':
			r = '\u2421'
		case unicode.IsControl(r), reorders(r), isTag(r):
			r = utf8.RuneError
		}
		b.WriteRune(r)
	}
	return b.String()
}

// isTag reports whether r is one of the characters that repeat ASCII unseen.
func isTag(r rune) bool { return r >= 0xe0000 && r <= 0xe007f }

// OneLine removes terminal control sequences from text and joins its lines.
func OneLine(s string) string { return text.OneLine(Plain(s)) }

// Duration formats a duration in its largest unit, such as "3m".
func Duration(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d/time.Second))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d/time.Minute))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d/time.Hour))
	}
	return fmt.Sprintf("%dd", int(d/(24*time.Hour)))
}

// Cells returns how many columns text takes.
func Cells(text string) int {
	n := 0
	for _, r := range text {
		n += runeCells(r)
	}
	return n
}

func runeCells(r rune) int {
	if unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// Fit cuts text to n columns.
func Fit(text string, n int) string {
	if Cells(text) <= n {
		return text
	}
	var b strings.Builder
	used := 0
	for _, r := range text {
		w := runeCells(r)
		if used+w > n-1 {
			break
		}
		used += w
		b.WriteRune(r)
	}
	return b.String() + "…"
}

// Pad cuts or fills text to exactly n columns.
func Pad(text string, n int) string {
	text = Fit(text, max(n, 0))
	return text + strings.Repeat(" ", max(n-Cells(text), 0))
}

// Wrap breaks text into lines of at most n columns, between words where there are some. Tabs become spaces; the lines
// of a paragraph keep its indentation.
func Wrap(text string, n int) []string {
	n = max(n, 8)
	var lines []string
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		lines = append(lines, wrapLine(strings.ReplaceAll(line, "\t", "    "), n)...)
	}
	return lines
}

func wrapLine(line string, n int) []string {
	if Cells(line) <= n {
		return []string{strings.TrimRight(line, " ")}
	}
	indent := line[:len(line)-len(strings.TrimLeft(line, " "))]
	if len(indent) > n/2 {
		indent = ""
	}
	var lines []string
	start, space, used, first := 0, -1, 0, true
	for i, r := range line {
		w := runeCells(r)
		if used+w > n {
			end := i
			if space > start {
				end = space
			}
			lines = append(lines, strings.TrimRight(prefix(indent, first)+line[start:end], " "))
			start, first = end, false
			if space > 0 && end == space {
				start++
			}
			used, space = Cells(indent)+Cells(line[start:i]), -1
		}
		if r == ' ' && i > len(indent) {
			space = i
		}
		used += w
	}
	return append(lines, strings.TrimRight(prefix(indent, first)+line[start:], " "))
}

// prefix returns the indentation of a line that continues another: the first one has its own.
func prefix(indent string, first bool) string {
	if first {
		return ""
	}
	return indent
}
