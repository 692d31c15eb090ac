// Package peers makes the agents of paired hubs agents of this hub, with ids of the form PEER.AGENT. They run as
// every agent does; their turns are envelopes to the other hub.
//
// Both hubs must pair. A hub is identified by its key. Hubs in the allow-list may connect, announce their own agents
// and run ours, within the rules for tiers and sandboxes. Other hubs get no answer.
package peers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/agent"
	natscards "github.com/parleyhub/parley/discovery/nats"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/entries"
	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/federation/exchange"
	"github.com/parleyhub/parley/internal/federation/node"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/mcp/mounts"
	"github.com/parleyhub/parley/registry"
	"github.com/parleyhub/parley/router"
	"github.com/parleyhub/parley/transport"
	natslink "github.com/parleyhub/parley/transport/nats"
)

// KeyPath returns the file of a hub's identity.
func KeyPath(dataDir string) string { return filepath.Join(dataDir, "peer.key") }

// AllowPath returns the file of a hub's allow-list, the paired hubs.
func AllowPath(dataDir string) string { return filepath.Join(dataDir, "peers") }

var namePattern = text.Pattern(`^[a-z0-9][a-z0-9-]{0,23}$`)

// ValidName reports whether a peer can have this name, which begins its agents' ids.
func ValidName(name string) bool { return namePattern().MatchString(name) }

// NameOf returns a peer's name: that in the allow-list, or else the beginning of its key.
func NameOf(e identity.Entry) string {
	if ValidName(e.Name) {
		return e.Name
	}
	return e.Key.String()[:8]
}

// Link is a transport between hubs whose connections have the hubs' keys as peers. The node closes the listener.
type Link struct {
	Listener transport.Listener
	Dialer   transport.Dialer
	// Cards returns what announces the hub's agents and finds those of others.
	Cards func(*signedcard.Ledger) CardSource
}

// Options are those of [Open]. Hub, DataDir, Version, and NATS, Hyperswarm or Link are required.
type Options struct {
	Hub     *hub.Hub
	DataDir string // of the hub, with its identity and allow-list
	Version string // of the hub
	// NATS is the connection to a server that the hubs share, nil for none. It may
	// connect later, and must outlive the Peers.
	NATS   *nats.Conn
	Prefix string // of the subjects; "" means that of package transport/nats
	// Hyperswarm connects hubs without a shared server; nil disables it.
	Hyperswarm *Hyperswarm
	// Link is a transport besides these; nil for none. Simulations have one.
	Link *Link

	// Tools is the hub's toolbox: its shared tools are offered to other hubs, and
	// theirs are imported. Nil disables both. It must outlive the Peers.
	Tools *mounts.Tools

	PeerTier     agent.Tier // the highest tier of other hubs' agents here; NoTier means L2
	CrossSandbox []string   // agents that may be addressed from any sandbox
	Audit        router.Auditor
	Logger       *slog.Logger
	// Damaged is called if a file in DataDir was damaged; nil for nobody.
	Damaged func(statefile.Damage)
}

const (
	cardLife     = 30 * time.Second // remote cards expire after this long unseen
	graceTime    = 10 * time.Minute // agents without a card are removed after this long, see patience
	pollInterval = time.Second      // of the allow-list
	listenTime   = 5 * time.Second
	checkTime    = time.Second // for a health check, which only reads the registry
)

// Peers connects a hub to the paired hubs. [Open] returns one; [Peers.Close] it after
// the hub has ended its tasks. It is safe for concurrent use.
type Peers struct {
	o     Options
	log   *slog.Logger
	pair  *identity.Pair
	allow *identity.AllowList
	node  *node.Node
	dht   *dht // nil without Hyperswarm

	opened chan struct{} // closed when node is set

	sources     sources
	ledger      *signedcard.Ledger
	kept        *entries.List[kept] // durable agents
	withdrawals *entries.List[withdrawal]
	ctx         context.Context // ends with Close
	cancel      context.CancelFunc
	wg          sync.WaitGroup

	mu     sync.Mutex
	agents map[string]*remote // by global id
	// channelKeys are the keys under which paired hubs accept channels over Hyperswarm.
	// They outlive the cards, since a channel can reconnect before new cards arrive.
	channelKeys map[identity.PublicKey]string
	rejected    map[string]rejection // announced agents that cannot be registered, by global id
	senders     map[agent.Tier]*exchange.Sender
	withdrawing int // cancellations that are being repeated

	runs map[identity.PublicKey]string // of the paired hubs, only for watchRegistry

	tools tools
}

// rejection is the reason why another hub's agent cannot be registered here.
type rejection struct {
	local string // the id that it would have
	why   error
}

// Open connects to the paired hubs. It blocks until the listeners are ready, at most
// five seconds for NATS; it does not wait for peers.
func Open(ctx context.Context, o Options) (*Peers, error) {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.PeerTier == agent.NoTier {
		o.PeerTier = agent.L2
	}
	pair, err := identity.Load(KeyPath(o.DataDir))
	if err != nil {
		return nil, err
	}
	read := fileVersion(AllowPath(o.DataDir)) // before reading, so that no change is missed
	allow, err := identity.OpenAllowList(AllowPath(o.DataDir))
	switch {
	case errors.Is(err, identity.ErrLine): // of a flipped bit, or an editor; doctor says it, too
		o.Logger.Error("hubs on these lines are not paired until they are corrected", "error", err)
	case err != nil:
		return nil, err
	}
	sessions, err := entries.Read[kept](keptPath(o.DataDir), "tasks for peers' sessions wait until these announce themselves", o.Damaged)
	if err != nil {
		return nil, err
	}
	withdrawals, err := entries.Read[withdrawal](withdrawalsPath(o.DataDir), "tasks that were canceled while their hub was away may go on there", o.Damaged)
	if err != nil {
		return nil, err
	}
	p := &Peers{
		kept: sessions, withdrawals: withdrawals,
		o: o, log: o.Logger, pair: pair, allow: allow, opened: make(chan struct{}), sources: make(sources), tools: newTools(),
		agents: make(map[string]*remote), rejected: make(map[string]rejection), senders: make(map[agent.Tier]*exchange.Sender),
		runs: make(map[identity.PublicKey]string),
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	if err := p.open(ctx); err != nil {
		p.cancel()
		return nil, errors.Join(err, p.close(context.Background()))
	}
	p.restore()
	for _, w := range p.withdrawals.All() {
		p.repeat(w)
	}
	w := p.node.Registry().Watch()
	p.wg.Go(func() { p.watchRegistry(p.ctx, w) })
	p.wg.Go(func() { p.watchAllowList(p.ctx, read) })
	return p, nil
}

// open opens the node for other hubs, with all transports.
func (p *Peers) open(ctx context.Context) (err error) {
	p.ledger = &signedcard.Ledger{Author: signedcard.NewAuthor(p.pair, cardLife), Trusted: p.allow.Allowed, Logger: p.log}
	at := &node.Federation{
		GlobalID: func(id string) string { return signedcard.ID(id, p.pair.Public()) },
		LocalID:  p.localID,
		Dialers:  make(map[agent.Transport]transport.Dialer),
		Speaks:   p.maySpeakFor, RemoteTTL: cardLife,
	}
	if p.o.NATS != nil {
		err = p.openNATS(ctx, at)
	}
	if err == nil && p.o.Hyperswarm != nil {
		err = p.openDHT(*p.o.Hyperswarm, at)
	}
	if l := p.o.Link; err == nil && l != nil {
		kind := l.Listener.Endpoint().Transport
		at.Listeners, at.Dialers[kind] = append(at.Listeners, l.Listener), l.Dialer
		p.sources[kind] = l.Cards(p.ledger)
	}
	if err != nil {
		for _, l := range at.Listeners {
			err = errors.Join(err, l.Close())
		}
		return err
	}
	at.Sources = map[string]registry.Source{"hubs": p.sources}
	if p.node, err = node.Open(node.Options{
		Hub: p.o.Hub, Version: p.o.Version, PeerTier: p.o.PeerTier, CrossSandbox: p.o.CrossSandbox, Audit: p.o.Audit, Logger: p.log,
		Federation: at, Channels: node.ChannelWatcher{Closed: p.channelClosed, Reopened: p.channelReopened},
	}); err != nil {
		return err
	}
	close(p.opened)
	if p.dht != nil {
		p.dht.apply(p)
	}
	return p.openSenders()
}

// openNATS listens and discovers on the shared NATS server.
func (p *Peers) openNATS(ctx context.Context, at *node.Federation) error {
	link := natslink.Options{Conn: p.o.NATS, Pair: p.pair, Prefix: p.o.Prefix}
	ctx, cancel := context.WithTimeout(ctx, listenTime)
	defer cancel()
	listener, err := natslink.Listen(ctx, natslink.ListenOptions{
		Options: link, Allow: p.allow.Allowed, Background: !p.o.NATS.IsConnected(), Logger: p.log,
	})
	if err != nil {
		return err
	}
	at.Listeners = append(at.Listeners, listener)
	at.Dialers[agent.TransportNATS] = &natslink.Dialer{Options: link}
	p.sources[agent.TransportNATS] = &natscards.Source{Conn: p.o.NATS, Prefix: p.o.Prefix, Ledger: p.ledger}
	return nil
}

// close reverses open.
func (p *Peers) close(ctx context.Context) error {
	var errs []error
	if p.node != nil {
		errs = append(errs, p.node.Close(ctx))
	}
	if p.dht != nil {
		errs = append(errs, p.dht.close())
	}
	return errors.Join(errs...)
}

// Key returns this hub's key.
func (p *Peers) Key() identity.PublicKey { return p.pair.Public() }

// Node returns the node for other hubs.
func (p *Peers) Node() *node.Node { return p.node }

// Public returns the public address of the hub's DHT node; invalid if there is none.
func (p *Peers) Public() netip.AddrPort {
	if p.dht == nil {
		return netip.AddrPort{}
	}
	return p.dht.node.Public()
}

// Close disconnects from all hubs. It sends pending answers, at most until ctx ends.
func (p *Peers) Close(ctx context.Context) error {
	p.mu.Lock()
	p.cancel() // nothing is added to wg after this
	p.mu.Unlock()
	p.wg.Wait()
	p.closeTools()
	return p.close(ctx)
}

// maySpeakFor returns an error unless the agent belongs to the peer: its id ends in the peer's key. Over Hyperswarm
// the peer is the hub's channel key, which is in its signed cards.
func (p *Peers) maySpeakFor(peer, id string) error {
	_, key, ok := signedcard.ParseID(id)
	if !ok || key.String() != peer && !p.hasChannelKey(key, id, peer) {
		return fmt.Errorf("%q is not an agent of the hub %s", id, peer)
	}
	if !p.allow.Allowed(key) { // removed after it had connected
		return fmt.Errorf("the hub %s is not paired", key)
	}
	return nil
}

func (p *Peers) hasChannelKey(hub identity.PublicKey, id, peer string) bool {
	p.mu.Lock()
	known := p.channelKeys[hub]
	p.mu.Unlock()
	if known == peer {
		return true
	}
	select {
	case <-p.opened:
	default:
		return false // too early; the peer connects again
	}
	card, err := p.node.Registry().Get(id)
	return err == nil && slices.Contains(card.Endpoints, agent.Endpoint{Transport: agent.TransportHyperswarm, Address: peer})
}

// watchRegistry keeps the hub's agents in step with other hubs' cards until ctx ends.
func (p *Peers) watchRegistry(ctx context.Context, w *registry.Watcher) {
	defer w.Close()
	p.reconcile(ctx)
	grace := time.Tick(graceTime / 10)
	done := make(chan struct{})
	go func() { // ends with ctx
		defer close(done)
		for {
			if _, err := w.Next(ctx); err != nil {
				return
			}
			p.signalTools()
		}
	}()
	defer func() { <-done }()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.tools.changes:
		case <-grace:
		}
		p.reconcile(ctx)
	}
}

// reconcile registers new agents, and removes agents whose cards have been missing for
// their patience or whose hub is no longer paired. Only watchRegistry calls it.
func (p *Peers) reconcile(ctx context.Context) {
	names := make(map[identity.PublicKey]string)
	for _, e := range p.allow.Entries() {
		names[e.Key] = NameOf(e)
	}
	if p.o.Tools != nil {
		p.o.Tools.Reserve(slices.Collect(maps.Values(names)))
	}
	p.reconcileTools(names)
	maps.DeleteFunc(p.runs, func(key identity.PublicKey, _ string) bool { return names[key] == "" })
	here, reachable, channelKeys := make(map[string]bool), make(map[identity.PublicKey]bool), make(map[identity.PublicKey]string)
	for _, card := range p.node.Registry().Remote() {
		name, key, ok := signedcard.ParseID(card.ID)
		peer, paired := names[key]
		if !ok || !paired {
			continue
		}
		reachable[key] = true
		if name == runSender {
			p.followRun(key, card)
		}
		for _, at := range card.Endpoints {
			if at.Transport == agent.TransportHyperswarm {
				channelKeys[key] = at.Address
			}
		}
		if !runner.ValidID(name) || card.Tier < p.o.PeerTier {
			continue
		}
		here[card.ID] = true
		p.add(ctx, peer+"."+name, peer, card)
	}
	p.mu.Lock()
	for key, known := range p.channelKeys {
		if _, paired := names[key]; paired && channelKeys[key] == "" {
			channelKeys[key] = known
		}
	}
	p.channelKeys = channelKeys
	maps.DeleteFunc(p.rejected, func(id string, _ rejection) bool { return !here[id] })
	p.mu.Unlock()
	for _, r := range p.all() {
		_, key, _ := signedcard.ParseID(r.id)
		missing, changed := r.missingFor()
		if name, paired := names[key]; !paired || name != r.peer || !here[r.id] && missing > p.patience(r, reachable[key]) && !p.busy(r) {
			p.remove(ctx, r)
			continue
		}
		if changed {
			p.keep(r)
		}
		if r.availabilityChanged() {
			p.checkHealth(ctx, r)
		}
	}
}

// localID returns the id at this hub for a global id, whether the agent exists or not.
func (p *Peers) localID(id string) string {
	name, key, ok := signedcard.ParseID(id)
	switch {
	case !ok:
		return id
	case key == p.pair.Public():
		return name
	}
	for _, e := range p.allow.Entries() {
		if e.Key == key {
			return NameOf(e) + "." + name
		}
	}
	return id
}

// globalIDs is the reverse of localID, for several ids.
func (p *Peers) globalIDs(ids []string) []string {
	known := make(map[string]string)
	for _, r := range p.all() {
		known[r.local] = r.id
	}
	all := make([]string, len(ids))
	for i, id := range ids {
		_, _, foreign := signedcard.ParseID(id)
		switch {
		case known[id] != "":
			all[i] = known[id]
		case foreign: // its hub is not paired with this one
			all[i] = id
		default:
			all[i] = signedcard.ID(id, p.pair.Public())
		}
	}
	return all
}

// checkHealth updates the health of an agent whose availability has changed. Until the
// hub's next round, requests would fail or not be tried.
func (p *Peers) checkHealth(ctx context.Context, r *remote) {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	if _, err := p.o.Hub.CheckHealth(ctx, r.local); err != nil && ctx.Err() == nil {
		p.log.Warn("cannot check the health of a peer's agent", "agent", r.local, "error", err)
	}
}

func (p *Peers) all() []*remote {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.agents))
}

// add registers another hub's agent at this hub, or updates it; running turns go on.
func (p *Peers) add(ctx context.Context, local, peer string, card agent.Card) {
	p.mu.Lock()
	old := p.agents[card.ID]
	p.mu.Unlock()
	_, durable := node.SessionOf(card)
	if old != nil && old.local == local && (old.durable == durable || node.Unavailable(card) || p.busy(old)) {
		p.update(ctx, old, card)
		return
	}
	if old != nil {
		p.remove(ctx, old) // the peer has another name now, or the agent is another
	}
	p.register(&remote{peers: p, id: card.ID, local: local, peer: peer, durable: durable}, card)
}

// update changes an agent to what its card says now.
func (p *Peers) update(ctx context.Context, r *remote, card agent.Card) {
	before := r.residence()
	d, changed := r.update(card)
	if !changed {
		return
	}
	p.keep(r)
	err := p.o.Hub.Update(d)
	if now := r.residence(); err == nil && now != before {
		err = p.o.Hub.Move(r.local, now)
	}
	if err != nil && ctx.Err() == nil {
		p.log.Warn("cannot update a peer's agent", "agent", r.local, "error", err)
	}
}

// register registers an agent at this hub.
func (p *Peers) register(r *remote, card agent.Card) {
	d, _ := r.update(card)
	err := p.o.Hub.Register(hub.Agent{Definition: d, Runner: r, Durable: r.durable, Residence: r.residence()})
	p.mu.Lock()
	before := p.rejected[r.id]
	if err == nil {
		delete(p.rejected, r.id)
		p.agents[r.id] = r
	} else {
		p.rejected[r.id] = rejection{r.local, err}
	}
	p.mu.Unlock()
	switch {
	case err == nil:
		p.keep(r)
		p.log.Info("a peer's agent was registered", "agent", r.local, "peer", r.peer)
	case before.local != r.local: // logged once, tried again with each change
		p.log.Warn("a peer's agent cannot be registered", "agent", r.local, "error", err)
	}
}

func (p *Peers) remove(ctx context.Context, r *remote) {
	p.mu.Lock()
	delete(p.agents, r.id)
	p.mu.Unlock()
	p.forget(r.local)
	if err := p.o.Hub.Deregister(ctx, r.local); err != nil && ctx.Err() == nil {
		p.log.Warn("cannot remove a peer's agent", "agent", r.local, "error", err)
	}
}

// watchAllowList polls the file that `peers pair` and `peers remove` write.
func (p *Peers) watchAllowList(ctx context.Context, last string) {
	poll := time.Tick(pollInterval)
	for {
		select {
		case <-ctx.Done():
			return
		case <-poll:
		}
		p.offerTools()
		p.closeChannels() // including those that were opening when a pairing ended
		now := fileVersion(AllowPath(p.o.DataDir))
		if now == last {
			continue
		}
		last = now
		err := p.allow.Reload()
		switch {
		case errors.Is(err, identity.ErrLine):
			p.log.Error("a line of the list of paired hubs cannot be read; the others count", "error", err)
		case err != nil:
			p.log.Error("the list of paired hubs cannot be read; the former one stays", "error", err)
			continue
		}
		p.applyAllowList()
	}
}

// fileVersion returns a text that changes with the file.
func fileVersion(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	return fmt.Sprint(info.ModTime().UnixNano(), info.Size())
}

// applyAllowList disconnects removed hubs and looks up new ones.
func (p *Peers) applyAllowList() {
	reg := p.node.Registry()
	for _, card := range reg.Remote() {
		if _, key, ok := signedcard.ParseID(card.ID); !ok || !p.allow.Allowed(key) {
			reg.Unregister(card.ID) // watchRegistry removes its agent
		}
	}
	p.closeChannels()
	if p.dht != nil {
		p.dht.apply(p)
	}
	ctx, cancel := context.WithTimeout(context.Background(), listenTime)
	defer cancel()
	// A lookup of a capability that nobody has requests the agents of new peers.
	_, _ = reg.Resolve(ctx, registry.Query{Capability: "~"}) // not found
	p.signalTools()                                          // a changed name changes no card
}

// closeChannels closes the channels with hubs that are not paired.
func (p *Peers) closeChannels() {
	for _, c := range p.node.Channels().Channels() {
		if _, key, ok := signedcard.ParseID(c.RemoteAgent()); !ok || !p.allow.Allowed(key) {
			_ = c.Close() // returns nil
		}
	}
}

// followRun notes the run of a hub, as its card says. When the hub has started again, the channels of its former run are
// dead, which their transport may notice late. Only watchRegistry calls it.
func (p *Peers) followRun(key identity.PublicKey, card agent.Card) {
	former, now := p.runs[key], node.RunOf(card)
	if now == "" || now == former {
		return
	}
	p.runs[key] = now
	for _, c := range p.node.Channels().Channels() {
		if _, of, _ := signedcard.ParseID(c.RemoteAgent()); former != "" && of == key {
			c.Outlived(former)
		}
	}
}

// channelClosed ends the turns that wait for an answer on a closed channel.
func (p *Peers) channelClosed(local, other string) {
	p.toolsDisconnected(other)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.senders {
		if f.ID() == local {
			f.CloseAnswers(other)
		}
	}
}

// channelReopened makes the turns that wait for an answer on a channel ask again: what was on its way is lost if the other
// hub has started again.
func (p *Peers) channelReopened(local, other string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.senders {
		if f.ID() == local {
			f.AskAgain(other)
		}
	}
}
