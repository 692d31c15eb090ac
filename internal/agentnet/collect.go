package agentnet

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
)

// maxSwept bounds the items that one pass of the collector looks at closely. Of more
// it takes some by chance, so that none is passed over for ever.
const maxSwept = 1000

// collect runs the collector in every process of the network, of which one at a
// time does the work (REQ-REGISTRY-011, REQ-REGISTRY-012).
func (n *Network) collect() {
	first := n.cfg.CollectInterval/10 + rand.N(n.cfg.CollectInterval/10+1)
	timer := time.NewTimer(first)
	defer timer.Stop()
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(n.cfg.CollectInterval/2 + rand.N(n.cfg.CollectInterval/2+1))
		if _, err := n.Collect(n.ctx, false); err != nil && n.ctx.Err() == nil && !isConnection(err) {
			n.log.Warn("the network was not tidied up", "error", err)
		}
	}
}

// Collected is what a pass of the collector did.
type Collected struct {
	Skipped bool     // another process has done it within the interval
	Removed []string // GUIDs of stale entries
	Inboxes int      // that nobody comes back to
	Buried  int      // items whose last worker let the lease end
	Mended  int      // items that a process had left half way
}

// Collect makes a pass now, unless another process has within the interval; with
// force in any case.
func (n *Network) Collect(ctx context.Context, force bool) (Collected, error) {
	b, err := n.connected()
	if err != nil {
		return Collected{}, err
	}
	turn := limit{"turn", "passes of the collector", 1, n.cfg.CollectInterval * 9 / 10}
	if !force {
		mine, err := n.collectorsTurn(ctx, b, turn)
		if err != nil || !mine {
			return Collected{Skipped: err == nil}, err
		}
	}
	var c Collected
	if c.Removed, err = n.removeStale(ctx, b); err != nil {
		return c, connectionError(err)
	}
	if c.Inboxes, err = n.removeInboxes(ctx, b); err != nil {
		return c, connectionError(err)
	}
	c.Buried, c.Mended, err = n.sweepItems(ctx, b)
	return c, connectionErrorOrNil(err)
}

// collectorsTurn says whether this process is to make the pass.
func (n *Network) collectorsTurn(ctx context.Context, b *bus.Bus, l limit) (bool, error) {
	mine := false
	key := cell{bucketStream + n.limitsBucket(), bucketKeys + n.limitsBucket() + ".collector." + l.name}
	_, err := key.change(ctx, b, func(v value) ([]byte, error) {
		now := n.clock.now()
		mine = len(recent(v.data, now.Add(-l.per), now)) == 0
		if !mine {
			return nil, nil
		}
		return encodeUses([]time.Time{now}), nil
	})
	return mine && err == nil, connectionErrorOrNil(err)
}

// Removal is what the audit log says of an entry that was removed
// (REQ-REGISTRY-013).
type Removal struct {
	GUID          string `json:"guid"`
	AgentType     string `json:"agentType"`
	Handle        string `json:"handle"`
	Hostname      string `json:"hostname"`
	LastHeartbeat string `json:"lastHeartbeat"`
	RemovedAt     string `json:"removedAt"`
	RemovedBy     string `json:"removedBy"` // the host of the collector
}

// removeStale removes the entries that three heartbeats are missing of. One that
// beats in the same moment stays.
func (n *Network) removeStale(ctx context.Context, b *bus.Bus) ([]string, error) {
	all, err := n.seats(ctx, b)
	if err != nil {
		return nil, err
	}
	var removed []string
	now := n.clock.now()
	for _, s := range all {
		e := s.Entry
		e.Status = Active // deregistered ones have their time too
		if e.liveness(s.seen, now, n.cfg.TimeoutThreshold) != Gone {
			continue
		}
		err := n.entryCell(s.GUID).clear(ctx, b, s.revision)
		if errors.Is(err, errConflict) {
			continue
		}
		if err != nil {
			return removed, err
		}
		removed = append(removed, s.GUID)
		r := Removal{s.GUID, s.AgentType, s.Handle, s.Hostname, s.LastHeartbeat, timestamp(now), n.cfg.Hostname}
		n.log.Info("a stale entry was removed from the registry", "guid", r.GUID, "agentType", r.AgentType,
			"handle", r.Handle, "hostname", r.Hostname, "lastHeartbeat", r.LastHeartbeat)
		data, err := json.Marshal(r)
		if err == nil {
			_, err = b.Publish(ctx, &nats.Msg{Subject: auditSubject, Data: data}, jetstream.WithExpectStream(auditStream))
		}
		if err != nil {
			return removed, err
		}
	}
	return removed, nil
}

// Removals returns what the audit log holds, oldest first.
func (n *Network) Removals(ctx context.Context) ([]Removal, error) {
	b, err := n.connected()
	if err != nil {
		return nil, err
	}
	list := []Removal{}
	err = scan(ctx, b, auditStream, auditSubject, 1, func(s stored) bool {
		var r Removal
		if json.Unmarshal(s.data, &r) == nil {
			list = append(list, r)
		}
		return true
	})
	return list, connectionErrorOrNil(err)
}

// removeInboxes removes the empty inboxes of agents that nobody remembers.
func (n *Network) removeInboxes(ctx context.Context, b *bus.Bus) (removed int, err error) {
	streams := b.JetStream().ListStreams(ctx, jetstream.WithStreamListSubject(inboxSubject+"*"))
	var empty []string
	for info := range streams.Info() {
		guid, ok := strings.CutPrefix(info.Config.Name, inboxPrefix)
		if ok && info.State.Msgs == 0 && n.clock.now().Sub(info.Created) > n.cfg.RegistryTTL {
			empty = append(empty, guid)
		}
	}
	if err := streams.Err(); err != nil {
		return 0, err
	}
	for _, guid := range empty {
		_, err := n.addressee(ctx, b, guid)
		if e, ok := errors.AsType[*Error](err); !ok || e.Code != NotFoundError {
			continue
		}
		if err := b.JetStream().DeleteStream(ctx, inboxPrefix+guid); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return removed, err
		}
		removed++
	}
	return removed, nil
}

// sweepItems looks at the items whose lease is long over, or that were queued
// long ago: it buries the ones that have failed too often and that nobody asks
// for any more, finishes what a process that died left half way, and queues
// again what has lost its message.
func (n *Network) sweepItems(ctx context.Context, b *bus.Bus) (buried, mended int, err error) {
	var suspects []string
	seen := 0
	now := n.clock.now()
	err = scan(ctx, b, itemStream, itemSubject+"*", 1, func(s stored) bool {
		var x item
		if isMark(s.header) || json.Unmarshal(s.data, &x) != nil || now.Sub(s.time) < 2*n.cfg.AckTimeout {
			return true
		}
		if x.finished() && (x.State != Dead || x.DeadSequence != 0) {
			return true
		}
		seen++
		if len(suspects) < maxSwept {
			suspects = append(suspects, x.TaskID)
		} else if at := rand.IntN(seen); at < maxSwept {
			suspects[at] = x.TaskID
		}
		return true
	})
	if err != nil {
		return 0, 0, err
	}
	for _, taskID := range suspects {
		didBury, didMend, err := n.sweepItem(ctx, b, taskID)
		switch {
		case err == nil || errors.Is(err, errConflict):
		case ctx.Err() != nil || !b.Conn().IsConnected():
			return buried, mended, err
		default: // the others are looked at all the same
			n.log.Error("an item of work could not be looked after", "taskId", taskID, "error", err)
			continue
		}
		buried, mended = buried+didBury, mended+didMend
	}
	return buried, mended, nil
}

func (n *Network) sweepItem(ctx context.Context, b *bus.Bus, taskID string) (buried, mended int, err error) {
	x, err := n.item(ctx, b, taskID)
	if err != nil || x == nil {
		return 0, 0, err
	}
	expired := x.State == Claimed && n.clock.now().Sub(parseTime(x.LeaseUntil)) > n.cfg.AckTimeout
	switch {
	case x.State == Dead && x.DeadSequence == 0:
		return 0, 1, n.publishDead(ctx, b, x, x.AckSubject)
	case expired && x.Deliveries >= n.mostAttempts(x.order):
		return 1, 0, n.bury(ctx, b, x, x.AckSubject, n.whyFailed(ctx, b, x.item), x.Detail)
	case x.State != Queued && !expired:
		return 0, 0, nil
	}
	message, err := bySequence(ctx, b, queuePrefix+x.Capability, x.QueueSequence)
	if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return 0, 0, err
	}
	if message != nil {
		return 0, 0, nil // it waits for a worker
	}
	return 0, 1, n.requeue(ctx, b, x)
}

// requeue gives an item a new message, for its own is gone.
func (n *Network) requeue(ctx context.Context, b *bus.Bus, x *version) error {
	o := x.order
	o.Generation, o.Attempts = x.Generation+1, x.Deliveries
	if o.Attempts >= n.cfg.MaxAttempts {
		o.Attempts = n.cfg.MaxAttempts - 1
	}
	seq, err := n.enqueue(ctx, b, o, x.Capability)
	if err != nil {
		return err
	}
	x.renew(o)
	x.QueueSequence = seq
	n.log.Warn("an item of work had lost its place in the queue and is queued again", "taskId", x.TaskID, "queue", x.Capability)
	return n.save(ctx, b, x)
}
