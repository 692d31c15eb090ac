package bus_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/internal/bus"
)

// disk is a Syncer that counts syncs and calls onSync for each.
type disk struct {
	syncs  atomic.Int64
	closed atomic.Bool
	onSync func(n int64) error // n counts from 1
}

func (d *disk) Sync() error {
	n := d.syncs.Add(1)
	if d.onSync == nil {
		return nil
	}
	return d.onSync(n)
}

func (d *disk) Close() error {
	d.closed.Store(true)
	return nil
}

func (d *disk) config(c bus.Config) bus.Config {
	return bus.WithSyncer(c, func(string) (bus.Syncer, error) { return d, nil })
}

func TestAllWaitingCommitsShareTheNextSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		d := &disk{onSync: func(int64) error { <-gate; return nil }}
		c := bus.NewCommitter(d)
		var wg sync.WaitGroup
		commit := func() {
			if err := c.Commit(t.Context()); err != nil {
				t.Errorf("Commit: %v", err)
			}
		}
		wg.Go(commit)
		synctest.Wait() // the first is in its sync
		for range 100 {
			wg.Go(commit)
		}
		synctest.Wait() // the others wait for the next
		if n := d.syncs.Load(); n != 1 {
			t.Errorf("%d syncs at once, want 1", n)
		}
		close(gate)
		wg.Wait()
		if n := d.syncs.Load(); n != 2 {
			t.Errorf("101 commits took %d syncs, want 2", n)
		}
		if err := c.Close(); err != nil || !d.closed.Load() {
			t.Errorf("Close: %v, syncer closed: %v", err, d.closed.Load())
		}
		if err := c.Commit(t.Context()); bus.CodeOf(err) != bus.CodeClosed {
			t.Errorf("Commit after Close: %v", err)
		}
	})
}

// Every commit waits for a sync that started after the call, so it covers everything written
// before.
func TestCommitIsServedByALaterSync(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		callers := rapid.IntRange(1, 20).Draw(t, "callers")
		rounds := rapid.IntRange(1, 20).Draw(t, "rounds")
		var written, durable atomic.Int64
		d := &disk{onSync: func(int64) error {
			covers := written.Load()
			for {
				old := durable.Load()
				if old >= covers || durable.CompareAndSwap(old, covers) {
					return nil
				}
			}
		}}
		c := bus.NewCommitter(d)
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for range rounds {
					mine := written.Add(1)
					if err := c.Commit(context.Background()); err != nil {
						t.Errorf("Commit: %v", err)
					}
					if durable.Load() < mine {
						t.Errorf("write %d acknowledged, only %d are durable", mine, durable.Load())
					}
				}
			})
		}
		wg.Wait()
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
}

func TestEndOfContextEndsTheWaitForTheDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		c := bus.NewCommitter(&disk{onSync: func(int64) error { <-gate; return nil }})
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error)
		go func() { result <- c.Commit(ctx) }()
		synctest.Wait()
		cancel()
		if err := <-result; !errors.Is(err, context.Canceled) {
			t.Errorf("Commit = %v, want context.Canceled", err)
		}
		close(gate)
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
}

// A kernel that could not write a page marks it clean: a later sync succeeds without the data.
// Therefore the first failure is final.
func TestFailedDiskIsFinal(t *testing.T) {
	t.Parallel()
	eio := errors.New("input/output error")
	var broken atomic.Bool
	d := &disk{onSync: func(int64) error {
		if broken.Swap(false) {
			return eio
		}
		return nil
	}}
	b, err := bus.Open(t.Context(), d.config(bus.Config{DataDir: t.TempDir()}))
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	ensureStream(t, b, "S", "s.>")
	broken.Store(true)
	for range 2 {
		_, err := b.Publish(t.Context(), &nats.Msg{Subject: "s.1"})
		if bus.CodeOf(err) != bus.CodeStorage || !errors.Is(err, eio) {
			t.Fatalf("Publish on a broken disk: %v", err)
		}
	}
	if b.Info().StorageError == "" {
		t.Error("Info does not report the failed disk")
	}
	if err := b.Close(context.Background()); bus.CodeOf(err) != bus.CodeStorage {
		t.Errorf("Close = %v, want the disk's failure", err)
	}
}

func TestConcurrentPublishesShareSyncs(t *testing.T) {
	t.Parallel()
	const publishers, each = 50, 20
	d := &disk{}
	b := open(t, d.config(bus.Config{DataDir: t.TempDir()}))
	ensureStream(t, b, "S", "s.>")
	before := d.syncs.Load()

	// The first publish's sync lasts until all others are stored; those share the second sync.
	stored := make(chan struct{})
	d.onSync = func(n int64) error {
		if n == before+1 {
			<-stored
		}
		return nil
	}
	var wg sync.WaitGroup
	for range publishers {
		wg.Go(func() {
			for range each {
				if _, err := b.Publish(context.Background(), &nats.Msg{Subject: "s.1"}); err != nil {
					t.Errorf("Publish: %v", err)
				}
			}
		})
	}
	stream, err := b.JetStream().Stream(t.Context(), "S")
	if err != nil {
		t.Fatal(err)
	}
	for {
		info, err := stream.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if info.State.Msgs == publishers {
			break
		}
	}
	close(stored)
	wg.Wait()
	if n := d.syncs.Load() - before; n >= publishers*each {
		t.Errorf("%d syncs for %d publishes", n, publishers*each)
	}
}

func TestNewStreamIsSyncedInEveryMode(t *testing.T) {
	t.Parallel()
	for _, mode := range []bus.Durability{bus.DurabilityCommit, bus.DurabilityAlways, bus.DurabilityFast} {
		t.Run(string(mode), func(t *testing.T) {
			d := &disk{}
			b := open(t, d.config(bus.Config{DataDir: t.TempDir(), Durability: mode}))
			before := d.syncs.Load()
			ensureStream(t, b, "S", "s.>")
			if d.syncs.Load() == before {
				t.Error("no sync after a stream was created")
			}
			before = d.syncs.Load()
			if _, err := b.Publish(t.Context(), &nats.Msg{Subject: "s.1"}); err != nil {
				t.Fatal(err)
			}
			if synced, want := d.syncs.Load() > before, mode == bus.DurabilityCommit; synced != want {
				t.Errorf("publish synced: %v, want %v", synced, want)
			}
			before = d.syncs.Load()
			shut(t, b)
			if d.syncs.Load() == before {
				t.Error("no sync after the shutdown")
			}
		})
	}
}

func TestModeIsAlwaysWhereTheFilesystemCannotSync(t *testing.T) {
	t.Parallel()
	var log logBuffer
	cfg := bus.WithSyncer(bus.Config{DataDir: t.TempDir(), Logger: log.logger()}, func(string) (bus.Syncer, error) {
		return nil, errors.New("function not implemented")
	})
	b := open(t, cfg)
	ensureStream(t, b, "S", "s.>")
	if _, err := b.Publish(t.Context(), &nats.Msg{Subject: "s.1"}); err != nil {
		t.Fatal(err)
	}
	info := b.Info()
	if info.Durability != bus.DurabilityAlways || info.DurabilityAsked != bus.DurabilityCommit ||
		info.DurabilityReason != "function not implemented" {
		t.Errorf("Info = %+v", info)
	}
	if !log.contains(`"level":"WARN"`) || !log.contains("function not implemented") {
		t.Errorf("the log does not say so: %s", log.String())
	}
	if joined := join(t, b); joined.Info().Durability != bus.DurabilityAlways {
		t.Errorf("a joined bus is %q", joined.Info().Durability)
	}
}

// A joined process that cannot sync must not report messages as durable.
func TestJoinerThatCannotSyncIsRefused(t *testing.T) {
	t.Parallel()
	refuse := func(string) (bus.Syncer, error) { return nil, errors.New("not permitted") }
	for mode, want := range map[bus.Durability]bus.Code{
		bus.DurabilityCommit: bus.CodeStorage,
		bus.DurabilityAlways: "",
		bus.DurabilityFast:   "",
	} {
		t.Run(string(mode), func(t *testing.T) {
			cfg := bus.Config{DataDir: t.TempDir(), Durability: mode}
			b, err := bus.Join(t.Context(), bus.WithSyncer(bus.Config{}, refuse), project(open(t, cfg)))
			if bus.CodeOf(err) != want {
				t.Errorf("Join: %v, want %q", err, want)
			}
			if err == nil {
				shut(t, b)
			}
		})
	}
}
