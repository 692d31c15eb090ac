// Package hyperswarm lets hubs discover each other's agents over Hyperswarm, without a server. A [Source] keeps
// connected to each hub that is named or found under the network's topics, and both ends exchange signed statements
// about their agents; package signedcard says which are accepted.
//
// Connections are encrypted and authenticate both keys. Each end sends [Greeting], then a statement for each agent
// and for each change, and "." when it has sent nothing for five seconds. A message that is too large, or 15 seconds
// of silence, ends the connection; the swarm connects again.
package hyperswarm

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/hyperswarm/swarm"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/registry"
)

// Greeting is the first message of each end.
const Greeting = "parley cards 1"

const (
	heartbeat    = "."
	interval     = 5 * time.Second // between heartbeats
	timeout      = 3 * interval    // without a message, the connection ends
	flushTimeout = 2 * time.Second // for the withdrawals when the source stops
	findTimeout  = time.Second
	lookupPause  = 2 * time.Second // between two lookups on average
	lookupBurst  = 4
	maxTopics    = 64 // of our agents' capabilities; others are not announced
	maxLookedUp  = 4  // topics of looked up capabilities; the oldest is left
)

// Source is a [registry.Source], [registry.Announcer] and [registry.Finder]. Set the fields before the first use; it
// is then safe for concurrent use. One Source serves one registry.
type Source struct {
	// Swarm makes the connections. It must allow only keys that Ledger trusts, and
	// nothing else may accept from it. The caller closes it after the registry.
	Swarm *swarm.Swarm
	// Ledger signs and checks the statements.
	Ledger *signedcard.Ledger
	// Network is a secret that hubs share to find each other without naming each other: they meet under a topic
	// derived from it, see [Topic]. It grants no access. Empty means no topic.
	Network string
	// Capabilities adds a topic in the network for each capability of the hub's agents, and looks up the topics of
	// unknown capabilities: for networks with more hubs than one connects to.
	Capabilities bool
	// Logger gets ended connections and failed announcements; nil discards them.
	Logger *slog.Logger

	once    sync.Once
	log     *slog.Logger
	lookups *rate.Limiter
	changed chan struct{} // buffers one change of our agents' capabilities

	mu        sync.Mutex
	kept      map[identity.PublicKey]bool // see KeepConnected
	announced map[string]struct{}         // agents, until their withdrawal is sent
	links     map[*link]struct{}
	topics    map[string]*swarm.Topic // of our agents' capabilities
	lookedUp  map[string]*swarm.Topic // of other capabilities
	order     []string                // of lookedUp, oldest first
}

func (s *Source) init() {
	s.once.Do(func() {
		s.log = cmp.Or(s.Logger, slog.New(slog.DiscardHandler))
		s.lookups = rate.NewLimiter(rate.Every(lookupPause), lookupBurst)
		s.changed = make(chan struct{}, 1)
		s.kept = make(map[identity.PublicKey]bool)
		s.announced = make(map[string]struct{})
		s.links = make(map[*link]struct{})
		s.topics, s.lookedUp = make(map[string]*swarm.Topic), make(map[string]*swarm.Topic)
	})
}

// Topic returns the topic of the hubs of a network, or with a capability of those whose agents have it. Without the
// network's secret a topic can neither be computed nor reversed.
func Topic(network, capability string) [32]byte {
	secret := identity.Hash([]byte(network))
	return identity.KeyedHash(secret[:], []byte("parley network\n"+capability))
}

// KeepConnected replaces the set of hubs to keep connected to regardless of topics.
// It ends connections with hubs that are no longer trusted.
func (s *Source) KeepConnected(hubs []identity.PublicKey) {
	s.init()
	now := make(map[identity.PublicKey]bool)
	for _, key := range hubs {
		now[key] = true
	}
	s.mu.Lock()
	before := s.kept
	s.kept = now
	s.mu.Unlock()
	for key := range before {
		if !now[key] {
			s.Swarm.LeavePeer(key)
		}
	}
	for key := range now {
		if !before[key] {
			s.Swarm.JoinPeer(key)
		}
	}
	for _, l := range s.all() {
		if !s.Ledger.Trusts(l.c.RemoteKey()) {
			l.c.Destroy()
		}
	}
}

func (s *Source) all() []*link {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.links))
}

// Check implements [registry.Checker].
func (s *Source) Check() error {
	if s == nil || s.Swarm == nil {
		return &registry.Error{Code: registry.CodeNotConfigured, Message: "the source has no swarm to connect with: set Swarm"}
	}
	return s.Ledger.Check()
}

// Discover implements [registry.Source].
func (s *Source) Discover(ctx context.Context, sink registry.Sink) error {
	s.init()
	if err := s.Swarm.Listen(); err != nil {
		return discoveryError(err)
	}
	if s.Network != "" {
		t, err := s.Swarm.Join(Topic(s.Network, ""), swarm.Server|swarm.Client)
		if err != nil {
			return discoveryError(err)
		}
		defer t.Leave()
	}
	var serving sync.WaitGroup
	defer serving.Wait()
	if s.Network != "" && s.Capabilities {
		serving.Go(func() { s.followTopics(ctx) })
	}
	last, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	for {
		c, err := s.Swarm.Accept(ctx)
		if ctx.Err() != nil {
			s.flushWithdrawals()
			return ctx.Err()
		}
		if err != nil {
			return discoveryError(err)
		}
		serving.Go(func() { s.serve(last, c, sink) })
	}
}

func discoveryError(err error) error {
	return &registry.Error{Code: registry.CodeDiscovery, Message: "cards cannot be exchanged over Hyperswarm", Err: err}
}

// flushWithdrawals waits until the registry has withdrawn all agents from this source and the other hubs have
// received that. The ledger does not know: it drops an agent before any link does, and other sources may be faster.
func (s *Source) flushWithdrawals() {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	for s.hasAnnounced() {
		if !wait.Pause(ctx, 10*time.Millisecond) {
			return
		}
	}
	for _, l := range s.all() {
		l.flush(ctx)
	}
}

func (s *Source) hasAnnounced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.announced) > 0
}

// serve exchanges statements on a connection until it ends.
func (s *Source) serve(ctx context.Context, c *swarm.Conn, sink registry.Sink) {
	l := newLink(c, s.Ledger)
	s.mu.Lock()
	s.links[l] = struct{}{}
	s.mu.Unlock()
	if !s.Ledger.Trusts(c.RemoteKey()) { // no longer, and KeepConnected did not see the link
		c.Destroy()
	}
	for _, id := range s.Ledger.Agents() { // later announcements see the link
		l.enqueue(id)
	}
	err := l.run(ctx, func(m []byte) { s.Ledger.Receive(c.RemoteKey(), m, sink) })
	s.mu.Lock()
	delete(s.links, l)
	s.mu.Unlock()
	if ctx.Err() == nil {
		s.log.Debug("the connection with a hub has ended", "peer", c.RemoteKey(), "error", err)
	}
}

// LastSeen returns the time of the last message on the connection with a hub; zero if there is no connection.
func (s *Source) LastSeen(key identity.PublicKey) time.Time {
	var last time.Time
	for _, l := range s.all() {
		if at := l.lastMessage(); l.c.RemoteKey() == key && at.After(last) {
			last = at
		}
	}
	return last
}

// AnnouncedID implements [registry.Namer].
func (s *Source) AnnouncedID(id string) string { return s.Ledger.AnnouncedID(id) }

// Announce implements [registry.Announcer]. It does not wait for other hubs.
func (s *Source) Announce(_ context.Context, card agent.Card) error {
	s.init()
	if _, err := s.Ledger.Announce(card); err != nil {
		return err
	}
	s.mu.Lock()
	s.announced[card.ID] = struct{}{}
	s.mu.Unlock()
	s.enqueue(card.ID)
	return nil
}

// Withdraw implements [registry.Announcer]. It waits until the withdrawal is sent to all connected hubs.
func (s *Source) Withdraw(ctx context.Context, id string) error {
	s.init()
	defer func() { // the withdrawal is enqueued
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.announced, id)
	}()
	if _, err := s.Ledger.Withdraw(id); err != nil {
		return err
	}
	for _, l := range s.enqueue(id) {
		l.flush(ctx)
	}
	return nil
}

// enqueue sends the statement about an agent on all links, which it returns.
func (s *Source) enqueue(id string) []*link {
	links := s.all()
	for _, l := range links {
		l.enqueue(id)
	}
	wait.Nudge(s.changed)
	return links
}

// followTopics joins the topics of the capabilities of the hub's agents, and leaves
// those that no agent has any more, until ctx ends.
func (s *Source) followTopics(ctx context.Context) {
	defer s.leaveTopics()
	for {
		offered := s.Ledger.Capabilities()
		s.leaveWhere(s.topics, func(c string) bool { return !slices.Contains(offered, c) })
		if err := s.joinTopics(offered); err != nil {
			s.log.Warn("the hub cannot be announced under its agents' capabilities", "error", err)
		}
		// The topics just joined also look up other hubs.
		s.leaveWhere(s.lookedUp, func(c string) bool { return slices.Contains(offered, c) })
		select {
		case <-s.changed:
		case <-ctx.Done():
			return
		}
	}
}

// leaveWhere leaves the topics for which leave returns true, and waits for that. topics is s.topics or s.lookedUp.
func (s *Source) leaveWhere(topics map[string]*swarm.Topic, leave func(capability string) bool) {
	var left sync.WaitGroup
	s.mu.Lock()
	for capability, t := range topics {
		if leave(capability) {
			delete(topics, capability)
			left.Go(t.Leave)
		}
	}
	s.order = slices.DeleteFunc(s.order, func(capability string) bool { return s.lookedUp[capability] == nil })
	s.mu.Unlock()
	left.Wait()
}

func (s *Source) joinTopics(capabilities []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, capability := range capabilities {
		if s.topics[capability] != nil || len(s.topics) >= maxTopics {
			continue
		}
		t, err := s.Swarm.Join(Topic(s.Network, capability), swarm.Server|swarm.Client)
		if err != nil {
			return err
		}
		s.topics[capability] = t
	}
	return nil
}

func (s *Source) leaveTopics() {
	all := func(string) bool { return true }
	s.leaveWhere(s.topics, all)
	s.leaveWhere(s.lookedUp, all)
}

// Find implements [registry.Finder]. It looks up hubs of the network and waits up to
// a second for a statement. Discover reports the cards; Find itself returns none.
func (s *Source) Find(ctx context.Context, q registry.Query) ([]agent.Card, error) {
	s.init()
	if s.Network == "" || !s.lookups.Allow() {
		return nil, nil // named hubs are connected already, or unreachable
	}
	found := s.Ledger.Found()
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	if err := s.lookUp(ctx, q); err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, swarm.ErrClosed) { // the topic was left
		return nil, discoveryError(err)
	}
	select {
	case <-found:
	case <-ctx.Done():
	}
	return nil, nil
}

// lookUp looks up the topic of a query.
func (s *Source) lookUp(ctx context.Context, q registry.Query) error {
	if !s.Capabilities {
		q.Capability = ""
	}
	t, err := s.Swarm.Join(Topic(s.Network, q.Capability), swarm.Client)
	if err != nil {
		return err
	}
	t.Refresh()
	err = t.Flushed(ctx)
	if q.Capability == "" || !s.stay(q.Capability, t) {
		t.Leave() // the source has joined the same topic before
	}
	return err
}

// stay keeps a looked up topic, which keeps its hubs connected, until maxLookedUp
// later ones. It reports false if the source already has the topic.
func (s *Source) stay(capability string, t *swarm.Topic) bool {
	s.mu.Lock()
	if s.topics[capability] != nil || s.lookedUp[capability] != nil {
		s.mu.Unlock()
		return false
	}
	s.lookedUp[capability] = t
	s.order = append(s.order, capability)
	var leave *swarm.Topic
	if len(s.order) > maxLookedUp {
		leave = s.lookedUp[s.order[0]]
		delete(s.lookedUp, s.order[0])
		s.order = s.order[1:]
	}
	s.mu.Unlock()
	if leave != nil {
		leave.Leave()
	}
	return true
}
