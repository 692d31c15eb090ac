package cli

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/term"

	"github.com/parleyhub/parley/internal/base/display"
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

// plain removes terminal control sequences from text.
func plain(text string) string { return display.Plain(text) }

// oneLine removes terminal control sequences from text and joins its lines.
func oneLine(text string) string { return display.OneLine(text) }

// cells returns how many columns text takes.
func cells(text string) int { return display.Cells(text) }

// fit cuts text to n columns.
func fit(text string, n int) string { return display.Fit(text, n) }

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
