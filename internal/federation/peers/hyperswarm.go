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

// Hyperswarm are the options of connections without a shared server.
type Hyperswarm struct {
	// Listen is the address of the UDP socket; the zero value means Public's port, or any port, on all interfaces.
	Listen netip.AddrPort
	// Public is the hub's public IPv4 address, if it has one. It makes the hub a node
	// of the DHT, by which other hubs find each other.
	Public netip.AddrPort
	// Bootstrap are nodes of the DHT, as host:port, in addition to the addresses in the allow-list.
	Bootstrap []string
	// Network and Capabilities are those of [hyperswarmcards.Source].
	Network      string
	Capabilities bool
	// Relay makes the hub a relay for paired hubs that cannot connect to each other
	// directly. They name its [RelayKey] in their Relays.
	Relay  bool
	Relays []identity.PublicKey
}

// A key can have one listener: the hub's own is for the swarm, which exchanges cards;
// channels and the relay have keys derived from it.
const (
	channelsPurpose = "parley channels"
	relayPurpose    = "parley relay"
)

// ChannelsKey returns the key under which a hub accepts channels over Hyperswarm. It is
// also in the hub's signed cards.
func ChannelsKey(pair *identity.Pair) identity.PublicKey {
	return pair.Derive(channelsPurpose).Public()
}

// RelayKey returns the key of a hub's relay.
func RelayKey(pair *identity.Pair) identity.PublicKey { return pair.Derive(relayPurpose).Public() }

// maxHubs bounds the connections with other hubs.
const maxHubs = 1024

// dht holds what a hub runs on Hyperswarm.
type dht struct {
	node   *hyperdht.Node
	swarm  *swarm.Swarm
	cards  *hyperswarmcards.Source
	relay  *relay.Server // nil unless the hub is a relay
	always []string      // configured bootstrap nodes
}

// openDHT joins the DHT and adds its listener, dialer and source. It does not wait for other nodes.
func (p *Peers) openDHT(o Hyperswarm, at *node.Federation) (err error) {
	stream := secretstream.Options{MaxMessage: max(new(transport.Codec).MaxMessage(), signedcard.MaxSize)}
	if !o.Listen.IsValid() {
		o.Listen = netip.AddrPortFrom(netip.IPv4Unspecified(), o.Public.Port())
	}
	d := &dht{always: o.Bootstrap}
	if d.node, err = hyperdht.Listen(hyperdht.Options{
		Listen: o.Listen, Public: o.Public, Bootstrap: p.bootstrap(o.Bootstrap), Pair: p.pair, Stream: stream, Logger: p.log,
	}); err != nil {
		return err
	}
	p.dht = d
	channels := p.pair.Derive(channelsPurpose)
	listener, err := hyperswarm.Listen(p.ctx, hyperswarm.ListenOptions{
		Node: d.node, Pair: channels, Allow: p.allow.Allowed, Relays: o.Relays, Background: true, Logger: p.log,
	})
	if err != nil {
		return err
	}
	at.Listeners = append(at.Listeners, listener)
	at.Dialers[agent.TransportHyperswarm] = &hyperswarm.Dialer{Node: d.node, Relays: o.Relays}
	if o.Relay {
		l, err := d.node.Listen(hyperdht.ListenOptions{Pair: p.pair.Derive(relayPurpose), Allow: p.mayRelay})
		if err != nil {
			return err
		}
		d.relay = relay.Serve(l, relay.ServerOptions{Logger: p.log})
	}
	d.swarm = swarm.New(swarm.Options{
		Node: d.node, Allow: p.allow.Allowed, Relays: o.Relays, Stream: stream, MaxPeers: maxHubs, Logger: p.log,
	})
	d.cards = &hyperswarmcards.Source{Swarm: d.swarm, Ledger: p.ledger, Network: o.Network, Capabilities: o.Capabilities, Logger: p.log}
	p.sources[agent.TransportHyperswarm] = d.cards
	return nil
}

// bootstrap returns the bootstrap nodes: the configured ones and the allow-list's.
func (p *Peers) bootstrap(always []string) []string {
	all := slices.Clone(always)
	for _, e := range p.allow.Entries() {
		if e.Address != "" && !slices.Contains(all, e.Address) {
			all = append(all, e.Address)
		}
	}
	return all
}

// mayRelay reports whether a key may use the relay: a paired hub's, or one of their channel keys.
func (p *Peers) mayRelay(key identity.PublicKey) bool {
	if p.allow.Allowed(key) {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for hub, channels := range p.channelKeys {
		if channels == key.String() && p.allow.Allowed(hub) { // a removed hub can still be listed
			return true
		}
	}
	return false
}

// apply applies the allow-list.
func (d *dht) apply(p *Peers) {
	if err := d.node.SetBootstrap(p.bootstrap(d.always)); err != nil {
		p.log.Warn("cannot use the peers' addresses", "error", err)
	}
	var paired []identity.PublicKey
	for _, e := range p.allow.Entries() {
		paired = append(paired, e.Key)
	}
	d.cards.KeepConnected(paired)
	if d.relay != nil {
		d.relay.Recheck(p.mayRelay)
	}
}

// close leaves the DHT. Close the registry and the channels first.
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
