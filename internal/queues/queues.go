// Package queues lets agents of the hub work on the queues of the agents' network: a worker claims an item, gives it to
// its agent as a task, and completes or rejects the item when the task has ended.
package queues

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/hub"
)

const (
	// claimTime is how long a worker waits for an item before it checks again whether its agent can work.
	claimTime = 30 * time.Second
	// maxPause bounds the pause of a worker whose agent fails or cannot work.
	maxPause = 30 * time.Second
)

// Worker is an agent that works on a queue.
type Worker struct {
	Agent      string // its id at the hub
	Capability string // the queue
	Count      int    // items that it works on at once
}

// Member is an agent's access to the queues: an *agentnet.Agent.
type Member interface {
	// Claim returns nil if there is no item when ctx ends.
	Claim(ctx context.Context, capabilities []string) (*work.Claim, error)
	Held(ctx context.Context) ([]*work.Claim, error)
	Extend(ctx context.Context, taskID string, token int) (until string, err error)
	Complete(ctx context.Context, taskID string, token int, o work.Outcome) error
	Reject(ctx context.Context, taskID string, token int, reason string, final bool) (dead bool, err error)
}

// Options are those of [Run]. All fields but Items and Logger are required.
type Options struct {
	Hub     *hub.Hub
	Workers []Worker
	// Join joins the agents' network for an agent, always under the same GUID. It is called again after an error.
	Join func(ctx context.Context, agent string) (Member, error)
	// Items are the tasks of the items, to which the workers' tasks belong; nil for none.
	Items *Items
	// Lease is how long a claim is valid without an extension.
	Lease  time.Duration
	Logger *slog.Logger
}

// Run works on the queues until ctx ends. It first continues with the items that the agents held when an earlier run
// ended. Items that it is working on when ctx ends stay claimed.
func Run(ctx context.Context, o Options) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	byAgent := map[string][]Worker{}
	for _, w := range o.Workers {
		byAgent[w.Agent] = append(byAgent[w.Agent], w)
		if o.Items != nil {
			o.Items.offer(w.Capability)
		}
	}
	var running sync.WaitGroup
	for agent, workers := range byAgent {
		c := &crew{hub: o.Hub, agent: agent, items: o.Items, lease: o.Lease, log: o.Logger.With("component", "queues", "agent", agent)}
		running.Go(func() { c.run(ctx, o.Join, workers) })
	}
	running.Wait()
}

// crew is the workers of one agent.
type crew struct {
	hub    *hub.Hub
	agent  string
	member Member
	items  *Items
	lease  time.Duration
	log    *slog.Logger
}

func (c *crew) run(ctx context.Context, join func(context.Context, string) (Member, error), workers []Worker) {
	var held []*work.Claim
	c.persist(ctx, "the agents' network cannot be joined yet", func() (err error) {
		if c.member, err = join(ctx, c.agent); err == nil {
			held, err = c.member.Held(ctx)
		}
		return err
	})
	var running sync.WaitGroup
	defer running.Wait()
	for _, w := range workers {
		mine := make(chan *work.Claim, len(held))
		held = slices.DeleteFunc(held, func(claim *work.Claim) bool {
			own := claim.Capability == queueOf(w)
			if own {
				mine <- claim
			}
			return own
		})
		close(mine)
		for range w.Count {
			running.Go(func() { c.work(ctx, queueOf(w), mine) })
		}
	}
	running.Go(func() { // of workers that are not configured any more
		for _, claim := range held {
			c.resume(ctx, claim)
		}
	})
}

func queueOf(w Worker) string {
	name, err := store.QueueName(w.Capability)
	if err != nil {
		return w.Capability // the claim says why
	}
	return name
}

// persist calls do until it succeeds or ctx ends. It logs the first error.
func (c *crew) persist(ctx context.Context, what string, do func() error) {
	retry := wait.Backoff{First: 200 * time.Millisecond, Most: maxPause}
	for level := slog.LevelWarn; ctx.Err() == nil; level = slog.LevelDebug {
		err := do()
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			c.log.Log(ctx, level, what, "error", err)
		}
		retry.Pause(ctx)
	}
}

// work works on the items that were held already, then on those of the queue, one at a time, until ctx ends. It pauses
// after a failure, so that an agent that fails does not use up the attempts of a whole queue.
func (c *crew) work(ctx context.Context, queue string, held <-chan *work.Claim) {
	for claim := range held {
		c.resume(ctx, claim)
	}
	retry := wait.Backoff{First: time.Second, Most: maxPause}
	for ctx.Err() == nil {
		if !c.able() {
			retry.Pause(ctx)
			continue
		}
		claim, err := c.claim(ctx, queue)
		switch {
		case err != nil:
			c.log.Debug("no item can be claimed now", "queue", queue, "error", err)
			retry.Pause(ctx)
		case claim == nil:
		case c.do(ctx, claim):
			retry.Reset()
		default:
			retry.Pause(ctx)
		}
	}
}

// able reports whether the agent can work.
func (c *crew) able() bool {
	info, err := c.hub.Agent(c.agent)
	return err == nil && info.Health.Status != hub.Unhealthy
}

func (c *crew) claim(ctx context.Context, queue string) (*work.Claim, error) {
	ctx, cancel := context.WithTimeout(ctx, claimTime)
	defer cancel()
	return c.member.Claim(ctx, []string{queue})
}

// resume continues with an item that an earlier run has claimed.
func (c *crew) resume(ctx context.Context, claim *work.Claim) {
	lost := false
	c.persist(ctx, "the lease of an item cannot be extended yet", func() error {
		_, err := c.member.Extend(ctx, claim.TaskID, claim.Token)
		if lost = isLost(err); lost {
			return nil
		}
		return err
	})
	if lost || ctx.Err() != nil {
		return
	}
	c.log.Info("work on an item goes on", "item", claim.TaskID, "queue", claim.Capability)
	c.do(ctx, claim)
}

// isLost reports whether an error says that the agent does not hold the item any more.
func isLost(err error) bool {
	code := store.CodeOf(err)
	return code == store.ConflictError || store.IsNotFound(err)
}

var errLost = errors.New("the item is not held any more")

// do works on an item. It reports whether the agent has done it.
func (c *crew) do(ctx context.Context, claim *work.Claim) bool {
	r := &run{crew: c, claim: claim, log: c.log.With("item", claim.TaskID, "queue", claim.Capability)}
	holding, drop := context.WithCancelCause(ctx)
	var extending sync.WaitGroup
	extending.Go(func() { r.extend(holding, drop) })
	end := r.end(holding)
	if end != nil {
		end.store(holding)
	}
	drop(nil)
	extending.Wait()
	if errors.Is(context.Cause(holding), errLost) {
		r.abandon(ctx, "another worker may have the item")
	}
	return end != nil && end.done
}
