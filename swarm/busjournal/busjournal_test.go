package busjournal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
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

func TestAJournalSurvivesItsProcess(t *testing.T) {
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

func TestInvalidIDsAreRefused(t *testing.T) {
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

// BenchmarkLast measures the call that each coordinator makes every few seconds.
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

// cutter is a publisher whose process dies after a number of messages.
type cutter struct {
	jetstream.JetStream
	left int
}

var errKilled = errors.New("killed")

func (c *cutter) PublishMsg(ctx context.Context, m *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	if c.left == 0 {
		return nil, errKilled
	}
	c.left--
	return c.JetStream.PublishMsg(ctx, m, opts...)
}

func large(b *bus.Bus, times int, fill byte) []byte {
	return bytes.Repeat([]byte{fill}, times*int(b.Conn().MaxPayload()))
}

func wantRecords(t *testing.T, j *busjournal.Journal, id string, want ...[]byte) {
	t.Helper()
	all, err := j.Read(context.Background(), id, 0)
	if err != nil || len(all) != len(want) {
		t.Fatalf("%d records, want %d: %v", len(all), len(want), err)
	}
	for i, r := range all {
		if !bytes.Equal(r.Data, want[i]) {
			t.Errorf("record %d has %d bytes, want %d", i, len(r.Data), len(want[i]))
		}
	}
}

// A record, such as the outcome of a swarm with many results, may be larger than a message (Req 8.6).
func TestARecordMayBeLargerThanAMessage(t *testing.T) {
	ctx := context.Background()
	b := openBus(t)
	j := open(t, b)
	records := [][]byte{[]byte("first"), large(b, 2, 'x'), []byte("third")}
	var last uint64
	for _, r := range records {
		var err error
		if last, err = j.Append(ctx, "a", last, r); err != nil {
			t.Fatal(err)
		}
	}
	wantRecords(t, j, "a", records...)
	if _, err := j.Append(ctx, "a", last-1, large(b, 2, 'y')); !errors.Is(err, swarm.ErrConflict) {
		t.Fatalf("a large record at a used sequence: %v", err)
	}
	wantRecords(t, j, "a", records...)
}

func TestAnIncompleteRecordIsIgnored(t *testing.T) {
	ctx := context.Background()
	b := openBus(t)
	killed := &cutter{JetStream: b.JetStream(), left: 3}
	j, err := busjournal.Open(ctx, b.JetStream(), busjournal.Options{Publisher: killed})
	if err != nil {
		t.Fatal(err)
	}
	first, err := j.Append(ctx, "a", 0, []byte("first"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.Append(ctx, "a", first, large(b, 2, 'x')); !errors.Is(err, errKilled) {
		t.Fatalf("got %v", err)
	}
	wantRecords(t, j, "a", []byte("first"))

	next := open(t, b) // its successor, or the restarted process
	second, err := next.Append(ctx, "a", first, large(b, 2, 'y'))
	if err != nil {
		t.Fatalf("after an incomplete record: %v", err)
	}
	if _, err := next.Append(ctx, "a", first, []byte("late")); !errors.Is(err, swarm.ErrConflict) {
		t.Fatalf("after the previous record: %v", err)
	}
	if _, err := next.Append(ctx, "a", second, []byte("third")); err != nil {
		t.Fatal(err)
	}
	wantRecords(t, next, "a", []byte("first"), large(b, 2, 'y'), []byte("third"))
}

// rival lets another writer append between the messages of a record.
type rival struct {
	jetstream.JetStream
	come func()
}

func (r *rival) PublishMsg(ctx context.Context, m *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	ack, err := r.JetStream.PublishMsg(ctx, m, opts...)
	if r.come != nil {
		r.come()
		r.come = nil
	}
	return ack, err
}

func TestASlowWriterGetsAConflict(t *testing.T) {
	ctx := context.Background()
	b := openBus(t)
	other := open(t, b)
	slow := &rival{JetStream: b.JetStream(), come: func() {
		if _, err := other.Append(ctx, "a", 0, []byte("theirs")); err != nil {
			t.Error(err)
		}
	}}
	j, err := busjournal.Open(ctx, b.JetStream(), busjournal.Options{Publisher: slow})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.Append(ctx, "a", 0, large(b, 2, 'x')); !errors.Is(err, swarm.ErrConflict) {
		t.Fatalf("got %v, want a conflict", err)
	}
	wantRecords(t, other, "a", []byte("theirs"))
}

// A full stream returns ErrFull and accepts records again after a journal was forgotten.
func TestAFullStreamReturnsErrFull(t *testing.T) {
	ctx := context.Background()
	b := openBus(t)
	j, err := busjournal.Open(ctx, b.JetStream(), busjournal.Options{MaxBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	record := bytes.Repeat([]byte("x"), 100<<10)
	var last uint64
	for n := 0; err == nil; n++ {
		if n > 20 {
			t.Fatal("the stream accepted every record")
		}
		if last, err = j.Append(ctx, "a", last, record); errors.Is(err, swarm.ErrFull) && n < 8 {
			t.Fatalf("%d records fit", n)
		}
	}
	if !errors.Is(err, swarm.ErrFull) || errors.Is(err, swarm.ErrConflict) {
		t.Fatalf("error %v", err)
	}
	if free, _, err := j.Room(ctx); err != nil || free != 0 {
		t.Fatalf("%v: %d bytes are free", err, free)
	}
	if err := j.Forget(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Append(ctx, "a", 0, record); err != nil {
		t.Fatal(err)
	}
}
