package agentnet_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/testbed"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

// node is a server process's part of the cluster configuration.
type node struct {
	Name   string
	Port   int      // of routes
	Routes []string // to the other nodes, each through its own proxy
}

// join makes a server a node of a cluster. It does not advertise its real address, so the other
// nodes reach it only through their proxies.
func (n node) join(opts *server.Options) error {
	opts.ServerName = n.Name
	opts.Cluster = server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: n.Port, Advertise: "127.0.0.1:1"}
	for _, r := range n.Routes {
		u, err := url.Parse(r)
		if err != nil {
			return err
		}
		opts.Routes = append(opts.Routes, u)
	}
	return nil
}

// clusterVictim starts three stock servers in processes of their own. Its faults kill, suspend or
// isolate one node at a time, in both directions or in one.
func clusterVictim(t *testing.T) victim {
	const nodes = 3
	ports := testbed.FreePorts(t, 2*nodes)
	clients, routes := ports[:nodes], ports[nodes:]
	var links [nodes][nodes]*nettest.Proxy
	for i := range nodes {
		for j := range nodes {
			if i != j {
				links[i][j] = nettest.StartProxy(t, fmt.Sprintf("127.0.0.1:%d", routes[j]))
			}
		}
	}
	var urls []string
	var dirs [nodes]string
	var servers [nodes]*child
	start := func(i int) {
		n := node{Name: fmt.Sprint("n", i), Port: routes[i]}
		for j := range nodes {
			if i != j {
				n.Routes = append(n.Routes, links[i][j].URL())
			}
		}
		notified, err := json.Marshal(n)
		if err != nil {
			t.Fatal(err)
		}
		servers[i] = startChild(t, "server", fmt.Sprintf("127.0.0.1:%d", clients[i]), dirs[i], string(notified), func(event) {})
	}
	for i := range nodes {
		dirs[i] = t.TempDir()
		urls = append(urls, fmt.Sprintf("nats://127.0.0.1:%d", clients[i]))
		start(i)
		t.Cleanup(func() { servers[i].kill() })
	}
	cutOff := func(i int, down bool) {
		for j := range nodes {
			if i != j {
				links[i][j].SetDown(down)
				links[j][i].SetDown(down)
			}
		}
	}
	// What a node sends, or what is sent to it, is lost, until its connections are cut.
	deafen := func(i int, lost func(fromNode bool) bool) {
		for j := range nodes {
			if i != j {
				links[i][j].SetTap(func(toServer bool, _ []byte) bool { return !lost(toServer) })
				links[j][i].SetTap(func(toServer bool, _ []byte) bool { return !lost(!toServer) })
			}
		}
	}
	hear := func(i int) {
		for j := range nodes {
			if i != j {
				for _, l := range []*nettest.Proxy{links[i][j], links[j][i]} {
					l.SetTap(nil)
					l.Cut()
				}
			}
		}
	}
	away := func() { <-time.After(time.Duration(500+rand.IntN(2500)) * time.Millisecond) }
	at := strings.Join(urls, ",")
	return victim{at: at, workersAt: at, presence: true, dial: killDial(at), faults: map[string]func(){
		"node killed":    func() { i := rand.IntN(nodes); servers[i].kill(); away(); start(i) },
		"node suspended": func() { nap(servers[rand.IntN(nodes)].pid()) },
		"node cut off":   func() { i := rand.IntN(nodes); cutOff(i, true); away(); cutOff(i, false) },
		"node not heard": func() {
			i := rand.IntN(nodes)
			deafen(i, func(fromNode bool) bool { return fromNode })
			away()
			hear(i)
		},
		"node hears nobody": func() {
			i := rand.IntN(nodes)
			deafen(i, func(fromNode bool) bool { return !fromNode })
			away()
			hear(i)
		},
	}}
}

// serverOptions returns the options of a server process, alone or in a cluster.
func serverOptions(host, dir string) (*server.Options, error) {
	opts := &server.Options{Host: host, JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true}
	notified := os.Getenv(childRole + "_NAME")
	if notified == "" {
		return opts, nil
	}
	var n node
	if err := json.Unmarshal([]byte(notified), &n); err != nil {
		return nil, err
	}
	return opts, n.join(opts)
}

// beatEvery is the heartbeat interval of the workers' processes, the shortest one allowed.
const beatEvery = 10 * time.Second

// judgePresence checks how the registry shows an agent whose process was just killed: live for
// three heartbeats by the servers' clock, here this computer's, then offline. The agents in live
// must stay online.
func judgePresence(t *testing.T, observer *agentnet.Agent, killed string, live []string) {
	t.Helper()
	var end time.Time
	ended := nettest.Comes(t, func() bool {
		before := time.Now()
		e, seen, err := observer.Info(t.Context(), killed)
		after := time.Now()
		gone := nettest.CategoryOf(err) == store.NotFoundError || err == nil && seen == registry.Gone
		if err != nil && !gone {
			return false // no answer
		}
		if err == nil {
			last, err := time.Parse(time.RFC3339Nano, e.LastHeartbeat)
			if err != nil {
				t.Error(err)
				return true
			}
			end = last.Add(3 * beatEvery)
		}
		switch {
		case gone && after.Before(end.Add(-killSlack)):
			t.Errorf("%s is offline %v before three heartbeats were missed", killed, end.Sub(after))
		case !gone && before.After(end.Add(beatEvery)): // late on a busy machine, but not by a heartbeat
			t.Errorf("%s is %s %v after three heartbeats were missed", killed, seen, before.Sub(end))
			return true
		}
		return gone
	})
	if !ended {
		t.Errorf("the killed agent %s is not shown as offline", killed)
	}
	for _, guid := range live {
		if !nettest.Comes(t, func() bool {
			_, seen, err := observer.Info(t.Context(), guid)
			return err == nil && seen != registry.Gone
		}) {
			t.Errorf("the live agent %s is not shown as online", guid)
		}
	}
}

// sendUntil sends mail at the rate that the limit allows until done is closed.
func (l *letters) sendUntil(t *testing.T, done <-chan struct{}) {
	pace := time.NewTicker(700 * time.Millisecond)
	defer pace.Stop()
	for i := 0; ; i++ {
		l.sendOne(t, i)
		select {
		case <-pace.C:
		case <-done:
			return
		}
	}
}

// judgeMail waits until all acknowledged mail was read, ends the reading, and reports what is
// wrong.
func (l *letters) judgeMail(t *testing.T, stop func(), reading *sync.WaitGroup) {
	t.Helper()
	wait.Eventually(t, "all mail", l.allRead)
	stop()
	reading.Wait()
	for _, w := range l.judge("mail") {
		t.Error(w)
	}
}
