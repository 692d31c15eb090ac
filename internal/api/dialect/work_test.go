package dialect_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
)

// fakeQueues have fixed items; err fails every call.
type fakeQueues struct {
	items   []work.ItemStatus
	letters []work.DeadLetter
	calls   []string
	err     error
}

func (q *fakeQueues) Items(context.Context, work.ItemState) ([]work.ItemStatus, error) {
	return q.items, q.err
}

func (q *fakeQueues) DeadLetters(context.Context, int, string) ([]work.DeadLetter, bool, error) {
	return q.letters, false, q.err
}

func (q *fakeQueues) RetryDeadLetter(_ context.Context, id string, reset bool) (work.DeadLetter, error) {
	q.calls = append(q.calls, fmt.Sprint("retry ", id, " ", reset))
	return work.DeadLetter{TaskID: id}, q.err
}

func (q *fakeQueues) DiscardDeadLetter(_ context.Context, id string) (work.DeadLetter, error) {
	q.calls = append(q.calls, "discard "+id)
	return work.DeadLetter{TaskID: id}, q.err
}

func newQueues() *fakeQueues {
	return &fakeQueues{
		items:   []work.ItemStatus{{TaskID: "waits", State: work.Queued}, {TaskID: "done", State: work.Completed}, {TaskID: "held", State: work.Claimed, LeaseUntil: "2026-11-28T12:01:00Z"}, {TaskID: "dead", State: work.Dead}},
		letters: []work.DeadLetter{{TaskID: "dead", Subject: "parley.work.go", Reason: work.TimedOut, Detail: "gone\nfor good", DeadAt: "2026-11-28T12:00:00.5Z", Payload: json.RawMessage(`{"capability":"go"}`)}},
	}
}

func TestWorkIsListedAndRetried(t *testing.T) {
	q := newQueues()
	service := dialect.New(dialect.Config{Hub: &fakeHub{}, Queues: q})
	answer, _ := call(t, service, method(dialect.MethodWorkList, `{}`))
	got := read[dialect.WorkList](t, answer)
	if len(got.Items) != 2 || got.Items[0].TaskID != "held" || got.Items[1].TaskID != "waits" || len(got.DeadLetters) != 1 || got.Truncated {
		t.Errorf("%+v", got)
	}
	call(t, service, method(dialect.MethodWorkRetry, `{"taskId":"dead"}`))
	call(t, service, method(dialect.MethodWorkDiscard, `{"taskId":"dead"}`))
	if s := strings.Join(q.calls, ", "); s != "retry dead true, discard dead" {
		t.Error(s)
	}
	answer, _ = call(t, service, method(dialect.MethodWorkRetry, `{}`))
	wantError(t, answer, jsonrpc.CodeInvalidParams, "INVALID_PARAMS", "taskId")
}

func TestFailedWorkWaitsForTheUser(t *testing.T) {
	q := newQueues()
	service := dialect.New(dialect.Config{Hub: &fakeHub{}, Queues: q})
	answer, _ := call(t, service, method(dialect.MethodNeeds, `{}`))
	got := read[dialect.Needs](t, answer)
	if got.Total != 1 || len(got.Needs) != 1 {
		t.Fatalf("%+v", got)
	}
	if n := got.Needs[0]; n.Kind != dialect.NeedDeadLetter || n.Item != "dead" || n.Agent != "queue.go" || n.Title != "timeout gone for good" || n.Since.IsZero() || n.Permission() != nil {
		t.Errorf("%+v", n)
	}
	q.err = errors.New("the bus has ended")
	answer, _ = call(t, service, method(dialect.MethodNeeds, `{}`))
	if got := read[dialect.Needs](t, answer); got.Total != 0 {
		t.Errorf("without queues: %+v", got)
	}
}

func TestErrorsOfTheQueues(t *testing.T) {
	q := newQueues()
	service := dialect.New(dialect.Config{Hub: &fakeHub{}, Queues: q})
	for _, c := range []struct {
		err  error
		code int
		name string
	}{
		{&store.Error{Code: store.NotFoundError, Message: "none", Remedy: "look"}, jsonrpc.CodeInvalidParams, "WORK_NOT_FOUND"},
		{store.ErrNotYet, dialect.CodeAgentUnavailable, "NETWORK_UNAVAILABLE"},
	} {
		q.err = c.err
		for _, name := range []string{dialect.MethodWorkList, dialect.MethodWorkRetry} {
			answer, _ := call(t, service, method(name, `{"taskId":"x"}`))
			if name == dialect.MethodWorkList {
				answer, _ = call(t, service, method(name, `{}`))
			}
			wantError(t, answer, c.code, c.name, "")
		}
	}
	q.err = errors.New("broken")
	if answer, _ := call(t, service, method(dialect.MethodWorkList, `{}`)); !strings.Contains(answer, "error") {
		t.Error(answer)
	}
}
