package agentnet

import (
	"context"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
)

// here returns the backend of this computer's own items: the hub's bus if there is one, and otherwise the network.
func (n *Network) here() *backend {
	if n.local != nil {
		return n.local
	}
	return n.main
}

// WatchItems calls visit with the ids and generations of the items that were submitted on this computer, then with those
// of items that change, until ctx ends. visit must not block.
func (n *Network) WatchItems(ctx context.Context, visit func(taskID string, generation int)) error {
	return n.here().work.Watch(ctx, visit)
}

// TrackItem returns an item that was submitted on this computer, wherever it is now; false if there is none.
func (n *Network) TrackItem(ctx context.Context, taskID string) (work.Tracked, bool, error) {
	t, found, err := n.here().work.Tracked(ctx, taskID)
	if t.State != work.Forwarded {
		return t, found, err
	}
	at, found, err := n.main.work.Tracked(ctx, taskID)
	if store.IsUnreachable(err) {
		return t, true, nil
	}
	return at, found, err
}

// FollowItem calls visit with an item that was submitted on this computer as it is, wherever it is, and again after each
// change, until visit returns false or ctx ends. An item that does not exist any more is a NotFoundError.
func (n *Network) FollowItem(ctx context.Context, taskID string, visit func(work.Tracked) bool) error {
	forwarded := false
	err := n.here().work.Follow(ctx, taskID, func(t work.Tracked) bool {
		forwarded = t.State == work.Forwarded
		return !forwarded && visit(t)
	})
	if n.local != nil && (forwarded || store.IsNotFound(err)) { // the record of a forwarded item expires
		return n.main.work.Follow(ctx, taskID, visit)
	}
	return err
}

// WithdrawItem ends an item that was submitted on this computer: nobody wants its result any more.
func (n *Network) WithdrawItem(ctx context.Context, taskID string) error {
	at := n.here()
	t, found, err := at.work.Tracked(ctx, taskID)
	if err != nil {
		return err
	}
	if n.local != nil && (!found || t.State == work.Forwarded) {
		at = n.main
	}
	return at.work.Withdraw(ctx, taskID)
}

// Queues returns the names of the queues that this computer's items are in.
func (n *Network) Queues(ctx context.Context) ([]string, error) { return n.here().work.Queues(ctx) }
