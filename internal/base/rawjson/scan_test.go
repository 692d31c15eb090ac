package rawjson_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/parleyhub/parley/internal/base/rawjson"
)

// maxDepth is the depth bound of these tests.
const maxDepth = 1000

func valid(data []byte) bool { return rawjson.Check(data, maxDepth) == nil }

var seeds = []string{
	"", " ", "null", "nul", "true ", "falsey", "0", "-0", "-", "01", "1.", "1.5e", "1.5E+10", "1e-5", ".5", "+1",
	`""`, `"a`, `"\n\u00e9\/"`, `"\x"`, `"\u00g0"`, `"\`, `"\u12"`, "\"\n\"", "\"\x01\"",
	"[]", "[ ]", "[1,2]", "[1,]", "[,1]", "[1 2]", "[1", "[", "{}", "{ }", `{"a":1}`, `{"a":1,}`, `{"a"}`, `{"a":}`,
	`{"a" : [ { "b" : null } ] }`, `{1:2}`, `{"a":1 "b":2}`, `{"a":1`, `{`, "1 1", "\ufeff1", "\"\xff\"",
}

func TestValidAgreesWithEncodingJSON(t *testing.T) {
	for _, s := range seeds {
		want := json.Valid([]byte(s)) && utf8.ValidString(s)
		if got := valid([]byte(s)); got != want {
			t.Errorf("Valid(%q) = %v, want %v", s, got, want)
		}
	}
}

// The position matters since strings are scanned eight bytes at a time.
func TestCheckOfEveryByteAtEveryPosition(t *testing.T) {
	for length := range 20 {
		for at := range length {
			for b := range 256 {
				text := []byte(`"` + strings.Repeat("a", length) + `"`)
				text[1+at] = byte(b)
				want := json.Valid(text) && utf8.Valid(text)
				if got := valid(text); got != want {
					t.Fatalf("Valid(%q) = %v, want %v", text, got, want)
				}
			}
		}
	}
}

func TestDepthOfCheckIsBounded(t *testing.T) {
	deep := func(n int) []byte { return []byte(strings.Repeat("[", n) + strings.Repeat("]", n)) }
	if !valid(deep(maxDepth)) {
		t.Error("nesting of the maximum depth is refused")
	}
	if valid(deep(maxDepth+1)) || valid([]byte(strings.Repeat(`{"a":`, 1<<20))) {
		t.Error("nesting over the maximum depth is accepted")
	}
}

func TestAppendStringIsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := strings.ToValidUTF8(rapid.String().Draw(t, "s"), "")
		var back string
		if err := json.Unmarshal(rawjson.AppendString(nil, s), &back); err != nil || back != s {
			t.Fatalf("%q was decoded as %q, %v", s, back, err)
		}
	})
}

func FuzzCheckAgreesWithEncodingJSON(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		want := json.Valid(data) && utf8.Valid(data)
		if got := valid(data); got != want {
			if want && strings.Count(string(data), "[")+strings.Count(string(data), "{") > maxDepth {
				return // deeper than maxDepth, which encoding/json allows
			}
			t.Fatalf("Valid(%q) = %v, want %v", data, got, want)
		}
	})
}
