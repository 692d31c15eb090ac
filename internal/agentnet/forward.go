package agentnet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
)

// Work goes through the records of the hub's bus, so that an item is in one place
// however often an attempt to submit it has to be repeated. Its record there is
//
//   - as any record, as long as agents of this computer are to do the item;
//   - on its way, from when it may be in the network: nobody here gets it any more;
//   - moved, when it is there: everything about it is asked of the network.
//
// Whoever finds an item on its way carries it on. The network knows by the
// submission that it has it already.
const (
	onItsWay ItemState = "forwarding"
	moved    ItemState = "forwarded"
)

// kickSubject is where, on the hub's bus, a process that does not forward says that
// there is something to be forwarded.
const kickSubject = "global.hub.forward"

// forwards says whether this Network moves what waits on the hub's bus. Behind the hub's
// link the hub itself does: its agents may not write for others.
func (n *Network) forwards() bool { return n.cfg.DialLocal != nil && n.cfg.Place == nil }

// kickForward has what waits on the hub's bus looked at now.
func (n *Network) kickForward(own chan<- struct{}) {
	if n.forwards() {
		wake(own)
		return
	}
	if n.near == nil {
		return
	}
	b, err := n.near.connected()
	if err == nil {
		err = b.Conn().Publish(kickSubject, nil)
	}
	if err != nil {
		n.log.Debug("the hub was not told that something waits; it looks when it starts", "error", err)
	}
}

// forwarder is woken when there may be work to move.
type forwarder struct{ kick chan struct{} }

func (f *forwarder) init() { f.kick = make(chan struct{}, 1) }

// movedTTL is how long it is remembered on the hub's bus that an item is in the
// network: until no message of its queue can bring it any more.
func (n *Network) movedTTL() time.Duration { return 2*n.cfg.AckTimeout + 10*time.Minute }

// entrust submits an item by way of the hub's bus.
func (a *Agent) entrust(ctx context.Context, near *Agent, o order, capability string) error {
	nb, err := near.ready()
	if err != nil {
		return err
	}
	n := near.net
	for range maxConflicts {
		have, err := n.item(ctx, nb, o.TaskID)
		if err != nil {
			return err
		}
		b, outage := a.ready()
		switch {
		case have != nil && have.State != onItsWay:
			return sameItem(have.order, o)
		case have == nil && outage != nil:
			err := n.submit(ctx, nb, o, capability)
			a.net.kickForward(a.net.items.kick)
			return err
		case have == nil:
			have = &version{item: item{order: o, Capability: capability, State: onItsWay}}
			if err := n.save(ctx, nb, have); errors.Is(err, errConflict) {
				continue
			} else if err != nil {
				return err
			}
		default:
			if err := sameItem(have.order, o); err != nil {
				return err
			}
		}
		// From here on it is stored, and will be carried on.
		if err := nb.Commit(ctx); err != nil {
			return err
		}
		if outage == nil {
			outage = a.net.carry(ctx, nb, b, have)
		}
		if refused, ok := errors.AsType[*Error](outage); ok && refused.Code != ConnectionError {
			return errors.Join(refused, n.erase(ctx, nb, have))
		}
		if outage != nil {
			a.log.Info("an item of work waits for the network", "taskId", o.TaskID, "error", outage)
			a.net.kickForward(a.net.items.kick)
		}
		return nil
	}
	return errConflict
}

// carry brings an item that is on its way into the network, and notes that it is
// there.
func (n *Network) carry(ctx context.Context, nb, b *bus.Bus, x *version) error {
	o := x.order
	o.Attempts, o.Claims = x.Deliveries, x.Token
	if err := n.submit(ctx, b, o, x.Capability); err != nil {
		return err
	}
	if err := n.near.removeQueued(ctx, nb, x); err != nil {
		return err
	}
	x.State = moved
	err := n.near.save(ctx, nb, x)
	if errors.Is(err, errConflict) {
		return nil // another process has carried it
	}
	return err
}

// erase removes the record of an item that was never submitted.
func (n *Network) erase(ctx context.Context, b *bus.Bus, x *version) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	stream, err := b.JetStream().Stream(ctx, itemStream)
	if err != nil {
		return err
	}
	if err := stream.DeleteMsg(ctx, x.revision); err != nil && !isGone(err) {
		return err
	}
	return nil
}

// removeQueued takes an item's message off its queue.
func (n *Network) removeQueued(ctx context.Context, b *bus.Bus, x *version) error {
	if x.QueueSequence == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	stream, err := b.JetStream().Stream(ctx, queuePrefix+x.Capability)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := stream.DeleteMsg(ctx, x.QueueSequence); err != nil && !isGone(err) {
		return err
	}
	return nil
}

// errUnfinished says that work on the hub's bus has not ended.
var errUnfinished = errors.New("agents of this computer are at work on items of its own")

// forwardWork moves the items of the hub's bus that nobody holds to the network,
// where more can do them. A queue that takes none now does not hold up the others.
func (n *Network) forwardWork(ctx context.Context) error {
	b, err := n.connected()
	if err != nil {
		return err
	}
	nb, err := n.near.connected()
	if err != nil {
		return err
	}
	list, err := n.near.unfinished(ctx, nb)
	if err != nil {
		return err
	}
	var unfinished error
	stuck := map[string]error{} // by queue
	for _, x := range list {
		if stuck[x.Capability] != nil {
			continue
		}
		done, err := n.move(ctx, nb, b, x.TaskID)
		if err != nil {
			stuck[x.Capability] = err
			if len(stuck) == maxStuck || ctx.Err() != nil || !b.Conn().IsConnected() || !nb.Conn().IsConnected() {
				break
			}
		} else if !done {
			unfinished = errUnfinished
		}
	}
	return errors.Join(unfinished, errors.Join(slices.Collect(maps.Values(stuck))...))
}

// unfinishedItem is an item that has not ended.
type unfinishedItem struct{ TaskID, Capability string }

// unfinished returns the items that have not ended, the oldest first.
func (n *Network) unfinished(ctx context.Context, b *bus.Bus) ([]unfinishedItem, error) {
	var list []unfinishedItem
	err := n.scanItems(ctx, b, func(x item) bool {
		list = slices.DeleteFunc(list, func(have unfinishedItem) bool { return have.TaskID == x.TaskID })
		if !x.finished() {
			list = append(list, unfinishedItem{x.TaskID, x.Capability})
		}
		return true
	})
	return list, err
}

// move carries an item on that nobody here has begun, or whose holder has let the
// lease end. The record decides between the network and a worker who claims it at
// the same moment.
func (n *Network) move(ctx context.Context, nb, b *bus.Bus, taskID string) (done bool, err error) {
	for range maxConflicts {
		x, err := n.near.item(ctx, nb, taskID)
		if err != nil {
			return false, err
		}
		if x == nil || x.finished() {
			return true, nil
		}
		switch {
		case x.State == onItsWay:
		case x.Deliveries > 0 && x.Deliveries >= n.mostAttempts(x.order):
			return false, nil // it will be buried
		case x.State == Claimed && n.near.clock.now().Sub(parseTime(x.LeaseUntil)) < n.cfg.AckTimeout:
			return false, nil
		default:
			x.State = onItsWay
			if err := n.near.save(ctx, nb, x); errors.Is(err, errConflict) {
				continue
			} else if err != nil {
				return false, err
			}
			if err := nb.Commit(ctx); err != nil {
				return false, err
			}
		}
		err = n.carry(ctx, nb, b, x)
		if refused, ok := errors.AsType[*Error](err); ok && refused.Code != ConnectionError {
			return true, n.near.bury(ctx, nb, x, x.AckSubject, Refused, "the agents' network does not take it: "+refused.Error())
		}
		if err == nil {
			n.log.Info("an item of work was moved to the network", "taskId", taskID)
		}
		return true, err
	}
	return false, fmt.Errorf("move %s: %w", quote(taskID), errConflict)
}

// keeper returns the place that has an item's record: on the hub's bus, or in the
// network.
func (a *Agent) keeper(ctx context.Context, taskID string) (*Agent, error) {
	near := a.nearPlace()
	if near == nil {
		return a, nil
	}
	x, err := near.lookUp(ctx, taskID)
	switch {
	case err == nil && (x == nil || x.State == moved):
		return a, nil
	case err == nil:
		return near, nil
	}
	// The hub is away: perhaps it has it, perhaps not.
	if x, farErr := a.lookUp(ctx, taskID); farErr == nil && x != nil {
		return a, nil
	}
	return nil, connectionError(err)
}

func (a *Agent) lookUp(ctx context.Context, taskID string) (*version, error) {
	b, err := a.ready()
	if err != nil {
		return nil, err
	}
	return a.net.item(ctx, b, taskID)
}

// deadKeeper is keeper for the dead letters of people and agents: the hub's bus if
// the item is dead there.
func (n *Network) deadKeeper(ctx context.Context, taskID string) (*Network, *bus.Bus, error) {
	if n.near != nil {
		if b, err := n.near.connected(); err == nil {
			x, err := n.near.item(ctx, b, taskID)
			if err != nil {
				return nil, nil, connectionError(err)
			}
			if x != nil && x.State == Dead {
				return n.near, b, nil
			}
		}
	}
	b, err := n.connected()
	return n, b, err
}
