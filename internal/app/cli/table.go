package cli

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// table prints rows under headings, in columns that fit the terminal: the last
// column gives way.
type table struct {
	headings []string
	rows     [][]string
	// paint colours a cell, after its width is known; nil for none.
	paint func(column int, text string) string
}

func (t *table) add(cells ...string) {
	for i := range cells {
		cells[i] = oneLine(cells[i])
	}
	t.rows = append(t.rows, cells)
}

const columnGap = 2

func (t *table) write(w io.Writer, s style) {
	widths := make([]int, len(t.headings))
	for _, row := range append([][]string{t.headings}, t.rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], cells(cell))
		}
	}
	last := len(widths) - 1
	if total := columns(w); total > 0 {
		before := 0
		for _, n := range widths[:last] {
			before += n + columnGap
		}
		widths[last] = max(min(widths[last], total-before), 8)
	}
	t.line(w, t.headings, widths, func(_ int, text string) string { return s.dim(text) })
	for _, row := range t.rows {
		t.line(w, row, widths, t.paint)
	}
}

func (t *table) line(w io.Writer, row []string, widths []int, paint func(int, string) string) {
	var b strings.Builder
	for i, cell := range row {
		cell = fit(cell, widths[i])
		pad := widths[i] - cells(cell) + columnGap
		if paint != nil {
			cell = paint(i, cell)
		}
		b.WriteString(cell)
		if i < len(row)-1 {
			b.WriteString(strings.Repeat(" ", pad))
		}
	}
	fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
}

// ago is a moment in the past, for people.
func ago(now, then time.Time) string {
	if then.IsZero() {
		return "never"
	}
	d := now.Sub(then)
	if d < 2*time.Second {
		return "now"
	}
	return short(d) + " ago"
}

// short is a duration in its largest unit.
func short(d time.Duration) string {
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
