//go:build unix

package cli_test

import (
	"os"
	"strings"
	"testing"

	"github.com/parleyhub/parley/identity"
)

// Pairing works whether or not a hub runs; the list is empty at first.
func TestPeersArePairedAndRemoved(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	type peer struct{ Name, Key, Address string }
	type list struct {
		Key, RelayKey string
		Peers         []peer
	}
	all := func() list { return decode[list](t, p.run(t, "peers", "list", "--format", "json")) }
	first := all()
	if _, err := identity.ParsePublicKey(first.Key); err != nil || len(first.Peers) != 0 {
		t.Fatalf("%+v, %v", first, err)
	}
	bob, carol := identity.Generate().Public().String(), identity.Generate().Public().String()
	if o := p.run(t, "peers", "pair", bob, "--name", "bob"); o.code != 0 || !strings.Contains(o.stderr, first.Key) {
		t.Errorf("%+v", o)
	}
	for name, args := range map[string][]string{
		"no key": {"pair", "hello"}, "its own key": {"pair", first.Key}, "a taken name": {"pair", carol, "--name", "bob"},
		"a name that is no prefix of ids": {"pair", carol, "--name", "Carol's hub"}, "nobody": {"remove", "dave"}, "no address": {"pair", carol, "--at", "carol.example.org"}, "a flag": {"remove"},
	} {
		if o := p.run(t, append([]string{"peers"}, args...)...); o.code != 2 {
			t.Errorf("%s: %+v", name, o)
		}
	}
	want(t, p.run(t, "peers", "pair", carol, "--at", "carol.example.org:49737"), 0, "paired with "+carol[:8]+"\n")
	at := map[string]string{}
	for _, peer := range all().Peers {
		at[peer.Key] = peer.Address
	}
	if at[carol] != "carol.example.org:49737" || at[bob] != "" {
		t.Errorf("%v", at)
	}
	if got := all(); got.Key != first.Key || got.RelayKey == got.Key || len(got.Peers) != 2 {
		t.Errorf("%+v", got)
	}
	if o := p.run(t, "peers", "list"); !strings.Contains(o.stdout, "bob") || !strings.Contains(o.stdout, carol+"  carol.example.org:49737") {
		t.Errorf("%+v", o)
	}
	want(t, p.run(t, "peers", "remove", "bob"), 0, "removed bob\n")
	want(t, p.run(t, "peers", "remove", carol), 0, "removed "+carol[:8]+"\n")
	if got := all(); len(got.Peers) != 0 {
		t.Errorf("%+v", got)
	}
}

// The list has the status of each peer, or the reason why it is unknown.
func TestPeersListHasTheirStatus(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	p.stopAtEnd(t)
	bob := identity.Generate().Public().String()
	want(t, p.run(t, "peers", "pair", bob, "--name", "bob"), 0, "paired with bob\n")
	if o := p.run(t, "peers", "list"); o.code != 0 || !strings.Contains(o.stderr, "the hub is not running") {
		t.Errorf("%+v", o)
	}
	type list struct {
		Running bool
		Peers   []struct {
			Name   string
			Status *struct {
				Connected bool
				Via       []string
				Agents    []string
				LastHeard string
			}
		}
	}
	if l := decode[list](t, p.run(t, "peers", "list", "--format", "json")); l.Running || l.Peers[0].Status != nil {
		t.Errorf("%+v", l)
	}
	want(t, p.process(t, "start"), 0, "The hub is running")
	if o := p.run(t, "peers", "list"); o.code != 0 || !strings.Contains(o.stderr, "peers.enabled") {
		t.Errorf("a hub without peers: %+v", o)
	}
	if o := p.process(t, "stop"); o.code != 0 {
		t.Fatalf("%+v", o)
	}
	addSettings(t, p, "peers: {enabled: true, hyperswarm: {listen: '127.0.0.1:0'}}\n")
	want(t, p.process(t, "start"), 0, "The hub is running")
	if o := p.run(t, "peers", "list"); o.code != 0 || !strings.Contains(o.stdout, "down, not seen since this hub started") {
		t.Errorf("%+v", o)
	}
	l := decode[list](t, p.run(t, "peers", "list", "--format", "json"))
	if s := l.Peers[0].Status; !l.Running || s == nil || s.Connected || s.LastHeard != "" || s.Via == nil || s.Agents == nil {
		t.Errorf("%+v", l)
	}
}

// addSettings appends to the configuration of p.
func addSettings(t *testing.T, p setup, yaml string) {
	t.Helper()
	f, err := os.OpenFile(p.dir+"/config.yaml", os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("\n" + yaml); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
