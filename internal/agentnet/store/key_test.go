package store_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

// open returns a store on a server of its own.
func open(t *testing.T, change func(*store.Config), prepare ...jetstream.StreamConfig) (*store.Store, *bus.Bus) {
	t.Helper()
	n := nettest.StartServer(t, func(o *server.Options) {})
	cfg := n.Host("host-a", "ann", "shop").BusConfig
	cfg.Logger = slog.New(slog.DiscardHandler)
	change(&cfg)
	s := store.New(cfg.WithDefaults())
	registry := store.BucketConfig(s.Config().Bucket, "registry", time.Hour)
	s.Prepare(func(ctx context.Context, b *bus.Bus) error {
		return s.EnsureStreams(ctx, b, append([]jetstream.StreamConfig{registry}, prepare...)...)
	})
	s.Start()
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := s.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	b, err := s.Connected()
	if err != nil {
		t.Fatal(err)
	}
	return s, b
}

func TestKeysHaveRevisions(t *testing.T) {
	t.Parallel()
	s, b := open(t, func(*store.Config) {})
	key := s.Config().EntryKey("x")
	first, err := key.Put(t.Context(), b, []byte("1"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := key.Put(t.Context(), b, []byte("2"), 0); !errors.Is(err, store.ErrConflict) {
		t.Errorf("a put with a wrong revision: %v", err)
	}
	v, err := key.Update(t.Context(), b, func(v store.Value) (any, error) { return append(v.Data, '2'), nil })
	if err != nil || string(v.Data) != "12" || v.Revision <= first {
		t.Errorf("%+v, %v", v, err)
	}
	if m, err := store.BySequence(t.Context(), b, key.Stream, v.Revision); err != nil || m == nil || string(m.Data) != "12" {
		t.Errorf("%+v, %v", m, err)
	}
	if err := key.Delete(t.Context(), b, first); !errors.Is(err, store.ErrConflict) {
		t.Errorf("a deletion with an old revision: %v", err)
	}
	if err := key.Delete(t.Context(), b, v.Revision); err != nil {
		t.Error(err)
	}
	if v, err := key.Get(t.Context(), b); err != nil || v.Exists() || v.Revision == 0 {
		t.Errorf("%+v, %v", v, err)
	}
	if m, err := store.BySequence(t.Context(), b, key.Stream, first); err != nil || m != nil {
		t.Errorf("a deleted message: %+v, %v", m, err)
	}
}

// In each period exactly one process has the turn.
func TestTurns(t *testing.T) {
	t.Parallel()
	clock := new(nettest.Clock)
	s, b := open(t, func(c *store.Config) { c.Now = clock.Now })
	for _, want := range []bool{true, false} {
		if got, err := s.Turn(t.Context(), b, "turn", time.Minute); err != nil || got != want {
			t.Errorf("%v, %v, want %v", got, err, want)
		}
	}
	clock.Forward(2 * time.Minute)
	if got, err := s.Turn(t.Context(), b, "turn", time.Minute); err != nil || !got {
		t.Errorf("after the period: %v, %v", got, err)
	}
}

// A stream of another program is not changed. A stream of the network gets the configured maximum
// age. Deleting a message twice is no error.
func TestStreams(t *testing.T) {
	t.Parallel()
	want := jetstream.StreamConfig{Name: "AUDIT", Subjects: []string{"audit.x"}, MaxAge: time.Hour, AllowDirect: true}
	s, b := open(t, func(*store.Config) {}, want)
	other := want
	other.Subjects = []string{"audit.y"}
	nettest.Wants(t, s.EnsureStreams(t.Context(), b, other), store.ConflictError, "AUDIT")
	want.MaxAge = 2 * time.Hour
	if err := s.EnsureStreams(t.Context(), b, want); err != nil {
		t.Fatal(err)
	}
	stream, err := b.JetStream().Stream(t.Context(), "AUDIT")
	if err != nil || stream.CachedInfo().Config.MaxAge != want.MaxAge {
		t.Errorf("%v", err)
	}
	ack, err := b.JetStream().Publish(t.Context(), "audit.x", []byte("1"))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := store.DeleteMessage(t.Context(), b, "AUDIT", ack.Sequence); err != nil {
			t.Error(err)
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	if name, err := store.QueueName(" TypeScript "); err != nil || name != "typescript" {
		t.Errorf("%q, %v", name, err)
	}
	if guid, err := store.CheckGUID("guid", "7F3C1A52-8A0E-4F5B-9D55-0D7C9F1F2B11"); err != nil || guid != "7f3c1a52-8a0e-4f5b-9d55-0d7c9f1f2b11" {
		t.Errorf("%q, %v", guid, err)
	}
	_, reserved := store.QueueName("deadletter")
	_, wildcard := store.QueueName("a.*")
	_, guid := store.CheckGUID("guid", "*")
	for _, err := range []error{reserved, wildcard, guid, store.CheckBucket("a.b"), store.CheckName("handle", "A b")} {
		nettest.Wants(t, err, store.ValidationError, "")
	}
	got := []string{store.InboxPrefix(""), store.InboxPrefix("g"), store.ClusterInboxPrefix("g")}
	if !slices.Equal(got, []string{"", "_INBOX_g", "_INBOX.g"}) {
		t.Errorf("%q", got)
	}
	busErr := store.AsError(&bus.Error{Code: bus.CodeConfig, Message: "it is wrong", Remedy: "mend it"})
	nettest.Wants(t, busErr, store.ConnectionError, "It is wrong. Mend it.")
}
