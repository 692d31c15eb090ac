package agentnet

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

const (
	// kickSubject is where, on the hub's bus, a process that does not forward reports that
	// there is something to forward.
	kickSubject = "global.hub.forward"

	maxStuck        = 16              // recipients or queues that fail, of one attempt
	maxForwardPause = 5 * time.Second // between attempts to forward
)

// forwards reports whether this Network forwards what waits on the hub's bus. Behind the
// hub's link the hub itself does: its agents may not write for others.
func (n *Network) forwards() bool { return n.local != nil && n.cfg.Admission == nil }

// watchKicks starts forwarding when other processes report that something waits, until the connection ends.
func (n *Network) watchKicks(b *bus.Bus) {
	if _, err := b.Conn().Subscribe(kickSubject, func(*nats.Msg) { wait.Nudge(n.outbox.kick); wait.Nudge(n.workKick) }); err != nil {
		n.log.Warn("what other processes leave to be forwarded is noticed later", "error", err)
	}
}

// kickForward starts the forwarding of what waits on the hub's bus, in this process or in the one that forwards.
func (n *Network) kickForward(own chan<- struct{}) {
	if n.forwards() {
		wait.Nudge(own)
		return
	}
	if n.local == nil {
		return
	}
	b, err := n.connectedLocal()
	if err == nil {
		err = b.Conn().Publish(kickSubject, nil)
	}
	if err != nil {
		n.log.Debug("the hub was not notified that something waits; it looks when it starts", "error", err)
	}
}

// forward calls do whenever one of the buses can be reached again, or there is a kick,
// until ctx ends. After a failure it retries with backoff.
func (n *Network) forward(ctx context.Context, kick <-chan struct{}, do func(context.Context) error) {
	backoff := wait.Backoff{Most: maxForwardPause}
	for {
		changed, localChanged := n.main.store.Changed(), n.local.store.Changed()
		err := do(ctx)
		var retry <-chan time.Time
		if err != nil {
			n.log.Debug("what waits on the hub's bus was not forwarded", "error", err)
			retry = time.After(backoff.Next())
		} else {
			backoff.Reset()
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-localChanged:
		case <-kick:
		case <-retry:
		}
	}
}

// stuck are the errors of recipients or queues that cannot be forwarded to now.
type stuck map[string]error

func (s stuck) err() error { return errors.Join(slices.Collect(maps.Values(s))...) }

// hopeless reports whether to end the attempt to forward.
func (n *Network) hopeless(ctx context.Context, s stuck) bool {
	_, err := n.main.store.Connected()
	_, localErr := n.connectedLocal()
	return len(s) == maxStuck || ctx.Err() != nil || err != nil || localErr != nil
}

// errUnfinished is returned while items on the hub's bus are not finished.
var errUnfinished = errors.New("agents of this computer work on items of its own")

// forwardWork forwards the items of the hub's bus that no worker has claimed to the network,
// where more agents can claim them. A queue that refuses items does not delay the others.
func (n *Network) forwardWork(ctx context.Context) error {
	if _, err := n.main.store.Connected(); err != nil {
		return err
	}
	lb, err := n.connectedLocal()
	if err != nil {
		return err
	}
	list, err := n.local.work.Unfinished(ctx, lb)
	if err != nil {
		return err
	}
	var unfinished error
	queues := stuck{}
	for _, x := range list {
		if queues[x.Capability] != nil {
			continue
		}
		done, err := n.forwardWaiting(ctx, x.TaskID)
		if err != nil {
			queues[x.Capability] = err
			if n.hopeless(ctx, queues) {
				break
			}
		} else if !done {
			unfinished = errUnfinished
		}
	}
	return errors.Join(unfinished, queues.err())
}

// forwardWaiting forwards an item of the hub's bus that no worker has begun, or whose holder's lease has ended.
func (n *Network) forwardWaiting(ctx context.Context, taskID string) (done bool, err error) {
	x, done, err := n.local.work.ReserveWaiting(ctx, taskID)
	if x == nil || err != nil {
		return done, err
	}
	err = n.forwardItem(ctx, x)
	if isRefusal(err) {
		return true, n.local.work.BuryRefused(ctx, x, err)
	}
	if err == nil {
		n.log.Info("an item of work was forwarded to the network", "taskId", taskID)
	}
	return true, err
}

// forwardItem submits an item in the state Forwarding to the network, and notes that the network has it.
func (n *Network) forwardItem(ctx context.Context, x *work.Item) error {
	if err := n.main.work.Submit(ctx, x.ForwardedOrder(), x.Capability); err != nil {
		return err
	}
	return n.local.work.MarkForwarded(ctx, x)
}

// isRefusal reports whether the network has refused something, as opposed to a failure of a bus.
func isRefusal(err error) bool {
	e, ok := errors.AsType[*store.Error](err)
	return ok && e.Code != store.ConnectionError
}
