package bus_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/bus"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(runChild())
	}
	status := m.Run()
	if status == 0 {
		// nats-server keeps these goroutines for some seconds after the end of a stream that could not
		// reach its origin.
		if err := goleak.Find(
			goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*stream).setupMirrorConsumer.func3"),
			goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*stream).trySetupSourceConsumer.func3"),
		); err != nil {
			fmt.Fprintln(os.Stderr, err)
			status = 1
		}
	}
	removeStockServer()
	os.Exit(status)
}

// open opens a bus that the test closes.
func open(t testing.TB, cfg bus.Config) *bus.Bus {
	t.Helper()
	b, err := bus.Open(t.Context(), cfg)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { shut(t, b) })
	return b
}

// project requests Grants of the namespace test from a bus of this process.
func project(b *bus.Bus) bus.Ask {
	return func(ctx context.Context) (bus.Grant, error) {
		return b.Grant(ctx, bus.GrantRequest{Namespace: "test"})
	}
}

// join joins a bus of this process for the namespace test; the test closes it.
func join(t testing.TB, hub *bus.Bus) *bus.Bus {
	t.Helper()
	return joinWith(t, bus.Config{}, project(hub))
}

func joinWith(t testing.TB, cfg bus.Config, ask bus.Ask) *bus.Bus {
	t.Helper()
	b, err := bus.Join(t.Context(), cfg, ask)
	if err != nil {
		t.Fatalf("Join: %v", err)
	}
	t.Cleanup(func() { shut(t, b) })
	return b
}

// A hub notices that its computer's clock was set since its last start, and tells processes that join.
func TestAHubNoticesThatTheClockWasSet(t *testing.T) {
	cfg := bus.Config{DataDir: t.TempDir()}
	opened := func() time.Time {
		hub, err := bus.Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		joined, err := bus.Join(t.Context(), bus.Config{}, project(hub))
		if err != nil {
			t.Fatal(err)
		}
		defer shut(t, hub)
		defer shut(t, joined)
		if !joined.IsLocal() || !joined.ClockSet().Equal(hub.ClockSet()) {
			t.Errorf("the joined process knows %v, the hub %v", joined.ClockSet(), hub.ClockSet())
		}
		return joined.ClockSet()
	}
	for range 2 {
		if at := opened(); !at.IsZero() {
			t.Errorf("nobody has set it: %v", at)
		}
	}
	path, mark := filepath.Join(cfg.DataDir, "bus", "clock"), struct {
		Boot  string        `json:"boot"`
		Began time.Duration `json:"began"`
	}{}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Skip("it is not known here how long the computer has run")
	}
	if err := json.Unmarshal(data, &mark); err != nil {
		t.Fatal(err)
	}
	mark.Began -= time.Hour
	if data, err = json.Marshal(mark); err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	if at := opened(); at.Before(before) || at.After(time.Now()) {
		t.Errorf("it was set after %v: %v", before, at)
	}
}

func shut(t testing.TB, b *bus.Bus) {
	t.Helper()
	if err := b.Close(context.Background()); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func ensureStream(t testing.TB, b *bus.Bus, name, subjects string) jetstream.Stream {
	t.Helper()
	s, err := b.EnsureStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{subjects}, MaxBytes: 10 << 20})
	if err != nil {
		t.Fatalf("EnsureStream: %v", err)
	}
	return s
}

// stored counts how often each payload is in a stream.
func stored(t testing.TB, b *bus.Bus, name string) map[string]int {
	t.Helper()
	stream, err := b.JetStream().Stream(t.Context(), name)
	if err != nil {
		t.Fatalf("Stream: %v", err)
	}
	state := stream.CachedInfo().State
	found := make(map[string]int)
	for seq := max(state.FirstSeq, 1); seq <= state.LastSeq; seq++ {
		msg, err := stream.GetMsg(t.Context(), seq)
		if err != nil {
			t.Fatalf("GetMsg(%d): %v", seq, err)
		}
		found[string(msg.Data)]++
	}
	return found
}

// logBuffer collects log lines as JSON.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logBuffer) contains(s string) bool { return strings.Contains(l.String(), s) }

func (l *logBuffer) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// REQ-REL-007
func TestMessagesSurviveReopening(t *testing.T) {
	t.Parallel()
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
	again, err := b.Publish(t.Context(), &nats.Msg{Subject: "s.1", Data: []byte("one")}, jetstream.WithMsgID("1"))
	if err != nil || !again.Duplicate {
		t.Errorf("the message id is not remembered: %+v, %v", again, err)
	}
}

func TestModeIsLoggedAndShown(t *testing.T) {
	t.Parallel()
	for _, mode := range []bus.Durability{"", bus.DurabilityCommit, bus.DurabilityAlways, bus.DurabilityFast} {
		t.Run(string(mode), func(t *testing.T) {
			var log logBuffer
			b := open(t, bus.Config{DataDir: t.TempDir(), Durability: mode, Logger: log.logger()})
			want := mode
			if mode == "" {
				want = bus.DurabilityCommit
			}
			info := b.Info()
			if info.Durability != want || info.DurabilityAsked != want || info.Kind != bus.KindEmbedded || info.State != bus.StateConnected {
				t.Errorf("Info = %+v", info)
			}
			if _, err := json.Marshal(info); err != nil {
				t.Errorf("Info is not JSON: %v", err)
			}
			if !log.contains(`"msg":"bus started","durability":"` + string(want) + `"`) {
				t.Errorf("the log does not name the mode: %s", log.String())
			}
		})
	}
}

func TestEnsureStreamAppliesChangedLimits(t *testing.T) {
	t.Parallel()
	b := open(t, bus.Config{DataDir: t.TempDir()})
	cfg := jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}, MaxMsgs: 10}
	for _, most := range []int64{10, 10, 20} {
		cfg.MaxMsgs = most
		s, err := b.EnsureStream(t.Context(), cfg)
		if err != nil || s.CachedInfo().Config.MaxMsgs != most {
			t.Fatalf("EnsureStream(%d): %+v, %v", most, s, err)
		}
	}
	_, err := b.EnsureStream(t.Context(), jetstream.StreamConfig{Name: "T", Subjects: []string{"s.1"}})
	var api *jetstream.APIError
	if bus.CodeOf(err) != bus.CodeRejected || !errors.As(err, &api) || api.ErrorCode != 10065 {
		t.Errorf("overlapping subjects: %v", err)
	}
}

func TestEnsureKeyValue(t *testing.T) {
	t.Parallel()
	b := open(t, bus.Config{DataDir: t.TempDir()})
	for range 2 {
		kv, err := b.EnsureKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "B"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := kv.PutString(t.Context(), "k", "v"); err != nil {
			t.Fatal(err)
		}
		if err := b.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.EnsureKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "not a name"}); bus.CodeOf(err) != bus.CodeRejected {
		t.Errorf("bad bucket name: %v", err)
	}
}

func TestFullStoreIsAStorageError(t *testing.T) {
	t.Parallel()
	b := open(t, bus.Config{DataDir: t.TempDir(), MaxStore: 1 << 20})
	_, err := b.EnsureStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}, MaxBytes: 2 << 20})
	if bus.CodeOf(err) != bus.CodeStorage {
		t.Errorf("EnsureStream over the limit: %v", err)
	}
	usage, err := b.Usage(t.Context())
	if err != nil || usage.StoreLimit != 1<<20 || usage.Streams != 0 {
		t.Errorf("Usage = %+v, %v", usage, err)
	}
}

func TestPublishErrors(t *testing.T) {
	t.Parallel()
	b := open(t, bus.Config{DataDir: t.TempDir()})
	ensureStream(t, b, "S", "s.>")
	expired, cancel := context.WithCancel(t.Context())
	cancel()
	tests := []struct {
		name string
		ctx  context.Context
		msg  *nats.Msg
		opts []jetstream.PublishOpt
		want bus.Code
		is   error
	}{
		{"no stream", t.Context(), &nats.Msg{Subject: "other"}, []jetstream.PublishOpt{jetstream.WithRetryAttempts(0)}, bus.CodeRejected, jetstream.ErrNoStreamResponse},
		{"no subject", t.Context(), &nats.Msg{}, nil, bus.CodeRejected, nats.ErrBadSubject},
		{"too large", t.Context(), &nats.Msg{Subject: "s.1", Data: make([]byte, bus.MaxPayload+1)}, nil, bus.CodeRejected, nats.ErrMaxPayload},
		{"lost race", t.Context(), &nats.Msg{Subject: "s.1"}, []jetstream.PublishOpt{jetstream.WithExpectLastSequence(7)}, bus.CodeRejected, nil},
		{"context ended", expired, &nats.Msg{Subject: "s.1"}, nil, bus.CodeTimeout, context.Canceled},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := b.Publish(tt.ctx, tt.msg, tt.opts...)
			if bus.CodeOf(err) != tt.want || tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("Publish: %v (code %s), want %s, %v", err, bus.CodeOf(err), tt.want, tt.is)
			}
		})
	}
	if got := stored(t, b, "S"); len(got) != 0 {
		t.Errorf("stored in spite of the error: %v", got)
	}
}

func TestBatchKeepsTheOrderAndCommitsOnce(t *testing.T) {
	t.Parallel()
	d := &disk{}
	b := open(t, d.config(bus.Config{DataDir: t.TempDir()}))
	ensureStream(t, b, "S", "s.>")
	batch := b.NewBatch()
	for round := range 2 { // a batch can be used again
		before := d.syncs.Load()
		for i := range 500 {
			msg := &nats.Msg{Subject: "s.1", Data: fmt.Append(nil, i)}
			if err := batch.Add(t.Context(), msg); err != nil {
				t.Fatalf("Add: %v", err)
			}
		}
		acks, err := batch.Wait(t.Context())
		if err != nil {
			t.Fatalf("Wait: %v", err)
		}
		if n := d.syncs.Load() - before; n != 1 {
			t.Errorf("%d syncs for a batch, want 1", n)
		}
		for i, ack := range acks {
			if want := uint64(round*500 + i + 1); ack.Sequence != want {
				t.Fatalf("message %d has sequence %d, want %d", i, ack.Sequence, want)
			}
		}
	}
	if acks, err := batch.Wait(t.Context()); err != nil || len(acks) != 0 {
		t.Errorf("Wait for nothing: %v, %v", acks, err)
	}
}

func TestBatchReportsWhichMessageFailed(t *testing.T) {
	t.Parallel()
	b := open(t, bus.Config{DataDir: t.TempDir()})
	ensureStream(t, b, "S", "s.>")
	batch := b.NewBatch()
	for _, seq := range []uint64{0, 7, 1} {
		if err := batch.Add(t.Context(), &nats.Msg{Subject: "s.1"}, jetstream.WithExpectLastSequence(seq)); err != nil {
			t.Fatalf("Add: %v", err)
		}
	}
	acks, err := batch.Wait(t.Context())
	if bus.CodeOf(err) != bus.CodeRejected || !strings.Contains(err.Error(), "message 2 of 3") {
		t.Errorf("Wait: %v", err)
	}
	if len(acks) != 3 || acks[0] == nil || acks[1] != nil || acks[2] == nil {
		t.Errorf("acks = %v", acks)
	}
}

func TestOneDataDirectoryHasOneHub(t *testing.T) {
	t.Parallel()
	cfg := bus.Config{DataDir: t.TempDir()}
	b := open(t, cfg)
	if _, err := bus.Open(t.Context(), cfg); bus.CodeOf(err) != bus.CodeLocked {
		t.Errorf("second Open: %v", err)
	}
	ensureStream(t, b, "S", "s.>") // the first bus still works
	shut(t, b)
	open(t, cfg)
}

func TestLeftoverFilesDoNotPreventAStart(t *testing.T) {
	t.Parallel()
	cfg := bus.Config{DataDir: t.TempDir()}
	dir := filepath.Join(cfg.DataDir, "bus")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "lock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	join(t, open(t, cfg))
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory is accessible to others: %v, %v", info.Mode(), err)
	}
}

func TestOpenLeavesNothingBehindAfterAFailure(t *testing.T) {
	t.Parallel()
	cfg := bus.Config{DataDir: t.TempDir()}
	store := filepath.Join(cfg.DataDir, "bus", "jetstream")
	if err := os.MkdirAll(filepath.Dir(store), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(store, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := bus.Open(t.Context(), cfg); bus.CodeOf(err) != bus.CodeStorage {
		t.Fatalf("Open on a broken store: %v", err)
	}
	if err := os.Remove(store); err != nil {
		t.Fatal(err)
	}
	open(t, cfg)
}

func TestInvalidConfigurations(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	tests := []struct {
		name string
		ctx  context.Context
		cfg  bus.Config
		want bus.Code
	}{
		{"nothing", t.Context(), bus.Config{}, bus.CodeConfig},
		{"both", t.Context(), bus.Config{DataDir: t.TempDir(), URL: "nats://localhost"}, bus.CodeConfig},
		{"mode", t.Context(), bus.Config{DataDir: t.TempDir(), Durability: "often"}, bus.CodeConfig},
		{"store", t.Context(), bus.Config{DataDir: t.TempDir(), MaxStore: -1}, bus.CodeConfig},
		{"file as directory", t.Context(), bus.Config{DataDir: file}, bus.CodeStorage},
		{"context ended", ended, bus.Config{DataDir: t.TempDir()}, bus.CodeTimeout},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := bus.Open(tt.ctx, tt.cfg); bus.CodeOf(err) != tt.want {
				t.Errorf("Open: %v, want %s", err, tt.want)
			}
		})
	}
}

// Close waits for publishes in flight: each of them is stored or returns an error.
func TestCloseLosesNoMessageInFlight(t *testing.T) {
	t.Parallel()
	for _, mode := range []bus.Durability{bus.DurabilityCommit, bus.DurabilityAlways, bus.DurabilityFast} {
		t.Run(string(mode), func(t *testing.T) {
			cfg := bus.Config{DataDir: t.TempDir(), Durability: mode}
			b := open(t, cfg)
			ensureStream(t, b, "S", "s.>")
			var (
				mu    sync.Mutex
				acked = make(map[string]int)
				wg    sync.WaitGroup
				half  = make(chan struct{})
				once  sync.Once
			)
			for p := range 20 {
				wg.Go(func() {
					for i := 0; ; i++ {
						text := fmt.Sprintf("%d/%d", p, i)
						_, err := b.Publish(context.Background(), &nats.Msg{Subject: "s.1", Data: []byte(text)})
						if err != nil {
							if bus.CodeOf(err) != bus.CodeClosed {
								t.Errorf("Publish: %v", err)
							}
							return
						}
						mu.Lock()
						acked[text]++
						if len(acked) == 200 {
							once.Do(func() { close(half) })
						}
						mu.Unlock()
					}
				})
			}
			<-half
			batch := b.NewBatch() // added, but Wait is never called
			for i := range 100 {
				text := fmt.Sprintf("batch/%d", i)
				if err := batch.Add(t.Context(), &nats.Msg{Subject: "s.1", Data: []byte(text)}); err != nil {
					t.Fatal(err)
				}
				mu.Lock()
				acked[text]++
				mu.Unlock()
			}
			shut(t, b)
			wg.Wait()
			if st := b.Info().State; st != bus.StateClosed {
				t.Errorf("state %s after Close", st)
			}
			if diff := cmp.Diff(acked, stored(t, open(t, cfg), "S")); diff != "" {
				t.Errorf("acknowledged and stored differ (-acknowledged +stored):\n%s", diff)
			}
		})
	}
}

func TestCloseEndsInTimeAndReleasesAll(t *testing.T) {
	t.Parallel()
	gate := make(chan struct{})
	var hold sync.Once
	d := &disk{}
	cfg := bus.Config{DataDir: t.TempDir()}
	b, err := bus.Open(t.Context(), d.config(cfg))
	if err != nil {
		t.Fatal(err)
	}
	ensureStream(t, b, "S", "s.>")
	entered := make(chan struct{})
	d.onSync = func(int64) error {
		hold.Do(func() { close(entered); <-gate })
		return nil
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := b.Publish(context.Background(), &nats.Msg{Subject: "s.1"}); err != nil {
			t.Errorf("Publish: %v", err)
		}
	})
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	gone := b.Conn().StatusChanged(nats.CLOSED)
	closed := make(chan error)
	go func() { closed <- b.Close(ctx) }()
	<-gone // Close does not wait for the publish
	close(gate)
	if err := <-closed; bus.CodeOf(err) != bus.CodeTimeout {
		t.Errorf("Close = %v, want the end of the context", err)
	}
	wg.Wait()
	shut(t, b) // a second Close does nothing
	open(t, cfg)
}

func TestSecretsDoNotPrint(t *testing.T) {
	t.Parallel()
	var log logBuffer
	c := bus.Credentials{User: "ann", Password: "hunter2", Token: "t0ken"}
	log.logger().Info("config", "credentials", c, "url", bus.Secret("nats://ann:hunter2@host"))
	asJSON, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{log.String(), string(asJSON), fmt.Sprint(c), fmt.Sprintf("%+v %#v", c, c)} {
		if strings.Contains(s, "hunter2") || strings.Contains(s, "t0ken") {
			t.Errorf("a secret is printed: %s", s)
		}
	}
	got := text.Redact("dial nats://ann:hunter2@host:4222: key t0ken refused", "t0ken")
	if want := "dial nats://[redacted]@host:4222: key [redacted] refused"; got != want {
		t.Errorf("Redact = %q, want %q", got, want)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
