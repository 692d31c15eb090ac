package daemon

import (
	"context"
	"strings"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/bus"
	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
	"github.com/parleyhub/parley/internal/queues"
)

// workOnQueues runs the configured workers until ctx ends. They use the agents' network that the user's configuration
// names.
func (d *daemon) workOnQueues(ctx context.Context) {
	if len(d.cfg.Workers) == 0 {
		return
	}
	cfg, err := mcpConfig("")
	if err != nil {
		d.log.Error("the workers of queues do not work: the user's configuration of the agents' network cannot be read", "error", err)
		return
	}
	host, err := uniqueName(d.cfg.DataDir)
	if err != nil {
		d.log.Error("the workers of queues do not work", "error", err)
		return
	}
	of := mcpserver.NetworkConfig(cfg, func(ctx context.Context) (*bus.Bus, error) { return d.networkBus(ctx, cfg) }, d.log)
	of.BusConfig = of.WithDefaults()
	if cfg.CrossComputer.Enabled && cfg.CrossComputer.ThroughHub {
		of.DialLocal = func(ctx context.Context) (*bus.Bus, error) { return d.ownNetwork(ctx, "parley-hub workers") }
	} else {
		of.ThroughHub = false
	}
	network := agentnet.Open(of)
	defer func() {
		if err := within(busTimeout, network.Close); err != nil {
			d.log.Warn("the workers of queues have not left the agents' network", "error", err)
		}
	}()
	workers := make([]queues.Worker, len(d.cfg.Workers))
	for i, w := range d.cfg.Workers {
		workers[i] = queues.Worker{Agent: w.Agent, Capability: w.Capability, Count: w.Count}
	}
	queues.Run(ctx, queues.Options{Hub: d.hub, Workers: workers, Lease: of.AckTimeout, Logger: d.log,
		Join: func(ctx context.Context, agent string) (queues.Member, error) {
			if err := network.Usable(ctx); err != nil {
				return nil, err
			}
			guid := uuid.NewSHA1(uuid.NameSpaceURL, []byte("parley:hub:"+host+":worker:"+agent)).String()
			return network.RegisterWorker(ctx, guid, strings.NewReplacer(".", "-", "_", "-").Replace(agent))
		}})
}
