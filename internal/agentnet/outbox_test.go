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
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/natstest"
)

func dialer(n *natsServer) func(context.Context) (*bus.Bus, error) {
	return func(ctx context.Context) (*bus.Bus, error) {
		return bus.Open(ctx, bus.Config{URL: bus.Secret(n.URL()), Logger: slog.New(slog.DiscardHandler)})
	}
}

// tryTexts reads mail, none while the connection comes back.
func tryTexts(t *testing.T, a *agentnet.Agent) (texts []string) {
	mail, _, err := a.Read(t.Context(), agentnet.Selection{})
	if err != nil && category(err) != agentnet.ConnectionError {
		t.Error(err)
	}
	for _, m := range mail {
		texts = append(texts, m.Text)
	}
	return texts
}

// While the link is down mail is kept on this computer, and forwarded once and
// in order when it is back.
func TestMailIsKeptWhileTheNetworkIsAway(t *testing.T) {
	t.Parallel()
	n, local := startServer(t), startServer(t)
	cfg := n.host("host-a", "ann", "shop")
	cfg.DialLocal = dialer(local)
	network := openLinked(t, cfg)
	boss := register(t, network, dispatcher())
	hand := register(t, open(t, n.host("host-b", "bob", "blog")), worker("go"))
	sendText(t, boss, hand, "0")
	n.Stop()
	await(t, "the loss", func() bool { return !network.Status().Connected })
	var ids []string
	for i := 1; i <= 5; i++ {
		s := sendText(t, boss, hand, fmt.Sprint(i))
		if !s.Queued || !strings.Contains(s.Warning, "Do not send it again") {
			t.Errorf("%+v", s)
		}
		ids = append(ids, s.ID)
	}
	if s := sendText(t, boss, boss, "to a local one"); s.Queued {
		t.Errorf("%+v: mail of a computer needs no link", s)
	}
	if s, err := boss.Send(t.Context(), agentnet.Message{Recipient: uuid.NewString(), Text: "to nobody"}); err != nil || !s.Queued {
		t.Errorf("%+v, %v", s, err)
	}
	n.Start()
	var got []string
	await(t, "the mail", func() bool {
		got = append(got, tryTexts(t, hand)...)
		return len(got) >= 6
	})
	if !slices.Equal(got, []string{"0", "1", "2", "3", "4", "5"}) {
		t.Errorf("%q", got)
	}
	await(t, "the receipts", func() bool {
		s, err := boss.MessageStatus(t.Context(), ids[4])
		return err == nil && s.Status == agentnet.Read
	})
	var own []string
	await(t, "the sender's own mail", func() bool { own = append(own, tryTexts(t, boss)...); return len(own) >= 2 })
	if own[0] != "to a local one" || !strings.Contains(own[1], "could not be delivered") || !strings.Contains(own[1], "to nobody") {
		t.Errorf("%q", own)
	}
	await(t, "a direct send again", func() bool {
		s, err := boss.Send(t.Context(), agentnet.Message{Recipient: hand.GUID(), Text: "x"})
		return err == nil && !s.Queued
	})
}

// What a process that died has left is forwarded by the next one.
func TestTheNextProcessForwardsWhatIsLeft(t *testing.T) {
	t.Parallel()
	n, local := startServer(t), startServer(t)
	cfg := n.host("host-a", "ann", "shop")
	cfg.DialLocal = dialer(local)
	first := agentnet.Open(cfg)
	if err := first.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, "the hub's bus", func() bool { return first.Status().Near })
	boss := register(t, first, dispatcher())
	hand := register(t, open(t, n.host("host-b", "bob", "blog")), worker("go"))
	n.Stop()
	await(t, "the loss", func() bool { return !first.Status().Connected })
	for i := range 3 {
		sendText(t, boss, hand, fmt.Sprint(i))
	}
	shut(t, first)
	n.Start()
	other := n.host("host-a", "ann", "another-project")
	other.DialLocal = dialer(local)
	open(t, other)
	var got []string
	await(t, "the mail", func() bool { got = append(got, tryTexts(t, hand)...); return len(got) >= 3 })
	if !slices.Equal(got, []string{"0", "1", "2"}) {
		t.Errorf("%q", got)
	}
}

// Without a place to keep it, the sender is told.
func TestWithoutAnOutboxAnOutageIsAnError(t *testing.T) {
	t.Parallel()
	n, local := startServer(t), startServer(t)
	local.Stop()
	cfg := n.host("host-a", "ann", "shop")
	cfg.DialLocal = dialer(local)
	network := open(t, cfg)
	boss := register(t, network, dispatcher())
	n.Stop()
	await(t, "the loss", func() bool { return !network.Status().Connected })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err := boss.Send(ctx, agentnet.Message{Recipient: boss.GUID(), Text: "x"})
	wants(t, err, agentnet.ConnectionError, "could not be kept on this computer")
}

// A message that can go nowhere, of a sender whom the network has never seen, does
// not hold up the mail of the others; the sender is told on the hub's bus.
func TestAMessageThatCannotBeForwardedHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	n, local := startServer(t), &natsServer{natstest.Start(t, func(o *server.Options) { o.MaxPayload = bus.MaxPayload }), t}
	hand := register(t, open(t, n.host("host-b", "bob", "blog")), worker("go"))
	cfg := n.host("host-a", "ann", "shop")
	cfg.DialLocal, cfg.StateDir = dialer(local), t.TempDir()
	n.Stop()
	first := agentnet.Open(cfg)
	await(t, "the hub's bus", func() bool { return first.Status().Near })
	boss := register(t, first, dispatcher()) // it will not have entered the network
	guid := boss.GUID()
	long := strings.Repeat("\"", agentnet.MaxMail) // twice as long as JSON
	for _, m := range []agentnet.Message{
		{Recipient: uuid.NewString(), Text: "to nobody"},
		{Recipient: hand.GUID(), Text: long},
		{Recipient: hand.GUID(), Text: "to somebody"},
	} {
		if s, err := boss.Send(t.Context(), m); err != nil || !s.Queued {
			t.Fatalf("%+v, %v", s, err)
		}
	}
	shut(t, first)
	n.Start()
	other := n.host("host-a", "ann", "another-project")
	other.DialLocal = dialer(local)
	open(t, other)
	var got []string
	await(t, "the mail", func() bool { got = append(got, tryTexts(t, hand)...); return len(got) > 0 })
	if !slices.Equal(got, []string{"to somebody"}) {
		t.Errorf("%.80q", got)
	}
	boss = register(t, openLinked(t, cfg), dispatcher())
	if boss.GUID() != guid {
		t.Fatalf("%s came back as %s", guid, boss.GUID())
	}
	var own []string
	await(t, "the notices", func() bool { own = append(own, tryTexts(t, boss)...); return len(own) >= 2 })
	if !strings.Contains(own[0], "to nobody") || !strings.Contains(own[1], "too long for the network's server") || len(own[1]) > 70<<10 {
		t.Errorf("%.300q", own)
	}
}

// Whoever of a computer's processes forwards the mail: who has written it writes to
// the network again at once, with the network's rate limits.
func TestMailThatAnotherProcessHasForwardedWaitsNoMore(t *testing.T) {
	t.Parallel()
	n, local := startServer(t), startServer(t)
	proxy := startProxy(t, strings.TrimPrefix(n.URL(), "nats://"))
	hand := register(t, open(t, n.host("host-b", "bob", "blog")), worker("go"))
	other := n.host("host-a", "ann", "another-project")
	other.DialLocal = dialer(local)
	openLinked(t, other)
	cfg := n.host("host-a", "ann", "shop")
	cfg.DialLocal = dialer(local)
	cfg.Dial = func(ctx context.Context) (*bus.Bus, error) {
		return bus.Open(ctx, bus.Config{URL: bus.Secret(proxy.url()), Logger: slog.New(slog.DiscardHandler)})
	}
	network := openLinked(t, cfg)
	boss := register(t, network, dispatcher())
	proxy.setDown(true)
	lose(t, network)
	for i := range 3 {
		sendText(t, boss, hand, fmt.Sprint(i))
	}
	// Some news for the other process: what waits is forwarded by it.
	n.Stop()
	n.Start()
	var got []string
	await(t, "the mail", func() bool { got = append(got, tryTexts(t, hand)...); return len(got) >= 3 })
	if !slices.Equal(got, []string{"0", "1", "2"}) {
		t.Errorf("%q", got)
	}
	proxy.setDown(false)
	await(t, "the link", func() bool { return network.Status().Connected })
	await(t, "a direct send again", func() bool {
		s, err := boss.Send(t.Context(), agentnet.Message{Recipient: hand.GUID(), Text: "x"})
		return err == nil && !s.Queued
	})
}
