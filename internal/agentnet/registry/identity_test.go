package registry_test

import (
	"slices"
	"testing"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

// An agent that starts without the link keeps its GUID when the link is back, and when it starts
// without the link again.
func TestAnAgentStartedWithoutTheLinkRegistersLater(t *testing.T) {
	t.Parallel()
	n, hub := nettest.StartServer(t), nettest.StartServer(t)
	cfg := nettest.Linked(n, hub, "shop")
	cfg.StateDir = t.TempDir()
	other := nettest.Register(t, nettest.Open(t, n.Host("host-b", "bob", "shop")), nettest.Dispatcher())
	n.Stop()
	start := func() (*agentnet.Network, *agentnet.Agent) {
		network := agentnet.Open(cfg)
		wait.Eventually(t, "the hub's bus", func() bool { return network.Status().Local })
		return network, nettest.Register(t, network, nettest.Worker("go"))
	}
	network, a := start()
	guid := a.GUID()
	if s := nettest.SendText(t, a, other, "hello"); !s.Queued {
		t.Errorf("%+v", s)
	}
	n.Start()
	wait.Eventually(t, "the agent in the network", func() bool {
		e, _, err := other.Info(t.Context(), guid)
		return err == nil && e.GUID == guid
	})
	var got []string
	wait.Eventually(t, "its mail", func() bool { got = append(got, nettest.TryTexts(t, other)...); return len(got) > 0 })
	wait.Eventually(t, "an answer", func() bool {
		_, err := other.Send(t.Context(), mail.Message{Recipient: guid, Text: "hello yourself"})
		return err == nil
	})
	wait.Eventually(t, "its arrival", func() bool { return slices.Contains(nettest.TryTexts(t, a), "hello yourself") })
	nettest.Shut(t, network)
	n.Stop()
	network, a = start()
	if a.GUID() != guid || !a.Reused() {
		t.Errorf("the GUID changed from %s to %s", guid, a.GUID())
	}
	n.Start()
	wait.Eventually(t, "the network", func() bool { return network.Status().Connected })
	nettest.Shut(t, network)
	network = nettest.Open(t, cfg)
	if again := nettest.Register(t, network, nettest.Worker("go")); again.GUID() != guid {
		t.Errorf("the GUID changed from %s to %s", guid, again.GUID())
	}
}
