// Package text has helpers for texts that people read.
package text

import (
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"
)

// Cut returns the longest prefix of s that has at most n bytes and does not end within a character.
func Cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// Clip is Cut with an ellipsis, which is not counted, where s was longer.
func Clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return Cut(s, n) + "…"
}

// Valid is Cut for s that need not be UTF-8: what is not is left out.
func Valid(s string, n int) string { return strings.ToValidUTF8(Cut(s, n), "") }

// Quote quotes foreign text for a message, clipped to n bytes.
func Quote(s string, n int) string { return fmt.Sprintf("%q", Clip(s, n)) }

// OneLine returns s with each run of white space as one space.
func OneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// Sentence begins s with a capital, unless that is part of a URL, and ends it with a stop.
func Sentence(s string) string {
	if s == "" {
		return ""
	}
	word, _, _ := strings.Cut(s, " ")
	if first := s[0]; first >= 'a' && first <= 'z' && !strings.Contains(word, "://") {
		s = string(first-'a'+'A') + s[1:]
	}
	if last := s[len(s)-1]; last != '.' && last != '!' && last != '?' {
		s += "."
	}
	return s
}

// Count returns n with a noun in the singular or the plural: "1 task", "2 tasks", "2 replies".
func Count[N int | int64 | uint64](n N, noun string) string {
	return fmt.Sprintf("%d %s", n, Plural(n, noun))
}

// Plural returns a noun as it stands behind n.
func Plural[N int | int64 | uint64](n N, noun string) string {
	if n == 1 {
		return noun
	}
	switch stem, y := strings.CutSuffix(noun, "y"); {
	case y && stem != "" && !strings.ContainsRune("aeiou", rune(stem[len(stem)-1])):
		return stem + "ies"
	case strings.HasSuffix(noun, "s"), strings.HasSuffix(noun, "x"), strings.HasSuffix(noun, "ch"):
		return noun + "es"
	}
	return noun + "s"
}

// userinfo matches the credentials in a URL.
var userinfo = Pattern(`(://)[^/@\s]+@`)

const redacted = "[redacted]"

// Redact replaces the credentials of every URL in s, and the given secrets.
func Redact(s string, secrets ...string) string {
	if strings.Contains(s, "://") {
		s = userinfo().ReplaceAllString(s, "${1}"+redacted+"@")
	}
	for _, secret := range secrets {
		if secret != "" {
			s = strings.ReplaceAll(s, secret, redacted)
		}
	}
	return s
}

// Secret is a string that prints, logs and encodes as "[redacted]".
type Secret string

// String returns "[redacted]", or "" for an empty Secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// GoString is String for %#v.
func (s Secret) GoString() string { return `"` + s.String() + `"` }

// LogValue is String for slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText is String for JSON and YAML.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Nearest returns the candidate that word most likely means, "" if none is near: at most every third letter, and two
// more, may differ; or word is the beginning of one candidate alone. Case does not count.
func Nearest(word string, candidates []string) string {
	best, limit := "", len(word)/3+2
	for _, c := range candidates {
		if d := distance(strings.ToLower(word), strings.ToLower(c)); d < limit {
			best, limit = c, d
		}
	}
	if best == "" {
		best = completion(word, candidates)
	}
	return best
}

// minCompletion is how many letters name a longer word.
const minCompletion = 3

// completion returns the only candidate that begins with word, "" if there is none or another.
func completion(word string, candidates []string) string {
	if len(word) < minCompletion {
		return ""
	}
	only := ""
	for _, c := range candidates {
		if !strings.HasPrefix(strings.ToLower(c), strings.ToLower(word)) {
			continue
		}
		if only != "" {
			return ""
		}
		only = c
	}
	return only
}

// distance is the Levenshtein distance of two short words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

// Pattern returns a function that compiles the regular expression at its first call. Compiled when the program starts,
// the patterns of all packages would delay every command. An invalid expression panics at the call.
func Pattern(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// ShellQuote returns s as one word of a POSIX shell's command, in quotes if necessary.
func ShellQuote(s string) string {
	if s != "" && s[0] != '-' && !strings.ContainsFunc(s, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("-_.:/", r))
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
