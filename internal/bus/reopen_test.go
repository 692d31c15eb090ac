package bus_test

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
)

// When the store was opened again, each request is executed once: a second purge would remove what was stored after the first.
func TestAReopenedStoreExecutesRequestsOnce(t *testing.T) {
	t.Parallel()
	hub := open(t, bus.Config{DataDir: t.TempDir()})
	ensureStream(t, hub, "HUB", "s.>")
	project := join(t, hub)
	_, err := project.EnsureStream(t.Context(), jetstream.StreamConfig{Name: "test_P", Subjects: []string{"test.s.>"}, MaxBytes: 1 << 20})
	must(t, err)
	for round := range 4 {
		if round > 0 && !hub.Reopen(t.Context()) {
			t.Fatal("the store was not opened again")
		}
		for _, at := range []struct {
			bus            *bus.Bus
			stream, prefix string
		}{{hub, "HUB", "s."}, {project, "test_P", "test.s."}} {
			s, err := at.bus.JetStream().Stream(t.Context(), at.stream)
			must(t, err)
			for i := range 10 {
				subject := fmt.Sprintf("%s%d.%d", at.prefix, round, i)
				must(t, s.Purge(t.Context(), jetstream.WithPurgeSubject(subject)))
				_, err := at.bus.Publish(t.Context(), &nats.Msg{Subject: subject, Data: []byte("x")})
				must(t, err)
			}
			info, err := s.Info(t.Context())
			must(t, err)
			if want := uint64(10 * (round + 1)); info.State.Msgs != want {
				t.Errorf("%s has %d of %d messages after it was opened again %d times", at.stream, info.State.Msgs, want, round)
			}
		}
	}
}
