package exchange

import (
	"context"
	"sync"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/federation/node"
)

// Sender is an identity by which a hub sends to agents that are reached by envelopes. It is safe for concurrent use.
type Sender struct {
	identity agent.Identity
	access   *parley.Agent

	mu      sync.Mutex
	waiting map[thread]chan *envelope.Envelope // for a turn; closed when no more will follow; see AskAgain
}

// NewSender adds a sender with an id of its own to a node. Its agents of the tier, and those below, can answer it.
func NewSender(n *node.Node, id string, tier agent.Tier) (*Sender, error) {
	card := agent.Card{
		ID: id, Name: "the hub", Version: "1", Tier: tier, Capabilities: []agent.Capability{}, Origin: agent.Local,
		Description: "sends for its own agents and users",
	}
	f := &Sender{identity: card.Identity(), waiting: make(map[thread]chan *envelope.Envelope)}
	var err error
	f.access, err = n.Join(card, f.deliver)
	return f, err
}

// ID returns the sender's id.
func (f *Sender) ID() string { return f.identity.ID }

type thread struct{ agent, id string }

// Subscribe returns the answers of an agent in a thread, until done is called.
func (f *Sender) Subscribe(agentID, id string) (<-chan *envelope.Envelope, func()) {
	t, a := thread{agentID, id}, make(chan *envelope.Envelope, maxAnswers)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting[t] = a
	return a, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.waiting[t] == a {
			delete(f.waiting, t)
		}
	}
}

// deliver passes an answer to the turn that waits for it. It closes a full buffer, since
// the router must not wait for a slow turn.
func (f *Sender) deliver(_ context.Context, e *envelope.Envelope) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := thread{e.Sender, e.CorrelationID}
	a, ok := f.waiting[t]
	if !ok {
		return
	}
	select {
	case a <- e:
	default:
		delete(f.waiting, t)
		close(a)
	}
}

// CloseAnswers ends the turns that wait for an agent.
func (f *Sender) CloseAnswers(agentID string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for t, a := range f.waiting {
		if t.agent == agentID {
			delete(f.waiting, t)
			close(a)
		}
	}
}

// AskAgain makes the turns that wait for an agent repeat their requests: nil stands for that among the answers. A full buffer
// has envelopes that ended the turn or will.
func (f *Sender) AskAgain(agentID string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for t, a := range f.waiting {
		if t.agent != agentID {
			continue
		}
		select {
		case a <- nil:
		default:
		}
	}
}

// Send sends to an agent in a thread, and returns the envelope's id. It does not wait for the delivery; if that fails, the
// channel closes.
func (f *Sender) Send(ctx context.Context, to, id string, kind envelope.Type, payload any, traceParent string) (string, error) {
	e, err := envelope.NewFactory(f.identity).NewInThread(id, to, kind, payload)
	if err != nil {
		return "", err
	}
	if e.Metadata != nil {
		e.Metadata.TraceParent = traceParent
	}
	_, err = f.access.SendEnvelope(ctx, e)
	return e.ID, err
}
