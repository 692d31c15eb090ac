package chat_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sys/unix"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/chat"
)

// breakSyncs replaces the descriptors of a directory by ones with which nothing can be synced.
func breakSyncs(t *testing.T, dir string) {
	t.Helper()
	bad, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(bad) //nolint:errcheck // nothing was written
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range open {
		fd, err := strconv.Atoi(e.Name())
		if target, _ := os.Readlink(filepath.Join("/proc/self/fd", e.Name())); err != nil || target != dir || fd == bad {
			continue
		}
		if err := unix.Dup3(bad, fd, unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
	}
}

// logged counts the records with a message.
type logged struct {
	slog.Handler
	message string
	n       atomic.Int64
}

func (l *logged) Enabled(context.Context, slog.Level) bool { return true }

func (l *logged) WithAttrs([]slog.Attr) slog.Handler { return l }

func (l *logged) Handle(_ context.Context, r slog.Record) error {
	if r.Message == l.message {
		l.n.Add(1)
	}
	return nil
}

// An earlier attempt has stored a message, and the disk has failed before it was synced: it stays in its file.
func TestAQueuedMessageThatIsFoundIsSynced(t *testing.T) {
	hub, err := bus.Open(t.Context(), bus.Config{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hub.Close(context.Background()) }) // its disk fails
	join := func(ctx context.Context) (*bus.Bus, error) {
		return bus.Join(ctx, bus.Config{NoEcho: true}, func(ctx context.Context) (bus.Grant, error) {
			return hub.Grant(ctx, bus.GrantRequest{Namespace: "kill"})
		})
	}
	send(t, ready(t, open(t, killConfig(join))), "agent", "c", "makes the stream")

	cfg := killConfig(func(context.Context) (*bus.Bus, error) { return nil, nats.ErrDisconnected })
	cfg.KeepDir = t.TempDir()
	s := chat.Open(cfg)
	<-s.Tried()
	queued := send(t, s, "agent", "c", "queued")
	if lost, err := s.Close(t.Context()); lost != 0 || err != nil {
		t.Fatalf("lost %d, %v", lost, err)
	}
	files, err := filepath.Glob(filepath.Join(cfg.KeepDir, "*.json"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files %q, %v", files, err)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	var kept struct{ Messages []struct{ Data []byte } }
	if err := json.Unmarshal(data, &kept); err != nil || len(kept.Messages) != 1 {
		t.Fatalf("%s: %v", data, err)
	}
	b, err := join(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.PublishOnce(t.Context(), &nats.Msg{Subject: "kill.c", Data: kept.Messages[0].Data}, queued.ID, "kill_C"); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}

	failed := &logged{message: "a queued message could not be stored yet"}
	cfg.Logger = slog.New(failed)
	cfg.Now = func() time.Time { return time.Now().Add(time.Hour) } // the server may have forgotten the id
	cfg.Dial = func(ctx context.Context) (*bus.Bus, error) {
		b, err := join(ctx)
		if err == nil {
			breakSyncs(t, b.Info().StoreDir)
		}
		return b, err
	}
	s = open(t, cfg)
	await(t, s, func() bool { return failed.n.Load() > 0 || s.Status().Connected && s.Status().Queued == 0 })
	if got := s.Status().Queued; got != 1 {
		t.Errorf("%d messages are queued although the disk has failed", got)
	}
	if _, err := os.Stat(files[0]); err != nil {
		t.Errorf("the file: %v", err)
	}
}
