package runner

import (
	"fmt"
	"strings"

	"github.com/parleyhub/parley/internal/hub/process"
)

// failed makes out the outcome of a turn that ended with err.
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

// cutUTF8 cuts s to at most n bytes, between characters.
func cutUTF8(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}

// exitText says how a process ended, for the end of a sentence.
func exitText(e process.Exit) string {
	switch {
	case e.Signal != "":
		return " (ended by " + e.Signal + ")"
	case e.Code != 0:
		return fmt.Sprintf(" (exit code %d)", e.Code)
	}
	return ""
}

// maxQuote is how much of standard error goes into a message for users.
const maxQuote = 1000

// quoteTail is the end of what an agent has written to standard error, for the
// end of a sentence.
func quoteTail(stderr string) string {
	stderr = strings.TrimSpace(stderr)
	if stderr == "" {
		return ""
	}
	if len(stderr) > maxQuote {
		stderr = "…" + strings.ToValidUTF8(stderr[len(stderr)-maxQuote:], "")
	}
	return ": " + stderr
}
