package work

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

// A lease ends at a moment of the server's time, which every process measures; one on the server's computer has the
// same clock. A process acts on it when it has ended also by the slowest clock that its own measurement allows: never
// before its end, and for a measurement that is exact to half a second, within two seconds after it. All processes that
// watch act, each after a random part of leaseSpread: the first one changes the record, which the others receive before
// it is their turn. Of two that act at the same moment the record's revision refuses one.
const (
	leaseSpread = time.Second
	// settlePause is the shortest time between two passes over the leases.
	settlePause = 50 * time.Millisecond
	// maxSettling bounds the leases that a process acts on at once: many end together when a computer fails.
	maxSettling = 16
	// maxLeases bounds the leases that a process remembers. It reads the records again when half of them have ended.
	maxLeases = 100_000
)

// leaseEnded reports whether a worker still has the item according to its record, but not according to the time.
func (x record) leaseEnded(now time.Time) bool {
	return x.State == Claimed && !now.Before(store.ParseTime(x.LeaseUntil))
}

// beginLease gives the item to its holder for a lease from now.
func (x *record) beginLease(now time.Time, lease time.Duration) {
	x.LeaseSince, x.LeaseUntil = store.Timestamp(now), store.Timestamp(now.Add(lease))
}

// isOfLater reports whether a lease began so much later than now that the server's clock was set back since. Its end says nothing then, and the
// item would be held for as long as the clock was set back. So such a lease begins anew, and its holder loses none of it.
func isOfLater(since, now time.Time, lease time.Duration) bool {
	return since.Sub(now) > max(lease, time.Minute)
}

// since returns when the item's lease began.
func (x record) since() time.Time { return store.ParseTime(cmp.Or(x.LeaseSince, x.ClaimedAt)) }

// isOfLater reports whether the item's lease is of later than the server's time, which it measures before it says so, unless this computer's
// clock is the server's: a lease that begins anew by a wrong time would end too early.
func (s *Service) isOfLater(ctx context.Context, x record) bool {
	later := func() bool { return x.State == Claimed && isOfLater(x.since(), s.reg.Now(), s.cfg.AckTimeout) }
	if !later() {
		return false
	}
	b, err := s.reg.Connected()
	return err == nil && (b.IsLocal() || s.reg.MeasureTime(ctx, b) == nil && later())
}

// isUnburied reports whether the item is dead, but its dead letter may not be stored yet.
func (x record) isUnburied() bool { return x.State == Dead && x.DeadSequence == 0 }

// leaseOver reports whether the item waits because its last worker's lease ended. Until another worker claims it, that
// worker may still complete it.
func (x record) leaseOver() bool {
	return x.State == Queued && (x.Reason == TimedOut || x.Reason == AgentOffline)
}

// settle acts on an item whose lease has ended: it returns the item to its queue or, after the last attempt, moves it
// to the dead letters. It also stores a dead letter that another process has not stored, and begins a lease anew if the
// server's clock was set back. It returns the item as it is then, nil if there is none. Any process may call it at any time.
func (s *Service) settle(ctx context.Context, taskID string) (*Item, error) {
	if err := s.reg.RefreshTime(ctx); err != nil {
		return nil, err
	}
	ended := false
	x, err := s.change(ctx, taskID, func(x *Item) (*Item, error) {
		ended = x != nil && x.leaseEnded(s.reg.Now())
		switch {
		case x != nil && s.isOfLater(ctx, x.record):
			x.beginLease(s.reg.Now(), s.cfg.AckTimeout)
			return x, nil
		case !ended:
			return x, errUnchanged
		}
		reason := s.failureReason(ctx, x.record)
		if x.Deliveries >= s.maxAttempts(x.record) {
			x.die(reason, x.Detail, s.reg.Now())
		} else {
			x.State, x.Reason = Queued, reason
		}
		return x, nil
	})
	switch {
	case err != nil || x == nil:
		return nil, err
	case x.isUnburied():
		return x, s.publishDead(ctx, x, x.AckSubject)
	case ended:
		s.reg.Log().Info("the lease of an item of work has ended, it is queued again", "taskId", x.TaskID, "queue", x.Capability,
			"attempts", x.Deliveries, "reason", x.Reason, "lastAgent", x.Holder)
		if s.cfg.GUID == "" { // the server may not permit a confined agent to return what it has not received
			s.acknowledge(x.AckSubject, "-NAK")
		}
	}
	return x, nil
}

// settled is settle for a reader, who gets the item as it was if that fails.
func (s *Service) settled(ctx context.Context, x *Item) *Item {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.RequestTimeout)
	defer cancel()
	now, err := s.settle(ctx, x.TaskID)
	if err != nil || now == nil {
		return x
	}
	return now
}

// leases are the leases on a bus as far as a process knows them.
type leases struct {
	svc     *Service
	earlier chan struct{} // has a value when a lease ends before those that are waited for

	mu      sync.Mutex
	ends    map[string]leaseEnd // by task id
	next    time.Time           // when a pass is due; zero for none
	partial bool                // ends has had no room for a lease
}

// leaseEnd is the end of a lease, or of the time in which a dead letter should be stored.
type leaseEnd struct {
	token int
	since time.Time
	until time.Time
	due   time.Time // when this process acts
}

// WatchLeases acts on the leases on the bus that end, whoever holds them, until ctx ends. It reads the records when the
// bus is connected, and then waits for messages and for the nearest end.
func (s *Service) WatchLeases(ctx context.Context, b *bus.Bus) {
	l := &leases{svc: s, earlier: make(chan struct{}, 1), ends: map[string]leaseEnd{}}
	sub, err := b.Conn().Subscribe(store.ItemSubject+"*", func(m *nats.Msg) {
		var x record
		if json.Unmarshal(m.Data, &x) == nil && x.TaskID != "" {
			l.note(x)
		}
	})
	if err != nil {
		s.reg.Log().Warn("the leases of items of work are not watched", "error", err)
		return
	}
	defer func() { _ = sub.Unsubscribe() }() // it fails if the connection has ended, and the subscription with it
	retry := wait.Backoff{First: time.Second, Most: time.Minute}
	for ctx.Err() == nil {
		connected := s.reg.Changed()
		var again <-chan time.Time
		if err := l.read(ctx, b); err == nil {
			retry.Reset()
		} else if ctx.Err() == nil {
			s.reg.Log().Debug("the leases of items of work cannot be read", "error", err)
			if s.cfg.GUID == "" { // of a confined agent the server may refuse that each time
				again = time.After(retry.Next())
			}
		}
		l.watch(ctx, connected, again)
	}
}

// read notes the leases of all records.
func (l *leases) read(ctx context.Context, b *bus.Bus) error {
	l.mu.Lock()
	l.partial = false
	l.mu.Unlock()
	err := l.svc.scan(ctx, b, func(x record, _ time.Time) { l.note(x) })
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil // the first item creates a message
	}
	return err
}

// note remembers, replaces or forgets the lease of a record. A message may announce a record that the server has not
// stored because it conflicts with another, so none replaces a later claim or a later end, and before anything is
// done the record itself is read.
func (l *leases) note(x record) {
	until := store.ParseTime(x.LeaseUntil)
	l.mu.Lock()
	defer l.mu.Unlock()
	have, known := l.ends[x.TaskID]
	if known && (x.Token < have.token || x.Token == have.token && until.Before(have.until)) {
		return
	}
	due := until
	switch {
	case x.isUnburied(): // whoever has written the record stores the dead letter next
		due = l.svc.reg.Now()
	case x.State != Claimed:
		delete(l.ends, x.TaskID)
		return
	}
	if !known && len(l.ends) >= maxLeases {
		l.partial = true
		return
	}
	due = due.Add(l.svc.reg.ClockError() + rand.N(leaseSpread))
	l.ends[x.TaskID] = leaseEnd{x.Token, x.since(), until, due}
	if l.next.IsZero() || due.Before(l.next) {
		wait.Nudge(l.earlier)
	}
}

// watch acts on leases that end until the bus is connected again, there is more to read, or ctx ends.
func (l *leases) watch(ctx context.Context, connected <-chan struct{}, again <-chan time.Time) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-connected:
			return
		case <-again:
			return
		case <-l.earlier:
		case <-timer.C:
		}
		l.settleDue(ctx)
		pause, waits, unread := l.schedule()
		if unread {
			return
		}
		timer.Stop()
		if waits {
			timer.Reset(max(pause, settlePause))
		}
	}
}

// schedule returns when the next lease is due, if any, and whether the records have to be read again.
func (l *leases) schedule() (pause time.Duration, waits, unread bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next = time.Time{}
	now, lease := l.svc.reg.Now(), l.svc.cfg.AckTimeout
	for taskID, e := range l.ends {
		if e.due.Sub(now) > 2*leaseSpread && isOfLater(e.since, now, lease) {
			e.due = now.Add(rand.N(leaseSpread))
			l.ends[taskID] = e
		}
		if l.next.IsZero() || e.due.Before(l.next) {
			l.next = e.due
		}
	}
	return l.next.Sub(now), !l.next.IsZero(), l.partial && len(l.ends) < maxLeases/2
}

// settleDue acts on the leases that are due.
func (l *leases) settleDue(ctx context.Context) {
	now := l.svc.reg.Now()
	due := map[string]leaseEnd{}
	l.mu.Lock()
	for taskID, e := range l.ends {
		if !e.due.After(now) {
			due[taskID] = e
		}
	}
	l.mu.Unlock()
	var group errgroup.Group
	group.SetLimit(maxSettling)
	for taskID, e := range due {
		group.Go(func() error {
			l.settleOne(ctx, taskID, e)
			return nil
		})
	}
	_ = group.Wait() // each has logged its own
}

func (l *leases) settleOne(ctx context.Context, taskID string, e leaseEnd) {
	ctx, cancel := context.WithTimeout(ctx, 2*store.RequestTimeout)
	defer cancel()
	x, err := l.svc.settle(ctx, taskID)
	if err != nil && ctx.Err() == nil && !store.IsUnreachable(err) {
		l.svc.reg.Log().Warn("a lease that has ended could not be acted on", "taskId", taskID, "error", err)
	}
	l.mu.Lock()
	if l.ends[taskID] == e {
		delete(l.ends, taskID)
		if err != nil {
			e.due = l.svc.reg.Now().Add(leaseSpread/2 + rand.N(leaseSpread))
			l.ends[taskID] = e
		}
	}
	l.mu.Unlock()
	if err == nil && x != nil {
		l.note(x.record) // it may have been extended or claimed since
	}
}
