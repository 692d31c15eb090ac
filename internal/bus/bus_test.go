package bus_test

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/bus"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// open opens an embedded bus that the test closes.
func open(t testing.TB, cfg bus.Config) *bus.Bus {
	t.Helper()
	b, err := bus.Open(t.Context(), cfg)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { shut(t, b) })
	return b
}

func shut(t testing.TB, b *bus.Bus) {
	t.Helper()
	if err := b.Close(context.Background()); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func ensureStream(t testing.TB, b *bus.Bus, name, subjects string) jetstream.Stream {
	t.Helper()
	s, err := b.EnsureStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{subjects}})
	if err != nil {
		t.Fatalf("EnsureStream: %v", err)
	}
	return s
}

func TestMessagesSurviveReopening(t *testing.T) {
	cfg := bus.Config{DataDir: t.TempDir()}
	b := open(t, cfg)
	ensureStream(t, b, "S", "s.>")
	ack, err := b.Publish(t.Context(), &nats.Msg{Subject: "s.1", Data: []byte("one")}, jetstream.WithMsgID("1"))
	if err != nil {
		t.Fatalf("Publish: %v", err)
	}
	shut(t, b)

	b = open(t, cfg)
	msg, err := ensureStream(t, b, "S", "s.>").GetMsg(t.Context(), ack.Sequence)
	if err != nil || string(msg.Data) != "one" {
		t.Fatalf("GetMsg: %v, %v", msg, err)
	}
}

// join joins the bus on cfg's data directory; the test closes it.
func join(t testing.TB, cfg bus.Config) *bus.Bus {
	t.Helper()
	b, err := bus.Join(t.Context(), cfg)
	if err != nil {
		t.Fatalf("Join: %v", err)
	}
	t.Cleanup(func() { shut(t, b) })
	return b
}
