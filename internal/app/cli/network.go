package cli

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/app/busfinder"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/config"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
)

// tlsPatience is how long the start waits for the cluster's servers to show
// whether they have TLS.
const tlsPatience = 3 * time.Second

// joinNetwork lets a project's MCP server take part in the agents' network.
func (a *app) joinNetwork(ctx context.Context, cfg *mcpconfig.Config, opts *mcpserver.ProjectOptions) error {
	log := opts.Logger.With("component", "mesh")
	warnInsecure(cfg, log)
	finder := a.networkFinder(cfg, log)
	opts.DialNetwork, opts.StateDir = finder.Dial, mcpconfig.AgentsDir()
	if !cfg.CrossComputer.Enabled || cfg.CrossComputer.ThroughHub {
		opts.EnterNetwork = func(ctx context.Context, arrival agentnet.Arrival) (agentnet.Place, *bus.Bus, error) {
			return finder.DialAgent(ctx, daemon.NetworkSettings(cfg), arrival)
		}
		return nil
	}
	opts.DialOutbox = a.dialNear(cfg, log)
	if cfg.CrossComputer.TLSRequired {
		return refuseWithoutTLS(ctx, finder, log)
	}
	return nil
}

// dialNear finds the bus of the hub, if it runs, on which the computer's agents go
// on while the cluster cannot be reached; nil where the network is on that bus.
func (a *app) dialNear(cfg *mcpconfig.Config, log *slog.Logger) func(context.Context) (*bus.Bus, error) {
	if !cfg.CrossComputer.Enabled {
		return nil
	}
	return busfinder.New(busfinder.Config{Access: bus.AccessNetwork, Name: "agents-here " + cfg.Namespace, Logger: log,
		Hub: func() (*config.Loaded, error) { return a.load() }}).Dial
}

func (a *app) networkFinder(cfg *mcpconfig.Config, log *slog.Logger) *busfinder.Finder {
	finder := busfinder.ForNetwork(cfg)
	finder.Logger = log
	finder.Hub = func() (*config.Loaded, error) { return a.load() }
	return busfinder.New(finder)
}

// warnInsecure is REQ-SEC-CROSS-006 and REQ-SEC-CROSS-007.
func warnInsecure(cfg *mcpconfig.Config, log *slog.Logger) {
	if !cfg.CrossComputer.Enabled || cfg.CrossComputer.ThroughHub { // the hub warns of its link itself
		return
	}
	if !cfg.CrossComputer.TLSRequired {
		log.Warn("crossComputer.tlsRequired is false: anyone on the network can read and change what agents say to each other, and passwords")
	}
	if cfg.CrossComputer.InsecureSkipVerify {
		log.Warn("crossComputer.insecureSkipVerify is true: the servers' certificates are not verified")
	}
}

// refuseWithoutTLS does not let the server start where the cluster has no TLS
// (REQ-CONFIG-CROSS-004). A cluster that cannot be reached now is tried again
// later, and then not used without TLS either.
func refuseWithoutTLS(ctx context.Context, finder *busfinder.Finder, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, tlsPatience)
	defer cancel()
	result := make(chan error, 1)
	go func() {
		b, err := finder.Dial(ctx)
		if err == nil {
			err = b.Close(context.WithoutCancel(ctx))
		}
		result <- err
	}()
	select {
	case err := <-result:
		if lacksTLS(err) {
			log.Error("The server did not start: crossComputer.tlsRequired is true, and the NATS server has no TLS. "+
				"Enable TLS there, or set tlsRequired to false on a network that you trust.", "error", err)
			return &failure{Exit: exitUsage, Kind: "configuration", Message: "the NATS server of crossComputer.natsClusterUrls has no TLS", quiet: true}
		}
		return nil
	case <-ctx.Done():
		return nil
	}
}

func lacksTLS(err error) bool {
	e, ok := errors.AsType[*bus.Error](err)
	return ok && errors.Is(e, nats.ErrSecureConnWanted)
}
