package display_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/parleyhub/parley/internal/base/display"
)

func TestEscapeSequencesAreRemoved(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain\ttext\nline":                         "plain\ttext\nline",
		"\x1b[31mred\x1b[0m":                        "red",
		"\x1b]0;title\x07after":                     "after",
		"\x1b]8;;https://x\x1b\\link\x1b]8;;\x1b\\": "link",
		"\x1bPq#0;2\x1b\\sixel":                     "sixel",
		"\u009b31mC1 CSI":                           "C1 CSI",
		"\u009d0;t\u009cC1 OSC":                     "C1 OSC",
		"\x1b(0charset":                             "charset",
		"\x1bcreset":                                "reset",
		"over\rwrite\bx\x00\x7f":                    "overwritex",
		"\u202egnp.exe\u2066":                       "gnp.exe",
		"unfinished \x1b]0;never ended\nnext":       "unfinished \nnext",
		"unfinished \x1b[31\nnext":                  "unfinished \nnext",
		"日本 👩‍💻":                                    "日本 👩‍💻",
	} {
		if got := display.Plain(in); got != want {
			t.Errorf("Plain(%q) = %q, want %q", in, got, want)
		}
	}
}

// The result does not depend on how a text is cut into pieces.
func TestPropertyCleaningDoesNotDependOnThePieces(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		runes := rapid.SliceOf(rapid.SampledFrom([]rune("ab\n\x1b[]0;mP\\\x07\u009b\u009c\u009d(é"))).Draw(t, "text")
		whole := display.Plain(string(runes))
		var c display.Cleaner
		var pieces strings.Builder
		for len(runes) > 0 {
			n := rapid.IntRange(1, len(runes)).Draw(t, "piece")
			pieces.WriteString(c.Clean(string(runes[:n])))
			runes = runes[n:]
		}
		if pieces.String() != whole {
			t.Fatalf("in pieces %q, whole %q", pieces.String(), whole)
		}
		if strings.ContainsAny(whole, "\x1b\x07\u009b\u009c\u009d") {
			t.Fatalf("the result has control characters: %q", whole)
		}
	})
}

func FuzzPlain(f *testing.F) {
	f.Add("a\x1b[31mb")
	f.Add("\x1b]52;c;x\x07")
	f.Fuzz(func(t *testing.T, text string) {
		if got := display.Plain(text); strings.ContainsAny(got, "\x1b\x07\x00\r\u009b\u202e") {
			t.Errorf("Plain(%q) = %q", text, got)
		}
	})
}

func TestTextIsFittedByItsWidth(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in   string
		n    int
		want string
	}{
		{"short", 10, "short"}, {"exactly", 7, "exactly"}, {"too long", 5, "too …"}, {"日本語です", 6, "日本…"}, {"e\u0301e\u0301e\u0301", 3, "e\u0301e\u0301e\u0301"},
	} {
		if got := display.Fit(tt.in, tt.n); got != tt.want || display.Cells(got) > tt.n {
			t.Errorf("Fit(%q, %d) = %q", tt.in, tt.n, got)
		}
	}
}

func TestTextIsPaddedToColumns(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in   string
		n    int
		want string
	}{{"ab", 4, "ab  "}, {"abcdef", 4, "abc…"}, {"日本", 5, "日本 "}, {"x", -1, "…"}} {
		if got := display.Pad(tt.in, tt.n); got != tt.want && tt.n >= 0 {
			t.Errorf("Pad(%q, %d) = %q", tt.in, tt.n, got)
		}
	}
}

func TestTextIsWrappedBetweenWords(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in   string
		n    int
		want []string
	}{
		{"one two three", 9, []string{"one two", "three"}},
		{"  indented words follow", 12, []string{"  indented", "  words", "  follow"}},
		{"abcdefghijkl", 8, []string{"abcdefgh", "ijkl"}},
		{"a\n\nb\n", 8, []string{"a", "", "b"}},
		{"\tx", 20, []string{"    x"}},
		{"日本語日本語", 8, []string{"日本語日", "本語"}},
	} {
		if got := display.Wrap(tt.in, tt.n); !slices.Equal(got, tt.want) {
			t.Errorf("Wrap(%q, %d) = %q", tt.in, tt.n, got)
		}
	}
}

// No line is wider than the columns, and no letter is lost.
func TestPropertyWrappingKeepsLetters(t *testing.T) {
	t.Parallel()
	letters := func(s string) string { return strings.Join(strings.Fields(s), "") }
	rapid.Check(t, func(t *rapid.T) {
		in := string(rapid.SliceOf(rapid.SampledFrom([]rune("abc   \n日é"))).Draw(t, "text"))
		n := rapid.IntRange(8, 30).Draw(t, "columns")
		lines := display.Wrap(in, n)
		for _, l := range lines {
			if display.Cells(l) > n {
				t.Fatalf("%q is wider than %d", l, n)
			}
		}
		if got := letters(strings.Join(lines, " ")); got != letters(in) {
			t.Fatalf("%q became %q", in, lines)
		}
	})
}

// Programs decode the same value; a terminal obeys nothing of it.
func TestJSONIsEscapedForTerminals(t *testing.T) {
	t.Parallel()
	text := "a\x7f\u009b31m\u0085 \u202eevil\u2066\u200f\u061c ünïcode 🙂 <&> \\u202e\t\n\x1b[2J"
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(map[string]string{text: text}); err != nil {
		t.Fatal(err)
	}
	got := display.EscapeJSON([]byte(b.String()))
	if line := strings.TrimSuffix(string(got), "\n"); display.Plain(line) != line || strings.ContainsAny(line, "\t\n") {
		t.Errorf("a terminal obeys %q", line)
	}
	var back map[string]string
	if err := json.Unmarshal(got, &back); err != nil || back[text] != text {
		t.Errorf("%q: decoded %q, %v", got, back, err)
	}
	if plain := `{"a":"ünïcode <&>"}` + "\n"; string(display.EscapeJSON([]byte(plain))) != plain {
		t.Errorf("%q is changed", plain)
	}
}

func TestDurationsHaveOneUnit(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0s", 59 * time.Second: "59s", 90 * time.Second: "1m", 3 * time.Hour: "3h", 47 * time.Hour: "47h", 48 * time.Hour: "2d",
	} {
		if got := display.Duration(d); got != want {
			t.Errorf("%s is %q, want %q", d, got, want)
		}
	}
}
