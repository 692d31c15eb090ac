package text_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/parleyhub/parley/internal/base/text"
)

func TestNearest(t *testing.T) {
	names := []string{"socket", "http", "logging", "dataDir"}
	for word, want := range map[string]string{
		"sockets": "socket", "scoket": "socket", "HTTP": "http", "htpp": "http", "login": "logging", "datadir": "dataDir",
		"zzz": "", "": "", "completely-different": "",
	} {
		if got := text.Nearest(word, names); got != want {
			t.Errorf("%q becomes %q, want %q", word, got, want)
		}
	}
	if got := text.Nearest("x", nil); got != "" {
		t.Errorf("of no names: %q", got)
	}
}

func TestANameIsNearestToItself(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-zA-Z]{1,12}`), 1, 8, strings.ToLower).Draw(t, "names")
		word := rapid.SampledFrom(names).Draw(t, "word")
		if got := text.Nearest(word, names); got != word {
			t.Fatalf("the nearest to %q is %q", word, got)
		}
	})
}

func TestCut(t *testing.T) {
	for _, tt := range []struct {
		in        string
		n         int
		cut, clip string
	}{
		{"short", 5, "short", "short"}, {"longer", 4, "long", "long…"}, {"größe", 3, "gr", "gr…"}, {"größe", 4, "grö", "grö…"}, {"€", 2, "", "…"}, {"", 0, "", ""},
	} {
		if cut, clip := text.Cut(tt.in, tt.n), text.Clip(tt.in, tt.n); cut != tt.cut || clip != tt.clip {
			t.Errorf("%q, %d bytes: %q, %q", tt.in, tt.n, cut, clip)
		}
	}
}

func TestInvalidUTF8IsReplaced(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, n := string(rapid.SliceOf(rapid.Byte()).Draw(t, "s")), rapid.IntRange(0, 20).Draw(t, "n")
		if got := text.Valid(s, n); len(got) > n || !utf8.ValidString(got) {
			t.Fatalf("%q", got)
		}
	})
	if got := text.Quote("a\x1b[2Jb\nc", 5); got != `"a\x1b[2J…"` {
		t.Errorf("quoted: %s", got)
	}
}

func TestSentences(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "the hub stopped": "The hub stopped.", "Really?": "Really?", "stop!": "Stop!", "https://x is away": "https://x is away.", "5 failed": "5 failed.",
	} {
		if got := text.Sentence(in); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
	if got := text.OneLine(" a\n\tb  c "); got != "a b c" {
		t.Errorf("as one line: %q", got)
	}
}

func TestTheBeginningOfOneNameMeansIt(t *testing.T) {
	names := []string{"claude-code", "codex-one", "codex-two", "gemini"}
	for word, want := range map[string]string{"claude": "claude-code", "CLA": "claude-code", "cod-": "", "cl": "", "gem": "gemini"} {
		if got := text.Nearest(word, names); got != want {
			t.Errorf("%q becomes %q, want %q", word, got, want)
		}
	}
}

func TestCounts(t *testing.T) {
	for _, tt := range []struct {
		n    int
		noun string
		want string
	}{
		{1, "task", "1 task"}, {0, "task", "0 tasks"}, {2, "reply", "2 replies"}, {2, "key", "2 keys"}, {3, "process", "3 processes"}, {1, "process", "1 process"},
	} {
		if got := text.Count(tt.n, tt.noun); got != tt.want {
			t.Errorf("%d %s: %q, want %q", tt.n, tt.noun, got, tt.want)
		}
	}
}
