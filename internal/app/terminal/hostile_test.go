package terminal

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/parleyhub/parley/internal/base/display"
)

// visibleOnly returns a text without what moves the cursor, hides, or reorders.
func visibleOnly(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) && r != utf8.RuneError {
			return -1
		}
		return r
	}, s)
}

var hostileTexts = []string{
	hostile, "<script>alert(1)</script><img src=x onerror=alert(1)>", "\x1b]52;c;bWluZQ==\x07\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "\x1bP+q544e\x1b\\\x9b31m\x9d0;x\x9c",
	"\u202eevil\u202c\u2066a\u2069\u200f\u061c", "a\u200bb\u200d\u2060\ufeff\u00ad\u2028\u2029", "e" + strings.Repeat("\u0301", 500), "日本語テキスト" + strings.Repeat("🙂", 50), "👩‍👩‍👧‍👦 ❤️ 🇩🇪 1️⃣",
	"\xff\xfe\xed\xa0\x80", "one\r\ntwo\rthree\vfour\ffive\tsix\x08\x08", strings.Repeat("\n", 300), "\U000e0041\U000e0042", strings.Repeat("\x1b[", 100), "%s%d%!x\\",
}

func FuzzTexts(f *testing.F) {
	for _, text := range hostileTexts {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, shown := range []string{clean(text), strings.ReplaceAll(strings.ReplaceAll(whole(text), "\n", ""), "\t", "")} {
			if shown != visibleOnly(shown) || visible(shown) != shown {
				t.Fatalf("%q is shown as %q", text, shown)
			}
		}
		for _, l := range (line{text: whole(text)}).wrapped(40) {
			if display.Cells(l) > 39 {
				t.Fatalf("%q has %d columns", l, display.Cells(l))
			}
		}
	})
}
