//go:build unix

package daemon_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/federation/peers"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/events"
	"github.com/parleyhub/parley/internal/testbed"
	"github.com/parleyhub/parley/telemetry/audit"
)

const peersYAML = `version: 1
bus: {url: %q}
peers: {enabled: true, hyperswarm: {%s}}
http: {port: 0, token: sixteen-chars-or-more}
agents:
  claude-code: {disabled: true}
  gemini: {disabled: true}
  codex: {disabled: true}
  vibe: {disabled: true}
  parrot: {driver: exec, command: cat, capabilities: [{id: %s, name: Repeat}]}
`

// twoHubs starts two paired hubs, each a process, and a NATS server. The first hub names the second there; the second
// names the first here, with an address if that is not empty.
func twoHubs(t *testing.T, configure func(natsURL string, i int) string, address string) (dirs [2]string, infos [2]daemon.Info, own [2]identity.PublicKey) {
	t.Helper()
	srv := testbed.StartNATS(t)
	for i := range dirs {
		dirs[i] = newDir(t)
		if err := os.WriteFile(filepath.Join(dirs[i], "config.yaml"), []byte(configure(srv.URL(), i)), 0o600); err != nil {
			t.Fatal(err)
		}
		info, err := start(t, "serve", dirs[i])
		if err != nil {
			t.Fatal(err)
		}
		infos[i] = info
		t.Cleanup(func() {
			if _, _, err := daemon.Stop(context.Background(), dirs[i], shutdown(info.Socket)); err != nil {
				t.Error(err)
			}
		})
		pair, err := identity.Load(peers.KeyPath(dirs[i]))
		if err != nil {
			t.Fatal(err)
		}
		own[i] = pair.Public()
	}
	for i, name := range []string{"there", "here"} {
		list, err := identity.OpenAllowList(peers.AllowPath(dirs[i]))
		if err != nil {
			t.Fatal(err)
		}
		if err := list.Add(identity.Entry{Key: own[1-i], Name: name, Address: []string{"", address}[i]}); err != nil {
			t.Fatal(err)
		}
	}
	return dirs, infos, own
}

// Two hubs run on one NATS server. A program at one hub sends a request to a capability that only the other hub's agent
// has, and gets its answer (Req 1.7, 1.8, 3.6, 4.3); a broadcast reaches that agent, too (Req 4.2).
func TestTwoHubsOnOneServer(t *testing.T) {
	t.Parallel()
	dirs, infos, own := twoHubs(t, func(natsURL string, i int) string {
		return fmt.Sprintf(peersYAML, natsURL, "", []string{"repeat.here", "repeat.there"}[i])
	}, "")
	byCapabilityAndToAll(t, infos[0])
	// The other hub's audit log names the hub that sent the request.
	front := "~hub-l3@" + own[0].String()
	happens(t, "the audit log names the hub that sent the request", func() (named bool) { // an envelope is recorded after its delivery
		for rec, err := range audit.Read(daemon.AuditDir(dirs[1])) {
			if err != nil {
				t.Fatal(err)
			}
			named = named || rec.Envelope != nil && rec.Envelope.Sender == front
		}
		return named
	})
	if info, err := os.Stat(peers.KeyPath(dirs[0])); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the identity: %v, %v", info.Mode(), err)
	}
}

// Each hub has its own store and the server only connects them (Req 1.7, 3.6, 4.2, 4.3).
func TestTwoHubsWithTheirOwnStores(t *testing.T) {
	dirs, infos, _ := twoHubs(t, func(natsURL string, i int) string {
		all := fmt.Sprintf(peersYAML, "", "enabled: false", []string{"repeat.here", "repeat.there"}[i])
		return strings.Replace(all, "peers: {", fmt.Sprintf("peers: {nats: {url: %q}, ", natsURL), 1)
	}, "")
	byCapabilityAndToAll(t, infos[0])
	c, err := client.Dial(context.Background(), infos[0].Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	status, err := c.Status(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if p := status.Peers; p == nil || len(p.Hubs) != 1 || !slices.Equal(p.Hubs[0].Via, []string{"nats"}) || !status.Bus.Embedded {
		t.Errorf("%+v, the bus: %+v", p, status.Bus)
	}
	// The hub records when the other connects, and when it is gone.
	eventsUntil(t, c, "is the connection", is(events.PeerConnected, "there"), "peer")
	if _, _, err := daemon.Stop(t.Context(), dirs[1], shutdown(infos[1].Socket)); err != nil {
		t.Fatal(err)
	}
	eventsUntil(t, c, "is the loss", is(events.PeerDisconnected, "there"), "peer")
}

// freeUDP returns an unused UDP address. Its port is below the system's ephemeral ports, so it is still unused when the
// hub listens on it.
func freeUDP(t *testing.T) string {
	t.Helper()
	for range 100 {
		at := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 10000 + rand.N(20000)}
		if conn, err := net.ListenUDP("udp4", at); err == nil {
			if err := conn.Close(); err != nil {
				t.Fatal(err)
			}
			return at.String()
		}
	}
	t.Fatal("no port is free")
	return ""
}

// Two hubs use Hyperswarm, without a server (Req 1.7, 1.8, 3.6, 4.2, 4.3, 4.4). After the other hub was killed and its
// cards have expired, its agents are unavailable. After its restart they are used again.
func TestTwoHubsWithoutAServer(t *testing.T) {
	t.Parallel()
	public := freeUDP(t)
	dirs, infos, _ := twoHubs(t, func(_ string, i int) string {
		at := []string{"public: '" + public + "', listen: '" + public + "'", "listen: '127.0.0.1:0'"}[i]
		return fmt.Sprintf(peersYAML, "", at, []string{"repeat.here", "repeat.there"}[i])
	}, public)
	byCapabilityAndToAll(t, infos[0])

	c, err := client.Dial(t.Context(), infos[0].Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	is := func(health string) func() bool {
		return func() bool {
			all, err := c.Agents(t.Context(), true)
			if err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(all, func(a dialect.Agent) bool {
				return a.ID == "there.parrot" && a.Health != nil && a.Health.Status == health
			})
		}
	}
	other, err := os.FindProcess(infos[1].PID)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Kill(); err != nil {
		t.Fatal(err)
	}
	happens(t, "the agents of a hub that was killed are unhealthy", is("unhealthy"))
	happens(t, "the other hub and all its agents are unavailable", func() bool { // each agent has its own card
		s, err := c.Status(t.Context())
		return err == nil && s.Peers != nil && len(s.Peers.Hubs) == 1 && !s.Peers.Hubs[0].Connected && len(s.Peers.Hubs[0].Agents) == 0 && s.Peers.Hubs[0].LastHeard != nil
	})
	if _, err := start(t, "serve", dirs[1]); err != nil {
		t.Fatal(err)
	}
	happens(t, "they are well when it is back", is("healthy"))
	if task, err := c.Send(t.Context(), askFor("there.parrot", "again")); err != nil || task.Status.State != dialect.StateCompleted {
		t.Errorf("%+v, %v", task, err)
	}
	if s, err := c.Status(t.Context()); err != nil || !s.Peers.Hubs[0].Connected || !slices.Equal(s.Peers.Hubs[0].Via, []string{"hyperswarm"}) || !slices.Contains(s.Peers.Hubs[0].Agents, "there.parrot") {
		t.Errorf("%+v, %v", s, err)
	}
}

// happens waits up to 90 s for a condition.
func happens(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.After(90 * time.Second) // cards expire after 30 s, and machines are slow
	for !ok() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("timeout: " + what)
		}
	}
}

// askFor returns the parameters of a message to an agent.
func askFor(agentID, text string) dialect.SendParams {
	return dialect.SendParams{Message: dialect.Message{
		Kind: dialect.KindMessage, MessageID: "m-" + agentID + text, Role: dialect.RoleUser, Parts: []dialect.Part{dialect.TextPart(text)},
		Metadata: map[string]any{hub.MetaTargetAgent: agentID},
	}}
}

// byCapabilityAndToAll connects a program to the first hub and sends to the other hub's agent, by its capability and
// as a broadcast.
func byCapabilityAndToAll(t *testing.T, first daemon.Info) {
	t.Helper()
	me, got := remoteProgram(t, first.HTTP, "sixteen-chars-or-more", agent.L3)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	for {
		sent, err := me.SendToCapability(ctx, "repeat.there", envelope.Request, "polly wants a cracker")
		if err == nil {
			if sent.TargetAgentID != "there.parrot" {
				t.Errorf("the request was sent to %s", sent.TargetAgentID)
			}
			break
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the other hub's agent is not found: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
	e := next(t, got)
	var answer struct{ State, Text string }
	if err := json.Unmarshal(e.Payload, &answer); err != nil {
		t.Fatal(err)
	}
	if e.Type != envelope.Response || e.Sender != "there.parrot" || answer.State != "completed" || strings.TrimSpace(answer.Text) != "polly wants a cracker" {
		t.Errorf("%+v %s", e, e.Payload)
	}
	if _, err := me.Send(ctx, envelope.Broadcast, envelope.Request, "hello all"); err != nil {
		t.Fatal(err)
	}
	heard := map[string]bool{}
	for !heard["parrot"] || !heard["there.parrot"] {
		heard[next(t, got).Sender] = true
	}
}
