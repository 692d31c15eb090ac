package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/base/display"
)

// listing describes how the items of a list are printed as a table. At a terminal no line is longer than the
// terminal is wide; elsewhere nothing is cut.
type listing[T any] struct {
	none    string // printed instead of an empty table; "" prints the headings
	columns []column
	row     func(T) []string
	paint   func(column int, text string) string // colours a cell; nil for no colours
}

// column is a column of a table. The zero values of weight and least make a column that is cut last.
type column struct {
	heading string
	weight  int  // the share of a narrow terminal that the column gets, among those with a weight
	least   int  // the cells to which the weight may cut it; 0 means minColumn
	extra   bool // left out where the columns do not fit otherwise
}

// headings returns columns of which the last one is cut.
func headings(names ...string) []column {
	columns := make([]column, len(names))
	for i, name := range names {
		columns[i].heading = name
	}
	columns[len(names)-1].weight = 1
	return columns
}

// print writes items to w as JSON with --format json, and as a table otherwise.
func (l listing[T]) print(a *app, w io.Writer, items []T) {
	if a.json() {
		writeJSON(w, items)
		return
	}
	l.table(a, w, items)
}

// table writes items to w as a table.
func (l listing[T]) table(a *app, w io.Writer, items []T) {
	if len(items) == 0 && l.none != "" {
		fmt.Fprintln(w, l.none)
		return
	}
	l.render(w, a.columns(w), a.style, l.rows(items))
}

func (l listing[T]) rows(items []T) [][]string {
	rows := make([][]string, len(items))
	for i, item := range items {
		rows[i] = l.row(item)
	}
	return rows
}

const (
	columnGap = 2
	minColumn = 8
)

// render writes rows to a terminal of a width; 0 is no terminal.
func (l listing[T]) render(w io.Writer, total int, s style, rows [][]string) {
	widths := make([]int, len(l.columns))
	names := make([]string, len(l.columns))
	empty := make([]bool, len(l.columns))
	for i, c := range l.columns {
		names[i], widths[i], empty[i] = c.heading, cells(c.heading), len(rows) > 0
	}
	for _, row := range rows {
		for i, cell := range row {
			row[i] = oneLine(cell)
			widths[i] = max(widths[i], cells(row[i]))
			empty[i] = empty[i] && row[i] == ""
		}
	}
	if total > 0 {
		fitColumns(l.columns, widths, empty, total)
	}
	printRow(w, names, widths, func(_ int, text string) string { return s.dim(text) })
	for _, row := range rows {
		printRow(w, row, widths, l.paint)
	}
}

// fitColumns reduces widths to a terminal's. A column that is left out gets the width 0.
func fitColumns(columns []column, widths []int, empty []bool, total int) {
	for i := range columns {
		if empty[i] {
			widths[i] = 0
		}
	}
	for i := len(columns) - 1; i >= 0 && leastWidth(columns, widths) > total; i-- {
		if columns[i].extra {
			widths[i] = 0
		}
	}
	shareWidth(columns, widths, total)
	left := total + columnGap
	for i := range widths { // where even the least widths do not fit
		widths[i] = max(min(widths[i], left-columnGap), 0)
		if widths[i] > 0 {
			left -= widths[i] + columnGap
		}
	}
}

// leastWidth returns the width of the table whose columns are cut as far as their weights allow.
func leastWidth(columns []column, widths []int) int {
	sum := -columnGap
	for i, c := range columns {
		if widths[i] > 0 {
			sum += columnGap + c.leastOf(widths[i])
		}
	}
	return sum
}

func (c column) leastOf(width int) int {
	least := c.least
	if least == 0 {
		least = minColumn
	}
	if c.weight == 0 {
		least = width
	}
	return min(width, least)
}

// shareWidth divides what the columns without a weight leave among those with one. A column that needs less than its
// share leaves the rest to the others.
func shareWidth(columns []column, widths []int, total int) {
	left, weights := total+columnGap, 0
	open := make(map[int]bool)
	for i, c := range columns {
		if widths[i] == 0 {
			continue
		}
		left -= columnGap
		if c.weight == 0 {
			left -= widths[i]
			continue
		}
		open[i], weights = true, weights+c.weight
	}
	for settled := true; settled && len(open) > 0; {
		settled = false
		for i, c := range columns {
			share := left * c.weight / max(weights, 1)
			if !open[i] || widths[i] > share && c.leastOf(widths[i]) <= share {
				continue
			}
			widths[i] = min(widths[i], max(share, c.leastOf(widths[i])))
			left, weights, settled = left-widths[i], weights-c.weight, true
			delete(open, i)
		}
	}
	for i, c := range columns {
		if open[i] {
			widths[i] = left * c.weight / weights
			left, weights = left-widths[i], weights-c.weight
		}
	}
}

func printRow(w io.Writer, row []string, widths []int, paint func(int, string) string) {
	var b strings.Builder
	pad := 0 // cells before the next column
	for i, cell := range row {
		if widths[i] == 0 {
			continue
		}
		cell = fit(cell, widths[i])
		b.WriteString(strings.Repeat(" ", pad))
		pad = widths[i] - cells(cell) + columnGap
		if paint != nil {
			cell = paint(i, cell)
		}
		b.WriteString(cell)
	}
	fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
}

// columns returns the width of the terminal that w is, 0 if it is none. COLUMNS has priority, as in other programs.
func (a *app) columns(w io.Writer) int {
	n, _ := terminalSize(w)
	if set, err := strconv.Atoi(a.getenv("COLUMNS")); err == nil && set > 0 && isTerminal(w) {
		return set
	}
	return n
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
	return display.Duration(d) + " ago"
}
