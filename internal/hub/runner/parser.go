package runner

import (
	"bytes"
	"encoding/json"
	"errors"

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

// parser understands what one program prints to standard output. One is made for
// each turn.
type parser interface {
	// line takes one line; it is valid only during the call. Lines that are not
	// JSON and events of unknown kinds are skipped.
	line(b []byte, a *Answer)
	// diagnose explains an end by what the program is known to mean with it, nil
	// if it says nothing special. It comes after the last line.
	diagnose(exit process.Exit, stderr string, a *Answer) *Error
}

// newParser returns nil for text, which has no lines.
func newParser(def Definition) parser {
	switch def.Parser {
	case ParserClaudeStream:
		return &claudeStream{}
	case ParserGeminiStream:
		return &geminiStream{}
	case ParserCodexJSONL:
		return &codexJSONL{}
	case ParserVibeStream:
		return &vibeStream{}
	case ParserJSONL:
		return newJSONL(*def.JSONL)
	}
	return nil
}

func parserNames() []string {
	return []string{ParserText, ParserClaudeStream, ParserGeminiStream, ParserCodexJSONL, ParserVibeStream, ParserJSONL}
}

// object decodes a line that holds a JSON object, and reports false for anything
// else: agents print warnings between their events. A field of another type than
// expected is left empty: the others still count.
func object(b []byte, into any) bool {
	b = bytes.TrimSpace(b)
	if len(b) == 0 || b[0] != '{' {
		return false
	}
	err := json.Unmarshal(b, into)
	var mismatch *json.UnmarshalTypeError
	return err == nil || errors.As(err, &mismatch)
}
