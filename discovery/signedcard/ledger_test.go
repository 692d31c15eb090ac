package signedcard_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/registry"
)

// heard collects the cards that a ledger finds.
type heard struct {
	*registry.Registry
	sink registry.Sink
	open chan struct{}
}

// Discover implements registry.Source.
func (h *heard) Discover(ctx context.Context, sink registry.Sink) error {
	h.sink = sink
	close(h.open)
	<-ctx.Done()
	return nil
}

func newHeard(t *testing.T) *heard {
	t.Helper()
	h := &heard{Registry: registry.New(registry.Options{}), open: make(chan struct{})}
	t.Cleanup(func() { h.Close() })
	if err := h.EnableDiscovery("ledger", h); err != nil {
		t.Fatal(err)
	}
	<-h.open
	return h
}

func said(t *testing.T) func(data []byte, err error) []byte {
	return func(data []byte, err error) []byte {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
}

// Req 1.7: a ledger accepts statements of trusted hubs about their own agents, and no others.
func TestLedgerAcceptsStatementsOfTrustedHubs(t *testing.T) {
	must, got := said(t), newHeard(t)
	trusted := func(k identity.PublicKey) bool { return k == alice.Public() }
	here := &signedcard.Ledger{Author: signedcard.NewAuthor(alice, time.Minute)}
	there := &signedcard.Ledger{Author: signedcard.NewAuthor(bob, time.Minute), Trusted: trusted}
	echo := card("echo", alice)
	first := must(here.Announce(echo))
	news := there.Found()
	if !there.Receive(alice.Public(), first, got.sink) || len(got.Remote()) != 1 {
		t.Fatalf("found %v", got.Remote())
	}
	select {
	case <-news:
	default:
		t.Error("Found was not signaled")
	}
	if at, refused := there.LastSeen(alice.Public()); at.IsZero() || refused != nil {
		t.Errorf("%v, %v", at, refused)
	}
	if !slices.Equal(here.Agents(), []string{echo.ID}) || !slices.Equal(here.Capabilities(), []string{"work"}) {
		t.Errorf("%v, %v", here.Agents(), here.Capabilities())
	}
	if again := must(here.Statement(echo.ID)); !there.Receive(alice.Public(), again, got.sink) {
		t.Error("a repeated statement does not count as a sign of life")
	}
	there.Receive(alice.Public(), first, got.sink) // older: it is a sign of life, but changes no card
	if len(got.Remote()) != 1 || got.Remote()[0].ID != echo.ID {
		t.Errorf("found %v", got.Remote())
	}

	theirs := must(signedcard.NewAuthor(bob, time.Minute).State(card("other", bob)))
	if there.Receive(alice.Public(), theirs, got.sink) || there.Receive(bob.Public(), theirs, got.sink) {
		t.Error("a statement for another hub, or the ledger's own, was accepted")
	}
	if _, refused := there.LastSeen(alice.Public()); refused == nil {
		t.Error("LastSeen does not return why the statement was refused")
	}
	carol := identity.FromSeed([32]byte{3})
	if there.Receive(carol.Public(), must(signedcard.NewAuthor(carol, time.Minute).State(card("x", carol))), got.sink) {
		t.Error("a statement of an untrusted hub was accepted")
	}
	if there.Receive(alice.Public(), []byte("{"), got.sink) {
		t.Error("invalid bytes were accepted")
	}
	if len(got.Remote()) != 1 || got.Remote()[0].ID != echo.ID {
		t.Errorf("found %v", got.Remote())
	}

	there.Receive(alice.Public(), must(here.Withdraw(echo.ID)), got.sink)
	if len(got.Remote()) != 0 || len(here.Agents()) != 0 {
		t.Errorf("%v and %v remain", got.Remote(), here.Agents())
	}
	gone := must(here.Statement(echo.ID))
	if s, err := signedcard.Open(gone, nil); err != nil || s.Withdrawn != echo.ID {
		t.Errorf("%+v, %v", s, err)
	}
}

// Req 1.7: a hub's agents have ids with or without the hub's key. Two of them that would be one between hubs are refused,
// and nothing is announced of an agent with another hub's key.
func TestAnnouncedIdsGetTheHubsKey(t *testing.T) {
	must, got := said(t), newHeard(t)
	here := &signedcard.Ledger{Author: signedcard.NewAuthor(alice, time.Minute)}
	there := &signedcard.Ledger{Author: signedcard.NewAuthor(bob, time.Minute), Trusted: func(identity.PublicKey) bool { return true }}
	plain := func(id string) agent.Card {
		return agent.Card{ID: id, Name: "x", Version: "1", Tier: agent.L3, Capabilities: []agent.Capability{}}
	}
	long := strings.Repeat("v", agent.MaxIDLength)
	for _, id := range []string{"venus", "venus@earth", "ä", long} {
		data := must(here.Announce(plain(id)))
		global := signedcard.ID(id, alice.Public())
		if _, err := got.Get(global); !there.Receive(alice.Public(), data, got.sink) || err == nil {
			t.Fatalf("%s was known before", id)
		}
		if _, err := got.Get(global); err != nil {
			t.Error(err)
		}
		if _, err := here.Announce(plain(global)); signedcard.CodeOf(err) != signedcard.CodeTaken {
			t.Errorf("a second agent with the id %s: %v", global, err)
		}
		if !there.Receive(alice.Public(), must(here.Withdraw(id)), got.sink) {
			t.Errorf("the withdrawal of %s is refused", id)
		}
		must(here.Announce(plain(global)))
		if _, err := here.Announce(plain(id)); signedcard.CodeOf(err) != signedcard.CodeTaken {
			t.Errorf("a second agent with the id %s: %v", id, err)
		}
		must(here.Withdraw(global))
	}
	if _, err := here.Announce(plain(signedcard.ID("venus", bob.Public()))); signedcard.CodeOf(err) != signedcard.CodeForged {
		t.Errorf("another hub's agent: %v", err)
	}
	if left, known := here.Agents(), got.Remote(); len(left) != 0 || len(known) != 0 {
		t.Errorf("announced %v, found %v", left, known)
	}
}
