// Package push implements A2A's push notifications: it sends the events of tasks to clients' webhooks.
//
// A [Service] stores the configurations on the bus and watches every task that has one
// while a turn of it runs. It guarantees:
//
//   - A webhook receives the events of a task in order, one request at a time.
//   - Failed requests are retried with exponential backoff. Meanwhile events wait in a
//     bounded queue; when it is full, one snapshot of the task replaces them.
//   - The end of a task is delivered at least once, even if the hub is killed in
//     between, unless the webhook rejects it or fails for longer than Options.GiveUp.
//   - No client can make the hub send requests into its own network (server-side
//     request forgery), see Options.AllowPrivate.
package push

import (
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/fault"
)

// Config is one webhook of one task.
type Config struct {
	a2a.PushConfig
	// Version is the client's protocol. It determines the format of the notifications: a
	// stream response in 1.0, the whole task in 0.3.
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

// record is the stored form of a configuration.
type record struct {
	Config  a2a.PushConfig      `json:"config"`
	Version a2a.ProtocolVersion `json:"version,omitempty"`
	// Delivered is the time of the last status that the webhook accepted.
	Delivered time.Time `json:"delivered,omitzero"`
	// Done is set when nothing remains to be sent: the end was delivered or given up.
	Done bool `json:"done,omitempty"`
}

// Code is the kind of an error of push notifications.
type Code string

// The codes of an [Error].
const (
	CodeInvalid  Code = "invalid"   // the configuration is wrong
	CodeNotFound Code = "not-found" // there is no such configuration
	CodeLimit    Code = "limit"     // too many configurations
	CodeInternal Code = "internal"  // the store failed
)

// Error is what the package returns. Message is fit for users and holds no secrets; Err is the cause, for logs.
type Error = fault.UserError[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }
