package agentnet_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hubtest"
	"github.com/parleyhub/parley/internal/natstest"
)

func TestMain(m *testing.M) {
	hubtest.Main()
	if role := os.Getenv(childRole); role != "" {
		os.Exit(beChild(role))
	}
	goleak.VerifyTestMain(m, natstest.Leaks()...)
}

// natsServer is a stock server with computers on it.
type natsServer struct {
	*natstest.Server
	t testing.TB
}

func startServer(t testing.TB) *natsServer { return &natsServer{natstest.Start(t), t} }

// listeners counts the clients' subscriptions to a subject.
func (n *natsServer) listeners(subject string) int {
	subs, err := n.NATS().Subsz(&server.SubszOptions{Subscriptions: true, Limit: 1000})
	if err != nil {
		n.t.Fatal(err)
	}
	count := 0
	for _, s := range subs.Subs {
		if s.Subject == subject && s.Cid > 0 {
			if c, err := n.NATS().Connz(&server.ConnzOptions{CID: s.Cid}); err == nil && len(c.Conns) == 1 {
				count++
			}
		}
	}
	return count
}

// logs is a log that can be read while it is written.
type logs struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// host is a simulated computer: a name, a user, a project and a state directory
// of its own.
func (n *natsServer) host(name, user, project string) agentnet.Config {
	return agentnet.Config{
		Hostname: name, Username: user, ProjectPath: "/home/" + user + "/" + project, ProjectID: fmt.Sprintf("%016x", len(project))[:15] + project[:1],
		Logger: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context) (*bus.Bus, error) {
			return bus.Open(ctx, bus.Config{URL: bus.Secret(n.URL()), Logger: slog.New(slog.DiscardHandler)})
		},
	}
}

// open opens a network and waits until it can be used.
func open(t testing.TB, cfg agentnet.Config) *agentnet.Network {
	t.Helper()
	n := agentnet.Open(cfg)
	t.Cleanup(func() { shut(t, n) })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := n.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	return n
}

func shut(t testing.TB, n *agentnet.Network) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := n.Close(ctx); err != nil && ctx.Err() == nil {
		t.Error(err)
	}
}

func worker(capabilities ...string) agentnet.Registration {
	return agentnet.Registration{Handle: "worker-1", AgentType: "tdd-engineer", Capabilities: capabilities, Scope: agentnet.ScopeProject, Visibility: agentnet.Public}
}

func dispatcher() agentnet.Registration {
	return agentnet.Registration{Handle: "boss", AgentType: "dispatcher", Capabilities: []string{"coordination"},
		Scope: agentnet.ScopeCrossProject, Visibility: agentnet.Public}
}

func register(t testing.TB, n *agentnet.Network, r agentnet.Registration) *agentnet.Agent {
	t.Helper()
	a, err := n.Register(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// await looks again and again until condition holds.
func await(t testing.TB, what string, condition func() bool) {
	t.Helper()
	if !comes(t, condition) {
		t.Fatalf("it does not come: %s", what)
	}
}

// comes looks again and again whether condition holds, and reports whether it did in
// time. Unlike await it is for any goroutine.
func comes(t testing.TB, condition func() bool) bool {
	// Longer than the pause between two attempts to connect, MaxBackoff.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for !condition() {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// category is that of an error, "" for none.
func category(err error) agentnet.Code {
	if e, ok := errors.AsType[*agentnet.Error](err); ok {
		return e.Code
	}
	if err != nil {
		return agentnet.Code(err.Error())
	}
	return ""
}

func wants(t testing.TB, err error, c agentnet.Code, part string) {
	t.Helper()
	if category(err) != c || !strings.Contains(err.Error(), part) {
		t.Errorf("got %v, want %s: …%s…", err, c, part)
	}
}

// skewed is a clock that is off, and can be moved on.
type skewed struct{ by atomic.Int64 }

func (s *skewed) now() time.Time { return time.Now().Add(time.Duration(s.by.Load())) }

func (s *skewed) forward(d time.Duration) { s.by.Add(int64(d)) }

// still is a clock that stands still but for what the test says, however long it takes.
func (s *skewed) still() func() time.Time {
	started := time.Now()
	return func() time.Time { return started.Add(time.Duration(s.by.Load())) }
}

func guids(d agentnet.Discovery) []string {
	list := []string{}
	for _, s := range d.Agents {
		list = append(list, s.GUID)
	}
	return list
}

func discover(t testing.TB, a *agentnet.Agent, f agentnet.Filter) agentnet.Discovery {
	t.Helper()
	d, err := a.Discover(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
