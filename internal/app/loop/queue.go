package loop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/ralph"
)

// Worker is what a Queue needs of an agent of the network; a [agentnet.Agent] is one.
type Worker interface {
	Claim(ctx context.Context, capabilities []string) (*agentnet.Claim, error)
	Extend(ctx context.Context, taskID string, token int) (until string, err error)
	Complete(ctx context.Context, taskID string, token int, o agentnet.Outcome) error
	Reject(ctx context.Context, taskID string, token int, reason string, final bool) (dead bool, err error)
	Item(ctx context.Context, taskID string, wait bool) (agentnet.ItemStatus, error)
}

// QueueOptions set up a Queue. All but Follow and Logger are needed.
type QueueOptions struct {
	Worker Worker
	Name   string // the queue's: the capability that its items want
	// File keeps the claim, so that a loop that was killed goes on with its item while
	// the lease lasts. One queue at a time uses it.
	File string
	// Lease is how long the network leaves an item to somebody who does not extend it.
	Lease time.Duration
	// Follow waits for items where there are none.
	Follow bool
	Logger *slog.Logger // nil discards
}

// Queue is a work queue of the agents' network as a loop's list. It holds one item at a
// time, and extends its lease until it is completed, dropped, or the queue closed. Make
// one with [OpenQueue]; Close it.
type Queue struct {
	o      QueueOptions
	cancel context.CancelFunc
	keeper sync.WaitGroup

	mu    sync.Mutex
	claim *agentnet.Claim // nil while none is held
	lost  error           // why it is not held any more
}

var (
	_ ralph.List    = (*Queue)(nil)
	_ ralph.Dropper = (*Queue)(nil)
)

// look for work, where nobody waits for it.
const claimTime = 2 * time.Second

// OpenQueue returns the queue of a capability, with what was held when the last one
// ended.
func OpenQueue(o QueueOptions) (*Queue, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	q := &Queue{o: o}
	data, err := os.ReadFile(o.File)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, listError(err, "the claim of the last run cannot be read")
	default:
		q.claim = &agentnet.Claim{}
		if err := json.Unmarshal(data, q.claim); err != nil {
			return nil, listError(err, "the claim of the last run, %s, is damaged; take it away", o.File)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	q.cancel = cancel
	q.keeper.Go(func() { q.keep(ctx) })
	return q, nil
}

// Close ends extending the lease. The item stays claimed until that ends, for the next
// run to go on with.
func (q *Queue) Close() {
	q.cancel()
	q.keeper.Wait()
}

func listError(err error, format string, args ...any) error {
	return &ralph.Error{Code: ralph.CodeList, Message: fmt.Sprintf(format, args...), Err: err}
}

// Items implements [ralph.List]: the item that is held, or else the next, and that of
// the last run if it is done.
func (q *Queue) Items(ctx context.Context) ([]ralph.Item, error) {
	var items []ralph.Item
	if c := q.held(); c != nil {
		item := itemOf(c)
		held, err := q.confirm(ctx, c)
		if err != nil || held {
			return []ralph.Item{item}, err
		}
		done, err := q.isDone(ctx, c)
		if err != nil {
			return nil, err
		}
		if err := q.release(); err != nil {
			return nil, err
		}
		if done {
			item.Done = true
			items = append(items, item)
		}
	}
	c, err := q.next(ctx)
	if c == nil || err != nil {
		return items, err
	}
	return append(items, itemOf(c)), nil
}

func (q *Queue) held() *agentnet.Claim {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.claim
}

// confirm extends a lease. It reports whether there is one.
func (q *Queue) confirm(ctx context.Context, c *agentnet.Claim) (bool, error) {
	_, err := q.o.Worker.Extend(ctx, c.TaskID, c.Token)
	if err == nil {
		return true, nil
	}
	if lostClaim(err) {
		return false, nil
	}
	return false, listError(err, "the queue cannot be reached")
}

// lostClaim reports whether an error says that the item is not the holder's any more.
func lostClaim(err error) bool {
	e, ok := errors.AsType[*agentnet.Error](err)
	return ok && (e.Code == agentnet.ConflictError || e.Code == agentnet.NotFoundError || e.Code == agentnet.ValidationError)
}

// isDone reports whether an item that was held was completed.
func (q *Queue) isDone(ctx context.Context, c *agentnet.Claim) (bool, error) {
	status, err := q.o.Worker.Item(ctx, c.TaskID, false)
	if err != nil && !lostClaim(err) {
		return false, listError(err, "the queue cannot be reached")
	}
	return err == nil && status.State == agentnet.Completed, nil
}

// next claims an item, nil if there is none.
func (q *Queue) next(ctx context.Context) (*agentnet.Claim, error) {
	wait := ctx
	if !q.o.Follow {
		var cancel context.CancelFunc
		wait, cancel = context.WithTimeout(ctx, claimTime)
		defer cancel()
	}
	c, err := q.o.Worker.Claim(wait, []string{q.o.Name})
	if err == nil && c == nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, listError(err, "nothing can be claimed from the queue %s", q.o.Name)
	}
	data, err := json.Marshal(c)
	if err == nil {
		err = os.WriteFile(q.o.File+".new", data, 0o600)
	}
	if err == nil {
		err = os.Rename(q.o.File+".new", q.o.File)
	}
	if err != nil { // without it the item is held by a loop that knows nothing of it
		_, rejected := q.o.Worker.Reject(ctx, c.TaskID, c.Token, "the worker cannot keep the claim", false)
		return nil, listError(errors.Join(err, rejected), "the claim cannot be kept in %s", filepath.Dir(q.o.File))
	}
	q.mu.Lock()
	q.claim, q.lost = c, nil
	q.mu.Unlock()
	return c, nil
}

func itemOf(c *agentnet.Claim) ralph.Item {
	text := c.Description
	if len(c.ContextData) > 0 {
		text += "\n\nData that came with it:\n" + string(c.ContextData)
	}
	return ralph.Item{ID: c.TaskID, Text: text, Capabilities: c.RequiredCapabilities}
}

// keep extends the lease of what is held, three times in its time.
func (q *Queue) keep(ctx context.Context) {
	tick := time.NewTicker(max(q.o.Lease/3, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		c := q.held()
		if c == nil {
			continue
		}
		_, err := q.o.Worker.Extend(ctx, c.TaskID, c.Token)
		if err == nil || ctx.Err() != nil {
			continue
		}
		q.o.Logger.Warn("the lease of an item of work cannot be extended", "item", c.TaskID, "error", err)
		if !lostClaim(err) {
			continue
		}
		q.mu.Lock()
		if q.claim == c {
			q.lost = err
		}
		q.mu.Unlock()
	}
}

// mine returns the claim of an item, an error if somebody else has it now.
func (q *Queue) mine(id string) (*agentnet.Claim, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.claim == nil || q.claim.TaskID != id:
		return nil, lost(nil, id)
	case q.lost != nil:
		return nil, lost(q.lost, id)
	}
	return q.claim, nil
}

func lost(err error, id string) error {
	return &ralph.Error{Code: ralph.CodeLost, Message: "the item " + id + " is not ours any more", Err: err}
}

// The bounds of what the network keeps of an outcome, in bytes.
const (
	maxSummary = 1000
	maxAnswer  = 200 << 10
)

// Complete implements [ralph.List]: the submitter gets the answer.
func (q *Queue) Complete(ctx context.Context, id string, o ralph.Outcome) error {
	c, err := q.mine(id)
	if err != nil {
		return err
	}
	answer := clip(o.Text, maxAnswer)
	summary := clip(strings.TrimSpace(answer), maxSummary)
	if summary == "" {
		summary = "done"
	}
	err = q.o.Worker.Complete(ctx, c.TaskID, c.Token, agentnet.Outcome{Success: true, Summary: summary, Result: map[string]any{"text": answer}})
	switch {
	case err == nil:
		return q.release()
	case lostClaim(err):
		return errors.Join(lost(err, id), q.release())
	}
	return listError(err, "the item %s cannot be completed", id)
}

// Drop implements [ralph.Dropper]: the item goes to the dead letters.
func (q *Queue) Drop(ctx context.Context, id, reason string) error {
	c, err := q.mine(id)
	if err != nil {
		return nil //nolint:nilerr // it is not in our hands any more, which is what is wanted
	}
	reason = clip(strings.TrimSpace(reason), maxSummary)
	if reason == "" {
		reason = "the loop gave it up"
	}
	if _, err := q.o.Worker.Reject(ctx, c.TaskID, c.Token, reason, true); err != nil && !lostClaim(err) {
		return listError(err, "the item %s cannot be given back", id)
	}
	return q.release()
}

// release lets go of what is held.
func (q *Queue) release() error {
	q.mu.Lock()
	q.claim, q.lost = nil, nil
	q.mu.Unlock()
	if err := os.Remove(q.o.File); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return listError(err, "the claim cannot be forgotten")
	}
	return nil
}

// clip returns at most n bytes of valid text.
func clip(s string, n int) string { return strings.ToValidUTF8(s[:min(len(s), n)], "") }
