package nettest

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

// Hub is a hub with an embedded bus that admits agents, as the daemon does.
type Hub struct {
	t        testing.TB
	Bus      *bus.Bus
	Operator *agentnet.Network
	users    map[string]string
}

// NewHub runs a hub until the test ends.
func NewHub(t testing.TB) *Hub {
	hub, err := bus.Open(t.Context(), bus.Config{DataDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := hub.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	r := &Hub{t: t, Bus: hub, users: map[string]string{}}
	r.Operator = Open(t, agentnet.Config{BusConfig: store.Config{Logger: slog.New(slog.DiscardHandler), Dial: func(ctx context.Context) (*bus.Bus, error) {
		return bus.Join(ctx, bus.Config{}, func(ctx context.Context) (bus.Grant, error) {
			return hub.Grant(ctx, bus.GrantRequest{Access: bus.AccessNetwork})
		})
	}}})
	return r
}

// State reports the state of an agent's connection.
func (r *Hub) State(guid string) registry.ConnectionState {
	switch user, known := r.users[guid]; {
	case !known:
		return registry.NeverConnected
	case r.Bus.Admitted(user):
		return registry.Connected
	}
	return registry.Disconnected
}

// Admit admits an agent and connects for it.
func (r *Hub) Admit(ctx context.Context, a registry.AdmissionRequest) (agentnet.Admission, *bus.Bus, error) {
	admission, may, err := r.Operator.Admit(ctx, a, r.State)
	if err != nil {
		return agentnet.Admission{}, nil, err
	}
	b, err := bus.Join(ctx, bus.Config{InboxPrefix: store.InboxPrefix(admission.GUID)}, func(ctx context.Context) (bus.Grant, error) {
		g, err := r.Bus.Grant(ctx, bus.GrantRequest{Access: bus.AccessAgent, Publish: may.Publish, Subscribe: may.Subscribe})
		r.users[admission.GUID] = g.User
		return g, err
	})
	return admission, b, err
}

// Memberships returns the memberships of a project's agents.
func (r *Hub) Memberships(project string) *agentnet.Memberships {
	l := agentnet.NewMemberships(agentnet.Config{BusConfig: store.Config{ProjectPath: project, Logger: slog.New(slog.DiscardHandler)}}, r.Admit)
	r.t.Cleanup(func() {
		if err := l.Close(context.Background()); err != nil {
			r.t.Error(err)
		}
	})
	return l
}

// Enter registers an agent and fails the test if that is refused.
func Enter(t testing.TB, l *agentnet.Memberships, r registry.Registration) *agentnet.Agent {
	t.Helper()
	a, err := l.Register(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Linked returns the configuration of a computer that has a hub and uses a cluster.
func Linked(n, hub *Server, project string) agentnet.Config {
	cfg := n.Host("host-a", "ann", project)
	cfg.DialLocal = Dialer(hub)
	return cfg
}

// OpenLinked returns when both the network and the hub's bus can be used.
func OpenLinked(t *testing.T, cfg agentnet.Config) *agentnet.Network {
	t.Helper()
	network := Open(t, cfg)
	wait.Eventually(t, "the hub's bus", func() bool { return network.Status().Local })
	return network
}

// AwaitLoss waits until networks have noticed that the link is down.
func AwaitLoss(t *testing.T, networks ...*agentnet.Network) {
	t.Helper()
	for _, n := range networks {
		wait.Eventually(t, "the loss", func() bool { return !n.Status().Connected })
	}
}

// ClaimTask claims the next item, which has to be the task.
func ClaimTask(t *testing.T, a *agentnet.Agent, task string) *work.Claim {
	t.Helper()
	var c *work.Claim
	wait.Eventually(t, "a claim of "+task, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		var err error
		c, err = a.Claim(ctx, nil)
		if err != nil && CategoryOf(err) != store.ConnectionError {
			t.Fatal(err)
		}
		return c != nil
	})
	if c.TaskID != task {
		t.Fatalf("claimed %s, want %s", c.TaskID, task)
	}
	return c
}

// OnlyOnce returns the id of an item that is listed more than once, or an error's text; "" if all is well.
func OnlyOnce(t *testing.T, n *agentnet.Network) string {
	t.Helper()
	items, err := n.Items(t.Context(), "")
	if err != nil {
		return err.Error()
	}
	seen := map[string]bool{}
	for _, x := range items {
		if seen[x.TaskID] {
			return x.TaskID
		}
		seen[x.TaskID] = true
	}
	return ""
}
