package parley_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/registry"
	"github.com/parleyhub/parley/router"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/memory"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == talkCommand { // for TestTwoProcessesTalk
		talk()
		return
	}
	goleak.VerifyTestMain(m)
}

func card(id string) agent.Card {
	c := agent.Card{ID: id, Name: strings.ToUpper(id), Version: "1.0.0", Tier: agent.PlanetaryTier(id), Capabilities: []agent.Capability{{ID: "work." + id}}}
	if c.Tier == agent.NoTier {
		c.Tier = agent.L3
	}
	return c
}

type site struct {
	*parley.Node
	at agent.Endpoint
}

// newSite returns a node that listens on a network and can dial it.
func newSite(t *testing.T, net *memory.Network, name string, change func(*parley.Options)) site {
	t.Helper()
	o := parley.Options{Channels: channel.Options{Dialers: map[agent.Transport]transport.Dialer{agent.TransportLocal: net}}}
	if change != nil {
		change(&o)
	}
	n, err := parley.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 {
			if err := n.Close(context.Background()); err != nil {
				t.Errorf("close: %v", err)
			}
		}
	})
	l, err := net.Listen(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Listen(l); err != nil {
		t.Fatal(err)
	}
	return site{n, l.Endpoint()}
}

func (s site) join(t *testing.T, c agent.Card) (*parley.Agent, chan string) {
	t.Helper()
	got := make(chan string, 100)
	a, err := s.Join(c, func(_ context.Context, e *envelope.Envelope) { got <- e.Sender + string(e.Payload) })
	if err != nil {
		t.Fatal(err)
	}
	return a, got
}

func expect(t *testing.T, got chan string, want string) {
	t.Helper()
	select {
	case s := <-got:
		if s != want {
			t.Errorf("got %s, want %s", s, want)
		}
	case <-time.After(time.Minute):
		t.Errorf("%s did not arrive", want)
	}
}

func TestTwoNodesIntroduceTheirAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net memory.Network
		here, there := newSite(t, &net, "here", nil), newSite(t, &net, "there", nil)
		mars, atMars := here.join(t, card("mars"))
		saturn, _ := here.join(t, card("saturn"))
		venus, atVenus := there.join(t, card("venus"))
		c, err := here.Connect(t.Context(), "mars", "venus", there.at)
		if err != nil {
			t.Fatal(err)
		}
		res, err := mars.Send(t.Context(), "venus", envelope.Request, 1)
		if err != nil || res.Path != telemetry.PathRemote {
			t.Fatalf("%+v, %v", res, err)
		}
		expect(t, atVenus, "mars1")
		if _, err := venus.Send(t.Context(), "mars", envelope.Response, 2); err != nil {
			t.Fatal(err)
		}
		expect(t, atMars, "venus2")
		if _, err := saturn.SendToCapability(t.Context(), "work.venus", envelope.Request, 3); err != nil { // opens another channel
			t.Fatal(err)
		}
		expect(t, atVenus, "saturn3")
		if res, err := venus.Send(t.Context(), "*", envelope.Notification, 4); err != nil || res.Recipients != 2 {
			t.Fatalf("%+v, %v", res, err)
		}
		expect(t, atMars, "venus4")

		if got, err := there.Registry().Get("mars"); err != nil || got.Origin != agent.Remote || len(got.Endpoints) != 1 || got.Endpoints[0] != here.at {
			t.Errorf("venus's node has mars as %+v, %v", got, err)
		}
		c.Close()
		synctest.Wait()
		if _, err := there.Registry().Get("mars"); err == nil {
			t.Error("mars is known after its channel was closed")
		}
		if _, err := here.Registry().Get("venus"); err != nil {
			t.Error("venus is unknown though saturn has a channel to it")
		}
		saturn.Leave()
		synctest.Wait()
		if n := len(here.Channels().Channels()); n != 0 {
			t.Errorf("%d channels are still open", n)
		}
		if _, err := here.Registry().Get("saturn"); err == nil {
			t.Error("saturn is still known")
		}
		if m := here.Telemetry().Metrics(); m.TotalMessagesSent != 2 || m.TotalMessagesReceived != 3 {
			t.Errorf("this node counted %d sent and %d received", m.TotalMessagesSent, m.TotalMessagesReceived)
		}
	})
}

func TestDiscoveredAgentsNeedNoConnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net memory.Network
		var finding registry.MemoryNetwork
		here, there := newSite(t, &net, "here", nil), newSite(t, &net, "there", nil)
		for _, s := range []site{here, there} {
			if err := s.Registry().EnableDiscovery("memory", finding.Join()); err != nil {
				t.Fatal(err)
			}
		}
		mars, _ := here.join(t, card("mars"))
		c := card("venus")
		c.Endpoints = []agent.Endpoint{there.at}
		_, atVenus := there.join(t, c)
		synctest.Wait()
		if _, err := mars.Send(t.Context(), "venus", envelope.Request, 1); err != nil {
			t.Fatal(err)
		}
		expect(t, atVenus, "mars1")
	})
}

// intruder opens a channel to venus's node as any agent, with any card.
func intruder(t *testing.T, net *memory.Network, from string, card string) *channel.Channel {
	t.Helper()
	m := channel.NewManager(channel.Options{
		Dialers:   map[agent.Transport]transport.Dialer{agent.TransportLocal: net},
		Introduce: func(string) json.RawMessage { return json.RawMessage(card) },
	}, nil)
	t.Cleanup(func() { m.Close() })
	c, err := m.OpenAt(t.Context(), from, "venus", agent.Endpoint{Transport: agent.TransportLocal, Address: "there"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestPeersCannotImpersonateAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net memory.Network
		there := newSite(t, &net, "there", func(o *parley.Options) {
			o.Trust = func(_ channel.Request, c agent.Card) error {
				if c.Tier == agent.L0 {
					return errors.New("we have an orchestrator")
				}
				return nil
			}
		})
		there.join(t, card("venus"))
		there.join(t, card("earth"))
		mine := func(id string, tier int) string {
			return fmt.Sprintf(`{"id":%q,"name":"X","version":"1","tier":%d,"capabilities":[]}`, id, tier)
		}
		if _, err := there.Registry().Hold(card("mars"), "peer:mars's hub"); err != nil {
			t.Fatal(err)
		}
		for name, tc := range map[string]struct{ from, card, want string }{
			"a local agent":        {"earth", mine("earth", 1), "a local agent already has the id"},
			"another peer's agent": {"mars", mine("mars", 2), "another peer"},
			"another's card":       {"io", mine("europa", 3), "is that of"},
			"an invalid card":      {"io", `{"id":"io"}`, "is missing"},
			"a refused tier":       {"sun", mine("sun", 0), "we have an orchestrator"},
			"no card":              {"io", ``, "must send its card"},
		} {
			c := intruder(t, &net, tc.from, tc.card)
			if err := c.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: %v, want %q", name, err, tc.want)
			}
		}
		c := intruder(t, &net, "io", mine("io", 3))
		if err := c.Ready(t.Context()); err != nil {
			t.Errorf("a valid card: %v", err)
		}
	})
}

type brokenSource struct{}

func (brokenSource) Discover(context.Context, registry.Sink) error { return errors.New("out of order") }

func TestAFailedDiscoveryIsAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var notified error
		n, err := parley.New(parley.Options{Registry: registry.Options{OnError: func(_ string, err error) { notified = err }}})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close(context.Background())
		if err := n.Registry().EnableDiscovery("hub", brokenSource{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		events := n.Telemetry().Recent(1)
		if len(events) != 1 || events[0].Code != parley.CodeDiscoveryFailed || events[0].Detail != "hub: out of order" || notified == nil {
			t.Errorf("%+v, %v", events, notified)
		}
	})
}

// dialer wraps the connections of another dialer.
type dialer struct {
	transport.Dialer
	change func(transport.Conn) transport.Conn
}

func (d dialer) Dial(ctx context.Context, to agent.Endpoint) (transport.Conn, error) {
	conn, err := d.Dialer.Dial(ctx, to)
	if err != nil {
		return nil, err
	}
	return d.change(conn), nil
}

// shy closes instead of sending the last frame of the handshake.
type shy struct{ transport.Conn }

func (c shy) Send(ctx context.Context, frames []transport.Frame) error {
	if frames[0].Kind == transport.Ready {
		return errors.Join(c.Close(), errors.New("no"))
	}
	return c.Conn.Send(ctx, frames)
}

// lingering delays Close.
type lingering struct{ transport.Conn }

func (c lingering) Close() error {
	<-time.After(time.Second)
	return c.Conn.Close()
}

// A card that was received over a channel is removed when the channel ends, for any reason; otherwise peers could fill
// the registry.
func TestCardsAreRemovedWithTheirChannels(t *testing.T) {
	for name, change := range map[string]func(transport.Conn) transport.Conn{
		"never opened":   func(c transport.Conn) transport.Conn { return shy{c} },
		"ends slowly":    func(c transport.Conn) transport.Conn { return lingering{c} },
		"ends regularly": func(c transport.Conn) transport.Conn { return c },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var net memory.Network
				here := newSite(t, &net, "here", func(o *parley.Options) {
					o.Channels.Dialers[agent.TransportLocal] = dialer{&net, change}
					o.Channels.ReconnectTimeout = time.Second
				})
				there := newSite(t, &net, "there", nil)
				here.join(t, card("mars"))
				there.join(t, card("venus"))
				if c, err := here.Connect(t.Context(), "mars", "venus", there.at); err == nil {
					synctest.Wait()
					c.Close()
				}
				synctest.Wait()
				for _, s := range []site{here, there} {
					if remote := s.Registry().Remote(); len(remote) > 0 {
						t.Errorf("%s is known after its last channel ended", remote[0].ID)
					}
				}
			})
		})
	}
}

// What a peer says of its tier in an envelope does not count; its card does.
func TestRemoteEnvelopesAreCheckedAgainstTheCard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net memory.Network
		there := newSite(t, &net, "there", nil)
		_, atVenus := there.join(t, card("venus"))
		c := intruder(t, &net, "mars", `{"id":"mars","name":"M","version":"1","tier":2,"capabilities":[]}`)
		for _, m := range []*envelope.Metadata{nil, {Tier: agent.L0}, {Tier: agent.L1}, {Tier: agent.L2, SandboxID: "box"}} {
			e, err := envelope.New("mars", "venus", envelope.Request, nil)
			if err != nil {
				t.Fatal(err)
			}
			e.Metadata = m
			if err := c.Send(t.Context(), e); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := len(atVenus); n != 1 {
			t.Errorf("%d envelopes were delivered, want the one without metadata", n)
		}
		if n := there.Telemetry().Metrics().SecurityEvents; n != 3 {
			t.Errorf("%d security events, want 3", n)
		}
	})
}

func TestErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net memory.Network
		if _, err := parley.New(parley.Options{Router: router.Options{Tiers: &router.TierConfig{Rules: []router.TierRule{{}}}}}); err == nil {
			t.Error("invalid rules were accepted")
		}
		here := newSite(t, &net, "here", nil)
		if _, err := here.Join(agent.Card{ID: "x"}, nil); err == nil {
			t.Error("an incomplete card was accepted")
		}
		here.join(t, card("mars"))
		if _, err := here.Connect(t.Context(), "mars", "*", here.at); err == nil {
			t.Error("connected to a broadcast address")
		}
		if _, err := here.Connect(t.Context(), "mars", "ghost", here.at); err == nil || !strings.Contains(err.Error(), "no local agent") {
			t.Errorf("connected for an unknown agent: %v", err)
		}
		if err := here.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("late")
		if err != nil {
			t.Fatal(err)
		}
		if err := here.Listen(l); err == nil {
			t.Error("a closed node listens")
		}
	})
}
