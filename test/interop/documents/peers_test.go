//go:build interop && linux

package documents_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/discovery/signedcard"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/federation/peers"
	"github.com/parleyhub/parley/internal/testbed"
)

// Two paired hubs run in their own processes on one NATS server. An agent of the first has a replica of the
// second's document, with the role that `parley doc share` gives it; another agent over HTTP and the command line
// edit the document, too, and its hub is killed meanwhile. In the end all have the same bytes with all values.
// An agent without a role does not get the document, even of a paired hub, and an agent whose role was removed
// cannot edit it any more.
func TestAnAgentOfAPeerEditsADocument(t *testing.T) {
	server := testbed.StartNATS(t)
	config := fmt.Sprintf("bus: {url: %q}\npeers: {enabled: true, hyperswarm: {enabled: false}}\n", server.URL())
	owner, other := newHub(t, "http://127.0.0.1", config), newHub(t, "http://127.0.0.1", config)
	ownKey, otherKey := owner.key(t), other.key(t)
	owner.parley(t, "peers", "pair", otherKey.Public().String(), "--name", "there")
	other.parley(t, "peers", "pair", ownKey.Public().String(), "--name", "here")

	owner.parley(t, "doc", "edit", "plan", "--set", "map.begun=true")
	mars := signedcard.ID("mars", otherKey.Public())
	owner.parley(t, "doc", "share", "plan", mars, "writer")
	owner.parley(t, "doc", "share", "plan", "venus", "writer")
	replicas := []*replica.Replica{
		keepPeersReplica(t, server.URL(), otherKey, "mars", ownKey.Public(), "plan").Replica,
		keepReplica(t, owner, "venus", "plan").Replica,
	}
	stranger := keepPeersReplica(t, server.URL(), otherKey, "pluto", ownKey.Public(), "plan")

	const edits = 40
	var all []string
	for round := range 2 {
		var writers sync.WaitGroup
		written := make([][]string, len(replicas))
		for i, r := range replicas {
			writers.Go(func() { written[i] = appendAll(t, r, fmt.Sprintf("replica%d-%d", i, round), edits) })
		}
		byHand := fmt.Sprintf("by hand %d", round)
		owner.parley(t, "doc", "edit", "plan", fmt.Sprintf(`[{"op":"insert","path":["list"],"values":[%q]}]`, byHand))
		if round == 0 {
			owner.kill(t)
			owner.start(t)
		}
		writers.Wait()
		all = append(all, byHand)
		all = append(all, slices.Concat(written...)...)
	}
	wait.Eventually(t, "the hub has everything", func() bool { return missing(all, owner.content(t, "plan").List) == nil })
	wait.Eventually(t, "the agents have the same bytes", func() bool { return bytesOf(t, replicas[0]) == bytesOf(t, replicas[1]) })
	if list := owner.content(t, "plan").List; len(list) != len(all) {
		t.Errorf("the hub has %d values, of %d that were written", len(list), len(all))
	}
	if err := stranger.View(t.Context(), func(d *crdt.Doc) {
		if d.Items() != 0 {
			t.Error("an agent without a role has the document")
		}
	}); err != nil {
		t.Fatal(err)
	}

	owner.parley(t, "doc", "share", "plan", mars, "reader")
	owner.parley(t, "doc", "edit", "plan", "--text", "text=for readers")
	wait.Eventually(t, "a reader hears of changes", func() bool {
		var text string
		if err := replicas[0].View(t.Context(), func(d *crdt.Doc) { text = d.Text("text").String() }); err != nil {
			t.Fatal(err)
		}
		return text == "for readers"
	})
	wait.Eventually(t, "a reader that writes hears that it must not", func() bool {
		err := replicas[0].Edit(t.Context(), func(d *crdt.Doc) error { return d.Array("list").Append("not mine to write") })
		var e *replica.Error
		return errors.As(err, &e) && e.Code == replica.CodeRefused
	})
	if list := owner.content(t, "plan").List; len(list) != len(all) {
		t.Errorf("the hub has %d values, of %d that were written", len(list), len(all))
	}
}

// key returns the hub's identity for other hubs.
func (h *hub) key(t *testing.T) *identity.Pair {
	t.Helper()
	pair, err := identity.Load(peers.KeyPath(filepath.Join(h.home.Dir, "hub")))
	if err != nil {
		t.Fatal(err)
	}
	return pair
}
