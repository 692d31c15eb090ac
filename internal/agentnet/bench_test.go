package agentnet_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/claims"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

// embedded is a network on an embedded bus with the given durability.
func embedded(b *testing.B, mode bus.Durability) agentnet.Config {
	dir := b.TempDir()
	hub, err := bus.Open(b.Context(), bus.Config{DataDir: dir, Durability: mode, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = hub.Close(context.Background()) }) // the benchmark is over
	return agentnet.Config{BusConfig: store.Config{Hostname: "host", Username: "ann", ProjectPath: "/p", ProjectID: "0123456789abcdef", Logger: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context) (*bus.Bus, error) {
			return bus.Join(ctx, bus.Config{Name: "bench", Logger: slog.New(slog.DiscardHandler)}, func(ctx context.Context) (bus.Grant, error) {
				return hub.Grant(ctx, bus.GrantRequest{Access: bus.AccessNetwork})
			})
		}}}
}

// percentiles reports p50 and p95 in microseconds.
func percentiles(b *testing.B, took []time.Duration) {
	if len(took) == 0 {
		return
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*95/100].Microseconds()), "p95-µs")
}

// populate writes n entries of other agents. It returns a function that refreshes the heartbeats
// of all of them.
func populate(b *testing.B, cfg agentnet.Config, n int) (beat func()) {
	conn, err := cfg.Dial(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close(context.Background()) }) // the benchmark is over
	kv, err := conn.JetStream().KeyValue(b.Context(), "agent-registry")
	if err != nil {
		b.Fatal(err)
	}
	const format = "2006-01-02T15:04:05.000Z"
	entries := make([]registry.Entry, n)
	for i := range entries {
		now := time.Now().UTC().Format(format)
		entries[i] = registry.Entry{GUID: uuid.NewString(), AgentType: "worker", Handle: fmt.Sprint("w-", i), Hostname: "h", Scope: registry.ScopeUser, Visibility: store.Public,
			NATSURL: "nats://h:4222", Capabilities: []string{"go", "testing"}, Status: registry.Idle, RegisteredAt: now, HeartbeatInterval: 60}
	}
	beat = func() {
		for _, e := range entries {
			e.LastHeartbeat = time.Now().UTC().Format(format)
			data, err := json.Marshal(e)
			if err == nil {
				_, err = kv.Put(b.Context(), e.GUID, data)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	beat()
	return beat
}

// REQ-TEST-CROSS-009: discovery among a thousand agents.
func BenchmarkRegistry1000(b *testing.B) {
	cfg := embedded(b, bus.DurabilityCommit)
	clock := new(nettest.Clock)
	cfg.Now = clock.Now
	network := nettest.Open(b, cfg)
	a := nettest.Register(b, network, nettest.Worker("go"))
	beat := populate(b, cfg, 1000)
	b.Run("write", func(b *testing.B) {
		var took []time.Duration
		for i := 0; b.Loop(); i++ {
			clock.Forward(11 * time.Second)
			start := time.Now()
			if _, err := a.UpdatePresence(b.Context(), registry.Changes{CurrentTaskCount: &i}); err != nil {
				b.Fatal(err)
			}
			took = append(took, time.Since(start))
		}
		percentiles(b, took)
	})
	b.Run("read", func(b *testing.B) {
		var took []time.Duration
		for b.Loop() {
			start := time.Now()
			if _, _, err := a.Info(b.Context(), a.GUID()); err != nil {
				b.Fatal(err)
			}
			took = append(took, time.Since(start))
		}
		percentiles(b, took)
	})
	look := func(b *testing.B) time.Duration {
		start := time.Now()
		if _, err := network.Agents(b.Context(), registry.Filter{Capability: "go"}); err != nil {
			b.Fatal(err)
		}
		return time.Since(start)
	}
	b.Run("discover", func(b *testing.B) {
		var took []time.Duration
		for b.Loop() {
			took = append(took, look(b))
		}
		percentiles(b, took)
	})
	b.Run("discover after all have beaten", func(b *testing.B) { // the previous discovery was a minute before
		var took []time.Duration
		for b.Loop() {
			b.StopTimer()
			beat()
			b.StartTimer()
			took = append(took, look(b))
		}
		percentiles(b, took)
	})
}

// BenchmarkDiscovery finds 50 agents, by the number of registered ones.
func BenchmarkDiscovery(b *testing.B) {
	for _, n := range []int{250, 1000, 4000, 16000} {
		cfg := embedded(b, bus.DurabilityFast)
		network := nettest.Open(b, cfg)
		nettest.Register(b, network, nettest.Worker("go"))
		populate(b, cfg, n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				if found, err := network.Agents(b.Context(), registry.Filter{Capability: "go", Limit: 50}); err != nil || len(found.Agents) != 50 {
					b.Fatal(len(found.Agents), err)
				}
			}
		})
	}
}

// BenchmarkClaims claims and releases a file of a repository, by the number of claims that others have.
func BenchmarkClaims(b *testing.B) {
	for _, n := range []int{20, 60, 180, 540} {
		cfg := embedded(b, bus.DurabilityFast)
		cfg.ProjectPath = b.TempDir()
		network := nettest.Open(b, cfg)
		for holder := range n / claims.MaxClaims {
			a := nettest.Register(b, network, nettest.Worker("go"))
			for i := range claims.MaxClaims {
				if _, err := a.ClaimFiles(b.Context(), claims.Request{Paths: []string{fmt.Sprint("held/", holder, "/", i, ".go")}}); err != nil {
					b.Fatal(err)
				}
			}
		}
		a := nettest.Register(b, network, nettest.Worker("go"))
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				if _, err := a.ClaimFiles(b.Context(), claims.Request{Paths: []string{"free.go"}}); err != nil {
					b.Fatal(err)
				}
				if _, err := a.ReleaseFiles(b.Context(), func(claims.Claim) bool { return true }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkDeadLetters lists 50 dead letters, by the number that is stored.
func BenchmarkDeadLetters(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000, 50_000} {
		cfg := embedded(b, bus.DurabilityFast)
		network := nettest.Open(b, cfg)
		nettest.Register(b, network, nettest.Worker("go"))
		conn, err := cfg.Dial(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = conn.Close(context.Background()) }) // the benchmark is over
		for i := range n {
			data, err := json.Marshal(work.DeadLetter{TaskID: fmt.Sprint("t-", i), Subject: store.QueueSubject + "go", Payload: json.RawMessage("{}")})
			if err == nil {
				_, err = conn.JetStream().PublishAsync(store.DeadSubject, data)
			}
			if err != nil {
				b.Fatal(err)
			}
			if i%1000 == 999 || i == n-1 {
				<-conn.JetStream().PublishAsyncComplete()
			}
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				if list, _, err := network.DeadLetters(b.Context(), 50, ""); err != nil || len(list) != 50 {
					b.Fatal(len(list), err)
				}
			}
		})
	}
}

// BenchmarkMail measures a message from Send to the end of the recipient's Wait.
func BenchmarkMail(b *testing.B) {
	for _, mode := range []bus.Durability{bus.DurabilityCommit, bus.DurabilityFast} {
		b.Run(string(mode), func(b *testing.B) {
			cfg := embedded(b, mode)
			clock := new(nettest.Clock)
			cfg.Now = clock.Now
			boss, hand := nettest.Register(b, nettest.Open(b, cfg), nettest.Dispatcher()), nettest.Register(b, nettest.Open(b, cfg), nettest.Worker("go"))
			var took []time.Duration
			for b.Loop() {
				clock.Forward(time.Second) // for the limit of messages
				start := time.Now()
				if _, err := boss.Send(b.Context(), mail.Message{Recipient: hand.GUID(), Text: "hello"}); err != nil {
					b.Fatal(err)
				}
				if mail, _, err := hand.Wait(b.Context(), mail.Selection{}); err != nil || len(mail) == 0 {
					b.Fatal(err)
				}
				took = append(took, time.Since(start))
			}
			percentiles(b, took)
		})
	}
}

// BenchmarkWork measures how sixteen workers claim and complete items; submitting is not counted.
func BenchmarkWork(b *testing.B) {
	const workers = 16
	for _, mode := range []bus.Durability{bus.DurabilityFast, bus.DurabilityCommit} {
		b.Run(string(mode), func(b *testing.B) {
			cfg := embedded(b, mode)
			boss := nettest.Register(b, nettest.Open(b, cfg), nettest.Dispatcher())
			var agents []*agentnet.Agent
			for range workers {
				agents = append(agents, nettest.Register(b, nettest.Open(b, cfg), nettest.Worker("go")))
			}
			const items = 2000
			round := 0
			for b.Loop() {
				b.StopTimer()
				round++
				var submitting sync.WaitGroup
				for w := range workers {
					submitting.Go(func() {
						for i := w; i < items; i += workers {
							if _, err := boss.Submit(b.Context(), nettest.Item(fmt.Sprint(round, "-", i), "go")); err != nil {
								b.Error(err)
							}
						}
					})
				}
				submitting.Wait()
				b.StartTimer()
				var done atomic.Int64
				var working sync.WaitGroup
				for _, a := range agents {
					working.Go(func() {
						for done.Load() < items {
							ctx, cancel := context.WithTimeout(b.Context(), 100*time.Millisecond)
							claim, err := a.Claim(ctx, nil)
							cancel()
							if err != nil {
								b.Error(err)
								return
							}
							if claim == nil {
								continue
							}
							if err := a.Complete(b.Context(), claim.TaskID, claim.Token, work.Outcome{Success: true, Summary: "ok"}); err != nil {
								b.Error(err)
							}
							done.Add(1)
						}
					})
				}
				working.Wait()
			}
			b.ReportMetric(float64(items)*float64(b.N)/b.Elapsed().Seconds(), "items/s")
		})
	}
}

// JetStream releases the memory of idle streams after ten seconds; the Go runtime returns freed
// memory to the system within minutes.
var idleFor = flag.Duration("idle-for", 90*time.Second, "how long agents are idle before the hub's memory is measured")

const idleAgents = 1000

// BenchmarkIdleAgents measures the hub's resident memory for a thousand registered agents that
// only send heartbeats, for each way of registering. MB is the median of the second half of the run, MB-anon
// what of it is no page of the program's file, MB-most the maximum, MB-before that of the hub without agents.
// The agents register within seconds, so that their heartbeats are bursts.
func BenchmarkIdleAgents(b *testing.B) {
	// As with `parley mcp`: each agent is admitted, and has a confined connection and an inbox of its
	// own.
	b.Run("process-each", func(b *testing.B) { idle(b, nettest.NewProcess(b), store.InboxesPerAgent, enterEach) })
	b.Run("process-each-shared-inbox", func(b *testing.B) { idle(b, nettest.NewProcess(b), store.InboxesShared, enterEach) })
	b.Run("mcp-over-http", func(b *testing.B) { idle(b, nettest.NewHTTPProcess(b), store.InboxesPerAgent, openSession) })
	b.Run("registry-only", func(b *testing.B) {
		idle(b, nettest.NewProcess(b), store.InboxesPerAgent, func(b *testing.B, hub nettest.HubProcess, _ store.Inboxes) func(int) error {
			populate(b, agentnet.Config{BusConfig: store.Config{Dial: hub.Dial(bus.AccessNetwork, "")}}, idleAgents-1)
			return func(int) error { return nil }
		})
	})
}

// enterEach registers agents, each with a project of its own.
func enterEach(b *testing.B, hub nettest.HubProcess, inboxes store.Inboxes) func(int) error {
	enter := hub.Enter(dialect.NetworkJoinParams{Inboxes: string(inboxes)})
	return func(i int) error {
		l := agentnet.NewMemberships(agentnet.Config{BusConfig: store.Config{ProjectPath: fmt.Sprint("/p/", i), Inboxes: inboxes, Logger: slog.New(slog.DiscardHandler)}}, enter)
		b.Cleanup(func() { _ = l.Close(context.Background()) }) // the hub may be gone
		_, err := l.Register(b.Context(), nettest.Worker("go"))
		return err
	}
}

// openSession registers agents through MCP over HTTP, spread over twenty projects.
func openSession(b *testing.B, hub nettest.HubProcess, _ store.Inboxes) func(int) error {
	const projects = 20
	dirs := make([]string, projects)
	for i := range dirs {
		dirs[i] = b.TempDir()
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	return func(i int) error {
		url := hub.URL() + "/mcp?project=" + dirs[i%projects]
		session, err := client.Connect(b.Context(), &mcp.StreamableClientTransport{Endpoint: url}, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
		if err != nil {
			return err
		}
		b.Cleanup(func() { _ = session.Close() }) // the hub may be gone
		// A hub on a busy machine does not always answer in time.
		for attempt := 1; ; attempt++ {
			r, err := session.CallTool(b.Context(), &mcp.CallToolParams{Name: "register_agent", Arguments: map[string]any{
				"agentType": "worker", "capabilities": []string{"go"}, "scope": "project", "visibility": "public"}})
			if err == nil && r.IsError {
				err = fmt.Errorf("%s", r.Content[0].(*mcp.TextContent).Text)
			}
			if err == nil || attempt == 10 {
				return err
			}
		}
	}
}

// idle measures the hub's memory. prepare returns a function that registers one more agent. The first
// inbox decides on the kind of all, and the hub has one of its own, so the observer makes a shared one before.
func idle(b *testing.B, hub nettest.HubProcess, inboxes store.Inboxes, prepare func(*testing.B, nettest.HubProcess, store.Inboxes) func(int) error) {
	const atOnce = 16
	for b.Loop() {
		cfg := agentnet.Config{BusConfig: store.Config{Dial: hub.Dial(bus.AccessNetwork, ""), Inboxes: inboxes, Logger: slog.New(slog.DiscardHandler)}}
		observer := nettest.Open(b, cfg)
		<-time.After(*idleFor / 3)
		before := resident(b, hub.PID(), "VmRSS")
		another := prepare(b, hub, inboxes)
		var lanes sync.WaitGroup
		for lane := range atOnce {
			lanes.Go(func() {
				for i := lane; i < idleAgents; i += atOnce {
					if err := another(i); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		lanes.Wait()
		<-time.After(*idleFor / 2)
		var all, anon []float64
		for end := time.Now().Add(*idleFor / 2); time.Now().Before(end); {
			all, anon = append(all, resident(b, hub.PID(), "VmRSS")), append(anon, resident(b, hub.PID(), "RssAnon"))
			<-time.After(100 * time.Millisecond)
		}
		slices.Sort(all)
		slices.Sort(anon)
		if d, err := observer.Agents(b.Context(), registry.Filter{}); err != nil || d.Total < idleAgents-1 {
			b.Errorf("%d agents are registered: %v", d.Total, err)
		}
		b.ReportMetric(anon[len(anon)/2], "MB-anon")
		b.ReportMetric(before, "MB-before")
		b.ReportMetric(all[len(all)-1], "MB-most")
		b.ReportMetric(all[len(all)/2], "MB")
		b.ReportMetric(0, "ns/op")
	}
}

// resident returns the resident memory of a process in MB: all of it as VmRSS.
func resident(b *testing.B, pid int, kind string) float64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Skipf("resident memory is read from /proc: %v", err)
	}
	_, rest, _ := strings.Cut(string(status), kind+":")
	var kib float64
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		b.Fatal(err)
	}
	return kib * 1024 / 1e6
}
