package peers

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/federation/exchange"
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
		return hub.Residence{Kind: hub.KindPeer, Hub: r.peer}
	}
	at := hub.Residence{Kind: hub.KindPeer, Hub: r.peer, Type: s.Type, Vendor: s.Vendor, Project: s.Project, Folder: s.Folder, Computer: cmp.Or(s.Computer, r.peer), Offline: s.Offline}
	if runner.ValidID(strings.ToLower(s.Handle)) {
		at.Handle = s.Handle
	}
	return at
}

// missingFor returns for how long the agent's card has been missing, and whether it is since the last call that it is missing, or is not.
func (r *remote) missingFor() (missing time.Duration, changed bool) {
	_, here := r.peers.node.Registry().Identity(r.id)
	r.mu.Lock()
	defer r.mu.Unlock()
	changed = r.since.IsZero() != here
	switch {
	case here:
		r.since = time.Time{}
		return 0, changed
	case r.since.IsZero():
		r.since = time.Now()
	}
	return time.Since(r.since), changed
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
			Code: runner.CodeNotInstalled, Message: "it is offline there", Remedy: "its tasks wait until it comes back at the hub " + r.peer}}
	}
	return runner.Probe{Stage: runner.StageAuthenticated, Version: card.Version, AuthKnown: true}
}

// Open implements [runner.Agent].
func (r *remote) Open(spec runner.SessionSpec) (runner.Session, error) {
	return r.route().Open(spec.ContextID), nil
}

// route returns the way to the agent.
func (r *remote) route() *exchange.Route {
	return &exchange.Route{
		Agent: r.id, At: r.peer, Durable: r.durable, Hub: r.peers.o.Hub, Contact: r.contact, Sender: r.peers.sender, Chain: r.peers.globalIDs,
		Abandon: r.abandon,
	}
}

// abandon cancels a turn at the other hub, also when that cannot be reached now.
func (r *remote) abandon(task string, turn int) {
	r.peers.withdraw(withdrawal{Agent: r.id, Task: task, Turn: turn, Until: time.Now().Add(sessionTime).UTC().Round(0)})
}

// Withdraw implements [runner.Withdrawer]. The other hub may know the turn from an earlier run of this one, or waits for the
// answer to its question.
func (r *remote) Withdraw(_ context.Context, task string, turn int) {
	if r.contact().Keyed {
		r.abandon(task, turn)
	}
}

// contact returns how to ask the agent now. A durable agent is asked with keys only.
func (r *remote) contact() exchange.Contact {
	card, err := r.peers.node.Registry().Get(r.id)
	r.mu.Lock()
	defer r.mu.Unlock()
	c := exchange.Contact{Tier: r.card.Tier, Keyed: r.keyed, Ready: err == nil}
	if r.durable {
		c.Keyed, c.Ready = true, err == nil && node.Keyed(card)
	}
	return c
}

// senderPrefix begins the names of the senders; runSender is the one that each hub has, whose card is asked for the hub's run.
// The sequences of statements make the cards of one agent come in their order.
const (
	senderPrefix = "~hub-"
	runSender    = senderPrefix + "l3"
)

// openSenders opens a sender for each tier that other hubs' agents may have here.
func (p *Peers) openSenders() error {
	for _, tier := range []agent.Tier{agent.L0, agent.L1, agent.L2, agent.L3} {
		if tier < p.o.PeerTier {
			continue
		}
		f, err := exchange.NewSender(p.node, signedcard.ID(senderPrefix+strings.ToLower(tier.String()), p.pair.Public()), tier)
		if err != nil {
			return err
		}
		p.senders[tier] = f
	}
	return nil
}

func (p *Peers) sender(t agent.Tier) *exchange.Sender {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.senders[t]
}
