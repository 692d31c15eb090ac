package bus_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
)

// storing stores a message in the background, and returns what comes of it.
func storing(b *bus.Bus, text string) <-chan error {
	stored := make(chan error, 1)
	go func() {
		_, err := once(b, text)
		stored <- err
	}()
	return stored
}

// once stores a message under its text as its id.
func once(b *bus.Bus, text string) (*jetstream.PubAck, error) {
	return b.PublishOnce(context.Background(), &nats.Msg{Subject: "s.1", Data: []byte(text)}, text, "S")
}

// joinSyncing joins with a syncer of its own.
func joinSyncing(t *testing.T, d *disk, ask bus.Ask) *bus.Bus {
	t.Helper()
	return joinWith(t, d.config(bus.Config{}), ask)
}

// holdingDisk returns a disk whose next sync after hold is set closes held and waits for release.
func holdingDisk() (d *disk, hold *atomic.Bool, held, release chan struct{}) {
	hold, held, release = new(atomic.Bool), make(chan struct{}), make(chan struct{})
	return &disk{onSync: func(int64) error {
		if hold.Swap(false) {
			close(held)
			<-release
		}
		return nil
	}}, hold, held, release
}

// The hub syncs after the message was stored and before the process is answered, and the process need not.
func TestTheHubSyncsWhatAProjectStoresOnce(t *testing.T) {
	t.Parallel()
	d, hold, held, release := holdingDisk()
	hub := open(t, d.config(bus.Config{DataDir: t.TempDir()}))
	own := &disk{}
	b := joinSyncing(t, own, project(hub))
	stream := ensureStream(t, b, "S", "s.>")
	if _, err := once(b, "first"); err != nil {
		t.Fatal(err)
	}
	hold.Store(true)
	before, ownBefore := d.syncs.Load(), own.syncs.Load()
	stored := storing(b, "second")
	<-held
	if info, err := stream.Info(t.Context()); err != nil || info.State.Msgs != 2 {
		t.Errorf("the sync began before the message was stored: %+v, %v", info, err)
	}
	select {
	case err := <-stored:
		t.Errorf("acknowledged before it was synced (%v)", err)
	default:
	}
	close(release)
	if err := <-stored; err != nil {
		t.Error(err)
	}
	if n := d.syncs.Load() - before; n != 1 || own.syncs.Load() != ownBefore {
		t.Errorf("the hub synced %d times, the process %d times", n, own.syncs.Load()-ownBefore)
	}
}

func TestProcessesShareTheSyncsOfTheHub(t *testing.T) {
	t.Parallel()
	const processes, each = 8, 20
	gate := make(chan struct{})
	var gated atomic.Bool
	d := &disk{onSync: func(int64) error {
		if gated.Load() {
			<-gate
		}
		return nil
	}}
	hub := open(t, d.config(bus.Config{DataDir: t.TempDir()}))
	buses := make([]*bus.Bus, processes)
	for i := range buses {
		buses[i] = joinSyncing(t, &disk{}, project(hub))
	}
	stream := ensureStream(t, buses[0], "S", "s.>")
	before := d.syncs.Load()
	gated.Store(true)
	var all sync.WaitGroup
	for i, b := range buses {
		for n := range each {
			all.Go(func() {
				if _, err := once(b, fmt.Sprintf("%d-%d", i, n)); err != nil {
					t.Error(err)
				}
			})
		}
	}
	for { // until all wait for a sync
		info, err := stream.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if info.State.Msgs == processes*each {
			break
		}
	}
	close(gate)
	all.Wait()
	if n := d.syncs.Load() - before; n > processes*each/2 {
		t.Errorf("%d messages that were stored at once took %d syncs", processes*each, n)
	}
}

func TestAFailedDiskOfTheHubFailsWhatAProjectStores(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	d := &disk{onSync: func(int64) error {
		if broken.Load() {
			return errors.New("input/output error")
		}
		return nil
	}}
	hub, err := bus.Open(t.Context(), d.config(bus.Config{DataDir: t.TempDir()}))
	if err != nil {
		t.Fatal(err)
	}
	b := joinSyncing(t, &disk{}, project(hub))
	ensureStream(t, b, "S", "s.>")
	broken.Store(true)
	if _, err := once(b, "lost"); bus.CodeOf(err) != bus.CodeStorage {
		t.Errorf("stored on a broken disk: %v", err)
	}
	shut(t, b)
	if err := hub.Close(context.Background()); bus.CodeOf(err) != bus.CodeStorage {
		t.Errorf("Close: %v", err)
	}
}

// A hub that ends before a sync has, whose wait for messages is cut short, does not say that the disk has failed.
func TestTheEndOfTheHubIsNoFailureOfTheDisk(t *testing.T) {
	t.Parallel()
	d, hold, held, release := holdingDisk()
	hub, err := bus.Open(t.Context(), d.config(bus.Config{DataDir: t.TempDir()}))
	if err != nil {
		t.Fatal(err)
	}
	b := joinSyncing(t, &disk{}, project(hub))
	ensureStream(t, b, "S", "s.>")
	hold.Store(true)
	stored := storing(b, "a message")
	<-held
	ended := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		ended <- hub.Close(ctx)
	}()
	if err := <-stored; bus.CodeOf(err) != bus.CodeNotRunning {
		t.Errorf("the hub ended, and the error is %v", err)
	}
	close(release)
	if err := <-ended; bus.CodeOf(err) != bus.CodeTimeout {
		t.Errorf("Close: %v", err)
	}
}

// A hub of an earlier version does not offer it: then the process syncs.
func TestAProcessSyncsItselfWhereTheHubDoesNot(t *testing.T) {
	t.Parallel()
	hub := open(t, bus.Config{DataDir: t.TempDir()})
	own := &disk{}
	b := joinSyncing(t, own, func(ctx context.Context) (bus.Grant, error) {
		g, err := project(hub)(ctx)
		g.Syncs = false
		return g, err
	})
	ensureStream(t, b, "S", "s.>")
	before := own.syncs.Load()
	if _, err := once(b, "a message"); err != nil || own.syncs.Load() == before {
		t.Errorf("%d syncs, %v", own.syncs.Load()-before, err)
	}
}

func TestAMessageIsStoredOnceUnderItsID(t *testing.T) {
	t.Parallel()
	for _, mode := range []bus.Durability{bus.DurabilityCommit, bus.DurabilityFast, bus.DurabilityAlways} {
		t.Run(string(mode), func(t *testing.T) {
			hub := open(t, bus.Config{DataDir: t.TempDir(), Durability: mode})
			b := join(t, hub)
			ensureStream(t, b, "S", "s.>")
			first, err := once(b, "a message")
			if err != nil || first.Sequence != 1 || first.Duplicate || first.Stream != "S" {
				t.Fatalf("%+v, %v", first, err)
			}
			if again, err := once(b, "a message"); err != nil || again.Sequence != 1 || !again.Duplicate {
				t.Errorf("again: %+v, %v", again, err)
			}
			_, err = b.PublishOnce(t.Context(), &nats.Msg{Subject: "s.1"}, "another", "T")
			if api, ok := errors.AsType[*jetstream.APIError](err); !ok || api.ErrorCode != 10060 { // another stream than was expected
				t.Errorf("into a stream that is not that of the subject: %v", err)
			}
		})
	}
}

func TestAPendingMessageFailsWhenTheConnectionIsLost(t *testing.T) {
	t.Parallel()
	d, hold, held, release := holdingDisk()
	hub := open(t, d.config(bus.Config{DataDir: t.TempDir()}))
	var user atomic.Value
	b := joinSyncing(t, &disk{}, func(ctx context.Context) (bus.Grant, error) {
		g, err := project(hub)(ctx)
		user.Store(g.User)
		return g, err
	})
	ensureStream(t, b, "S", "s.>")
	hold.Store(true)
	stored := storing(b, "a message")
	<-held
	if err := hub.Revoke(user.Load().(string)); err != nil {
		t.Fatal(err)
	}
	if err := <-stored; bus.CodeOf(err) != bus.CodeNotRunning || !errors.Is(err, nats.ErrDisconnected) {
		t.Errorf("the connection was lost, and the error is %v", err)
	}
	close(release)
}

// The acknowledgements of a project pass through the hub's account, and reach no other project.
func TestAcknowledgementsStayInTheirProject(t *testing.T) {
	t.Parallel()
	hub := open(t, bus.Config{DataDir: t.TempDir()})
	b, other := joinNamespace(t, hub, "ours"), joinNamespace(t, hub, "theirs")
	ensureStream(t, b, "S", "s.>")
	seen := make(chan *nats.Msg, 100)
	for _, subject := range []string{"$PARLEY.>", "*.>"} {
		if _, err := other.Conn().ChanSubscribe(subject, seen); err != nil {
			t.Fatal(err)
		}
	}
	must(t, other.Conn().Flush())
	for i := range 10 {
		if _, err := once(b, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	// What another project sends to the hub in our name comes back to that project only.
	forged := make(chan *nats.Msg, 100)
	if _, err := b.Conn().ChanSubscribe("$PARLEY.>", forged); err != nil {
		t.Fatal(err)
	}
	must(t, b.Conn().Flush())
	must(t, other.Conn().Publish("$PARLEY.ack.ns-ours.name.1", []byte("forged")))
	must(t, other.Conn().Publish("$PARLEY.ack.name.1", []byte("forged")))
	if m := <-seen; string(m.Data) != "forged" { // of their own
		t.Errorf("the other project received %s: %s", m.Subject, m.Data)
	}
	if _, err := once(b, "last"); err != nil { // the hub has forwarded all before
		t.Fatal(err)
	}
	for range len(forged) {
		if m := <-forged; string(m.Data) == "forged" {
			t.Errorf("received %s of another project", m.Subject)
		}
	}
}
