package agentnet_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

// operatorBus is a connection to a hub's network with all rights.
func operatorBus(t *testing.T, hub *nettest.Hub) *bus.Bus {
	t.Helper()
	g, err := hub.Bus.Grant(t.Context(), bus.GrantRequest{Access: bus.AccessNetwork})
	if err != nil {
		t.Fatal(err)
	}
	b, err := bus.Join(t.Context(), bus.Config{}, func(context.Context) (bus.Grant, error) { return g, nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close(context.Background()) }) // nothing is written
	return b
}

// inboxes returns the names of the streams of inboxes.
func inboxes(t *testing.T, b *bus.Bus) []string {
	t.Helper()
	var names []string
	list := b.JetStream().StreamNames(t.Context())
	for name := range list.Name() {
		if strings.HasPrefix(name, store.InboxStreamPrefix) {
			names = append(names, name)
		}
	}
	if err := list.Err(); err != nil {
		t.Fatal(err)
	}
	return names
}

func TestInboxIsMadeWithTheFirstMail(t *testing.T) {
	hub := nettest.NewHub(t)
	b := operatorBus(t, hub)
	members := hub.Memberships("/p")
	boss, hand := nettest.Enter(t, members, nettest.Dispatcher()), nettest.Enter(t, members, nettest.Worker("go"))
	if list, more, err := hand.Read(t.Context(), mail.Selection{}); err != nil || more || len(list) > 0 {
		t.Fatal(list, more, err)
	}
	if n, err := hand.Unread(t.Context()); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	if _, err := hand.MarkHandled(t.Context(), "0190b2b5-7d3c-7cc2-8a38-16a4c8e0a6b1", ""); nettest.CategoryOf(err) != store.NotFoundError {
		t.Fatal(err)
	}
	if list := inboxes(t, b); len(list) > 0 {
		t.Fatalf("agents without mail have inboxes: %q", list)
	}
	sent, err := boss.Send(t.Context(), mail.Message{Recipient: hand.GUID(), Text: "hello"})
	if err != nil {
		t.Fatal(err)
	}
	if list := inboxes(t, b); !slices.Equal(list, []string{store.InboxStreamPrefix + hand.GUID()}) {
		t.Fatalf("after one message there are %q", list)
	}
	list, _, err := hand.Read(t.Context(), mail.Selection{})
	if err != nil || len(list) != 1 || list[0].ID != sent.ID || list[0].Text != "hello" {
		t.Fatal(list, err)
	}
	if st, err := boss.MessageStatus(t.Context(), sent.ID); err != nil || st.Status != mail.Read {
		t.Fatal(st, err)
	}
}

func TestFirstMailEndsAWait(t *testing.T) {
	hub := nettest.NewHub(t)
	members := hub.Memberships("/p")
	boss, hand := nettest.Enter(t, members, nettest.Dispatcher()), nettest.Enter(t, members, nettest.Worker("go"))
	got := make(chan []mail.Mail, 1)
	go func() {
		list, _, err := hand.Wait(t.Context(), mail.Selection{})
		if err != nil {
			t.Error(err)
		}
		got <- list
	}()
	if _, err := boss.Send(t.Context(), mail.Message{Recipient: hand.GUID(), Text: "hello"}); err != nil {
		t.Fatal(err)
	}
	if list := <-got; len(list) != 1 || list[0].Text != "hello" {
		t.Fatal(list)
	}
}

// Some of the messages are published before the inbox is there, some after.
func TestFirstMailOfManySendersArrivesOnceAndInOrder(t *testing.T) {
	const senders, each = 8, 5
	hub := nettest.NewHub(t)
	hand := nettest.Enter(t, hub.Memberships("/p"), nettest.Worker("go"))
	var sending sync.WaitGroup
	for i := range senders {
		from := nettest.Enter(t, hub.Memberships(fmt.Sprint("/q/", i)), registry.Registration{AgentType: "dispatcher", Handle: fmt.Sprint("s", i), Scope: registry.ScopeUser, Visibility: store.Public})
		sending.Go(func() {
			for n := range each {
				if _, err := from.Send(t.Context(), mail.Message{Recipient: hand.GUID(), Text: fmt.Sprint(n)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	sending.Wait()
	list, _, err := hand.Read(t.Context(), mail.Selection{Limit: mail.MaxMailLimit})
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for _, m := range list {
		texts[m.SenderHandle] += m.Text
	}
	for i := range senders {
		if got := texts[fmt.Sprint("s", i)]; got != "01234" {
			t.Errorf("of sender %d arrived %q", i, got)
		}
	}
}

func TestRemovedInboxIsMadeAgainAfterTheAgentHasReturned(t *testing.T) {
	hub := nettest.NewHub(t)
	b := operatorBus(t, hub)
	boss, members := nettest.Enter(t, hub.Memberships("/p"), nettest.Dispatcher()), hub.Memberships("/q")
	hand := nettest.Enter(t, members, nettest.Worker("go"))
	for round := range 2 {
		if _, err := boss.Send(t.Context(), mail.Message{Recipient: hand.GUID(), Text: fmt.Sprint(round)}); err != nil {
			t.Fatal(err)
		}
		if list, _, err := hand.Read(t.Context(), mail.Selection{}); err != nil || len(list) != 1 || list[0].Text != fmt.Sprint(round) {
			t.Fatal(list, err)
		}
		if err := b.JetStream().DeleteStream(t.Context(), store.InboxStreamPrefix+hand.GUID()); err != nil {
			t.Fatal(err)
		}
		if _, err := members.Leave(t.Context(), hand); err != nil {
			t.Fatal(err)
		}
		again := nettest.Enter(t, members, nettest.Worker("go"))
		if again.GUID() != hand.GUID() {
			t.Fatalf("%s came back as %s", hand.GUID(), again.GUID())
		}
		hand = again
	}
}

// A process of a version before expects its inbox as soon as it is admitted.
func TestFormerProgramHasItsInboxAtOnce(t *testing.T) {
	hub := nettest.NewHub(t)
	b := operatorBus(t, hub)
	adm, admitted, err := hub.Admit(t.Context(), registry.AdmissionRequest{AgentType: "worker", ProjectPath: "/p"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admitted.Close(context.Background()) }) // nothing is written
	if list := inboxes(t, b); !slices.Equal(list, []string{store.InboxStreamPrefix + adm.GUID}) {
		t.Fatalf("there are %q", list)
	}
}

// The server's error for a stream that is missing differs from that for one that does not answer.
func TestMailToAGUIDThatNobodyHasMakesNoInbox(t *testing.T) {
	hub := nettest.NewHub(t)
	b := operatorBus(t, hub)
	nettest.Enter(t, hub.Memberships("/p"), nettest.Worker("go"))
	const nobody = "0190b2b5-7d3c-7cc2-8a38-16a4c8e0a6b1"
	for _, guid := range []string{nobody, "no-guid"} {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		_, err := b.JetStream().Publish(ctx, store.InboxSubject+guid, []byte("{}"), jetstream.WithRetryAttempts(0))
		cancel()
		if err == nil {
			t.Errorf("a message to %s was stored", guid)
		}
	}
	if list := inboxes(t, b); len(list) > 0 {
		t.Fatalf("there are %q", list)
	}
}

// The hub compares an inbox with the agent's read marks when it sees the first message for it: a power cut may have taken the end of the
// empty inbox, and as much mail may come as the agent had read.
func TestFirstMailOfAnInboxThatHasLostItsEndIsRead(t *testing.T) {
	hub := nettest.NewHub(t)
	b := operatorBus(t, hub)
	boss, members := nettest.Enter(t, hub.Memberships("/p"), nettest.Dispatcher()), hub.Memberships("/q")
	hand := nettest.Enter(t, members, nettest.Worker("go"))
	for i := range 5 {
		nettest.SendText(t, boss, hand, fmt.Sprint(i))
	}
	nettest.ReadTexts(t, hand, mail.Selection{})
	if _, err := members.Leave(t.Context(), hand); err != nil {
		t.Fatal(err)
	}
	guid := hand.GUID()
	name := store.InboxStreamPrefix + guid
	stream, err := b.JetStream().Stream(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	if err := b.JetStream().DeleteStream(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if _, err := b.JetStream().CreateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if hand = nettest.Enter(t, members, nettest.Worker("go")); hand.GUID() != guid { // the hub looks again with its next mail
		t.Fatalf("%s is %s", guid, hand.GUID())
	}
	sent := []string{"new 0"}
	nettest.SendText(t, boss, hand, sent[0])
	wait.Eventually(t, "the marks are dropped", func() bool {
		v, err := store.Key{Stream: store.MailStream, Subject: store.ReadSubject + guid}.Get(t.Context(), b)
		return err == nil && !strings.Contains(string(v.Data), `"floor":5`)
	})
	for i := range 7 {
		sent = append(sent, fmt.Sprint("new ", i+1))
		nettest.SendText(t, boss, hand, sent[i+1])
	}
	if got := nettest.ReadTexts(t, hand, mail.Selection{}); !slices.Equal(got, sent) {
		t.Errorf("%q", got)
	}
}
