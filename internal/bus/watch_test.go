package bus_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

// seen collects what a watcher is told, as "NAMESPACE SUBJECT BODY".
type seen struct {
	mu   sync.Mutex
	list []string
}

func (s *seen) message(namespace string, m *nats.Msg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, namespace+" "+m.Subject+" "+string(m.Data))
}

func (s *seen) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.list...)
}

// joinNamespace returns a process in a namespace of the hub.
func joinNamespace(t *testing.T, hub *bus.Bus, namespace string) *bus.Bus {
	return joinWith(t, bus.Config{Name: namespace}, func(ctx context.Context) (bus.Grant, error) {
		return hub.Grant(ctx, bus.GrantRequest{Namespace: namespace})
	})
}

func publish(t *testing.T, b *bus.Bus, subject, body string) {
	t.Helper()
	must(t, b.JetStream().Conn().Publish(subject, []byte(body)))
	must(t, b.JetStream().Conn().Flush())
}

func TestAWatcherSeesTheSubjectsOfEachNamespaceAndNoOthers(t *testing.T) {
	hub := open(t, bus.Config{DataDir: t.TempDir()})
	var s seen
	hub.Watch(bus.Watcher{Subjects: func(namespace string) []string { return []string{"talk." + namespace + ".>"} }, Message: s.message})
	one, two := joinNamespace(t, hub, "one"), joinNamespace(t, hub, "two")
	publish(t, one, "secret.one", "x")
	publish(t, one, "talk.two.a", "x") // not a subject of this namespace
	publish(t, one, "talk.one.a", "1")
	wait.Eventually(t, "the first is seen", func() bool { return len(s.all()) == 1 })
	publish(t, two, "talk.two.b.c", "2")
	wait.Eventually(t, "the second is seen", func() bool { return len(s.all()) == 2 })
	if got := s.all(); got[0] != "one talk.one.a 1" || got[1] != "two talk.two.b.c 2" {
		t.Errorf("got %q", got)
	}
}

func TestANamespaceThatCannotBeWatchedIsServedAndWatchedLater(t *testing.T) {
	hub := open(t, bus.Config{DataDir: t.TempDir()})
	var s seen
	var attempts atomic.Int32
	hub.Watch(bus.Watcher{Message: s.message, Subjects: func(string) []string {
		if attempts.Add(1) == 1 {
			return []string{"talk.>", "not a subject"}
		}
		return []string{"talk.>"}
	}})
	one := joinNamespace(t, hub, "one")
	ensureStream(t, one, "TALK", "talk.>")
	publish(t, one, "talk.a", "unseen")
	if got := s.all(); len(got) != 0 {
		t.Errorf("it saw %q", got)
	}
	again := joinNamespace(t, hub, "one")
	publish(t, again, "talk.a", "seen")
	publish(t, one, "talk.b", "seen")
	wait.Eventually(t, "both are seen", func() bool { return len(s.all()) >= 2 })
	joinNamespace(t, hub, "one")
	publish(t, one, "talk.c", "last")
	wait.Eventually(t, "the last is seen", func() bool { got := s.all(); return got[len(got)-1] == "one talk.c last" })
	if got := s.all(); len(got) != 3 || attempts.Load() != 2 {
		t.Errorf("after %d attempts it saw %q, want each message once", attempts.Load(), got)
	}
}
