package claims

import (
	"runtime"
	"slices"
	"strings"
)

// A pattern is a path below the top of a work tree, with slashes, in which ? is any character and * any number of them within a
// name, and the name ** is any number of directories, also none.

// wildcards are the characters that make a path a pattern.
const wildcards = "*?"

// The tokens of a name that are no character.
const (
	oneOf  rune = -1 // ?
	manyOf rune = -2 // *
)

// name is one name of a path or pattern in tokens; nil is **.
type name []rune

// foldCase says that this system's file systems usually do not tell Src from src.
var foldCase = runtime.GOOS == "darwin" || runtime.GOOS == "windows"

func fold(path string) string {
	if foldCase {
		return strings.ToLower(path)
	}
	return path
}

// names returns the names of a path, in which no character has a meaning.
func names(path string) (all []name) {
	for part := range strings.SplitSeq(fold(path), "/") {
		all = append(all, slices.Concat(name{}, []rune(part)))
	}
	return all
}

// parse returns the names of a pattern.
func parse(pattern string) (all []name) {
	for part := range strings.SplitSeq(fold(pattern), "/") {
		if part == "**" {
			all = append(all, nil)
			continue
		}
		tokens := name{}
		for _, r := range part {
			switch {
			case r == '?':
				r = oneOf
			case r == '*' && len(tokens) > 0 && tokens[len(tokens)-1] == manyOf:
				continue
			case r == '*':
				r = manyOf
			}
			tokens = append(tokens, r)
		}
		all = append(all, tokens)
	}
	return all
}

// overlap reports whether there is a path that both patterns match. With the names of a path in the place of one pattern it
// reports whether the other matches it.
func overlap(a, b []name) bool {
	return intersect(len(a), len(b), func(i int) bool { return a[i] == nil }, func(j int) bool { return b[j] == nil },
		func(i, j int) bool { return meet(a[i], b[j]) })
}

// meet reports whether there is a name that both match.
func meet(a, b name) bool {
	return intersect(len(a), len(b), func(i int) bool { return a[i] == manyOf }, func(j int) bool { return b[j] == manyOf },
		func(i, j int) bool { return a[i] == b[j] || a[i] == oneOf || b[j] == oneOf })
}

// intersect reports whether there is a sequence that two patterns of n and m elements match. manyA and manyB say which elements
// match any number of the sequence's, same whether two others match the same one. It takes n·m steps.
func intersect(n, m int, manyA, manyB func(int) bool, same func(i, j int) bool) bool {
	row, next := make([]bool, m+1), make([]bool, m+1) // whether the rests from (i, j) and from (i+1, j) on do
	for i := n; i >= 0; i-- {
		for j := m; j >= 0; j-- {
			switch {
			case i == n && j == m:
				row[j] = true
			case i < n && manyA(i):
				row[j] = next[j] || j < m && row[j+1]
			case j < m && manyB(j):
				row[j] = row[j+1] || i < n && next[j]
			default:
				row[j] = i < n && j < m && next[j+1] && same(i, j)
			}
		}
		row, next = next, row
	}
	return next[0]
}
