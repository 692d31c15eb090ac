package runner

import (
	"fmt"
	"strings"

	"github.com/parleyhub/parley/internal/hub/process"
)

// failed returns the outcome of a turn that ended with err.
func failed(out Outcome, err *Error) (Outcome, error) {
	out.Status = OutcomeFailed
	if err.Code == CodeAuth {
		out.Status = OutcomeAuthRequired
	}
	return out, err
}

func errBusy(def Definition) *Error {
	return &Error{Code: CodeBusy, Message: "a turn of " + def.Name + " is already running in this conversation"}
}

// exitText describes how a process ended, for the end of a sentence.
func exitText(e process.Exit) string {
	switch {
	case e.Signal != "":
		return " (ended by " + e.Signal + ")"
	case e.Code != 0:
		return fmt.Sprintf(" (exit code %d)", e.Code)
	}
	return ""
}

// Tail returns the end of what an agent has written to standard error, for a message:
// at most 1000 bytes.
func Tail(stderr string) string {
	const most = 1000
	stderr = strings.TrimSpace(stderr)
	if len(stderr) > most {
		stderr = "…" + strings.ToValidUTF8(stderr[len(stderr)-most:], "")
	}
	return stderr
}

// QuoteTail returns [Tail] for the end of a sentence: behind a colon, or empty.
func QuoteTail(stderr string) string {
	if stderr = Tail(stderr); stderr == "" {
		return ""
	}
	return ": " + stderr
}
