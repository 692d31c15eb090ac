package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/federation/node"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve runs a hub with the agent echo and returns its URL.
func serve(t *testing.T, tier *int) string {
	t.Helper()
	def, err := runner.Definition{ID: "echo", Driver: runner.DriverEcho, Args: []string{"words"}, Tier: tier}.Complete()
	if err != nil {
		t.Fatal(err)
	}
	echo, err := runner.Open(def, runner.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := hub.New(t.Context(), hub.Config{Agents: []hub.Agent{{Definition: def, Runner: echo}}})
	if err != nil {
		t.Fatal(err)
	}
	n, err := node.Open(node.Options{Hub: h})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	n.Mount(mux.Handle)
	srv := httptest.NewServer(mux)
	t.Cleanup(func() {
		if err := errors.Join(h.Close(context.Background()), n.Close(context.Background())); err != nil {
			t.Error(err)
		}
		srv.Close()
	})
	return srv.URL
}

// An agent of L2 may not answer one of L3: the hub says so, and ask does not wait
// for ever.
func TestAskSaysWhyTheHubRefuses(t *testing.T) {
	tier := 2
	var out strings.Builder
	if err := ask(t.Context(), &out, serve(t, &tier), "", "echo", "hello"); err == nil || !strings.Contains(err.Error(), "could not answer") {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func TestAskPrintsWhatTheAgentAnswers(t *testing.T) {
	url := serve(t, nil)
	var out strings.Builder
	if err := ask(t.Context(), &out, url, "", "echo", "is anybody there?"); err != nil || out.String() != "is anybody there?\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	if err := ask(t.Context(), &out, url, "", "no-such-capability", "hello"); err == nil || !strings.Contains(err.Error(), "no-such-capability") {
		t.Errorf("%v", err)
	}
}
