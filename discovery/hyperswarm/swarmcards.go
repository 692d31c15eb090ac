// Package hyperswarm lets hubs that reach each other over Hyperswarm discover each
// other's agents, without any server: a [Source] keeps a connection with each hub that
// it is told of or that it finds under the network's topics, and both say what they
// say of their agents, as signed statements (Req 1.7, 1.8). See package signedcard for
// what is believed.
//
// On a connection, which is encrypted and whose peer has proved its key, each end
// sends [Greeting], then a statement for each agent and whenever one changes, and at
// least every five seconds a message, if only ".". A message that is too large or an
// end that is silent ends the connection; the swarm makes it again.
package hyperswarm

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/hyperswarm/swarm"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/registry"
)

// Greeting is the first message of each end.
const Greeting = "parley cards 1"

const (
	alive        = "."             // a sign of life
	pulse        = 5 * time.Second // between two of them at most
	silence      = 3 * pulse       // then the other end is taken to be gone
	lastTime     = 2 * time.Second // for the withdrawals at the end
	findPatience = time.Second     // for hubs that are looked up
	lookupPause  = 2 * time.Second // between two lookups for those who ask, on average
	lookupBurst  = 4               // of them at once
	maxTopics    = 64              // of capabilities of our agents; others are not announced
	maxAsked     = 4               // capabilities that were looked for; the first goes
)

// Source is a [registry.Source], [registry.Announcer] and [registry.Finder]. Set the
// fields before its first use, which makes it safe for concurrent use; one Source
// serves one registry.
type Source struct {
	// Swarm makes the connections. It is the caller's, who lets in nobody but whom
	// Ledger trusts, and closes it after the registry. Nobody else accepts from it.
	Swarm *swarm.Swarm
	// Ledger has what is said and heard.
	Ledger *signedcard.Ledger
	// Network is a secret that hubs share to find each other without being told of
	// each other one by one: they meet under a topic that follows from it, see [Topic].
	// It lets nobody in. Empty: no topic.
	Network string
	// Capabilities has the hub found, in its network, under a topic for each
	// capability of its agents as well, and look there for capabilities that no agent
	// it knows has: for networks of more hubs than one is connected with.
	Capabilities bool
	// Logger gets what nobody else learns of; nil discards it.
	Logger *slog.Logger

	once    sync.Once
	log     *slog.Logger
	lookups *rate.Limiter
	changed chan struct{} // holds one if our agents may offer something else

	mu     sync.Mutex
	kept   map[identity.PublicKey]bool // by Keep
	shown  map[string]struct{}         // agents that others are told of, until they are told of their end
	links  map[*link]struct{}
	topics map[string]*swarm.Topic // of capabilities that our agents have
	asked  map[string]*swarm.Topic // of others that were looked for
	order  []string                // of asked
}

func (s *Source) init() {
	s.once.Do(func() {
		s.log = s.Logger
		if s.log == nil {
			s.log = slog.New(slog.DiscardHandler)
		}
		s.lookups = rate.NewLimiter(rate.Every(lookupPause), lookupBurst)
		s.changed = make(chan struct{}, 1)
		s.kept = make(map[identity.PublicKey]bool)
		s.shown = make(map[string]struct{})
		s.links = make(map[*link]struct{})
		s.topics, s.asked = make(map[string]*swarm.Topic), make(map[string]*swarm.Topic)
	})
}

// Topic is where the hubs of a network meet; with a capability, those that offer it.
// Who does not know the network's secret can neither compute it nor tell from it what
// it is.
func Topic(network, capability string) [32]byte {
	secret := identity.Hash([]byte(network))
	return identity.KeyedHash(secret[:], []byte("parley network\n"+capability))
}

// Keep says with which hubs to keep connections whatever their topics, in the place of
// those named before. Connections with hubs that are not trusted any more end.
func (s *Source) Keep(hubs []identity.PublicKey) {
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
	var all []*link
	for l := range s.links {
		all = append(all, l)
	}
	return all
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
			s.lastWords()
			return ctx.Err()
		}
		if err != nil {
			return discoveryError(err)
		}
		serving.Go(func() { s.serve(last, c, sink) })
	}
}

func discoveryError(err error) error {
	return &registry.Error{Code: registry.CodeDiscovery, Message: "the hubs' cards cannot be exchanged", Err: err}
}

// lastWords waits until the registry has withdrawn here what it has announced here, and the
// others have been told. The ledger does not say that: it forgets an agent before any link
// hears of it, and others that carry it may be faster.
func (s *Source) lastWords() {
	ctx, cancel := context.WithTimeout(context.Background(), lastTime)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for s.shows() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
	for _, l := range s.all() {
		l.flush(ctx)
	}
}

// shows reports whether agents were announced that are not withdrawn.
func (s *Source) shows() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.shown) > 0
}

// serve exchanges statements on a connection until it ends.
func (s *Source) serve(ctx context.Context, c *swarm.Conn, sink registry.Sink) {
	l := newLink(c, s.Ledger)
	s.mu.Lock()
	s.links[l] = struct{}{}
	s.mu.Unlock()
	if !s.Ledger.Trusts(c.RemoteKey()) { // not since it was let in, and Keep has not seen it
		c.Destroy()
	}
	for _, id := range s.Ledger.Agents() { // what is announced from here on finds the link
		l.tell(id)
	}
	err := l.run(ctx, func(m []byte) { s.Ledger.Hear(c.RemoteKey(), m, sink) })
	s.mu.Lock()
	delete(s.links, l)
	s.mu.Unlock()
	if ctx.Err() == nil {
		s.log.Debug("the connection with a hub has ended", "peer", c.RemoteKey(), "error", err)
	}
}

// Heard returns when a hub gave its last sign of life on the connection that there is
// with it; zero if there is none.
func (s *Source) Heard(key identity.PublicKey) time.Time {
	var last time.Time
	for _, l := range s.all() {
		if l.c.RemoteKey() != key {
			continue
		}
		l.mu.Lock()
		if l.heard.After(last) {
			last = l.heard
		}
		l.mu.Unlock()
	}
	return last
}

// Announce implements [registry.Announcer]. It does not wait for others.
func (s *Source) Announce(_ context.Context, card agent.Card) error {
	s.init()
	if _, err := s.Ledger.Announce(card); err != nil { // it can be signed
		return err
	}
	s.mu.Lock()
	s.shown[card.ID] = struct{}{}
	s.mu.Unlock()
	for _, l := range s.all() {
		l.tell(card.ID)
	}
	s.offerChanged()
	return nil
}

// Withdraw implements [registry.Announcer]. It waits until the others have been told.
func (s *Source) Withdraw(ctx context.Context, id string) error {
	s.init()
	defer func() { // the links know of it
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.shown, id)
	}()
	if _, err := s.Ledger.Withdraw(id); err != nil {
		return err
	}
	links := s.all()
	for _, l := range links {
		l.tell(id)
	}
	for _, l := range links {
		l.flush(ctx)
	}
	s.offerChanged()
	return nil
}

// offerChanged has followTopics look. It never blocks.
func (s *Source) offerChanged() {
	select {
	case s.changed <- struct{}{}:
	default: // it will look anyway
	}
}

// followTopics has the hub found under what its agents can do now, and no more under
// what none of them can any more, until ctx ends.
func (s *Source) followTopics(ctx context.Context) {
	defer s.leaveTopics()
	for {
		offered := s.Ledger.Capabilities()
		s.leaveWhere(s.topics, func(c string) bool { return !slices.Contains(offered, c) })
		if err := s.joinTopics(offered); err != nil {
			s.log.Warn("the hub is not found by what its agents can do", "error", err)
		}
		// Who is found there looks there as well.
		s.leaveWhere(s.asked, func(c string) bool { return slices.Contains(offered, c) })
		select {
		case <-s.changed:
		case <-ctx.Done():
			return
		}
	}
}

// leaveWhere leaves those of topics, which is s.topics or s.asked, whose capabilities
// are so, and waits for that.
func (s *Source) leaveWhere(topics map[string]*swarm.Topic, so func(capability string) bool) {
	var left sync.WaitGroup
	s.mu.Lock()
	for capability, t := range topics {
		if so(capability) {
			delete(topics, capability)
			left.Go(t.Leave)
		}
	}
	s.order = slices.DeleteFunc(s.order, func(capability string) bool { return s.asked[capability] == nil })
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
	s.leaveWhere(s.asked, all)
}

// Find implements [registry.Finder]: it looks for hubs in the network, and waits for up
// to a second until something was found. What it finds goes through Discover: it
// returns none itself.
func (s *Source) Find(ctx context.Context, q registry.Query) ([]agent.Card, error) {
	s.init()
	if s.Network == "" || !s.lookups.Allow() {
		return nil, nil // hubs that were named are connected, or cannot be
	}
	found := s.Ledger.Found()
	ctx, cancel := context.WithTimeout(ctx, findPatience)
	defer cancel()
	if err := s.look(ctx, q); err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, swarm.ErrClosed) { // left meanwhile
		return nil, discoveryError(err)
	}
	select {
	case <-found:
	case <-ctx.Done():
	}
	return nil, nil
}

// look looks up the topic that a query is about.
func (s *Source) look(ctx context.Context, q registry.Query) error {
	if !s.Capabilities {
		q.Capability = ""
	}
	t, err := s.Swarm.Join(Topic(s.Network, q.Capability), swarm.Client)
	if err != nil {
		return err
	}
	t.Refresh()
	err = t.Flushed(ctx)
	if q.Capability == "" || !s.note(q.Capability, t) {
		t.Leave() // of a topic that the source is in anyway
	}
	return err
}

// note stays in a topic that was looked up, until others have been: who is found there
// is wanted as long. It reports false if the source stays there already.
func (s *Source) note(capability string, t *swarm.Topic) bool {
	s.mu.Lock()
	if s.topics[capability] != nil || s.asked[capability] != nil {
		s.mu.Unlock()
		return false
	}
	s.asked[capability] = t
	s.order = append(s.order, capability)
	var leave *swarm.Topic
	if len(s.order) > maxAsked {
		leave = s.asked[s.order[0]]
		delete(s.asked, s.order[0])
		s.order = s.order[1:]
	}
	s.mu.Unlock()
	if leave != nil {
		leave.Leave()
	}
	return true
}

// link is a connection with another hub.
type link struct {
	c      *swarm.Conn
	ledger *signedcard.Ledger
	wake   chan struct{} // has room for one: something is due

	mu    sync.Mutex
	due   map[string]struct{} // agents of which the other is to be told
	busy  bool                // it is told of one
	idle  chan struct{}       // closed when nothing is due any more; nil if nobody waits for that
	over  bool
	heard time.Time // the other's last sign of life, after its greeting
}

func newLink(c *swarm.Conn, ledger *signedcard.Ledger) *link {
	return &link{c: c, ledger: ledger, wake: make(chan struct{}, 1), due: make(map[string]struct{})}
}

// tell has the other end told of an agent, as it is when its turn comes: a slow one is
// told less often, and nothing piles up.
func (l *link) tell(id string) {
	l.mu.Lock()
	l.due[id] = struct{}{}
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// flush waits until the other end has been told of everything, the link has ended or
// ctx has.
func (l *link) flush(ctx context.Context) {
	l.mu.Lock()
	if len(l.due) == 0 && !l.busy || l.over {
		l.mu.Unlock()
		return
	}
	if l.idle == nil {
		l.idle = make(chan struct{})
	}
	idle := l.idle
	l.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	}
}

// run exchanges statements until the connection or ctx ends.
func (l *link) run(ctx context.Context, hear func([]byte)) error {
	stop := context.AfterFunc(ctx, func() { _ = l.c.Close() }) // nobody is left to tell
	defer stop()
	var writing sync.WaitGroup
	defer writing.Wait()
	defer l.c.Destroy()
	writing.Go(func() {
		defer l.end()
		if err := l.write(); err != nil {
			l.c.Destroy()
		}
	})
	return l.read(hear)
}

// read hears the other end out.
func (l *link) read(hear func([]byte)) error {
	greeted := false
	for {
		patience := time.AfterFunc(silence, l.c.Destroy)
		m, err := l.c.ReadMessage()
		patience.Stop()
		switch {
		case err != nil:
			return err
		case !greeted && string(m) != Greeting:
			return errors.New("the peer is no hub: it does not say " + Greeting)
		case !greeted:
			greeted = true
		case string(m) != alive:
			hear(m)
		}
		l.mu.Lock()
		l.heard = time.Now()
		l.mu.Unlock()
	}
}

// write tells the other end what is due.
func (l *link) write() error {
	if err := l.c.WriteMessage([]byte(Greeting)); err != nil {
		return err
	}
	beat := time.NewTicker(pulse)
	defer beat.Stop()
	for {
		select {
		case <-l.wake:
			if err := l.clear(); err != nil {
				return err
			}
		case <-beat.C:
			if err := l.c.WriteMessage([]byte(alive)); err != nil {
				return err
			}
		case <-l.c.Done():
			return nil
		case <-l.c.Ended():
			return nil
		}
	}
}

// clear writes until nothing is due.
func (l *link) clear() error {
	for {
		id, ok := l.next()
		if !ok {
			return nil
		}
		data, err := l.ledger.Statement(id)
		if err != nil {
			continue // it was announced, so it can be signed
		}
		if err := l.c.WriteMessage(data); err != nil {
			return err
		}
	}
}

// next takes out an agent that is due.
func (l *link) next() (id string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range l.due {
		delete(l.due, id)
		l.busy = true
		return id, true
	}
	l.busy = false
	l.rest()
	return "", false
}

// rest wakes who waits until nothing is due; l.mu is held.
func (l *link) rest() {
	if l.idle != nil {
		close(l.idle)
		l.idle = nil
	}
}

func (l *link) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	l.rest()
}
