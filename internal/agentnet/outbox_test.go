package agentnet_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats-server/v2/server"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

// While the link is down, mail is stored on this computer. Once the link is back, it is forwarded
// once and in order.
func TestMailIsStoredWhileTheNetworkIsUnreachable(t *testing.T) {
	t.Parallel()
	n, local := nettest.StartServer(t), nettest.StartServer(t)
	cfg := n.Host("host-a", "ann", "shop")
	cfg.DialLocal = nettest.Dialer(local)
	network := nettest.OpenLinked(t, cfg)
	boss := nettest.Register(t, network, nettest.Dispatcher())
	hand := nettest.Register(t, nettest.Open(t, n.Host("host-b", "bob", "blog")), nettest.Worker("go"))
	nettest.SendText(t, boss, hand, "0")
	n.Stop()
	wait.Eventually(t, "the loss", func() bool { return !network.Status().Connected })
	var ids []string
	for i := 1; i <= 5; i++ {
		s := nettest.SendText(t, boss, hand, fmt.Sprint(i))
		if !s.Queued || !strings.Contains(s.Warning, "Do not send it again") {
			t.Errorf("%+v", s)
		}
		ids = append(ids, s.ID)
	}
	if s := nettest.SendText(t, boss, boss, "to a local one"); s.Queued {
		t.Errorf("%+v: mail within a computer needs no link", s)
	}
	if s, err := boss.Send(t.Context(), mail.Message{Recipient: uuid.NewString(), Text: "to nobody"}); err != nil || !s.Queued {
		t.Errorf("%+v, %v", s, err)
	}
	n.Start()
	var got []string
	wait.Eventually(t, "the mail", func() bool {
		got = append(got, nettest.TryTexts(t, hand)...)
		return len(got) >= 6
	})
	if !slices.Equal(got, []string{"0", "1", "2", "3", "4", "5"}) {
		t.Errorf("%q", got)
	}
	wait.Eventually(t, "the receipts", func() bool {
		s, err := boss.MessageStatus(t.Context(), ids[4])
		return err == nil && s.Status == mail.Read
	})
	var own []string
	wait.Eventually(t, "the sender's own mail", func() bool { own = append(own, nettest.TryTexts(t, boss)...); return len(own) >= 2 })
	if own[0] != "to a local one" || !strings.Contains(own[1], "could not be delivered") || !strings.Contains(own[1], "to nobody") {
		t.Errorf("%q", own)
	}
	wait.Eventually(t, "a direct send again", func() bool {
		s, err := boss.Send(t.Context(), mail.Message{Recipient: hand.GUID(), Text: "x"})
		return err == nil && !s.Queued
	})
}

// Mail that a killed process left in the outbox is forwarded by the next process.
func TestTheNextProcessForwardsTheOutbox(t *testing.T) {
	t.Parallel()
	n, local := nettest.StartServer(t), nettest.StartServer(t)
	cfg := n.Host("host-a", "ann", "shop")
	cfg.DialLocal = nettest.Dialer(local)
	first := agentnet.Open(cfg)
	if err := first.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "the hub's bus", func() bool { return first.Status().Local })
	boss := nettest.Register(t, first, nettest.Dispatcher())
	hand := nettest.Register(t, nettest.Open(t, n.Host("host-b", "bob", "blog")), nettest.Worker("go"))
	n.Stop()
	wait.Eventually(t, "the loss", func() bool { return !first.Status().Connected })
	for i := range 3 {
		nettest.SendText(t, boss, hand, fmt.Sprint(i))
	}
	nettest.Shut(t, first)
	n.Start()
	other := n.Host("host-a", "ann", "another-project")
	other.DialLocal = nettest.Dialer(local)
	nettest.Open(t, other)
	var got []string
	wait.Eventually(t, "the mail", func() bool { got = append(got, nettest.TryTexts(t, hand)...); return len(got) >= 3 })
	if !slices.Equal(got, []string{"0", "1", "2"}) {
		t.Errorf("%q", got)
	}
}

func TestWithoutAnOutboxAnOutageIsAnError(t *testing.T) {
	t.Parallel()
	n, local := nettest.StartServer(t), nettest.StartServer(t)
	local.Stop()
	cfg := n.Host("host-a", "ann", "shop")
	cfg.DialLocal = nettest.Dialer(local)
	network := nettest.Open(t, cfg)
	boss := nettest.Register(t, network, nettest.Dispatcher())
	n.Stop()
	wait.Eventually(t, "the loss", func() bool { return !network.Status().Connected })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err := boss.Send(ctx, mail.Message{Recipient: boss.GUID(), Text: "x"})
	nettest.Wants(t, err, store.ConnectionError, "could not be stored on this computer")
}

// An undeliverable message does not delay the mail of others, even if the network does not know
// its sender. The sender gets an error report on the hub's bus.
func TestAnUndeliverableMessageDelaysNoOther(t *testing.T) {
	t.Parallel()
	n, local := nettest.StartServer(t), nettest.StartServer(t, func(o *server.Options) { o.MaxPayload = bus.MaxPayload })
	hand := nettest.Register(t, nettest.Open(t, n.Host("host-b", "bob", "blog")), nettest.Worker("go"))
	cfg := n.Host("host-a", "ann", "shop")
	cfg.DialLocal, cfg.StateDir = nettest.Dialer(local), t.TempDir()
	n.Stop()
	first := agentnet.Open(cfg)
	wait.Eventually(t, "the hub's bus", func() bool { return first.Status().Local })
	boss := nettest.Register(t, first, nettest.Dispatcher()) // not registered in the network when its message is forwarded
	guid := boss.GUID()
	long := strings.Repeat("\"", mail.MaxMail) // twice as long as JSON
	for _, m := range []mail.Message{
		{Recipient: uuid.NewString(), Text: "to nobody"},
		{Recipient: hand.GUID(), Text: long},
		{Recipient: hand.GUID(), Text: "to somebody"},
	} {
		if s, err := boss.Send(t.Context(), m); err != nil || !s.Queued {
			t.Fatalf("%+v, %v", s, err)
		}
	}
	nettest.Shut(t, first)
	n.Start()
	other := n.Host("host-a", "ann", "another-project")
	other.DialLocal = nettest.Dialer(local)
	nettest.Open(t, other)
	var got []string
	wait.Eventually(t, "the mail", func() bool { got = append(got, nettest.TryTexts(t, hand)...); return len(got) > 0 })
	if !slices.Equal(got, []string{"to somebody"}) {
		t.Errorf("%.80q", got)
	}
	boss = nettest.Register(t, nettest.OpenLinked(t, cfg), nettest.Dispatcher())
	if boss.GUID() != guid {
		t.Fatalf("the GUID changed from %s to %s", guid, boss.GUID())
	}
	var own []string
	wait.Eventually(t, "the notices", func() bool { own = append(own, nettest.TryTexts(t, boss)...); return len(own) >= 2 })
	if !strings.Contains(own[0], "to nobody") || !strings.Contains(own[1], "too long for the network's server") || len(own[1]) > 70<<10 {
		t.Errorf("%.300q", own)
	}
}

// After another process of the computer has forwarded the queued mail, the sender sends directly
// again, within the network's rate limits.
func TestSendingIsDirectAfterAnotherProcessForwarded(t *testing.T) {
	t.Parallel()
	n, local := nettest.StartServer(t), nettest.StartServer(t)
	proxy := nettest.StartProxy(t, strings.TrimPrefix(n.URL(), "nats://"))
	hand := nettest.Register(t, nettest.Open(t, n.Host("host-b", "bob", "blog")), nettest.Worker("go"))
	other := n.Host("host-a", "ann", "another-project")
	other.DialLocal = nettest.Dialer(local)
	nettest.OpenLinked(t, other)
	cfg := n.Host("host-a", "ann", "shop")
	cfg.DialLocal = nettest.Dialer(local)
	cfg.Dial = func(ctx context.Context) (*bus.Bus, error) {
		return bus.Open(ctx, bus.Config{URL: bus.Secret(proxy.URL()), Logger: slog.New(slog.DiscardHandler)})
	}
	network := nettest.OpenLinked(t, cfg)
	boss := nettest.Register(t, network, nettest.Dispatcher())
	proxy.SetDown(true)
	nettest.AwaitLoss(t, network)
	for i := range 3 {
		nettest.SendText(t, boss, hand, fmt.Sprint(i))
	}
	// The restarted server can be reached by the other process, which forwards the outbox.
	n.Stop()
	n.Start()
	var got []string
	wait.Eventually(t, "the mail", func() bool { got = append(got, nettest.TryTexts(t, hand)...); return len(got) >= 3 })
	if !slices.Equal(got, []string{"0", "1", "2"}) {
		t.Errorf("%q", got)
	}
	proxy.SetDown(false)
	wait.Eventually(t, "the link", func() bool { return network.Status().Connected })
	wait.Eventually(t, "a direct send again", func() bool {
		s, err := boss.Send(t.Context(), mail.Message{Recipient: hand.GUID(), Text: "x"})
		return err == nil && !s.Queued
	})
}
