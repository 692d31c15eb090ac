package envelope

import (
	"fmt"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/internal/base/fault"
)

// Code is the kind of an [Error].
type Code string

// The codes of an [Error].
const (
	CodeInvalidEnvelope Code = "INVALID_ENVELOPE"        // missing or wrong fields, or invalid JSON
	CodeSchemaVersion   Code = "SCHEMA_VERSION_MISMATCH" // an unsupported version
	CodeTooLarge        Code = "ENVELOPE_TOO_LARGE"      // more bytes than the codec allows
)

// Error is what the package returns. Its fields are Code, Subject (the envelope's id, empty if it is not known),
// Message (with every problem), and Err (the cause, may be nil: [agent.Problems] of missing or wrong fields, a
// [*VersionError] for CodeSchemaVersion).
type Error = fault.UserError[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }

func invalid(id, message string) *Error {
	return &Error{Code: CodeInvalidEnvelope, Subject: id, Message: message}
}

func tooLarge(id string, size, limit int) *Error {
	return &Error{Code: CodeTooLarge, Subject: id,
		Message: fmt.Sprintf("the envelope has %d bytes; at most %d are allowed", size, limit)}
}

// VersionError is the cause of an [Error] with CodeSchemaVersion.
type VersionError struct{ Want, Got int } // the version that this program reads, and the envelope's

// Error returns both versions.
func (e *VersionError) Error() string {
	return fmt.Sprintf("the envelope has schema version %d; this program reads version %d", e.Got, e.Want)
}

func versionMismatch(got, want int) *Error {
	cause := &VersionError{Want: want, Got: got}
	return &Error{Code: CodeSchemaVersion, Message: cause.Error(), Err: cause}
}

var notOpaque = fmt.Sprintf("is longer than %d bytes, has control characters or is not UTF-8", maxOpaque)

// explain returns the error for an envelope that is not valid.
func (e *Envelope) explain() error {
	var problems agent.Problems
	add := func(field, reason string, missing bool) {
		problems = append(problems, agent.Problem{Field: field, Reason: reason, Missing: missing})
	}
	checkID := func(field, id string) {
		if err := agent.CheckID(id); err != nil {
			add(field, err.Error(), id == "")
		}
	}
	switch {
	case e.ID == "":
		add("id", "is missing", true)
	case !opaque(e.ID):
		add("id", notOpaque, false)
	}
	switch {
	case e.SchemaVersion == 0:
		add("schemaVersion", "is missing", true)
	case e.SchemaVersion != SchemaVersion:
		add("schemaVersion", fmt.Sprintf("is %d, not %d", e.SchemaVersion, SchemaVersion), false)
	}
	checkID("sender", e.Sender)
	if e.Recipient != Broadcast {
		checkID("recipient", e.Recipient)
	}
	if !opaque(e.CorrelationID) {
		add("correlationId", notOpaque, false)
	}
	switch {
	case e.Type == "":
		add("type", "is missing", true)
	case !e.Type.Valid():
		add("type", fmt.Sprintf("%.40q is not one of the ten message types", string(e.Type)), false)
	}
	switch {
	case e.Timestamp == 0:
		add("timestamp", "is missing", true)
	case e.Timestamp < 0:
		add("timestamp", "is negative", false)
	}
	switch {
	case len(e.Payload) == 0:
		add("payload", "is missing", true)
	case !validPayload(e.Payload):
		add("payload", fmt.Sprintf("is not JSON, or nests more than %d deep", maxDepth), false)
	}
	if m := e.Metadata; m != nil {
		switch {
		case m.Tier == agent.NoTier:
			add("metadata.tier", "is missing", true)
		case !m.Tier.Valid():
			add("metadata.tier", "is not one of 0, 1, 2, 3", false)
		}
		if m.SandboxID != "" {
			checkID("metadata.sandboxId", m.SandboxID)
		}
		if m.RoutingHint != "" && m.RoutingHint != ByCapability {
			add("metadata.routingHint", "is not \"capability\"", false)
		}
		if !printable(m.TraceParent) {
			add("metadata.traceparent", "is not a trace context", false)
		}
		if !printable(m.TraceState) {
			add("metadata.tracestate", "is not a trace state", false)
		}
	}
	return &Error{Code: CodeInvalidEnvelope, Subject: e.ID, Message: "the envelope is not valid: " + problems.Error(), Err: problems}
}
