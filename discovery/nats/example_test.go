package nats_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/agent"
	natscards "github.com/parleyhub/parley/discovery/nats"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/registry"
)

// Two programs on one NATS server: alice announces an agent, and bob, who trusts
// alice's key, finds it.
func Example() {
	url, stop := startNATS()
	defer stop()
	alice, bob := identity.Generate(), identity.Generate()

	announcing, leave, err := discover(url, alice, bob.Public())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer leave()
	finding, leave, err := discover(url, bob, alice.Public())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer leave()

	changes := finding.Watch()
	defer changes.Close()
	if _, err := announcing.Register(agent.Card{
		ID: signedcard.ID("summarizer", alice.Public()), Name: "Summarizer", Version: "1", Tier: agent.L3,
		Capabilities: []agent.Capability{{ID: "summarize", Name: "Summarize"}},
	}); err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	change, err := changes.Next(ctx)
	fmt.Println(change.Card.Name, change.Card.Origin, err)
	// Output: Summarizer remote <nil>
}

// discover returns a registry that announces its agents on a NATS server, signed by
// pair, and finds those of the trusted key.
func discover(url string, pair *identity.Pair, trusted identity.PublicKey) (_ *registry.Registry, leave func(), err error) {
	nc, err := nats.Connect(url)
	if err != nil {
		return nil, nil, err
	}
	const lifetime = time.Minute
	cards := registry.New(registry.Options{RemoteTTL: lifetime})
	leave = func() {
		_ = cards.Close() // withdraws the agents
		nc.Close()
	}
	if err := cards.EnableDiscovery("nats", &natscards.Source{Conn: nc, Ledger: &signedcard.Ledger{
		Author:  signedcard.NewAuthor(pair, lifetime),
		Trusted: func(key identity.PublicKey) bool { return key == trusted },
	}}); err != nil {
		leave()
		return nil, nil, err
	}
	return cards, leave, nil
}

// startNATS runs a NATS server in this process. Programs usually share a separate
// server.
func startNATS() (url string, stop func()) {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true})
	if err != nil {
		panic(err)
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		panic(errors.New("the NATS server does not start"))
	}
	return s.ClientURL(), func() {
		s.Shutdown()
		s.WaitForShutdown()
	}
}
