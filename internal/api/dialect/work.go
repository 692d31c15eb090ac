package dialect

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/base/text"
)

// Queues are what the dialect needs of the work queues; see [agentnet.Network].
type Queues interface {
	Items(ctx context.Context, state work.ItemState) ([]work.ItemStatus, error)
	DeadLetters(ctx context.Context, limit int, capability string) (list []work.DeadLetter, more bool, err error)
	RetryDeadLetter(ctx context.Context, taskID string, resetAttempts bool) (work.DeadLetter, error)
	DiscardDeadLetter(ctx context.Context, taskID string) (work.DeadLetter, error)
}

// WorkList is the result of hub/work/list.
type WorkList struct {
	Items       []work.ItemStatus `json:"items"` // that wait or are being worked on; claimed ones first
	DeadLetters []work.DeadLetter `json:"deadLetters"`
	Truncated   bool              `json:"truncated"` // there are more of either
}

// WorkItemParams name an item of work.
type WorkItemParams struct {
	TaskID string `json:"taskId"`
}

// maxWork bounds each list of a WorkList.
const maxWork = 500

func (s *Service) workList(ctx context.Context) (*WorkList, error) {
	items, err := s.cfg.Queues.Items(ctx, "")
	if err != nil {
		return nil, err
	}
	letters, more, err := s.cfg.Queues.DeadLetters(ctx, maxWork, "")
	if err != nil {
		return nil, err
	}
	open := slices.DeleteFunc(items, func(x work.ItemStatus) bool {
		return x.State != work.Queued && x.State != work.Claimed && x.State != work.Forwarding
	})
	slices.SortStableFunc(open, func(a, b work.ItemStatus) int { return claimedFirst(a) - claimedFirst(b) })
	found := &WorkList{Items: append([]work.ItemStatus{}, open[:min(len(open), maxWork)]...), DeadLetters: append([]work.DeadLetter{}, letters...)}
	found.Truncated = more || len(open) > maxWork
	return found, nil
}

func claimedFirst(x work.ItemStatus) int {
	if x.State == work.Claimed {
		return 0
	}
	return 1
}

func (s *Service) workRetry(ctx context.Context, id string) (work.DeadLetter, error) {
	return s.cfg.Queues.RetryDeadLetter(ctx, id, true)
}

func (s *Service) workDiscard(ctx context.Context, id string) (work.DeadLetter, error) {
	return s.cfg.Queues.DiscardDeadLetter(ctx, id)
}

// addDeadLetters adds work that has failed. Where the queues cannot be reached, what else waits is still shown.
func (s *Service) addDeadLetters(ctx context.Context, found *Needs) {
	if s.cfg.Queues == nil {
		return
	}
	letters, _, err := s.cfg.Queues.DeadLetters(ctx, maxWork, "")
	if err != nil {
		return
	}
	found.Total += len(letters)
	for _, l := range letters {
		found.Needs = append(found.Needs, needOfLetter(l))
	}
}

func needOfLetter(l work.DeadLetter) Need {
	queue := l.Subject[strings.LastIndexByte(l.Subject, '.')+1:]
	need := Need{ID: "item " + l.TaskID, Kind: NeedDeadLetter, Agent: "queue." + queue, Item: l.TaskID}
	if at, err := time.Parse(time.RFC3339Nano, l.DeadAt); err == nil {
		need.Since = Time{at}
	}
	need.Title = text.Clip(text.OneLine(strings.TrimSpace(string(l.Reason)+" "+l.Detail)), maxNeedTitle)
	need.Input = l.Payload
	return need
}

// workError translates an error of the agents' network that the caller can act on.
func workError(err error) error {
	var se *store.Error
	if !errors.As(err, &se) {
		return err
	}
	code, ok := map[store.Code]wireCode{
		store.ValidationError: {jsonrpc.CodeInvalidParams, "INVALID_PARAMS"},
		store.NotFoundError:   {jsonrpc.CodeInvalidParams, "WORK_NOT_FOUND"},
		store.ConflictError:   {jsonrpc.CodeServerBusy, "SERVER_BUSY"},
		store.ConnectionError: {CodeAgentUnavailable, "NETWORK_UNAVAILABLE"},
	}[se.Code]
	return code.error(ok, err, se.Message, jsonrpc.Details{Remedy: se.Remedy})
}
