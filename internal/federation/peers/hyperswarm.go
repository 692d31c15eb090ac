package peers

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/parleyhub/parley/agent"
	hyperswarmcards "github.com/parleyhub/parley/discovery/hyperswarm"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/hyperswarm/relay"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/hyperswarm/swarm"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/federation/node"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/hyperswarm"
)

// Hyperswarm is how a hub meets others without a server that all share.
type Hyperswarm struct {
	// Listen is where the UDP socket is bound; the zero value means Public's port, or
	// any, of all interfaces.
	Listen netip.AddrPort
	// Public is the IPv4 address at which everybody reaches the hub, if there is one. It
	// then is a node of the DHT: others find each other by it.
	Public netip.AddrPort
	// Bootstrap are nodes of the DHT, as host:port, besides the addresses in the
	// allow-list.
	Bootstrap []string
	// Network and Capabilities are those of [hyperswarmcards.Source].
	Network      string
	Capabilities bool
	// Relay has the hub forward between hubs that have paired with it and find no path
	// to each other. They name it by [RelayKey] in their Relays.
	Relay  bool
	Relays []identity.PublicKey
}

// A key can be listened on once: the hub's own is that of the swarm, which exchanges
// cards; channels and relayed paths have keys that follow from it.
const (
	channelsPurpose = "parley channels"
	relayPurpose    = "parley relay"
)

// ChannelsKey is the key with which a hub takes channels over Hyperswarm. Its signed cards tell it, too.
func ChannelsKey(pair *identity.Pair) identity.PublicKey {
	return pair.Derive(channelsPurpose).Public()
}

// RelayKey is the key of the relay that a hub with an identity can be.
func RelayKey(pair *identity.Pair) identity.PublicKey { return pair.Derive(relayPurpose).Public() }

// maxHubs bounds the hubs that this one is connected with.
const maxHubs = 1024

// dht is a hub's part in a Hyperswarm.
type dht struct {
	node   *hyperdht.Node
	swarm  *swarm.Swarm
	cards  *hyperswarmcards.Source
	relay  *relay.Server // nil for a hub that is none
	always []string      // bootstrap nodes of the configuration
}

// openDHT joins the DHT and adds what it offers to the node's network. It does not
// wait for anybody.
func (n *Network) openDHT(o Hyperswarm, ledger *signedcard.Ledger, at *node.Network) (err error) {
	stream := secretstream.Options{MaxMessage: max(new(transport.Codec).MaxMessage(), signedcard.MaxSize)}
	if !o.Listen.IsValid() {
		o.Listen = netip.AddrPortFrom(netip.IPv4Unspecified(), o.Public.Port())
	}
	d := &dht{always: o.Bootstrap}
	if d.node, err = hyperdht.Listen(hyperdht.Options{
		Listen: o.Listen, Public: o.Public, Bootstrap: n.bootstrap(o.Bootstrap), Pair: n.pair, Stream: stream, Logger: n.log,
	}); err != nil {
		return err
	}
	n.dht = d
	channels := n.pair.Derive(channelsPurpose)
	listener, err := hyperswarm.Listen(n.ctx, hyperswarm.ListenOptions{
		Node: d.node, Pair: channels, Allow: n.allow.Allowed, Relays: o.Relays, Background: true, Logger: n.log,
	})
	if err != nil {
		return err
	}
	at.Listeners = append(at.Listeners, listener)
	at.Dialers[agent.TransportHyperswarm] = &hyperswarm.Dialer{Node: d.node, Relays: o.Relays}
	if o.Relay {
		l, err := d.node.Listen(hyperdht.ListenOptions{Pair: n.pair.Derive(relayPurpose), Allow: n.mayRelay})
		if err != nil {
			return err
		}
		d.relay = relay.Serve(l, relay.ServerOptions{Logger: n.log})
	}
	d.swarm = swarm.New(swarm.Options{
		Node: d.node, Allow: n.allow.Allowed, Relays: o.Relays, Stream: stream, MaxPeers: maxHubs, Logger: n.log,
	})
	d.cards = &hyperswarmcards.Source{Swarm: d.swarm, Ledger: ledger, Network: o.Network, Capabilities: o.Capabilities, Logger: n.log}
	n.carry(agent.TransportHyperswarm, d.cards)
	return nil
}

// bootstrap returns the nodes of the DHT to begin with.
func (n *Network) bootstrap(always []string) []string {
	all := slices.Clone(always)
	for _, e := range n.allow.Entries() {
		if e.Address != "" && !slices.Contains(all, e.Address) {
			all = append(all, e.Address)
		}
	}
	return all
}

// mayRelay lets paired hubs use the relay, under the keys as well that they take
// channels with.
func (n *Network) mayRelay(key identity.PublicKey) bool {
	if n.allow.Allowed(key) {
		return true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for hub, door := range n.doors {
		if door == key.String() && n.allow.Allowed(hub) { // it may have been removed just now
			return true
		}
	}
	return false
}

// follow keeps connections with those that the allow-list has now.
func (d *dht) follow(n *Network) {
	if err := d.node.SetBootstrap(n.bootstrap(d.always)); err != nil {
		n.log.Warn("the peers' addresses cannot be used", "error", err)
	}
	var paired []identity.PublicKey
	for _, e := range n.allow.Entries() {
		paired = append(paired, e.Key)
	}
	d.cards.KeepConnected(paired)
	if d.relay != nil {
		d.relay.Recheck(n.mayRelay)
	}
}

// close leaves the DHT, after the registry and the channels.
func (d *dht) close() error {
	var errs []error
	if d.swarm != nil {
		errs = append(errs, d.swarm.Close())
	}
	if d.relay != nil {
		errs = append(errs, d.relay.Close())
	}
	return errors.Join(append(errs, d.node.Close())...)
}
