package cli

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/parleyhub/parley/internal/base/text"
)

// maxInput bounds how much of a tool's input a question shows, in characters. The question says so if it is more: the
// user should know that some of it is hidden.
const maxInput = 4000

// inputLine is a line of a tool's input as a person reads it, without control sequences.
type inputLine struct {
	text string
	diff byte // '+' and '-' are lines of a diff
}

func (l inputLine) paint(s style) string {
	switch l.diff {
	case '+':
		return s.green(l.text)
	case '-':
		return s.red(l.text)
	}
	return l.text
}

// describeInput returns a tool's input: a command as it would be typed, an edit of a file as a diff, and anything else
// as a line for each member.
func describeInput(input any) []inputLine {
	m, ok := input.(map[string]any)
	if !ok {
		if input == nil {
			return nil
		}
		return textLines("", valueText(input), 0)
	}
	rest := maps.Clone(m)
	var lines []inputLine
	for _, key := range []string{"command", "cmd"} {
		if command := commandText(m[key]); command != "" {
			lines = append(lines, textLines("$ ", command, 0)...)
			delete(rest, key)
		}
	}
	lines = append(lines, editLines(m, rest)...)
	for _, key := range slices.Sorted(maps.Keys(rest)) {
		lines = append(lines, textLines(oneLine(key)+": ", valueText(rest[key]), 0)...)
	}
	return lines
}

// commandText returns a command, which is a string or the words of one.
func commandText(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	words, _ := v.([]any)
	quoted := make([]string, len(words))
	for i, w := range words {
		s, ok := w.(string)
		if !ok {
			return ""
		}
		quoted[i] = text.ShellQuote(s)
	}
	return strings.Join(quoted, " ")
}

// editLines returns the edits of a file that m describes, in the forms of the known agents, and removes their members
// from rest.
func editLines(m, rest map[string]any) []inputLine {
	var lines []inputLine
	path := ""
	for _, key := range []string{"file_path", "path", "abs_path"} {
		if s, ok := m[key].(string); ok && path == "" {
			path = s
			delete(rest, key)
		}
	}
	if path != "" {
		lines = textLines("file ", path, 0)
	}
	lines = append(lines, replaced(m, rest)...)
	edits, _ := m["edits"].([]any)
	for _, e := range edits {
		if edit, ok := e.(map[string]any); ok {
			lines = append(lines, replaced(edit, map[string]any{})...)
			delete(rest, "edits")
		}
	}
	if content, ok := m["content"].(string); ok && path != "" {
		lines = append(lines, textLines("+", content, '+')...)
		delete(rest, "content")
	}
	for _, key := range []string{"diff", "unified_diff", "patch"} {
		if diff, ok := m[key].(string); ok {
			lines = append(lines, diffLines(diff)...)
			delete(rest, key)
		}
	}
	return lines
}

// replaced returns the diff of a text that is replaced by another.
func replaced(m, rest map[string]any) []inputLine {
	for _, names := range [][2]string{{"old_string", "new_string"}, {"oldText", "newText"}} {
		before, had := m[names[0]].(string)
		after, has := m[names[1]].(string)
		if !had && !has {
			continue
		}
		delete(rest, names[0])
		delete(rest, names[1])
		var lines []inputLine
		if before != "" {
			lines = textLines("-", before, '-')
		}
		if after != "" {
			lines = append(lines, textLines("+", after, '+')...)
		}
		return lines
	}
	return nil
}

func diffLines(diff string) []inputLine {
	var lines []inputLine
	for _, l := range textLines("", diff, 0) {
		if l.text != "" && (l.text[0] == '+' || l.text[0] == '-') {
			l.diff = l.text[0]
		}
		lines = append(lines, l)
	}
	return lines
}

// textLines returns the lines of a text. The prefix stands before each line of a diff, and before the first line of any
// other text.
func textLines(prefix, s string, diff byte) []inputLine {
	var lines []inputLine
	for line := range strings.SplitSeq(strings.TrimRight(plain(s), "\n"), "\n") {
		lines = append(lines, inputLine{prefix + line, diff})
		if diff == 0 {
			prefix = strings.Repeat(" ", len(prefix))
		}
	}
	return lines
}

func valueText(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Sprint(v)
	}
	return b.String()
}
