package signedcard_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/registry"
)

// heard is a registry of what a ledger finds.
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

// Req 1.7: what one hub says of its agents another one finds, and what nobody who is
// trusted said it does not.
func TestALedgerHearsWhatAnotherSays(t *testing.T) {
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
		t.Error("nobody is told")
	}
	if at, refused := there.LastSeen(alice.Public()); at.IsZero() || refused != nil {
		t.Errorf("%v, %v", at, refused)
	}
	if !slices.Equal(here.Agents(), []string{echo.ID}) || !slices.Equal(here.Capabilities(), []string{"work"}) {
		t.Errorf("%v, %v", here.Agents(), here.Capabilities())
	}
	if again := must(here.Statement(echo.ID)); !there.Receive(alice.Public(), again, got.sink) {
		t.Error("what is said again is not heard")
	}
	there.Receive(alice.Public(), first, got.sink) // older: it counts as a sign of life, not as news
	if len(got.Remote()) != 1 || got.Remote()[0].ID != echo.ID {
		t.Errorf("found %v", got.Remote())
	}

	theirs := must(signedcard.NewAuthor(bob, time.Minute).State(card("other", bob)))
	if there.Receive(alice.Public(), theirs, got.sink) || there.Receive(bob.Public(), theirs, got.sink) {
		t.Error("a carrier speaks for another, or a hub hears itself")
	}
	if _, refused := there.LastSeen(alice.Public()); refused == nil {
		t.Error("it is not told why it was refused")
	}
	carol := identity.FromSeed([32]byte{3})
	if there.Receive(carol.Public(), must(signedcard.NewAuthor(carol, time.Minute).State(card("x", carol))), got.sink) {
		t.Error("a stranger is heard")
	}
	if there.Receive(alice.Public(), []byte("{"), got.sink) {
		t.Error("noise is heard")
	}
	if len(got.Remote()) != 1 || got.Remote()[0].ID != echo.ID {
		t.Errorf("found %v", got.Remote())
	}

	there.Receive(alice.Public(), must(here.Withdraw(echo.ID)), got.sink)
	if len(got.Remote()) != 0 || len(here.Agents()) != 0 {
		t.Errorf("left %v, %v", got.Remote(), here.Agents())
	}
	gone := must(here.Statement(echo.ID))
	if s, err := signedcard.Open(gone, nil); err != nil || s.Withdrawn != echo.ID {
		t.Errorf("%+v, %v", s, err)
	}
}
