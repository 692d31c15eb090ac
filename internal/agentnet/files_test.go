package agentnet_test

import (
	"testing"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/claims"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

// Claims are those of a computer: all its agents and its person see the same.
func TestClaimsOfAComputer(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	project := t.TempDir()
	agent := func(name string) (*agentnet.Network, *agentnet.Agent) {
		cfg := n.Host("here", "ann", "shop")
		cfg.ProjectPath = project
		network := nettest.Open(t, cfg)
		return network, nettest.Register(t, network, registry.Registration{Handle: name, AgentType: name, Scope: registry.ScopeProject})
	}
	network, ann := agent("ann")
	_, bob := agent("bob")
	held, err := ann.ClaimFiles(t.Context(), claims.Request{Paths: []string{"a.go"}, Task: "t1"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = bob.ClaimFiles(t.Context(), claims.Request{Paths: []string{"*.go"}})
	nettest.Wants(t, err, store.ConflictError, "ann")
	if list, err := bob.FileClaims(t.Context()); err != nil || len(list) != 1 || list[0].ID != held.ID {
		t.Errorf("bob sees %+v, %v", list, err)
	}
	if list, err := network.FileClaims(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("the person sees %+v, %v", list, err)
	}
	if broken, err := network.BreakFileClaim(t.Context(), held.ID); err != nil || broken.ID != held.ID {
		t.Errorf("broken: %+v, %v", broken, err)
	}
	if _, err := bob.ClaimFiles(t.Context(), claims.Request{Paths: []string{"*.go"}}); err != nil {
		t.Error(err)
	}
	if released, err := bob.ReleaseFiles(t.Context(), func(claims.Claim) bool { return true }); err != nil || len(released) != 1 {
		t.Errorf("released: %+v, %v", released, err)
	}
}
