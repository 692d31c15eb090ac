package runner

import (
	"github.com/parleyhub/parley/internal/base/fault"
)

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
// hold no secrets; Subject is, for CodeConfig, the offending field, e.g. "workdir.path", and
// Message begins with it; Err is the cause, for logs.
type Error = fault.UserError[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }
