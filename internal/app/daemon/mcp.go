package daemon

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/api/server"
	"github.com/parleyhub/parley/internal/bus"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
)

// idleAgents is how long an agent at /mcp may be silent before it is shown as offline: the hub
// does not learn when the agent's program ends, unless that has a stream of events.
const idleAgents = 30 * time.Minute

// hubNamespace is the namespace of clients that call /mcp without a project.
const hubNamespace = "hub"

// mcpHandler returns the handler that serves MCP over HTTP, without an MCP process per agent.
func (d *daemon) mcpHandler() *mcpserver.Handler {
	return mcpserver.NewHandler(mcpserver.HandlerOptions{
		Open: d.openProject, Identify: d.work.Identify, SuspendAfter: d.opts.SuspendAfter, Logger: d.log.With("component", "mcp-server"),
	})
}

// sharedGroups returns the tools that agents share on the hub besides their project's channels.
func (d *daemon) sharedGroups() []mcpserver.Group {
	return []mcpserver.Group{d.work, mcpserver.NewToolbox(d.tools.Box(), nil)}
}

// socketMCP serves the shared tools over a connection of the socket, to the MCP process of an agent.
func (d *daemon) socketMCP(raw json.RawMessage) (server.Attached, *jsonrpc.Error) {
	var params dialect.MCPParams
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &params); err != nil {
			return nil, jsonrpc.InvalidParams("params", err.Error())
		}
	}
	caller := mcpserver.Caller{}
	if params.Token != "" {
		var err error
		if caller, err = d.work.Identify(params.Token); err != nil {
			return nil, jsonrpc.InvalidParams("token", err.Error())
		}
	}
	return func(ctx context.Context, in io.ReadCloser, out io.Writer) {
		service := mcpserver.NewService(mcpserver.Options{Name: mcpserver.HubName, Version: d.opts.Version, Groups: d.sharedGroups(),
			OneOfMany: true, Logger: d.log.With("component", "mcp-server")})
		defer service.Stop()
		if err := service.ServeLines(ctx, caller, in, out); err != nil {
			d.log.Debug("an MCP connection over the socket failed", "error", err)
		}
	}, nil
}

// mcpStatus returns the status of the MCP servers.
func (d *daemon) mcpStatus() []dialect.MCPServerStatus {
	var list []dialect.MCPServerStatus
	for _, s := range d.tools.Status() {
		list = append(list, dialect.MCPServerStatus{
			Name: s.Name, Kind: s.Kind, Connected: s.Connected, Since: dialect.Time{Time: s.Since}, Problem: s.Why,
			Tools: s.Tools, Resources: s.Resources + s.Templates, Prompts: s.Prompts, Skipped: s.Skipped,
		})
	}
	return list
}

// openProject opens the channels of the project in a directory, as the MCP process of an agent
// in that directory does.
func (d *daemon) openProject(dir string) (*mcpserver.Project, error) {
	cfg, err := mcpConfig(dir)
	if err != nil {
		return nil, err
	}
	if d.bus.Info().Kind == bus.KindEmbedded {
		cfg.JoinLocalNetwork()
	}
	opts := mcpserver.ProjectOptions{
		Name: mcpserver.HubName, Version: d.opts.Version, Logger: d.log, Documents: d.documents, Groups: d.sharedGroups(),
		Dial:        func(ctx context.Context) (*bus.Bus, error) { return d.projectBus(ctx, cfg) },
		DialNetwork: func(ctx context.Context) (*bus.Bus, error) { return d.networkBus(ctx, cfg) },
		IdleAgents:  idleAgents,
	}
	if d.bus.Info().Kind == bus.KindEmbedded && !cfg.CrossComputer.Enabled {
		opts.LateInboxes = true
		opts.DialNetwork = func(ctx context.Context) (*bus.Bus, error) {
			if err := d.admission.awaitFirstMail(ctx, NetworkSettings(cfg)); err != nil {
				return nil, err
			}
			return d.networkBus(ctx, cfg)
		}
	}
	opts.StateDir, opts.KeepDir = mcpconfig.AgentsDir(), mcpconfig.UnsentDir()
	if cfg.CrossComputer.Enabled && cfg.CrossComputer.ThroughHub {
		opts.DialOutbox = func(ctx context.Context) (*bus.Bus, error) { return d.ownNetwork(ctx, "agents-here "+cfg.Namespace) }
	}
	return mcpserver.OpenProject(cfg, opts)
}

// mcpConfig loads a project's configuration, without the variables of the hub's environment.
func mcpConfig(dir string) (*mcpconfig.Config, error) {
	noEnvironment := func(string) (string, bool) { return "", false }
	if dir != "" {
		return mcpconfig.Load(mcpconfig.Sources{WorkDir: dir, LookupEnv: noEnvironment, ForOthers: true})
	}
	users, err := mcpconfig.Load(mcpconfig.Sources{WorkDir: string(filepath.Separator), LookupEnv: noEnvironment})
	if err != nil {
		return nil, err
	}
	return &mcpconfig.Config{Origins: users.Origins, Document: mcpconfig.Document{Namespace: hubNamespace, Channels: mcpconfig.DefaultChannels(),
		CrossComputer: users.CrossComputer, WorkQueue: users.WorkQueue, Credentials: users.Credentials, TLS: users.TLS}}, nil
}

// projectBus opens the bus of a project: the configured server, or else this hub's own, where
// it has access to the project's account only.
func (d *daemon) projectBus(ctx context.Context, cfg *mcpconfig.Config) (*bus.Bus, error) {
	if cfg.NATSURL != "" {
		return bus.Open(ctx, ProjectBus(cfg, d.log))
	}
	return d.joinOwn(ctx, bus.Config{Name: "parley-hub " + cfg.Namespace, NoEcho: true}, bus.GrantRequest{Access: bus.AccessProject, Namespace: cfg.Namespace})
}

// ProjectBus returns the NATS server that a project has configured.
func ProjectBus(cfg *mcpconfig.Config, log *slog.Logger) bus.Config {
	login, files := cfg.ChannelCredentials(), cfg.TLS
	if cfg.CrossComputer.Enabled && cfg.NATSURL.OnThisComputer() && !cfg.NATSURL.TLS() {
		files = mcpconfig.TLS{} // the files are for the cluster that the computers share
	}
	return bus.Config{
		URL: bus.Secret(cfg.NATSURL), Name: "nats-mcp-server " + cfg.Namespace, Logger: log,
		NoEcho: true, // chat handles its own messages
		Credentials: bus.Credentials{
			User: login.Username, Password: login.Password, NKeyFile: login.NKeyFile, File: login.CredsFile, Token: login.Token,
			CertFile: files.Cert, KeyFile: files.Key, CAFile: files.CA,
		},
	}
}
