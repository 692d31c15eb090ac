package loop_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/app/loop"
	"github.com/parleyhub/parley/ralph"
)

// board is a work queue of the network, with leases of one minute.
type board struct {
	mu      sync.Mutex
	items   []*task
	claimed int
}

type task struct {
	id, result string
	state      work.ItemState
	token      int
	until      time.Time
}

const lease = time.Minute

func newWork(ids ...string) *board {
	w := &board{}
	for _, id := range ids {
		w.items = append(w.items, &task{id: id, state: work.Queued})
	}
	return w
}

func (w *board) Claim(ctx context.Context, _ []string) (*work.Claim, error) {
	for {
		w.mu.Lock()
		for _, t := range w.items {
			if t.state == work.Queued || t.state == work.Claimed && time.Now().After(t.until) {
				w.claimed++
				t.state, t.token, t.until = work.Claimed, t.token+1, time.Now().Add(lease)
				c := &work.Claim{TaskID: t.id, Token: t.token, Description: "do " + t.id, ContextData: []byte(`{"n":1}`)}
				w.mu.Unlock()
				return c, nil
			}
		}
		w.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil, nil
		case <-time.After(time.Second):
		}
	}
}

// change sets the state of an item that the caller has claimed.
func (w *board) change(id string, token int, state work.ItemState, result string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.items {
		switch {
		case t.id != id:
		case t.token == token && t.state == work.Completed && state == work.Completed:
			return nil
		case t.token != token || t.state != work.Claimed:
			return &store.Error{Code: store.ConflictError, Message: "somebody else has it"}
		default:
			t.state, t.result, t.until = state, result, time.Now().Add(lease)
			return nil
		}
	}
	return &store.Error{Code: store.NotFoundError, Message: "there is no such item"}
}

func (w *board) Extend(_ context.Context, id string, token int) (string, error) {
	return "", w.change(id, token, work.Claimed, "")
}

func (w *board) Complete(_ context.Context, id string, token int, o work.Outcome) error {
	return w.change(id, token, work.Completed, o.Summary)
}

func (w *board) Reject(_ context.Context, id string, token int, reason string, _ bool) (bool, error) {
	return true, w.change(id, token, work.Dead, reason)
}

func (w *board) Item(_ context.Context, id string, _ bool) (work.ItemStatus, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.items {
		if t.id == id {
			return work.ItemStatus{TaskID: id, State: t.state}, nil
		}
	}
	return work.ItemStatus{}, &store.Error{Code: store.NotFoundError, Message: "there is no such item"}
}

func (w *board) states() string {
	var all []string
	for _, t := range w.items {
		all = append(all, t.id+" "+string(t.state)+" "+t.result)
	}
	return strings.Join(all, ", ")
}

// hands executes jobs and counts how often each was started.
type hands struct {
	began map[string]int
	do    func(ctx context.Context, j ralph.Job) error
	step  func() error
}

func (h *hands) Dispatch(ctx context.Context, j ralph.Job, began func(string) error) (ralph.Outcome, error) {
	h.began[j.Item.ID]++
	if err := began(j.Item.ID); err != nil {
		return ralph.Outcome{}, err
	}
	return h.Resume(ctx, j, j.Item.ID)
}

func (h *hands) Resume(ctx context.Context, j ralph.Job, _ string) (ralph.Outcome, error) {
	if h.step != nil {
		if err := h.step(); err != nil {
			return ralph.Outcome{}, err
		}
	}
	if h.do != nil {
		if err := h.do(ctx, j); err != nil {
			return ralph.Outcome{}, err
		}
	}
	return ralph.Outcome{Text: "did " + j.Item.ID}, nil
}

// process runs a loop on a queue as a new process would.
func process(t *testing.T, w loop.Worker, dir string, h *hands, record func(ralph.Step) error) (ralph.Summary, error) {
	t.Helper()
	q, err := loop.OpenQueue(loop.QueueOptions{Worker: w, Name: "go", File: filepath.Join(dir, "claim.json"), Lease: lease})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	l, err := ralph.New(ralph.Options{List: q, Dispatcher: h, StateFile: filepath.Join(dir, "state.json"), MaxAttempts: 2, Record: record})
	if err != nil {
		t.Fatal(err)
	}
	return l.Run(t.Context())
}

func TestALoopWorksThroughAQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWork("a", "bad", "b")
		h := &hands{began: map[string]int{}, do: func(_ context.Context, j ralph.Job) error {
			if j.Item.ID == "bad" {
				return errors.New("no way")
			}
			if !strings.Contains(j.Item.Text, "do "+j.Item.ID) || !strings.Contains(j.Item.Text, `{"n":1}`) {
				t.Errorf("%q", j.Item.Text)
			}
			time.Sleep(5 * lease) // longer than the lease, which is extended
			return nil
		}}
		sum, err := process(t, w, t.TempDir(), h, nil)
		if err != nil || sum.Completed != 2 || fmt.Sprint(sum.GivenUp) != "[bad]" {
			t.Errorf("%+v %v", sum, err)
		}
		if got := w.states(); got != "a completed did a, bad dead no way, b completed did b" || w.claimed != 3 {
			t.Errorf("%s, %d claims", got, w.claimed)
		}
	})
}

// After a loop was killed at any of its steps, the next one resumes the claimed item, and no item is done twice.
func TestALoopOnAQueueIsResumedAfterAKill(t *testing.T) {
	synctest.Test(t, killedGoesOn) // waits take no real time
}

func killedGoesOn(t *testing.T) {
	for at := 1; ; at++ {
		w, dir, n := newWork("a", "b"), t.TempDir(), 0
		kill := func() error {
			if n++; n == at {
				return &ralph.Error{Code: ralph.CodeUnavailable, Message: "killed"}
			}
			return nil
		}
		h := &hands{began: map[string]int{}, step: kill}
		record := func(ralph.Step) error { return kill() }
		_, err := process(t, w, dir, h, record)
		killed := n >= at
		if killed != (err != nil) {
			t.Fatalf("killed at %d: %v", at, err)
		}
		n = at // the loop ended before the kill
		if _, err := process(t, w, dir, h, record); err != nil {
			t.Fatalf("killed at %d: %v", at, err)
		}
		if got := w.states(); got != "a completed did a, b completed did b" || w.claimed != 2 || !maps.Equal(h.began, map[string]int{"a": 1, "b": 1}) {
			t.Fatalf("killed at %d: %s, %d claims, begun %v", at, got, w.claimed, h.began)
		}
		if !killed {
			return
		}
	}
}

// completing is a worker that is killed after the network has stored that an item is done, before the loop has.
type completing struct{ *board }

func (w completing) Complete(ctx context.Context, id string, token int, o work.Outcome) error {
	return errors.Join(w.board.Complete(ctx, id, token, o), errors.New("killed"))
}

func TestAnItemThatWasCompletedIsNotDoneAgain(t *testing.T) {
	synctest.Test(t, completedNotAgain)
}

func completedNotAgain(t *testing.T) {
	w, dir := newWork("a"), t.TempDir()
	h := &hands{began: map[string]int{}}
	if _, err := process(t, completing{w}, dir, h, nil); err == nil {
		t.Fatal("the loop was not killed")
	}
	var kinds []ralph.Kind
	_, err := process(t, w, dir, h, func(s ralph.Step) error { kinds = append(kinds, s.Kind); return nil })
	if err != nil || h.began["a"] != 1 || fmt.Sprint(kinds) != "[began completed finished]" {
		t.Errorf("%v %v %v", err, h.began, kinds)
	}
}

// A loop that was stopped for longer than the lease leaves the item to the worker that has claimed it since.
func TestAnItemThatAnotherWorkerHasClaimedIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, dir := newWork("a", "b"), t.TempDir()
		h := &hands{began: map[string]int{}, do: func(context.Context, ralph.Job) error { return &ralph.Error{Code: ralph.CodeUnavailable} }}
		if _, err := process(t, w, dir, h, nil); ralph.CodeOf(err) != ralph.CodeUnavailable {
			t.Fatal(err)
		}
		time.Sleep(2 * lease)
		if c, err := w.Claim(t.Context(), nil); err != nil || c.TaskID != "a" {
			t.Fatal(c, err)
		}
		h.do = nil
		var left bool
		sum, err := process(t, w, dir, h, func(s ralph.Step) error { left = left || s.Kind == ralph.Left && s.Item == "a"; return nil })
		if err != nil || sum.Completed != 1 || !left || h.began["a"] != 1 {
			t.Errorf("%+v %v, left %v, begun %v", sum, err, left, h.began)
		}
	})
}
