// Package registry keeps the cards of agents: local ones, which register, and remote
// ones, which discovery sources find.
//
// Lookups by id and by capability take constant time. Cards are copied when they are
// stored and returned. Remote cards expire unless their source sees them again.
// [Registry.Watch] reports changes; [Registry.EnableDiscovery] adds a [Source].
package registry

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/internal/base/defaults"
	"github.com/parleyhub/parley/internal/base/fault"
)

// Defaults of [Options].
const (
	DefaultRemoteTTL = 2 * time.Minute
	DefaultMaxCards  = 1_000_000
)

// Options set up a Registry. The zero Options are valid.
type Options struct {
	// RemoteTTL is how long a remote card stays after it was last seen, give or take a
	// quarter; 0 means DefaultRemoteTTL, less than 0 for ever.
	RemoteTTL time.Duration
	// MaxCards bounds the cards, local and remote together; 0 means DefaultMaxCards.
	MaxCards int
	// Tiers returns the tier that the agent with an id must have, local or remote, and NoTier for any other agent:
	// cards with another tier are refused. With [agent.PlanetaryTier] the planetary agents have those of the
	// specification; a function of the operator's may make exceptions. A panic refuses the card. Nil leaves every tier
	// to the card.
	Tiers func(id string) agent.Tier
	// Announced returns the card that the sources announce for a local one, for instance with the endpoints of the
	// program; nil: the card as it is. It must not block.
	Announced func(agent.Card) agent.Card
	// OnError is called when a discovery source fails or panics, before the registry retries, and when Tiers panics, with
	// its name as the source. It must not block.
	OnError func(source string, err error)
}

// Registry keeps cards. Make one with [New] and [Registry.Close] it in the end. It is
// safe for concurrent use; only Resolve, DisableDiscovery and Close block.
type Registry struct {
	ttl     time.Duration
	max     int
	tiers   func(id string) agent.Tier
	onError func(string, error)
	present func(agent.Card) agent.Card // for the sources

	mu       sync.RWMutex
	last     schemas // that were stored last
	byID     map[string]*entry
	byCap    map[string]*index
	byTier   [4]index
	all      index
	lastSeq  uint64
	remote   int         // entries that can expire
	expiry   *time.Timer // runs while there are any
	watchers map[*Watcher]struct{}
	closed   bool

	discovery discovery
}

// entry is one card. The card is never changed, only replaced.
type entry struct {
	card   agent.Card
	seq    uint64 // order of registration; an update keeps it
	source string // of a remote card; "" means none
	seen   time.Time
	held   bool // does not expire
}

// index is a set of entries with a sorted summary, which is rebuilt on demand.
type index struct {
	members map[string]*entry
	sorted  []agent.Identity // nil: stale
	like    schemas          // of a capability, in the card that was the first to have it
}

func (x *index) put(e *entry) {
	if x.members == nil {
		x.members = make(map[string]*entry)
	}
	old := x.members[e.card.ID]
	x.members[e.card.ID] = e
	if old == nil || old.card.Identity() != e.card.Identity() {
		x.sorted = nil
	}
}

func (x *index) remove(id string) {
	delete(x.members, id)
	x.sorted = nil
}

func (x *index) entries() []*entry {
	return slices.SortedFunc(maps.Values(x.members), func(a, b *entry) int { return cmp.Compare(a.seq, b.seq) })
}

func (x *index) identities() []agent.Identity {
	if x.sorted == nil {
		list := make([]agent.Identity, 0, len(x.members))
		for _, e := range x.entries() {
			list = append(list, e.card.Identity())
		}
		x.sorted = list
	}
	return x.sorted
}

// New returns an empty registry.
func New(o Options) *Registry {
	r := &Registry{
		ttl: cmp.Or(o.RemoteTTL, DefaultRemoteTTL), max: defaults.Or(o.MaxCards, DefaultMaxCards), tiers: o.Tiers, onError: o.OnError, present: o.Announced,
		byID: make(map[string]*entry), byCap: make(map[string]*index), watchers: make(map[*Watcher]struct{}),
	}
	if r.present == nil {
		r.present = func(card agent.Card) agent.Card { return card }
	}
	if r.onError == nil {
		r.onError = func(string, error) {}
	}
	return r
}

// Register stores a card and returns it as stored. An invalid card is refused with [CodeInvalidCard], which wraps
// the [*agent.Error] that names each missing field. A card with a known id replaces that card and gets its revision
// plus one, up to [agent.MaxRevision]; a new card keeps its revision. Without an origin it is local, without LastSeenAt it is seen now.
func (r *Registry) Register(card agent.Card) (agent.Card, error) {
	return r.store(card, func(old *entry) (*entry, error) {
		if card.Origin == "" {
			card.Origin = agent.Local
		}
		if old != nil {
			card.Revision = min(old.card.Revision+1, agent.MaxRevision)
		}
		return &entry{card: card}, nil
	})
}

// RegisterSandboxed is Register for an agent in a sandbox: it sets the card's SandboxID.
func (r *Registry) RegisterSandboxed(card agent.Card, sandboxID string) (agent.Card, error) {
	card.SandboxID = sandboxID
	return r.Register(card)
}

// Merge stores a card that a source found. Its origin becomes remote, the rest stays as it is, including the
// revision. Merge refuses the id of a local agent and of one that another source holds with [CodeConflict], so that
// a peer cannot impersonate an agent. Merging the same card again keeps it from expiring.
func (r *Registry) Merge(card agent.Card, source string) (agent.Card, error) {
	return r.merge(card, source, false)
}

func (r *Registry) merge(card agent.Card, source string, held bool) (agent.Card, error) {
	return r.store(card, func(old *entry) (*entry, error) {
		switch {
		case old == nil:
		case old.card.Origin == agent.Local:
			return nil, conflict(card.ID, "a local agent has this id")
		case old.source != "" && old.source != source:
			return nil, conflict(card.ID, "discovery source "+old.source+" holds this agent")
		}
		card.Origin = agent.Remote
		return &entry{card: card, source: source, held: held}, nil
	})
}

// Hold is Merge for a card that does not expire: its source calls [Registry.Lost].
func (r *Registry) Hold(card agent.Card, source string) (agent.Card, error) {
	return r.merge(card, source, true)
}

// store validates the card and stores the entry that build makes under the lock.
func (r *Registry) store(card agent.Card, build func(old *entry) (*entry, error)) (agent.Card, error) {
	if err := card.Validate(); err != nil {
		return agent.Card{}, &Error{Code: CodeInvalidCard, Subject: card.ID, Message: err.Error(), Err: err}
	}
	if r.tiers != nil {
		want := agent.NoTier
		if p := fault.Catch(func() { want = r.tiers(card.ID) }); p != nil {
			r.onError("Options.Tiers", p)
			return agent.Card{}, &Error{Code: CodeWrongTier, Subject: card.ID, Message: fmt.Sprintf("the tier of %q cannot be decided at the moment", card.ID)}
		}
		if want != agent.NoTier && card.Tier != want {
			return agent.Card{}, wrongTier(&card, want)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return agent.Card{}, errClosed
	}
	old := r.byID[card.ID]
	e, err := build(old)
	if err != nil {
		return agent.Card{}, err
	}
	if old == nil && len(r.byID) >= r.max {
		return agent.Card{}, full(card.ID, r.max)
	}
	e.card = e.card.Clone()
	r.shareSchemas(e.card.Capabilities)
	e.seen = time.Now()
	if e.card.LastSeenAt == 0 {
		e.card.LastSeenAt = e.seen.UnixMilli()
	}
	r.put(old, e)
	return e.card.Clone(), nil
}

// schemas are those of a capability.
type schemas struct{ input, output json.RawMessage }

// replaceEqual replaces the schemas of a capability by equal ones.
func (s schemas) replaceEqual(c *agent.Capability) {
	if bytes.Equal(c.InputSchema, s.input) {
		c.InputSchema = s.input
	}
	if bytes.Equal(c.OutputSchema, s.output) {
		c.OutputSchema = s.output
	}
}

// shareSchemas replaces the schemas of a new card's capabilities by equal ones of the cards that are stored: those of one kind repeat them.
// mu is held.
func (r *Registry) shareSchemas(capabilities []agent.Capability) {
	for i := range capabilities {
		c := &capabilities[i]
		r.last.replaceEqual(c)
		if x := r.byCap[c.ID]; x != nil {
			x.like.replaceEqual(c)
		}
		r.last = schemas{c.InputSchema, c.OutputSchema}
	}
}

// put replaces old, which may be nil, by e in all indexes and notifies the watchers.
func (r *Registry) put(old, e *entry) {
	kind := Added
	if old == nil {
		r.lastSeq++
		e.seq = r.lastSeq
	} else {
		kind = Updated
		e.seq = old.seq
		r.unindex(old, &e.card)
	}
	r.byID[e.card.ID] = e
	r.all.put(e)
	r.byTier[e.card.Tier.Level()].put(e)
	for _, c := range e.card.Capabilities {
		x := r.byCap[c.ID]
		if x == nil {
			x = &index{like: schemas{c.InputSchema, c.OutputSchema}}
			r.byCap[c.ID] = x
		}
		x.put(e)
	}
	if e.card.Origin == agent.Remote {
		r.remote++
		r.watchExpiry()
	}
	if old != nil {
		before := old.card
		before.LastSeenAt = e.card.LastSeenAt
		if before.Equal(e.card) {
			return // only seen again
		}
	}
	r.notify(Change{Kind: kind, Card: e.card})
}

// unindex removes e from the indexes that next, the card that replaces it, is not in.
func (r *Registry) unindex(e *entry, next *agent.Card) {
	id := e.card.ID
	if next.Tier != e.card.Tier {
		r.byTier[e.card.Tier.Level()].remove(id)
	}
	for _, c := range e.card.Capabilities {
		if next.Has(c.ID) {
			continue
		}
		x := r.byCap[c.ID]
		if x.remove(id); len(x.members) == 0 {
			delete(r.byCap, c.ID)
		}
	}
	if e.card.Origin == agent.Remote {
		r.remote--
	}
}

func (r *Registry) remove(e *entry) {
	r.unindex(e, &agent.Card{})
	r.all.remove(e.card.ID)
	delete(r.byID, e.card.ID)
	r.notify(Change{Kind: Removed, Card: e.card})
}

// Unregister removes a card, local or remote, and reports whether it was there.
func (r *Registry) Unregister(id string) bool {
	return r.removeIf(id, func(*entry) bool { return true })
}

// Lost removes a remote card that source merged, and reports whether it did.
func (r *Registry) Lost(id, source string) bool {
	return r.removeIf(id, func(e *entry) bool { return e.card.Origin == agent.Remote && e.source == source })
}

func (r *Registry) removeIf(id string, condition func(*entry) bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.byID[id]
	if e == nil || !condition(e) {
		return false
	}
	r.remove(e)
	return true
}

// LostAll removes every card that source merged.
func (r *Registry) LostAll(source string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.all.entries() {
		if e.card.Origin == agent.Remote && e.source == source {
			r.remove(e)
		}
	}
}

// watchExpiry starts the timer of remote cards unless it runs.
func (r *Registry) watchExpiry() {
	if r.ttl > 0 && r.expiry == nil {
		r.expiry = time.AfterFunc(max(r.ttl/4, time.Millisecond), r.expire)
	}
}

// expire removes remote cards that were last seen too long ago.
func (r *Registry) expire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expiry = nil
	if r.closed {
		return
	}
	for _, e := range r.byID {
		if e.card.Origin == agent.Remote && !e.held && time.Since(e.seen) >= r.ttl {
			r.remove(e)
		}
	}
	if r.remote > 0 {
		r.watchExpiry()
	}
}

// Get returns the card of an agent, or [CodeAgentNotFound].
func (r *Registry) Get(id string) (agent.Card, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	e := r.byID[id]
	if e == nil {
		return agent.Card{}, notFound(id)
	}
	return e.card.Clone(), nil
}

// Identity returns the identity of an agent's card. It does not allocate.
func (r *Registry) Identity(id string) (agent.Identity, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	e := r.byID[id]
	if e == nil {
		return agent.Identity{}, false
	}
	return e.card.Identity(), true
}

// Holds reports whether a card is registered that is equal but for what the registry sets. It does not allocate.
func (r *Registry) Holds(card agent.Card) bool {
	r.mu.RLock()
	e := r.byID[card.ID]
	r.mu.RUnlock()
	if e == nil {
		return false
	}
	card.Origin, card.Revision, card.LastSeenAt = e.card.Origin, e.card.Revision, e.card.LastSeenAt
	return e.card.Equal(card)
}

// Source returns the discovery source that holds a remote card, "" without one.
func (r *Registry) Source(id string) string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if e := r.byID[id]; e != nil {
		return e.source
	}
	return ""
}

// FindByCapability returns the cards that declare a capability, in order of registration.
func (r *Registry) FindByCapability(id string) []agent.Card {
	return r.cards(r.capable(id), nil)
}

func (r *Registry) capable(id string) func() *index { return func() *index { return r.byCap[id] } }

// FindByTier returns the cards of a tier, in order of registration.
func (r *Registry) FindByTier(t agent.Tier) []agent.Card {
	return r.cards(func() *index {
		if !t.Valid() {
			return nil
		}
		return &r.byTier[t.Level()]
	}, nil)
}

// All returns every card, in order of registration.
func (r *Registry) All() []agent.Card { return r.cards(r.every, nil) }

// Local returns the cards that were registered here.
func (r *Registry) Local() []agent.Card { return r.cards(r.every, fromHere) }

// Remote returns the cards that were discovered elsewhere.
func (r *Registry) Remote() []agent.Card { return r.cards(r.every, fromElsewhere) }

func (r *Registry) every() *index { return &r.all }

func fromHere(id agent.Identity) bool      { return id.Origin == agent.Local }
func fromElsewhere(id agent.Identity) bool { return id.Origin == agent.Remote }

// cards copies the cards of an index that keep selects; nil selects all.
func (r *Registry) cards(of func() *index, keep func(agent.Identity) bool) []agent.Card {
	r.mu.RLock()
	var entries []*entry
	if x := of(); x != nil {
		entries = x.entries()
	}
	r.mu.RUnlock() // entries do not change: copying them needs no lock
	var cards []agent.Card
	for _, e := range entries {
		if keep == nil || keep(e.card.Identity()) {
			cards = append(cards, e.card.Clone())
		}
	}
	return cards
}

// Capable returns the identities of the agents with a capability, in order of
// registration. The slice is shared and cached: do not change it.
func (r *Registry) Capable(capabilityID string) []agent.Identity {
	return r.identities(r.capable(capabilityID))
}

// Identities returns the identities of all agents like [Registry.Capable].
func (r *Registry) Identities() []agent.Identity { return r.identities(r.every) }

func (r *Registry) identities(of func() *index) []agent.Identity {
	r.mu.RLock()
	x := of()
	if x == nil {
		r.mu.RUnlock()
		return nil
	}
	sorted := x.sorted
	r.mu.RUnlock()
	if sorted != nil {
		return sorted
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if x = of(); x == nil {
		return nil
	}
	return x.identities()
}

// Len returns the number of cards.
func (r *Registry) Len() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.byID)
}

// Close ends discovery, expiry and every watcher. The cards remain readable. It is safe to call more than once.
func (r *Registry) Close() error {
	r.discovery.close(r)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.expiry != nil {
		r.expiry.Stop()
		r.expiry = nil
	}
	for w := range r.watchers {
		w.end()
	}
	clear(r.watchers)
	return nil
}

// View is the part of a registry that one agent may see. Make one with [Registry.View].
type View struct {
	r     *Registry
	allow func(agent.Identity) bool
}

// View returns a view of the cards that allow accepts. allow is called without a lock, from many goroutines.
func (r *Registry) View(allow func(agent.Identity) bool) *View { return &View{r, allow} }

// Get returns a card, or [CodeAgentNotFound] for one that does not exist or is not visible.
func (v *View) Get(id string) (agent.Card, error) {
	card, err := v.r.Get(id)
	if err != nil || !v.allow(card.Identity()) {
		return agent.Card{}, notFound(id)
	}
	return card, nil
}

// FindByCapability is [Registry.FindByCapability] within the view.
func (v *View) FindByCapability(id string) []agent.Card {
	return v.r.cards(func() *index { return v.r.byCap[id] }, v.allow)
}

// FindByTier is [Registry.FindByTier] within the view.
func (v *View) FindByTier(t agent.Tier) []agent.Card {
	return slices.DeleteFunc(v.r.FindByTier(t), func(c agent.Card) bool { return !v.allow(c.Identity()) })
}

// All is [Registry.All] within the view.
func (v *View) All() []agent.Card { return v.r.cards(v.r.every, v.allow) }
