// Package nettest has support for tests of the agents' network: simulated computers on a NATS
// server, their agents, hubs in processes of their own, and assertions.
package nettest

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/testbed"
)

// Server is a stock server with computers on it.
type Server struct {
	*testbed.Server
	t testing.TB
}

// StartServer runs a server until the test ends.
func StartServer(t testing.TB, changes ...func(*server.Options)) *Server {
	return &Server{testbed.StartNATS(t, changes...), t}
}

// Listeners counts the clients' subscriptions to a subject.
func (n *Server) Listeners(subject string) int {
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

// Logs is a log that can be read while it is written.
type Logs struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (l *Logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns what was logged.
func (l *Logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Host returns the configuration of a simulated computer: a name, a user, a project and a
// state directory of its own.
func (n *Server) Host(name, user, project string) agentnet.Config {
	return agentnet.Config{BusConfig: store.Config{
		Hostname: name, Username: user, ProjectPath: "/home/" + user + "/" + project, ProjectID: fmt.Sprintf("%016x", len(project))[:15] + project[:1],
		Logger: slog.New(slog.DiscardHandler),
		Dial:   Dialer(n),
	}}
}

// Open opens a network and waits until it can be used.
func Open(t testing.TB, cfg agentnet.Config) *agentnet.Network {
	t.Helper()
	n := agentnet.Open(cfg)
	t.Cleanup(func() { Shut(t, n) })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := n.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	return n
}

// Shut closes a network.
func Shut(t testing.TB, n *agentnet.Network) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := n.Close(ctx); err != nil && ctx.Err() == nil {
		t.Error(err)
	}
}

// Worker is the registration of an agent that works.
func Worker(capabilities ...string) registry.Registration {
	return registry.Registration{Handle: "worker-1", AgentType: "tdd-engineer", Capabilities: capabilities, Scope: registry.ScopeProject, Visibility: store.Public}
}

// Dispatcher is the registration of an agent that submits work.
func Dispatcher() registry.Registration {
	return registry.Registration{Handle: "boss", AgentType: "dispatcher", Capabilities: []string{"coordination"},
		Scope: registry.ScopeCrossProject, Visibility: store.Public}
}

// Register registers an agent.
func Register(t testing.TB, n *agentnet.Network, r registry.Registration) *agentnet.Agent {
	t.Helper()
	a, err := n.Register(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Comes polls until condition holds, and reports whether it did within two minutes. Unlike
// wait.Eventually it may be called from any goroutine.
func Comes(t testing.TB, condition func() bool) bool {
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

// CategoryOf returns the category of an error, "" for none.
func CategoryOf(err error) store.Code {
	if code := store.CodeOf(err); code != "" || err == nil {
		return code
	}
	return store.Code(err.Error())
}

// Wants expects an error of a category whose text contains part.
func Wants(t testing.TB, err error, c store.Code, part string) {
	t.Helper()
	if CategoryOf(err) != c || !strings.Contains(err.Error(), part) {
		t.Errorf("got %v, want %s: …%s…", err, c, part)
	}
}

// Clock is a clock with an adjustable offset.
type Clock struct{ by atomic.Int64 }

// Now returns the time of the clock.
func (s *Clock) Now() time.Time { return time.Now().Add(time.Duration(s.by.Load())) }

// Forward moves the clock.
func (s *Clock) Forward(d time.Duration) { s.by.Add(int64(d)) }

// Still returns a clock that only Forward moves.
func (s *Clock) Still() func() time.Time {
	started := time.Now()
	return func() time.Time { return started.Add(time.Duration(s.by.Load())) }
}

// GUIDs lists those of the agents found.
func GUIDs(d registry.Discovery) []string {
	list := []string{}
	for _, s := range d.Agents {
		list = append(list, s.GUID)
	}
	return list
}

// Discover discovers agents.
func Discover(t testing.TB, a *agentnet.Agent, f registry.Filter) registry.Discovery {
	t.Helper()
	d, err := a.Discover(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Pair is two agents on two hosts.
func Pair(t testing.TB, n *Server) (boss, hand *agentnet.Agent) {
	return Register(t, Open(t, n.Host("host-a", "ann", "shop")), Dispatcher()),
		Register(t, Open(t, n.Host("host-b", "bob", "blog")), Worker("typescript"))
}

// SendText sends a message.
func SendText(t testing.TB, from, to *agentnet.Agent, text string) mail.Sent {
	t.Helper()
	s, err := from.Send(t.Context(), mail.Message{Recipient: to.GUID(), Text: text})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// ReadTexts reads mail.
func ReadTexts(t testing.TB, a *agentnet.Agent, s mail.Selection) []string {
	t.Helper()
	mail, _, err := a.Read(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	texts := []string{}
	for _, m := range mail {
		texts = append(texts, m.Text)
	}
	return texts
}

// Submit submits an item.
func Submit(t testing.TB, a *agentnet.Agent, taskID, capability string) {
	t.Helper()
	if _, err := a.Submit(t.Context(), Item(taskID, capability)); err != nil {
		t.Fatal(err)
	}
}

// Item is a submission.
func Item(taskID, capability string) work.Submission {
	return work.Submission{Capability: capability, Offer: mail.Offer{TaskID: taskID, Description: "do " + taskID, ContextData: map[string]any{"n": 1.0}}}
}

// Claim claims an item, which must come within 30 seconds.
func Claim(t testing.TB, a *agentnet.Agent, capabilities ...string) *work.Claim {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c, err := a.Claim(ctx, capabilities)
	if err != nil || c == nil {
		t.Fatalf("no item: %v, %v", c, err)
	}
	return c
}

// NoClaim expects that there is no item.
func NoClaim(t testing.TB, a *agentnet.Agent, capabilities ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if c, err := a.Claim(ctx, capabilities); c != nil || err != nil {
		t.Errorf("there is an item: %+v, %v", c, err)
	}
}

// State returns an item's status.
func State(t testing.TB, a *agentnet.Agent, taskID string) work.ItemStatus {
	t.Helper()
	s, err := a.Item(t.Context(), taskID, false)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// DeadLetters lists dead letters.
func DeadLetters(t testing.TB, a *agentnet.Agent, capability string) []work.DeadLetter {
	t.Helper()
	list, _, err := a.DeadLetters(t.Context(), 0, capability)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// Short returns a network configuration with short leases.
func (n *Server) Short(host string) agentnet.Config {
	cfg := n.Host(host, "ann", "shop")
	cfg.AckTimeout = time.Second
	return cfg
}

// Dialer connects to a server.
func Dialer(n *Server) func(context.Context) (*bus.Bus, error) {
	return func(ctx context.Context) (*bus.Bus, error) { return DialerTo(n.URL())(ctx) }
}

// DialerTo connects to a URL.
func DialerTo(url string) func(context.Context) (*bus.Bus, error) {
	return func(ctx context.Context) (*bus.Bus, error) {
		return bus.Open(ctx, bus.Config{URL: bus.Secret(url), Logger: slog.New(slog.DiscardHandler)})
	}
}

// TryTexts reads mail; it returns none while the connection is being restored.
func TryTexts(t *testing.T, a *agentnet.Agent) (texts []string) {
	mail, _, err := a.Read(t.Context(), mail.Selection{})
	if err != nil && CategoryOf(err) != store.ConnectionError {
		t.Error(err)
	}
	for _, m := range mail {
		texts = append(texts, m.Text)
	}
	return texts
}

// WithBeat sets the pace of heartbeats, which no entry can name below ten seconds.
func WithBeat(cfg agentnet.Config, every time.Duration) agentnet.Config {
	cfg.BeatEvery = every
	return cfg
}

// Complete completes an item.
func Complete(t *testing.T, a *agentnet.Agent, c *work.Claim) {
	t.Helper()
	if err := a.Complete(t.Context(), c.TaskID, c.Token, work.Outcome{Success: true, Summary: "done"}); err != nil {
		t.Fatal(err)
	}
}
