package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/chat"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
)

// Project is one project's channels, its agents' place in the agents' network, and
// the service over them.
type Project struct {
	*Service
	space   *chat.Space
	network membership // nil where it is not configured
}

// ProjectOptions are what a Project needs besides its configuration.
type ProjectOptions struct {
	Version string
	// Dial finds the bus; see chat.Config.
	Dial func(context.Context) (*bus.Bus, error)
	// DialNetwork finds the bus of the agents' network, where that is configured.
	// Nil leaves the network out.
	DialNetwork func(context.Context) (*bus.Bus, error)
	// EnterNetwork, where the network's bus confines agents, lets one in: see agentnet.Lobby.
	// DialNetwork is not used then.
	EnterNetwork func(context.Context, agentnet.Arrival) (agentnet.Place, *bus.Bus, error)
	// IdleAgents is how long an agent may call nothing and is still shown as there, where
	// the end of its program may go unnoticed; 0 for ever.
	IdleAgents time.Duration
	// DialOutbox and StateDir are those of agentnet.Config (DialLocal).
	DialOutbox func(context.Context) (*bus.Bus, error)
	StateDir   string
	// Documents are the hub's, of which the project's agents see those of its
	// namespace. Nil leaves them out.
	Documents DocumentStore
	// Groups are further ones, which other packages have.
	Groups []Group
	// Idle: see Options.
	Idle func()
	// Logger is slog.Default() where it is nil.
	Logger *slog.Logger
}

// OpenProject returns at once: the bus is looked for in the background, and
// requests are answered meanwhile (REQ-ERROR-007).
func OpenProject(cfg *mcpconfig.Config, opts ProjectOptions) (*Project, error) {
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	channels := make([]chat.Channel, len(cfg.Channels))
	for i, c := range cfg.Channels {
		age, err := c.Age()
		if err != nil {
			return nil, fmt.Errorf("channel %s: %w", c.Name, err)
		}
		channels[i] = chat.Channel{Name: c.Name, Description: c.Description, MaxMessages: c.MaxMessages, MaxBytes: c.MaxBytes, MaxAge: age}
	}
	space := chat.Open(chat.Config{Namespace: cfg.Namespace, Channels: channels, Dial: opts.Dial, Logger: opts.Logger})
	p := &Project{space: space}
	groups := []Group{NewChannels(space)}
	if cfg.Networked() && opts.DialNetwork != nil {
		network := NetworkConfig(cfg, opts.DialNetwork, opts.Logger)
		network.StateDir, network.DialLocal = opts.StateDir, opts.DialOutbox
		p.network = openMembership(network, opts.EnterNetwork, opts.IdleAgents > 0)
		groups = append(groups, NewNetwork(p.network, AutoRegistration(cfg), opts.IdleAgents))
	}
	if opts.Documents != nil {
		groups = append(groups, NewDocuments(opts.Documents, cfg.Namespace))
	}
	groups = append(groups, opts.Groups...)
	p.Service = NewService(Options{Version: opts.Version, Groups: groups, Idle: opts.Idle, Logger: opts.Logger})
	return p, nil
}

// Tried is closed when the first attempt to reach the bus has ended, well or not.
func (p *Project) Tried() <-chan struct{} { return p.space.Tried() }

// Close ends what runs, stores what is queued if the bus can be reached before ctx
// ends, and releases everything (REQ-REL-009). It returns how many messages are
// lost.
func (p *Project) Close(ctx context.Context) (lost int, err error) {
	p.Stop()
	if p.network != nil {
		err = p.network.Close(ctx)
	}
	lost, closeErr := p.space.Close(ctx)
	return lost, errors.Join(err, closeErr)
}
