package mounts

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/telemetry"
)

// maxRecorded bounds the arguments, the result and the error in the record of a call, in bytes each.
const maxRecorded = 16 << 10

// recorder returns what the toolbox calls after each call; nil without Options.Record.
func (t *Tools) recorder() func(telemetry.Invocation) {
	if t.o.Record == nil {
		return nil
	}
	secrets := slices.Clone(t.o.Secrets)
	for _, server := range t.o.Servers {
		for name, value := range server.Env {
			if process.NamesSecret(name) {
				secrets = append(secrets, value)
			}
		}
		for _, value := range server.Headers {
			secrets = append(secrets, value)
		}
	}
	redact := process.NewRedactor(os.Environ(), secrets...).Redact
	return func(i telemetry.Invocation) {
		i.ToolName, i.Caller, i.SourceAgent = redact(i.ToolName), redact(i.Caller), redact(i.SourceAgent)
		i.Arguments, i.Result = recorded(i.Arguments, redact), recorded(i.Result, redact)
		i.Error = text.Valid(redact(process.Beginning(i.Error, maxRecorded)), maxRecorded)
		t.o.Record(i)
	}
}

// recorded returns JSON as the record of a call has it. What is cut, or is no JSON without its secrets, becomes a string.
func recorded(raw json.RawMessage, redact func(string) string) json.RawMessage {
	if len(raw) == 0 {
		return nil
	}
	s := redact(process.Beginning(string(raw), maxRecorded))
	if len(raw) <= maxRecorded && json.Valid([]byte(s)) {
		return json.RawMessage(s)
	}
	if len(s) > maxRecorded || len(raw) > maxRecorded {
		s = text.Cut(s, maxRecorded) + fmt.Sprintf("… [cut: %d bytes in all]", len(raw))
	}
	quoted, err := json.Marshal(s)
	if err != nil {
		return nil // a string always encodes
	}
	return quoted
}
