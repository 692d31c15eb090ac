// Package busfinder connects a process of the user to its bus: the configured NATS server, or
// else the bus of the running hub, or else that of a hub that it starts in the background.
//
// A configured server that cannot be used is an error. There is no fallback to the hub:
// messages would be stored where nobody reads them.
package busfinder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/config"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
)

// Config selects a bus.
type Config struct {
	// Config is the connection. If its URL is set, the hub's bus is not used; otherwise only
	// its Name, NoEcho and Logger are, which is slog.Default() if it is nil.
	bus.Config

	// Access and Namespace are the access to request from the hub.
	Access    bus.Access
	Namespace string
	// Hub loads the hub's configuration; nil means config.Load without options.
	Hub func(context.Context) (*config.Loaded, error)
	// Autostart starts a hub in the background if none is running.
	Autostart bool
	// Command is the program and its first arguments that start the hub; --socket, --data-dir, --config and
	// --http-port are appended. Nil means this program's own `start --background`.
	Command []string
	// RestAfter is how long an agent's connection to the hub's bus must be unused before it is given up until something uses it; 0 means
	// ten seconds.
	RestAfter time.Duration
	// Presence has Dial's connection to the hub's bus rest, too, while the hub is present. Nil means that it does not rest.
	Presence Presence
}

// Presence is whether the hub is there, by another connection of this process, which notices the hub's end.
type Presence interface {
	Present() bool
	// OnPresence calls changed when the hub comes or goes, until stop is called.
	OnPresence(changed func()) (stop func())
}

// ForProject returns the Config for the channels of a project.
func ForProject(project *mcpconfig.Config) Config {
	return Config{Config: daemon.ProjectBus(project, nil),
		Access: bus.AccessProject, Namespace: project.Namespace, Autostart: project.Autostart}
}

// ForNetwork returns the Config for the agents' network of a project: the cluster that the
// computers share, or the bus of this computer's hub.
func ForNetwork(project *mcpconfig.Config) Config {
	cluster, cross := daemon.NetworkBus(project, nil), project.CrossComputer
	if cross.Enabled && !cross.ThroughHub {
		return Config{Config: cluster}
	}
	c := Config{Config: bus.Config{Name: cluster.Name}, Access: bus.AccessNetwork, Autostart: project.Autostart}
	if cross.Enabled {
		c.Access = bus.AccessCluster
	}
	return c
}

// Finder connects to the bus that its Config selects. It is safe for concurrent use.
type Finder struct {
	cfg Config

	mu     sync.Mutex
	failed time.Time // of the last attempt to start a hub, zero if it succeeded
	reason error     // of that failure
}

// New returns a Finder. It does not connect yet.
func New(cfg Config) *Finder {
	if cfg.Hub == nil {
		cfg.Hub = func(context.Context) (*config.Loaded, error) { return config.Load(config.Options{}) }
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Finder{cfg: cfg}
}

// Dial makes one attempt to connect to the configured server or to join the hub's bus; it may start the hub, which
// takes up to a minute. Errors are *bus.Error with a remedy. The returned Bus reconnects without a time limit. A
// reconnect restarts a hub that was killed, but not one that was stopped.
func (f *Finder) Dial(ctx context.Context) (*bus.Bus, error) {
	if f.cfg.URL != "" {
		return bus.Open(ctx, f.cfg.Config)
	}
	cfg := bus.Config{Name: f.cfg.Name, NoEcho: f.cfg.NoEcho, Logger: f.cfg.Logger}
	if f.cfg.Presence != nil {
		cfg.Rest = f.restOfAnybody()
	}
	policy := startAlways
	return bus.Join(ctx, cfg, func(ctx context.Context) (grant bus.Grant, err error) {
		err = f.call(ctx, policy, func(ctx context.Context, c *client.Client) error {
			g, err := c.JoinBus(ctx, dialect.BusJoinParams{Access: string(f.cfg.Access), Namespace: f.cfg.Namespace})
			if err == nil {
				grant, err = grantOf(*g)
			}
			return err
		})
		policy = startKilled
		return grant, err
	})
}

// DialAgent is Dial for one agent of this computer's network: the hub assigns the agent its identity, and restricts
// the Bus to what that agent needs. settings are those of the network and not of an agent. If settings.Via is set,
// the network is the one of the cluster that the hub is linked to: the Bus is this computer's part of it, and the
// Place's DialCluster connects to the cluster, also restricted to the agent.
func (f *Finder) DialAgent(ctx context.Context, settings dialect.NetworkJoinParams, a registry.AdmissionRequest) (agentnet.Admission, *bus.Bus, error) {
	var place agentnet.Admission
	join := func(ctx context.Context, policy startPolicy, a registry.AdmissionRequest, via string) (grant bus.Grant, err error) {
		p := settings
		p.Via = via
		p.AgentType, p.ProjectPath, p.Handle, p.GUID, p.Secret = a.AgentType, a.ProjectPath, a.Handle, a.GUID, a.Secret
		p.LateInbox = a.LateInbox && via == ""
		err = f.call(ctx, policy, func(ctx context.Context, c *client.Client) error {
			g, err := c.JoinNetwork(ctx, p)
			if err != nil {
				return err
			}
			if p.Via != dialect.ViaCluster && place.GUID == "" { // answers after a restart are the same
				place = agentnet.Admission{BusAdmission: store.Admission{GUID: g.GUID, Slot: g.Slot, Secret: g.Secret, Reused: g.Again, Control: g.Control, HubID: g.Mark}}
			}
			grant, err = grantOf(g.BusGrant)
			return err
		})
		return grant, err
	}
	first, err := join(ctx, startAlways, a, settings.Via)
	if err != nil {
		return agentnet.Admission{}, nil, err
	}
	a.GUID, a.Secret = place.GUID, place.Secret
	cfg := bus.Config{Name: f.cfg.Name, NoEcho: f.cfg.NoEcho, InboxPrefix: store.InboxPrefix(place.GUID), Logger: f.cfg.Logger}
	if settings.Via == "" {
		cfg.Rest = f.restOf(place.BusAdmission)
	}
	used := false
	b, err := bus.Join(ctx, cfg, func(ctx context.Context) (bus.Grant, error) {
		if !used {
			used = true
			return first, nil
		}
		return join(ctx, startKilled, a, settings.Via)
	})
	if settings.Via == dialect.ViaHub {
		cfg.InboxPrefix = store.ClusterInboxPrefix(place.GUID)
		place.DialCluster = func(ctx context.Context) (*bus.Bus, error) {
			return bus.Join(ctx, cfg, func(ctx context.Context) (bus.Grant, error) { return join(ctx, startKilled, a, dialect.ViaCluster) })
		}
	}
	return place, b, err
}

// startPolicy selects when call starts a hub that is not running.
type startPolicy int

const (
	startAlways startPolicy = iota
	startKilled             // only if it was killed, and not if the user stopped it
)

// callTimeout bounds the hub's answer. Opening a namespace with many channels for the first
// time since the hub's start takes the longest.
const callTimeout = 15 * time.Second

// call runs f with a connection to the running hub; it starts the hub if policy permits.
func (f *Finder) call(ctx context.Context, policy startPolicy, do func(context.Context, *client.Client) error) error {
	hub, err := f.cfg.Hub(ctx)
	if err != nil {
		return configError(err)
	}
	socket, err := daemon.Locate(ctx, hub)
	if err == nil {
		err = f.callSocket(ctx, socket, do)
	} else {
		err = hubError(err, hub.Socket.Path)
	}
	if !errors.Is(err, client.ErrNotRunning) {
		return err
	}
	if info, running, _ := daemon.Running(hub.DataDir); running && info.PID != 0 && info.Socket == "" {
		return errNoSocket
	}
	if err := f.mayStart(hub, policy); err != nil {
		return err
	}
	info, err := f.start(ctx, hub)
	if err != nil {
		return err
	}
	return f.callSocket(ctx, info.Socket, do)
}

// configError converts an error of loading the hub's configuration to an error of the bus.
func configError(err error) error {
	e := &bus.Error{Code: bus.CodeConfig, Message: "the hub's configuration cannot be used: " + err.Error(),
		Remedy: "correct it, see: " + local.Program() + " config validate", Err: err}
	if unread, ok := errors.AsType[*config.Error](err); ok {
		e.Message, e.Remedy = unread.Message, unread.Remedy
	}
	return e
}

var errNoSocket = &bus.Error{Code: bus.CodeNotRunning, Message: "the hub runs without its socket, which is needed to join its bus",
	Remedy: "set socket.enabled to true in its config.yaml and restart it"}

// callSocket runs f with a connection to the hub on socket. If none listens there, the error
// is client.ErrNotRunning.
func (f *Finder) callSocket(ctx context.Context, socket string, do func(context.Context, *client.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c, err := client.Dial(ctx, socket)
	if err != nil {
		return hubError(err, socket)
	}
	defer c.Close()
	if err = do(ctx, c); err == nil {
		return nil
	}
	if e, ok := errors.AsType[*bus.Error](err); ok {
		return e
	}
	return hubError(err, socket)
}

// grantOf converts the hub's answer. It refuses an address that is not on this computer.
func grantOf(g dialect.BusGrant) (bus.Grant, error) {
	if host, _, err := net.SplitHostPort(g.Address); err != nil || !net.ParseIP(host).IsLoopback() {
		return bus.Grant{}, &bus.Error{Code: bus.CodeConfig, Message: "the hub's bus is not on this machine", Remedy: "restart the hub"}
	}
	return bus.Grant{
		User: g.User, Password: bus.Secret(g.Password), Expires: g.Expires.Time, Address: g.Address,
		StoreDir: g.StoreDir, Durability: bus.Durability(g.Durability), PID: g.PID, Syncs: g.Syncs, Cluster: g.Cluster, ClockSet: g.ClockSet.Time,
	}, nil
}

// hubError converts an error of the socket to an error of the bus.
func hubError(err error, socket string) error {
	if answer, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return answerError(answer)
	}
	e := &bus.Error{Code: bus.CodeNotRunning, Message: err.Error(), Err: err}
	var hub *daemon.Error
	switch {
	case errors.As(err, &hub):
		e.Code, e.Message, e.Remedy = bus.CodeConfig, hub.Message, hub.Remedy
	case errors.Is(err, client.ErrNotRunning):
		e.Remedy = "start it with: " + local.Program() + " start"
	case errors.Is(err, client.ErrForeignSocket):
		e.Code = bus.CodeAuth
		e.Remedy = "set another socket for your hub: socket.path in config.yaml, or PARLEY_SOCKET"
	case errors.Is(err, client.ErrLost):
		e.Message, e.Remedy = "the hub stopped before it answered", "it may be restarting: try again in a moment"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		e.Code, e.Message, e.Remedy = bus.CodeTimeout, "the hub does not answer on "+socket, "see "+local.Program()+" status and "+local.Program()+" doctor"
	default:
		e.Remedy = "see " + local.Program() + " doctor"
	}
	return e
}

var answerCodes = map[int]bus.Code{
	jsonrpc.CodeInvalidParams:        bus.CodeConfig,
	jsonrpc.CodeServerBusy:           bus.CodeLimit,
	dialect.CodeUnsupportedOperation: bus.CodeUnsupported,
	dialect.CodeAgentUnavailable:     bus.CodeNotRunning,
}

// answerError converts an error that the hub has answered to an error of the bus.
func answerError(answer *jsonrpc.Error) error {
	if answer.Code == jsonrpc.CodeMethodNotFound {
		return &bus.Error{Code: bus.CodeUnsupported, Message: "the running hub is an earlier version", Remedy: "restart it: " + local.Program() + " stop, " + local.Program() + " start", Err: answer}
	}
	return &bus.Error{Code: cmp.Or(answerCodes[answer.Code], bus.CodeRejected), Message: answer.Message, Remedy: answer.Details().Remedy, Err: answer}
}

// startPause is how long after a failure no hub is started again; a connection that is lost
// retries every two seconds.
const startPause = 10 * time.Second

// mayStart returns nil if a hub may be started, and the reason otherwise.
func (f *Finder) mayStart(hub *config.Loaded, policy startPolicy) error {
	e := &bus.Error{Code: bus.CodeNotRunning, Message: "no hub is running on " + hub.DataDir, Remedy: "start it with: " + local.Program() + " start"}
	if !f.cfg.Autostart {
		e.Remedy += ", or let it be started automatically (NATS_MCP_AUTOSTART=1), or set NATS_URL"
		return e
	}
	if policy == startKilled {
		if _, err := daemon.Read(hub.DataDir); err != nil {
			e.Message = "the hub on " + hub.DataDir + " was stopped"
			if _, running, err := daemon.Running(hub.DataDir); !running && err == nil { // else it is stopping, or the next one is starting
				e.Err = bus.ErrStopped
			}
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

// start starts the hub, or waits for another process that is starting it.
func (f *Finder) start(ctx context.Context, hub *config.Loaded) (daemon.Info, error) {
	command, err := daemon.Command(hub, f.cfg.Command...)
	if err != nil {
		return daemon.Info{}, f.startError(ctx, err)
	}
	f.cfg.Logger.Info("starting the hub in the background", "data", hub.DataDir)
	info, err := daemon.Start(ctx, hub.DataDir, command)
	for _, notice := range info.Notices {
		f.cfg.Logger.Warn(notice)
	}
	if de, ok := errors.AsType[*daemon.Error](err); ok && de.Code == daemon.CodeRunning {
		err = nil
	}
	if err == nil && info.Socket == "" {
		return info, errNoSocket
	}
	return info, f.startError(ctx, err)
}

// startError records and returns the error of an attempt to start a hub, nil if it succeeded.
func (f *Finder) startError(ctx context.Context, err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		f.failed, f.reason = time.Time{}, nil
		return nil
	}
	e := &bus.Error{Code: bus.CodeNotRunning, Message: fmt.Sprintf("the hub could not be started: %v", err), Remedy: "run: " + local.Program() + " start --foreground", Err: err}
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
