package server_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/base/wait"
	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
)

// joinWithout begins a session whose client opens no stream by itself.
func (r *resting) joinWithout() *agent {
	r.t.Helper()
	a := &agent{t: r.t}
	transport := &http.Transport{}
	var err error
	a.session, err = mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(r.t.Context(),
		&mcp.StreamableClientTransport{Endpoint: r.url, HTTPClient: &http.Client{Transport: transport}, DisableStandaloneSSE: true},
		&mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		a.session.Close() // only at the end
		transport.CloseIdleConnections()
	})
	return a
}

// open opens the stream of an agent's session.
func (r *resting) open(a *agent) (lose func()) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Mcp-Session-Id", a.session.ID())
	req.Header.Set("Accept", "text/event-stream")
	answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		r.t.Fatal(err)
	}
	if answer.StatusCode != http.StatusOK {
		r.t.Errorf("the stream: %d", answer.StatusCode)
	}
	return func() {
		cancel()
		answer.Body.Close()
	}
}

// An agent whose client is gone is shown as offline, and as before when the client is back: by opening its stream, or by a call.
func TestAnAgentWhoseClientIsGoneIsShownAsOffline(t *testing.T) {
	for name, tc := range map[string]struct {
		says string // of itself before; "" for nothing
		back func(r *resting, a *agent)
	}{
		"it opens its stream":            {"busy", func(r *resting, a *agent) { r.t.Cleanup(r.open(a)) }},
		"it calls a tool of the network": {"busy", func(_ *resting, a *agent) { a.must("read_direct_messages", nil) }},
		"it asks what it publishes": {"busy", func(r *resting, a *agent) {
			if own := a.must("get_my_registration", nil); !strings.Contains(own.text, "status: busy") {
				r.t.Error(own.text)
			}
		}},
		"it calls another tool":            {"idle", func(_ *resting, a *agent) { a.must("list_channels", nil) }},
		"it has said nothing of itself":    {"", func(_ *resting, a *agent) { a.must("list_channels", nil) }},
		"it has said that it is offline":   {"offline", func(_ *resting, a *agent) { a.must("list_channels", nil) }},
		"it says something else of itself": {"busy", func(_ *resting, a *agent) { a.registered(asWorker) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startRestingWith(t, mcpserver.HandlerOptions{SuspendAfter: time.Millisecond, GoneAfter: time.Millisecond})
			boss, _ := r.join("")
			boss.named("boss").registered(asDispatcher)
			a := r.joinWithout()
			_, guid := a.named("ann").registered(asWorker)
			if tc.says != "" {
				a.must("update_presence", map[string]any{"status": tc.says, "currentTaskCount": 2})
			}
			entry := func() map[string]any {
				return boss.must("get_agent_info", map[string]any{"guid": guid}).content["entry"].(map[string]any)
			}
			before := entry()
			lose := r.open(a)
			lose()
			wait.Eventually(t, "the agent is offline", func() bool { return entry()["status"] == "offline" })
			sent := boss.must("send_direct_message", map[string]any{"recipientGuid": guid, "message": "are you there?"})
			if !strings.Contains(sent.text, "offline") {
				t.Errorf("the sender is not warned: %s", sent.text)
			}
			tc.back(r, a)
			wait.Eventually(t, "the agent is as before", func() bool { return entry()["status"] == before["status"] })
			if now := entry(); now["registeredAt"] != before["registeredAt"] || now["currentTaskCount"] != before["currentTaskCount"] {
				t.Errorf("%v, before %v", now, before)
			}
			if own := a.must("get_my_registration", nil); !strings.Contains(own.text, guid) || !strings.Contains(own.text, "status: "+before["status"].(string)) {
				t.Error(own.text)
			}
			if tc.says != "" {
				return // a second change is too early
			}
			a.must("update_presence", map[string]any{"status": "busy"})
			if own := a.must("get_my_registration", nil); !strings.Contains(own.text, "status: busy") {
				t.Errorf("what it says later does not stay: %s", own.text)
			}
		})
	}
}
