package cli

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// board is a picture in the terminal that is drawn over again. It is for one
// goroutine.
type board struct {
	w     io.Writer
	lines int // of the last picture
}

// draw replaces the picture. The caller makes lines that fit; a picture that
// is too high is cut at its end.
func (b *board) draw(lines []string) {
	var out strings.Builder
	if b.lines > 0 {
		fmt.Fprintf(&out, "\x1b[%dA\x1b[J", b.lines)
	}
	if rows := rowsOf(b.w); rows > 2 && len(lines) > rows-1 {
		lines = append(lines[:rows-2:rows-2], "…")
	}
	for _, l := range lines {
		out.WriteString(l + "\n")
	}
	b.lines = len(lines)
	io.WriteString(b.w, out.String()) //nolint:errcheck // a terminal that has gone is nobody to tell
}

// width is how much of a line is shown without a second one, which draw would not
// know of.
func (b *board) width() int {
	if cols := columns(b.w); cols > 1 {
		return cols - 1
	}
	return 79 // a terminal that does not say
}

// rowsOf is the height of the terminal, 0 where w is none.
func rowsOf(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	_, rows, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return rows
}
