package rawjson_test

import (
	"encoding/json"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/parleyhub/parley/internal/base/rawjson"
)

func TestMarshalRefusesTextThatIsNotUTF8(t *testing.T) {
	type inner struct{ Text string }
	type outer struct {
		inner
		List   []any  `json:"list"`
		Hidden string `json:"-"`
	}
	bad := "\xff"
	for _, v := range []any{
		bad, &bad, []string{"a", bad}, [1]string{bad}, map[string]any{"k": map[string]string{"x": bad}}, map[string]int{bad: 1},
		outer{inner: inner{bad}}, outer{List: []any{&inner{bad}}},
	} {
		if data, err := rawjson.Marshal(v); !errors.Is(err, rawjson.ErrUTF8) {
			t.Errorf("%+v: %s, %v", v, data, err)
		}
	}
	for _, v := range []any{nil, "\ufffd", `\ufffd`, outer{Hidden: bad, List: []any{nil, `\ufffd`}}, json.RawMessage(`"\ufffd"`), []any{json.RawMessage(`"\ufffd"`)}} {
		want, _ := json.Marshal(v)
		if data, err := rawjson.Marshal(v); err != nil || string(data) != string(want) {
			t.Errorf("%+v: %s, %v", v, data, err)
		}
	}
	if _, err := rawjson.Marshal(make(chan int)); err == nil {
		t.Error("a channel is JSON")
	}
}

func TestWhatMarshalWritesIsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := string(rapid.SliceOfN(rapid.Byte(), 0, 8).Draw(t, "text"))
		data, err := rawjson.Marshal(map[string]string{"text": text})
		if err != nil {
			return
		}
		var back map[string]string
		if err := json.Unmarshal(data, &back); err != nil || back["text"] != text {
			t.Fatalf("%q became %q, %v", text, back["text"], err)
		}
	})
}
