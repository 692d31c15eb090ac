package router

import (
	"context"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/registry"
)

// Port is a registered agent's access to the router: it receives and sends as this
// agent only. It is safe for concurrent use.
type Port struct {
	r    *Router
	id   string
	stop func()
}

// Attach returns a port for a registered agent; h handles its envelopes. Errors are [*Error]s.
func (r *Router) Attach(agentID string, h Handler) (*Port, error) {
	if h == nil {
		return nil, noHandler(agentID)
	}
	if _, known := r.reg.Identity(agentID); !known {
		return nil, notFound(agentID)
	}
	return &Port{r: r, id: agentID, stop: r.OnReceive(agentID, h)}, nil
}

// ID returns the agent's id.
func (p *Port) ID() string { return p.id }

// Send makes an envelope and routes it: to an agent, or to all with [envelope.Broadcast]. See [Router.Send].
func (p *Port) Send(ctx context.Context, to string, t envelope.Type, payload any) (Result, error) {
	return p.send(ctx, func(f *envelope.Factory) (*envelope.Envelope, error) { return f.New(to, t, payload) })
}

// SendToCapability makes an envelope for an agent with a capability and routes it.
func (p *Port) SendToCapability(ctx context.Context, capabilityID string, t envelope.Type, payload any) (Result, error) {
	return p.send(ctx, func(f *envelope.Factory) (*envelope.Envelope, error) {
		return f.NewForCapability(capabilityID, t, payload)
	})
}

// Reply answers an envelope, in its thread.
func (p *Port) Reply(ctx context.Context, e *envelope.Envelope, t envelope.Type, payload any) (Result, error) {
	if e == nil {
		return p.r.nothing()
	}
	return p.send(ctx, func(f *envelope.Factory) (*envelope.Envelope, error) { return f.Reply(e, t, payload) })
}

// SendEnvelope routes an envelope whose sender is the port's agent.
func (p *Port) SendEnvelope(ctx context.Context, e *envelope.Envelope) (Result, error) {
	if e == nil {
		return p.r.nothing()
	}
	if e.Sender != p.id {
		err := errorf(CodeSenderUnknown, e.Sender, "%q may not send as %q", p.id, e.Sender)
		d := delivery{r: p.r, e: e, result: Result{TargetAgentID: e.Recipient}}
		d.refuse(agent.Identity{ID: e.Recipient}, err)
		return Result{TargetAgentID: e.Recipient, Error: err.Error()}, err
	}
	return p.r.Send(ctx, e)
}

// send routes an envelope with the metadata of the agent's present card.
func (p *Port) send(ctx context.Context, build func(*envelope.Factory) (*envelope.Envelope, error)) (Result, error) {
	id, known := p.r.reg.Identity(p.id)
	if !known {
		err := senderUnknown(p.id)
		return Result{Error: err.Error()}, err
	}
	e, err := build(envelope.NewFactory(id))
	if err != nil {
		invalid := &Error{Code: CodeInvalidEnvelope, Message: "the envelope cannot be made", Err: err}
		return Result{Error: invalid.Error()}, invalid
	}
	return p.r.Send(ctx, e)
}

// Discover returns the agent's view of the registry; see [Router.Discover].
func (p *Port) Discover() (*registry.View, error) { return p.r.Discover(p.id) }

// Close ends receiving for the agent. Its card stays registered.
func (p *Port) Close() { p.stop() }
