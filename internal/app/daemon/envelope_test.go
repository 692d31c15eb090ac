//go:build unix

package daemon_test

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	hubcards "github.com/parleyhub/parley/discovery/hub"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/telemetry/audit"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/websocket"
)

const nodeYAML = `version: 1
bus: {durability: fast}
http: {token: sixteen-chars-or-more}
agents:
  claude-code: {disabled: true}
  gemini: {disabled: true}
  codex: {disabled: true}
  vibe: {disabled: true}
  parrot: {driver: exec, command: cat, tier: 0, capabilities: [{id: repeat, name: Repeat}]}
`

// remoteProgram connects a node of the library to a hub, by its URL and token, and registers an agent on it.
func remoteProgram(t *testing.T, hubURL, token string, tier agent.Tier) (*parley.Agent, chan *envelope.Envelope) {
	t.Helper()
	u, err := url.Parse(hubURL)
	if err != nil {
		t.Fatal(err)
	}
	node, err := parley.New(parley.Options{Channels: channel.Options{Dialers: map[agent.Transport]transport.Dialer{
		agent.TransportWebSocket: &websocket.Dialer{Token: websocket.TokenFor(u.Host, token)},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.Close(context.Background()); err != nil {
			t.Errorf("close the node: %v", err)
		}
	})
	if err := node.Registry().EnableDiscovery("hub", &hubcards.Source{URL: hubURL, Token: token}); err != nil {
		t.Fatal(err)
	}
	got := make(chan *envelope.Envelope, 64)
	me, err := node.Join(agent.Card{ID: "visitor", Name: "Visitor", Version: "1", Tier: tier, Capabilities: []agent.Capability{}},
		func(_ context.Context, e *envelope.Envelope) { got <- e })
	if err != nil {
		t.Fatal(err)
	}
	return me, got
}

func fetch(t *testing.T, url, token string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func next(t *testing.T, got chan *envelope.Envelope) *envelope.Envelope {
	t.Helper()
	select {
	case e := <-got:
		return e
	case <-time.After(20 * time.Second):
		t.Fatal("no answer")
		return nil
	}
}

// A program sends a request to a capability and gets the answer of the hub's agent that has it; the hub is another
// process (Req 4.3, 3.6).
func TestAnotherProcessReachesAnAgentByCapability(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	if err := os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(nodeYAML), 0o600); err != nil {
		t.Fatal(err)
	}
	info, err := start(t, "serve", dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, _, err := daemon.Stop(context.Background(), dir, shutdown(info.Socket)); err != nil {
			t.Error(err)
		}
	}()
	for _, path := range []string{hubcards.CardsPath, hubcards.Path, "/metrics"} {
		resp, err := http.Get(info.HTTP + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s without the token: %s", path, resp.Status)
		}
	}

	me, got := remoteProgram(t, info.HTTP, "sixteen-chars-or-more", agent.L3)
	sent, err := me.SendToCapability(t.Context(), "repeat", envelope.Request, "polly wants a cracker")
	if err != nil || sent.TargetAgentID != "parrot" {
		t.Fatalf("%+v, %v", sent, err)
	}
	e := next(t, got)
	var answer struct{ State, Text, TaskID string }
	if err := e.Unmarshal(&answer); err != nil {
		t.Fatal(err)
	}
	if e.Type != envelope.Response || e.Sender != "parrot" || e.CorrelationID == "" || answer.State != "completed" ||
		strings.TrimSpace(answer.Text) != "polly wants a cracker" || answer.TaskID == "" {
		t.Errorf("%+v %s", e, e.Payload)
	}

	for _, want := range []string{
		`parley_messages_total{direction="received",type="request"} 1`, `parley_tasks 1`,
		`parley_agent_health{agent="parrot",status="healthy"} 1`, `parley_build_info{version="test"} 1`, "\ngo_goroutines ", "\ngo_memstats_heap_inuse_bytes ", "\nprocess_start_time_seconds 1",
	} {
		if text := fetch(t, info.HTTP+"/metrics", "sixteen-chars-or-more"); !strings.Contains(text, want) {
			t.Errorf("/metrics lacks %s:\n%s", want, text)
		}
	}

	// The hub's audit log has both envelopes, and only its user can read it. It records an envelope after its
	// delivery.
	happens(t, "the audit log has the request and the response", func() bool {
		var types []envelope.Type
		for rec, err := range audit.Read(daemon.AuditDir(dir)) {
			if err != nil {
				t.Fatal(err)
			}
			if rec.Envelope != nil {
				types = append(types, rec.Envelope.Type)
			}
		}
		if len(types) > 2 {
			t.Fatalf("the audit log has %v", types)
		}
		return slices.Contains(types, envelope.Request) && slices.Contains(types, envelope.Response)
	})
	files, err := filepath.Glob(filepath.Join(daemon.AuditDir(dir), "*"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range append(files, daemon.AuditDir(dir)) {
		if fi, err := os.Stat(f); err != nil || fi.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v", f, fi.Mode(), err)
		}
	}
}

func TestTheNodeCanBeDisabled(t *testing.T) {
	t.Parallel()
	r := run(t, mustLoad(t, newDir(t), "node.enabled=false", "node.audit.enabled=false"))
	defer r.end(t)
	resp, err := http.Get(r.info.HTTP + hubcards.CardsPath)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("%s", resp.Status)
	}
}
