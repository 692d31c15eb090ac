package cli

import (
	"fmt"
	"io"
	"strings"
)

// board is a block of lines on a terminal that is redrawn in place. It is not safe for concurrent use.
type board struct {
	app   *app
	w     io.Writer
	lines int // drawn last
}

// newBoard returns a board on w, and nil unless w is a terminal that can redraw lines and the format is for people.
func (a *app) newBoard(w io.Writer) *board {
	if a.json() || !isTerminal(w) || a.getenv("TERM") == "dumb" {
		return nil
	}
	return &board{app: a, w: w}
}

// draw replaces the block. The lines must fit the width; lines below the terminal's height are cut.
func (b *board) draw(lines []string) {
	var out strings.Builder
	if b.lines > 0 {
		fmt.Fprintf(&out, "\x1b[%dA\x1b[J", b.lines)
	}
	if _, rows := terminalSize(b.w); rows > 2 && len(lines) > rows-1 {
		lines = append(lines[:rows-2:rows-2], "…")
	}
	for _, l := range lines {
		out.WriteString(l + "\n")
	}
	b.lines = len(lines)
	io.WriteString(b.w, out.String()) //nolint:errcheck // the error of a closed terminal cannot be shown
}

// width returns the columns that a line may take without wrapping.
func (b *board) width() int {
	if cols := b.app.columns(b.w); cols > 1 {
		return cols - 1
	}
	return 79 // the terminal does not report its size
}
