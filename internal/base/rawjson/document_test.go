package rawjson_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/internal/base/rawjson"
)

type document struct {
	Name    string   `json:"name" doc:"what it is called" pattern:"^[a-z-]+$" max:"8"`
	Level   string   `json:"level" enum:"low,high" default:"low"`
	Count   int64    `json:"count" min:"1" max:"100" default:"10"`
	On      bool     `json:"on" default:"true"`
	Tags    []string `json:"tags" max:"3" pattern:"^[a-z]+$"`
	Inner   inner    `json:"inner"`
	Members []inner  `json:"members" min:"1"`
	Hidden  int      `json:"-"`
}

type inner struct {
	Key    string `json:"key" doc:"the key" required:"true"`
	Secret string `json:"secret" secret:"true" pattern:"^s-"`
}

func problems(list []rawjson.Problem) []string {
	texts := []string{}
	for _, p := range list {
		texts = append(texts, p.String())
	}
	return texts
}

func decode(text string) (document, []string) {
	var d document
	node, bad := rawjson.Parse([]byte(text))
	if bad == nil {
		_, bad = rawjson.Decode(node, &d)
	}
	return d, problems(bad)
}

func TestEveryProblemHasItsPosition(t *testing.T) {
	tests := []struct {
		name, text string
		want       []string
	}{
		{"nothing", ``, []string{`1:1: the document ends too early`}},
		{"cut off", "{\n \"name\": \"a\"", []string{`2:13: the document ends too early`}},
		{"not JSON", "{\n  name: 1}", []string{`2:3: not JSON: invalid character 'n'`}},
		{"a comment", "{\n// no\n}", []string{`2:1: not JSON: invalid character '/'`}},
		{"trailing comma", `{"on": true,}`, []string{`1:13: not JSON: invalid character '}'`}},
		{"two documents", `{} {}`, []string{`1:4: more text behind the end of the document`}},
		{"not UTF-8", "{\"name\": \"\xff\"}", []string{`1:11: not valid UTF-8: save the file as UTF-8`}},
		{"a list on top", `[]`, []string{`1:1: must be an object, not a list`}},
		{"unknown key with a near name", "{\n  \"nmae\": \"x\"\n}",
			[]string{`2:3: nmae: unknown key; did you mean "name"? allowed: name, level, count, on, tags, inner, members`}},
		{"unknown key far from any", `{"zzzzzzz": 1}`,
			[]string{`1:2: zzzzzzz: unknown key; allowed: name, level, count, on, tags, inner, members`}},
		{"a field that is not for JSON", `{"hidden": 1}`,
			[]string{`1:2: hidden: unknown key; allowed: name, level, count, on, tags, inner, members`}},
		{"duplicate key", "{\"on\": true,\n \"on\": false}", []string{`2:2: on: duplicate key; the first is in line 1`}},
		{"wrong types, all of them", `{"name": 1, "count": "1", "on": null, "tags": {}, "inner": []}`, []string{
			`1:10: name: must be text in quotes, not a number`,
			`1:22: count: must be a number, not text`,
			`1:33: on: must be true or false, not null`,
			`1:47: tags: must be a list, not an object`,
			`1:60: inner: must be an object, not a list`,
		}},
		{"a name that does not match", `{"name": "Ärger"}`, []string{`1:10: name: "Ärger" does not match ^[a-z-]+$`}},
		{"column counts characters", `{"name": "ä", "on": 3}`, []string{
			`1:10: name: "ä" does not match ^[a-z-]+$`, `1:21: on: must be true or false, not a number`}},
		{"too long", `{"name": "abcdefghi"}`, []string{`1:10: name: is 9 bytes long; at most 8 are allowed`}},
		{"not in the list", `{"level": "mid"}`, []string{`1:11: level: "mid" is not allowed; allowed: low, high`}},
		{"too small", `{"count": 0}`, []string{`1:11: count: 0 is too small; the least is 1`}},
		{"too large", `{"count": 101}`, []string{`1:11: count: 101 is too large; the most is 100`}},
		{"not whole", `{"count": 1.5}`, []string{`1:11: count: 1.5 is not a whole number of at most 9007199254740991`}},
		{"beyond exact numbers", `{"count": 1e400}`, []string{`1:11: count: 1e400 is not a whole number of at most 9007199254740991`}},
		{"too many", `{"tags": ["a","b","c","d"]}`, []string{`1:10: tags: has 4 items; at most 3 are allowed`}},
		{"too few", `{"members": []}`, []string{`1:13: members: needs at least 1 of them`}},
		{"in a list", "{\"tags\": [\"a\",\n\"B\"]}", []string{`2:1: tags[1]: "B" does not match ^[a-z]+$`}},
		{"missing", `{"members": [{}]}`, []string{`1:14: members[0].key: required, but missing: the key`}},
		{"secrets are not shown", `{"inner": {"key": "k", "secret": "hunter2"}}`,
			[]string{`1:34: inner.secret: the value does not match ^s-`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, got := decode(tt.text)
			if len(got) != len(tt.want) {
				t.Fatalf("got %d problems %q, want %q", len(got), got, tt.want)
			}
			for i := range got {
				if !strings.HasPrefix(got[i], tt.want[i]) {
					t.Errorf("problem %d:\n got %s\nwant %s", i, got[i], tt.want[i])
				}
			}
		})
	}
}

// A document may come from an untrusted repository: the text that a problem quotes is
// short, in one line and without control characters.
func TestProblemTextsAreShortAndHarmless(t *testing.T) {
	long := strings.Repeat("x", 1<<16)
	for _, text := range []string{
		`{"a\nb: fine": 1}`, `{"\u001b]0;title\u0007": 1}`, `{"inner": {"\u202e": {}}}`, `{"` + long + `": 1}`,
		`{"` + long + `": 1, "` + long + `": 2}`, `{"level": "` + long + `"}`, `{"level": "\u001b[2J"}`, `{"count": 1` + strings.Repeat("0", 1<<16) + `}`,
	} {
		node, bad := rawjson.Parse([]byte(text))
		if node != nil {
			_, more := rawjson.Decode(node, &document{})
			bad = append(bad, more...)
		}
		if len(bad) == 0 {
			t.Errorf("%.50s is accepted", text)
		}
		for _, p := range bad {
			if shown := p.String(); len(shown) > 600 || strings.ContainsFunc(shown, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%.50s: %.200q (%d bytes)", text, shown, len(shown))
			}
		}
	}
}

func TestDepthOfDocumentsIsBounded(t *testing.T) {
	_, bad := rawjson.Parse([]byte(strings.Repeat("[", 1000)))
	if len(bad) != 1 || !strings.Contains(bad[0].Message, "nested more than 64") {
		t.Fatalf("got %v", bad)
	}
}

func TestLayersOverlayOneAnother(t *testing.T) {
	d := document{Level: "low", Count: 10, Tags: []string{"x", "y"}}
	node, bad := rawjson.Parse([]byte("{\"tags\": [\"a\"],\n\"inner\": {\"key\": \"k\"}, \"count\": 5e1}"))
	if bad != nil {
		t.Fatal(bad)
	}
	set, bad := rawjson.Decode(node, &d)
	if bad != nil {
		t.Fatal(bad)
	}
	want := document{Level: "low", Count: 50, Tags: []string{"a"}, Inner: inner{Key: "k"}}
	if diff := cmp.Diff(want, d); diff != "" {
		t.Error(diff)
	}
	wantSet := map[string]rawjson.Position{"tags": {1, 10}, "inner.key": {2, 18}, "count": {2, 33}}
	if diff := cmp.Diff(wantSet, set); diff != "" {
		t.Error(diff)
	}
}

func TestDecodeText(t *testing.T) {
	tests := []struct {
		path, text string
		want       document
		problem    string
	}{
		{"name", "abc", document{Name: "abc"}, ""},
		{"name", "ABC", document{}, `name: "ABC" does not match`},
		{"count", " 7 ", document{Count: 7}, ""},
		{"count", "seven", document{}, `count: must be a number, not text`},
		{"on", "TRUE", document{On: true}, ""},
		{"on", "0", document{}, ""},
		{"on", "maybe", document{}, `on: must be true or false, not text`},
		{"tags", "a, b,", document{Tags: []string{"a", "b"}}, ""},
		{"inner.key", "k", document{Inner: inner{Key: "k"}}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.path+"="+tt.text, func(t *testing.T) {
			var d document
			bad := problems(rawjson.DecodeText(tt.path, tt.text, &d))
			if tt.problem == "" && len(bad) > 0 || tt.problem != "" && (len(bad) != 1 || !strings.Contains(bad[0], tt.problem)) {
				t.Fatalf("problems %q, want %q", bad, tt.problem)
			}
			if diff := cmp.Diff(tt.want, d); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDecodeTextOfAnUnknownFieldPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	rawjson.DecodeText("nothing.here", "x", &document{})
}

func TestSchemaSaysWhatDecodeAccepts(t *testing.T) {
	got, err := json.MarshalIndent(rawjson.SchemaOf(document{}), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := json.Unmarshal(got, &schema); err != nil {
		t.Fatal(err)
	}
	if schema["additionalProperties"] != false {
		t.Error("the schema allows additional properties, Decode does not")
	}
	for path, want := range map[string]string{
		"name.pattern": "^[a-z-]+$", "name.maxLength": "8", "name.description": "what it is called",
		"level.enum": "[low high]", "level.default": "low", "count.minimum": "1", "count.default": "10",
		"on.default": "true", "tags.maxItems": "3", "members.minItems": "1", "tags.items": "map[pattern:^[a-z]+$ type:string]",
	} {
		name, key, _ := strings.Cut(path, ".")
		property := schema["properties"].(map[string]any)[name].(map[string]any)
		if got := fmt.Sprint(property[key]); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
	if i, j := strings.Index(string(got), `"name"`), strings.Index(string(got), `"members"`); i > j {
		t.Error("the properties are not in the order of the fields")
	}
}

func TestParseReadsTheOutputOfMarshal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := document{
			Name: rapid.StringMatching(`[a-z-]{1,8}`).Draw(t, "name"), Level: "high",
			Count:   rapid.Int64Range(1, 100).Draw(t, "count"),
			Tags:    []string{},
			Inner:   inner{Key: rapid.String().Draw(t, "key"), Secret: "s-"},
			Members: []inner{{Key: rapid.String().Draw(t, "member"), Secret: "s-"}},
		}
		text, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		out, bad := decode(string(text))
		if len(bad) > 0 {
			t.Fatalf("%s: %v", text, bad)
		}
		if diff := cmp.Diff(in, out); diff != "" {
			t.Fatal(diff)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"name": "a", "members": [{"key": "k"}], "count": 5e1}`))
	f.Add([]byte("\xef\xbb\xbf{\n\t\"on\": true\n}"))
	f.Add([]byte(`{"a":{"a":{"a":[[[1,2,{"b":null}]]]}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		node, bad := rawjson.Parse(data)
		if (node == nil) == (len(bad) == 0) {
			t.Fatalf("node %v with problems %v", node, bad)
		}
		if node != nil && !json.Valid(trimBOM(data)) {
			t.Fatal("accepted what is not JSON")
		}
		if node == nil {
			return
		}
		var d document
		rawjson.Decode(node, &d)
	})
}

func trimBOM(data []byte) []byte { return []byte(strings.TrimPrefix(string(data), "\xef\xbb\xbf")) }
