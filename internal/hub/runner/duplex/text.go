package duplex

import (
	"encoding/json"
	"strings"

	"github.com/parleyhub/parley/internal/base/text"
)

// clip cuts s to at most n bytes, at the boundary of a character, and says so
// with an ellipsis where there is room for one.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	const mark = "…"
	if n <= len(mark) {
		return text.Cut(s, n)
	}
	return text.Cut(s, n-len(mark)) + mark
}

// OneLine returns a label for a text: its first line that is not empty, shortened.
func OneLine(s string) string {
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" {
			return clip(line, maxLabel)
		}
	}
	return ""
}

// ErrorText returns the readable part of an agent's error. Agents forward the JSON of
// their model's server.
func ErrorText(s string) string {
	s = strings.TrimSpace(s)
	var nested struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal([]byte(s), &nested) == nil && nested.Error.Message != "" {
		return nested.Error.Message
	}
	return s
}
