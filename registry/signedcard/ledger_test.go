package signedcard_test

import (
	"slices"
	"testing"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/registry/signedcard"
	"github.com/parleyhub/parley/transport/hyperswarm/keys"
)

// sink notes what a ledger finds.
type sink struct{ found, lost []string }

func (s *sink) Found(c agent.Card) error { s.found = append(s.found, c.ID); return nil }
func (s *sink) Lost(id string)           { s.lost = append(s.lost, id) }

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
	must, got := said(t), new(sink)
	trusted := func(k keys.PublicKey) bool { return k == alice.Public() }
	here := &signedcard.Ledger{Author: signedcard.NewAuthor(alice, time.Minute)}
	there := &signedcard.Ledger{Author: signedcard.NewAuthor(bob, time.Minute), Trusted: trusted}
	echo := card("echo", alice)
	first := must(here.Announce(echo))
	news := there.Found()
	if !there.Hear(alice.Public(), first, got) || !slices.Equal(got.found, []string{echo.ID}) {
		t.Fatalf("found %v", got.found)
	}
	select {
	case <-news:
	default:
		t.Error("nobody is told")
	}
	if at, refused := there.Heard(alice.Public()); at.IsZero() || refused != nil {
		t.Errorf("%v, %v", at, refused)
	}
	if !slices.Equal(here.Agents(), []string{echo.ID}) || !slices.Equal(here.Capabilities(), []string{"work"}) {
		t.Errorf("%v, %v", here.Agents(), here.Capabilities())
	}
	if again := must(here.Statement(echo.ID)); !there.Hear(alice.Public(), again, got) {
		t.Error("what is said again is not heard")
	}
	there.Hear(alice.Public(), first, got) // older: it counts as a sign of life, not as news
	if len(got.found) != 2 {
		t.Errorf("found %v", got.found)
	}

	theirs := must(signedcard.NewAuthor(bob, time.Minute).State(card("other", bob)))
	if there.Hear(alice.Public(), theirs, got) || there.Hear(bob.Public(), theirs, got) {
		t.Error("a carrier speaks for another, or a hub hears itself")
	}
	if _, refused := there.Heard(alice.Public()); refused == nil {
		t.Error("it is not told why it was refused")
	}
	carol := keys.FromSeed([32]byte{3})
	if there.Hear(carol.Public(), must(signedcard.NewAuthor(carol, time.Minute).State(card("x", carol))), got) {
		t.Error("a stranger is heard")
	}
	if there.Hear(alice.Public(), []byte("{"), got) {
		t.Error("noise is heard")
	}
	if len(got.found) != 2 {
		t.Errorf("found %v", got.found)
	}

	there.Hear(alice.Public(), must(here.Withdraw(echo.ID)), got)
	if !slices.Equal(got.lost, []string{echo.ID}) || len(here.Agents()) != 0 {
		t.Errorf("lost %v, left %v", got.lost, here.Agents())
	}
	gone := must(here.Statement(echo.ID))
	if s, err := signedcard.Open(gone, nil); err != nil || s.Withdrawn != echo.ID {
		t.Errorf("%+v, %v", s, err)
	}
}
