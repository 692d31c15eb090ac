//go:build unix

package doctor_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/app/doctor"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
	"github.com/parleyhub/parley/internal/testbed"
)

// visit examines a project with that .mcp-config.json ("" for none) and environment, with a data
// directory of its own, and returns the findings about it.
func visit(t *testing.T, data, file string, env map[string]string) []doctor.Finding {
	t.Helper()
	dir := t.TempDir()
	if file != "" {
		if err := os.WriteFile(filepath.Join(dir, mcpconfig.ProjectFile), []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	project, err := mcpconfig.Load(mcpconfig.Sources{WorkDir: dir, HomeDir: t.TempDir(), LookupEnv: func(name string) (string, bool) {
		value, ok := env[name]
		return value, ok
	}})
	cfg, cfgErr := load(data)
	return doctor.Patient{Config: cfg, Err: cfgErr, Project: project, ProjectErr: err, Program: "parley"}.Examine(t.Context())
}

// foreignListener listens on a port and answers as no NATS server does.
func foreignListener(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(conn, "220 mail.example.org ESMTP\r\n")
			conn.Close()
		}
	}()
	t.Cleanup(func() { ln.Close(); <-done })
	return ln.Addr().String()
}

// closedPort returns an address where nothing listens.
func closedPort(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", testbed.FreePorts(t, 1)[0])
}

// REQ-GUIDE-TROUBLE, REQ-ERROR-002, REQ-ERROR-008: the cases of section 15.1, each with its own
// remedy, the URL, and the setting that named it.
func TestUnusableServers(t *testing.T) {
	data := place(t, "")
	closed, foreign := closedPort(t), foreignListener(t)
	noJetStream := testbed.StartNATS(t, testbed.WithoutJetStream).Addr()
	guarded := testbed.StartNATS(t, func(o *server.Options) { o.Username, o.Password = "u", "right" }).Addr()
	confined := testbed.StartNATS(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "u", Password: "p",
			Permissions: &server.Permissions{Publish: &server.SubjectPermission{Allow: []string{"elsewhere"}}}}}
	}).Addr()
	for name, tc := range map[string]struct {
		env  map[string]string
		want []string
	}{
		"not running":        {map[string]string{"NATS_URL": "nats://" + closed}, []string{closed, "no NATS server is running", "nats-server -js", "NATS_URL"}},
		"no JetStream":       {map[string]string{"NATS_URL": "nats://" + noJetStream}, []string{noJetStream, "without JetStream", "-js"}},
		"wrong password":     {map[string]string{"NATS_URL": "nats://" + guarded, "NATS_USERNAME": "u", "NATS_PASSWORD": "wr0ng"}, []string{guarded, "refused the credentials", "check user and password"}},
		"no password":        {map[string]string{"NATS_URL": "nats://" + guarded}, []string{guarded, "refused the credentials"}},
		"port of another":    {map[string]string{"NATS_URL": "nats://" + foreign}, []string{foreign, "not a NATS server", "check the URL's port"}},
		"name that is none":  {map[string]string{"NATS_URL": "nats://no-such-host.invalid:4222"}, []string{"no-such-host.invalid", "cannot be resolved"}},
		"missing permission": {map[string]string{"NATS_URL": "nats://" + confined, "NATS_USERNAME": "u", "NATS_PASSWORD": "p"}, []string{confined, "does not permit this user"}},
		"missing CA file":    {map[string]string{"NATS_URL": "tls://" + closed, "NATS_TLS_CA": "/nonexistent/ca.pem"}, []string{"/nonexistent/ca.pem"}},
	} {
		t.Run(name, func(t *testing.T) {
			findings := visit(t, data, "", tc.env)
			for _, want := range tc.want {
				expect(t, findings, "channel-bus", doctor.Failure, want)
			}
			for _, f := range findings {
				if strings.Contains(f.Message+f.Remedy, "wr0ng") {
					t.Errorf("the password is in %+v", f)
				}
			}
		})
	}
}

func TestUsableServers(t *testing.T) {
	srv := testbed.StartNATS(t)
	env := map[string]string{"NATS_URL": srv.URL()}
	data := place(t, "")
	findings := visit(t, data, `{"namespace": "shop"}`, env)
	expect(t, findings, "project", doctor.OK, "namespace shop (project), channels of ")
	expect(t, findings, "channel-bus", doctor.OK, "set by environment (NATS_URL), answers, with JetStream")
	expect(t, findings, "channels", doctor.OK, "0 of 3 channels in use")
	nc, err := nats.Connect(srv.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "shop_ROADMAP", Subjects: []string{"shop.roadmap"}, MaxMsgs: 10000, MaxBytes: 10 << 20, MaxAge: 24 * time.Hour})
	_, publishErr := js.Publish(t.Context(), "shop.roadmap", []byte("{}"))
	if err := errors.Join(err, publishErr); err != nil {
		t.Fatal(err)
	}
	expect(t, visit(t, data, `{"namespace": "shop"}`, env), "channels", doctor.OK, "1 of 3 channels in use, with 1 message in 1 KiB")
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "shop_ERRORS", Subjects: []string{"other"}}); err != nil {
		t.Fatal(err)
	}
	expect(t, visit(t, data, `{"namespace": "shop"}`, env), "channels", doctor.Failure, "channel errors: ")
}

// REQ-GUIDE-TROUBLE: without a configured server the hub's bus is used.
func TestTheHubsBusForChannels(t *testing.T) {
	data := place(t, "")
	expect(t, visit(t, data, "", nil), "channel-bus", doctor.OK, "the first agent's MCP server starts it")
	expect(t, visit(t, data, "", map[string]string{"NATS_MCP_AUTOSTART": "0"}), "channel-bus", doctor.Failure, "parley start")
	hub(t, data)
	findings := visit(t, data, "", nil)
	expect(t, findings, "project", doctor.OK, "(derived), default channels")
	expect(t, findings, "channel-bus", doctor.OK, "the hub's bus answers")
	expect(t, findings, "channels", doctor.OK, "0 of 3 channels in use")
}

// REQ-GUIDE-TROUBLE, REQ-DESIGN-CONFIG-004
func TestInvalidProjectConfigurations(t *testing.T) {
	findings := visit(t, place(t, ""), "{\n \"chanels\": []\n}", nil)
	expect(t, findings, "project", doctor.Failure, `:2:2: chanels: unknown key; did you mean "channels"?`)
	expect(t, findings, "project", doctor.Failure, "parley config validate mcp")
	if worst := doctor.Worst(findings); worst != doctor.Failure {
		t.Errorf("worst is %s", worst)
	}
	// The project's configuration is checked even if the hub's is invalid.
	findings = visit(t, place(t, "htpp: {}\n"), "", nil)
	expect(t, findings, "configuration", doctor.Failure, "htpp")
	expect(t, findings, "channel-bus", doctor.Failure, "the hub's configuration cannot be used")
}

func TestWithoutAProjectThereIsNoFindingAboutOne(t *testing.T) {
	cfg, err := load(place(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range (doctor.Patient{Config: cfg, Program: "parley"}).Examine(context.Background()) {
		if f.Check == "project" || f.Check == "channel-bus" {
			t.Errorf("got %+v", f)
		}
	}
}

// The agents' network uses a bus of its own and has findings of its own.
func TestTheAgentsNetwork(t *testing.T) {
	data := place(t, "")
	for _, f := range visit(t, data, "", nil) {
		if f.Check == "network" {
			t.Errorf("the network is off, but got %+v", f)
		}
	}
	local := `{"crossComputer": {"local": true}}`
	expect(t, visit(t, data, local, nil), "network", doctor.OK, "the first agent's MCP server starts it")
	expect(t, visit(t, data, local, map[string]string{"NATS_MCP_AUTOSTART": "0"}), "network", doctor.Failure, "parley start")
	hub(t, data)
	wait.Eventually(t, "the hub uses its network", func() bool {
		return slices.ContainsFunc(visit(t, data, local, nil), func(f doctor.Finding) bool {
			return f.Check == "network" && f.Level == doctor.OK && f.Message == "the hub's bus answers: 0 agents live, 0 offline"
		})
	})
}

func TestTheAgentsNetworkOnACluster(t *testing.T) {
	data := place(t, "")
	srv := testbed.StartNATS(t)
	cluster := func(url, more string) string {
		return fmt.Sprintf(`{"crossComputer": {"enabled": true, "acknowledgment": "I understand the security implications", "natsClusterUrls": [%q]%s}}`, url, more)
	}
	closed := closedPort(t)
	away := cluster("nats://"+closed, `, "tlsRequired": false`)
	expect(t, visit(t, data, away, nil), "network", doctor.Failure, closed)
	expect(t, visit(t, data, away, nil), "network link", doctor.Failure, "this computer's agents have no hub to work together")
	expect(t, visit(t, data, cluster(srv.URL(), ""), nil), "network", doctor.Failure, "TLS")
	file := cluster(srv.URL(), `, "tlsRequired": false`)
	expect(t, visit(t, data, file, nil), "network", doctor.Warning, "the network is not used yet; without TLS")
	n := agentnet.Open(agentnet.Config{BusConfig: store.Config{ProjectID: "0123456789abcdef", Logger: slog.New(slog.DiscardHandler), Dial: func(ctx context.Context) (*bus.Bus, error) {
		return bus.Open(ctx, bus.Config{URL: bus.Secret(srv.URL()), Logger: slog.New(slog.DiscardHandler)})
	}}})
	defer n.Close(context.Background()) //nolint:errcheck // the test's
	if err := n.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	a, err := n.Register(t.Context(), registry.Registration{Handle: "w", AgentType: "worker", Capabilities: []string{"go"}, Scope: registry.ScopeProject})
	if err == nil {
		_, err = a.Submit(t.Context(), work.Submission{Capability: "go", Offer: mail.Offer{TaskID: "T1", Description: "x"}})
	}
	var claim *work.Claim
	if err == nil {
		claim, err = a.Claim(t.Context(), nil)
	}
	if err == nil {
		_, err = a.Reject(t.Context(), "T1", claim.Token, "no", true)
	}
	if err != nil {
		t.Fatal(err)
	}
	findings := visit(t, data, file, nil)
	expect(t, findings, "network", doctor.Warning, "1 agent live, 0 offline; 1 work item in the dead letters")
	expect(t, findings, "network", doctor.Warning, "parley network dead-letters")
	expect(t, findings, "network link", doctor.OK, "no hub is running")
	hub(t, data)
	expect(t, visit(t, data, file, nil), "network link", doctor.OK, "agents work together on the hub's bus")
	expect(t, visit(t, data, away, nil), "network link", doctor.Warning, "0 messages and 0 work items to send later")
}
