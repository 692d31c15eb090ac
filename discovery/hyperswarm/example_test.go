package hyperswarm_test

import (
	"context"
	"fmt"
	"time"

	"github.com/parleyhub/parley/agent"
	hyperswarmcards "github.com/parleyhub/parley/discovery/hyperswarm"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/hyperswarm/swarm"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/registry"
)

// A program that announces an agent to one other hub over Hyperswarm, and prints the
// agents of that hub. It needs the address of a node of the DHT and the hub's key.
func Example() {
	if err := announce("dht.example.org:49737", "4c5a…"); err != nil {
		fmt.Println(err)
	}
}

func announce(bootstrap, peerKey string) (err error) {
	peer, err := identity.ParsePublicKey(peerKey)
	if err != nil {
		return err
	}
	pair, err := identity.Load("peer.key") // created on the first run
	if err != nil {
		return err
	}
	trusted := func(key identity.PublicKey) bool { return key == peer }
	stream := secretstream.Options{MaxMessage: signedcard.MaxSize}
	node, err := hyperdht.Listen(hyperdht.Options{Bootstrap: []string{bootstrap}, Pair: pair, Stream: stream})
	if err != nil {
		return err
	}
	defer func() { _ = node.Close() }()
	connections := swarm.New(swarm.Options{Node: node, Allow: trusted, Stream: stream})
	defer func() { _ = connections.Close() }()

	source := &hyperswarmcards.Source{Swarm: connections, Ledger: &signedcard.Ledger{
		Author: signedcard.NewAuthor(pair, time.Minute), Trusted: trusted,
	}}
	source.KeepConnected([]identity.PublicKey{peer})
	cards := registry.New(registry.Options{RemoteTTL: time.Minute})
	defer func() { _ = cards.Close() }() // before the swarm, so that the agent is withdrawn
	if err := cards.EnableDiscovery("hyperswarm", source); err != nil {
		return err
	}
	if _, err := cards.Register(agent.Card{
		ID: "summarizer", Name: "Summarizer", Version: "1", Tier: agent.L3,
		Capabilities: []agent.Capability{{ID: "summarize", Name: "Summarize"}},
	}); err != nil {
		return err
	}
	changes := cards.Watch()
	defer changes.Close()
	for {
		change, err := changes.Next(context.Background())
		if err != nil {
			return err
		}
		if change.Card.Origin == agent.Remote {
			fmt.Println(change.Kind, change.Card.Name)
		}
	}
}
