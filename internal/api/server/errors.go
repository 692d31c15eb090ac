package server

import (
	"github.com/parleyhub/parley/internal/base/fault"
)

// Code says what kept the server from starting.
type Code string

// The codes of an [Error].
const (
	CodeConfig    Code = "config"    // the configuration is wrong or would be unsafe
	CodeInUse     Code = "in-use"    // another server has the address or the socket
	CodeForbidden Code = "forbidden" // the address or path may not be used
	CodeInternal  Code = "internal"
)

// Error is what New and Start return. Message and Remedy are fit for users.
type Error = fault.UserError[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }
