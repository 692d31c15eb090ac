// Package busfinder finds the bus that a process of the user works on: the
// configured NATS server, else the bus of the running hub, else that of a hub
// which it starts in the background.
//
// A configured server that cannot be used is an error, never a reason to look
// elsewhere: messages would go where nobody reads them.
package busfinder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/config"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
)

// Config says which bus is wanted.
type Config struct {
	// URL of a NATS server, with Credentials. Where it is set nothing else counts.
	URL         bus.Secret
	Credentials bus.Credentials

	// Access is what is asked of the hub, in Namespace.
	Access    bus.Access
	Namespace string
	// Hub reads the hub's configuration, which says where it is. Nil is
	// config.Load without options.
	Hub func() (*config.Loaded, error)
	// Autostart allows to start a hub in the background where none runs.
	Autostart bool
	// Command starts it: a program and arguments, to which --socket, --data-dir,
	// --config and --http-port are added. Nil is this program's own `start
	// --background`.
	Command []string

	// InboxPrefix is that of bus.Config, for the URL.
	InboxPrefix string

	// Name of the connection, for the server's logs.
	Name string
	// NoEcho is bus.Config's.
	NoEcho bool
	// Logger is slog.Default() where it is nil.
	Logger *slog.Logger
}

// ForProject is the Config of a project's MCP server.
func ForProject(project *mcpconfig.Config) Config {
	server := daemon.ProjectBus(project, nil)
	return Config{
		URL: server.URL, Credentials: server.Credentials, Name: server.Name, NoEcho: server.NoEcho,
		Access:    bus.AccessProject,
		Namespace: project.Namespace,
		Autostart: project.Autostart,
	}
}

// ForNetwork is the Config of the agents' network that a project's MCP server
// takes part in: the cluster that the computers share, or this computer's hub.
func ForNetwork(project *mcpconfig.Config) Config {
	if !project.CrossComputer.Enabled {
		return Config{Access: bus.AccessNetwork, Autostart: project.Autostart, Name: "agents-network " + project.Namespace}
	}
	if project.CrossComputer.ThroughHub {
		return Config{Access: bus.AccessCluster, Autostart: project.Autostart, Name: "agents-network " + project.Namespace}
	}
	server := daemon.NetworkBus(project, nil)
	return Config{URL: server.URL, Credentials: server.Credentials, InboxPrefix: server.InboxPrefix, Name: server.Name}
}

// Finder finds the bus, and the hub's again when it has restarted. It is safe
// for concurrent use.
type Finder struct {
	cfg Config

	mu     sync.Mutex
	failed time.Time // when a hub could not be started
	reason error     // why
}

// New returns a Finder. It looks for nothing yet.
func New(cfg Config) *Finder {
	if cfg.Hub == nil {
		cfg.Hub = func() (*config.Loaded, error) { return config.Load(config.Options{}) }
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Finder{cfg: cfg}
}

// Dial tries once: it connects to the configured server, or joins the hub's bus,
// where that may start the hub and take a minute in the worst case. The errors
// are *bus.Error, each with a remedy. A Bus that it returns reconnects by itself
// for ever; a hub that was killed is started again then, one that was stopped is
// not.
func (f *Finder) Dial(ctx context.Context) (*bus.Bus, error) {
	cfg := bus.Config{Name: f.cfg.Name, NoEcho: f.cfg.NoEcho, Logger: f.cfg.Logger}
	if f.cfg.URL != "" {
		cfg.URL, cfg.Credentials, cfg.InboxPrefix = f.cfg.URL, f.cfg.Credentials, f.cfg.InboxPrefix
		return bus.Open(ctx, cfg)
	}
	first := true
	return bus.Join(ctx, cfg, func(ctx context.Context) (bus.Grant, error) {
		may := startAnyhow
		if !first {
			may = startKilled
		}
		first = false
		var grant bus.Grant
		err := f.ask(ctx, may, func(ctx context.Context, c *client.Client) error {
			g, err := c.JoinBus(ctx, dialect.BusJoinParams{Access: string(f.cfg.Access), Namespace: f.cfg.Namespace})
			if err == nil {
				grant, err = grantOf(*g)
			}
			return err
		})
		return grant, err
	})
}

// DialAgent is Dial for one agent of this computer's network: the hub says who the
// agent is, and the Bus can do nothing but what that agent is there for. settings are
// the network's; of an agent they say nothing. With their Via the network is that of the
// cluster which the hub is linked to: the Bus is this computer's part of it, and the
// Place's DialCluster is confined to the agent.
func (f *Finder) DialAgent(ctx context.Context, settings dialect.NetworkJoinParams, a agentnet.Arrival) (agentnet.Place, *bus.Bus, error) {
	var place agentnet.Place
	enter := func(ctx context.Context, may mayStart, a agentnet.Arrival, via string) (grant bus.Grant, err error) {
		p := settings
		p.Via = via
		p.AgentType, p.ProjectPath, p.GUID, p.Secret = a.AgentType, a.ProjectPath, a.GUID, a.Secret
		err = f.ask(ctx, may, func(ctx context.Context, c *client.Client) error {
			g, err := c.JoinNetwork(ctx, p)
			if err != nil {
				return err
			}
			if p.Via != dialect.ViaCluster && place.GUID == "" { // the first answer; those after a restart say the same
				place = agentnet.Place{GUID: g.GUID, Slot: g.Slot, Secret: g.Secret, Again: g.Again, Desk: g.Desk, Mark: g.Mark}
			}
			grant, err = grantOf(g.BusGrant)
			return err
		})
		return grant, err
	}
	first, err := enter(ctx, startAnyhow, a, settings.Via)
	if err != nil {
		return agentnet.Place{}, nil, err
	}
	a.GUID, a.Secret = place.GUID, place.Secret
	cfg := bus.Config{Name: f.cfg.Name, NoEcho: f.cfg.NoEcho, InboxPrefix: agentnet.InboxPrefix(place.GUID), Logger: f.cfg.Logger}
	used := false
	b, err := bus.Join(ctx, cfg, func(ctx context.Context) (bus.Grant, error) {
		if !used {
			used = true
			return first, nil
		}
		return enter(ctx, startKilled, a, settings.Via)
	})
	if settings.Via == dialect.ViaHub {
		cfg.InboxPrefix = agentnet.ClusterInboxPrefix(place.GUID)
		place.DialCluster = func(ctx context.Context) (*bus.Bus, error) {
			return bus.Join(ctx, cfg, func(ctx context.Context) (bus.Grant, error) { return enter(ctx, startKilled, a, dialect.ViaCluster) })
		}
	}
	return place, b, err
}

// mayStart says when a hub is started that does not run.
type mayStart int

const (
	startAnyhow mayStart = iota
	startKilled          // if it was killed: somebody who stops it wants it stopped
)

// askTimeout bounds the hub's answer. Opening a namespace with many channels
// that were not used since the hub's start takes the longest.
const askTimeout = 15 * time.Second

// ask asks the running hub for a Grant, or one that it starts.
func (f *Finder) ask(ctx context.Context, may mayStart, question func(context.Context, *client.Client) error) error {
	hub, err := f.cfg.Hub()
	if err != nil {
		return &bus.Error{Code: bus.CodeConfig, Message: "the hub's configuration cannot be used: " + err.Error(),
			Remedy: "correct it, see: parley config validate", Err: err}
	}
	info, running, err := daemon.Running(hub.DataDir)
	if err != nil {
		return &bus.Error{Code: bus.CodeStorage, Message: "cannot look whether a hub runs on " + hub.DataDir,
			Remedy: "check that the data directory is yours", Err: err}
	}
	socket := hub.Socket.Path
	if running && info.PID != 0 {
		if info.Socket == "" {
			return &bus.Error{Code: bus.CodeNotRunning, Message: "the hub runs without its socket, by which its bus is joined",
				Remedy: "set socket.enabled to true in its config.yaml and restart it"}
		}
		socket = info.Socket
	}
	err = f.join(ctx, socket, question)
	if !errors.Is(err, client.ErrNotRunning) {
		return err
	}
	if err := f.allowed(hub, may); err != nil {
		return err
	}
	if info, err = f.start(ctx, hub); err != nil {
		return err
	}
	return f.join(ctx, info.Socket, question)
}

// join asks the hub that listens on socket. Where none does, the error is
// client.ErrNotRunning.
func (f *Finder) join(ctx context.Context, socket string, question func(context.Context, *client.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	c, err := client.Dial(ctx, socket)
	if err != nil {
		return hubError(err, socket)
	}
	defer c.Close()
	if err = question(ctx, c); err == nil {
		return nil
	}
	if e, ok := errors.AsType[*bus.Error](err); ok {
		return e
	}
	return hubError(err, socket)
}

// grantOf reads what the hub has granted.
func grantOf(g dialect.BusGrant) (bus.Grant, error) {
	if host, _, err := net.SplitHostPort(g.Address); err != nil || !net.ParseIP(host).IsLoopback() {
		return bus.Grant{}, &bus.Error{Code: bus.CodeConfig, Message: "the hub's bus is not on this machine", Remedy: "restart the hub"}
	}
	return bus.Grant{
		User: g.User, Password: bus.Secret(g.Password), Expires: g.Expires.Time, Address: g.Address,
		StoreDir: g.StoreDir, Durability: bus.Durability(g.Durability), PID: g.PID, Cluster: g.Cluster,
	}, nil
}

// hubError puts a failure of the socket into the words of the bus.
func hubError(err error, socket string) error {
	if answer, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return answerError(answer)
	}
	e := &bus.Error{Code: bus.CodeNotRunning, Message: err.Error(), Err: err}
	switch {
	case errors.Is(err, client.ErrNotRunning):
		e.Remedy = "start it with: parley start"
	case errors.Is(err, client.ErrForeignSocket):
		e.Code = bus.CodeAuth
		e.Remedy = "give your hub a socket of its own: socket.path in config.yaml, or PARLEY_SOCKET"
	case errors.Is(err, client.ErrLost):
		e.Message, e.Remedy = "the hub stopped before it answered", "it may be restarting: try again in a moment"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		e.Code, e.Message, e.Remedy = bus.CodeTimeout, "the hub does not answer on "+socket, "see parley status and parley doctor"
	default:
		e.Remedy = "see parley doctor"
	}
	return e
}

// answerError translates what the hub refused.
func answerError(answer *jsonrpc.Error) error {
	e := &bus.Error{Code: bus.CodeRejected, Message: answer.Message, Remedy: answer.Details().Remedy, Err: answer}
	switch answer.Code {
	case jsonrpc.CodeInvalidParams:
		e.Code = bus.CodeConfig
	case jsonrpc.CodeServerBusy:
		e.Code = bus.CodeLimit
	case dialect.CodeUnsupportedOperation:
		e.Code = bus.CodeUnsupported
	case dialect.CodeAgentUnavailable:
		e.Code = bus.CodeNotRunning
	case jsonrpc.CodeMethodNotFound:
		e.Code, e.Message, e.Remedy = bus.CodeUnsupported, "the hub that runs is of an earlier version", "restart it: parley stop, parley start"
	}
	return e
}

// startPause is how long after a failure no hub is started: who reconnects
// tries every two seconds.
const startPause = 10 * time.Second

// allowed says why no hub is to be started, nil if one is.
func (f *Finder) allowed(hub *config.Loaded, may mayStart) error {
	e := &bus.Error{Code: bus.CodeNotRunning, Message: "no hub is running on " + hub.DataDir, Remedy: "start it with: parley start"}
	if !f.cfg.Autostart {
		e.Remedy += ", or allow it to be started (NATS_MCP_AUTOSTART=1), or set NATS_URL"
		return e
	}
	if may == startKilled {
		if _, err := daemon.Read(hub.DataDir); err != nil {
			e.Message = "the hub on " + hub.DataDir + " was stopped"
			return e
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.failed.IsZero() && time.Since(f.failed) < startPause {
		return f.reason
	}
	return nil
}

// start starts the hub, or waits for another process that does: of many
// processes that come at once one starts it.
func (f *Finder) start(ctx context.Context, hub *config.Loaded) (daemon.Info, error) {
	command, err := f.command(hub)
	if err != nil {
		return daemon.Info{}, err
	}
	f.cfg.Logger.Info("starting the hub in the background", "data", hub.DataDir)
	info, err := daemon.Start(ctx, hub.DataDir, command)
	if de, ok := errors.AsType[*daemon.Error](err); ok && de.Code == daemon.CodeInUse && hub.HTTP.Enabled {
		// Another program has the port: channels need none.
		f.cfg.Logger.Warn("the hub's port is taken; it is started with another",
			"port", strconv.Itoa(hub.HTTP.Port), "reason", de.Message)
		info, err = daemon.Start(ctx, hub.DataDir, append(command, "--http-port=0"))
	}
	if de, ok := errors.AsType[*daemon.Error](err); ok && de.Code == daemon.CodeRunning {
		err = nil
	}
	if err == nil && info.Socket == "" {
		return info, &bus.Error{Code: bus.CodeNotRunning, Message: "the hub runs without its socket, by which its bus is joined",
			Remedy: "set socket.enabled to true in its config.yaml and restart it"}
	}
	return info, f.startError(ctx, err)
}

func (f *Finder) command(hub *config.Loaded) ([]string, error) {
	command := f.cfg.Command
	if len(command) == 0 {
		program, err := daemon.Executable()
		if err != nil {
			return nil, f.startError(context.Background(), err)
		}
		command = []string{program, "start", "--background"}
	}
	// Absolute, because the process in the background changes its directory.
	command = append(command[:len(command):len(command)], "--socket="+hub.Socket.Path, "--data-dir="+hub.DataDir)
	if hub.Found {
		command = append(command, "--config="+hub.File)
	}
	return command, nil
}

// startError remembers why no hub could be started.
func (f *Finder) startError(ctx context.Context, err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		f.failed, f.reason = time.Time{}, nil
		return nil
	}
	e := &bus.Error{Code: bus.CodeNotRunning, Message: fmt.Sprintf("the hub could not be started: %v", err), Remedy: "run: parley start --foreground", Err: err}
	if de, ok := errors.AsType[*daemon.Error](err); ok {
		e.Message = "the hub could not be started: " + de.Message
		if de.Remedy != "" {
			e.Remedy = de.Remedy
		}
	}
	if ctx.Err() == nil {
		f.failed, f.reason = time.Now(), e
	}
	return e
}
