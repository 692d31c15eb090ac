package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"golang.org/x/term"
	"golang.org/x/text/width"

	"github.com/parleyhub/parley/internal/base/text"
)

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	f, ok := fileOf(stream)
	return ok && term.IsTerminal(int(f.Fd()))
}

// terminalSize returns the size of a terminal, zeros if w is not one.
func terminalSize(w io.Writer) (columns, rows int) {
	if f, ok := fileOf(w); ok {
		columns, rows, _ = term.GetSize(int(f.Fd())) // zeros with an error
	}
	return columns, rows
}

// style colours text if its stream is a terminal that supports and allows it.
type style struct{ on bool }

func styleOf(stream any, env func(string) string) style {
	return style{on: isTerminal(stream) && env("NO_COLOR") == "" && env("TERM") != "dumb"}
}

func (s style) paint(code, text string) string {
	if !s.on || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (s style) bold(text string) string   { return s.paint("1", text) }
func (s style) dim(text string) string    { return s.paint("2", text) }
func (s style) red(text string) string    { return s.paint("31", text) }
func (s style) green(text string) string  { return s.paint("32", text) }
func (s style) yellow(text string) string { return s.paint("33", text) }
func (s style) cyan(text string) string   { return s.paint("36", text) }

// cleaner removes terminal control sequences from text that arrives in pieces. The text of
// agents and peers is untrusted: it must not move the cursor, change the window's title,
// write the clipboard or reorder what the user reads.
type cleaner struct{ state cleanState }

type cleanState int

const (
	cleanText   cleanState = iota
	cleanEscape            // after ESC
	cleanCSI               // ESC [ … final byte
	cleanString            // ESC ] P X ^ _ … ended by BEL or ESC \
	cleanStringEscape
)

// clean returns the next piece of text without control sequences.
func (c *cleaner) clean(text string) string {
	var b strings.Builder
	b.Grow(len(text))
	for _, r := range text {
		if c.keep(r) {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func (c *cleaner) keep(r rune) bool {
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
		return !unicode.IsControl(r) && !reorders(r)
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
	return r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 || r == 0x200e || r == 0x200f
}

// plain removes terminal control sequences from text.
func plain(text string) string {
	var c cleaner
	return c.clean(text)
}

// oneLine removes terminal control sequences from text and joins its lines.
func oneLine(s string) string { return text.OneLine(plain(s)) }

// cells returns how many columns text takes.
func cells(text string) int {
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

// fit cuts text to n columns.
func fit(text string, n int) string {
	if cells(text) <= n {
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

// spinnerDelay is how long a wait lasts before the spinner appears.
const spinnerDelay = 300 * time.Millisecond

var spinnerFrames = []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")

// spinner shows on a terminal that the command is waiting. The nil spinner does nothing.
type spinner struct {
	label   atomic.Value // a string
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// spin starts a spinner on stderr. It returns nil if stderr is not a terminal.
func (a *app) spin(label string) *spinner {
	if a.json() || !isTerminal(a.stderr) || a.getenv("TERM") == "dumb" {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &spinner{cancel: cancel}
	s.say(label)
	s.running.Go(func() { s.run(ctx, a) })
	return s
}

// eraseLine makes a terminal empty the line that the cursor is in.
const eraseLine = "\r\x1b[K"

func (s *spinner) run(ctx context.Context, a *app) {
	w := a.stderr
	began, pause := time.Now(), spinnerDelay
	for frame := 0; ; frame++ {
		select {
		case <-ctx.Done():
			if frame > 0 {
				fmt.Fprint(w, eraseLine)
			}
			return
		case <-time.After(pause):
		}
		pause = 100 * time.Millisecond
		line := fmt.Sprintf("%c %s %s", spinnerFrames[frame%len(spinnerFrames)], s.label.Load(), time.Since(began).Truncate(time.Second))
		if cols := a.columns(w); cols > 1 {
			line = fit(line, cols-1)
		}
		fmt.Fprint(w, eraseLine+a.errStyle.dim(line))
	}
}

// say changes the label.
func (s *spinner) say(label string) {
	if s != nil {
		s.label.Store(label)
	}
}

// end removes the spinner; it may be called more than once.
func (s *spinner) end() {
	if s != nil {
		s.cancel()
		s.running.Wait()
	}
}
