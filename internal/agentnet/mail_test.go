package agentnet_test

import (
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

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
