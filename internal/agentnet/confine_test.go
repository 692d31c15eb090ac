package agentnet_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"flag"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/chat"
	"github.com/parleyhub/parley/internal/testbed"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

const confFile = "../../docs/nats-server.conf"

var writeConf = flag.Bool("write-conf", false, "write the example server configuration")

// ann and bob are the agents of the example configuration.
var (
	ann = agentnet.Confined{GUID: "7f3c1a52-8a0e-4f5b-9d55-0d7c9f1f2b11", Capabilities: []string{"typescript"}}
	bob = agentnet.Confined{GUID: "0b9f5a0c-3f62-4a6e-8d7e-5f2f3c1f7a42", Capabilities: []string{"typescript"}}
)

// exampleConf returns the example configuration with the permissions that the program computes.
func exampleConf() string {
	indent := func(text string) string {
		return strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n        ")
	}
	return fmt.Sprintf(`# A NATS server for agents of several computers. In the account of the agents'
# network each agent has a user of its own, which the server keeps to the agent's
# entry in the registry, its inbox and its queues; "parley network permissions"
# writes such a block. Each project has an account of its own for its channels.
# docs/network-operate.md says how to go on from here.
#
# Start it with the variables set that stand here with a dollar sign:
#   nats-server -c nats-server.conf

listen: "0.0.0.0:4222"

jetstream: {
  store_dir: $NATS_STORE
  domain: "team"   # without one JetStream does not answer through a leaf node
}

tls: {
  cert_file: $NATS_CERT
  key_file: $NATS_KEY
  ca_file: $NATS_CA
  # verify: true   # demand a client certificate of every agent as well (mTLS)
}

# Where the hubs of computers link themselves: bus.leaf in their config.yaml.
leafnodes: {
  listen: "0.0.0.0:7422"
  tls: {
    cert_file: $NATS_CERT
    key_file: $NATS_KEY
    ca_file: $NATS_CA
  }
}

accounts: {
  AGENTS: {
    jetstream: enabled
    users: [
      # Makes the streams and queues, collects what is stale. For the operator and
      # for one process that runs all the time; agents do not get it.
      { user: "operator", password: $OPERATOR_PASSWORD }

      # The hub of a computer, which alone holds this password: its agents go through
      # it, and it keeps each of them to what is its own. It makes inboxes and queues
      # for them, so it may do all that the network consists of, and nothing else.
      {
        user: "office", password: $OFFICE_PASSWORD
        allowed_connection_types: ["LEAFNODE"]
        %s
      }

      # ann, an agent. An NKey in the place of user and
      # password: { nkey: "U…", permissions: … }.
      {
        user: "ann", password: $ANN_PASSWORD
        %s
      }

      # bob, another one.
      {
        user: "bob", password: $BOB_PASSWORD
        %s
      }
    ]
  }
  # The channels of two projects: NATS lets nothing pass between accounts.
  SHOP: {
    jetstream: enabled
    users: [ { user: "shop", password: $SHOP_PASSWORD } ]
  }
  BLOG: {
    jetstream: enabled
    users: [ { user: "blog", password: $BLOG_PASSWORD } ]
  }
  SYS: {
    users: [ { user: "admin", password: $ADMIN_PASSWORD } ]
  }
}
system_account: SYS
`, indent(agentnet.LinkedHub("team").String()), indent(ann.Permissions().String()), indent(bob.Permissions().String()))
}

// The example file must match what the program generates; -write-conf writes it again.
func TestTheExampleConfigurationIsFresh(t *testing.T) {
	want := exampleConf()
	if *writeConf {
		if err := os.WriteFile(confFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(confFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("the example is stale; run go test ./internal/agentnet -run ExampleConfiguration -write-conf")
	}
}

// pki creates a CA and certificates in a directory.
type pki struct {
	t    testing.TB
	dir  string
	ca   *x509.Certificate
	key  *ecdsa.PrivateKey
	next int64
}

func newPKI(t testing.TB) *pki {
	p := &pki{t: t, dir: t.TempDir()}
	p.ca, p.key = p.make("ca", true)
	return p
}

func (p *pki) path(name string) string { return filepath.Join(p.dir, name) }

func (p *pki) make(name string, isCA bool) (*x509.Certificate, *ecdsa.PrivateKey) {
	p.next++
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		p.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(p.next), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: isCA, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := p.ca, p.key
	if isCA {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		p.t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		p.t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{name + ".crt": {Type: "CERTIFICATE", Bytes: der}, name + ".key": {Type: "EC PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(p.path(file), pem.EncodeToMemory(block), 0o600); err != nil {
			p.t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		p.t.Fatal(err)
	}
	return cert, key
}

// startConfigured starts a server with the example's configuration after change was applied to it.
func startConfigured(t testing.TB, p *pki, change func(string) string) string {
	t.Helper()
	p.make("server", false)
	for name, value := range map[string]string{"NATS_STORE": t.TempDir(), "NATS_CERT": p.path("server.crt"), "NATS_KEY": p.path("server.key"),
		"NATS_CA": p.path("ca.crt"), "OPERATOR_PASSWORD": "op", "ANN_PASSWORD": "a", "BOB_PASSWORD": "b", "OFFICE_PASSWORD": "o", "ADMIN_PASSWORD": "s", "SHOP_PASSWORD": "shop", "BLOG_PASSWORD": "blog"} {
		t.Setenv(name, `"`+value+`"`)
	}
	text, err := os.ReadFile(confFile)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(change(string(text)), "0.0.0.0:7422", "127.0.0.1:-1", 1)
	conf := p.path("nats-server.conf")
	if err := os.WriteFile(conf, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	opts, err := server.ProcessConfigFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	return testbed.StartNATS(t, func(o *server.Options) {
		*o = *opts
		o.Host, o.Port, o.NoSigs, o.NoLog = "127.0.0.1", server.RANDOM_PORT, true, true
	}).URL()
}

func same(text string) string { return text }

// confined returns the configuration of a confined agent's process.
func confined(url string, c agentnet.Confined, credentials bus.Credentials) agentnet.Config {
	credentials.TLS = true
	return agentnet.Config{BusConfig: store.Config{
		Hostname: "host-" + c.GUID, Username: "user", ProjectPath: "/" + c.GUID, ProjectID: "0123456789abcdef", GUID: c.GUID,
		Logger: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context) (*bus.Bus, error) {
			return bus.Open(ctx, bus.Config{URL: bus.Secret(url), Credentials: credentials, InboxPrefix: store.InboxPrefix(c.GUID), Logger: slog.New(slog.DiscardHandler)})
		},
	}}
}

func operator(t testing.TB, url string, p *pki) *agentnet.Network {
	t.Helper()
	cfg := confined(url, agentnet.Confined{}, bus.Credentials{User: "operator", Password: "op", CAFile: p.path("ca.crt")})
	return nettest.Open(t, cfg)
}

// admit creates the streams and consumers that confined agents may not create.
func admit(t testing.TB, n *agentnet.Network) {
	t.Helper()
	for _, c := range []agentnet.Confined{ann, bob} {
		if err := n.MakeInbox(t.Context(), c.GUID); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.MakeQueue(t.Context(), "typescript"); err != nil {
		t.Fatal(err)
	}
}

// REQ-SEC-CROSS-003, REQ-SEC-CROSS-004, REQ-TEST-CROSS-007: two agents confined by a real server's
// permissions can do all of their work, and nothing else.
func TestAConfinedAgentDoesItsWorkAndNothingElse(t *testing.T) {
	p := newPKI(t)
	url := startConfigured(t, p, same)
	admit(t, operator(t, url, p))
	annBus := bus.Credentials{User: "ann", Password: "a", CAFile: p.path("ca.crt")}
	a := nettest.Register(t, nettest.Open(t, confined(url, ann, annBus)), nettest.Worker("typescript"))
	b := nettest.Register(t, nettest.Open(t, confined(url, bob, bus.Credentials{User: "bob", Password: "b", CAFile: p.path("ca.crt")})), nettest.Worker("typescript"))
	if a.GUID() != ann.GUID || b.GUID() != bob.GUID {
		t.Fatalf("the GUIDs are %s and %s", a.GUID(), b.GUID())
	}

	// Allowed:
	if d := nettest.Discover(t, a, registry.Filter{}); len(d.Agents) != 2 {
		t.Errorf("%+v", d)
	}
	sent := nettest.SendText(t, a, b, "hello bob")
	if got := nettest.ReadTexts(t, b, mail.Selection{}); !slices.Equal(got, []string{"hello bob"}) {
		t.Errorf("%q", got)
	}
	if s, err := a.MessageStatus(t.Context(), sent.ID); err != nil || s.Status != mail.Read {
		t.Errorf("%+v, %v", s, err)
	}
	nettest.Submit(t, a, "T", "typescript")
	c := nettest.Claim(t, b)
	if _, err := b.Extend(t.Context(), "T", c.Token); err != nil {
		t.Error(err)
	}
	if err := b.Complete(t.Context(), "T", c.Token, work.Outcome{Success: true, Summary: "done"}); err != nil {
		t.Error(err)
	}
	if s := nettest.State(t, a, "T"); s.ResultSummary != "done" {
		t.Errorf("%+v", s)
	}
	nettest.Submit(t, a, "D", "typescript")
	c = nettest.Claim(t, b)
	if _, err := b.Reject(t.Context(), "D", c.Token, "no", true); err != nil {
		t.Error(err)
	}
	if _, err := a.DiscardDeadLetter(t.Context(), "D"); err != nil {
		t.Error(err)
	}
	busy := registry.Busy
	if _, err := a.UpdatePresence(t.Context(), registry.Changes{Status: busy}); err != nil {
		t.Error(err)
	}
	var channels []chat.Channel
	for _, name := range []string{"roadmap", "parallel-work"} {
		channels = append(channels, chat.Channel{Name: name, MaxMessages: 100, MaxBytes: 1 << 20, MaxAge: time.Hour})
	}
	space := chat.Open(chat.Config{Namespace: "shop", Channels: channels,
		Dial: confined(url, agentnet.Confined{}, bus.Credentials{User: "shop", Password: "shop", CAFile: p.path("ca.crt")}).Dial, Logger: slog.New(slog.DiscardHandler)})
	defer space.Close(t.Context()) //nolint:errcheck // the test is over
	wait.Eventually(t, "the channels", func() bool { return space.Status().Connected })
	if r, err := space.Send(t.Context(), "ann", "parallel-work", "x"); err != nil || r.Queued {
		t.Errorf("%+v, %v", r, err)
	}
	if h, err := space.Read(t.Context(), "ann", "parallel-work", 10); err != nil || len(h.Messages) != 1 {
		t.Errorf("%+v, %v", h, err)
	}

	// Refused:
	denied := make(chan error, 100)
	nc, err := nats.Connect(url, nats.UserInfo("ann", "a"), nats.RootCAs(p.path("ca.crt")), nats.CustomInboxPrefix(store.InboxPrefix(ann.GUID)),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { denied <- err }))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	refused := func(what string) {
		t.Helper()
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-denied:
			if !strings.Contains(err.Error(), "ermissions") {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(30 * time.Second):
			t.Errorf("%s is allowed", what)
		}
	}
	for _, subject := range []string{">", "*", "global.>", "global.agent.*", "global.agent." + bob.GUID, "_INBOX.>", "_INBOX_" + bob.GUID + ".>", "blog.*",
		"blog.roadmap", "$JS.>", "$KV.>", "$SYS.>", "global.workqueue.typescript", "global.workqueue.>"} {
		if _, err := nc.SubscribeSync(subject); err != nil {
			t.Fatal(err)
		}
		refused("to subscribe to " + subject)
	}
	theirs := "GLOBAL_AGENT_INBOX_" + bob.GUID
	for _, subject := range []string{
		"$KV.agent-registry." + bob.GUID, "$KV.agent-registry-identities.fixed." + bob.GUID, "$KV.agent-registry-identities.guid." + bob.GUID,
		"$KV.agent-registry-limits." + bob.GUID + ".messages", "global.mail.read." + bob.GUID, "global.mail.receipt." + bob.GUID + "." + bob.GUID + ".x",
		"blog.roadmap", "global.audit.registry", "global.workqueue.other",
		"$JS.API.STREAM.MSG.GET." + theirs, "$JS.API.DIRECT.GET." + theirs, "$JS.API.DIRECT.GET." + theirs + ".global.agent." + bob.GUID,
		"$JS.API.CONSUMER.CREATE." + theirs, "$JS.API.CONSUMER.CREATE." + theirs + ".x", "$JS.API.CONSUMER.CREATE." + theirs + ".x.global.agent." + bob.GUID,
		"$JS.API.STREAM.PURGE." + theirs, "$JS.API.STREAM.CREATE.GLOBAL_AGENT_INBOX_" + ann.GUID, "$JS.API.STREAM.UPDATE.GLOBAL_AGENT_INBOX_" + ann.GUID,
		"$JS.API.CONSUMER.CREATE.GLOBAL_AGENT_INBOX_" + ann.GUID + ".x", "$JS.API.CONSUMER.CREATE.GLOBAL_MAIL.x", "shop.roadmap", "$JS.API.STREAM.DELETE." + theirs, "$JS.API.STREAM.UPDATE." + theirs,
		"$JS.API.STREAM.DELETE.KV_agent-registry", "$JS.API.STREAM.PURGE.KV_agent-registry", "$JS.API.STREAM.UPDATE.KV_agent-registry",
		"$JS.API.CONSUMER.CREATE.KV_agent-registry.x", "$JS.API.STREAM.CREATE.mirror", "$JS.API.STREAM.LIST", "$JS.API.STREAM.NAMES",
		"$JS.API.CONSUMER.DELETE.GLOBAL_WORKQUEUE_typescript.workers", "$JS.API.CONSUMER.CREATE.GLOBAL_WORKQUEUE_typescript.x",
		"$JS.API.STREAM.MSG.GET.GLOBAL_WORKQUEUE_typescript", "$JS.API.CONSUMER.MSG.NEXT." + theirs + ".x",
		"$JS.API.DIRECT.GET.blog_ROADMAP", "$JS.API.STREAM.MSG.GET.blog_ROADMAP", "$JS.ACK.blog_ROADMAP.x.1.1.1.1.1", "$SYS.REQ.SERVER.PING",
		"_INBOX_" + bob.GUID + ".x",
	} {
		if err := nc.PublishRequest(subject, store.InboxPrefix(ann.GUID)+".x", []byte("{}")); err != nil {
			t.Fatal(err)
		}
		refused("to publish to " + subject)
	}
}

// JetStream sends an answer to any subject that the request names. This must not bypass the
// permissions: no stream may store such an answer.
func TestAnAnswerCannotForgeAnEntry(t *testing.T) {
	p := newPKI(t)
	url := startConfigured(t, p, same)
	admit(t, operator(t, url, p))
	a := nettest.Register(t, nettest.Open(t, confined(url, ann, bus.Credentials{User: "ann", Password: "a", CAFile: p.path("ca.crt")})), nettest.Worker("typescript"))
	nettest.SendText(t, a, a, "forged")
	nc, err := nats.Connect(url, nats.UserInfo("ann", "a"), nats.RootCAs(p.path("ca.crt")), nats.CustomInboxPrefix(store.InboxPrefix(ann.GUID)))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	question := "$JS.API.DIRECT.GET.GLOBAL_AGENT_INBOX_" + ann.GUID
	if err := nc.PublishRequest(question, "$KV.agent-registry."+bob.GUID, []byte(`{"seq":1}`)); err != nil {
		t.Fatal(err)
	}
	// When a second, equal request is answered, the first one was handled.
	if _, err := nc.Request(question, []byte(`{"seq":1}`), 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if _, _, err := a.Info(t.Context(), bob.GUID); nettest.CategoryOf(err) != store.NotFoundError {
		t.Errorf("bob's entry: %v", err)
	}
	answer, err := nc.Request("$JS.API.STREAM.MSG.GET.KV_agent-registry", []byte(`{"last_by_subj":"$KV.agent-registry.`+bob.GUID+`"}`), 10*time.Second)
	if err != nil || !bytes.Contains(answer.Data, []byte("no message found")) {
		t.Errorf("%s, %v", answer.Data, err)
	}
}

// REQ-SEC-CROSS-002, REQ-SEC-CROSS-008: a wrong password, a missing certificate and a missing TLS
// handshake are refused; an NKey and a client certificate are accepted.
func TestWaysToLogIn(t *testing.T) {
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := user.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := user.Seed()
	if err != nil {
		t.Fatal(err)
	}
	p := newPKI(t)
	p.make("client", false)
	if err := os.WriteFile(p.path("ann.nk"), seed, 0o600); err != nil {
		t.Fatal(err)
	}
	url := startConfigured(t, p, func(text string) string {
		text = strings.Replace(text, "# verify: true  ", "verify: true", 1)
		return strings.Replace(text, `user: "ann", password: $ANN_PASSWORD`, `nkey: "`+public+`"`, 1)
	})
	withCert := bus.Credentials{CAFile: p.path("ca.crt"), CertFile: p.path("client.crt"), KeyFile: p.path("client.key")}
	with := func(change func(*bus.Credentials)) bus.Credentials {
		c := withCert
		change(&c)
		return c
	}
	op := with(func(c *bus.Credentials) { c.User, c.Password = "operator", "op" })
	admit(t, nettest.Open(t, confined(url, agentnet.Confined{}, op)))
	a := nettest.Register(t, nettest.Open(t, confined(url, ann, with(func(c *bus.Credentials) { c.NKeyFile = p.path("ann.nk") }))), nettest.Worker())
	if a.GUID() != ann.GUID {
		t.Error(a.GUID())
	}
	for name, c := range map[string]bus.Credentials{
		"a wrong password": with(func(c *bus.Credentials) { c.User, c.Password = "operator", "x" }),
		"no credentials":   withCert,
		"no certificate":   {User: "operator", Password: "op", CAFile: p.path("ca.crt")},
		"no CA":            {User: "operator", Password: "op", CertFile: p.path("client.crt"), KeyFile: p.path("client.key")},
	} {
		b, err := confined(url, agentnet.Confined{}, c).Dial(t.Context())
		if err == nil {
			t.Errorf("%s is accepted", name)
			_ = b.Close(t.Context())
		}
	}
}

// REQ-SEC-CROSS-001, REQ-SEC-CROSS-005, REQ-CONFIG-CROSS-004: required TLS is never skipped.
func TestAServerWithoutTLSIsNotUsed(t *testing.T) {
	n := nettest.StartServer(t)
	cfg := confined(n.URL(), agentnet.Confined{}, bus.Credentials{})
	if _, err := cfg.Dial(t.Context()); err == nil || !strings.Contains(err.Error(), "it has no TLS") {
		t.Error(err)
	}
	nettest.Open(t, n.Host("host-a", "ann", "shop")) // without TLS where it is not required
}

func TestNoSecretIsLogged(t *testing.T) {
	p := newPKI(t)
	url := startConfigured(t, p, same)
	var log bytes.Buffer
	cfg := confined(url, agentnet.Confined{}, bus.Credentials{User: "operator", Password: "op-secret", CAFile: p.path("ca.crt")})
	cfg.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	network := agentnet.Open(cfg)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err := network.Ready(ctx)
	nettest.Shut(t, network)
	if nettest.CategoryOf(err) != store.ConnectionError || strings.Contains(err.Error()+log.String(), "op-secret") {
		t.Errorf("%v\n%s", err, log.String())
	}
}
