package chat_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/chat"
)

func inspect(t *testing.T, cfg chat.Config) []chat.ChannelState {
	t.Helper()
	b, err := cfg.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return chat.Inspect(t.Context(), b, cfg.Namespace, cfg.Channels)
}

func TestInspectChangesNothing(t *testing.T) {
	n := startServer(t)
	for _, s := range inspect(t, n.config("p")) {
		if s.Exists || s.Err != nil {
			t.Errorf("before the first use: %+v", s)
		}
	}
	if _, err := n.Foreign().Stream(t.Context(), "p_ROADMAP"); err == nil {
		t.Error("a stream was created")
	}
	s := ready(t, open(t, n.config("p")))
	send(t, s, "pm", "roadmap", "one")
	send(t, s, "pm", "roadmap", "two")
	await(t, s, func() bool { _, err := n.Foreign().Stream(t.Context(), "p_PARALLEL_WORK"); return err == nil })
	for range 2 {
		got := inspect(t, n.config("p"))
		if got[0].Channel.Name != "roadmap" || !got[0].Exists || got[0].Messages != 2 || got[0].Bytes == 0 || time.Since(got[0].Newest) > time.Hour || got[0].Err != nil {
			t.Errorf("roadmap: %+v", got[0])
		}
		if !got[1].Exists || got[1].Messages != 0 || got[1].Err != nil {
			t.Errorf("parallel-work: %+v", got[1])
		}
	}
	if got := texts(t, s, "roadmap", 10); len(got) != 2 {
		t.Errorf("the channel has %q", got)
	}
}

func TestInspectFindsAForeignStream(t *testing.T) {
	n := startServer(t)
	if _, err := n.Foreign().CreateStream(t.Context(), jetstream.StreamConfig{Name: "p_ROADMAP", Subjects: []string{"elsewhere"}}); err != nil {
		t.Fatal(err)
	}
	got := inspect(t, n.config("p"))
	e, ok := got[0].Err.(*chat.Error)
	if !ok || e.Code != chat.ConflictError || got[1].Err != nil {
		t.Errorf("got %+v", got)
	}
}

// REQ-SEC-008: NATS decides who may publish; Inspect reports a missing permission as such.
func TestInspectReportsAMissingPermission(t *testing.T) {
	for name, allow := range map[string][]string{
		"to publish":          {"$JS.API.>", "_INBOX.>"},
		"to ask for a stream": {"$JS.API.INFO", "p.>", "_INBOX.>"},
	} {
		t.Run(name, func(t *testing.T) {
			n := startServer(t)
			s := chat.Open(n.config("p"))
			send(t, ready(t, s), "pm", "roadmap", "x")
			send(t, s, "pm", "parallel-work", "x")
			if _, err := s.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			n.Stop()
			n.Start(func(o *server.Options) {
				o.Users = []*server.User{{Username: "u", Password: "p", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Allow: allow}}}}
			})
			cfg := n.config("p")
			cfg.Dial = func(ctx context.Context) (*bus.Bus, error) {
				return bus.Open(ctx, bus.Config{URL: bus.Secret(n.URL()), Credentials: bus.Credentials{User: "u", Password: "p"}})
			}
			for _, s := range inspect(t, cfg) {
				e, ok := s.Err.(*chat.Error)
				if !ok || e.Code != chat.ConnectionError || !strings.Contains(e.Message, "does not let this user") || e.Remedy == "" {
					t.Errorf("%s: %+v", s.Channel.Name, s.Err)
				}
			}
		})
	}
}
