package loop

import (
	"cmp"
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

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/ralph"
)

// Worker is the part of an agent of the network that a Queue needs; [agentnet.Agent] implements it.
type Worker interface {
	Claim(ctx context.Context, capabilities []string) (*work.Claim, error)
	Extend(ctx context.Context, taskID string, token int) (until string, err error)
	Complete(ctx context.Context, taskID string, token int, o work.Outcome) error
	Reject(ctx context.Context, taskID string, token int, reason string, final bool) (dead bool, err error)
	Item(ctx context.Context, taskID string, wait bool) (work.ItemStatus, error)
}

// QueueOptions are the options of [OpenQueue]. All but Follow and Logger are required.
type QueueOptions struct {
	Worker Worker
	Name   string // of the queue: the capability that its items require
	// File stores the claim, so that a loop that was killed continues with its item within
	// the lease. Only one Queue at a time may use it.
	File string
	// Lease is how long a claim lasts unless it is extended.
	Lease time.Duration
	// Follow waits for new items when the queue is empty.
	Follow bool
	Logger *slog.Logger // nil discards
}

// Queue is a loop's list on a work queue of the agents' network. It holds one item at a time,
// and extends its lease until the item is completed or dropped, or the Queue is closed.
type Queue struct {
	o      QueueOptions
	cancel context.CancelFunc
	keeper sync.WaitGroup

	mu    sync.Mutex
	claim *work.Claim // nil while none is held
	lost  error       // why the claim is no longer held
}

var (
	_ ralph.List    = (*Queue)(nil)
	_ ralph.Dropper = (*Queue)(nil)
)

// claimTimeout is how long a Queue that does not follow waits for an item.
const claimTimeout = 2 * time.Second

// OpenQueue returns the queue of a capability. It restores the claim that the last Queue with
// the same file held. The caller must Close the Queue.
func OpenQueue(o QueueOptions) (*Queue, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	q := &Queue{o: o}
	data, err := q.file().Read()
	switch {
	case err != nil:
		return nil, listError(err, "the claim of the last run cannot be read")
	case data != nil:
		q.claim = &work.Claim{}
		if err := json.Unmarshal(data, q.claim); err != nil {
			return nil, listError(err, "the claim of the last run is damaged; remove %s", o.File)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	q.cancel = cancel
	q.keeper.Go(func() { q.keep(ctx) })
	return q, nil
}

func (q *Queue) file() statefile.Raw { return statefile.Edited(q.o.File) }

// Close stops extending the lease. The item stays claimed until the lease ends, so that the next
// run can continue with it.
func (q *Queue) Close() {
	q.cancel()
	q.keeper.Wait()
}

func listError(err error, format string, args ...any) error {
	return &ralph.Error{Code: ralph.CodeList, Message: fmt.Sprintf(format, args...), Err: err}
}

// Items implements [ralph.List]. It returns the item that is held; or else the next one, and the
// one of the last run if that was completed.
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

func (q *Queue) held() *work.Claim {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.claim
}

// confirm extends the lease of a claim. It reports whether the claim is still held.
func (q *Queue) confirm(ctx context.Context, c *work.Claim) (bool, error) {
	_, err := q.o.Worker.Extend(ctx, c.TaskID, c.Token)
	if err == nil {
		return true, nil
	}
	if lostClaim(err) {
		return false, nil
	}
	return false, listError(err, "the queue cannot be reached")
}

// lostClaim reports whether an error means that the claim is no longer held.
func lostClaim(err error) bool {
	e, ok := errors.AsType[*store.Error](err)
	return ok && (e.Code == store.ConflictError || e.Code == store.NotFoundError || e.Code == store.ValidationError)
}

// isDone reports whether an item that was held was completed.
func (q *Queue) isDone(ctx context.Context, c *work.Claim) (bool, error) {
	status, err := q.o.Worker.Item(ctx, c.TaskID, false)
	if err != nil && !lostClaim(err) {
		return false, listError(err, "the queue cannot be reached")
	}
	return err == nil && status.State == work.Completed, nil
}

// next claims an item, nil if there is none.
func (q *Queue) next(ctx context.Context) (*work.Claim, error) {
	wait := ctx
	if !q.o.Follow {
		var cancel context.CancelFunc
		wait, cancel = context.WithTimeout(ctx, claimTimeout)
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
		err = q.file().Write(data)
	}
	if err != nil { // return the item: after a crash the claim would be unknown
		_, rejected := q.o.Worker.Reject(ctx, c.TaskID, c.Token, "the worker cannot store the claim", false)
		return nil, listError(errors.Join(err, rejected), "the claim cannot be stored in %s", filepath.Dir(q.o.File))
	}
	q.mu.Lock()
	q.claim, q.lost = c, nil
	q.mu.Unlock()
	return c, nil
}

func itemOf(c *work.Claim) ralph.Item {
	text := c.Description
	if len(c.ContextData) > 0 {
		text += "\n\nData that came with it:\n" + string(c.ContextData)
	}
	return ralph.Item{ID: c.TaskID, Text: text, Capabilities: c.RequiredCapabilities}
}

// keep extends the lease of the claim three times per lease.
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
		q.o.Logger.Warn("cannot extend the lease of a work item", "item", c.TaskID, "error", err)
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

// mine returns the claim of an item, or an error if it is no longer held.
func (q *Queue) mine(id string) (*work.Claim, error) {
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
	return &ralph.Error{Code: ralph.CodeLost, Message: "the item " + id + " is no longer claimed by this loop", Err: err}
}

// The limits of the network for an outcome, in bytes.
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
	answer := text.Valid(o.Text, maxAnswer)
	summary := cmp.Or(text.Valid(strings.TrimSpace(answer), maxSummary), "done")
	err = q.o.Worker.Complete(ctx, c.TaskID, c.Token, work.Outcome{Success: true, Summary: summary, Result: map[string]any{"text": answer}})
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
		return nil //nolint:nilerr // a claim that is no longer held is what Drop is for
	}
	reason = cmp.Or(text.Valid(strings.TrimSpace(reason), maxSummary), "the loop gave it up")
	if _, err := q.o.Worker.Reject(ctx, c.TaskID, c.Token, reason, true); err != nil && !lostClaim(err) {
		return listError(err, "the item %s cannot be given back", id)
	}
	return q.release()
}

// release forgets the claim.
func (q *Queue) release() error {
	q.mu.Lock()
	q.claim, q.lost = nil, nil
	q.mu.Unlock()
	if err := os.Remove(q.o.File); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return listError(err, "the claim's file cannot be removed")
	}
	return nil
}
