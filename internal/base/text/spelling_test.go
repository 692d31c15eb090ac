package text_test

import (
	"strings"
	"testing"

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
			t.Errorf("%q is %q, want %q", word, got, want)
		}
	}
	if got := text.Nearest("x", nil); got != "" {
		t.Errorf("of nothing: %q", got)
	}
}

func TestANameIsNearestToItself(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-zA-Z]{1,12}`), 1, 8, strings.ToLower).Draw(t, "names")
		word := rapid.SampledFrom(names).Draw(t, "word")
		if got := text.Nearest(word, names); got != word {
			t.Fatalf("%q is %q", word, got)
		}
	})
}
