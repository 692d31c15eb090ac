package mail_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/testbed"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testbed.Leaks()...) }

// REQ-TOOL-DIRECT-007, REQ-TOOL-DIRECT-008, REQ-TOOL-DIRECT-009, REQ-TOOL-DIRECT-010, REQ-DIRECT-001,
// REQ-DIRECT-003, REQ-DIRECT-004, REQ-TOOL-READDIRECT-004,
// REQ-TOOL-READDIRECT-005, REQ-TOOL-READDIRECT-006, REQ-TEST-CROSS-002
func TestMailIsStoredAndReadOnceInOrder(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss, hand := nettest.Pair(t, n)
	want := []string{"one", "two\nlines", "ünï©ode 🐎"}
	for _, text := range want {
		if s := nettest.SendText(t, boss, hand, text); s.RecipientHandle != "worker-1" || uuid.Validate(s.ID) != nil || s.Warning != "" {
			t.Errorf("%+v", s)
		}
	}
	stream, err := n.Foreign().Stream(t.Context(), "GLOBAL_AGENT_INBOX_"+hand.GUID())
	if err != nil {
		t.Fatal(err)
	}
	if c := stream.CachedInfo().Config; !slices.Equal(c.Subjects, []string{"global.agent." + hand.GUID()}) || c.MaxMsgs != 10000 ||
		c.MaxBytes != 10<<20 || c.MaxAge != 24*time.Hour || c.Storage != jetstream.FileStorage || c.Retention != jetstream.LimitsPolicy {
		t.Errorf("the inbox is %+v", c)
	}
	raw, err := stream.GetMsg(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	var payload map[string]any
	if err := json.Unmarshal(raw.Data, &payload); err != nil {
		t.Fatal(err)
	}
	delete(payload, "timestamp")
	delete(payload, "messageId")
	if diff := cmp.Diff(map[string]any{"senderGuid": boss.GUID(), "senderHandle": "boss", "recipientGuid": hand.GUID(), "message": "one",
		"messageType": "direct"}, payload); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(want, nettest.ReadTexts(t, hand, mail.Selection{})); diff != "" {
		t.Error(diff)
	}
	if got := nettest.ReadTexts(t, hand, mail.Selection{}); len(got) != 0 {
		t.Errorf("read a second time: %q", got)
	}
	if diff := cmp.Diff(want, nettest.ReadTexts(t, hand, mail.Selection{IncludeRead: true})); diff != "" {
		t.Error(diff)
	}
}

// REQ-TOOL-READDIRECT-003: mail that a filter excludes stays unread.
func TestMailThatIsNotSelectedStaysUnread(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss, hand := nettest.Pair(t, n)
	other := nettest.Register(t, nettest.Open(t, n.Host("host-c", "cid", "shop")), registry.Registration{Handle: "other", AgentType: "reviewer", Scope: registry.ScopeUser})
	for i := range 6 {
		from, kind := boss, mail.Direct
		if i%2 == 1 {
			from = other
		}
		if i%3 == 0 {
			kind = mail.WorkAccept
		}
		_, err := from.Send(t.Context(), mail.Message{Recipient: hand.GUID(), Text: fmt.Sprint(i), Type: kind, Metadata: map[string]any{"taskId": "t"}})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		selection mail.Selection
		want      []string
	}{
		{mail.Selection{Type: mail.WorkAccept, Limit: 1}, []string{"0"}},
		{mail.Selection{Sender: other.GUID()}, []string{"1", "3", "5"}},
		{mail.Selection{Type: mail.WorkAccept}, []string{}},
		{mail.Selection{Limit: 1}, []string{"2"}},
		{mail.Selection{}, []string{"4"}},
		{mail.Selection{}, []string{}},
	} {
		if diff := cmp.Diff(step.want, nettest.ReadTexts(t, hand, step.selection)); diff != "" {
			t.Errorf("%+v: %s", step.selection, diff)
		}
	}
}

// For any sequence of sends and selective reads, each message is returned once, and in order
// within each selection.
func TestReadsReturnEachMessageOnce(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss, _ := nettest.Pair(t, n)
	clock := new(nettest.Clock)
	cfg := n.Host("host-p", "pia", "prop")
	cfg.Now = clock.Now
	sender := nettest.Register(t, nettest.Open(t, cfg), registry.Registration{Handle: "s", AgentType: "sender", Scope: registry.ScopeUser})
	_ = boss
	hand := nettest.Register(t, nettest.Open(t, n.Host("host-q", "pia", "prop")), registry.Registration{Handle: "r", AgentType: "reader", Scope: registry.ScopeUser})
	sent, got := 0, map[string]int{}
	types := []mail.MessageType{mail.Direct, mail.ErrorReport}
	rapid.Check(t, func(rt *rapid.T) {
		for range rapid.IntRange(0, 8).Draw(rt, "sends") {
			clock.Forward(time.Second)
			kind := rapid.SampledFrom(types).Draw(rt, "type")
			if _, err := sender.Send(t.Context(), mail.Message{Recipient: hand.GUID(), Text: fmt.Sprint(sent), Type: kind}); err != nil {
				rt.Fatal(err)
			}
			sent++
		}
		s := mail.Selection{Limit: rapid.IntRange(1, 5).Draw(rt, "limit"), Type: rapid.SampledFrom([]mail.MessageType{"", mail.Direct, mail.ErrorReport}).Draw(rt, "select")}
		mail, _, err := hand.Read(t.Context(), s)
		if err != nil {
			rt.Fatal(err)
		}
		last := uint64(0)
		for _, m := range mail {
			got[m.Text]++
			if m.Sequence <= last {
				rt.Fatal("not in order")
			}
			last = m.Sequence
		}
	})
	for {
		mail, _, err := hand.Read(t.Context(), mail.Selection{})
		if err != nil {
			t.Fatal(err)
		}
		if len(mail) == 0 {
			break
		}
		for _, m := range mail {
			got[m.Text]++
		}
	}
	for i := range sent {
		if got[fmt.Sprint(i)] != 1 {
			t.Errorf("message %d was read %d times", i, got[fmt.Sprint(i)])
		}
	}
}

// REQ-TOOL-DIRECT-003, REQ-TOOL-DIRECT-004, REQ-TOOL-DIRECT-005
func TestInvalidMailIsRefused(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss, hand := nettest.Pair(t, n)
	for name, tt := range map[string]struct {
		message  mail.Message
		category store.Code
		part     string
	}{
		"no guid":    {mail.Message{Recipient: "worker-1", Text: "x"}, store.ValidationError, "is not a GUID"},
		"wildcard":   {mail.Message{Recipient: "*", Text: "x"}, store.ValidationError, "is not a GUID"},
		"nobody":     {mail.Message{Recipient: uuid.NewString(), Text: "x"}, store.NotFoundError, "in the registry"},
		"empty":      {mail.Message{Recipient: hand.GUID()}, store.ValidationError, "empty"},
		"not UTF-8":  {mail.Message{Recipient: hand.GUID(), Text: "\xff"}, store.ValidationError, "UTF-8"},
		"huge":       {mail.Message{Recipient: hand.GUID(), Text: strings.Repeat("x", mail.MaxMail+1)}, store.ValidationError, "at most"},
		"type":       {mail.Message{Recipient: hand.GUID(), Text: "x", Type: "shout"}, store.ValidationError, "work-offer"},
		"metadata":   {mail.Message{Recipient: hand.GUID(), Text: "x", Type: mail.WorkOffer}, store.ValidationError, "taskId is missing, taskDescription is missing, requiredCapabilities is missing"},
		"long extra": {mail.Message{Recipient: hand.GUID(), Text: "x", Metadata: map[string]any{"a": strings.Repeat("x", 70000)}}, store.ValidationError, "metadata"},
		"long text":  {mail.Message{Recipient: hand.GUID(), Text: strings.Repeat("\x01", mail.MaxMail)}, store.ValidationError, "the server accepts"},
	} {
		_, err := boss.Send(t.Context(), tt.message)
		if nettest.CategoryOf(err) != tt.category || !strings.Contains(err.Error(), tt.part) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, s := range []mail.Selection{{Limit: -1}, {Limit: 1001}, {Type: "x"}, {Sender: "y"}} {
		_, _, err := hand.Read(t.Context(), s)
		nettest.Wants(t, err, store.ValidationError, "")
	}
}

// REQ-HANDOFF-003, REQ-HANDOFF-004, REQ-HANDOFF-005, REQ-HANDOFF-006
func TestHandOffMetadata(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss, hand := nettest.Pair(t, n)
	offer := map[string]any{"taskId": "T", "taskDescription": "d", "requiredCapabilities": []any{"go"}}
	with := func(base map[string]any, name string, v any) map[string]any {
		m := map[string]any{}
		for k, v := range base {
			m[k] = v
		}
		m[name] = v
		return m
	}
	for i, tt := range []struct {
		kind     mail.MessageType
		metadata map[string]any
		wrong    string   // part of the error text
		filled   []string // the fields that the server adds
	}{
		{mail.WorkOffer, offer, "", nil},
		{mail.WorkOffer, with(offer, "priority", "high"), "priority is not a number", nil},
		{mail.WorkOffer, with(offer, "deadline", "tomorrow"), "deadline is not a time", nil},
		{mail.WorkOffer, with(offer, "contextData", "x"), "contextData is not an object", nil},
		{mail.WorkOffer, with(offer, "requiredCapabilities", []any{1.0}), "requiredCapabilities is not a list", nil},
		{mail.WorkOffer, with(with(offer, "priority", 3.5), "deadline", "2026-12-01T00:00:00Z"), "", nil},
		{mail.WorkClaim, map[string]any{"taskId": "T"}, "", []string{"acceptedAt"}},
		{mail.WorkClaim, map[string]any{"taskId": "", "estimatedDuration": 5.0}, "taskId is not text", nil},
		{mail.WorkAccept, map[string]any{}, "taskId is missing", nil},
		{mail.WorkReject, map[string]any{"taskId": "T"}, "", nil},
		{mail.ProgressUpdate, map[string]any{"taskId": "T", "statusMessage": "half", "progressPercent": 50.0}, "", []string{"updatedAt"}},
		{mail.ProgressUpdate, map[string]any{"taskId": "T", "progressPercent": 101.0}, "progressPercent is not a number from 0 to 100, statusMessage is missing", nil},
		{mail.Completion, map[string]any{"taskId": "T", "success": true, "resultSummary": "done"}, "", []string{"completedAt"}},
		{mail.Completion, map[string]any{"taskId": "T", "success": "yes", "resultSummary": "done"}, "success is not true or false", nil},
		{mail.ErrorReport, map[string]any{"taskId": 5.0}, "taskId is not text", nil},
		{mail.Direct, map[string]any{"anything": []any{1.0}}, "", nil},
	} {
		_, err := boss.Send(t.Context(), mail.Message{Recipient: hand.GUID(), Text: "x", Type: tt.kind, Metadata: tt.metadata})
		if tt.wrong != "" {
			if nettest.CategoryOf(err) != store.ValidationError || !strings.Contains(err.Error(), tt.wrong) {
				t.Errorf("%d: %v", i, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%d: %v", i, err)
			continue
		}
		mail, _, err := hand.Read(t.Context(), mail.Selection{})
		if err != nil || len(mail) != 1 {
			t.Fatalf("%d: %v, %v", i, mail, err)
		}
		var got map[string]any
		if err := json.Unmarshal(mail[0].Metadata, &got); err != nil {
			t.Fatal(err)
		}
		for _, name := range tt.filled {
			if _, err := time.Parse(time.RFC3339Nano, fmt.Sprint(got[name])); err != nil {
				t.Errorf("%d: %s is %v", i, name, got[name])
			}
			delete(got, name)
		}
		if diff := cmp.Diff(tt.metadata, got); diff != "" {
			t.Errorf("%d: %s", i, diff)
		}
	}
}

// REQ-TOOL-DIRECT-006, REQ-LIVENESS-001: the sender gets a warning about an offline recipient, and
// can query how far its message has come.
func TestReceipts(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss := nettest.Register(t, nettest.Open(t, n.Host("host-a", "ann", "shop")), nettest.Dispatcher())
	cfg := n.Host("host-b", "bob", "shop")
	network := agentnet.Open(cfg)
	if err := network.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	hand := nettest.Register(t, network, nettest.Worker("typescript"))
	busy := registry.Busy
	if _, err := hand.UpdatePresence(t.Context(), registry.Changes{Status: busy}); err != nil {
		t.Fatal(err)
	}
	if s := nettest.SendText(t, boss, hand, "1"); !strings.Contains(s.Warning, "busy") {
		t.Errorf("%+v", s)
	}
	nettest.Shut(t, network)
	sent := nettest.SendText(t, boss, hand, "2")
	if !strings.Contains(sent.Warning, "offline") {
		t.Errorf("%+v", sent)
	}
	status := func() mail.MessageStatus {
		s, err := boss.MessageStatus(t.Context(), sent.ID)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := status(); s.Status != mail.Stored || s.RecipientGUID != hand.GUID() || s.StoredAt == "" || s.DeliveredAt != "" {
		t.Errorf("%+v", s)
	}
	// The entry is removed before the identity and the mail expire.
	late := new(nettest.Clock)
	lateCfg := n.Host("host-z", "zoe", "x")
	lateCfg.Now = late.Now
	collector := nettest.Open(t, lateCfg)
	late.Forward(time.Hour)
	if c, err := collector.Collect(t.Context(), true); err != nil || !slices.Contains(c.Removed, hand.GUID()) {
		t.Fatalf("%+v, %v", c, err)
	}
	if s := nettest.SendText(t, boss, hand, "3"); !strings.Contains(s.Warning, "offline") || s.RecipientHandle != "worker-1" {
		t.Errorf("to an agent whose entry was removed: %+v", s)
	}
	cfg.Now = late.Now
	reborn := nettest.Open(t, cfg)
	late.Forward(time.Minute) // the rate limit of registrations allows another one
	hand = nettest.Register(t, reborn, nettest.Worker("typescript"))
	if got := nettest.ReadTexts(t, hand, mail.Selection{}); !slices.Equal(got, []string{"1", "2", "3"}) {
		t.Errorf("%q", got)
	}
	if s := status(); s.Status != mail.Read || s.ReadAt == "" || s.DeliveredAt == "" || s.HandledAt != "" {
		t.Errorf("%+v", s)
	}
	if m, err := hand.MarkHandled(t.Context(), sent.ID, "done as you said"); err != nil || m.Text != "2" {
		t.Errorf("%+v, %v", m, err)
	}
	if s := status(); s.Status != mail.Handled || s.HandledAt == "" || s.Note != "done as you said" || s.ReadAt == "" {
		t.Errorf("%+v", s)
	}
	_, err := hand.MessageStatus(t.Context(), sent.ID)
	nettest.Wants(t, err, store.NotFoundError, "You have sent no message")
	_, err = hand.MessageStatus(t.Context(), "*")
	nettest.Wants(t, err, store.ValidationError, "is not the id")
	_, err = boss.MarkHandled(t.Context(), sent.ID, "")
	nettest.Wants(t, err, store.NotFoundError, "in your inbox")
}

func TestWaitIsWokenByMail(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss, hand := nettest.Pair(t, n)
	type result struct {
		mail []mail.Mail
		err  error
	}
	done := make(chan result)
	go func() {
		mail, _, err := hand.Wait(t.Context(), mail.Selection{Type: mail.Direct})
		done <- result{mail, err}
	}()
	if _, err := boss.Send(t.Context(), mail.Message{Recipient: hand.GUID(), Text: "not this", Type: mail.ErrorReport}); err != nil {
		t.Fatal(err)
	}
	nettest.SendText(t, boss, hand, "wake up")
	if r := <-done; r.err != nil || len(r.mail) != 1 || r.mail[0].Text != "wake up" {
		t.Errorf("%+v", r)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if mail, _, err := hand.Wait(ctx, mail.Selection{Type: mail.Direct}); len(mail) != 0 || err != nil {
		t.Errorf("%+v, %v", mail, err)
	}
	go func() {
		_, _, err := hand.Wait(t.Context(), mail.Selection{Type: mail.WorkOffer})
		done <- result{nil, err}
	}()
	if _, err := hand.Deregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	nettest.Wants(t, (<-done).err, store.NotRegisteredError, "")
}

// Two processes with one identity share an inbox: each message is read by one of them.
func TestConcurrentReadersShareTheMail(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss, hand := nettest.Pair(t, n)
	for i := range 60 {
		nettest.SendText(t, boss, hand, fmt.Sprint(i))
	}
	var mu sync.Mutex
	got := map[string]int{}
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				mail, _, err := hand.Read(t.Context(), mail.Selection{Limit: 3})
				if err != nil {
					t.Error(err)
				}
				if len(mail) == 0 {
					return
				}
				mu.Lock()
				for _, m := range mail {
					got[m.Text]++
				}
				mu.Unlock()
			}
		})
	}
	readers.Wait()
	for i := range 60 {
		if got[fmt.Sprint(i)] != 1 {
			t.Errorf("message %d was read %d times", i, got[fmt.Sprint(i)])
		}
	}
}

// Messages that are no mail of the network are skipped and do not block the mail behind them.
func TestInvalidStoredMailIsSkipped(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss, hand := nettest.Pair(t, n)
	js := n.Foreign()
	subject := "global.agent." + hand.GUID()
	for _, data := range []string{"", "{", "null", `{"senderGuid": "*.>"}`, "\xff\xfe",
		`{"senderGuid":"` + boss.GUID() + `","recipientGuid":"` + boss.GUID() + `","message":"for another","messageType":"direct","timestamp":"2026-01-01T00:00:00Z"}`,
		`{"senderGuid":"` + boss.GUID() + `","recipientGuid":"` + hand.GUID() + `","message":"x","messageType":"nonsense","timestamp":"2026-01-01T00:00:00Z"}`,
		`{"senderGuid":"` + boss.GUID() + `","recipientGuid":"` + hand.GUID() + `","message":"x","metadata":[1],"timestamp":"2026-01-01T00:00:00Z"}`,
		`{"messageId":"a.*.>","senderGuid":"` + boss.GUID() + `","recipientGuid":"` + hand.GUID() + `","message":"from another program","timestamp":"2026-01-01T00:00:00Z"}`,
	} {
		if _, err := js.Publish(t.Context(), subject, []byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	nettest.SendText(t, boss, hand, "ours")
	if got := nettest.ReadTexts(t, hand, mail.Selection{}); !slices.Equal(got, []string{"from another program", "ours"}) {
		t.Errorf("%q", got)
	}
}

// Mail is not lost if the connection breaks after it was marked as read but before the reader had
// the answer: the next read returns it.
func TestMailOfAnInterruptedReadIsReturnedAgain(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	link := nettest.StartProxy(t, strings.TrimPrefix(n.URL(), "nats://"))
	boss := nettest.Register(t, nettest.Open(t, n.Host("host-a", "ann", "shop")), nettest.Dispatcher())
	cfg := n.Host("host-b", "ann", "shop")
	cfg.Dial = func(ctx context.Context) (*bus.Bus, error) {
		return bus.Open(ctx, bus.Config{URL: bus.Secret(link.URL()), Logger: slog.New(slog.DiscardHandler)})
	}
	network := nettest.Open(t, cfg)
	hand := nettest.Register(t, network, nettest.Worker("go"))
	marked := make(chan *nats.Msg, 1)
	js := n.Foreign()
	sub, err := js.Conn().ChanSubscribe("global.mail.read.*", marked)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Unsubscribe() //nolint:errcheck // a test's
	if err := js.Conn().Flush(); err != nil {
		t.Fatal(err)
	}
	for i, text := range []string{"first", "second"} {
		nettest.SendText(t, boss, hand, text)
		var silent atomic.Bool // set by the first read mark: then the proxy drops all answers
		link.SetTap(func(toServer bool, data []byte) bool {
			if toServer && bytes.Contains(data, []byte(" global.mail.read.")) {
				silent.Store(true)
			}
			return toServer || !silent.Load()
		})
		read := make(chan error, 1)
		go func() {
			mail, _, err := hand.Read(t.Context(), mail.Selection{})
			if err == nil {
				err = fmt.Errorf("the read succeeded: %+v", mail)
			}
			read <- err
		}()
		<-marked
		link.SetTap(nil)
		link.Cut()
		if err := <-read; nettest.CategoryOf(err) != store.ConnectionError {
			t.Fatal(err)
		}
		wait.Eventually(t, "the link", func() bool { return network.Status().Connected })
		if i == 1 {
			if got := nettest.ReadTexts(t, hand, mail.Selection{Type: mail.Completion}); len(got) != 0 {
				t.Errorf("%q", got)
			}
		}
		var got []string
		wait.Eventually(t, "the mail", func() bool { got = append(got, nettest.TryTexts(t, hand)...); return len(got) > 0 })
		if !slices.Equal(got, []string{text}) {
			t.Errorf("%q", got)
		}
	}
}

// Invalid messages that fill an inbox block mail only until the inbox is read.
func TestReadingRemovesInvalidMessages(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss, hand := nettest.Pair(t, n)
	js := n.Foreign()
	for _, size := range []int{900 << 10, 64 << 10, 1 << 10, 1} {
		for err := error(nil); err == nil; { // until the inbox is full
			_, err = js.Publish(t.Context(), "global.agent."+hand.GUID(), make([]byte, size))
		}
	}
	_, err := boss.Send(t.Context(), mail.Message{Recipient: hand.GUID(), Text: "ours"})
	nettest.Wants(t, err, store.ConflictError, "inbox is full")
	if got := nettest.ReadTexts(t, hand, mail.Selection{}); len(got) != 0 {
		t.Errorf("%.100q", got)
	}
	nettest.SendText(t, boss, hand, "ours")
	if got := nettest.ReadTexts(t, hand, mail.Selection{}); !slices.Equal(got, []string{"ours"}) {
		t.Errorf("%.100q", got)
	}
}

// A full inbox refuses mail, and reading makes room. No accepted message is lost.
func TestAFullInboxRefusesMail(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss, hand := nettest.Pair(t, n)
	text := strings.Repeat("x", 500<<10)
	sent := 0
	for ; ; sent++ {
		_, err := boss.Send(t.Context(), mail.Message{Recipient: hand.GUID(), Text: text})
		if err != nil {
			nettest.Wants(t, err, store.ConflictError, "inbox is full")
			break
		}
	}
	read := 0
	for {
		mail, _, err := hand.Read(t.Context(), mail.Selection{})
		if err != nil {
			t.Fatal(err)
		}
		if len(mail) == 0 {
			break
		}
		read += len(mail)
	}
	if read != sent || sent < 15 {
		t.Errorf("%d sent, %d read", sent, read)
	}
	nettest.SendText(t, boss, hand, "there is room again")
}

// An inbox that was deleted is created again, and its sequence numbers start again at 1.
func TestADeletedInboxIsCreatedAgain(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss, hand := nettest.Pair(t, n)
	restartInbox(t, n, boss, hand)
	nettest.SendText(t, boss, hand, "new")
	if got := nettest.ReadTexts(t, hand, mail.Selection{}); !slices.Equal(got, []string{"new"}) {
		t.Errorf("%q", got)
	}
}

// An inbox that begins again may get as much mail as the agent had read before it looks again.
func TestAllMailOfAnInboxThatHasLostItsEndIsRead(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss, hand := nettest.Pair(t, n)
	restartInbox(t, n, boss, hand)
	var sent []string
	for i := range 8 {
		if i == 1 { // the hub looks with the first message
			if err := nettest.Open(t, n.Host("host-h", "ann", "hub")).MakeInbox(t.Context(), hand.GUID()); err != nil {
				t.Fatal(err)
			}
		}
		sent = append(sent, fmt.Sprint("new ", i))
		nettest.SendText(t, boss, hand, sent[i])
	}
	if got := nettest.ReadTexts(t, hand, mail.Selection{}); !slices.Equal(got, sent) {
		t.Errorf("%q", got)
	}
}

// The hub looks at an inbox while its agent reads: no mail comes twice.
func TestLookingAtAnInboxLeavesItsMarks(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss, hand := nettest.Pair(t, n)
	hub := nettest.Open(t, n.Host("host-h", "ann", "hub"))
	ctx, stop := context.WithCancel(t.Context())
	var looking sync.WaitGroup
	for range 4 {
		looking.Go(func() {
			for ctx.Err() == nil {
				_ = hub.MakeInbox(ctx, hand.GUID()) // a reader may be faster
			}
		})
	}
	defer looking.Wait()
	defer stop()
	for i := range 90 { // the limit of a minute is 100
		text := fmt.Sprint(i)
		nettest.SendText(t, boss, hand, text)
		if got := nettest.ReadTexts(t, hand, mail.Selection{}); !slices.Equal(got, []string{text}) {
			t.Fatalf("%q, not %s", got, text)
		}
	}
}

// restartInbox has hand read five messages, and makes its inbox again without their marks.
func restartInbox(t *testing.T, n *nettest.Server, boss, hand *agentnet.Agent) {
	t.Helper()
	for i := range 5 {
		nettest.SendText(t, boss, hand, fmt.Sprint(i))
	}
	nettest.ReadTexts(t, hand, mail.Selection{})
	js := n.Foreign()
	name := "GLOBAL_AGENT_INBOX_" + hand.GUID()
	stream, err := js.Stream(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	if err := js.DeleteStream(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
}

// The shared stream keeps the agents' mail apart.
func TestSharedInboxes(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	cfg := n.Host("host-a", "ann", "shop")
	cfg.Inboxes = store.InboxesShared
	network := nettest.Open(t, cfg)
	boss := nettest.Register(t, network, nettest.Dispatcher())
	// This computer is configured for separate inboxes; the network's setting applies.
	hand := nettest.Register(t, nettest.Open(t, n.Host("host-b", "bob", "blog")), nettest.Worker("typescript"))
	for i := range 5 {
		nettest.SendText(t, boss, hand, fmt.Sprint("to hand ", i))
		nettest.SendText(t, hand, boss, fmt.Sprint("to boss ", i))
	}
	if got := nettest.ReadTexts(t, hand, mail.Selection{Limit: 3}); !slices.Equal(got, []string{"to hand 0", "to hand 1", "to hand 2"}) {
		t.Errorf("%q", got)
	}
	if got := nettest.ReadTexts(t, hand, mail.Selection{}); !slices.Equal(got, []string{"to hand 3", "to hand 4"}) {
		t.Errorf("%q", got)
	}
	if got := nettest.ReadTexts(t, boss, mail.Selection{}); len(got) != 5 || got[0] != "to boss 0" {
		t.Errorf("%q", got)
	}
	if st := network.Status(); st.Inboxes != store.InboxesShared {
		t.Errorf("%+v", st)
	}
	names := n.Foreign().StreamNames(t.Context(), jetstream.WithStreamListSubject("global.agent.*"))
	var all []string
	for name := range names.Name() {
		all = append(all, name)
	}
	if !slices.Equal(all, []string{"GLOBAL_AGENT_INBOX"}) {
		t.Errorf("%q", all)
	}
}

// A network that already has an inbox for each agent keeps them.
func TestSharedInboxesDoNotReplaceSeparateOnes(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss := nettest.Register(t, nettest.Open(t, n.Host("host-a", "ann", "shop")), nettest.Dispatcher())
	cfg := n.Host("host-b", "bob", "blog")
	cfg.Inboxes = store.InboxesShared
	hand := nettest.Register(t, nettest.Open(t, cfg), nettest.Worker("typescript"))
	nettest.SendText(t, boss, hand, "x")
	if got := nettest.ReadTexts(t, hand, mail.Selection{}); len(got) != 1 {
		t.Errorf("%q", got)
	}
}

// REQ-TOOL-BROADCAST-002, REQ-TOOL-BROADCAST-003, REQ-TOOL-BROADCAST-004,
// REQ-TOOL-BROADCAST-005, REQ-TOOL-BROADCAST-006
func TestAnOfferReachesAgentsWithTheCapability(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss := nettest.Register(t, nettest.Open(t, n.Host("host-a", "ann", "shop")), nettest.Dispatcher())
	add := func(host string, r registry.Registration) *agentnet.Agent {
		return nettest.Register(t, nettest.Open(t, n.Host(host, "bob", "shop")), r)
	}
	can := add("h1", nettest.Worker("typescript", "Testing", "x"))
	add("h2", nettest.Worker("typescript"))
	limited := nettest.Worker("typescript", "testing")
	limited.MaxConcurrentTasks = 1
	full := add("h3", limited)
	one := 1
	if _, err := full.UpdatePresence(t.Context(), registry.Changes{CurrentTaskCount: &one}); err != nil {
		t.Fatal(err)
	}
	hidden := nettest.Worker("typescript", "testing")
	hidden.Visibility = store.Private
	add("h4", hidden)
	gone := add("h5", nettest.Worker("typescript", "testing"))
	if _, err := gone.Deregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	priority := 2.5
	offer := mail.Broadcast{Offer: mail.Offer{TaskID: "TASK-001", Description: "Implement login", RequiredCapabilities: []string{"typescript", "testing"},
		Priority: &priority, Deadline: "2026-12-01T00:00:00Z"}, TargetAgentTypes: []string{"tdd-engineer"}, TargetProjectID: can.Entry().ProjectID}
	result, err := boss.BroadcastOffer(t.Context(), offer)
	if err != nil || len(result.SentTo) != 1 || result.SentTo[0].GUID != can.GUID() || len(result.Full) != 1 || result.Full[0].GUID != full.GUID() {
		t.Fatalf("%+v, %v", result, err)
	}
	got, _, err := can.Read(t.Context(), mail.Selection{Type: mail.WorkOffer})
	if err != nil || len(got) != 1 || got[0].ID != result.SentTo[0].MessageID {
		t.Fatalf("%+v, %v", got, err)
	}
	want := `{"deadline":"2026-12-01T00:00:00Z","priority":2.5,"requiredCapabilities":["typescript","testing"],"taskDescription":"Implement login","taskId":"TASK-001"}`
	if string(got[0].Metadata) != want {
		t.Errorf("%s", got[0].Metadata)
	}
	offer.TargetAgentTypes = []string{"reviewer"}
	if result, err := boss.BroadcastOffer(t.Context(), offer); err != nil || len(result.SentTo) != 0 || result.SentTo == nil {
		t.Errorf("%+v, %v", result, err)
	}
	_, err = boss.BroadcastOffer(t.Context(), mail.Broadcast{})
	nettest.Wants(t, err, store.ValidationError, "taskId")
}

// REQ-HANDOFF-001, REQ-HANDOFF-002, REQ-TEST-CROSS-006: both workflows of section 18.12 between
// two hosts.
func TestTheHandOffProtocol(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss := nettest.Register(t, nettest.Open(t, n.Host("host-a", "ann", "shop")), nettest.Dispatcher())
	cfg := n.Host("host-b", "bob", "blog")
	cfg.Now = new(nettest.Clock).Still() // no time passes for its rate limit of updates
	hand := nettest.Register(t, nettest.Open(t, cfg), nettest.Worker("typescript"))
	if _, err := boss.BroadcastOffer(t.Context(), mail.Broadcast{Offer: mail.Offer{TaskID: "TASK-001", Description: "Implement user authentication module",
		RequiredCapabilities: []string{"typescript"}}, TargetAgentTypes: []string{"tdd-engineer"}}); err != nil {
		t.Fatal(err)
	}
	next := func(a *agentnet.Agent, kind mail.MessageType) mail.Mail {
		t.Helper()
		mail, _, err := a.Wait(t.Context(), mail.Selection{Type: kind})
		if err != nil || len(mail) != 1 {
			t.Fatalf("%s: %+v, %v", kind, mail, err)
		}
		return mail[0]
	}
	say := func(a *agentnet.Agent, to string, kind mail.MessageType, more map[string]any) {
		t.Helper()
		metadata := map[string]any{"taskId": "TASK-001"}
		for k, v := range more {
			metadata[k] = v
		}
		if _, err := a.Send(t.Context(), mail.Message{Recipient: to, Text: string(kind), Type: kind, Metadata: metadata}); err != nil {
			t.Fatal(err)
		}
	}
	offer := next(hand, mail.WorkOffer)
	say(hand, offer.SenderGUID, mail.WorkClaim, nil)
	claim := next(boss, mail.WorkClaim)
	say(boss, claim.SenderGUID, mail.WorkAccept, nil)
	next(hand, mail.WorkAccept)
	busy, idle, one, none := registry.Busy, registry.Idle, 1, 0
	if _, err := hand.UpdatePresence(t.Context(), registry.Changes{Status: busy, CurrentTaskCount: &one}); err != nil {
		t.Fatal(err)
	}
	say(hand, offer.SenderGUID, mail.ProgressUpdate, map[string]any{"statusMessage": "half", "progressPercent": 50.0})
	next(boss, mail.ProgressUpdate)
	say(hand, offer.SenderGUID, mail.Completion, map[string]any{"success": true, "resultSummary": "95% test coverage"})
	next(boss, mail.Completion)
	_, err := hand.UpdatePresence(t.Context(), registry.Changes{Status: idle, CurrentTaskCount: &none})
	nettest.Wants(t, err, store.RateLimitError, "seconds")
}

func FuzzDecodeMail(f *testing.F) {
	id := uuid.NewString()
	f.Add([]byte(`{"messageId":"` + id + `","senderGuid":"` + id + `","senderHandle":"a","recipientGuid":"` + id +
		`","message":"x","messageType":"work-offer","metadata":{"taskId":"t"},"timestamp":"2026-11-21T15:04:05.678Z"}`))
	f.Add([]byte(`{"senderGuid":"` + id + `","recipientGuid":"` + id + `","timestamp":"2026-11-21T15:04:05Z"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := mail.Decode(data, nil)
		if err == nil && (uuid.Validate(m.SenderGUID) != nil || strings.ContainsAny(m.ID, ".*> ") || m.ID == "") {
			t.Errorf("%+v", m)
		}
	})
}
