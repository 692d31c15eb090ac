//go:build unix

package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/app/cli"
	"github.com/parleyhub/parley/internal/bus"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
	"github.com/parleyhub/parley/internal/testbed"
)

// network starts a NATS server, creates a project whose configuration names it, and registers an agent in its
// network.
func network(t *testing.T, tlsRequired bool) (string, *agentnet.Agent) {
	t.Helper()
	url := testbed.StartNATS(t).URL()
	dir := project(t)
	t.Setenv("HOME", t.TempDir())
	text := fmt.Sprintf(`{"natsUrl": %q, "crossComputer": {"enabled": true, "acknowledgment": %q, "natsClusterUrls": [%q], "tlsRequired": %v}}`,
		url, mcpconfig.Acknowledgment, url, tlsRequired)
	if err := os.WriteFile(filepath.Join(dir, ".mcp-config.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	n := agentnet.Open(agentnet.Config{BusConfig: store.Config{Hostname: "far-away", Username: "bob", ProjectPath: "/p", ProjectID: "0123456789abcdef", Logger: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context) (*bus.Bus, error) {
			return bus.Open(ctx, bus.Config{URL: bus.Secret(url), Logger: slog.New(slog.DiscardHandler)})
		}}})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	if err := n.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	agent, err := n.Register(t.Context(), registry.Registration{Handle: "worker-1", AgentType: "tdd-engineer", Capabilities: []string{"go"}, Scope: registry.ScopeUser, Visibility: store.Public})
	if err != nil {
		t.Fatal(err)
	}
	return url, agent
}

func TestNetworkCommands(t *testing.T) {
	p := newSetup(t)
	_, agent := network(t, false)
	o := p.run(t, "network", "agents")
	if o.code != 0 || !strings.Contains(o.stdout, cli.ShortID(agent.GUID())) || !strings.Contains(o.stdout, "far-away") {
		t.Fatalf("%+v", o)
	}
	list := decode[[]registry.Summary](t, p.run(t, "network", "agents", "--format", "json"))
	if len(list) != 1 || list[0].Handle != "worker-1" {
		t.Errorf("%+v", list)
	}
	// A message, and the answer to the same person.
	answered := make(chan error, 1)
	go func() {
		got, _, err := agent.Wait(t.Context(), mail.Selection{})
		if err == nil && (len(got) != 1 || got[0].Text != "how are you?") {
			err = fmt.Errorf("%+v", got)
		}
		if err == nil {
			_, err = agent.Send(t.Context(), mail.Message{Recipient: got[0].SenderGUID, Text: "fine\x1b[2J\nreally"})
		}
		answered <- err
	}()
	o = p.run(t, "network", "send", "--wait", "worker-1", "how are you?")
	if err := <-answered; err != nil || o.code != 0 || !strings.Contains(o.stdout, "Sent to worker-1") || !strings.Contains(o.stdout, "    fine") || strings.Contains(o.stdout, "\x1b") {
		t.Fatalf("%v %+v", err, o)
	}
	if o := p.run(t, "network", "inbox"); o.code != 0 || !strings.Contains(o.stdout, "No mail.") {
		t.Errorf("%+v", o)
	}
	if o := p.run(t, "network", "inbox", "--all"); !strings.Contains(o.stdout, "    really") {
		t.Errorf("%+v", o)
	}

	// Work, and its failure.
	if _, err := agent.Submit(t.Context(), work.Submission{Capability: "go", Offer: mail.Offer{TaskID: "T-1", Description: "build it"}}); err != nil {
		t.Fatal(err)
	}
	if o := p.run(t, "network", "work"); !strings.Contains(o.stdout, "T-1") || !strings.Contains(o.stdout, "queued") {
		t.Errorf("%+v", o)
	}
	claim, err := agent.Claim(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := agent.Reject(t.Context(), "T-1", claim.Token, "no compiler", true); err != nil {
		t.Fatal(err)
	}
	if o := p.run(t, "network", "dead-letters"); !strings.Contains(o.stdout, "explicit-reject") || !strings.Contains(o.stdout, "no compiler") {
		t.Errorf("%+v", o)
	}
	if o := p.run(t, "network", "dead-letters", "--retry", "T-1"); o.code != 0 {
		t.Errorf("%+v", o)
	}
	if items := decode[[]work.ItemStatus](t, p.run(t, "network", "work", "--state", "queued", "--format", "json")); len(items) != 1 || items[0].TaskID != "T-1" {
		t.Errorf("%+v", items)
	}
	for _, tt := range []struct {
		args []string
		code int
		part string
	}{
		{[]string{"network", "dead-letters", "--discard", "T-1"}, 1, "There is no dead letter"},
		{[]string{"network", "send", "nobody", "x"}, 2, "there is no agent"},
		{[]string{"network", "work", "--state", "lost"}, 2, "is not one of"},
		{[]string{"network", "admit", "--guid", "x"}, 2, "is not a GUID"},
		{[]string{"network", "permissions", "--guid", "x"}, 2, "is not a GUID"},
		{[]string{"network", "permissions", "--capabilities", "go.>"}, 2, "cannot name a work queue"},
		{[]string{"network", "permissions", "--bucket", "*"}, 2, "cannot be the registry's"},
		{[]string{"network", "admit", "--guid", "7f3c1a52-8a0e-4f5b-9d55-0d7c9f1f2b11", "--capabilities", "*"}, 2, "cannot name a work queue"},
		{[]string{"network", "dead-letters", "--discard", "nothing"}, 1, "parley network dead-letters lists"},
		{[]string{"network", "dead-letters", "--keep-attempts"}, 2, "needs --retry"},
		{[]string{"network", "dead-letters", "--retry", "a", "--discard", "b"}, 2, "--discard and --retry cannot be used together"},
	} {
		if o := p.run(t, tt.args...); o.code != tt.code || !strings.Contains(o.stderr, tt.part) {
			t.Errorf("%v: %+v", tt.args, o)
		}
	}
	if o := p.run(t, "network", "admit", "--guid", "7f3c1a52-8a0e-4f5b-9d55-0d7c9f1f2b11", "--capabilities", "go,rust"); o.code != 0 {
		t.Errorf("%+v", o)
	}
	var permissions struct{ Publish, Subscribe []string }
	if err := json.Unmarshal([]byte(p.run(t, "network", "permissions", "--format", "json", "--capabilities", "go").stdout), &permissions); err != nil || len(permissions.Publish) < 20 {
		t.Errorf("%+v, %v", permissions, err)
	}
}

func TestSendPrefersTheAgentThatIsAlive(t *testing.T) {
	p := newSetup(t)
	url, first := network(t, false)
	n := agentnet.Open(agentnet.Config{BusConfig: store.Config{Hostname: "near", Username: "eve", ProjectPath: "/q", ProjectID: "0123456789abcdef", Logger: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context) (*bus.Bus, error) {
			return bus.Open(ctx, bus.Config{URL: bus.Secret(url), Logger: slog.New(slog.DiscardHandler)})
		}}})
	t.Cleanup(func() { _ = n.Close(context.Background()) })
	if err := n.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	second, err := n.Register(t.Context(), registry.Registration{Handle: "worker-1", AgentType: "tdd-engineer", Scope: registry.ScopeUser, Visibility: store.Public})
	if err != nil {
		t.Fatal(err)
	}
	if o := p.run(t, "network", "send", "worker-1", "x"); o.code != 2 || !strings.Contains(o.stderr, first.GUID()) || !strings.Contains(o.stderr, second.GUID()) {
		t.Errorf("both are alive: %+v", o)
	}
	if _, err := first.Deregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	if o := p.run(t, "network", "send", "worker-1", "x"); o.code != 0 || !strings.Contains(o.stderr, second.GUID()+" is the only one") ||
		o.stdout != "Sent to worker-1.\n" || !strings.Contains(o.stderr, "network inbox") {
		t.Errorf("one is alive: %+v", o)
	}
}

// The commands print an error in words; the MCP server logs it.
func TestAnInvalidNetworkConfigurationIsReported(t *testing.T) {
	p := newSetup(t)
	dir := project(t)
	if err := os.WriteFile(filepath.Join(dir, ".mcp-config.json"), []byte(`{"crossComputer": {"enabled": true}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if o := p.run(t, "network", "agents"); o.code != 2 || !strings.HasPrefix(o.stderr, "error: ") || !strings.Contains(o.stderr, "acknowledgment") || !strings.Contains(o.stderr, "config validate") {
		t.Errorf("%+v", o)
	}
}

func TestNetworkCommandsNeedAnEnabledNetwork(t *testing.T) {
	p := newSetup(t)
	project(t)
	t.Setenv("NATS_MCP_LOCAL_NETWORK", "false")
	if o := p.run(t, "network", "agents"); o.code != 2 || !strings.Contains(o.stderr, "the agents' network is off") {
		t.Errorf("%+v", o)
	}
}

// serve runs the MCP server with a client that disconnects at once.
func serve(t *testing.T) outcome {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), beParley+"="+cli.MCPServer, "GOCOVERDIR="+t.TempDir())
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if _, ok := errors.AsType[*exec.ExitError](err); !ok {
			t.Fatal(err)
		}
	}
	return outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// REQ-CONFIG-CROSS-004, REQ-SEC-CROSS-006, REQ-SEC-CROSS-007: without TLS the
// server does not start, or, if the configuration allows it, logs a warning.
func TestTheServerDoesNotStartWithoutTLS(t *testing.T) {
	network(t, true)
	o := serve(t)
	if o.code != 2 || !strings.Contains(o.stderr, "The server did not start: crossComputer.tlsRequired is true, and the NATS server has no TLS") {
		t.Errorf("%+v", o)
	}
	t.Setenv("TLS_REQUIRED", "false")
	t.Setenv("NATS_MCP_INSECURE_SKIP_VERIFY", "true")
	o = serve(t)
	if o.code != 0 || !strings.Contains(o.stderr, `"level":"WARN","message":"crossComputer.tlsRequired is false`) || !strings.Contains(o.stderr, "insecureSkipVerify is true") {
		t.Errorf("%+v", o)
	}
	t.Setenv("NATS_MCP_ACKNOWLEDGMENT", "yes")
	o = serve(t)
	if o.code != 2 || !strings.Contains(o.stderr, "crossComputer.acknowledgment") {
		t.Errorf("%+v", o)
	}
}
