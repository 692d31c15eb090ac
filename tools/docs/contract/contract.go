// Package contract writes down what other programs rely on, as lines of text: the JSON that the commands print, exit codes, flags,
// the methods and messages of the interfaces, the arguments and results of the MCP tools, configuration keys, and what agents send each
// other. The lines come from the code's types. They are committed, and may only become more within a major version.
package contract

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Facts are the lines of one contract.
//
// A line that contains " requires " is a demand on those who write the input: within a major version it may disappear, and may appear
// only for something that is new. Every other line is a promise to those who read: it may appear, and may not disappear.
type Facts map[string]bool

const demand = " requires "

// Add adds a line.
func (f Facts) Add(format string, args ...any) { f[fmt.Sprintf(format, args...)] = true }

// Parse reads the lines of a file.
func Parse(text string) Facts {
	f := Facts{}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			f[line] = true
		}
	}
	return f
}

// Text writes the lines in order, after a heading.
func (f Facts) Text(heading string) string {
	return heading + strings.Join(slices.Sorted(maps.Keys(f)), "\n") + "\n"
}

// Broken is a contract that the code no longer keeps.
type Broken struct {
	File  string
	Lines []string // with "- " where a promise has gone, and "+ " where a demand has come
}

func (b *Broken) Error() string {
	return fmt.Sprintf("%s: programs that work with this version would no longer work:\n  %s\n"+
		"Within a major version members, commands, methods and codes are only added: keep the old ones beside the new (docs/versions.md). "+
		"If it is meant all the same, or only a Go type was renamed, change these lines in %[1]s by hand in the same commit, and say it under \"Changed\" in CHANGELOG.md.",
		b.File, strings.Join(b.Lines, "\n  "))
}

// Extend returns the baseline of a file with what is new in the code, and an error that names what breaks it. Demands that are gone
// are removed.
func Extend(file string, baseline, code Facts) (Facts, error) {
	all, lines := Facts{}, []string(nil)
	subjects := map[string]bool{}
	for line := range baseline {
		subjects[subject(line)] = true
		switch promise := !strings.Contains(line, demand); {
		case code[line] || promise:
			all[line] = true
			if !code[line] {
				lines = append(lines, "- "+line)
			}
		}
	}
	for line := range code {
		if !baseline[line] && strings.Contains(line, demand) && subjects[subject(line)] {
			lines = append(lines, "+ "+line)
			continue
		}
		all[line] = true
	}
	if len(lines) == 0 {
		return all, nil
	}
	slices.Sort(lines)
	return all, &Broken{File: file, Lines: lines}
}

// subject returns what a line is about: a type, a method or a command, without its member.
func subject(line string) string {
	if before, _, ok := strings.Cut(line, demand); ok {
		return before
	}
	before, _, _ := strings.Cut(line, ": ")
	if i := strings.LastIndexByte(before, '.'); i > 0 {
		before = before[:i]
	}
	before, _, _ = strings.Cut(before, " has ")
	return before
}
