package server

import (
	"context"
	"errors"
	"sync"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/bus"
)

// membership is a project's access to the agents' network: one [agentnet.Network] for all agents, or an
// [agentnet.Memberships].
type membership interface {
	Usable(ctx context.Context) error
	Notice() string
	Status() agentnet.Status
	Register(ctx context.Context, r registry.Registration) (*agentnet.Agent, error)
	Leave(ctx context.Context, a *agentnet.Agent) error
	Close(ctx context.Context) error
}

// openMembership opens the kind of membership that the options select.
func openMembership(cfg agentnet.Config, enter func(context.Context, registry.AdmissionRequest) (agentnet.Admission, *bus.Bus, error), onDemand bool) membership {
	switch {
	case enter != nil:
		return agentnet.NewMemberships(cfg, enter)
	case onDemand:
		return &lateNetwork{cfg: cfg}
	}
	return agentnet.Open(cfg)
}

// lateNetwork opens a network at its first use, because a hub serves many projects whose agents never register.
type lateNetwork struct {
	cfg agentnet.Config

	mu      sync.Mutex
	network *agentnet.Network
	closed  bool
}

var errNetworkClosed = errors.New("the server stops")

func (l *lateNetwork) open() (*agentnet.Network, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errNetworkClosed
	}
	if l.network == nil {
		l.network = agentnet.Open(l.cfg)
	}
	return l.network, nil
}

func (l *lateNetwork) Usable(ctx context.Context) error {
	n, err := l.open()
	if err != nil {
		return err
	}
	return n.Usable(ctx)
}

func (l *lateNetwork) Notice() string {
	n, err := l.open()
	if err != nil {
		return ""
	}
	return n.Notice()
}

func (l *lateNetwork) Status() agentnet.Status {
	n, err := l.open()
	if err != nil {
		return agentnet.Status{Problem: err}
	}
	return n.Status()
}

func (l *lateNetwork) Register(ctx context.Context, r registry.Registration) (*agentnet.Agent, error) {
	n, err := l.open()
	if err != nil {
		return nil, err
	}
	return n.Register(ctx, r)
}

func (l *lateNetwork) Leave(ctx context.Context, a *agentnet.Agent) error { return a.Deregister(ctx) }

func (l *lateNetwork) Close(ctx context.Context) error {
	l.mu.Lock()
	n := l.network
	l.closed = true
	l.mu.Unlock()
	if n == nil {
		return nil
	}
	return n.Close(ctx)
}
