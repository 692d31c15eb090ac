package router_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/registry"
	"github.com/parleyhub/parley/router"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type tb interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
	Errorf(string, ...any)
	Cleanup(func())
}

func newRouter(t tb, o router.Options) *router.Router {
	t.Helper()
	reg := registry.New(registry.Options{})
	r, err := router.New(reg, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := reg.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return r
}

func card(id string, tier agent.Tier, capabilities ...string) agent.Card {
	c := agent.Card{ID: id, Name: id, Version: "1.0.0", Tier: tier, Capabilities: []agent.Capability{}}
	for _, x := range capabilities {
		c.Capabilities = append(c.Capabilities, agent.Capability{ID: x})
	}
	return c
}

func register(t tb, r *router.Router, c agent.Card) {
	t.Helper()
	if _, err := r.Registry().Register(c); err != nil {
		t.Fatal(err)
	}
}

func newEnvelope(t tb, from, to string) *envelope.Envelope {
	t.Helper()
	e, err := envelope.New(from, to, envelope.Request, "hello")
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// waitUntil yields the processor until the condition holds: sleeping would spoil a
// benchmark.
func waitUntil(t testing.TB, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("the condition did not hold within a minute")
		}
	}
}
