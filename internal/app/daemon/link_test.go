//go:build unix

package daemon_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/app/busfinder"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/testbed"
)

// linkPatience limits each wait for other processes.
const linkPatience = time.Minute

// linkLease is the time after which an item is offered again if the link to its worker fails during the delivery.
const linkLease = 20 * time.Second

// team is a NATS server with the configuration of docs/nats-server.conf.
type team struct {
	*testbed.Server
	leaf int
	ca   string // certificate file
}

func startTeam(t *testing.T) team {
	t.Helper()
	cert, key := selfSigned(t)
	text, err := os.ReadFile(filepath.FromSlash("../../../docs/nats-server.conf"))
	if err != nil {
		t.Fatal(err)
	}
	leaf := testbed.FreePorts(t, 1)[0]
	variables := map[string]string{"STORE": t.TempDir(), "CERT": cert, "KEY": key, "CA": cert}
	conf := os.Expand(string(text), func(name string) string {
		if file := variables[strings.TrimPrefix(name, "NATS_")]; file != "" {
			return strconv.Quote(file)
		}
		if who, ok := strings.CutSuffix(name, "_PASSWORD"); ok {
			return strings.ToLower(who)
		}
		return "$" + name // part of a subject
	})
	conf = strings.NewReplacer("0.0.0.0:7422", fmt.Sprintf("127.0.0.1:%d", leaf), "0.0.0.0:4222", "127.0.0.1:-1").Replace(conf)
	return team{testbed.StartNATS(t, testbed.Configured(t, conf)), leaf, cert}
}

// selfSigned returns the files of a server's self-signed certificate and its key.
func selfSigned(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "team"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	privateDER, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "server.crt"), filepath.Join(dir, "server.key")
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "EC PRIVATE KEY", Bytes: privateDER}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// office is a computer whose hub is linked to a team's server.
type office struct {
	t        *testing.T
	dir      string
	settings []string
	hub      *running
}

func newOffice(t *testing.T, s team) *office {
	t.Helper()
	o := &office{t: t, dir: newDir(t), settings: []string{"http.enabled=false", "bus.leaf.url=" + fmt.Sprintf("tls://127.0.0.1:%d", s.leaf),
		"bus.leaf.domain=team", "bus.leaf.user=office", "bus.leaf.password=office", "bus.leaf.tls.caFile=" + s.ca}}
	o.start()
	t.Cleanup(func() { o.stop() })
	return o
}

func (o *office) start() {
	o.t.Helper()
	o.hub = run(o.t, mustLoad(o.t, o.dir, o.settings...))
}

func (o *office) stop() {
	o.t.Helper()
	if o.hub != nil {
		o.hub.end(o.t)
		o.hub = nil
	}
}

func (o *office) link() *dialect.LinkStatus {
	o.t.Helper()
	c, err := client.Dial(o.t.Context(), o.dir+"/hub.sock")
	if err != nil {
		return &dialect.LinkStatus{}
	}
	defer c.Close()
	s, err := c.Status(o.t.Context())
	if err != nil || s.Bus == nil || s.Bus.Link == nil {
		o.t.Fatalf("the hub's status: %+v, %v", s, err)
	}
	return s.Bus.Link
}

// memberships admits the agents of a project of this computer to the team's network.
func (o *office) memberships(project string) *agentnet.Memberships {
	o.t.Helper()
	return o.membershipsFor(project, linkLease)
}

// membershipsFor is memberships of agents that hold work for the time of a lease.
func (o *office) membershipsFor(project string, lease time.Duration) *agentnet.Memberships {
	o.t.Helper()
	log := slog.New(slog.DiscardHandler)
	finder := busfinder.New(busfinder.Config{Config: bus.Config{Name: project, Logger: log}, Hub: func(context.Context) (*config.Loaded, error) { return load(o.dir, o.settings...) }})
	l := agentnet.NewMemberships(agentnet.Config{BusConfig: store.Config{ProjectPath: project, ProjectID: "0123456789abcdef", AckTimeout: lease, Logger: log}},
		func(ctx context.Context, a registry.AdmissionRequest) (agentnet.Admission, *bus.Bus, error) {
			return finder.DialAgent(ctx, dialect.NetworkJoinParams{Via: dialect.ViaHub, AckTimeout: int(lease.Seconds())}, a)
		})
	o.t.Cleanup(func() {
		if err := l.Close(context.Background()); err != nil {
			o.t.Error(err)
		}
	})
	return l
}

// receive waits until an agent has received count messages, and returns their texts.
func receive(t *testing.T, a *agentnet.Agent, count int) (texts []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), linkPatience)
	defer cancel()
	for len(texts) < count {
		mail, _, err := a.Wait(ctx, mail.Selection{})
		if ctx.Err() != nil {
			t.Fatalf("received %[2]q of %[1]d messages; %[3]v", count, texts, err)
		}
		for _, m := range mail {
			texts = append(texts, m.Text)
		}
	}
	return texts
}

func send(t *testing.T, from, to *agentnet.Agent, text string) mail.Sent {
	t.Helper()
	var sent mail.Sent
	wait.Eventually(t, "a letter is sent", func() bool {
		var err error
		sent, err = from.Send(t.Context(), mail.Message{Recipient: to.GUID(), Text: text})
		return err == nil
	})
	return sent
}

func hand(t *testing.T, from *agentnet.Agent, task string) {
	t.Helper()
	wait.Eventually(t, "work is submitted", func() bool {
		_, err := from.Submit(t.Context(), work.Submission{Capability: "go", Offer: mail.Offer{TaskID: task, Description: "d"}})
		return err == nil
	})
}

func take(t *testing.T, worker *agentnet.Agent, task string) *work.Claim {
	t.Helper()
	var c *work.Claim
	wait.Eventually(t, "a claim of "+task, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), linkPatience)
		defer cancel()
		c, _ = worker.Claim(ctx, nil) // an error means that the link is down
		return c != nil
	})
	if c.TaskID != task {
		t.Fatalf("claimed %s, want %s", c.TaskID, task)
	}
	return c
}

// The hubs of two computers are linked to a NATS server as leaf nodes. Their agents find each other and exchange mail and
// work in both directions. While the link is down, each computer's agents keep working, also across a restart of the
// hub. When the link is back, the hub forwards the stored mail in order and once.
func TestComputersAreLinkedAsLeafNodes(t *testing.T) {
	t.Parallel()
	s := startTeam(t)
	east, west := newOffice(t, s), newOffice(t, s)
	for _, o := range []*office{east, west} {
		wait.Eventually(t, "the link", func() bool { return o.link().Connected })
	}
	shop := east.memberships("/shop")
	ann, eve := enter(t, shop, "dispatcher"), enter(t, shop, "worker")
	bob := enter(t, west.memberships("/blog"), "worker")
	for _, a := range []*agentnet.Agent{ann, bob} {
		wait.Eventually(t, "all three find each other", func() bool {
			d, err := a.Discover(t.Context(), registry.Filter{})
			return err == nil && len(d.Agents) == 3
		})
	}
	sent := send(t, ann, bob, "hello")
	if got := receive(t, bob, 1); !slices.Equal(got, []string{"hello"}) {
		t.Errorf("%q", got)
	}
	wait.Eventually(t, "the receipt", func() bool {
		st, err := ann.MessageStatus(t.Context(), sent.ID)
		return err == nil && st.Status == mail.Read
	})
	send(t, bob, ann, "hello yourself")
	if got := receive(t, ann, 1); !slices.Equal(got, []string{"hello yourself"}) {
		t.Errorf("%q", got)
	}
	hand(t, ann, "T1")
	c := take(t, bob, "T1")
	if err := bob.Complete(t.Context(), "T1", c.Token, work.Outcome{Success: true, Summary: "done in the west"}); err != nil {
		t.Error(err)
	}
	if w, err := ann.Item(t.Context(), "T1", false); err != nil || w.ResultSummary != "done in the west" {
		t.Errorf("%+v, %v", w, err)
	}
	hand(t, bob, "T2")
	c = take(t, eve, "T2")
	if err := eve.Complete(t.Context(), "T2", c.Token, work.Outcome{Success: true, Summary: "done"}); err != nil {
		t.Error(err)
	}

	s.Stop()
	wait.Eventually(t, "the loss is noticed, and told", func() bool {
		l := east.link()
		return !l.Connected && strings.Contains(l.Problem, "no NATS server is running") && shop.Notice() != ""
	})
	send(t, ann, eve, "we go on")
	if got := receive(t, eve, 1); !slices.Equal(got, []string{"we go on"}) {
		t.Errorf("%q", got)
	}
	hand(t, ann, "T3")
	c = take(t, eve, "T3")
	if err := eve.Complete(t.Context(), "T3", c.Token, work.Outcome{Success: true, Summary: "done"}); err != nil {
		t.Error(err)
	}
	var want []string
	letter := func(i int) {
		want = append(want, fmt.Sprint("letter ", i))
		if sent := send(t, ann, bob, want[len(want)-1]); !sent.Queued {
			t.Errorf("message %d is not queued: %+v", i, sent)
		}
	}
	for i := range 3 {
		letter(i)
	}
	east.stop()
	east.start()
	for i := range 3 {
		letter(3 + i)
	}
	hand(t, ann, "T4")
	// The agents of east have left before the link is back.
	if err := shop.Close(t.Context()); err != nil {
		t.Error(err)
	}
	s.Start()
	if got := receive(t, bob, len(want)); !slices.Equal(got, want) {
		t.Errorf("bob has read %q", got)
	}
	c = take(t, bob, "T4")
	if err := bob.Complete(t.Context(), "T4", c.Token, work.Outcome{Success: true, Summary: "done"}); err != nil {
		t.Error(err)
	}
	back := enter(t, east.memberships("/shop"), "dispatcher")
	if back.GUID() != ann.GUID() {
		t.Errorf("%s registered again as %s", ann.GUID(), back.GUID())
	}
	send(t, bob, back, "welcome back")
	if got := receive(t, back, 1); !slices.Equal(got, []string{"welcome back"}) {
		t.Errorf("%q", got)
	}
}

// REQ-SEC-CROSS-003: a program that uses an agent's credential for the link directly has only the agent's rights at the
// cluster, and an invented credential is refused.
func TestAnAgentBehindTheLinkHasOnlyItsOwnRights(t *testing.T) {
	t.Parallel()
	s := startTeam(t)
	o := newOffice(t, s)
	wait.Eventually(t, "the link", func() bool { return o.link().Connected })
	victim := enter(t, o.memberships("/shop"), "dispatcher")
	foreign := agentnet.Open(agentnet.Config{BusConfig: store.Config{Hostname: "elsewhere", Username: "zoe", ProjectPath: "/far", ProjectID: "fedcba9876543210", Logger: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context) (*bus.Bus, error) {
			return bus.Open(ctx, bus.Config{URL: bus.Secret(s.URL()), Credentials: bus.Credentials{User: "operator", Password: "operator", CAFile: s.ca, TLS: true}})
		}}})
	defer foreign.Close(context.Background()) //nolint:errcheck // the test is over
	if err := foreign.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	zoe, err := foreign.Register(t.Context(), registry.Registration{Handle: "zoe", AgentType: "worker", Scope: registry.ScopeProject, Visibility: store.Public})
	if err != nil {
		t.Fatal(err)
	}

	c, err := client.Dial(t.Context(), o.dir+"/hub.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	join := func(p dialect.NetworkJoinParams) (*dialect.NetworkGrant, error) {
		p.AgentType, p.ProjectPath = "attacker", "/evil"
		return c.JoinNetwork(t.Context(), p)
	}
	entry, err := join(dialect.NetworkJoinParams{Via: dialect.ViaHub})
	if err != nil {
		t.Fatal(err)
	}
	var grant *dialect.NetworkGrant
	wait.Eventually(t, "a credential", func() bool {
		grant, err = join(dialect.NetworkJoinParams{Via: dialect.ViaCluster, GUID: entry.GUID, Secret: entry.Secret})
		return err == nil
	})
	if grant.Cluster == "" || strings.Contains(fmt.Sprintf("%+v", grant), "office") {
		t.Errorf("%+v", grant)
	}
	for name, wrong := range map[string]dialect.NetworkJoinParams{
		"nobody":                                {Via: dialect.ViaCluster},
		"a guessed secret":                      {Via: dialect.ViaCluster, GUID: entry.GUID, Secret: "guessed"},
		"another's secret":                      {Via: dialect.ViaCluster, GUID: victim.GUID(), Secret: entry.Secret},
		"an agent of another computer":          {Via: dialect.ViaCluster, GUID: zoe.GUID(), Secret: "mine"},
		"a wildcard":                            {Via: dialect.ViaCluster, GUID: "*", Secret: "mine"},
		"a wildcard, in the computer's network": {GUID: ">", Secret: "mine"},
		"an unknown network":                    {Via: "backdoor"},
		"not a GUID, at a hub":                  {Via: dialect.ViaHub, GUID: "x.>", Secret: "mine"},
	} {
		if g, err := join(wrong); err == nil {
			t.Errorf("%s: %+v", name, g)
		}
	}

	denied := make(chan error, 100)
	nc, err := nats.Connect("nats://"+grant.Address, nats.UserInfo(grant.User, grant.Password), nats.CustomInboxPrefix(store.ClusterInboxPrefix(entry.GUID)),
		nats.PermissionErrOnSubscribe(true), nats.NoReconnect(), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { denied <- err }))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if m, err := nc.Request("$JS.API.STREAM.INFO.KV_agent-registry", nil, linkPatience); err != nil || !strings.Contains(string(m.Data), "agent-registry") {
		t.Errorf("an allowed subject: %v", err)
	}
	refused := func(what string) {
		t.Helper()
		select {
		case err := <-denied:
			if !strings.Contains(err.Error(), "ermissions") {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(linkPatience):
			t.Errorf("%s is allowed", what)
		}
	}
	for _, subject := range []string{">", "global.>", "global.agent.*", "global.agent." + zoe.GUID(), "global.agent." + victim.GUID(), "_INBOX.>", "_INBOX.*.>", "$JS.>", "$KV.>",
		"shop.roadmap", "blog.roadmap", "global.hub.desk.*"} {
		if _, err := nc.SubscribeSync(subject); err != nil {
			t.Fatal(err)
		}
		refused("to subscribe to " + subject)
	}
	theirs := "GLOBAL_AGENT_INBOX_" + zoe.GUID()
	for _, subject := range []string{"$KV.agent-registry." + zoe.GUID(), "$JS.team.API.$KV.agent-registry." + zoe.GUID(), "$JS.API.DIRECT.GET." + theirs,
		"$JS.team.API.DIRECT.GET." + theirs, "$JS.API.STREAM.MSG.GET." + theirs, "$JS.API.STREAM.PURGE." + theirs, "$JS.API.STREAM.CREATE.X", "$JS.team.API.STREAM.CREATE.X",
		"$JS.API.CONSUMER.CREATE." + theirs, "$JS.API.STREAM.NAMES", "$JS.API.STREAM.DELETE.GLOBAL_MAIL", "global.mail.read." + zoe.GUID(), "shop.roadmap", "$SYS.REQ.SERVER.PING"} {
		if err := nc.Publish(subject, []byte("{}")); err != nil {
			t.Fatal(err)
		}
		refused("to publish to " + subject)
	}

	// While the link is down, a credential is refused with the reason.
	s.Stop()
	wait.Eventually(t, "the reason", func() bool {
		_, err := join(dialect.NetworkJoinParams{Via: dialect.ViaCluster, GUID: entry.GUID, Secret: entry.Secret})
		e, ok := errors.AsType[*jsonrpc.Error](err)
		return ok && e.Code == dialect.CodeAgentUnavailable && strings.Contains(e.Message, "no link to the agents' cluster: no NATS server is running")
	})
}

// REQ-DLQ-001: of two hubs on a cluster one acts on the lease that an agent of the other holds, which is gone.
func TestAHubActsOnTheLeasesOfAnother(t *testing.T) {
	t.Parallel()
	s := startTeam(t)
	gone, here := newOffice(t, s), newOffice(t, s)
	for _, o := range []*office{gone, here} {
		wait.Eventually(t, "the link", func() bool { return o.link().Connected })
	}
	const lease = 2 * time.Second
	ann, bob := enter(t, gone.membershipsFor("/shop", lease), "worker"), enter(t, here.membershipsFor("/blog", lease), "dispatcher")
	hand(t, bob, "T")
	take(t, ann, "T")
	gone.stop()
	nc, err := nats.Connect(s.URL(), nats.UserInfo("operator", "operator"), nats.RootCAs(s.ca))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	wait.Eventually(t, "that the item waits again", func() bool {
		m, err := nc.Request("$JS.API.STREAM.MSG.GET."+store.ItemStream, []byte(`{"last_by_subj":"`+store.ItemSubject+`*"}`), 5*time.Second)
		if err != nil {
			return false
		}
		var answer struct {
			Message struct{ Data []byte }
		}
		if err := json.Unmarshal(m.Data, &answer); err != nil {
			t.Fatal(err)
		}
		x, err := work.Decode(answer.Message.Data)
		return err == nil && x.State == work.Queued && x.Attempts == 1
	})
}
