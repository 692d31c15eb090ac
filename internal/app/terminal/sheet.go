package terminal

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/parleyhub/parley/internal/base/display"
)

// sheet lays a text out in rows of a width. It is cut into pieces, lines or parts of long ones, so that a frame costs no more
// for a line of a megabyte than for a short one.
type sheet struct {
	all   string
	begin []int // of the pieces, in bytes
	width int
}

// place is a row of a sheet: a piece, and a row of it.
type place struct{ piece, row int }

// maxPiece bounds a piece, in bytes.
const maxPiece = 1 << 10

// cut lays out another text.
func (s *sheet) cut(text string) {
	s.all, s.begin = text, s.begin[:0]
	for at := 0; ; {
		s.begin = append(s.begin, at)
		end := len(text)
		if i := strings.IndexByte(text[at:], '\n'); i >= 0 {
			end = at + i
		}
		for end-at > maxPiece {
			at += maxPiece
			for !runeStart(text, at) {
				at--
			}
			s.begin = append(s.begin, at)
		}
		if end == len(text) {
			return
		}
		at = end + 1
	}
}

func (s *sheet) resize(width int) { s.width = max(width, 8) }

// piece returns a piece without its end of line, and where it begins.
func (s *sheet) piece(i int) (string, int) {
	from, to := s.begin[i], len(s.all)
	if i+1 < len(s.begin) {
		to = s.begin[i+1]
	}
	return strings.TrimSuffix(s.all[from:to], "\n"), from
}

// rows returns where the rows of a piece begin, in bytes of the piece. Words are kept together where they fit.
func (s *sheet) rows(piece string) []int {
	rows, used, space, width := []int{0}, 0, -1, max(s.width, 8)
	for i, r := range piece {
		w := cells(r)
		if used+w > width {
			from := i
			if space > rows[len(rows)-1] {
				from = space
			}
			rows, space = append(rows, from), -1
			used = 0
			for _, r := range piece[from:i] {
				used += cells(r)
			}
		}
		used += w
		if r == ' ' {
			space = i + 1
		}
	}
	return rows
}

// row returns a row's text, and where it begins in the whole text.
func (s *sheet) row(p place) (string, int) {
	piece, from := s.piece(p.piece)
	rows := s.rows(piece)
	i := min(p.row, len(rows)-1)
	end := len(piece)
	if i+1 < len(rows) {
		end = rows[i+1]
	}
	return piece[rows[i]:end], from + rows[i]
}

// show returns a row as it is shown.
func (s *sheet) show(p place) string {
	text, _ := s.row(p)
	var b strings.Builder
	for _, r := range text {
		b.WriteString(glyph(r))
	}
	return b.String()
}

// placeOf returns the row of a byte.
func (s *sheet) placeOf(at int) place {
	i, found := slices.BinarySearch(s.begin, at)
	if !found {
		i--
	}
	piece, from := s.piece(i)
	rows := s.rows(piece)
	row, found := slices.BinarySearch(rows, at-from)
	if !found {
		row--
	}
	return place{i, row}
}

// column returns the column of a byte in its row.
func (s *sheet) column(p place, at int) int {
	text, from := s.row(p)
	n := 0
	for _, r := range text[:min(max(at-from, 0), len(text))] {
		n += cells(r)
	}
	return n
}

// byteOf returns the byte at a column of a row, or at the row's end.
func (s *sheet) byteOf(p place, column int) int {
	text, from := s.row(p)
	n, last := 0, 0
	for i, r := range text {
		if n += cells(r); n > column && !joins(text[i:]) {
			return from + i
		}
		last = i
	}
	// The end of a row that goes on is the beginning of the next one.
	if end := from + len(text); end == len(s.all) || s.all[end] == '\n' {
		return end
	}
	return from + last
}

// move returns the row that is by rows further, as far as there are any.
func (s *sheet) move(p place, by int) place {
	for ; by > 0; by-- {
		piece, _ := s.piece(p.piece)
		switch {
		case p.row+1 < len(s.rows(piece)):
			p.row++
		case p.piece+1 < len(s.begin):
			p = place{p.piece + 1, 0}
		default:
			return p
		}
	}
	for ; by < 0; by++ {
		switch {
		case p.row > 0:
			p.row--
		case p.piece > 0:
			piece, _ := s.piece(p.piece - 1)
			p = place{p.piece - 1, len(s.rows(piece)) - 1}
		default:
			return p
		}
	}
	return p
}

// scrolled returns the first row to show h rows with the row now among them, the old one if that is possible.
func (s *sheet) scrolled(top, now place, h int) place {
	if top.piece >= len(s.begin) || now.piece < top.piece || now.piece == top.piece && now.row < top.row {
		return now
	}
	for p, i := top, 0; i < h; i++ {
		if p == now {
			return top
		}
		p = s.move(p, 1)
	}
	return s.move(now, 1-h)
}

// glyph returns what a character is shown as: none moves the cursor, hides, or changes the order of others.
func glyph(r rune) string {
	switch {
	case r == '\t':
		return "    "
	case r < ' ':
		return string(r + '\u2400')
	case r < 0x7f:
		return string(r)
	case unicode.In(r, unicode.Mn, unicode.Me):
		return string(r)
	case !unicode.IsGraphic(r):
		return string(utf8.RuneError)
	}
	return string(r)
}

// cells returns how many columns a character takes.
func cells(r rune) int {
	if r >= ' ' && r < 0x7f {
		return 1
	}
	return display.Cells(glyph(r))
}

// joins reports whether a text begins with a character that is part of the one before it.
func joins(text string) bool {
	r, _ := utf8.DecodeRuneInString(text)
	return r > 0x7f && unicode.In(r, unicode.Mn, unicode.Me)
}

func runeStart(text string, at int) bool { return at == len(text) || utf8.RuneStart(text[at]) }
