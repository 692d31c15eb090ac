package busjournal_test

import (
	"context"
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/swarm"
	"github.com/parleyhub/parley/swarm/busjournal"
	"github.com/parleyhub/parley/swarm/swarmtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func openBus(t *testing.T) *bus.Bus {
	t.Helper()
	b, err := bus.Open(context.Background(), bus.Config{DataDir: t.TempDir(), Durability: bus.DurabilityFast})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return b
}

func open(t *testing.T, b *bus.Bus) *busjournal.Journal {
	t.Helper()
	j, err := busjournal.Open(context.Background(), b.JetStream(), busjournal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func TestJournal(t *testing.T) {
	swarmtest.Journal(t, func(t *testing.T) swarm.Journal { return open(t, openBus(t)) })
}

func TestAJournalIsThereForTheNextProcess(t *testing.T) {
	ctx := context.Background()
	b := openBus(t)
	if _, err := open(t, b).Append(ctx, "a", 0, []byte("x")); err != nil {
		t.Fatal(err)
	}
	all, err := open(t, b).Read(ctx, "a", 0)
	if err != nil || len(all) != 1 || string(all[0].Data) != "x" {
		t.Fatalf("%v, %v", all, err)
	}
}

func TestIdsAreNoSubjects(t *testing.T) {
	ctx := context.Background()
	j := open(t, openBus(t))
	for _, id := range []string{"", "a.b", "*", ">", "a b", "a\n"} {
		if _, err := j.Append(ctx, id, 0, nil); swarm.CodeOf(err) != swarm.CodeJournal {
			t.Errorf("append to %q: %v", id, err)
		}
		if _, err := j.Read(ctx, id, 0); swarm.CodeOf(err) != swarm.CodeJournal {
			t.Errorf("read of %q: %v", id, err)
		}
		if err := j.Forget(ctx, id); swarm.CodeOf(err) != swarm.CodeJournal {
			t.Errorf("forget of %q: %v", id, err)
		}
	}
}

// What every coordinator looks at every few seconds.
func BenchmarkLast(b *testing.B) {
	ctx := context.Background()
	bus, err := bus.Open(ctx, bus.Config{DataDir: b.TempDir(), Durability: bus.DurabilityFast})
	if err != nil {
		b.Fatal(err)
	}
	defer bus.Close(ctx) //nolint:errcheck // the benchmark is over
	j, err := busjournal.Open(ctx, bus.JetStream(), busjournal.Options{})
	if err != nil {
		b.Fatal(err)
	}
	for i := range 100 {
		var last uint64
		for range 100 {
			if last, err = j.Append(ctx, fmt.Sprint("swarm-", i), last, make([]byte, 1000)); err != nil {
				b.Fatal(err)
			}
		}
	}
	for b.Loop() {
		if last, err := j.Last(ctx); err != nil || len(last) != 100 {
			b.Fatal(len(last), err)
		}
	}
}

func TestAReadEndsWithItsContext(t *testing.T) {
	j := open(t, openBus(t))
	if _, err := j.Append(context.Background(), "a", 0, []byte("x")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := j.Read(ctx, "a", 0); swarm.CodeOf(err) != swarm.CodeJournal {
		t.Fatalf("got %v", err)
	}
}
