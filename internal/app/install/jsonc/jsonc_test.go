package jsonc_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/parleyhub/parley/internal/app/install/jsonc"
)

const commented = "{\r\n\t// what I like\r\n\t\"a\": [1, 2,], /* and */ \"hooks\": {\"Stop\": []},\r\n}\r\n"

func TestInsertAndAppendKeepEveryOtherByte(t *testing.T) {
	for _, doc := range []string{"{}", "{ }\n", commented, `{"x":{"y":1}}`, "\uFEFF{\n  \"mcpServers\": {\n    \"b\": {}\n  }\n}", "{\n    \"hooks\": {\n        \"Stop\": [\n            1\n        ]\n    }\n}"} {
		for _, path := range [][]string{{"parley"}, {"mcpServers", "parley"}, {"hooks", "Start", "deep"}} {
			changed, inserted, err := jsonc.Insert([]byte(doc), []byte("{\n  \"command\": \"parley\"\n}"), path...)
			checkChange(t, doc, changed, inserted, err)
			if _, ok, err := jsonc.Get(changed, path...); !ok || err != nil {
				t.Errorf("%q has no %q (%v)", changed, path, err)
			}
			if _, _, err := jsonc.Insert(changed, []byte("1"), path...); err == nil {
				t.Errorf("%q is inserted twice", path)
			}
		}
		for _, path := range [][]string{{"list"}, {"hooks", "Stop"}} {
			changed, inserted, err := jsonc.Append([]byte(doc), []byte("{}"), path...)
			checkChange(t, doc, changed, inserted, err)
			if v, ok, err := jsonc.Get(changed, path...); !ok || err != nil || !bytes.Contains(v, []byte("{}")) {
				t.Errorf("%q has no element in %q (%v)", changed, path, err)
			}
		}
	}
}

func checkChange(t *testing.T, doc string, changed, inserted []byte, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%q: %v", doc, err)
		return
	}
	if bytes.Count(changed, inserted) != 1 || string(bytes.Replace(changed, inserted, nil, 1)) != doc {
		t.Errorf("%q became %q", doc, changed)
	}
	if err := jsonc.Check(changed); err != nil {
		t.Errorf("%q: %v", changed, err)
	}
	if strings.Contains(doc, "\r\n") && bytes.Contains(bytes.ReplaceAll(changed, []byte("\r\n"), nil), []byte("\n")) {
		t.Errorf("%q has two kinds of line endings", changed)
	}
}

func TestRemoveTakesOneCommaWithAnItem(t *testing.T) {
	parley := func(name string, value []byte) bool {
		return name == "parley" || bytes.Contains(value, []byte("parley"))
	}
	for doc, want := range map[string]string{
		`{"parley": 1}`:                        `{}`,
		`{"parley": 1,}`:                       `{}`,
		`{"a": 1, "parley": 2}`:                `{"a": 1}`,
		`{"parley": 1, "a": 2}`:                `{"a": 2}`,
		`{"a": 1, "parley": 2, "b": 3}`:        `{"a": 1, "b": 3}`,
		`{"a": 1, "parley": 2, "x": "parley"}`: `{"a": 1}`,
		`{"a": 1}`:                             `{"a": 1}`,
	} {
		got, err := jsonc.Remove([]byte(doc), parley)
		if err != nil || string(got) != want {
			t.Errorf("%s became %s (%v)", doc, got, err)
		}
	}
	got, err := jsonc.Remove([]byte(`{"hooks":{"Stop":["x","parley hook"]}}`), parley, "hooks", "Stop")
	if err != nil || string(got) != `{"hooks":{"Stop":["x"]}}` {
		t.Errorf("%s, %v", got, err)
	}
	for _, path := range [][]string{{"none"}, {"hooks", "none"}, {"a", "b"}} {
		if got, err := jsonc.Remove([]byte(`{"a":1,"hooks":{}}`), parley, path...); err != nil || string(got) != `{"a":1,"hooks":{}}` {
			t.Errorf("%q: %s, %v", path, got, err)
		}
	}
}

func TestBrokenDocumentsAreRefused(t *testing.T) {
	for _, doc := range []string{"", "{", "[]", "1", `{"a"}`, `{"a":}`, `{"a":1 "b":2}`, `{a:1}`, `{"a":1}}`, `{"a":"x`, `{"a":/*`, `{"a":01}`, "{\"a\":\"\xff\"}",
		strings.Repeat(`{"a":`, 300), `{"a":1,,}`, `{"a" /*`, `{"a": /*`, `{"a":1 /*`, `{ /*`} {
		if err := jsonc.Check([]byte(doc)); err == nil {
			t.Errorf("%q is accepted", doc)
		}
		if _, _, err := jsonc.Insert([]byte(doc), []byte("1"), "x"); err == nil {
			t.Errorf("%q is changed", doc)
		}
		if _, err := jsonc.Remove([]byte(doc), func(string, []byte) bool { return true }); err == nil {
			t.Errorf("%q is changed", doc)
		}
		if _, _, err := jsonc.Get([]byte(doc), "x"); err == nil {
			t.Errorf("%q is read", doc)
		}
	}
	if err := jsonc.Check([]byte("{\n{")); !errors.Is(err, jsonc.ErrSyntax) || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("the error is %v", err)
	}
	for doc, path := range map[string][]string{`{"a":1}`: {"a", "b"}, `{"a":{}}`: {"a"}} {
		if _, _, err := jsonc.Append([]byte(doc), []byte("1"), path...); err == nil {
			t.Errorf("%s takes an element at %q", doc, path)
		}
	}
	if _, _, err := jsonc.Insert([]byte(`{}`), []byte("{"), "x"); err == nil {
		t.Error("a broken value is inserted")
	}
	if err := jsonc.Check(bytes.Repeat([]byte(" "), jsonc.MaxDocument+1)); err == nil {
		t.Error("a huge document is read")
	}
}

// document draws a JSON object with comments, commas at the end, and any white space.
func document(t *rapid.T) string {
	space := rapid.SampledFrom([]string{"", " ", "\n", "\n  ", "\t", " // c\n", "/* { */", "\r\n"})
	var value func(depth int) string
	object := func(depth int) string {
		s := "{"
		n := rapid.IntRange(0, 3).Draw(t, "members")
		for i := range n {
			name, _ := json.Marshal(rapid.SampledFrom([]string{"a", "hooks", "Stop", "é\"", "mcpServers"}).Draw(t, "name") + strings.Repeat("x", i))
			s += space.Draw(t, "s") + string(name) + space.Draw(t, "s") + ":" + space.Draw(t, "s") + value(depth+1) + space.Draw(t, "s")
			if i < n-1 || rapid.Bool().Draw(t, "comma") {
				s += ","
			}
		}
		return s + space.Draw(t, "s") + "}"
	}
	value = func(depth int) string {
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			if depth < 3 {
				return object(depth)
			}
		case 1:
			return "[" + space.Draw(t, "s") + `"x"` + space.Draw(t, "s") + "]"
		}
		return rapid.SampledFrom([]string{"1", "-2.5e3", "true", "null", `"// no comment"`, `"\\"`}).Draw(t, "scalar")
	}
	return space.Draw(t, "s") + object(0) + space.Draw(t, "s")
}

func TestWhatIsInsertedCanBeTakenOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		doc := document(t)
		changed, inserted, err := jsonc.Insert([]byte(doc), []byte("{\n  \"k\": 1\n}"), "mcpServers", "parley")
		if err != nil {
			if _, ok, getErr := jsonc.Get([]byte(doc), "mcpServers"); getErr != nil || !ok {
				t.Fatalf("%q: %v", doc, err)
			}
			return // it is no object
		}
		if err := jsonc.Check(changed); err != nil {
			t.Fatalf("%q: %v", changed, err)
		}
		if got := bytes.Replace(changed, inserted, nil, 1); string(got) != doc {
			t.Fatalf("%q became %q", doc, got)
		}
		removed, err := jsonc.Remove(changed, func(name string, _ []byte) bool { return name == "parley" }, "mcpServers")
		if err != nil {
			t.Fatal(err)
		}
		if err := jsonc.Check(removed); err != nil {
			t.Fatalf("%q: %v", removed, err)
		}
	})
}

func FuzzDocuments(f *testing.F) {
	f.Add([]byte(commented))
	f.Add([]byte(`{"a":[{"b":1}]}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		changed, inserted, err := jsonc.Insert(doc, []byte("1"), "a", "b")
		if err == nil && (jsonc.Check(changed) != nil || !bytes.Contains(changed, inserted)) {
			t.Errorf("%q became %q", doc, changed)
		}
	})
}
