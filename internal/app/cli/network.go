package cli

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/app/busfinder"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/config"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
)

// tlsCheckTimeout is how long the start waits to find out whether the cluster has TLS.
const tlsCheckTimeout = 3 * time.Second

// joinNetwork sets the options that connect a project's MCP server to the agents' network.
func (a *app) joinNetwork(ctx context.Context, cfg *mcpconfig.Config, opts *mcpserver.ProjectOptions) error {
	log := opts.Logger.With("component", "agentnet")
	warnInsecure(cfg, log)
	finder := a.finder(busfinder.ForNetwork(cfg), log)
	opts.DialNetwork, opts.StateDir = finder.Dial, mcpconfig.AgentsDir()
	if !cfg.CrossComputer.Enabled || cfg.CrossComputer.ThroughHub {
		opts.EnterNetwork = func(ctx context.Context, request registry.AdmissionRequest) (agentnet.Admission, *bus.Bus, error) {
			return finder.DialAgent(ctx, daemon.NetworkSettings(cfg), request)
		}
		opts.Hub = a.hubName
		return nil
	}
	opts.DialOutbox = a.dialNear(cfg, log)
	if cfg.CrossComputer.TLSRequired {
		return refuseWithoutTLS(ctx, finder, log)
	}
	return nil
}

// hubName tells the hub of this command line from the user's other ones, running or not.
func (a *app) hubName(ctx context.Context) (string, error) {
	if socket := a.configOptions().OnlySocket(); socket != "" {
		return socket, nil
	}
	cfg, err := a.load(ctx)
	if err != nil {
		return "", err
	}
	return cfg.DataDir, nil
}

// dialNear returns a function that joins the bus of the running hub, which this computer's
// agents use while the cluster cannot be reached; nil if the network is on that bus anyway.
func (a *app) dialNear(cfg *mcpconfig.Config, log *slog.Logger) func(context.Context) (*bus.Bus, error) {
	if !cfg.CrossComputer.Enabled {
		return nil
	}
	return a.finder(busfinder.Config{Config: bus.Config{Name: "agents-here " + cfg.Namespace}, Access: bus.AccessNetwork}, log).Dial
}

// finder finds a bus, with the hub's configuration as this command line selects it.
func (a *app) finder(cfg busfinder.Config, log *slog.Logger) *busfinder.Finder {
	cfg.Logger, cfg.RestAfter = log, a.idle
	cfg.Hub = func(ctx context.Context) (*config.Loaded, error) { return a.load(ctx) }
	return busfinder.New(cfg)
}

// warnInsecure warns of settings that leave the connection to the cluster unprotected.
func warnInsecure(cfg *mcpconfig.Config, log *slog.Logger) {
	if !cfg.CrossComputer.Enabled || cfg.CrossComputer.ThroughHub { // the hub warns about its own link
		return
	}
	if !cfg.CrossComputer.TLSRequired {
		log.Warn("crossComputer.tlsRequired is false: anyone on the network can read and change the agents' messages and passwords")
	}
	if cfg.CrossComputer.InsecureSkipVerify {
		log.Warn("crossComputer.insecureSkipVerify is true: the servers' certificates are not verified")
	}
}

// refuseWithoutTLS returns an error if the cluster has no TLS. It returns nil if the cluster
// does not answer in time: later connections require TLS too.
func refuseWithoutTLS(ctx context.Context, finder *busfinder.Finder, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, tlsCheckTimeout)
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
