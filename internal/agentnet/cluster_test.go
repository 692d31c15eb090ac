package agentnet_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/testbed"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

// cluster is three NATS nodes; each can be stopped and started again.
type cluster struct {
	t      testing.TB
	dirs   [3]string
	ports  [3]int // of clients
	routes [3]int

	mu    sync.Mutex
	nodes [3]*server.Server
}

func startCluster(t testing.TB) *cluster {
	c := &cluster{t: t}
	ports := testbed.FreePorts(t, 6)
	copy(c.ports[:], ports[:3])
	copy(c.routes[:], ports[3:])
	for i := range c.nodes {
		c.dirs[i] = t.TempDir()
		c.start(i)
	}
	t.Cleanup(func() {
		for i := range c.nodes {
			c.stop(i)
		}
	})
	wait.Eventually(t, "a leader", func() bool {
		for _, n := range c.nodes {
			if n.JetStreamIsLeader() {
				return true
			}
		}
		return false
	})
	return c
}

func (c *cluster) start(i int) {
	var routes []*url.URL
	for _, port := range c.routes {
		routes = append(routes, &url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", port)})
	}
	srv, err := server.NewServer(&server.Options{ServerName: fmt.Sprint("n", i), Host: "127.0.0.1", Port: c.ports[i], JetStream: true, StoreDir: c.dirs[i],
		NoSigs: true, NoLog: true, Routes: routes, Cluster: server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: c.routes[i]}})
	if err != nil {
		c.t.Fatal(err)
	}
	srv.Start()
	if !srv.ReadyForConnections(20 * time.Second) {
		c.t.Fatal("a node does not start")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[i] = srv
}

func (c *cluster) stop(i int) {
	c.mu.Lock()
	srv := c.nodes[i]
	c.nodes[i] = nil
	c.mu.Unlock()
	if srv != nil {
		srv.Shutdown()
		srv.WaitForShutdown()
	}
}

func (c *cluster) computer(name string) agentnet.Config {
	var urls []string
	for _, port := range c.ports {
		urls = append(urls, fmt.Sprintf("nats://127.0.0.1:%d", port))
	}
	return agentnet.Config{BusConfig: store.Config{
		Hostname: name, Username: "ann", ProjectPath: "/home/ann/shop", ProjectID: "0123456789abcdef", AckTimeout: 2 * time.Second, MaxAttempts: 10,
		Logger: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context) (*bus.Bus, error) {
			return bus.Open(ctx, bus.Config{URL: bus.Secret(strings.Join(urls, ",")), Logger: slog.New(slog.DiscardHandler)})
		},
	}}
}

// Nodes are stopped and restarted one after the other while work and mail are submitted: every
// item finishes once, and every acknowledged message is read once.
func TestAClusterLosesNothingWhenNodesRestart(t *testing.T) {
	t.Parallel()
	const items, mails = 60, 40
	c := startCluster(t)
	boss := nettest.Register(t, nettest.Open(t, c.computer("host-a")), nettest.Dispatcher())
	hand := nettest.Register(t, nettest.Open(t, c.computer("host-b")), nettest.Worker("go"))
	if err := retried(t, func(ctx context.Context) error {
		_, err := boss.Submit(ctx, nettest.Item("first", "go"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var running sync.WaitGroup
	running.Go(func() { // the nodes
		for i := 0; i < 3 && ctx.Err() == nil; i++ {
			node := rand.IntN(3)
			c.stop(node)
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
			c.start(node)
			select {
			case <-time.After(2 * time.Second):
			case <-ctx.Done():
			}
		}
	})
	var sent []string
	running.Go(func() { // mail
		for i := range mails {
			text := fmt.Sprint("mail ", i)
			if err := retried(t, func(ctx context.Context) error {
				_, err := boss.Send(ctx, mail.Message{Recipient: hand.GUID(), Text: text})
				if err != nil && nettest.CategoryOf(err) == store.ConnectionError {
					text += "+" // the failed one may be stored: the next text must differ
				}
				return err
			}); err != nil {
				t.Error(err)
				return
			}
			sent = append(sent, text)
		}
	})
	running.Go(func() { // work
		for i := range items {
			id := fmt.Sprint("T", i)
			if err := retried(t, func(ctx context.Context) error { _, err := boss.Submit(ctx, nettest.Item(id, "go")); return err }); err != nil {
				t.Error(id, err)
			}
		}
	})
	running.Go(func() { // the worker
		for ctx.Err() == nil {
			turn, cancel := context.WithTimeout(ctx, 3*time.Second)
			claim, err := hand.Claim(turn, nil)
			cancel()
			if err != nil || claim == nil {
				continue
			}
			if err := retried(t, func(ctx context.Context) error {
				return hand.Complete(ctx, claim.TaskID, claim.Token, work.Outcome{Success: true, Summary: "ok"})
			}); err != nil {
				t.Log(claim.TaskID, err) // too late: the item is delivered again
			}
		}
	})
	states := map[work.ItemState]int{}
	wait.Eventually(t, "the end of all items", func() bool {
		clear(states)
		for i := range items {
			s, err := boss.Item(t.Context(), fmt.Sprint("T", i), false)
			if err != nil {
				return false
			}
			states[s.State]++
		}
		return states[work.Completed]+states[work.Dead] == items
	})
	stop()
	running.Wait()
	if states[work.Completed] != items {
		t.Logf("%v", states)
	}
	read := map[string]int{}
	wait.Eventually(t, "all mail", func() bool {
		for _, text := range nettest.TryTexts(t, hand) {
			read[text]++
		}
		for _, text := range sent {
			if read[text] == 0 {
				return false
			}
		}
		return true
	})
	for text, times := range read {
		if times != 1 {
			t.Errorf("%s was read %d times", text, times)
		}
	}
}

// retried repeats f while the network cannot be reached.
func retried(t testing.TB, f func(context.Context) error) error {
	deadline, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		ctx, cancel := context.WithTimeout(deadline, 5*time.Second)
		err := f(ctx)
		cancel()
		if err == nil || nettest.CategoryOf(err) != store.ConnectionError || deadline.Err() != nil {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-deadline.Done():
		}
	}
}
