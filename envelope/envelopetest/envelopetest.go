// Package envelopetest generates envelopes and agent cards for property tests.
package envelopetest

import (
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
)

// Type generates one of the ten types.
func Type() *rapid.Generator[envelope.Type] { return rapid.SampledFrom(envelope.Types()) }

// Metadata generates metadata, or nil.
func Metadata() *rapid.Generator[*envelope.Metadata] {
	return rapid.Custom(func(t *rapid.T) *envelope.Metadata {
		if rapid.Bool().Draw(t, "absent") {
			return nil
		}
		return &envelope.Metadata{
			Tier:        Tier().Draw(t, "tier"),
			SandboxID:   rapid.SampledFrom([]string{"", "box-a", "käfig"}).Draw(t, "sandbox"),
			RoutingHint: rapid.SampledFrom([]envelope.RoutingHint{"", envelope.ByCapability}).Draw(t, "hint"),
			TraceParent: rapid.StringMatching(`(00-[0-9a-f]{32}-[0-9a-f]{16}-01)?`).Draw(t, "traceparent"),
			TraceState:  rapid.StringMatching(`(a=[a-z"\\]{1,5})?`).Draw(t, "tracestate"),
		}
	})
}

// Envelope generates a valid envelope.
func Envelope() *rapid.Generator[*envelope.Envelope] {
	return rapid.Custom(func(t *rapid.T) *envelope.Envelope {
		id := rapid.StringMatching(`[a-zA-Zä"\\/<&0-9-]{1,20}`)
		return &envelope.Envelope{
			ID:            id.Draw(t, "id"),
			SchemaVersion: envelope.SchemaVersion,
			Sender:        ID().Draw(t, "sender"),
			Recipient:     rapid.OneOf(ID(), rapid.Just(agent.Broadcast)).Draw(t, "recipient"),
			CorrelationID: rapid.OneOf(rapid.Just(""), id).Draw(t, "correlation"),
			Type:          Type().Draw(t, "type"),
			Timestamp:     rapid.Int64Range(1, 1<<52).Draw(t, "timestamp"),
			Payload:       JSON().Draw(t, "payload"),
			Metadata:      Metadata().Draw(t, "metadata"),
		}
	})
}
