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

// parser reads the standard output of one program, for one turn.
type parser interface {
	// Line reads one line, which is valid only during the call. Lines that are not JSON
	// and events of unknown kinds are ignored.
	Line(b []byte, a *Answer)
}

// diagnoser is a parser that knows the meaning of exit codes and error texts.
type diagnoser interface {
	// diagnose is called after the last line. It returns nil if the end of the program
	// has no special meaning.
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
