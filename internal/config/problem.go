package config

import (
	"fmt"
	"strings"
)

// Problem is one error in a configuration. Its text contains no secret.
type Problem struct {
	File    string // "" unless the value is from a file
	Line    int    // from 1, 0 if it is unknown
	Column  int    // from 1
	Source  string // the variable or flag, unless there is a file
	Key     string // the dotted key, for example http.port; "" for the document
	Message string // the error and the correct form
}

// Error formats the problem as FILE:LINE:COLUMN: KEY: MESSAGE.
func (p *Problem) Error() string {
	var b strings.Builder
	switch {
	case p.File != "" && p.Line > 0:
		fmt.Fprintf(&b, "%s:%d:%d: ", p.File, p.Line, p.Column)
	case p.File != "":
		fmt.Fprintf(&b, "%s: ", p.File)
	case p.Source != "":
		fmt.Fprintf(&b, "%s: ", p.Source)
	}
	if p.Key != "" {
		fmt.Fprintf(&b, "%s: ", p.Key)
	}
	b.WriteString(p.Message)
	return b.String()
}

// Invalid is the error for an invalid configuration, with all problems in the order of the file.
type Invalid struct{ Problems []*Problem }

// Error formats one problem per line.
func (e *Invalid) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}
