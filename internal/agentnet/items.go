package agentnet

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/internal/bus"
)

// ItemStatus is an item as its submitter and its worker see it. Others see
// neither offer nor result.
type ItemStatus struct {
	TaskID          string        `json:"taskId"`
	Capability      string        `json:"capability"`
	State           ItemState     `json:"state"`
	Description     string        `json:"taskDescription,omitempty"`
	SubmitterGUID   string        `json:"submitterGuid,omitempty"`
	SubmitterHandle string        `json:"submitterHandle,omitempty"`
	SubmittedAt     string        `json:"submittedAt,omitempty"`
	Attempts        int           `json:"attempts"`
	HolderGUID      string        `json:"holderGuid,omitempty"`
	HolderHandle    string        `json:"holderHandle,omitempty"`
	ClaimedAt       string        `json:"claimedAt,omitempty"`
	LeaseUntil      string        `json:"leaseUntil,omitempty"`
	FinishedAt      string        `json:"finishedAt,omitempty"`
	FailureReason   FailureReason `json:"failureReason,omitempty"`
	FailureDetail   string        `json:"failureDetail,omitempty"`

	Success       *bool           `json:"success,omitempty"`
	ResultSummary string          `json:"resultSummary,omitempty"`
	ResultData    json.RawMessage `json:"resultData,omitempty"`
}

func (x item) finished() bool {
	return x.State == Completed || x.State == Dead || x.State == Discarded || x.State == moved
}

func (x item) status(full bool) ItemStatus {
	s := ItemStatus{TaskID: x.TaskID, Capability: x.Capability, State: x.State, SubmitterGUID: x.SubmitterGUID,
		SubmitterHandle: x.SubmitterHandle, SubmittedAt: x.SubmittedAt, Attempts: x.Deliveries, ClaimedAt: x.ClaimedAt,
		HolderGUID: x.Holder, HolderHandle: x.HolderHandle, FinishedAt: x.FinishedAt, FailureReason: x.Reason}
	if x.State == Claimed {
		s.LeaseUntil = x.LeaseUntil
	}
	if x.State == onItsWay {
		s.State = Queued
	}
	if x.State == Completed {
		s.Success, s.FailureReason = &x.Success, ""
	}
	if full {
		s.Description, s.FailureDetail, s.ResultSummary, s.ResultData = x.Description, x.Detail, x.Summary, x.Result
	}
	return s
}

// Item says where an item stands. Where wait is set, it waits until the item is
// finished, or ctx ends, whichever is first.
func (a *Agent) Item(ctx context.Context, taskID string, wait bool) (ItemStatus, error) {
	for {
		at, err := a.keeper(context.WithoutCancel(ctx), taskID)
		if err != nil {
			return ItemStatus{}, err
		}
		s, err := at.itemOne(ctx, taskID, wait)
		if s.State != moved {
			return s, err
		}
	}
}

// itemOne is Item at this Agent's own bus.
func (a *Agent) itemOne(ctx context.Context, taskID string, wait bool) (ItemStatus, error) {
	b, err := a.ready()
	if err != nil {
		return ItemStatus{}, err
	}
	changed := make(chan *nats.Msg, 1)
	if wait {
		sub, err := b.Conn().ChanSubscribe(a.net.itemCell(taskID).subject, changed)
		if err != nil {
			return ItemStatus{}, connectionError(err)
		}
		defer func() { _ = sub.Unsubscribe() }() // the connection is gone, and the subscription with it
	}
	poll := time.NewTicker(mailPoll)
	defer poll.Stop()
	for {
		look, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
		x, err := a.net.item(look, b, taskID)
		cancel()
		if err != nil {
			return ItemStatus{}, connectionError(err)
		}
		if x == nil {
			return ItemStatus{}, noItem(taskID)
		}
		if !wait || x.finished() || ctx.Err() != nil {
			return x.status(a.guid == x.SubmitterGUID || a.guid == x.Holder), nil
		}
		select {
		case <-changed:
		case <-poll.C:
		case <-ctx.Done():
		}
	}
}

// Items lists the items of the network for people, the latest change last; of
// one state where it is not empty.
func (n *Network) Items(ctx context.Context, state ItemState) ([]ItemStatus, error) {
	var list []ItemStatus
	b, err := n.connected()
	if err == nil {
		list, err = n.itemsAt(ctx, b)
	}
	if n.near != nil && (err == nil || isConnection(err)) {
		if near, nearErr := n.near.connected(); nearErr == nil {
			var here []ItemStatus
			here, err = n.near.itemsAt(ctx, near)
			list = slices.Concat(list, slices.DeleteFunc(here, func(s ItemStatus) bool { return s.State == moved }))
		}
	}
	if err != nil {
		return nil, connectionError(err)
	}
	return slices.DeleteFunc(list, func(s ItemStatus) bool { return state != "" && s.State != state }), nil
}

// scanItems calls visit with the records of all items; with one that changes
// meanwhile perhaps twice.
func (n *Network) scanItems(ctx context.Context, b *bus.Bus, visit func(item) bool) error {
	return scan(ctx, b, itemStream, itemSubject+"*", 1, func(s stored) bool {
		var x item
		if isMark(s.header) || json.Unmarshal(s.data, &x) != nil {
			return true
		}
		return visit(x)
	})
}

func (n *Network) itemsAt(ctx context.Context, b *bus.Bus) ([]ItemStatus, error) {
	byID := map[string]int{}
	list := []ItemStatus{}
	err := n.scanItems(ctx, b, func(x item) bool {
		if at, twice := byID[x.TaskID]; twice {
			list = slices.Delete(list, at, at+1)
			byID = map[string]int{}
			for i, have := range list {
				byID[have.TaskID] = i
			}
		}
		byID[x.TaskID] = len(list)
		list = append(list, x.status(true))
		return true
	})
	return list, err
}
