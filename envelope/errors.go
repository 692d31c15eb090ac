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
	check := func(field string, missing, valid bool, reason string) {
		switch {
		case missing:
			add(field, "is missing", true)
		case !valid:
			add(field, reason, false)
		}
	}
	check("id", e.ID == "", opaque(e.ID), notOpaque)
	check("schemaVersion", e.SchemaVersion == 0, e.SchemaVersion == SchemaVersion, fmt.Sprintf("is %d, not %d", e.SchemaVersion, SchemaVersion))
	checkID("sender", e.Sender)
	if e.Recipient != Broadcast {
		checkID("recipient", e.Recipient)
	}
	check("correlationId", false, opaque(e.CorrelationID), notOpaque)
	check("type", e.Type == "", e.Type.Valid(), fmt.Sprintf("%.40q is not one of the ten message types", string(e.Type)))
	check("timestamp", e.Timestamp == 0, e.Timestamp > 0, "is negative")
	check("payload", len(e.Payload) == 0, validPayload(e.Payload), fmt.Sprintf("is not JSON, or nests more than %d deep", maxDepth))
	if m := e.Metadata; m != nil {
		check("metadata.tier", m.Tier == agent.NoTier, m.Tier.Valid(), "is not one of 0, 1, 2, 3")
		if m.SandboxID != "" {
			checkID("metadata.sandboxId", m.SandboxID)
		}
		check("metadata.routingHint", false, m.RoutingHint == "" || m.RoutingHint == ByCapability, "is not \"capability\"")
		check("metadata.traceparent", false, printable(m.TraceParent), "is not a trace context")
		check("metadata.tracestate", false, printable(m.TraceState), "is not a trace state")
	}
	return &Error{Code: CodeInvalidEnvelope, Subject: e.ID, Message: "the envelope is not valid: " + problems.Error(), Err: problems}
}
