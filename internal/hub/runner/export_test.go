package runner

import (
	"bytes"
	"context"

	"github.com/parleyhub/parley/internal/hub/process"
)

// Parse passes output to the parser of a definition, as printed by a program that ends
// with exit code code.
func Parse(def Definition, output []byte, stderr string, code int, h Handler) (Outcome, error) {
	def, err := def.Complete()
	if err != nil {
		return Outcome{}, err
	}
	r := &execRun{
		def: def, parser: newParser(def), exit: process.Exit{Code: code}, stderr: stderr,
		answer: NewAnswer(h, def.Limits.MaxOutput, (*process.Redactor)(nil).Redact, SessionStarted{}),
	}
	if r.parser == nil {
		r.readText(bytes.NewReader(output))
	} else {
		lines := process.NewLines(bytes.NewReader(output), def.Limits.MaxLine)
		for {
			line, err := lines.Next()
			if err != nil {
				break
			}
			r.parser.Line(line, r.answer)
		}
	}
	out, rerr := r.outcome(context.Background())
	if rerr != nil {
		return failed(out, rerr)
	}
	return out, nil
}
