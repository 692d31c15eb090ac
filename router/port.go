package router

import (
	"context"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/registry"
)

// Port is a registered agent's access to the router: it receives for the agent,
// and sends in its name and in no other. It is safe for concurrent use.
type Port struct {
	r    *Router
	id   string
	stop func()
}

// Attach returns a port for an agent that is registered here; h gets what arrives
// for it.
func (r *Router) Attach(agentID string, h Handler) (*Port, error) {
	if _, known := r.reg.Identity(agentID); !known {
		return nil, notFound(agentID)
	}
	return &Port{r: r, id: agentID, stop: r.OnReceive(agentID, h)}, nil
}

// ID returns the agent's id.
func (p *Port) ID() string { return p.id }

// factory makes envelopes that state what the agent's card says now.
func (p *Port) factory() (*envelope.Factory, error) {
	id, known := p.r.reg.Identity(p.id)
	if !known {
		return nil, errorf(CodeSenderUnknown, p.id, "the sender %q has no registered card", p.id)
	}
	return envelope.NewFactory(agent.Identity{ID: id.ID, Tier: id.Tier, SandboxID: id.SandboxID}), nil
}

// Send makes an envelope and routes it: to an agent, or to all with
// [envelope.Broadcast]. See [Router.Send].
func (p *Port) Send(ctx context.Context, to string, t envelope.Type, payload any) (Result, error) {
	return p.make(ctx, func(f *envelope.Factory) (*envelope.Envelope, error) { return f.New(to, t, payload) })
}

// SendToCapability makes an envelope for an agent with a capability and routes it.
func (p *Port) SendToCapability(ctx context.Context, capabilityID string, t envelope.Type, payload any) (Result, error) {
	return p.make(ctx, func(f *envelope.Factory) (*envelope.Envelope, error) {
		return f.NewForCapability(capabilityID, t, payload)
	})
}

// Reply answers an envelope, in its thread.
func (p *Port) Reply(ctx context.Context, e *envelope.Envelope, t envelope.Type, payload any) (Result, error) {
	return p.make(ctx, func(f *envelope.Factory) (*envelope.Envelope, error) { return f.Reply(e, t, payload) })
}

// SendEnvelope routes an envelope whose sender is the port's agent.
func (p *Port) SendEnvelope(ctx context.Context, e *envelope.Envelope) (Result, error) {
	if e.Sender != p.id {
		err := errorf(CodeSenderUnknown, e.Sender, "%q may not send in the name of %q", p.id, e.Sender)
		d := delivery{r: p.r, e: e, result: Result{TargetAgentID: e.Recipient}}
		d.refuse(agent.Identity{ID: e.Recipient}, err)
		return Result{TargetAgentID: e.Recipient, Error: err.Error()}, err
	}
	return p.r.Send(ctx, e)
}

func (p *Port) make(ctx context.Context, build func(*envelope.Factory) (*envelope.Envelope, error)) (Result, error) {
	f, err := p.factory()
	if err != nil {
		return Result{Error: err.Error()}, err
	}
	e, err := build(f)
	if err != nil {
		return Result{Error: err.Error()}, &Error{Code: CodeInvalidEnvelope, Message: err.Error(), Err: err}
	}
	return p.r.Send(ctx, e)
}

// Discover returns what the agent may see of the registry; see [Router.Discover].
func (p *Port) Discover() (*registry.View, error) { return p.r.Discover(p.id) }

// Close ends receiving for the agent. Its card stays registered.
func (p *Port) Close() { p.stop() }
