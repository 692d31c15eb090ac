package envelope

import (
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/internal/base/clock"
)

// Factory makes the envelopes of one sender, with its tier and sandbox in the
// metadata. It is safe for concurrent use.
type Factory struct {
	sender string
	now    func() int64 // Unix time in milliseconds

	plain, byCapability *Metadata // shared by all its envelopes
}

// NewFactory returns a factory for the agent with this identity.
func NewFactory(sender agent.Identity) *Factory {
	m := Metadata{Tier: sender.Tier, SandboxID: sender.SandboxID}
	hinted := m
	hinted.RoutingHint = ByCapability
	return &Factory{sender: sender.ID, now: clock.UnixMilli, plain: &m, byCapability: &hinted}
}

// WithClock returns a factory that uses another clock.
func (f *Factory) WithClock(now func() time.Time) *Factory {
	g := *f
	g.now = func() int64 { return now().UnixMilli() }
	return &g
}

// New makes an envelope for one agent, or for all with [Broadcast]; see the function [New].
func (f *Factory) New(recipient string, t Type, payload any) (*Envelope, error) {
	return build(f.now(), f.sender, recipient, t, payload, "", f.plain)
}

// NewInThread is New with a correlation id.
func (f *Factory) NewInThread(correlationID, recipient string, t Type, payload any) (*Envelope, error) {
	return build(f.now(), f.sender, recipient, t, payload, correlationID, f.plain)
}

// NewForCapability makes an envelope for an agent that has a capability.
func (f *Factory) NewForCapability(capabilityID string, t Type, payload any) (*Envelope, error) {
	return build(f.now(), f.sender, capabilityID, t, payload, "", f.byCapability)
}

// Reply makes an answer to e, in e's thread and trace.
func (f *Factory) Reply(e *Envelope, t Type, payload any) (*Envelope, error) {
	if e == nil {
		return nil, invalid("", "there is no envelope to reply to: it is nil")
	}
	m := f.plain
	if e.Metadata != nil && e.Metadata.TraceParent != "" {
		traced := *m
		traced.TraceParent, traced.TraceState = e.Metadata.TraceParent, e.Metadata.TraceState
		m = &traced
	}
	return build(f.now(), f.sender, e.Sender, t, payload, e.Thread(), m)
}
