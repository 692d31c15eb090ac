package bus_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/testbed"
)

// storeNumbers makes a stream with n messages.
func storeNumbers(t *testing.T, b *bus.Bus, direct bool, n int) {
	t.Helper()
	if _, err := b.EnsureStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}, AllowDirect: direct}); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		// A publisher's own headers do not disturb.
		msg := &nats.Msg{Subject: "s", Data: []byte(fmt.Sprint(i + 1)), Header: nats.Header{jetstream.SequenceHeader: {"77"}, "Status": {"404"}}}
		if _, err := b.Publish(t.Context(), msg); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMessagesAreReadInOneRequest(t *testing.T) {
	b := open(t, bus.Config{DataDir: t.TempDir()})
	storeNumbers(t, b, true, 10)
	for _, c := range []struct {
		from               uint64
		limit, bytes, want int
		more               bool
	}{{1, 100, 1 << 20, 10, false}, {4, 100, 1 << 20, 7, false}, {1, 3, 1 << 20, 3, true}, {1, 100, 1, 1, true}, {10, 2, 1 << 20, 1, false}} {
		got, more, err := b.Messages(t.Context(), "S", c.from, c.limit, c.bytes)
		if err != nil || len(got) != c.want || more != c.more {
			t.Fatalf("from %d, %d at most: %d messages, more %t, %v", c.from, c.limit, len(got), more, err)
		}
		for i, m := range got {
			if want := c.from + uint64(i); m.Sequence != want || string(m.Data) != fmt.Sprint(want) || m.Subject != "s" || m.Reply != "" {
				t.Errorf("message %d: %+v", want, m)
			}
		}
	}
}

func TestNoMessageAndNoStreamDiffer(t *testing.T) {
	b := open(t, bus.Config{DataDir: t.TempDir()})
	storeNumbers(t, b, true, 1)
	if _, _, err := b.Messages(t.Context(), "S", 2, 10, 1<<20); !errors.Is(err, jetstream.ErrMsgNotFound) {
		t.Errorf("after the last: %v", err)
	}
	if _, _, err := b.Messages(t.Context(), "T", 1, 10, 1<<20); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("no stream: %v", err)
	}
	if _, _, err := b.Messages(t.Context(), "S", 0, 10, 1<<20); err == nil {
		t.Error("an invalid request: no error")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := b.Messages(ended, "S", 1, 10, 1<<20); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

func TestAStreamWithoutDirectAccessHasNoResponder(t *testing.T) {
	b := open(t, bus.Config{DataDir: t.TempDir()})
	storeNumbers(t, b, false, 1)
	if _, _, err := b.Messages(t.Context(), "S", 1, 10, 1<<20); !errors.Is(err, nats.ErrNoResponders) {
		t.Error(err)
	}
}

// A server that stops in the middle of its answers does not keep a reader until its own time ends.
func TestSilenceEndsARequestForMessages(t *testing.T) {
	t.Parallel()
	n := testbed.StartNATS(t)
	b := open(t, bus.Config{URL: bus.Secret(n.URL())})
	responder, err := nats.Connect(n.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(responder.Close)
	if _, err := responder.Subscribe("$JS.API.DIRECT.GET.SILENT", func(m *nats.Msg) {
		_ = responder.PublishMsg(&nats.Msg{Subject: m.Reply, Data: []byte("1"), Header: nats.Header{
			jetstream.SequenceHeader: {"1"}, jetstream.SubjectHeader: {"s"}, jetstream.TimeStampHeaer: {"2026-11-21T06:00:00Z"}, "Nats-Num-Pending": {"1"}}})
	}); err != nil {
		t.Fatal(err)
	}
	if err := responder.Flush(); err != nil {
		t.Fatal(err)
	}
	got, more, err := b.Messages(t.Context(), "SILENT", 1, 10, 1<<20)
	if len(got) != 1 || !more || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%d messages, more %t, %v", len(got), more, err)
	}
}
