package chat_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/chat"
)

// wantCategory checks the category of the error, and that it has a remedy.
func wantCategory(t *testing.T, err error, category chat.Code, words ...string) {
	t.Helper()
	e, ok := err.(*chat.Error)
	if !ok || e.Code != category || e.Remedy == "" {
		t.Fatalf("%v (%T), want a %s with a remedy", err, err, category)
	}
	for _, w := range words {
		if !strings.Contains(e.Error(), w) {
			t.Errorf("%q does not say %q", e, w)
		}
	}
}

// A stock server accepts 1 MB including headers. A larger message is refused with a remedy, and
// does not block the messages behind it.
func TestAMessageTooLargeForTheServerIsRefused(t *testing.T) {
	n := startServer(t)
	s := ready(t, open(t, n.config("project-1")))
	_, err := s.Send(t.Context(), "agent", "roadmap", strings.Repeat("x", chat.MaxMessage))
	wantCategory(t, err, chat.ValidationError, "max_payload", "file")
	fits := strings.Repeat("<", chat.MaxMessage-1024) // "<" is stored unescaped, in one byte
	send(t, s, "agent", "roadmap", fits)
	if got := texts(t, s, "roadmap", 1); got[0] != fits {
		t.Error("the message is not what was sent")
	}
}

// On the embedded bus a text of 1 MB fits, even if JSON escapes all of its characters.
func TestOneMegabyteFitsOnTheEmbeddedBus(t *testing.T) {
	hub, err := bus.Open(t.Context(), bus.Config{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := hub.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	cfg := killConfig(func(ctx context.Context) (*bus.Bus, error) {
		return bus.Join(ctx, bus.Config{}, func(ctx context.Context) (bus.Grant, error) {
			return hub.Grant(ctx, bus.GrantRequest{Namespace: "kill"})
		})
	})
	s := ready(t, open(t, cfg))
	for _, text := range []string{strings.Repeat("x", chat.MaxMessage), strings.Repeat("\x01", chat.MaxMessage), strings.Repeat("<&>", chat.MaxMessage/3)} {
		send(t, s, "agent", "c", text)
		if got := texts(t, s, "c", 1); got[0] != text {
			t.Error("the message is not what was sent")
		}
	}
}

// A queued message that proves too large does not block those behind it.
func TestAQueuedMessageThatNeverFitsIsDropped(t *testing.T) {
	n := startServer(t)
	n.Stop()
	s := open(t, n.config("project-1"))
	<-s.Tried()
	for _, text := range []string{"first", strings.Repeat("x", chat.MaxMessage), "last"} {
		if r := send(t, s, "agent", "roadmap", text); !r.Queued {
			t.Errorf("%+v", r)
		}
	}
	n.Start()
	await(t, s, func() bool { return s.Status().Connected && s.Status().Queued == 0 })
	if got := texts(t, s, "roadmap", 10); len(got) != 2 || got[0] != "first" || got[1] != "last" {
		t.Errorf("stored %.40q", got)
	}
}

// JetStream stores a message that is larger than the whole stream may be, and removes it at once:
// it must not be acknowledged to an agent.
func TestAMessageLargerThanItsChannelIsRefused(t *testing.T) {
	n := startServer(t)
	cfg := n.config("project-1")
	cfg.Channels = []chat.Channel{{Name: "small", MaxMessages: 10, MaxBytes: 2048, MaxAge: time.Hour}}
	s := ready(t, open(t, cfg))
	_, err := s.Send(t.Context(), "agent", "small", strings.Repeat("x", 2048))
	wantCategory(t, err, chat.ValidationError, "small", "maxBytes")
	text := strings.Repeat("y", 1024)
	send(t, s, "agent", "small", text)
	if got := texts(t, s, "small", 1); len(got) != 1 || got[0] != text {
		t.Errorf("stored %.40q", got)
	}
}

// A stream of another program that would lose messages is not used as a channel.
func TestAStreamThatDoesNotKeepMessagesIsRefused(t *testing.T) {
	n := startServer(t)
	js := n.Foreign()
	for name, change := range map[string]func(*jetstream.StreamConfig){
		"work queue": func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy },
		"interest":   func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy },
		"memory":     func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := jetstream.StreamConfig{Name: "project-1_ROADMAP", Subjects: []string{"project-1.roadmap"}}
			change(&cfg)
			if _, err := js.CreateStream(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := js.DeleteStream(context.Background(), cfg.Name); err != nil {
					t.Error(err)
				}
			})
			s := ready(t, open(t, n.config("project-1")))
			_, err := s.Send(t.Context(), "agent", "roadmap", "x")
			wantCategory(t, err, chat.ConflictError, "roadmap", "namespace")
			_, err = s.Read(t.Context(), "agent", "roadmap", 1)
			wantCategory(t, err, chat.ConflictError)
		})
	}
}

// Without acknowledgements from the stream, every send would time out.
func TestAStreamWithoutAcknowledgementsIsRepaired(t *testing.T) {
	n := startServer(t)
	_, err := n.Foreign().CreateStream(t.Context(), jetstream.StreamConfig{Name: "project-1_ROADMAP", Subjects: []string{"project-1.roadmap"}, NoAck: true,
		Metadata: map[string]string{"parley.namespace": "project-1", "parley.channel": "roadmap"}})
	if err != nil {
		t.Fatal(err)
	}
	s := ready(t, open(t, n.config("project-1")))
	send(t, s, "agent", "roadmap", "x")
}

// Many invalid messages neither hide nor indefinitely delay valid ones, and use only storage that
// messages may use.
func TestAFloodOfJunkDoesNotHideMessages(t *testing.T) {
	n := startServer(t)
	cfg := n.config("project-1")
	var log syncBuffer
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	s := ready(t, open(t, cfg))
	tips, err := s.Tips(t.Context(), []string{"roadmap"})
	if err != nil {
		t.Fatal(err)
	}
	js := n.Foreign()
	junk := [][]byte{nil, []byte("{"), []byte(`[]`), []byte("\xff\xfe"), []byte(`{"handle":"a","timestamp":"x"}`),
		[]byte(`{"handle":"a","message":"m","timestamp":"99999-01-01T00:00:00Z"}`),
		[]byte(fmt.Sprintf(`{"handle":%q,"message":"m","timestamp":"2026-11-21T06:00:00Z"}`, strings.Repeat("h", 5000))),
		bytes.Repeat([]byte("["), 100_000)}
	for i := range 1000 {
		msg := &nats.Msg{Subject: "project-1.roadmap", Data: junk[i%len(junk)],
			Header: nats.Header{"Nats-Rollup": nil, "X": {"\x00"}}}
		if _, err := js.PublishMsg(t.Context(), msg); err != nil {
			t.Fatal(err)
		}
	}
	send(t, s, "agent", "roadmap", "found")
	news, err := s.Wait(t.Context(), tips)
	if err != nil || len(news.Messages["roadmap"]) != 1 || news.Messages["roadmap"][0].Text != "found" {
		t.Errorf("waited for %+v, %v", news, err)
	}
	h, err := s.Read(t.Context(), "agent", "roadmap", 1000)
	if err != nil || len(h.Messages) != 1 || h.Skipped == 0 {
		t.Errorf("read %d messages and skipped %d: %v", len(h.Messages), h.Skipped, err)
	}
}

// A message that may be stored already is not stored twice after the computer slept or its clock
// was set.
func TestAClockJumpRepeatsNoMessage(t *testing.T) {
	for name, jump := range map[string]time.Duration{"forward": 3 * time.Hour, "backward": -3 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			then := time.Now()
			now := then.Add(time.Second)
			if got := chat.Apart(then, now.Add(jump).Round(0)); got < 2*time.Hour {
				t.Errorf("a jump of %v counts as %v", jump, got)
			}
			if got := chat.Apart(then, now); got != time.Second {
				t.Errorf("a second counts as %v", got)
			}
		})
	}
}

// The payload has the specified format, whatever characters the text has.
func TestThePayloadIsPlainJSON(t *testing.T) {
	n := startServer(t)
	s := ready(t, open(t, n.config("project-1")))
	text := "<a href=\"x\">&\u2028\u0000 ü 🚀\n"
	send(t, s, "agent", "roadmap", text)
	stream, err := n.Foreign().Stream(t.Context(), "project-1_ROADMAP")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := stream.GetMsg(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	var payload map[string]any
	if err := json.Unmarshal(raw.Data, &payload); err != nil || payload["message"] != text || bytes.HasSuffix(raw.Data, []byte("\n")) {
		t.Errorf("stored %q: %v", raw.Data, err)
	}
	if bytes.Contains(raw.Data, []byte(`\u003c`)) {
		t.Errorf("%q is longer than necessary", raw.Data)
	}
}

// A line break is shown as five bytes, and as six together with its JSON escape. The bound on an
// answer counts bytes as shown.
func TestTheBoundOfAnAnswerCountsShownBytes(t *testing.T) {
	n := startServer(t)
	cfg := n.config("project-1")
	cfg.Channels = []chat.Channel{{Name: "c", MaxMessages: 10, MaxBytes: 64 << 20, MaxAge: time.Hour}}
	s := ready(t, open(t, cfg))
	for range 4 {
		send(t, s, "agent", "c", strings.Repeat("\n", chat.MaxRead/18)) // each is a third of the bound
	}
	h, err := s.Read(t.Context(), "agent", "c", 10)
	if err != nil || len(h.Messages) == 4 || h.Omitted == 0 {
		t.Errorf("%d messages, %d omitted, %v", len(h.Messages), h.Omitted, err)
	}
}
