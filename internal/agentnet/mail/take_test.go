package mail_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

// take takes mail, and writes the answer.
func take(t *testing.T, a *agentnet.Agent, s mail.Selection, alive bool) (texts []string) {
	t.Helper()
	answer := &mail.Answer{Alive: alive}
	list, _, err := a.Take(t.Context(), s, answer)
	if err != nil {
		t.Fatal(err)
	}
	a.Answered(answer, true)
	for _, m := range list {
		texts = append(texts, m.Text)
	}
	return texts
}

func statusOf(t *testing.T, boss *agentnet.Agent, id string) mail.MessageStatus {
	t.Helper()
	st, err := boss.MessageStatus(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func TestTakenMailIsReadOnceItIsAcknowledged(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss, hand := nettest.Pair(t, n)
	one := nettest.SendText(t, boss, hand, "one")
	if got := take(t, hand, mail.Selection{}, false); !slices.Equal(got, []string{"one"}) {
		t.Fatalf("%q", got)
	}
	wait.Eventually(t, "the delivery", func() bool { return statusOf(t, boss, one.ID).Status == mail.Delivered })
	before := statusOf(t, boss, one.ID)
	if got := take(t, hand, mail.Selection{}, false); len(got) != 0 {
		t.Errorf("taken again: %q", got)
	}
	if got := take(t, hand, mail.Selection{IncludeRead: true}, false); !slices.Equal(got, []string{"one"}) {
		t.Errorf("with what was read: %q", got)
	}
	if st := statusOf(t, boss, one.ID); st != before {
		t.Errorf("the receipt before the acknowledgement: %+v", st)
	}
	if count, err := hand.Unread(t.Context()); err != nil || count != 0 {
		t.Errorf("%d unread, %v", count, err)
	}
	nettest.SendText(t, boss, hand, "two")
	if err := hand.Acknowledge(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	st := statusOf(t, boss, one.ID)
	if st.Status != mail.Read || st.StoredAt != before.StoredAt || st.DeliveredAt != before.DeliveredAt || st.ReadAt < st.DeliveredAt {
		t.Errorf("the receipt: %+v, before %+v", st, before)
	}
	if got := take(t, hand, mail.Selection{}, false); !slices.Equal(got, []string{"two"}) {
		t.Errorf("after the acknowledgement: %q", got)
	}
	if err := hand.Acknowledge(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if count, err := hand.Unread(t.Context()); err != nil || count != 0 {
		t.Errorf("%d unread, %v", count, err)
	}
	if err := hand.Acknowledge(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if again := statusOf(t, boss, one.ID); again != st {
		t.Errorf("the receipt has changed: %+v", again)
	}
}

// The next process with the identity gets what was taken and not acknowledged, under the same ids.
func TestTakenMailComesAgainAfterTheProcessHasEnded(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss := nettest.Register(t, nettest.Open(t, n.Host("host-a", "ann", "shop")), nettest.Dispatcher())
	cfg := n.Host("host-b", "ann", "shop")
	cfg.StateDir = t.TempDir()
	first := nettest.Open(t, cfg)
	hand := nettest.Register(t, first, nettest.Worker("go"))
	var ids []string
	for i := range 6 {
		ids = append(ids, nettest.SendText(t, boss, hand, fmt.Sprint(i)).ID)
	}
	if got := take(t, hand, mail.Selection{Limit: 2}, true); !slices.Equal(got, []string{"0", "1"}) {
		t.Fatalf("%q", got)
	}
	if err := hand.Acknowledge(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if got := take(t, hand, mail.Selection{Limit: 2}, false); !slices.Equal(got, []string{"2", "3"}) {
		t.Fatalf("%q", got)
	}
	wait.Eventually(t, "the delivery", func() bool { return statusOf(t, boss, ids[3]).Status == mail.Delivered })
	guid := hand.GUID()
	if _, err := hand.Deregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := nettest.Register(t, nettest.Open(t, cfg), nettest.Worker("go"))
	if again.GUID() != guid {
		t.Fatalf("another identity: %s", again.GUID())
	}
	list, _, err := again.Take(t.Context(), mail.Selection{}, &mail.Answer{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, m := range list {
		got = append(got, m.ID)
		if m.Repeated != (i < 2) { // the answer with 2 and 3 was written
			t.Errorf("%s is repeated: %t", m.Text, m.Repeated)
		}
	}
	if !slices.Equal(got, ids[2:]) {
		t.Errorf("%q, sent were %q", got, ids)
	}
	for i, id := range ids {
		if st := statusOf(t, boss, id); (st.Status == mail.Read) != (i < 2) {
			t.Errorf("message %d: %+v", i, st)
		}
	}
}

// newAcknowledging returns two agents; the life of the second one's connection acknowledges its mail at once.
func newAcknowledging(t *testing.T) (boss, hand *agentnet.Agent) {
	t.Helper()
	n := nettest.StartServer(t)
	cfg := n.Host("host-b", "ann", "shop")
	cfg.ReadAfter = time.Millisecond
	return nettest.Register(t, nettest.Open(t, n.Host("host-a", "ann", "shop")), nettest.Dispatcher()),
		nettest.Register(t, nettest.Open(t, cfg), nettest.Worker("go"))
}

func TestAConnectionThatLivesOnAcknowledges(t *testing.T) {
	t.Parallel()
	boss, hand := newAcknowledging(t)
	one := nettest.SendText(t, boss, hand, "one")
	answer := &mail.Answer{Alive: true}
	list, _, err := hand.WaitAndTake(t.Context(), mail.Selection{}, answer)
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	hand.Answered(answer, true)
	wait.Eventually(t, "the receipt", func() bool { return statusOf(t, boss, one.ID).Status == mail.Read })
	two := nettest.SendText(t, boss, hand, "two")
	if got := take(t, hand, mail.Selection{}, false); !slices.Equal(got, []string{"two"}) {
		t.Fatalf("%q", got)
	}
	three := nettest.SendText(t, boss, hand, "three")
	if got := take(t, hand, mail.Selection{}, true); !slices.Equal(got, []string{"three"}) {
		t.Fatalf("%q", got)
	}
	wait.Eventually(t, "the receipt", func() bool { return statusOf(t, boss, three.ID).Status == mail.Read })
	if st := statusOf(t, boss, two.ID); st.Status == mail.Read {
		t.Error("mail without a connection counts as read")
	}
}

// Neither life nor a call acknowledges an answer that was not written yet, and a call none that was written after it was
// sent. Mail whose answer is not written at all is returned again.
func TestOnlyAWrittenAnswerIsAcknowledged(t *testing.T) {
	t.Parallel()
	boss, hand := newAcknowledging(t)
	one := nettest.SendText(t, boss, hand, "one")
	answer := &mail.Answer{Alive: true}
	if list, _, err := hand.Take(t.Context(), mail.Selection{}, answer); err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	two := nettest.SendText(t, boss, hand, "two")
	later := &mail.Answer{Alive: true}
	if list, _, err := hand.Take(t.Context(), mail.Selection{}, later); err != nil || len(list) != 1 || list[0].Text != "two" {
		t.Fatal(list, err)
	}
	hand.Answered(later, true)
	wait.Eventually(t, "the receipt of the answer that was written", func() bool { return statusOf(t, boss, two.ID).Status == mail.Read })
	if err := hand.Acknowledge(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if st := statusOf(t, boss, one.ID); st.Status != mail.Stored {
		t.Errorf("before the answer is written: %+v", st)
	}
	hand.Answered(answer, false)
	if got := take(t, hand, mail.Selection{}, false); !slices.Equal(got, []string{"one"}) {
		t.Errorf("what was not written is not returned: %q", got)
	}
	wait.Eventually(t, "the delivery", func() bool { return statusOf(t, boss, one.ID).Status == mail.Delivered })
	if err := hand.Acknowledge(t.Context(), time.Now().Add(-time.Hour)); err != nil { // a call that was sent before the answer
		t.Fatal(err)
	}
	if st := statusOf(t, boss, one.ID); st.Status != mail.Delivered {
		t.Errorf("a call that was sent before has acknowledged it: %+v", st)
	}
	if err := hand.Acknowledge(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if st := statusOf(t, boss, one.ID); st.Status != mail.Read {
		t.Errorf("after the next call: %+v", st)
	}
	if count, err := hand.Unread(t.Context()); err != nil || count != 0 {
		t.Errorf("%d unread, %v", count, err)
	}
}

// The times of a receipt never go back, also if the clocks of sender, bus and recipient differ; and a receipt that is missing
// because the sender was killed is completed by the recipient.
func TestTheTimesOfAReceiptNeverGoBack(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	fast := new(nettest.Clock)
	fast.Forward(time.Hour)
	ahead := n.Host("host-a", "ann", "shop")
	ahead.Now = fast.Now
	boss := nettest.Register(t, nettest.Open(t, ahead), nettest.Dispatcher())
	cfg := n.Host("host-b", "ann", "shop")
	cfg.StateDir = t.TempDir()
	network := nettest.Open(t, cfg)
	hand := nettest.Register(t, network, nettest.Worker("go"))
	id := uuid.NewString()
	later := time.Now().Add(time.Hour).UTC().Format(time.RFC3339Nano)
	letter := fmt.Sprintf(`{"messageId":%q,"senderGuid":%q,"senderHandle":"boss","recipientGuid":%q,"message":"hello","timestamp":%q}`, id, boss.GUID(), hand.GUID(), later)
	if _, err := n.Foreign().Publish(t.Context(), "global.agent."+hand.GUID(), []byte(letter)); err != nil {
		t.Fatal(err)
	}
	nettest.Shut(t, network)
	hand = nettest.Register(t, nettest.Open(t, cfg), nettest.Worker("go"))
	wait.Eventually(t, "the missing receipt", func() bool { _, err := boss.MessageStatus(t.Context(), id); return err == nil })
	if st := statusOf(t, boss, id); st.Status != mail.Stored || st.StoredAt == "" || st.DeliveredAt != "" {
		t.Errorf("%+v", st)
	}
	if got := take(t, hand, mail.Selection{}, false); !slices.Equal(got, []string{"hello"}) {
		t.Fatalf("%q", got)
	}
	if err := hand.Acknowledge(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	read := statusOf(t, boss, id)
	if read.Status != mail.Read || read.DeliveredAt < read.StoredAt || read.ReadAt < read.DeliveredAt {
		t.Errorf("%+v", read)
	}
	if _, err := hand.MarkHandled(t.Context(), id, "ok"); err != nil {
		t.Fatal(err)
	}
	handled := statusOf(t, boss, id)
	if handled.HandledAt < read.ReadAt || handled.StoredAt != read.StoredAt || handled.DeliveredAt != read.DeliveredAt || handled.ReadAt != read.ReadAt {
		t.Errorf("%+v, before %+v", handled, read)
	}
}

// Selected mail leaves gaps; what is wrong is removed; and taking and reading in one process do not return mail twice.
func TestTakingKeepsTheMarks(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss, hand := nettest.Pair(t, n)
	other := nettest.Register(t, nettest.Open(t, n.Host("host-c", "ann", "shop")), registry.Registration{Handle: "o", AgentType: "other", Scope: registry.ScopeUser})
	js := n.Foreign()
	for i := range 3 {
		nettest.SendText(t, boss, hand, fmt.Sprint("b", i))
		if _, err := js.Publish(t.Context(), "global.agent."+hand.GUID(), []byte("{")); err != nil {
			t.Fatal(err)
		}
		nettest.SendText(t, other, hand, fmt.Sprint("o", i))
	}
	if got := take(t, hand, mail.Selection{Sender: other.GUID(), Limit: 2}, false); !slices.Equal(got, []string{"o0", "o1"}) {
		t.Errorf("%q", got)
	}
	if got := nettest.ReadTexts(t, hand, mail.Selection{Sender: other.GUID()}); !slices.Equal(got, []string{"o2"}) {
		t.Errorf("%q", got)
	}
	if got := take(t, hand, mail.Selection{}, false); !slices.Equal(got, []string{"b0", "b1", "b2"}) {
		t.Errorf("%q", got)
	}
	if err := hand.Acknowledge(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if count, err := hand.Unread(t.Context()); err != nil || count != 0 {
		t.Errorf("%d unread, %v", count, err)
	}
	if _, err := js.Publish(t.Context(), "global.agent."+hand.GUID(), []byte("{")); err != nil {
		t.Fatal(err)
	}
	if got := take(t, hand, mail.Selection{}, false); len(got) != 0 {
		t.Errorf("%q", got)
	}
}

func TestTakingFromAnInboxThatWasCreatedAgain(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss, hand := nettest.Pair(t, n)
	restartInbox(t, n, boss, hand)
	for _, text := range []string{"new", "newer"} {
		nettest.SendText(t, boss, hand, text)
		if got := take(t, hand, mail.Selection{}, false); !slices.Equal(got, []string{text}) {
			t.Errorf("%q", got)
		}
		if err := hand.Acknowledge(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if count, err := hand.Unread(t.Context()); err != nil || count != 0 {
		t.Errorf("%d unread, %v", count, err)
	}
}
