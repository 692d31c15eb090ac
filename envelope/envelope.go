// Package envelope defines the message that agents exchange, with its sender,
// recipient, thread, type, time and payload.
//
// [New] and a [Factory] make envelopes with an id and a timestamp; [Decode] reads them. The memory transport and the
// router share the pointer, so never change an envelope that was sent: [Envelope.With] makes a changed copy. The
// payload is JSON text that [Encode] and [Decode] keep byte for byte.
package envelope

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/internal/base/clock"
	"github.com/parleyhub/parley/internal/base/rawjson"
)

// SchemaVersion is the version of the format that this package writes.
const SchemaVersion = 1

// Broadcast as recipient addresses every agent.
const Broadcast = agent.Broadcast

// Type is the kind of a message.
type Type string

// The ten types.
const (
	Request      Type = "request"
	Response     Type = "response"
	Notification Type = "notification"
	TaskProposal Type = "task-proposal"
	TaskAccept   Type = "task-accept"
	TaskReject   Type = "task-reject"
	StreamStart  Type = "stream-start"
	StreamData   Type = "stream-data"
	StreamEnd    Type = "stream-end"
	ErrorMessage Type = "error"
)

// Types lists the ten types.
func Types() []Type {
	return []Type{Request, Response, Notification, TaskProposal, TaskAccept, TaskReject,
		StreamStart, StreamData, StreamEnd, ErrorMessage}
}

// Valid reports whether t is one of the ten types.
func (t Type) Valid() bool {
	switch t {
	case Request, Response, Notification, TaskProposal, TaskAccept, TaskReject,
		StreamStart, StreamData, StreamEnd, ErrorMessage:
		return true
	}
	return false
}

// RoutingHint is how the router interprets the recipient.
type RoutingHint string

// ByCapability says that the recipient is the id of a capability.
const ByCapability RoutingHint = "capability"

// Metadata is what the sender states about itself and the delivery. The router refuses
// an envelope whose metadata contradict the sender's registered card.
type Metadata struct {
	Tier        agent.Tier  `json:"tier"`                  // the sender's; required
	SandboxID   string      `json:"sandboxId,omitempty"`   // the sender's; empty means none
	RoutingHint RoutingHint `json:"routingHint,omitempty"` // ByCapability, or empty
	// TraceParent and TraceState are the W3C trace context, an extension of the specified schema.
	TraceParent string `json:"traceparent,omitempty"`
	TraceState  string `json:"tracestate,omitempty"`
}

// Envelope is one message. All fields but CorrelationID and Metadata are required.
type Envelope struct {
	ID            string          `json:"id"`                      // unique; a UUID of version 7 if it was made here
	SchemaVersion int             `json:"schemaVersion"`           // of the format: SchemaVersion
	Sender        string          `json:"sender"`                  // agent id
	Recipient     string          `json:"recipient"`               // agent id, capability id (see RoutingHint) or "*"
	CorrelationID string          `json:"correlationId,omitempty"` // of the thread; empty in an envelope that begins one
	Type          Type            `json:"type"`                    // one of the ten
	Timestamp     int64           `json:"timestamp"`               // Unix time in milliseconds
	Payload       json.RawMessage `json:"payload"`                 // any JSON value; null if there is none
	Metadata      *Metadata       `json:"metadata,omitempty"`      // nil if the sender states none
}

// Time returns the timestamp as a time.
func (e *Envelope) Time() time.Time { return time.UnixMilli(e.Timestamp) }

// ToCapability reports whether the recipient is the id of a capability.
func (e *Envelope) ToCapability() bool {
	return e.Metadata != nil && e.Metadata.RoutingHint == ByCapability
}

// Thread returns the correlation id of the envelope's conversation: its own or, in an
// envelope that begins one, its id.
func (e *Envelope) Thread() string {
	if e.CorrelationID == "" {
		return e.ID
	}
	return e.CorrelationID
}

// With returns a deep copy to which change was applied.
func (e *Envelope) With(change func(*Envelope)) *Envelope {
	c := *e
	c.Payload = bytes.Clone(e.Payload)
	if e.Metadata != nil {
		m := *e.Metadata
		c.Metadata = &m
	}
	change(&c)
	return &c
}

// Equal reports whether two envelopes are equal, payloads byte for byte.
func (e *Envelope) Equal(f *Envelope) bool {
	if e == nil || f == nil {
		return e == f
	}
	if (e.Metadata == nil) != (f.Metadata == nil) || e.Metadata != nil && *e.Metadata != *f.Metadata {
		return false
	}
	return e.ID == f.ID && e.SchemaVersion == f.SchemaVersion && e.Sender == f.Sender && e.Recipient == f.Recipient &&
		e.CorrelationID == f.CorrelationID && e.Type == f.Type && e.Timestamp == f.Timestamp && bytes.Equal(e.Payload, f.Payload)
}

// Size returns the approximate size of the envelope's JSON in bytes, without escapes.
func (e *Envelope) Size() int {
	n := 128 + len(e.ID) + len(e.Sender) + len(e.Recipient) + len(e.CorrelationID) + len(e.Type) + len(e.Payload)
	if m := e.Metadata; m != nil {
		n += 96 + len(m.SandboxID) + len(m.TraceParent) + len(m.TraceState)
	}
	return n
}

// Unmarshal reads the payload into v, a pointer as for json.Unmarshal.
func (e *Envelope) Unmarshal(v any) error {
	if err := json.Unmarshal(e.Payload, v); err != nil {
		return &Error{Code: CodeInvalidEnvelope, Subject: e.ID, Message: fmt.Sprintf("cannot decode the payload of the %q envelope", e.Type), Err: err}
	}
	return nil
}

// New makes an envelope with a new id and the current time. The payload is a json.RawMessage, which is not copied,
// or any value for json.Marshal with text in UTF-8; nil becomes null. Errors are [*Error]s.
func New(sender, recipient string, t Type, payload any) (*Envelope, error) {
	return build(clock.UnixMilli(), sender, recipient, t, payload, "", nil)
}

// Reply makes an envelope to e's sender, in e's thread. from is the agent that
// replies, since e's recipient may be a capability or everybody.
func (e *Envelope) Reply(from string, t Type, payload any) (*Envelope, error) {
	if e == nil {
		return nil, invalid("", "there is no envelope to reply to: it is nil")
	}
	return build(clock.UnixMilli(), from, e.Sender, t, payload, e.Thread(), nil)
}

func build(now int64, sender, recipient string, t Type, payload any, correlationID string, m *Metadata) (*Envelope, error) {
	raw, err := rawPayload(payload)
	if err != nil {
		return nil, err
	}
	e := &Envelope{
		ID: newID(now), SchemaVersion: SchemaVersion, Sender: sender, Recipient: recipient, CorrelationID: correlationID,
		Type: t, Timestamp: now, Payload: raw, Metadata: m,
	}
	if err := e.Validate(); err != nil {
		return nil, err
	}
	return e, nil
}

var null = json.RawMessage("null")

func rawPayload(payload any) (json.RawMessage, error) {
	switch p := payload.(type) {
	case nil:
		return null, nil
	case json.RawMessage:
		if p == nil {
			return null, nil
		}
		return p, nil
	}
	raw, err := rawjson.Marshal(payload)
	if err != nil {
		return nil, &Error{Code: CodeInvalidEnvelope, Message: "the payload cannot be written as JSON", Err: err}
	}
	return raw, nil
}

// newID returns a UUID of version 7 for a Unix time in milliseconds. Ids are unique,
// not secret, so it uses the runtime's generator, without locks and system calls.
func newID(now int64) string {
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:8], uint64(now)<<16|0x7000|rand.Uint64()&0x0fff)
	binary.BigEndian.PutUint64(id[8:], rand.Uint64()&(1<<62-1)|1<<63)
	return id.String()
}

// Validate returns nil for a valid envelope, without allocating, and otherwise an
// [*Error] with [CodeInvalidEnvelope] that names every missing or wrong field.
func (e *Envelope) Validate() error {
	if e == nil {
		return invalid("", "there is no envelope: it is nil")
	}
	if e.valid() {
		return nil
	}
	return e.explain()
}

// valid is the quick check; explain finds the problems. A test compares the two.
func (e *Envelope) valid() bool { return e.validHeader() && validPayload(e.Payload) }

func (e *Envelope) validHeader() bool {
	return e.SchemaVersion == SchemaVersion && e.Type.Valid() && e.Timestamp > 0 &&
		e.ID != "" && opaque(e.ID) && opaque(e.CorrelationID) &&
		agent.CheckID(e.Sender) == nil && (e.Recipient == Broadcast || agent.CheckID(e.Recipient) == nil) &&
		(e.Metadata == nil || e.Metadata.valid())
}

// maxTrace bounds each half of a trace context; W3C asks for 512 bytes of state.
const maxTrace = 512

func (m *Metadata) valid() bool {
	return m.Tier.Valid() && (m.SandboxID == "" || agent.CheckID(m.SandboxID) == nil) &&
		(m.RoutingHint == "" || m.RoutingHint == ByCapability) &&
		printable(m.TraceParent) && printable(m.TraceState)
}

// maxOpaque bounds the ids of envelopes and threads, in bytes.
const maxOpaque = 256

// opaque reports whether s can be an envelope's id or correlation id: any text without control characters.
func opaque(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] == 0x7f {
			return false
		}
	}
	return len(s) <= maxOpaque && utf8.ValidString(s)
}

// printable reports whether s may be the value of an HTTP header.
func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return len(s) <= maxTrace
}
