// Package push sends what happens to tasks to the webhooks that clients have
// asked for: A2A's push notifications.
//
// A [Service] keeps the configurations on the bus and follows every task that has
// one while a turn of it runs. What it promises:
//
//   - Events of a task reach one webhook in their order, one request at a time.
//   - A webhook that fails is tried again with growing pauses. Meanwhile events
//     wait in a bounded queue; when it is full they are replaced by one snapshot
//     of the task, which says at least as much.
//   - How a task ended is delivered at least once, also when the hub was killed
//     in between, unless the webhook refuses it for good or for longer than
//     Options.GiveUp.
//   - Nobody can make the hub call into its own network (server-side request
//     forgery): see Options.AllowPrivate.
package push

import (
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/fault"
)

// Config is one webhook of one task.
type Config struct {
	a2a.PushConfig
	// Version is the protocol that the client speaks. It decides the shape of
	// the notifications: a stream response in 1.0, the whole task in 0.3.
	Version a2a.ProtocolVersion
}

// Limits of configurations.
const (
	MaxPerTask = 16
	maxTotal   = 10_000
	maxID      = 128
	maxURL     = 2048
	maxSecret  = 4096
)

// record is a configuration as it is stored.
type record struct {
	Config  a2a.PushConfig      `json:"config"`
	Version a2a.ProtocolVersion `json:"version,omitempty"`
	// Delivered is the time of the last status that the webhook has accepted.
	Delivered time.Time `json:"delivered,omitzero"`
	// Done is set when nothing more is to be sent: the end was delivered, or
	// given up.
	Done bool `json:"done,omitempty"`
}

// Code says what kind of thing went wrong.
type Code string

// The codes of an [Error].
const (
	CodeInvalid  Code = "invalid"   // the configuration is wrong
	CodeNotFound Code = "not-found" // there is no such configuration
	CodeLimit    Code = "limit"     // too many configurations
	CodeInternal Code = "internal"  // the store failed
)

// Error is what the package returns. Message is fit for users and holds no
// secrets; Err is the cause, for logs.
type Error = fault.UserError[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }
