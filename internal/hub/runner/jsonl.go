package runner

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/parleyhub/parley/internal/hub/process"
)

// jsonl reads the lines of any program by the paths in its definition.
//
//   - With TextTypes only the text of such lines counts, else that of every line.
//   - A line of DoneTypes ends the turn. Without DoneTypes an exit with 0 ends it.
//   - A line of ErrorTypes, or with a value at Error, is an error.
type jsonl struct {
	fields                    JSONLFields
	typ, text, session, error []string
}

func newJSONL(f JSONLFields) *jsonl {
	return &jsonl{fields: f, typ: keys(f.Type), text: keys(f.Text), session: keys(f.Session), error: keys(f.Error)}
}

// keys returns the steps of a dotted path.
func keys(dotted string) []string {
	if dotted == "" {
		return nil
	}
	return strings.Split(dotted, ".")
}

func (j *jsonl) Line(b []byte, a *Answer) {
	var l map[string]any
	if !object(b, &l) {
		return
	}
	a.Session(at(l, j.session), "")
	typ := at(l, j.typ)
	if message := at(l, j.error); message != "" || slices.Contains(j.fields.ErrorTypes, typ) {
		a.fail(message)
	} else if len(j.fields.TextTypes) == 0 || slices.Contains(j.fields.TextTypes, typ) {
		a.Text(at(l, j.text))
	}
	if slices.Contains(j.fields.DoneTypes, typ) {
		a.done = true
	}
}

func (j *jsonl) diagnose(exit process.Exit, _ string, a *Answer) *Error {
	if len(j.fields.DoneTypes) == 0 && exit.Code == 0 {
		a.done = true
	}
	return nil
}

// at returns the value at a path as text: a string unchanged, a missing value, null
// and false as "", any other value as JSON. Numbers in the path index lists.
func at(v any, path []string) string {
	if len(path) == 0 {
		return ""
	}
	for _, key := range path {
		switch x := v.(type) {
		case map[string]any:
			v = x[key]
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i < 0 || i >= len(x) {
				return ""
			}
			v = x[i]
		default:
			return ""
		}
	}
	switch x := v.(type) {
	case nil:
		return ""
	case string:
		return x
	case bool:
		if !x {
			return ""
		}
	}
	b, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return string(b)
}
