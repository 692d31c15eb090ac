package bus_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/testbed"
)

// patience bounds what other processes and servers do in the background.
const patience = 2 * time.Minute

// team is a stock server with a port for leaf nodes.
type team struct {
	*testbed.Server
	leaf int
}

// startTeam starts a server. leafnodes and jetstream are further settings of these blocks.
func startTeam(t *testing.T, leafnodes, jetstream string) team {
	t.Helper()
	port := testbed.FreePorts(t, 1)[0]
	return team{testbed.StartNATS(t, testbed.Configured(t, teamConfig(port, leafnodes, jetstream))), port}
}

func teamConfig(leaf int, leafnodes, jetstream string) string {
	return fmt.Sprintf(`
jetstream {
  %s
}
leafnodes {
  listen: "127.0.0.1:%d"
  %s
}
accounts {
  AGENTS { jetstream: enabled, users: [ { user: hub, password: secret-of-the-hub }, { user: operator, password: op } ] }
  OTHERS { jetstream: enabled, users: [ { user: others, password: o } ] }
  SYS { users: [ { user: admin, password: s } ] }
}
system_account: SYS
`, jetstream, leaf, leafnodes)
}

func (s team) url() string { return fmt.Sprintf("nats://127.0.0.1:%d", s.leaf) }

// linked opens a hub's bus with a link to the server at url.
func linked(t *testing.T, url string, change func(*bus.LeafConfig)) *bus.Bus {
	t.Helper()
	return open(t, leafHub(t.TempDir(), url, change))
}

func leafHub(dir, url string, change func(*bus.LeafConfig)) bus.Config {
	cfg := bus.Config{DataDir: dir, Leaf: bus.LeafConfig{URL: bus.Secret(url), Domain: "team",
		Credentials: bus.Credentials{User: "hub", Password: "secret-of-the-hub"}}}
	if change != nil {
		change(&cfg.Leaf)
	}
	return cfg
}

func awaitLeaf(t *testing.T, b *bus.Bus, ok func(bus.LeafInfo) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for !ok(*b.Info().Leaf) {
		select {
		case <-ctx.Done():
			t.Fatalf("the link is %+v", b.Info().Leaf)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func stands(i bus.LeafInfo) bool { return i.State == bus.StateConnected }

// throughHub requests grants for the cluster from a hub.
func throughHub(hub func() *bus.Bus, req bus.GrantRequest) bus.Ask {
	return func(ctx context.Context) (bus.Grant, error) { return hub().Grant(ctx, req) }
}

var whole = bus.GrantRequest{Access: bus.AccessCluster}

// A process reaches the cluster through the hub, which alone has the credentials. Neither stores
// the other's messages.
func TestTheClusterIsReachedThroughTheHubsLink(t *testing.T) {
	t.Parallel()
	s := startTeam(t, "", "domain: team")
	hub := linked(t, s.url(), nil)
	ensureStream(t, hub, "TASKS", "global.>")
	awaitLeaf(t, hub, stands)
	b := joinWith(t, bus.Config{Name: "agent"}, throughHub(func() *bus.Bus { return hub }, whole))
	if i := b.Info(); i.Kind != bus.KindLinked || i.URL != s.url() || i.Durability != "" || strings.Contains(fmt.Sprintf("%+v", i), "secret") {
		t.Errorf("Info = %+v", i)
	}
	ensureStream(t, b, "WORK", "global.work.>")
	if _, err := b.Publish(t.Context(), &nats.Msg{Subject: "global.work.1", Data: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	kv, err := b.EnsureKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "registry"})
	must(t, err)
	first, err := kv.Create(t.Context(), "ann", []byte("1"))
	must(t, err)
	if _, err := kv.Update(t.Context(), "ann", []byte("2"), first); err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Update(t.Context(), "ann", []byte("3"), first); !errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
		t.Errorf("a put with an old revision: %v", err)
	}
	consumer, err := b.JetStream().CreateConsumer(t.Context(), "WORK", jetstream.ConsumerConfig{Durable: "workers", AckPolicy: jetstream.AckExplicitPolicy})
	must(t, err)
	m, err := consumer.Next(jetstream.FetchMaxWait(patience))
	must(t, err)
	must(t, m.DoubleAck(t.Context()))

	tasks, err := hub.JetStream().Stream(t.Context(), "TASKS")
	must(t, err)
	if n := tasks.CachedInfo().State.Msgs; n != 0 {
		t.Errorf("the hub has stored %d messages of the cluster", n)
	}
	there := operator(t, s)
	for name := range there.StreamNames(t.Context()).Name() {
		if name != "WORK" && name != "KV_registry" {
			t.Errorf("the cluster has a stream %s", name)
		}
	}
}

func operator(t *testing.T, s team) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(s.URL(), nats.UserInfo("operator", "op"))
	must(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	must(t, err)
	return js
}

// When the link fails, connections through it see an outage and a reconnect of the cluster. The
// hub's own bus continues, and refuses grants for the cluster with the reason.
func TestAFailedLinkDisconnectsItsUsers(t *testing.T) {
	t.Parallel()
	s := startTeam(t, "", "domain: team")
	hub := linked(t, s.url(), nil)
	awaitLeaf(t, hub, stands)
	b := joinWith(t, bus.Config{Name: "agent"}, throughHub(func() *bus.Bus { return hub }, whole))
	here := joinWith(t, bus.Config{Name: "near"}, throughHub(func() *bus.Bus { return hub }, bus.GrantRequest{Access: bus.AccessNetwork}))
	unused, err := hub.Grant(t.Context(), whole)
	must(t, err)

	s.Stop()
	awaitInfo(t, b, func(i bus.Info) bool {
		return i.State == bus.StateReconnecting && strings.Contains(i.LastError, "no link")
	})
	awaitLeaf(t, hub, func(i bus.LeafInfo) bool {
		return strings.Contains(i.LastError, "no NATS server is running") && i.Remedy != ""
	})
	if _, err := hub.Grant(t.Context(), whole); bus.CodeOf(err) != bus.CodeNotRunning || !strings.Contains(err.Error(), "the hub has no link") {
		t.Errorf("a grant without a link: %v", err)
	}
	if nc, err := connectWith(unused); err == nil {
		nc.Close()
		t.Error("a credential from before the failure is still accepted")
	}
	ensureStream(t, here, "NEAR", "near.>")

	s.Start()
	awaitLeaf(t, hub, stands)
	awaitInfo(t, b, func(i bus.Info) bool { return i.State == bus.StateConnected && i.Reconnects == 1 })
	ensureStream(t, b, "BACK", "back")
}

// After a restart of the hub, a joined bus requests a new grant and uses the new link.
func TestARestartedHubRestoresTheLink(t *testing.T) {
	t.Parallel()
	s := startTeam(t, "", "domain: team")
	cfg := leafHub(t.TempDir(), s.url(), nil)
	hub, err := bus.Open(t.Context(), cfg)
	must(t, err)
	ensureStream(t, hub, "TASKS", "tasks.>")
	awaitLeaf(t, hub, stands)
	current := make(chan *bus.Bus, 1)
	current <- hub
	b := joinWith(t, bus.Config{Name: "agent"}, throughHub(func() *bus.Bus {
		now := <-current
		current <- now
		return now
	}, whole))
	must(t, hub.Close(context.Background()))
	again := open(t, cfg)
	<-current
	current <- again
	awaitInfo(t, b, func(i bus.Info) bool { return i.State == bus.StateConnected && i.Reconnects > 0 })
	ensureStream(t, b, "BACK", "back")
	if _, err := again.JetStream().Stream(t.Context(), "TASKS"); err != nil {
		t.Errorf("the hub's own stream: %v", err)
	}
}

// Two hubs have two links, though they run the same program.
func TestTwoHubsAreLinkedToOneCluster(t *testing.T) {
	t.Parallel()
	s := startTeam(t, "", "domain: team")
	one, two := linked(t, s.url(), nil), linked(t, s.url(), nil)
	awaitLeaf(t, one, stands)
	awaitLeaf(t, two, stands)
	a := joinWith(t, bus.Config{}, throughHub(func() *bus.Bus { return one }, whole))
	b := joinWith(t, bus.Config{}, throughHub(func() *bus.Bus { return two }, whole))
	received, err := b.Conn().SubscribeSync("global.agent.b")
	must(t, err)
	must(t, b.Conn().Flush())
	own, err := b.Conn().SubscribeSync("global.hub.desk.x")
	must(t, err)
	must(t, b.Conn().Flush())
	for end := time.Now().Add(patience); ; { // the servers exchange subscriptions in the background
		must(t, a.Conn().Publish("global.hub.desk.x", nil))
		must(t, a.Conn().Publish("global.agent.b", []byte("hello")))
		if _, err := received.NextMsg(100 * time.Millisecond); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the other computer receives nothing")
		}
	}
	if m, err := own.NextMsg(100 * time.Millisecond); err == nil {
		t.Errorf("a subject of the hub's own was forwarded: %s", m.Subject)
	}
	if !stands(*one.Info().Leaf) || !stands(*two.Info().Leaf) {
		t.Errorf("%+v, %+v", one.Info().Leaf, two.Info().Leaf)
	}
}

// Through the link an agent can use only the subjects of its permissions, under any prefix.
func TestAnAgentIsConfinedBehindTheLink(t *testing.T) {
	t.Parallel()
	s := startTeam(t, "", "domain: team")
	hub := linked(t, s.url(), nil)
	awaitLeaf(t, hub, stands)
	b := joinWith(t, bus.Config{}, throughHub(func() *bus.Bus { return hub }, whole))
	if _, err := b.EnsureKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "registry"}); err != nil {
		t.Fatal(err)
	}
	ensureStream(t, b, "OTHER", "other")
	g, err := hub.Grant(t.Context(), bus.GrantRequest{Access: bus.AccessAgent, Cluster: true,
		Publish: []string{"$JS.API.INFO", "$KV.registry.me", "$JS.API.STREAM.INFO.KV_registry"}, Subscribe: []string{"_INBOX.me.>"}})
	must(t, err)
	nc, err := connectWith(g, nats.CustomInboxPrefix("_INBOX.me"), nats.PermissionErrOnSubscribe(true), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	must(t, err)
	defer nc.Close()
	for _, allowed := range []string{"$KV.registry.me", "$JS.API.STREAM.INFO.KV_registry"} {
		if m, err := nc.Request(allowed, nil, patience); err != nil || strings.Contains(string(m.Data), "error") {
			t.Errorf("%s: %v", allowed, err)
		}
	}
	for _, refused := range []string{"$KV.registry.other", "$JS.team.API.$KV.registry.other", "$JS.API.STREAM.INFO.OTHER", "$JS.team.API.STREAM.INFO.OTHER",
		"$JS.API.STREAM.DELETE.OTHER", "$JS.team.API.STREAM.DELETE.OTHER", "$JS.API.CONSUMER.CREATE.OTHER", "other", "$JS.API.STREAM.NAMES"} {
		if m, err := nc.Request(refused, nil, 100*time.Millisecond); err == nil {
			t.Errorf("%s is answered: %s", refused, m.Data)
		}
		if !strings.Contains(fmt.Sprint(nc.LastError()), "ermissions") {
			t.Errorf("%s: %v", refused, nc.LastError())
		}
	}
	for _, refused := range []string{">", "other", "_INBOX.>", "global.>", "$JS.>", "$KV.>"} {
		if sub, err := nc.SubscribeSync(refused); err == nil {
			_ = nc.Flush() // the error reaches the handler
			if _, err := sub.NextMsg(patience); !errors.Is(err, nats.ErrPermissionViolation) {
				t.Errorf("to subscribe to %s: %v", refused, err)
			}
		}
	}
	for _, wrong := range []bus.GrantRequest{{Access: bus.AccessAgent, Cluster: true}, {Access: bus.AccessProject, Cluster: true}, {Access: bus.AccessCluster, Namespace: "x"}} {
		if _, err := hub.Grant(t.Context(), wrong); bus.CodeOf(err) != bus.CodeConfig {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
	if _, err := open(t, bus.Config{DataDir: t.TempDir()}).Grant(t.Context(), whole); bus.CodeOf(err) != bus.CodeUnsupported {
		t.Errorf("a hub without a link: %v", err)
	}
	if err := hub.Revoke("agents-cluster.hub"); bus.CodeOf(err) != bus.CodeConfig {
		t.Errorf("Revoke of the hub's own user: %v", err)
	}
}

// A message that is too large for the cluster is refused at the hub: otherwise the cluster would
// cut the link for everybody.
func TestAMessageTooLargeForTheClusterDoesNotCutTheLink(t *testing.T) {
	t.Parallel()
	s := startTeam(t, "", "domain: team")
	hub := linked(t, s.url(), nil)
	awaitLeaf(t, hub, stands)
	since := hub.Info().Leaf.Since
	b := joinWith(t, bus.Config{}, throughHub(func() *bus.Bus { return hub }, whole))
	ensureStream(t, b, "BIG", "big")
	if _, err := b.Publish(t.Context(), &nats.Msg{Subject: "big", Data: make([]byte, 2<<20)}); !errors.Is(err, nats.ErrMaxPayload) {
		t.Errorf("a client that checks the limit: %v", err)
	}
	g, err := hub.Grant(t.Context(), whole)
	must(t, err)
	rude, err := net.Dial("tcp", g.Address)
	must(t, err)
	defer rude.Close() //nolint:errcheck // a test's
	fmt.Fprintf(rude, "CONNECT {\"verbose\":false,\"user\":%q,\"pass\":%q}\r\nPUB big %d\r\n", g.User, string(g.Password), 2<<20)
	answers := bufio.NewScanner(rude)
	for answers.Scan() && !strings.Contains(answers.Text(), "-ERR") {
	}
	if !strings.Contains(answers.Text(), "Maximum Payload") {
		t.Errorf("a client that ignores the limit gets %q", answers.Text())
	}
	if _, err := b.Publish(t.Context(), &nats.Msg{Subject: "big", Data: make([]byte, 1<<19)}); err != nil {
		t.Error(err)
	}
	if i := hub.Info().Leaf; !stands(*i) || !i.Since.Equal(since) || i.MaxPayload != 1<<20 {
		t.Errorf("the link is %+v", i)
	}
}

// Each reason for a missing link has its own message and remedy, and the hub's bus still works.
func TestWhyThereIsNoLink(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	cert, key := ca.issue(t, "server", "nats.example")
	withTLS := fmt.Sprintf("tls { cert_file: %q, key_file: %q }", cert, key)
	plain := startTeam(t, "", "domain: team")
	secured := startTeam(t, withTLS, "domain: team")
	named := func(c *bus.LeafConfig) { c.Credentials.TLS, c.Credentials.ServerName = true, "nats.example" }
	without := startTeam(t, "", "")
	other := startTeam(t, "", "domain: other")
	nothing := closedPort(t)
	stranger := serve(t, func(c net.Conn) { fmt.Fprint(c, "SSH-2.0-OpenSSH\r\n") })
	tests := []struct {
		name, url  string
		change     func(*bus.LeafConfig)
		why, advic string
	}{
		{"nothing listens", "nats://" + nothing, nil, "no NATS server is running", "start it"},
		{"the port of clients", plain.URL(), nil, "is not a leaf node port", "7422"},
		{"not NATS", "nats://" + stranger, nil, "not a NATS server", ""},
		{"wrong password", plain.url(), func(c *bus.LeafConfig) { c.Credentials.Password = "wrong" }, "refused the hub's credentials", "bus.leaf"},
		{"no credentials", plain.url(), func(c *bus.LeafConfig) { c.Credentials = bus.Credentials{} }, "refused the hub's credentials", "bus.leaf"},
		{"TLS demanded, none there", strings.Replace(plain.url(), "nats://", "tls://", 1), nil, "has no TLS", "bus.leaf.tlsRequired"},
		{"an unknown authority", secured.url(), named, "unknown authority", "CA"},
		{"no domain", without.url(), nil, "has no JetStream domain", "domain: team"},
		{"another domain", other.url(), nil, `"other", not "team"`, "bus.leaf.domain"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			hub := linked(t, tt.url, tt.change)
			ensureStream(t, hub, "TASKS", "tasks.>")
			awaitLeaf(t, hub, func(i bus.LeafInfo) bool {
				if stands(i) {
					t.Fatalf("the link is up: %+v", i)
				}
				return strings.Contains(i.LastError, tt.why) && strings.Contains(i.Remedy, tt.advic)
			})
			if _, err := hub.Grant(t.Context(), whole); err == nil || strings.Contains(err.Error(), "secret-of-the-hub") || !strings.Contains(err.Error(), tt.why) {
				t.Errorf("a grant: %v", err)
			}
		})
	}
	t.Run("TLS with the authority", func(t *testing.T) {
		hub := linked(t, secured.url(), func(c *bus.LeafConfig) { named(c); c.Credentials.CAFile = ca.file })
		awaitLeaf(t, hub, stands)
	})
}

func TestInvalidLeafConfigurationsAreRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*bus.LeafConfig){
		"no domain":     func(c *bus.LeafConfig) { c.Domain = "" },
		"a wildcard":    func(c *bus.LeafConfig) { c.Domain = "*" },
		"scheme":        func(c *bus.LeafConfig) { c.URL = "ws://127.0.0.1" },
		"no host":       func(c *bus.LeafConfig) { c.URL = "tls://" },
		"two ways":      func(c *bus.LeafConfig) { c.URL = "tls://a:b@127.0.0.1" },
		"a token":       func(c *bus.LeafConfig) { c.Credentials = bus.Credentials{Token: "t"} },
		"no NKey file":  func(c *bus.LeafConfig) { c.Credentials = bus.Credentials{NKeyFile: "/nowhere"} },
		"no CA file":    func(c *bus.LeafConfig) { c.Credentials.CAFile = "/nowhere" },
		"half a key":    func(c *bus.LeafConfig) { c.Credentials.CertFile = "/nowhere" },
		"no creds file": func(c *bus.LeafConfig) { c.Credentials = bus.Credentials{File: "/nowhere"} },
	} {
		t.Run(name, func(t *testing.T) {
			b, err := bus.Open(t.Context(), leafHub(t.TempDir(), "nats://127.0.0.1", change))
			if err == nil {
				shut(t, b)
			}
			if bus.CodeOf(err) != bus.CodeConfig || strings.Contains(err.Error(), "secret-of-the-hub") {
				t.Errorf("Open: %v", err)
			}
		})
	}
}

// The link moves to another node of the cluster when its node is killed.
func TestALinkMovesToAnotherNodeOfTheCluster(t *testing.T) {
	t.Parallel()
	const nodes = 3
	ports := testbed.FreePorts(t, 2*nodes)
	var routes, leafs []string
	for i := range nodes {
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", ports[nodes+i]))
		leafs = append(leafs, fmt.Sprintf("nats://127.0.0.1:%d", ports[i]))
	}
	servers := map[string]*testbed.Server{}
	for i := range nodes {
		name := fmt.Sprint("n", i)
		servers[name] = testbed.StartNATS(t, testbed.Configured(t, fmt.Sprintf("server_name: %s\ncluster { name: c, listen: \"127.0.0.1:%d\", routes: [ %s ] }\n",
			name, ports[nodes+i], strings.Join(routes, ", "))+teamConfig(ports[i], "", "domain: team")))
	}
	hub := linked(t, strings.Join(leafs, ","), nil)
	awaitLeaf(t, hub, stands)
	b := joinWith(t, bus.Config{}, throughHub(func() *bus.Bus { return hub }, whole))
	persist(t, func() error { // the nodes may still elect their leader
		_, err := b.EnsureStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}, Replicas: nodes})
		return err
	})
	publish := func() error {
		_, err := b.Publish(t.Context(), &nats.Msg{Subject: "s"})
		return err
	}
	persist(t, publish)
	first := hub.Info().Leaf.Server
	servers[first].Stop()
	awaitLeaf(t, hub, func(i bus.LeafInfo) bool { return stands(i) && i.Server != first })
	awaitInfo(t, b, func(i bus.Info) bool { return i.State == bus.StateConnected && i.Reconnects > 0 })
	persist(t, publish) // the stream may need a new leader
}

// persist repeats do until it succeeds, at most for the tests' patience.
func persist(t *testing.T, do func() error) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		err := do()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

func FuzzGreeting(f *testing.F) {
	f.Add([]byte(`INFO {"server_id":"N","domain":"team","client_id":5,"leafnode_urls":["127.0.0.1:7422"],"max_payload":1048576,"tls_required":true} ` + "\r\n"))
	f.Add([]byte("INFO {}\r\n"))
	f.Add([]byte("SSH-2.0-OpenSSH\r\n"))
	f.Add([]byte("INFO {\"max_payload\":-1}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if maxPayload, err := bus.ReadGreeting(data); err == nil && maxPayload <= 0 {
			t.Errorf("a server that accepts %d bytes", maxPayload)
		}
	})
}
