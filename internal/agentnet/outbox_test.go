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

// While the link is down mail is kept on this computer, and forwarded once and
// in order when it is back.
func TestMailIsKeptWhileTheNetworkIsAway(t *testing.T) {
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
		t.Errorf("%+v: mail of a computer needs no link", s)
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

// What a process that died has left is forwarded by the next one.
func TestTheNextProcessForwardsWhatIsLeft(t *testing.T) {
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

// Without a place to keep it, the sender is told.
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

// A message that can go nowhere, of a sender whom the network has never seen, does
// not hold up the mail of the others; the sender is told on the hub's bus.
func TestAMessageThatCannotBeForwardedHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	n, local := nettest.StartServer(t), nettest.StartServer(t, func(o *server.Options) { o.MaxPayload = bus.MaxPayload })
	hand := nettest.Register(t, nettest.Open(t, n.Host("host-b", "bob", "blog")), nettest.Worker("go"))
	cfg := n.Host("host-a", "ann", "shop")
	cfg.DialLocal, cfg.StateDir = nettest.Dialer(local), t.TempDir()
	n.Stop()
	first := agentnet.Open(cfg)
	wait.Eventually(t, "the hub's bus", func() bool { return first.Status().Local })
	boss := nettest.Register(t, first, nettest.Dispatcher()) // it will not have entered the network
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
		t.Fatalf("%s came back as %s", guid, boss.GUID())
	}
	var own []string
	wait.Eventually(t, "the notices", func() bool { own = append(own, nettest.TryTexts(t, boss)...); return len(own) >= 2 })
	if !strings.Contains(own[0], "to nobody") || !strings.Contains(own[1], "too long for the network's server") || len(own[1]) > 70<<10 {
		t.Errorf("%.300q", own)
	}
}

// Whoever of a computer's processes forwards the mail: who has written it writes to
// the network again at once, with the network's rate limits.
func TestMailThatAnotherProcessHasForwardedWaitsNoMore(t *testing.T) {
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
	// Some news for the other process: what waits is forwarded by it.
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
