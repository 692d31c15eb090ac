package peers

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"time"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/federation/node"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// remote is another hub's agent, registered at this hub.
type remote struct {
	peers *Peers
	id    string // global
	local string // at this hub
	peer  string // its hub's name
	// durable agents are sessions: a task waits for them, over restarts of both hubs.
	durable bool

	mu        sync.Mutex
	card      agent.Card         // the last one
	offers    []agent.Capability // those of the last card of an available agent
	since     time.Time          // the card is missing since then; zero if it is not
	available bool               // at the last call of availabilityChanged
	keyed     bool               // requests may have keys, as the last card of an available agent says
}

// maxForeignText bounds a text of another hub, in bytes.
const maxForeignText = 4096

// update sets the card and returns the agent's definition if it has changed. An
// unavailable agent keeps its capabilities; its health says that it is unavailable.
func (r *remote) update(card agent.Card) (d runner.Definition, changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	card.LastSeenAt = 0
	if r.card.Equal(card) {
		return d, false
	}
	if !node.Unavailable(card) {
		r.offers, r.keyed = card.Capabilities, node.Keyed(card)
	}
	r.card = card
	return r.definition(), true
}

// definition returns the agent's definition at this hub. The caller holds r.mu.
func (r *remote) definition() runner.Definition {
	tier := r.card.Tier.Level()
	d := runner.Definition{
		ID: r.local, Name: r.card.Name + " at " + r.peer, Description: r.card.Description, Driver: runner.DriverPeer,
		Tier: &tier, Sandbox: r.card.SandboxID, Permissions: runner.PermissionsAsk, WorkDir: runner.WorkDirSpec{Policy: runner.WorkDirContext},
	}
	for _, c := range r.offers {
		d.Capabilities = append(d.Capabilities, runner.Capability{ID: c.ID, Name: c.Name, Description: c.Description})
	}
	if r.durable {
		d.Limits = runner.Limits{Run: sessionTime, Idle: sessionTime, Concurrency: sessionTasks, Queue: sessionQueue}
	}
	return d
}

// The limits for other hubs' sessions; those hubs have the same.
const (
	sessionTime  = 24 * time.Hour // how long a task waits for the answer unless its sender says less
	sessionTasks = 100
	sessionQueue = 1000
)

// residence returns what the card says of where the agent is.
func (r *remote) residence() hub.Residence {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok := node.SessionOf(r.card)
	if !ok {
		return hub.Residence{Kind: hub.KindPeer}
	}
	at := hub.Residence{Kind: hub.KindPeer, Type: s.Type, Vendor: s.Vendor, Project: s.Project, Folder: s.Folder, Computer: cmp.Or(s.Computer, r.peer), Offline: s.Offline}
	if runner.ValidID(strings.ToLower(s.Handle)) {
		at.Handle = s.Handle
	}
	return at
}

// missingFor returns for how long the agent's card has been missing.
func (r *remote) missingFor() time.Duration {
	_, here := r.peers.node.Registry().Identity(r.id)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case here:
		r.since = time.Time{}
		return 0
	case r.since.IsZero():
		r.since = time.Now()
	}
	return time.Since(r.since)
}

// availabilityChanged reports whether the agent has become available or unavailable since the last call.
func (r *remote) availabilityChanged() bool {
	card, err := r.peers.node.Registry().Get(r.id)
	at, _ := node.SessionOf(card)
	available := err == nil && !node.Unavailable(card) && !at.Offline
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.available
	r.available = available
	return available != before
}

// Probe implements [runner.Agent]: an agent is healthy if it has a card that does not say that it is unavailable.
func (r *remote) Probe(context.Context) runner.Probe {
	card, err := r.peers.node.Registry().Get(r.id)
	switch {
	case err != nil:
		return runner.Probe{Stage: runner.StageMissing, Err: &runner.Error{
			Code: runner.CodeNotInstalled, Message: "no messages from the hub " + r.peer, Remedy: "check that it runs and can be reached, and run `" + local.Program() + " doctor` at both"}}
	case node.Unavailable(card):
		return runner.Probe{Stage: runner.StageMissing, Version: card.Version, Err: &runner.Error{
			Code: runner.CodeNotInstalled, Message: "the hub " + r.peer + " reports that it is unavailable there", Remedy: "see its health at that hub"}}
	}
	if at, _ := node.SessionOf(card); at.Offline {
		return runner.Probe{Stage: runner.StageMissing, Version: card.Version, Err: &runner.Error{
			Code: runner.CodeNotInstalled, Message: "the session is offline", Remedy: "its tasks wait until it comes back at the hub " + r.peer}}
	}
	return runner.Probe{Stage: runner.StageAuthenticated, Version: card.Version, AuthKnown: true}
}

// Open implements [runner.Agent].
func (r *remote) Open(spec runner.SessionSpec) (runner.Session, error) {
	return &session{r: r, thread: spec.ContextID}, nil
}

// session is a conversation, held as a thread of envelopes.
type session struct {
	r      *remote
	thread string
	busy   sync.Mutex
}

// Close implements [runner.Session]. The other hub keeps the conversation.
func (s *session) Close(context.Context) error { return nil }

// Turn implements [runner.Session]. It sends a request to the agent and reads the stream of its answer.
func (s *session) Turn(ctx context.Context, turn runner.Turn, h runner.Handler) (runner.Outcome, error) {
	if !s.busy.TryLock() {
		return failed(runner.CodeBusy, "a turn is running already in this session", "")
	}
	defer s.busy.Unlock()
	prompt, perr := runner.PromptText(turn.Parts, runner.Limits{}.WithDefaults().MaxPrompt)
	if perr != nil {
		return runner.Outcome{Status: runner.OutcomeFailed, ExitCode: -1}, perr
	}
	x := &exchange{s: s, turn: turn, prompt: prompt, answer: answer{h: h}, began: time.Now()}
	return x.run(ctx)
}

func failed(code runner.Code, message, remedy string) (runner.Outcome, error) {
	return runner.Outcome{Status: runner.OutcomeFailed, ExitCode: -1}, &runner.Error{Code: code, Message: message, Remedy: remedy}
}

// sender is the identity by which this hub sends to other hubs' agents. There is one of
// each tier, since agents may always address those of their own tier.
type sender struct {
	id       string
	identity agent.Identity
	access   *parley.Agent

	mu      sync.Mutex
	waiting map[thread]chan *envelope.Envelope // for a turn; closed when no more will follow; see askAgain
}

type thread struct{ agent, id string }

// openSenders opens a sender for each tier that other hubs' agents may have here.
func (p *Peers) openSenders() error {
	for _, tier := range []agent.Tier{agent.L0, agent.L1, agent.L2, agent.L3} {
		if tier < p.o.PeerTier {
			continue
		}
		f := &sender{id: signedcard.ID("~hub-"+strings.ToLower(tier.String()), p.pair.Public()), waiting: make(map[thread]chan *envelope.Envelope)}
		card := agent.Card{
			ID: f.id, Name: "the hub", Version: "1", Tier: tier, Capabilities: []agent.Capability{}, Origin: agent.Local,
			Description: "sends for its own agents and users",
		}
		f.identity = card.Identity()
		var err error
		f.access, err = p.node.Join(card, f.deliver)
		if err != nil {
			return err
		}
		p.senders[tier] = f
	}
	return nil
}

func (p *Peers) sender(t agent.Tier) *sender {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.senders[t]
}

// subscribe returns the answers of an agent in a thread, until done is called.
func (f *sender) subscribe(agentID, id string) (<-chan *envelope.Envelope, func()) {
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
func (f *sender) deliver(_ context.Context, e *envelope.Envelope) {
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

// closeAnswers ends the turns that wait for an agent.
func (f *sender) closeAnswers(agentID string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for t, a := range f.waiting {
		if t.agent == agentID {
			delete(f.waiting, t)
			close(a)
		}
	}
}

// askAgain makes the turns that wait for an agent repeat their requests: nil stands for that among the answers. A full buffer
// has envelopes that ended the turn or will.
func (f *sender) askAgain(agentID string) {
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

// send sends to an agent in a thread, and returns the envelope's id. It does not wait for the delivery; if that fails, the
// channel closes.
func (f *sender) send(ctx context.Context, to, id string, kind envelope.Type, payload any, traceParent string) (string, error) {
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
