package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// documentFile has a table between tableBegin and tableEnd, which -write replaces. Rows that were not measured stay.
const (
	documentFile = "docs/PERFORMANCE.md"
	tableBegin   = "<!-- go run ./tools/compare -write -->\n"
	tableEnd     = "<!-- end -->\n"
)

func writeDocument(names []string, results []result, now time.Time) error {
	file := filepath.FromSlash(documentFile)
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	changed, err := replaceTable(string(text), names, results, now)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(changed), 0o644)
}

// replaceTable returns the document with the rows that were measured; names are those of all rows in their order.
func replaceTable(document string, names []string, results []result, now time.Time) (string, error) {
	before, rest, found := strings.Cut(document, tableBegin)
	old, after, closed := strings.Cut(rest, tableEnd)
	if !found || !closed {
		return "", errors.New("the document has no place for the table")
	}
	lines := map[string]string{}
	for line := range strings.Lines(old) {
		name, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		lines[name] = line
	}
	for _, r := range results {
		lines[r.Name] = tableLine(r, now)
	}
	var table strings.Builder
	table.WriteString("| | Parley | peers | Parley is ahead by | measured |\n|---|---|---|---|---|\n")
	for _, name := range names {
		table.WriteString(lines[name])
	}
	return before + tableBegin + "\n" + table.String() + "\n" + tableEnd + after, nil
}

// tableLine is one row of the table: median (least to most) of each contender.
func tableLine(r result, now time.Time) string {
	var ours, peers, ratios []string
	for _, f := range r.Figures {
		said := fmt.Sprintf("%s: %s %s (%s to %s)", f.Name, number(f.Median), r.Unit, number(f.Least), number(f.Most))
		if f.Least == f.Most {
			said = fmt.Sprintf("%s: %s %s", f.Name, number(f.Median), r.Unit)
		}
		if f.Problem != "" {
			said = f.Name + ": none"
		}
		if f.Ratios == nil {
			peers = append(peers, strings.TrimSpace(said))
			continue
		}
		ours = append(ours, strings.TrimSpace(said))
		var beside []string
		for _, peer := range slices.Sorted(maps.Keys(f.Ratios)) {
			beside = append(beside, fmt.Sprintf("%.2f × %s%s", f.Ratios[peer], peer, behind(f.Ratios[peer])))
		}
		ratios = append(ratios, f.Name+": "+strings.Join(beside, ", "))
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s, load %s |\n", r.Name, strings.Join(ours, "; "), strings.Join(peers, "; "), strings.Join(ratios, "; "),
		now.UTC().Format(time.DateOnly), r.Load)
}

// behind marks a ratio at which Parley is behind.
func behind(ratio float64) string {
	if ratio < 1 {
		return " (behind)"
	}
	return ""
}

// number prints a figure with three digits, of large ones all.
func number(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}
