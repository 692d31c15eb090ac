package agentnet

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/base/wait"
)

// Submit puts an item into a queue and returns its id when it is durable. To submit the
// same item again is no error; another one with the same id is a ConflictError.
func (a *Agent) Submit(ctx context.Context, s work.Submission) (taskID string, err error) {
	_, outage := a.main.Ready()
	local := a.localMember()
	if outage != nil && (local == nil || !store.IsUnreachable(outage)) {
		return "", outage
	}
	o, capability, err := a.main.worker.Order(s)
	if err != nil {
		return "", err
	}
	if local == nil {
		err = a.net.main.work.Submit(ctx, o, capability)
	} else {
		err = a.submitLocal(ctx, local, o, capability, outage)
	}
	if err != nil {
		return "", store.AsError(err)
	}
	return o.TaskID, nil
}

// submitLocal submits an item by way of the hub's bus: there while the network cannot be reached, and otherwise to
// the network. So the item is in one place, however often an attempt to submit it is repeated.
func (a *Agent) submitLocal(ctx context.Context, local *member, o work.Order, capability string, outage error) error {
	if _, err := local.Ready(); err != nil {
		return err
	}
	if outage != nil {
		err := local.of.work.Submit(ctx, o, capability)
		a.net.kickForward(a.net.workKick)
		return err
	}
	x, err := local.of.work.Reserve(ctx, o, capability)
	if err != nil || x == nil {
		return err
	}
	// From here on the item is stored, and any process may forward it.
	err = a.net.forwardItem(ctx, x)
	if isRefusal(err) {
		if eraseErr := local.of.work.Erase(ctx, x); eraseErr != nil {
			a.main.Log().Warn("an item of work that the network refused is still stored on this computer", "taskId", o.TaskID, "error", eraseErr)
		}
		return err
	}
	if err != nil {
		a.main.Log().Info("an item of work waits for the network", "taskId", o.TaskID, "error", err)
		a.net.kickForward(a.net.workKick)
	}
	return nil
}

// Claim takes the next item of the queues of the capabilities, the agent's own where none are named, and waits for
// one until ctx ends; then it returns nil. Each item is given to one agent at a time.
func (a *Agent) Claim(ctx context.Context, capabilities []string) (*work.Claim, error) {
	if _, err := a.ready(); err != nil {
		return nil, err
	}
	queues, err := a.queues(capabilities)
	if err != nil {
		return nil, err
	}
	for first := true; ; first = false {
		claim, err := a.claimOnce(ctx, queues, first)
		if claim != nil {
			return claim, nil
		}
		if ctx.Err() != nil {
			return nil, nil
		}
		if err != nil {
			return nil, store.AsError(err)
		}
	}
}

func (a *Agent) queues(capabilities []string) ([]string, error) {
	explicit := len(capabilities) > 0
	if !explicit {
		capabilities = a.Entry().Capabilities
	}
	var queues []string
	for _, c := range capabilities {
		name, err := store.QueueName(c)
		if err != nil && explicit {
			return nil, err
		}
		if err == nil && !slices.Contains(queues, name) {
			queues = append(queues, name)
		}
	}
	if len(queues) == 0 {
		return nil, store.Invalid("There is no queue to claim from.").WithRemedy("Name a capability, or register with some.")
	}
	return queues, nil
}

// claimOnce checks all queues once: first those of the hub's bus, which have only items
// submitted while the network could not be reached, and then those of the network.
func (a *Agent) claimOnce(ctx context.Context, queues []string, first bool) (*work.Claim, error) {
	_, outage := a.main.Ready()
	if local := a.readyLocal(); local != nil {
		var patience time.Duration
		if outage != nil {
			patience = claimWait(ctx, len(queues), first)
		}
		claim, err := local.worker.Claim(ctx, queues, patience)
		if claim != nil || outage != nil && store.IsUnreachable(outage) {
			return claim, err
		}
		if err != nil && ctx.Err() == nil {
			a.main.Log().Warn("the queues on the hub's bus cannot be used", "error", err)
		}
	}
	if outage != nil {
		return nil, outage
	}
	claim, err := a.main.worker.Claim(ctx, queues, claimWait(ctx, len(queues), first))
	if err != nil && a.readyLocal() != nil {
		if _, outage := a.main.Ready(); outage != nil {
			return claim, nil // the link has just failed: the hub's bus is used next
		}
	}
	return claim, err
}

// claimWait returns how long to wait at each of several queues.
func claimWait(ctx context.Context, queues int, first bool) time.Duration {
	const (
		alone = 2 * time.Second // how long a cancelled call may last
		shift = 250 * time.Millisecond
	)
	wait := alone
	switch {
	case queues > 1 && first:
		return 0
	case queues > 1:
		wait = shift
	}
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, max(time.Until(deadline), 0))
	}
	return wait
}

// Held returns the items that the agent holds on the buses that it can reach, so that a worker which was killed
// continues with them. Their leases may have ended: extend them first.
func (a *Agent) Held(ctx context.Context) ([]*work.Claim, error) {
	held, err := a.main.worker.Held(ctx)
	local := a.readyLocal()
	if local == nil || err != nil && !store.IsUnreachable(err) {
		return held, store.AsError(err)
	}
	here, err := local.worker.Held(ctx)
	return slices.Concat(here, held), store.AsError(err)
}

// recordHolder returns the agent on the bus that has an item's record.
func (a *Agent) recordHolder(ctx context.Context, taskID string) (*member, error) {
	local := a.localMember()
	if local == nil {
		return a.main, nil
	}
	x, err := local.find(ctx, taskID)
	if err == nil {
		if x == nil || x.State == work.Forwarded {
			return a.main, nil
		}
		return local, nil
	}
	// The hub cannot be reached, and may have the item.
	if x, mainErr := a.main.find(ctx, taskID); mainErr == nil && x != nil {
		return a.main, nil
	}
	return nil, store.AsError(err)
}

func (m *member) find(ctx context.Context, taskID string) (*work.Item, error) {
	if _, err := m.Ready(); err != nil {
		return nil, err
	}
	return m.of.work.Find(ctx, taskID)
}

// Extend extends the lease of an item that the agent holds to its full length from now, and returns when it ends.
func (a *Agent) Extend(ctx context.Context, taskID string, token int) (until string, err error) {
	at, err := a.recordHolder(ctx, taskID)
	if err != nil {
		return "", err
	}
	return at.worker.Extend(ctx, taskID, token)
}

// Complete stores the outcome of an item that the agent holds, durably. An agent that does not hold it any more gets
// a ConflictError. To complete an item a second time with the same token is no error and changes nothing.
func (a *Agent) Complete(ctx context.Context, taskID string, token int, o work.Outcome) error {
	at, err := a.recordHolder(ctx, taskID)
	if err != nil {
		return err
	}
	return at.worker.Complete(ctx, taskID, token, o)
}

// Reject returns an item that the agent holds to the queue; if final, or after the last
// attempt, it puts it into the dead letters. dead says which.
func (a *Agent) Reject(ctx context.Context, taskID string, token int, reason string, final bool) (dead bool, err error) {
	at, err := a.recordHolder(ctx, taskID)
	if err != nil {
		return false, err
	}
	defer a.net.kickForward(a.net.workKick) // agents elsewhere may get it now
	return at.worker.Reject(ctx, taskID, token, reason, final)
}

// Item returns the status of an item. With wait it blocks until the item is finished or ctx ends.
func (a *Agent) Item(ctx context.Context, taskID string, wait bool) (work.ItemStatus, error) {
	for {
		at, err := a.recordHolder(context.WithoutCancel(ctx), taskID)
		if err != nil {
			return work.ItemStatus{}, err
		}
		s, err := at.worker.Status(ctx, taskID, wait)
		if s.State != work.Forwarded {
			return s, err
		}
	}
}

// Items lists the items of the network for people, the latest change last; of one state where it is not empty.
func (n *Network) Items(ctx context.Context, state work.ItemState) ([]work.ItemStatus, error) {
	list, err := n.main.work.Items(ctx)
	if _, localErr := n.connectedLocal(); localErr == nil && (err == nil || store.IsUnreachable(err)) {
		var here []work.ItemStatus
		here, err = n.local.work.Items(ctx)
		list = slices.Concat(list, slices.DeleteFunc(here, func(s work.ItemStatus) bool { return s.State == work.Forwarded }))
	}
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list, func(s work.ItemStatus) bool { return state != "" && s.State != state }), nil
}

// checkRegistered returns an error unless the agent is registered. The network need not be reachable.
func (a *Agent) checkRegistered() error {
	if _, err := a.main.Ready(); err != nil && !store.IsUnreachable(err) {
		return err
	}
	return nil
}

// DeadLetters lists failed work, oldest first; of one queue if capability is not empty.
// more says that there is more than the limit.
func (a *Agent) DeadLetters(ctx context.Context, limit int, capability string) (list []work.DeadLetter, more bool, err error) {
	if err := a.checkRegistered(); err != nil {
		return nil, false, err
	}
	return a.net.DeadLetters(ctx, limit, capability)
}

// DeadLetters is the list for people.
func (n *Network) DeadLetters(ctx context.Context, limit int, capability string) (list []work.DeadLetter, more bool, err error) {
	list, more, err = n.main.work.DeadLetters(ctx, limit, capability)
	if _, localErr := n.connectedLocal(); localErr != nil || err != nil && !store.IsUnreachable(err) {
		return list, more, err
	}
	here, moreHere, err := n.local.work.DeadLetters(ctx, limit, capability)
	if err != nil {
		return nil, false, err
	}
	list = append(list, here...)
	most := min(len(list), cmp.Or(limit, work.DefaultDeadLimit))
	return list[:most], more || moreHere || most < len(list), nil
}

// RetryDeadLetter puts a failed item into its queue again. Unless resetAttempts, the
// attempts so far count, but it gets at least one more.
func (a *Agent) RetryDeadLetter(ctx context.Context, taskID string, resetAttempts bool) (work.DeadLetter, error) {
	if err := a.checkRegistered(); err != nil {
		return work.DeadLetter{}, err
	}
	letter, err := a.net.RetryDeadLetter(ctx, taskID, resetAttempts)
	if err == nil {
		a.main.Log().Warn("a dead letter is retried", "taskId", taskID, "resetAttempts", resetAttempts)
	}
	return letter, err
}

// RetryDeadLetter is for people.
func (n *Network) RetryDeadLetter(ctx context.Context, taskID string, resetAttempts bool) (work.DeadLetter, error) {
	at, err := n.deadHolder(ctx, taskID)
	if err != nil {
		return work.DeadLetter{}, err
	}
	defer wait.Nudge(n.workKick)
	return at.work.RetryDeadLetter(ctx, taskID, resetAttempts)
}

// DiscardDeadLetter removes a failed item for good.
func (a *Agent) DiscardDeadLetter(ctx context.Context, taskID string) (work.DeadLetter, error) {
	if err := a.checkRegistered(); err != nil {
		return work.DeadLetter{}, err
	}
	letter, err := a.net.DiscardDeadLetter(ctx, taskID)
	if err == nil {
		a.main.Log().Warn("a dead letter is discarded", "taskId", taskID)
	}
	return letter, err
}

// DiscardDeadLetter is for people.
func (n *Network) DiscardDeadLetter(ctx context.Context, taskID string) (work.DeadLetter, error) {
	at, err := n.deadHolder(ctx, taskID)
	if err != nil {
		return work.DeadLetter{}, err
	}
	return at.work.DiscardDeadLetter(ctx, taskID)
}

// deadHolder returns the backend that has a dead item: the hub's bus if it is dead there, and otherwise the network.
func (n *Network) deadHolder(ctx context.Context, taskID string) (*backend, error) {
	if _, err := n.connectedLocal(); err == nil {
		x, err := n.local.work.Find(ctx, taskID)
		if err != nil {
			return nil, store.AsError(err)
		}
		if x != nil && x.State == work.Dead {
			return n.local, nil
		}
	}
	return n.main, nil
}
