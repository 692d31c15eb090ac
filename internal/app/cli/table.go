package cli

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// listing describes how the items of a list are printed as a table. The columns fit the
// terminal: the last one is cut.
type listing[T any] struct {
	none     string // printed instead of an empty table; "" prints the headings
	headings []string
	row      func(T) []string
	paint    func(column int, text string) string // colours a cell; nil for no colours
}

// print writes items to w as JSON with --format json, and as a table otherwise.
func (l listing[T]) print(a *app, w io.Writer, items []T) {
	if a.json() {
		writeJSON(w, items)
		return
	}
	l.table(w, a.style, items)
}

const columnGap = 2

func (l listing[T]) table(w io.Writer, s style, items []T) {
	if len(items) == 0 && l.none != "" {
		fmt.Fprintln(w, l.none)
		return
	}
	rows := [][]string{l.headings}
	widths := make([]int, len(l.headings))
	for _, item := range items {
		rows = append(rows, l.row(item))
	}
	for _, row := range rows {
		for i, cell := range row {
			row[i] = oneLine(cell)
			widths[i] = max(widths[i], cells(row[i]))
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
	printRow(w, rows[0], widths, func(_ int, text string) string { return s.dim(text) })
	for _, row := range rows[1:] {
		printRow(w, row, widths, l.paint)
	}
}

func printRow(w io.Writer, row []string, widths []int, paint func(int, string) string) {
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

// ago formats a time in the past, relative to now.
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

// short formats a duration in its largest unit.
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
