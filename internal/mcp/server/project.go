package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/chat"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
)

// Project is one project's channels, its agents' membership in the agents' network, and the service over both.
type Project struct {
	*Service
	space   *chat.Space
	network membership // nil if it is not configured
	group   *Network   // of network
}

// Session returns the GUID of the session that the project serves, in the agents' network; "" if it is not registered, or
// the project serves several.
func (p *Project) Session() string {
	if p.group == nil {
		return ""
	}
	return p.group.onlyGUID()
}

// ProjectOptions are the options of a [Project] in addition to its configuration.
type ProjectOptions struct {
	// Name and Version: see Options.
	Name, Version string
	// Dial connects to the bus; see chat.Config.
	Dial func(context.Context) (*bus.Bus, error)
	// DialNetwork connects to the bus of the agents' network, if that is configured. Nil disables the network.
	DialNetwork func(context.Context) (*bus.Bus, error)
	// LateInboxes is set where DialNetwork leads to a bus whose hub makes inboxes with the first mail.
	LateInboxes bool
	// EnterNetwork admits an agent to a network whose bus restricts agents to their own subjects; see agentnet.Memberships.
	// DialNetwork is not used then.
	EnterNetwork func(context.Context, registry.AdmissionRequest) (agentnet.Admission, *bus.Bus, error)
	// RegisterSessions registers each connection's agent as an open session, if its program is a known coding agent.
	RegisterSessions bool
	// OnSession is called when it becomes known which agent and which conversation of its program a connection serves; nil for
	// none. It must not block.
	OnSession func(SessionServed)
	// Quiet reports whether an agent is known to be an open session that is not to be disturbed, so that its senders are told; nil for none.
	// It may block until ctx ends.
	Quiet func(ctx context.Context, guid string) bool
	// Conversation returns what a vendor's program calls the conversation for which it has started this process, "" if it does not say;
	// nil for none.
	Conversation func(vendor string) string
	// IdleAgents is the time without calls after which an agent is shown as offline, for connections whose end may go
	// unnoticed; 0 for never.
	IdleAgents time.Duration
	// DialOutbox is DialLocal of agentnet.Config, StateDir its StateDir, and Hub its Hub.
	DialOutbox func(context.Context) (*bus.Bus, error)
	StateDir   string
	Hub        func(context.Context) (string, error)
	// KeepDir is that of chat.Config.
	KeepDir string
	// Documents are the hub's; the project's agents see those of its namespace. Nil disables them.
	Documents DocumentStore
	// Groups are additional groups of other packages.
	Groups []Group
	// Idle: see Options.
	Idle func()
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// ChannelsOf returns the channels of a project's configuration.
func ChannelsOf(cfg *mcpconfig.Config) ([]chat.Channel, error) {
	channels := make([]chat.Channel, len(cfg.Channels))
	for i, c := range cfg.Channels {
		age, err := c.Age()
		if err != nil {
			return nil, fmt.Errorf("channel %s: %w", c.Name, err)
		}
		channels[i] = chat.Channel{Name: c.Name, Description: c.Description, MaxMessages: c.MaxMessages, MaxBytes: c.MaxBytes, MaxAge: age}
	}
	return channels, nil
}

// OpenProject opens a project. It connects to the bus in the background and answers requests meanwhile.
func OpenProject(cfg *mcpconfig.Config, opts ProjectOptions) (*Project, error) {
	opts.Logger = cmp.Or(opts.Logger, slog.Default())
	channels, err := ChannelsOf(cfg)
	if err != nil {
		return nil, err
	}
	space := chat.Open(chat.Config{Namespace: cfg.Namespace, Channels: channels, Dial: opts.Dial, Logger: opts.Logger,
		Replicas: int(cfg.CrossComputer.Replicas), KeepDir: opts.KeepDir, Server: string(cfg.NATSURL)})
	p := &Project{space: space}
	groups := []Group{NewChannels(space)}
	if cfg.Networked() && opts.DialNetwork != nil {
		network := NetworkConfig(cfg, opts.DialNetwork, opts.Logger)
		network.StateDir, network.Hub, network.DialLocal, network.OnDemand = opts.StateDir, opts.Hub, opts.DialOutbox, opts.IdleAgents > 0
		network.LateInboxes = opts.LateInboxes
		if opts.EnterNetwork != nil {
			p.network = agentnet.NewMemberships(network, opts.EnterNetwork)
		} else {
			p.network = agentnet.Open(network)
		}
		p.group = NewNetwork(p.network, AutoRegistration(cfg), opts.IdleAgents)
		p.group.sessions, p.group.onSession, p.group.quiet = opts.RegisterSessions, opts.OnSession, opts.Quiet
		p.group.conversation = opts.Conversation
		groups = append(groups, p.group)
	}
	if opts.Documents != nil {
		groups = append(groups, NewDocuments(opts.Documents, cfg.Namespace))
	}
	groups = append(groups, opts.Groups...)
	p.Service = NewService(Options{Name: opts.Name, Version: opts.Version, Groups: groups, OneOfMany: opts.IdleAgents > 0, Idle: opts.Idle, Logger: opts.Logger})
	return p, nil
}

// Tried returns a channel that is closed when the first attempt to reach the bus has succeeded or failed.
func (p *Project) Tried() <-chan struct{} { return p.space.Tried() }

// Close stops the service, stores the queued messages if the bus can be reached before ctx ends, and closes the
// connections. It returns how many messages were lost.
func (p *Project) Close(ctx context.Context) (lost int, err error) {
	p.Stop()
	if p.network != nil {
		err = p.network.Close(ctx)
	}
	lost, closeErr := p.space.Close(ctx)
	return lost, errors.Join(err, closeErr)
}
