package runner

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/parleyhub/parley/internal/hub/process"
)

// The parsers of driver exec.
const (
	ParserText         = "text"
	ParserClaudeStream = "claude-stream"
	ParserGeminiStream = "gemini-stream"
	ParserCodexJSONL   = "codex-jsonl"
	ParserVibeStream   = "vibe-stream"
	ParserJSONL        = "jsonl"
)

// parser reads the standard output of one program, for one turn.
type parser interface {
	// Line reads one line, which is valid only during the call. Lines that are not JSON
	// and events of unknown kinds are ignored.
	Line(b []byte, a *Answer)
}

// diagnoser is a parser that knows the meaning of exit codes and error texts.
type diagnoser interface {
	// diagnose is called after the last line. It returns nil if the end of the program has no special meaning.
	diagnose(exit process.Exit, stderr string, a *Answer) *Error
}

// newParser returns nil for text, which has no lines.
func newParser(def Definition) parser {
	switch def.Parser {
	case ParserClaudeStream:
		return &ClaudeStream{}
	case ParserGeminiStream:
		return &geminiStream{}
	case ParserCodexJSONL:
		return codexJSONL{}
	case ParserVibeStream:
		return vibeStream{}
	case ParserJSONL:
		return newJSONL(*def.JSONL)
	}
	return nil
}

func parserNames() []string {
	return []string{ParserText, ParserClaudeStream, ParserGeminiStream, ParserCodexJSONL, ParserVibeStream, ParserJSONL}
}

// object decodes a line that holds a JSON object, and returns false for anything else,
// such as a warning between events. A field of an unexpected type stays empty.
func object(b []byte, into any) bool {
	b = bytes.TrimSpace(b)
	if len(b) == 0 || b[0] != '{' {
		return false
	}
	err := json.Unmarshal(b, into)
	var mismatch *json.UnmarshalTypeError
	return err == nil || errors.As(err, &mismatch)
}

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
