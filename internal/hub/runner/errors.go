package runner

import "fmt"

// Code is the kind of an error of an agent.
type Code string

// The codes of an [Error].
const (
	CodeNotInstalled Code = "not-installed" // the command cannot be found or run
	CodeAuth         Code = "auth"          // missing or refused credentials
	CodeAgent        Code = "agent"         // the agent reported an error
	CodeProtocol     Code = "protocol"      // the agent's output was not understood or ended early
	CodeTimeout      Code = "timeout"       // run or idle limit reached
	CodeLimit        Code = "limit"         // prompt, line or output larger than allowed
	CodeBusy         Code = "busy"          // a turn is already running in this session
	CodeConfig       Code = "config"        // the definition is wrong
	CodeInternal     Code = "internal"
)

// Error is what the package returns. Message and Remedy are fit for users and
// hold no secrets; Err is the cause, for logs.
type Error struct {
	Code    Code
	Message string
	Remedy  string // what to do next, may be empty
	Field   string // for CodeConfig: the offending field, e.g. "workdir.path"; Message begins with it
	Err     error
}

// Error returns the message, and the remedy where there is one.
func (e *Error) Error() string {
	if e.Remedy == "" {
		return e.Message
	}
	return fmt.Sprintf("%s; %s", e.Message, e.Remedy)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
