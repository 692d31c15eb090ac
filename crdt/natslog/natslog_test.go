package natslog_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/natslog"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/internal/testbed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testbed.Leaks()...) }

// patience bounds waits on a busy machine.
const patience = time.Minute

// connect returns a connection that reconnects; it is closed when the test ends.
func connect(t testing.TB, s *testbed.Server, options ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(s.URL(), append(options, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func open(t testing.TB, s *testbed.Server, o natslog.Options) *natslog.Document {
	t.Helper()
	return openWith(t, connect(t, s), o)
}

func openWith(t testing.TB, nc *nats.Conn, o natslog.Options) *natslog.Document {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if o.Document == "" {
		o.Document = "plan"
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	d, err := natslog.Open(ctx, js, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func edit(t testing.TB, d *natslog.Document, f func(doc *crdt.Doc) error) {
	t.Helper()
	if err := d.Edit(t.Context(), f); err != nil {
		t.Fatal(err)
	}
}

func appendTo(t testing.TB, d *natslog.Document, text string) {
	t.Helper()
	edit(t, d, func(doc *crdt.Doc) error { return doc.Array("l").Append(text) })
}

func flush(t testing.TB, d *natslog.Document) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := d.Flush(ctx); err != nil {
		t.Fatal(err)
	}
}

// list returns the document's list of texts.
func list(t testing.TB, d *natslog.Document) []string {
	t.Helper()
	var texts []string
	if err := d.View(t.Context(), func(doc *crdt.Doc) {
		for _, v := range doc.Array("l").All() {
			texts = append(texts, fmt.Sprint(v))
		}
	}); err != nil {
		t.Fatal(err)
	}
	return texts
}

func state(t testing.TB, d *natslog.Document) []byte {
	t.Helper()
	saved, err := d.Save(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return saved.Update
}

// until waits for a condition. It checks it after each change of the document and every 50 ms.
func until(t testing.TB, what string, d *natslog.Document, holds func() bool) {
	t.Helper()
	changed := make(chan struct{}, 1)
	defer d.OnUpdate(func(replica.Update) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})()
	end := time.After(patience)
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for !holds() {
		select {
		case <-changed:
		case <-again.C:
		case <-end:
			t.Fatalf("timeout: %s", what)
		}
	}
}

// same waits until all replicas have the same bytes in the same epoch, and returns the bytes.
func same(t testing.TB, all ...*natslog.Document) (want []byte) {
	t.Helper()
	for _, d := range all {
		flush(t, d)
	}
	until(t, "replicas are the same", all[0], func() bool {
		epoch := all[0].Epoch()
		want = state(t, all[0])
		for _, d := range all {
			if !bytes.Equal(want, state(t, d)) || d.Epoch() != epoch {
				return false
			}
		}
		return true
	})
	return want
}

// exactly verifies that the list has each text once.
func exactly(t testing.TB, d *natslog.Document, want map[string]bool) {
	t.Helper()
	seen := map[string]int{}
	for _, text := range list(t, d) {
		seen[text]++
	}
	for text := range want {
		if seen[text] != 1 {
			t.Errorf("%s is there %d times", text, seen[text])
		}
	}
	if len(seen) != len(want) {
		t.Errorf("there are %d texts, %d were written", len(seen), len(want))
	}
}

// lines collects log output.
type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) has(parts ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.b.String()) {
		all := true
		for _, part := range parts {
			all = all && strings.Contains(line, part)
		}
		if all {
			return true
		}
	}
	return false
}

func logger(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// A change by one replica reaches all others, including those that join later (Req 9.1, 9.2).
func TestReplicasShareALog(t *testing.T) {
	s := testbed.StartNATS(t)
	mars := open(t, s, natslog.Options{Agent: "mars"})
	venus := open(t, s, natslog.Options{Agent: "venus"})
	appendTo(t, mars, "a")
	appendTo(t, venus, "b")
	same(t, mars, venus)
	late := open(t, s, natslog.Options{Agent: "late"})
	exactly(t, late, map[string]bool{"a": true, "b": true})
	appendTo(t, late, "c")
	same(t, mars, venus, late)
	exactly(t, mars, map[string]bool{"a": true, "b": true, "c": true})
}

// Replicas edit while the server restarts, snapshots purge the log and a process is replaced. All end with the
// same bytes and each edit once (Req 9.3, Property 28).
func TestReplicasConvergeWhileTheServerRestarts(t *testing.T) {
	s := testbed.StartNATS(t)
	options := func(agent string) natslog.Options {
		return natslog.Options{Agent: agent, SnapshotEvery: 8, Logger: logger(t.Output())}
	}
	all := []*natslog.Document{open(t, s, options("a0")), open(t, s, options("a1")), open(t, s, options("a2"))}
	want := map[string]bool{}
	random := rand.New(rand.NewPCG(1, 7))
	for round := range 12 {
		for range 30 {
			i := random.IntN(len(all))
			text := fmt.Sprintf("%d-%d", round, len(want))
			want[text] = true
			place := random.Float64()
			edit(t, all[i], func(doc *crdt.Doc) error {
				l := doc.Array("l")
				if err := doc.Map("m").Set(fmt.Sprint(random.IntN(5)), text); err != nil {
					return err
				}
				return l.Insert(int(place*float64(l.Len())), text)
			})
			if random.IntN(6) == 0 {
				flush(t, all[i])
			}
		}
		switch round % 4 {
		case 1:
			s.Stop()
			for i, d := range all {
				text := fmt.Sprintf("away-%d-%d", round, i)
				want[text] = true
				appendTo(t, d, text)
			}
			s.Start()
		case 2: // a process ends and another begins
			flush(t, all[1])
			all[1].Close()
			all[1] = open(t, s, options("a1"))
		case 3:
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			if err := all[0].Snapshot(ctx); err != nil {
				t.Log("a concurrent snapshot won:", err)
			}
			cancel()
		}
	}
	bytes1 := same(t, all...)
	for _, d := range all {
		exactly(t, d, want)
	}
	late := open(t, s, options("late"))
	if !bytes.Equal(state(t, late), bytes1) {
		t.Error("a late replica has a different document")
	}
	js := s.Foreign()
	log, err := js.Stream(t.Context(), "parley_DOCLOG")
	if err != nil {
		t.Fatal(err)
	}
	if info, err := log.Info(t.Context()); err != nil || info.State.FirstSeq < 2 {
		t.Errorf("the log was not purged behind its snapshots: %+v %v", info.State, err)
	}
}
