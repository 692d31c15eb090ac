package daemon

import (
	"context"
	"log/slog"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/bus"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
)

// NetworkBus returns the NATS cluster that a project has configured for the agents' network.
func NetworkBus(cfg *mcpconfig.Config, log *slog.Logger) bus.Config {
	cross, login := cfg.CrossComputer, cfg.NetworkCredentials()
	return bus.Config{
		URL: bus.Secret(cross.ClusterURL()), Name: "agents-network " + cfg.Namespace, Logger: log,
		InboxPrefix: store.InboxPrefix(cross.AgentGUID),
		Credentials: bus.Credentials{
			User: login.Username, Password: login.Password, NKeyFile: login.NKeyFile, File: login.CredsFile, Token: login.Token,
			CertFile: cfg.TLS.Cert, KeyFile: cfg.TLS.Key, CAFile: cfg.TLS.CA,
			TLS: cross.TLSRequired, InsecureSkipVerify: cross.InsecureSkipVerify,
		},
	}
}

// networkBus opens the bus of a project's agents' network: the configured cluster, or this hub's own bus.
func (d *daemon) networkBus(ctx context.Context, cfg *mcpconfig.Config) (*bus.Bus, error) {
	if cfg.CrossComputer.Enabled && cfg.CrossComputer.ThroughHub {
		return d.linkedCluster(ctx, "parley-hub "+cfg.Namespace)
	}
	if cfg.CrossComputer.Enabled {
		return bus.Open(ctx, NetworkBus(cfg, d.log))
	}
	return d.ownNetwork(ctx, "parley-hub "+cfg.Namespace)
}

// ownNetwork joins the agents' network on this hub's bus.
func (d *daemon) ownNetwork(ctx context.Context, name string) (*bus.Bus, error) {
	return d.joinOwn(ctx, bus.Config{Name: name}, bus.GrantRequest{Access: bus.AccessNetwork})
}

// linkedCluster joins the cluster that this hub is linked to.
func (d *daemon) linkedCluster(ctx context.Context, name string) (*bus.Bus, error) {
	return d.joinOwn(ctx, bus.Config{Name: name}, bus.GrantRequest{Access: bus.AccessCluster})
}

// joinOwn joins this hub's bus with the access that it grants other processes.
func (d *daemon) joinOwn(ctx context.Context, cfg bus.Config, access bus.GrantRequest) (*bus.Bus, error) {
	cfg.Logger = d.log
	return bus.Join(ctx, cfg, func(ctx context.Context) (bus.Grant, error) { return d.bus.Grant(ctx, access) })
}

// NetworkSettings returns the settings of a project's network for the hub.
func NetworkSettings(cfg *mcpconfig.Config) dialect.NetworkJoinParams {
	cross, work := cfg.CrossComputer, cfg.WorkQueue
	p := dialect.NetworkJoinParams{Bucket: cross.RegistryBucket, Inboxes: cross.Inboxes, RegistryTTL: int(cross.RegistryTTL),
		AckTimeout: int(work.AckTimeout), MaxAttempts: int(work.MaxDeliveryAttempts), DeadLetterTTL: int(work.DeadLetterTTL)}
	if cross.Enabled && cross.ThroughHub {
		p.Via = dialect.ViaHub
	}
	return p
}
