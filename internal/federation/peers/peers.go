// Package peers makes one hub of several: the agents of hubs that have paired become
// agents here, PEER.AGENT, that run the way every agent does, with their turns taken
// by envelope to the other hub.
//
// Both hubs have to pair. A hub is its key; who is in the allow-list may connect,
// announce its own agents, and run ours, under the rules of tier and sandbox. Nobody
// else gets so much as an answer.
package peers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/agent"
	natscards "github.com/parleyhub/parley/discovery/nats"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/federation/node"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/tools/mounts"
	"github.com/parleyhub/parley/registry"
	"github.com/parleyhub/parley/router"
	"github.com/parleyhub/parley/transport"
	natslink "github.com/parleyhub/parley/transport/nats"
)

// KeyPath is where a hub keeps its identity.
func KeyPath(dataDir string) string { return filepath.Join(dataDir, "peer.key") }

// AllowPath is where a hub keeps the list of those that it is paired with.
func AllowPath(dataDir string) string { return filepath.Join(dataDir, "peers") }

var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,23}$`)

// ValidName reports whether a peer can be called so: it begins the ids of its agents.
func ValidName(name string) bool { return namePattern.MatchString(name) }

// NameOf returns what a peer is called: its name in the allow-list, or else the
// beginning of its key.
func NameOf(e identity.Entry) string {
	if ValidName(e.Name) {
		return e.Name
	}
	return e.Key.String()[:8]
}

// Options set up a Network. Hub, DataDir, Version and a way to others are needed.
type Options struct {
	Hub     *hub.Hub
	DataDir string // of the hub: identity and allow-list
	Version string // of the hub
	// NATS is the connection to the server that the hubs share, if they do. It may be
	// away at first, and must outlive the network.
	NATS   *nats.Conn
	Prefix string // of the subjects; "" means that of package transport/nats
	// Hyperswarm has hubs meet without such a server; nil: they do not.
	Hyperswarm *Hyperswarm

	// Tools is the hub's toolbox: what it shares is offered to other hubs, what they
	// share is taken in. nil: neither. It must outlive the network.
	Tools *mounts.Tools

	PeerTier     agent.Tier // the highest tier of other hubs' agents here; NoTier means L2
	CrossSandbox []string   // agents that those in any sandbox may address
	Audit        router.Auditor
	Logger       *slog.Logger
}

const (
	cardLife   = 30 * time.Second // without a word, then a remote card goes
	graceTime  = 10 * time.Minute // without a card, then its agent here goes
	pollTime   = time.Second      // between two looks at the allow-list
	listenTime = 5 * time.Second
	checkTime  = time.Second // for a look at what is known here
)

// Network is a hub's place among others. Make one with [Open] and [Network.Close] it,
// after the hub has ended its tasks.
type Network struct {
	o     Options
	log   *slog.Logger
	pair  *identity.Pair
	allow *identity.AllowList
	node  *node.Node
	dht   *dht // nil without Hyperswarm

	opened chan struct{} // closed when node is there

	carriers carriers
	ways     map[agent.Transport]carrier // each of carriers
	ledger   *signedcard.Ledger
	ctx      context.Context // ends with the network
	cancel   context.CancelFunc
	wg       sync.WaitGroup

	mu     sync.Mutex
	agents map[string]*remote // by the id among hubs
	// doors are the keys with which paired hubs take channels over Hyperswarm. They are
	// remembered when the cards have gone: a link that was cut for long comes back
	// before them.
	doors map[identity.PublicKey]string
	// misfits are announced agents, by the id among hubs, that have no place here, and why.
	misfits map[string]misfit
	fronts  map[agent.Tier]*front
	closed  bool

	tools tools
}

// misfit is another hub's agent that has no place here.
type misfit struct {
	local string // what it would be called
	why   error
}

// Open meets other hubs. It blocks until the NATS server, if the connection with one
// stands, lets hubs come, and for no other hub.
func Open(ctx context.Context, o Options) (*Network, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.PeerTier == agent.NoTier {
		o.PeerTier = agent.L2
	}
	pair, err := identity.Load(KeyPath(o.DataDir))
	if err != nil {
		return nil, err
	}
	read := stamp(AllowPath(o.DataDir)) // before, so that no change is missed
	allow, err := identity.OpenAllowList(AllowPath(o.DataDir))
	if err != nil {
		return nil, err
	}
	n := &Network{o: o, log: o.Logger, pair: pair, allow: allow, opened: make(chan struct{}), agents: make(map[string]*remote), misfits: make(map[string]misfit), fronts: make(map[agent.Tier]*front), ways: make(map[agent.Transport]carrier), tools: newTools()}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	if err := n.open(ctx); err != nil {
		n.cancel()
		return nil, errors.Join(err, n.leave(context.Background()))
	}
	w := n.node.Registry().Watch()
	n.wg.Go(func() { n.follow(n.ctx, w) })
	n.wg.Go(func() { n.watchAllowList(n.ctx, read) })
	return n, nil
}

// open makes the hub's node, with all ways to others.
func (n *Network) open(ctx context.Context) (err error) {
	ledger := &signedcard.Ledger{Author: signedcard.NewAuthor(n.pair, cardLife), Trusted: n.allow.Allowed, Logger: n.log}
	n.ledger = ledger
	at := &node.Network{
		Name:    func(id string) string { return signedcard.ID(id, n.pair.Public()) },
		Here:    n.here,
		Dialers: make(map[agent.Transport]transport.Dialer),
		Speaks:  n.speaks, RemoteTTL: cardLife, Closed: n.channelClosed,
	}
	if n.o.NATS != nil {
		err = n.openNATS(ctx, ledger, at)
	}
	if err == nil && n.o.Hyperswarm != nil {
		err = n.openDHT(*n.o.Hyperswarm, ledger, at)
	}
	if err != nil {
		for _, l := range at.Listeners {
			err = errors.Join(err, l.Close())
		}
		return err
	}
	at.Sources = map[string]registry.Source{"hubs": n.carriers}
	if n.node, err = node.Open(node.Options{
		Hub: n.o.Hub, Version: n.o.Version, PeerTier: n.o.PeerTier, CrossSandbox: n.o.CrossSandbox, Audit: n.o.Audit, Logger: n.log,
		Network: at,
	}); err != nil {
		return err
	}
	close(n.opened)
	if n.dht != nil {
		n.dht.follow(n)
	}
	return n.openFronts()
}

// openNATS meets those on the same NATS server.
func (n *Network) openNATS(ctx context.Context, ledger *signedcard.Ledger, at *node.Network) error {
	link := natslink.Options{Conn: n.o.NATS, Pair: n.pair, Prefix: n.o.Prefix}
	ctx, cancel := context.WithTimeout(ctx, listenTime)
	defer cancel()
	listener, err := natslink.Listen(ctx, natslink.ListenOptions{
		Options: link, Allow: n.allow.Allowed, Background: !n.o.NATS.IsConnected(), Logger: n.log,
	})
	if err != nil {
		return err
	}
	at.Listeners = append(at.Listeners, listener)
	at.Dialers[agent.TransportNATS] = &natslink.Dialer{Options: link}
	n.carry(agent.TransportNATS, &natscards.Source{Conn: n.o.NATS, Prefix: n.o.Prefix, Ledger: ledger})
	return nil
}

// carry adds a way for cards to travel.
func (n *Network) carry(way agent.Transport, c carrier) {
	n.carriers, n.ways[way] = append(n.carriers, c), c
}

// leave ends what open began.
func (n *Network) leave(ctx context.Context) error {
	var errs []error
	if n.node != nil {
		errs = append(errs, n.node.Close(ctx))
	}
	if n.dht != nil {
		errs = append(errs, n.dht.close())
	}
	return errors.Join(errs...)
}

// Key returns who this hub is.
func (n *Network) Key() identity.PublicKey { return n.pair.Public() }

// Node returns where other hubs' agents come in, for those who join cards to it.
func (n *Network) Node() *node.Node { return n.node }

// Public returns the address at which others reach the hub over Hyperswarm and find
// each other; invalid if there is none.
func (n *Network) Public() netip.AddrPort {
	if n.dht == nil {
		return netip.AddrPort{}
	}
	return n.dht.node.Public()
}

// Close leaves the network. Answers that are due are given, at most until ctx ends.
func (n *Network) Close(ctx context.Context) error {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.cancel()
	n.wg.Wait()
	n.closeTools()
	return n.leave(ctx)
}

// speaks lets a peer speak for its own agents only: their ids end in its key. Over
// Hyperswarm channels are taken under another one, which the cards name that are
// signed with the hub's.
func (n *Network) speaks(peer, id string) error {
	_, key, ok := signedcard.ParseID(id)
	if !ok || key.String() != peer && !n.takesChannels(key, id, peer) {
		return fmt.Errorf("%q is no agent of the hub %s", id, peer)
	}
	if !n.allow.Allowed(key) { // it was removed after it had connected
		return fmt.Errorf("the hub %s is not paired", key)
	}
	return nil
}

func (n *Network) takesChannels(hub identity.PublicKey, id, peer string) bool {
	n.mu.Lock()
	door := n.doors[hub]
	n.mu.Unlock()
	if door == peer {
		return true
	}
	select {
	case <-n.opened:
	default:
		return false // too early; the peer comes again
	}
	card, err := n.node.Registry().Get(id)
	return err == nil && slices.Contains(card.Endpoints, agent.Endpoint{Transport: agent.TransportHyperswarm, Address: peer})
}

// follow keeps the hub's agents in step with the cards of others.
func (n *Network) follow(ctx context.Context, w *registry.Watcher) {
	defer w.Close()
	n.compare(ctx)
	grace := time.NewTicker(graceTime / 10)
	defer grace.Stop()
	changes := n.tools.changes
	done := make(chan struct{})
	go func() { // ends with ctx
		defer close(done)
		for {
			if _, err := w.Next(ctx); err != nil {
				return
			}
			n.wake()
		}
	}()
	defer func() { <-done }()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changes:
		case <-grace.C:
		}
		n.compare(ctx)
	}
}

// compare registers agents that have come and takes out those that are gone for
// long, or whose hub is not paired any more. One goroutine calls it, and that of the
// allow-list's changes asks it to.
func (n *Network) compare(ctx context.Context) {
	names := make(map[identity.PublicKey]string)
	for _, e := range n.allow.Entries() {
		names[e.Key] = NameOf(e)
	}
	if n.o.Tools != nil {
		n.o.Tools.Reserve(slices.Collect(maps.Values(names)))
	}
	n.compareTools(names)
	here, doors := make(map[string]bool), make(map[identity.PublicKey]string)
	for _, card := range n.node.Registry().Remote() {
		name, key, ok := signedcard.ParseID(card.ID)
		peer, paired := names[key]
		if !ok || !paired {
			continue
		}
		for _, at := range card.Endpoints {
			if at.Transport == agent.TransportHyperswarm {
				doors[key] = at.Address
			}
		}
		if !runner.ValidID(name) || card.Tier < n.o.PeerTier {
			continue
		}
		here[card.ID] = true
		n.present(ctx, peer+"."+name, peer, card)
	}
	n.mu.Lock()
	for key, door := range n.doors {
		if _, paired := names[key]; paired && doors[key] == "" {
			doors[key] = door
		}
	}
	n.doors = doors
	maps.DeleteFunc(n.misfits, func(id string, _ misfit) bool { return !here[id] })
	n.mu.Unlock()
	for _, r := range n.all() {
		_, key, _ := signedcard.ParseID(r.id)
		if name, paired := names[key]; !paired || name != r.peer || !here[r.id] && r.missingFor() > graceTime {
			n.drop(ctx, r)
			continue
		}
		if r.turned() {
			n.check(ctx, r)
		}
	}
}

// here is what an agent among hubs is called at this one, whether it is there or not.
func (n *Network) here(id string) string {
	name, key, ok := signedcard.ParseID(id)
	switch {
	case !ok:
		return id
	case key == n.pair.Public():
		return name
	}
	for _, e := range n.allow.Entries() {
		if e.Key == key {
			return NameOf(e) + "." + name
		}
	}
	return id
}

// amongHubs is what agents of this hub are called among hubs: see [Network.here].
func (n *Network) amongHubs(ids []string) []string {
	known := make(map[string]string)
	for _, r := range n.all() {
		known[r.local] = r.id
	}
	all := make([]string, len(ids))
	for i, id := range ids {
		_, _, foreign := signedcard.ParseID(id)
		switch {
		case known[id] != "":
			all[i] = known[id]
		case foreign: // of a hub that is not paired with this one
			all[i] = id
		default:
			all[i] = signedcard.ID(id, n.pair.Public())
		}
	}
	return all
}

// check has the hub see now that an agent can work again, or no more, rather than with
// its next round: what is asked of it meanwhile would fail, or not be tried.
func (n *Network) check(ctx context.Context, r *remote) {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	if _, err := n.o.Hub.CheckHealth(ctx, r.local); err != nil && ctx.Err() == nil {
		n.log.Warn("another hub's agent cannot be examined", "agent", r.local, "error", err)
	}
}

func (n *Network) all() []*remote {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []*remote
	for _, r := range n.agents {
		all = append(all, r)
	}
	return all
}

// present registers another hub's agent with ours. One that is there already changes
// as its card has, under the turns that run.
func (n *Network) present(ctx context.Context, local, peer string, card agent.Card) {
	n.mu.Lock()
	old := n.agents[card.ID]
	n.mu.Unlock()
	if old != nil && old.local == local {
		if d, changed := old.update(card); changed {
			if err := n.o.Hub.Update(d); err != nil && ctx.Err() == nil {
				n.log.Warn("another hub's agent stays as it was here", "agent", local, "error", err)
			}
		}
		return
	}
	if old != nil {
		n.drop(ctx, old) // the peer is called something else now
	}
	r := &remote{n: n, id: card.ID, local: local, peer: peer}
	d, _ := r.update(card)
	err := n.o.Hub.Register(hub.Agent{Definition: d, Runner: r})
	n.mu.Lock()
	before := n.misfits[card.ID]
	if err == nil {
		delete(n.misfits, card.ID)
		n.agents[card.ID] = r
	} else {
		n.misfits[card.ID] = misfit{local, err}
	}
	n.mu.Unlock()
	switch {
	case err == nil:
		n.log.Info("another hub's agent is here", "agent", local, "peer", peer)
	case before.local != local: // it is tried again with each change
		n.log.Warn("another hub's agent has no place here", "agent", local, "error", err)
	}
}

func (n *Network) drop(ctx context.Context, r *remote) {
	n.mu.Lock()
	delete(n.agents, r.id)
	n.mu.Unlock()
	if err := n.o.Hub.Deregister(ctx, r.local); err != nil && ctx.Err() == nil {
		n.log.Warn("another hub's agent could not be taken out", "agent", r.local, "error", err)
	}
}

// watchAllowList follows what `peers pair` and `peers remove` write.
func (n *Network) watchAllowList(ctx context.Context, last string) {
	t := time.NewTicker(pollTime)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		n.offerTools()
		n.cutChannels() // also those that were being opened when a pairing ended
		now := stamp(AllowPath(n.o.DataDir))
		if now == last {
			continue
		}
		last = now
		if err := n.allow.Reload(); err != nil {
			n.log.Error("the allow-list stays as it was", "error", err)
			continue
		}
		n.obey()
	}
}

// stamp tells versions of a file apart.
func stamp(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	return fmt.Sprint(info.ModTime().UnixNano(), info.Size())
}

// obey ends what the allow-list no longer allows, and looks who is new.
func (n *Network) obey() {
	reg := n.node.Registry()
	for _, card := range reg.Remote() {
		if _, key, ok := signedcard.ParseID(card.ID); !ok || !n.allow.Allowed(key) {
			reg.Unregister(card.ID) // the follower of the registry takes out its agent
		}
	}
	n.cutChannels()
	if n.dht != nil {
		n.dht.follow(n)
	}
	ctx, cancel := context.WithTimeout(context.Background(), listenTime)
	defer cancel()
	// Who has just been paired is asked for its agents; nobody has this capability.
	_, _ = reg.Resolve(ctx, registry.Query{Capability: "~"}) // not found
	n.wake()                                                 // one may be called otherwise now, which changes no card
}

// cutChannels ends the channels with hubs that are not paired.
func (n *Network) cutChannels() {
	for _, c := range n.node.Channels().Channels() {
		if _, key, ok := signedcard.ParseID(c.RemoteAgent()); !ok || !n.allow.Allowed(key) {
			_ = c.Close() // returns nil
		}
	}
}

// channelClosed ends the turns that waited for somebody at the end of a channel.
func (n *Network) channelClosed(local, other string) {
	n.toolsLost(other)
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, f := range n.fronts {
		if f.id == local {
			f.lost(other)
		}
	}
}
