package rawjson_test

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/internal/base/rawjson"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCheckReportsTheError(t *testing.T) {
	tests := []struct {
		name, text string
		want       error // nil means any
		ok         bool
	}{
		{name: "object", text: ` {"a":[1,{"b":null}]} `, ok: true},
		{name: "scalar", text: `1e5`, ok: true},
		{name: "brackets in a string do not nest", text: `"[[[[[[\"[[[["`, ok: true},
		{name: "three levels", text: `[[[]]]`, ok: true},
		{name: "four levels", text: `[[[[]]]]`},
		{name: "four levels without an end", text: `[[[[`},
		{name: "empty", text: ``, want: rawjson.ErrSyntax},
		{name: "two values", text: `{} {}`, want: rawjson.ErrSyntax},
		{name: "trailing comma", text: `[1,]`, want: rawjson.ErrSyntax},
		{name: "byte order mark", text: "\xef\xbb\xbf{}", want: rawjson.ErrSyntax},
		{name: "broken UTF-8", text: "\"\xff\"", want: rawjson.ErrUTF8},
		{name: "cut off in a string", text: `{"a`, want: rawjson.ErrSyntax},
		{name: "control character", text: "\"\x01\"", want: rawjson.ErrSyntax},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := rawjson.Check([]byte(tt.text), 3)
			if (err == nil) != tt.ok || tt.want != nil && !errors.Is(err, tt.want) {
				t.Errorf("Check(%q) = %v, want %v (ok %t)", tt.text, err, tt.want, tt.ok)
			}
		})
	}
}

func TestMembersKeepsCaseOrderAndDuplicates(t *testing.T) {
	var got []string
	for name, value := range rawjson.Members([]byte(`{ "a" : 1 , "A":[2, "]"],"a":{"x":"}"}, "\u0061\n" :"\"" }`)) {
		got = append(got, name+"="+string(value))
	}
	want := []string{`a=1`, `A=[2, "]"]`, `a={"x":"}"}`, "a\n=\"\\\"\""}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestMembersAndElementsOfOtherKindsAreEmpty(t *testing.T) {
	for _, text := range []string{``, `null`, `"{}"`, `1`, `true`} {
		for name := range rawjson.Members([]byte(text)) {
			t.Errorf("Members(%s) yields %q", text, name)
		}
		for i := range rawjson.Elements([]byte(text)) {
			t.Errorf("Elements(%s) yields %d", text, i)
		}
	}
	for range rawjson.Elements([]byte(`{"a":1}`)) {
		t.Error("Elements yields a member of an object")
	}
	for range rawjson.Members([]byte(`["a"]`)) {
		t.Error("Members yields an element of an array")
	}
}

func TestMembersAndElementsMayStopEarly(t *testing.T) {
	for name := range rawjson.Members([]byte(`{"a":1,"b":2}`)) {
		if name != "a" {
			t.Fatal("the iteration did not stop")
		}
		break
	}
	for i := range rawjson.Elements([]byte(`[1,2]`)) {
		if i != 0 {
			t.Fatal("the iteration did not stop")
		}
		break
	}
}

func TestKindOf(t *testing.T) {
	for text, want := range map[string]rawjson.Kind{
		"": rawjson.Missing, " null": rawjson.Null, "true": rawjson.Bool, "false": rawjson.Bool, "-1": rawjson.Number,
		"0": rawjson.Number, "\t\"x\"": rawjson.String, "\n[]": rawjson.Array, "\r{}": rawjson.Object,
	} {
		if got := rawjson.KindOf([]byte(text)); got != want {
			t.Errorf("KindOf(%q) = %s, want %s", text, got, want)
		}
	}
}

func TestTextDecodesEscapes(t *testing.T) {
	for raw, want := range map[string]string{
		`"plain ü"`: "plain ü", `"\u00fc\n\"\\"`: "ü\n\"\\", `"\ud83d\ude00"`: "😀", `"\ud800"`: "\ufffd", `1`: "", ``: "",
	} {
		if got := rawjson.Text([]byte(raw)); got != want {
			t.Errorf("Text(%s) = %q, want %q", raw, got, want)
		}
	}
}

func TestValueKeepsNumbersThatAFloatWouldRound(t *testing.T) {
	got := rawjson.Value([]byte(`{"small":12,"fraction":0.1,"big":9007199254740993,"minus":-9007199254740993,"huge":1e400,"list":[1,18446744073709551615]}`))
	want := map[string]any{
		"small": 12.0, "fraction": 0.1, "big": json.Number("9007199254740993"), "minus": json.Number("-9007199254740993"),
		"huge": json.Number("1e400"), "list": []any{1.0, json.Number("18446744073709551615")},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestAppendKeepsHTMLAndRepairsUTF8(t *testing.T) {
	got, err := rawjson.Append([]byte("x"), map[string]string{"a": "<b>&\u2028\xff"})
	if err != nil {
		t.Fatal(err)
	}
	if want := `x{"a":"<b>&\u2028\ufffd"}`; string(got) != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if err := rawjson.Check(got[1:], 5); err != nil {
		t.Error(err)
	}
}

func TestAppendKeepsDstOnError(t *testing.T) {
	got, err := rawjson.Append([]byte("x"), map[string]any{"a": math.NaN()})
	if err == nil || string(got) != "x" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestAppendAfterALargeValue(t *testing.T) {
	for _, n := range []int{1, 200 << 10, 1} { // the large buffer is not pooled
		got, err := rawjson.Append(nil, strings.Repeat("x", n))
		if err != nil || len(got) != n+2 {
			t.Errorf("%d bytes: got %d, %v", n, len(got), err)
		}
	}
}

// anyJSON draws a JSON value.
func anyJSON(depth int) *rapid.Generator[any] {
	return rapid.Custom(func(t *rapid.T) any {
		kinds := 4
		if depth > 0 {
			kinds = 6
		}
		switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
		case 0:
			return nil
		case 1:
			return rapid.Bool().Draw(t, "bool")
		case 2:
			return float64(rapid.Int32().Draw(t, "number"))
		case 3:
			return rapid.String().Draw(t, "string")
		case 4:
			return rapid.SliceOfN(anyJSON(depth-1), 0, 4).Draw(t, "array")
		default:
			return rapid.MapOfN(rapid.String(), anyJSON(depth-1), 0, 4).Draw(t, "object")
		}
	})
}

// A value that is rebuilt with Members and Elements equals what encoding/json decodes.
func TestMembersAndElementsAgreeWithEncodingJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := anyJSON(3).Draw(t, "value")
		text, err := json.MarshalIndent(value, " ", rapid.SampledFrom([]string{"", " ", "\t"}).Draw(t, "indent"))
		if err != nil {
			t.Fatal(err)
		}
		if err := rawjson.Check(text, 10); err != nil {
			t.Fatalf("Check(%s): %v", text, err)
		}
		var want any
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, rebuild(text)); diff != "" {
			t.Fatalf("%s\n%s", text, diff)
		}
		if diff := cmp.Diff(want, rawjson.Value(text)); diff != "" {
			t.Fatalf("%s\n%s", text, diff)
		}
	})
}

func rebuild(raw []byte) any {
	switch rawjson.KindOf(raw) {
	case rawjson.Object:
		m := map[string]any{}
		for name, value := range rawjson.Members(raw) {
			m[name] = rebuild(value)
		}
		return m
	case rawjson.Array:
		list := []any{}
		for _, value := range rawjson.Elements(raw) {
			list = append(list, rebuild(value))
		}
		return list
	case rawjson.String:
		return rawjson.Text(raw)
	default:
		return rawjson.Value(raw)
	}
}

// FuzzCheck tests that the members and elements of a checked value pass Check, too.
func FuzzCheck(f *testing.F) {
	for _, seed := range []string{`{"a":[1,"]",{"b":"\\\""}],"c":null}`, `[`, `{"a"`, "\"\xff\"", `[[[[[]]]]]`, `"\`, ` { } `, `{"\u0061":-0.1e5 }`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if rawjson.Check(data, 20) != nil {
			return
		}
		for name, value := range rawjson.Members(data) {
			if err := rawjson.Check(value, 19); err != nil {
				t.Fatalf("member %q: %s: %v", name, value, err)
			}
		}
		for i, value := range rawjson.Elements(data) {
			if err := rawjson.Check(value, 19); err != nil {
				t.Fatalf("element %d: %s: %v", i, value, err)
			}
		}
		again, err := rawjson.Append(nil, rawjson.Value(data))
		if err != nil {
			t.Fatal(err)
		}
		if err := rawjson.Check(again, 20); err != nil {
			t.Fatalf("%s became %s: %v", data, again, err)
		}
	})
}
