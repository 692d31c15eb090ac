package main

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strings"
)

const glossaryPage = "docs/design/glossary.md"

// retired is a word that the glossary replaces with another one.
type retired struct {
	word, use string
	comments  bool     // comments are checked as well as identifiers
	folders   []string // only files in these, if any
	pattern   *regexp.Regexp
}

// glossary reports identifiers and comments that contain a retired word of the glossary.
func glossary(ctx context.Context) error {
	page, err := os.ReadFile(glossaryPage)
	if err != nil {
		return err
	}
	words, err := retiredWords(string(page))
	if err != nil {
		return err
	}
	found, err := inGoFiles(ctx, func(path string) ([]string, error) { return retiredIn(path, nil, words) })
	if len(found) > 0 {
		return fmt.Errorf("%d retired words (see %s):\n  %s", len(found), glossaryPage, strings.Join(found, "\n  "))
	}
	return err
}

// retiredWords reads the table below "## Retired words".
func retiredWords(page string) ([]retired, error) {
	_, table, ok := strings.Cut(page, "\n## Retired words\n")
	if !ok {
		return nil, fmt.Errorf("%s has no part 'Retired words'", glossaryPage)
	}
	var words []retired
	for row := range strings.Lines(table) {
		columns := strings.Split(strings.Trim(row, "|\n"), "|")
		if len(columns) != 4 || strings.HasPrefix(columns[0], "---") || strings.TrimSpace(columns[0]) == "retired" {
			continue
		}
		for i := range columns {
			columns[i] = strings.TrimSpace(columns[i])
		}
		r := retired{word: columns[0], use: columns[1], comments: columns[2] == "yes"}
		if columns[3] != "" {
			r.folders = strings.Split(strings.ReplaceAll(columns[3], " ", ""), ",")
		}
		r.pattern = regexp.MustCompile(`(?i)\b` + regexp.QuoteMeta(r.word) + `s?\b`)
		words = append(words, r)
	}
	if len(words) == 0 {
		return nil, fmt.Errorf("%s retires no word", glossaryPage)
	}
	return words, nil
}

// appliesTo reports whether the word is retired in a file.
func (r retired) appliesTo(path string) bool {
	return len(r.folders) == 0 || slices.ContainsFunc(r.folders, func(folder string) bool { return strings.HasPrefix(path, folder+"/") })
}

// retiredIn lists the retired words in a file's declared identifiers and in its comments.
// src is as for [parser.ParseFile].
func retiredIn(path string, src any, words []retired) ([]string, error) {
	words = slices.DeleteFunc(slices.Clone(words), func(r retired) bool { return !r.appliesTo(path) })
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, src, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	var found []string
	report := func(at token.Pos, what string, r retired) {
		found = append(found, fmt.Sprintf("%s: %s: not %q but %s", files.Position(at), what, r.word, r.use))
	}
	ast.Inspect(file, func(n ast.Node) bool {
		name, ok := n.(*ast.Ident)
		if !ok {
			return true
		}
		parts := nameParts(name.Name)
		for _, r := range words {
			if slices.Contains(parts, r.word) || slices.Contains(parts, r.word+"s") {
				report(name.Pos(), name.Name, r)
			}
		}
		return true
	})
	for _, group := range file.Comments {
		for _, comment := range group.List {
			for _, r := range words {
				if r.comments && r.pattern.MatchString(comment.Text) {
					report(comment.Pos(), "comment", r)
				}
			}
		}
	}
	return found, nil
}

var namePart = regexp.MustCompile(`[A-Z]+(?:[a-z0-9]+)?|[a-z0-9]+`)

// nameParts splits an identifier at its upper-case letters and underscores: "readMarks" gives "read" and "marks".
func nameParts(name string) []string {
	parts := namePart.FindAllString(name, -1)
	for i := range parts {
		parts[i] = strings.ToLower(parts[i])
	}
	return parts
}
