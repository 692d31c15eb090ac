package mcpserver

import (
	"context"
	"errors"
	"sync"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/mesh"
)

// membership is how a project's agents take part in the network: a [mesh.Network] for
// all of them, or a [mesh.Lobby].
type membership interface {
	Usable(ctx context.Context) error
	Notice() string
	Status() mesh.Status
	Register(ctx context.Context, r mesh.Registration) (*mesh.Agent, error)
	Leave(ctx context.Context, a *mesh.Agent) error
	Close(ctx context.Context) error
}

// openMembership opens what the options ask for.
func openMembership(cfg mesh.Config, enter func(context.Context, mesh.Arrival) (mesh.Place, *bus.Bus, error), onDemand bool) membership {
	switch {
	case enter != nil:
		return mesh.NewLobby(cfg, enter)
	case onDemand:
		return &lateNetwork{cfg: cfg}
	}
	return mesh.Open(cfg)
}

// lateNetwork opens a network when the first agent wants to register: a hub serves many
// projects whose agents never do.
type lateNetwork struct {
	cfg mesh.Config

	mu      sync.Mutex
	network *mesh.Network
	closed  bool
}

var errNetworkClosed = errors.New("the server stops")

func (l *lateNetwork) open() (*mesh.Network, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errNetworkClosed
	}
	if l.network == nil {
		l.network = mesh.Open(l.cfg)
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

func (l *lateNetwork) Status() mesh.Status {
	n, err := l.open()
	if err != nil {
		return mesh.Status{Problem: err}
	}
	return n.Status()
}

func (l *lateNetwork) Register(ctx context.Context, r mesh.Registration) (*mesh.Agent, error) {
	n, err := l.open()
	if err != nil {
		return nil, err
	}
	return n.Register(ctx, r)
}

func (l *lateNetwork) Leave(ctx context.Context, a *mesh.Agent) error { return a.Deregister(ctx) }

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
