package daemon

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
	"github.com/parleyhub/parley/internal/queues"
)

// openQueues makes the queues of the hub's last run agents of the hub. With an external bus there are none.
func (d *daemon) openQueues(context.Context) error {
	if d.bus.Info().Kind == bus.KindEmbedded {
		d.items = queues.OpenItems(d.hub, d.log)
	}
	return nil
}

// runQueues follows the items of the queues, and runs the configured workers, until ctx ends. Without workers it begins
// once an agent has joined the agents' network.
func (d *daemon) runQueues(ctx context.Context) {
	if d.items == nil {
		return
	}
	if len(d.cfg.Workers) == 0 && !d.awaitNetwork(ctx) {
		return
	}
	if err := d.runQueuesIn(ctx); err != nil {
		d.log.Error("the queues of the agents' network are not used", "error", err)
	}
}

// networkPoll is how often the hub looks whether an agent that has joined uses the agents' network.
const networkPoll = time.Second

// awaitNetwork waits until agents have used the agents' network on the hub's bus. Whoever only looks at it, as doctor
// does, has joined too, but stores nothing. It returns false if ctx ends first.
func (d *daemon) awaitNetwork(ctx context.Context) bool {
	if d.bus.HasNetwork() {
		return true
	}
	select {
	case <-d.observed.joined:
	case <-ctx.Done():
		return false
	}
	for !d.bus.HasNetwork() {
		if !wait.Pause(ctx, networkPoll) {
			return false
		}
	}
	return true
}

// runQueuesIn uses the agents' network that the user's configuration names.
func (d *daemon) runQueuesIn(ctx context.Context) error {
	cfg, err := mcpConfig("")
	if err != nil {
		return fmt.Errorf("the user's configuration of the agents' network cannot be read: %w", err)
	}
	host, err := uniqueName(d.cfg.DataDir, nil)
	if err != nil {
		return err
	}
	cross := cfg.CrossComputer
	of := mcpserver.NetworkConfig(cfg, func(ctx context.Context) (*bus.Bus, error) { return d.networkBus(ctx, cfg) }, d.log)
	of.BusConfig = of.WithDefaults()
	of.ThroughHub = cross.Enabled && cross.ThroughHub
	if of.ThroughHub {
		of.DialLocal = func(ctx context.Context) (*bus.Bus, error) { return d.ownNetwork(ctx, "parley-hub queues") }
	}
	network := agentnet.Open(of)
	d.queues.set(network)
	defer func() {
		d.queues.set(nil)
		if err := within(busTimeout, network.Close); err != nil {
			d.log.Warn("the hub has not left the queues of the agents' network", "error", err)
		}
	}()
	join := func(ctx context.Context, as, handle string) (*agentnet.Agent, error) {
		if err := network.Usable(ctx); err != nil {
			return nil, err
		}
		guid := uuid.NewSHA1(uuid.NameSpaceURL, []byte("parley:hub:"+host+":"+as)).String()
		return network.RegisterWorker(ctx, guid, strings.NewReplacer(".", "-", "_", "-").Replace(handle))
	}
	workers := queues.Options{Hub: d.hub, Lease: of.AckTimeout, Logger: d.log,
		Join: func(ctx context.Context, agent string) (queues.Member, error) {
			return join(ctx, "worker:"+agent, agent)
		}}
	for _, w := range d.cfg.Workers {
		workers.Workers = append(workers.Workers, queues.Worker{Agent: w.Agent, Capability: w.Capability, Count: w.Count})
	}
	var running sync.WaitGroup
	defer running.Wait()
	if !cross.Enabled || cross.ThroughHub { // otherwise the items are on another computer
		workers.Items = d.items
		running.Go(func() { d.followItems(ctx, network, join) })
	}
	queues.Run(ctx, workers)
	return nil
}

func (d *daemon) followItems(ctx context.Context, network *agentnet.Network, join func(ctx context.Context, as, handle string) (*agentnet.Agent, error)) {
	retry := wait.Backoff{Most: 10 * time.Second}
	for ctx.Err() == nil {
		hub, err := join(ctx, "queues", "hub")
		if err == nil {
			d.items.Run(ctx, network, hub)
			return
		}
		d.log.Debug("the items of the queues cannot be followed yet", "error", err)
		retry.Pause(ctx)
	}
}

// workQueues are the work queues of the agents' network, while the hub uses them.
type workQueues struct {
	mu      sync.Mutex
	network *agentnet.Network // nil while it is not used
}

func (w *workQueues) set(n *agentnet.Network) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.network = n
}

func (w *workQueues) get() *agentnet.Network {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.network
}

// Items implements [dialect.Queues]; without a network there are none.
func (w *workQueues) Items(ctx context.Context, state work.ItemState) ([]work.ItemStatus, error) {
	if n := w.get(); n != nil {
		return n.Items(ctx, state)
	}
	return nil, nil
}

// DeadLetters implements [dialect.Queues]; without a network there are none.
func (w *workQueues) DeadLetters(ctx context.Context, limit int, capability string) ([]work.DeadLetter, bool, error) {
	if n := w.get(); n != nil {
		return n.DeadLetters(ctx, limit, capability)
	}
	return nil, false, nil
}

// RetryDeadLetter implements [dialect.Queues].
func (w *workQueues) RetryDeadLetter(ctx context.Context, taskID string, resetAttempts bool) (work.DeadLetter, error) {
	if n := w.get(); n != nil {
		return n.RetryDeadLetter(ctx, taskID, resetAttempts)
	}
	return work.DeadLetter{}, store.ErrNotYet
}

// DiscardDeadLetter implements [dialect.Queues].
func (w *workQueues) DiscardDeadLetter(ctx context.Context, taskID string) (work.DeadLetter, error) {
	if n := w.get(); n != nil {
		return n.DiscardDeadLetter(ctx, taskID)
	}
	return work.DeadLetter{}, store.ErrNotYet
}
