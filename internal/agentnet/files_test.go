package agentnet_test

import (
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/claims"
	"github.com/parleyhub/parley/internal/agentnet/mail"
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

// Mail that was taken stays unread until its answer was written and the agent has called again.
func TestTakenMailIsAcknowledged(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	network := nettest.Open(t, n.Host("here", "ann", "shop"))
	ann := nettest.Register(t, network, registry.Registration{Handle: "ann", AgentType: "ann", Scope: registry.ScopeProject})
	bob := nettest.Register(t, nettest.Open(t, n.Host("there", "ann", "shop")), registry.Registration{Handle: "bob", AgentType: "bob", Scope: registry.ScopeProject})
	if _, err := ann.Send(t.Context(), mail.Message{Recipient: bob.GUID(), Text: "hello"}); err != nil {
		t.Fatal(err)
	}
	answer := &mail.Answer{}
	first, _, err := bob.WaitAndTake(t.Context(), mail.Selection{}, answer)
	if err != nil || len(first) != 1 || first[0].Text != "hello" {
		t.Fatalf("%+v, %v", first, err)
	}
	bob.Answered(answer, false)
	again, _, err := bob.Take(t.Context(), mail.Selection{}, answer)
	if err != nil || len(again) != 1 {
		t.Fatalf("after an answer that was not written: %+v, %v", again, err)
	}
	bob.Answered(answer, true)
	if err := bob.Acknowledge(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if left, _, err := bob.Take(t.Context(), mail.Selection{}, &mail.Answer{}); err != nil || len(left) != 0 {
		t.Errorf("after the acknowledgement: %+v, %v", left, err)
	}
}
