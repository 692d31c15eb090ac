package agentnet

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

// collect runs the collector at intervals until ctx ends. It runs in every process of the
// network, of which one does the work each time.
func (be *backend) collect(ctx context.Context) {
	interval := be.store.Config().CollectInterval
	pause := interval/10 + rand.N(interval/10+1)
	set := be.store.ClockSet()
	for wait.Pause(ctx, pause) {
		pause = interval/2 + rand.N(interval/2+1)
		if at := be.store.ClockSet(); !at.Equal(set) && be.redeliver(ctx) {
			set = at
		}
		if _, err := be.collectOnce(ctx, false); err != nil && ctx.Err() == nil && !store.IsUnreachable(err) {
			be.store.Log().Warn("the collector of the network failed", "error", err)
		}
	}
}

// ResumeWork makes the items of work on a bus available that nobody holds, and acts on the leases that end, until ctx
// ends, as every Network does that is open and not admitted by a hub. It is for a hub that has just started the bus's
// server, and whose agents have not joined it since: it prepares and creates nothing. b must have a network whose
// registry has the bucket, "" for the default.
func ResumeWork(ctx context.Context, b *bus.Bus, bucket string, log *slog.Logger) {
	s := store.New(store.Config{Bucket: bucket, Logger: log}.WithDefaults())
	defer s.Stop()
	s.Adopt(b)
	w := work.New(registry.New(s))
	var redelivering sync.WaitGroup
	redelivering.Go(func() { redeliver(ctx, b, w, log) })
	w.WatchLeases(ctx, b)
	redelivering.Wait()
}

// redeliver has the queues on a bus deliver all their messages again, and tries until it has succeeded: without it, items
// may wait for the end of a lease, or for ever.
func redeliver(ctx context.Context, b *bus.Bus, w *work.Service, log *slog.Logger) {
	for retry := (wait.Backoff{First: time.Second, Most: time.Minute}); ctx.Err() == nil; retry.Pause(ctx) {
		err := w.Redeliver(ctx, b)
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			log.Warn("items of work that a killed hub had delivered wait for the end of a lease; trying again", "error", err)
		}
	}
}

// redeliver has the queues deliver all their messages again after this computer's clock was set, if the server is on it: a message that was returned,
// or delivered to a worker that was killed, would come again at a time of the former clock. It reports whether that is done, or not needed.
func (be *backend) redeliver(ctx context.Context) bool {
	b, err := be.store.Connected()
	if err == nil && b.IsLocal() {
		err = be.work.Redeliver(ctx, b)
	}
	if err != nil && ctx.Err() == nil && !store.IsUnreachable(err) {
		be.store.Log().Warn("items of work may wait as long as the clock was set back; trying again", "error", err)
	}
	return err == nil
}

// Collected is the result of a run of the collector.
type Collected struct {
	Skipped  bool     // another process has run it within the interval
	Removed  []string // GUIDs of stale entries
	Inboxes  int      // removed, of agents that the registry has forgotten
	Buried   int      // items whose last worker's lease ended
	Repaired int      // items that a process had left half done
}

// Collect runs the collector now, unless another process has within the interval; with force in any case.
func (n *Network) Collect(ctx context.Context, force bool) (Collected, error) {
	return n.main.collectOnce(ctx, force)
}

func (be *backend) collectOnce(ctx context.Context, force bool) (c Collected, err error) {
	b, err := be.store.Connected()
	if err != nil {
		return c, err
	}
	if !force {
		first, err := be.store.Turn(ctx, b, "turn", be.store.Config().CollectInterval*9/10)
		if err != nil || !first {
			return Collected{Skipped: err == nil}, err
		}
	}
	if c.Removed, err = be.registry.RemoveStale(ctx, b); err == nil {
		c.Inboxes, err = be.mail.RemoveInboxes(ctx, b)
	}
	if err == nil {
		c.Buried, c.Repaired, err = be.work.Sweep(ctx, b)
	}
	return c, store.AsError(err)
}
