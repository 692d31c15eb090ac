// Package telemetry records what agents do as structured events.
//
// A [Recorder] counts the events of the router, the channels and the tools, keeps the latest and passes them to
// [Sink]s. [Logger] writes to a slog.Logger; package telemetry/audit keeps an append-only log that can be replayed;
// package telemetry/prom exports the counters to Prometheus, telemetry/otel counters and spans to OpenTelemetry.
package telemetry

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
)

// EventType is the kind of an event.
type EventType string

// The event types: those of the specification, and Parley's own.
const (
	MessageSent     EventType = "message-sent"     // an envelope was accepted for delivery
	MessageReceived EventType = "message-received" // an envelope reached a handler
	RoutingDecision EventType = "routing-decision" // one for each envelope, refused ones too
	ToolInvocation  EventType = "tool-invocation"
	ErrorEvent      EventType = "error"

	Security        EventType = "security"         // policy refused a delivery
	CrossTier       EventType = "cross-tier"       // a message between tiers
	DeliveryFailure EventType = "delivery-failure" // a channel gave an envelope up
	ChannelState    EventType = "channel-state"    // a channel changed its state; Detail has the new one
)

// Path is how an envelope was routed.
type Path string

// The paths.
const (
	PathLocal     Path = "local"
	PathRemote    Path = "remote"
	PathBroadcast Path = "broadcast"
)

// Outcome is whether something succeeded: in JSON true or false, absent where it does not apply.
type Outcome uint8

// The outcomes.
const (
	NoOutcome Outcome = iota
	Success
	Failure
)

// OutcomeOf returns Success for nil and Failure for an error.
func OutcomeOf(err error) Outcome {
	if err != nil {
		return Failure
	}
	return Success
}

// MarshalJSON writes true, false or null.
func (o Outcome) MarshalJSON() ([]byte, error) {
	switch o {
	case Success:
		return []byte("true"), nil
	case Failure:
		return []byte("false"), nil
	}
	return []byte("null"), nil
}

// UnmarshalJSON reads true, false or null.
func (o *Outcome) UnmarshalJSON(data []byte) error {
	switch string(data) {
	case "true":
		*o = Success
	case "false":
		*o = Failure
	case "null":
		*o = NoOutcome
	default:
		return fmt.Errorf("success is %.20s, not true or false", data)
	}
	return nil
}

// Event is one thing that happened. Fields that do not apply are empty.
type Event struct {
	Type        EventType     `json:"type"`
	EnvelopeID  string        `json:"envelopeId,omitempty"`
	Sender      string        `json:"sender,omitempty"`      // an agent; of a tool-invocation the caller
	Recipient   string        `json:"recipient,omitempty"`   // the envelope's; of a tool-invocation as SourceAgent
	MessageType envelope.Type `json:"messageType,omitempty"` // the envelope's type
	RoutingPath Path          `json:"routingPath,omitempty"` // of a routing decision, and of its consequences
	ToolName    string        `json:"toolName,omitempty"`    // of a tool-invocation
	Duration    float64       `json:"duration,omitempty"`    // milliseconds
	Success     Outcome       `json:"success,omitzero"`      // of a routing decision or a tool-invocation
	Timestamp   int64         `json:"timestamp"`             // Unix time in milliseconds

	Target string `json:"targetAgentId,omitempty"` // the agent that it was delivered to; "*" for all; of a tool-invocation as SourceAgent
	// SourceAgent is the agent that offers the tool, of a tool-invocation and of the security event of a refused one.
	SourceAgent string `json:"sourceAgent,omitempty"`

	SourceTier agent.Tier `json:"sourceTier,omitzero"` // the sender's, of cross-tier and security events
	TargetTier agent.Tier `json:"targetTier,omitzero"` // the target's, likewise
	ChannelID  string     `json:"channelId,omitempty"`
	Code       string     `json:"code,omitempty"`   // of the error
	Detail     string     `json:"detail,omitempty"` // for people
}

// CodePanic is the code of the error event of a callback that panicked.
const CodePanic = "PANIC"

// Panicked returns the error event of a callback that panicked; whose says what it was called for, as "the handler
// of an agent".
func Panicked(whose string, p error) Event {
	detail := p.Error()
	if with, ok := p.(interface{ Detail() string }); ok {
		detail = with.Detail()
	}
	return Event{Type: ErrorEvent, Code: CodePanic, Detail: whose + " panicked: " + strings.TrimPrefix(detail, "panic: ")}
}

// Of returns an event about an envelope.
func Of(t EventType, e *envelope.Envelope) Event {
	return Event{Type: t, EnvelopeID: e.ID, Sender: e.Sender, Recipient: e.Recipient, MessageType: e.Type}
}

// Sink receives events. Emit is called from many goroutines during deliveries: it must
// not block or call back. Wrap a slow sink in [NewAsync].
type Sink interface {
	Emit(Event)
}

// SinkFunc is a function as a Sink.
type SinkFunc func(Event)

// Emit calls f.
func (f SinkFunc) Emit(e Event) { f(e) }

// Invocation is the record of one tool call.
type Invocation struct {
	ToolName    string          `json:"toolName"`              // "agent.tool"
	SourceAgent string          `json:"sourceAgent,omitempty"` // that offers the tool
	Caller      string          `json:"caller,omitempty"`      // the agent that calls; empty: the user of the process
	Arguments   json.RawMessage `json:"arguments,omitempty"`   // empty: none
	Result      json.RawMessage `json:"result,omitempty"`      // empty: none
	Duration    float64         `json:"duration"`              // milliseconds
	Success     bool            `json:"success"`
	ErrorCode   string          `json:"errorCode,omitempty"` // of a failure
	Error       string          `json:"error,omitempty"`     // of a failure, for people
	Timestamp   int64           `json:"timestamp,omitempty"` // Unix time in milliseconds
}

// Event returns the event of the call: Sender is the caller, Recipient, Target and SourceAgent the agent that offers
// the tool.
func (i *Invocation) Event() Event {
	outcome := Failure
	if i.Success {
		outcome = Success
	}
	return Event{Type: ToolInvocation, ToolName: i.ToolName, Sender: i.Caller, Recipient: i.SourceAgent, Target: i.SourceAgent,
		SourceAgent: i.SourceAgent, Duration: i.Duration, Success: outcome, Timestamp: i.Timestamp, Code: i.ErrorCode, Detail: i.Error}
}

// MaxInvocationSize bounds the JSON of an Invocation in bytes.
const MaxInvocationSize = 16 << 20

// EncodeInvocation returns the record's JSON, which [DecodeInvocation] reads. It refuses text that is not UTF-8, and
// more than MaxInvocationSize.
func EncodeInvocation(i Invocation) ([]byte, error) {
	for _, text := range []string{i.ToolName, i.SourceAgent, i.Caller, string(i.Arguments), string(i.Result), i.ErrorCode, i.Error} {
		if !utf8.ValidString(text) {
			return nil, fmt.Errorf("the invocation of %q has text that is not UTF-8", i.ToolName)
		}
	}
	data, err := json.Marshal(i)
	if err != nil {
		return nil, fmt.Errorf("the invocation of %q cannot be written as JSON: %w", i.ToolName, err)
	}
	if len(data) > MaxInvocationSize {
		return nil, invocationTooLarge(len(data))
	}
	return data, nil
}

func invocationTooLarge(size int) error {
	return fmt.Errorf("the invocation record has %d bytes; at most %d are allowed", size, MaxInvocationSize)
}

// DecodeInvocation reads a record's JSON.
func DecodeInvocation(data []byte) (Invocation, error) {
	var i Invocation
	if len(data) > MaxInvocationSize {
		return i, invocationTooLarge(len(data))
	}
	if !utf8.Valid(data) {
		return i, errors.New("not the JSON of an invocation record: not UTF-8")
	}
	if err := json.Unmarshal(data, &i); err != nil {
		return Invocation{}, fmt.Errorf("not the JSON of an invocation record: %w", err)
	}
	var name struct {
		ToolName *string `json:"toolName"` // may be empty, but not absent
	}
	if err := json.Unmarshal(data, &name); err != nil || name.ToolName == nil {
		return Invocation{}, errors.New("the invocation record has no toolName")
	}
	return i, nil
}
