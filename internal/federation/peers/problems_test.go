package peers

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/identity"
)

// The problems of a hub's agents are joined in one line, as lists and doctor show it.
func TestProblemsOfSeveralAgents(t *testing.T) {
	bob, carol := identity.Generate().Public(), identity.Generate().Public()
	taken := errors.New("it is taken")
	n := &Peers{rejected: map[string]rejection{
		signedcard.ID("b", bob): {"bob.b", taken}, signedcard.ID("a", bob): {"bob.a", taken}, signedcard.ID("c", carol): {"carol.c", taken},
	}}
	problems := n.problems()
	const want = "its agent cannot be registered here as bob.a: it is taken; its agent cannot be registered here as bob.b: it is taken"
	if got := problems[bob]; got == nil || got.Error() != want || !errors.Is(got, taken) {
		t.Errorf("the problem of bob: %v", got)
	}
	if got := problems[carol]; got == nil || got.Error() != "its agent cannot be registered here as carol.c: it is taken" {
		t.Errorf("the problem of carol: %v", got)
	}
}

// Removing a hub does not affect a paired hub that names the same channel key.
//
// WIRE-REMOVED.
func TestARemovedHubDoesNotBlockTheRelayForOthers(t *testing.T) {
	list, err := identity.OpenAllowList(filepath.Join(t.TempDir(), "peers"))
	if err != nil {
		t.Fatal(err)
	}
	paired, relayKey := identity.Generate().Public(), identity.Generate().Public()
	if err := list.Add(identity.Entry{Key: paired}); err != nil {
		t.Fatal(err)
	}
	n := &Peers{allow: list, channelKeys: map[identity.PublicKey]string{paired: relayKey.String()}}
	for range 8 {
		n.channelKeys[identity.Generate().Public()] = relayKey.String()
	}
	for range 20 { // maps are iterated in random order
		if !n.mayRelay(relayKey) {
			t.Fatal("the relay key of a paired hub is refused")
		}
	}
	delete(n.channelKeys, paired)
	if n.mayRelay(relayKey) {
		t.Error("the relay key of removed hubs is accepted")
	}
}
